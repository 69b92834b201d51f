"""A GGUF file: the model that was written, read once, without a bar."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

import attnflow as af
from attnflow.capture.hub import gguf_read_once
from helpers.architectures import LLAMA, hf
from helpers.small_tokenizers import byte_level

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from transformers import modeling_gguf_pytorch_utils as reading  # noqa: E402

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of a head in llama.cpp's order: the two halves that rotate together in turn."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def written(path: Path, tokenizer: Any) -> Any:
    """A small Llama as GGUF, by the package's own writer."""
    model = hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0})()
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
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = interleaved(weight, heads)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            stem = f"blk.{layer}.{NAMES[part]}"
        else:
            stem = NAMES[stem]
        writer.add_tensor(f"{stem}.weight", weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_the_model_that_was_written_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_level()
    model = written(tmp_path / "small.gguf", tokenizer)
    reader, tables, bars = gguf.GGUFReader, gguf.get_tensor_name_map, reading.tqdm
    calls: list[str] = []

    def counted(name: str, task: Any) -> Any:
        return lambda *words: calls.append(name) or task(*words)

    monkeypatch.setattr(gguf, "GGUFReader", counted("file", reader))
    monkeypatch.setattr(gguf, "get_tensor_name_map", counted("table", tables))
    loaded = af.load(tmp_path / "small.gguf", dtype="float32")
    assert sorted(calls) == ["file", "table"]
    assert capfd.readouterr() == ("", "")
    assert reading.tqdm is bars
    own = model.state_dict()
    assert all(torch.equal(weight, own[name]) for name, weight in loaded.model.state_dict().items())
    text = "The keys to the cabinet"
    assert loaded.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]
    trace = loaded.trace(text)
    assert trace.tokens == af.wrap(model, tokenizer).trace(text).tokens
    af.load(tmp_path / "small.gguf")
    assert calls.count("file") == 2  # nothing is kept between loads: the file may have changed


def test_the_libraries_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [(gguf, "GGUFReader"), (gguf, "get_tensor_name_map"), (reading, "tqdm")]
    before = [getattr(*name) for name in names]
    with pytest.raises(OSError, match="broken"), gguf_read_once():
        assert not any(getattr(*name) is value for name, value in zip(names, before, strict=True))
        raise OSError("broken")
    assert [getattr(*name) for name in names] == before

    def load() -> None:
        with gguf_read_once():
            pass

    threads = [Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [getattr(*name) for name in names] == before
    monkeypatch.delattr(reading, "tqdm")  # as another version of transformers may be
    with gguf_read_once():
        assert not hasattr(reading, "tqdm")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with gguf_read_once():  # not installed: transformers says so
        pass
