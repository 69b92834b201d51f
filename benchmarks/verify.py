"""Attribute, then verify: how near a few ablations come to leave-one-out: ``python -m benchmarks.verify``."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, numbers, progress
from attnflow.errors import InputError
from attnflow.evaluate.statistics import spearman
from attnflow.importance.verified import fit
from attnflow.texts.strict import read_lines
from benchmarks.answer_cases import joined
from benchmarks.command import run_command

Floats = NDArray[np.float64]
Fit = Callable[[Floats, Mapping[int, float]], Floats]

SENTENCES = (8, 12)
WORDS = (8, 40)


@dataclass(frozen=True)
class Passage:
    """The sentences of a passage: what the edges say of each, and the fall of the answer's log-probability without it."""

    scores: list[float]
    falls: list[float]


def passages(data: Path, count: int, seed: int) -> list[str]:
    """Runs of 8 to 12 neighbouring lines of the file, each a sentence of 8 to 40 words."""
    lines = [joined(line) for _, line in read_lines(data)]
    fits = [WORDS[0] <= len(line.split()) <= WORDS[1] and line[0].isupper() and line.endswith(".") for line in lines]
    runs, start = [], 0
    for i, fine in enumerate([*fits, False]):
        if not fine:
            runs += [(start, i)] if i - start >= SENTENCES[0] else []
            start = i + 1
    if len(runs) < count:
        raise InputError(
            f"{str(data)!r} has {len(runs)} passages of at least {SENTENCES[0]} sentences: expected {count}"
        )
    draw = random.Random(seed)
    texts = []
    for start, end in draw.sample(runs, count):
        size = draw.randint(SENTENCES[0], min(SENTENCES[1], end - start))
        begin = draw.randint(start, end - size)
        texts.append(" ".join(lines[begin : begin + size]))
    return texts


def measured(model: Any, text: str, tokens: int) -> Passage:
    """What the model writes after the passage, and where it comes from: by answer edges, and by leaving sentences out."""
    from attnflow.importance.leave_out import leave_out

    answer = model.answer(text, max_new_tokens=tokens)
    groups = answer.prompt.units("sentence").groups
    scores = answer.sources(unit="sentence").values[0, 0].tolist()
    return Passage(scores, leave_out(model, answer.prompt.ids, answer.ids, groups).drops.tolist())


def _by_scale(scores: Floats, falls: Mapping[int, float], cap: bool = False) -> Floats:
    """``a·score``, a by least squares; cap: at the smallest fall that was measured."""
    places = list(falls)
    x, y = scores[places], np.array([falls[i] for i in places])
    values = scores * max(0.0, float(x @ y) / (float(x @ x) or 1.0))
    return np.minimum(values, max(0.0, y.min())) if cap else values


def _by_steps(scores: Floats, falls: Mapping[int, float]) -> Floats:
    """The monotone function that is nearest to the falls (isotonic regression), straight from 0 to the lowest of them."""
    order = sorted(falls, key=lambda i: scores[i])
    blocks: list[tuple[float, int]] = []  # mean and size
    for i in order:
        mean, size = max(0.0, falls[i]), 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), size + count
        blocks.append((mean, size))
    steps = [mean for mean, size in blocks for _ in range(size)]
    return np.interp(scores, [0.0, *scores[order]], [0.0, *steps])


FITS: dict[str, Fit] = {
    "a scale": _by_scale,
    "a scale, capped": lambda scores, falls: _by_scale(scores, falls, True),
    "steps": _by_steps,
    "nothing": lambda scores, falls: np.zeros(len(scores)),
    "attnflow": lambda scores, falls: fit(scores, falls)[0],
}


def compared(cases: Sequence[Passage], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Of every fit and count of ablations: the mean Spearman with leave-one-out, its standard error, and top-1."""
    rows = []
    for count in (0, *counts):
        for name, function in FITS.items() if count else [("none", lambda scores, falls: scores)]:
            rhos, firsts = [], []
            for case in cases:
                scores, truth = np.array(case.scores), np.array(case.falls)
                first = np.argsort(-scores, kind="stable")[:count].tolist()
                values = function(scores, {i: float(truth[i]) for i in first}).copy()
                values[first] = truth[first]
                rhos.append(spearman(values, truth))
                firsts.append(bool(values.argmax() == truth.argmax()))
            error = float(np.std(rhos, ddof=1) / len(rhos) ** 0.5) if len(rhos) > 1 else 0.0
            row = {"ablations": count, "fit": name, "spearman": float(np.nanmean(rhos)), "error": error}
            rows.append({**row, "top_1": float(np.mean(firsts))})
    return rows


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    data: Annotated[Path, typer.Option(help="A text file with a sentence on each line, plain or packed.")],
    count: Annotated[int, typer.Option("--passages", min=2, help="How many passages.")] = 40,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that the model writes after each.")] = 20,
    ablations: Annotated[str, typer.Option(help="How many sentences are left out.")] = "2,3,4,6",
    seed: Annotated[int, typer.Option(help="Of the choice of passages.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The sentences that answer edges put first are really left out, and the rest is fitted to them."""
    import attnflow as af

    counts, texts = numbers(ablations, "ablations"), passages(data, count, seed)
    silence()
    decoder = af.load(model)
    cases = []
    for number, text in enumerate(texts, 1):
        progress(f"passage {number} of {count}")
        cases.append(measured(decoder, text, tokens))
    rows = compared(cases, counts)
    if as_json:
        print(json.dumps({"rows": rows, "passages": [vars(case) for case in cases]}, indent=1))
        return
    table = Table("ablations", "the rest by", "Spearman", "standard error", "top-1", box=None)
    for row in rows:
        figures = (f"{row[name]:.2f}" for name in ("spearman", "error", "top_1"))
        table.add_row(str(row["ablations"]), row["fit"], *figures)
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
