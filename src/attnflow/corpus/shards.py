"""The shards of a corpus as they are read: a batch of rows at a time, and the scores of their texts as arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.tally import Batch, Floats, Ints
from attnflow.errors import InputError
from attnflow.files import arrow
from attnflow.jobs.progress import track
from attnflow.method_table import TEXT_METHODS

COLUMNS = (
    "row", "id", "text", "pair", "tokens", "token_ids", "special", "word_ids", "parts", "truncated", "queries",
    "prediction", "error", "message", "provenance",
)  # fmt: skip
"""The columns that are read beside those of scores."""

BATCH = 1024
"""Rows that are read at a time, and fewer where they would take more than `BYTES` in memory."""
BYTES = 32 << 20


@dataclass(frozen=True)
class Scores:
    """The columns of scores of a corpus.

    methods, layers: those there are, in the order of the paper; layers counted from 1. names: of columns [method][layer].
    divided: columns whose rows are divided by their sums. signed: of each method, whether its scores are differences.
    """

    methods: tuple[str, ...]
    layers: list[int]
    names: list[list[str]]
    divided: frozenset[str]
    signed: NDArray[np.bool_]

    def at(self, layer: int) -> Scores:
        """Those of one layer, by its place among `layers`."""
        return replace(self, layers=[self.layers[layer]], names=[[own[layer]] for own in self.names])


def read_scores(path: Path, receptive_field: str | None) -> Scores:
    """Rows of raw attention and rollout sum to 1 already, unless rollout is the ratio to something else, and rows of flow
    are divided by their sums; differences may be negative, and are no shares of anything."""
    try:
        names = arrow()[1].read_schema(path).names
    except (OSError, ValueError) as e:
        raise _damaged(path, e) from None
    matches = [re.fullmatch(r"(raw|rollout|flow)_L([0-9]+)", name) for name in names]
    columns = {(match[1], int(match[2])) for match in matches if match}
    methods = tuple(method for method in TEXT_METHODS if any(method == one for one, _ in columns))
    layers = [n for n in sorted({n for _, n in columns}) if all((method, n) in columns for method in methods)]
    if not layers:
        raise InputError(
            f"{str(path)!r} has no column of scores: expected raw_L1, rollout_L1, flow_L1 or others of them"
        )
    divided = {"ratio": ("rollout", "flow"), "difference": ()}.get(str(receptive_field), ("flow",))
    return Scores(
        methods,
        layers,
        [[f"{method}_L{n}" for n in layers] for method in methods],
        frozenset(f"{method}_L{n}" for method in divided for n in layers),
        np.array([method != "raw" and receptive_field == "difference" for method in methods]),
    )


def batches(paths: Sequence[Path], columns: list[str], doing: str = "reading the shards") -> Iterator[Any]:
    """Rows of these columns, in the order of the corpus. doing: what the bar in a terminal says."""
    _, parquet = arrow()
    for path in track(paths, doing):
        try:
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:
                groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
                wide = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
                most = max(1, min(BATCH, BYTES // max(1, wide)))
                missing = [name for name in columns if name not in file.schema_arrow.names]
                if missing:
                    raise ValueError(f"it has no column {missing[0]!r}")
                yield from file.iter_batches(most, columns=columns)
        except InputError:
            raise
        except (OSError, ValueError) as e:
            raise _damaged(path, e) from None


def _damaged(path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return InputError(f"{str(path)!r} cannot be read ({reason}): delete it, and resume the job to make it again")


def scored_texts(table: Any, scores: Scores, folder: Path) -> tuple[Batch, Ints]:
    """The texts that have scores, and the rows of those whose scores are no numbers."""
    sizes = _lengths(table.column("tokens"))
    rows = np.flatnonzero(_numpy(table.column("error").is_null()) & (sizes > 0))
    batch = _flat(table, rows, scores, folder)
    if not len(rows):
        return batch, rows
    finite = np.isfinite(np.add.reduceat(batch.shares.sum((0, 1)), batch.starts))
    return (batch if finite.all() else _flat(table, rows[finite], scores, folder)), rows[~finite]


def _flat(table: Any, rows: Ints, scores: Scores, folder: Path) -> Batch:
    scored = table.take(rows)
    sizes = _lengths(scored.column("tokens"))
    column = scored.column("token_ids")
    ids = None if column.null_count else _numpy(column.flatten()).astype(np.int64)
    special = _numpy(scored.column("special").flatten())
    shares = np.empty((len(scores.methods), len(scores.layers), int(sizes.sum())))
    right = len(special) == shares.shape[-1] and (ids is None or len(ids) == len(special))
    for m, k in np.ndindex(shares.shape[:2]):
        name = scores.names[m][k]
        values = _shares(scored.column(name), sizes, name in scores.divided) if right else None
        if values is None:
            numbers = scored.column("row")
            raise InputError(
                f"rows {numbers[0]} to {numbers[len(rows) - 1]} of {str(folder)!r} do not have one score for each token: "
                "expected shards as a corpus job writes them"
            )
        shares[m, k] = values
    return Batch(rows, sizes, ids, special.astype(bool), shares, scores.signed)


def _numpy(column: Any) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _lengths(column: Any) -> Ints:
    return _numpy(column.value_lengths().fill_null(0)).astype(np.int64)


def _shares(column: Any, sizes: Ints, divide: bool) -> Floats | None:
    """The mean over queries of [text][query][token], flat; None where its sizes are others."""
    queries, rows = _lengths(column), column.flatten()
    wide = _lengths(rows)
    if (queries < 1).any() or not np.array_equal(wide, np.repeat(sizes, queries)):
        return None
    values: Floats = _numpy(rows.flatten()).astype(np.float64)
    starts = np.cumsum(wide) - wide
    if divide and len(values):
        sums = np.add.reduceat(values, starts)
        values /= np.repeat(np.where(sums == 0, 1, sums), wide)
    if (queries == 1).all():
        return values
    first = np.repeat(np.cumsum(sizes) - sizes, queries)  # where the text of each row of scores begins
    places = np.repeat(first - starts, wide) + np.arange(len(values))
    mean: Floats = np.bincount(places, values, int(sizes.sum())) / np.repeat(queries, sizes)
    return mean
