"""The terminal output of an evaluation, and its files."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from attnflow.errors import InputError
from attnflow.evaluate import Evaluation
from attnflow.evaluate.evaluation_files import NAMED
from attnflow.evaluate.evaluation_tables import remarks, tables
from helpers.measurements import METHODS, METRICS, measured


@pytest.fixture(scope="module")
def grid() -> Evaluation:
    return few(measured(), 200)


@pytest.fixture(scope="module")
def summary(grid: Evaluation) -> dict[str, Any]:
    return grid.summary


def few(evaluation: Evaluation, resamples: int = 50, **changes: Any) -> Evaluation:
    return replace(evaluation, resamples=resamples, **changes)


def printed(evaluation: Evaluation) -> list[str]:
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(evaluation)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_tables(grid: Evaluation, summary: dict[str, Any]) -> None:
    lines = printed(grid)
    title = "Spearman with importance, 60 texts: means; cost in forward and backward passes"
    assert " ".join(line.strip() for line in lines).startswith(title)
    named = [method["name"] for method in METHODS]
    first, second = (
        [name for line in lines[i + 1 :] for name in named if line.strip().startswith(f"{name}  ")][: len(named)]
        for i, line in enumerate(lines)
        if line.startswith(("Spearman", "Tokens"))
    )
    means = {c["method"]: c["mean"] for c in summary["cells"] if c["metric"] == "blank-out"}
    by_kind = [
        [m["name"] for m in METHODS if m["kind"] == kind] for kind in ("paper", "edges", "importance", "baseline")
    ]
    wanted = [name for names in by_kind for name in sorted(names, key=lambda name: -(means[name] or 0))]
    assert first == second == wanted
    (blank,) = [line for line in lines if line.split()[:2] == ["blank-out", "none"]]
    assert blank.split() == ["blank-out", "none", f"{summary['methods'][7]['cost']:.2g}×"]
    (good,) = [line for line in lines if line.strip().startswith("alti · rollout  ")][:1]
    found = next(c for c in summary["cells"] if (c["method"], c["metric"]) == ("alti · rollout", "blank-out"))
    assert good.split()[-2:] == [f"{found['mean']:.3f}", f"{summary['methods'][5]['cost']:.2g}×"]
    heads = [line.split() for line in lines if "↑" in line]
    assert heads == [["blank-out", "↑", "cost"], ["comprehensiveness", "↑", "sufficiency", "↓"]]


def test_the_best_of_a_column_is_bold(grid: Evaluation) -> None:
    for table in tables(grid):
        if isinstance(table, Table):
            for column in [c for c in table.columns[1:] if c.header != "cost"]:
                bold = [i for i, text in enumerate(column.cells) if text.style == "bold"]  # type: ignore[union-attr]
                assert [str(list(table.columns[0].cells)[i]) for i in bold] == ["alti · rollout"]


def test_remarks(grid: Evaluation, summary: dict[str, Any]) -> None:
    cost = summary["ahead_of_all"][0]["cost"]
    asked = "ahead of raw, rollout and flow by"
    files = "grid.json has intervals, tests and curves; grid.csv has every single value"
    ahead = "ahead: better than each of them, compared text by text (Wilcoxon's test, p < 0.05 after Holm's correction)"
    assert list(remarks(grid)) == [
        f"{asked} blank-out: alti · rollout",
        f"{asked} comprehensiveness (mask): alti · rollout",
        f"by both: alti · rollout ({cost:.2g}×)",
        ahead,
        "left out: 1 text, empty",
        files,
        grid.recommendation,
    ]
    given = measured()
    values = given.values.copy()
    values[:, 5] = values[:, 4]
    values[:3, 0, 0] = np.nan
    told = few(given, values=values, provenance={"excluded": {"longer": 1200}})
    assert list(remarks(told)) == [
        f"{asked} blank-out: nothing",
        f"{asked} comprehensiveness (mask): nothing",
        "by both: nothing",
        ahead,
        "left out: 1,200 texts, longer",
        "raw: up to 3 of 60 texts have no value by some metric and are left out of its mean",
        files,
        told.recommendation,
    ]
    assert str(grid.recommendation).startswith(
        "Use alti · rollout for this model: on 30 texts held out it is ahead of raw"
    )
    assert not str(told.recommendation).startswith("Use")
    alone = few(given, methods=tuple({**m, "kind": "baseline"} for m in METHODS), provenance={})
    assert list(remarks(alone)) == [files]


def test_a_grid_without_deletion_or_without_importance() -> None:
    given = measured()
    one = few(given, metrics={"blank-out": "higher"}, values=given.values[:, :, :1], curves={})
    assert [line.split()[0] for line in printed(one) if "texts" in line and "held out" not in line] == ["Spearman"]
    other = few(given, metrics=dict(list(METRICS.items())[1:]), values=given.values[:, :, 1:])
    lines = printed(other)
    assert [line.split()[0] for line in lines if "texts" in line and "held out" not in line] == ["Tokens"]
    assert lines[2].split() == ["comprehensiveness", "↑", "sufficiency", "↓", "cost"]


def test_files(grid: Evaluation, summary: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "grid"
    written = grid.save(folder)
    assert [path.name for path in written] == ["grid.json", "grid.csv"]
    assert sorted(folder.iterdir()) == sorted(written)
    held = json.loads((folder / "grid.json").read_text(encoding="utf-8"))
    assert {
        **summary,
        **{name: held[name] for name in ("cells", "tests")},
    } == held  # these two store numbers in place of names, for size
    first = summary["cells"][0]
    assert held["cells"]["fields"] == list(first) and held["cells"]["rows"][0] == [0, 0, *list(first.values())[2:]]
    for name in ("cells", "tests"):
        entries = [dict(zip(held[name]["fields"], row, strict=True)) for row in held[name]["rows"]]
        named = [{f: held[NAMED[f]][x]["name"] if f in NAMED else x for f, x in entry.items()} for entry in entries]
        assert named == summary[name]
    header, *lines = csv.reader((folder / "grid.csv").read_text(encoding="utf-8").splitlines())
    assert header == ["sample", "method", "metric", "value"] and len(lines) == grid.values.size
    rows = {tuple(line[:3]): line[3] for line in lines}
    for (k, m, j), value in np.ndenumerate(grid.values):
        assert rows[str(k), METHODS[m]["name"], list(METRICS)[j]] == ("" if np.isnan(value) else repr(float(value)))


def test_mistakes(grid: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as e:
        grid.save(tmp_path / "file")
    assert str(e.value) == f"cannot create the folder {str(tmp_path / 'file')!r}: File exists"
    with pytest.raises(InputError) as e:
        grid.save(tmp_path / "grid.txt")
    assert str(e.value).endswith("has the extension '.txt': expected one of .json, .csv")


def layered(n: int = 12) -> Evaluation:
    """Return raw, rollout and flow at two layers by two importances; rollout and flow are equal at the first."""
    rng = np.random.default_rng(0)
    values = rng.normal(0.2, 0.3, (n, 6, 2))  # [sample, view · layer, importance]
    values[:, 4] = values[:, 2]
    values[0, 1, 1] = np.nan
    common = {"kind": "paper", "edges": "mean", "normalize": "rows", "receptive_field": None}
    methods = tuple(
        {"name": f"{view} L{layer + 1}", **common, "propagation": view, "layer": layer}
        for view in ("raw", "rollout", "flow")
        for layer in range(2)
    )
    return Evaluation(
        methods, {"blank-out": "higher", "gradient": "higher"}, values, np.corrcoef(values[:, :, 0].T),
        {"model": "m", "special": True, "excluded": {"empty": 2}}, layers=2, without={(1, 1): {"why not": 1}},
        accuracy=0.75, notes=("a note",), resamples=50,
    )  # fmt: skip


def test_an_evaluation_of_layers_is_a_small_grid() -> None:
    one = layered()
    assert repr(one) == "Evaluation(3 methods at 2 layers by 2 metrics, 12 texts)"
    assert one.correlations.shape == (12, 2, 3, 2) and one.views == ("raw", "rollout", "flow")
    assert np.array_equal(one.correlations[:, 1, 2, 0], one.values[:, 4, 1])
    assert one.cell("gradient", "raw", 1).without == {"why not": 1} and one.cell("gradient", "raw", 1).n == 11
    summary = one.summary
    assert [m["name"] for m in summary["methods"]] == [f"{v} L{k}" for v in one.views for k in (1, 2)]
    assert [(t["first"], t["second"]) for t in summary["tests"][:3]] == [
        ("flow L1", "rollout L1"), ("flow L1", "raw L1"), ("rollout L1", "raw L1")
    ]  # fmt: skip
    for cell, told in zip(one.cells, summary["cells"], strict=True):
        assert cell.mean is not None and told["mean"] == pytest.approx(cell.mean.mean, rel=1e-5)
        assert told["method"] == f"{cell.method} L{(cell.layer or 0) + 1}" and told["metric"] == cell.metric


def test_what_is_said_of_layers() -> None:
    lines = printed(layered())
    assert [line.split(",")[0].strip() for line in lines if "12 texts, all" in line] == [
        "Spearman with blank-out", "Spearman with gradient"
    ]  # fmt: skip
    assert lines[-5:] == [
        "accuracy 0.750 on these texts",
        "left out: 2 texts, empty",
        "gradient: 1 of 12 texts have no correlation and are in no mean (why not, at raw L2)",
        "a note",
        "save(folder) writes the comparisons at all layers and every single correlation",
    ]


@pytest.mark.parametrize("make", [measured, layered])
def test_it_shows_and_saves_itself(make: Any, tmp_path: Path) -> None:
    one = few(make())
    text = io.StringIO()
    one.show(file=text)
    assert "Spearman with" in text.getvalue()
    assert one._repr_html_().startswith("<pre") and "Spearman with" in one._repr_html_()
    frame = one.to_pandas()
    assert len(frame) == len(one.cells) and {"metric", "method", "n", "mean", "low", "high", "sd"} <= set(frame.columns)
    assert frame["mean"].isna().sum() == sum(cell.mean is None for cell in one.cells)
    assert ("layer" in frame.columns) == (one.layers is not None)
    assert one.save(tmp_path / "a.json") == [tmp_path / "a.json"]
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["samples"] == one.samples
    one.save(tmp_path / "a.csv")
    rows = (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) - 1 == one.values.size and rows[-1].split(",")[0] == str(one.samples - 1)
    with pytest.raises(InputError, match="there is no cell 'luck', 'flow' at layer None"):
        one.cell("luck", "flow")
