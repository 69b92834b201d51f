"""The command. Data on stdout, progress on stderr; a user's mistake is one sentence and exit status 2."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn, cast

import typer
from typer.core import TyperGroup

from attnflow import __version__
from attnflow.cli import compare, corpus, env, evaluate, reproduce, serve, show, train
from attnflow.cli.messages import in_options
from attnflow.errors import InputError, JobError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What flows where inside a transformer.")
app.command()(show.show)
app.command()(compare.compare)
app.command()(evaluate.evaluate)
app.add_typer(corpus.app, name="corpus")
app.command()(serve.serve)
app.command()(reproduce.reproduce)
app.add_typer(train.app, name="train")
app.command()(env.env)


def main() -> None:
    try:
        app()
    except InputError as e:
        _stop(_translated(e), 2)
    except JobError as e:
        _stop(_translated(e), 1)
    except OSError as e:  # a full disk, a closed pipe
        _stop(e.strerror or str(e), 1)


def _translated(error: Exception) -> str:
    return in_options(str(error), cast(TyperGroup, typer.main.get_command(app)), sys.argv[1:])


def _stop(message: str, status: int) -> NoReturn:
    print(f"attnflow: {message}", file=sys.stderr)
    sys.exit(status)


def _version(yes: bool) -> None:
    if yes:
        print(__version__)
        raise typer.Exit()


@app.callback()
def attnflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
