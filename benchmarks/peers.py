"""Other maximum-flow solvers on the same graph. Building their graphs is not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Solve = Callable[[int, int], float]
"""(query, token) -> the maximum flow from the top layer"""


def _edges(A: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, int, int]:
    depth, n, _ = A.shape
    layer, query, key = np.nonzero(A)
    return (layer + 1) * n + query, layer * n + key, A[layer, query, key], (depth + 1) * n, depth * n


def scipy(A: Floats, bits: int) -> Solve:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    start, end, capacity, nodes, top = _edges(A)
    scaled = np.round(capacity * 2.0**bits).astype(np.int32)
    graph = csr_array((scaled, (start, end)), shape=(nodes, nodes))
    return lambda query, token: float(maximum_flow(graph, top + query, token).flow_value) / 2.0**bits


def ortools(A: Floats, bits: int) -> Solve:
    from ortools.graph.python import max_flow

    start, end, capacity, _, top = _edges(A)
    solver = max_flow.SimpleMaxFlow()
    solver.add_arcs_with_capacity(
        start.astype(np.int32), end.astype(np.int32), np.round(capacity * 2.0**bits).astype(np.int64)
    )

    def solve(query: int, token: int) -> float:
        if solver.solve(top + query, token) != solver.OPTIMAL:
            raise RuntimeError("OR-tools found no optimum")
        return float(solver.optimal_flow()) / 2.0**bits

    return solve


def igraph(A: Floats, bits: int) -> Solve:
    import igraph as ig

    start, end, capacity, nodes, top = _edges(A)
    graph = ig.Graph(nodes, np.stack([start, end], axis=1).tolist(), directed=True)
    capacities = capacity.tolist()
    return lambda query, token: float(graph.maxflow_value(top + query, token, capacities))


def _networkx(A: Floats, algorithm: str) -> Solve:
    import networkx as nx
    from networkx.algorithms import flow

    start, end, capacity, nodes, top = _edges(A)
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_weighted_edges_from(zip(start.tolist(), end.tolist(), capacity.tolist(), strict=True), weight="capacity")
    function = getattr(flow, algorithm)
    return lambda query, token: float(nx.maximum_flow_value(graph, top + query, token, flow_func=function))


def networkx_preflow_push(A: Floats, bits: int) -> Solve:
    return _networkx(A, "preflow_push")


def networkx_edmonds_karp(A: Floats, bits: int) -> Solve:
    """Return the solver that the authors' code calls."""
    return _networkx(A, "edmonds_karp")


PEERS: dict[str, Callable[[Floats, int], Solve]] = {
    "scipy": scipy,
    "igraph": igraph,
    "OR-tools": ortools,
    "networkx push": networkx_preflow_push,
    "networkx e-karp": networkx_edmonds_karp,
}
