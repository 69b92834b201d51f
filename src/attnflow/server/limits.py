"""Limits on requests, and the error for requests that exceed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNEXPECTED = "something went wrong in the server: this is a bug in attnflow, not in your request; see the server's log"


@dataclass(frozen=True)
class Limits:
    """Maximum sizes of requests, and of what the server keeps.

    tokens: per text. queue: waiting requests. image_bytes, pixels: per image.
    body_seconds: time for the body to arrive.
    finished, finished_seconds, finished_bytes: number, age and total size of finished jobs to keep.
    traces, trace_bytes: number and total size of traces to keep.
    answers: number of answers to keep, with the caches of their prompts.
    """

    tokens: int = 512
    queue: int = 32
    image_bytes: int = 8 << 20
    pixels: int = 1 << 24
    body_seconds: float = 20.0
    finished: int = 64
    finished_seconds: float = 600.0
    finished_bytes: int = 256 << 20
    traces: int = 16
    trace_bytes: int = 512 << 20
    answers: int = 4

    @property
    def characters(self) -> int:
        """Maximum characters per request: ten times as many as real text needs, to bound the time for tokenizing."""
        return 40 * self.tokens

    def body(self, images: bool) -> int:
        """Return the maximum size of a body: JSON needs up to 12 bytes per character, and base64 4 bytes for 3."""
        return (1 << 16) + 12 * self.characters + (self.image_bytes // 3 * 4 if images else 0)


class Refusal(Exception):
    """An error response: an HTTP status, and one sentence for the client."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers
