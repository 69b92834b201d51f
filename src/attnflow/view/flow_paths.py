"""The maximum flow of one pair for a page: its minimum cut, its widest paths, and a sentence about what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray, to_numpy
from attnflow.flow import CutEdge, MaxFlow, max_flow
from attnflow.view.came_from import causal

if TYPE_CHECKING:
    from attnflow.trace import Trace

PATHS = 8
"""Maximum number of paths, the widest ones."""

EDGES = 8
"""Maximum number of edges of a cut, the widest ones."""

NAMED = 3
"""Maximum number of edges that a sentence names."""

NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def strongest_words(trace: Trace, values: FloatArray, query: int) -> list[int]:
    """Return tokens from the highest value down, without special tokens, sinks, a decoder's first token and the query.

    values: one number for each token. query: a position of the highest layer.
    """
    sinks = {i for layer in range(len(trace.ends)) for i in trace.sinks([layer]) or ()}
    others = {0} if causal(trace) else set()
    if trace.steps[trace.ends[-1]].weights.shape[0] == len(trace.tokens):  # otherwise queries are no tokens
        others.add(query)
    kept = [i for i, special in enumerate(trace.special) if not special and i not in sinks | others]
    return sorted((i for i in kept if np.isfinite(values[i])), key=lambda i: -float(values[i]))


def certificate(trace: Trace, query: int, layer: int, token: int, residual: float) -> dict[str, Any]:
    """Return the maximum flow of one pair as JSON.

    query: a position of the whole sequence.
    In the result, edges and capacity are the number of edges of the whole minimum cut and the sum of their capacities,
    which equals the value. cut has the widest of them as [step, query, key, capacity]. paths are the widest as [flow,
    rollout, positions from the query down]. limit says what limits the flow.
    """
    graph = [to_numpy(step.graph(residual)).astype(np.float64) for step in trace.steps[: trace.ends[layer] + 1]]
    pipes = [matrix.copy() for matrix in graph]
    for step, matrix in zip(trace.steps, pipes, strict=False):
        for i in step.carried:
            matrix[i, i] = np.inf  # positions that only pass through limit nothing
    flow = max_flow(pipes, query, token)
    return {
        "query": query,
        "layer": layer,
        "token": token,
        "value": flow.value,
        "gap": flow.gap,
        "edges": len(flow.cut),
        "capacity": sum(edge.capacity for edge in flow.cut),
        "cut": [[e.layer, e.query, e.key, _short(e.capacity)] for e in flow.cut[:EDGES]],
        "paths": [
            [_short(path.amount), _short(_product(graph, path.positions)), *path.positions]
            for path in flow.paths(PATHS)
        ],
        "limit": _limit(trace, flow, layer),
    }


def _product(graph: Sequence[FloatArray], positions: Sequence[int]) -> float:
    """Return what rollout sends along a path from the top down."""
    edges = zip(reversed(graph), positions[:-1], positions[1:], strict=True)
    return float(np.prod([matrix[query, key] for matrix, query, key in edges]))


def _short(number: float) -> float:
    """Round to nine digits, to keep the document small."""
    return float(f"{number:.9g}")


def level_names(trace: Trace) -> list[str]:
    """Return a name for every level above the inputs: L1 … LL, with the encoder or decoder side if there are both."""
    if not trace.parts:
        of = {end: f"L{l + 1}" for l, end in enumerate(trace.ends)}
        return [of.get(s, "merged") for s in range(len(trace.steps))]
    encoder = trace.ends[0] - 1
    return [f"enc L{s + 1}" for s in range(encoder)] + [
        f"{kind}L{l + 1}" for l in range(trace.layer_count) for kind in ("self ", "")
    ]


def _limit(trace: Trace, flow: MaxFlow, layer: int) -> str:
    """Return a sentence about the edges that limit a flow."""
    levels, cut = level_names(trace), flow.cut
    top = trace.ends[layer]

    def state(level: int, position: int) -> str:
        count = trace.steps[level - 1].weights.shape[0] if level else len(trace.tokens)
        name = repr(trace.tokens[position]) if count == len(trace.tokens) else str(position)
        return f"{name} at {levels[level - 1]}" if level else name

    def named(edge: CutEdge) -> str:
        return f"{state(edge.layer + 1, edge.query)} → {state(edge.layer, edge.key)}"

    token, count = state(0, flow.token), NUMBERS[len(cut)] if len(cut) < len(NUMBERS) else str(len(cut))
    if not cut:
        return "Nothing limits it." if flow.value else f"No path leads from {token} to {state(top + 1, flow.query)}."
    if len(cut) == 1:
        return f"This one edge is the bottleneck: {named(cut[0])}."
    if all((edge.layer, edge.query) == (top, flow.query) for edge in cut):
        return (
            f"The bottleneck is {state(top + 1, flow.query)} itself: its {count} edges are full, so all of it could come "
            f"from {token}."
        )
    if all((edge.layer, edge.key) == (0, flow.token) for edge in cut):
        return f"The bottleneck is {token} itself: the first layer takes no more from it, whatever higher layers do."
    rest = f"; and {len(cut) - NAMED} narrower" if len(cut) > NAMED else ""
    return f"These {count} edges are the bottleneck: {'; '.join(map(named, cut[:NAMED]))}{rest}."
