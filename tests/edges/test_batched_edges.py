"""Edges about the answers of many texts at once: what the texts give one by one, and what a batch refuses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="edges need torch")
transformers = pytest.importorskip("transformers", reason="edges need transformers")

import attnflow as af  # noqa: E402
from attnflow.capture.assemble import natural_query  # noqa: E402
from attnflow.edges import batched  # noqa: E402
from attnflow.edges.batched import TextBatch  # noqa: E402
from helpers.small_models import bert, gpt2  # noqa: E402
from helpers.small_tokenizers import byte_level  # noqa: E402

TEXTS = (
    "the key to the cabinet",
    "nobody is able to answer the book, the key, the cabinet",
    "a",
    "is the answer known to nobody?",
)
MASKED = tuple(f"{text} [MASK] the key" for text in TEXTS)
SLACK = 2e-5
"""Of float32 numbers, relative to the largest of a text: batches multiply and add in another order."""


def llama() -> Any:
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=64, initializer_range=0.5, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return af.wrap(transformers.LlamaForCausalLM(config), tokenizer)


def last_position() -> Any:
    """A token classifier that answers at the end of each text, wherever that is."""
    model = bert("BertForTokenClassification", num_labels=3)
    model.config.prediction_position = -1
    return model


MODELS = {
    "classifier": lambda: bert("BertForSequenceClassification", num_labels=3),
    "several labels": lambda: bert(
        "BertForSequenceClassification", num_labels=3, problem_type="multi_label_classification"
    ),
    "score": lambda: bert("BertForSequenceClassification", num_labels=1),
    "masked": lambda: bert("BertForMaskedLM"),
    "llama": llama,
    "gpt2": gpt2,
    "decoder classifier": lambda: gpt2("GPT2ForSequenceClassification", num_labels=3, pad_token_id=0),
    "last position": last_position,
    "embedded": lambda: af.load(device="cpu"),
}
CAUSAL = ("llama", "gpt2", "decoder classifier")


@cache
def model(name: str) -> Any:
    return MODELS[name]()


def texts(name: str) -> tuple[str, ...]:
    return MASKED if name == "masked" else TEXTS


@cache
def batch(name: str) -> TextBatch:
    wrapped = model(name)
    return TextBatch.of(wrapped, [wrapped.encode(text) for text in texts(name)])


@cache
def traces(name: str, edges: str) -> list[Any]:
    return [model(name).trace(text, edges=edges) for text in texts(name)]


def natural(name: str) -> list[int]:
    wrapped = model(name)
    return [natural_query(batch(name).checked, wrapped.encode(text).special) for text in texts(name)]


def same(values: Any, expected: list[np.ndarray], slack: float = SLACK) -> None:
    """values: [text, position, …]; expected: of each text, without padding."""
    assert len(values) == len(expected)
    for one, alone in zip(values.cpu().double().numpy(), expected, strict=True):
        inner = tuple(slice(0, n) for n in alone.shape)
        np.testing.assert_allclose(one[inner], alone, rtol=0, atol=slack * max(np.abs(alone).max(), 1e-6))
        outer = np.ones(one.shape, bool)
        outer[inner] = False
        assert (one[outer] == 0).all()
    assert max(np.abs(alone).max() for alone in expected) > 1e-4  # there is something that could differ


@pytest.mark.parametrize("edges", ["attention-gradient", "gradient"])
@pytest.mark.parametrize("name", MODELS)
def test_gather_of_a_batch_is_that_of_its_texts(name: str, edges: str) -> None:
    together = batched.edges_by_gradient(batch(name), edges)
    for options in ({}, {"residual": 1.0}, {"residual": 0.3, "receptive_field": None}):
        same(together.gather(**options), [trace.gather(**options).row() for trace in traces(name, edges)])


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_a_batch_are_those_of_its_texts(name: str) -> None:
    parts, alone = batched.split(batch(name), natural=natural(name), attention=True), traces(name, "answer")
    for signed in (True, "shares", False):
        same(parts.answer_rows(signed), [trace.answer_rows(signed=signed).row() for trace in alone])
        same(parts.answer_inputs(signed), [trace.answer_inputs(signed=signed).row() for trace in alone])
    for options in ({}, {"residual": 1.0, "receptive_field": None}):
        same(parts.gather(**options), [trace.gather(**options).row() for trace in alone])
    assert parts.gap <= 1e-5
    assert batch(name).checked.causal == (name in CAUSAL)
