"""The sums over a corpus as the lists of its page."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.splits import GroupSums, Split
from attnflow.corpus.tally import Floats, Tokens

TOP = 20
"""Tokens on the first screen, with and without punctuation."""
GROUPED = 15
"""The same for a group: by lift and by the difference from all other texts, with and without punctuation."""
BLANKS = "\u0120\u010a\u0109\u2581"
"""How tokenizers write white space: Ġ, Ċ, ĉ and ▁."""


def least_count(texts: int) -> int:
    """Return how often a token must occur in `texts` texts to be listed."""
    return max(2, min(10, texts // 20), texts // 1000)


class Types:
    """The tokens that some list names, each with a number, and the tokens that may be listed.

    special: tokens that are mostly special.
    words: tokens that are neither special nor punctuation.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        n = len(tokens.ids)
        self.counts = tokens.counts[:n]
        self.special = 2 * tokens.special[:n] > self.counts
        self.punctuation = np.array([is_punctuation(spelled(names)[0]) for names in tokens.names], bool)
        self._ids = np.array(tokens.ids)
        self._numbers: dict[int, int] = {}

    @property
    def words(self) -> NDArray[np.bool_]:
        words: NDArray[np.bool_] = ~self.special & ~self.punctuation
        return words

    @property
    def slots(self) -> list[int]:
        """Return the slot of each number."""
        return list(self._numbers)

    def number(self, slot: int) -> int:
        return self._numbers.setdefault(slot, len(self._numbers))

    def best(self, some: NDArray[np.bool_], by: Floats, most: int) -> list[int]:
        """Return the first `most` slots by these values; ties go by id, so that the order of texts has no influence."""
        there = np.flatnonzero(some & np.isfinite(by))
        order: list[int] = there[np.lexsort((self._ids[there], -by[there]))][:most].tolist()
        return order

    def rows(self) -> dict[str, Any]:
        """Return all numbered tokens, and whether any token is punctuation."""
        tokens = self.tokens
        return {
            "punctuation": bool((self.punctuation & ~self.special).any()),
            "fields": ["id", "text", "others", "punctuation"],
            "rows": [
                [None if tokens.words else tokens.ids[i], *spelled(tokens.names[i]), bool(self.punctuation[i])]
                for i in self._numbers
            ],
        }


def list_splits(
    types: Types, splits: Sequence[Split], sums: GroupSums, methods: Sequence[str], least: int
) -> list[dict[str, Any]]:
    """Return what receives most in each group, and what receives more there than in all other texts.

    A row is a type, its lift in the group, that lift minus the lift in all other texts, and its count in the group.
    least: how often a token must occur in all texts; the minimum in a group is that of a corpus of the group's size.
    """
    n = len(types.counts)
    often = types.counts >= least
    every, total = sums.counts[-1][0, :n], sums.lifts[-1][:, 0, :n]
    entries = []
    for split, texts, counts, lifts in zip(splits, sums.texts, sums.counts, sums.lifts, strict=False):
        groups = []
        for g, value in enumerate(split.values):
            fewest = least_count(int(texts[g]))
            here = counts[g, :n]
            rest = every - here
            rows: dict[str, list[list[Any]]] = {}
            for m, method in enumerate(methods):
                lift = np.divide(lifts[m, g, :n], here, out=np.full(n, np.nan), where=here >= fewest)
                others = total[m] - lifts[m, g, :n]
                differs = lift - np.divide(others, rest, out=np.full(n, np.nan), where=rest >= fewest)
                kinds = (often & types.words, often & ~types.special)
                chosen = [i for some in kinds for by in (lift, differs) for i in types.best(some, by, GROUPED)]
                rows[method] = [
                    [types.number(i), *rounded([lift[i], differs[i]]), int(here[i])] for i in dict.fromkeys(chosen)
                ]
            groups.append({"value": value, "texts": int(texts[g]), "least": fewest, "received": rows})
        entries.append(
            {
                "name": split.name, "predicted": split.is_prediction, "texts": split.texts, "others": split.others,
                "fields": ["type", "lift", "difference", "count"], "groups": groups,
            }
        )  # fmt: skip
    return entries


def list_words(types: Types, sums: GroupSums, methods: Sequence[str], least: int) -> dict[str, list[list[Any]]]:
    """Return what receives most in all texts, without the left-out tokens: rows of type, lift and count."""
    n = len(types.counts)
    counts, lifts = sums.counts[-1][0, :n], sums.lifts[-1][:, 0, :n]
    words: dict[str, list[list[Any]]] = {}
    for m, method in enumerate(methods):
        lift = np.divide(lifts[m], counts, out=np.full(n, np.nan), where=counts >= least)
        chosen = [i for some in (types.words, ~types.special) for i in types.best(some, lift, TOP)]
        words[method] = [[types.number(i), *rounded([lift[i]]), int(counts[i])] for i in dict.fromkeys(chosen)]
    return words


def is_punctuation(text: str) -> bool:
    """Return whether a token contains no letter, number, currency sign or emoji.

    >>> [is_punctuation(text) for text in (".", "##,", "Ċ", "n't", "$", "👍", "—")]
    [True, True, True, False, False, False, True]
    """
    bare = text.removeprefix("##").strip(BLANKS)
    return all(unicodedata.category(sign)[0] in "PZC" or unicodedata.category(sign) in ("Sk", "Sm") for sign in bare)


def spelled(names: Counter[str]) -> tuple[str, list[str]]:
    """Return the most frequent text of a token, and some others."""
    first, *others = sorted(names, key=lambda name: (-names[name], name))
    return first, others[:3]


def rounded(values: Iterable[float]) -> list[float | None]:
    """Round to five digits, more than a page shows; None for what is not finite."""
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in values]
