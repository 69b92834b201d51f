"""The grid is the plain loop over methods, texts and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.errors import InputError

torch = pytest.importorskip("torch", reason="the grid needs torch")
transformers = pytest.importorskip("transformers", reason="the grid needs transformers")

from attnflow.evaluate import deletion, grid  # noqa: E402
from attnflow.evaluate.methods import Method  # noqa: E402
from attnflow.evaluate.statistics import spearman  # noqa: E402
from attnflow.importance.question import questions  # noqa: E402
from attnflow.jobs.identity import weights_hash  # noqa: E402
from helpers.small_models import bert, gpt2, saved  # noqa: E402

TEXTS = [
    "the key to the cabinet",
    "nobody is able to answer",
    "the book is the answer",
    "to the key",
    "a book to answer the cabinet",
]
METHODS = (
    Method("raw", "paper", "mean", None, "raw"),
    Method("none", "edges", "value-norm", None, "rollout"),
    Method("random", "baseline"),
    Method("gradient", "importance"),
    Method("blank-out", "importance"),
)


def scored(model: Any, text: Any, methods: Any, *, truncate: bool = False, seed: int = 0) -> Any:
    """Replace `score_text` for the methods above: one never has a score, and importances keep their sign."""
    (question,) = questions(model, [text], [None], truncate)
    at = deletion.content(question)
    rows = {
        "raw": lambda: model.trace(text, truncate=truncate).raw(query=0).values[-1, 0, at],
        "none": lambda: np.full(len(at), np.nan),
        "random": lambda: np.random.default_rng(seed).random(len(at)),
        "gradient": lambda: model.gradient(text, question.chosen, reduce="times-input", truncate=truncate).row()[at],
        "blank-out": lambda: model.blank_out(text, question.chosen, signed=True, truncate=truncate).row()[at],
    }
    return SimpleNamespace(
        question=question,
        content=tuple(at.tolist()),
        scores=np.stack([rows[method.name]() for method in methods]),
        seconds=np.full(len(methods), 0.25),
        pass_seconds=0.5,
    )


@pytest.fixture(scope="module")
def classifier() -> Any:
    return bert("BertForSequenceClassification")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score with the methods above, in parts of two texts."""
    monkeypatch.setattr(grid, "BATCH", 2)
    monkeypatch.setattr(grid, "methods_of", lambda model, **options: METHODS)
    monkeypatch.setattr(grid, "score_text", scored)


def run(model: Any, texts: Any = TEXTS, **options: Any) -> Any:
    return grid.run(model, texts, **{"steps": 3, "edges": ["mean"], "deletions": ["mask"], **options})


def test_it_is_the_plain_loop(classifier: Any, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "lacking", lambda model: {"alti": "why not"})
    lines: list[str] = []
    result = run(classifier, edges=None, deletions=None, seed=3, data="texts.csv", say=lines.append)
    assert [method["name"] for method in result.methods] == ["raw", "none", "random", "gradient", "blank-out"]
    assert result.methods[0] == {
        "name": "raw", "kind": "paper", "edges": "mean", "normalize": None, "propagation": "raw",
        "receptive_field": None,
    }  # fmt: skip
    names = list(deletion.METRICS)
    deletions = [f"{name} ({by})" for by in ("mask", "unk", "remove") for name in names]
    assert list(result.metrics) == ["gradient", "blank-out", *deletions]
    assert result.metrics["blank-out"] == "higher" and result.metrics["sufficiency (unk)"] == "lower"
    agreement = []
    for k, text in enumerate(TEXTS):
        scores = scored(classifier, text, METHODS, seed=3 + k).scores
        asked = questions(classifier, [text], [None], False)
        (curves,) = deletion.curves(classifier, asked, [deletion.orders(scores, 3 + k)], "unk", 3)
        assert np.array_equal(result.curves["unk"][k], curves, equal_nan=True)
        for name, values in deletion.metrics(curves, asked[0].chance).items():
            at = list(result.metrics).index(f"{name} (unk)")
            assert np.allclose(result.values[k, :, at], values, equal_nan=True, atol=1e-12)
        scores[3:] = np.abs(scores[3:])
        table = np.array([[spearman(a, b) for b in scores] for a in scores])
        agreement.append(table)
        expected = table[:, 3:].copy()
        expected[3, 0] = expected[4, 1] = np.nan
        assert np.allclose(result.values[k, :, :2], expected, equal_nan=True)
    assert np.allclose(result.agreement, np.mean(agreement, 0), equal_nan=True)
    assert np.isnan(result.values[:, 1]).all() and np.isnan(result.curves["mask"][:, 1]).all()  # no scores
    assert np.isfinite(result.values[:, [0, 2], 2:]).all()
    assert result.seconds.tolist() == [[0.25] * 5] * 5 and result.pass_seconds.tolist() == [0.5] * 5
    expected_provenance = {
        "class": "BertForSequenceClassification", "dtype": "float32", "texts": 5, "samples": 5, "excluded": {},
        "seed": 3, "steps": 3, "device": "cpu", "answers": {"class": 5}, "without edges": {"alti": "why not"},
        "data": "texts.csv", "weights": weights_hash(classifier), "deletions": ["mask", "unk", "remove"],
    }  # fmt: skip
    assert {name: result.provenance[name] for name in expected_provenance} == expected_provenance
    shown = [line.split(" texts")[0] for line in lines]
    assert shown == [f"{stage}: {k} of 5" for stage in ("scores", "curves") for k in (2, 4, 5)]
    assert "texts/s, about " in lines[0] and lines[0].endswith(" left") and lines[2].endswith("texts/s")


