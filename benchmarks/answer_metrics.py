"""How well scores over a prompt find the source of an answer, for tokens and for units such as sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnflow.answer_rows import by_units

Floats = NDArray[np.float64]

METRICS = ("R-precision", "top-1", "mass on truth")
SINKS = "mass on sinks"


def measures(scores: Floats, truth: Sequence[int]) -> tuple[float, float, float]:
    """Return R-precision, top-1 and mass on truth (`METRICS`) of ``scores[token]``, or of units.

    Ties count by their expectation. Scores below 0 have no mass.

    >>> measures(np.array([0.0, 3.0, -9.0, 1.0, 0.5]), [1, 4])
    (0.5, 1.0, 0.7777777777777778)
    """
    source = np.zeros(len(scores), bool)
    source[list(truth)] = True
    return precision(scores, source, int(source.sum())), precision(scores, source, 1), mass(scores, truth)


def precision(scores: Floats, source: NDArray[np.bool_], count: int) -> float:
    """Return the fraction of the `count` highest scores that belong to the source; ties count by their expectation.

    >>> precision(np.array([2.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]), 2)
    0.75
    """
    least = np.sort(scores)[-count]
    above, level = scores > least, scores == least
    chance = (count - above.sum()) / level.sum()
    return float((source & above).sum() + chance * (source & level).sum()) / count


def mass(scores: Floats, places: Sequence[int]) -> float:
    """Return the share of these places in all positive scores; 0 if no score is positive.

    >>> mass(np.array([3.0, -5.0, 1.0]), [0, 1])
    0.75
    """
    positive = np.maximum(scores, 0)
    total = float(positive.sum())
    return float(positive[list(places)].sum()) / total if total else 0.0


def unit_scores(scores: Floats, units: Sequence[Sequence[int]]) -> Floats:
    """Return the sum over the tokens of each unit, clipped at zero after summing.

    >>> unit_scores(np.array([1.0, -3.0, 2.0, 0.5]), [[0, 1], [2, 3]])
    array([0. , 2.5])
    """
    return np.maximum(by_units(scores, units), 0)


def source_measures(
    tokens: Floats | None,
    units: Floats,
    truth: Sequence[int],
    truth_units: Sequence[int],
    sinks: Sequence[int],
    chain: Sequence[int] = (),
) -> dict[str, float]:
    """Return all measures of one case by name: for tokens, for units, and for the chain to the source.

    tokens: None for a method that scores only units; it has no token measures. R-precision of a chain is the fraction
        of its units among as many top units.

    >>> both = source_measures(np.array([0.0, 3.0, 1.0]), np.array([3.0, 1.0]), [1], [0], [0])
    >>> both["R-precision"], both["units: mass on truth"], both["mass on sinks"]
    (1.0, 0.75, 0.0)
    """
    result: dict[str, float] = {}
    if tokens is not None:
        result = dict(zip(METRICS, measures(tokens, truth), strict=True))
        result[SINKS] = mass(tokens, sinks)
    if truth_units:
        result |= {f"units: {name}": x for name, x in zip(METRICS, measures(units, truth_units), strict=True)}
    if chain:
        values = dict(zip(METRICS, measures(units, chain), strict=True))
        result |= {"chain: R-precision": values["R-precision"], "chain: mass": values["mass on truth"]}
    return result
