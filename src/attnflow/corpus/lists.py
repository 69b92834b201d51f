"""What was summed over a corpus, as the lists and numbers of its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnflow.corpus.tally import BINS, PLACES, SPELLINGS, Agreement, Floats, Ints, Positions, Tokens
from attnflow.evaluate.statistics import wilson

LISTED = 100
"""Tokens in a list: so many by lift, with special tokens and without, and so many by share, for each view and layer."""
SPECIAL = 20
LABELS = 20


def told_tokens(tokens: Tokens, views: Sequence[str], layers: Sequence[str], texts: int) -> dict[str, Any]:
    """Which tokens received most: types, and for each view and layer rows of their numbers."""
    least = max(2, min(10, texts // 20), texts // 1000)
    n = len(tokens.ids)
    counts, marked = tokens.counts[:n], 2 * tokens.special[:n] > tokens.counts[:n]
    alone = np.where(counts > tokens.special[:n], counts - tokens.special[:n], np.nan)
    plain = np.flatnonzero((counts >= least) & ~marked)
    ids = np.array(tokens.ids)
    lists: dict[str, dict[str, list[list[Any]]]] = {view: {} for view in views}
    apart: dict[str, dict[str, Any]] = {view: {} for view in views}
    listed: dict[int, int] = {}
    for v, view in enumerate(views):
        for k, layer in enumerate(layers):
            sums, lifts = tokens.sums[v, k, :n], tokens.lifts[v, k, :n] / counts
            lone = tokens.plain[v, k, :n] / alone
            share = sums / (np.abs(sums).sum() or 1)
            apart[view][layer] = numbers([share[marked].sum()])[0]

            # ties by id, so that neither batches nor the order of texts choose
            def best(some: Ints, by: Floats, most: int) -> list[int]:
                return some[np.lexsort((ids[some], -by[some]))][:most].tolist()  # type: ignore[no-any-return]

            chosen = [*best(plain, lone, LISTED), *best(plain, lifts, LISTED), *best(plain, share, LISTED)]
            chosen += best(np.flatnonzero(marked), share, SPECIAL)
            lists[view][layer] = [
                [listed.setdefault(i, len(listed)), *numbers([sums[i] / counts[i], share[i], lifts[i], lone[i]])]
                for i in dict.fromkeys(chosen)
            ]
    return {
        "least": least,
        "types": {
            "seen": n,
            "special": int(marked.sum()),
            "counted": len(plain),
            "fields": ["id", "text", "others", "spellings", "special", "count"],
            "spellings": SPELLINGS,
            "rows": [
                [
                    None if tokens.words else tokens.ids[i], *spelled(tokens.names[i]), bool(marked[i]), int(counts[i]),
                ]
                for i in listed
            ],
        },
        "received": {"fields": ["type", "mean", "share", "lift", "plain"], **lists},
        "special_share": apart,
    }  # fmt: skip


def spelled(names: Counter[str]) -> tuple[str, list[str], int]:
    """The most frequent text of a token, some others, and how many there are."""
    first, *others = sorted(names, key=lambda name: (-names[name], name))
    return first, others[:3], len(names)


def told_positions(positions: Positions, views: Sequence[str], layers: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"places": PLACES}
    for end, name in enumerate(("start", "end")):
        found[name] = {}
        for plain, kind in enumerate(("all", "plain")):
            counts = positions.counts[end, plain]
            many = np.where(counts > 0, counts, np.nan)
            found[name][kind] = {
                "counts": counts.astype(int).tolist(),
                "uniform": numbers(positions.uniform[end, plain] / many),
                "shares": {
                    view: {
                        layer: numbers(positions.sums[end, plain, v, k] / many) for k, layer in enumerate(layers)
                    }
                    for v, view in enumerate(views)
                },
            }  # fmt: skip
    return found


def told_agreement(agreement: Agreement, views: Sequence[str], layers: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for p, (a, b) in enumerate(agreement.pairs):
        for k, layer in enumerate(layers):
            for plain in (0, 1):
                at = (plain, p, k)
                n = int(agreement.n[at])
                mean = agreement.sums[at] / n if n else np.nan
                variance = max(0.0, agreement.squares[at] - n * mean**2) / (n - 1) if n > 1 else np.nan
                half = 1.959963984540054 * np.sqrt(variance / max(n, 1))
                low, high = wilson(int(agreement.first[at]), n)
                correlation = numbers([mean, mean - half, mean + half])
                first = numbers([agreement.first[at] / n, low, high] if n else [np.nan] * 3)
                found.append(
                    {
                        "views": [views[a], views[b]],
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
    return found


def told_lengths(lengths: Counter[int]) -> dict[str, Any]:
    """Tokens a text, in bins of whole numbers: `counts[i]` is how many texts have from 1 + i·width to (i + 1)·width."""
    longest, many = max(lengths), sum(lengths.values())
    width = -(-longest // BINS)
    counts = [0] * -(-longest // width)
    for n, count in lengths.items():
        counts[(n - 1) // width] += count
    seen, median = 0, 0
    for n in sorted(lengths):
        seen += lengths[n]
        if 2 * seen >= many:
            median = n
            break
    return {
        "width": width,
        "counts": counts,
        "mean": numbers([sum(n * count for n, count in lengths.items()) / many])[0],
        "median": median,
        "shortest": min(lengths),
        "longest": longest,
    }


def told_labels(labels: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Any]:
    order = sorted(labels, key=lambda name: (-labels[name][0], name))
    return {
        "labels": len(order),
        "texts": int(sum(count for count, _ in labels.values())),
        "top": [
            {
                "kind": kind,
                "label": label,
                "count": int(labels[kind, label][0]),
                "mean": numbers([labels[kind, label][1] / labels[kind, label][0]])[0],
            }
            for kind, label in order[:LABELS]
        ],
    }


def numbers(values: Iterable[float]) -> list[Any]:
    """Five digits, which is more than a page shows; None for what is no number."""
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in values]
