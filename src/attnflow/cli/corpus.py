"""``attnflow corpus run INPUT OUTPUT`` and ``attnflow corpus report OUTPUT``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attnflow.capture.silence import silence
from attnflow.cli.options import (
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
    Sinks,
    Truncate,
    TrustRemoteCode,
    Words,
    progress,
    read_answer,
    read_share,
)
from attnflow.corpus.corpus_options import UNITS
from attnflow.method_table import TEXT_METHODS
from attnflow.source_methods import METHODS

FAILED = 3
"""Exit status of a finished job in which some texts failed."""


app = typer.Typer(no_args_is_help=True, help="Explain many texts, into a Parquet dataset; make a page of it.")


@app.command("run")
def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file or folder (.txt, .csv, .tsv, .jsonl, also .gz, .xz, .bz2; .parquet, .arrow), a saved Hugging Face "
            "dataset, or hf://datasets/OWNER/NAME.",
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder for the Parquet dataset.")],
    model: ModelName = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Some of {', '.join(TEXT_METHODS)}, with commas between them; rollout by default. With --answers some of "
            f"{', '.join(METHODS)}; by default the one that is best for the unit.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            help="Position or token to explain, or all; by default the class token, or the last token of a decoder."
        ),
    ] = None,
    layer: Annotated[str, typer.Option(help="last, all, or some of L1, L2, … with commas between them.")] = "last",
    words: Words = False,
    edges: EdgeWeights = None,
    normalize: Normalize = None,
    residual: Residual = None,
    sinks: Sinks = "keep",
    answer: Annotated[
        str | None,
        typer.Option(
            help="The class or token that answer edges, importance and edges by gradients are about, for all texts; the "
            "model's own, by default. With --answers, the answer to every prompt."
        ),
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the input that has the answer of each text.")
    ] = None,
    of: Of = None,
    receptive_field: Annotated[
        str | None, typer.Option(help="For decoders: ratio, difference or layer; relative to uniform attention.")
    ] = None,
    truncate: Truncate = False,
    memory: Annotated[
        str, typer.Option(help="linear makes no matrix: raw attention and rollout of texts of any length.")
    ] = "graph",
    answers: Annotated[
        bool,
        typer.Option(
            "--answers", help="Texts are prompts: explain what a language model writes after each, or --answer-column."
        ),
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", "--max-new-tokens", min=1, metavar="N",
            help="With --answers: how many tokens the model writes at most; 40 by default.",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help=f"With --answers: what values are over, {', '.join(UNITS)}; token by default.", show_default=False
        ),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="With --answers: explain this part of each answer, written as it stands there."),
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Which one, where the span stands in an answer several times; from 1."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="With --answers: whether prompts go through the model's chat template. They do wherever the tokenizer has "
            "one, by default.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the texts; by default one with a usual name.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second texts, for models that read pairs.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Column of the ids; the column id, if there is one.")] = None,
    whole_files: Annotated[bool, typer.Option("--whole-files", help="Each .txt file is one text.")] = False,
    split: Annotated[str | None, typer.Option(help="Of a Hugging Face dataset, for example train.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Only the first so many texts.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a job was cut off; begins one if there is none.")
    ] = False,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that run together; 2,048 by default, and 65,536 on a GPU.")
    ] = None,
    shard_texts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Texts in one shard of the output, at most; by default 1,024, and 4,096 on a GPU; 256 where each text "
            "takes passes of its own, and 64 prompts.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that read, tokenize and write beside the model, for methods that explain many texts at once; "
            "none by default where it runs on a CPU, and on a GPU one for each core but two.",
        ),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="On Ray: a local cluster, or the one of --ray-address.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; every machine must see INPUT, OUTPUT and the model.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --ray: workers, each with a model; one a GPU or two cores, by default.")
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(help="With --ray: how much of a GPU each worker takes, for example 0.25, or how many whole ones."),
    ] = None,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    show: Annotated[
        str, typer.Option("--progress", help="auto: a bar in a terminal; json: a line of JSON a second; none.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Explain every text of a file or folder, into a Parquet dataset with a row for each.

    --method is any that attnflow show has. With --answers texts are prompts, and what a language model answers to each is
    explained.

    A text that fails becomes a row with its error, and the exit status is then 3. --resume goes on with a job that was cut
    off. attnflow corpus report OUTPUT makes a page of the result.
    """
    from attnflow.corpus import explain_corpus
    from attnflow.jobs.store import read_manifest

    silence()
    try:
        sums = explain_corpus(
            source, output, model, methods=",".join(method) if method else None, layers=layer, query=query,
            residual=read_share(residual), receptive_field=receptive_field, words=words, truncate=truncate, memory=memory,
            edges=edges, normalize=normalize, sinks=sinks, answer=answer if answers else read_answer(answer),
            answer_column=answer_column, of=of, answers=answers, max_new_tokens=tokens, unit=unit, span=span,
            occurrence=occurrence, chat=chat, text=text, pair=pair, id=id,
            whole_files=whole_files, split=split, samples=samples, resume=resume, batch_tokens=batch_tokens,
            shard_texts=shard_texts, processes=processes, ray=ray, ray_address=ray_address, workers=workers,
            gpus_per_worker=gpus_per_worker, progress=show, revision=revision, device=device, dtype=dtype,
            trust_remote_code=trust_remote_code, gguf_file=gguf,
        )  # fmt: skip
    except KeyboardInterrupt:
        texts = sum(line["texts"] for line in read_manifest(output) if "part" in line)
        progress(f"stopped; {texts:,} texts are finished in {output}, and the same command with --resume goes on")
        raise
    failed = sum(sums["errors"].values())
    if as_json:
        print(json.dumps(sums))
    else:
        shards = f"{sums['parts']:,} shard" + "s" * (sums["parts"] != 1)
        print(f"{sums['texts']:,} texts, {sums['tokens']:,} tokens, {shards} in {output}")
        print(f"explained: {sums['texts'] - failed:,}")
        for kind, number in sums["errors"].items():
            print(f"error, {kind}: {number:,}")
        if failed:
            print("why, for each: the columns error and message of its row")
        now = f"{sums['texts'] - sums['resumed']:,} of them now, " if sums["resumed"] else ""
        print(f"{now}in {sums['seconds']:.1f} s")
    if failed:
        raise typer.Exit(FAILED)


@app.command("report")
def report(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The folder of a job.")],
    folder: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the page; OUTPUT/_report by default.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Where the model lies, unless its name says so from here.")
    ] = None,
    texts: Annotated[
        int, typer.Option(min=1, help="Texts for each two methods, of those on which they disagree the most.")
    ] = 20,
    source: Annotated[
        str | None,
        typer.Option(
            "--input", help="Where the job's INPUT lies, unless its path says so from here: its columns are splits."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a page of a job's result: which words receive attention, split by prediction and by columns of the input, with
    examples; how far the methods agree, and the texts on which they disagree the most, each with its interactive page."""
    from attnflow.corpus.summary import summarize
    from attnflow.view.corpus_page import write

    silence()
    page, *_ = write(output, folder, model=model, texts=texts, source=source, say=progress)
    progress(f"wrote {page}")
    if as_json:
        print(json.dumps(summarize(output, texts=texts, source=source)))
