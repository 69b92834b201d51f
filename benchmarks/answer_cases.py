"""Prompts whose source of the answer is known, for any decoder, and how well scores over the prompt find that source.

A needle is a code among real sentences; attributes are who has, likes and lives where. The prompt ends with a question and
the opening of its answer, so that the next word is the one that the source gives: instructed models begin in many ways.
Even seeds are for tuning, odd ones are unseen.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.texts.strict import read_lines

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]

KINDS = ("needle", "attributes")
METRICS = ("R-precision", "top-1", "mass on truth")
BATCH = 8
PATIENCE = 10
"""How many prompts are tried for each one that is to be kept, before we give up."""

SENTENCES = (
    "The river was low that summer.", "Nobody had repaired the bridge since the flood.",
    "The market opens early on Saturdays.", "Several students wrote letters to the editor.",
    "A new roof was built over the station.", "The museum keeps its paintings in the east wing.",
    "Most of the visitors came by train.", "The choir sang for more than two hours.",
    "Two engineers measured the depth of the lake.", "The farmer sold his old tractor to a neighbour.",
    "Rain is expected in the mountains tonight.", "The committee met twice in spring.",
    "Her brother studies the history of printing.", "The ferry was late because of the fog.",
    "Wild geese rest on the island every autumn.", "The bakery burned down many years ago.",
    "A long queue had formed outside the theatre.", "The doctor wrote a short report about the accident.",
    "They planted apple trees behind the school.", "The mayor promised to widen the road.",
    "Old maps of the valley show a second mill.", "The lecture was cancelled at the last moment.",
    "Fishermen sold their catch on the quay.", "The children painted the fence last week.",
)  # fmt: skip

THINGS = ("access code", "password", "secret word", "door code", "pass phrase", "entry code")
PLACES = (
    "archive", "north gate", "wine cellar", "library computer", "storage room", "old tower", "laboratory", "garden shed",
    "boat house", "south entrance", "workshop", "radio station", "bank vault", "city museum",
)  # fmt: skip
CODES = (
    "amber", "willow", "falcon", "copper", "velvet", "lantern", "marble", "thunder", "saffron", "walnut", "harbor",
    "pepper", "crystal", "meadow", "tiger", "orchid", "granite", "compass", "violin", "cactus", "emerald", "feather",
    "glacier", "hazel", "ivory", "jasmine", "maple", "nectar", "onyx", "pebble",
)  # fmt: skip

PEOPLE = (
    "Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack", "Karen", "Leo", "Maria", "Noah",
    "Olga", "Paul", "Rita", "Simon", "Tina", "Victor",
)  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """What is said of a person: `verb` and a value. question: with a place for the name."""

    verb: str
    question: str
    values: tuple[str, ...]


RELATIONS = (
    Relation("has a", "What animal does {} have?", (
        "dog", "cat", "horse", "rabbit", "parrot", "snake", "goat", "duck", "cow", "turtle", "mouse", "sheep", "pig",
        "canary",
    )),
    Relation("likes", "What does {} like?", (
        "chess", "tennis", "football", "music", "painting", "swimming", "cooking", "reading", "dancing", "fishing",
        "poetry", "golf", "hiking", "opera",
    )),
    Relation("lives in", "In which city does {} live?", (
        "Paris", "Rome", "London", "Berlin", "Madrid", "Vienna", "Oslo", "Tokyo", "Dublin", "Moscow", "Cairo", "Lisbon",
        "Athens", "Boston",
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Puzzle:
    """A prompt, the word that answers it, and where that word stands in the prompt, in characters."""

    prompt: str
    expected: str
    at: int


@dataclass(frozen=True)
class Case:
    """A puzzle that a model solves. answer: what it writes, as ids; truth: the positions of the source in `ids`."""

    kind: str
    seed: int
    prompt: str
    expected: str
    ids: list[int]
    answer: list[int]
    truth: list[int]


@dataclass(frozen=True)
class Kept:
    """The cases that a model solves, of so many tried."""

    cases: list[Case]
    tried: int


def sentences(data: Path | None) -> list[str]:
    """Plain sentences of 6 to 16 words from the file, or from the test file of the folder; ours where data is None."""
    if data is None:
        return list(SENTENCES)
    file = next(iter(sorted(data.glob("*test*.txt*"))), data) if data.is_dir() else data
    if file.is_dir():
        raise InputError(f"the folder {str(data)!r} has no file *test*.txt or *test*.txt.xz: give a file of sentences")
    plain = (joined(line) for _, line in read_lines(file))
    chosen = list(dict.fromkeys(line for line in plain if re.fullmatch(r"[A-Z][A-Za-z',;\- ]+\.", line)))
    chosen = [line for line in chosen if 6 <= len(line.split()) <= 16]
    if len(chosen) < len(SENTENCES):
        raise InputError(
            f"{str(file)!r} has {len(chosen)} plain sentences of 6 to 16 words: expected at least {len(SENTENCES)}"
        )
    return chosen


def joined(line: str) -> str:
    """A sentence of separate words and marks, as people write it.

    >>> joined("Well , it is n't far .")
    "Well, it isn't far."
    """
    return re.sub(r" (?=[,.;:!?)]|n't\b|'\w)", "", line.replace("’", "'")).replace("( ", "(")


def needle(seed: int, texts: Sequence[str]) -> Puzzle:
    """A code among 3 to 13 sentences."""
    draw = random.Random(f"needle {seed}")
    code = draw.choice((draw.choice(CODES), str(draw.randint(1000, 9999))))
    subject = f"The {draw.choice(THINGS)} {draw.choice(('of', 'for'))} the {draw.choice(PLACES)} is"
    lines = draw.sample([t for t in texts if code not in t.lower()], draw.randint(3, 13))
    before = draw.randint(0, len(lines))
    start = " ".join([*lines[:before], subject])
    question = f"What is {subject[0].lower()}{subject[1:-3]}?"
    prompt = " ".join([start, f"{code}.", *lines[before:], question, subject])
    return Puzzle(prompt, code, len(start) + 1)


def attributes(seed: int, texts: Sequence[str] = ()) -> Puzzle:
    """6 to 14 people, each with something of their own; the question is about one of them."""
    draw = random.Random(f"attributes {seed}")
    people = draw.sample(PEOPLE, draw.randint(6, 14))
    values = {relation.verb: draw.sample(relation.values, len(relation.values)) for relation in RELATIONS}
    relations = [draw.choice(RELATIONS) for _ in people]
    facts = [(f"{name} {r.verb}", values[r.verb].pop()) for name, r in zip(people, relations, strict=True)]
    about = draw.randrange(len(people))
    text = " ".join(f"{start} {value}." for start, value in facts)
    opening, expected = facts[about]
    at = len(" ".join([*(f"{start} {value}." for start, value in facts[:about]), opening])) + 1
    return Puzzle(f"{text} {relations[about].question.format(people[about])} {opening}", expected, at)


BUILDERS: dict[str, Callable[[int, Sequence[str]], Puzzle]] = {"needle": needle, "attributes": attributes}


def cases(kind: str, seed: int, count: int, model: Model, texts: Sequence[str] = SENTENCES) -> Kept:
    """The first `count` puzzles that the model solves, of the seeds `seed, seed + 2, …`: its greedy answer is the word.

    Args:
        kind: one of `KINDS`.
        seed: an even one to tune, an odd one to test: the two never meet.
        texts: sentences to hide a needle in.
    """
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: expected one of {', '.join(map(repr, KINDS))}")
    kept: list[Case] = []
    tried = 0
    seeds = iter(range(seed, seed + 2 * PATIENCE * count, 2))
    while batch := list(islice(seeds, BATCH)):
        for case in solved(model, [labelled(kind, s, BUILDERS[kind](s, texts), model) for s in batch]):
            tried += 1
            if case is not None:
                kept.append(case)
            if len(kept) == count:
                return Kept(kept, tried)
    raise InputError(
        f"{model!r} solves {len(kept)} of {tried} puzzles of the kind {kind!r}, and {count} were asked for: "
        "ask for fewer, or take a better model"
    )


def labelled(kind: str, seed: int, puzzle: Puzzle, model: Model) -> Case:
    """The puzzle in tokens: its prompt, the answer that is expected, and which tokens of the prompt are the source."""
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        raise InputError(f"{model!r} was wrapped without a tokenizer: give wrap(model, tokenizer)")
    coded = tokenizer(puzzle.prompt, return_offsets_mapping=True)
    ids = list(coded["input_ids"])
    whole = list(tokenizer(f"{puzzle.prompt} {puzzle.expected}")["input_ids"])
    if whole[: len(ids)] != ids:
        raise InputError(
            f"the tokenizer of {model!r} joins the prompt with its answer, or ends a text with a special token: "
            "expected one that goes on where the prompt ends"
        )
    end = puzzle.at + len(puzzle.expected)
    truth = [i for i, (first, last) in enumerate(coded["offset_mapping"]) if first < end and last > puzzle.at]
    return Case(kind, seed, puzzle.prompt, puzzle.expected, ids, whole[len(ids) :], truth)


def solved(model: Model, batch: Sequence[Case]) -> Iterator[Case | None]:
    """Each case whose answer the model writes greedily, token by token, and then ends the word; None for the others."""
    tokenizer: Any = model.tokenizer
    texts = [case.ids + case.answer for case in batch]
    longest = max(map(len, texts))
    # what follows a text changes nothing in it, so a decoder needs no mask
    ids = torch.tensor([text + [text[-1]] * (longest - len(text)) for text in texts])
    with torch.inference_mode():
        logits = model.model(input_ids=ids.to(model.device), use_cache=False).logits
    for case, row in zip(batch, logits.argmax(-1).tolist(), strict=True):
        first = len(case.ids) - 1
        *written, after = row[first : first + len(case.answer) + 1]
        text = tokenizer.decode([*written, after], skip_special_tokens=True).strip()
        ends = not text[len(case.expected) : len(case.expected) + 1].isalnum()
        yield case if written == case.answer and ends else None


def halves(kind: str, count: int, model: Model, data: Path | None = None, cache: Path | None = None) -> dict[str, Kept]:
    """Half of `count` cases from even seeds, "seen", and half from odd ones, "unseen".

    cache: a folder; cases that lie there, of the same model and sentences, are not built again.
    """
    texts = sentences(data)
    return {
        half: cached(cache, kind, seed, (count + 1 - seed) // 2, model, texts)
        for seed, half in enumerate(("seen", "unseen"))
    }


def cached(cache: Path | None, kind: str, seed: int, count: int, model: Model, texts: Sequence[str]) -> Kept:
    """`cases`, kept in a file of the folder `cache`."""
    if cache is None:
        return cases(kind, seed, count, model, texts)
    file = cache / f"{kind}-{seed}.json"
    lines = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    made_of = {"model": model.name, "dtype": str(model.dtype), "count": count, "sentences": lines}
    if file.is_file():
        content = json.loads(file.read_text())
        if content["made of"] == made_of:
            return Kept([Case(**case) for case in content["cases"]], content["tried"])
    kept = cases(kind, seed, count, model, texts)
    cache.mkdir(parents=True, exist_ok=True)
    content = {"made of": made_of, "tried": kept.tried, "cases": [asdict(case) for case in kept.cases]}
    write_whole(file, lambda path: path.write_text(json.dumps(content)))
    return kept


def measures(scores: Floats, truth: Sequence[int]) -> tuple[float, float, float]:
    """R-precision, top-1 and mass on truth (`METRICS`) of ``scores[token]``.

    Among tied tokens the order is chance, so each counts by its expectation. Scores below 0 have no mass.

    >>> measures(np.array([0.0, 3.0, -9.0, 1.0, 0.5]), [1, 4])
    (0.5, 1.0, 0.7777777777777778)
    """
    source = np.zeros(len(scores), bool)
    source[list(truth)] = True
    clipped = np.maximum(scores, 0)
    total = float(clipped.sum())
    mass = float(clipped[source].sum()) / total if total else 0.0
    return precision(scores, source, len(truth)), precision(scores, source, 1), mass


def precision(scores: Floats, source: NDArray[np.bool_], count: int) -> float:
    """The share of the source among the `count` highest scores."""
    least = np.sort(scores)[-count]
    above, level = scores > least, scores == least
    chance = (count - above.sum()) / level.sum()
    return float((source & above).sum() + chance * (source & level).sum()) / count
