"""How a written answer changes when parts of its passage are deleted, or alone kept, in the order of some scores.

P is the geometric mean of the probabilities of the answer's tokens, so that answers of any length are between 0 and 1.
Only tokens of sentences can be left out; a question and the prompt's last token, which predicts, always stay.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluate.deletion import RATIONALE, orders
from benchmarks.ablation import Passage, ranking
from benchmarks.answer_methods import Scores, log_p
from benchmarks.word_truth import LEAST_FALL, retention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnflow.model import Model

Floats = NDArray[np.float64]

TOP = (1, 3)
"""For how many top sentences the drop is measured."""

DRAWS = 4
"""How many texts are drawn for each soft measure."""


def deletion_measures(model: Model, passage: Passage, scores: Scores) -> dict[str, float]:
    """Return all measures of one passage that need their own passes, by name.

    "drop of top k": how much log p of the answer falls without the k first-ranked sentences together.
    "comprehensiveness" is P - P without the first-ranked fifth of the tokens; "sufficiency" is P - P with only these.
    "π-Soft-NC" and "π-Soft-NS" are from `soft`. Methods that score only units have only the first measure.
    """
    texts: list[list[int]] = []
    order = ranking(passage, scores.units)
    for count in TOP:
        texts.append(without(passage, (i for k in order[:count] for i in passage.units[k])))
    free = np.array(passage.free)
    keeps: list[list[int]] = []
    if scores.tokens is not None:
        own = scores.tokens[free]
        first = orders(own[None], passage.seed)[0][: math.ceil(RATIONALE * len(free))]
        texts += [without(passage, free[first]), without(passage, np.delete(free, first))]
        keeps = drawn(own, passage.seed)
        texts += [without(passage, np.delete(free, kept)) for kept in keeps]
    log_ps = log_p(model, texts, passage.answer)
    result = {f"drop of top {k}": passage.whole - float(x.sum()) for k, x in zip(TOP, log_ps, strict=False)}
    if scores.tokens is not None:
        size = len(passage.answer)
        whole, bare = math.exp(passage.whole / size), math.exp(passage.bare / size)
        p = np.exp(log_ps[len(TOP) :].mean(1))
        result |= {"comprehensiveness": whole - float(p[0]), "sufficiency": whole - float(p[1])}
        result |= soft(whole, bare, p[2 : 2 + DRAWS], p[2 + DRAWS :])
    return result


def without(passage: Passage, positions: Iterable[int]) -> list[int]:
    """Return the prompt's tokens without those at these positions."""
    gone = {int(i) for i in positions}
    return [token for i, token in enumerate(passage.ids) if i not in gone]


def soft(whole: float, bare: float, removed: Floats, kept: Floats) -> dict[str, float]:
    """Return π-Soft-NC and π-Soft-NS: the normalised soft measures of Zhao and Aletras (2023), with fixed retention.

    In the original, each token is kept, or removed, with its own score as probability, so a method with larger scores
    keeps more and looks better. Here the m tokens that can be removed get the probabilities ``q_i = min(1, c·max(s_i,
    0))`` with c such that their sum is m/5 (`benchmarks.word_truth.retention`), and a draw takes the same number of
    them for every method (`sampled`). For NS only the drawn tokens stay; for NC they are removed, and the others stay.
    With x' such a text, P0 of the text without all m, and the mean over the draws:

        π-Soft-NC = mean max(0, P - P(x')) / (P - P0)        π-Soft-NS = 1 - mean max(0, P - P(x')) / (P - P0)

    For both, higher is better. There are none if P is hardly more than P0: then the passage contributed little to the
    answer.

    removed, kept: P of the draws for NC and NS.

    >>> soft(0.75, 0.25, np.array([0.25, 0.5]), np.array([0.75, 0.75]))
    {'π-Soft-NC': 0.75, 'π-Soft-NS': 1.0}
    """
    span = whole - bare
    if span < LEAST_FALL:
        return {}
    comprehensive, sufficient = (float(np.maximum(0, whole - p).mean()) / span for p in (removed, kept))
    return {"π-Soft-NC": comprehensive, "π-Soft-NS": 1 - sufficient}


def drawn(scores: Floats, seed: int) -> list[list[int]]:
    """Return which tokens stay in each draw, for NC and then for NS; all methods use the same random numbers."""
    size = len(scores)
    chances = retention(scores, RATIONALE)
    draw = np.random.default_rng(seed)
    chosen = [sampled(chances, float(draw.random()), draw.permutation(size)) for _ in range(DRAWS)]
    return [*(np.delete(np.arange(size), own).tolist() for own in chosen), *chosen]


def sampled(chances: Floats, shift: float, order: NDArray[np.int64]) -> list[int]:
    """Draw systematically: each place with its chance, and as many places as the chances sum to.

    The chances are laid end to end in this order, and a place is drawn if an integer minus `shift` falls into its part.
    The number drawn is the sum of the chances, or one of the two integers next to it.

    >>> sampled(np.array([1.0, 0.5, 0.25, 0.25]), 0.4, np.arange(4))
    [0, 2]
    """
    ends = np.cumsum(chances[order]).round(9) + shift
    hits = np.diff(np.floor(ends), prepend=0.0) > 0
    return sorted(order[hits].tolist())
