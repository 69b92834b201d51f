"""Small models as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from helpers.architectures import LLAMA, hf

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def interleaved(weight: torch.Tensor, heads: int, back: bool = False) -> torch.Tensor:
    """Return the rows of a head in llama.cpp's order, which alternates the two rotated halves. back: undo it."""
    halves = (heads, -1, 2) if back else (heads, 2, -1)
    return weight.reshape(*halves, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def written(path: Path, tokenizer: Any, kind: str = "F32", **sizes: Any) -> Any:
    """Write a small Llama with the gguf package; return the model with the weights of the file.

    kind: how matrices are quantised, in GGUF's terms. sizes: for the configuration.
    """
    own = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0}
    model = hf("LlamaForCausalLM", **{**LLAMA, **own, **sizes})("eager")
    quantised = gguf.GGMLQuantizationType[kind]
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    writer.add_token_types([3] + [1] * (len(tokenizer) - 1))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, weight in model.state_dict().items():
        stem = name.removesuffix(".weight")
        heads = None
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = interleaved(weight, heads)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            stem = f"blk.{layer}.{NAMES[part]}"
        else:
            stem = NAMES[stem]
        numbers = weight.float().numpy()
        if weight.dim() == 1 or kind == "F32":
            writer.add_tensor(f"{stem}.weight", numbers)
            continue
        data = gguf.quants.quantize(np.ascontiguousarray(numbers), quantised)
        writer.add_tensor(f"{stem}.weight", data, raw_dtype=quantised)
        read = torch.tensor(gguf.quants.dequantize(data, quantised)).reshape(weight.shape)
        model.get_parameter(name).data = read if heads is None else interleaved(read, heads, back=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
