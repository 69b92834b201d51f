"""The progress of a job: in a terminal, for programs, and elsewhere."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from attnflow.jobs.progress import Meter, Progress, duration, track


def test_a_meter_counts_what_this_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    meter = Meter(total=100, before=20)
    assert (meter.finished, meter.seconds_left) == (20, None)
    now[0], meter.count = 5.0, 10
    assert (meter.finished, meter.rate, meter.seconds_left) == (30, 2.0, 35.0)
    meter.count = 80
    assert meter.seconds_left == 0


def test_progress(monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress = Progress("auto", console)
    progress.start(1000, 200, 5000, 1)
    now[0] = 10.0
    progress.errors += 2
    progress.advance(400, 8000)
    shown = console.file.getvalue()
    assert "600 of 1,000 texts (60 %) · 40 texts/s · 800 tokens/s · 10 s left · 3 errors" in shown
    now[0] = 10.1
    progress.advance(1, 1)
    assert console.file.getvalue() == shown
    progress.warn("all 2 texts failed [query]")
    progress.close()
    assert "all 2 texts failed [query]" in console.file.getvalue() and "601 of" in console.file.getvalue()
    assert duration(3661) == "1 h 1 min"


def test_lines_for_programs(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress("json")
    progress.start(10, 0, 0, 0)
    progress.advance(1, 5)
    now[0] = 2.0
    progress.advance(3, 15)
    progress.warn("one failed")
    first, warning = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {
        "texts": 4, "of": 10, "tokens": 20, "texts_per_second": 2.0, "tokens_per_second": 10.0, "seconds": 2.0,
        "seconds_left": 3.0, "errors": 0,
    }  # fmt: skip
    assert warning == {"warning": "one failed"}


def test_nothing_is_shown_where_nobody_looks(capsys: Any) -> None:
    progress = Progress("auto", Console(file=io.StringIO()))
    progress.start(10, 0, 0, 0)
    progress.advance(10, 50)
    progress.close()
    assert list(track([1, 2], "counting")) == [1, 2]
    assert progress.console.file.getvalue() == "" and capsys.readouterr() == ("", "")
