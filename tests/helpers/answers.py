"""Answers of a small decoder with random weights, for tests of the views."""

from __future__ import annotations

from typing import Any

import torch
import transformers

import attnflow as af
from helpers.chat_templates import PLAIN
from helpers.small_tokenizers import byte_level

QUESTION = "Who has the key?"
MINUTES = "The key is in the cabinet. Nobody's books are there.\n\nThe café in Zürich is naïve \U0001f642 שלום."
NOTES = "A rusty </script><b>key\x1b[31m</b> ‮gnol."
ANSWER = "the rusty key \U0001f642, said twice"


def decoder() -> Any:
    """Return a Llama of two layers, with a chat template that uses special tokens."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|stop|>"]})
    tokenizer.chat_template = PLAIN
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096, initializer_range=0.5, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return af.wrap(transformers.LlamaForCausalLM(config).double(), tokenizer)


def chatted(model: Any) -> Any:
    """Return an answer to messages and documents, some of them hostile."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    return model.answer(chat, documents={"minutes.txt": MINUTES, "notes.txt": NOTES}, answer=ANSWER)


def shared(place: int, row: Any, offsets: Any) -> float:
    """Return the share of the tokens that contain a character, and of all tokens that overlap with those."""
    places, tokens = {place}, set[int]()
    while True:
        more = {i for i, (a, b) in enumerate(offsets) if any(a <= p < b for p in places)}
        if more == tokens:
            return float(sum(row[i] for i in tokens))
        tokens = more
        places |= {p for i in tokens for p in range(*offsets[i])}
