"""What the commands share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnflow.errors import InputError
from attnflow.jobs.progress import to_stderr

if TYPE_CHECKING:
    from attnflow.result import TokenAttention

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# What the commands about one text share.
TextArgument = Annotated[
    str, typer.Argument(help="The text; - reads it from standard input. For a vision model, the path of an image.")
]
ModelName = Annotated[
    str | None, typer.Option("-m", "--model", help="Folder or hub id; without it, the embedded verb-number model.")
]
Words = Annotated[bool, typer.Option("--words", help="Words instead of subwords.")]
Special = Annotated[bool, typer.Option(" /--no-special", help="Leave special tokens out.", show_default=False)]
Residual = Annotated[
    str | None,
    typer.Option(
        help="Weight of the residual connection, from 0 to 1, or measured, each position's own; 0.5 by default, and "
        "1 - 2/layers for gather.",
        show_default=False,
    ),
]
EdgeWeights = Annotated[
    str | None,
    typer.Option(
        help="What an edge weighs instead of its attention, such as value-norm, alti or attention-gradient; any other "
        "word is answered with the list."
    ),
]
Normalize = Annotated[str | None, typer.Option(help="With --edges: rows, graph or none; as published, by default.")]
Share = Annotated[
    str | None,
    typer.Option(
        help="Weight of the residual connection, from 0 to 1; or measured, each position's own. 0.5 by default.",
        show_default=False,
    ),
]
Sinks = Annotated[
    str,
    typer.Option(
        help="What becomes of attention to tokens whose values carry next to nothing: keep, or residual (it stays)."
    ),
]
Target = Annotated[str | None, typer.Option(help="For encoder-decoders: what the decoder writes.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; a GPU if there is one, by default.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
Gguf = Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder or repository.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Data = Annotated[
    Path | None, typer.Option(help="A folder with the data, or the file itself; see docs/reproduction.md.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
Safetensors = Annotated[
    bool,
    typer.Option(
        " /--no-safetensors", help="Also read PyTorch files, by torch's weights-only reader.", show_default=False
    ),
]
Of = Annotated[
    str | None,
    typer.Option(
        help="What importance and gradients are of: probability, logit, log-odds or difference.", show_default=False
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--importance",
        help="How much is measured by changing the text: none; fast: gradient, and blank-out of whole sentences and of as "
        "many tokens as 20 seconds allow, the highest by answer edges first; a number: the same in so many seconds; full: "
        "every token. fast by default.",
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 or float64.")]

STAGES = {
    "load": "loading the model",
    "model": "running the model",
    "answer edges": "splitting the answer over its edges",
    "gradient": "taking the gradient",
    "sentences": "leaving sentences out: {} of {}",
    "blank-out": "blanking tokens out: {} of {}",
    "flow": "flow: {} of {}",
}
"""What a terminal says of the work on one text."""

progress = to_stderr


def numbers(text: str, what: str, least: int = 1) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < least:
        kind = "positive numbers" if least else "numbers from 0"
        raise InputError(f"{what} {text!r}: expected {kind} with commas between them, for example 16,64")
    return values


def read_text(text: str) -> str:
    """What stands on the command line, or, for -, on standard input, without the end of its last line."""
    try:
        return sys.stdin.read().removesuffix("\n") if text == "-" else text
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8: decode it with its own encoding first") from None


def read_share(text: str | None) -> float | Literal["measured"] | None:
    """A weight of the residual connection, or "measured"."""
    if text is None:
        return None
    if text == "measured":
        return "measured"
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1:
        raise InputError(f"residual {text!r}: expected a weight between 0 and 1, or measured")
    return weight


def read_answer(text: str | None) -> int | str | None:
    """A class or token by its name, or by its number."""
    return int(text) if text is not None and text.isdecimal() else text


def read_importance(text: str | None) -> str | float | None:
    """How much importance a page has: none, fast, full, or a number of seconds."""
    if text is None or text in ("none", "fast", "full"):
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"importance {text!r}: expected none, fast, full, or a number of seconds for blank-out")
    return seconds


def check_measure(of: str | None) -> None:
    """A wrong --of is told before a model is loaded."""
    from attnflow.importance.question import check_of

    if of is not None:
        check_of(of)


def deliver(result: TokenAttention, output: Path | None, as_json: bool, headline: str | None = None) -> None:
    """Write a result to a file, print it as JSON, or show it below a headline, as the options say."""
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
        if headline is not None:
            print(headline)
        result.show()
