"""Sinks: positions that take attention because it has to go somewhere, while their values carry next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow._arrays import Array

SHORT = 0.5
"""The value of a sink is at most this fraction of the median length of values."""

FAR = 4.0
"""A sink takes at least this many times its value's share of the attention."""


def sink_positions(weights: Array, lengths: Array) -> tuple[int, ...]:
    """Return the keys of one layer that are sinks: their weight is far above their value's share.

    Key k gets ``w_k``, the mean of ``W[q, k]`` over the queries q ≠ k that can see it. Its even share ``t_k`` is the same
    mean of 1 / (keys that q can see), and the relative length of its value is ``s_k = ‖v_k‖ / median ‖v‖``. It is a sink if
    ``s_k ≤ 1/2``, ``w_k ≥ 4 · s_k · t_k`` (four times what its value would earn), and ``w_k ≥ t_k``.

    weights: ``[query, key]``, heads reduced. lengths: ``‖v_k‖`` of every key.

    >>> import numpy as np
    >>> sink_positions(np.array([[1, 0, 0], [0.8, 0.2, 0], [0.7, 0.1, 0.2]]), np.array([0.1, 1, 1]))
    (0,)
    """
    short, median = short_values(lengths), _median(lengths)
    if not short:
        return ()
    columns = weights[:, short]  # [query, candidate]
    seen = (columns > 0) * 1.0
    counts = (weights > 0).sum(-1)
    turns = seen / (counts + (counts == 0))[:, None]
    positions = []
    for number, k in enumerate(short):
        others = seen[:, number].sum() - seen[k, number]
        if not others:
            continue
        received = float((columns[:, number].sum() - columns[k, number]) / others)
        turn = float((turns[:, number].sum() - turns[k, number]) / others)
        if received >= turn * max(1.0, FAR * float(lengths[k]) / median):
            positions.append(k)
    return tuple(positions)


def short_values(lengths: Array) -> list[int]:
    """Return the positions whose values are at most half as long as the median."""
    median = _median(lengths)
    return [k for k, length in enumerate(lengths.tolist()) if length <= SHORT * median] if median else []


def _median(lengths: Array) -> float:
    ordered = sorted(lengths.tolist())
    return float(ordered[len(ordered) // 2])


def share_of(values: Any, positions: Sequence[int]) -> float:
    """Return how much of a row goes to these positions, as a share of its sum."""
    total = float(values.sum())
    return float(values[list(positions)].sum()) / total if total else 0.0
