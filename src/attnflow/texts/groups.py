"""PositionGroups of positions that a user wants to see as one: words, residues, spans, regions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnflow._arrays import indices, positions
from attnflow.errors import InputError
from attnflow.selection import Row
from attnflow.texts.spans import find_span
from attnflow.texts.units import Range, word_ranges

Members = range | slice | Iterable[int] | str | tuple[str, int] | int
"""The positions of one group: numbers, a range or slice of them, or a piece of the text."""

PositionGroups = Mapping[str, Members] | Sequence[Members]
"""PositionGroups by name, or without names."""

_WAYS = (
    'expected positions such as [3, 4], range(3, 5), or a piece of the text such as "the key" or ("the key", 2) for its '
    "second occurrence"
)


class Positions:
    """The labelled positions of a text, which groups name.

    >>> text = Positions(["[CLS]", "the", "key"], "the key", [None, 0, 1], ["the", "key"])
    >>> text.members("the key"), text.members(range(1, 3)), text.members([-1])
    ([1, 2], [1, 2], [2])
    """

    def __init__(
        self, tokens: Sequence[str], text: str, word_ids: Sequence[int | None], word_texts: Sequence[str]
    ) -> None:
        self.tokens, self.text = tokens, text
        ranges = word_ranges(text, word_texts)
        self.offsets: list[Range] = [(0, 0) if word is None else ranges[word] for word in word_ids]

    def members(self, group: Any) -> list[int]:
        """Return the positions of one group, in order."""
        quoted = isinstance(group, str) or (isinstance(group, tuple) and group and isinstance(group[0], str))
        if quoted or isinstance(group, slice):
            return find_span(self.text, group, self.offsets, "text")
        try:
            numbers = positions(group, "position")
        except InputError:
            raise InputError(f"a group is {group!r:.80}: {_WAYS}") from None
        if not numbers:
            raise InputError(f"a group is {group!r:.80}, which has no positions: {_WAYS}")
        return sorted(set(indices(numbers, len(self.tokens), "position")))

    def grouped(self, groups: PositionGroups, names: Sequence[str] | None) -> dict[tuple[int, ...], str]:
        """Return each group's positions with its name; a group without a name is named after its tokens."""
        if isinstance(groups, Mapping):
            if names is not None:
                raise InputError("names is given, but groups is a mapping, which already has them: leave names out")
            names, groups = list(groups), list(groups.values())
        if isinstance(groups, str) or not isinstance(groups, Iterable):
            raise InputError(f"groups={groups!r:.80}: expected a list of groups, or a mapping from names to groups")
        listed = [self.members(group) for group in groups]
        if names is None:
            names = [Row(tuple(group), (1.0,) * len(group)).label(self.tokens) for group in listed]
        if isinstance(names, str) or len(names) != len(listed) or not all(isinstance(name, str) for name in names):
            raise InputError(f"names={names!r:.80} for {len(listed)} groups: expected a list with one text for each")
        owner: dict[int, str] = {}
        for name, group in zip(names, listed, strict=True):
            for position in group:
                if position in owner:
                    raise InputError(
                        f"position {position} ({self.tokens[position]!r}) is in the groups {owner[position]!r} and "
                        f"{name!r}: expected each position in one group at most"
                    )
                owner[position] = name
        return {tuple(group): name for group, name in zip(listed, names, strict=True)}
