"""Results of tasks, case by case, and how one method compares with all others: ``python -m benchmarks.evidence``.

A result is a line of JSON: model, task, half, seed, method, measures and cost. Methods are compared on the cases that
both have, so one that was run on fewer cases is compared on those. "METHOD, 4 verified" is a method with its measures
after four ablations, to compare with methods without any.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson
from attnflow.errors import InputError
from attnflow.evaluate.statistics import SIGNIFICANT, Interval, effect, holm, intervals, wilcoxon
from attnflow.files import write_whole
from benchmarks.command import run_command

Floats = NDArray[np.float64]

DEFAULT = "answer rows"
TEXTS = "texts"
"""How often the whole text was read: the positions that the model ran on, divided by those of the text."""
COSTS = ("seconds", "forwards", TEXTS, "peak_mib")
LOWER = frozenset({"mass on sinks", "mass on route", "mass on hub", "sufficiency"})
"""Measures for which lower is better."""


@dataclass(frozen=True)
class Difference:
    """The default minus another method by one measure, over the cases that both have; positive is better.

    adjusted: the p of Wilcoxon's signed-rank test after Holm's correction for all methods compared with the default.
    verdict: "ahead" or "behind" if adjusted is below 0.05 and mean and effect agree in sign; otherwise "level".
    """

    cases: int
    mean: float
    low: float
    high: float
    adjusted: float | None
    verdict: str


@dataclass(frozen=True)
class Summary:
    """One task on one model.

    measures, differences: by measure, then by method.
    costs: medians, by method.
    cases: those of the default, or of the method with the most cases if the default was not run.
    """

    model: str
    task: str
    default: str
    cases: int
    measures: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Mapping[str, Difference]]
    costs: Mapping[str, Mapping[str, float]]
    failed: Mapping[str, int]

    def verdict(self, measure: str, method: str) -> str:
        """Return the verdict on the default against a method by a measure; "not measured" if one of them is missing."""
        difference = self.differences.get(measure, {}).get(method)
        return "not measured" if difference is None else difference.verdict


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the rows of result files; if a case and method occurs twice, the last one is used."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in paths:
        for number, row in _lines(path):
            missing = [name for name in ("model", "task", "half", "seed", "method") if name not in row]
            if missing:
                raise InputError(f"line {number} of {str(path)!r} has no {missing[0]!r}: expected a line of results")
            rows[tuple(row[name] for name in ("model", "task", "half", "seed", "method"))] = row
    return list(rows.values())


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError(f"cannot read {str(path)!r}: {e.strerror or e}") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"line {number} of {str(path)!r} is not JSON: expected a line of results") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of {str(path)!r} is not an object: expected a line of results")
        yield number, row


def summaries(
    rows: Iterable[Mapping[str, Any]], half: str = "unseen", default: str = DEFAULT, least: int = 1
) -> list[Summary]:
    """Return one summary per model and task, in the order of the rows. least: the fewest cases of a method."""
    tasks: dict[tuple[str, str], dict[str, dict[Any, Mapping[str, Any]]]] = {}
    for row in rows:
        if row["half"] == half:
            by_method = tasks.setdefault((row["model"], row["task"]), {})
            for one in (row, verified(row, default)):
                if one is not None:
                    by_method.setdefault(one["method"], {})[row["seed"]] = one
    kept = {key: {method: own for method, own in x.items() if len(own) >= least} for key, x in tasks.items()}
    return [_summary(model, task, by_method, default) for (model, task), by_method in kept.items() if by_method]


def verified(row: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the row as one of the method `name`, "METHOD, 4 verified", if the row is of METHOD; otherwise None.

    An ablation counts as a forward pass over the whole text, which is slightly more than it reads.

    >>> row = {"method": "rollout", "measures": {"LDS": 0.1, "LDS, 4 verified": 0.5}, "forwards": 1}
    >>> verified(row, "rollout, 4 verified")
    {'method': 'rollout, 4 verified', 'measures': {'LDS': 0.5}, 'forwards': 5}
    """
    match = re.fullmatch(r"(.+)(, (\d+) verified)", name)
    if match is None or row["method"] != match[1]:
        return None
    measures = {key.removesuffix(match[2]): x for key, x in row.get("measures", {}).items() if key.endswith(match[2])}
    result = {**row, "method": name, "measures": measures}
    if row.get("forwards") is not None:
        result["forwards"] = row["forwards"] + int(match[3])
    if row.get("positions") is not None:
        result["positions"] = row["positions"] + int(match[3]) * row["tokens"]
    return {key: x for key, x in result.items() if key not in ("seconds", "peak_mib")}


