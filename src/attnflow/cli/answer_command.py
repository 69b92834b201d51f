"""`attnflow answer`: which parts of a prompt a language model's answer came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.cli.options import (
    AllowPickle,
    AsJson,
    Device,
    Dtype,
    Gguf,
    ImageFile,
    Revision,
    TrustRemoteCode,
    check_output,
    check_reads_text,
    one_image,
    progress,
    read_text,
    start,
)
from attnflow.errors import InputError
from attnflow.jobs.progress import Stages
from attnflow.source_methods import METHOD, METHODS
from attnflow.texts.spans import Span
from attnflow.texts.strict import read_whole
from attnflow.texts.units import UNITS

FILES = (".html", ".json", ".csv", ".parquet")

STAGES = {
    "load": "loading the model",
    "writing": "writing: {} of {} tokens",
    "leave-one-out": "leaving parts out: run {} of {}",
    "fading": "fading: part {} of {} of the answer",
}

ELSEWHERE = {
    "hops": ". Hops through the answer's own words are on the page (-o answer.html), in .json files, and in Python "
    "(answer.hops())",
    "answer_inputs": ". answer_inputs explains one next token or class: use attnflow show --method answer_inputs",
}
"""Where to find methods that this command does not have."""


def answer(
    prompt: Annotated[str | None, typer.Argument(help="The prompt, or - to read it from standard input.")] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id of a language model that generates text.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from a text file.")] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The answer to explain; by default, the model writes one.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum number of tokens that the model writes; by default, 40."),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Explain only this part of the answer, quoted exactly."),
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Which occurrence of --span in the answer, counting from 1."),
    ] = None,
    unit: Annotated[str, typer.Option(help=f"Unit of the list: {', '.join(UNITS[:-1])} or {UNITS[-1]}.")] = "sentence",
    verify: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="K",
            help="Measure the effect of leaving out the top K units, and scale the others to match.",
        ),
    ] = 0,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"How to rank the units: {', '.join(METHODS)}; by default, answer_rows for tokens and words, combined for "
            "larger units.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="A named text file to put before the prompt; repeat the option for more.",
        ),
    ] = None,
    images: ImageFile = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Whether to send the prompt as a user message through the chat template; by default, if the tokenizer has "
            "one.",
            show_default=False,
        ),
    ] = None,
    interpret_special: Annotated[
        bool,
        typer.Option(
            "--interpret-special",
            help="Interpret special tokens written in the prompt, instead of refusing them.",
        ),
    ] = False,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Save a page (.html), the full result (.json) or the sources (.csv, .parquet)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which parts of a prompt an answer came from. The model writes the answer unless you give it with --answer."""
    if model is None:
        raise InputError(
            "the embedded model is a classifier and writes no text: give the folder or hub id of a language model with "
            "--model"
        )
    if answer is not None and tokens is not None:
        raise InputError(
            "--tokens limits what the model writes, but --answer is already written: leave one of them out"
        )
    if system is not None and chat is False:
        raise InputError("--system needs the chat template, but --no-chat turns it off: leave one of them out")
    image = one_image(images)
    if image is not None and (document or verify):
        raise InputError("--image cannot be combined with --document or --verify: leave them out")
    if occurrence is not None and span is None:
        raise InputError("--occurrence needs --span: add --span, or leave --occurrence out")
    if unit not in UNITS:
        raise InputError(f"--unit {unit!r}: expected one of {', '.join(UNITS)}")
    if method is not None and method not in METHODS:
        raise InputError(f"--method {method!r}: expected one of {', '.join(METHODS)}{ELSEWHERE.get(method, '')}")
    if output is not None and output.suffix.lower() == ".html" and method not in (None, METHOD):
        raise InputError(
            f"a page ranks by the method recommended for each unit, or by {METHOD} only: leave --method out, or save "
            ".json, .csv or .parquet"
        )
    check_output(output, FILES)
    text = _prompt(prompt, prompt_file)
    documents = _documents(document or ())
    place: Span | None = span if span is None or occurrence is None else (span, occurrence)
    start()
    import attnflow
    from attnflow.answering import TOKENS
    from attnflow.capture.chat import has_template

    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        loaded = attnflow.load(
            model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle, gguf_file=gguf,
        )  # fmt: skip
    check_reads_text(loaded, text)
    templates = (loaded.tokenizer,) if image is None else (loaded.processor, loaded.tokenizer)
    as_message = any(map(has_template, templates)) if chat is None else chat
    content: Any = [{"role": "user", "content": text}] if as_message else text
    with Stages(STAGES) as stages:
        explained = loaded.answer(
            content, answer=answer, documents=documents or None,
            system=system, interpret_special=interpret_special, progress=stages, image=image,
            max_new_tokens=TOKENS if tokens is None else tokens,
        )  # fmt: skip
        stages("answer edges", 0, 1)
        explained.sources(place, unit, method=method)  # the answer keeps what takes long, so the output comes at once
        stages.clear()
        if verify and any(len(group) == len(explained.prompt) for group in explained.prompt.units(unit).groups):
            verify = 0
            progress(
                f"attnflow: --verify was skipped: the whole prompt is one {unit}, and without it there is nothing left to "
                "answer; give a smaller --unit or a longer prompt"
            )
        if output is not None:
            if explained.written and not as_json:
                progress(f"answer: {explained.text!r}")
            explained.save(output, unit=unit, verify=verify, span=place, method=method)
            progress(f"wrote {output}")
        if as_json:
            print(json.dumps(explained.to_dict(unit=unit, verify=verify, span=place, method=method), allow_nan=False))
        elif output is None:
            explained.show(place, unit, verify=verify, method=method)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise InputError(
            "there is a prompt and a --prompt-file: give only one of them"
            if prompt is not None
            else "there is no prompt: give a text, - to read standard input, or --prompt-file FILE"
        )
    text = read_text(prompt) if prompt is not None else read_whole(file or "")
    if not text.strip():
        source = "standard input" if prompt == "-" else "the prompt" if file is None else f"{str(file)!r}"
        raise InputError(f"{source} is empty: expected at least one word")
    return text


def _documents(arguments: Sequence[str]) -> dict[str, str]:
    documents: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not (name.strip() and equals and path):
            raise InputError(f"--document {argument!r}: expected NAME=FILE, for example minutes=minutes.txt")
        if name in documents:
            raise InputError(
                f"--document {argument!r}: another document is already named {name!r}: choose a different name"
            )
        documents[name] = read_whole(path)
    return documents
