"""Circuits with weights set by hand: the answer depends only on its source and the route, which methods should find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnflow.errors import InputError, ModelError
from benchmarks import planted
from benchmarks.circuits import (
    BLANK,
    CIRCUITS,
    LONGEST,
    SHORTEST,
    VOCABULARY,
    build,
    interventions,
    prompt,
)
from benchmarks.command import run_command
from benchmarks.result_lines import ResultFile

SEEDS = range(5)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: planted.wrapped(name) for name in CIRCUITS}


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_the_answer_follows_the_source_and_nothing_beside_the_route(models: dict[str, Any], circuit: str) -> None:
    for seed in SEEDS:
        case = prompt(circuit, seed)
        assert SHORTEST <= len(case.ids) <= LONGEST and BLANK not in case.ids
        assert case.ids[case.source] == case.answer and case.source not in case.route
        planted.check(models[circuit], case)
        prompts, answers = interventions(case, 3)
        changed = [[i for i, (a, b) in enumerate(zip(ids, case.ids, strict=True)) if a != b] for ids in prompts]
        assert all(len(places) == 1 for places in changed)
        assert {i for (i,) in changed} == set(range(len(case.ids))) - set(case.route)
        assert sum(answer != case.answer for answer in answers) == 3
        wrong = next(i for i in range(len(case.ids)) if i not in (case.source, *case.route))
        with pytest.raises(ModelError, match=f"does not answer seed {seed} by its source alone"):
            planted.check(models[circuit], replace(case, source=wrong))


def test_what_methods_find_of_two_hops(models: dict[str, Any]) -> None:
    """The answering position reads the hub; the information came from the digit."""
    case = prompt("two hops", 5)
    units = [[i] for i in range(len(case.ids))]

    def measured(name: str) -> dict[str, float]:
        scores = planted.METHODS[name](models["two hops"], case.ids, [case.answer], units).tokens
        assert scores is not None
        return planted.measures(scores, case)

    assert measured("answer rows")["mass on hub"] > 0.99
    for name in ("input", "answer · rollout", "answer · flow"):
        assert measured(name)["top-1"] == 1 and measured(name)["mass on truth"] > 0.99, name
    assert measured("blank-out")["mass on truth"] + measured("blank-out")["mass on route"] > 0.99


def test_the_command_is_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = {name: planted.METHODS[name] for name in ("answer rows", "recency")}
    file = ResultFile(tmp_path / "a.jsonl")
    assert list(planted.measure("induction", "unseen", 2, file, some)) == [1, 2]
    rows = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [(row["seed"], row["method"]) for row in rows] == [(s, name) for s in (1, 3) for name in some]
    assert all(row["measures"]["top-1"] == (row["method"] == "answer rows") for row in rows)
    assert [row["forwards"] for row in rows if row["method"] == "recency"] == [0, 0]
    assert list(planted.measure("induction", "unseen", 2, file, some)) == [1, 2]
    assert len(file.path.read_text().splitlines()) == 4
    for words, sentence in (
        (
            ("--circuits", "induction,loops"),
            "circuit 'loops': expected one of previous token, induction, two hops, sinks",
        ),
        (("--half", "third"), "half 'third': expected one of seen, unseen"),
    ):
        monkeypatch.setattr("sys.argv", ["benchmark", "-o", str(tmp_path / "b.jsonl"), *words])
        with pytest.raises(SystemExit) as left:
            run_command(planted.main)
        assert left.value.code == 2 and sentence in capsys.readouterr().err
    for function in (build, lambda name: prompt(name, 0)):
        with pytest.raises(InputError, match="circuit 'loops': expected one of"):
            function("loops")
    assert max(prompt("sinks", 1).ids) < VOCABULARY
