"""The page of an answer: where each of its tokens came from, in one self-contained file of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow.answer import Answer
from attnflow.capture.prompt import UNITS, Span, find_span
from attnflow.errors import InputError
from attnflow.reliability import for_and_against
from attnflow.result import TokenAttention
from attnflow.source_methods import METHOD
from attnflow.view.document import EXACT, packed
from attnflow.view.page import file_of
from attnflow.view.running_text import pieces

STRONGEST = 256
"""Where a matrix has more than `EXACT` numbers, a page holds so many of each row: the largest by size."""

NAMED = ("message", "document")


def html_of(answer: Answer, unit: str, verify: int, span: Span | None) -> str:
    """The whole file. unit, span: what the page opens with. verify: so many units are really left out beforehand."""
    title = " ".join(answer.text.split()).encode("utf-8", "replace").decode()
    return file_of(f"{title[:60]} · attnflow", document_of(answer, unit, verify, span), "answer")


def document_of(answer: Answer, unit: str, verify: int, span: Span | None) -> dict[str, Any]:
    """What the page shows. Texts are in pieces with their tokens, so that a browser need not count characters."""
    prompt, labels = answer.prompt, answer.labels
    opening, matrix = answer.sources(span, signed=True), answer.matrix(signed=True)
    first = [0] if "first_token" in opening.provenance["evidence"] else []
    chosen = list(range(len(answer.ids)) if span is None else find_span(answer.text, span, labels.offsets))
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise InputError(f"span={span!r}: a page opens with neighbouring tokens, and these have others between them")
    return {
        "format": "attnflow-answer",
        "version": 1,
        "prompt": {
            "pieces": _texts(prompt.text, prompt.offsets),
            "tokens": list(prompt.tokens),
            "marks": [int(a or b) for a, b in zip(prompt.template, prompt.special, strict=True)],
        },
        "answer": {
            "pieces": _texts(answer.text, labels.offsets),
            "tokens": list(answer.tokens),
            "logProbabilities": answer.log_probabilities.tolist(),
            "written": answer.written,
        },
        "evidence": dict(opening.provenance["evidence"]),
        "sizes": [for_and_against(row[: len(prompt)], first) for row in matrix.values[0]],
        "matrix": _matrix(matrix),
        "units": {name: entry for name in UNITS if (entry := _unit(answer, name, span)) is not None},
        "unit": unit,
        "span": [chosen[0], chosen[-1]],
        "verified": _verified(answer.sources(span, unit, verify=verify, method=METHOD), unit, verify)
        if verify
        else None,
        "provenance": {k: v for k, v in opening.provenance.items() if k not in ("answer", "evidence", "reliability")},
    }


def _texts(text: str, offsets: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """[text, its tokens …] of each piece."""
    return [[text[piece.start : piece.end], *piece.tokens] for piece in pieces(len(text), offsets)]


def _unit(answer: Answer, name: str, span: Span | None) -> dict[str, Any] | None:
    """The number of each token's unit, -1 where it is in none; names of messages and documents; what the span came from."""
    try:
        units = answer.prompt.units(name)
    except InputError:  # no messages, or no documents
        return None
    numbers = [-1] * len(answer.prompt)
    for number, group in enumerate(units.groups):
        for token in group:
            numbers[token] = number
    return {
        "of": numbers,
        "count": len(units.groups),
        "names": list(units.texts) if name in NAMED else None,
        "shares": answer.sources(span, name, method=METHOD).row().tolist(),  # of other spans a browser has no other
        "parts": answer.sources(span, name, signed=True).row().tolist(),
    }


def _verified(falls: TokenAttention, unit: str, verify: int) -> dict[str, Any]:
    measured = [int(part == "verified") for part in falls.parts]
    return {"unit": unit, "count": verify, "falls": falls.row().tolist(), "measured": measured}


def _matrix(matrix: TokenAttention) -> dict[str, Any]:
    """Signed parts [answer token, token of the prompt and then of the answer]: all, or the largest of each row.

    covered: the least part of a row's size, over all rows, that the largest entries have.
    """
    values = matrix.values[0]
    if values.size <= EXACT:
        return {"values": packed(values.astype(np.float32)), "places": None, "covered": 1.0}
    places = np.sort(np.argsort(-np.abs(values), axis=1, kind="stable")[:, :STRONGEST], axis=1)
    largest = np.take_along_axis(values, places, axis=1)
    sizes = np.abs(values).sum(1)
    covered = float((np.abs(largest).sum(1) / np.where(sizes == 0, 1, sizes)).min())
    return {
        "values": packed(largest.astype(np.float32)),
        "places": packed(places.astype(np.float32)),  # whole numbers far below 2^24
        "covered": covered,
    }
