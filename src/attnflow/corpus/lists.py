"""What was summed over a corpus, as the lists and numbers of its page."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.splits import GroupSums, Split
from attnflow.corpus.tally import BINS, PLACES, SPELLINGS, Agreement, Floats, Positions, Tokens
from attnflow.evaluate.statistics import wilson

LISTED = 100
"""Tokens in a list: so many by lift, with special tokens and without, and so many by share, for each method and layer."""
SPECIAL = 20
TOP = 20
"""Tokens of all texts on the first screen, with punctuation and without."""
GROUPED = 15
"""The same of a group: by lift and by the difference from all other texts, with punctuation and without."""
LABELS = 20
BLANKS = "\u0120\u010a\u0109\u2581"
"""How tokenizers write white space: Ġ, Ċ, ĉ and ▁."""


def least_count(texts: int) -> int:
    """How often a token must stand in so many texts to be in a list."""
    return max(2, min(10, texts // 20), texts // 1000)


class Types:
    """The tokens that some list names, each with a number; and which may be in lists.

    special: those that mostly are. words: those that are neither special nor punctuation.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        n = len(tokens.ids)
        self.counts = tokens.counts[:n]
        self.special = 2 * tokens.special[:n] > self.counts
        self.punctuation = np.array([is_punctuation(spelled(names)[0]) for names in tokens.names], bool)
        self.alone = np.where(self.counts > tokens.special[:n], self.counts - tokens.special[:n], np.nan)
        self._ids = np.array(tokens.ids)
        self._numbers: dict[int, int] = {}

    @property
    def words(self) -> NDArray[np.bool_]:
        words: NDArray[np.bool_] = ~self.special & ~self.punctuation
        return words

    @property
    def slots(self) -> list[int]:
        """The place of each number."""
        return list(self._numbers)

    def number(self, slot: int) -> int:
        return self._numbers.setdefault(slot, len(self._numbers))

    def best(self, some: NDArray[np.bool_], by: Floats, most: int) -> list[int]:
        """The first by these numbers; ties by id, so that neither batches nor the order of texts choose."""
        there = np.flatnonzero(some & np.isfinite(by))
        order: list[int] = there[np.lexsort((self._ids[there], -by[there]))][:most].tolist()
        return order

    def rows(self, least: int) -> dict[str, Any]:
        """All that were numbered, and how many there are."""
        tokens = self.tokens
        return {
            "seen": len(tokens.ids),
            "special": int(self.special.sum()),
            "punctuation": int((self.punctuation & ~self.special).sum()),
            "counted": int(((self.counts >= least) & ~self.special).sum()),
            "fields": ["id", "text", "others", "spellings", "special", "count", "punctuation"],
            "spellings": SPELLINGS,
            "rows": [
                [
                    None if tokens.words else tokens.ids[i], *spelled(tokens.names[i]), bool(self.special[i]),
                    int(self.counts[i]), bool(self.punctuation[i]),
                ]
                for i in self._numbers
            ],
        }  # fmt: skip


def list_tokens(types: Types, methods: Sequence[str], layers: Sequence[str], texts: int) -> dict[str, Any]:
    """Which tokens received most: for each method and layer rows of their numbers."""
    least = least_count(texts)
    tokens, counts, special = types.tokens, types.counts, types.special
    n = len(counts)
    often = counts >= least
    lists: dict[str, dict[str, list[list[Any]]]] = {method: {} for method in methods}
    special_share: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for m, method in enumerate(methods):
        for k, layer in enumerate(layers):
            sums, lifts = tokens.sums[m, k, :n], tokens.lifts[m, k, :n] / counts
            lone = tokens.plain[m, k, :n] / types.alone
            share = sums / (np.abs(sums).sum() or 1)
            special_share[method][layer] = rounded([share[special].sum()])[0]
            chosen = [i for by in (lone, lifts, share) for i in types.best(often & ~special, by, LISTED)]
            chosen += [i for by in (lone, lifts, share) for i in types.best(often & types.words, by, LISTED)]
            chosen += types.best(special, share, SPECIAL)
            lists[method][layer] = [
                [types.number(i), *rounded([sums[i] / counts[i], share[i], lifts[i], lone[i]])]
                for i in dict.fromkeys(chosen)
            ]
    return {
        "least": least,
        "received": {"fields": ["type", "mean", "share", "lift", "plain"], **lists},
        "special_share": special_share,
    }


