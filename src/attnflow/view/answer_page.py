"""The page of an answer: one self-contained HTML file that shows where each of its tokens came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.answer import Answer
from attnflow.answer_rows import Units
from attnflow.capture.photo import photo
from attnflow.capture.prompt import UNITS, AnswerLabels, Prompt, Span, find_span
from attnflow.errors import InputError
from attnflow.reliability import evidence_notes, for_and_against
from attnflow.result import TokenAttention
from attnflow.source_methods import METHOD
from attnflow.view.answer_numbers import SECONDS, Faded, faded_rows, is_whole, matrix_entry, unit_entry
from attnflow.view.packing import packed
from attnflow.view.page import file_of
from attnflow.view.running_text import pieces

NAMED = ("message", "document")
PAGE_VERSION = 2

OF_THE_SPAN = ("answer", "evidence", "reliability", "outside", "values")
"""Provenance entries about the numbers of one span, which the page computes for any span."""


@dataclass(frozen=True, eq=False)
class Explained:
    """An answer with the numbers that its page shows.

    matrix: signed parts ``[answer token, prompt tokens and then answer tokens]``.
    chosen: tokens of the span that the page opens with.
    shares, parts: the sources of this span by unit, for units whose rows are too large for a page.
    faded: None if the page has no fading.
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
    picture: Mapping[str, Any] | None = None


def html_of(
    answer: Answer,
    unit: str,
    verify: int,
    span: Span | None,
    method: str | None = None,
    seconds: float = SECONDS,
) -> str:
    """Return the HTML file.

    unit, span: what the page opens with.
    verify: number of top units to leave out and measure.
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
    """Return the document that the page's script reads.

    method: None for the recommended method of each unit; "answer_rows" for that method only, which needs no fading.
    seconds: time limit for fading (see `attnflow.view.answer_numbers.faded_rows`).
    """
    return written_document(_explained(answer, unit, verify, span, method, seconds), unit)


def _explained(
    answer: Answer, unit: str, verify: int, span: Span | None, method: str | None, seconds: float
) -> Explained:
    chosen = list(range(len(answer.ids)) if span is None else find_span(answer.text, span, answer.labels.offsets))
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise InputError(f"span={span!r}: expected consecutive tokens, for a page to open with")
    answer.prompt.units(unit)  # raises if the prompt has no such unit
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
        picture=_picture(answer),
    )


def _picture(answer: Answer) -> dict[str, Any] | None:
    """Return the image of a prompt with a map of its patches for each answer token; None if there is no map."""
    if not answer.prompt.image:
        return None
    try:
        maps = np.stack([answer.patches(token) for token in range(len(answer.ids))])  # [answer token, row, column]
    except InputError:
        return None
    image = photo(answer.model, answer.prompt.photo, answer.prompt.tensors)
    return {
        "rows": maps.shape[1],
        "columns": maps.shape[2],
        "maps": packed(maps.reshape(len(maps), -1).astype(np.float32)),
        "image": None if image is None else packed(np.ascontiguousarray(image, np.uint8)),
    }


def _count(answer: Answer, unit: str) -> int:
    """Return the number of columns of a matrix over these units; 0 if the prompt has none."""
    try:
        units = answer.prompt.units(unit)
    except InputError:  # no messages, or no documents
        return 0
    return len(answer.prompt) + len(answer.ids) if unit == "token" else len(units.groups) + 1


def written_document(explained: Explained, unit: str) -> dict[str, Any]:
    """Return the page's document.

    Texts are split into pieces with their tokens, so that a browser does not count characters. Tokens that are not a piece
    by themselves have names.
    """
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
        "reliability": _notes(explained, first),
        "matrix": matrix_entry(matrix, first, marks, size),
        "units": units,
        "fading": None if faded is None else {"spans": [list(span) for span in faded.spans], "by": faded.by},
        "unit": unit,
        "span": [explained.chosen[0], explained.chosen[-1]],
        "verified": explained.verified,
        "provenance": dict(explained.provenance),
        "picture": explained.picture,
    }


def _notes(explained: Explained, first: Sequence[int]) -> dict[str, list[str]]:
    """Return why the shares of a span should not be read as they are, by "first-last" token.

    The spans are each token and word, the sentences that fading was computed for, the opening one and the whole answer.
    """
    sizes = np.array([for_and_against(row[: len(explained.prompt)], first) for row in explained.matrix])
    words, last = explained.labels.word_ids, len(sizes) - 1
    starts = [i for i in range(len(sizes)) if i == 0 or words[i] is None or words[i] != words[i - 1]]
    spans = [
        *((i, i) for i in range(len(sizes))),
        *zip(starts, [*(i - 1 for i in starts[1:]), last], strict=True),
        *([] if explained.faded is None else explained.faded.spans),
        (explained.chosen[0], explained.chosen[-1]),
        (0, last),
    ]
    notes = {}
    for start, end in spans:
        each = float(np.exp(explained.log_probabilities[start : end + 1].mean()))
        speaks_for, against, at_first = sizes[start : end + 1].sum(0).tolist()
        own = evidence_notes(speaks_for, against, at_first, explained.evidence["gap"], each)
        if own:
            notes[f"{start}-{end}"] = list(own.values())
    return notes


def _texts(text: str, offsets: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """Return [text, its tokens …] for each piece."""
    return [[text[piece.start : piece.end], *piece.tokens] for piece in pieces(len(text), offsets)]


def _unit(explained: Explained, name: str, first: Sequence[int]) -> dict[str, Any] | None:
    """Return the entry of a unit, or None if the prompt has none.

    Its field "opening" has the shares and parts of the opening span if the rows are not stored in full.
    """
    prompt = explained.prompt
    try:
        units = prompt.units(name)
    except InputError:  # no messages, or no documents
        return None
    merged = Units(units.texts, units.groups)
    entry = unit_entry(name, merged, explained.matrix, first, len(prompt), explained.faded)
    # places in an image have no text
    entry["names"] = list(units.texts) if name in NAMED or (prompt.image and name != "token") else None
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
