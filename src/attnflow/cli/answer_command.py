"""`attnflow answer`: which parts of a prompt a language model's answer came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.capture.silence import silence
from attnflow.cli.options import (
    AsJson,
    Device,
    Dtype,
    Gguf,
    Revision,
    Safetensors,
    TrustRemoteCode,
    progress,
    read_text,
)
from attnflow.errors import InputError
from attnflow.files import of_extension
from attnflow.jobs.progress import Stages
from attnflow.source_methods import METHOD, METHODS
from attnflow.texts.spans import Span
from attnflow.texts.strict import read_whole
from attnflow.texts.units import UNITS

FILES = (".html", ".json", ".csv", ".parquet")

STAGES = {
    "load": "loading the model",
    "writing": "writing: {} of {} tokens",
    "leave-one-out": "leaving parts out: {} of {} runs",
    "fading": "fading: {} of {} parts of the answer",
}

ELSEWHERE = {
    "hops": ". Hops by way of the answer's own words are on the page (-o answer.html), in .json, and in Python: "
    "answer.hops()",
    "answer_inputs": ". answer_inputs is of one next token or class: attnflow show --method answer_inputs",
}
"""Where the methods are that this command does not have."""


def answer(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id of a language model that writes.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from a text file.")] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The answer to explain; without it, the model writes one.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many tokens the model writes at most; 40 by default.")
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Explain this part of the answer alone, written as it stands there."),
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Which one, where the span stands in the answer several times; from 1."),
    ] = None,
    unit: Annotated[str, typer.Option(help=f"What is listed: {', '.join(UNITS[:-1])} or {UNITS[-1]}.")] = "sentence",
    verify: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="K",
            help="Really leave out the K units that come first, and fit the others to what then happens to the answer.",
        ),
    ] = 0,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"How units are ranked: {', '.join(METHODS)}. By default answer_rows for tokens and words, combined for "
            "sentences and larger units, on a page too.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A message by the system, in front of the prompt.")
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="A text file that goes in front of the prompt, under a name. Give it several times.",
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Whether the prompt goes through the model's chat template, as a message by the user. It does wherever "
            "the tokenizer has one, by default.",
            show_default=False,
        ),
    ] = None,
    interpret_special: Annotated[
        bool,
        typer.Option("--interpret-special", help="Let special tokens that are written out in the prompt act as such."),
    ] = False,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    safetensors: Safetensors = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write a page (.html), everything (.json) or the sources (.csv, .parquet)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which parts of a prompt an answer came from. The model writes the answer, unless --answer has it."""
    if model is None:
        raise InputError(
            "the embedded model is a classifier, which writes no text: give --model, the folder or hub id of a language "
            "model"
        )
    if answer is not None and tokens is not None:
        raise InputError(
            "--tokens says how much the model writes, and --answer is written already: leave one of them out"
        )
    if system is not None and chat is False:
        raise InputError("--system needs the chat template, which --no-chat turns off: leave one of them out")
    if occurrence is not None and span is None:
        raise InputError("--occurrence goes with --span: give that too, or leave it out")
    if unit not in UNITS:
        raise InputError(f"unit {unit!r}: expected one of {', '.join(UNITS)}")
    if method is not None and method not in METHODS:
        raise InputError(f"method {method!r}: expected one of {', '.join(METHODS)}{ELSEWHERE.get(method, '')}")
    if output is not None and output.suffix.lower() == ".html" and method not in (None, METHOD):
        raise InputError(
            f"a page ranks by the method recommended for each unit, or by {METHOD} alone: leave --method out, or write "
            ".json, .csv or .parquet"
        )
    if output is not None:
        of_extension(dict.fromkeys(FILES), output)  # before a model is loaded and run in vain
    text = _prompt(prompt, prompt_file)
    documents = _documents(document or ())
    place: Span | None = span if span is None or occurrence is None else (span, occurrence)
    silence()
    import attnflow
    from attnflow.answering import TOKENS
    from attnflow.capture.chat import has_template

    with Stages(STAGES) as stages:
        stages("load", 0, 1)
        loaded = attnflow.load(
            model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            safetensors=safetensors, gguf_file=gguf,
        )  # fmt: skip
    as_message = has_template(loaded.tokenizer) if chat is None else chat
    content: Any = [{"role": "user", "content": text}] if as_message else text
    with Stages(STAGES) as stages:
        explained = loaded.answer(
            content, answer=answer, documents=documents or None,
            system=system, interpret_special=interpret_special, progress=stages,
            max_new_tokens=TOKENS if tokens is None else tokens,
        )  # fmt: skip
        stages.clear()
        if verify and any(len(group) == len(explained.prompt) for group in explained.prompt.units(unit).groups):
            verify = 0
            progress(
                f"attnflow: --verify left nothing out: one {unit} is the whole prompt, and without it nothing would be "
                "left to answer; give a smaller --unit, or a longer prompt"
            )
        if output is not None:
            explained.save(output, unit=unit, verify=verify, span=place, method=method)
            progress(f"wrote {output}")
        if as_json:
            print(json.dumps(explained.to_dict(unit=unit, verify=verify, span=place, method=method), allow_nan=False))
        elif output is None:
            explained.show(place, unit, verify=verify, method=method)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise InputError(
            "a prompt and --prompt-file: give one of them"
            if prompt is not None
            else "there is no prompt: give a text, - for standard input, or --prompt-file FILE"
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
            raise InputError(f"--document {argument!r}: there is a document {name!r} already; give it another name")
        documents[name] = read_whole(path)
    return documents
