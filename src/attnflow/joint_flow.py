"""Joint flow: all input tokens share one maximum flow, the one of least norm, with a proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import index, indices, positions, to_numpy
from attnflow.errors import InputError
from attnflow.flow import flow
from attnflow.graph import graph_layers, level_widths
from attnflow.least_norm import LeastNorm, least_norm
from attnflow.selection import select_layers

Floats = NDArray[np.float64]
LARGEST_GAP = 1e-6
AT_ONCE = 500_000  # edges of the problems solved together: some 130 MB


def joint_flow(
    A: Any,
    queries: int | Iterable[int] | None = None,
    layers: int | Iterable[int] | None = None,
) -> Floats:
    """Return token attention by joint flow: the share of each input in the maximum flow from (l, q) to *all* inputs.

    ``min ½ Σ_e f_e²`` over all maximum flows from (l, q) to the inputs, with ``0 ≤ f_e ≤ A_e``. Many flows are maximum; the
    one of least norm is spread over the graph as evenly as the widths allow. ``J(l)[q, t]`` is what it brings to input t,
    divided by all that it brings, so a row sums to one (or to zero if nothing gets through). `flow` treats each input on
    its own and ties at its bound; here the inputs compete for the pipes.

    Every row is proven: potentials of the nodes bound the norm of all maximum flows from below, and the norm of this one
    exceeds the bound by at most 1e-6 (mostly 1e-13), relative. `least_norm_flow` gives flow and bound of one query.

    If no pipe is too narrow, the flow is even and says little: see docs/maths.md. For graphs whose rows sum to one, rollout
    is another maximum flow: the one whose paths are closest to a random walk.

    A: ``[layer, query, key]``, with a batch axis in front if there is a batch, or a list of matrices that fit together.
        Edges of infinite width limit nothing, and cost next to nothing.
    queries, layers: which to compute, an int or a list; None for all. Negative ones count from the end.

    The result is a float64 numpy array ``[layer, query, input]``, with the batch axis in front, also for tensors.

    >>> import numpy as np, attnflow as af
    >>> A = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.2, 0.8]]])
    >>> af.joint_flow(A, queries=0, layers=-1).round(3).tolist()   # at most 0.1 fits through 0 → 1
    [[[0.65, 0.35]]]
    """
    values, _ = joint_flow_and_gaps(A, queries, layers)
    return values


def joint_flow_and_gaps(
    A: Any,
    queries: int | Iterable[int] | None = None,
    layers: int | Iterable[int] | None = None,
) -> tuple[Floats, Floats]:
    """Return `joint_flow`, and the relative gap of each row between its norm and the bound: ``[layer, query]``."""
    matrices = [to_numpy(matrix) for matrix in graph_layers(A, infinite=True)[0]]
    chosen = select_layers(layers, len(matrices))
    queries = None if queries is None else positions(queries, "query")
    totals = _totals(matrices, queries, chosen)
    rows = indices(queries, min(level_widths(matrices)[l + 1] for l in chosen), "query")
    if matrices[0].ndim == 2:
        return _shares(matrices, rows, chosen, totals)
    parts = [_shares([matrix[b] for matrix in matrices], rows, chosen, totals[b]) for b in range(matrices[0].shape[0])]
    return np.stack([values for values, _ in parts]), np.stack([gaps for _, gaps in parts])


@dataclass(frozen=True, eq=False)
class JointFlow:
    """The joint flow of one query, with its proof.

    shares: the shares of the inputs; they sum to one.
    value: the whole flow, which is the maximum.
    objective: ``½ Σ f²``; edges of infinite width count a millionth.
    bound: a lower bound for every maximum flow.
    gap: ``(objective - bound) / objective``. The true optimum differs from this flow by at most ``√(2 · gap · objective)``,
        over all edges of finite width together.
    edges: the flow on every edge, one matrix ``[query, key]`` per layer, lowest layer first.
    query, layer: the state; the layer counts from 0.
    """

    shares: Floats
    value: float
    objective: float
    bound: float
    gap: float
    edges: tuple[Floats, ...] = field(repr=False)
    query: int
    layer: int


def least_norm_flow(A: Any, query: int, layer: int = -1) -> JointFlow:
    """Return the joint flow of one query as a `JointFlow`: shares, value, norm, bound, gap, and the flow on every edge.

    A: ``[layer, query, key]`` or a list of matrices, as in `joint_flow`. A batch of one counts as a single graph.
    query, layer: one position each; negative ones count from the end.

    >>> import numpy as np, attnflow as af
    >>> A = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.2, 0.8]]])
    >>> joint = af.least_norm_flow(A, query=0)
    >>> joint.edges[0].round(3).tolist(), joint.gap < 1e-9
    ([[0.4, 0.1], [0.25, 0.25]], True)
    """
    matrices = [to_numpy(matrix) for matrix in graph_layers(A, infinite=True)[0]]
    if matrices[0].ndim == 3:
        if matrices[0].shape[0] != 1:
            raise InputError(f"the graph has a batch of {matrices[0].shape[0]}: give one graph of it, for example A[0]")
        matrices = [matrix[0] for matrix in matrices]
    layer = index(layer, len(matrices), "layer")
    query = index(query, level_widths(matrices)[layer + 1], "query")
    matrices = matrices[: layer + 1]
    total = float(_totals(matrices, [query], [layer])[0, 0])
    edges = [np.zeros_like(matrix) for matrix in matrices]
    if total == 0:
        return JointFlow(np.zeros(matrices[0].shape[1]), 0.0, 0.0, 0.0, 0.0, tuple(edges), query, layer)
    solution = _solved(matrices, [query], np.array([total]), layer)
    for edge, amount in zip(edges[:-1], solution.edges, strict=False):
        edge[:] = amount[0] * total
    edges[-1][query] = solution.edges[-1][0, 0] * total
    objective, bound = (float(x[0]) * total**2 for x in (solution.objective, solution.bound))
    shares = edges[0].sum(0) / edges[0].sum()
    return JointFlow(shares, total, objective, bound, float(solution.gap[0]), tuple(edges), query, layer)


def _totals(matrices: Sequence[Floats], queries: Iterable[int] | None, layers: Sequence[int]) -> Floats:
    """Return the maximum flow to all inputs together, ``[layer, query]`` with the batch in front, by one more layer."""
    joined = np.full((*matrices[0].shape[:-2], matrices[0].shape[-1], 1), np.inf)
    totals = flow([joined, *matrices], queries=queries, layers=[l + 1 for l in layers])[..., 0]
    if np.isinf(totals).any():
        raise InputError(
            "the joint flow of this graph is infinite, so its inputs have no shares: expected an edge of finite width on "
            "every path from the query"
        )
    return totals


def _shares(
    matrices: Sequence[Floats], rows: Sequence[int], layers: Sequence[int], totals: Floats
) -> tuple[Floats, Floats]:
    shares, gaps = np.zeros((len(layers), len(rows), matrices[0].shape[1])), np.zeros((len(layers), len(rows)))
    for at, layer in enumerate(layers):
        carrying = np.flatnonzero(totals[at])
        together = max(1, AT_ONCE // sum(matrix.size for matrix in matrices[: layer + 1]))
        for start in range(0, len(carrying), together):
            part = carrying[start : start + together]
            solution = _solved(matrices[: layer + 1], [rows[i] for i in part], totals[at, part], layer)
            amounts = solution.edges[0].sum(1)
            shares[at, part] = amounts / amounts.sum(1, keepdims=True)
            gaps[at, part] = solution.gap
    return shares, gaps


def _solved(matrices: Sequence[Floats], rows: Sequence[int], totals: Floats, layer: int) -> LeastNorm:
    """Return the flows of these queries of the highest layer, in units of their totals."""
    scale = totals[:, None, None]
    layers = [np.broadcast_to(matrix, (len(rows), *matrix.shape)) for matrix in matrices[:-1]]
    with np.errstate(over="ignore"):
        # No edge carries more than the total, so wider edges may count as twice as wide; infinite ones stay infinite.
        widths = [np.where(np.isinf(c), c, np.minimum(c / scale, 2)) for c in [*layers, matrices[-1][rows][:, None]]]
    solution = least_norm(widths)
    worst = int(np.argmax(solution.gap))
    if not solution.gap[worst] <= LARGEST_GAP:
        raise InputError(
            f"the joint flow of query {rows[worst]} at layer {layer} is only proven to a gap of {solution.gap[worst]:.1e}, "
            f"not to {LARGEST_GAP:.0e}: the widths differ too much in size; set the smallest of them to zero"
        )
    return solution
