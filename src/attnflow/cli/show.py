"""`attnflow show`: explain one text in the terminal or in a file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.cli.heads_option import Heads, check_heads, one_head
from attnflow.cli.options import (
    STAGES,
    AllowPickle,
    AsJson,
    Budget,
    Device,
    Dtype,
    EdgeWeights,
    Gguf,
    ImageFile,
    ModelName,
    Normalize,
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
    deliver,
    one_image,
    progress,
    read_importance,
    read_share,
    read_text,
    start,
)
from attnflow.errors import AttentionWarning, InputError, LongAnswer
from attnflow.files import PICTURES
from attnflow.jobs.progress import Stages
from attnflow.method_table import IMPORTANCE, LAYERED, TEXT_METHODS, check_options, method_name
from attnflow.result_files import WRITERS
from attnflow.selection import read_layer, read_query
from attnflow.source_methods import ANSWER_WAYS, INPUTS, METHOD

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace
    from attnflow.view.page import Page

FILES = (".html", *PICTURES, *WRITERS)
ON_A_PAGE = (*LAYERED, *ANSWER_WAYS, *IMPORTANCE)
"""Methods that the page of a text has; the page of another one shows its values only."""


def show(
    text: TextArgument = "the key to the cabinets",
    model: ModelName = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="To explain the answer: answer_inputs, answer_rows, blank-out, gradient, integrated-gradients, shapley. "
            "To explain a hidden state: raw, rollout, flow. By default, the best method for the model's answer, or "
            "rollout with --query and other options about hidden states.",
            show_default=False,
        ),
    ] = None,
    edges: EdgeWeights = None,
    query: Annotated[
        str | None,
        typer.Option(help="Position or token to explain; by default, the class token, or the last token of a decoder."),
    ] = None,
    layer: Annotated[
        str, typer.Option(help="Layer to explain: L1, L2, …, last, or all (with --json or --output).")
    ] = "last",
    images: ImageFile = None,
    heads: Heads = None,
    words: Words = False,
    special: Special = True,
    residual: Residual = None,
    normalize: Normalize = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="The class (by name or number) or the text of a token to explain, or with importance in a language model "
            "a text of several tokens; by default, the model's prediction."
        ),
    ] = None,
    of: Of = None,
    importance: Budget = None,
    receptive_field: Annotated[
        str | None, typer.Option(help="For decoders: correct for uniform attention by ratio, difference or layer.")
    ] = None,
    target: Target = None,
    truncate: Truncate = False,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Save a page (.html), a picture (.svg, .pdf, .png) or the data (.json, .npz, .csv, .parquet).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which input tokens the model's answer or a hidden state comes from."""
    as_page = output is not None and output.suffix.lower() == ".html"
    image = one_image(images)
    if image is not None and (target is not None or words):
        raise InputError("--image cannot be combined with --target or --words: leave them out")
    at_state = bool(query or layer != "last" or receptive_field is not None)
    by_default = method is None
    share = read_share(residual)
    budget = read_importance(importance)
    options = {
        "words": words or None, "query": query, "layers": None if layer == "last" else layer, "edges": edges,
        "normalize": normalize, "residual": share,
        "receptive_field": receptive_field, "answer": answer, "of": of, "target": target,
    }  # fmt: skip
    chosen = {name: value for name, value in options.items() if value is not None}
    if heads is not None:
        check_heads(heads, method, chosen)
    if method is None:
        about_state = at_state or target is not None or residual is not None or normalize is not None
        method = "rollout" if about_state or edges not in (None, "answer") else METHOD
    own = method_name(method)
    if own not in TEXT_METHODS:
        *others, last = (name.replace("_", "-") if name in IMPORTANCE else name for name in TEXT_METHODS)
        raise InputError(f"--method {method!r}: expected {', '.join(others)} or {last}")
    if heads is None:
        check_options([own], chosen)
    if budget is not None and not as_page:
        raise InputError(
            "--importance needs a page: add -o page.html, or use --method blank-out or --method gradient, which cover all "
            "tokens; attnflow compare has --importance too"
        )
    beyond = [name for name in chosen if name in ("edges", "answer", "receptive_field")]
    on_page = as_page and own in ON_A_PAGE and not beyond and heads is None
    if as_page and not on_page and budget is not None:
        reason = f"--{beyond[0]}" if beyond else f"--method {method}"
        raise InputError(
            f"--importance needs the page of a text, which has no {reason}: leave one of them out; without --importance, "
            f"the page shows the values of {reason}"
        )
    check_output(output, FILES)
    start()
    check_measure(of)
    if edges is not None:
        from attnflow.edges import check_choice

        check_choice(edges, normalize, share, [own])
    import attnflow

    text = read_text(text)
    item: Any = text if image is None else (text, image)
    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        loaded = attnflow.load(
            model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle, gguf_file=gguf,
        )  # fmt: skip
    check_reads_text(loaded, text)
    if heads is not None:
        with Stages(STAGES) as stages:
            stages("model", 0, 1)
            kept = one_head(
                loaded, item, heads, query, method=None if by_default else own, words=words, target=target,
                truncate=truncate,
            )  # fmt: skip
        deliver(kept if special else kept.without_special(), output, as_json)
        return
    measured: dict[str, Any] = {} if of is None else {"of": of}
    if on_page and output is not None:
        from attnflow.evaluate.importances import plan_of
        from attnflow.view.explain import explain, traced

        plan = plan_of(budget)
        if own in IMPORTANCE:  # a named method covers every token, unless --importance sets a limit
            name = own.replace("_", "-")
            plan = {"blank-out": {}, **plan} if budget is not None and own == "blank_out" else {**plan, name: {}}

        with Stages(STAGES) as stages:
            stages("model", 0, 1)
            trace = traced(loaded, item, target, truncate)
            position = read_query(query, len(trace.tokens))
            number = None if layer == "all" else read_layer(layer, trace.layer_count, "last or all")
            state = {
                "layer": number, "unit": "words" if words else None, "special": special,
                "method": None if by_default else own.replace("_", "-") if own in IMPORTANCE else own,
            }  # fmt: skip
            page = explain(
                loaded, item, query=None if position == "all" else position, truncate=truncate, trace=trace,
                residual=0.5 if share is None else share, progress=stages,
                importance={name: {**more, **measured} for name, more in plan.items()},
                state={name: value for name, value in state.items() if value is not None},
            )  # fmt: skip
        if method is not None and not by_default:
            _check_opening(page, own)
        page.save(output)
        progress(f"wrote {output}")
        if as_json:
            print(json.dumps(page.document))
        return
    reason = ""
    with Stages(STAGES) as stages:
        stages("model", 0, 1)
        if own in ANSWER_WAYS:
            try:
                best = None if by_default and query is None else own
                result, headline = _of_answer(loaded, item, best, answer, truncate, words, query)
            except InputError as e:
                if not by_default or answer is not None or edges is not None:
                    raise
                own, reason = "rollout", str(e)
        if own in IMPORTANCE:
            result, headline = _importance(
                loaded, item, own, words, stages, answer=answer, truncate=truncate, **measured
            )
        elif own not in ANSWER_WAYS:
            trace = loaded.trace(
                item, target=target, truncate=truncate, edges=edges, normalize=normalize, answer=answer, **measured
            )
            if words:
                trace = trace.words()
            position = read_query(query, len(trace.tokens))
            number = None if layer == "all" else read_layer(layer, trace.layer_count, "last or all")
            if output is None and not as_json:
                for name, value in (("query", position), ("layer", layer)):
                    if value == "all":
                        raise InputError(
                            f"--{name} all: a table shows one {name}; use --json or --output for all of them"
                        )
            if own == "raw":
                result = trace.raw(position, number)
            else:
                more = {"residual": 0.5 if share is None else share, "receptive_field": receptive_field}
                result = getattr(trace, own)(position, number, **more)
            headline = _headline(trace)
    if reason:
        progress(f"attnflow: showing rollout, because there are no answer edges: {reason.split('. ')[0]}")
    if not special:
        result = result.without_special()
    deliver(result, output, as_json, headline)


