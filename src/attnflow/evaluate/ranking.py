"""What a grid of methods and metrics comes to: means with intervals, paired tests, mean ranks, who is ahead of whom."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from attnflow.errors import InputError
from attnflow.evaluate.statistics import Floats, holm, intervals, ranks, wilcoxon

LEVEL = 0.05
GATHERED = ("gather", "columns")
DIGITS = 6
ABOUTS = ("paper", "baseline", "edges", "propagation", "receptive field", "normalisation")
PROPAGATIONS = (
    ("rollout", "raw"), ("flow", "raw"), ("flow", "rollout"), ("gather", "rollout"), ("columns", "rollout"),
    ("gather", "columns"),
)  # fmt: skip
"""Which of two is the first of a pair."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Every method on every text by every metric, with NaN where there is no value.

    methods: each a mapping with name, kind ("paper", "edges", "importance" or "baseline"), edges, normalize, propagation
        and receptive_field, the last four None where they do not apply.
    metrics: from a name ("blank-out", "comprehensiveness (mask)") to "higher" or "lower", whichever is better.
    values: ``[sample, method, metric]``; a method's correlation with itself is NaN.
    curves: from a deletion ("mask", "unk", "remove") to probabilities ``[sample, method, deleted or kept, step]``.
    agreement: ``[method, method]``, the mean rank correlation over samples.
    sanity: from a level of randomisation ("head", "upper half", "all") to ``[sample, method]``, the rank correlation with
        the scores of the real model.
    seconds: ``[sample, method]``; pass_seconds: ``[sample]``, of one forward and backward pass.
    """

    methods: tuple[Mapping[str, Any], ...]
    metrics: Mapping[str, str]
    values: Floats
    curves: Mapping[str, Floats]
    agreement: Floats
    sanity: Mapping[str, Floats]
    seconds: Floats
    pass_seconds: Floats
    provenance: Mapping[str, Any]


def summarize(measured: Measured, resamples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """All that tables, files and the page tell of a grid, as JSON holds it: floats of six digits, null for no value.

    resamples, seed: of the bootstrap.

    In "cells", rank is the mean rank (1 is best, ties share) over the samples on which every method has a value, among
    methods that have any; and level is whether the method is the best by its mean, or not significantly different from
    it (Wilcoxon's test, corrected by Holm for all methods on this metric). In "tests", difference is first minus second;
    effect is the matched-pairs rank-biserial correlation, positive where the first is better; and adjusted is p after
    Holm's correction within one metric and one subject ("about").
    """
    if importlib.util.find_spec("scipy") is None:
        raise InputError("the summary of a grid needs scipy for its tests: pip install 'attnflow[evaluate]'")
    names = [method["name"] for method in measured.methods]
    # [sample, method, metric], where more is better in every metric
    better = measured.values * np.array([1.0 if way == "higher" else -1.0 for way in measured.metrics.values()])
    placed = [_placed(better[:, :, k]) for k in range(len(measured.metrics))]
    cells = [
        cell
        for k, metric in enumerate(measured.metrics)
        for cell in _cells(measured.values[:, :, k], better[:, :, k], placed[k], metric, names, resamples, seed)
    ]
    tests = [
        test
        for k, metric in enumerate(measured.metrics)
        for test in _tests(measured, better[:, :, k], metric, k, resamples, seed)
    ]
    costs = _medians(measured.seconds / measured.pass_seconds[:, None])
    methods = [
        {**method, "seconds": seconds, "cost": cost}
        for method, seconds, cost in zip(measured.methods, _medians(measured.seconds), costs, strict=True)
    ]
    ahead = _ahead(measured, tests)
    held = {
        "samples": len(measured.values),
        "methods": methods,
        "metrics": [{"name": name, "better": way} for name, way in measured.metrics.items()],
        "cells": cells,
        "tests": tests,
        "ahead": ahead,
        "needed": _needed(measured.methods),
        "ahead_of_all": _ahead_of_all(ahead, methods),
        "ranking": {metric: _ranking(placed[k], names) for k, metric in enumerate(measured.metrics)},
        "curves": {
            by: {
                name: {"deleted": _means(of_by[:, m, 0]), "kept": _means(of_by[:, m, 1])}
                for m, name in enumerate(names)
            }
            for by, of_by in measured.curves.items()
        },
        "agreement": measured.agreement,
        "sanity": {
            level: dict(zip(names, map(_told, intervals(table, resamples, seed)), strict=True))
            for level, table in measured.sanity.items()
        },
        "provenance": measured.provenance,
    }
    return {name: _plain(value) for name, value in held.items()}


def pairs(methods: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, int]]:
    """Which methods are held against which, ``(about, first, second)`` by their numbers.

    "paper": edges against each of the paper's methods. "baseline": these and edges against each baseline. "edges": other
    edges against the mean of heads. "propagation": see PROPAGATIONS, on the same edges. "receptive field": with it against
    without. "normalisation": the others of the same edges against the first. What a pair is not about is the same on both
    sides; only edges are compared under each normalisation, and what is gathered with rollout, because the mean has
    neither.
    """
    for a, first in enumerate(methods):
        for b, second in enumerate(methods):
            if first["kind"] == "edges" and second["kind"] == "paper":
                yield "paper", a, b
            if first["kind"] in ("edges", "paper") and second["kind"] == "baseline":
                yield "baseline", a, b
    made = [m for m, method in enumerate(methods) if method["edges"] is not None]

    def of(m: int, *fields: str) -> tuple[Any, ...]:
        return tuple(methods[m][field] for field in fields)

    leading: dict[tuple[Any, ...], int] = {}
    for m in made:
        leading.setdefault(of(m, "edges", "propagation", "receptive_field"), m)
    for a in made:
        edges, way, field = of(a, "edges", "propagation", "receptive_field")
        mean = leading.get(("mean", "rollout" if way in GATHERED else way, field))
        if edges != "mean" and mean is not None:
            yield "edges", a, mean
    for ways in PROPAGATIONS:
        for a in made:
            for b in made:
                same = of(a, "edges", "normalize", "receptive_field") == of(b, "edges", "normalize", "receptive_field")
                if same and (methods[a]["propagation"], methods[b]["propagation"]) == ways:
                    yield "propagation", a, b
    for a in made:
        for b in made:
            same = of(a, "edges", "normalize", "propagation") == of(b, "edges", "normalize", "propagation")
            if same and methods[a]["receptive_field"] is not None and methods[b]["receptive_field"] is None:
                yield "receptive field", a, b
    for a in made:
        first_of = leading[of(a, "edges", "propagation", "receptive_field")]
        if first_of != a:
            yield "normalisation", a, first_of


def effect(difference: Floats) -> float | None:
    """The matched-pairs rank-biserial correlation ``(W⁺ - W⁻) / (W⁺ + W⁻)`` (Kerby 2014), with the rank sums of `wilcoxon`.

    1 where all differences are positive. As in that test, zeros are ranked and then left out; None where all are zero.

    >>> effect(np.array([1.0, 2.0, -3.0, 4.0]))
    0.4
    """
    present = difference[np.isfinite(difference)]
    size = ranks(np.abs(present))
    up, down = size[present > 0].sum(), size[present < 0].sum()
    return float((up - down) / (up + down)) if up + down else None


def friedman(placed: Floats) -> dict[str, float] | None:
    """Friedman's test that all methods rank alike, of ``placed[sample, method]``, ranks within each sample; ties corrected.

    ``χ² = (k-1) · Σⱼ (Rⱼ - N(k+1)/2)² / Σᵢⱼ (rᵢⱼ - (k+1)/2)²`` with rank sums Rⱼ of k methods over N samples. None where
    every sample ties all methods.
    """
    from scipy import stats

    k = placed.shape[1]
    off = placed - (k + 1) / 2
    spread = float((off**2).sum())
    if not spread:
        return None
    chi2 = (k - 1) * float((off.sum(0) ** 2).sum()) / spread
    return {"chi2": chi2, "p": float(stats.chi2.sf(chi2, k - 1))}


def critical_difference(k: int, n: int) -> float:
    """How far the mean ranks of two among k methods on n samples must lie apart, by Nemenyi's test at 0.05 (Demšar 2006).

    ``q / √2 · √(k(k+1) / 6n)``, where q is the 0.95 quantile of the studentized range.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    return float(_studentized(k) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * n)))


