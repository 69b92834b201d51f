"""The benchmark of edges for batches of texts."""

from __future__ import annotations

import json

import pytest

from attnflow.errors import InputError
from benchmarks import batched_edges

SMALL = {"texts": 3, "tokens": 8, "layers": 2, "heads": 2, "width": 8, "rounds": 1, "alone": 2}
TASKS = ["forward", "forward and backward", "gradient edges", "answer rows", "answer inputs", "answer edges"]


def test_it_measures_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    batched_edges.main(**SMALL, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert (figures["texts"], figures["device"]) == (3, "cpu") and 18 <= figures["tokens"] <= 24
    assert list(figures["seconds"]) == [*TASKS, batched_edges.ONE_BY_ONE]
    assert figures["speed"]["forward and backward"] == 1
    assert all(seconds > 0 for seconds in figures["seconds"].values())


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    batched_edges.main(**{**SMALL, "alone": 0})
    table = capsys.readouterr().out
    assert "3 texts" in table and all(name.split()[0] in table for name in TASKS) and "at a time" not in table


def test_what_it_refuses() -> None:
    with pytest.raises(InputError, match="8 dimensions cannot be shared by 3 heads: expected a multiple"):
        batched_edges.main(**{**SMALL, "heads": 3})
    with pytest.raises(InputError, match="processor time says nothing about a GPU"):
        batched_edges.main(**SMALL, device="cuda", processor=True)
