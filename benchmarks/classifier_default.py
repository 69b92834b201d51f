"""Does a classifier's subject stand above its attractor? By the default of the commands and by what it replaced.

``python -m benchmarks.classifier_default --data distractor_agreement_relational_noun.tsv.xz``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, progress
from attnflow.errors import InputError
from attnflow.texts.strict import read_rows
from benchmarks.command import run_command

PREPOSITIONS = ("of", "about", "to", "for", "in", "on", "by", "with", "from")


def cases(path: Path, count: int) -> Iterator[tuple[str, int, int]]:
    """Texts with the words, by their numbers, of the subject and of the attractor.

    The subject is the word before the first preposition, and the attractor is the last word. Texts without a preposition,
    or with the same word in both places, are left out.
    """
    taken = 0
    for where, row in read_rows(path):
        if "prefix" not in row:
            raise InputError(f"{where} has no column 'prefix': expected the text before the verb there")
        words = str(row["prefix"]).split()
        subject = next((i for i, word in enumerate(words) if word in PREPOSITIONS), 0) - 1
        if subject < 0 or words[subject] == words[-1]:
            continue
        yield " ".join(words), subject, len(words) - 1
        taken += 1
        if taken == count:
            return


def measured(model: Any, path: Path, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """How often each method puts the subject above the attractor: the share of the texts, with a 95 % bootstrap interval.

    A tie counts as half. Importance counts by its size, and a word has the sum over its subwords.
    """
    wins: dict[str, list[float]] = {}
    for number, (text, subject, attractor) in enumerate(cases(path, count)):
        if number % 50 == 0:
            say(f"{number} texts")
        edges, attention = model.trace(text, edges="answer"), model.trace(text)
        results = {
            "answer edges": edges.answer_rows(),
            "raw, last layer": attention.raw(layer=-1),
            "rollout": attention.rollout(layer=-1),
            "flow": attention.flow(layer=-1),
            "gradient": model.gradient(text),
            "blank-out": model.blank_out(text),
        }
        for name, result in results.items():
            values = np.abs(result.values[0, 0])
            worth = [
                sum(values[i] for i, own in enumerate(result.word_ids) if own == word) for word in (subject, attractor)
            ]
            wins.setdefault(name, []).append(1.0 if worth[0] > worth[1] else 0.5 if worth[0] == worth[1] else 0.0)
    if not wins:
        raise InputError(
            f"{path.name} has no text with a subject and an attractor: expected some in the column 'prefix'"
        )
    return {
        "model": model.identity()["model"],
        "texts": len(wins["raw, last layer"]),
        "subject above attractor": {
            name: {"share": float(np.mean(won)), "interval": interval(won)} for name, won in wins.items()
        },
    }


def interval(won: list[float]) -> list[float]:
    """The middle 95 % of the shares of 2,000 samples with replacement."""
    draws = np.random.default_rng(0).choice(np.asarray(won), (2_000, len(won))).mean(1)
    return [float(x) for x in np.quantile(draws, [0.025, 0.975])]


def main(
    data: Annotated[
        Path, typer.Option(help="A table with a column prefix, such as BLiMP's agreement with distractors.")
    ],
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id; without it, the embedded verb-number model.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="The first so many texts that have both.")] = 300,
    as_json: AsJson = False,
) -> None:
    """How often the subject stands above the attractor, by each method: python -m benchmarks.classifier_default."""
    import attnflow as af

    silence()
    result = measured(af.load(model), data, samples, progress)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    table = Table("method", "subject above attractor", "95 %", box=None)
    for name, row in result["subject above attractor"].items():
        table.add_row(name, f"{row['share']:.2f}", "{:.2f} to {:.2f}".format(*row["interval"]))
    Console().print(table)
    print(f"{result['texts']} texts, {result['model']}")


if __name__ == "__main__":
    run_command(main)
