"""Groups of a corpus, by the model's prediction and by columns of the input: what receives attention in each.

A first pass over predictions and the input counts which values form a split. The sums of groups are computed with all
others, in one more pass. Memory grows with the vocabulary, not with the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.corpus.input_columns import Cells, InputRows
from attnflow.corpus.shards import batches
from attnflow.corpus.tally import Batch, Ints
from attnflow.errors import InputError
from attnflow.texts.sources import Corpus

PREDICTED = "predicted"
"""The split by prediction; splits by columns of the input have the names of their columns, and come after it."""
SPLITS = 6
GROUPS = 8
"""The most splits, and the most groups of a split: the most frequent values."""
MEMBERS = 5
"""A value with fewer texts forms no group."""
VALUES = 1000
"""A column with more values is not a label."""
LONGEST = 60
"""A value with more characters is a text, not a label."""
ROOM = 4096
"""How many tokens the sums grow by at a time, so that they grow rarely."""


@dataclass(frozen=True)
class Split:
    """Groups of texts by one label. texts: how many texts have any value. others: values without a group."""

    name: str
    is_prediction: bool
    values: tuple[str, ...]
    texts: int
    others: int


def label_of(prediction: Mapping[str, Any] | None) -> str | None:
    """Return the label that the model predicts."""
    return str(prediction["top"][0]["label"]) if prediction and prediction["top"] else None


def plan_splits(paths: Sequence[Path], corpus: Corpus | None) -> tuple[list[Split], list[dict[str, str]]]:
    """Return the splits, that by prediction first, and the columns that form none, each with the reason."""
    counts: dict[tuple[bool, str], Counter[str]] = {}
    scored = 0
    with closing(InputRows(corpus)) as rows:
        for table in batches(paths, ["row", "text", "prediction", "error"], "counting labels"):
            cells = rows.take(table.column("row").to_pylist(), table.column("text").to_pylist())
            predictions, errors = (table.column(name).to_pylist() for name in ("prediction", "error"))
            for own, prediction, error in zip(cells, predictions, errors, strict=True):
                if error is not None:
                    continue
                scored += 1
                for key, value in _labels(own, prediction):
                    values = counts.setdefault(key, Counter())
                    if value and (value in values or len(values) <= VALUES):
                        values[value] += 1
    splits: list[Split] = []
    left: list[dict[str, str]] = []
    for (is_prediction, name), values in sorted(counts.items(), key=lambda item: not item[0][0]):
        split, why = split_of(name, is_prediction, values, scored)
        if split is not None and len(splits) == SPLITS:
            split, why = None, f"at most {SPLITS} splits are shown"
        if split is None:
            left.append({"name": name, "why": why})
        else:
            splits.append(split)
    return splits, left


def _labels(cells: Cells, prediction: Mapping[str, Any] | None) -> Iterable[tuple[tuple[bool, str], str]]:
    label = label_of(prediction)
    if label is not None:
        yield (True, PREDICTED), label
    for name, value in cells.items():
        yield (False, name), value


def split_of(name: str, is_prediction: bool, values: Counter[str], texts: int) -> tuple[Split | None, str]:
    """Return the split by a label, or the reason why there is none.

    values: how many texts have each value.
    texts: how many there are.
    """
    if len(values) > VALUES:
        return None, f"it has more than {VALUES:,} values"
    if any(len(value) > LONGEST for value in values) and not is_prediction:
        return None, "its values are texts"
    if len(values) < 2:
        return None, "it has only one value"
    ordered = sorted(values, key=lambda value: (-values[value], value))
    groups = tuple(value for value in ordered[:GROUPS] if values[value] >= MEMBERS)
    if len(groups) < 2:
        return None, f"fewer than two values have {MEMBERS} texts"
    if 2 * sum(values[value] for value in groups) < texts:
        return None, f"its {len(groups)} most frequent values cover less than half of the texts"
    # numbers such as stars or years keep their own order
    if all(value.removeprefix("-").isdecimal() for value in groups):
        groups = tuple(sorted(groups, key=int))
    return Split(name, is_prediction, groups, values.total(), len(values) - len(groups)), ""


def groups_of(splits: Sequence[Split], cells: Sequence[Cells], predictions: Sequence[Any]) -> Ints:
    """Return the group of each text in each split, [split, text]; -1 for none."""
    numbers = [{value: g for g, value in enumerate(split.values)} for split in splits]
    rows = [
        [own.get((label_of(prediction) if split.is_prediction else cell.get(split.name)) or "", -1)
         for cell, prediction in zip(cells, predictions, strict=True)]
        for split, own in zip(splits, numbers, strict=True)
    ]  # fmt: skip
    return np.array(rows, np.int64).reshape(len(splits), len(cells))


class GroupSums:
    """What tokens that are not special received in each group.

    counts: [group, token].
    lifts: sums of lifts [method, group, token].
    texts: [group].

    Each is a list with one array per split, and last one for the single group of all texts.
    """

    def __init__(self, splits: Sequence[Split], methods: int) -> None:
        self.methods = methods
        sizes = [*(len(split.values) for split in splits), 1]
        self.texts = [np.zeros(size, np.int64) for size in sizes]
        self.counts = [np.zeros((size, 0), np.int64) for size in sizes]
        self.lifts = [np.zeros((methods, size, 0)) for size in sizes]

    def add(self, batch: Batch, slots: Ints, groups: Ints) -> None:
        """Add a batch. slots: the slot of each token. groups: [split, text]."""
        plain = np.flatnonzero(~batch.special)
        slots, text = slots[plain], batch.text[plain]
        lifts = batch.lifts[:, plain]
        size = max(-(-(int(slots.max()) + 1) // ROOM) * ROOM if len(slots) else 0, self.counts[0].shape[-1])
        for s, own in enumerate([*groups, np.zeros(len(batch.sizes), np.int64)]):
            self.texts[s] += np.bincount(own[own >= 0], minlength=len(self.texts[s]))
            self.counts[s], self.lifts[s] = _widened(self.counts[s], size), _widened(self.lifts[s], size)
            for g in np.unique(own[own >= 0]).tolist():
                members = own[text] == g
                here = slots[members]
                self.counts[s][g] += np.bincount(here, minlength=size)
                for m in range(self.methods):
                    self.lifts[s][m, g] += np.bincount(here, lifts[m, members], size)


def _widened(array: Any, size: int) -> Any:
    more = size - array.shape[-1]
    return array if more <= 0 else np.concatenate([array, np.zeros((*array.shape[:-1], more), array.dtype)], -1)


def read_splits(
    paths: Sequence[Path], corpus: Corpus | None, missing: str | None
) -> tuple[list[Split], list[dict[str, str]], Corpus | None, str | None]:
    """Return `plan_splits`; by predictions alone if the input has changed since the job."""
    try:
        return *plan_splits(paths, corpus), corpus, missing
    except InputError:
        if corpus is None:
            raise
        return *plan_splits(paths, None), None, "The columns of the input were not read: it has changed since the job."
