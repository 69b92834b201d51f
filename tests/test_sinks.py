"""Sinks on arrays: which positions they are, and what happens to the attention they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnflow.sinks import FAR, SHORT, sink_positions


def slow_sinks(weights: np.ndarray, lengths: np.ndarray) -> tuple[int, ...]:
    """Follow the definition, key by key and query by query."""
    n = len(lengths)
    median = sorted(lengths)[n // 2]
    sinks = []
    for k in range(n):
        received, turns = [], []
        for q in range(n):
            if q != k and weights[q, k] > 0:
                received.append(weights[q, k])
                turns.append(1 / np.count_nonzero(weights[q]))
        if received and lengths[k] <= SHORT * median:
            value = lengths[k] / median
            if np.mean(received) >= FAR * value * np.mean(turns) and np.mean(received) >= np.mean(turns):
                sinks.append(k)
    return tuple(sinks)


def attention(rng: np.random.Generator, n: int, causal: bool) -> np.ndarray:
    scores = rng.normal(size=(n, n)) * 2
    scores[:, rng.integers(n)] += 3
    weights = np.exp(scores) * (np.tril(np.ones((n, n))) if causal else 1)
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_sinks_are_their_definition(causal: bool, kind: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(0)
    counts = []
    for n in (1, 2, 3, 5, 9, 30):
        for _ in range(20):
            weights, lengths = attention(rng, n, causal), rng.choice([0.05, 0.2, 0.45, 0.6, 1, 1.3], n)
            given: Any = (weights, lengths) if kind == "numpy" else map(torch.as_tensor, (weights, lengths))
            positions = sink_positions(*given)
            assert positions == slow_sinks(weights, lengths)
            counts.append(len(positions))
    assert 0 in counts and max(counts) > 2


def test_attention_that_prefers_nobody_has_no_sinks() -> None:
    n = 6
    for mask in (np.ones((n, n)), np.tril(np.ones((n, n)))):
        uniform = mask / mask.sum(-1, keepdims=True)
        assert sink_positions(uniform, np.ones(n)) == ()
        # weight alone makes no sink: the value must be short too
        first = uniform * 0.1
        first[:, 0] += 0.9
        assert sink_positions(first, np.ones(n)) == ()
        assert sink_positions(first, np.array([0.1, 1, 1, 1, 1, 1])) == (0,)
    assert sink_positions(np.eye(3), np.array([0.1, 1, 1])) == ()  # no other position attends to it
    assert sink_positions(first, np.zeros(n)) == ()  # no value carries anything