@cache  # an integral, inverted: a second each for many methods
def _studentized(k: int) -> float:
    from scipy import stats

    return float(stats.studentized_range.ppf(1 - LEVEL, k, np.inf))


def groups(ordered: Sequence[float], distance: float) -> list[list[int]]:
    """The longest runs ``[first, last]`` of ordered mean ranks that lie less than a distance apart.

    >>> groups([1.0, 1.5, 2.2, 4.0], 1.0)
    [[0, 1], [1, 2]]
    """
    found: list[list[int]] = []
    for i, low in enumerate(ordered):
        j = max(j for j, high in enumerate(ordered) if j == i or (j > i and high - low < distance))
        if j > i and (not found or j > found[-1][1]):
            found.append([i, j])
    return found


def _placed(better: Floats) -> Floats:
    """Ranks ``[sample, method]`` within the samples on which every method has a value, NaN for methods without any."""
    there = np.isfinite(better)
    asked = there.any(0)
    whole = there[:, asked].all(1) & asked.any()
    placed = np.full((int(whole.sum()), better.shape[1]), np.nan)
    placed[:, asked] = ranks(-better[whole][:, asked])
    return placed


def _cells(
    values: Floats, better: Floats, placed: Floats, metric: str, names: Sequence[str], resamples: int, seed: int
) -> Iterator[dict[str, Any]]:
    level = _level(better)
    for m, (name, mean) in enumerate(zip(names, intervals(values, resamples, seed), strict=True)):
        there = values[np.isfinite(values[:, m]), m]
        yield {
            "method": name,
            "metric": metric,
            "n": len(there),
            **_told(mean),
            "sd": float(there.std(ddof=1)) if len(there) > 1 else None,
            "rank": float(placed[:, m].mean()) if len(placed) else None,
            "level": level[m],
        }


