"""Which layers and positions a user means: by number, by a token's text, or as L1, L2, …"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnflow._arrays import finite_number, indices, positions
from attnflow.errors import InputError, TextError

Query = int | str | Iterable[int | str] | None

Queries = int | Mapping[int, float] | Iterable[int | Mapping[int, float]]
"""Rows of a long context: a position, positions with their weights, or several of these."""


@dataclass(frozen=True)
class Row:
    """Positions that are explained together, each with its weight. several: whether weights were given.

    name: the name of the row, if it has one. refusal: why it has no positions, if it has none.
    """

    positions: tuple[int, ...]
    weights: tuple[float, ...]
    several: bool = False
    name: str = field(default="", repr=False)
    refusal: str = field(default="", repr=False)

    def label(self, tokens: Sequence[str]) -> str:
        """Return how the row is shown: its token; for several, all of them if they are few, else the first and the last.

        >>> Row((0, 2), (0.5, 0.5), True).label(["the", "key", "to"])
        'the + to'
        >>> Row((0, 1, 2, 3), (1, 1, 1, 1), True).label(["the", "key", "to", "it"])
        'the … it (4 positions)'
        """
        if self.name:
            return self.name
        named = [tokens[i] for i in self.positions]
        return " + ".join(named) if len(named) < 4 else f"{named[0]} … {named[-1]} ({len(named)} positions)"


def select_layers(layers: int | Iterable[int] | None, depth: int, lowest: int = 0) -> list[int]:
    """Return layers as numbers from 0, at least one and none below ``lowest``; None for all.

    >>> select_layers(-1, 6), select_layers(None, 3, lowest=1)
    ([5], [1, 2])
    """
    numbers = list(range(lowest, depth)) if layers is None else indices(layers, depth, "layer")
    if not numbers or min(numbers) < lowest:
        first = f"start={lowest}" if lowest else "0"
        raise InputError(f"layers={layers!r}: expected at least one, from {first} to {depth - 1}")
    return numbers


def select_positions(query: Query, labels: Sequence[str], default: int | None, what: str = "query") -> list[int]:
    """Return positions among the labels: an int, a token's text, several of them, "all", or None for the default.

    what: the name of the argument in error messages.

    >>> select_positions("cat", ["the", "cat"], default=0), select_positions(None, ["the", "cat"], default=0)
    ([1], [0])
    """
    if query is not None and hasattr(query, "tolist"):  # an array or a tensor cannot be compared with "all"
        query = query.tolist()
    if query is None and default is not None:
        return [default]
    if query is None or query == "all":
        return list(range(len(labels)))
    if isinstance(query, str):
        places = [i for i, token in enumerate(labels) if token == query]
        if not places:
            choices = ", ".join(map(repr, dict.fromkeys(labels[:40]))) + (", …" if len(labels) > 40 else "")
            raise InputError(
                f'{what} {query!r} is not a token of this text: expected a position, "all", or one of {choices}'
            )
        if len(places) > 1:
            raise InputError(f"{what} {query!r} is at positions {', '.join(map(str, places))}: give one of these")
        return places
    if isinstance(query, Iterable):
        return [i for one in query for i in select_positions(one, labels, default, what)]
    return indices(query, len(labels), what)


def select_rows(queries: Queries | None, size: int) -> list[Row]:
    """Return rows over ``size`` positions; None for the last one.

    >>> select_rows([0, {-1: 2.0, 1: 0.5}], 4)
    [Row(positions=(0,), weights=(1.0,), several=False), Row(positions=(1, 3), weights=(0.5, 2.0), several=True)]
    """
    if queries is None:
        return [Row((size - 1,), (1.0,))]
    if isinstance(queries, Mapping):
        return [_mixture(queries, size)]
    if isinstance(queries, str | bytes):
        raise InputError(
            f"queries={queries!r:.60}: expected a position, a mapping {{position: weight}}, or a list of these"
        )
    items: list[Any] = [queries] if hasattr(queries, "__index__") and not hasattr(queries, "__len__") else []
    try:
        items = items or list(queries)  # type: ignore[arg-type]
    except TypeError:
        positions(queries, "query")  # type: ignore[arg-type]  # says what is wrong with them
    rows = []
    for item in items:
        if isinstance(item, Mapping):
            rows.append(_mixture(item, size))
        else:
            rows += [Row((i,), (1.0,)) for i in indices(positions([item], "query"), size, "query")]
    single = [row.positions[0] for row in rows if not row.several]
    if len(set(single)) < len(single):
        twice = next(i for i in single if single.count(i) > 1)
        raise InputError(f"queries has position {twice} more than once: expected each position once")
    return rows


def _mixture(weights: Mapping[int, float], size: int) -> Row:
    numbers = [_weight(weight) for weight in weights.values()]
    places = indices(positions(weights.keys(), "query"), size, "query")
    if not places or len(set(places)) < len(places):
        raise InputError(f"queries={dict(weights)!r}: expected at least one position with its weight, and each once")
    pairs = sorted(zip(places, numbers, strict=True))
    return Row(tuple(i for i, _ in pairs), tuple(w for _, w in pairs), several=True)


def _weight(weight: Any) -> float:
    number = finite_number(weight)
    if number is None:
        large = isinstance(weight, int) and not isinstance(weight, bool)  # too many digits for Python to print
        shown = "larger than any float" if large else f"{weight!r:.60}"
        raise InputError(f"a query has the weight {shown}: expected a finite number for each position")
    return number


def read_layer(text: str, depth: int, others: str = "or last") -> int:
    """Return the number from 0 of a layer given as L1…LL.

    >>> read_layer("L2", 6), read_layer("last", 6)
    (1, 5)
    """
    if text == "last":
        return depth - 1
    digits = text.upper().removeprefix("L")
    if not re.fullmatch("[0-9]+", digits) or not 1 <= int(digits) <= depth:
        raise InputError(f"layer {text!r}: expected L1 to L{depth}, {others}")
    return int(digits) - 1


def read_layers(text: str, depth: int) -> list[int]:
    """Return the numbers from 0 of layers given as a range, a list, last or all.

    >>> read_layers("1-3", 6), read_layers("L2,L5", 6), read_layers("last", 6)
    ([0, 1, 2], [1, 4], [5])
    """
    if text == "all":
        return list(range(depth))
    numbers: list[int] = []
    for part in text.split(","):
        ends = [read_layer(end.strip(), depth, "a range such as 1-4, last or all") for end in part.split("-")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise InputError(f"layers {text!r}: expected a range such as 1-4, a list such as 1,3, last or all")
        numbers += range(ends[0], ends[-1] + 1)
    return sorted(set(numbers))


def read_head(text: str) -> tuple[int, int] | None:
    """Return layer and head, counted from 0, of a name such as L3.5 for head 5 of layer 3; None for other texts.

    >>> read_head("L3.5"), read_head("previous")
    ((2, 4), None)
    """
    name = re.fullmatch(r"[Ll]?([1-9][0-9]*)\.([1-9][0-9]*)", text.strip())
    return (int(name[1]) - 1, int(name[2]) - 1) if name else None


def head_name(layer: int, head: int) -> str:
    """Return the name of a head.

    >>> head_name(2, 4)
    'L3.5'
    """
    return f"L{layer + 1}.{head + 1}"


def read_query(text: str | None, length: int) -> int | str | None:
    """Return a position or a token. A number such as 2020 that is not below ``length`` is a token.

    >>> read_query("3", 10), read_query("2020", 10), read_query("cat", 10)
    (3, '2020', 'cat')
    """
    position = int(text) if text is not None and re.fullmatch("-?[0-9]+", text) else None
    return text if position is None or abs(position) > length else position


def places_of(query: str | None, labels: Sequence[str], natural: int | None) -> list[int]:
    """Return the positions that a query names in any text: a position, "all", or a token wherever it occurs.

    >>> places_of("the", ["the", "key", "to", "the", "cabinets"], None), places_of(None, ["a", "b"], 1)
    ([0, 3], [1])
    """
    one = read_query(query, len(labels))
    try:
        return [i for i, token in enumerate(labels) if token == one] or select_positions(one, labels, natural)
    except InputError as e:
        raise TextError.of("query", str(e)) from None
