"""Where an answer came from, as a picture: the edges that carry most of what tokens give to it, from the bottom up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import FloatArray
from attnflow.errors import InputError

SHARE = 0.8
"""The share that the kept edges should carry."""

MOST = 60
"""The most edges between different positions: a picture with more is unreadable."""

LEAST = 1e-3
"""Edges that carry less are not drawn."""

NOISE = 1e-7
"""Relative to the widest edge of a layer: single precision leaves such remnants on edges that carry nothing."""

Floats = NDArray[np.float64]


class OriginEdge(NamedTuple):
    """What goes up from the state of ``key`` below layer ``layer`` to the state of ``query`` above it.

    amount: the share of all that the tokens give. part: the share of what the state below holds, over all edges, kept or
        not.
    """

    layer: int
    query: int
    key: int
    amount: float
    part: float


@dataclass(frozen=True)
class Origin:
    """The strongest edges on the way from tokens to an answer, and the share that they carry together."""

    edges: tuple[OriginEdge, ...]
    carried: float


def strongest_ways(
    graphs: Sequence[FloatArray],
    shares: FloatArray,
    top: Sequence[int],
    share: float = SHARE,
    most: int = MOST,
) -> Origin:
    """Return the fewest edges between positions that carry ``share`` of what tokens give to the top; at most ``most``.

    graphs: [query, key] for each layer from the bottom up: what each edge carries, none negative; the diagonal is what
    stays at a position. shares: what each token gives; only values above zero count. It goes up in proportion to what the
    edges from its state carry that lead to the answer. top: the positions that answer.

    >>> read = np.array([[1.0, 0.5], [0.0, 0.5]])
    >>> ways = strongest_ways([read, read], np.array([0.2, 0.8]), top=[0], share=1)
    >>> [(edge.layer, edge.query, edge.key, edge.amount) for edge in ways.edges if edge.query != edge.key], ways.carried
    ([(0, 0, 1, 0.4), (1, 0, 1, 0.4)], 1.0)
    """
    start = np.asarray(shares, np.float64).clip(min=0)
    if not graphs or any(np.shape(graph) != (len(start), len(start)) for graph in graphs):
        raise InputError("graphs and shares differ in size: expected [query, key] of one size, and as many shares")
    ups, reaching = _upward(graphs, top)
    start = np.where(reaching, start, 0)
    if not start.sum() or not np.isfinite(start.sum()):
        return Origin((), 0.0)
    start = start / start.sum()
    moves = _moves(ups, start)
    low, high = 0, min(most, len(moves))
    while low < high:  # more edges carry more
        middle = (low + high) // 2
        if _carried(_kept(ups, moves[:middle]), start, top)[0] >= share - 1e-12:
            high = middle
        else:
            low = middle + 1
    carried, amounts = _carried(_kept(ups, moves[:low]), start, top)
    edges = [
        OriginEdge(layer, int(query), int(key), float(amount[query, key]), float(ups[layer][query, key]))
        for layer, amount in enumerate(amounts)
        for query, key in np.argwhere(amount >= LEAST)
    ]
    return Origin(tuple(sorted(edges, key=lambda edge: -edge.amount)), carried)


def _upward(graphs: Sequence[FloatArray], top: Sequence[int]) -> tuple[list[Floats], NDArray[np.bool_]]:
    """Return where the content of a state goes, [query, key] per layer, and which tokens lead to the answer.

    Columns add up to one, or to zero if no path leads to the answer.
    """
    leads = np.zeros(len(graphs[-1]), bool)
    leads[list(top)] = True
    ups = []
    for graph in reversed(graphs):
        leading = np.where(leads[:, None], np.asarray(graph, np.float64), 0)
        leading[leading < NOISE * leading.max(initial=0)] = 0
        total = leading.sum(axis=0)
        leads = total > 0
        ups.append(leading / np.where(leads, total, 1))
    return ups[::-1], leads


def _moves(ups: Sequence[Floats], start: Floats) -> list[tuple[int, int, int]]:
    """Return all edges between different positions that carry something, the widest first."""
    mass, edges = start, list[tuple[float, int, int, int]]()
    for layer, up in enumerate(ups):
        sent = up * mass
        mass = sent.sum(axis=1)
        np.fill_diagonal(sent, 0)
        edges += [(float(sent[q, k]), layer, int(q), int(k)) for q, k in np.argwhere(sent >= LEAST / 10)]
    return [(layer, query, key) for _, layer, query, key in sorted(edges, key=lambda edge: -edge[0])]


def _kept(ups: Sequence[Floats], moves: Sequence[tuple[int, int, int]]) -> list[Floats]:
    """Return the same with only these edges between positions; staying at a position is always kept."""
    kept = [np.diag(np.diag(up)) for up in ups]
    for layer, query, key in moves:
        kept[layer][query, key] = ups[layer][query, key]
    return kept


def _carried(kept: Sequence[Floats], start: Floats, top: Sequence[int]) -> tuple[float, list[Floats]]:
    """Return what reaches the answer along these edges, and how much goes along each."""
    masses = [start]
    for up in kept:
        masses.append(up @ masses[-1])
    reach = np.zeros(len(start))
    reach[list(top)] = 1
    carried = float(masses[-1] @ reach)
    amounts = []
    for up, mass in zip(reversed(kept), reversed(masses[:-1]), strict=True):
        amounts.append(reach[:, None] * up * mass)
        reach = reach @ up
    return carried, amounts[::-1]
