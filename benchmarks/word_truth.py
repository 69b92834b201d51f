"""What words are really worth to a class, and how well the scores of a method reflect it.

The truth is the exact change of the log-odds without each word. Deletions use `attnflow.evaluate.deletion`; the soft
ones hold the number of kept tokens constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.evaluate.deletion import RATIONALE, content, orders
from attnflow.evaluate.statistics import spearman
from attnflow.importance.blank import blank_token
from attnflow.importance.question import Question, Tensors, answer_scores, outputs
from benchmarks.answer_metrics import precision

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]

DRAWS = 2
"""How many texts the soft measures average over."""

LEAST_FALL = 0.05
"""If blanking everything lowers the probability by less, shares of that fall mean nothing."""


@dataclass(frozen=True)
class WordTruth:
    """One text of a classifier, and what its words are worth. seed: for ties and draws, the same for all methods."""

    model: Model
    question: Question
    seed: int

    def measures(self, scores: Floats) -> dict[str, float]:
        """Compare scores of tokens with the truth of words, and measure deletion.

        "Spearman" and "top-1" compare with the change of the log-odds, with support for the class highest; "Spearman,
        size" and "top-1, size" compare sizes. A word has the sum of its tokens.
        """
        worth = by_word(scores, self.words)
        size = by_word(np.abs(scores), self.words)
        return {
            "Spearman": spearman(worth, self.falls),
            "top-1": top_agreement(worth, self.falls),
            "Spearman, size": spearman(size, np.abs(self.falls)),
            "top-1, size": top_agreement(size, np.abs(self.falls)),
            **self.deletion(scores),
        }

    @cached_property
    def words(self) -> list[list[int]]:
        return words_of(self.question)

    @cached_property
    def falls(self) -> Floats:
        """How much the log-odds of the class fall without each word: its tokens are removed, all others stay."""
        rows = [without(self.question, word) for word in self.words]
        return self._answers([self.question.tensors], "log-odds") - self._answers(rows, "log-odds")

    def deletion(self, scores: Floats) -> dict[str, float]:
        """Return comprehensiveness and sufficiency at 20 % of the tokens, hard and soft.

        The first two are those of `attnflow.evaluate.deletion`: ``p(x) - p(x without the rationale)``, higher is
        better, and ``p(x) - p(rationale alone)``, lower is better. The rationale is the first ``⌈0.2·m⌉`` of the m
        content tokens, and [MASK] replaces deleted tokens.

        π-Soft-NC and π-Soft-NS follow Soft-NC and Soft-NS (Zhao & Aletras 2023), which keep every token with its score
        as probability, so that a method with large scores keeps more. Here ``q_i`` are `retention` probabilities of the
        content tokens, whose sum is 0.2·m for every method. In x⁺ token i stays with probability q_i, in x⁻ with 1 -
        q_i; [MASK] replaces the others. All methods use the same random numbers for a text. With p the probability of
        the class, p₀ that of a text of masks, and means over `DRAWS` texts:

            π-Soft-NC = max(0, p(x) - p(x⁻)) / (p(x) - p₀)
            π-Soft-NS = 1 - max(0, p(x) - p(x⁺)) / (p(x) - p₀)

        For both, higher is better. A text with ``p(x) - p₀ < 0.05`` has none.
        """
        rationale = -(-len(self.free) // round(1 / RATIONALE))  # rounded up in whole numbers
        first = np.argsort(orders(scores[None, self.free], self.seed)[0]) < rationale
        drawn = self.uniform < retention(scores[self.free], RATIONALE)  # [draw, token]
        stays = np.concatenate([[~first, first], ~drawn, drawn])
        falls = self.question.chance - self._answers([self._masked(row) for row in stays], "probability")
        values = {"comprehensiveness": float(falls[0]), "sufficiency": float(falls[1])}
        whole = self.question.chance - self.chance_of_nothing
        if whole >= LEAST_FALL:
            dropped, kept = np.maximum(0, falls[2:]).reshape(2, -1).mean(1) / whole
            values |= {"π-Soft-NC": float(dropped), "π-Soft-NS": float(1 - kept)}
        return values

    @cached_property
    def free(self) -> NDArray[np.intp]:
        return content(self.question)

    @cached_property
    def uniform(self) -> Floats:
        return np.random.default_rng(self.seed).random((DRAWS, len(self.free)))

    @cached_property
    def chance_of_nothing(self) -> float:
        return float(self._answers([self._masked(np.zeros(len(self.free), bool))], "probability")[0])

    def _masked(self, stays: NDArray[np.bool_]) -> Tensors:
        ids = self.question.tensors["input_ids"].clone()
        ids[0, torch.from_numpy(self.free[~stays])] = blank_token(self.model, "mask")
        return {**self.question.tensors, "input_ids": ids}

    def _answers(self, rows: Sequence[Tensors], of: str) -> Floats:
        """Return the log-odds or the probability of the class, for every row."""
        values = np.empty(len(rows))
        for at, logits in outputs(self.model, rows):
            values[at] = answer_scores(self.model, [self.question] * len(at), logits, of).cpu().numpy()
        return values


def words_of(question: Question) -> list[list[int]]:
    """Return the positions of the tokens of each word."""
    words: dict[int, list[int]] = {}
    for position, word in enumerate(question.encoded.word_ids):
        if word is not None:
            words.setdefault(word, []).append(position)
    return list(words.values())


def by_word(scores: Floats, words: Sequence[Sequence[int]]) -> Floats:
    """Return the sum over the tokens of each word.

    >>> by_word(np.array([9.0, 1.0, 2.0, 4.0]), [[1], [2, 3]]).tolist()
    [1.0, 6.0]
    """
    return np.array([scores[list(word)].sum() for word in words])


def without(question: Question, positions: Sequence[int]) -> Tensors:
    """Return the text without these tokens."""
    if question.place is not None and min(positions) <= question.place:
        raise InputError(
            "a word comes before the position that answers: expected a class that is read before all words"
        )
    keep = torch.ones(question.length, dtype=torch.bool)
    keep[list(positions)] = False
    return {name: x[:, keep] if x.dim() == 2 else x for name, x in question.tensors.items()}


def top_agreement(scores: Floats, truth: Floats) -> float:
    """Return whether the highest score is at the highest truth; ties of scores count by expectation.

    >>> top_agreement(np.array([1.0, 3.0, 3.0]), np.array([0.0, 5.0, 1.0]))
    0.5
    """
    best = np.zeros(len(truth), bool)
    best[int(np.argmax(truth))] = True
    return precision(scores, best, 1)


def retention(scores: Floats, share: float) -> Floats:
    """Return probabilities that grow with the scores and sum to ``share`` of their number.

    ``q_i = min(1, λ·max(0, s_i))`` with the λ that gives the sum. If too few scores are positive, these have 1, and the
    others share the rest evenly.

    >>> retention(np.array([3.0, 1.0, 0.0, -2.0]), 0.5).tolist()
    [1.0, 1.0, 0.0, 0.0]
    >>> retention(np.array([4.0, 2.0, 1.0, 1.0]), 0.25).tolist()
    [0.5, 0.25, 0.125, 0.125]
    >>> retention(np.array([5.0, 0.0, 0.0]), 2 / 3).tolist()
    [1.0, 0.5, 0.5]
    """
    total = share * len(scores)
    positive = np.maximum(scores, 0)
    count = int((positive > 0).sum())
    if count <= total:
        rest = len(scores) - count
        return np.where(positive > 0, 1.0, (total - count) / max(rest, 1))
    q = np.zeros(len(scores))
    full = np.zeros(len(scores), bool)
    while True:  # cap at 1 and share the rest among the others: at most as many rounds as tokens
        part = np.where(full, 0.0, positive)
        q = np.where(full, 1.0, part * ((total - full.sum()) / part.sum()))
        if not (q > 1).any():
            return q
        full |= q >= 1
