"""The tables of an evaluation in the terminal, and remarks on how to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from attnflow.evaluate.evaluation import Cell, Evaluation

KINDS = ("paper", "edges", "importance", "baseline")
SHOWN = ("comprehensiveness", "sufficiency", "aopc", "log-odds")
"""The deletion metrics that fit a terminal; the files have all."""

Entry = Mapping[str, Any]


def tables(
    evaluation: Evaluation, save: str = "save(folder)", use: Callable[[Entry], str] | None = None
) -> Iterator[Table | Text]:
    """Yield tables and remarks.

    save: the option that writes everything. use: the command that shows a recommended method.
    """
    yield from _of_layers(evaluation) if evaluation.layers else _of_grid(evaluation.summary)
    yield Text("\n".join(remarks(evaluation, save, use)))


def remarks(
    evaluation: Evaluation, save: str = "save(folder)", use: Callable[[Entry], str] | None = None
) -> Iterator[str]:
    """Yield what a reader of the tables must know: accuracy, who is ahead, by which tests, and what was left out.

    For a grid the last remark says which method to use.
    """
    if evaluation.accuracy is not None:
        yield f"accuracy {evaluation.accuracy:.3f} on these texts"
    if not evaluation.layers:
        yield from _who_is_ahead(evaluation.summary)
    for why, count in evaluation.excluded.items():
        yield f"left out: {_texts(count)}, {why}"
    if evaluation.layers:
        yield from _without_correlation(evaluation)
        yield from evaluation.notes
        if evaluation.comparisons:
            yield f"{save} writes the comparisons at all layers and every single correlation"
    else:
        yield from _without_value(evaluation.summary)
        yield "grid.json has intervals, tests and curves; grid.csv has every single value"
        if evaluation.recommendation is not None:
            methods = {method["name"]: method for method in evaluation.methods}
            method = methods.get(evaluation.summary["recommended"])
            call = "" if use is None or method is None else f"; {use(method)}"
            yield evaluation.recommendation.removesuffix(".") + f"{call}."


def _table(title: str, *heads: str) -> Table:
    return Table(*heads, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")


def _texts(count: int) -> str:
    return f"{count:,} {'text' if count == 1 else 'texts'}"


def _of_layers(evaluation: Evaluation) -> Iterator[Table]:
    """Yield one table for each importance, and the comparisons at the last layer."""
    layers = range(evaluation.layers or 0)
    tokens = "all tokens" if evaluation.provenance["special"] else "without special tokens"
    cells = {(cell.metric, cell.layer, cell.method): cell for cell in evaluation.cells}
    for name in evaluation.importances:
        table = _table(f"Spearman with {name}, {_texts(evaluation.samples)}, {tokens}", "", *evaluation.views)
        for layer in layers:
            table.add_row(f"L{layer + 1}", *(spread(cells[name, layer, view]) for view in evaluation.views))
        yield table
    if evaluation.comparisons:
        count = sum(c.p is not None for c in evaluation.comparisons)
        title = f"Text by text at L{len(layers)}: Wilcoxon's p, and corrected (Holm) for {count} comparisons"
        table = _table(title, "", "", "mean difference", "p", "corrected")
        for c in evaluation.comparisons:
            if c.layer == layers[-1]:
                none = "same" if c.difference is not None and c.difference.low == c.difference.high == 0 else "too few"
                p, adjusted = (none if v is None else f"{v:.2g}" for v in (c.p, c.adjusted))
                table.add_row(c.metric, f"{c.first} − {c.second}", str(c.difference or "none"), p, adjusted)
        yield table


def spread(cell: Cell) -> str:
    """Return ``mean±sd [interval of the mean]``."""
    if cell.mean is None:
        return "none"
    sd = "" if cell.sd is None else f"±{cell.sd:.2f}"
    return f"{cell.mean.mean:.2f}{sd} [{cell.mean.low:.2f}, {cell.mean.high:.2f}]"


def _without_correlation(evaluation: Evaluation) -> Iterator[str]:
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for cell in evaluation.cells:
        for why, count in cell.without.items():
            counts.setdefault((cell.metric, why), {})[f"{cell.method} L{(cell.layer or 0) + 1}"] = count
    for (name, why), places in counts.items():
        low, high = min(places.values()), max(places.values())
        where = "" if len(places) == len(evaluation.methods) else f", at {', '.join(places)}"
        texts = f"{low} to {high}" if low < high else str(low)
        yield f"{name}: {texts} of {evaluation.samples} texts have no correlation and are in no mean ({why}{where})"


def _of_grid(summary: Entry) -> Iterator[Table]:
    """Yield the rank correlations with the cost of each method, and the results of the first deletion.

    Methods are grouped by kind, the best by the first metric first, and methods without values last.
    """
    means = {(cell["metric"], cell["method"]): cell["mean"] for cell in summary["cells"]}
    higher = {metric["name"]: metric["better"] == "higher" for metric in summary["metrics"]}
    rank = [name for name in higher if "(" not in name]
    first = next(iter(rank or higher))

    def place(method: Entry) -> tuple[int, bool, float]:
        mean = means[first, method["name"]]
        return KINDS.index(method["kind"]), mean is None, (-1 if higher[first] else 1) * (mean or 0.0)

    def table(title: str, columns: Mapping[str, str], cost: bool, about_cost: str = "") -> Table:
        arrows = [f"{head} {'↑' if higher[metric] else '↓'}" for metric, head in columns.items()]
        title = f"{title}, {_texts(summary['samples'])}: means{about_cost}"
        table = _table(title, "", *arrows, *(["cost"] if cost else []))
        table.columns[0].no_wrap = True
        best = {}
        for metric in columns:
            known = [mean for (name, _), mean in means.items() if name == metric and mean is not None]
            best[metric] = (max if higher[metric] else min)(known, default=None)
        for _, methods in groupby(sorted(summary["methods"], key=place), key=lambda method: method["kind"]):
            for method in methods:
                row = [Text(method["name"])]
                for metric in columns:
                    mean = means[metric, method["name"]]
                    top = mean is not None and mean == best[metric]
                    row.append(Text("none" if mean is None else f"{mean:.3f}", style="bold" if top else ""))
                table.add_row(*row, *([Text(passes(method["cost"]))] if cost else []))
            table.add_section()
        return table

    if rank:
        columns = {name: name for name in rank}
        yield table("Spearman with importance", columns, True, "; cost in forward and backward passes")
    by = next(iter(summary["curves"]), None)
    deletion = {f"{name} ({by})": name for name in SHOWN if f"{name} ({by})" in higher}
    if deletion:
        yield table(f"Tokens deleted ({by})", deletion, not rank)


def passes(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.2g}×" if cost < 10 else f"{cost:,.0f}×"


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def _who_is_ahead(summary: Entry) -> Iterator[str]:
    paper = [method["name"] for method in summary["methods"] if method["kind"] == "paper"]
    if not paper or not any(method["kind"] == "edges" for method in summary["methods"]):
        return
    needed = summary["needed"]
    if summary["samples"] < needed["texts"]:
        yield (
            f"{summary['samples']} texts are too few to decide which methods are ahead: with {needed['comparisons']} "
            f"comparisons, significance needs at least {needed['texts']}"
        )
        return
    by = next(iter(summary["curves"]), None)
    metrics = [metric for metric in ("blank-out", f"comprehensiveness ({by})") if metric in summary["ahead"]]
    for metric in metrics:
        yield f"ahead of {listed(paper)} by {metric}: {listed(summary['ahead'][metric]) or 'nothing'}"
    if len(metrics) == 2:
        both = [f"{one['method']} ({passes(one['cost'])})" for one in summary["ahead_of_all"]]
        yield f"by both: {listed(both) or 'nothing'}"
    if metrics:
        yield (
            "ahead: better than each of them, compared text by text (Wilcoxon's test, p < 0.05 after Holm's correction)"
        )


def _without_value(summary: Entry) -> Iterator[str]:
    short: dict[str, int] = {}
    for cell in summary["cells"]:
        if cell["n"] < summary["samples"] and cell["method"] != cell["metric"]:
            short[cell["method"]] = max(short.get(cell["method"], 0), summary["samples"] - cell["n"])
    for name, count in short.items():
        yield (
            f"{name}: up to {count} of {summary['samples']:,} texts have no value by some metric and are left out of "
            "its mean"
        )
