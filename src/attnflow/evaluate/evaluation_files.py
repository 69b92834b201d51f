"""The files of an evaluation: .json, .csv and .parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.files import arrow, make_folder, of_extension, write_whole

if TYPE_CHECKING:
    import pyarrow

    from attnflow.evaluate.evaluation import Evaluation
    from attnflow.evaluate.statistics import Floats

NAMED = {"method": "methods", "first": "methods", "second": "methods", "metric": "metrics"}
"""Fields of cells and tests that name a method or a metric; the file has its number instead."""

Axes = Mapping[str, Sequence[str] | int]
"""The names along each axis, or the first number of a numbered axis."""


def write(evaluation: Evaluation, path: Path) -> list[Path]:
    """Write one file in the format of its extension."""
    writers = {".json": _json, ".csv": _csv, ".parquet": _parquet}
    writer = of_extension(writers, path)
    write_whole(path, lambda beside: writer(evaluation, beside))
    return [path]


def write_folder(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write the files of a grid (grid.* and curves.parquet), or else evaluation.json and correlations.csv."""
    if evaluation.layers:
        make_folder(folder)
        return [*write(evaluation, folder / "evaluation.json"), *write(evaluation, folder / "correlations.csv")]
    arrow()
    make_folder(folder)
    curves = folder / "curves.parquet"
    paths = write(evaluation, folder / "grid.json") + write(evaluation, folder / "grid.parquet")
    write_whole(curves, lambda beside: _write_table(_curves(evaluation), beside))
    return [*paths, curves]


def packed(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a grid's summary in compact form: its thousands of cells and tests as fields and rows."""
    numbers = {kind: {one["name"]: i for i, one in enumerate(summary[kind])} for kind in ("methods", "metrics")}
    document = dict(summary)
    for name in ("cells", "tests"):
        fields = list(summary[name][0]) if summary[name] else []
        document[name] = {
            "fields": fields,
            "rows": [[numbers[NAMED[f]][row[f]] if f in NAMED else row[f] for f in fields] for row in summary[name]],
        }
    return document


def _json(evaluation: Evaluation, path: Path) -> None:
    if evaluation.layers:
        text = json.dumps(evaluation.to_dict(), indent=1, allow_nan=False)
    else:
        text = json.dumps(packed(evaluation.summary), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _csv(evaluation: Evaluation, path: Path) -> None:
    values, axes, name = _single_values(evaluation)
    sizes = zip(axes.values(), values.shape, strict=True)
    labels = [range(own, own + size) if isinstance(own, int) else own for own, size in sizes]
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*axes, name])
        for place, value in np.ndenumerate(values):
            row = [own[i] for own, i in zip(labels, place, strict=True)]
            out.writerow([*row, "" if np.isnan(value) else repr(float(value))])


def _parquet(evaluation: Evaluation, path: Path) -> None:
    _write_table(_long(*_single_values(evaluation)), path)


def _write_table(table: pyarrow.Table, path: Path) -> None:
    _, parquet = arrow()
    parquet.write_table(table, path, compression="zstd", write_page_checksum=True)


def _single_values(evaluation: Evaluation) -> tuple[Floats, Axes, str]:
    """Return all values, their axes, and the name of the value column."""
    if evaluation.layers:
        axes: Axes = {"sample": 0, "importance": evaluation.importances, "view": evaluation.views, "layer": 1}
        return evaluation.correlations, axes, "spearman"
    names = [method["name"] for method in evaluation.methods]
    return evaluation.values, {"sample": 0, "method": names, "metric": list(evaluation.metrics)}, "value"


def _curves(evaluation: Evaluation) -> pyarrow.Table:
    """Return the curves in long form: sample, method, deletion, kind (deleted or kept), step, probability."""
    names = [method["name"] for method in evaluation.methods]
    curves = list(evaluation.curves.values())
    stacked = np.stack(curves) if curves else np.empty((0, evaluation.samples, len(names), 2, 0))
    deletions = list(evaluation.curves)
    axes: Axes = {"deletion": deletions, "sample": 0, "method": names, "kind": ["deleted", "kept"], "step": 0}
    table = _long(stacked, axes, "probability")
    return table.select(["sample", "method", "deletion", "kind", "step", "probability"])


def _long(values: Floats, axes: Axes, column: str) -> pyarrow.Table:
    """Return a row for every value, with a column for each axis; NaN is null."""
    pa, _ = arrow()
    places = np.indices(values.shape, dtype=np.int32).reshape(values.ndim, -1)
    columns = {
        axis: pa.array(place + own)
        if isinstance(own, int)
        else pa.DictionaryArray.from_arrays(pa.array(place), pa.array(own, pa.string()))
        for (axis, own), place in zip(axes.items(), places, strict=True)
    }
    flat = values.ravel()
    return pa.table({**columns, column: pa.array(flat, mask=~np.isfinite(flat))})
