"""The command. Data on stdout, progress on stderr; a user's mistake is one sentence and exit status 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attnflow import __version__
from attnflow.cli import compare, corpus, env, evaluate, reproduce, serve, show
from attnflow.errors import InputError, JobError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What flows where inside a transformer.")
app.command()(show.show)
app.command()(compare.compare)
app.command()(evaluate.evaluate)
app.add_typer(corpus.app, name="corpus")
app.command()(serve.serve)
app.command()(reproduce.reproduce)
app.add_typer(reproduce.train, name="train")
app.command()(env.env)


def main() -> None:
    try:
        app()
    except InputError as e:
        print(f"attnflow: {e}", file=sys.stderr)
        sys.exit(2)
    except JobError as e:
        print(f"attnflow: {e}", file=sys.stderr)
        sys.exit(1)
    except OSError as e:  # a full disk, a closed pipe
        print(f"attnflow: {e.strerror or e}", file=sys.stderr)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def attnflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
