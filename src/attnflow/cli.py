"""The command. Data on stdout, progress on stderr; a user's mistake is one sentence and exit status 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow import __version__
from attnflow.bench import commands as bench
from attnflow.command import (
    AsJson,
    Device,
    Dtype,
    Given,
    ModelName,
    Residual,
    Special,
    Target,
    Truncate,
    Words,
    layer_given,
    make_folder,
    progress,
    query_given,
    quiet,
    text_given,
)
from attnflow.errors import InputError
from attnflow.experiments import commands as experiments
from attnflow.server import commands as server
from attnflow.view import commands as view

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What flows where inside a transformer.")
app.add_typer(bench.app, name="bench")
app.add_typer(experiments.train, name="train")
app.command()(experiments.reproduce)
app.command()(view.compare)
app.command()(server.serve)


def main() -> None:
    try:
        app()
    except InputError as e:
        print(f"attnflow: {e}", file=sys.stderr)
        sys.exit(2)
    except OSError as e:  # a full disk, a closed pipe
        print(f"attnflow: {e.strerror or e}", file=sys.stderr)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def attnflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def show(
    text: Given = "the key to the cabinets",
    model: ModelName = None,
    method: Annotated[
        str, typer.Option(help="raw, rollout, flow; or importance: blank-out, gradient, integrated-gradients, shapley.")
    ] = "rollout",
    query: Annotated[
        str | None,
        typer.Option(help="Position or token to explain; by default the class token, or the last token of a decoder."),
    ] = None,
    layer: Annotated[
        str, typer.Option(help="L1, L2, … as in the paper; last; or all (with --json or --output).")
    ] = "last",
    words: Words = False,
    special: Special = True,
    residual: Residual = 0.5,
    receptive_field: Annotated[
        str | None, typer.Option(help="For decoders: ratio, difference or layer; relative to uniform attention.")
    ] = None,
    target: Target = None,
    truncate: Truncate = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder or repository.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the interactive page (.html), a picture (.svg, .pdf, .png) or the data (.json, .npz, .csv, "
            ".parquet).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which input tokens a hidden state comes from: one forward pass, shown as a table."""
    worth = method in ("blank-out", "gradient", "integrated-gradients", "shapley")
    if method not in ("raw", "rollout", "flow") and not worth:
        raise InputError(
            f"method {method!r}: expected raw, rollout, flow, blank-out, gradient, integrated-gradients or shapley"
        )
    if worth and (words or query or layer != "last" or target is not None or receptive_field is not None):
        raise InputError(
            f"method {method} is about tokens and the model's answer: --words, --query, --layer, --target and "
            "--receptive-field do not go with it"
        )
    if method == "raw" and receptive_field is not None:
        raise InputError(
            "receptive_field goes with rollout and flow: raw attention of one layer has no field to compare with"
        )
    import attnflow

    quiet()
    given = text_given(text)
    options: dict[str, Any] = (
        {"residual": residual, "receptive_field": receptive_field} if method in ("rollout", "flow") else {}
    )
    loaded = attnflow.load(
        model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code, gguf_file=gguf
    )
    if output is not None and output.suffix.lower() == ".html":
        from attnflow.view.explain import explain, traced

        trace = traced(loaded, given, target, truncate)
        chosen = query_given(query, len(trace.tokens))
        number = None if layer == "all" else layer_given(layer, trace.layer_count, "last or all")
        state = {"layer": number, "unit": "words" if words else None, "special": special, "field": receptive_field}
        page = explain(
            loaded, given, query=None if chosen == "all" else chosen, truncate=truncate, residual=residual, trace=trace,
            importance=list(dict.fromkeys(["gradient", "blank-out", *([method] if worth else [])])),
            state={name: value for name, value in state.items() if value is not None},
        )  # fmt: skip
        page.save(output)
        progress(f"wrote {output}")
        if as_json:
            print(json.dumps(page.document))
        return
    said = None
    if worth:
        result = getattr(loaded, method.replace("-", "_"))(given, truncate=truncate)
        answer = result.provenance["answer"]
        said = f"{answer['kind']}: {answer['name']!r} {answer['probability']:.3f}"
    else:
        trace = loaded.trace(given, target=target, truncate=truncate)
        if words:
            trace = trace.words()
        chosen = query_given(query, len(trace.tokens))
        number = None if layer == "all" else layer_given(layer, trace.layer_count, "last or all")
        if number is None and not as_json and output is None:
            raise InputError("layer all: a table shows one layer; give --json or --output for all of them")
        if chosen == "all" and not as_json and output is None:
            raise InputError("query all: a table shows one query; give --json or --output for all of them")
        result = getattr(trace, method)(query=chosen, layer=number, **options)
        if trace.prediction is not None:
            answers = ", ".join(f"{label!r} {chance:.3f}" for label, chance in trace.prediction.top[:3])
            said = f"{trace.prediction.kind}: {answers}"
    if not special:
        result = result.without_special()
    if output is not None:
        result.save(output)
        progress(f"wrote {output}")
    if as_json:
        print(json.dumps(result.to_dict()))
    elif output is None:
        if len(result.queries) > 1:
            raise InputError(
                "this model has no class token, so there is no query to show by default: give --query, a position from 0 "
                f"to {len(result.queries) - 1} or a token, or --json for all of them"
            )
        if said is not None:
            print(said)
        result.show()


