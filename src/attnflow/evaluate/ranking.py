"""Which methods are compared, and which are ahead of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attnflow.evaluate.statistics import SIGNIFICANT, Floats, ranks

PROPAGATIONS = (("rollout", "raw"), ("flow", "raw"), ("flow", "rollout"))
"""Which of two methods is the first of a pair."""

Methods = Sequence[Mapping[str, Any]]


def pairs(methods: Methods) -> Iterator[tuple[str, int, int]]:
    """Yield which methods are compared, ``(about, first, second)`` by their numbers.

    "paper": edges against each of the paper's methods. "baseline": these and edges against each baseline. "edges":
    other edges against the mean of heads. "propagation": see PROPAGATIONS, on the same edges. "receptive field": with
    it against without. "normalisation": the others of the same edges against the first. Apart from that, both sides of
    a pair are the same, except that edges are compared under each normalisation, because the mean has none.
    """
    for a, first in enumerate(methods):
        for b, second in enumerate(methods):
            if first["kind"] == "edges" and second["kind"] == "paper":
                yield "paper", a, b
            if first["kind"] in ("edges", "paper") and second["kind"] == "baseline":
                yield "baseline", a, b
    numbers = [m for m, method in enumerate(methods) if method["edges"] is not None]  # everything that propagates

    def of(m: int, *fields: str) -> tuple[Any, ...]:
        return tuple(methods[m][field] for field in fields)

    leading: dict[tuple[Any, ...], int] = {}
    for m in numbers:
        leading.setdefault(of(m, "edges", "propagation", "receptive_field"), m)
    for a in numbers:
        edges, way, field = of(a, "edges", "propagation", "receptive_field")
        mean = leading.get(("mean", way, field))
        if edges != "mean" and mean is not None:
            yield "edges", a, mean
    for ways in PROPAGATIONS:
        for a in numbers:
            for b in numbers:
                same = of(a, "edges", "normalize", "receptive_field") == of(b, "edges", "normalize", "receptive_field")
                if same and (methods[a]["propagation"], methods[b]["propagation"]) == ways:
                    yield "propagation", a, b
    for a in numbers:
        for b in numbers:
            same = of(a, "edges", "normalize", "propagation") == of(b, "edges", "normalize", "propagation")
            if same and methods[a]["receptive_field"] is not None and methods[b]["receptive_field"] is None:
                yield "receptive field", a, b
    for a in numbers:
        first_of = leading[of(a, "edges", "propagation", "receptive_field")]
        if first_of != a:
            yield "normalisation", a, first_of


def ranked(better: Floats) -> Floats:
    """Return ranks ``[sample, method]`` within the samples on which every method has a value; NaN for empty methods.

    better: ``[sample, method]`` by one metric, for which higher is better.
    """
    there = np.isfinite(better)
    present = there.any(0)
    complete = there[:, present].all(1) & present.any()
    placed = np.full((int(complete.sum()), better.shape[1]), np.nan)
    placed[:, present] = ranks(-better[complete][:, present])
    return placed


def needed(methods: Methods) -> dict[str, int]:
    """Return the number of comparisons with the paper's methods, and how many texts make significance possible.

    If all texts agree, p is 2·2⁻ⁿ before Holm's correction.
    """
    count = sum(about == "paper" for about, _, _ in pairs(methods))
    return {"texts": max(2, int(np.ceil(np.log2(2 * max(count, 1) / SIGNIFICANT)))), "comparisons": count}


def ahead(methods: Methods, metrics: Sequence[str], tests: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return for each metric the edges that are significantly better than every one of the paper's methods."""
    paper = {method["name"] for method in methods if method["kind"] == "paper"}
    edges = [method["name"] for method in methods if method["kind"] == "edges"]
    won: dict[tuple[str, str], set[str]] = {}
    for test in tests:
        p = test["adjusted"]
        if test["about"] == "paper" and p is not None and p < SIGNIFICANT and test["effect"] > 0:
            won.setdefault((test["metric"], test["first"]), set()).add(test["second"])
    return {metric: [name for name in edges if paper and won.get((metric, name)) == paper] for metric in metrics}


def ahead_of_all(winners: Mapping[str, Sequence[str]], methods: Methods) -> list[dict[str, Any]]:
    """Return the methods that are ahead both in comprehensiveness under the first deletion and with blank-out."""
    comprehensive = next((metric for metric in winners if metric.startswith("comprehensiveness (")), "")
    both = set(winners.get(comprehensive, ())) & set(winners.get("blank-out", ()))
    return [{"method": method["name"], "cost": method["cost"]} for method in methods if method["name"] in both]
