"""Long contexts without matrices: in double precision, the same numbers as the graph with the same edges."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="long contexts need torch")
transformers = pytest.importorskip("transformers", reason="long contexts need transformers")

import attnflow as af  # noqa: E402
from attnflow.edges import EDGES  # noqa: E402
from helpers.architectures import ARCHITECTURES, LLAMA, SEQ2SEQ, built, hf, ids  # noqa: E402
from helpers.double import in_double, sharpened  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402
from helpers.wide import Living  # noqa: E402

N = 13
VALUED = ("head-norm", "projection")
WITH_PARTS = (
    "BERT", "RoBERTa", "DistilBERT", "ALBERT", "GPT-2", "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "gpt-oss", "Phi-3",
    "DeepSeek-V3",
)  # fmt: skip
OTHERS = ("Gemma 2", "Gemma 3", "GPT-NeoX", "OPT")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split even a short text into several blocks of queries, keys and positions."""
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES", 600)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES_AT_MOST", 600)
    monkeypatch.setattr("attnflow.capture.operands.NUMBERS", 150)
    monkeypatch.setattr("attnflow.capture.linear.FEW", 3)  # more queries take one product and its exponentials


@cache
def model(name: str) -> Any:
    return af.wrap(sharpened(built(next(a for a in ARCHITECTURES if a.name == name))))


def given(n: int = N, seed: int = 0) -> dict[str, Any]:
    return {"input_ids": ids(n, seed)}