@app.command()
def evaluate(
    file: Annotated[Path, typer.Argument(help="Texts and labels: .csv, .tsv, .jsonl or .parquet.")],
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id; without it, the embedded model.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the texts; found by its name if not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels; found by its name if there is one.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second texts, for models that read pairs.")] = None,
    importance: Annotated[
        str, typer.Option(help="Some of blank-out, gradient, integrated-gradients, shapley.")
    ] = "blank-out,gradient",
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
    samples: Annotated[int | None, typer.Option(min=1, help="Only the first so many texts.")] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long, instead of leaving them out.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap and of sampled Shapley values.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; a GPU if there is one, by default.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for evaluation.json and correlations.csv.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How well raw attention, rollout and flow rank tokens as blank-out and gradients do, on your own texts."""
    from attnflow.evaluate import read

    texts, given = read.texts_and_labels(file, text, label, pair)
    quiet()
    import attnflow
    from attnflow.evaluate import evaluate as run
    from attnflow.evaluate import report
    from attnflow.importance.answer import questions, writes_words

    loaded = attnflow.load(model, device=device)
    first = next((t for t in texts if not isinstance(t, str) or t.strip()), None)
    if first is not None:
        questions(loaded, [first], [None], truncate=True)  # a model without an answer says so before labels are read
    labels: list[Any] | None = None
    names = getattr(loaded.config, "id2label", None) or {}
    if given is not None and (writes_words(loaded) or len(names) > 1):  # a model with one number has no classes
        labels = given if writes_words(loaded) else read.known_labels(given, names, file)
    known: dict[str, dict[str, Any]] = {
        "blank-out": {"by": blank},
        "gradient": {"reduce": reduce, "of": of},
        "integrated-gradients": {"by": blank, "of": of},
        "shapley": {"by": blank, "of": of, "seed": seed},
    }
    options = {name: known.get(name, {}) for name in importance.split(",")}
    found = run(
        loaded, texts[:samples], None if labels is None else labels[:samples], importance=options, views=views.split(","),
        explain=explain, row=row, special=special, signed=signed, ties=ties, truncate=truncate, seed=seed, say=progress,
    )  # fmt: skip
    if output is not None:
        make_folder(output)
        for path in report.write(found, output):
            progress(f"wrote {path}")
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        Console().print(*report.tables(found), sep="\n\n")


@app.command()
def env(as_json: AsJson = False) -> None:
    """What a bug report needs: versions, processor, GPU, and whether the compiled core is there."""
    from attnflow.environment import environment

    found = environment()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")
