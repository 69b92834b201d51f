"""What was summed over a corpus, as the lists and numbers of its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from attnflow.corpus.tally import BINS, PLACES, SPELLINGS, Agreement, Floats, Ints, Positions, Tokens
from attnflow.evaluate.statistics import wilson

LISTED = 100
"""Tokens in a list: so many by lift, with special tokens and without, and so many by share, for each method and layer."""
SPECIAL = 20
LABELS = 20


def list_tokens(tokens: Tokens, methods: Sequence[str], layers: Sequence[str], texts: int) -> dict[str, Any]:
    """Which tokens received most: types, and for each method and layer rows of their numbers."""
    least = max(2, min(10, texts // 20), texts // 1000)
    n = len(tokens.ids)
    counts, special = tokens.counts[:n], 2 * tokens.special[:n] > tokens.counts[:n]
    alone = np.where(counts > tokens.special[:n], counts - tokens.special[:n], np.nan)
    plain = np.flatnonzero((counts >= least) & ~special)
    ids = np.array(tokens.ids)
    lists: dict[str, dict[str, list[list[Any]]]] = {method: {} for method in methods}
    special_share: dict[str, dict[str, Any]] = {method: {} for method in methods}
    types: dict[int, int] = {}

    def best(some: Ints, by: Floats, most: int) -> list[int]:
        """The first by these numbers; ties by id, so that neither batches nor the order of texts choose."""
        order: list[int] = some[np.lexsort((ids[some], -by[some]))][:most].tolist()
        return order

    for m, method in enumerate(methods):
        for k, layer in enumerate(layers):
            sums, lifts = tokens.sums[m, k, :n], tokens.lifts[m, k, :n] / counts
            lone = tokens.plain[m, k, :n] / alone
            share = sums / (np.abs(sums).sum() or 1)
            special_share[method][layer] = rounded([share[special].sum()])[0]
            chosen = [i for by in (lone, lifts, share) for i in best(plain, by, LISTED)]
            chosen += best(np.flatnonzero(special), share, SPECIAL)
            lists[method][layer] = [
                [types.setdefault(i, len(types)), *rounded([sums[i] / counts[i], share[i], lifts[i], lone[i]])]
                for i in dict.fromkeys(chosen)
            ]
    return {
        "least": least,
        "types": {
            "seen": n,
            "special": int(special.sum()),
            "counted": len(plain),
            "fields": ["id", "text", "others", "spellings", "special", "count"],
            "spellings": SPELLINGS,
            "rows": [
                [None if tokens.words else tokens.ids[i], *spelled(tokens.names[i]), bool(special[i]), int(counts[i])]
                for i in types
            ],
        },
        "received": {"fields": ["type", "mean", "share", "lift", "plain"], **lists},
        "special_share": special_share,
    }


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
