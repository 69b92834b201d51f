"""The evidence: paired on the cases that two methods share, corrected for all comparisons, and read back as written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnflow.errors import InputError
from benchmarks import evidence

N = 40


def rows(values: dict[str, np.ndarray], half: str = "unseen", **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "model": "m", "task": "needle", "half": half, "seed": seed, "method": method,
            "measures": {"top-1": float(x), "mass on sinks": 1 - float(x)}, "seconds": 0.5, "forwards": 2, **more,
        }
        for method, own in values.items()
        for seed, x in enumerate(own)
        if np.isfinite(x)
    ]  # fmt: skip


def test_verdicts_follow_the_paired_differences() -> None:
    rng = np.random.default_rng(0)
    ours = rng.uniform(0.4, 0.6, N)
    noise = rng.normal(0, 0.05, N)
    values = {"answer rows": ours, "worse": ours - 0.1 + noise, "better": ours + 0.1 + noise, "like": ours + noise}
    (summary,) = evidence.summaries(rows(values))
    assert (summary.cases, summary.default) == (N, "answer rows")
    own = {method: x.verdict for method, x in summary.differences["top-1"].items()}
    assert own == {"worse": "ahead", "better": "behind", "like": "level"}
    less = {method: x.verdict for method, x in summary.differences["mass on sinks"].items()}
    assert less == own, "of a measure of which less is better, less counts as better"
    worse = summary.differences["top-1"]["worse"]
    assert worse.low < worse.mean < worse.high
    assert worse.mean == pytest.approx(float(np.mean(ours - values["worse"])))
    assert summary.costs["worse"] == {"seconds": 0.5, "forwards": 2.0}
    assert "by top-1 ahead of 1 of 3, level like, behind better" in evidence.sentence(summary)


def test_a_method_with_fewer_cases_is_compared_on_those() -> None:
    ours = np.linspace(0, 1, N)
    few = np.where(np.arange(N) < 10, ours - 0.2, np.nan)
    (summary,) = evidence.summaries(rows({"answer rows": ours, "few": few}))
    assert summary.cases == N and summary.differences["top-1"]["few"].cases == 10
    assert summary.differences["top-1"]["few"].mean == pytest.approx(0.2)
    assert summary.verdict("top-1", "nobody") == "not measured"
    (turned,) = evidence.summaries(rows({"answer rows": ours, "few": few}), default="few")
    assert turned.cases == 10, "of the method that the others are compared with"


def test_a_verified_method_is_compared_with_what_others_reach_without() -> None:
    ours, other = np.linspace(0, 0.5, N), np.linspace(0.2, 0.7, N)
    content = rows({"answer rows": ours, "ContextCite": other}, tokens=100, positions=150)
    for row in content:
        row["measures"] = {"top-1": row["measures"]["top-1"], "top-1, 4 verified": row["measures"]["top-1"] + 0.4}
    (summary,) = evidence.summaries(content, default="answer rows, 4 verified")
    values = {method: x.mean for method, x in summary.measures["top-1"].items()}
    assert values == pytest.approx({"answer rows": 0.25, "answer rows, 4 verified": 0.65, "ContextCite": 0.45})
    assert summary.verdict("top-1", "ContextCite") == "ahead"
    assert summary.costs["answer rows, 4 verified"] == {"forwards": 6.0, "texts": 5.5}
    assert summary.costs["answer rows"] == {"seconds": 0.5, "forwards": 2.0, "texts": 1.5}


def test_the_seen_half_and_failures_stand_apart() -> None:
    ours = np.linspace(0, 1, N)
    mixed = rows({"answer rows": ours}) + rows({"answer rows": 0 * ours}, half="seen")
    mixed += [{"model": "m", "task": "needle", "half": "unseen", "seed": 1, "method": "broken", "error": "no memory"}]
    (summary,) = evidence.summaries(mixed)
    assert summary.measures["top-1"]["answer rows"].mean == pytest.approx(0.5)
    assert summary.failed == {"broken": 1}
    assert "broken" not in summary.measures["top-1"]


def test_files_are_read_and_written(tmp_path: Path) -> None:
    file, out = tmp_path / "results.jsonl", tmp_path / "summary.json"
    content = rows({"answer rows": np.linspace(0.5, 1, N), "other": np.linspace(0, 0.4, N)})
    again = [{**content[0], "measures": {"top-1": 1.0}}]  # the last line of a case counts
    file.write_text("\n".join(json.dumps(row) for row in content + again))
    app = typer.Typer()
    app.command()(evidence.main)
    result = CliRunner().invoke(app, [str(file), "-o", str(out)])
    assert result.exit_code == 0, result.output
    (summary,) = [evidence.of_dict(x) for x in json.loads(out.read_text())]
    assert summary.verdict("top-1", "other") == "ahead"
    assert summary.measures["top-1"]["answer rows"].mean == pytest.approx(0.75 + 0.5 / N, abs=1e-4)
    assert evidence.as_dict(summary) == json.loads(out.read_text())[0]


def test_tasks_measures_and_defaults_are_chosen(tmp_path: Path) -> None:
    file, out = tmp_path / "results.jsonl", tmp_path / "summary.json"
    content = rows({"answer rows": np.linspace(0.5, 1, N), "other": np.linspace(0, 0.4, N)})
    content += [{**row, "task": "copy"} for row in content]
    file.write_text("\n".join(json.dumps(row) for row in content))
    evidence.main([file], task=["copy"], measure=["top-1"], default=["other", "answer rows"], output=out)
    one, two = (evidence.of_dict(x) for x in json.loads(out.read_text()))
    assert (one.task, two.task, one.default, two.default) == ("copy", "copy", "other", "answer rows")
    assert list(one.measures) == ["top-1"] and one.verdict("top-1", "answer rows") == "behind"
    with pytest.raises(InputError, match="no result of the half 'unseen' with these tasks and measures"):
        evidence.main([file], task=["needle"], measure=["luck"])


def test_files_without_results_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"model": "m"}')
    with pytest.raises(InputError, match=r"line 1 of .* has no 'task': expected a line of results"):
        evidence.read_results([file])
    file.write_text("\n".join(json.dumps(row) for row in rows({"answer rows": np.ones(3)}, half="seen")))
    with pytest.raises(InputError, match="no result of the half 'unseen'"):
        evidence.main([file])
    with pytest.raises(InputError, match="cannot read"):
        evidence.read_results([tmp_path / "nowhere.jsonl"])
