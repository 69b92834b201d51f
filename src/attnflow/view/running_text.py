"""Running text in pieces: the characters of each token, so that a text can be shaded and still be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Neighbouring characters of a text, and the tokens that they belong to; none between tokens."""

    start: int
    end: int
    tokens: tuple[int, ...]


def pieces(length: int, offsets: Sequence[tuple[int, int]]) -> list[Piece]:
    """All of a text in order. Tokens that share a character stand in one piece; those without characters in none.

    >>> [tuple(piece) for piece in pieces(6, [(0, 0), (0, 1), (2, 4), (3, 5)])]
    [(0, 1, (1,)), (1, 2, ()), (2, 5, (2, 3)), (5, 6, ())]
    """
    parts: list[Piece] = []
    end = 0
    for token, (start, stop) in enumerate(offsets):
        if stop <= start:
            continue
        if start < end and parts:
            last = parts[-1]
            parts[-1] = Piece(last.start, max(last.end, stop), (*last.tokens, token))
        else:
            if start > end:
                parts.append(Piece(end, start, ()))
            parts.append(Piece(start, stop, (token,)))
        end = parts[-1].end
    return [*parts, Piece(end, length, ())] if end < length else parts
