"""Facts that hold for every graph whose rows sum to at most one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow as af
from helpers.families import attention

GRAPHS = [(1, 5), (2, 7), (3, 9), (4, 16), (6, 12), (6, 70), (12, 8), (40, 5)]
DEEPER = [(depth, n) for depth, n in GRAPHS if depth > 1]


def graph(depth: int, n: int) -> np.ndarray:
    return attention(np.random.default_rng(depth * 100 + n), depth, n, sharpness=2.0)


@pytest.fixture(params=GRAPHS, ids=lambda g: f"{g[0]}x{g[1]}")
def A(request: pytest.FixtureRequest) -> np.ndarray:
    return graph(*request.param)


def test_first_layer_is_rollout_is_the_graph(A: np.ndarray) -> None:
    assert (af.flow(A, layers=0)[0] == A[0]).all()
    assert (af.rollout(A, layers=0)[0] == A[0]).all()


@pytest.mark.parametrize(("depth", "n"), DEEPER)
def test_second_layer_has_a_closed_form(depth: int, n: int) -> None:
    A = graph(depth, n)
    expected = np.minimum(A[1][:, :, None], A[0][None, :, :]).sum(axis=1)
    assert np.allclose(af.flow(A, layers=1)[0], expected, rtol=0, atol=1e-14)


def test_rollout_rows_sum_to_one_and_stay_below_flow(A: np.ndarray) -> None:
    rolled, flowing = af.rollout(A), af.flow(A)
    assert np.allclose(rolled.sum(-1), 1)
    assert (rolled <= flowing + 1e-12).all()


def test_flow_stays_below_what_leaves_the_query_and_what_enters_the_token(A: np.ndarray) -> None:
    flowing = af.flow(A)
    assert (flowing <= A.sum(-1)[:, :, None] + 1e-12).all()
    assert (flowing <= A[0].sum(0)[None, None, :] + 1e-12).all()


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_flow_grows_with_every_capacity(seed: int, depth: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    A = attention(rng, depth, n, sharpness=3.0)
    wider = A.copy()
    wider[rng.integers(depth), rng.integers(n), rng.integers(n)] += rng.random()
    assert (af.flow(wider) >= af.flow(A) - 1e-12).all()


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_permuting_the_tokens_permutes_the_result(seed: int, depth: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    A = attention(rng, depth, n, sharpness=3.0)
    p = rng.permutation(n)
    permuted = A[:, p][:, :, p]
    assert np.allclose(af.flow(permuted), af.flow(A)[:, p][:, :, p], rtol=0, atol=1e-12)
    assert np.allclose(af.rollout(permuted), af.rollout(A)[:, p][:, :, p], rtol=0, atol=1e-12)


def test_turning_the_graph_upside_down_swaps_query_and_token(A: np.ndarray) -> None:
    upside_down = np.ascontiguousarray(A[::-1].transpose(0, 2, 1))
    assert np.allclose(af.flow(upside_down, layers=-1)[0], af.flow(A, layers=-1)[0].T, rtol=0, atol=1e-12)


def test_scaling_the_capacities_scales_the_flow(A: np.ndarray) -> None:
    assert (af.flow(A * 2.0**-200) == af.flow(A) * 2.0**-200).all()


def test_normalize_divides_by_the_sum_of_the_row(A: np.ndarray) -> None:
    plain, shares = af.flow(A), af.flow(A, normalize=True)
    assert np.allclose(shares, plain / plain.sum(-1, keepdims=True))
