"""How far a job is: a line that changes in a terminal, JSON for programs, nothing elsewhere."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from attnflow.cli.options import progress as say
from attnflow.errors import InputError

KINDS = ("auto", "json", "none")
EVERY = {"terminal": 0.2, "json": 1.0}
"""Seconds between two lines."""


class Progress:
    """Is told what is done, and tells it as often as is good for who reads it.

    kind: "auto" for a line in a terminal and silence elsewhere, "json" for a line of JSON each second, "none".
    """

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise InputError(f"progress {kind!r}: expected one of {', '.join(KINDS)}")
        self.kind = kind if kind != "auto" else "terminal" if sys.stderr.isatty() else "none"
        self.total: int | None = None
        self.there = self.texts = self.there_tokens = self.tokens = self.errors = 0
        self.begun = self.told = time.monotonic()

    def planned(self, texts: int) -> None:
        """So many texts were counted so far."""
        if self._due() and self.kind == "terminal":
            self._line(f"counting the texts: {texts:,}")

    def start(self, total: int, there: int, tokens: int, errors: int) -> None:
        """total: texts of the whole input; there: those done before, with their tokens, and how many of them failed."""
        self.total, self.there, self.there_tokens, self.errors = total, there, tokens, errors
        self.begun = time.monotonic()

    def seen(self, texts: int, tokens: int) -> None:
        self.texts += texts
        self.tokens += tokens
        if self._due():
            self.tell()

    def failed(self, count: int) -> None:
        self.errors += count

    def tell(self) -> None:
        told = self.state()
        if self.kind == "json":
            say(json.dumps(told))
        elif self.kind == "terminal":
            share = told["texts"] / told["of"] if told["of"] else 1.0
            parts = [
                f"{told['texts']:,} of {told['of']:,} texts ({share:.0%})",
                f"{told['texts_per_second']:,.0f} texts/s",
                f"{told['tokens_per_second']:,.0f} tokens/s",
                f"{duration(told['seconds_left'])} left" if told["seconds_left"] is not None else "",
                f"{told['errors']:,} errors" if told["errors"] != 1 else "1 error",
            ]
            self._line(" · ".join(part for part in parts if part))

    def state(self) -> dict[str, Any]:
        seconds = max(time.monotonic() - self.begun, 1e-9)
        rate = self.texts / seconds
        done = self.there + self.texts
        left = max((self.total or done) - done, 0)
        return {
            "texts": done,
            "of": self.total,
            "tokens": self.there_tokens + self.tokens,
            "texts_per_second": round(rate, 2),
            "tokens_per_second": round(self.tokens / seconds, 1),
            "seconds": round(seconds, 2),
            "seconds_left": round(left / rate, 1) if rate else None,
            "errors": self.errors,
        }

    def say(self, sentence: str) -> None:
        """What must be known before the end."""
        if self.kind == "terminal":
            self._line("")
        say(json.dumps({"warning": sentence}) if self.kind == "json" else sentence)

    def close(self) -> None:
        """The last state, and an end to the line."""
        if self.total is not None:
            self.tell()
        if self.kind == "terminal":
            say("")

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self.told < EVERY.get(self.kind, float("inf")):
            return False
        self.told = now
        return True

    def _line(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """
    >>> duration(7), duration(125), duration(9000), duration(200000)
    ('7 s', '2 min 5 s', '2 h 30 min', '2 days 7 h')
    """
    s = round(seconds)
    for size, name, below, part in ((86400, "days", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if s >= size:
            return f"{s // size} {name} {s % size // below} {part}"
    return f"{s} s"