def list_splits(
    types: Types, splits: Sequence[Split], sums: GroupSums, methods: Sequence[str], least: int
) -> list[dict[str, Any]]:
    """What receives most in each group, and what more than in all other texts.

    A row is a type, its lift in the group, its lift there less that in all other texts, and its count in the group.
    least: how often it must stand in all texts; in a group, as often as in a corpus of so many texts.
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
    """What receives most in all texts, where all that stands apart does not count: rows of type, lift and count."""
    n = len(types.counts)
    counts, lifts = sums.counts[-1][0, :n], sums.lifts[-1][:, 0, :n]
    words: dict[str, list[list[Any]]] = {}
    for m, method in enumerate(methods):
        lift = np.divide(lifts[m], counts, out=np.full(n, np.nan), where=counts >= least)
        chosen = [i for some in (types.words, ~types.special) for i in types.best(some, lift, TOP)]
        words[method] = [[types.number(i), *rounded([lift[i]]), int(counts[i])] for i in dict.fromkeys(chosen)]
    return words


def is_punctuation(text: str) -> bool:
    """Whether a token has no letter, number, currency or picture in it.

    >>> [is_punctuation(text) for text in (".", "##,", "Ċ", "n't", "$", "👍", "—")]
    [True, True, True, False, False, False, True]
    """
    bare = text.removeprefix("##").strip(BLANKS)
    return all(unicodedata.category(sign)[0] in "PZC" or unicodedata.category(sign) in ("Sk", "Sm") for sign in bare)


def spelled(names: Counter[str]) -> tuple[str, list[str], int]:
    """The most frequent text of a token, some others, and how many there are."""
    first, *others = sorted(names, key=lambda name: (-names[name], name))
    return first, others[:3], len(names)


def list_positions(positions: Positions, methods: Sequence[str], layers: Sequence[str]) -> dict[str, Any]:
    lists: dict[str, Any] = {"places": PLACES, "start": {}, "end": {}}
    for (end, name), (plain, kind) in product(enumerate(("start", "end")), enumerate(("all", "plain"))):
        counts = positions.counts[end, plain]
        many = np.where(counts > 0, counts, np.nan)
        lists[name][kind] = {
            "counts": counts.astype(int).tolist(),
            "uniform": rounded(positions.uniform[end, plain] / many),
            "shares": {
                method: {layer: rounded(positions.sums[end, plain, m, k] / many) for k, layer in enumerate(layers)}
                for m, method in enumerate(methods)
            },
        }
    return lists


def list_agreement(agreement: Agreement, methods: Sequence[str], layers: Sequence[str]) -> list[dict[str, Any]]:
    entries = []
    for (p, (a, b)), (k, layer), plain in product(enumerate(agreement.pairs), enumerate(layers), (0, 1)):
        at = (plain, p, k)
        n = int(agreement.n[at])
        mean = agreement.sums[at] / n if n else np.nan
        variance = max(0.0, agreement.squares[at] - n * mean**2) / (n - 1) if n > 1 else np.nan
        half = 1.959963984540054 * np.sqrt(variance / max(n, 1))
        low, high = wilson(int(agreement.first[at]), n)
        correlation = rounded([mean, mean - half, mean + half])
        first = rounded([agreement.first[at] / n, low, high] if n else [np.nan] * 3)
        entries.append(
            {
                "views": [methods[a], methods[b]],
                "layer": layer,
                "special": not plain,
                "texts": n,
                "few": int(agreement.few[plain]),
                "flat": int(agreement.flat[at]),
                "correlation": dict(zip(("mean", "low", "high"), correlation, strict=True)),
                "first": dict(zip(("share", "low", "high"), first, strict=True)),
                "histogram": agreement.bins[at].astype(int).tolist(),
            }
        )
    return entries


def list_lengths(lengths: Counter[int]) -> dict[str, Any]:
    """Tokens a text, in bins of whole numbers: `counts[i]` is how many texts have from 1 + i·width to (i + 1)·width."""
    longest, many = max(lengths), lengths.total()
    width = -(-longest // BINS)
    counts = [0] * -(-longest // width)
    for n, count in lengths.items():
        counts[(n - 1) // width] += count
    shortest_first = sorted(lengths)
    upto = np.cumsum([lengths[n] for n in shortest_first])
    return {
        "width": width,
        "counts": counts,
        "mean": rounded([sum(n * count for n, count in lengths.items()) / many])[0],
        "median": shortest_first[int((2 * upto >= many).argmax())],
        "shortest": shortest_first[0],
        "longest": longest,
    }


def list_labels(labels: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Any]:
    """labels: by kind and label of a prediction, how many texts have it, and the sum of its probabilities."""
    order = sorted(labels.items(), key=lambda entry: (-entry[1][0], entry[0]))
    return {
        "labels": len(order),
        "texts": int(sum(count for _, (count, _) in order)),
        "top": [
            {"kind": kind, "label": label, "count": int(count), "mean": rounded([total / count])[0]}
            for (kind, label), (count, total) in order[:LABELS]
        ],
    }


def rounded(values: Iterable[float]) -> list[float | None]:
    """Five digits, which is more than a page shows; None for what is no number."""
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in values]
