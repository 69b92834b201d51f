"""Small wrapped models with random weights, and the real checkpoints available as packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import attnflow as af
from helpers.architectures import POSITIONS, hf
from helpers.small_tokenizers import byte_level, wordpiece

TEXT = "the key to the cabinet"
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.7,
}


def bert(kind: str, tokenizer: Any = None, **more: Any) -> Any:
    tokenizer = tokenizer or wordpiece()
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **SIZES, **more)
    return af.wrap(getattr(transformers, kind)(config), tokenizer)


def gpt2(kind: str = "GPT2LMHeadModel", tokenizer: Any = None, **more: Any) -> Any:
    tokenizer = tokenizer or byte_level()
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5, **ids, **more
    )
    return af.wrap(getattr(transformers, kind)(config), tokenizer)


def sinking() -> Any:
    """Return a GPT-2 in which every position attends to token 1, whose value is short: a sink at any position."""
    torch.manual_seed(0)
    tokenizer, width = byte_level(), 16
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=width, n_layer=6, n_head=2, initializer_range=0.5,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        states = model.transformer
        states.wpe.weight.mul_(0.05)
        states.wte.weight[:, 0] = 0
        states.wte.weight[1] = 0
        states.wte.weight[1, 0] = 4000  # this token is the same after every norm
        for block in states.h:
            c = block.attn.c_attn
            c.bias[:width] = 1
            c.weight[0, width : 2 * width] = 4  # its key matches all queries
            c.weight[1:, width : 2 * width] *= 0.1
            c.weight[0, 2 * width :] = 0  # its value is zero, even after the norm subtracts the mean
            c.weight[1:, 2 * width :] -= c.weight[1:, 2 * width :].mean(0)
    return af.wrap(model, tokenizer)


def saved(model: Any, folder: Path) -> dict[str, Any]:
    """Save the model, and return the options that load it again."""
    model.unwrap().save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return {"model": str(folder), "device": "cpu"}


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {name} is not installed; make test installs it")
    return Path(spec.origin).parent


def model_folder(path: Path, model: Any, tokenizer: Any = None) -> Path:
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


def classifier() -> Any:
    return hf(
        "BertForSequenceClassification", **POSITIONS, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}
    )()
