"""The numbers of an answer's page: rows over units of the prompt, and fading for parts of the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.answer import Answer
from attnflow.answer_rows import Units, by_units, shares
from attnflow.capture.prompt import AnswerLabels
from attnflow.source_methods import COMBINED, FADING, SMALL
from attnflow.texts.units import sentences
from attnflow.view.document import EXACT
from attnflow.view.packing import packed

Floats = NDArray[np.float64]

STRONGEST = 256
"""Where a matrix has more than `EXACT` numbers, a page holds so many of each row: the largest by size."""

SECONDS = 20.0
"""So long a page may compute fading. Each part of the answer takes a pass back through the model."""

LATE = 2.0
"""Where it takes so many times longer after all, the page makes do with the span that it opens with."""

STAGE = "fading"
"""What progress calls it."""


@dataclass(frozen=True, eq=False)
class Faded:
    """How fast log p of parts of the answer falls as attention fades: slopes ``[part, prompt token]``, signed.

    spans: first and last token of each part; the first of them is the span that the page opens with. by: what the others
    are, "token" or "sentence", or "span" where there are no others. They add up: a span of several has their sum.
    """

    spans: tuple[tuple[int, int], ...]
    slopes: Floats
    by: str


def faded_rows(answer: Answer, chosen: Sequence[int], seconds: float = SECONDS) -> Faded | None:
    """Fading of the span that a page opens with, and of each token of the answer, or of its sentences, if there is time.

    None where the model has no fading. chosen: the tokens of the span. seconds: for all, by what the first token took.
    """
    if answer.sources((chosen[0], chosen[-1] + 1), "sentence").method != COMBINED:
        return None

    def slopes(first: int, last: int) -> Floats:
        result = answer.sources((first, last + 1), method=FADING, signed=True)
        return np.asarray(result.row(), np.float64)

    opening = (chosen[0], chosen[-1])
    rows = {opening: slopes(*opening)}  # the first one also runs the pass that the others go back through
    count = len(answer.ids)
    begun = time.monotonic()
    rows.setdefault((0, 0), slopes(0, 0))
    each = time.monotonic() - begun
    by, spans = "span", [opening]
    for name, parts in (("token", [(i, i) for i in range(count)]), ("sentence", answer_sentences(answer.labels))):
        if each * len(parts) <= seconds:
            by, spans = name, [opening, *(part for part in parts if part != opening)]
            break
    for number, part in enumerate(spans, 1):
        if time.monotonic() - begun > LATE * seconds:  # the machine has other work by now
            by, spans = "span", [opening]
            break
        if part not in rows:
            rows[part] = slopes(*part)
        if answer.progress is not None:
            answer.progress(STAGE, number, len(spans))
    return Faded(tuple(spans), np.array([rows[part] for part in spans]), by)


def answer_sentences(labels: AnswerLabels) -> list[tuple[int, int]]:
    """First and last token of each sentence of an answer; all of its tokens are in one."""
    ends = [end for _, end in sentences(labels.text)[:-1]]
    numbers = [sum(start >= end for end in ends) for start, _ in labels.offsets]
    starts = [0, *(i for i in range(1, len(numbers)) if numbers[i] > max(numbers[:i]))]
    return [(a, b - 1) for a, b in pairwise([*starts, len(numbers)])]


def unit_entry(
    name: str, units: Units, matrix: Floats, first: Sequence[int], size: int, faded: Faded | None
) -> dict[str, Any]:
    """One kind of unit as the page reads it.

    of: the unit of each token, -1 for none; None where every token is one. rows, passed: for
    each answer token, signed parts and shares of units and, last, of the tokens in none; None of tokens, which the matrix
    has. faded: the same of fading, for each of its spans. exact: whether all of these are whole.

    matrix: signed parts ``[answer token, prompt | answer]``. first: tokens that have no share. size: tokens of the prompt.
    """
    entry: dict[str, Any] = {"count": len(units.groups), "of": None, "rows": None, "passed": None, "faded": None}
    if name == "token":
        return {**entry, "exact": is_whole(*matrix.shape)}
    groups = [*units.groups, units.rest(size)]
    parts = matrix[:, :size].copy()
    parts[:, list(first)] = 0
    rows = by_units(parts, groups)
    entry |= {"of": _unit_of_each(units, size), "rows": {**kept(rows), "totals": _positive(rows).tolist()}}
    entry["passed"] = kept(by_units(shares(matrix, first)[:, :size], groups))
    if faded is not None and name not in SMALL:
        entry["faded"] = kept(by_units(faded.slopes, groups))
    return {**entry, "exact": is_whole(len(matrix), len(groups))}


def is_whole(rows: int, columns: int) -> bool:
    """Whether a page holds all of such a matrix."""
    return rows * columns <= EXACT


def kept(values: Floats) -> dict[str, Any]:
    """A matrix as a page has it: all of it, or the largest of each row by size, with their places.

    covered: the least part of a row's size, over all rows, that the largest entries have.
    """
    if is_whole(*values.shape):
        return {"values": packed(values.astype(np.float32)), "places": None, "width": values.shape[1], "covered": 1.0}
    least = values.shape[1] - min(STRONGEST, values.shape[1])
    places = np.sort(np.argpartition(np.abs(values), least, axis=1)[:, least:], axis=1)
    largest = np.take_along_axis(values, places, axis=1)
    sizes = np.abs(values).sum(1)
    covered = float((np.abs(largest).sum(1) / np.where(sizes == 0, 1, sizes)).min(initial=1.0))
    return {
        "values": packed(largest.astype(np.float32)),
        "places": packed(places.astype(np.float32)),  # whole numbers far below 2^24
        "width": values.shape[1],
        "covered": covered,
    }


def matrix_entry(matrix: Floats, first: Sequence[int], marks: Sequence[int], size: int) -> dict[str, Any]:
    """The signed parts of each answer token, and what the page needs of whole rows where it holds a part of them.

    totals: what speaks for each token in the prompt, and in prompt and answer, without the first token. sums: all parts
    of the prompt, of the answer and of the first token. inside: the shares of tokens of the answer. marks: those of the
    marks of a chat, together.
    """
    counted = matrix.copy()
    counted[:, list(first)] = 0
    sums = np.stack([matrix[:, :size].sum(1), matrix[:, size:].sum(1), matrix[:, list(first)].sum(1)], 1)
    both = shares(matrix, first)
    return {
        **kept(matrix),
        "totals": np.stack([_positive(counted[:, :size]), _positive(counted)], 1).tolist(),
        "sums": sums.tolist(),
        "inside": kept(both[:, size:]),
        "marks": both[:, list(marks)].sum(1).tolist(),
    }


def _positive(values: Floats) -> Floats:
    total: Floats = np.clip(values, 0, None).sum(1)
    return total


def _unit_of_each(units: Units, size: int) -> dict[str, Any]:
    numbers = np.full(size, -1, np.float32)  # whole numbers far below 2^24
    for number, group in enumerate(units.groups):
        numbers[list(group)] = number
    return packed(numbers)