def matrices(name: str, edges: str, normalize: str, inputs: dict[str, Any]) -> tuple[np.ndarray, bool]:
    """Return the graph as [layer, query, key] in double precision, from all heads and positions."""
    trace = model(name).trace(inputs, edges="mean")
    weights = EDGES[edges].function(trace).numpy()
    if normalize == "rows":
        total = weights.sum(-1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    elif normalize == "graph":
        weights = weights / weights.sum(-1).max()
    return weights, EDGES[edges].whole


def rolled(weights: np.ndarray, whole: bool, residual: float, start: np.ndarray, top: int) -> np.ndarray:
    rows = start
    for layer in weights[: top + 1][::-1]:
        rows = rows @ layer if whole else (1 - residual) * rows @ layer + residual * rows
    return rows


@pytest.mark.parametrize("normalize", ["rows", "none", "graph"])
@pytest.mark.parametrize(
    ("name", "edges"),
    [(name, edges) for name in WITH_PARTS for edges in ("mean", *VALUED)] + [(name, "mean") for name in OTHERS],
)
def test_linear_is_the_graph_of_the_same_edges(name: str, edges: str, normalize: str) -> None:
    wrapped = model(name)
    with in_double(wrapped.model):
        weights, whole = matrices(name, edges, normalize, given())
        queries = [0, 7, -1]
        linear = wrapped.trace(
            given(), memory="linear", edges=edges, normalize=normalize, queries=queries, layers=[-1, 0]
        )
        raw, rollout = linear.raw(), linear.rollout(residual=0.3)
    assert np.abs(weights - weights.mean()).max() > 1e-2
    top = len(weights) - 1
    start = np.eye(N)[queries]
    near = {"rtol": 0, "atol": 1e-9 * max(1.0, weights.sum(-1).max() ** len(weights))}
    np.testing.assert_allclose(raw.values, np.stack([weights[top][queries], weights[0][queries]]), **near)
    expected = np.stack([rolled(weights, whole, 0.3, start, l) for l in (top, 0)])
    np.testing.assert_allclose(rollout.values, expected, **near)
    assert linear.provenance["edges"] == edges and linear.provenance["edges_normalized"] == normalize


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_the_forward_pass_hands_out_its_denominators(name: str) -> None:
    trace = model(name).trace(given(), memory="linear")
    for operands in trace.descend():
        scores = operands.scores
        weights = replace(scores, lse=None).weights(0, N)
        key = scores.key.repeat_interleave(scores.query.shape[1] // scores.key.shape[1], 1)
        logits = scores.query @ key.mT * scores.scale
        expected = (logits - weights.log()).masked_fill(weights == 0, torch.nan).nanmean(-1)
        torch.testing.assert_close(scores.lse, expected)


def test_edges_of_attention_are_attention() -> None:
    wrapped = model("Llama")
    plain, mean = (wrapped.trace(given(), memory="linear", edges=edges).rollout().values for edges in (None, "mean"))
    assert np.array_equal(plain, mean)


@pytest.mark.parametrize(
    ("name", "edges", "sentence"),
    [
        ("Gemma 2", "head-norm", "these edges need to know how a layer projects, adds and normalizes its attention output, but "
         "projecting, adding and normalizing as BERT-, GPT-2- and Llama-like models do is off by "),
        ("GPT-NeoX", "projection", "these edges need to know how a layer projects, adds and normalizes its attention output, but "
         "the layers of GPTNeoXForCausalLM are not built like those of BERT-, GPT-2- and Llama-like models: "
         'edges="mean" does not need this'),
    ],
)  # fmt: skip
def test_edges_that_are_refused(name: str, edges: str, sentence: str) -> None:
    with pytest.raises(af.InputError) as caught:
        model(name).trace(given(), memory="linear", edges=edges)
    assert str(caught.value).startswith(sentence)


def test_a_layer_that_is_not_what_its_form_says_is_refused() -> None:
    wrapped = af.wrap(hf("LlamaForCausalLM", **LLAMA)())
    attention = wrapped.model.model.layers[1].self_attn
    attention.o_proj.register_forward_hook(lambda module, args, out: out * 1.01)
    for edges in VALUED:
        with pytest.raises(
            af.ModelError, match=r'is off by .* of what the layer computes: edges="mean" does not need this'
        ):
            wrapped.trace(given(), memory="linear", edges=edges)


@pytest.mark.parametrize("edges", [None, "head-norm"])
def test_weights_of_queries_make_one_row(edges: str | None, tmp_path: Path) -> None:
    wrapped = model("Llama")
    weights = {3: 0.25, -1: 2.0, 5: -1.0}
    alone = wrapped.trace(given(), memory="linear", edges=edges, queries=[3, 5, N - 1], layers=[-1, 1])
    both = wrapped.trace(given(), memory="linear", edges=edges, queries=[5, weights], layers=[-1, 1])
    for method in ("raw", "rollout"):
        three, found = getattr(alone, method)(), getattr(both, method)()
        a, b, c = (three.values[:, i] for i in range(3))
        np.testing.assert_allclose(found.values[:, 1], 0.25 * a - b + 2 * c, atol=1e-12)
        np.testing.assert_allclose(found.values[:, 0], b, atol=1e-12)
    assert found.queries == (5, N)
    assert found.query_tokens[1] == " + ".join(found.tokens[i] for i in (3, 5, N - 1))
    assert found.provenance["query_weights"] == {str(N): {"3": 0.25, "5": -1.0, str(N - 1): 2.0}}
    single = wrapped.trace(given(), memory="linear", edges=edges, queries=weights, layers=[-1, 1]).rollout()
    np.testing.assert_allclose(single.values[:, 0], found.values[:, 1], atol=1e-12)
    for ending in ("json", "npz"):
        found.save(tmp_path / f"row.{ending}")
        again = af.TokenAttention.load(tmp_path / f"row.{ending}")
        assert np.array_equal(again.values, found.values) and again.query_tokens == found.query_tokens
        assert again.provenance == found.provenance
        assert np.array_equal(again.row(found.query_tokens[1]), found.values[-1, 1])
    found.show(query=N)


@pytest.mark.parametrize(
    ("queries", "sentence"),
    [
        ([], "queries is an empty list: expected at least one"),
        ({}, "queries={}: expected at least one position with its weight, and each once"),
        ({-1: 1.0, N - 1: 2.0}, "expected at least one position with its weight, and each once"),
        ([{0: "all"}], "a query has the weight 'all': expected a finite number for each position"),
        ({0: float("nan")}, "a query has the weight nan: expected a finite number for each position"),
        ([3, 3], "queries has position 3 more than once: expected each position once"),
        ([[1]], "is not a position: expected an int or a list of ints"),
        ({0: 10**400}, "a query has the weight larger than any float: expected a finite number for each position"),
        ({0: True}, "a query has the weight True: expected a finite number for each position"),
        ("all", "queries='all': expected a position, a mapping {position: weight}, or a list of these"),
    ],
)
def test_queries_that_are_refused(queries: Any, sentence: str) -> None:
    with pytest.raises(af.InputError) as caught:
        model("Llama").trace(given(), memory="linear", queries=queries)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("weight", [np.float32(0.5), np.float16(0.5), Fraction(1, 2)])
def test_weights_of_queries_are_numbers_of_any_type(weight: Any) -> None:
    row, expected = (model("Llama").trace(given(), memory="linear", queries={0: w, 3: 2}).raw() for w in (weight, 0.5))
    assert np.array_equal(row.values, expected.values) and row.provenance == expected.provenance
    ones, expected = (model("Llama").trace(given(), memory="linear", queries={3: w}).raw() for w in (np.int64(2), 2.0))
    assert np.array_equal(ones.values, expected.values)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"missing": "normalize"}, "missing"),
        ({"missing": "self"}, "missing"),
        ({"keep_heads": True}, "keep_heads"),
        ({"keep_heads": [0]}, "keep_heads"),
        ({"target": "the keys"}, "target"),
    ],
)
def test_arguments_that_need_matrices_are_refused(options: dict[str, Any], name: str) -> None:
    for text in (given(), [given()]):
        with pytest.raises(af.InputError) as caught:
            model("gpt-oss").trace(text, memory="linear", **options)
        assert str(caught.value) == (
            f'{name} does not work with memory="linear": leave it out, or trace with memory="graph"'
        )
    with pytest.raises(af.InputError, match=r"^missing='all': expected one of 'keep', 'normalize', 'self'$"):
        model("gpt-oss").trace(given(), memory="linear", missing="all")


