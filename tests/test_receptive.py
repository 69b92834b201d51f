"""Receptive-field normalisation against direct sums over positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.receptive import layerwise, relative, uniform

torch = pytest.importorskip("torch", reason="tensors need torch")

N, LAYERS = 7, 5


def causal(seed: int = 0, window: int = N) -> list[Any]:
    """Return random causal weights in which each query sees the last `window` positions."""
    rng = np.random.default_rng(seed)
    seen = np.tril(np.ones((N, N))) - np.tril(np.ones((N, N)), -window)
    weights = rng.random((LAYERS, N, N)) * seen
    return list(weights / weights.sum(-1, keepdims=True))


def roll(layers: Any) -> Any:
    """Compute rollout as sums over paths, position by position, without the package's matrix product."""
    below = [[float(i == j) for j in range(N)] for i in range(N)]
    for layer in layers:
        graph = [[0.5 * float(layer[i][j]) + 0.5 * (i == j) for j in range(N)] for i in range(N)]
        below = [[math.fsum(graph[i][k] * below[k][j] for k in range(N)) for j in range(N)] for i in range(N)]
    return np.array(below)


def flows(layers: Any) -> Any:
    return af.flow(af.attention_graph(np.stack(layers)[:, None]), layers=-1)[0]


METHODS = {"rollout": roll, "flow": flows, "raw": lambda layers: np.asarray(layers[-1])}
windows = pytest.mark.parametrize("window", [N, 3, 1])


@windows
@pytest.mark.parametrize("method", METHODS)
def test_ratio_and_difference(method: str, window: int) -> None:
    weights = causal(window=window)
    seen = [[q - window < k <= q for k in range(N)] for q in range(N)]
    field = METHODS[method]([np.array([[s / sum(row) for s in row] for row in seen])] * LAYERS)
    values = METHODS[method](weights)
    ratio = relative(METHODS[method], weights, "ratio")
    reached = field > 0
    np.testing.assert_allclose(ratio[reached], values[reached] / field[reached], rtol=1e-12)
    assert (ratio[~reached] == 0).all() and (values[~reached] == 0).all()
    np.testing.assert_allclose(relative(METHODS[method], weights, "difference"), values - field, atol=1e-15)
    assert np.array_equal(relative(METHODS[method], weights, None), values)


@windows
def test_layerwise(window: int) -> None:
    (layer, *_) = causal(1, window)
    found = layerwise(layer)
    for q in range(N):
        scaled = {}
        for k in range(max(0, q - window + 1), q + 1):
            received = sum(1 / min(other + 1, window) for other in range(k, min(N, k + window)))
            scaled[k] = layer[q, k] / received
        for k in range(N):
            assert found[q, k] == pytest.approx(scaled.get(k, 0) / sum(scaled.values()), abs=1e-14)
    np.testing.assert_allclose(layerwise(0.3 * layer).sum(-1), 0.3, rtol=1e-12)


@windows
@pytest.mark.parametrize("method", METHODS)
def test_uniform_attention_is_its_own_field(method: str, window: int) -> None:
    flat = [uniform(layer) for layer in causal(window=window)]
    ratio, difference = (relative(METHODS[method], flat, mode) for mode in ("ratio", "difference"))
    reached = METHODS[method](flat) > 0
    np.testing.assert_allclose(ratio[reached], 1, rtol=1e-12)
    assert np.abs(difference).max() < 1e-12


def test_rollout_keeps_its_sums() -> None:
    for window in (N, 3):
        weights = causal(2, window)
        np.testing.assert_allclose(relative(roll, weights, "difference").sum(-1), 0, atol=1e-14)
        np.testing.assert_allclose(relative(roll, weights, "layer").sum(-1), 1, rtol=1e-12)


def test_rows_that_see_one_key_or_none() -> None:
    np.testing.assert_array_equal(layerwise(np.eye(3)), np.eye(3))
    np.testing.assert_array_equal(uniform(np.eye(3) * 0.2), np.eye(3))
    padded = np.array([[0.0, 0.0], [0.4, 0.6]])
    assert uniform(padded).tolist() == [[0, 0], [0.5, 0.5]] and np.isfinite(layerwise(padded)).all()
    assert relative(lambda layers: layers[-1], [padded], "ratio")[0].tolist() == [0, 0]


@windows
@pytest.mark.parametrize("mode", [None, "ratio", "difference", "layer"])
def test_torch_equals_numpy(mode: str | None, window: int) -> None:
    weights = causal(5, window)

    def method(layers: Any) -> Any:
        return af.rollout([0.5 * layer + 0.5 * np.eye(N) for layer in layers], layers=-1)

    def torch_method(layers: Any) -> Any:
        return af.rollout([0.5 * layer + 0.5 * torch.eye(N) for layer in layers], layers=-1)

    tensors = relative(torch_method, [torch.tensor(w) for w in weights], mode)
    np.testing.assert_allclose(tensors.numpy(), relative(method, weights, mode), rtol=1e-12, atol=1e-15)


def test_permuted_positions() -> None:
    """The mask comes from the weights, not from the order of positions."""
    weights, order = causal(6), np.random.default_rng(0).permutation(N)
    moved = [layer[np.ix_(order, order)] for layer in weights]
    for mode in (None, "ratio", "difference", "layer"):
        expected = relative(roll, weights, mode)[np.ix_(order, order)]
        np.testing.assert_allclose(relative(roll, moved, mode), expected, rtol=1e-10, atol=1e-15)


def test_unknown_mode() -> None:
    with pytest.raises(
        af.InputError, match="receptive_field='x': expected one of 'ratio', 'difference', 'layer', or None for none"
    ):
        relative(roll, causal(), "x")
