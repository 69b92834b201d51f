"""Gradient edges in linear memory: rollout, raw and answer rows equal those of full matrices."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnflow as af
from attnflow.edges.weights import answer_rows, attention_gradient, evidence_graph
from attnflow.errors import ModelError
from helpers.layer_models import IDS, MODELS, built, ids_of, model
from helpers.small_models import TEXT, bert, gpt2
from helpers.wide import Living, Wide

pytestmark = pytest.mark.long

QUERIES = [3, 8, 13]


@cache
def ready(name: str) -> Any:
    """Return the model after its self-checks, which run in the precision of its file."""
    wrapped = model(name)
    wrapped.trace(ids_of(wrapped), memory="linear")
    return wrapped


@cache
def matrices(name: str) -> dict[str, np.ndarray]:
    """Return [layer, query, key] in double precision: attention times its gradient, and answer edges."""
    wrapped = ready(name)
    with Wide():
        inside = wrapped.trace(ids_of(wrapped), edges="attention-gradient")
        trace = wrapped.trace(ids_of(wrapped), edges="answer")
        tensors = {
            "attention-gradient": attention_gradient(inside),
            "graph": evidence_graph(trace),
        }
    return {key: x.numpy() for key, x in tensors.items()}


def traced(name: str, edges: str, **options: Any) -> Any:
    wrapped = ready(name)
    with Wide():
        return wrapped.trace(ids_of(wrapped), memory="linear", edges=edges, **options)


@pytest.mark.parametrize("normalize", [None, "rows", "graph"])
@pytest.mark.parametrize("name", MODELS)
def test_rollout_and_raw_of_gradients(name: str, normalize: str | None) -> None:
    edges = matrices(name)["attention-gradient"]
    if normalize == "rows":
        total = edges.sum(-1, keepdims=True)
        edges = edges / np.where(total == 0, 1, total)
    elif normalize == "graph":
        edges = edges / edges.sum(-1).max()
    trace = traced(name, "attention-gradient", normalize=normalize, queries=QUERIES, layers=[-1, 0])
    with Wide():
        raw, rolled = trace.raw(), trace.rollout(0.3)
    np.testing.assert_allclose(raw.values, edges[[2, 0]][:, QUERIES], rtol=1e-8, atol=1e-11)
    graph = 0.7 * edges + 0.3 * np.eye(14)
    expected = np.stack([graph[2] @ graph[1] @ graph[0], graph[0]])[:, QUERIES]
    np.testing.assert_allclose(rolled.values, expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_rollout_and_raw_of_answer_edges(name: str) -> None:
    graph = matrices(name)["graph"].copy()
    for layer in graph:
        idle = layer.sum(1) == 0
        layer[idle, idle] = 1
    graph /= graph.sum(-1, keepdims=True)
    trace = traced(name, "answer", queries=QUERIES, layers=[-1, 0])
    with Wide():
        raw, rolled = trace.raw(), trace.rollout()
    np.testing.assert_allclose(raw.values, graph[[2, 0]][:, QUERIES], rtol=1e-8, atol=1e-11)
    expected = np.stack([graph[2] @ graph[1] @ graph[0], graph[0]])[:, QUERIES]
    np.testing.assert_allclose(rolled.values, expected, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(rolled.values.sum(-1), 1, rtol=1e-9)


@pytest.mark.parametrize("query", [None, [4, 9]])
@pytest.mark.parametrize("name", MODELS)
def test_answer_rows(name: str, query: Any) -> None:
    wrapped = ready(name)
    with Wide():
        whole = wrapped.trace(ids_of(wrapped), edges="answer")
        linear = wrapped.trace(ids_of(wrapped), memory="linear", edges="answer")
        for signed in (True, False):
            expected, result = (trace.answer_rows(query, signed=signed) for trace in (whole, linear))
            np.testing.assert_allclose(result.values, expected.values, rtol=1e-8, atol=1e-11)
            assert result.queries == expected.queries and result.query_tokens == expected.query_tokens
            for key, value in expected.provenance["evidence"].items():
                assert result.provenance["evidence"][key] == pytest.approx(value, rel=1e-8, abs=1e-12)
    if query is not None:
        assert np.abs(answer_rows(whole, query).numpy()).max() > 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_answer_inputs(name: str) -> None:
    wrapped = ready(name)
    with Wide():
        whole = wrapped.trace(ids_of(wrapped), edges="answer")
        linear = wrapped.trace(ids_of(wrapped), memory="linear", edges="answer")
        for signed in (True, False):
            expected, result = (trace.answer_inputs(signed=signed) for trace in (whole, linear))
            np.testing.assert_allclose(result.values, expected.values, rtol=1e-8, atol=1e-11)
            assert result.queries == expected.queries and result.method == "answer_inputs"
    evidence = whole.answer_inputs(signed=True).provenance["evidence"]
    total = float(whole.answer_inputs(signed=True).values.sum()) + evidence["constants"]
    assert total == pytest.approx(evidence["log_odds"], rel=1e-6)


@pytest.mark.parametrize("edges", ["attention-gradient", "answer"])
@pytest.mark.parametrize("text", ["masked", "class", "next"])
def test_texts_are_as_in_the_graph(text: str, edges: str) -> None:
    """In single precision, with tokenizers and a given answer."""
    if text == "next":
        wrapped, given, answer = gpt2(), TEXT, "the"
    elif text == "class":
        wrapped, given, answer = bert("BertForSequenceClassification", num_labels=3), TEXT, 2
    else:
        wrapped, given, answer = bert("BertForMaskedLM"), "the key to the [MASK]", "cabinet"
    graph = wrapped.trace(given, edges=edges, answer=answer)
    linear = wrapped.trace(given, memory="linear", edges=edges, answer=answer)
    assert linear.provenance["answer"]["name"] == graph.provenance["answer"]["name"]
    assert linear.provenance["answer"]["of"] == graph.provenance["answer"]["of"]
    last = len(graph.tokens) - 1
    # answer shares of a row that carries almost nothing divide one rounding error by another
    slack = 5e-3 if edges == "answer" else 1e-6
    rolled = graph.rollout(query=last, layer=-1).values
    np.testing.assert_allclose(linear.rollout().values, rolled, rtol=1e-3, atol=slack)
    if edges == "answer":
        np.testing.assert_allclose(linear.answer_rows().values, graph.answer_rows().values, rtol=1e-3, atol=1e-6)


def test_a_list_goes_one_by_one() -> None:
    wrapped = gpt2()
    texts, answers = [TEXT, "the cabinet is to the key"], ["the", None]
    several = wrapped.trace(texts, memory="linear", edges="attention-gradient", answer=answers, of="log-odds")
    for text, answer, trace in zip(texts, answers, several, strict=True):
        alone = wrapped.trace(text, memory="linear", edges="attention-gradient", answer=answer, of="log-odds")
        assert np.array_equal(trace.rollout().values, alone.rollout().values)
    assert several[0].provenance["answer"]["of"] == "log-odds"
    with pytest.raises(af.InputError, match="answer"):
        wrapped.trace(texts, memory="linear", edges="answer", answer=["the"])


@pytest.mark.parametrize("edges", ["attention-gradient", "answer"])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "BertForSequenceClassification"])
def test_no_result_makes_anything_square(name: str, edges: str) -> None:
    wrapped = af.wrap(built(name, max_position_embeddings=768))
    inputs = {"input_ids": torch.randint(5, 120, (1, 768), generator=torch.Generator().manual_seed(2))}
    wrapped.trace(
        {"input_ids": inputs["input_ids"][:, :32]}, memory="linear", edges=edges
    )  # the self-check uses matrices
    with Living() as alive:
        trace = wrapped.trace(inputs, memory="linear", edges=edges)
        trace.rollout()
        if edges == "answer":
            trace.answer_rows()
    assert alive.largest <= 768 * 768 // 2  # one block of queries


class Passing(torch.nn.Module):
    """Add the first layer's output to this one's: a state that no layer receives as input."""

    def __init__(self, inner: Any, states: list[torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.states = inner, states

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 0.5 * self.states[-1]


def test_what_passes_beside_the_states_is_refused() -> None:
    """A second run gives the same output, because the extra state is still there; its gradient is not."""
    module, states = built("LlamaForCausalLM").float(), [torch.zeros(())]
    module.model.layers[0].register_forward_hook(lambda m, args, out: states.append(out))
    module.model.layers[2].mlp = Passing(module.model.layers[2].mlp, states)
    wrapped = af.wrap(module)
    sentence = "gradients of LlamaForCausalLM layer by layer differ from those of one pass by .* at layer 0: some"
    for edges in ("attention-gradient", "answer"):
        with pytest.raises(ModelError, match=sentence):
            wrapped.trace({"input_ids": IDS}, memory="linear", edges=edges)


def test_mistakes() -> None:
    wrapped = gpt2()
    trace = wrapped.trace(TEXT, memory="linear", edges="attention-gradient")
    with pytest.raises(
        af.InputError, match='answer rows need answer edges: trace with memory="linear", edges="answer"'
    ):
        trace.answer_rows()
    with pytest.raises(af.InputError, match="answer inputs need answer edges"):
        trace.answer_inputs()
    with pytest.raises(af.InputError, match=r"^query is an empty list: expected at least one position$"):
        wrapped.trace(TEXT, memory="linear", edges="answer").answer_rows([])
    with pytest.raises(af.InputError, match="of='x': expected one of"):
        wrapped.trace(TEXT, memory="linear", edges="attention-gradient", of="x")
    torch.manual_seed(0)
    headless = af.wrap(transformers.GPT2Model(transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=60)))
    with pytest.raises(
        af.InputError, match="returns no logits: edges by gradients are for classifiers and language models"
    ):
        headless.trace({"input_ids": torch.arange(9)[None]}, memory="linear", edges="attention-gradient")


@pytest.mark.parametrize(
    ("name", "method"), [("BertForSequenceClassification", "answer_inputs"), ("LlamaForCausalLM", "answer_rows")]
)
def test_sources_are_those_of_the_graph(name: str, method: str) -> None:
    """Without matrices: the same choice of method, and the same values."""
    wrapped = ready(name)
    linear = wrapped.trace(ids_of(wrapped), memory="linear", edges="answer").sources()
    whole = wrapped.trace(ids_of(wrapped), edges="answer").sources()
    assert linear.method == whole.method == method
    np.testing.assert_allclose(linear.values, whole.values, atol=1e-5)
