"""The benchmark of planning a corpus: it times both ways and compares their shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnflow.corpus.plan import plan
from attnflow.errors import InputError
from benchmarks import planning


def test_both_ways_are_timed(tmp_path: Path) -> None:
    figures = planning.run(3000, [1, 2], 1, tmp_path, lambda sentence: None)
    assert list(figures["us_per_line"]) == [planning.REFERENCE, "parallel, 1 process", "parallel, 2 processes"]
    assert all(
        clocks["wall"] > 0 and clocks["cpu"] >= clocks["own"] - 1e-6 for clocks in figures["us_per_line"].values()
    )
    assert abs(figures["bytes"] / 3000 - planning.BYTES_A_LINE) < 2


def test_other_shards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "plan", lambda corpus, most, *rest: plan(corpus, most // 2, *rest))
    with pytest.raises(InputError) as e:
        planning.run(3000, [1], 1, tmp_path, lambda sentence: None)
    assert str(e.value) == (
        "parallel, 1 process: the shards differ from those of the reference, which is a bug in attnflow"
    )
