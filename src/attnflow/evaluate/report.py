"""An evaluation for people and for other programs: tables, and files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from attnflow.evaluate.compare import Cell, Evaluation
from attnflow.files import write_whole


def shown(cell: Cell) -> str:
    """``mean±sd`` and the interval of the mean below it, as in the paper's tables."""
    if cell.mean is None:
        return "none"
    sd = "" if cell.sd is None else f"±{cell.sd:.2f}"
    return f"{cell.mean.mean:.2f}{sd}\n[{cell.mean.low:.2f}, {cell.mean.high:.2f}]"


def tables(found: Evaluation) -> Iterator[Table | Text]:
    """One table for each importance, the comparisons at the last layer, and what was left out."""
    layers = range(found.layers)
    for name in found.importances:
        table = Table("", *(f"L{layer + 1}" for layer in layers), title=f"Spearman with {name}, {found.samples} texts")
        for view in found.views:
            table.add_row(view, *(shown(found.cell(name, view, layer)) for layer in layers))
        yield table
    if found.comparisons:
        last = found.layers - 1
        table = Table(
            "importance", "views", "difference", "p", "p, corrected",
            title=f"Paired at L{found.layers}; corrected (Holm) for all {len(found.comparisons)} comparisons",
        )  # fmt: skip
        for c in found.comparisons:
            if c.layer == last:
                p, adjusted = ("same" if v is None else f"{v:.2g}" for v in (c.p, c.adjusted))
                table.add_row(c.importance, f"{c.first} − {c.second}", str(c.difference or "none"), p, adjusted)
        yield table
    yield Text("\n".join(remarks(found)))


def remarks(found: Evaluation) -> Iterator[str]:
    """What a reader of the tables must know."""
    if found.accuracy is not None:
        yield f"accuracy {found.accuracy:.3f} on these {found.samples} texts"
    for why, count in found.excluded.items():
        yield f"left out: {count} {'text' if count == 1 else 'texts'}, {why}"
    for cell in found.cells:
        for why, count in cell.without.items():
            texts = "1 text has" if count == 1 else f"{count} texts have"
            yield f"{cell.importance}, {cell.view}, L{cell.layer + 1}: {texts} no correlation ({why})"
    yield from found.notes


def write(found: Evaluation, folder: Path) -> list[Path]:
    """evaluation.json, and correlations.csv with a row for every sample, importance, view and layer."""
    summary, rows = folder / "evaluation.json", folder / "correlations.csv"
    told = json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n"
    write_whole(summary, lambda beside: beside.write_text(told))
    write_whole(rows, lambda beside: _rows(found, beside))
    return [summary, rows]


def _rows(found: Evaluation, path: Path) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["sample", "importance", "view", "layer", "spearman"])
        for (k, m, v, layer), value in np.ndenumerate(found.correlations):
            one = "" if np.isnan(value) else repr(float(value))
            out.writerow([k, found.importances[m], found.views[v], layer + 1, one])
