"""Flow against solvers that share no code with ours."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow as af
from attnflow.flow import flow_and_steps
from helpers.families import FAMILIES, attention, dyadic, widths
from helpers.oracles import exact_maximum, networkx_maximum, scipy_maximum
from helpers.validator import check_certificate

kinds = st.sampled_from(sorted(FAMILIES))
seeds = st.integers(0, 2**32 - 1)


def a_pair(rng: np.random.Generator, layers: list[np.ndarray]) -> tuple[int, int]:
    return int(rng.integers(layers[-1].shape[0])), int(rng.integers(layers[0].shape[1]))


@settings(max_examples=150)
@given(seeds, kinds, st.integers(1, 8), st.booleans())
def test_equals_the_true_maximum(seed: int, kind: str, depth: int, square: bool) -> None:
    rng = np.random.default_rng(seed)
    layers = FAMILIES[kind](rng, widths(rng, depth, 6, square))
    query, token = a_pair(rng, layers)
    truth = float(exact_maximum(layers, query, token))
    assert af.flow(layers, query, token, -1)[0, 0, 0] == pytest.approx(truth, rel=1e-9, abs=0)


@settings(max_examples=100)
@given(seeds, st.integers(3, 40), st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.5, 0.9]))
def test_equals_scipy_to_the_last_bit_on_dyadic_capacities(seed: int, depth: int, n: int, residual: float) -> None:
    rng = np.random.default_rng(seed)
    A = dyadic(attention(rng, depth, n, sharpness=4.0, residual=residual), bits=20)
    query, token = a_pair(rng, list(A))
    assert af.flow(A, query, token, -1)[0, 0, 0] == scipy_maximum(list(A), query, token, bits=20)


@pytest.mark.parametrize(("depth", "n"), [(3, 65), (6, 64), (6, 100), (12, 70)])
def test_equals_scipy_beyond_one_machine_word(depth: int, n: int) -> None:
    rng = np.random.default_rng(depth * n)
    A = dyadic(attention(rng, depth, n, sharpness=5.0), bits=20)
    for _ in range(12):
        query, token = a_pair(rng, list(A))
        assert af.flow(A, query, token, -1)[0, 0, 0] == scipy_maximum(list(A), query, token, bits=20)


def test_without_a_residual_connection_columns_are_found_among_the_wide_edges() -> None:
    """The solver renumbers nodes here; queries, tokens and layers must still be the requested ones."""
    rng = np.random.default_rng(8)
    A = dyadic(attention(rng, 5, 40, sharpness=2.0, residual=0.0), bits=26)
    values, steps = flow_and_steps(A, queries=[3, 17, 39], layers=[0, 1, 2, 4])
    assert steps["hops"] > 0, "one hop proves nothing where no column is wide"
    for row, query in enumerate((3, 17, 39)):
        for place, layer in enumerate((0, 1, 2, 4)):
            for token in (0, 17, 38):
                assert values[place, row, token] == scipy_maximum(list(A[: layer + 1]), query, token, bits=26)


@settings(max_examples=40)
@given(seeds, kinds, st.integers(1, 5), st.booleans())
def test_max_flow_proves_itself(seed: int, kind: str, depth: int, square: bool) -> None:
    rng = np.random.default_rng(seed)
    layers = FAMILIES[kind](rng, widths(rng, depth, 6, square))
    query, token = a_pair(rng, layers)
    mf = af.max_flow(layers, query, token)
    check_certificate(layers, mf)
    assert mf.value == pytest.approx(af.flow(layers, query, token, -1)[0, 0, 0], rel=1e-9, abs=0)
    paths = mf.paths()
    assert sum(p.amount for p in paths) == pytest.approx(mf.value, rel=1e-9, abs=0)
    assert all(p.positions[0] == query and p.positions[-1] == token for p in paths)
    assert [p.amount for p in paths] == sorted((p.amount for p in paths), reverse=True)


@settings(max_examples=40)
@given(seeds, st.integers(1, 4), st.integers(1, 5))
def test_equals_networkx_with_infinite_capacities(seed: int, depth: int, n: int) -> None:
    import networkx as nx

    rng = np.random.default_rng(seed)
    layers = FAMILIES["sparse"](rng, [n] * (depth + 1))
    for layer in layers:
        layer[rng.random(layer.shape) < 0.3] = np.inf
    query, token = a_pair(rng, layers)
    value = af.flow(layers, query, token, -1)[0, 0, 0]
    try:
        assert value == pytest.approx(networkx_maximum(layers, query, token))
    except nx.NetworkXUnbounded:
        assert value == np.inf
        assert af.max_flow(layers, query, token).value == np.inf


def needs_taking_back() -> np.ndarray:
    """Query 0 -> {0, 1} -> {0, 1, 2} -> token. The straight path 0 -> 0 -> 0 blocks the only way for node 1."""
    A = np.zeros((3, 3, 3))
    A[2, 0, [0, 1]] = 1, 1
    A[1, 0, [0, 2]] = 1, 1
    A[1, 1, 0] = 1
    A[0, [0, 2], 0] = 1, 1
    return A


def test_a_graph_where_the_first_blocking_flow_is_not_the_maximum() -> None:
    assert af.flow(needs_taking_back(), 0, 0, -1)[0, 0, 0] == 2.0


def test_every_step_of_the_solver_is_used() -> None:
    rng = np.random.default_rng(5)
    taken = {"columns": 0, "hops": 0, "search": 0, "reference": 0, "phases": 0}
    for A in (
        attention(rng, 6, 24),
        attention(rng, 4, 12, 4.0),
        *(np.stack(FAMILIES["crossing"](rng, [9] * 8)) for _ in range(20)),
    ):
        values, steps = flow_and_steps(A, layers=-1)
        taken = {name: taken[name] + steps[name] for name in taken}
        for _ in range(3):
            query, token = a_pair(rng, list(A))
            assert values[0, query, token] == pytest.approx(float(exact_maximum(list(A), query, token)), rel=1e-12)
    assert taken["columns"] and taken["hops"] and taken["search"], taken
    assert taken["phases"] > taken["search"], "no pair needed flow to be taken back"
    _, steps = flow_and_steps(np.where(needs_taking_back() > 0, np.inf, 0.0) + needs_taking_back(), layers=-1)
    assert steps["reference"] == 9


def test_small_flows_through_wide_edges_are_not_lost() -> None:
    layers = [needs_taking_back()[0] * 1e-300, needs_taking_back()[1], needs_taking_back()[2]]
    assert af.flow(layers, 0, 0, -1)[0, 0, 0] == 2e-300


HUGE = 2.0**54 - 2
WIDE = {
    "a chain": ([[[1e17]], [[4]], [[3]], [[1e16], [1]]], 0, 3.0),
    "a narrow middle": ([[[1e17]], [[2]], [[1]], [[HUGE], [HUGE]]], 0, 1.0),
    "a square graph": ([[[1e16, 2], [1e18, 0]], [[0, 3], [0, 2]], [[2, 0], [HUGE, 1]], [[1, 3], [0, HUGE]]], 1, 4.0),
    "cuts that overflow": ([[[1e308], [1e308]], [[1, 1], [1, 1]], [[1e308, 1e308]]], 0, 4.0),
}


@pytest.mark.parametrize("case", WIDE)
def test_large_capacities_do_not_drown_small_flows(case: str) -> None:
    layers, query, truth = WIDE[case]
    graph = [np.array(layer, dtype=float) for layer in layers]
    assert af.flow(graph, query, 0, -1)[0, 0, 0] == truth
    assert af.max_flow(graph, query, 0).value == truth


@pytest.mark.parametrize("call", [lambda A: af.flow(A, 0, 0, -1)[0, 0, 0], lambda A: af.max_flow(A, 0, 0).value])
@pytest.mark.parametrize("depth", [2, 3])
def test_a_flow_beyond_the_largest_double_is_an_error(depth: int, call: Callable[[np.ndarray], float]) -> None:
    A = np.full((depth, 2, 2), 1.7e308)
    assert call(A / 2) == 1.7e308
    with pytest.raises(af.InputError, match="exceeds the largest double"):
        call(A)
    A[-1, 0, 1] = A[0, 0, 0] = np.inf  # infinite capacities, but no path
    with pytest.raises(af.InputError, match="exceeds the largest double"):
        call(A)
    A[0, 1, 0] = A[1:-1, 1, 1] = np.inf
    assert call(A) == np.inf


def test_unreachable_tokens_get_zero() -> None:
    A = attention(np.random.default_rng(0), 5, 6)
    A = np.tril(A)
    F = af.flow(A)
    future = np.triu(np.ones((6, 6), dtype=bool), 1)
    assert (F[:, future] == 0).all()
    assert (F[:, ~future] > 0).all()


def test_layers_of_different_sizes() -> None:
    rng = np.random.default_rng(3)
    layers = [dyadic(rng.random(size), 16) for size in ((5, 9), (5, 5), (2, 5), (7, 2))]
    F = af.flow(layers, layers=-1)
    assert F.shape == (1, 7, 9)
    for query in range(7):
        for token in range(9):
            assert F[0, query, token] == scipy_maximum(layers, query, token, 16)


def test_a_batch_is_its_graphs_one_by_one() -> None:
    rng = np.random.default_rng(4)
    batch = np.stack([attention(rng, 4, 6) for _ in range(3)])
    assert (af.flow(batch) == np.stack([af.flow(A) for A in batch])).all()


def test_a_batch_of_one_is_its_graph() -> None:
    A = attention(np.random.default_rng(4), 4, 6)
    assert af.max_flow(A[None], 1, 2).value == af.max_flow(A, 1, 2).value
    assert repr(af.max_flow(A, 1, 2)).startswith("MaxFlow(value=") and len(repr(af.max_flow(A, 1, 2))) < 120


def test_queries_tokens_and_layers_select() -> None:
    A = attention(np.random.default_rng(6), 5, 7)
    everything = af.flow(A)
    assert everything.shape == (5, 7, 7)
    picked = af.flow(A, queries=[3, -1], tokens=[0, 0, 5], layers=[-1, 1])
    assert (picked == everything[[-1, 1]][:, [3, -1]][:, :, [0, 0, 5]]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (af.flow(A.astype(np.float32)) == af.flow(A.astype(np.float32).astype(np.float64))).all()
