"""Small vision-language models with random weights, and a text with an image for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from helpers.architectures import IMAGE, TEXT

IMAGE_TOKEN = 100
Inputs = dict[str, torch.Tensor]


def pixels(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def _llama(**more: Any) -> Any:
    return transformers.LlamaConfig(**{**TEXT, **more}, num_key_value_heads=2, pad_token_id=0)


def _built(kind: str, config: Any) -> Any:
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    return getattr(transformers, kind)._from_config(config).eval()


def llava(**text: Any) -> tuple[Any, Inputs]:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE), text_config=_llama(**text), image_token_id=IMAGE_TOKEN,
        image_seq_length=16, vision_feature_select_strategy="default",
    )  # fmt: skip
    ids = torch.tensor([[1, 5, 6, *[IMAGE_TOKEN] * 16, 7, 8, 9]])
    return _built("LlavaForConditionalGeneration", config), {"input_ids": ids, "pixel_values": pixels()}


def paligemma() -> tuple[Any, Inputs]:
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**IMAGE, projection_dim=32, num_image_tokens=16),
        text_config=transformers.GemmaConfig(**TEXT, num_key_value_heads=1, head_dim=8), image_token_index=IMAGE_TOKEN,
        projection_dim=32,
    )  # fmt: skip
    ids = torch.tensor([[*[IMAGE_TOKEN] * 16, 1, 7, 8, 9]])
    inputs = {"input_ids": ids, "pixel_values": pixels(), "token_type_ids": torch.zeros_like(ids)}
    return _built("PaliGemmaForConditionalGeneration", config), inputs


def idefics3() -> tuple[Any, Inputs]:
    """Squares of four patches are one position."""
    config = transformers.Idefics3Config(
        vision_config=dict(IMAGE), text_config=_llama(), image_token_id=IMAGE_TOKEN, scale_factor=2
    )
    ids = torch.tensor([[1, 5, *[IMAGE_TOKEN] * 4, 7, 8, 9]])
    return _built("Idefics3ForConditionalGeneration", config), {"input_ids": ids, "pixel_values": pixels()[None]}


MODELS: dict[str, Callable[[], tuple[Any, Inputs]]] = {"LLaVA": llava, "PaliGemma": paligemma, "Idefics3": idefics3}
