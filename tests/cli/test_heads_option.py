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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--heads", "L0.1"],
            "--heads 'L0.1': expected a head such as L3.5, with layers and heads counted from 1; to rank heads, use "
            "Trace.rank_heads in Python",
        ),
        (["--heads", "L7.1"], "--heads 'L7.1': expected L1.1 to L6.8"),
        (["--heads", "previous"], "--heads 'previous': expected a head such as L3.5"),
        (["--heads", "L1.1", "--layer", "L1"], "--layer L1: --heads L1.1 already names a layer, so leave --layer out"),
        (
            ["--heads", "L1.1", "--residual", "0.3"],
            "--residual cannot be combined with --heads, which shows attention weights unchanged: leave --residual out",
        ),
    ],
)
def test_mistakes_are_told(attnflow: Any, words: list[str], sentence: str) -> None:
    refused = attnflow("show", TEXT, *words, status=2)
    assert refused.out == "" and refused.err.startswith(f"attnflow: {sentence}")
