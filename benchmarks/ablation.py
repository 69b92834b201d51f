"""Passages with an answer that the model wrote, and the exact effect of leaving out sentences on its log-probability.

Attributions of sentences are compared with the falls without each sentence (leave-one-out) and with the
log-probabilities for random subsets of sentences of one size, before and after a few verifying ablations.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.evaluate.deletion import orders
from attnflow.evaluate.statistics import spearman
from attnflow.files import write_whole
from attnflow.importance.leave_out import leave_out
from attnflow.importance.verified import fit
from attnflow.texts.strict import read_lines
from attnflow.texts.units import assign
from benchmarks.answer_cases import joined, sink_positions, text_file
from benchmarks.answer_metrics import precision

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]

TASK = "ablation"
SENTENCES = (8, 12)
WORDS = (8, 40)
TOKENS = 20
"""How many tokens the model writes after a passage."""

LEAST = 5
"""Shorter answers, in tokens, are left out: they say too little about where they came from."""

SUBSETS = 32
ABLATIONS = (2, 4, 8, 16)
"""How many of the first-ranked sentences are verified; at most all sentences of a passage."""

QUESTIONS = (
    "", "\nQuestion: What is this text about?\nAnswer:", "", "\nQuestion: What does the text say?\nAnswer:",
)  # fmt: skip
"""What follows a passage; every other one is simply continued."""


@dataclass(frozen=True)
class Passage:
    """A passage and what the model wrote after it.

    units: the positions of each sentence; a question is in none.
    whole: log p of the answer.
    falls: how much log p falls without each sentence.
    subsets: the sentences that were kept, half of them each time.
    kept: log p of the answer with each subset.
    bare: log p without any sentence: after the question alone, or after the last token.
    """

    seed: int
    prompt: str
    ids: list[int]
    answer: list[int]
    units: list[list[int]]
    sinks: list[int]
    whole: float
    falls: list[float]
    subsets: list[list[int]]
    kept: list[float]
    bare: float

    @property
    def free(self) -> list[int]:
        """The positions that can be left out: those of sentences, except the last token, which predicts."""
        return [i for unit in self.units for i in unit if i != len(self.ids) - 1]


def passages(data: Path) -> list[list[str]]:
    """Return disjoint runs of 8 to 12 consecutive sentences of 8 to 40 words from the file, in random order."""
    lines = [joined(line) for _, line in read_lines(text_file(data))]
    fits = [WORDS[0] <= len(line.split()) <= WORDS[1] and line[0].isupper() and line.endswith(".") for line in lines]
    draw = random.Random("passages")
    texts = []
    for fine, run in groupby(range(len(lines)), key=fits.__getitem__):
        rest = [lines[i] for i in run] if fine else []
        while len(rest) >= SENTENCES[0]:
            size = draw.randint(*SENTENCES)
            texts.append(rest[:size])
            rest = rest[size:]
    draw.shuffle(texts)
    return texts


def prompt_of(seed: int, texts: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """Return the prompt of a seed, and the characters of its sentences. Even and odd seeds have different passages."""
    if seed >= len(texts):
        raise InputError(
            f"the seed {seed} needs {seed + 1} passages of at least {SENTENCES[0]} sentences, and the file has "
            f"{len(texts)}: give fewer cases, or a longer file"
        )
    lines = texts[seed]
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    ranges = [(start, start + len(line)) for start, line in zip(starts[:-1], lines, strict=True)]
    return " ".join(lines) + QUESTIONS[seed // 2 % len(QUESTIONS)], ranges


def measured(model: Model, seed: int, texts: Sequence[Sequence[str]]) -> Passage | None:
    """Return the passage of a seed with one pass for each sentence and subset; None if the answer is too short."""
    prompt, ranges = prompt_of(seed, texts)
    try:
        written = model.answer(prompt, max_new_tokens=TOKENS)
    except InputError:  # the model writes nothing
        return None
    ids, answer = list(written.prompt.ids), list(written.ids)
    if len(answer) < LEAST:
        return None
    units = assign(written.prompt.offsets, ranges)
    subsets = halves_of(len(units), SUBSETS, seed)
    left_out = [[i for k, unit in enumerate(units) if k not in subset for i in unit] for subset in subsets]
    free = [i for unit in units for i in unit if i != len(ids) - 1]
    truth = leave_out(model, ids, answer, [*units, *left_out, free])
    whole, without = float(truth.whole.sum()), truth.without.sum(-1).tolist()
    falls = [whole - x for x in without[: len(units)]]
    kept = without[len(units) : -1]
    sinks = sink_positions(ids, model.tokenizer)
    return Passage(seed, prompt, ids, answer, units, sinks, whole, falls, subsets, kept, without[-1])


def halves_of(count: int, subsets: int, seed: int) -> list[list[int]]:
    """Return `subsets` different random halves of `count` sentences, or all there are; each keeps ``count // 2``.

    >>> halves_of(4, 3, 0)
    [[1, 3], [0, 3], [1, 2]]
    """
    draw = random.Random(f"subsets {seed}")
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < min(subsets, math.comb(count, count // 2)):
        chosen[tuple(sorted(draw.sample(range(count), count // 2)))] = None
    return [list(subset) for subset in chosen]


def cached(model: Model, seed: int, texts: Sequence[Sequence[str]], cache: Path | None) -> Passage | None:
    """Return `measured` from a file in the folder `cache`, or compute and store it: it takes some forty passes."""
    if cache is None:
        return measured(model, seed, texts)
    file = cache / f"{TASK}-{seed}.json"
    made_of = {"model": model.name, "dtype": str(model.dtype), "tokens": TOKENS, "prompt": prompt_of(seed, texts)[0]}
    if file.is_file():
        content = json.loads(file.read_text())
        if content["made of"] == made_of:
            return None if content["passage"] is None else Passage(**content["passage"])
    passage = measured(model, seed, texts)
    cache.mkdir(parents=True, exist_ok=True)
    content = {"made of": made_of, "passage": None if passage is None else asdict(passage)}
    write_whole(file, lambda path: path.write_text(json.dumps(content)))
    return passage


def sentence_measures(passage: Passage, scores: Floats) -> dict[str, float]:
    """Return how scores of sentences agree with the truth, alone and after the first ones are verified.

    "Spearman" and "top-1" compare with the falls without each sentence. "LDS" (the linear datamodeling score) is the
    Spearman correlation between the sum of the kept scores and log p with only these sentences, over subsets of one
    size. "…, n verified" are the same after `attnflow.importance.verified.fit` has combined the scores with the true
    falls of the first n.
    """
    truth = np.array(passage.falls)
    result = agreement(passage, scores)
    first = ranking(passage, scores)
    for count in ABLATIONS:
        values, _ = fit(scores, {i: float(truth[i]) for i in first[:count]})
        result |= {f"{name}, {count} verified": x for name, x in agreement(passage, values).items()}
    return result


def agreement(passage: Passage, scores: Floats) -> dict[str, float]:
    """Return Spearman, top-1 and LDS of these scores. Equal scores rank nothing: their correlation is 0."""
    truth, kept = np.array(passage.falls), np.array(passage.kept)
    best = np.zeros(len(truth), bool)
    best[truth.argmax()] = True
    sums = np.array([scores[subset].sum() for subset in passage.subsets])
    return {
        "Spearman": correlation(scores, truth),
        "top-1": precision(scores, best, 1),
        "LDS": correlation(sums, kept),
    }


def correlation(scores: Floats, truth: Floats) -> float:
    """Return Spearman's rank correlation; 0 if all scores are equal, NaN if the truth is.

    >>> correlation(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0]))
    0.0
    """
    rho = spearman(scores, truth)
    return 0.0 if math.isnan(rho) and np.ptp(truth) > 0 else rho


def ranking(passage: Passage, scores: Floats) -> list[int]:
    """Return the sentences by descending score; ties are broken in the same way for all methods."""
    order: list[int] = orders(scores[None], passage.seed)[0].tolist()
    return order
