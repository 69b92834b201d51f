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
from attnflow.corpus.tally import Batch, Floats

SAMPLE = 256
"""How many texts, from the start of the corpus, decide whether the first token is a sink."""
FEWEST = 4
"""Texts with fewer tokens are not used for that decision."""
TIMES = 3.0
"""A sink receives at least this many times the even share, in a typical text."""


def has_sink(paths: Sequence[Path], scores: Scores, folder: Path) -> bool:
    """Return whether the first token acts as a sink in a typical text, under any method."""
    taken: list[Floats] = []
    for table in read_batches(paths, scores, "looking for sinks"):
        batch, _ = scored_texts(table, scores, folder)
        if len(batch.rows):
            long = (batch.sizes >= FEWEST) & ~batch.special[batch.starts]
            taken.append((batch.shares[:, batch.starts] * batch.sizes)[:, long])  # [method, text]
        if sum(own.shape[1] for own in taken) >= SAMPLE:
            break
    every = np.concatenate(taken, 1)[:, :SAMPLE] if taken else np.zeros((0, 0))
    return bool(every.size and (np.median(every, 1) >= TIMES).any())


def excluded(batch: Batch, table: Any, sink: bool) -> Batch:
    """Return the same texts with every token that is left out marked as special. table: their rows."""
    special = batch.special.copy()
    if sink:
        special[batch.starts] = True
    queries = table.column("queries")
    first = np.array([own[0] if own else 0 for own in queries.to_pylist()], np.int64)
    lone = queries.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) == 1
    whole = table.column("parts").is_null().to_numpy(zero_copy_only=False)
    there = lone & whole & (first < batch.sizes)  # texts with exactly one explained position
    special[(batch.starts + first)[there]] = True
    return replace(batch, special=special)
