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


def text(places: int, before: tuple[int, ...] = (1, 5), after: tuple[int, ...] = (7, 8, 9)) -> torch.Tensor:
    """Return token ids with this many image positions among them."""
    return torch.tensor([[*before, *[IMAGE_TOKEN] * places, *after]])


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
    """Four patches in a square are one position."""
    config = transformers.Idefics3Config(
        vision_config=dict(IMAGE), text_config=_llama(), image_token_id=IMAGE_TOKEN, scale_factor=2
    )
    ids = torch.tensor([[1, 5, *[IMAGE_TOKEN] * 4, 7, 8, 9]])
    return _built("Idefics3ForConditionalGeneration", config), {"input_ids": ids, "pixel_values": pixels()[None]}


def smolvlm() -> tuple[Any, Inputs]:
    config = transformers.SmolVLMConfig(
        vision_config=dict(IMAGE), text_config=_llama(), image_token_id=IMAGE_TOKEN, scale_factor=2
    )
    return _built("SmolVLMForConditionalGeneration", config), {"input_ids": text(4), "pixel_values": pixels()[None]}


def idefics2() -> tuple[Any, Inputs]:
    """There are as many query tokens as squares of four patches."""
    latents = {
        "hidden_size": 32, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 4,
        "num_key_value_heads": 2, "resampler_head_dim": 8,
    }  # fmt: skip
    config = transformers.Idefics2Config(
        vision_config=dict(IMAGE), perceiver_config=latents, image_token_id=IMAGE_TOKEN,
        text_config=transformers.MistralConfig(**TEXT, num_key_value_heads=2, head_dim=8, pad_token_id=0),
    )  # fmt: skip
    return _built("Idefics2ForConditionalGeneration", config), {"input_ids": text(4), "pixel_values": pixels()[None]}


def blip2() -> tuple[Any, Inputs]:
    """There are as many query tokens as patches."""
    config = transformers.Blip2Config(
        vision_config=dict(IMAGE), num_query_tokens=16, image_token_index=IMAGE_TOKEN,
        qformer_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
            "encoder_hidden_size": 32, "vocab_size": 50,
        },
        text_config=transformers.OPTConfig(
            hidden_size=32, num_hidden_layers=3, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32,
            vocab_size=TEXT["vocab_size"], max_position_embeddings=64,
        ),
    )  # fmt: skip
    inputs = {"input_ids": text(16, (), (1, 7, 8, 9)), "pixel_values": pixels()}
    return _built("Blip2ForConditionalGeneration", config), inputs


def kosmos2() -> tuple[Any, Inputs]:
    """Sixteen query tokens replace sixteen positions given by a mask."""
    words = {"vocab_size": 128, "max_position_embeddings": 64, "embed_dim": 32, "layers": 3, "ffn_dim": 48, "attention_heads": 4}  # fmt: skip
    config = transformers.Kosmos2Config(vision_config=dict(IMAGE), text_config=words, latent_query_num=16)
    ids = torch.tensor([[0, 102, *range(4, 20), 103, 7, 8, 9]])
    mask = torch.zeros_like(ids)
    mask[0, 2:18] = 1
    inputs = {"input_ids": ids, "pixel_values": pixels(), "image_embeds_position_mask": mask}
    return _built("Kosmos2ForConditionalGeneration", config), inputs


def internvl() -> tuple[Any, Inputs]:
    vision = {**IMAGE, "patch_size": [8, 8], "image_size": [32, 32]}
    config = transformers.InternVLConfig(
        vision_config=vision, text_config=transformers.Qwen2Config(**TEXT, num_key_value_heads=2),
        image_token_id=IMAGE_TOKEN, image_seq_length=4, downsample_ratio=0.5,
    )  # fmt: skip
    return _built("InternVLForConditionalGeneration", config), {"input_ids": text(4), "pixel_values": pixels()}


