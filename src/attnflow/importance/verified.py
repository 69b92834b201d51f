"""Attribute, then verify: exact falls for the top units, and the rest fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError


def fit(
    scores: NDArray[np.floating[Any]], measured: Mapping[int, float]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return measured values, the other scores on the same scale, and which are measured.

    scores: an attribution of each unit. measured: the exact value of some units, by their number.
    The others become ``min(a·max(score, 0), b)``: a ≥ 0 is the least-squares scale to the measured values, and b is the
    smallest measured value above 0, because what an attribution puts last seldom matters more than what it puts first. No
    estimate is negative, and the estimates are in the order of the scores. ``python -m benchmarks.answers`` measures this
    on passages (its task "ablation").

    >>> values, verified = fit(np.array([4.0, 1.0, 3.0, 2.0]), {0: 8.0, 2: 5.0})
    >>> values.round(2).tolist(), verified.tolist()
    ([8.0, 1.88, 5.0, 3.76], [True, False, True, False])
    """
    x = np.asarray(scores, np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise InputError(f"scores have shape {x.shape}: expected one finite number for each unit")
    for unit, value in measured.items():
        if not 0 <= unit < len(x) or not np.isfinite(value):
            raise InputError(
                f"measured has {unit!r}: {value!r}: expected units from 0 to {len(x) - 1} and finite numbers"
            )
    places = np.array(list(measured), np.int64)
    y = np.array([measured[int(i)] for i in places], np.float64)
    x = np.maximum(x, 0)
    square = float(x[places] @ x[places])
    scale = max(0.0, float(x[places] @ y)) / square if square else 0.0
    values = np.minimum(x * scale, y[y > 0].min(initial=np.inf))
    values[places] = y
    verified = np.zeros(len(x), bool)
    verified[places] = True
    return values, verified
