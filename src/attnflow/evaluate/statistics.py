"""Rank correlation, bootstrap intervals and paired tests; NaN is a missing value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError

Floats = NDArray[np.float64]

DIGITS = 2.0**30  # scores that agree to nine digits tie: equal flows come from sums in different orders
TIES = ("mean", "authors")
SIGNIFICANT = 0.05
FEW = 13  # up to this many differences all signs are tried, as scipy does, but scipy takes up to a second


@dataclass(frozen=True)
class Interval:
    """A mean over samples and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def ranks(x: Floats, dense: bool = False) -> Floats:
    """Return ranks from 1 along the last axis; ties share their mean rank.

    dense: ties share one rank, and the next is one more.

    >>> ranks(np.array([0.3, 0.1, 0.3, 2.0])).tolist()
    [2.5, 1.0, 2.5, 4.0]
    >>> ranks(np.array([0.3, 0.1, 0.3, 2.0]), dense=True).tolist()
    [2.0, 1.0, 2.0, 3.0]
    """
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    rounded = np.ldexp(np.round(mantissa * DIGITS) / DIGITS, exponent)
    order = np.argsort(rounded, axis=-1, kind="stable")
    ordered = np.take_along_axis(rounded, order, -1)
    begins = np.ones(ordered.shape, bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    if dense:
        place = np.cumsum(begins, -1).astype(np.float64)
    else:
        index = np.broadcast_to(np.arange(ordered.shape[-1]), ordered.shape)
        first = np.maximum.accumulate(np.where(begins, index, 0), -1)
        ends = np.ones(ordered.shape, bool)
        ends[..., :-1] = begins[..., 1:]
        last = np.minimum.accumulate(np.where(ends, index, ordered.shape[-1])[..., ::-1], -1)[..., ::-1]
        place = (first + last) / 2 + 1
    placed = np.empty(ordered.shape)
    np.put_along_axis(placed, order, place, -1)
    return placed


def spearman(x: Floats, y: Floats, ties: str = "mean") -> float:
    """Return the correlation of the ranks; NaN for fewer than two values, or if all values of one side are equal.

    ties: "mean" gives tied values their mean rank. "authors" is ``1 - 6·Σd² / (n·(n²-1))`` on dense ranks, as in the
        paper's code: the same without ties, and biased with them.

    >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 9.0, 4.0])), 3)
    0.5
    >>> tied, y = np.array([1.0, 1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
    >>> round(spearman(tied, y), 3), round(spearman(tied, y, ties="authors"), 3)
    (0.775, 0.1)
    """
    return float(rank_correlations(np.asarray(x)[None], np.asarray(y)[None], ties)[0, 0])


def rank_correlations(x: Floats, y: Floats, ties: str = "mean") -> Floats:
    """Return `spearman` of every row of ``x[i, token]`` with every row of ``y[j, token]``: ``[i, j]``."""
    if ties not in TIES:
        raise InputError(f"ties={ties!r}: expected one of {', '.join(map(repr, TIES))}")
    n = x.shape[-1]
    if n != y.shape[-1]:
        raise InputError(f"rank correlation of {n} with {y.shape[-1]} values: expected the same number of both")
    if n < 2:
        return np.full((len(x), len(y)), np.nan)
    a, b = (ranks(v, dense=ties == "authors") for v in (x, y))
    flat = _ranks_nothing(x, a)[:, None] | _ranks_nothing(y, b)[None]
    if ties == "authors":
        rho = 1 - 6 * ((a[:, None] - b[None]) ** 2).sum(-1) / (n * (n * n - 1))
    else:
        a, b = (v - v.mean(-1, keepdims=True) for v in (a, b))
        size = np.sqrt((a * a).sum(-1)[:, None] * (b * b).sum(-1)[None])
        rho = (a @ b.T) / np.where(flat, 1, size)
    return np.where(flat, np.nan, rho)


def _ranks_nothing(values: Floats, placed: Floats) -> NDArray[np.bool_]:
    nothing: NDArray[np.bool_] = (placed.min(-1) == placed.max(-1)) | ~np.isfinite(values).all(-1)
    return nothing


def intervals(table: Floats, resamples: int = 5000, seed: int = 0) -> list[Interval | None]:
    """Return for each column of ``table[sample, column]`` its mean and the percentile interval over resampled samples.

    NaN values are left out; a column without any value gives None.
    """
    n = len(table)
    if not n:
        return [None] * table.shape[1]
    there = np.isfinite(table)
    filled = np.where(there, table, 0.0)
    drawn = _draws(n, resamples, seed)
    counts = drawn @ there
    means = (drawn @ filled) / np.where(counts == 0, np.nan, counts)
    bounds: list[Interval | None] = []
    for k in range(table.shape[1]):
        if not there[:, k].any():
            bounds.append(None)
            continue
        low, high = np.nanpercentile(means[:, k], [2.5, 97.5])
        bounds.append(Interval(float(table[there[:, k], k].mean()), float(low), float(high)))
    return bounds


@lru_cache(maxsize=1)  # a table needs the same draws dozens of times, and drawing takes longer than using them
def _draws(n: int, resamples: int, seed: int) -> Floats:
    """Return how often each of n samples is in each resample: ``[resample, sample]``."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def wilcoxon(difference: Floats) -> float | None:
    """Return the two-sided p of Wilcoxon's signed-rank test that paired differences are centred on 0.

    Zeros are ranked, then left out. None with fewer than two differences other than 0.

    >>> wilcoxon(np.array([0.1, 0.1, 0.2, 0.2, 0.3]))
    0.0625
    """
    from scipy import stats

    present = difference[np.isfinite(difference)]
    if np.count_nonzero(present) < 2:
        return None
    if len(present) > FEW:
        return float(stats.wilcoxon(present, zero_method="pratt", method="auto").pvalue)
    size = stats.rankdata(np.abs(present))[present != 0]
    sums = _signs(len(size)) @ size  # sums of multiples of ½, so exact
    positive = size[present[present != 0] > 0].sum()
    return float(min(1.0, 2 * min((sums <= positive).mean(), (sums >= positive).mean())))


@cache
def _signs(n: int) -> Floats:
    """Return every subset of n differences that may be the positive ones, ``[2ⁿ, n]``."""
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(np.float64)


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p values with Holm's correction for testing all of them at once.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    order = sorted((v, i) for i, v in enumerate(p) if v is not None)
    adjusted: list[float | None] = [None] * len(p)
    largest = 0.0
    for place, (value, i) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - place)))
        adjusted[i] = largest
    return adjusted


def effect(difference: Floats) -> float | None:
    """Return the matched-pairs rank-biserial correlation ``(W⁺ - W⁻) / (W⁺ + W⁻)`` (Kerby 2014).

    It is 1 if all differences are positive. As in `wilcoxon`, zeros are ranked and then left out; None if all are zero.

    >>> effect(np.array([1.0, 2.0, -3.0, 4.0]))
    0.4
    """
    present = difference[np.isfinite(difference)]
    size = ranks(np.abs(present))
    up, down = size[present > 0].sum(), size[present < 0].sum()
    return float((up - down) / (up + down)) if up + down else None
