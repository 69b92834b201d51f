"""The first pass of a corpus job, which cuts the input into shards: by one process and by several, in µs per line.

``python -m benchmarks.planning --lines 2000000 --processes 1,2``
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson, numbers, progress
from attnflow.corpus.parallel_plan import parallel_plan
from attnflow.corpus.plan import Shard, plan
from attnflow.errors import InputError
from attnflow.flow import cores
from attnflow.texts.sources import open_corpus
from benchmarks.command import run_command

Say = Callable[[str], None]

WORDS = 5000
WORDS_A_LINE = 22
BYTES_A_LINE = 143
SHARD_TEXTS = 4096
"""As in a job on a GPU."""

BILLION = 10**9
REFERENCE = "one process, as the reference"


def write_sentences(path: Path, lines: int, seed: int = 0) -> int:
    """Write lines of made-up words, about 143 bytes each; return the size in bytes."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(WORDS)]
    block = 1 << 16
    with path.open("w", encoding="ascii") as file:
        for start in range(0, lines, block):
            count = min(block, lines - start)
            text = rng.choices(words, k=count * WORDS_A_LINE)
            rows = (text[place : place + WORDS_A_LINE] for place in range(0, len(text), WORDS_A_LINE))
            file.writelines(" ".join(row) + "\n" for row in rows)
    return path.stat().st_size


def run(lines: int, processes: Sequence[int], rounds: int, folder: Path, say: Say) -> dict[str, Any]:
    """Return µs per line as medians over rounds that run everything in turn; all shards are compared.

    wall: wall time.
    cpu: CPU time of all processes.
    own: CPU time of the process that cuts the shards, which cannot be shared.
    """
    path = folder / "sentences.txt"
    say(f"writing {lines:,} lines")
    size = write_sentences(path, lines)
    arguments = (open_corpus(path), SHARD_TEXTS, 1 << 62, _cost)
    times: dict[str, list[dict[str, float]]] = {}

    def timed(name: str, shards: Callable[[], Iterator[Shard]]) -> list[Shard]:
        say(f"round {len(times.get(name, [])) + 1} of {rounds}: {name}")
        begun = _clocks()
        made = list(shards())
        ended = _clocks()
        times.setdefault(name, []).append({kind: (ended[kind] - begun[kind]) / lines * 1e6 for kind in begun})
        return made

    for _ in range(rounds):
        reference = timed(REFERENCE, lambda: plan(*arguments))
        for workers in processes:
            name = f"parallel, {workers} process{'es' if workers > 1 else ''}"
            if timed(name, partial(parallel_plan, *arguments, processes=workers)) != reference:
                raise InputError(f"{name}: the shards differ from those of the reference, which is a bug in attnflow")
    medians = {
        name: {kind: statistics.median(round_[kind] for round_ in own) for kind in own[0]}
        for name, own in times.items()
    }
    return {"lines": lines, "bytes": size, "cores": cores(), "us_per_line": medians, "rounds": times}


def _clocks() -> dict[str, float]:
    spent = os.times()
    own = spent.user + spent.system
    return {"wall": time.perf_counter(), "cpu": own + spent.children_user + spent.children_system, "own": own}


def _cost(size: int) -> int:
    return size // 3 + 2


def main(
    lines: Annotated[int, typer.Option(min=1, help="Lines of the planned file, 143 bytes each.")] = 2_000_000,
    processes: Annotated[str, typer.Option(help="Numbers of processes, for example 1,2,16.")] = "1,2",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="Folder for the temporary file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a file of sentences with one process as the reference, and with several, and compare the shards."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        free = shutil.disk_usage(place).free
        if free < 2 * lines * BYTES_A_LINE:
            raise InputError(
                f"{lines:,} lines are {lines * BYTES_A_LINE / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in "
                f"{place!r}: expected twice as much; give fewer lines, or another folder"
            )
        figures = run(lines, numbers(processes, "processes"), rounds, Path(place), progress)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    table = Table(
        "what", "µs per line", "lines/s", "× reference", "10⁹ lines, minutes", "CPU µs per line", "of which the driver",
        title=f"{lines:,} lines, {figures['bytes'] / 1e9:.2f} GB, {figures['cores']} cores",
    )  # fmt: skip
    base = figures["us_per_line"][REFERENCE]["wall"]
    for name, clocks in figures["us_per_line"].items():
        wall = clocks["wall"]
        times = (f"{wall:.3f}", f"{1e6 / wall:,.0f}", f"{base / wall:.1f}", f"{wall * BILLION / 6e7:.1f}")
        table.add_row(name, *times, f"{clocks['cpu']:.3f}", f"{clocks['own']:.3f}")
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