def narrowed(
    rows: Iterable[Mapping[str, Any]], tasks: Sequence[str] = (), measures: Sequence[str] = ()
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of some tasks with some measures; an empty selection means all. Empty rows are dropped.

    >>> row = {"task": "copy", "measures": {"top-1": 1.0, "units: top-1": 0.5}}
    >>> list(narrowed([row, {"task": "needle", "measures": {}}], ["copy"], ["top-1"]))
    [{'task': 'copy', 'measures': {'top-1': 1.0}}]
    """
    for row in rows:
        if tasks and row["task"] not in tasks:
            continue
        kept = {name: x for name, x in row.get("measures", {}).items() if not measures or name in measures}
        if kept or "error" in row:
            yield {**row, "measures": kept}


def _summary(model: str, task: str, by_method: Mapping[str, Mapping[Any, Mapping[str, Any]]], default: str) -> Summary:
    names = dict.fromkeys(
        name for own in by_method.values() for row in own.values() for name in row.get("measures", {})
    )
    measures: dict[str, dict[str, Interval]] = {}
    differences: dict[str, dict[str, Difference]] = {}
    for name in names:
        values = {
            method: {seed: float(row["measures"][name]) for seed, row in own.items() if _has(row, name)}
            for method, own in by_method.items()
        }
        values = {method: own for method, own in values.items() if own}
        measures[name] = {method: _mean(list(own.values())) for method, own in values.items()}
        if default in values:
            others = {method: own for method, own in values.items() if method != default}
            differences[name] = compared(values[default], others, -1 if name in LOWER else 1)
    failed = {method: sum("error" in row for row in own.values()) for method, own in by_method.items()}
    cases = len(by_method[default]) if default in by_method else max(map(len, by_method.values()))
    return Summary(
        model, task, default, cases, measures, differences,
        {method: _costs(own.values()) for method, own in by_method.items()},
        {method: count for method, count in failed.items() if count},
    )  # fmt: skip


def _has(row: Mapping[str, Any], name: str) -> bool:
    value = row.get("measures", {}).get(name)
    return value is not None and math.isfinite(value)


def _mean(values: Sequence[float]) -> Interval:
    (interval,) = intervals(np.array(values)[:, None])
    assert interval is not None
    return interval


def _costs(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    costs = {}
    rows = [{**row, TEXTS: row["positions"] / row["tokens"]} if "positions" in row else row for row in rows]
    for name in COSTS:
        values = [row[name] for row in rows if row.get(name) is not None]
        if values:
            costs[name] = float(np.median(values))
    return costs


def compared(
    own: Mapping[Any, float], others: Mapping[str, Mapping[Any, float]], sign: int = 1
) -> dict[str, Difference]:
    """Compare the default with each other method. own, others: values by case. sign: -1 if lower is better.

    >>> ours = {seed: 1.0 + seed % 3 for seed in range(30)}
    >>> chance = {seed: 0.5 for seed in range(30)}
    >>> compared(ours, {"random": chance, "the same": ours})["random"].verdict
    'ahead'
    >>> compared(ours, {"random": chance, "the same": ours})["the same"].verdict
    'level'
    """
    pairs = {}
    for method, values in others.items():
        both = [seed for seed in own if seed in values]
        if both:
            pairs[method] = sign * np.array([own[seed] - values[seed] for seed in both])
    adjusted = holm([wilcoxon(difference) for difference in pairs.values()])
    result = {}
    for (method, difference), p in zip(pairs.items(), adjusted, strict=True):
        interval, size = _mean(difference.tolist()), effect(difference)
        verdict = "level"
        if p is not None and p < SIGNIFICANT and size is not None and size * interval.mean > 0:
            verdict = "ahead" if interval.mean > 0 else "behind"
        result[method] = Difference(len(difference), interval.mean, interval.low, interval.high, p, verdict)
    return result


def tables(summary: Summary) -> Table:
    """Return all methods of a task: each measure with its interval, the comparison with the default, and the costs."""
    title = f"{summary.task}, {summary.model}: {summary.cases} unseen cases"
    table = Table("method", *summary.measures, *COSTS, title=title)
    methods = list(summary.costs)
    for method in methods:
        cells = []
        for name in summary.measures:
            interval = summary.measures[name].get(method)
            if interval is None:
                cells.append("")
                continue
            against = "" if method == summary.default else f" {MARKS[summary.verdict(name, method)]}"
            cells.append(f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]{against}")
        costs = (summary.costs[method].get(name) for name in COSTS)
        table.add_row(method, *cells, *("" if x is None else f"{x:.3g}" for x in costs))
    return table


MARKS = {"ahead": "↓", "behind": "↑", "level": "=", "not measured": "?"}
"""The mark of a method in a table: below the default, above it, level with it."""


def as_dict(summary: Summary) -> dict[str, Any]:
    """Return JSON data with five digits, so that rounding to two digits happens only once."""
    rounded: dict[str, Any] = json.loads(json.dumps(asdict(summary)), parse_float=lambda x: float(f"{float(x):.5g}"))
    return rounded


def of_dict(content: Mapping[str, Any]) -> Summary:
    """Return a summary from `as_dict` data."""
    measures = {name: {method: Interval(**x) for method, x in own.items()} for name, own in content["measures"].items()}
    differences = {
        name: {method: Difference(**x) for method, x in own.items()} for name, own in content["differences"].items()
    }
    return Summary(**{**content, "measures": measures, "differences": differences})


def main(
    results: Annotated[list[Path], typer.Argument(help="Files of results, JSON lines.")],
    half: Annotated[str, typer.Option(help="unseen, which nothing was tuned on, or seen.")] = "unseen",
    default: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                f"The method that the others are compared with, or METHOD, 4 verified; {DEFAULT} by default. "
                "Can be repeated, for a summary each."
            )
        ),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; can be repeated.")] = None,
    measure: Annotated[list[str] | None, typer.Option(help="Only this measure; can be repeated.")] = None,
    least: Annotated[int, typer.Option(help="Leave out methods that were run on fewer cases.", min=1)] = 1,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .json file for the summaries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare one method with all others on results of tasks: means, paired differences, costs."""
    rows = list(narrowed(read_results(results), task or (), measure or ()))
    every = [summary for name in default or [DEFAULT] for summary in summaries(rows, half, name, least)]
    if not every:
        raise InputError(
            f"the files have no result of the half {half!r} with these tasks and measures: halves are seen and unseen"
        )
    content = [as_dict(summary) for summary in every]
    if output is not None:
        text = "[\n" + ",\n".join(map(json.dumps, content)) + "\n]\n"  # one line per summary
        write_whole(output, lambda path: path.write_text(text, encoding="utf-8"))
    if as_json:
        print(json.dumps(content, indent=1))
        return
    Console(width=220).print(*map(tables, every), sep="\n\n")
    print("\n".join(sentence(summary) for summary in every))


def sentence(summary: Summary) -> str:
    """Return what the default is ahead of, level with and behind, by its measures."""
    parts = []
    for name, own in summary.differences.items():
        counts = {word: [m for m, x in own.items() if x.verdict == word] for word in ("ahead", "level", "behind")}
        lost = "".join(f", {word} {', '.join(counts[word])}" for word in ("level", "behind") if counts[word])
        parts.append(f"by {name} ahead of {len(counts['ahead'])} of {len(own)}{lost}")
    return f"{summary.task}, {summary.model}: {summary.default} is {'; '.join(parts) or 'not there'}."


if __name__ == "__main__":
    run_command(main)
