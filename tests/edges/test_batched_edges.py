"""Edges for the answers of many texts at once: equal to those of single texts, and what a batch refuses."""

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
from attnflow.errors import InputError, ModelError  # noqa: E402
from attnflow.rollout import rollout  # noqa: E402
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
"""Tolerance in float32, relative to the largest value of a text: batches multiply and add in another order."""


def llama() -> Any:
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=64, initializer_range=0.5, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return af.wrap(transformers.LlamaForCausalLM(config), tokenizer)


def last_position() -> Any:
    """Return a token classifier that answers at the end of each text."""
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
    """Return a model by name, in double precision if the name ends in "double"."""
    kind = name.removesuffix(", double")
    wrapped = MODELS[kind]()
    if kind != name:
        wrapped.model.double()
    return wrapped


def texts(name: str) -> tuple[str, ...]:
    return MASKED if name.startswith("masked") else TEXTS


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
    """Compare values [text, position, …] with those of each text without padding."""
    assert len(values) == len(expected)
    for one, alone in zip(values.cpu().double().numpy(), expected, strict=True):
        inner = tuple(slice(0, n) for n in alone.shape)
        np.testing.assert_allclose(one[inner], alone, rtol=0, atol=slack * max(np.abs(alone).max(), 1e-6))
        outer = np.ones(one.shape, bool)
        outer[inner] = False
        assert (one[outer] == 0).all()
    assert max(np.abs(alone).max() for alone in expected) > 1e-4  # the comparison is not trivial


def sums(edges: Any) -> Any:
    """Return what each position gives along the edges of all layers: [text, position]."""
    return torch.stack(edges.graph()).sum((0, 2))


def summed(trace: Any) -> np.ndarray:
    """Return the same of one text."""
    return sum(step.weights for step in trace.steps).sum(0).numpy()


@pytest.mark.parametrize("edges", ["attention-gradient", "gradient"])
@pytest.mark.parametrize("name", MODELS)
def test_gradient_edges_of_a_batch_are_those_of_its_texts(name: str, edges: str) -> None:
    same(sums(batched.edges_by_gradient(batch(name), edges)), [summed(trace) for trace in traces(name, edges)])


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_a_batch_are_those_of_its_texts(name: str) -> None:
    parts, alone = batched.split(batch(name), natural=natural(name)), traces(name, "answer")
    for signed in (True, "shares", False):
        same(parts.answer_rows(signed), [trace.answer_rows(signed=signed).row() for trace in alone])
        same(parts.answer_inputs(signed), [trace.answer_inputs(signed=signed).row() for trace in alone])
    evidence = [trace.inside.evidence for trace in alone]
    np.testing.assert_allclose(parts.log_odds, [one.y for one in evidence], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(parts.constants, [one.constants for one in evidence], rtol=1e-3, atol=1e-4)
    assert float(parts.gaps.max()) <= 1e-5
    assert batch(name).checked.causal == (name in CAUSAL)


def rolled(trace: Any) -> np.ndarray:
    """Return rollout [layer, query, input], with a residual weight other than the default if the edges need one."""
    return trace.rollout(query="all", residual=0.3).values


@pytest.mark.parametrize("normalize", ["none", "graph", "rows"])
@pytest.mark.parametrize("edges", ["gradient", "attention-gradient", "answer"])
@pytest.mark.parametrize("name", ["classifier, double", "masked, double", "llama, double", "embedded, double"])
def test_edges_of_a_batch_are_those_of_its_texts(name: str, edges: str, normalize: str) -> None:
    """In double precision, because dividing a small row by its sum amplifies rounding."""
    made = batched.edges_of(batch(name), edges)
    graph = made.graph(normalize)
    alone = [trace.with_edges(edges, normalize) for trace in traces(name, edges)]
    assert made.whole == (edges == "answer") == alone[0].steps[0].whole
    for layer, weights in enumerate(graph):
        same(weights, [trace.steps[layer].weights.numpy() for trace in alone], 1e-6)
    with_own = graph if made.whole else [af.graph.with_residual(weights, 0.3) for weights in graph]
    down = rollout([weights.double() for weights in with_own])  # [text, layer, query, input]
    for one, trace in zip(down, alone, strict=True):
        expected = rolled(trace)
        np.testing.assert_allclose(
            one[:, : expected.shape[1], : expected.shape[2]], expected, rtol=0, atol=1e-6 * expected.max()
        )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["classifier", "llama"])
