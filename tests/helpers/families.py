"""Random layered graphs of many kinds, each from a seed."""

from __future__ import annotations

import numpy as np


def attention(
    rng: np.random.Generator, depth: int, n: int, sharpness: float = 1.0, residual: float = 0.5
) -> np.ndarray:
    """Return rows that sum to one, like those of `attention_graph`."""
    logits = rng.normal(size=(depth, n, n)) * sharpness
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (1 - residual) * weights + residual * np.eye(n)


def dyadic(x: np.ndarray, bits: int) -> np.ndarray:
    """Round to multiples of 2**-bits, so that sums and differences are exact."""
    return np.round(np.asarray(x) * 2.0**bits) / 2.0**bits


def widths(rng: np.random.Generator, depth: int, most: int, square: bool) -> list[int]:
    n = int(rng.integers(1, most + 1))
    return [n] * (depth + 1) if square else [int(w) for w in rng.integers(1, most + 1, size=depth + 1)]


def uniform(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    return [rng.random((shape[k + 1], shape[k])) for k in range(len(shape) - 1)]


def sparse(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    density = rng.uniform(0.1, 0.9)
    return [layer * (rng.random(layer.shape) < density) for layer in uniform(rng, shape)]


def equal(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """Few distinct capacities: many minimum cuts."""
    return [rng.integers(0, 3, size=layer.shape).astype(float) for layer in uniform(rng, shape)]


def causal(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    return [np.tril(layer) for layer in uniform(rng, shape)]


def chain(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """One path, and a few side edges that lead nowhere or back into it."""
    layers = []
    for k in range(len(shape) - 1):
        layer = np.zeros((shape[k + 1], shape[k]))
        layer[rng.integers(shape[k + 1]), rng.integers(shape[k])] = rng.random()
        layer[0, 0] = rng.random()
        layers.append(layer)
    return layers


def permutations(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """Disconnected: permutation matrices, with holes."""
    return [
        np.eye(shape[k + 1], shape[k])[rng.permutation(shape[k + 1])] * (rng.random((shape[k + 1], 1)) < 0.9)
        for k in range(len(shape) - 1)
    ]


def crossing(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """Narrow, nearly equal edges everywhere: the first blocking flow takes the wrong ones."""
    return [
        np.where(rng.random(layer.shape) < 0.5, 1.0, 0.0) * rng.integers(1, 4, size=layer.shape)
        for layer in uniform(rng, shape)
    ]


def extreme(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """Capacities from 1e-300 to 1e300, including zeros and denormals."""
    layers = []
    for k in range(len(shape) - 1):
        size = (shape[k + 1], shape[k])
        layer = 10.0 ** rng.uniform(-300, 300, size=size)
        layer[rng.random(size) < 0.2] = 0.0
        layer[rng.random(size) < 0.1] = 5e-324 * rng.integers(1, 1000)
        layers.append(layer)
    return layers


LARGE = np.array([1e15, 3.3e15, 1e16, 2.0**54 - 2, 1e17, 1e18, 1e300])


def quasi_infinite(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """Small numbers, and a few so large that the others are below their last digit."""
    small = uniform if rng.random() < 0.5 else equal
    layers = sparse(rng, shape) if rng.random() < 0.3 else small(rng, shape)
    for layer in layers:
        large = rng.random(layer.shape) < 0.15
        layer[large] = rng.choice(LARGE, size=int(large.sum()))
    return layers


def wide_ends(rng: np.random.Generator, shape: list[int]) -> list[np.ndarray]:
    """Large capacities at the query and the token, small ones between: both column cuts are far from the truth."""
    layers = equal(rng, shape) if rng.random() < 0.5 else uniform(rng, shape)
    for layer in layers[:1] + layers[1:][-1:]:
        layer *= rng.choice([1e15, 1e17, 1e300, 1e307])
    return layers


WIDE_RANGE = {f.__name__: f for f in (extreme, quasi_infinite, wide_ends)}
"""Compared with an oracle in exact integers; the others are also compared with scipy."""

FAMILIES = {f.__name__: f for f in (uniform, sparse, equal, causal, chain, permutations, crossing)} | WIDE_RANGE
