"""The `attnflow` command. Data goes to stdout, progress to stderr; a user's mistake is one sentence, exit status 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from attnflow import __version__
from attnflow.cli import (
    answer_command,
    compare,
    corpus,
    env,
    evaluate,
    figure_command,
    reproduce,
    serve,
    show,
    similarity_command,
)
from attnflow.errors import AttentionWarning, InputError, JobError

COMMANDS: dict[str, tuple[Callable[..., None] | typer.Typer, str]] = {
    "show": (show.show, "Show which input tokens an answer or hidden state comes from."),
    "answer": (answer_command.answer, "Show which parts of a prompt a model's answer came from."),
    "similarity": (similarity_command.similarity, "Show which words make two texts similar to an embedding model."),
    "compare": (compare.compare, "Compare the methods on one text, side by side."),
    "figure": (figure_command.figure, "Draw a figure for a paper, of a text or of your own arrays."),
    "evaluate": (evaluate.evaluate, "Measure which method to trust on your own texts."),
    "corpus": (corpus.app, "Explain every text in a file or folder, and report on them."),
    "serve": (serve.serve, "Run the interactive page as a local web app."),
    "reproduce": (reproduce.reproduce, "Reproduce the paper's tables and figures."),
    "env": (env.env, "Print versions and hardware for a bug report."),
}


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)


app = typer.Typer(
    cls=_InOrder, no_args_is_help=True, add_completion=False, help="Measure where a transformer's answer comes from."
)
for _name, (_command, _line) in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name, short_help=_line)
    else:
        app.command(_name, short_help=_line)(_command)


def main() -> None:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except InputError as e:
        _stop(str(e), 2)
    except JobError as e:
        _stop(str(e), 1)
    except OSError as e:  # a full disk, a closed pipe
        _stop(e.strerror or str(e), 1)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Print a warning as one sentence, like an error, without the line of code that raised it."""
    text = str(message) if issubclass(category, AttentionWarning) else f"{category.__name__}: {message}"
    print(f"attnflow: {text}", file=sys.stderr)


def _stop(message: str, status: int) -> NoReturn:
    print(f"attnflow: {message}", file=sys.stderr)
    sys.exit(status)


def _print_version(yes: bool) -> None:
    if yes:
        print(__version__)
        raise typer.Exit()


@app.callback()
def attnflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
