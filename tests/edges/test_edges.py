"""Edge weights: the slow definitions, facts that must hold, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="edges need torch")
transformers = pytest.importorskip("transformers", reason="edges need transformers")

import attnflow as af  # noqa: E402
from attnflow.edges import EDGES, weights  # noqa: E402
from attnflow.evaluate.methods import lacking  # noqa: E402
from helpers import edge_oracles as oracles  # noqa: E402
from helpers import small_models  # noqa: E402
from helpers.architectures import ARCHITECTURES, POSITIONS, built, hf  # noqa: E402
from helpers.architectures import text as some_ids  # noqa: E402
from helpers.oracles import networkx_maximum  # noqa: E402

NAMES = tuple(oracles.models())
CAUSAL = ("gpt2", "llama", "qwen2", "mistral")
FLOAT32 = ("llama", "qwen2", "mistral")  # transformers computes norms and softmax in float32 for any dtype
PLACE = 2  # where the token classifier is read
IDS = oracles.text(12)  # more tokens than a head is wide, so values have a null space
SHORT = oracles.text(6)
BY_GRADIENT = ("gradient", "attention-gradient")
TEXT = "the key to the cabinet"


@cache
def plain(name: str) -> Any:
    return oracles.models()[name]()


@cache
def wrapped(name: str) -> Any:
    """Return a separate model, because wrapping changes its attention."""
    model = oracles.models()[name]()
    if name == "gpt2-both-ways":
        model.config.prediction_position = PLACE
    return af.wrap(model)


@cache
def traced(name: str) -> Any:
    return wrapped(name).trace({"input_ids": IDS}, edges="attention-gradient", of="logit")


def close(found: Any, expected: np.ndarray, name: str, slack: float = 1e-6) -> None:
    slack = 2e-5 if name in FLOAT32 else slack
    assert np.abs(expected).max() > 1e-6
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=slack * np.abs(expected).max())


def hidden(name: str, n: int) -> np.ndarray:
    """Return [query, key]: True where the mask hides a key."""
    q, k = np.indices((n, n))
    if name not in CAUSAL:
        return np.zeros((n, n), bool)
    return (k > q) | (q - k >= 4) if name == "mistral" else k > q


SLOW: dict[str, Callable[..., np.ndarray]] = {
    "mean": lambda model, ids, layer: oracles.run(model, ids, layer)[2].mean(0),
    "max": lambda model, ids, layer: oracles.run(model, ids, layer)[2].max(0),
    "effective": oracles.effective,
    "value-norm": oracles.value_norm,
    "block-norm": oracles.block_norm,
    "head-norm": oracles.head_norm,
    "projection": oracles.projection,
    "alti": oracles.alti,
    "value-zeroing": oracles.value_zeroing,
}


@pytest.mark.parametrize("edges", SLOW)
@pytest.mark.parametrize("name", NAMES)
def test_edges_are_their_definitions(name: str, edges: str) -> None:
    found = EDGES[edges].function(traced(name))
    assert found.shape == (3, 12, 12) and found.dtype == torch.float64
    for layer in range(3):
        close(found[layer], SLOW[edges](plain(name), IDS, layer), name)
    assert (found.numpy()[:, hidden(name, 12)] == 0).all()


@pytest.mark.parametrize("of", ["probability", "logit", "difference"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_differences(name: str, of: str) -> None:
    place = {"gpt2-both-ways": PLACE}.get(name, -1)

    def said(out: Any) -> Any:
        return out.logits if out.logits.ndim == 2 else out.logits[:, place]

    with torch.no_grad():
        # the probability of the model's first choice hardly moves
        second, first = said(plain(name)(input_ids=SHORT))[0].argsort()[-2:].tolist()

    def y(out: Any) -> Any:
        logits = said(out)
        chances = logits.softmax(-1)
        by = {"probability": chances, "logit": logits, "difference": chances - chances[:, first : first + 1]}
        return by[of][:, second]

    trace = wrapped(name).trace({"input_ids": SHORT}, edges="gradient", of=of, answer=second)
    assert trace.provenance["answer"]["of"] == of
    found, both = weights.gradient(trace), weights.attention_gradient(trace)
    slack = 2e-5 if of == "difference" else 1e-6  # the answer is in float32, and probabilities near 1 differ by little
    for layer in range(3):
        close(found[layer], oracles.gradient(plain(name), SHORT, layer, y), name, slack)
        close(both[layer], oracles.attention_gradient(plain(name), SHORT, layer, y), name, slack)
    assert (found.numpy()[:, hidden(name, 6)] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_effective_attention_gives_what_attention_gives(name: str) -> None:
    less = 0
    for layer in traced(name).inside.layers:
        kept, own, values = (x.double() for x in (weights._effective(layer), layer.weights, layer.values))
        torch.testing.assert_close(kept @ values, own @ values, rtol=0, atol=1e-8 * float(values.abs().max()))
        less += int(kept[:, -1].norm() < 0.999 * own[:, -1].norm())
    assert less == (0 if name == "mistral" else 3)  # mistral's window is narrower than a value


def test_effective_attention_of_equal_tokens_is_shared_equally_between_them() -> None:
    """The values of Llama's first layer ignore positions, so even fewer tokens than dimensions have a null space."""
    trace = wrapped("llama").trace({"input_ids": torch.tensor([[7, 8, 7, 9]])}, edges="effective", normalize="none")
    first = trace.graph(residual=0)[0]
    own = trace.with_edges("mean").graph(residual=0)[0]
    assert first[3, 0] == pytest.approx(first[3, 2], abs=1e-6)
    assert first[3, 0] == pytest.approx((own[3, 0] + own[3, 2]) / 2, abs=1e-6)
    assert abs(own[3, 0] - own[3, 2]) > 1e-3