@pytest.mark.parametrize("edges", ["mean", *VALUED])
@pytest.mark.parametrize(("options", "name"), [({"answer": 3}, "answer"), ({"of": "probability"}, "of")])
def test_edges_about_no_answer_take_none(edges: str, options: dict[str, Any], name: str) -> None:
    with pytest.raises(af.InputError) as caught:
        model("Llama").trace(given(), memory="linear", edges=edges, **options)
    assert str(caught.value) == (
        f'{name} does not work with edges={edges!r} and memory="linear", which are about no answer: leave it out, or trace '
        'with memory="graph"'
    )


def test_a_trace_is_not_pickled_and_copies_are_itself() -> None:
    trace = model("Llama").trace(given(), memory="linear")
    with pytest.raises(TypeError) as caught:
        pickle.dumps(trace)
    assert str(caught.value) == (
        "a linear trace refers to a model's tensors and cannot be pickled: save its results instead, such as trace.rollout()"
    )
    assert copy.copy(trace) is trace and copy.deepcopy([trace]) == [trace]
    result = trace.rollout()
    assert np.array_equal(pickle.loads(pickle.dumps(result)).values, result.values)


@pytest.mark.parametrize(
    "name",
    [
        "BartForSequenceClassification",
        "BartForQuestionAnswering",
        "BartForConditionalGeneration",
        "T5ForSequenceClassification",
    ],
)
def test_a_decoder_that_makes_its_own_input_is_not_left_out(name: str) -> None:
    """The encoder alone would pass for the model. Texts of several lengths run one by one, without padded targets."""
    t5 = {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    sizes = {**t5, "decoder_start_token_id": 0} if name.startswith("T5") else SEQ2SEQ
    wrapped = af.wrap(hf(name, **sizes, eos_token_id=2)())
    texts = [{"input_ids": torch.cat([ids(n).clamp(min=3), torch.tensor([[2]])], 1)} for n in (5, 11)]
    together, alone = wrapped.trace(texts), [wrapped.trace(text) for text in texts]
    assert [trace.parts.count("target") for trace in together] == [6, 12]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.rollout(layer=-1).values, other.rollout(layer=-1).values)
    for edges in (None, "mean", "answer"):
        with pytest.raises(af.InputError, match=r'memory="linear" supports .* one stack; .* memory="graph"'):
            wrapped.trace(texts[0], memory="linear", edges=edges)


