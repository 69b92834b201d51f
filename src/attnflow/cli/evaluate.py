"""``attnflow evaluate``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, Dtype, progress
from attnflow.errors import InputError
from attnflow.evaluate import Evaluation, correlation, dataset, evaluation_files
from attnflow.evaluate.evaluation_tables import tables

IMPORTANCES = "blank-out,gradient"
PLAIN_ONLY = {"views", "blank", "reduce", "of", "explain", "row", "special", "signed", "ties"}
GRID_ONLY = {"edges", "deletions", "steps", "sanity", "stages", "workers"}


def evaluate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Texts and labels: .csv, .tsv, .jsonl or .parquet.")],
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id; without it, the embedded model.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the texts; by default the first with a usual name.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels; by default the first with a usual name.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second texts, for models that read pairs.")] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="All edges × propagations by all metrics, instead of the paper's views.")
    ] = False,
    importance: Annotated[
        str | None,
        typer.Option(
            help="Some of blank-out, gradient, integrated-gradients, shapley (with --grid gradient-input, no shapley)."
        ),
    ] = None,
    views: Annotated[str, typer.Option(help="Some of raw, rollout, flow.")] = "raw,rollout,flow",
    blank: Annotated[
        str | None,
        typer.Option(help="What replaces a token: unk, mask, pad or remove; the first there is, by default."),
    ] = None,
    reduce: Annotated[str, typer.Option(help="Of gradients: l2, l1, times-input, abs-sum or sum.")] = "l2",
    of: Annotated[
        str, typer.Option(help="What importance measures of the answer: probability, logit, log-odds or difference.")
    ] = "probability",
    explain: Annotated[
        str, typer.Option(help="The answer that importance is of: true (the label) or predicted.")
    ] = "true",
    row: Annotated[
        str, typer.Option(help="answer: the row of the position that answers; max: the largest of all rows.")
    ] = "answer",
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="Whether special tokens are ranked too.")
    ] = True,
    signed: Annotated[
        bool, typer.Option("--signed", help="Rank importance with its sign instead of its size.")
    ] = False,
    ties: Annotated[str, typer.Option(help="mean, or authors for the formula of the paper's code.")] = "mean",
    edges: Annotated[
        str | None, typer.Option(help="With --grid: which edges, with commas between them; all by default.")
    ] = None,
    deletions: Annotated[
        str | None, typer.Option(help="With --grid: some of mask, unk, remove; those that the tokenizer has, by default.")
    ] = None,
    steps: Annotated[int, typer.Option(min=3, help="With --grid: steps of a deletion curve.")] = 10,
    sanity: Annotated[
        int, typer.Option(min=0, help="With --grid: so many texts are also scored with shuffled weights.")
    ] = 100,
    stages: Annotated[
        str, typer.Option(help="With --grid: some of scores, curves, sanity, to do them on different machines.")
    ] = "scores,curves,sanity",
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --grid: processes; one for each core, by default.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Only the first so many texts.")] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long, instead of leaving them out.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder or repository.")] = None,
    dtype: Dtype = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; a GPU if there is one, by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output",
            help="Folder for the results. --grid needs it: the same command resumes a run that was stopped.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Which method to believe, on your own texts: how well raw attention, rollout and flow rank tokens as blank-out and
    gradients do; with --grid every kind of edge and every propagation, by rank correlation and by deleting tokens."""
    source: dict[str, Any] = {"model": model, "gguf_file": gguf, "dtype": dtype}
    sources = {name: context.get_parameter_source(name) for name in context.params}
    options = {name for name, own in sources.items() if own is not None and own.name == "COMMANDLINE"}
    if grid:
        _refuse(options & PLAIN_ONLY, "does not go with --grid, where each method says it by itself: leave it out")
        texts, _ = dataset.texts_and_labels(file, text, label, pair)
        if output is None:
            raise InputError("--grid needs a folder, from which the same command resumes: give one with -o")
        result = _grid(
            source, texts[:samples], output, device=device, workers=workers, steps=steps, sanity=sanity, seed=seed,
            truncate=truncate, stages=stages.split(","), edges=None if edges is None else edges.split(","),
            deletions=None if deletions is None else deletions.split(","), say=progress,
            importances=None if importance is None else importance.split(","),
            data=file.name.encode(errors="replace").decode(),
        )  # fmt: skip
    else:
        _refuse(options & GRID_ONLY, "goes with --grid: give that too, or leave it out")
        texts, labels = dataset.texts_and_labels(file, text, label, pair)
        known: dict[str, dict[str, Any]] = {
            "blank-out": {"by": blank} if of == "probability" else {"by": blank, "of": of},
            "gradient": {"reduce": reduce, "of": of},
            "integrated-gradients": {"by": blank, "of": of},
            "shapley": {"by": blank, "of": of, "seed": seed},
        }
        result = _plain(
            {**source, "device": device}, texts, labels, file, samples,
            importance={name: known.get(name, {}) for name in (importance or IMPORTANCES).split(",")},
            views=views.split(","), explain=explain, row=row, special=special, signed=signed, ties=ties,
            truncate=truncate, seed=seed, say=progress,
        )  # fmt: skip
    if output is not None:
        for path in evaluation_files.write_folder(result, output):
            progress(f"wrote {path}")
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        Console().print(*tables(result, save="--output", use=lambda method: show_command(method, model)), sep="\n\n")


def show_command(method: Mapping[str, Any], model: str | None = None) -> str:
    """The command that shows a text by a method of the grid.

    >>> show_command({"edges": "alti", "normalize": "rows", "propagation": "rollout", "receptive_field": None}, "m")
    'attnflow show TEXT -m m --method rollout --edges alti --normalize rows'
    """
    words = ["attnflow", "show", "TEXT", *([] if model is None else ["-m", model])]
    way, edges = method["propagation"], method["edges"]
    if way == "columns":  # every position stands for its own token
        words += ["--method", "gather", "--residual", "1"]
    else:
        words += ["--method", way]
    if edges != "mean":
        words += ["--edges", edges]
        words += (
            ["--normalize", method["normalize"]]
            if way not in ("answer_rows", "answer_inputs", "gather", "columns")
            else []
        )
    if method["receptive_field"] is not None:
        words += ["--receptive-field", method["receptive_field"]]
    return shlex.join(words)


def _refuse(options: set[str], why: str) -> None:
    """Options that would do nothing are mistakes."""
    for name in sorted(options):
        raise InputError(f"--{name.replace('_', '-')} {why}")


def _plain(
    source: dict[str, Any], texts: list[Any], labels: list[Any] | None, file: Path, samples: int | None, **options: Any
) -> Evaluation:
    silence()
    import attnflow
    from attnflow.importance.question import questions, writes_words

    model = attnflow.load(**source)
    first = next((t for t in texts if not isinstance(t, str) or t.strip()), None)
    if first is not None:
        questions(model, [first], [None], truncate=True)  # a model without an answer says so before labels are read
    names = getattr(model.config, "id2label", None) or {}
    if labels is not None and not writes_words(model):
        # a model with one number has no classes
        labels = dataset.known_labels(labels, names, file) if len(names) > 1 else None
    return correlation.evaluate(model, texts[:samples], None if labels is None else labels[:samples], **options)


def _grid(source: dict[str, Any], texts: list[Any], folder: Path, **options: Any) -> Evaluation:
    silence()
    from attnflow.evaluate import grid

    try:
        return grid.run(source, texts, folder, **options)
    except KeyboardInterrupt:
        progress(f"stopped; the same command resumes from {folder}")
        raise