def test_no_values_have_no_norm() -> None:
    model = oracles.models()["bert"]()
    with torch.no_grad():
        for number in range(3):
            for parameter in oracles.block(model, number).values.parameters():
                parameter.zero_()
    trace = af.wrap(model).trace({"input_ids": IDS}, edges="value-norm")
    assert (weights.value_norm(trace) == 0).all() and (trace.graph(0) == 0).all()
    assert (weights.block_norm(trace) - torch.diag_embed(weights.block_norm(trace).diagonal(0, 1, 2)) == 0).all()
    assert (trace.with_edges("alti").graph(0) == np.eye(12)).all()


@pytest.mark.parametrize("name", NAMES)
def test_lengths_bound_what_heads_add_together(name: str) -> None:
    """A sum is at most as long as the sum of lengths, and a part's projection at most as long as the part."""
    one, several = weights.value_norm(traced(name)), weights.head_norm(traced(name))
    beside = ~torch.eye(12, dtype=bool) & ~torch.from_numpy(hidden(name, 12))
    assert (one <= several * (1 + 1e-6)).all() and float((several - one)[:, beside].max()) > 1e-2
    if name not in ("bert", "roberta"):  # if a norm follows, projections come after it
        assert (weights.projection(traced(name)) <= several * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", NAMES)
def test_alti_rows_sum_to_one(name: str) -> None:
    torch.testing.assert_close(weights.alti(traced(name)).sum(-1), torch.ones(3, 12, dtype=torch.float64))


def test_vectors_some_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("bert")
    whole = {
        edges: EDGES[edges].function(trace)
        for edges in ("value-norm", "block-norm", "head-norm", "alti", "value-zeroing")
    }
    monkeypatch.setattr(weights, "VECTORS", 12 * 32 * 5)
    monkeypatch.setattr("attnflow.capture.inside.COPIES", 12 * 2)
    for edges, expected in whole.items():
        torch.testing.assert_close(EDGES[edges].function(trace), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral"])
def test_rollout_of_attention_gradients_is_chefers_rule(name: str) -> None:
    A = weights.attention_gradient(traced(name)).numpy()
    R = np.eye(12)
    for layer in A:
        R = R + layer @ R
    found = traced(name).rollout(query="all", layer=-1).values[0]
    np.testing.assert_allclose(found * 2**3, R, rtol=1e-5)
    assert np.abs(R - np.eye(12)).max() > 1e-2


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_ways_to_normalise(name: str, edges: str) -> None:
    bare = EDGES[edges].function(traced(name)).numpy()
    graphs = {how: traced(name).with_edges(edges, how).graph(residual=0) for how in ("none", "graph", "rows")}
    np.testing.assert_allclose(graphs["none"], bare, rtol=1e-6)
    np.testing.assert_allclose(graphs["graph"], bare / bare.sum(-1).max(), rtol=1e-6)
    assert graphs["graph"].sum(-1).max() == pytest.approx(1)
    total = bare.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        graphs["rows"], np.divide(bare, total, where=total > 0, out=0 * bare), rtol=1e-5, atol=1e-12
    )
    default = traced(name).with_edges(edges)
    assert default.provenance["edges_normalized"] == ("none" if edges in BY_GRADIENT else "rows")
    assert np.array_equal(default.graph(0), graphs[default.provenance["edges_normalized"]])
    whole = edges in ("alti", "answer", "block-norm", "head-norm", "projection")
    with_residual = graphs["rows"] if whole else (graphs["rows"] + np.eye(12)) / 2
    assert np.allclose(traced(name).with_edges(edges, "rows").graph(), with_residual)


def test_rows_of_the_result_are_normalised_beside_the_edges() -> None:
    found = traced("bert").with_edges("gradient", "graph").flow(normalize=True)
    assert (found.provenance["edges_normalized"], found.provenance["normalize"]) == ("graph", True)
    np.testing.assert_allclose(found.values.sum(-1), 1)


@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_flow_of_edges_is_the_maximum_flow(name: str) -> None:
    bare = traced(name)
    # a logit's gradient is not small: without normalisation rollout exceeds flow, as documented
    for how, bounded in (("none", False), ("graph", True), ("rows", True)):
        trace = bare.with_edges("gradient", how)
        flow, rollout = (f(query="all", layer=-1, residual=0.1).values[0] for f in (trace.flow, trace.rollout))
        graph = list(trace.graph(0.1).astype(np.float64))
        for query, token in ((11, 0), (11, 7), (5, 2), (0, 0)):
            assert flow[query, token] == pytest.approx(networkx_maximum(graph, query, token), rel=1e-9, abs=1e-15)
        assert bool((rollout <= flow + 1e-9).all()) == bounded and bool(flow.max() <= 1 + 1e-6) == bounded


@cache
def bert(kind: str = "BertForSequenceClassification") -> Any:
    return small_models.bert(kind)


gpt2 = cache(small_models.gpt2)


@pytest.mark.parametrize("model", [bert, gpt2])
def test_mean_edges_are_the_plain_trace(model: Any) -> None:
    expected, found = model().trace(TEXT), model().trace(TEXT, edges="mean")
    np.testing.assert_allclose(found.graph(), expected.graph(), rtol=0, atol=1e-6)
    assert found.tokens == expected.tokens and found.prediction == expected.prediction
    assert found.default_query == expected.default_query
    assert found.provenance == {**expected.provenance, "edges": "mean", "edges_normalized": "rows"}
    for method in ("raw", "rollout", "flow"):
        a, b = (getattr(t, method)(query="all").values for t in (found, expected))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", [bert, gpt2])
def test_one_pass_has_all_edges(model: Any) -> None:
    start = model().trace(TEXT, edges="gradient")
    for edges in EDGES:
        fresh, found = model().trace(TEXT, edges=edges), start.with_edges(edges)
        if edges == "answer":  # shares of a row that carries almost nothing would be shares of rounding errors
            torch.testing.assert_close(weights.signed_edges(found), weights.signed_edges(fresh), rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_allclose(found.graph(), fresh.graph(), rtol=1e-5, atol=1e-7)
        assert found.provenance["edges"] == edges and found.inside is start.inside
        for method in ("raw", "rollout", "flow"):
            values = getattr(found, method)().values
            assert np.isfinite(values).all() and (values >= 0).all() and values.max() > 0
    assert np.array_equal(start.with_edges("alti").with_edges("gradient").graph(), start.graph())


def test_lists_are_the_same_as_one_by_one() -> None:
    texts = [TEXT, "key", "nobody is able"]
    for edges in EDGES:
        together = bert().trace(texts, edges=edges)
        for text, found in zip(texts, together, strict=True):
            alone = bert().trace(text, edges=edges)
            assert found.text == text and np.array_equal(found.graph(), alone.graph())
    found = bert().trace(texts, edges="gradient", answer=[0, None, 1])
    assert found[0].provenance["answer"]["name"] == "LABEL_0" and found[2].provenance["answer"]["name"] == "LABEL_1"
    assert np.array_equal(found[2].graph(), bert().trace(texts[2], edges="gradient", answer="LABEL_1").graph())
    assert bert().trace([], edges="alti") == []


def test_pairs() -> None:
    given = ("the key", "is the answer")
    found = bert().trace(given, edges="alti")
    assert found.tokens == ("[CLS]", "the", "key", "[SEP]", "is", "the", "answer", "[SEP]")
    tensors = dict(bert().tokenizer(*given, return_tensors="pt"))
    assert tensors["token_type_ids"].any()
    assert np.array_equal(found.graph(), bert().trace(tensors, edges="alti").graph())
    one = bert().trace({**tensors, "token_type_ids": 0 * tensors["token_type_ids"]}, edges="alti")
    assert not np.allclose(found.graph(), one.graph())


@pytest.mark.parametrize(
    ("model", "text", "kind", "place"),
    [
        (bert, TEXT, "class", 0),
        (lambda: bert("BertForMaskedLM"), "the [MASK] to the book", "masked token", 2),
        (gpt2, TEXT, "next token", -1),
    ],
    ids=["classifier", "masked", "causal"],
)
def test_gradients_are_of_what_the_model_answers(model: Any, text: str, kind: str, place: int) -> None:
    m = model()
    trace = m.trace(text, edges="gradient")
    told = trace.provenance["answer"]
    assert told["kind"] == kind and told["of"] == "logit"
    alone = m.gradient(text).provenance["answer"]
    assert told["name"] == alone["name"] and told["probability"] == pytest.approx(alone["probability"], rel=1e-5)
    top = weights.gradient(trace)[-1].numpy()
    elsewhere = np.delete(top, place, axis=0)
    assert top[place].max() > 1e-6 and (elsewhere == 0).all()  # the last layer is read nowhere else
    other = m.trace(text, edges="gradient", answer=1)
    assert not np.allclose(other.graph(), trace.graph())
    assert other.provenance["answer"]["name"] == m.gradient(text, 1).provenance["answer"]["name"]


def test_words() -> None:
    trace = bert().trace("unbelievable keys", edges="attention-gradient")
    words = trace.words()
    assert words.tokens == ("[CLS]", "unbelievable", "keys", "[SEP]") and len(trace.tokens) > 6
    members = [[i for i, w in enumerate(trace.word_ids) if w == word] for word in (0, 1)]
    members = [[0], *members, [len(trace.tokens) - 1]]
    for bare, merged in zip(trace.graph(0), words.graph(0), strict=True):
        expected = [[bare[np.ix_(a, b)].sum(1).mean() for b in members] for a in members]
        np.testing.assert_allclose(merged, expected, rtol=1e-6)
    assert words.provenance["edges"] == "attention-gradient" and words.flow().values.max() > 0
    alti = bert().trace("unbelievable keys", edges="alti").words()
    assert np.array_equal(alti.graph(0.5), alti.graph(0))  # alti already includes the residual connection
    np.testing.assert_allclose(alti.graph().sum(-1), 1, rtol=1e-5)


def test_a_model_stays_as_it_is_frozen_or_not() -> None:
    model = oracles.models()["bert"]()
    with torch.no_grad():
        before = model(input_ids=IDS).logits
    m = af.wrap(model)
    found = {edges: m.trace({"input_ids": IDS}, edges=edges).graph() for edges in EDGES}
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, before)
        inside = m.trace({"input_ids": IDS}, edges="gradient").graph()
    model.requires_grad_(False)
    for edges, expected in found.items():
        assert np.array_equal(m.trace({"input_ids": IDS}, edges=edges).graph(), expected)
    assert np.array_equal(inside, found["gradient"]) and found["gradient"].max() > 0.5
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert not any(len(x._forward_hooks) + len(x._forward_pre_hooks) for x in model.modules())


def test_a_pass_of_another_thread_in_the_midst_is_not_seen() -> None:
    m, own, met = bert(), threading.current_thread(), []
    expected = {edges: m.trace(TEXT, edges=edges).graph() for edges in ("attention-gradient", "alti", "value-zeroing")}
    ids = dict(m.tokenizer("nobody is able", return_tensors="pt"))

    def meanwhile(module: Any, given: Any) -> None:
        if threading.current_thread() is own:
            other = threading.Thread(target=lambda: met.append(m.model(**ids)))
            other.start()
            other.join()

    handle = m.model.bert.encoder.layer[0].register_forward_pre_hook(meanwhile)
    try:
        for edges, graph in expected.items():
            assert np.array_equal(m.trace(TEXT, edges=edges).graph(), graph)
    finally:
        handle.remove()
    assert len(met) >= 3


def architecture(name: str) -> Any:
    return af.wrap(built(next(a for a in ARCHITECTURES if a.name == name)))


WITH_ALL = (
    "BERT", "RoBERTa", "DistilBERT", "ALBERT", "ELECTRA", "GPT-2", "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "gpt-oss",
    "Phi-3", "DeepSeek-V3",
)  # fmt: skip
WITHOUT_PARTS = ("ModernBERT", "GPT-NeoX", "OPT", "Gemma 2", "Gemma 3")


@pytest.mark.parametrize("name", [*WITH_ALL, *WITHOUT_PARTS])
def test_which_models_have_which_edges(name: str) -> None:
    """docs/edges.md lists them."""
    parts = ["value-norm", "block-norm", "head-norm", "projection", "alti"]
    assert list(lacking(architecture(name))) == ([] if name in WITH_ALL else parts)


def test_a_norm_after_attention_is_refused_and_values_can_be_zeroed() -> None:
    gemma = architecture("Gemma 2")
    trace = gemma.trace(some_ids(), edges="value-zeroing")
    visible = trace.with_edges("mean").graph(0) > 0
    bare = weights.value_zeroing(trace).numpy()
    assert (bare[~visible] == 0).all() and bare[visible].max() > 1e-6 and not visible.all()
    for edges in ("alti", "block-norm", "head-norm", "projection", "value-norm"):
        with pytest.raises(af.InputError) as told:
            trace.with_edges(edges)
        sentence = str(told.value)
        assert sentence.startswith(
            "these edges need to know how a layer projects, adds and normalizes its attention output, but projecting, adding and "
            "normalizing as BERT-, GPT-2- and Llama-like models do is off by "
        )
        assert sentence.endswith(
            ' of what the layer computes: edges="effective", "attention-gradient" and "value-zeroing", for example, do not need this'
        )


def test_rows_that_a_sink_takes_from_are_told_by_normalize() -> None:
    m = architecture("gpt-oss")
    bare, rows = (m.trace(some_ids(), edges="mean", normalize=how) for how in ("none", "rows"))
    np.testing.assert_allclose(bare.graph(), m.trace(some_ids(), missing="keep").graph(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(rows.graph(), m.trace(some_ids(), missing="normalize").graph(), rtol=0, atol=1e-6)
    assert "missing" not in rows.provenance and bare.graph(0).sum(-1).max() < 0.99


def refuses(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(af.InputError) as told:
        call()
    assert str(told.value) == sentence


ALL = ", ".join(map(repr, EDGES))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"edges": "values"}, f"edges='values': expected one of {ALL}"),
        ({"edges": "alti", "normalize": "row"}, "normalize='row': expected one of 'rows', 'graph', 'none'"),
        ({"edges": "alti", "keep_heads": True}, "keep_heads does not work with edges='alti': leave one of them out"),
        (
            {"edges": "alti", "memory": "linear"},
            "edges='alti' need matrices: memory=\"linear\" supports 'mean', 'head-norm', 'projection', 'attention-gradient', 'answer'; or trace with "
            'memory="graph"',
        ),
        (
            {"edges": "alti", "missing": "self"},
            "missing='self' does not work with edges: use normalize= for rows that sum to less than one",
        ),
        (
            {"edges": "gradient", "of": "odds"},
            "of='odds': expected one of 'probability', 'logit', 'log-odds', 'difference'",
        ),
        (
            {"edges": "gradient", "answer": "perhaps"},
            "answer='perhaps' is not a class of this model: expected one of 'LABEL_0', 'LABEL_1'",
        ),
        ({"answer": 1}, "answer needs edges, for example edges='attention-gradient'"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], sentence: str) -> None:
    refuses(lambda: bert().trace(TEXT, **given), sentence)


def test_one_score_is_the_answer() -> None:
    model = af.wrap(hf("BertForSequenceClassification", **POSITIONS, num_labels=1)())
    ids = torch.tensor([[5, 6, 7, 8]])
    signed = model.trace({"input_ids": ids}, edges="answer").answer_inputs(signed=True)
    about = signed.provenance["answer"]
    with torch.no_grad():
        assert about["score"] == pytest.approx(float(model.model(input_ids=ids).logits[0, 0]), abs=1e-6)
    assert signed.provenance["values"] == about["of"] == "score" and "probability" not in about
    assert model.trace(some_ids(), edges="gradient").provenance["answer"]["kind"] == "score"


NOTHING = (
    'this trace kept only weights: trace the text with edges="mean", or with the edges that you want; call words() last'
)


def test_a_trace_that_lacks_something() -> None:
    plainly = bert().trace(TEXT)
    refuses(lambda: plainly.with_edges("alti"), NOTHING)
    refuses(lambda: bert().trace(TEXT, edges="alti").words().with_edges("mean"), NOTHING)
    once = bert().trace(TEXT, edges="mean")
    refuses(lambda: once.with_edges("values"), f"edges='values': expected one of {ALL}")
    for edges in BY_GRADIENT:
        refuses(
            lambda edges=edges: once.with_edges(edges),
            'these edges need the gradient of the answer, and this trace ran no backward pass: trace the text with edges="gradient"',
        )


@pytest.mark.parametrize(
    ("name", "edges", "sentence"),
    [
        (
            "BERT",
            "gradient",
            "these edges need the gradient of the answer, and Model('BertModel', BertModel) has no head, so it answers "
            "nothing: expected a classifier or a language model",
        ),
        (
            "ViT",
            "alti",
            "these edges need to know how a layer projects, adds and normalizes its attention output, but the layers of ViTModel "
            'are not built like those of BERT-, GPT-2- and Llama-like models: edges="effective", '
            '"attention-gradient" and "value-zeroing", for example, do not need this',
        ),
        ("T5", "mean", "T5ForConditionalGeneration has two stacks of layers, but edges are for models with one: trace it without edges"),
        (
            "BLOOM",
            "alti",
            "the attention of BloomForCausalLM was captured as eager attention, but edges need the attention interface of "
            "transformers to see inside a layer: trace it without edges, by its weights alone",
        ),
        (
            "Swin",
            "effective",
            "SwinModel attends within windows, but edges are for models that attend to all positions: trace it without edges",
        ),
    ],
)  # fmt: skip
def test_models_without_edges(name: str, edges: str, sentence: str) -> None:
    inputs = next(a for a in ARCHITECTURES if a.name == name).inputs()
    model = architecture(name)
    refuses(lambda: model.trace(inputs, edges=edges), sentence)
    assert model.trace(inputs).rollout().values.max() > 0


def test_values_are_zeroed_whatever_became_of_the_model_since() -> None:
    model = wrapped("bert")
    trace = model.trace({"input_ids": SHORT}, edges="mean")
    expected = weights.value_zeroing(trace)
    model.unwrap()
    np.testing.assert_array_equal(weights.value_zeroing(trace), expected)
    model.model.train()
    try:
        with pytest.raises(af.InputError) as told:
            weights.value_zeroing(trace)
    finally:
        model.model.eval()
    assert (
        str(told.value)
        == "the model is in training mode, where dropout changes what it computes: call model.eval() first"
    )


def test_what_differs_by_rounding_alone_has_no_angle() -> None:
    model = af.wrap(built(next(a for a in ARCHITECTURES if a.name == "GPT-2")))
    with torch.no_grad():
        model.model.transformer.h[0].attn.c_proj.weight *= 1e-9
    assert weights.value_zeroing(model.trace(some_ids(), edges="mean"))[0].max() == 0


def test_parts_are_checked_position_by_position() -> None:
    """A scaled residual connection is refused even if one position has much larger states than the others."""
    model = built(next(a for a in ARCHITECTURES if a.name == "Llama"))
    layer = model.model.layers[1]
    layer.self_attn.o_proj.register_forward_hook(lambda module, given, out: out * 0.5)
    with torch.no_grad():
        model.model.embed_tokens.weight[some_ids()["input_ids"][0, 0]] *= 1e5
    with pytest.raises(af.InputError, match="is off by"):
        af.wrap(model).trace(some_ids(), edges="alti")


def test_what_an_encoder_reads_at_one_place_and_what_is_elsewhere_add_up() -> None:
    trace = af.load().trace("the key to the cabinets", edges="answer")
    rows, inputs = trace.answer_rows(signed=True), trace.answer_inputs(signed=True)
    sums = rows.provenance["evidence"]
    assert rows.row().sum() + sums["elsewhere"] + sums["constants"] == pytest.approx(sums["log_odds"], abs=1e-6)
    assert abs(sums["elsewhere"]) > 1e-3, "other positions give something"
    whole = inputs.provenance["evidence"]
    assert "elsewhere" not in whole
    assert inputs.row().sum() + whole["constants"] == pytest.approx(whole["log_odds"], abs=1e-3)


@pytest.mark.parametrize("edges", [None, "mean"])
def test_views_of_the_answer_name_the_edges_that_they_need(edges: str | None) -> None:
    trace = af.load().trace("the key", edges=edges)
    for view in (trace.sources, trace.answer_inputs, trace.answer_rows):
        with pytest.raises(af.InputError, match=r'^this trace has no answer edges: trace the text with edges="answer"'):
            view()
