"""The strongest paths from tokens or words up to an answer, for the picture on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import FloatArray, to_numpy
from attnflow.edges.weights import answer_rows, evidence_graph, signed_edges
from attnflow.origin import strongest_ways
from attnflow.result import TokenAttention
from attnflow.source_methods import METHOD
from attnflow.trace_results import Chosen

if TYPE_CHECKING:
    from attnflow.trace import Trace

LONGEST = 640
"""Maximum number of positions; of longer texts, the strongest are used."""

READING = 1e-2
"""Positions that carry at least this fraction of the largest at the highest layer count as read by the answer."""


def of_answer(answered: Trace, sources: TokenAttention, groups: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of `strongest_ways` for each unit as JSON; None if the layers differ in their positions.

    answered: a trace with answer edges. sources: its sources.
    groups: for each unit, the positions of each of its tokens, or None.
    """
    seen = answered.inside
    if seen is None or answered.patches is not None or len({s.weights.shape for s in answered.steps}) > 1:
        return None
    values, place = sources.row(), seen.place
    apart = np.array(answered.special, bool)
    apart[[*([] if place is None else [place]), *([0] if seen.causal else [])]] = True
    shares = np.where(apart & ~apart.all(), 0, values)
    strongest = np.argsort(-shares, kind="stable")[:LONGEST]
    if sources.method == METHOD and place is not None:
        kept, top = np.unique([*strongest, place]), [place]
        graphs = _reads(to_numpy(signed_edges(answered)[:, place])[:, kept], int(np.searchsorted(kept, place)))
    else:
        kept, every = np.unique(strongest), to_numpy(evidence_graph(answered))
        reading = every[-1].sum(1)  # rounding leaves small values at positions that the answer does not read
        top = np.flatnonzero(reading > READING * reading.max()).tolist() if place is None else [place]
        kept = np.unique([*kept, *top])
        graphs = every[:, kept[:, None], kept]
    return {unit: _unit(graphs, shares, kept, top, of) for unit, of in groups.items()}


def of_rollout(trace: Trace, chosen: Chosen, residual: float, groups: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the same for a model without an answer: the paths of rollout from a position at the highest layer, or from
    those that form a sentence embedding."""
    n = len(trace.tokens)
    if trace.patches is not None or n > LONGEST or any(tuple(s.weights.shape) != (n, n) for s in trace.steps):
        return None
    mass = np.zeros(n)
    mass[chosen.rows] = 1 if chosen.row is None else chosen.row.weights
    graphs = []
    for step in reversed(trace.steps):
        graphs.append(mass[:, None] * to_numpy(step.graph(residual)).astype(np.float64))
        mass = graphs[-1].sum(0)
    apart = np.array(trace.special, bool)
    apart[[*(chosen.rows if chosen.row is None else ()), *([0] if causal(trace) else [])]] = True
    shares = np.where(apart & ~apart.all(), 0, mass)
    return {unit: _unit(np.stack(graphs[::-1]), shares, np.arange(n), chosen.rows, of) for unit, of in groups.items()}


def causal(trace: Trace) -> bool:
    """Return whether no position attends to a later one."""
    if trace.parts or len(trace.tokens) < 2 or len({s.weights.shape for s in trace.steps}) > 1:
        return False
    return all(float(s.weights.triu(1).abs().max()) == 0 for s in trace.steps)


def _reads(parts: FloatArray, place: int) -> FloatArray:
    """Return a graph of what one position reads at each layer [layer, key]. Below that layer, values stay in place."""
    reads = parts.clip(min=0)
    reads[:, place] = 0
    later = reads[::-1].cumsum(0)[::-1] - reads
    graphs = np.zeros((*reads.shape, reads.shape[1]))
    every = np.arange(reads.shape[1])
    graphs[:, every, every] = later
    graphs[:, place] = reads
    graphs[:, place, place] = 1
    return graphs


def _unit(
    graphs: FloatArray,
    shares: FloatArray,
    kept: NDArray[np.int_],
    top: Sequence[int],
    groups: Sequence[Sequence[int]] | None,
) -> dict[str, Any]:
    """Return the strongest paths over one unit.

    groups: the positions of each token of the unit; None if every position is one.
    """
    of = np.arange(len(shares)) if groups is None else _numbers(groups, len(shares))
    numbers, inverse = np.unique(of[kept], return_inverse=True)
    merging = np.zeros((len(numbers), len(kept)))
    merging[inverse, np.arange(len(kept))] = 1
    merged = graphs if groups is None else merging @ graphs @ merging.T
    places = sorted({int(np.searchsorted(numbers, of[i])) for i in top if of[i] in numbers})
    ways = strongest_ways(list(merged), merging @ shares[kept].clip(min=0), places)
    seen = float(shares[kept].clip(min=0).sum() / (shares.clip(min=0).sum() or 1))
    return {
        "top": [int(numbers[i]) for i in places],
        "carried": ways.carried * seen,
        "edges": [
            [edge.layer, int(numbers[edge.query]), int(numbers[edge.key]), edge.amount, edge.part]
            for edge in ways.edges
        ],
    }


def _numbers(groups: Sequence[Sequence[int]], size: int) -> NDArray[np.int_]:
    of = np.zeros(size, int)
    for number, group in enumerate(groups):
        of[list(group)] = number
    return of


def first_shares(answered: Trace, sources: TokenAttention, groups: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Return the share of a first token that is left out of the sources of an answer, by unit and token."""
    seen = answered.inside
    if seen is None or not seen.causal or sources.method != METHOD or len(answered.tokens) < 2:
        return {}
    parts = to_numpy(answer_rows(answered, [seen.place or 0])).clip(min=0)
    parts[seen.place or 0] = max(0.0, float(seen.evidence.own[seen.place or 0]))
    total = float(parts.sum())
    if not total:
        return {}
    return {unit: {0: float(parts[0] / total)} for unit, of in groups.items() if of is None or list(of[0]) == [0]}
