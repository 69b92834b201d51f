"""The sums over a corpus as the lists and numbers of its page."""

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
"""Tokens per list, for each method and layer: by lift, with and without special tokens, and by share."""
SPECIAL = 20
TOP = 20
"""Tokens on the first screen, with and without punctuation."""
GROUPED = 15
"""The same for a group: by lift and by the difference from all other texts, with and without punctuation."""
LABELS = 20
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
        self.alone = np.where(self.counts > tokens.special[:n], self.counts - tokens.special[:n], np.nan)
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

    def rows(self, least: int) -> dict[str, Any]:
        """Return all numbered tokens, and how many there are."""
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
    """Return the tokens that received most: rows of token numbers for each method and layer."""
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


def spelled(names: Counter[str]) -> tuple[str, list[str], int]:
    """Return the most frequent text of a token, some others, and how many there are."""
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
    """Return a histogram of tokens per text: `counts[i]` texts have from 1 + i·width to (i + 1)·width tokens."""
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
    """Return the predicted labels. labels: for each kind and label, the number of texts and the sum of probabilities."""
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
    """Round to five digits, more than a page shows; None for what is not finite."""
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in values]
