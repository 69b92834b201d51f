"""Random sentence-embedding models in the format of sentence-transformers, and their embeddings by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from helpers.small_tokenizers import byte_level, wordpiece

PAIR = ("the key to the cabinet", "a book is the answer, nobody")
KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
WIDTH = 16


def encoder(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(wordpiece()), max_position_embeddings=32, hidden_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, initializer_range=0.4,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def decoder() -> Any:
    """Return a language model; its folder names the head, which an embedder does not use."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(byte_level()), max_position_embeddings=64, hidden_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, intermediate_size=32, initializer_range=0.4,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def write_folder(
    folder: Path,
    model: Any,
    tokenizer: Any,
    pooling: Mapping[str, Any],
    after: Mapping[str, tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]] | None = None,
    settings: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    inner: str = "",
) -> Path:
    """Write a sentence-transformers folder. after: configs and weights of the modules after pooling, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder / inner)
    tokenizer.save_pretrained(folder / inner)
    modules = [("Transformer", inner), ("Pooling", "1_Pooling"), *((name, f"2_{name}") for name in after or {})]
    write(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules)
    ])  # fmt: skip
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **pooling})
    for name, (config, weights) in (after or {}).items():
        write(folder / f"2_{name}" / "config.json", config)
        if weights:
            save_file(dict(weights), folder / f"2_{name}" / "model.safetensors")
    write(
        folder / inner / "sentence_bert_config.json", {"max_seq_length": 30, "do_lower_case": False, **(settings or {})}
    )
    write(folder / "config_sentence_transformers.json", more or {})
    return folder


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


def one_mode(mode: str) -> dict[str, Any]:
    """Return a pooling configuration in the style of older folders."""
    return {key: name == mode for name, key in KEYS.items()}


def states_of(model: Any, tokenizer: Any, text: str) -> np.ndarray:
    """Return the states of the last layer, [token, width], from the plain model with eager attention."""
    inner = getattr(model, "model", model) if hasattr(model, "lm_head") else model
    inner.set_attn_implementation("eager")
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return inner(input_ids=ids).last_hidden_state[0].double().numpy()


def pooled(states: np.ndarray, mode: str) -> np.ndarray:
    """Compute the embedding by its definition."""
    n = len(states)
    if mode == "cls":
        return states[0]
    if mode == "lasttoken":
        return states[-1]
    if mode == "max":
        return states.max(0)
    if mode == "mean_sqrt_len_tokens":
        return states.sum(0) / np.sqrt(n)
    weights = np.arange(1, n + 1) if mode == "weightedmean" else np.ones(n)
    return (weights[:, None] * states).sum(0) / weights.sum()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
