"""The strongest paths from tokens to an answer, against an enumeration of all paths, and facts that must hold."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attnflow.errors import InputError
from attnflow.origin import strongest_ways

LAYERS, SIZE = 3, 4


def random_graphs(seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    draw = np.random.default_rng(seed)
    graphs = [draw.exponential(size=(SIZE, SIZE)) * (draw.random((SIZE, SIZE)) < 0.7) for _ in range(LAYERS)]
    graphs[-1][1:] = 0  # the answer is read at position 0
    return graphs, draw.normal(size=SIZE)


def every_path(graphs: list[np.ndarray], shares: np.ndarray) -> dict[tuple[int, ...], float]:
    """Return the amount on each path from a token to position 0; states split in proportion to their incoming edges."""
    weights = {
        path: np.prod([graph[path[l + 1], path[l]] for l, graph in enumerate(graphs)])
        for path in product(range(SIZE), repeat=LAYERS + 1)
        if path[-1] == 0
    }
    leads = {path[l:] for path, weight in weights.items() if weight for l in range(LAYERS + 1)}

    def part(layer: int, query: int, key: int) -> float:
        open_ends = {p[0] for p in leads if len(p) == LAYERS - layer}
        column = {q: graphs[layer][q, key] for q in open_ends}
        return column.get(query, 0.0) / sum(column.values())

    reached = {p[0] for p in leads if len(p) == LAYERS + 1}
    start = {k: max(0.0, shares[k]) for k in reached}
    total = sum(start.values())
    return {
        path: start[path[0]] / total * np.prod([part(l, path[l + 1], path[l]) for l in range(LAYERS)])
        for path, weight in weights.items()
        if weight and start.get(path[0])
    }


@pytest.mark.parametrize("seed", range(12))
def test_edges_carry_what_all_paths_along_them_do(seed: int) -> None:
    graphs, shares = random_graphs(seed)
    paths = every_path(graphs, shares)
    ways = strongest_ways(graphs, shares, [0], share=1)
    assert ways.carried == pytest.approx(sum(paths.values())) == pytest.approx(1)
    amounts = {(edge.layer, edge.query, edge.key): edge.amount for edge in ways.edges}
    wanted = np.zeros((LAYERS, SIZE, SIZE))
    for path, amount in paths.items():
        for l in range(LAYERS):
            wanted[l, path[l + 1], path[l]] += amount
    for place in np.argwhere(wanted >= 1.1e-3):
        assert amounts[tuple(place.tolist())] == pytest.approx(wanted[tuple(place)], rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_no_fewer_edges_would_do(seed: int, share: float) -> None:
    """The result has just enough of the widest edges, and carries what whole paths along these edges carry."""
    graphs, shares = random_graphs(seed)
    paths, ways = every_path(graphs, shares), strongest_ways(graphs, shares, [0], share)
    moves = {(edge.layer, edge.query, edge.key) for edge in ways.edges if edge.query != edge.key}

    def carried(kept: set[tuple[int, int, int]]) -> float:
        return sum(
            amount
            for path, amount in paths.items()
            if all(path[l] == path[l + 1] or (l, path[l + 1], path[l]) in kept for l in range(LAYERS))
        )

    assert ways.carried >= share - 1e-9
    assert ways.carried == pytest.approx(carried(moves), abs=2e-2)  # edges below a thousandth are not listed
    whole = strongest_ways(graphs, shares, [0], 1)
    widest = sorted((e for e in whole.edges if e.query != e.key), key=lambda e: -e.amount)
    fewer = strongest_ways(graphs, shares, [0], share, most=max(0, len(moves) - 1))
    assert len(moves) <= len(widest) and (fewer.carried < share or len(moves) == 0)


def test_what_leads_nowhere_and_what_is_refused() -> None:
    stay = np.eye(2)
    assert strongest_ways([stay], np.array([0.0, 1.0]), [0]).edges == ()
    assert strongest_ways([stay], np.array([-1.0, 0.0]), [0]) == strongest_ways([stay], np.zeros(2), [0])
    only = strongest_ways([stay], np.array([2.0, 5.0]), [0])
    assert [tuple(edge) for edge in only.edges] == [(0, 0, 0, 1.0, 1.0)] and only.carried == 1
    with pytest.raises(InputError, match=r"expected \[query, key\] of one size, and as many shares"):
        strongest_ways([stay, np.eye(3)], np.ones(2), [0])
