"""The progress bar for a single text."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from attnflow.jobs import progress


def terminal() -> tuple[io.StringIO, Console]:
    screen = io.StringIO()
    return screen, Console(file=screen, force_terminal=True, width=100)


def test_a_stage_says_how_long_it_still_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    screen, console = terminal()
    with progress.Stages(
        {"load": "loading the model", "blank-out": "blanking tokens out: {} of {}"}, console
    ) as stages:
        stages("load", 0, 1)
        now = 10.0
        stages("blank-out", 0, 100)
        assert "blanking tokens out: 0 of 100" in screen.getvalue() and "left" not in screen.getvalue()
        now = 14.0
        stages("blank-out", 5, 100)  # the time of the previous stage does not count
        assert "blanking tokens out: 5 of 100 · 1 min 16 s left" in screen.getvalue()


def test_a_long_stage_is_named_although_nobody_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    screen, console = terminal()
    with progress.Stages({"load": "loading the model"}, console) as stages:
        stages("load", 0, 1)
        assert screen.getvalue() == ""
        end = time.monotonic() + 8
        while "loading the model" not in screen.getvalue():
            assert time.monotonic() < end
            time.sleep(0.01)
    after = screen.getvalue()
    time.sleep(0.1)
    assert screen.getvalue() == after


def test_a_quick_stage_shows_nothing_and_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    screen, console = terminal()
    with progress.Stages({}, console) as stages:
        stages("load", 0, 1)
    time.sleep(0.15)
    assert screen.getvalue() == ""


def test_nothing_is_written_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    screen = io.StringIO()
    with progress.Stages({}, Console(file=screen)) as stages:
        stages("load", 0, 1)
        stages("blank-out", 1, 2)
    assert screen.getvalue() == ""


def test_the_clock_moves_although_nobody_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REFRESH", 50)
    screen, console = terminal()
    with progress.Stages({"load": "loading the model"}, console) as stages:
        stages("load", 0, 1)
        shown = len(screen.getvalue())
        end = time.monotonic() + 8
        while len(screen.getvalue()) < shown + 200:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert screen.getvalue().count("loading the model") > 2


def test_a_stage_at_once_and_lines_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen, console = terminal()
    with progress.Stages({"import": "loading torch", "run": "running"}, console) as stages:
        stages.at_once("import")
        assert "loading torch" in screen.getvalue()
        stages.say("wrote a file")
        assert capsys.readouterr().err == "wrote a file\n"
    with progress.Stages({"import": "loading torch"}, Console(file=(file := io.StringIO()))) as stages:
        stages.at_once("import")
    assert file.getvalue() == ""
