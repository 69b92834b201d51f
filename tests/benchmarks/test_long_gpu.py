"""The benchmark of long contexts, with a small model on the CPU in place of a large one on a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the benchmark runs a model")

import numpy as np

import attnflow as af
from benchmarks.long_gpu import (
    TASKS,
    Setting,
    names_of,
    run,
    setting,
    table_of,
    tasks_of,
)

SHORT = [name for name in TASKS if name != "flashtrace"]


def small(tokens: int = 24, span: int = 6) -> Setting:
    return setting("tiny", 2, tokens, span, None)


def test_every_task_runs_and_stands_beside_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.long_gpu.gc.collect", lambda: 0)  # slow when many tests have run
    said: list[str] = []
    rows = run([24], names_of(None, None), 2, 1, 6, said.append, "tiny")
    assert [row.what for row in rows] == SHORT
    for row in rows:
        assert row.seconds and row.seconds > 0 and row.peak_gib is not None, row
        assert row.times == pytest.approx(row.seconds / (rows[0].seconds or 0))
    notes = {row.what: row.note for row in rows}
    assert notes["rollout"] == notes["span"] == "sums to 1.00000"
    assert notes["rows"] == "rows sum to 1.00000 to 1.00000"
    assert notes["answer-pass"].startswith("parts add up to ") and notes["frozen"].startswith("parts add up to ")
    assert len([line for line in said if line.startswith("24 tokens, round 1: ")]) == len(SHORT)


def test_a_span_is_the_mean_of_its_rows_and_the_cache_changes_nothing() -> None:
    s = small()
    tasks = tasks_of(s, SHORT)
    last = list(range(18, 24))
    rows = s.wrapped.trace({"input_ids": s.ids}, memory="linear", queries=last, edges="head-norm").rollout()
    np.testing.assert_allclose(tasks["span"]().values[0, 0], rows.values[0].mean(0), atol=1e-6)
    answer, alone = tasks["answer"]().values, tasks["answer-alone"]().values
    np.testing.assert_allclose(answer, alone, atol=1e-5)


@pytest.mark.long
def test_a_task_that_fails_says_so_and_leaves_the_others_their_figures() -> None:
    rows = run([24], ["forward", "flashtrace"], 2, 2, 6, lambda _: None, "tiny")
    assert rows[0].seconds and rows[1].seconds is None and rows[1].times is None
    assert rows[1].note.startswith("AttributeError: 'NoneType' object has no attribute 'extract_model_metadata'")
    assert table_of(rows).row_count == 2


def test_tasks_are_named_and_bring_what_they_are_compared_with() -> None:
    assert names_of("backward,rows", None) == ["forward", "rows", "backward"]
    assert names_of(None, "folder") == list(TASKS)
    with pytest.raises(af.InputError, match=r"^tasks 'all': expected some of forward, rollout, "):
        names_of("all", None)
    with pytest.raises(
        af.InputError, match=r"^the task flashtrace needs the folder of its package: give --flashtrace$"
    ):
        names_of("flashtrace", None)
    with pytest.raises(af.InputError, match=r"^7 tokens: expected more than the 6 that are explained"):
        run([7], ["forward"], 2, 1, 6, print, "tiny")
