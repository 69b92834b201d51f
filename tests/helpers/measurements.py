"""A made-up grid of measurements in which one method is far better than the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnflow.evaluate import Evaluation


def method(
    name: str, kind: str, edges: str | None = None, propagation: str | None = None, **more: Any
) -> dict[str, Any]:
    rest = {"normalize": None, "receptive_field": None, **more}
    return {"name": name, "kind": kind, "edges": edges, "propagation": propagation, **rest}


METHODS = (
    method("raw", "paper", "mean", "raw"),
    method("rollout", "paper", "mean", "rollout"),
    method("flow", "paper", "mean", "flow"),
    method("rollout, ratio", "edges", "mean", "rollout", receptive_field="ratio"),
    method("alti · raw", "edges", "alti", "raw", normalize="rows"),
    method("alti · rollout", "edges", "alti", "rollout", normalize="rows"),
    method("alti · rollout, max", "edges", "alti", "rollout", normalize="max"),
    method("blank-out", "importance"),
    method("random", "baseline"),
)
METRICS = {"blank-out": "higher", "comprehensiveness (mask)": "higher", "sufficiency (mask)": "lower"}
GOOD = METHODS.index(next(m for m in METHODS if m["name"] == "alti · rollout"))
BLANK = [m["name"] for m in METHODS].index("blank-out")


def measured(n: int = 60) -> Evaluation:
    """Make alti · rollout far better than all others, which differ by chance alone."""
    rng = np.random.default_rng(0)
    values = rng.normal(0.2, 0.1, (n, len(METHODS), len(METRICS))) + rng.normal(0, 0.2, (n, 1, 1))
    values[:, GOOD] += [0.3, 0.3, -0.3]
    values[:, BLANK, 0] = np.nan
    return Evaluation(
        methods=METHODS,
        metrics=METRICS,
        values=values,
        curves={"mask": rng.random((n, len(METHODS), 2, 5))},
        agreement=np.where(np.eye(len(METHODS)), np.nan, 0.5),
        seconds=rng.uniform(1, 2, (n, len(METHODS))),
        pass_seconds=rng.uniform(0.5, 1, n),
        provenance={"model": "m", "excluded": {"empty": 1}},
    )


def summary_of(evaluation: Evaluation, resamples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Summarise an evaluation with its own bootstrap."""
    return replace(evaluation, resamples=resamples, seed=seed).summary
