"""A grid of methods and metrics for people and for other programs: tables, files, a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attnflow.errors import InputError
from attnflow.evaluate.dataset import packed
from attnflow.evaluate.ranking import Measured
from attnflow.files import write_whole
from attnflow.jobs.store import arrow

KINDS = {"paper": "the paper's", "edges": "other edges", "importance": "importance", "baseline": "baselines"}
SHOWN = ("comprehensiveness", "sufficiency", "aopc", "log-odds")
"""Of the metrics of deletion, those that fit a terminal; the files have all."""


def tables(summary: Mapping[str, Any]) -> Iterator[Table | Text]:
    """The rank correlations with what each method costs; what the first deletion tells; who is ahead; what was left out."""
    cells = {(cell["metric"], cell["method"]): cell for cell in summary["cells"]}
    metrics = [metric["name"] for metric in summary["metrics"]]
    rank = [name for name in metrics if "(" not in name]
    sample = f"{summary['samples']:,} {'text' if summary['samples'] == 1 else 'texts'}"
    ordered = _ordered(summary, rank or metrics, cells)
    if rank:
        title = f"Spearman with importance, {sample}: means; cost in forward and backward passes"
        yield _table(title, ordered, {name: name for name in rank}, cells, summary, cost=True)
    by = next(iter(summary["curves"]), None)
    deletion = {f"{name} ({by})": name for name in SHOWN if f"{name} ({by})" in metrics}
    if deletion:
        title = f"Tokens deleted ({by}), {sample}: means"
        yield _table(title, ordered, deletion, cells, summary, cost=not rank)
    yield Text("\n".join(remarks(summary)))


def _ordered(
    summary: Mapping[str, Any], metrics: Sequence[str], cells: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The methods kind by kind, the best by the first metric on top, and last those that have no value."""
    ways = {metric["name"]: metric["better"] for metric in summary["metrics"]}

    def place(method: Mapping[str, Any]) -> tuple[int, bool, float]:
        mean = cells[metrics[0], method["name"]]["mean"]
        up = -1 if ways[metrics[0]] == "higher" else 1
        return list(KINDS).index(method["kind"]), mean is None, up * (mean or 0.0)

    return sorted(summary["methods"], key=place)