@pytest.mark.parametrize("edges", [None, *VALUED])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "Mistral", "gpt-oss"])
def test_batches_give_what_single_texts_give(name: str, edges: str | None) -> None:
    wrapped = model(name)
    texts = [given(n, n) for n in (9, 4, 13, 9)]
    options = {"memory": "linear", "edges": edges, "queries": [0, {-1: 0.5, 1: 0.5}], "layers": [-1, 0]}
    with in_double(wrapped.model):
        batch = wrapped.trace(texts, **options)
        alone = [wrapped.trace(text, **options) for text in texts]
        assert [len(trace.tokens) for trace in batch] == [9, 4, 13, 9]
        for one, together in zip(alone, batch, strict=True):
            assert together.tokens == one.tokens
            np.testing.assert_allclose(together.raw().values, one.raw().values, atol=1e-9)
            np.testing.assert_allclose(together.rollout().values, one.rollout().values, atol=1e-9)


def test_a_list_of_texts_and_none_at_all() -> None:
    wrapped = af.wrap(hf("BertModel", vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                         intermediate_size=48, max_position_embeddings=64)(), wordpiece())  # fmt: skip
    texts = ["the key", "the key to the cabinet is"]
    batch = wrapped.trace(texts, memory="linear", queries=iter([0, -1]))
    assert [t.text for t in batch] == texts and [t.queries for t in batch] == [(0, 3), (0, 7)]
    for text, trace in zip(texts, batch, strict=True):
        expected = wrapped.trace(text).rollout(query=[0, -1], layer=-1).values
        np.testing.assert_allclose(trace.rollout().values, expected, atol=1e-6)
    assert wrapped.trace([], memory="linear") == []


def test_models_whose_padding_fails_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = af.wrap(hf("LlamaForCausalLM", **LLAMA)())
    checked = wrapped.verify(wrapped.encode(given()))
    wrapped.checked = {kind: replace(one, padding=False) for kind, one in wrapped.checked.items()}
    sizes = []
    run = type(wrapped).run_batch

    def counted(self: Any, encoded: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(encoded))
        return run(self, encoded, *args, **options)

    monkeypatch.setattr(type(wrapped), "run_batch", counted)
    wrapped.trace([given(5), given(7)], memory="linear")
    assert checked.padding and set(sizes) == {1}


@pytest.mark.parametrize("edges", [None, *VALUED])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen3"])
def test_packed_texts_stay_apart(name: str, edges: str | None) -> None:
    wrapped, lengths = model(name), (6, 4, 8)
    texts = [ids(n, n) for n in lengths]
    packed = {
        "input_ids": torch.cat(texts, 1),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
    }
    ends = np.cumsum(lengths)
    with in_double(wrapped.model):
        trace = wrapped.trace(packed, memory="linear", edges=edges, queries=(ends - 1).tolist(), layers=[-1, 0])
        raw, rollout = trace.raw().values, trace.rollout().values
        for number, (text, end, n) in enumerate(zip(texts, ends, lengths, strict=True)):
            alone = wrapped.trace({"input_ids": text}, memory="linear", edges=edges, layers=[-1, 0])
            for found, expected in ((raw, alone.raw()), (rollout, alone.rollout())):
                row = found[:, number].copy()
                np.testing.assert_allclose(row[:, end - n : end], expected.values[:, 0], atol=1e-9)
                row[:, end - n : end] = 0
                assert (row == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("edges", [None, *VALUED])
@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM"])
def test_nothing_square_is_made(name: str, edges: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """n×n is 589,824 numbers, 4 heads × n × width is 98,304; the widest state of 768 positions has 36,864."""
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES", 1 << 17)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES_AT_MOST", 1 << 17)
    sizes = {**LLAMA, "max_position_embeddings": 768}
    sizes = sizes if "Llama" in name else {k: v for k, v in sizes.items() if k != "num_key_value_heads"}
    wrapped = af.wrap(hf(name, **sizes)())
    wrapped.trace(given(20), memory="linear", edges=edges)
    peaks = []
    for n in (384, 768):
        with Living() as alive:
            trace = wrapped.trace(given(n), memory="linear", edges=edges, queries=[{-1: 1.0, 5: 1.0}, 7])
            trace.rollout()
        assert n * 48 <= alive.largest <= n * 48 * 2
        peaks.append(alive.peak)
    assert peaks[1] < 2.1 * peaks[0]