def _check_opening(page: Page, method: str) -> None:
    """Check that a page has the answer edges of the method it should open with; it has one kind of them, or none."""
    names = [importance["name"] for importance in page.document["importance"]]
    if method not in ANSWER_WAYS or method in names:
        return
    others = [name for name in names if name in ANSWER_WAYS]
    reason = f"has {others[0]}" if others else f"has no answer edges. {page.document['missing']}".rstrip(". ")
    raise InputError(
        f"method {method}: the page of this text {reason}; leave --method out, or use the terminal, --json or another file "
        "format"
    )


def _writes(model: Model) -> bool:
    """Return whether the model is an encoder-decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _of_answer(
    model: Model,
    text: Any,
    method: str | None,
    answer: int | str | None,
    truncate: bool,
    words: bool,
    query: str | None,
) -> tuple[TokenAttention, str | None]:
    """Return what the answer takes from each token, and a headline with the model's prediction.

    method: None selects the best one for the model.
    """
    if _writes(model):
        raise InputError(f"{model!r} is an encoder-decoder: attnflow answer explains the text that it writes")
    try:
        trace = model.trace(text, edges="answer", answer=answer, truncate=truncate)
    except LongAnswer as e:
        if method == INPUTS or query is not None or not isinstance(text, str):
            raise
        explained = model.answer(text, answer=e.tokens)
        return explained.sources(unit="word" if words else "token"), f"answer: {explained.text!r}"
    trace = trace.words() if words else trace
    if method is None:
        result = trace.sources()
    elif method == INPUTS:
        result = trace.answer_inputs(signed="shares")
    else:
        result = trace.answer_rows(read_query(query, len(trace.tokens)))
    about = result.provenance["answer"]
    headline = _answer_line(about) if answer is not None else _headline(trace)
    return result, headline


def _headline(trace: Trace) -> str | None:
    if trace.prediction is None:
        return None
    answers = ", ".join(f"{label!r} {chance:.3f}" for label, chance in trace.prediction.top[:3])
    return f"{trace.prediction.kind}: {answers}"


def _importance(
    model: Model, text: Any, method: str, words: bool, stages: Stages, **options: Any
) -> tuple[TokenAttention, str]:
    """Return the importance of each token or word, and a headline with the answer."""
    whole: dict[str, Any] = {}
    if method == "blank_out":
        whole = {"progress": partial(stages, "blank-out")} | ({"unit": "word"} if words else {})  # rather than add up
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the probability of ", AttentionWarning)  # the result says so too
        result: TokenAttention = getattr(model, method)(text, **options, **whole)
    answer = result.provenance["answer"]
    return result.words() if words else result, _answer_line(answer)


def _answer_line(answer: Mapping[str, Any]) -> str:
    return f"{answer['kind']}: {answer['name']!r} {answer.get('probability', answer.get('score')):.3f}"
