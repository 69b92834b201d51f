"""The statistics of a grid: against scipy, by hand, and by construction."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnflow.errors import InputError
from attnflow.evaluate.ranking import pairs
from attnflow.evaluate.statistics import effect, holm, intervals, wilcoxon
from helpers.measurements import BLANK, GOOD, METHODS, METRICS, measured, summary_of


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summary_of(measured())


def cell(summary: dict[str, Any], name: str, metric: str) -> dict[str, Any]:
    (found,) = [c for c in summary["cells"] if (c["method"], c["metric"]) == (name, metric)]
    return found


def near(value: float | None) -> Any:
    return pytest.approx(value, rel=1e-5)  # the summary keeps six digits


def test_effect() -> None:
    """By hand: sizes 1, 2, 3, 4, of which 3 is negative, give (1+2+4-3) / 10; zeros take ranks, but do not count."""
    assert effect(np.array([1.0, 2.0, -3.0, 4.0])) == pytest.approx(0.4)
    assert effect(np.array([0.0, 1.0, -2.0, np.nan])) == pytest.approx((2 - 3) / 5)
    assert effect(np.array([0.1, 7.0])) == 1 and effect(np.array([-0.1, -7.0])) == -1
    assert effect(np.array([1.0, -1.0])) == 0
    assert effect(np.zeros(3)) is None and effect(np.full(3, np.nan)) is None
    difference = np.random.default_rng(0).normal(0.3, 1, 50)
    smaller = stats.wilcoxon(difference).statistic  # the smaller of the two rank sums, of 50·51/2 in all
    assert effect(difference) == pytest.approx(1 - 2 * smaller / 1275)


def test_the_test_of_few_differences_is_scipys() -> None:
    rng = np.random.default_rng(3)
    for n in (2, 3, 5, 7, 9, 13, 14, 40):
        given = [rng.normal(0.3, 1, n)]  # without ties
        if n < 10:  # with ties and zeros, for which scipy is slow
            given += [rng.integers(-2, 4, n).astype(float), np.append(np.full(n, 0.25), [0.0, np.nan])]
        for difference in given:
            expected = stats.wilcoxon(difference, zero_method="pratt", nan_policy="omit").pvalue
            assert wilcoxon(difference) == pytest.approx(expected, rel=1e-9), difference
    assert wilcoxon(np.zeros(5)) is None and wilcoxon(np.array([1.0, np.nan])) is None


def test_pairs() -> None:
    name = [m["name"] for m in METHODS]
    found: dict[str, list[tuple[str, str]]] = {}
    for about, a, b in pairs(METHODS):
        found.setdefault(about, []).append((name[a], name[b]))
    papers = ("raw", "rollout", "flow")
    others = ("rollout, ratio", "alti · raw", "alti · rollout", "alti · rollout, max")
    assert found == {
        "paper": [(first, second) for first in others for second in papers],
        "baseline": [(first, "random") for first in (*papers, *others)],
        "edges": [("alti · raw", "raw"), ("alti · rollout", "rollout"), ("alti · rollout, max", "rollout")],
        "propagation": [("rollout", "raw"), ("alti · rollout", "alti · raw"), ("flow", "raw"), ("flow", "rollout")],
        "receptive field": [("rollout, ratio", "rollout")],
        "normalisation": [("alti · rollout, max", "alti · rollout")],
    }
    assert list(pairs(METHODS[-2:])) == []


def test_cells(summary: dict[str, Any]) -> None:
    given = measured()
    for k, metric in enumerate(METRICS):
        for m, one in enumerate(METHODS):
            found, column = cell(summary, one["name"], metric), given.values[:, m, k]
            if (m, k) == (BLANK, 0):
                empty = {"mean": None, "low": None, "high": None, "sd": None}
                assert found == {"method": "blank-out", "metric": metric, "n": 0, **empty}
                continue
            (mean,) = intervals(column[:, None], 2000, 0)
            assert mean is not None
            assert [found[side] for side in ("mean", "low", "high")] == [
                near(v) for v in (mean.mean, mean.low, mean.high)
            ]
            assert (found["n"], found["sd"]) == (60, near(column.std(ddof=1)))


def test_tests(summary: dict[str, Any]) -> None:
    given = measured()
    asked = list(pairs(METHODS))
    for k, (metric, way) in enumerate(METRICS.items()):
        found = [test for test in summary["tests"] if test["metric"] == metric]
        assert [(t["about"], t["first"], t["second"]) for t in found] == [
            (about, METHODS[a]["name"], METHODS[b]["name"]) for about, a, b in asked
        ]
        for about in {test["about"] for test in found}:
            part = [test for test in found if test["about"] == about]
            p = [wilcoxon(given.values[:, a, k] - given.values[:, b, k]) for kind, a, b in asked if kind == about]
            assert [test["p"] for test in part] == [near(one) for one in p]
            assert [test["adjusted"] for test in part] == [near(one) for one in holm(p)]
        for test, (_, a, b) in zip(found, asked, strict=True):
            difference = given.values[:, a, k] - given.values[:, b, k]
            (mean,) = intervals(difference[:, None], 2000, 0)
            assert mean is not None and test["n"] == 60
            assert [test[s] for s in ("difference", "low", "high")] == [
                near(v) for v in (mean.mean, mean.low, mean.high)
            ]
            assert test["effect"] == near(effect(difference if way == "higher" else -difference))


def test_who_is_ahead(summary: dict[str, Any]) -> None:
    given = measured()
    assert summary["ahead"] == {metric: ["alti · rollout"] for metric in METRICS}
    cost = float(np.median(given.seconds[:, GOOD] / given.pass_seconds))
    assert summary["ahead_of_all"] == [{"method": "alti · rollout", "cost": near(cost)}]
    one = replace(given, values=given.values.copy())
    one.values[:, 2, 1] += 0.3  # flow is as good by one of the two metrics that count
    told = summary_of(one, 50)
    assert (told["ahead"]["blank-out"], told["ahead"]["comprehensiveness (mask)"]) == (["alti · rollout"], [])
    assert told["ahead_of_all"] == []
    nobody = replace(given, methods=tuple({**m, "kind": "edges"} if m["kind"] == "paper" else m for m in METHODS))
    assert set(map(tuple, summary_of(nobody, 50)["ahead"].values())) == {()}


def test_the_rest(summary: dict[str, Any]) -> None:
    given = measured()
    assert summary["samples"] == 60
    assert summary["provenance"] == {"model": "m", "excluded": {"empty": 1}}
    assert summary["metrics"][2] == {"name": "sufficiency (mask)", "better": "lower"}
    told = {name: summary["methods"][1][name] for name in METHODS[1]}
    assert told == METHODS[1] and summary["methods"][1]["seconds"] == near(np.median(given.seconds[:, 1]))
    for side, name in enumerate(("deleted", "kept")):
        expected = given.curves["mask"][:, 1, side].mean(0)
        assert summary["curves"]["mask"]["rollout"][name] == [near(v) for v in expected]
    assert summary["agreement"][0][:2] == [None, 0.5]


def test_what_is_missing() -> None:
    """Samples without a value are in no mean of that metric."""
    given = measured()
    values = given.values.copy()
    values[:10, 0, 0] = np.nan
    values[:, 8] = np.nan
    curves = {"mask": given.curves["mask"].copy()}
    curves["mask"][:, 8] = np.nan
    seconds = given.seconds.copy()
    seconds[:, 8] = np.nan
    found = summary_of(replace(given, values=values, curves=curves, seconds=seconds), 50)
    assert cell(found, "raw", "blank-out")["n"] == 50 and cell(found, "flow", "blank-out")["n"] == 60
    (test,) = [t for t in found["tests"] if (t["metric"], t["first"], t["second"]) == ("blank-out", "flow", "random")]
    assert {name: test[name] for name in ("n", "difference", "effect", "p", "adjusted")} == {
        "n": 0, "difference": None, "effect": None, "p": None, "adjusted": None
    }  # fmt: skip
    assert found["curves"]["mask"]["random"]["deleted"] == [None] * 5
    assert (found["methods"][8]["seconds"], found["methods"][8]["cost"]) == (None, None)
    json.dumps(found, allow_nan=False)
    json.dumps(summary_of(replace(given, values=np.full_like(values, np.nan)), 50), allow_nan=False)


def test_json(summary: dict[str, Any]) -> None:
    """It survives a round trip, keeps six digits, and is reproducible by seed."""
    told = json.dumps(summary, allow_nan=False)
    assert json.loads(told) == summary
    assert all(float(f"{c['mean']:.6g}") == c["mean"] for c in summary["cells"] if c["mean"] is not None)
    again, other = summary_of(measured()), summary_of(measured(), seed=1)
    assert json.dumps(again) == told != json.dumps(other)
    odd = summary_of(replace(measured(), provenance={"a": np.float32(0.5), "b": (np.int64(3),), "c": float("inf")}), 50)
    assert odd["provenance"] == {"a": 0.5, "b": [3], "c": None}


def test_scipy_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "scipy" else found(name))
    with pytest.raises(InputError) as e:
        summary_of(measured())
    assert str(e.value) == "evaluation needs scipy for its tests: pip install 'attnflow[models]'"
