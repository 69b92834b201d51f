"""The text of tokens by decoding them: for what a model wrote, and for tokenizers that give no offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow.texts.units import Range

WINDOW = 8
"""Tokens before the current one that are decoded with it: how it is written depends on no more of them."""

_BROKEN = "\ufffd"  # what bytes decode to that are no whole character


def decoded(tokenizer: Any, ids: Sequence[int], before: Sequence[int] = ()) -> tuple[str, list[Range]]:
    """The text that the ids add to what stands before them, and the range of each.

    A token of some bytes of a character has the range of the whole character; a special token has an empty range.
    """
    context, text, ranges = list(before)[-WINDOW:], "", list[Range]()
    pending: list[int] = []  # tokens whose last character is not whole yet
    starts: list[int] = []
    for number, i in enumerate(ids):
        base = _decode(tokenizer, context)
        starts.append(len(_grown(tokenizer, context, pending, base).rstrip(_BROKEN)))
        pending.append(i)
        grown = _grown(tokenizer, context, pending, base)
        if grown.endswith(_BROKEN) and number + 1 < len(ids) and len(pending) < WINDOW:
            continue
        ranges += _settled(tokenizer, context, pending, base, starts, grown, len(text))
        text += grown
        context = [*context, *pending][-WINDOW:]
        pending, starts = [], []
    return text, ranges


def _settled(
    tokenizer: Any,
    context: Sequence[int],
    pending: Sequence[int],
    base: str,
    starts: Sequence[int],
    grown: str,
    shift: int,
) -> list[Range]:
    """The ranges of tokens that end with a whole character."""
    ranges = []
    for k, start in enumerate(starts):
        seen = _grown(tokenizer, context, pending[: k + 1], base)
        stable = len(seen.rstrip(_BROKEN))
        end = min(stable + 1, len(grown)) if stable < len(seen) else len(seen)
        if end == len(grown):  # bytes that never became a character are those of the tokens before
            while k and start < end - 1 and grown[start] == _BROKEN:
                start += 1
        ranges.append((shift + min(start, end), shift + end))
    return ranges


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _grown(tokenizer: Any, context: Sequence[int], pending: Sequence[int], base: str) -> str:
    whole = _decode(tokenizer, [*context, *pending])
    if whole.startswith(base):
        return whole[len(base) :]
    return whole[next((i for i, (a, b) in enumerate(zip(whole, base, strict=False)) if a != b), len(base)) :]


def aligned(text: str, decoding: str, ranges: Sequence[Range]) -> list[Range]:
    """Ranges of a decoding as ranges of the text that was encoded, which may differ in case and white space.

    What does not stand in the text, such as the name of an unknown token, has what lies between its neighbours.
    """
    same_case = len(text.lower()) == len(text)
    folded, pieces = (text.lower(), decoding.lower()) if same_case else (text, decoding)
    places: list[Range | None] = []
    cursor = 0
    last, place = (0, 0), (0, 0)
    for start, end in ranges:
        piece = pieces[start:end].strip() or pieces[start:end]
        at = folded.find(piece, cursor)
        if start == end:
            places.append((cursor, cursor))
        elif end <= last[1]:
            places.append(place)  # another token of the same character
        elif at < 0 or (text[cursor:at].strip() and places and places[-1] is not None):
            places.append(None)
        else:
            last, place, cursor = (start, end), (at, at + len(piece)), at + len(piece)
            places.append(place)
    return _filled(len(text), places)


def _filled(size: int, places: Sequence[Range | None]) -> list[Range]:
    """The places, with the gaps between their neighbours where there is none."""
    result: list[Range] = []
    following, begins = size, list[int]()
    for place in reversed(places):
        begins.append(following)
        following = place[0] if place else following
    before = 0
    for place, begin in zip(places, reversed(begins), strict=True):
        result.append(place or (before, max(before, begin)))
        before = place[1] if place else before
    return result
