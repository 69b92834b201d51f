"""Splitting running text into the characters of each token, so that it can be shaded and stays readable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Consecutive characters of a text, and the tokens that they belong to; no tokens for characters in between."""

    start: int
    end: int
    tokens: tuple[int, ...]


def pieces(length: int, offsets: Sequence[tuple[int, int]]) -> list[Piece]:
    """Split a text into pieces. Tokens that share a character are in one piece; tokens without characters are in none.

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
