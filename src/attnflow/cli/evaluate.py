"""`attnflow evaluate`: which method to trust, measured on labelled texts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow.cli.options import LOADING, STAGES, AllowPickle, AsJson, Dtype, progress, start
from attnflow.errors import InputError
from attnflow.evaluate import Evaluation, correlation, dataset, evaluation_files
from attnflow.evaluate.evaluation_tables import tables
from attnflow.jobs.progress import Stages
from attnflow.source_methods import ANSWER_WAYS

GRID = "With --grid"
"""Title of a panel in --help."""

IMPORTANCES = "blank-out,gradient"
PLAIN_ONLY = {"views", "blank", "reduce", "of", "explain", "special", "signed"}
GRID_ONLY = {"edges", "deletions", "steps"}


def evaluate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File with texts and labels: .csv, .tsv, .jsonl or .parquet.")],
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Model folder or hub id; by default, the embedded model.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the texts; by default, found by its name.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the labels; by default, found by its name.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column with the second texts, for models that read pairs.")] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Evaluate every combination of edges and propagation with all metrics.")
    ] = False,
    importance: Annotated[
        str | None,
        typer.Option(
            help="Importance to compare with: blank-out, gradient, integrated-gradients, shapley (with --grid: "
            "gradient-input instead of shapley)."
        ),
    ] = None,
    views: Annotated[str, typer.Option(help="Methods to evaluate: raw, rollout, flow.")] = "raw,rollout,flow",
    blank: Annotated[
        str | None,
        typer.Option(help="What replaces a token: unk, mask, pad or remove; by default, the first that the tokenizer has."),
    ] = None,
    reduce: Annotated[str, typer.Option(help="How to reduce gradients: l2, l1, times-input, abs-sum or sum.")] = "l2",
    of: Annotated[
        str, typer.Option(help="What importance measures: probability, logit, log-odds or difference.")
    ] = "probability",
    explain: Annotated[
        str, typer.Option(help="Which answer to explain: true (the label) or predicted.")
    ] = "true",
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="Whether to rank special tokens too.")
    ] = True,
    signed: Annotated[
        bool, typer.Option("--signed", help="Rank importance by signed value instead of size.")
    ] = False,
    edges: Annotated[
        str | None, typer.Option(help="Edges to evaluate, separated by commas; by default, all.", rich_help_panel=GRID)
    ] = None,
    deletions: Annotated[
        str | None,
        typer.Option(help="How to delete tokens: mask, unk, remove; by default, all that work.", rich_help_panel=GRID),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(min=3, metavar="N", help="Number of steps in a deletion curve.", rich_help_panel=GRID),
    ] = 10,
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Use only the first N texts.")] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long, instead of skipping them.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")] = 0,
    gguf: Annotated[
        str | None,
        typer.Option(help="Name of a GGUF file in the model folder or repository.", rich_help_panel=LOADING),
    ] = None,
    dtype: Dtype = "auto",
    allow_pickle: AllowPickle = False,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, …; by default, a GPU if there is one.", rich_help_panel=LOADING),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Folder for the results."),
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure which method to trust on your own texts.

    Without --grid, compare how raw attention, rollout and flow rank tokens with
    how blank-out and gradients rank them. With --grid, evaluate every kind of
    edge with every propagation, by rank correlation and by deleting tokens."""
    if output is not None and output.suffix.lower() in (".html", ".htm"):
        raise InputError(f"--output {str(output)!r}: expected a folder, for the results as .json and .csv")
    source: dict[str, Any] = {"model": model, "gguf_file": gguf, "dtype": dtype, "allow_pickle": allow_pickle}
    sources = {name: context.get_parameter_source(name) for name in context.params}
    options = {name for name, own in sources.items() if own is not None and own.name == "COMMANDLINE"}
    if grid:
        _refuse(options & PLAIN_ONLY, "cannot be combined with --grid, which sets it for each method: leave it out")
        texts, _ = dataset.texts_and_labels(file, text, label, pair)
        result = _grid(
            {**source, "device": device}, texts[:samples], steps=steps, seed=seed, truncate=truncate,
            edges=None if edges is None else edges.split(","),
            deletions=None if deletions is None else deletions.split(","),
            importances=None if importance is None else importance.split(","),
            data=file.name.encode(errors="replace").decode(),
        )  # fmt: skip
    else:
        _refuse(options & GRID_ONLY, "needs --grid: add --grid, or leave it out")
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
            views=views.split(","), explain=explain, special=special, signed=signed, truncate=truncate, seed=seed,
        )  # fmt: skip
    if output is not None:
        with Stages({"write": "drawing and writing the results"}) as drawing:
            drawing("write", 0, 1)
            paths = list(evaluation_files.write_folder(result, output))
        for path in paths:
            progress(f"wrote {path}")
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        Console().print(*tables(result, save="--output", use=lambda method: show_command(method, model)), sep="\n\n")


def show_command(method: Mapping[str, Any], model: str | None = None) -> str:
    """Return the command that shows a text with a method of the grid.

    >>> show_command({"edges": "alti", "normalize": "rows", "propagation": "rollout", "receptive_field": None}, "m")
    'attnflow show TEXT -m m --method rollout --edges alti --normalize rows'
    """
    words = ["attnflow", "show", "TEXT", *([] if model is None else ["-m", model])]
    way, edges = method["propagation"], method["edges"]
    words += ["--method", way]
    if edges != "mean":
        words += ["--edges", edges]
        words += [] if way in ANSWER_WAYS else ["--normalize", method["normalize"]]
    if method["receptive_field"] is not None:
        words += ["--receptive-field", method["receptive_field"]]
    return shlex.join(words)


def _refuse(options: set[str], why: str) -> None:
    """Refuse options that would have no effect."""
    for name in sorted(options):
        raise InputError(f"--{name.replace('_', '-')} {why}")


def _plain(
    source: dict[str, Any], texts: list[Any], labels: list[Any] | None, file: Path, samples: int | None, **options: Any
) -> Evaluation:
    start()
    import attnflow
    from attnflow.importance.question import questions, writes_words

    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        model = attnflow.load(**source)
    first = next((t for t in texts if not isinstance(t, str) or t.strip()), None)
    if first is not None:
        questions(model, [first], [None], truncate=True)  # refuse a model without an answer before reading labels
    names = getattr(model.config, "id2label", None) or {}
    if labels is not None and not writes_words(model):
        # a model with a single output has no classes
        labels = dataset.known_labels(labels, names, file) if len(names) > 1 else None
    with Stages({"evaluate": "evaluating"}) as stages:
        stages("evaluate", 0, 1)
        own = None if labels is None else labels[:samples]
        return correlation.evaluate(model, texts[:samples], own, say=stages.say, **options)


def _grid(source: dict[str, Any], texts: list[Any], **options: Any) -> Evaluation:
    start()
    import attnflow
    from attnflow.evaluate import grid

    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        model = attnflow.load(**source)
    with Stages({"grid": "evaluating"}) as stages:
        stages("grid", 0, 1)
        return grid.run(model, texts, say=stages.say, **options)
