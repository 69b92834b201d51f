"""The methods of the grid: which there are, and that each matches the library."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="methods need torch")
transformers = pytest.importorskip("transformers", reason="methods need transformers")

import attnflow as af  # noqa: E402
from attnflow.edges import EDGES  # noqa: E402
from attnflow.evaluate.methods import BASELINES, IMPORTANCES, Method, methods_of, score_text  # noqa: E402
from helpers.small_models import TEXT, bert, gpt2  # noqa: E402

WITHOUT_CAPTUM = tuple(name for name in IMPORTANCES if name != "integrated-gradients")


@cache
def model(name: str) -> Any:
    return {
        "embedded": af.load,
        "classifier": lambda: bert("BertForSequenceClassification", num_labels=3),
        "masked": lambda: bert("BertForMaskedLM"),
        "decoder": gpt2,
    }[name]()


TEXTS = {
    "embedded": "the keys to the cabinet",
    "classifier": TEXT,
    "masked": "the [MASK] to the book",
    "decoder": TEXT,
}


@cache
def scored(name: str) -> tuple[tuple[Method, ...], Any]:
    methods = methods_of(model(name), importances=WITHOUT_CAPTUM)
    return methods, score_text(model(name), TEXTS[name], methods, seed=3)


def names(methods: Any) -> list[str]:
    return [method.name for method in methods]


def test_all_methods_of_an_encoder() -> None:
    found = methods_of(model("embedded"))
    # kinds of edges have raw, rollout and flow; those by gradients also two other normalisations
    by_gradients = sum("gradient" in name for name in EDGES)
    others = len(EDGES) - by_gradients - 2  # without mean and answer, which are listed first and below
    assert len(set(names(found))) == len(found) == 3 + 3 * others + by_gradients * (3 + 4) + 5 + 4 + 3
    assert [(m.name, m.kind, m.edges, m.normalize, m.propagation) for m in found[:3]] == [
        ("mean · raw", "paper", "mean", "rows", "raw"),
        ("mean · rollout", "paper", "mean", "rows", "rollout"),
        ("mean · flow", "paper", "mean", "rows", "flow"),
    ]
    assert [m for m in found if m.kind == "paper"] == list(found[:3])
    assert tuple(names(found[-7:])) == IMPORTANCES + BASELINES
    assert {m.edges for m in found if m.edges} == set(EDGES)
    assert not any(m.receptive_field for m in found)


def test_a_decoder_gets_the_receptive_field() -> None:
    found = methods_of(model("decoder"))
    extra = set(names(found)) - set(names(methods_of(model("embedded"))))
    fields = ("ratio", "difference", "layer")
    assert extra == {f"mean · {way} · {field}" for way in ("rollout", "flow") for field in fields}
    assert len(set(names(found))) == len(found)
    assert [m.receptive_field for m in found if m.receptive_field] == [*fields, *fields]


def test_some_methods() -> None:
    ours = names(methods_of(model("embedded"), edges=["alti", "mean", "alti"], importances=["gradient", "gradient"]))
    papers = ["mean · raw", "mean · rollout", "mean · flow"]
    assert ours == [*papers, "alti · raw", "alti · rollout", "alti · flow", "gradient", *BASELINES]
    assert names(methods_of(model("embedded"), edges=[], importances=[])) == [*papers, *BASELINES]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"edges": ["alti", "values"]},
            f"edges='values': expected one of {', '.join(map(repr, EDGES))}",
        ),
        (
            {"importances": ["lime"]},
            "importances 'lime': expected some of 'blank-out', 'gradient', 'gradient-input', 'integrated-gradients'",
        ),
    ],
)
def test_names_that_nobody_knows(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(af.InputError) as told:
        methods_of(model("embedded"), **given)
    assert str(told.value) == sentence


def alone(m: Any, text: str, method: Method, number: int) -> Any:
    """Return the library's scores of all tokens for this method alone."""
    if method.name == "blank-out":
        return m.blank_out(text).row()
    if method.name in ("gradient", "gradient-input"):
        return np.abs(m.gradient(text, reduce="l2" if method.name == "gradient" else "times-input").row())
    trace = m.trace(text, edges=method.edges, normalize=method.normalize, answer=number, of="logit")
    if method.propagation == "answer_rows":
        return trace.answer_rows().row()
    if method.propagation == "answer_inputs":
        return trace.answer_inputs().row()
    field = {"receptive_field": method.receptive_field} if method.receptive_field else {}
    query = "[MASK]" if "[MASK]" in trace.tokens else None
    return getattr(trace, str(method.propagation))(query, layer=-1, **field).row()


@pytest.mark.parametrize("name", TEXTS)
def test_scores_are_what_the_library_says(name: str) -> None:
    methods, found = scored(name)
    m, text = model(name), TEXTS[name]
    tokens = m.trace(text).tokens
    content = [i for i, token in enumerate(tokens) if not token.startswith("[")]
    content = content[:-1] if name == "decoder" else content  # all but the position that answers
    assert found.content == tuple(content)
    assert found.scores.shape == (len(methods), len(content)) and np.isfinite(found.scores).all()
    for method, row in zip(methods, found.scores, strict=True):
        if method.kind != "baseline":
            expected = alone(m, text, method, found.question.chosen)[content]
            np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-9, err_msg=method.name)
    assert found.question.chance == pytest.approx(m.gradient(text).provenance["answer"]["probability"], rel=1e-5)
    kinds = {"masked": "masked token", "decoder": "next token"}
    assert found.question.kind == kinds.get(name, "class")
    first, last = found.scores[-2:]
    assert (np.diff(first) < 0).all() and (np.diff(last) > 0).all()


def test_the_last_token_of_a_decoder_is_not_ranked() -> None:
    """This includes classifiers that read the class there: the query itself is not ranked."""
    for decoder in (gpt2(), gpt2("GPT2ForSequenceClassification", num_labels=3)):
        tokens = decoder.trace(TEXT).tokens
        scores = score_text(decoder, TEXT, methods_of(decoder, edges=[], importances=[]))
        assert scores.content == tuple(range(len(tokens) - 1))


def test_integrated_gradients() -> None:
    pytest.importorskip("captum", reason="integrated gradients need captum")
    (found,) = score_text(model("classifier"), TEXT, [Method("integrated-gradients", "importance")]).scores
    expected = np.abs(model("classifier").integrated_gradients(TEXT).row())[1:-1]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert expected.max() > 1e-4


def test_seconds_are_there() -> None:
    methods, found = scored("embedded")
    free = np.array([method.kind == "baseline" for method in methods])
    assert (found.seconds[~free] > 0).all() and (found.seconds[free] == 0).all() and found.pass_seconds > 0


def test_chance_depends_on_the_seed_only() -> None:
    random = [Method("random", "baseline")]
    m, texts = model("classifier"), (TEXT, "nobody is the answer to")
    rows = {
        (text, seed): tuple(score_text(m, text, random, seed=seed).scores[0].tolist())
        for text in texts
        for seed in (0, 1)
    }
    assert len(set(rows.values())) == 2
    assert len({row for (_, seed), row in rows.items() if seed == 0}) == 1


def test_texts_that_are_too_long() -> None:
    m, long = model("classifier"), "key " * 40
    with pytest.raises(af.InputError, match="truncate=True"):
        score_text(m, long, methods_of(m, edges=[], importances=[]))
    methods = methods_of(m, edges=["attention-gradient"], importances=["blank-out"])
    found = score_text(m, long, methods, truncate=True)
    assert found.scores.shape == (len(methods), 30) and np.isfinite(found.scores).all()
