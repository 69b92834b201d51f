"""Puzzles (`benchmarks.puzzles`) that a decoder solves, as tokens: which tokens and sentences its answer comes from.

Even seeds are for tuning ("seen"), odd ones for reporting ("unseen").
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.texts.strict import read_lines
from attnflow.texts.units import assign
from benchmarks.answer_metrics import measures as measures
from benchmarks.answer_metrics import precision as precision
from benchmarks.puzzles import BUILDERS, MOST, SENTENCES, Puzzle
from benchmarks.puzzles import KINDS as KINDS

if TYPE_CHECKING:
    from attnflow.model import Model

HALVES = ("seen", "unseen")
"""The half of a seed is its remainder modulo two."""

BATCH = 8
PATIENCE = 40
"""How many prompts are tried for each case that is kept."""


@dataclass(frozen=True)
class Case:
    """A puzzle that a model solves.

    ids: the prompt in tokens, up to the first token of the answer that is not white space.
    answer: what the model writes next.
    truth: the positions of the source in `ids`.
    units: the positions of each sentence; the question is in none.
    truth_units: the sentences with the source.
    chain: the sentences that lead to the source from the question, if there are several.
    sinks: the first token and special tokens.
    """

    kind: str
    seed: int
    prompt: str
    expected: str
    ids: list[int]
    answer: list[int]
    truth: list[int]
    units: list[list[int]] = field(default_factory=list)
    truth_units: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    sinks: list[int] = field(default_factory=lambda: [0])

    @property
    def links(self) -> list[list[int]]:
        """The positions of every link of the chain."""
        return [self.units[number] for number in self.chain]


@dataclass(frozen=True)
class Kept:
    """The cases that a model solves, and how many were tried."""

    cases: list[Case]
    tried: int


def sentences(data: Path | None) -> list[str]:
    """Return plain sentences of 6 to 16 words from a file, a folder's test file, or the built-in ones."""
    if data is None:
        return list(SENTENCES)
    file = text_file(data)
    plain = (joined(line) for _, line in read_lines(file))
    chosen = list(dict.fromkeys(line for line in plain if re.fullmatch(r"[A-Z][A-Za-z',;\- ]+\.", line)))
    chosen = [line for line in chosen if 6 <= len(line.split()) <= 16]
    if len(chosen) < 2 * (MOST + 1):
        raise InputError(
            f"{str(file)!r} has {len(chosen)} plain sentences of 6 to 16 words: expected at least {2 * (MOST + 1)}"
        )
    return chosen


def text_file(data: Path) -> Path:
    """Return the file, or the test file of the folder."""
    file = next(iter(sorted(data.glob("*test*.txt*"))), data) if data.is_dir() else data
    if file.is_dir():
        raise InputError(
            f"the folder {str(data)!r} contains no file *test*.txt or *test*.txt.xz: give a file of sentences"
        )
    return file


def joined(line: str) -> str:
    """Return a sentence of separate words and marks in normal spelling.

    >>> joined("Well , it is n't far .")
    "Well, it isn't far."
    """
    return re.sub(r" (?=[,.;:!?)]|n't\b|'\w)", "", line.replace("’", "'")).replace("( ", "(")


