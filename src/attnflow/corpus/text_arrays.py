"""The texts of a shard as arrays: what a model needs of them, and what comes back. Small, so that both travel quickly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.capture.inputs import Encoded
from attnflow.capture.passes import Prediction
from attnflow.corpus.schema import Explained, listed, nested

if TYPE_CHECKING:
    import pyarrow

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Sheet:
    """The texts of a shard that can run; texts that cannot are the clerk's business, and have no place here.

    lengths: [text], tokens of each. tensors: each [token], those of all texts one after another. queries: positions that
    are explained, of all texts one after another; query_counts: [text], how many of them are whose. size: texts of the
    shard in all.
    """

    lengths: Ints
    tensors: Mapping[str, Ints]
    queries: Ints
    query_counts: Ints
    size: int


@dataclass(frozen=True, eq=False)
class Predictions:
    """The likeliest answers, [text, answer], the likeliest first; answered: [text]. names: of the numbers that occur.

    about: what the first is called where the scores are about it.
    """

    kind: str
    numbers: Ints
    chances: NDArray[np.float64]
    answered: NDArray[np.bool_]
    names: Mapping[int, str]
    about: Mapping[int, str] | None = None

    def of(self, text: int) -> Prediction | None:
        if not self.answered[text]:
            return None
        pairs = zip(self.numbers[text].tolist(), self.chances[text].tolist(), strict=True)
        return Prediction(self.kind, tuple((self.names[i], p) for i, p in pairs))


@dataclass(frozen=True, eq=False)
class Scored:
    """What came out for the texts of a sheet.

    places: [text], the positions that answer, where these are explained; None for those of the sheet.
    values: for each column the scores of all texts one after another, [query, input] of each; empty for a text that failed.
    failures: rows of texts that failed, by their place on the sheet. provenance: of each text, a place in records.
    """

    values: Mapping[str, Floats]
    predictions: Predictions | None
    records: Sequence[str]
    provenance: Ints
    places: Ints | None = None
    failures: Mapping[int, Explained] = field(default_factory=dict)


def sheet_of(encoded: Sequence[Encoded], queries: Sequence[Sequence[int]], size: int) -> Sheet:
    """queries: the positions of each text that are explained."""
    lengths = np.array([len(one.tokens) for one in encoded], np.int64)
    tensors = {
        name: np.concatenate([one.tensors[name].numpy()[0] for one in encoded]).astype(np.int64)
        for name in (encoded[0].tensors if encoded else ())
        if name != "attention_mask"  # which says no more than the lengths do
    }
    counts = np.array([len(places) for places in queries], np.int64)
    return Sheet(lengths, tensors, np.array([i for places in queries for i in places], np.int64), counts, size)


def rows_of(encoded: Sequence[Encoded], scored: Scored) -> list[Explained]:
    """The rows of the texts of a sheet, whose labels are those of `encoded`; `columns_of` has their numbers."""
    rows = []
    for number, one in enumerate(encoded):
        if number in scored.failures:
            rows.append(scored.failures[number])
            continue
        row = Explained(
            one.tokens, None, one.special, one.word_ids, one.word_texts, None, one.cut is not None, None,
            None if scored.predictions is None else scored.predictions.of(number),
            provenance=scored.records[scored.provenance[number]], **_about(scored.predictions, number),
        )  # fmt: skip
        rows.append(row)
    return rows


def _about(predictions: Predictions | None, text: int) -> dict[str, Any]:
    """The answer that the scores of a text are about, where they are about one."""
    if predictions is None or predictions.about is None:
        return {}
    chance = float(predictions.chances[text, 0])
    known = predictions.kind != "score" and chance > 0
    return {
        "answer": predictions.about[int(predictions.numbers[text, 0])],
        "answer_log_probability": math.log(chance) if known else None,
    }


def columns_of(sheet: Sheet, scored: Scored, places: Sequence[int]) -> dict[str, pyarrow.ListArray]:
    """Columns of a whole shard: scores, and the numbers of tokens and queries. places: of the texts in the shard."""
    ready = np.ones(len(sheet.lengths), bool)
    ready[list(scored.failures)] = False
    missing = np.ones(sheet.size, bool)
    missing[list(places)] = ~ready

    def counts_of(counts: Ints) -> Ints:
        """Of all texts of the shard."""
        every = np.zeros(sheet.size, np.int64)
        every[list(places)] = np.where(ready, counts, 0)
        return every

    def numbers(values: Ints, counts: Ints) -> pyarrow.ListArray:
        own = values[np.repeat(ready, counts)].astype(np.int32)
        return listed(own, counts_of(counts), missing)

    widths = np.repeat(sheet.lengths, np.where(ready, sheet.query_counts, 0))
    rows = counts_of(sheet.query_counts)
    queries = (
        (sheet.queries, sheet.query_counts) if scored.places is None else (scored.places, np.ones_like(scored.places))
    )
    return {
        "token_ids": numbers(sheet.tensors.get("input_ids", np.empty(0, np.int64)), sheet.lengths),
        "queries": numbers(*queries),
        **{name: nested(x, widths, rows, missing) for name, x in scored.values.items()},
    }
