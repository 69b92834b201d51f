"""`attnflow show`: one text, explained in the terminal or in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.cli.options import (
    AsJson,
    Device,
    Dtype,
    Gguf,
    Given,
    ModelName,
    Revision,
    Special,
    Target,
    Truncate,
    TrustRemoteCode,
    Words,
    progress,
    quiet,
    text_given,
)  # fmt: skip
from attnflow.errors import InputError
from attnflow.selection import read_layer, read_query


def show(
    text: Given = "the key to the cabinets",
    model: ModelName = None,
    method: Annotated[
        str,
        typer.Option(
            help="raw, rollout, flow; gather, with edges by gradients; or importance: blank-out, gradient, "
            "integrated-gradients, shapley."
        ),
    ] = "rollout",
    edges: Annotated[
        str | None,
        typer.Option(
            help="What an edge weighs instead of its attention: mean, max, effective, gradient, attention-gradient, "
            "value-norm, block-norm, alti, value-zeroing."
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(help="Position or token to explain; by default the class token, or the last token of a decoder."),
    ] = None,
    layer: Annotated[
        str, typer.Option(help="L1, L2, … as in the paper; last; or all (with --json or --output).")
    ] = "last",
    words: Words = False,
    special: Special = True,
    residual: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Weight of the residual connection; 0.5 by default, and 1 - 2/layers for gather."
        ),
    ] = None,
    normalize: Annotated[
        str | None, typer.Option(help="With --edges: rows, graph or none; as published, by default.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(help="With --edges by gradients: the class or token they are about; the model's own, by default."),
    ] = None,
    receptive_field: Annotated[
        str | None, typer.Option(help="For decoders: ratio, difference or layer; relative to uniform attention.")
    ] = None,
    target: Target = None,
    truncate: Truncate = False,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
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
    if method not in ("raw", "rollout", "flow", "gather") and not worth:
        raise InputError(
            f"method {method!r}: expected raw, rollout, flow, gather, blank-out, gradient, integrated-gradients or shapley"
        )
    for name, value in (("--normalize", normalize), ("--answer", answer)):
        if value is not None and edges is None:
            raise InputError(f"{name} goes with --edges: give that too, or leave it out")
    if answer is not None and "gradient" not in str(edges):
        raise InputError(f"--answer goes with edges by gradients, and {edges} are about no answer: leave it out")
    if edges is not None and worth:
        raise InputError(f"method {method} looks at no edges: leave --edges out")
    if method == "gather" and edges is None:
        raise InputError(
            "method gather adds up edges by gradients: give --edges attention-gradient or --edges gradient"
        )
    if method == "gather" and (words or query or layer != "last" or receptive_field is not None):
        raise InputError(
            "method gather is about tokens and the model's answer: --words, --query, --layer and --receptive-field do not "
            "go with it"
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
    share = 0.5 if residual is None else residual
    options: dict[str, Any] = (
        {"residual": share, "receptive_field": receptive_field} if method in ("rollout", "flow") else {}
    )
    as_page = output is not None and output.suffix.lower() == ".html"
    if as_page and edges is not None:
        raise InputError(
            "the page shows attention itself: --edges go with the terminal, with --json and with other files"
        )
    loaded = attnflow.load(
        model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code, gguf_file=gguf
    )
    if as_page and output is not None:
        from attnflow.view.explain import explain, traced

        trace = traced(loaded, given, target, truncate)
        chosen = read_query(query, len(trace.tokens))
        number = None if layer == "all" else read_layer(layer, trace.layer_count, "last or all")
        state = {"layer": number, "unit": "words" if words else None, "special": special, "field": receptive_field}
        page = explain(
            loaded, given, query=None if chosen == "all" else chosen, truncate=truncate, residual=share, trace=trace,
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
        about = result.provenance["answer"]
        said = f"{about['kind']}: {about['name']!r} {about['probability']:.3f}"
    else:
        trace = loaded.trace(
            given,
            target=target,
            truncate=truncate,
            edges=edges,
            normalize=normalize,
            answer=int(answer) if answer is not None and answer.isdecimal() else answer,
        )
        if words:
            trace = trace.words()
        chosen = read_query(query, len(trace.tokens))
        number = None if layer == "all" else read_layer(layer, trace.layer_count, "last or all")
        if number is None and not as_json and output is None:
            raise InputError("layer all: a table shows one layer; give --json or --output for all of them")
        if chosen == "all" and not as_json and output is None:
            raise InputError("query all: a table shows one query; give --json or --output for all of them")
        result = trace.gather(residual) if method == "gather" else getattr(trace, method)(chosen, number, **options)
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
