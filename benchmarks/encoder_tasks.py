"""Which method finds what an encoder bases its answer on? ``python -m benchmarks.encoder_tasks TASK``.

- agreement: prefixes of sentences before the verb, such as BLiMP's, with a subject and an attractor.
- mistakes: those that the model gets wrong. The subject supports the other number, so the attractor should rank above
  it, wherever the two are in the text.
- words: sentences of a classifier such as SST-2; the truth is how much the log-odds fall without each word.

Results are JSON lines; ``python -m benchmarks.evidence`` makes tables from them. Rows of the data with an even number
are "seen", the others "unseen".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from attnflow.errors import AttentionWarning, InputError
from attnflow.importance.question import Question, questions
from attnflow.texts.strict import read_rows
from benchmarks.answer_metrics import precision
from benchmarks.command import run_command
from benchmarks.encoder_methods import VIEWS, Explained, Floats, explanations
from benchmarks.result_lines import HALVES, ResultFile, check_half
from benchmarks.word_truth import WordTruth, by_word, words_of

if TYPE_CHECKING:
    from attnflow.model import Model

USUAL = "usual position"
PREPOSITIONS = ("of", "about", "to", "for", "in", "on", "by", "with", "from")
SINGULAR = ("is", "was", "has", "does", "isn't", "wasn't", "hasn't", "doesn't")
PLURAL = ("are", "were", "have", "do", "aren't", "weren't", "haven't", "don't")


@dataclass(frozen=True)
class Case:
    """A text whose answer is explained. measures: maps token scores to measures by name.

    usual: scores that know only where the truth is most often in the seen half, if known.
    """

    seed: int
    question: Question
    measures: Callable[[Floats], dict[str, float]]
    usual: Floats | None = None


@dataclass(frozen=True)
class Cases:
    """The cases that a model answers as the task requires, and how many were tried."""

    cases: list[Case]
    tried: int


@dataclass(frozen=True)
class Prefix:
    """A text before its verb, and the word numbers of the subject and of the attractor."""

    seed: int
    text: str
    subject: int
    attractor: int
    number: str


def prefixes(path: Path) -> Iterator[Prefix]:
    """Yield the texts of a table with the columns prefix, good and bad; the seed of each is its row.

    The subject is the word before the first preposition, and the attractor is the last word. Texts without a
    preposition, with the same word in both places, or seen before are left out.
    """
    known = set()
    for seed, (where, row) in enumerate(read_rows(path)):
        for name in ("prefix", "good", "bad"):
            if name not in row:
                raise InputError(
                    f"{where} has no column {name!r}: expected the text before the verb and both its forms"
                )
        words = str(row["prefix"]).split()
        subject = next((i for i, word in enumerate(words) if word in PREPOSITIONS), 0) - 1
        text = " ".join(words)
        if subject < 0 or words[subject] == words[-1] or text in known:
            continue
        known.add(text)
        yield Prefix(seed, text, subject, len(words) - 1, number_of(str(row["good"]), str(row["bad"])))


def number_of(good: str, bad: str) -> str:
    """Return the number of a verb, given its right form and its wrong one.

    >>> number_of("hasn't", "haven't"), number_of("were", "is"), number_of("worries", "worry"), number_of("look", "looks")
    ('singular', 'plural', 'singular', 'plural')
    """
    first, other = good.split()[0].lower(), bad.split()[0].lower()
    if first in SINGULAR or first in PLURAL:
        return "singular" if first in SINGULAR else "plural"
    return "singular" if len(first) > len(other) else "plural"


def agreement_cases(model: Model, data: Path, half: str, count: int, right: bool = True) -> Cases:
    """Return prefixes whose number the model predicts correctly; the subject should rank first, above the attractor.

    right: False for prefixes whose number it gets wrong; there the attractor should rank first.
    """
    labels = set((getattr(model.config, "id2label", None) or {}).values())
    if not {"singular", "plural"} <= labels:
        raise InputError(f"{model!r} has the classes {sorted(map(str, labels))}: expected singular and plural")
    kept: list[Case] = []
    tried, texts = 0, list(prefixes(data))
    subjects = [prefix.subject for prefix in texts if prefix.seed % 2 == HALVES.index("seen")]
    usual = max(set(subjects), key=subjects.count, default=0)
    judge = agreement_measures if right else mistake_measures
    for prefix in (p for p in texts if p.seed % 2 == HALVES.index(half)):
        if len(kept) == count:
            break
        tried += 1
        (question,) = questions(model, [prefix.text], [None], False)
        if (question.name == prefix.number) == right:
            scores = np.zeros(question.length)
            scores[words_of(question)[usual][0]] = 1
            kept.append(Case(prefix.seed, question, partial(judge, question, prefix), scores))
    return Cases(kept, tried)


def agreement_measures(question: Question, prefix: Prefix, scores: Floats) -> dict[str, float]:
    """Measure scores.

    Ties count as half, or by expectation. A word has the sum of its tokens; negative sums have no mass.
    """
    worth = by_word(scores, words_of(question))
    subject, attractor = worth[prefix.subject], worth[prefix.attractor]
    source = np.arange(len(worth)) == prefix.subject
    mass = np.maximum(worth, 0)
    return {
        "subject above attractor": above(subject, attractor),
        "top-1": precision(worth, source, 1),
        "mass on truth": float(mass[prefix.subject] / mass.sum()) if mass.any() else 0.0,
    }


def mistake_measures(question: Question, prefix: Prefix, scores: Floats) -> dict[str, float]:
    """Measure as `agreement_measures`, with the attractor in place of the subject."""
    other = agreement_measures(question, replace(prefix, subject=prefix.attractor, attractor=prefix.subject), scores)
    other["attractor above subject"] = other.pop("subject above attractor")
    return other


def above(one: float, other: float) -> float:
    return 1.0 if one > other else 0.5 if one == other else 0.0


def word_cases(model: Model, data: Path, half: str, count: int) -> Cases:
    """Return correctly classified sentences of at least 3 words from a table with the columns sentence and label."""
    kept: list[Case] = []
    tried = 0
    for seed, (where, row) in enumerate(read_rows(data)):
        if not {"sentence", "label"} <= set(row) or str(row["label"]) not in ("0", "1"):
            raise InputError(f"{where}: expected the columns sentence and label, 0 (negative) or 1 (positive)")
        if len(kept) == count:
            break
        if seed % 2 != HALVES.index(half):
            continue
        tried += 1
        (question,) = questions(model, [str(row["sentence"]).strip()], [None], False)
        if question.kind != "class":
            raise InputError(f"{model!r} has no classes: expected a classifier with the classes negative, positive")
        truth = WordTruth(model, question, seed)
        if question.chosen == int(row["label"]) and len(truth.words) > 2:
            kept.append(Case(seed, question, truth.measures))
    return Cases(kept, tried)


def lower_layers(model: Model, question: Question) -> list[str]:
    """Return the methods for layers below the last."""
    count = len(model.verify(question.encoded).stack.main)
    return [f"{view} L{layer}" for view in VIEWS for layer in range(1, count)]


TASKS: dict[str, Callable[[Any, Path, str, int], Cases]] = {
    "agreement": agreement_cases,
    "mistakes": partial(agreement_cases, right=False),
    "words": word_cases,
}


def measure(
    model: Model, task: str, half: str, cases: Sequence[Case], file: ResultFile, skip: Collection[str] = ()
) -> Iterator[int]:
    """Append the results of all cases and methods that the file lacks; yield how many cases are finished.

    skip: methods to leave out.
    """
    name = str(model.identity()["model"])
    for number, case in enumerate(cases, 1):
        key = {"model": name, "task": task, "half": half, "seed": case.seed}
        present = {method for *rest, method in file.keys if tuple(rest) == tuple(key.values())}
        every = explanations(model, case.question, case.seed, present | set(skip))
        if case.usual is not None and USUAL not in present:
            every = chain(every, [Explained(USUAL, case.usual, 0.0, 0)])
        for one in every:
            row = {**key, "method": one.method, "measures": case.measures(one.scores)}
            file.add({**row, "seconds": round(one.seconds, 5), "forwards": one.forwards})
        yield number


def main(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    data: Annotated[Path, typer.Option(help="BLiMP's table or SST-2's table.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .jsonl file; results in it are not measured again.")
    ],
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id; the embedded verb-number model by default.")
    ] = None,
    cases: Annotated[int, typer.Option(min=1, help="The most cases.")] = 300,
    half: Annotated[str, typer.Option(help="unseen, which nothing was tuned on, or seen.")] = "unseen",
    last: Annotated[
        bool, typer.Option("--last", help="Use only the last layer of attention, not every layer.")
    ] = False,
    skip: Annotated[list[str] | None, typer.Option(help="A method to leave out; can be repeated.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
) -> None:
    """Measure which method finds what an encoder bases its answer on."""
    import attnflow as af

    if task not in TASKS:
        raise InputError(f"task {task!r}: expected one of {', '.join(TASKS)}")
    check_half(half)
    silence()
    file, loaded = ResultFile(output), af.load(model, dtype="float32", device=device)
    kept = TASKS[task](loaded, data, half, cases)
    if not kept.cases:
        raise InputError(
            f"{data.name} has no {half} case among {kept.tried} that {loaded!r} answers as the task requires"
        )
    progress(f"{task}, {half}: {len(kept.cases)} cases kept of {kept.tried} tried")
    unwanted = [*(skip or ()), *(lower_layers(loaded, kept.cases[0].question) if last else ())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionWarning)  # blank-out is also measured when it is saturated
        for number in measure(loaded, task, half, kept.cases, file, unwanted):
            if number % 10 == 0:
                progress(f"{number} of {len(kept.cases)} cases")
    progress(f"wrote {output}")


if __name__ == "__main__":
    run_command(main)
