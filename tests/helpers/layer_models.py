"""Small models in double precision for layer-by-layer gradients: grouped heads, windows, softcaps, sinks, encoders."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers

import attnflow as af
from helpers.small_tokenizers import wordpiece

IDS = torch.randint(5, 30, (1, 14), generator=torch.Generator().manual_seed(1))
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 120,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {
    "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 120, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("GPT2Config", GPT2),
    "LlamaForCausalLM": ("LlamaConfig", GROUPED),
    "MistralForCausalLM": ("MistralConfig", {**GROUPED, "sliding_window": 5}),
    "Gemma2ForCausalLM": (
        "Gemma2Config",
        {**GROUPED, "head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 2.0},
    ),
    "GptOssForCausalLM": (
        "GptOssConfig",
        {**GROUPED, "head_dim": 8, "sliding_window": 5, "num_local_experts": 4, "rope_parameters": ROPE},
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "AlbertForSequenceClassification": ("AlbertConfig", {**SIZES, "embedding_size": 16, "num_labels": 3}),
    "BertForSequenceClassification": ("BertConfig", {**SIZES, "num_labels": 3}),
    "BertForMaskedLM": ("BertConfig", SIZES),
}


def built(name: str, **more: Any) -> Any:
    """Return a model in double precision; weights are large enough for nonlinearities to matter, biases nonzero."""
    config, sizes = MODELS[name]
    torch.manual_seed(0)
    module = getattr(transformers, name)(getattr(transformers, config)(**{**sizes, **more}))
    if name == "GptOssForCausalLM":
        module.set_experts_implementation("eager")  # the fused one does not support double precision
    for parameter_name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0 if "weight" in parameter_name else 0.0, 0.3)
        else:
            parameter.data.mul_(6)
    return module.double()


@cache
def model(name: str) -> Any:
    return af.wrap(built(name), wordpiece() if name == "BertForMaskedLM" else None)


def ids_of(wrapped: Any) -> dict[str, torch.Tensor]:
    if wrapped.tokenizer is None:
        return {"input_ids": IDS}
    masked = IDS.clone()
    masked[0, 6] = wrapped.tokenizer.mask_token_id
    return {"input_ids": masked}
