"""The commands of the answer benchmarks: which methods find the source, and what explaining costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attnflow as af
from benchmarks import answers
from benchmarks.ablation import Passage, halves_of
from benchmarks.answer_cases import Case, Kept
from benchmarks.answer_methods import METHODS, Scores
from benchmarks.answer_metrics import source_measures
from benchmarks.command import run_command
from benchmarks.evidence import read_results, summaries
from helpers.architectures import LLAMA, hf, ids

pytest.importorskip("transformers", reason="transformers is not installed")

UNITS = [[0, 1, 2], [3, 4], [5, 6]]


@pytest.fixture(scope="module")
def decoder() -> af.Model:
    return af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "eos_token_id": None})(), name="small")


def kept(model: af.Model, kind: str = "needle", half: str = "seen", count: int = 3) -> Kept:
    """Return cases with answers that the model writes, and an unrelated truth."""
    prompts = ids(9)[0].tolist()
    cases = []
    for number in range(count):
        start = prompts[number:] + prompts[:number]
        written = list(model.answer(start, max_new_tokens=2).ids)
        seed = 2 * number + (half == "unseen")
        cases.append(Case(kind, seed, "", "", start, written, [3, 4], UNITS, [1], [0, 1] if kind == "tracking" else []))
    return Kept(cases, 7)


def passage(model: af.Model, seed: int = 0) -> Passage:
    """Return a passage with an arbitrary truth."""
    case = kept(model).cases[0]
    subsets = halves_of(3, 3, 0)
    return Passage(
        seed, "", case.ids, case.answer, UNITS, [0], -0.5, [1.0, 3.0, 2.0], subsets, [-3.0, -1.0, -2.0], -20.0
    )


def run(command: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    with pytest.raises(SystemExit) as left:
        run_command(command)
    return int(left.value.code or 0)


def test_results_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    monkeypatch.setattr(answers, "half_of", lambda kind, half, *_: kept(decoder, kind, half))

    def broken(model: Any, ids: list[int], *_: Any) -> Scores:
        if ids == kept(decoder).cases[1].ids:
            raise RuntimeError("out of memory")
        return METHODS["position"](model, ids, [1], UNITS)

    monkeypatch.setitem(METHODS, "hops", broken)
    file = tmp_path / "a.jsonl"
    words = ("-m", "m", "-o", str(file), "--half", "both", "--tasks", "needle,tracking", "--methods")
    assert run(answers.main, monkeypatch, *words, "answer rows,hops,random") == 0
    assert "tracking, unseen: 3 kept of 7 tried" in capsys.readouterr().err
    rows = read_results([file])
    assert len(rows) == len(file.read_text().splitlines()) == 2 * 2 * 3 * 3
    assert {row["seed"] % 2 for row in rows if row["half"] == "unseen"} == {1}
    errors = [row for row in rows if "error" in row]
    assert {row["method"] for row in errors} == {"hops"} and len(errors) == 4
    assert {row["error"] for row in errors} == {"RuntimeError: out of memory"} and errors[0]["measures"] == {}
    default = next(row for row in rows if row["method"] == "answer rows")
    assert default["forwards"] == 2 and default["seconds"] > 0 and default["model"] == "small"
    assert default["positions"] == 10, "the prompt's eight for the cache, then its last and the answer's first"
    case = kept(decoder).cases[0]
    scores = METHODS["answer rows"](decoder, case.ids, case.answer, UNITS)
    expected = source_measures(scores.tokens, scores.units, [3, 4], [1], [0])
    assert default["measures"] == pytest.approx(expected)
    before = file.read_text()
    assert run(answers.main, monkeypatch, *words, "answer rows,hops,random,position") == 0
    assert file.read_text().startswith(before) and len(read_results([file])) == 48
    needle, tracking = summaries(read_results([file]))
    assert (needle.task, tracking.task, needle.cases) == ("needle", "tracking", 3) and needle.failed == {"hops": 1}


def test_cases_alone_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    folders: list[Path | None] = []

    def listed(kind: str, half: str, count: int, model: Any, texts: Any, cache: Path | None) -> Kept:
        folders.append(cache)
        return kept(decoder, kind, half)

    monkeypatch.setattr(answers, "half_of", listed)
    file = tmp_path / "a.jsonl"
    words = ("-m", "m", "-o", str(file), "--tasks")
    assert run(answers.main, monkeypatch, *words, "copy", "--build", "--cache", str(tmp_path)) == 0
    assert folders == [tmp_path / "small"], "models do not share cases"
    assert "copy, unseen: 3 kept of 7 tried" in capsys.readouterr().err and file.read_text() == ""
    for more, message in (
        (("copy,sums",), "there is no task 'sums': expected some of 'needle', 'attributes'"),
        (("ablation",), "the task 'ablation' needs passages: give a file of sentences"),
        (("copy", "--half", "third"), "third"),
    ):
        assert run(answers.main, monkeypatch, *words, *more) == 2 and message in capsys.readouterr().err
