"""Which method finds the source of an answer? ``python -m benchmarks.answers`` measures it on prompts with a known source.

Needles and attributes (`benchmarks.answer_cases`) that the model answers correctly, half of them from seeds that nothing
was tuned on. Each method scores the tokens of the prompt; the tokens of the source should stand first and have the mass.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

import attnflow
from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, progress
from attnflow.evaluate.statistics import Interval, intervals
from attnflow.files import write_whole
from benchmarks.answer_cases import KINDS, METRICS, Case, Floats, Kept, halves, measures
from benchmarks.command import run_command

if TYPE_CHECKING:
    from attnflow.model import Model

DEFAULT = "answer rows, the default"
Method = Callable[["Model", Case], Floats]


def sources(**options: Any) -> Method:
    """`Answer.sources`, with these options."""

    def method(model: Model, case: Case) -> Floats:
        values: Floats = model.answer(case.ids, answer=case.answer).sources(**options).values[0, 0]
        return values

    return method


def attention_gradient(model: Model, case: Case) -> Floats:
    """Attention times its gradient, mean of layers, at the positions that decide the answer.

    Its gradient is that of one token's logit, so that every token of the answer ends a text of its own here: each is
    the likeliest one, or the case would not have been kept.
    """
    rows = []
    for k in range(len(case.answer)):
        ids = torch.tensor([case.ids + case.answer[:k]])
        trace = model.trace({"input_ids": ids}, edges="attention-gradient")
        rows.append(trace.raw(query=-1).values.mean(0)[0, : len(case.ids)])
    return np.asarray(np.mean(rows, 0), np.float64)


METHODS: dict[str, Method] = {
    DEFAULT: sources(),
    "attention-gradient, mean of layers": attention_gradient,
    "raw attention, last layer": sources(method="raw"),
    "rollout": sources(method="rollout"),
    "rollout without sinks": sources(method="rollout", sinks="residual"),
}

GOALS = {("needle", "R-precision"): 0.98, ("needle", "mass on truth"): 0.68} | {
    ("attributes", "top-1"): 0.98,
    ("attributes", "mass on truth"): 0.50,
}
"""What the default has to reach on both halves."""


@dataclass(frozen=True)
class Row:
    """One method on one half of a kind. cases: how many it was measured on, of `kept` among `tried` prompts."""

    kind: str
    half: str
    method: str
    cases: int
    kept: int
    tried: int
    measures: dict[str, Interval]


def measured(
    model: Model, kept: Mapping[str, Kept], kind: str, others: int | None, say: Callable[[str], None]
) -> list[Row]:
    """All methods on the halves of a kind; those beside the default on the first `others` cases of each."""
    rows = []
    for half, content in kept.items():
        table: dict[str, list[tuple[float, float, float]]] = {name: [] for name in METHODS}
        for number, case in enumerate(content.cases):
            methods = list(METHODS) if others is None or number < others else [DEFAULT]
            for name in methods:
                table[name].append(measures(METHODS[name](model, case), case.truth))
            if number % 10 == 9:
                say(f"{kind}, {half}: {number + 1} of {len(content.cases)}")
        rows += [
            Row(kind, half, name, len(values), len(content.cases), content.tried, summary(values))
            for name, values in table.items()
            if values
        ]
    return rows


def summary(values: Sequence[tuple[float, float, float]]) -> dict[str, Interval]:
    """The mean of each metric over the cases, with its interval."""
    columns = intervals(np.array(values))
    return {name: column for name, column in zip(METRICS, columns, strict=True) if column is not None}


def short_of(rows: Sequence[Row]) -> list[str]:
    """A sentence for each goal that the default misses."""
    return [
        f"{row.kind}, {row.half}: {metric} {row.measures[metric].mean:.3f}, short of {goal}"
        for row in rows
        for (kind, metric), goal in GOALS.items()
        if row.method == DEFAULT and row.kind == kind and row.measures[metric].mean < goal
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One for each half of each kind."""
    by_half: dict[tuple[str, str], Table] = {}
    for row in rows:
        title = f"{row.kind}, {row.half} seeds: {row.kept} kept of {row.tried} tried"
        table = by_half.setdefault((row.kind, row.half), Table("method", "cases", *METRICS, title=title))
        table.add_row(row.method, str(row.cases), *(written(row.measures[metric]) for metric in METRICS))
    return list(by_half.values())


def written(interval: Interval) -> str:
    """>>> written(Interval(0.98765, 0.9, 1.0))
    '0.988 [0.900, 1.000]'
    """
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in it.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="File of sentences, or folder with text.test.txt.xz; ours without it.")
    ] = None,
    cases: Annotated[int, typer.Option(min=2, help="Of each kind, half of them from unseen seeds.")] = 300,
    others: Annotated[
        int | None, typer.Option(min=0, help="Cases of each half for the methods beside the default; all by default.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps the cases.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .json file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which method finds the source of an answer: prompts with a known source that the model answers correctly."""
    silence()
    loaded = attnflow.load(model, gguf_file=gguf, dtype="float32", device=device)
    rows: list[Row] = []
    for kind in KINDS:
        progress(f"building {cases} cases of the kind {kind}")
        rows += measured(loaded, halves(kind, cases, loaded, data, cache), kind, others, progress)
    content: dict[str, Any] = {
        "provenance": {
            **loaded.identity(), "gguf": gguf, "attnflow": attnflow.__version__, "python": platform.python_version(),
            "sentences": "ours" if data is None else data.name, "goals": {" ".join(k): v for k, v in GOALS.items()},
        },
        "rows": [asdict(row) for row in rows],
        "short": short_of(rows),
    }  # fmt: skip
    if output is not None:
        write_whole(output, lambda path: path.write_text(json.dumps(content, indent=1) + "\n"))
    if as_json:
        print(json.dumps(content, indent=1))
        return
    Console().print(*tables(rows), sep="\n\n")
    print("\n".join(short_of(rows)) or "Every goal is reached on both halves.")


if __name__ == "__main__":
    run_command(main)
