"""How much a request may take, and how it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNEXPECTED = (
    "something went wrong in the server, and its log says what: this is a fault of attnflow, not of your request"
)


@dataclass(frozen=True)
class Limits:
    """What one request may take, and all of them together.

    tokens: of one text. queue: requests that wait. image_bytes, pixels: of one image. header_seconds, body_seconds:
    until all headers, and then the body, have come.
    finished, finished_seconds, finished_bytes: of finished jobs. traces, trace_bytes: of traces kept for more questions.
    answers: that are kept for more questions, with the caches of their prompts.
    """

    tokens: int = 512
    queue: int = 32
    image_bytes: int = 8 << 20
    pixels: int = 1 << 24
    header_seconds: float = 10.0
    body_seconds: float = 20.0
    finished: int = 64
    finished_seconds: float = 600.0
    finished_bytes: int = 256 << 20
    traces: int = 16
    trace_bytes: int = 512 << 20
    answers: int = 4

    @property
    def characters(self) -> int:
        """The most characters of a request: ten times those of real text, so that tokenizing ends soon."""
        return 40 * self.tokens

    def body(self, images: bool) -> int:
        """The most bytes of a body: a character is at most twelve bytes of JSON, and base64 makes four bytes of three."""
        return (1 << 16) + 12 * self.characters + (self.image_bytes // 3 * 4 if images else 0)


class Refusal(Exception):
    """An error as an answer: its status, and one sentence for the client."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers
