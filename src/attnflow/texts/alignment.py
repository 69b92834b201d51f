"""Word-by-word alignment of two texts."""

from __future__ import annotations

from collections.abc import Sequence

Pairs = list[tuple[int | None, int | None]]

GAP = 2
"""The cost of a word that only one text has."""

OTHER = 3
"""The cost of replacing a word: more than one gap, less than two."""

ALIKE = 1
"""The cost of replacing a word by another form (key, keys), or a special token by another ([CLS], <s>)."""

APART = 2 * GAP + 1
"""The cost of replacing a word by a special token: more than leaving out both, so it never happens."""

CELLS = 2_000_000
"""Differences with more pairs of words than this are not aligned, and count as replaced."""

MARKS = "Ġ▁#"


def align(
    first: Sequence[str],
    second: Sequence[str],
    special_first: Sequence[bool] = (),
    special_second: Sequence[bool] = (),
) -> Pairs:
    """Align two sequences of words at the least cost (Needleman & Wunsch, 1970).

    Returns pairs of positions in order, with None if the other text has no such word. Case and tokenizer marks are
    ignored. Of two alignments with the same cost, the one that replaces later words is chosen.

    >>> align("it was not good".split(), "It was good".split())
    [(0, 0), (1, 1), (2, None), (3, 2)]
    """
    a, b = _keys(first, special_first), _keys(second, special_second)
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    rows, columns = len(a) - start - end, len(b) - start - end
    if rows * columns <= CELLS:
        middle = _middle(a[start : start + rows], b[start : start + columns])
    else:
        middle = [(i, None) for i in range(rows)] + [(None, j) for j in range(columns)]
    shift = [(None if i is None else start + i, None if j is None else start + j) for i, j in middle]
    same: Pairs = [(i, i) for i in range(start)]
    return same + shift + [(len(a) - i, len(b) - i) for i in range(end, 0, -1)]


def _keys(words: Sequence[str], special: Sequence[bool]) -> list[tuple[bool, str]]:
    flags = special or [False] * len(words)
    return [(flag, (word.lstrip(MARKS) or word).lower()) for word, flag in zip(words, flags, strict=True)]


def _cost(one: tuple[bool, str], other: tuple[bool, str]) -> int:
    if one == other:
        return 0
    if one[0] != other[0]:
        return APART
    return ALIKE if one[0] or _are_forms(one[1], other[1]) else OTHER


def _are_forms(one: str, other: str) -> bool:
    """Return whether two words share their first letters: at least three, and half of the longer word."""
    longest = min(len(one), len(other))
    shared = next((i for i in range(longest) if one[i] != other[i]), longest)
    return shared >= 3 and 2 * shared >= max(len(one), len(other))


def _middle(a: Sequence[tuple[bool, str]], b: Sequence[tuple[bool, str]]) -> Pairs:
    table = [[GAP * j for j in range(len(b) + 1)]]
    for i, one in enumerate(a, 1):
        above, row = table[-1], [GAP * i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j - 1] + _cost(one, other), above[j] + GAP, row[j - 1] + GAP))
        table.append(row)
    i, j = len(a), len(b)
    pairs: Pairs = []
    while i or j:
        if i and j and table[i][j] == table[i - 1][j - 1] + _cost(a[i - 1], b[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif j and table[i][j] == table[i][j - 1] + GAP:
            j -= 1
            pairs.append((None, j))
        else:
            i -= 1
            pairs.append((i, None))
    return pairs[::-1]
