"""Measures of scores over a prompt, each compared with its definition."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.answer_metrics import measures, source_measures, unit_scores


def test_measures() -> None:
    """The definition: average over many orders, with ties broken at random."""
    draw = np.random.default_rng(2)
    for _ in range(10):
        scores = draw.integers(-2, 4, size=9).astype(float)
        truth = draw.choice(9, size=3, replace=False).tolist()
        hits = []
        for _ in range(3000):
            order = sorted(range(9), key=lambda i: (-scores[i], draw.random()))
            hits.append((len({*order[:3]} & {*truth}) / 3, order[0] in truth))
        shares, first, share = measures(scores, truth)
        assert (shares, first) == pytest.approx(np.mean(hits, 0), abs=0.05)
        clipped = scores.clip(0)
        assert share == pytest.approx(clipped[truth].sum() / clipped.sum())
    assert measures(np.array([0.0, -1.0, 0.0]), [0]) == (0.5, 0.5, 0.0)


def test_each_measure_of_a_case() -> None:
    """Six tokens: a sink, two sentences of two, a question; the source is token 4, and both sentences are its chain."""
    tokens = np.array([4.0, 1.0, 2.0, -1.0, 2.0, 1.0])
    units = [[1, 2], [3, 4]]
    result = source_measures(tokens, unit_scores(tokens, units), [4], [1], [0], [0, 1])
    assert result == {
        "R-precision": 0.0, "top-1": 0.0, "mass on truth": 0.2, "mass on sinks": 0.4, "units: R-precision": 0.0,
        "units: top-1": 0.0, "units: mass on truth": 0.25, "chain: R-precision": 1.0, "chain: mass": 1.0,
    }  # fmt: skip
    right = np.array([0.0, 0.0, 1.0, 0.0, 3.0, 0.0])
    result = source_measures(right, unit_scores(right, units), [4], [1], [0], [1])
    assert result["R-precision"] == result["top-1"] == result["units: top-1"] == result["chain: R-precision"] == 1
    assert result["units: mass on truth"] == result["chain: mass"] == 0.75 and result["mass on sinks"] == 0