def cases(kind: str, seed: int, count: int, model: Model, texts: Sequence[str] = SENTENCES) -> Kept:
    """Return the first `count` puzzles of the seeds `seed, seed + 2, …` that the model solves with its greedy answer.

    There may be fewer: at most `PATIENCE` times as many are tried.

    Args:
        kind: one of `KINDS`.
        seed: even for tuning, odd for testing; the two never overlap.
        texts: sentences to hide a source in.
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
    if not kept:
        raise InputError(
            f"{model!r} solves none of {tried} puzzles of the kind {kind!r}: leave the kind out, or use a better model"
        )
    return Kept(kept, tried)


def labelled(kind: str, seed: int, puzzle: Puzzle, model: Model) -> Case:
    """Return the puzzle in tokens: its prompt, the expected answer, and which prompt tokens are the source."""
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        raise InputError(f"{model!r} was wrapped without a tokenizer: give wrap(model, tokenizer)")
    coded = tokenizer(puzzle.prompt, return_offsets_mapping=True)
    ids, offsets = list(coded["input_ids"]), coded["offset_mapping"]
    whole = list(tokenizer(f"{puzzle.prompt} {puzzle.expected}")["input_ids"])
    if whole[: len(ids)] != ids:
        raise InputError(
            f"the tokenizer of {model!r} merges the prompt with its answer, or ends a text with a special token: "
            "expected one that continues where the prompt ends"
        )
    end = puzzle.at + len(puzzle.expected)
    truth = [i for i, (first, last) in enumerate(offsets) if first < end and last > puzzle.at]
    units = assign([(first, last) for first, last in offsets], puzzle.units)
    sources = [number for number, group in enumerate(units) if {*truth} & {*group}]
    begin = len(ids)
    while not tokenizer.decode([whole[begin]]).strip():  # a space before a number has no particular source
        begin += 1
    ids, answer = whole[:begin], whole[begin:]
    sinks = sink_positions(ids, tokenizer)
    return Case(
        kind, seed, puzzle.prompt, puzzle.expected, ids, answer, truth, units, sources, list(puzzle.chain), sinks
    )


def sink_positions(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """Return the first position, and those of special tokens."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    return [i for i, token in enumerate(ids) if i == 0 or token in special]


def solved(model: Model, batch: Sequence[Case]) -> Iterator[Case | None]:
    """Yield each case whose answer the model writes greedily, ending the word after it; None for the others."""
    tokenizer: Any = model.tokenizer
    texts = [case.ids + case.answer for case in batch]
    longest = max(map(len, texts))
    # later tokens do not affect earlier ones in a decoder, so no mask is needed
    ids = torch.tensor([text + [text[-1]] * (longest - len(text)) for text in texts]).to(model.device)
    places = sorted({i for case, text in zip(batch, texts, strict=True) for i in range(len(case.ids) - 1, len(text))})
    options: dict[str, Any] = {}
    if model.accepts("logits_to_keep"):  # a vocabulary is large
        options["logits_to_keep"] = torch.tensor(places, device=model.device)
    with torch.inference_mode():
        logits = model.model(input_ids=ids, use_cache=False, **options).logits
    best = logits.argmax(-1).cpu() if options else logits[:, places].argmax(-1).cpu()
    for case, row in zip(batch, best.tolist(), strict=True):
        first = places.index(len(case.ids) - 1)
        *words, after = row[first : first + len(case.answer) + 1]
        text = tokenizer.decode([*words, after], skip_special_tokens=True).strip()
        ends = not text[len(case.expected) : len(case.expected) + 1].isalnum()
        yield case if words == case.answer and ends else None


def half_of(kind: str, half: str, count: int, model: Model, texts: Sequence[str], cache: Path | None = None) -> Kept:
    """Return `count` cases of one half.

    cache: a folder; cases there from the same model, sentences and wording are reused.
    """
    seed = HALVES.index(half)
    if cache is None:
        return cases(kind, seed, count, model, texts)
    file = cache / f"{kind}-{half}.json"
    made_of = {
        "model": model.name, "dtype": str(model.dtype), "count": count, "patience": PATIENCE,
        "sentences": hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        "wording": repr(BUILDERS[kind](seed, texts)),
    }  # fmt: skip
    if file.is_file():
        content = json.loads(file.read_text())
        if content["made of"] == made_of:
            return Kept([Case(**case) for case in content["cases"]], content["tried"])
    kept = cases(kind, seed, count, model, texts)
    cache.mkdir(parents=True, exist_ok=True)
    content = {"made of": made_of, "tried": kept.tried, "cases": [asdict(case) for case in kept.cases]}
    write_whole(file, lambda path: path.write_text(json.dumps(content)))
    return kept
