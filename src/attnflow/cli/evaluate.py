"""``attnflow evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow.cli.options import AsJson, Dtype, make_folder, progress, quiet
from attnflow.errors import InputError
from attnflow.evaluate import dataset as read

IMPORTANCES = "blank-out,gradient"


def evaluate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Texts and labels: .csv, .tsv, .jsonl or .parquet.")],
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id; without it, the embedded model.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the texts; found by its name if not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels; found by its name if there is one.")] = None,
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
    of: Annotated[str, typer.Option(help="What the gradient is of: probability, logit or difference.")] = "probability",
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
            help="Folder for what is found. With --grid it is needed: a run that was cut off goes on from there.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Which method to believe, on your own texts: how well raw attention, rollout and flow rank tokens as blank-out and
    gradients do; with --grid every kind of edge and every propagation, by rank correlation and by deleting tokens."""
    source: dict[str, Any] = {"model": model, "gguf_file": gguf, "dtype": dtype}
    given = {name for name, value in context.params.items() if context.get_parameter_source(name).name == "COMMANDLINE"}  # type: ignore[union-attr]
    if grid:
        _only(given, {"views", "blank", "reduce", "of", "explain", "row", "special", "signed", "ties"}, False)
        texts, _ = read.texts_and_labels(file, text, label, pair)
        _grid(
            source, texts[:samples], output, device=device, workers=workers, steps=steps, sanity=sanity, seed=seed,
            truncate=truncate, stages=stages.split(","), edges=None if edges is None else edges.split(","),
            deletions=None if deletions is None else deletions.split(","), as_json=as_json, file=file,
            importances=None if importance is None else importance.split(","),
        )  # fmt: skip
        return
    _only(given, {"edges", "deletions", "steps", "sanity", "stages", "workers"}, True)
    texts, labels = read.texts_and_labels(file, text, label, pair)
    quiet()
    import attnflow
    from attnflow.evaluate import evaluate as run
    from attnflow.evaluate import evaluate_report as report
    from attnflow.importance.answer import questions, writes_words

    loaded = attnflow.load(**source, device=device)
    first = next((t for t in texts if not isinstance(t, str) or t.strip()), None)
    if first is not None:
        questions(loaded, [first], [None], truncate=True)  # a model without an answer says so before labels are read
    classes: list[Any] | None = None
    names = getattr(loaded.config, "id2label", None) or {}
    if labels is not None and (writes_words(loaded) or len(names) > 1):  # a model with one number has no classes
        classes = labels if writes_words(loaded) else read.known_labels(labels, names, file)
    known: dict[str, dict[str, Any]] = {
        "blank-out": {"by": blank},
        "gradient": {"reduce": reduce, "of": of},
        "integrated-gradients": {"by": blank, "of": of},
        "shapley": {"by": blank, "of": of, "seed": seed},
    }
    options = {name: known.get(name, {}) for name in (importance or IMPORTANCES).split(",")}
    found = run(
        loaded, texts[:samples], None if classes is None else classes[:samples], importance=options,
        views=views.split(","), explain=explain, row=row, special=special, signed=signed, ties=ties, truncate=truncate,
        seed=seed, say=progress,
    )  # fmt: skip
    if output is not None:
        make_folder(output)
        for path in report.write(found, output):
            progress(f"wrote {path}")
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        Console().print(*report.tables(found), sep="\n\n")


def _only(given: set[str], others: set[str], grid: bool) -> None:
    """Options that would do nothing are mistakes."""
    for name in sorted(given & others):
        option = "--" + name.replace("_", "-")
        raise InputError(
            f"{option} goes with --grid: give that too, or leave it out"
            if grid
            else f"{option} does not go with --grid, where each method says it by itself: leave it out"
        )


def _grid(
    source: dict[str, Any], texts: list[Any], folder: Path | None, *, as_json: bool, file: Path, **options: Any
) -> None:
    if folder is None:
        raise InputError("--grid keeps what it has done in a folder, to go on from there: give one with -o")
    quiet()
    from attnflow.evaluate import grid, grid_report, ranking

    try:
        measured = grid.run(
            source, texts, folder, say=progress, data=file.name.encode(errors="replace").decode(), **options
        )
    except KeyboardInterrupt:
        progress(f"stopped; what is done is in {folder}, and the same command goes on from there")
        raise
    summary = ranking.summarize(measured, seed=options["seed"])
    for path in grid_report.write(measured, summary, folder):
        progress(f"wrote {path}")
    if as_json:
        print(json.dumps(summary))
    else:
        Console().print(*grid_report.tables(summary), sep="\n\n")
