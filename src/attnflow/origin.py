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
"""What the edges that are kept are to carry."""

MOST = 60
"""The most edges between different positions: more of them cannot be told apart in a picture."""

LEAST = 1e-3
"""An edge that carries less is not drawn."""

NOISE = 1e-7
"""Of the widest edge of a layer: single precision leaves such remnants on edges that carry nothing."""

Floats = NDArray[np.float64]


class OriginEdge(NamedTuple):
    """What goes up from the state of ``key`` below layer ``layer`` to that of ``query`` above it.

    amount: of all that the tokens give. part: of what the state below holds, over all edges, kept or not.
    """

    layer: int
    query: int
    key: int
    amount: float
    part: float


@dataclass(frozen=True)
class Origin:
    """The strongest edges on the way from tokens to an answer, and what they carry together, of 1."""

    edges: tuple[OriginEdge, ...]
    carried: float


def strongest_ways(
    graphs: Sequence[FloatArray],
    shares: FloatArray,
    top: Sequence[int],
    share: float = SHARE,
    most: int = MOST,
) -> Origin:
    """The fewest edges between positions on which ``share`` of what tokens give reaches the top; at most ``most`` of them.

    graphs: [query, key] of each layer from the bottom up, what each edge carries, none negative; staying at a position is
    the diagonal. shares: what each token gives, of which those above zero count. It goes up in proportion to what the edges
    from its state carry that lead to the answer. top: the positions that answer.

    >>> read = np.array([[1.0, 0.5], [0.0, 0.5]])
    >>> ways = strongest_ways([read, read], np.array([0.2, 0.8]), top=[0], share=1)
    >>> [(edge.layer, edge.query, edge.key, edge.amount) for edge in ways.edges if edge.query != edge.key], ways.carried
    ([(0, 0, 1, 0.4), (1, 0, 1, 0.4)], 1.0)
    """
    start = np.asarray(shares, np.float64).clip(min=0)
    if not graphs or any(np.shape(graph) != (len(start), len(start)) for graph in graphs):
        raise InputError("the ways of an answer need [query, key] of one size at each layer, and as many shares")
    ups, reaching = _upward(graphs, top)
    start = np.where(reaching, start, 0)
    if not start.sum() or not np.isfinite(start.sum()):
        return Origin((), 0.0)
    start = start / start.sum()
    moves = _moves(ups, start)
    low, high = 0, min(most, len(moves))
    while low < high:  # what they carry grows with their number
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
    """Where what a state holds goes on, [query, key] of each layer: columns add up to one, or to nothing where no way leads
    to the answer. And whether one does from each token."""
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
    """All edges between different positions that something goes along, the widest first."""
    mass, edges = start, list[tuple[float, int, int, int]]()
    for layer, up in enumerate(ups):
        sent = up * mass
        mass = sent.sum(axis=1)
        np.fill_diagonal(sent, 0)
        edges += [(float(sent[q, k]), layer, int(q), int(k)) for q, k in np.argwhere(sent >= LEAST / 10)]
    return [(layer, query, key) for _, layer, query, key in sorted(edges, key=lambda edge: -edge[0])]


def _kept(ups: Sequence[Floats], moves: Sequence[tuple[int, int, int]]) -> list[Floats]:
    """The same with these edges between positions alone; whatever stays may stay."""
    kept = [np.diag(np.diag(up)) for up in ups]
    for layer, query, key in moves:
        kept[layer][query, key] = ups[layer][query, key]
    return kept


def _carried(kept: Sequence[Floats], start: Floats, top: Sequence[int]) -> tuple[float, list[Floats]]:
    """What reaches the answer along these edges, and how much of it goes along each."""
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
