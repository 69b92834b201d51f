"""The page of an answer: where each of its tokens came from, in one self-contained file of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.answer import Answer
from attnflow.answer_rows import Units
from attnflow.capture.prompt import UNITS, AnswerLabels, Prompt, Span, find_span
from attnflow.errors import InputError
from attnflow.reliability import for_and_against
from attnflow.result import TokenAttention
from attnflow.source_methods import METHOD
from attnflow.view.answer_numbers import SECONDS, Faded, faded_rows, is_whole, matrix_entry, unit_entry
from attnflow.view.packing import packed
from attnflow.view.page import file_of
from attnflow.view.running_text import pieces

NAMED = ("message", "document")
PAGE_VERSION = 2

OF_THE_SPAN = ("answer", "evidence", "reliability", "outside", "values")
"""What the provenance of a result says of its numbers: a page has it for any span."""


@dataclass(frozen=True, eq=False)
class Explained:
    """An answer with the numbers that its page shows.

    matrix: signed parts ``[answer token, token of the prompt, then of the answer]``. chosen: tokens of the span that the
    page opens with; shares, parts: what it came from, by unit, where the rows of these are too large for a page.
    faded: None where the page has none.
    """

    prompt: Prompt
    labels: AnswerLabels
    log_probabilities: NDArray[np.float64]
    written: bool
    matrix: NDArray[np.float64]
    evidence: Mapping[str, float]
    chosen: Sequence[int]
    shares: Mapping[str, NDArray[np.float64]]
    parts: Mapping[str, NDArray[np.float64]]
    faded: Faded | None
    verified: Mapping[str, Any] | None
    provenance: Mapping[str, Any]


def html_of(
    answer: Answer,
    unit: str,
    verify: int,
    span: Span | None,
    method: str | None = None,
    seconds: float = SECONDS,
) -> str:
    """The whole file. unit, span: what the page opens with. verify: so many units are really left out beforehand.

    method, seconds: as in `document_of`.
    """
    title = " ".join(answer.text.split()).encode("utf-8", "replace").decode()
    return file_of(f"{title[:60]} · attnflow", document_of(answer, unit, verify, span, method, seconds), "answer")


def document_of(
    answer: Answer,
    unit: str = "sentence",
    verify: int = 0,
    span: Span | None = None,
    method: str | None = None,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """What the page shows, as its script reads it.

    method: None for the method that is recommended for each unit; "answer_rows" for that alone, which needs no fading.
    seconds: so long fading may take (`attnflow.view.answer_numbers.faded_rows`).
    """
    return written_document(_explained(answer, unit, verify, span, method, seconds), unit)


def _explained(
    answer: Answer, unit: str, verify: int, span: Span | None, method: str | None, seconds: float
) -> Explained:
    chosen = list(range(len(answer.ids)) if span is None else find_span(answer.text, span, answer.labels.offsets))
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise InputError(f"span={span!r}: a page opens with neighbouring tokens, and these have others between them")
    answer.prompt.units(unit)  # refuses a unit that the prompt does not have
    opening = answer.sources(span, signed=True)
    faded = None if method == METHOD else faded_rows(answer, chosen, seconds)
    verified = None
    if verify:
        falls = answer.sources(span, unit, verify=verify, method=None if faded else METHOD)
        verified = _verified(falls, unit, verify)
    large = [name for name in UNITS if not is_whole(len(answer.ids), _count(answer, name))]
    return Explained(
        prompt=answer.prompt,
        labels=answer.labels,
        log_probabilities=answer.log_probabilities,
        written=answer.written,
        matrix=np.asarray(answer.matrix(signed=True).values[0], np.float64),
        evidence=opening.provenance["evidence"],
        chosen=chosen,
        shares={name: np.asarray(answer.sources(span, name, method=method).row(), np.float64) for name in large},
        parts={name: np.asarray(answer.sources(span, name, signed=True).row(), np.float64) for name in large},
        faded=faded,
        verified=verified,
        provenance={k: v for k, v in opening.provenance.items() if k not in OF_THE_SPAN},
    )


def _count(answer: Answer, unit: str) -> int:
    """The columns of a matrix over these units; 0 where the prompt has none."""
    try:
        units = answer.prompt.units(unit)
    except InputError:  # no messages, or no documents
        return 0
    return len(answer.prompt) + len(answer.ids) if unit == "token" else len(units.groups) + 1


def written_document(explained: Explained, unit: str) -> dict[str, Any]:
    """Texts are in pieces with their tokens, so that a browser need not count characters; tokens that are no piece of their
    own have names."""
    prompt, labels, matrix = explained.prompt, explained.labels, explained.matrix
    size = len(prompt)
    first = [0] if "first_token" in explained.evidence else []
    marks = [i for i in range(size) if prompt.template[i] or prompt.special[i]]
    faded = explained.faded
    texts = _texts(prompt.text, prompt.offsets)
    alone = {piece[1] for piece in texts if len(piece) == 2}
    units = {name: entry for name in UNITS if (entry := _unit(explained, name, first)) is not None}
    return {
        "format": "attnflow-answer",
        "version": PAGE_VERSION,
        "prompt": {
            "pieces": texts,
            "size": size,
            "names": {i: prompt.tokens[i] for i in range(size) if i not in alone},
            "marks": marks,
        },
        "answer": {
            "pieces": _texts(labels.text, labels.offsets),
            "tokens": list(labels.tokens),
            "words": list(labels.word_ids),
            "logProbabilities": explained.log_probabilities.tolist(),
            "written": explained.written,
        },
        "evidence": dict(explained.evidence),
        "sizes": [for_and_against(row[:size], first) for row in matrix],
        "matrix": matrix_entry(matrix, first, marks, size),
        "units": units,
        "fading": None if faded is None else {"spans": [list(span) for span in faded.spans], "by": faded.by},
        "unit": unit,
        "span": [explained.chosen[0], explained.chosen[-1]],
        "verified": explained.verified,
        "provenance": dict(explained.provenance),
    }


def _texts(text: str, offsets: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """[text, its tokens …] of each piece."""
    return [[text[piece.start : piece.end], *piece.tokens] for piece in pieces(len(text), offsets)]


def _unit(explained: Explained, name: str, first: Sequence[int]) -> dict[str, Any] | None:
    """opening: shares and parts of the span that the page opens with, where its rows are not whole."""
    prompt = explained.prompt
    try:
        units = prompt.units(name)
    except InputError:  # no messages, or no documents
        return None
    merged = Units(units.texts, units.groups)
    entry = unit_entry(name, merged, explained.matrix, first, len(prompt), explained.faded)
    entry["names"] = list(units.texts) if name in NAMED else None
    entry["opening"] = (
        {"shares": _single(explained.shares[name]), "parts": _single(explained.parts[name])}
        if name in explained.shares
        else None
    )
    return entry


def _single(values: NDArray[np.float64]) -> dict[str, Any]:
    return packed(values.astype(np.float32))


def _verified(falls: TokenAttention, unit: str, verify: int) -> dict[str, Any]:
    measured = [int(part == "verified") for part in falls.parts]
    return {"unit": unit, "count": verify, "falls": falls.row().tolist(), "measured": measured}
