"""`attnflow show --heads`, compared with the trace of the embedded model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af

TEXT = "the key to the cabinets"


@pytest.fixture(scope="module")
def trace() -> af.Trace:
    return af.load().trace(TEXT, keep_heads=True)


def test_one_head_is_a_result_of_its_own(attnflow: Any, trace: af.Trace, tmp_path: Path) -> None:
    printed = json.loads(attnflow("show", TEXT, "--heads", "L3.5", "--json").out)
    assert printed["method"] == "head L3.5"
    assert np.allclose(printed["values"][0][0], trace.weights[2][4, 0].numpy(), atol=1e-6)
    table = attnflow("show", TEXT, "--heads", "L3.5", "--query", "key").out
    assert "head L3.5 · query key · L3" in table
    attnflow("show", TEXT, "--heads", "l3.5", "-o", str(tmp_path / "head.csv"))
    with (tmp_path / "head.csv").open() as lines:
        assert len(list(csv.reader(lines))) == len(trace.tokens) + 1


def test_what_each_head_gives_most_to(attnflow: Any, trace: af.Trace) -> None:
    found = json.loads(attnflow("show", TEXT, "--heads", "all", "--query", "key", "--json").out)
    assert found["query"] == "key" and found["position"] == 2 and len(found["heads"]) == 48
    for row in found["heads"]:
        weights = trace.weights[row["layer"]][row["head"], 2].numpy()
        assert row["position"] == weights.argmax() and row["weight"] == pytest.approx(weights.max(), abs=1e-6)
        assert row["name"] == f"L{row['layer'] + 1}.{row['head'] + 1}" and row["token"] == trace.tokens[row["position"]]
    amounts = [row["weight"] for row in found["heads"]]
    assert amounts == sorted(amounts, reverse=True)
    lines = attnflow("show", TEXT, "--heads", "all").out.splitlines()
    assert lines[0] == "the token that each head attends to most, for the query '[CLS]'" and len(lines) == 14
    assert lines[-1] == "and 36 more; --json prints all of them"


@pytest.mark.parametrize(("given", "alignment"), [("previous", "previous"), ("4-1, 5-key", [(4, 1), (5, "key")])])
def test_heads_are_ranked_by_an_alignment(attnflow: Any, trace: af.Trace, given: str, alignment: Any) -> None:
    found = json.loads(attnflow("show", TEXT, "--heads", given, "--json").out)
    expected = trace.rank_heads(alignment)
    assert found["alignment"] == given and [row["name"] for row in found["heads"]] == [s.name for s in expected]
    assert np.allclose([(r["weight"], r["top"]) for r in found["heads"]], [s[2:] for s in expected], atol=1e-6)
    lines = attnflow("show", TEXT, "--heads", given).out.splitlines()
    assert lines[1].split()[:2] == [expected[0].name, f"{expected[0].weight:.3f}"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--heads", "some"],
            "--heads 'some': expected a head such as L3.5, all, one of previous, next, self, first, same, induction, or pairs "
            "of query and key such as 4-1,5-2",
        ),
        (
            ["--heads", "L0.1"],
            "--heads 'L0.1': layers and heads are counted from 1, so the first head of the first layer is L1.1",
        ),
        (["--heads", "L7.1"], "--heads 'L7.1': expected L1.1 to L6.8"),
        (["--heads", "4-door"], "key 'door' is not a token of this text"),
        (
            ["--heads", "all", "--method", "flow"],
            "--method flow cannot be combined with --heads all: leave one of them out; one head, such as --heads L3.5, takes raw, "
            "rollout, flow",
        ),
        (["--heads", "L1.1", "--layer", "L1"], "--layer L1: --heads L1.1 already names a layer, so leave --layer out"),
        (
            ["--heads", "L1.1", "--sinks", "residual"],
            "--sinks cannot be combined with --heads, which shows attention weights unchanged: leave --sinks out",
        ),
        (["--heads", "previous", "-o", "x.csv"], "--output needs a single head, such as --heads L3.5"),
    ],
)
def test_mistakes_are_told(attnflow: Any, words: list[str], sentence: str) -> None:
    refused = attnflow("show", TEXT, *words, status=2)
    assert refused.out == "" and refused.err.startswith(f"attnflow: {sentence}")
