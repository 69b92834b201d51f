"""`attnflow similarity`: which words of two texts make them similar to a sentence-embedding model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow.cli.options import (
    STAGES,
    AllowPickle,
    AsJson,
    Device,
    Dtype,
    Revision,
    Special,
    Truncate,
    TrustRemoteCode,
    check_output,
    progress,
    read_text,
    start,
)
from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.jobs.progress import Stages

if TYPE_CHECKING:
    from attnflow.similarity import Similarity

PAGE = ("blank-out", "answer_inputs")
"""Methods that a page always has, besides the one from --method."""


def similarity(
    first: Annotated[str, typer.Argument(help="A text, or - to read it from standard input.")],
    second: Annotated[str, typer.Argument(help="The other text.")],
    model: Annotated[
        str | None,
        typer.Option(
            "-m", "--model", help="Folder or hub id of a sentence-embedding model (required).", show_default=False
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="How to measure what a word adds: blank-out, gradient, integrated-gradients, shapley, answer_inputs, "
            "answer_rows, gather or rollout."
        ),
    ] = "blank-out",
    tokens: Annotated[bool, typer.Option("--tokens", help="Show subwords instead of words.")] = False,
    special: Special = True,
    truncate: Truncate = False,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Save a page with both texts (.html) or the data (.json).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how similar two texts are to a sentence-embedding model, and which words make them similar."""
    start()
    from attnflow.similarity import METHODS, Sides

    if model is None:
        raise InputError(
            "the embedded model is a classifier and embeds no sentences: give the folder or hub id of a "
            "sentence-embedding model with --model"
        )
    if method not in METHODS:
        raise InputError(f"--method {method!r}: expected one of {', '.join(METHODS)}")
    check_output(output, (".html", ".json"))
    kind = None if output is None else output.suffix.lower()
    import attnflow

    texts = read_text(first), read_text(second)
    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        loaded = attnflow.load(
            model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )  # fmt: skip
        stages("model", 0, 1)
        result = loaded.similarity(*texts, truncate=truncate)
        sides = result.by(method, words=not tokens)
    if output is not None and kind == ".html":
        others = [result.by(name, words=not tokens) for name in PAGE if name != method and _has(result, name)]
        result.page(sides, *others).save(output)
    elif output is not None:
        content = json.dumps(result.to_dict(sides), ensure_ascii=False, allow_nan=False)
        write_whole(output, lambda beside: beside.write_text(content, "utf-8"))
    if output is not None:
        progress(f"wrote {output}")
    if as_json:
        print(json.dumps(result.to_dict(sides), ensure_ascii=False, allow_nan=False))
    elif output is None:
        print(f"{result.measure} similarity: {result.value:.4f}")
        for side in sides if special else Sides(*(side.without_special() for side in sides)):
            side.show()


def _has(result: Similarity, method: str) -> bool:
    """Return whether a page can include the method: answer edges need a measure that is linear in the embedding."""
    return method != "answer_inputs" or result.measure in ("cosine", "dot")
