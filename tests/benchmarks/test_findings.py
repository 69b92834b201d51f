"""The page of findings: every figure and verdict comes from the summaries."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from attnflow.errors import InputError
from benchmarks import findings
from benchmarks.evidence import of_dict

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "findings"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "findings"))


def changed(folder: Path, name: str, task: str, change: Any) -> None:
    """Apply `change` to the first summary of a task in a file."""
    path = folder / f"{name}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(next(one for one in content if one["task"] == task))
    path.write_text(json.dumps(content), encoding="utf-8")


def test_the_page_is_made_from_the_summaries() -> None:
    text = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert findings.page(FOLDER) == text, "run python -m benchmarks.findings docs/findings"
    assert "{{" not in text and len(text.split()) <= 1500


def test_another_verdict_makes_another_sentence(folder: Path) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["differences"]["R-precision"]["AttnLRP"]["verdict"] = "level"

    pattern = r"in (\d+) of (\d+) comparisons( \(level with AttnLRP on SmolLM2-135M-Instruct\))?\. \|$"
    before = re.search(pattern, findings.page(folder), re.MULTILINE)
    changed(folder, "smollm2-tokens", "needle", change)
    after = re.search(pattern, findings.page(folder), re.MULTILINE)
    assert before is not None and after is not None
    assert int(after[1]) == int(before[1]) - 1 and after[2] == before[2] and after[3] and not before[3]
    assert re.search(r"\| AttnLRP \| \.\d\d=/", findings.page(folder))


def test_the_page_leads_to_a_decision() -> None:
    """The defaults lead in the first table; if the data change, review these sentences."""
    evidence = findings.read(FOLDER)
    for task in findings.TASKS:
        for place in evidence.places("tokens", task, "R-precision"):
            names = [
                n
                for n in (*findings.ONE_PASS, *findings.GROUPS["paper"], *findings.PLACES)
                if place.value(n) is not None
            ]
            assert all(place.summary.verdict(place.measure, name) == "ahead" for name in names)
    for count in (4, 8):
        for place in evidence.places("ablation", "ablation", "Spearman", f"{findings.BOTH}, {count} verified"):
            assert all(place.summary.verdict("Spearman", name) == "ahead" for name in findings.CITED)
            assert place.summary.verdict("LDS", "ContextCite, 32 ablations") == "behind", "not settled says so"
    (words,) = evidence.places("sst2", "words", "Spearman")
    assert all(
        words.summary.verdict("Spearman", name) == "ahead" for name in ("raw L6", "rollout L6", "flow L6", "first")
    )


def test_files_are_small_and_of_enough_cases() -> None:
    for path in FOLDER.glob("*.json"):
        assert path.stat().st_size < 300_000
        if path.stem != "cases":
            for summary in map(of_dict, json.loads(path.read_text(encoding="utf-8"))):
                shared = [x.cases for own in summary.differences.values() for x in own.values()]
                assert min(shared) >= 30 and summary.default in next(iter(summary.measures.values()))


def test_fields_that_ask_for_nothing_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(findings, "TEMPLATE", tmp_path / "page.md")
    for text, message in [
        ("{{what: a}}", r"the field \{\{what: a\}\} of page.md is unknown: expected one of of, ahead"),
        ("{{of: tokens | needle | top-1 | nobody}}", "the method 'nobody' was not measured there"),
    ]:
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            findings.page(FOLDER)


def test_a_folder_without_findings_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no findings \(KeyError\('cases'\)\): expected files of benchmarks.evidence"
    ):
        findings.page(tmp_path)
    (folder / "sst2.json").write_text("[1]")
    with pytest.raises(InputError, match=r"has no findings .*: expected files of benchmarks.evidence"):
        findings.page(folder)


def test_the_command_writes_beside_the_folder(folder: Path) -> None:
    findings.main(folder)
    assert (folder.parent / "findings.md").read_text(encoding="utf-8") == findings.page(FOLDER)
