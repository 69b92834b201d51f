"""What the terminal says of a grid, and the files that are written of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from attnflow.errors import InputError
from attnflow.evaluate import dataset as read
from attnflow.evaluate import grid_report
from attnflow.evaluate.ranking import summarize
from attnflow.view import grid_page
from helpers.measurements import METHODS, METRICS, measured


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarize(measured(), 200)


def printed(summary: dict[str, Any]) -> list[str]:
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        for part in grid_report.tables(summary):
            console.print(part)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_tables(summary: dict[str, Any]) -> None:
    lines = printed(summary)
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


def test_the_best_of_a_column_is_bold(summary: dict[str, Any]) -> None:
    for table in grid_report.tables(summary):
        if isinstance(table, Table):
            for column in [c for c in table.columns[1:] if c.header != "cost"]:
                bold = [i for i, text in enumerate(column.cells) if text.style == "bold"]  # type: ignore[union-attr]
                assert [str(list(table.columns[0].cells)[i]) for i in bold] == ["alti · rollout"]


def test_remarks(summary: dict[str, Any]) -> None:
    cost = summary["ahead_of_all"][0]["cost"]
    asked = "ahead of raw, rollout and flow by"
    files = "grid.html and grid.json have intervals, tests, curves and ranks; grid.parquet has every single value"
    ahead = "ahead is better than each of them, text by text (Wilcoxon's test, p < 0.05 after Holm's correction)"
    assert list(grid_report.remarks(summary)) == [
        f"{asked} blank-out: alti · rollout",
        f"{asked} comprehensiveness (mask): alti · rollout",
        f"by both: alti · rollout ({cost:.2g}×)",
        ahead,
        "left out: 1 text, empty",
        files,
    ]
    given = measured()
    values = given.values.copy()
    values[:, 5] = values[:, 4]
    values[:3, 0, 0] = np.nan
    told = summarize(replace(given, values=values, provenance={"excluded": {"longer": 1200}}), 50)
    assert list(grid_report.remarks(told)) == [
        f"{asked} blank-out: nothing",
        f"{asked} comprehensiveness (mask): nothing",
        "by both: nothing",
        ahead,
        "left out: 1,200 texts, longer",
        "raw: up to 3 of 60 texts have no value by some metric and are in no mean of it",
        files,
    ]
    alone = summarize(replace(given, methods=tuple({**m, "kind": "baseline"} for m in METHODS), provenance={}), 50)
    assert list(grid_report.remarks(alone)) == [files]


def test_a_grid_without_deletion_or_without_importance() -> None:
    given = measured()
    one = replace(given, metrics={"blank-out": "higher"}, values=given.values[:, :, :1], curves={})
    assert [line.split()[0] for line in printed(summarize(one, 50)) if "texts" in line] == ["Spearman"]
    other = replace(given, metrics=dict(list(METRICS.items())[1:]), values=given.values[:, :, 1:])
    lines = printed(summarize(other, 50))
    assert [line.split()[0] for line in lines if "texts" in line] == ["Tokens"]
    assert lines[2].split() == ["comprehensiveness", "↑", "sufficiency", "↓", "cost"]


def test_files(summary: dict[str, Any], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    given = measured()
    folder = tmp_path / "new" / "grid"
    written = grid_report.write(given, summary, folder)
    assert [path.name for path in written] == ["grid.json", "grid.parquet", "curves.parquet", "grid.html"]
    assert sorted(folder.iterdir()) == sorted(written)
    assert read.summary(folder) == summary
    held = json.loads((folder / "grid.json").read_text(encoding="utf-8"))
    assert {
        **summary,
        **{name: held[name] for name in ("cells", "tests")},
    } == held  # these two by numbers, or it is huge
    first = summary["cells"][0]
    assert held["cells"]["fields"] == list(first) and held["cells"]["rows"][0] == [0, 0, *list(first.values())[2:]]
    values = parquet.read_table(folder / "grid.parquet")
    assert values.column_names == ["sample", "method", "metric", "value"]
    rows = {(r["sample"], r["method"], r["metric"]): r["value"] for r in values.to_pylist()}
    assert len(rows) == values.num_rows == given.values.size
    for (k, m, j), value in np.ndenumerate(given.values):
        assert rows[k, METHODS[m]["name"], list(METRICS)[j]] == (None if np.isnan(value) else value)
    curves = parquet.read_table(folder / "curves.parquet")
    assert curves.column_names == ["sample", "method", "deletion", "kind", "step", "probability"]
    assert curves.num_rows == given.curves["mask"].size
    for row in curves.slice(777, 20).to_pylist():
        m, side = [method["name"] for method in METHODS].index(row["method"]), ["deleted", "kept"].index(row["kind"])
        assert row["probability"] == given.curves[row["deletion"]][row["sample"], m, side, row["step"]]
    page = (folder / "grid.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<title>m · attnflow</title>" in page
    bare = replace(given, curves={})
    grid_report.write(bare, summarize(bare, 50), folder)
    assert parquet.read_table(folder / "curves.parquet").num_rows == 0


def test_the_page_runs_its_own_script_alone(summary: dict[str, Any]) -> None:
    file = grid_page.html_of({**summary, "provenance": {"model": "</title><script>"}})
    assert "<title>&lt;/title&gt;&lt;script&gt; · attnflow</title>" in file
    script = re.search(r'<script type="module">(.*?)</script>', file, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', file)
    assert script is not None and policy is not None and file.count("<script") == 2
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1] and "connect-src 'none'" in policy[1]
    assert "import " not in script[1] and "\nexport " not in script[1]


def test_mistakes(summary: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as e:
        grid_report.write(measured(), summary, tmp_path / "file")
    assert str(e.value) == f"cannot make the folder {str(tmp_path / 'file')!r}: File exists"

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError) as e:
        grid_report.write(measured(), summary, tmp_path / "never")
    assert str(e.value) == "parquet needs pyarrow: pip install 'attnflow[corpus]'"
    assert not (tmp_path / "never").exists()
