"""Rows of an answer as arrays: shares of signed parts, units of tokens, and hops from token to token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """Units of a prompt: the text or name of each, its tokens, and white space after it that its last token contains."""

    texts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    breaks: tuple[str, ...] = ()

    def rest(self, length: int) -> tuple[int, ...]:
        """Return the tokens below length that are in no unit."""
        members = {i for group in self.groups for i in group}
        return tuple(i for i in range(length) if i not in members)

    def only(self, numbers: Sequence[int]) -> Units:
        """Return the units with these numbers."""
        texts, groups = tuple(self.texts[i] for i in numbers), tuple(self.groups[i] for i in numbers)
        return Units(texts, groups, tuple(self.breaks[i] for i in numbers))

    def number(self, unit: int | str) -> int:
        """Return the number of the unit with this number, or with this text in it and in no other unit."""
        count = len(self.texts)
        if isinstance(unit, int) and not isinstance(unit, bool):
            if -count <= unit < count:
                return unit % count
            raise InputError(f"unit {unit} does not exist: there are {count} units, expected 0 to {count - 1}")
        places = [i for i, text in enumerate(self.texts) if isinstance(unit, str) and unit and unit in text]
        if len(places) == 1:
            return places[0]
        if places:
            listed = "; ".join(f"{i}: {self.texts[i]!r:.60}" for i in places[:9])
            raise InputError(f"{unit!r:.60} is in {len(places)} units: give the number of one, {listed}")
        raise InputError(f"no unit of the prompt contains {unit!r:.60}: give a part of its text, or its number")


def shares(parts: Floats, left_out: Sequence[int] = ()) -> Floats:
    """Return signed parts ``[..., token]`` as shares: cut off at zero, ``left_out`` tokens zero, divided by their sum.

    >>> shares(np.array([9.0, 3.0, -2.0, 1.0]), left_out=[0])
    array([0.  , 0.75, 0.  , 0.25])
    """
    positive = np.clip(parts, 0, None)
    positive[..., list(left_out)] = 0
    total = positive.sum(-1, keepdims=True)
    divided: Floats = positive / np.where(total == 0, 1, total)
    return divided


def mean_shares(rows: Iterable[Floats], groups: Sequence[Sequence[int]], left_out: Sequence[int] = ()) -> Floats:
    """Return the mean over rows of the shares of units. Rows without support do not count; ``left_out`` tokens are zero.

    Rows are read one at a time, because all rows of a long prompt do not fit into a CPU's cache.

    >>> mean_shares(np.array([[3.0, -2.0, 1.0], [-1.0, 2.0, 0.0]]), [(0,), (1,), (2,)])
    array([0.375, 0.5  , 0.125])
    """
    unit_sums = _summing(groups)
    total = np.zeros(len(groups))
    for row in rows:
        kept = row.astype(np.float64)  # a copy
        kept[list(left_out)] = 0
        total += shares(unit_sums(kept))
    return shares(total)


FADED = 0.5
"""The weight of fading relative to answer rows, both scaled to size one. It was chosen on passages of even seeds; the task
ablation of ``python -m benchmarks.answers`` measures it on others."""


def combined(read: Floats, faded: Floats, units: int | None = None) -> Floats:
    """Return answer rows and fading of each unit on one scale, signed.

    Each is divided by its root mean square over units. The two err differently: answer rows count what is read but not
    what competes with it, and fading is a slope, which hardly sees what a confident model would lose later.

    read: signed parts of the log-odds. faded: slopes of log p. units: the number of leading entries that are units and set
    the scale; the default is all.

    >>> combined(np.array([3.0, 1.0]), np.array([0.0, 2.0])).round(2).tolist()
    [1.34, 1.15]
    """
    return _level(read, units) + FADED * _level(faded, units)


def _level(values: Floats, units: int | None) -> Floats:
    size = float(np.sqrt(np.mean(values[:units] ** 2)))
    return values / size if size else values


def by_units(values: Floats, groups: Sequence[Sequence[int]]) -> Floats:
    """Return the sum over the tokens of each unit: ``[..., token]`` to ``[..., unit]``.

    >>> by_units(np.array([0.1, 0.2, 0.7]), [(0,), (1, 2)])
    array([0.1, 0.9])
    """
    return _summing(groups)(values)


def _summing(groups: Sequence[Sequence[int]]) -> Callable[[Floats], Floats]:
    tokens = np.array([token for group in groups for token in group], dtype=np.int64)
    sizes = np.array([len(group) for group in groups], dtype=np.int64)
    filled = np.flatnonzero(sizes)
    starts = (np.cumsum(sizes) - sizes)[filled]
    places = slice(len(filled)) if np.array_equal(filled, np.arange(len(filled))) else filled
    in_order = np.array_equal(tokens, np.arange(len(tokens)))

    def unit_sums(values: Floats) -> Floats:
        sums = np.zeros((*values.shape[:-1], len(groups)))
        if len(tokens):
            # most units cover the text in order: avoid the copy
            chosen = values if in_order and len(tokens) == values.shape[-1] else values[..., tokens]
            alone = len(tokens) == len(starts)
            sums[..., places] = chosen if alone else np.add.reduceat(chosen, starts, -1, dtype=np.float64)
        return sums

    return unit_sums


def passed_on(start: Floats, rows: Floats, prompt: int, hops: int | str) -> tuple[Floats, Floats]:
    """Return what has reached the prompt, and what is left on answer tokens, after some hops.

    start: ``[prompt token | answer token]``. rows: the same for each answer token, which gives to tokens before it.
    One hop passes what is on answer tokens on by their rows: ``p + a·P`` and ``a·R``, for rows ``[P | R]``. All hops are
    the limit ``p + a·(1 - R)⁻¹·P``, with nothing left.
    """
    at_prompt, at_answer = start[:prompt].copy(), start[prompt:].copy()
    to_prompt, to_answer = rows[:, :prompt], rows[:, prompt:]
    if hops == "all":
        passing = torch.from_numpy((np.eye(len(to_answer)) - to_answer).T.copy())
        through = torch.linalg.solve_triangular(passing, torch.from_numpy(at_answer)[:, None], upper=True)
        return at_prompt + through[:, 0].numpy() @ to_prompt, np.zeros_like(at_answer)
    for _ in range(min(int(hops), len(to_answer))):  # no chain through the answer is longer than the answer
        at_prompt, at_answer = at_prompt + at_answer @ to_prompt, at_answer @ to_answer
    return at_prompt, at_answer
