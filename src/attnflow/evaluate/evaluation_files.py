"""The files of an evaluation: .json and .csv."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.files import make_folder, of_extension, write_whole

if TYPE_CHECKING:
    from attnflow.evaluate.evaluation import Evaluation
    from attnflow.evaluate.statistics import Floats

NAMED = {"method": "methods", "first": "methods", "second": "methods", "metric": "metrics"}
"""Fields of cells and tests that name a method or a metric; the file has its number instead."""

Axes = Mapping[str, Sequence[str] | int]
"""The names along each axis, or the first number of a numbered axis."""


def write(evaluation: Evaluation, path: Path) -> list[Path]:
    """Write one file in the format of its extension."""
    writers = {".json": _json, ".csv": _csv}
    writer = of_extension(writers, path)
    write_whole(path, lambda beside: writer(evaluation, beside))
    return [path]


def write_folder(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write the files of a grid, or else evaluation.json and correlations.csv."""
    make_folder(folder)
    if evaluation.layers:
        return [*write(evaluation, folder / "evaluation.json"), *write(evaluation, folder / "correlations.csv")]
    return write(evaluation, folder / "grid.json") + write(evaluation, folder / "grid.csv")


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


def _single_values(evaluation: Evaluation) -> tuple[Floats, Axes, str]:
    """Return all values, their axes, and the name of the value column."""
    if evaluation.layers:
        axes: Axes = {"sample": 0, "importance": evaluation.importances, "view": evaluation.views, "layer": 1}
        return evaluation.correlations, axes, "spearman"
    names = [method["name"] for method in evaluation.methods]
    return evaluation.values, {"sample": 0, "method": names, "metric": list(evaluation.metrics)}, "value"
