"""What the commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnflow.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def numbers(text: str, what: str, least: int = 1) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < least:
        kind = "positive numbers" if least else "numbers from 0"
        raise InputError(f"{what} {text!r}: expected {kind} with commas between them, for example 16,64")
    return found


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot make the folder {str(folder)!r}: {e.strerror or e}") from None


def quiet() -> None:
    """Errors of the libraries below are reported by us; their warnings and progress bars are not for the terminal."""
    import warnings

    try:
        from transformers.utils import logging
    except ImportError:
        raise InputError("models need torch and transformers: pip install 'attnflow[models]'") from None
    from huggingface_hub.utils import logging as hub_logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="(transformers|torch|huggingface_hub)")
