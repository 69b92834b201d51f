"""Tokens that are left out when words are compared.

These are special tokens, a first token that is an attention sink, and the explained position itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.corpus.shards import Scores, read_batches, scored_texts
from attnflow.corpus.tally import Batch, Floats, Ints

SAMPLE = 256
"""How many texts, from the start of the corpus, decide whether the first token is a sink."""
FEWEST = 4
"""Texts with fewer tokens are not used for that decision."""
TIMES = 3.0
"""A sink receives at least this many times the even share, in a typical text."""


def has_sink(paths: Sequence[Path], scores: Scores, folder: Path) -> bool:
    """Return whether the first token acts as a sink in a typical text, under any method. scores: those of one layer."""
    taken: list[Floats] = []
    for table in read_batches(paths, scores, "looking for sinks"):
        batch, _ = scored_texts(table, scores, folder)
        if len(batch.rows):
            long = (batch.sizes >= FEWEST) & ~batch.special[batch.starts]
            taken.append((batch.shares[:, 0, batch.starts] * batch.sizes)[:, long])  # [method, text]
        if sum(own.shape[1] for own in taken) >= SAMPLE:
            break
    every = np.concatenate(taken, 1)[:, :SAMPLE] if taken else np.zeros((0, 0))
    return bool(every.size and (np.median(every, 1) >= TIMES).any())


def aside(batch: Batch, table: Any, sink: bool) -> Batch:
    """Return the same texts with every token that is left out marked as special. table: their rows."""
    special = batch.special.copy()
    if sink:
        special[batch.starts] = True
    at, there = _queries(batch, table)
    special[at[there]] = True
    return replace(batch, special=special)


def _queries(batch: Batch, table: Any) -> tuple[Ints, Any]:
    """Return the explained position of each text, and which texts have exactly one."""
    queries = table.column("queries")
    first = np.array([own[0] if own else 0 for own in queries.to_pylist()], np.int64)
    lone = queries.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) == 1
    whole = table.column("parts").is_null().to_numpy(zero_copy_only=False)
    return batch.starts + np.clip(first, 0, batch.sizes - 1), lone & whole & (first < batch.sizes)


class ApartSums:
    """The share of all scores that sinks and explained positions receive, [first or query, method].

    texts: how many texts have an explained position that is not special.
    """

    def __init__(self, methods: int) -> None:
        self.sums = np.zeros((2, methods))
        self.texts = np.zeros(2, np.int64)

    def add(self, batch: Batch, table: Any, sink: bool, layer: int) -> None:
        at, there = _queries(batch, table)
        here = there & ~batch.special[at] & ~(sink & (at == batch.starts))
        first = batch.starts[~batch.special[batch.starts]] if sink else batch.starts[:0]
        for k, places in enumerate((first, at[here])):
            self.sums[k] += batch.shares[:, layer, places].sum(-1)
            self.texts[k] += len(places)


def list_apart(sums: ApartSums, methods: Sequence[str], texts: int) -> dict[str, dict[str, float] | None]:
    """Return the mean share per text of each, by method; None if fewer than half of the texts have one."""
    names = ("first", "query")
    return {
        name: dict(zip(methods, (own / count).round(5).tolist(), strict=True)) if 2 * count >= texts and count else None
        for name, own, count in zip(names, sums.sums, sums.texts, strict=True)
    }
