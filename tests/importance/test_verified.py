"""Measured values, and scores fitted to them."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow.importance.verified import fit


def test_measured_values_stay_and_the_others_are_in_the_order_of_their_scores() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(1, 12))
        scores = rng.normal(size=n)
        units = rng.choice(n, int(rng.integers(0, n + 1)), replace=False).tolist()
        measured = {unit: float(rng.normal()) for unit in units}
        values, verified = fit(scores, measured)
        assert verified.tolist() == [i in measured for i in range(n)]
        assert all(values[i] == value for i, value in measured.items())
        rest = np.flatnonzero(~verified)
        assert (values[rest] >= 0).all()
        order = rest[np.argsort(scores[rest])]
        assert (np.diff(values[order]) >= 0).all()


def test_the_scale_is_the_nearest_one_up_to_the_smallest_measured_value() -> None:
    """Compare with all scales of a fine grid."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        scores = rng.random(8) + 0.1
        measured = {i: float(3 * scores[i] + rng.normal()) for i in (2, 5, 6)}
        values, _ = fit(scores, measured)
        grid = np.linspace(0, 40, 40001)
        misses = sum((grid * scores[i] - value) ** 2 for i, value in measured.items())
        best = grid[int(np.argmin(misses))]
        least = min([value for value in measured.values() if value > 0], default=np.inf)
        for i in (0, 1, 3, 4, 7):
            assert values[i] == pytest.approx(min(best * scores[i], least), abs=2e-3)


def test_evidence_against_makes_no_estimate() -> None:
    values, _ = fit(np.array([3.0, 2.0, 1.0]), {0: -1.0, 1: -2.0})
    assert values.tolist() == [-1.0, -2.0, 0.0]
    values, verified = fit(np.array([3.0, 2.0]), {})
    assert values.tolist() == [0.0, 0.0] and not verified.any()
