"""Reading the shards of a corpus: batches of rows, and the scores of their texts as arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.tally import Batch, Floats, Ints
from attnflow.errors import InputError
from attnflow.files import arrow
from attnflow.jobs.progress import track
from attnflow.method_table import LAYERED, SIGNED, TEXT_METHODS, is_about_answer
from attnflow.source_methods import METHODS

if TYPE_CHECKING:
    import pyarrow

COLUMNS = (
    "row", "id", "text", "tokens", "token_ids", "special", "word_ids", "parts", "truncated", "queries", "prediction",
    "error", "message", "provenance",
)  # fmt: skip
"""The columns that are read in addition to the scores."""

EVERY_METHOD = (*TEXT_METHODS, *(name for name in METHODS if name not in TEXT_METHODS))
SHARES = ("answer_inputs", "answer_rows", "fading", "combined")
"""Methods without layers whose rows already are shares."""
ALL_LAYERS = "all layers"
LONGEST_UNIT = 160
"""The most characters of a sentence or paragraph that a report shows."""

PLACES = 64
"""Sentences or paragraphs of a prompt that are counted separately; later ones count together."""
BATCH = 1024
"""How many rows are read at a time; fewer if they would take more than `BYTES` of memory."""
BYTES = 32 << 20


@dataclass(frozen=True)
class Scores:
    """The score columns of a corpus.

    methods, layers: those that occur, in the order of their table; layers count from 1, and are 0 if no method has
        layers.
    names: column names [method][layer]; a method without layers repeats its column.
    divided: columns whose rows are divided by the sum of their absolute values.
    signed: for each method, whether its scores may be negative.
    unit: what the scores cover, if not tokens: "word", "sentence" or "paragraph" of a prompt.
    """

    methods: tuple[str, ...]
    layers: list[int]
    names: list[list[str]]
    divided: frozenset[str]
    signed: NDArray[np.bool_]
    unit: str | None = None

    def at(self, layer: int) -> Scores:
        """Return the scores of one layer, given its place in `layers`."""
        return replace(self, layers=[self.layers[layer]], names=[[own[layer]] for own in self.names])

    @property
    def labels(self) -> list[str]:
        """The names of the layers."""
        return [f"L{number}" if number else ALL_LAYERS for number in self.layers]

    @property
    def lone(self) -> list[str]:
        """The methods without layers."""
        return [method for method in self.methods if method not in LAYERED]

    @property
    def are_placed(self) -> bool:
        """Whether units are identified by place, because no two prompts share a sentence."""
        return self.unit in ("sentence", "paragraph")


def read_scores(path: Path, settings: Mapping[str, Any]) -> Scores:
    """Find the score columns of a shard.

    Rows of raw attention and rollout already sum to 1, unless the edges are not attention. Rows of flow and importance
    are divided by their sums.
    settings: of the job.
    """
    edges = settings.get("edges")
    try:
        names = arrow()[1].read_schema(path).names
    except (OSError, ValueError) as e:
        raise _damaged(path, e) from None
    matches = [re.fullmatch(rf"({'|'.join(LAYERED)})_L([0-9]+)", name) for name in names]
    columns = {(match[1], int(match[2])) for match in matches if match}
    layered = [method for method in LAYERED if any(method == one for one, _ in columns)]
    methods = tuple(
        method for method in EVERY_METHOD if method in layered or (method in names and method not in LAYERED)
    )
    layers = [n for n in sorted({n for _, n in columns}) if all((method, n) in columns for method in layered)]
    if not methods or (layered and not layers):
        raise InputError(f"{str(path)!r} has no score columns: expected raw_L1, rollout_L1, flow_L1 or similar")
    layers = layers or [0]
    answers = bool(settings.get("answers"))
    divided = {
        method
        for method in methods
        if answers or (method not in SHARES if method not in LAYERED else method == "flow" or edges is not None)
    }
    columns_of = [[f"{method}_L{n}" if method in LAYERED else method for n in layers] for method in methods]
    unit = settings.get("unit") if answers else None
    return Scores(
        methods,
        layers,
        columns_of,
        frozenset(name for method, own in zip(methods, columns_of, strict=True) if method in divided for name in own),
        np.array([method in SIGNED for method in methods]),
        None if unit == "token" else unit,
    )


def answer_methods(scores: Scores, settings: Mapping[str, Any]) -> list[str]:
    """Return the methods that say what an answer rests on, rather than where the model looks."""
    about = is_about_answer(settings.get("edges"))
    return [method for method in scores.methods if method not in LAYERED or about]


def read_batches(paths: Sequence[Path], scores: Scores, doing: str = "reading the shards") -> Iterator[Any]:
    """Yield rows with everything a report needs, with units in place of tokens if the scores are over units."""
    more = [] if scores.unit is None else ["units"]
    for table in batches(paths, list(dict.fromkeys([*COLUMNS, *chain.from_iterable(scores.names), *more])), doing):
        yield table if scores.unit is None else _over_units(table)


def _over_units(table: Any) -> Any:
    """Return the same rows with units in place of tokens; no unit is special."""
    pa, _ = arrow()
    units = table.column("units").to_pylist()
    count = table.num_rows
    columns = {
        "tokens": pa.array([own and [text[:LONGEST_UNIT] for text in own] for own in units], pa.list_(pa.string())),
        "special": pa.array([own and [False] * len(own) for own in units], pa.list_(pa.bool_())),
        "token_ids": pa.nulls(count, pa.list_(pa.int32())),
        "word_ids": pa.nulls(count, pa.list_(pa.int32())),
    }
    names = table.schema.names
    return pa.record_batch([columns.get(name, table.column(name)) for name in names], names=names)


def type_names(table: Any, scores: Scores) -> pyarrow.Array:
    """Return the type of each token, as Arrow: its text, or its place for sentences and paragraphs."""
    if not scores.are_placed:
        return table.column("tokens").flatten()
    pa, _ = arrow()
    sizes = _lengths(table.column("tokens"))
    places = np.minimum(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes), PLACES)
    labels = [f"{scores.unit} {place + 1}" for place in range(PLACES)] + [f"{scores.unit} {PLACES + 1} or later"]
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(labels)).dictionary_decode()


def batches(paths: Sequence[Path], columns: list[str], doing: str = "reading the shards") -> Iterator[Any]:
    """Yield rows of these columns, in the order of the corpus. doing: the label of the progress bar."""
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
    return InputError(f"{str(path)!r} cannot be read ({reason}): delete it, then resume the job to write it again")


def scored_texts(table: Any, scores: Scores, folder: Path) -> tuple[Batch, Ints]:
    """Return the texts that have scores, and the rows whose scores are not finite. scores: of one layer."""
    sizes = _lengths(table.column("tokens"))
    rows = np.flatnonzero(_numpy(table.column("error").is_null()) & (sizes > 0))
    batch = _flat(table, rows, scores, folder)
    if not len(rows):
        return batch, rows
    finite = np.isfinite(np.add.reduceat(batch.shares.sum(0), batch.starts))
    return (batch if finite.all() else _flat(table, rows[finite], scores, folder)), rows[~finite]


def _flat(table: Any, rows: Ints, scores: Scores, folder: Path) -> Batch:
    scored = table.take(rows)
    sizes = _lengths(scored.column("tokens"))
    column = scored.column("token_ids")
    ids = None if column.null_count else _numpy(column.flatten()).astype(np.int64)
    special = _numpy(scored.column("special").flatten())
    shares = np.empty((len(scores.methods), int(sizes.sum())))
    right = len(special) == shares.shape[-1] and (ids is None or len(ids) == len(special))
    for m, (name,) in enumerate(scores.names):
        values = _shares(scored.column(name), sizes, name in scores.divided) if right else None
        if values is None:
            numbers = scored.column("row")
            raise InputError(
                f"rows {numbers[0]} to {numbers[len(rows) - 1]} of {str(folder)!r} do not have one score per token: "
                "expected shards written by a corpus job"
            )
        shares[m] = values
    return Batch(rows, sizes, ids, special.astype(bool), shares, scores.signed)


def _numpy(column: Any) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _lengths(column: Any) -> Ints:
    return _numpy(column.value_lengths().fill_null(0)).astype(np.int64)


def _shares(column: Any, sizes: Ints, divide: bool) -> Floats | None:
    """Return the mean over queries of [text][query][token], flat; None if the sizes do not match."""
    queries, rows = _lengths(column), column.flatten()
    wide = _lengths(rows)
    if (queries < 1).any() or not np.array_equal(wide, np.repeat(sizes, queries)):
        return None
    values: Floats = _numpy(rows.flatten()).astype(np.float64)
    starts = np.cumsum(wide) - wide
    if divide and len(values):
        sums = np.add.reduceat(np.abs(values), starts)
        values /= np.repeat(np.where(sums == 0, 1, sums), wide)
    if (queries == 1).all():
        return values
    first = np.repeat(np.cumsum(sizes) - sizes, queries)  # where the text of each score row begins
    places = np.repeat(first - starts, wide) + np.arange(len(values))
    mean: Floats = np.bincount(places, values, int(sizes.sum())) / np.repeat(queries, sizes)
    return mean
