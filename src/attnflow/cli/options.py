"""Options and helpers that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow.capture.silence import silence
from attnflow.errors import InputError
from attnflow.files import check_writable, of_extension
from attnflow.jobs.progress import Stages, to_stderr

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention

LOADING = "Model loading"
"""Title of the panel in --help with the options that load a model."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

TextArgument = Annotated[
    str,
    typer.Argument(help="The text, or - to read it from standard input. For a vision model, the path of an image."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "-m", "--model", help="Model folder, hub id or GGUF file; by default, the embedded verb-number model."
    ),
]
Words = Annotated[bool, typer.Option("--words", help="Show words instead of subwords.")]
Special = Annotated[bool, typer.Option(" /--no-special", help="Leave special tokens out.", show_default=False)]
Residual = Annotated[str | None, typer.Option(help="Residual weight from 0 to 1; by default, 0.5.", show_default=False)]
EdgeWeights = Annotated[
    str | None,
    typer.Option(
        help="Weigh edges by something other than attention, such as value-norm, alti or attention-gradient; an unknown "
        "name lists them all."
    ),
]
Normalize = Annotated[
    str | None, typer.Option(help="How to normalise --edges: rows, graph or none; by default, as published.")
]
Target = Annotated[str | None, typer.Option(help="For encoder-decoders: the text that the decoder writes.")]
ImageFile = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="For vision-language models: an image to read with the text."),
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1, mps, or auto to spread the model over all GPUs; by default, a GPU if there is one.",
        rich_help_panel=LOADING,
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of the model on the hub.", rich_help_panel=LOADING)
]
Gguf = Annotated[
    str | None, typer.Option(help="Name of a GGUF file in the model folder or repository.", rich_help_panel=LOADING)
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Allow code that comes with the model to run.", rich_help_panel=LOADING),
]
Data = Annotated[Path | None, typer.Option(help="Folder or file with the data; see docs/reproduction.md.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Also load PyTorch files (.bin), with torch's weights-only reader.",
        rich_help_panel=LOADING,
    ),
]
Of = Annotated[
    str | None,
    typer.Option(
        help="What importance and gradients measure: probability, logit, log-odds or difference.", show_default=False
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--importance",
        help="How much importance to compute: none, full, fast (stop blank-out after 20 seconds), or a number of seconds; "
        "by default, fast.",
        show_default=False,
    ),
]
Dtype = Annotated[
    str, typer.Option(help="Model dtype: auto, float32, float16, bfloat16 or float64.", rich_help_panel=LOADING)
]

STAGES = {
    "import": "loading torch and transformers",
    "load": "loading the model",
    "model": "running the model",
    "answer edges": "computing answer edges",
    "gradient": "computing the gradient",
    "sentences": "leaving sentences out: {} of {}",
    "blank-out": "blanking tokens out: {} of {}",
    "flow": "flow: {} of {}",
}
"""Progress messages for one text."""

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
SOUNDS = (".wav", ".mp3", ".flac", ".ogg", ".m4a")

progress = to_stderr


def start() -> None:
    """Import torch and transformers, without their messages. It takes seconds, so a terminal says so first."""
    with Stages(STAGES) as stages:
        if "torch" not in sys.modules:
            stages.at_once("import")
        silence()


def check_output(output: Path | None, extensions: Iterable[str]) -> None:
    """Check --output before a model is loaded."""
    if output is not None:
        of_extension(dict.fromkeys(extensions), output)
        check_writable(output)


def check_reads_text(model: Model, text: str) -> None:
    """Refuse the path of a file as the text of a model that reads text."""
    extension = Path(text).suffix.lower()
    if extension in SOUNDS and len(text.split()) == 1:
        raise InputError(
            f"{text!r} is a sound file: expected a text; Model.trace in Python takes the tensors of a sound"
        )
    try:
        if not extension or not Path(text).is_file():
            return
    except (OSError, ValueError):  # too long for a path, or no path
        return
    if getattr(model.model, "main_input_name", "") == "pixel_values":
        return
    if extension in IMAGES:
        raise InputError(
            f"{text!r} is an image file, but this model reads text: give a text, and for a vision-language model --image "
            f"{text}; or choose a vision model"
        )
    instead = f"attnflow figure graph {text}" if extension in (".npy", ".npz") else f"- < {text}, which reads its text"
    raise InputError(f"{text!r} is a file, and its name would be explained as the text: use {instead}")


def numbers(text: str, what: str, least: int = 1) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < least:
        kind = "positive integers" if least else "integers from 0"
        raise InputError(f"{what} {text!r}: expected {kind} separated by commas, for example 16,64")
    return values


def one_image(paths: list[Path] | None) -> Path | None:
    if paths and len(paths) > 1:
        raise InputError(f"--image is given {len(paths)} times: expected one image")
    return paths[0] if paths else None


def read_text(text: str) -> str:
    """Return the text, or for - the contents of standard input without the final newline."""
    try:
        return sys.stdin.read().removesuffix("\n") if text == "-" else text
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8: convert it to UTF-8 first") from None


def read_share(text: str | None) -> float | None:
    """Parse --residual: a residual weight."""
    if text is None:
        return None
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1:
        raise InputError(f"--residual {text!r}: expected a number between 0 and 1")
    return weight


def read_importance(text: str | None) -> str | float | None:
    """Parse --importance: none, fast, full, or a number of seconds."""
    if text is None or text in ("none", "fast", "full"):
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"--importance {text!r}: expected none, fast, full, or a number of seconds for blank-out")
    return seconds


def check_measure(of: str | None) -> None:
    """Check --of before a model is loaded."""
    from attnflow.importance.question import check_of

    if of is not None:
        check_of(of)


def deliver(result: TokenAttention, output: Path | None, as_json: bool, headline: str | None = None) -> None:
    """Save a result to a file, print it as JSON, or show it below a headline, depending on the options."""
    if output is not None:
        result.save(output)
        progress(f"wrote {output}")
    if as_json:
        print(json.dumps(result.to_dict()))
    elif output is None:
        if len(result.queries) > 1:
            raise InputError(
                "this model has no class token, so there is no default query: give --query with a token or a position from "
                f"0 to {len(result.queries) - 1}, or --json for all queries"
            )
        if headline is not None:
            print(headline)
        result.show()