def _table(
    title: str,
    ordered: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    cells: Mapping[tuple[str, str], Mapping[str, Any]],
    summary: Mapping[str, Any],
    cost: bool,
) -> Table:
    ways = {metric["name"]: metric["better"] for metric in summary["metrics"]}
    arrows = [f"{head} {'↑' if ways[metric] == 'higher' else '↓'}" for metric, head in columns.items()]
    heads = ["", *arrows, *(["cost"] if cost else [])]
    table = Table(*heads, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.columns[0].no_wrap = True
    best = {}
    for metric in columns:
        means = [c["mean"] for (name, _), c in cells.items() if name == metric and c["mean"] is not None]
        best[metric] = (max if ways[metric] == "higher" else min)(means) if means else None
    kind = ordered[0]["kind"] if ordered else None
    for method in ordered:
        if method["kind"] != kind:
            table.add_section()
            kind = method["kind"]
        row = [Text(method["name"])]
        for metric in columns:
            cell = cells[metric, method["name"]]
            top = cell["mean"] is not None and cell["mean"] == best[metric]
            row.append(Text(shown(cell), style="bold" if top else ""))
        if cost:
            row.append(Text(_passes(method["cost"])))
        table.add_row(*row)
    return table


def shown(cell: Mapping[str, Any]) -> str:
    """The mean; with its interval a row would not fit a terminal."""
    return "none" if cell["mean"] is None else f"{cell['mean']:.3f}"


def _passes(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.2g}×" if cost < 10 else f"{cost:,.0f}×"


def remarks(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the tables must know: who is ahead, by which tests, what was left out."""
    paper = [method["name"] for method in summary["methods"] if method["kind"] == "paper"]
    if paper and any(method["kind"] == "edges" for method in summary["methods"]):
        by = next(iter(summary["curves"]), None)
        told = [metric for metric in ("blank-out", f"comprehensiveness ({by})") if metric in summary["ahead"]]
        needed = summary["needed"]
        if summary["samples"] < needed["texts"]:
            yield (
                f"{summary['samples']} texts are too few to tell who is ahead: with {needed['comparisons']} comparisons at "
                f"least {needed['texts']} are needed for any to be significant"
            )
            told = []
        for metric in told:
            yield f"ahead of {_listed(paper)} by {metric}: {_listed(summary['ahead'][metric]) or 'nothing'}"
        if len(told) == 2:
            both = [f"{one['method']} ({_passes(one['cost'])})" for one in summary["ahead_of_all"]]
            yield f"by both: {_listed(both) or 'nothing'}"
        if told:
            yield "ahead is better than each of them, text by text (Wilcoxon's test, p < 0.05 after Holm's correction)"
    for why, count in summary["provenance"].get("excluded", {}).items():
        yield f"left out: {count:,} {'text' if count == 1 else 'texts'}, {why}"
    short: dict[str, int] = {}
    for cell in summary["cells"]:
        if cell["n"] < summary["samples"] and cell["method"] != cell["metric"]:
            short[cell["method"]] = max(short.get(cell["method"], 0), summary["samples"] - cell["n"])
    for name, count in short.items():
        yield f"{name}: up to {count} of {summary['samples']:,} texts have no value by some metric and are in no mean of it"
    yield "grid.html and grid.json have intervals, tests, curves and ranks; grid.parquet has every single value"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def write(measured: Measured, summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """grid.json, the summary; grid.parquet and curves.parquet, every single value; grid.html, the page."""
    from attnflow.view import grid_page

    pa, parquet = arrow()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot make the folder {str(folder)!r}: {e.strerror or e}") from None
    told = json.dumps(packed(summary), allow_nan=False, separators=(",", ":"), ensure_ascii=False) + "\n"
    page = grid_page.html_of(summary)
    writers = {
        "grid.json": lambda path: path.write_text(told, encoding="utf-8"),
        "grid.parquet": lambda path: parquet.write_table(_values(measured, pa), path, compression="zstd"),
        "curves.parquet": lambda path: parquet.write_table(_curves(measured, pa), path, compression="zstd"),
        "grid.html": lambda path: path.write_text(page, encoding="utf-8"),
    }
    for name, writer in writers.items():
        write_whole(folder / name, writer)
    return [folder / name for name in writers]


def _values(measured: Measured, pa: Any) -> Any:
    """Long: sample, method, metric, value; no value is null."""
    names = [method["name"] for method in measured.methods]
    axes = {"sample": None, "method": names, "metric": list(measured.metrics)}
    return _long(measured.values, axes, "value", pa)


def _curves(measured: Measured, pa: Any) -> Any:
    """Long: sample, method, deletion, kind (deleted or kept), step, probability."""
    names = [method["name"] for method in measured.methods]
    axes = {
        "deletion": list(measured.curves),
        "sample": None,
        "method": names,
        "kind": ["deleted", "kept"],
        "step": None,
    }
    held = list(measured.curves.values())
    stacked = np.stack(held) if held else np.empty((0, len(measured.values), len(names), 2, 0))
    table = _long(stacked, axes, "probability", pa)
    return table.select(["sample", "method", "deletion", "kind", "step", "probability"])


def _long(values: Any, axes: Mapping[str, list[str] | None], column: str, pa: Any) -> Any:
    """A row for every value, with a column for each axis: its names, or its numbers where it has none."""
    places = np.indices(values.shape, dtype=np.int32).reshape(values.ndim, -1)
    columns = {
        axis: pa.array(place)
        if names is None
        else pa.DictionaryArray.from_arrays(pa.array(place), pa.array(names, pa.string()))
        for (axis, names), place in zip(axes.items(), places, strict=True)
    }
    flat = values.ravel()
    return pa.table({**columns, column: pa.array(flat, mask=~np.isfinite(flat))})