def _level(better: Floats) -> list[bool]:
    """Of each method, whether it is the best by its mean, or not significantly different from that one."""
    means = _means(better)
    there = [(mean, m) for m, mean in enumerate(means) if mean is not None]
    if not there:
        return [False] * len(means)
    best = max(there, key=lambda one: one[0])[1]
    others = [m for _, m in there if m != best]
    adjusted = holm([wilcoxon(better[:, best] - better[:, m]) for m in others])
    level = {m for m, p in zip(others, adjusted, strict=True) if p is None or p >= LEVEL}
    return [m == best or m in level for m in range(len(means))]


def _tests(
    measured: Measured, better: Floats, metric: str, k: int, resamples: int, seed: int
) -> Iterator[dict[str, Any]]:
    names = [method["name"] for method in measured.methods]
    asked = list(pairs(measured.methods))
    if not asked:
        return
    first, second = (np.array([pair[side] for pair in asked]) for side in (1, 2))
    differences = measured.values[:, first, k] - measured.values[:, second, k]
    oriented = better[:, first] - better[:, second]
    means = intervals(differences, resamples, seed)
    # one pair may be about several things
    known = {(a, b): wilcoxon(oriented[:, i]) for i, (_, a, b) in enumerate(asked)}
    p = [known[a, b] for _, a, b in asked]
    adjusted: dict[int, float | None] = {}
    for about in ABOUTS:
        at = [i for i, pair in enumerate(asked) if pair[0] == about]
        adjusted.update(zip(at, holm([p[i] for i in at]), strict=True))
    for i, (about, a, b) in enumerate(asked):
        mean = means[i]
        yield {
            "metric": metric,
            "first": names[a],
            "second": names[b],
            "about": about,
            "n": int(np.isfinite(differences[:, i]).sum()),
            "difference": None if mean is None else mean.mean,
            "low": None if mean is None else mean.low,
            "high": None if mean is None else mean.high,
            "effect": effect(oriented[:, i]),
            "p": p[i],
            "adjusted": adjusted[i],
        }


