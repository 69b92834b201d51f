"""Finding the tokens that a user means: by a piece of the text, or by token numbers."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TypeGuard

from attnflow.errors import InputError
from attnflow.texts.units import Range

Span = str | int | slice | tuple[int, int] | tuple[str, int]

AROUND = 20
"""Characters shown on both sides of each choice."""

_WAYS = (
    'a text, such as "Paris", ("Paris", 2) for its second occurrence, a token number, or (start, stop) of token numbers'
)


def find_span(text: str, span: Span, offsets: Sequence[Range], whole: str = "answer") -> list[int]:
    """Return the numbers of the tokens that a span names.

    text: what the tokens spell.
    offsets: the character range of each token.
    span: a text that occurs once; (text, n) for its n-th occurrence, from 1; a token number; or (start, stop) or a
        slice of token numbers, without stop.
    whole: what the text is, for error messages.

    >>> find_span("the old key", "key", [(0, 3), (3, 7), (7, 11)])
    [2]
    """
    count = len(offsets)
    if isinstance(span, str):
        return _of_text(text, span, None, offsets, whole)
    if isinstance(span, tuple) and len(span) == 2 and isinstance(span[0], str) and _is_number(span[1]):
        return _of_text(text, span[0], int(span[1]), offsets, whole)
    if isinstance(span, slice) and all(x is None or _is_number(x) for x in _ends(span)) and span.step != 0:
        tokens = list(range(count))[span]
    elif _is_number(span):
        tokens = [range(count)[span]] if -count <= span < count else []
    elif isinstance(span, tuple) and len(span) == 2 and all(_is_number(x) for x in span):
        start, stop = int(span[0]), int(span[1])
        tokens = list(range(start, stop)) if start >= 0 and stop <= count else []
    else:
        raise InputError(f"span is {span!r:.80}: expected {_WAYS}")
    if not tokens:
        raise InputError(
            f"span is {span!r:.80}, and there are {count} tokens: expected a number from 0 to {count - 1}, or "
            f"(start, stop) with start below stop and stop at most {count}"
        )
    return tokens


def _ends(span: slice) -> tuple[object, object, object]:
    return span.start, span.stop, span.step


def _is_number(x: object) -> TypeGuard[int]:
    """Return whether this is a whole number, of Python or numpy."""
    return isinstance(x, Integral) and not isinstance(x, bool)


def _of_text(text: str, span: str, occurrence: int | None, offsets: Sequence[Range], whole: str) -> list[int]:
    piece = span.strip()
    if not piece:
        raise InputError(f"span is {span!r}, an empty text: expected {_WAYS}")
    places = _places(text, piece)
    if not places:
        raise InputError(
            f"the span {piece!r:.80} does not occur in the {whole} {_shown(text)!r}: give a part of the {whole}, as "
            "written"
        )
    if occurrence is None and len(places) > 1:
        choices = "; ".join(
            f"({piece!r}, {n + 1}) in {_around(text, at, len(piece))!r}" for n, at in enumerate(places[:9])
        )
        more = f"; and {len(places) - 9} more" if len(places) > 9 else ""
        raise InputError(
            f"the span {piece!r:.80} occurs {len(places)} times in the {whole}: choose one of {choices}{more}; or "
            "give (start, stop), token numbers"
        )
    number = 1 if occurrence is None else occurrence
    if not 1 <= number <= len(places):
        raise InputError(
            f"the span {piece!r:.80} occurs {len(places)} times in the {whole}, so there is no number {number}: "
            f"expected a number from 1 to {len(places)}"
        )
    start = places[number - 1]
    stop = start + len(piece)
    return [i for i, (a, b) in enumerate(offsets) if a < stop and b > start]


def _places(text: str, piece: str) -> list[int]:
    places = []
    at = text.find(piece)
    while at >= 0:
        places.append(at)
        at = text.find(piece, at + 1)
    return places


def _around(text: str, at: int, size: int) -> str:
    """Return the piece in marks, with the text around it; in a short text that is the same for all choices."""
    start, end, stop = max(0, at - AROUND), at + size, min(len(text), at + size + AROUND)
    return f"{'…' if start else ''}{text[start:at]}«{text[at:end]}»{text[end:stop]}{'…' if stop < len(text) else ''}"


def _shown(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"
