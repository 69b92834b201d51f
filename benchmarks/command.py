"""Makes a command from a module's `main`: ``python -m benchmarks.flow --help``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from attnflow.errors import InputError


def run_command(main: Callable[..., Any]) -> None:
    """Run `main` with the options of the command line; a user's mistake gives one sentence and exit status 2."""
    try:
        typer.run(main)
    except InputError as e:
        print(f"benchmarks: {e}", file=sys.stderr)
        sys.exit(2)
