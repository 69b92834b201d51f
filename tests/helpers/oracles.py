"""Independent answers: a maximum flow in exact integers, and third-party solvers."""

from __future__ import annotations

from collections import deque
from fractions import Fraction

import numpy as np

SCALE = 2**1074  # every finite double times this is an integer


def exact_maximum(layers: list[np.ndarray], query: int, token: int) -> Fraction:
    """Return the true maximum flow of these doubles, by Edmonds-Karp in Python integers without any rounding."""
    room: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
    for number, layer in enumerate(layers):
        for (q, k), c in np.ndenumerate(layer):
            if c > 0:
                u, v = (number + 1, q), (number, k)
                room.setdefault(u, {})[v] = int(Fraction(float(c)) * SCALE)
                room.setdefault(v, {}).setdefault(u, 0)
    source, sink, total = (len(layers), query), (0, token), 0
    while source in room and sink in room:
        before = {source: source}
        queue = deque([source])
        while queue and sink not in before:
            u = queue.popleft()
            for v, c in room[u].items():
                if c > 0 and v not in before:
                    before[v] = u
                    queue.append(v)
        if sink not in before:
            break
        path, v = [], sink
        while v != source:
            path.append((before[v], v))
            v = before[v]
        least = min(room[u][v] for u, v in path)
        for u, v in path:
            room[u][v] -= least
            room[v][u] += least
        total += least
    return Fraction(total, SCALE)


def scipy_maximum(layers: list[np.ndarray], query: int, token: int, bits: int) -> float:
    """Return the exact maximum flow by scipy's integer solver, for capacities that are multiples of 2**-bits."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    graph, level = _dense(layers)
    capacities = csr_array(np.round(graph * 2.0**bits).astype(np.int32))
    solution = maximum_flow(capacities, level[len(layers)] + query, level[0] + token)
    return float(solution.flow_value) / 2.0**bits


def networkx_maximum(layers: list[np.ndarray], query: int, token: int) -> float:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from([(len(layers), query), (0, token)])
    for number, layer in enumerate(layers):
        for (q, k), c in np.ndenumerate(layer):
            if np.isinf(c):
                graph.add_edge((number + 1, q), (number, k))  # no capacity attribute means unlimited
            elif c > 0:
                graph.add_edge((number + 1, q), (number, k), capacity=float(c))
    value: float = nx.maximum_flow_value(graph, (len(layers), query), (0, token))
    return value


def _dense(layers: list[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    widths = [layers[0].shape[1], *(layer.shape[0] for layer in layers)]
    level = [0, *np.cumsum(widths).tolist()]
    graph = np.zeros((level[-1], level[-1]))
    for number, layer in enumerate(layers):
        graph[level[number + 1] : level[number + 2], level[number] : level[number + 1]] = layer
    return graph, level