def gemma3() -> tuple[Any, Inputs]:
    """Image positions attend to one another in both directions."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    words = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64, "layer_types": kinds}
    config = transformers.Gemma3Config(
        vision_config={**IMAGE, "vision_use_head": False}, text_config=words, mm_tokens_per_image=4,
        image_token_index=IMAGE_TOKEN, boi_token_index=102, eoi_token_index=103,
    )  # fmt: skip
    model = _built("Gemma3ForConditionalGeneration", config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # zero by default
    ids = text(4, (1, 5, 102), (103, 7, 8, 9))
    return model, {"input_ids": ids, "pixel_values": pixels(), "token_type_ids": (ids == IMAGE_TOKEN).long()}


def _pixtral() -> Any:
    return transformers.PixtralVisionConfig(**IMAGE, head_dim=8)


def _mistral() -> Any:
    return transformers.MistralConfig(**TEXT, num_key_value_heads=2, head_dim=8)


def mistral3() -> tuple[Any, Inputs]:
    config = transformers.Mistral3Config(
        vision_config=_pixtral(), text_config=_mistral(), image_token_index=IMAGE_TOKEN, spatial_merge_size=2,
        vision_feature_layer=-1,
    )  # fmt: skip
    inputs = {"input_ids": text(4), "pixel_values": pixels(), "image_sizes": torch.tensor([[32, 32]])}
    return _built("Mistral3ForConditionalGeneration", config), inputs


def pixtral() -> tuple[Any, Inputs]:
    config = transformers.LlavaConfig(
        vision_config=_pixtral(), text_config=_mistral(), image_token_index=IMAGE_TOKEN,
        vision_feature_select_strategy="full", vision_feature_layer=-1,
    )  # fmt: skip
    inputs = {"input_ids": text(16), "pixel_values": pixels(), "image_sizes": torch.tensor([[32, 32]])}
    return _built("LlavaForConditionalGeneration", config), inputs


def aya_vision() -> tuple[Any, Inputs]:
    config = transformers.AyaVisionConfig(
        vision_config=transformers.SiglipVisionConfig(**IMAGE), image_token_index=IMAGE_TOKEN, downsample_factor=2,
        text_config=transformers.Cohere2Config(**TEXT, num_key_value_heads=2, head_dim=8, eos_token_id=2),
        vision_feature_select_strategy="full", vision_feature_layer=-1,
    )  # fmt: skip
    return _built("AyaVisionForConditionalGeneration", config), {"input_ids": text(4), "pixel_values": pixels()}


def vip_llava() -> tuple[Any, Inputs]:
    """The states of two tower layers enter the text."""
    config = transformers.VipLlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE), text_config=_llama(), image_token_index=IMAGE_TOKEN,
        vision_feature_layers=[-1, -2],
    )  # fmt: skip
    return _built("VipLlavaForConditionalGeneration", config), {"input_ids": text(16), "pixel_values": pixels()}


def _crops(seed: int = 0) -> Inputs:
    """Return an image of 32×64 pixels, whole and in two crops, with a position at the end of each row of both."""
    crops = torch.randn(1, 3, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return {"input_ids": text(16 + 4 * 9), "pixel_values": crops, "image_sizes": torch.tensor([[32, 64]])}


def llava_next() -> tuple[Any, Inputs]:
    config = transformers.LlavaNextConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE), text_config=_llama(), image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=[[32, 64], [64, 32]], vision_feature_select_strategy="default",
    )  # fmt: skip
    return _built("LlavaNextForConditionalGeneration", config), _crops()


def llava_onevision() -> tuple[Any, Inputs]:
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**IMAGE), image_token_index=IMAGE_TOKEN,
        video_token_index=IMAGE_TOKEN + 1, text_config=transformers.Qwen2Config(**TEXT, num_key_value_heads=2),
        image_grid_pinpoints=[[32, 64], [64, 32]], vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_9",
    )  # fmt: skip
    return _built("LlavaOnevisionForConditionalGeneration", config), _crops()


def mllama() -> tuple[Any, Inputs]:
    """Cross-attention layers read the image, which has no positions in the text."""
    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "intermediate_size": 48,
        "vision_output_dim": 64, "image_size": 32, "patch_size": 8, "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
        "intermediate_layers_indices": [0],
    }  # fmt: skip
    words = {**TEXT, "num_key_value_heads": 2, "cross_attention_layers": [1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
    words["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config = transformers.MllamaConfig(vision_config=vision, text_config=words, image_token_index=IMAGE_TOKEN)
    ids = torch.tensor([[1, IMAGE_TOKEN, 5, 6, 7, 8]])
    inputs = {
        "input_ids": ids, "pixel_values": pixels()[None, None], "aspect_ratio_ids": torch.tensor([[1]]),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, 6, 1, 1, dtype=torch.long),
    }  # fmt: skip
    return _built("MllamaForConditionalGeneration", config), inputs


GRID = (4, 8)
"""Rows and columns of patches for models of variable resolution: wider than high."""


def cut_pixels(seed: int = 0) -> torch.Tensor:
    """Return a random image as rows of patches, one square of four after the other."""
    rows, columns = GRID
    picture = torch.randn(3, 2, rows * 8, columns * 8, generator=torch.Generator().manual_seed(seed))
    return as_rows(picture)


def as_rows(picture: torch.Tensor) -> torch.Tensor:
    """Lay out pixels [channel, frame, height, width] like Qwen2-VL's processor: [patch, numbers]."""
    channels, frames, high, wide = picture.shape
    cut = picture.reshape(channels, frames, high // 16, 2, 8, wide // 16, 2, 8)
    return cut.permute(2, 5, 3, 6, 0, 1, 4, 7).reshape(-1, channels * frames * 64)


def _qwen(kind: str, config: str, vision: dict[str, Any], sections: list[int], **words: Any) -> tuple[Any, Inputs]:
    tower = {"depth": 3, "hidden_size": 32, "num_heads": 4, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    marks = {"bos_token_id": 1, "eos_token_id": 2, "rope_parameters": rope}
    built = _built(
        kind,
        getattr(transformers, config)(
            vision_config={**tower, **vision}, text_config={**TEXT, "num_key_value_heads": 2, **marks, **words},
            image_token_id=IMAGE_TOKEN, video_token_id=IMAGE_TOKEN + 1, vision_start_token_id=102, vision_end_token_id=103,
        ),
    )  # fmt: skip
    ids = text(8, (1, 5, 102), (103, 7, 8, 9))
    grid = torch.tensor([[1, *GRID]])
    types = (ids == IMAGE_TOKEN).int()
    return built, {"input_ids": ids, "pixel_values": cut_pixels(), "image_grid_thw": grid, "mm_token_type_ids": types}


def qwen2_vl() -> tuple[Any, Inputs]:
    return _qwen("Qwen2VLForConditionalGeneration", "Qwen2VLConfig", {"embed_dim": 32, "mlp_ratio": 2}, [1, 1, 2])


def qwen2_5_vl() -> tuple[Any, Inputs]:
    """Two layers of the tower attend within windows of 4×4 patches."""
    vision = {"out_hidden_size": 32, "intermediate_size": 48, "window_size": 32, "fullatt_block_indexes": [2]}
    return _qwen("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", vision, [1, 1, 2])


def qwen3_vl() -> tuple[Any, Inputs]:
    """States of lower tower layers are added to those of the text's first layers (deepstack)."""
    vision = {"out_hidden_size": 32, "intermediate_size": 48, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}  # fmt: skip
    return _qwen("Qwen3VLForConditionalGeneration", "Qwen3VLConfig", vision, [2, 1, 1], head_dim=8)


def glm4v() -> tuple[Any, Inputs]:
    vision = {"out_hidden_size": 32, "intermediate_size": 48, "image_size": 32}
    return _qwen("Glm4vForConditionalGeneration", "Glm4vConfig", vision, [2, 1, 1], head_dim=8, pad_token_id=0)


MODELS: dict[str, Callable[[], tuple[Any, Inputs]]] = {
    "LLaVA": llava,
    "PaliGemma": paligemma,
    "Idefics3": idefics3,
    "SmolVLM": smolvlm,
    "InternVL": internvl,
    "Gemma 3": gemma3,
    "Mistral 3": mistral3,
    "Pixtral": pixtral,
    "Aya Vision": aya_vision,
    "ViP-LLaVA": vip_llava,
    "Qwen2-VL": qwen2_vl,
    "Qwen2.5-VL": qwen2_5_vl,
    "Qwen3-VL": qwen3_vl,
    "GLM-4V": glm4v,
}
"""Models whose image positions are patches."""

WITHOUT_PLACES: dict[str, Callable[[], tuple[Any, Inputs]]] = {
    "Idefics2": idefics2,
    "BLIP-2": blip2,
    "Kosmos-2": kosmos2,
    "LLaVA-NeXT": llava_next,
    "LLaVA-OneVision": llava_onevision,
}
"""Models whose image positions are not patches: query tokens read the whole image, and crops show each part twice."""
