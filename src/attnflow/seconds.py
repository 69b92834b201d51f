"""Values over positions that stand for seconds of a sound: in bins of time, and the stretch that a word comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.errors import InputError

Span = tuple[float, float]
"""Start and end in seconds."""


class Stretch(NamedTuple):
    """A stretch of a sound: its start and end in seconds, and its share of the values over the whole sound."""

    start: float
    end: float
    share: float


def binned(spans: Sequence[Span | None], values: FloatArray, edges: FloatArray) -> FloatArray:
    """Return values ``[…, position]`` summed in bins of time ``[…, bin]``, each spread evenly over its seconds.

    Values outside the edges, and values without seconds, are in no bin.

    >>> binned([(0.0, 1.0), (1.0, 3.0), None], np.array([1.0, 2.0, 9.0]), np.array([0.0, 0.5, 2.0, 3.0]))
    array([0.5, 1.5, 1. ])
    """
    starts, ends = (np.array([0.0 if span is None else span[i] for span in spans]) for i in (0, 1))
    overlap = np.minimum(ends, edges[1:, None]) - np.maximum(starts, edges[:-1, None])  # [bin, position]
    parts = overlap.clip(0) / np.where(ends > starts, ends - starts, 1)
    sums: FloatArray = np.asarray(values, np.float64) @ parts.T
    return sums


def over_time(
    spans: Sequence[Span | None], special: Sequence[bool], values: FloatArray, bins: int
) -> tuple[FloatArray, FloatArray]:
    """Return the edges of equal bins over a sound, in seconds, and values ``[…, position]`` summed in them: ``[…, bin]``.

    special: positions that are left out, such as those of the silence after the sound.
    """
    known = [None if mark else span for span, mark in zip(spans, special, strict=True)]
    ends = [span[1] for span in known if span is not None]
    if not ends:
        raise InputError("none of these inputs stands for seconds of a sound: expected a result for a sound")
    edges = np.linspace(0, max(ends), bins + 1)
    return edges, binned(known, values, edges)


SMOOTH = 0.1
"""Seconds over which values are averaged to find the stretch of a word: shorter than most words."""


def stretch(spans: Sequence[Span | None], special: Sequence[bool], row: FloatArray) -> Stretch:
    """Return the stretch of a sound around the highest value of a row, as far as values reach half of it, and its share.

    Values are averaged over 0.1 seconds first. Negative values count as 0.

    >>> spans = [(i / 10, i / 10 + 0.1) for i in range(5)]
    >>> stretch(spans, [False] * 5, np.array([0.0, 0.1, 0.6, 0.3, 0.0]))
    Stretch(start=0.2, end=0.4, share=0.9)
    """
    return stretches(spans, special, row, 1)[0]


def stretches(spans: Sequence[Span | None], special: Sequence[bool], row: FloatArray, most: int) -> list[Stretch]:
    """Return the highest stretches of a row, the highest first, each found in what the earlier ones left."""
    sums: dict[Span, float] = {}
    for span, mark, value in zip(spans, special, row.tolist(), strict=True):
        if span is not None and not mark:
            sums[span] = sums.get(span, 0.0) + max(value, 0.0)
    if not sums:
        raise InputError("none of these inputs stands for seconds of a sound: expected a result for a sound")
    places = sorted(sums)
    values = np.array([sums[place] for place in places])
    width, total = max(1, round(SMOOTH / (places[-1][1] - places[-1][0]))), float(values.sum()) or 1.0
    highest: list[Stretch] = []
    taken = np.zeros(len(values), bool)
    while len(highest) < most and (values.any() or not highest):
        smooth = np.convolve(values, np.ones(width), "full")[(width - 1) // 2 :][: len(values)]
        smooth[taken] = -1
        first = last = int(smooth.argmax())
        while first > 0 and smooth[first - 1] >= smooth.max() / 2:
            first -= 1
        while last + 1 < len(values) and smooth[last + 1] >= smooth.max() / 2:
            last += 1
        share = float(values[first : last + 1].sum()) / total
        highest.append(Stretch(places[first][0], places[last][1], round(share, 6)))
        values[first : last + 1] = 0
        taken[first : last + 1] = True
    return highest
