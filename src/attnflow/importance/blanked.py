"""Scores of texts with some tokens blanked: on the cache of what comes before, in parts that a time limit allows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from attnflow.capture.answer_pass import log_probabilities
from attnflow.importance.prefix import Prefix, Row, Variant, shared_prefix, without
from attnflow.importance.question import Question, Tensors, answer_scores, outputs
from attnflow.importance.tiles import Cover

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

SHORT = 64
"""Up to this many tokens, all blanks of a text run in a batch or two, and a cache would not be faster."""

Replacement = int | Cover | None
"""What stands in for a token, by its id, or for a patch; None removes the token."""

IMAGES = 256
"""The number of images with a covered patch that exist at once."""

FIRST = 8
"""The number of blanks that run before the time is checked."""


@dataclass(frozen=True)
class Blank:
    """One text with a group of its tokens blanked. text: its number. group: the number of the group; -1 for the unchanged
    text, which has no positions."""

    text: int
    group: int
    positions: tuple[int, ...] = ()


def scores(
    model: Runner,
    about: Sequence[Question],
    blanks: Sequence[Blank],
    token: Replacement,
    of: str,
    prefixes: Mapping[int, Prefix],
) -> Iterator[list[tuple[Blank, float]]]:
    """Yield the answer's score with each blank, batch by batch. token: the replacement; None to remove.

    prefixes: the caches of the texts that have one; all others run from their beginning, in batches of one length.
    """
    rest = [blank for blank in blanks if blank.text not in prefixes]
    step = IMAGES if isinstance(token, Cover) else max(len(rest), 1)
    for start in range(0, len(rest), step):
        fresh = rest[start : start + step]
        rows = [_without(about[blank.text], blank.positions, token) for blank in fresh]
        for at, logits in outputs(model, rows, keep=[len(about[blank.text].answer) for blank in fresh]):
            batch = [fresh[r] for r in at]
            places = [_place(about[blank.text].place, blank.positions, token) for blank in batch]
            values = answer_scores(model, [about[blank.text] for blank in batch], logits.cpu(), of, places)
            yield list(zip(batch, values.tolist(), strict=True))
    for number, prefix in prefixes.items():
        assert not isinstance(token, Cover)
        own = [blank for blank in blanks if blank.text == number]
        ids = _ids(about[number])
        for i, logits in prefix.logits([without(ids, blank.positions, token) for blank in own]):
            (value,) = answer_scores(model, [about[number]], logits[None].cpu(), of).tolist()
            yield [(own[i], value)]


def prefix_of(model: Runner, question: Question, blanks: Sequence[Blank], token: Replacement) -> Prefix | None:
    """Return the cache of a text for these blanks, or None.

    None if the text is short, if the model does not write the next token, or if its cache cannot be used.
    A decoder is causal: a blank does not change what comes before it, so each text runs from its blank on.
    """
    plain = all(name in ("input_ids", "attention_mask") for name in question.tensors)
    mask = question.tensors.get("attention_mask")
    if (
        isinstance(token, Cover)
        or question.kind != "next token"
        or question.length <= SHORT
        or not plain
        or (mask is not None and not mask.all())
    ):
        return None
    answer = question.answer

    def fresh(variant: Variant) -> Row:
        row = {"input_ids": torch.tensor([[*variant.ids, *answer[:-1]]])}
        ((_, logits),) = outputs(model, [row], keep=len(answer))
        return log_probabilities(logits[0, -len(answer) :], answer)

    ids = _ids(question)
    variants = [without(ids, blank.positions, token) for blank in blanks if blank.positions]
    return shared_prefix(model, ids, answer, variants, None, fresh) if variants else None


def parts(
    blanks: Sequence[Blank], costs: Sequence[int], seconds: float | None, begun: float
) -> Iterator[tuple[Sequence[Blank], int]]:
    """Yield the blanks in order, as far as time allows, in parts, each with the estimated number of blanks in total.

    The time of earlier parts determines how many of the rest fit. If all of them fit, they are the next part, else half of
    those that fit, so that a wrong estimate is corrected. The first eight always run.

    costs: the tokens that each blank computes. begun: when the clock was started.
    """
    if seconds is None:
        yield blanks, len(blanks)
        return
    sums, started = [0, *accumulate(costs)], time.monotonic()  # earlier work, such as the cache, is paid only once
    start, end, planned = 0, min(FIRST, len(blanks)), len(blanks)
    while start < end:
        yield blanks[start:end], planned
        now = time.monotonic()
        room = (seconds - (now - begun)) * sums[end] / max(now - started, 1e-9)
        start = end
        fitting = sum(total - sums[start] <= room for total in sums[start + 1 :])
        planned = start + fitting
        end = planned if planned == len(blanks) or fitting < FIRST else start + (fitting + 1) // 2


def cost(question: Question, blank: Blank, prefix: Prefix | None) -> int:
    """Return how many tokens are computed for a blank."""
    length = question.length + len(question.rest)
    return length if prefix is None or not blank.positions else length - min(blank.positions[0], length - 1)


def _ids(question: Question) -> tuple[int, ...]:
    return tuple(question.tensors["input_ids"][0].tolist())


def _without(question: Question, positions: Sequence[int], token: Replacement) -> Tensors:
    tensors = question.forced
    if isinstance(token, Cover):
        assert question.tiles is not None
        return {**tensors, "pixel_values": token.over(tensors["pixel_values"], question.tiles, positions)}
    n = tensors["input_ids"].shape[1]
    at = torch.tensor(positions, dtype=torch.long)
    if token is None:
        keep = torch.ones(n, dtype=torch.bool)
        keep[at] = False
        return {k: x[:, keep] if x.dim() > 1 and x.shape[1] == n else x for k, x in tensors.items()}
    ids = tensors["input_ids"].clone()
    ids[0, at] = token
    return {**tensors, "input_ids": ids}


def _place(place: int | None, positions: Sequence[int], token: Replacement) -> int | None:
    """Return where the answer is read once these positions are gone."""
    if place is None or token is not None:
        return place
    return max(place - sum(i <= place for i in positions), 0)
