"""Progress of a job: a bar in a terminal, JSON for programs, nothing elsewhere."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.progress import track as track_items

from attnflow.errors import InputError

KINDS = ("auto", "json", "none")
EVERY = {"bar": 0.2, "json": 1.0}
"""Seconds between two reports."""
REFRESH = 2
"""How often the clock beside a bar moves, per second."""


def _bar(console: Console, transient: bool = False) -> Bar:
    """Return a bar whose clock moves on its own, so that a long step does not look like a standstill."""
    columns = (BarColumn(20), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Bar(*columns, console=console, refresh_per_second=REFRESH, redirect_stdout=False, transient=transient)


@dataclass
class Meter:
    """Counts finished work. before: what was finished at the start."""

    total: int | None
    before: int = 0
    count: int = 0
    begun: float = field(default_factory=lambda: time.monotonic())

    @property
    def finished(self) -> int:
        return self.before + self.count

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.begun, 1e-9)

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def seconds_left(self) -> float | None:
        left = max((self.total or self.finished) - self.finished, 0)
        return left / self.rate if self.rate else None


class Progress:
    """Shows texts, tokens and errors at a readable rate.

    kind: "auto" for a bar in a terminal and silence elsewhere, "json" for a line of JSON per second, or "none".
    """

    def __init__(self, kind: str, console: Console | None = None) -> None:
        if kind not in KINDS:
            raise InputError(f"progress {kind!r}: expected one of {', '.join(KINDS)}")
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.kind = kind if kind != "auto" else "bar" if self.console.is_terminal else "none"
        self.texts = self.tokens = Meter(None)
        self.errors = 0
        self.shown_at = time.monotonic()
        self.bar = _bar(self.console)
        self.task = self.bar.add_task("", total=None)

    def stages(self, words: Mapping[str, str]) -> Stages:
        """Return stages for what comes before the texts, shown where a bar is."""
        return Stages(words, self.console if self.kind == "bar" else Console(file=io.StringIO()))

    def count(self, texts: int) -> None:
        """Show how many texts were counted so far."""
        if self.kind == "bar" and self._due():
            self._draw(f"counting texts: {texts:,}")

    def start(self, total: int, texts: int, tokens: int, errors: int) -> None:
        """Start showing progress. total: texts of the whole input. texts, tokens, errors: finished in earlier runs."""
        self.texts, self.tokens, self.errors = Meter(total, texts), Meter(None, tokens), errors

    def advance(self, texts: int, tokens: int) -> None:
        self.texts.count += texts
        self.tokens.count += tokens
        if self._due():
            self.show()

    def show(self) -> None:
        state = self.state()
        if self.kind == "json":
            to_stderr(json.dumps(state))
        elif self.kind == "bar":
            left, errors = state["seconds_left"], state["errors"]
            facts = [
                f"{state['texts']:,} of {state['of']:,} texts ({100 * state['texts'] / (state['of'] or 1):.0f} %)",
                f"{state['texts_per_second']:,.0f} texts/s",
                f"{state['tokens_per_second']:,.0f} tokens/s",
                *([] if left is None else [f"{duration(left)} left"]),
                "1 error" if errors == 1 else f"{errors:,} errors",
            ]
            self._draw(" · ".join(facts))

    def state(self) -> dict[str, Any]:
        left = self.texts.seconds_left
        return {
            "texts": self.texts.finished,
            "of": self.texts.total,
            "tokens": self.tokens.finished,
            "texts_per_second": round(self.texts.rate, 2),
            "tokens_per_second": round(self.tokens.rate, 1),
            "seconds": round(self.texts.seconds, 2),
            "seconds_left": None if left is None else round(left, 1),
            "errors": self.errors,
        }

    def warn(self, sentence: str) -> None:
        """Show a warning right away."""
        if self.kind == "bar":
            self.console.print(sentence, markup=False, highlight=False)
        else:
            to_stderr(json.dumps({"warning": sentence}) if self.kind == "json" else sentence)

    def close(self) -> None:
        """Show the last state."""
        if self.texts.total is not None:
            self.show()
        if self.kind == "bar":
            self.bar.stop()

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self.shown_at < EVERY.get(self.kind, float("inf")):
            return False
        self.shown_at = now
        return True

    def _draw(self, description: str) -> None:
        with contextlib.suppress(OSError):
            self.bar.start()
            total, completed = self.texts.total, self.texts.finished
            self.bar.update(self.task, description=description, total=total, completed=completed, refresh=True)


PATIENCE = 1.0
"""Seconds before `Stages` shows anything: quicker work needs no bar."""


class Stages:
    """Shows the progress of one piece of work in a terminal, with the time left: ``stages(stage, done, total)``.

    words: a sentence for each stage, with two places for the numbers; other stages are shown by name.
    """

    def __init__(self, words: Mapping[str, str], console: Console | None = None) -> None:
        self.words = words
        self.console = console or Console(stderr=True, highlight=False)
        self.begun = time.monotonic()
        self.stage = ""
        self.meter = Meter(None)
        self.timer: threading.Timer | None = None
        self.bar = _bar(self.console, transient=True)
        self.task = self.bar.add_task("", total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self.console.is_terminal:
            return
        if stage != self.stage:
            self.stage, self.meter = stage, Meter(total)
        self.meter.total, self.meter.count = total, done
        if time.monotonic() - self.begun >= PATIENCE:
            self._draw()
        elif self.timer is None:  # the next call may come only after a long stage
            self.timer = threading.Timer(PATIENCE, self._draw_late)
            self.timer.daemon = True
            self.timer.start()
        if done >= total:
            self.clear()

    def at_once(self, stage: str) -> None:
        """Show a stage without waiting: importing a library holds the lock that a timer needs."""
        if self.console.is_terminal:
            self.stage, self.meter = stage, Meter(1)
            self._draw()

    def say(self, line: str) -> None:
        """Print a line on stderr above the bar."""
        self.clear()
        to_stderr(line)
        if self.stage:
            self(self.stage, self.meter.count, self.meter.total or 1)

    def _draw_late(self) -> None:
        if self.timer is not None:  # the work may have ended meanwhile
            self._draw()

    def _draw(self) -> None:
        meter, total = self.meter, self.meter.total or 0
        words = self.words.get(self.stage, f"{self.stage}: {{}} of {{}}").format(f"{meter.count:,}", f"{total:,}")
        left = meter.seconds_left if 0 < meter.count < total else None
        description = words if left is None else f"{words} · {duration(left)} left"
        with contextlib.suppress(OSError):
            self.bar.start()
            self.bar.update(self.task, description=description, total=total, completed=meter.count, refresh=True)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the bar before something else is printed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.bar.live.is_started:
            with contextlib.suppress(OSError):
                self.bar.stop()


T = TypeVar("T")


def track(items: Sequence[T], description: str) -> Iterable[T]:
    """Yield the items, with a bar in a terminal."""
    console = Console(stderr=True)
    return track_items(items, description, console=console, transient=True, disable=not console.is_terminal)


def to_stderr(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed stderr is no reason to stop
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(7), duration(125), duration(9000), duration(200000)
    ('7 s', '2 min 5 s', '2 h 30 min', '2 days 7 h')
    """
    s = round(seconds)
    for size, name, below, rest in ((86400, "days", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if s >= size:
            return f"{s // size} {name} {s % size // below} {rest}"
    return f"{s} s"
