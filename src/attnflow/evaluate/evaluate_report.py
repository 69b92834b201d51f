"""An evaluation for people and for other programs: tables, and files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attnflow.evaluate.correlation import Cell, Evaluation
from attnflow.files import write_whole


def shown(cell: Cell) -> str:
    """``mean±sd [interval of the mean]``."""
    if cell.mean is None:
        return "none"
    sd = "" if cell.sd is None else f"±{cell.sd:.2f}"
    return f"{cell.mean.mean:.2f}{sd} [{cell.mean.low:.2f}, {cell.mean.high:.2f}]"


def tables(found: Evaluation) -> Iterator[Table | Text]:
    """One table for each importance, the comparisons at the last layer, and what was left out."""
    ranked = "all tokens" if found.provenance["special"] else "without special tokens"
    for name in found.importances:
        title = f"Spearman with {name}, {found.samples} {'text' if found.samples == 1 else 'texts'}, {ranked}"
        table = Table("", *found.views, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
        for layer in range(found.layers):
            table.add_row(f"L{layer + 1}", *(shown(found.cell(name, view, layer)) for view in found.views))
        yield table
    if found.comparisons:
        asked = sum(c.p is not None for c in found.comparisons)
        table = Table(
            "", "", "mean difference", "p", "corrected", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left",
            title=f"Text by text at L{found.layers}: Wilcoxon's p, and corrected (Holm) for {asked} comparisons",
        )  # fmt: skip
        for c in found.comparisons:
            if c.layer == found.layers - 1:
                none = "same" if c.difference is not None and c.difference.low == c.difference.high == 0 else "too few"
                p, adjusted = (none if v is None else f"{v:.2g}" for v in (c.p, c.adjusted))
                table.add_row(c.importance, f"{c.first} − {c.second}", str(c.difference or "none"), p, adjusted)
        yield table
    yield Text("\n".join(remarks(found)))


def remarks(found: Evaluation) -> Iterator[str]:
    """What a reader of the tables must know."""
    if found.accuracy is not None:
        yield f"accuracy {found.accuracy:.3f} on these texts"
    for why, count in found.excluded.items():
        yield f"left out: {count} {'text' if count == 1 else 'texts'}, {why}"
    missing: dict[tuple[str, str], list[str]] = {}
    counts: dict[tuple[str, str], set[int]] = {}
    for cell in found.cells:
        for why, count in cell.without.items():
            missing.setdefault((cell.importance, why), []).append(f"{cell.view} L{cell.layer + 1}")
            counts.setdefault((cell.importance, why), set()).add(count)
    for (name, why), places in missing.items():
        low, high = min(counts[name, why]), max(counts[name, why])
        where = "" if len(places) == len(found.views) * found.layers else f", at {', '.join(places)}"
        texts = f"{low} to {high}" if low < high else str(low)
        yield f"{name}: {texts} of {found.samples} texts have no correlation and are in no mean ({why}{where})"
    yield from found.notes
    if found.comparisons:
        yield "--output writes the comparisons at all layers, and every single correlation"


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
