"""Words of a corpus in context: for each word, excerpts from the texts in which it received most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.lists import rounded
from attnflow.corpus.splits import label_of
from attnflow.corpus.tally import Batch, Ints

REACH = 14
"""Tokens shown on each side of a word."""
EXAMPLES = 3
"""Texts per word, in all texts and in each group that lists the word."""
MOST = 800
"""Words that get examples, over all lists; the first lists come first."""

Key = tuple[int, int]
"""A split and one of its groups; (-1, 0) for all texts."""
ALL: Key = (-1, 0)


class Contexts:
    """For each listed word, the texts in which it received most under one method.

    wanted: for each list, the token slots that it names.
    texts: the excerpts, by row and position.
    """

    def __init__(self, wanted: Mapping[Key, Sequence[int]], tokens: int, lead: int, methods: Sequence[str]) -> None:
        self.lead, self.methods = lead, methods
        self.wanted: dict[Key, NDArray[np.bool_]] = {}
        room = MOST
        self.omitted = 0
        for key, slots in wanted.items():
            kept = list(dict.fromkeys(slots))[: max(0, room)]
            self.omitted += len(set(slots)) - len(kept)
            room -= len(kept)
            self.wanted[key] = np.zeros(tokens, bool)
            self.wanted[key][kept] = True
        self.entries: dict[tuple[Key, int], list[tuple[float, int, int]]] = {}
        self.texts: dict[tuple[int, int], dict[str, Any]] = {}

    def add(self, batch: Batch, slots: Ints, groups: Ints, table: Any) -> None:
        """Add a batch of texts, with the left-out tokens marked as special.

        groups: [split, text].
        table: the rows of the texts.
        """
        own = batch.lifts[self.lead]
        numbers = table.column("row").to_numpy()
        plain = np.flatnonzero(~batch.special)
        for key, names in self.wanted.items():
            here = plain[names[slots[plain]]]
            if key != ALL:
                here = here[groups[key[0]][batch.text[here]] == key[1]]
            for at in _firsts(here, slots, own, batch.text):
                self._offer(key, int(slots[at]), float(own[at]), at, numbers, batch, table)
        kept = {(row, place) for entries in self.entries.values() for _, row, place in entries}
        self.texts = {where: text for where, text in self.texts.items() if where in kept}

    def _offer(self, key: Key, slot: int, lift: float, at: int, numbers: Ints, batch: Batch, table: Any) -> None:
        k = int(batch.text[at])
        row, place = int(numbers[k]), at - int(batch.starts[k])
        entries = self.entries.setdefault((key, slot), [])
        entries.append((-round(lift, 9), row, place))
        entries.sort()
        del entries[EXAMPLES:]
        if (-round(lift, 9), row, place) in entries and (row, place) not in self.texts:
            self.texts[row, place] = self._window(k, place, batch, table)

    def _window(self, k: int, place: int, batch: Batch, table: Any) -> dict[str, Any]:
        start, size = int(batch.starts[k]), int(batch.sizes[k])
        first, last = max(0, place - REACH), min(size, place + REACH + 1)
        row = table.slice(k, 1).to_pylist()[0]
        words = row["word_ids"] or [None] * size
        shown = range(first, last)
        return {
            "row": row["row"],
            "id": row["id"],
            "at": place - first,
            "size": size,
            "first": first,
            "tokens": row["tokens"][first:last],
            "special": [int(row["special"][i]) for i in shown],
            "apart": [int(batch.special[start + i]) for i in shown],
            "joins": [int(i > first and words[i] is not None and words[i] == words[i - 1]) for i in shown],
            "parts": row["parts"] and row["parts"][first:last],
            "prediction": label_of(row["prediction"]),
            "lifts": {
                method: rounded(values)
                for method, values in zip(self.methods, batch.lifts[:, start + first : start + last], strict=True)
            },
        }


def _firsts(here: Ints, slots: Ints, lifts: Any, text: Ints) -> list[int]:
    """Return for each token the few places at which it received most, one per text; ties keep their order."""
    order = here[np.lexsort((here, -lifts[here], slots[here]))]
    pairs = slots[order] * (int(text[-1]) + 1 if len(text) else 1) + text[order]
    _, once = np.unique(pairs, return_index=True)
    order = order[np.sort(once)]
    starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
    ranks = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    places: list[int] = order[ranks < EXAMPLES].tolist()
    return places


def list_contexts(contexts: Contexts, number: Any) -> dict[str, Any]:
    """Return the excerpts (`texts`), and which of them belong to each list and type (`of`).

    The key of a list is "" for all texts, else split.group.
    number: maps a slot to the number of its type.
    """
    places = {where: i for i, where in enumerate(contexts.texts)}
    of: dict[str, dict[str, list[int]]] = {}
    for (key, slot), entries in contexts.entries.items():
        name = "" if key == ALL else f"{key[0]}.{key[1]}"
        of.setdefault(name, {})[str(number(slot))] = [places[row, place] for _, row, place in entries]
    return {
        "texts": list(contexts.texts.values()),
        "of": of,
        "omitted": contexts.omitted,
        "method": contexts.methods[contexts.lead],
    }
