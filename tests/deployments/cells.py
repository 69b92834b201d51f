"""Cells of docs/deployments.md: a way to load or run a model, or a family of models, and the expected outcome.

A cell either agrees with an oracle (the same weights, dequantised, on one device, with eager attention) or is refused
with a sentence. Nothing else passes. `test_deployments` runs every cell, and `tests/support.py` writes the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import attnflow as af
from attnflow.errors import InputError

Numbers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Right:
    """The distance of the numbers from the oracle's, as a share of the largest of them."""

    apart: float


@dataclass(frozen=True)
class Refused:
    sentence: str


Outcome = Right | Refused


@dataclass(frozen=True)
class Cell:
    """group: a heading of the page. run: loads or builds the model in an empty folder, and compares.

    within: the largest distance from the oracle that counts as right. refusal: part of the sentence on the page, if
    refused. needs: packages without which the cell is skipped. note: for the page, usually what it is compared with.
    """

    group: str
    name: str
    run: Callable[[Path], Outcome]
    within: float = 1e-5
    refusal: str | None = None
    needs: Sequence[str] = ()
    note: str = ""

    def wrong(self, outcome: Outcome) -> str | None:
        """Return what is wrong with an outcome, or None if it is what the page says."""
        if isinstance(outcome, Refused):
            if self.refusal is None:
                return f"it was refused: {outcome.sentence}"
            return None if self.refusal in outcome.sentence else f"it was refused otherwise: {outcome.sentence}"
        if self.refusal is not None:
            return f"it was not refused, and came out {outcome.apart:.1e} from the oracle"
        if not outcome.apart <= self.within:
            return f"it is {outcome.apart:.1e} from the oracle, more than {self.within:.0e}: a silently wrong number"
        return None


def compared(got: Callable[[], Numbers], expected: Callable[[], Numbers]) -> Outcome:
    """Compare the numbers of a deployment with its oracle's, or return the sentence that refuses it.

    Only our own errors are refusals: anything else is a crash and fails the test.
    """
    try:
        ours = got()
    except InputError as e:
        return Refused(str(e))
    truth = expected()
    assert ours.keys() == truth.keys() and truth, (list(ours), list(truth))
    return Right(max(_apart(ours[name], truth[name], name) for name in truth))


def _apart(ours: np.ndarray, truth: np.ndarray, name: str) -> float:
    assert ours.shape == truth.shape, (name, ours.shape, truth.shape)
    if not np.isfinite(ours).all():
        return float("inf")
    largest = float(np.abs(truth).max())
    assert largest > 0, f"{name}: the oracle has nothing but zeros, with which nothing can be compared"
    return float(np.abs(ours - truth).max()) / largest


def numbers(model: af.Model, inputs: Any, **options: Any) -> Numbers:
    """Return what a cell compares by default: the weights of all layers and heads, and rollout at every layer."""
    trace = model.trace(inputs, keep_heads=True, **options)
    values = {f"weights of L{layer + 1}": np.asarray(weights) for layer, weights in trace.weights.items()}
    return {**values, "rollout": trace.rollout(layer=range(len(trace.weights))).values}
