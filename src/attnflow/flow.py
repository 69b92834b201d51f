"""Attention flow: maximum flow in the attention graph, with the proof that it is the maximum."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import index, indices, positions, to_numpy
from attnflow._core import native
from attnflow.errors import InputError
from attnflow.graph import graph_layers, level_widths
from attnflow.selection import select_layers

if TYPE_CHECKING:
    from attnflow._core import Graph

Floats = NDArray[np.float64]
Steps = dict[str, int]
MOST_THREADS = 256  # each needs two copies of the inner layers
TOO_LARGE = (
    "a flow of this graph exceeds the largest double (about 1.8e308): scale its capacities down, for example by "
    "A * 2.0**-64; the flows scale by the same factor"
)


def flow(
    A: Any,
    queries: int | Iterable[int] | None = None,
    tokens: int | Iterable[int] | None = None,
    layers: int | Iterable[int] | None = None,
    normalize: bool = False,
    threads: int | None = None,
) -> Floats:
    """Return token attention by attention flow: ``F(l)[q, t]``, the maximum flow from node (l, q) to input t, capacities A.

    Every value is exact: the flow fills a cut of that capacity to within 1e-12. For rows that sum to at most one (as
    `attention_graph` makes them), flow equals rollout at the first layer, rollout ≤ flow everywhere, and at the second
    layer flow is ``Σ_j min(A2[q, j], A1[j, t])``. For any other non-negative capacities, infinite ones included, the value
    is still the maximum flow, but rollout ≤ flow and flow ≤ 1 need not hold.

    Flow measures how much *could* come from a token, for each token on its own: rows do not sum to one. It is at most what
    leaves the query (1) and what enters the token (the column sum of the first layer). In deep graphs with diffuse
    attention it is often just the smaller of the two.

    A: ``[layer, query, key]``, with a batch axis in front if there is a batch, or a list of matrices that fit together.
        Attention weights with a head axis would be read as a batch: call `attention_graph` first.
    queries, tokens, layers: which to compute, an int or a list; None for all. Negative ones count from the end.
    normalize: divide each row by its sum over the chosen tokens, as the authors' code does.
    threads: the number of threads; None for all cores. The result does not depend on it.

    The result is a float64 numpy array ``[layer, query, input]``, with the batch axis in front, also for tensors (a maximum
    flow has no useful gradient), which are copied to the CPU. All axes stay, even for a single int.

    >>> import numpy as np, attnflow as af
    >>> A = af.attention_graph(np.full((2, 1, 2, 2), 0.5))
    >>> af.flow(A, queries=0).tolist()
    [[[0.75, 0.25]], [[1.0, 0.5]]]
    """
    values, _ = flow_and_steps(A, queries, tokens, layers, threads)
    return normalized(values) if normalize else values


def normalized(values: Floats) -> Floats:
    """Return flows with each row divided by its sum over the tokens."""
    total = values.sum(axis=-1, keepdims=True)
    if np.isinf(total).any():
        raise InputError("normalize=True divides by the sum of the flows, which is infinite for this graph")
    shares: Floats = values / np.where(total == 0, 1, total)
    return shares


def flow_and_steps(
    A: Any,
    queries: int | Iterable[int] | None = None,
    tokens: int | Iterable[int] | None = None,
    layers: int | Iterable[int] | None = None,
    threads: int | None = None,
) -> tuple[Floats, Steps]:
    """Return `flow`, and how many pairs each step of the solver proved (for benchmarks)."""
    matrices, _ = graph_layers(A, infinite=True)
    threads = thread_count(threads)
    widths = level_widths(matrices)
    levels = [l + 1 for l in select_layers(layers, len(matrices))]
    sizes = [widths[level] for level in levels]
    if queries is not None:
        queries = positions(queries, "query")
    if len(set(sizes)) > 1 and (queries is None or min(queries, default=0) < 0):
        raise InputError(
            f"the chosen layers have {sizes} positions: give queries that exist in all of them, counted from 0, or choose "
            "layers of one size"
        )
    rows = indices(queries, min(sizes), "query")
    columns = indices(tokens, widths[0], "token")
    batched = matrices[0].ndim == 3
    results: list[Floats] = []
    counts: list[Steps] = []
    for b in range(matrices[0].shape[0] if batched else 1):
        graph = _native_graph(matrices, b if batched else None)
        try:
            values, steps = graph.flow(levels, rows, columns, threads)
        except OverflowError:
            raise InputError(TOO_LARGE) from None
        results.append(values)
        counts.append(steps)
    totals = {name: sum(steps[name] for steps in counts) for name in counts[0]}
    return (np.stack(results) if batched else results[0]), totals


def thread_count(threads: int | None) -> int:
    """Return the number of threads to use: all cores for None, and never more than `MOST_THREADS`."""
    if threads is None:
        return min(cores(), MOST_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise InputError(f"threads={threads!r}: expected an int of at least 1, or None for all cores")
    return min(int(threads), MOST_THREADS)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CutEdge(NamedTuple):
    """An edge of the minimum cut, from (layer, query) down to key."""

    layer: int
    query: int
    key: int
    capacity: float


class FlowPath(NamedTuple):
    """A path that carries part of a flow: its position at each level, from the query down to the input token."""

    positions: tuple[int, ...]
    amount: float


@dataclass(frozen=True, eq=False)
class MaxFlow:
    """A maximum flow between one query and one input token, with its proof.

    value: the flow.
    gap: the difference between the capacity of the cut and the value. No flow exceeds the capacity of a cut, so a gap of
        zero, up to rounding, proves that the flow is the largest and the cut the smallest.
    cut: the edges of a minimum cut, widest first; all of them are full, and every path crosses one.
    edges: the flow on every edge, one matrix ``[query, key]`` per layer, lowest layer first.
    query, token, layer: the pair; the layer counts from 0.

    An infinite flow has no cut, and its edges are not given.
    """

    value: float
    gap: float
    cut: tuple[CutEdge, ...] = field(repr=False)
    edges: tuple[Floats, ...] = field(repr=False)
    query: int
    token: int
    layer: int

    def paths(self, limit: int | None = None) -> list[FlowPath]:
        """Return the flow as paths whose amounts add up to its value: each is the widest path that is left.

        limit: return at most this many; None for all.

        >>> import numpy as np, attnflow as af
        >>> A = af.attention_graph(np.full((2, 1, 2, 2), 0.5))
        >>> af.max_flow(A, query=0, token=1).paths()
        [FlowPath(positions=(0, 1, 1), amount=0.25), FlowPath(positions=(0, 0, 1), amount=0.25)]
        """
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InputError(f"limit={limit!r}: expected 0 or more, or None for all paths")
        remaining = [_Sparse.of(layer) for layer in self.edges]
        paths: list[FlowPath] = []
        while limit is None or len(paths) < limit:
            path = _widest_path(remaining, self.query, self.token)
            if path is None:
                break
            paths.append(path)
        return paths


def max_flow(A: Any, query: int, token: int, layer: int = -1) -> MaxFlow:
    """Return the maximum flow from (layer, query) to input ``token`` as a `MaxFlow`: value, gap, minimum cut, edges, paths.

    It solves one pair with a plain solver that keeps the flow on every edge. `flow` computes many pairs much faster and
    agrees up to rounding.

    A: ``[layer, query, key]`` or a list of matrices, as in `flow`. A batch of one counts as a single graph.
    query, token, layer: one position each; negative ones count from the end.

    >>> import numpy as np, attnflow as af
    >>> mf = af.max_flow(af.attention_graph(np.full((2, 1, 2, 2), 0.5)), query=0, token=1)
    >>> mf.value, mf.gap
    (0.5, 0.0)
    >>> mf.cut
    (CutEdge(layer=0, query=0, key=1, capacity=0.25), CutEdge(layer=1, query=0, key=1, capacity=0.25))
    """
    matrices, _ = graph_layers(A, infinite=True)
    if matrices[0].ndim == 3:
        if matrices[0].shape[0] != 1:
            raise InputError(f"the graph has a batch of {matrices[0].shape[0]}: give one graph of it, for example A[0]")
        matrices = [m[0] for m in matrices]
    widths = level_widths(matrices)
    layer = index(layer, len(matrices), "layer")
    query = index(query, widths[layer + 1], "query")
    token = index(token, widths[0], "token")
    try:
        value, capacity, edges, sink_side = _native_graph(matrices, None).max_flow(layer + 1, query, token)
    except OverflowError:
        raise InputError(TOO_LARGE) from None
    cut: list[CutEdge] = []
    if np.isfinite(value):
        for l in range(layer + 1):
            above, below = np.array(sink_side[l + 1]), np.array(sink_side[l])
            capacities = to_numpy(matrices[l])
            for q, k in np.argwhere(~above[:, None] & below[None, :] & (capacities > 0)):
                cut.append(CutEdge(l, int(q), int(k), float(capacities[q, k])))
    cut.sort(key=lambda e: -e.capacity)
    gap = abs(capacity - value) if np.isfinite(value) else 0.0
    return MaxFlow(value, gap, tuple(cut), tuple(edges), query, token, layer)


def _native_graph(matrices: list[Any], batch: int | None) -> Graph:
    layers = [np.ascontiguousarray(to_numpy(m if batch is None else m[batch])) for m in matrices]
    return native().Graph(layers)


@dataclass
class _Sparse:
    """The edges of one layer that carry flow."""

    query: NDArray[np.intp]
    key: NDArray[np.intp]
    amount: Floats
    shape: tuple[int, ...]

    @staticmethod
    def of(layer: Floats) -> _Sparse:
        query, key = np.nonzero(layer)
        return _Sparse(query, key, layer[query, key].copy(), layer.shape)


def _widest_path(layers: list[_Sparse], query: int, token: int) -> FlowPath | None:
    """Remove the path with the largest bottleneck from `layers` and return it; None when nothing flows any more."""
    width = np.zeros(layers[0].shape[1])
    width[token] = np.inf
    choice: list[NDArray[np.intp]] = []
    for layer in layers:
        through = np.minimum(layer.amount, width[layer.key])
        order = np.argsort(through, kind="stable")  # the last write for a query is its widest edge
        best = np.full(layer.shape[0], -1)
        best[layer.query[order]] = order
        width = np.where(best >= 0, through[best] if len(through) else 0.0, 0.0)
        choice.append(best)
    amount = float(width[query])
    if not amount > 0:
        return None
    positions, at = [query], query
    for layer, best in zip(reversed(layers), reversed(choice), strict=True):
        edge = best[at]
        layer.amount[edge] = 0.0 if layer.amount[edge] == amount else layer.amount[edge] - amount
        at = int(layer.key[edge])
        positions.append(at)
    return FlowPath(tuple(positions), amount)
