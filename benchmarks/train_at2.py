"""Trains the rival AT2 on a model's own ablations with AT2's trainer: ``python -m benchmarks.train_at2 -m MODEL``.

The passages are those of even seeds of the ablation task (`benchmarks.ablation`), which are never reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attnflow
from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from attnflow.errors import InputError
from attnflow.texts.units import assign
from benchmarks.ablation import LEAST, TOKENS, passages, prompt_of
from benchmarks.command import run_command
from benchmarks.rival_adapters import Example, train_at2
from benchmarks.rival_packages import package

if TYPE_CHECKING:
    from attnflow.model import Model


def examples(
    model: Model, texts: Sequence[Sequence[str]], count: int, say: Callable[[str], None] = lambda _: None
) -> list[Example]:
    """Return what the model writes after the passages of the first `count` even seeds, if long enough."""
    chosen = []
    for seed in range(0, 2 * count, 2):
        prompt, ranges = prompt_of(seed, texts)
        try:
            written = model.answer(prompt, max_new_tokens=TOKENS)
        except InputError:  # the model writes nothing
            continue
        if len(written.ids) >= LEAST:
            chosen.append(Example(list(written.prompt.ids), list(written.ids), assign(written.prompt.offsets, ranges)))
        if seed % 20 == 0:
            say(f"seed {seed}: {len(chosen)} answers")
    return chosen


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    data: Annotated[Path, typer.Option(help="File of sentences, or folder with text.test.txt.xz.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the weights.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    count: Annotated[int, typer.Option("--passages", min=1, help="How many even seeds.")] = 150,
    masks: Annotated[int, typer.Option(min=1, help="Ablations of each passage; AT2's default if not given.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Ablations that run together.")] = 4,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
) -> None:
    """Train AT2 on ablated passages of even seeds, and save the weight of each head."""
    package("at2")  # fail before the work, not after it
    silence()
    texts = passages(data)
    loaded = attnflow.load(model, gguf_file=gguf, dtype="float32", device=device)
    chosen = examples(loaded, texts, count, progress)
    progress(f"training on {masks} ablations of each of {len(chosen)} passages")
    train_at2(loaded, chosen, output, masks=masks, batch=batch)
    progress(f"wrote {output}")


if __name__ == "__main__":
    run_command(main)