def test_a_text_that_is_not_finite_refuses_its_batch(name: str, value: float) -> None:
    wrapped = MODELS[name]()
    harmed = wrapped.encode(TEXTS[1])
    token = int(harmed.tensors["input_ids"][0, -2])
    others = [one for one in map(wrapped.encode, TEXTS) if token not in one.tensors["input_ids"]]
    assert others
    sound = TextBatch.of(wrapped, others)
    expected = sums(batched.edges_by_gradient(sound))
    with torch.no_grad():
        wrapped.model.get_input_embeddings().weight[token] = value
    both = TextBatch(wrapped, sound.checked, *_tensors(wrapped, [*others, harmed]))
    with pytest.raises(
        ModelError, match=r"gives numbers that are not finite for a text of this batch of \d: run its texts one by one"
    ):
        batched.edges_by_gradient(both)
    for run in (batched.split, batched.answer_edges):
        with pytest.raises(ModelError, match="the log-odds of this answer are nan"):
            run(both)
    assert torch.equal(sums(batched.edges_by_gradient(sound)), expected)


def _tensors(wrapped: Any, encoded: list[Any]) -> tuple[Any, list[int]]:
    both = TextBatch.of(wrapped, encoded)
    return both.tensors, list(both.lengths)


def test_a_text_without_a_mask_refuses_its_batch() -> None:
    wrapped = model("masked")
    for some in ((MASKED[0], TEXTS[1]), (TEXTS[0], MASKED[1])):
        together = TextBatch.of(wrapped, [wrapped.encode(text) for text in some])
        for run in (batched.edges_by_gradient, batched.split):
            with pytest.raises(
                InputError, match=r"the text has no \[MASK\], so the masked language model has nothing to predict"
            ):
                run(together)


def test_what_a_batch_does_not_know() -> None:
    with pytest.raises(
        InputError,
        match="edges='alti': for a batch, expected 'gradient', 'attention-gradient', 'answer'",
    ):
        batched.edges_of(batch("classifier"), "alti")
    with pytest.raises(InputError, match="of='difference': for a batch, expected 'probability', 'logit' or 'log-odds'"):
        batched.edges_by_gradient(batch("classifier"), of="difference")
    bare = bert("BertModel")
    together = TextBatch.of(bare, [bare.encode(text) for text in TEXTS])
    with pytest.raises(InputError, match=r"these edges are about an answer, and .* has no head"):
        batched.edges_by_gradient(together)


def test_biases_of_experts_are_of_the_batch_as_a_whole() -> None:
    """Tokens reach experts in another order, so the part of their biases cannot be split by text."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=90, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16, num_local_experts=3, num_experts_per_tok=2, sliding_window=64, pad_token_id=0,
    )  # fmt: skip
    wrapped = af.wrap(transformers.GptOssForCausalLM(config))
    generator = torch.Generator().manual_seed(0)
    inputs = [{"input_ids": torch.randint(1, 90, (1, n), generator=generator)} for n in (5, 9, 7)]
    parts = batched.split(TextBatch.of(wrapped, [wrapped.encode(one) for one in inputs]))
    alone = [wrapped.trace(one, edges="answer") for one in inputs]
    same(parts.answer_rows(True), [trace.answer_rows(signed=True).row() for trace in alone], 1e-4)
    assert parts.constants is None
    assert float(parts.gaps.max()) <= 1e-4 and (parts.gaps == parts.gaps[0]).all()


def test_a_model_that_reads_its_answer_from_padding_is_refused() -> None:
    """A decoder finds the end of a text by its own padding token, but the tokenizer uses another."""
    wrapped = gpt2("GPT2ForSequenceClassification", num_labels=3, pad_token_id=7)
    wrapped.tokenizer.pad_token = wrapped.tokenizer.convert_ids_to_tokens(5)
    encoded = [wrapped.encode(text) for text in TEXTS]
    together = TextBatch.of(wrapped, encoded)
    assert together.checked.padding is False
    for run in (batched.edges_by_gradient, batched.split):
        with pytest.raises(
            ModelError,
            match="computes other numbers for a padded text than for the text alone: run texts of one length",
        ):
            run(together)
    alike = TextBatch.of(wrapped, [encoded[0], encoded[0]])
    expected = wrapped.trace(TEXTS[0], edges="answer").answer_rows(signed=True).row()
    same(batched.split(alike).answer_rows(True), [expected, expected])


@pytest.mark.parametrize("name", MODELS)
def test_predictions_of_a_padded_batch_are_those_of_its_texts(name: str) -> None:
    """Even if a model answers at the last position of a text, which is not the last of the batch."""
    wrapped = model(name)
    together = wrapped.run_batch([wrapped.encode(text) for text in texts(name)])
    for number, text in enumerate(texts(name)):
        padded, alone = together.prediction(number), wrapped.trace(text).prediction
        assert padded.kind == alone.kind and [label for label, _ in padded.top] == [label for label, _ in alone.top]
        np.testing.assert_allclose([p for _, p in padded.top], [p for _, p in alone.top], atol=1e-5)
