"""The text of tokens by decoding them: for what a model wrote, and for tokenizers that give no offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow.texts.units import Range

WINDOW = 8
"""Tokens before the current one that are decoded with it: how it is written depends on no more of them."""

_BROKEN = "\ufffd"  # what bytes decode to that are no whole character


def decoded(
    tokenizer: Any, ids: Sequence[int], before: Sequence[int] = (), skip_special: bool = True
) -> tuple[str, list[Range]]:
    """The text that the ids add to what stands before them, and the range of each.

    A token of some bytes of a character has the range of the whole character. A special token has an empty range, unless
    special ones are not to be skipped.
    """
    special = set(tokenizer.all_special_ids)
    context, text, ranges = _context(tokenizer, before), "", list[Range]()
    borders = [0]  # places in the context where a character begins
    pending: list[int] = []  # tokens whose last character is not whole yet
    base = _decode(tokenizer, context, skip_special)
    steps = [base]  # the context's text, then with each of the pending tokens
    for number, i in enumerate(ids):
        pending.append(i)
        steps.append(_decode(tokenizer, [*context, *pending], skip_special))
        silent = steps[-1] == steps[-2] and i not in special and _is_spelled(tokenizer, i)
        partial = silent or steps[-1].endswith(_BROKEN)
        if partial and number + 1 < len(ids) and len(pending) < WINDOW:
            continue
        ranges += [(len(text) + a, len(text) + b) for a, b in _settled(steps)]
        text += steps[-1][_shared(base, steps[-1]) :]
        context, pending = [*context, *pending], []
        borders.append(len(context))
        cut = max(border for border in borders if border <= max(0, len(context) - WINDOW))
        context, borders = context[cut:], [border - cut for border in borders if border >= cut]
        base = _decode(tokenizer, context, skip_special)
        steps = [base]
    return text, ranges


def _settled(steps: Sequence[str]) -> list[Range]:
    """The ranges of tokens that end with a whole character, in what they add to the first step."""
    base, final = steps[0], steps[-1]
    shared = _shared(base, final)
    ranges = []
    start = shared
    for step in steps[1:-1]:  # each ends within a character; one that is not whole may spoil the text before it, too
        stable = max(start, _shared(step.rstrip(_BROKEN), final))
        ranges.append((start, min(stable + 1, len(final))))
        start = stable
    while start < len(final) - 1 and final[start] == _BROKEN and ranges:  # bytes that never became a character
        start += 1
    return [(a - shared, b - shared) for a, b in (*ranges, (start, len(final)))]


def _shared(a: str, b: str) -> int:
    """How many characters two texts have in common from the start."""
    if b.startswith(a):
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _context(tokenizer: Any, before: Sequence[int]) -> list[int]:
    """The last of the tokens before, from one on that is no part of a character."""
    start = max(0, len(before) - WINDOW)
    while start and not _decode(tokenizer, [before[start]], False).strip(_BROKEN):
        start -= 1
    return [int(i) for i in before[start:]]


def _is_spelled(tokenizer: Any, token: int) -> bool:
    """Whether the token is more than the mark that a word begins."""
    return bool(str(tokenizer.convert_ids_to_tokens(token)).strip("▁Ġ"))


def _decode(tokenizer: Any, ids: Sequence[int], skip_special: bool) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))


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
