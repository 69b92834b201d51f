"""``attnflow corpus run INPUT OUTPUT``, ``attnflow corpus report OUTPUT`` and ``attnflow corpus export OUTPUT FILE``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attnflow.cli.options import (
    AllowPickle,
    AsJson,
    Device,
    Dtype,
    EdgeWeights,
    Gguf,
    ModelName,
    Normalize,
    Of,
    Residual,
    Revision,
    Truncate,
    TrustRemoteCode,
    Words,
    progress,
    read_share,
    start,
)
from attnflow.corpus.corpus_options import UNITS
from attnflow.corpus.export import TOP
from attnflow.method_table import TEXT_METHODS
from attnflow.source_methods import METHODS

FAILED = 3
"""Exit status of a finished job in which some texts failed."""

ANSWERS, RAY = "With --answers", "With --ray"
"""Titles of panels in --help."""


app = typer.Typer(
    no_args_is_help=True, help="Explain many texts, save the results as a Parquet dataset, and make a page from it."
)


@app.command("run")
def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="A file or folder (.txt, .csv, .tsv, .jsonl, each also as .gz or .xz; .parquet)."
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help="Folder to write the Parquet dataset to; attnflow corpus export makes one CSV of it."
        ),
    ],
    model: ModelName = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help=f"Methods, separated by commas: {', '.join(TEXT_METHODS)}; by default, rollout, which describes a hidden "
            "state. To explain answers, use answer_inputs (classifiers) or answer_rows (decoders). With --answers: "
            f"{', '.join(METHODS)}; by default, the best one for the unit.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            help="Position or token to explain, or all; by default, the class token, or the last token of a decoder."
        ),
    ] = None,
    layer: Annotated[str, typer.Option(help="Layers to explain: last, all, or numbers such as L1,L2.")] = "last",
    words: Words = False,
    edges: EdgeWeights = None,
    normalize: Normalize = None,
    residual: Residual = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="The class or token to explain; by default, the model's prediction. With --answers: the answer to every "
            "prompt."
        ),
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Input column with the answer to explain for each text.")
    ] = None,
    of: Of = None,
    truncate: Truncate = False,
    answers: Annotated[
        bool,
        typer.Option(
            "--answers", help="Treat texts as prompts, and explain the answers of a language model."
        ),
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", "--max-new-tokens", min=1, metavar="N",
            help="Maximum number of tokens that the model writes; by default, 40.", rich_help_panel=ANSWERS,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help=f"Unit of the values: {', '.join(UNITS)}; by default, token.", rich_help_panel=ANSWERS, show_default=False
        ),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Explain only this part of each answer, quoted exactly.", rich_help_panel=ANSWERS
        ),
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Which occurrence of --span in each answer, counting from 1.", rich_help_panel=ANSWERS
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Whether to send prompts through the chat template; by default, if the tokenizer has one.",
            rich_help_panel=ANSWERS,
            show_default=False,
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the texts; by default, found by its name.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column with the second texts, for models that read pairs.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Column with the ids; by default, id if there is one.")] = None,
    whole_files: Annotated[bool, typer.Option("--whole-files", help="Read each .txt file as one text.")] = False,
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Use only the first N texts.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted job, or start a new one if there is none.")
    ] = False,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens per batch; by default, 2,048, or 65,536 on a GPU.")
    ] = None,
    shard_texts: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N",
            help="Maximum number of texts per shard; by default, 64 to 4,096, depending on the method and the device.",
        ),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run on Ray: a local cluster, or the one at --ray-address.")] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Address of a Ray cluster whose machines can all read INPUT, OUTPUT and the model.",
            rich_help_panel=RAY,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of workers; by default, one per GPU or two cores.", rich_help_panel=RAY
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(help="GPUs per worker; fractions such as 0.25 share a GPU.", rich_help_panel=RAY),
    ] = None,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    show: Annotated[
        str, typer.Option("--progress", help="auto (a progress bar in a terminal), json (one line per second) or none.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Explain every text in a file or folder, and save a Parquet dataset with one row per text.

    With --answers, the texts are prompts, and the model's answers are explained.

    A text that fails becomes a row with an error message, and the exit status is
    3. Use --resume to continue an interrupted job, and attnflow corpus report to
    make a page from the results.
    """
    start()
    from attnflow.corpus import explain_corpus
    from attnflow.jobs.store import read_manifest

    try:
        sums = explain_corpus(
            source, output, model, methods=",".join(method) if method else None, layers=layer, query=query,
            residual=read_share(residual), words=words, truncate=truncate,
            edges=edges, normalize=normalize, answer=answer,
            answer_column=answer_column, of=of, answers=answers, max_new_tokens=tokens, unit=unit, span=span,
            occurrence=occurrence, chat=chat, text=text, pair=pair, id=id,
            whole_files=whole_files, samples=samples, resume=resume, batch_tokens=batch_tokens,
            shard_texts=shard_texts, ray=ray, ray_address=ray_address, workers=workers,
            gpus_per_worker=gpus_per_worker, progress=show, revision=revision, device=device, dtype=dtype,
            trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, gguf_file=gguf,
        )  # fmt: skip
    except KeyboardInterrupt:
        texts = sum(line["texts"] for line in read_manifest(output) if "part" in line)
        progress(
            f"stopped after {texts:,} text{'s' * (texts != 1)}, stored in {output}; run the same command with --resume to "
            "continue"
        )
        raise
    failed = sum(sums["errors"].values())
    if not method and not answers:
        progress(
            "by rollout: where information could have come from; --method answer_inputs explains the answers of a "
            "classifier, and --answers those of a language model"
        )
    if as_json:
        print(json.dumps(sums))
    else:
        shards = f"{sums['parts']:,} shard" + "s" * (sums["parts"] != 1)
        print(f"{sums['texts']:,} text{'s' * (sums['texts'] != 1)}, {sums['tokens']:,} tokens, {shards} in {output}")
        print(f"explained: {sums['texts'] - failed:,}")
        for kind, number in sums["errors"].items():
            print(f"error, {kind}: {number:,}")
        if failed:
            print("the columns error and message of each failed row say why")
        now = f"{sums['texts'] - sums['resumed']:,} of them now, " if sums["resumed"] else ""
        print(f"{now}in {sums['seconds']:.1f} s")
    if failed:
        raise typer.Exit(FAILED)


@app.command("report")
def report(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of a corpus job.")],
    folder: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the page; by default, OUTPUT/_report.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(metavar="LAYER", help="Layer of the scores, such as L3; by default, the last one.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--input", help="Path of the job's INPUT, if it has moved since; its columns split the texts."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a page from the results of a job.

    The page shows which words answers rest on, or which receive attention, by
    prediction and by input column, with examples."""
    start()
    from attnflow.corpus.summary import summarize
    from attnflow.view.corpus_page import write

    progress(f"wrote {write(output, folder, layer=layer, source=source)}")
    if as_json:
        print(json.dumps(summarize(output, layer=layer, source=source)))


@app.command("export")
def export(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of a corpus job.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The .csv file to write.")],
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many tokens to list for each method and layer.")
    ] = TOP,
) -> None:
    """Make one CSV from the results of a job.

    It has a row per text: its id, text and prediction, and the tokens with the
    largest scores of each method and layer."""
    from attnflow.corpus.export import export_corpus

    count = export_corpus(output, file, top=top)
    progress(f"wrote {file}: {count:,} row{'s' * (count != 1)}")
