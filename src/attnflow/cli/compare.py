"""The command `attnflow compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attnflow.cli.options import (
    STAGES,
    AllowPickle,
    AsJson,
    Budget,
    Device,
    Dtype,
    Gguf,
    ModelName,
    Of,
    Residual,
    Revision,
    Special,
    Target,
    TextArgument,
    Truncate,
    TrustRemoteCode,
    Words,
    check_measure,
    check_output,
    check_reads_text,
    progress,
    read_importance,
    read_share,
    read_text,
    start,
)
from attnflow.jobs.progress import Stages
from attnflow.selection import read_layer, read_query


def compare(
    text: TextArgument = "the key to the cabinets",
    model: ModelName = None,
    query: Annotated[
        str | None, typer.Option(help="Position or token to explain; by default, the position that answers.")
    ] = None,
    layer: Annotated[str, typer.Option(help="Layer to explain: L1, L2, … or last.")] = "last",
    words: Words = False,
    special: Special = True,
    residual: Residual = None,
    target: Target = None,
    of: Of = None,
    importance: Budget = None,
    truncate: Truncate = False,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Save a picture (.svg, .pdf, .png) or the data (.json, .csv)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show answer edges, raw attention, rollout, flow, gradient and blank-out for one text, side by side, and how well
    they agree."""
    start()
    from attnflow.view import comparison

    share = read_share(residual)
    budget = read_importance(importance)
    check_output(output, comparison.WRITERS)
    import attnflow

    check_measure(of)
    text = read_text(text)
    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        loaded = attnflow.load(
            model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle, gguf_file=gguf,
        )  # fmt: skip
        check_reads_text(loaded, text)
        stages("model", 0, 1)
        trace = loaded.trace(text, target=target, truncate=truncate)
        result = comparison.compare(
            loaded, text, query=read_query(query, len(trace.tokens)), layer=read_layer(layer, trace.layer_count),
            words=words, special=special, residual=0.5 if share is None else share, truncate=truncate,
            trace=trace, importance=budget, of=of, progress=stages,
        )  # fmt: skip
    if output is not None:
        result.save(output)
        progress(f"wrote {output}")
    if as_json:
        print(json.dumps(result.to_dict(), allow_nan=False))
    elif output is None:
        result.show()
