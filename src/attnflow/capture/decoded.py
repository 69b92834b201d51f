"""Decoding of tokens into text, for answers that a model generated and for prompts given as token numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow.texts.units import Range

WINDOW = 8
"""How many earlier tokens are decoded with the current one: its spelling depends on no more of them."""

_BROKEN = "\ufffd"  # what incomplete characters decode to


def decoded(tokenizer: Any, ids: Sequence[int], before: Sequence[int] = ()) -> tuple[str, list[Range]]:
    """Return the text that the ids add to the tokens before them, and the range of each.

    A token that is only some bytes of a character gets the range of the whole character. A special token gets an empty
    range.
    """
    special = set(tokenizer.all_special_ids)
    context, text, ranges = _context(tokenizer, before), "", list[Range]()
    borders = [0]  # places in the context where a character begins
    pending: list[int] = []  # tokens whose last character is incomplete
    base = _decode(tokenizer, context)
    steps = [base]  # the context's text, then with each of the pending tokens
    for number, i in enumerate(ids):
        pending.append(i)
        steps.append(_decode(tokenizer, [*context, *pending]))
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
        base = _decode(tokenizer, context)
        steps = [base]
    return text, ranges


def _settled(steps: Sequence[str]) -> list[Range]:
    """Return the ranges of tokens that together complete a character, in the text that they add to the first step."""
    base, final = steps[0], steps[-1]
    shared = _shared(base, final)
    ranges = []
    start = shared
    for step in steps[1:-1]:  # each ends within a character; an incomplete one may also spoil the text before it
        stable = max(start, _shared(step.rstrip(_BROKEN), final))
        ranges.append((start, min(stable + 1, len(final))))
        start = stable
    while start < len(final) - 1 and final[start] == _BROKEN and ranges:  # bytes that never became a character
        start += 1
    return [(a - shared, b - shared) for a, b in (*ranges, (start, len(final)))]


def _shared(a: str, b: str) -> int:
    """Return the length of the common prefix of two texts."""
    if b.startswith(a):
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _context(tokenizer: Any, before: Sequence[int]) -> list[int]:
    """Return the last of the earlier tokens, beginning with one that is not part of a character."""
    start = max(0, len(before) - WINDOW)
    while start and not _decode(tokenizer, [before[start]], skip_special=False).strip(_BROKEN):
        start -= 1
    return [int(i) for i in before[start:]]


def _is_spelled(tokenizer: Any, token: int) -> bool:
    """Return whether the token is more than the mark of a word's beginning."""
    return bool(str(tokenizer.convert_ids_to_tokens(token)).strip("▁Ġ"))


def _decode(tokenizer: Any, ids: Sequence[int], skip_special: bool = True) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))