def _needed(methods: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many comparisons with the paper's methods there are, and with how many texts one of them could be significant:
    if all texts agree, p is 2·2⁻ⁿ before Holm's correction."""
    count = sum(about == "paper" for about, _, _ in pairs(methods))
    return {"texts": max(2, int(np.ceil(np.log2(2 * max(count, 1) / LEVEL)))), "comparisons": count}


def _ahead(measured: Measured, tests: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """For each metric the edges that are significantly better than every one of the paper's methods."""
    paper = {method["name"] for method in measured.methods if method["kind"] == "paper"}
    edges = [method["name"] for method in measured.methods if method["kind"] == "edges"]
    won: dict[tuple[str, str], set[str]] = {}
    for test in tests:
        if (
            test["about"] == "paper"
            and test["adjusted"] is not None
            and test["adjusted"] < LEVEL
            and test["effect"] > 0
        ):
            won.setdefault((test["metric"], test["first"]), set()).add(test["second"])
    return {
        metric: [name for name in edges if paper and won.get((metric, name), set()) == paper]
        for metric in measured.metrics
    }


def _ahead_of_all(ahead: Mapping[str, Sequence[str]], methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Who is ahead both in comprehensiveness under the first deletion and in the rank correlation with blank-out."""
    comprehensive = next((metric for metric in ahead if metric.startswith("comprehensiveness (")), "")
    both = set(ahead.get(comprehensive, ())) & set(ahead.get("blank-out", ()))
    return [{"method": method["name"], "cost": method["cost"]} for method in methods if method["name"] in both]


def _ranking(placed: Floats, names: Sequence[str]) -> dict[str, Any]:
    n = len(placed)
    asked = np.flatnonzero(np.isfinite(placed).all(0)) if n else np.array([], np.intp)
    k = len(asked)
    means = placed[:, asked].mean(0) if n else np.array([])
    order = np.argsort(means, kind="stable")
    ordered = means[order].tolist()
    distance = critical_difference(k, n) if k > 1 else None
    return {
        "n": n,
        "methods": [names[asked[i]] for i in order],
        "ranks": ordered,
        "friedman": friedman(placed[:, asked]) if k > 1 else None,
        "critical_difference": distance,
        "groups": [] if distance is None else groups(ordered, distance),
    }


def _told(mean: Any) -> dict[str, float | None]:
    return {side: None if mean is None else getattr(mean, side) for side in ("mean", "low", "high")}


def _means(table: Floats) -> list[float | None]:
    """Over the samples of each column that have a value."""
    return [float(column[there].mean()) if (there := np.isfinite(column)).any() else None for column in table.T]


def _medians(table: Floats) -> list[float | None]:
    return [float(np.median(column[there])) if (there := np.isfinite(column)).any() else None for column in table.T]


def _plain(held: Any) -> Any:
    """As JSON holds it: floats of six digits, None for what is no finite number."""
    if isinstance(held, Mapping):
        return {str(name): _plain(value) for name, value in held.items()}
    if isinstance(held, np.ndarray | np.generic):
        return _plain(held.tolist())
    if isinstance(held, list | tuple):
        return [_plain(value) for value in held]
    if isinstance(held, float):
        return float(f"{held:.{DIGITS}g}") if np.isfinite(held) else None
    return held
