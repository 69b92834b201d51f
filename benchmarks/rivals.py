"""Other authors' methods to explain an answer, on our cases: ``python -m benchmarks.rivals -m MODEL``.

The command lists which of them are installed, and runs each on one small prompt. docs/evaluation.md says how to install
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import attnflow
from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from attnflow.errors import InputError
from benchmarks.command import run_command
from benchmarks.rival_adapters import (
    Rival,
    UnitRival,
    at2,
    at2_units,
    attnlrp,
    context_cite,
    flashtrace,
    inseq,
    integrated_gradients,
    shapley,
)
from benchmarks.rival_packages import VERSIONS, Floats, package

if TYPE_CHECKING:
    from attnflow.model import Model

RIVALS: dict[str, Rival] = {
    "FlashTrace, 0 hops": flashtrace("flashtrace", 0),
    "FlashTrace, 1 hop": flashtrace("flashtrace", 1),
    "FlashTrace, 0 hops, predicting positions": flashtrace("flashtrace", 0, predicting=True),
    "FlashTrace, 1 hop, predicting positions": flashtrace("flashtrace", 1, predicting=True),
    "IFR": flashtrace("ifr-matrix"),
    "IFR, predicting positions": flashtrace("ifr-matrix", predicting=True),
    "AttnLRP": attnlrp,
    "AT2, untrained": at2(),
    "captum, integrated gradients": integrated_gradients(),
    "captum, integrated gradients, from a blank prompt": integrated_gradients(blank=True),
    "inseq, input x gradient": inseq("input_x_gradient"),
    "inseq, attention": inseq("attention", attention="eager"),
}
"""A score for each token of the prompt. AT2 with trained weights: `at2(file)`."""

ABLATIONS = (4, 8, 32, 64)

UNIT_RIVALS: dict[str, UnitRival] = {
    **{f"ContextCite, {count} ablations": context_cite(count) for count in ABLATIONS},
    "AT2, untrained": at2_units(),
    "captum, Shapley": shapley,
}
"""A score for each unit. AT2 with trained weights: `at2_units(file)`."""

TRAINED = "AT2, trained"

PROMPT = (
    "The river was low that summer. The market opens early on Saturdays. The door code of the library is falcon. "
    "The ferry was late because of the fog. What is the door code of the library? The door code of the library is"
)
ANSWER = " falcon"


@dataclass(frozen=True)
class Run:
    """A rival on the prompt: its first three tokens or units, or why there are none."""

    name: str
    first: list[str]
    seconds: float
    reason: str = ""


def installed() -> dict[str, str | None]:
    """Return for each package None if it can be imported, else a sentence that says how to install it."""
    return {name: refusal(lambda name=name: package(name)) for name in VERSIONS}  # type: ignore[misc]


def refusal(action: Callable[[], Any]) -> str | None:
    """Return the message the action refuses with, or None."""
    try:
        action()
    except InputError as e:
        return str(e)
    return None


def runs(model: Model, weights: Path | None = None, say: Callable[[str], None] = lambda _: None) -> list[Run]:
    """Run every rival on the small prompt. weights: of a trained AT2."""
    answer = model.answer(PROMPT, answer=ANSWER)
    ids, written = list(answer.prompt.ids), list(answer.ids)
    units = answer.prompt.units("sentence")
    trained = {} if weights is None else {TRAINED: at2(weights)}
    trained_units = {} if weights is None else {TRAINED: at2_units(weights)}
    return [
        *_timed(RIVALS | trained, lambda rival: rival(model, ids, written), answer.prompt.tokens, say),
        *_timed(UNIT_RIVALS | trained_units, lambda rival: rival(model, ids, written, units.groups), units.texts, say),
    ]


def _timed(
    rivals: Mapping[str, Any], run: Callable[[Any], Floats], labels: Sequence[str], say: Callable[[str], None]
) -> list[Run]:
    rows = []
    for name, rival in rivals.items():
        say(name)
        start = time.perf_counter()
        try:
            scores = run(rival)
        except InputError as e:
            rows.append(Run(name, [], 0.0, str(e)))
            continue
        seconds = time.perf_counter() - start
        rows.append(Run(name, [labels[i] for i in np.argsort(-scores, kind="stable")[:3]], seconds))
    return rows


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Trained weights of AT2 for this model.")] = None,
) -> None:
    """List which rivals are installed, and what each ranks first on one small prompt."""
    silence()
    for name, reason in installed().items():
        print(f"{name} {VERSIONS[name]}: {reason or 'installed'}")
    loaded = attnflow.load(model, gguf_file=gguf, dtype="float32", device=device)
    table = Table("rival", "first three", "seconds", box=None)
    for run in runs(loaded, weights, progress):
        table.add_row(run.name, run.reason or " | ".join(map(repr, run.first)), f"{run.seconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
