"""The numbers on an answer's page: rows over units of the prompt, and fading for parts of the answer."""

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
"""If a matrix has more than `EXACT` numbers, a page keeps this many per row: those with the largest absolute values."""

SECONDS = 20.0
"""Time limit for fading on a page. Each part of the answer needs a backward pass."""

LATE = 2.0
"""If fading takes this many times the limit, the page has it only for the span that it opens with."""

STAGE = "fading"
"""The name of the stage in progress reports."""


@dataclass(frozen=True, eq=False)
class Faded:
    """How fast the log-probability of parts of the answer falls as attention fades.

    spans: first and last token of each part; the first span is the one that the page opens with.
    slopes: ``[part, prompt token]``, signed. They are additive: the slopes of a longer span are the sum over its parts.
    by: the unit of the other spans, "token" or "sentence"; "span" if there are no others.
    """

    spans: tuple[tuple[int, int], ...]
    slopes: Floats
    by: str


def faded_rows(answer: Answer, chosen: Sequence[int], seconds: float = SECONDS) -> Faded | None:
    """Compute fading for the span that a page opens with and, if time allows, for each token or sentence of the answer.

    Return None if the model has no fading.

    chosen: the tokens of the span.
    seconds: time limit for all parts, estimated from the first token.
    """
    if answer.sources((chosen[0], chosen[-1] + 1), "sentence").method != COMBINED:
        return None

    def slopes(first: int, last: int) -> Floats:
        result = answer.sources((first, last + 1), method=FADING, signed=True)
        return np.asarray(result.row(), np.float64)

    opening = (chosen[0], chosen[-1])
    rows = {opening: slopes(*opening)}  # also runs the forward pass that the others reuse
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
        if time.monotonic() - begun > LATE * seconds:  # the machine has become slower
            by, spans = "span", [opening]
            break
        if part not in rows:
            rows[part] = slopes(*part)
        if answer.progress is not None:
            answer.progress(STAGE, number, len(spans))
    return Faded(tuple(spans), np.array([rows[part] for part in spans]), by)


def answer_sentences(labels: AnswerLabels) -> list[tuple[int, int]]:
    """Return the first and last token of each sentence of an answer. Every token belongs to a sentence."""
    ends = [end for _, end in sentences(labels.text)[:-1]]
    numbers = [sum(start >= end for end in ends) for start, _ in labels.offsets]
    starts = [0, *(i for i in range(1, len(numbers)) if numbers[i] > max(numbers[:i]))]
    return [(a, b - 1) for a, b in pairwise([*starts, len(numbers)])]


def unit_entry(
    name: str, units: Units, matrix: Floats, first: Sequence[int], size: int, faded: Faded | None
) -> dict[str, Any]:
    """Return the entry of one kind of unit in the page's document.

    The entry has the fields
    of: the unit of each token, -1 for none; None if every token is a unit.
    rows, passed: for each answer token, the signed parts and the shares of all units and, last, of the tokens outside all
    units; None for tokens, whose values are in the matrix.
    faded: the same for fading, for each of its spans.
    exact: whether nothing was left out of these.

    matrix: signed parts ``[answer token, prompt | answer]``.
    first: tokens that have no share.
    size: number of prompt tokens.
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
    """Return whether a page stores a matrix of this size in full."""
    return rows * columns <= EXACT


def kept(values: Floats) -> dict[str, Any]:
    """Return a matrix for a page: in full, or the largest absolute values of each row with their places.

    ``covered`` is the fraction of a row's total size that these values have, the lowest over all rows.
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
        "places": packed(places.astype(np.float32)),  # exact: integers far below 2^24
        "width": values.shape[1],
        "covered": covered,
    }


def matrix_entry(matrix: Floats, first: Sequence[int], marks: Sequence[int], size: int) -> dict[str, Any]:
    """Return the signed parts of each answer token, and totals of full rows for pages that store only a part of them.

    totals: support for each token from the prompt, and from prompt and answer, without the first token.
    sums: sums over all parts of the prompt, of the answer and of the first token.
    inside: shares of the answer's own tokens.
    marks: the total share of chat marks.
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
    numbers = np.full(size, -1, np.float32)  # exact: integers far below 2^24
    for number, group in enumerate(units.groups):
        numbers[list(group)] = number
    return packed(numbers)
