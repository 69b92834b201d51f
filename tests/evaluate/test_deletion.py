"""Deletion curves against a slow loop written from the definition; their metrics against values computed by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="deletion curves need torch")
transformers = pytest.importorskip("transformers", reason="deletion curves need transformers")

import attnflow as af  # noqa: E402
from attnflow.evaluate.deletion import DELETIONS, METRICS, STEPS, content, curves, metrics, orders  # noqa: E402
from attnflow.importance.question import questions  # noqa: E402
from helpers.small_models import SIZES, TEXT, bert, gpt2  # noqa: E402
from helpers.small_tokenizers import sentencepiece, wordpiece  # noqa: E402


def plain(tokenizer: Any) -> Any:
    """Drop token types, whose embeddings GPT-2 would take from the table of words."""
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def llama() -> Any:
    tokenizer = plain(sentencepiece())
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **SIZES, **ids)
    return af.wrap(transformers.LlamaForCausalLM(config), tokenizer)


MODELS: dict[str, tuple[Any, list[Any], tuple[str, ...]]] = {
    "embedded": (af.load, ["the keys", "the books that he reads"], DELETIONS),
    "masked": (lambda: bert("BertForMaskedLM"), ["the [MASK] to the book", "[MASK] is able", "nobody is the [MASK]"], DELETIONS),
    "pair": (lambda: bert("BertForSequenceClassification", num_labels=3), [("the key", "is the answer to nobody"), TEXT], DELETIONS),
    "score": (lambda: bert("BertForSequenceClassification", num_labels=1), [TEXT, "the book is able"], DELETIONS),
    "decoder": (gpt2, ["the key", "Nobody's"], ("remove",)),
    "decoder that begins with a special token": (llama, [TEXT, "Nobody's answer"], ("unk", "remove")),
    "class of a text without special tokens": (lambda: gpt2("GPT2ForSequenceClassification", num_labels=3), ["the key", "Nobody's"], ("remove",)),
    "class read at a word": (
        lambda: gpt2("GPT2ForTokenClassification", plain(wordpiece()), num_labels=3, prediction_position=2, is_causal=False),
        [TEXT, "nobody is able to answer"], DELETIONS,
    ),
}  # fmt: skip
SPECIAL = {"[CLS]", "[SEP]", "[EOS]", "<s>"}


def said(model: Any, question: Any, stays: set[int], by: str) -> float:
    """Return the answer to one text with only these positions, run alone."""
    names = question.tensors
    left: list[tuple[int, dict[str, int]]] = []  # position in the whole text, and the input there
    for i in range(question.length):
        here = {name: int(x[0, i]) for name, x in names.items()}
        if i in stays:
            left.append((i, here))
        elif by != "remove":
            left.append((i, {**here, "input_ids": getattr(model.tokenizer, f"{by}_token_id")}))
    with torch.no_grad():
        logits = model.model(**{name: torch.tensor([[here[name] for _, here in left]]) for name in names}).logits[0]
    if question.kind == "next token":
        logits = logits[-1]
    elif question.place is not None:
        logits = logits[[i for i, _ in left].index(question.place)]
    return float((logits if question.kind == "score" else torch.softmax(logits.double(), -1))[question.chosen])


def loop(model: Any, question: Any, row: list[int], by: str, steps: int, known: dict[Any, float]) -> list[list[float]]:
    """Compute the curves from the definition.

    known: answers so far, because rankings share sets.
    """
    everything = set(range(question.length))
    free = [i for i in range(question.length) if question.encoded.tokens[i] not in SPECIAL and i != question.place]
    ranked = [free[k] for k in row]
    found: list[list[float]] = [[], []]
    for s in range(steps + 1):
        top = set(ranked[: math.ceil(Fraction(s * len(free), steps))])
        without = everything - top
        only = everything - (set(free) - top)
        if by == "remove":
            without, only = without or {ranked[-1]}, only or {ranked[0]}
        for side, stays in enumerate((without, only)):
            key = question.encoded.text, by, frozenset(stays)
            if key not in known:
                known[key] = said(model, question, stays, by)
            found[side].append(known[key])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_curves_are_the_loop(name: str) -> None:
    make, texts, deletions = MODELS[name]
    model = make()
    asked = questions(model, texts, [None] * len(texts), False)
    rng = np.random.default_rng(1)
    rankings = [orders(rng.random((3, len(content(q)))), seed=0) for q in asked]
    known: dict[Any, float] = {}
    for by in deletions:
        for steps in (STEPS, 3):
            found = curves(model, asked, rankings, by, steps)
            for question, ranking, curve in zip(asked, rankings, found, strict=True):
                expected = np.array([loop(model, question, row, by, steps, known) for row in ranking.tolist()])
                assert curve.shape == (3, 2, steps + 1) and np.allclose(curve, expected, atol=2e-6), by
                assert np.ptp(expected) > 1e-3  # otherwise anything would pass


@pytest.fixture(scope="module")
def embedded() -> Any:
    return af.load()


def test_what_is_content(embedded: Any) -> None:
    def free(model: Any, text: Any) -> list[str]:
        (question,) = questions(model, [text], [None], False)
        return [question.encoded.tokens[i] for i in content(question)]

    assert free(embedded, "the key to the cabinets") == ["the", "key", "to", "the", "cabinets"]
    assert free(bert("BertForMaskedLM"), "the [MASK] to the book") == ["the", "to", "the", "book"]
    assert free(llama(), "the key") == ["the"]  # neither the start token nor the last token, which answers
    classifier = gpt2("GPT2ForSequenceClassification", num_labels=3)  # it reads the class at the last token
    (question,) = questions(classifier, ["the key to"], [None], False)
    tokens = question.encoded.tokens
    assert [tokens[i] for i in content(question, causal=True)] == list(tokens[:-1])
    at_a_word = MODELS["class read at a word"][0]()
    assert free(at_a_word, TEXT) == ["the", "to", "the", "cabinet"]


def test_ties_are_broken_alike_for_all_methods_and_anew_with_each_seed() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(3, size=(6, 12)).astype(float)
    scores = np.concatenate([scores, 5 * scores + 1, np.ones((1, 12))])
    first, same, other = orders(scores, 3), orders(scores, 3), orders(scores, 4)
    assert np.array_equal(first, same) and not np.array_equal(first, other)
    assert np.array_equal(first[:6], first[6:12])  # equal up to scale, so ranked alike
    for row, ranked in zip(scores, first, strict=True):
        assert sorted(ranked) == list(range(12)) and (np.diff(row[ranked]) <= 0).all()
        for level in set(row):  # ties follow the order of the method whose scores all tie
            tied = [i for i in first[-1] if row[i] == level]
            assert [i for i in ranked if row[i] == level] == tied
    assert np.array_equal(orders(scores * (1 + 1e-13 * rng.standard_normal(scores.shape)), 3), first)
    begins = [orders(np.zeros((1, 4)), seed)[0, 0] for seed in range(200)]
    assert np.bincount(begins, minlength=4).min() > 25  # no position is preferred


def test_a_method_without_scores_has_no_curve(embedded: Any) -> None:
    model = embedded
    asked = questions(model, [TEXT], [None], False)
    scores = np.array([[3.0, 1, 2, 5, 4], [np.nan, 1, 2, 3, 4], [1.0, 5, 2, 4, 3]])
    ranking = orders(scores, 0)
    assert ranking[1].tolist() == [-1] * 5
    (found,) = curves(model, asked, [ranking], "unk")
    (others,) = curves(model, asked, [ranking[[0, 2]]], "unk")
    assert np.isnan(found[1]).all() and np.allclose(found[[0, 2]], others, atol=1e-6)
    assert all(np.isnan(v).tolist() == [False, True, False] for v in metrics(found, asked[0].chance).values())


@pytest.mark.parametrize("by", DELETIONS)
def test_one_content_token_and_none(by: str) -> None:
    model = bert("BertForMaskedLM")
    asked = questions(model, ["[MASK]", "the [MASK]"], [None] * 2, False)
    assert [len(content(q)) for q in asked] == [0, 1]
    none, one = curves(model, asked, [np.zeros((2, 0), int), np.zeros((2, 1), int)], by)
    assert none.shape == (2, 2, 11) and (none == asked[0].chance).all()
    blank = said(model, asked[1], {0, 2, 3}, by)
    whole = asked[1].chance
    assert np.allclose(one[0], [[whole] + [blank] * 10, [blank] + [whole] * 10], atol=1e-6)
    assert abs(whole - blank) > 1e-4
    assert curves(model, [], [], by) == []


@pytest.mark.parametrize("kind", ["GPT2ForSequenceClassification", "GPT2LMHeadModel"])
def test_one_token_that_cannot_be_removed(kind: str) -> None:
    model = gpt2(kind)
    asked = questions(model, [{"input_ids": torch.tensor([[40]])}], [None], False)
    m = 1 if kind == "GPT2ForSequenceClassification" else 0  # in a decoder, it is the token that answers
    (found,) = curves(model, asked, [np.zeros((1, m), int)], "remove")
    assert len(content(asked[0])) == m and (found == asked[0].chance).all()


def test_metrics_by_hand() -> None:
    deleted = [0.8, 0.8, 0.6, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05]
    kept = [0.05, 0.3, 0.7, 0.7, 0.7, 0.75, 0.9, 0.9, 0.85, 0.8, 0.8]
    found = metrics(np.array([deleted, kept]), 0.8)
    assert list(found) == list(METRICS) and all(np.ndim(v) == 0 for v in found.values())
    assert found["comprehensiveness"] == pytest.approx(0.8 - 0.6)
    assert found["sufficiency"] == pytest.approx(0.8 - 0.7)
    assert found["aopc"] == pytest.approx((0 + 0.2 + 0.4 + 0.4 + 0.6 + 0.6 + 0.7 + 0.7 + 0.7 + 0.75) / 10)
    # log(1) + log(3/4) + log(1/2) + log(1/2) + log(1/4) = log(3/64)
    assert found["log-odds"] == pytest.approx(math.log(3 / 64) / 5)
    assert found["deletion-area"] == pytest.approx(0.1 * (0.8 / 2 + 2.9 + 0.05 / 2))
    assert found["insertion-area"] == pytest.approx(0.1 * (0.05 / 2 + 6.6 + 0.8 / 2))
    assert set(METRICS.values()) == {"higher", "lower"}


def test_metrics_of_many_curves_of_a_score_and_of_nothing() -> None:
    rng = np.random.default_rng(0)
    curve, chance = rng.random((4, 3, 2, 11)), rng.random((4, 1))
    curve[1, 2] = np.nan
    curve[0, 0, 0, 1:] = 0  # clipped before the logarithm
    found = metrics(curve, chance)
    for i, j in np.ndindex(4, 3):
        for name, value in metrics(curve[i, j], float(chance[i, 0])).items():
            assert np.array_equal(found[name][i, j], value, equal_nan=True) and np.isnan(value) == ((i, j) == (1, 2))
    assert found["log-odds"][0, 0] == pytest.approx(math.log(1e-12 / chance[0, 0]))
    scores = metrics(-3 * curve, -3 * chance, kind="score")
    assert np.isnan(scores["log-odds"]).all() and scores["log-odds"].shape == (4, 3)
    for name in METRICS.keys() - {"log-odds"}:
        assert np.allclose(scores[name], -3 * found[name], equal_nan=True)


MISTAKES: dict[str, tuple[Any, str]] = {
    "no such token": (lambda m, q, r: curves(gpt2(), [], [], "mask"), "by='mask': the tokenizer of this model has no mask token; expected one of 'remove', or the id of a token"),
    "no such deletion": (lambda m, q, r: curves(m, q, r, "dash"), "by='dash': expected one of 'unk', 'mask', 'pad', 'remove', or the id of a token"),
    "no steps": (lambda m, q, r: curves(m, q, r, "mask", steps=0), "steps=0: expected a whole number of at least 1"),
    "too few rankings": (lambda m, q, r: curves(m, q, r[:1], "mask"), "1 rankings for 2 questions: expected one for each"),
    "ranking of another text": (lambda m, q, r: curves(m, q, r[::-1], "mask"), "the ranking of question 0 has shape (2, 2): expected [method, 5], one for each content token"),
    "one method alone": (lambda m, q, r: curves(m, q, [r[0], r[1][0]], "mask"), "the ranking of question 1 has shape (2,): expected [method, 2], one for each content token"),
    "a token twice": (lambda m, q, r: curves(m, q, [r[0], [[0, 1], [1, 1]]], "mask"), "the ranking of question 1 does not name each content token once: expected rows of the numbers from 0 to 1, as orders() gives them"),
    "a curve alone": (lambda m, q, r: metrics(np.ones(11), 1.0), ("curve has shape (11,): expected [..., 2, steps + 1] with at least 3 steps, so that one is near 20 % of the "
    "tokens")),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(embedded: Any, name: str) -> None:
    call, message = MISTAKES[name]
    model = embedded
    asked = questions(model, [TEXT, "the keys"], [None] * 2, False)
    rankings = [orders(np.random.default_rng(0).random((2, len(content(q)))), 0) for q in asked]
    with pytest.raises(af.InputError) as raised:
        call(model, asked, rankings)
    assert str(raised.value) == message
