"""The texts of a shard as arrays: the model's input and its results."""

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
    """The texts of a shard that can be explained. Texts that cannot are handled by `Clerk`.

    lengths: [text], the tokens of each.
    tensors: each [token], for all texts one after another.
    queries: the explained positions of all texts, one after another.
    query_counts: [text], how many queries each text has.
    size: the number of texts in the shard.
    """

    lengths: Ints
    tensors: Mapping[str, Ints]
    queries: Ints
    query_counts: Ints
    size: int


@dataclass(frozen=True, eq=False)
class Predictions:
    """The likeliest answers, [text, answer], in descending order.

    answered: [text], whether there is an answer.
    names: the name of each number that occurs.
    about: the name of the first answer, if the scores are about it.
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
    """The results for the texts of a sheet.

    places: [text], the positions that answer, if these are explained; None for the queries of the sheet.
    values: for each column the scores of all texts one after another, [query, input] each; empty for a failed text.
    failures: rows of failed texts, by their place on the sheet.
    provenance: for each text, a place in records.
    """

    values: Mapping[str, Floats]
    predictions: Predictions | None
    records: Sequence[str]
    provenance: Ints
    places: Ints | None = None
    failures: Mapping[int, Explained] = field(default_factory=dict)


def sheet_of(encoded: Sequence[Encoded], queries: Sequence[Sequence[int]], size: int) -> Sheet:
    """Make a sheet. queries: the explained positions of each text."""
    lengths = np.array([len(one.tokens) for one in encoded], np.int64)
    tensors = {
        name: np.concatenate([one.tensors[name].numpy()[0] for one in encoded]).astype(np.int64)
        for name in (encoded[0].tensors if encoded else ())
        if name != "attention_mask"  # the lengths say the same
    }
    counts = np.array([len(places) for places in queries], np.int64)
    return Sheet(lengths, tensors, np.array([i for places in queries for i in places], np.int64), counts, size)


def rows_of(encoded: Sequence[Encoded], scored: Scored) -> list[Explained]:
    """Return the rows of the texts of a sheet, with the labels of `encoded`; `columns_of` has their numbers."""
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
    """Return the answer that the scores of a text are about, if any."""
    if predictions is None or predictions.about is None:
        return {}
    chance = float(predictions.chances[text, 0])
    known = predictions.kind != "score" and chance > 0
    return {
        "answer": predictions.about[int(predictions.numbers[text, 0])],
        "answer_log_probability": math.log(chance) if known else None,
    }


def columns_of(sheet: Sheet, scored: Scored, places: Sequence[int]) -> dict[str, pyarrow.ListArray]:
    """Return columns of a whole shard: scores, token numbers and queries. places: of the texts in the shard."""
    ready = np.ones(len(sheet.lengths), bool)
    ready[list(scored.failures)] = False
    missing = np.ones(sheet.size, bool)
    missing[list(places)] = ~ready

    def counts_of(counts: Ints) -> Ints:
        """Expand counts to all texts of the shard."""
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