def test_the_hash_of_weights(tmp_path: Any) -> None:
    source = saved(bert("BertForSequenceClassification"), tmp_path)
    model = af.load(**source)
    before = weights_hash(model)
    assert before == weights_hash(af.load(**source))
    with torch.no_grad():
        next(model.model.parameters())[3, 2] += 1e-6
    assert weights_hash(model) != before


def test_texts_that_are_left_out(classifier: Any, few: None) -> None:
    texts = ["", "the key", " ", "key", "\u200b\u200d", "the key " * 20, ("the key", "the book"), "[MASK] key"]
    result = run(classifier, texts)
    assert result.provenance["excluded"] == {
        "empty": 2,
        "longer than the 32 tokens that the model takes": 1,
        "fewer than two tokens": 2,
        "no token but special ones": 1,
    }
    assert (result.provenance["texts"], result.provenance["samples"], len(result.values)) == (8, 2, 2)
    assert run(classifier, texts, truncate=True).provenance["samples"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"texts": ["", "key"]},
            "there is no text to evaluate (1 empty; 1 fewer than two tokens): expected at least one with two tokens",
        ),
        ({"texts": []}, "there is no text to evaluate (none was given): expected at least one with two tokens"),
        ({"texts": "the key"}, "texts is a str: expected a list of texts"),
        ({"deletions": ["pad"]}, "deletions 'pad': expected some of 'mask', 'unk', 'remove'"),
        ({"deletions": []}, "deletions is empty: expected some of 'mask', 'unk', 'remove'"),
        ({"steps": 2}, "steps=2: expected a whole number of at least 3"),
        ({"seed": 0.5}, "seed=0.5: expected a whole number of at least 0"),
    ],
)
def test_mistakes(classifier: Any, few: None, options: Any, message: str) -> None:
    with pytest.raises(InputError) as e:
        run(classifier, **options)
    assert str(e.value) == message


def test_a_model_without_a_mask_token(few: None) -> None:
    model = gpt2()
    has = [by for by in ("mask", "unk") if getattr(model.tokenizer, f"{by}_token_id") is not None]
    assert "mask" not in has
    assert list(run(model, TEXTS[:2], deletions=None).curves) == [*has, "remove"]
    with pytest.raises(InputError) as e:
        run(model, deletions=["mask"])
    assert str(e.value).startswith("by='mask': the tokenizer of this model has no mask token; expected one of ")


def test_a_text_without_a_mask_asks_nothing() -> None:
    model = bert("BertForMaskedLM")
    used, excluded = deletion.rankable(model, ["the key [MASK] to", "the key to"], False)
    assert used == ["the key [MASK] to"] and excluded == {"no [MASK] in it": 1}
    with pytest.raises(InputError) as e:
        run(model, ["the key to"])
    assert str(e.value) == ("there is no text to evaluate (1 no [MASK] in it): expected at least one with two tokens")


def test_a_text_that_cannot_be_scored_is_named(classifier: Any, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def but_one(model: Any, text: Any, *more: Any, **options: Any) -> Any:
        if text == TEXTS[1]:
            raise InputError("no number")
        return scored(model, text, *more, **options)

    monkeypatch.setattr(grid, "score_text", but_one)
    with pytest.raises(InputError) as e:
        run(classifier)
    assert str(e.value) == f"the text {TEXTS[1]!r:.40}: no number"
