"""The views of an `Answer`: terminal, notebook, data files and page."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console, RenderableType

from attnflow.answer import Answer
from attnflow.capture.inputs import kind
from attnflow.capture.prompt import Span, find_span
from attnflow.errors import InputError
from attnflow.files import of_extension, write_whole
from attnflow.result import TokenAttention
from attnflow.result_files import ANSWER_FORMAT
from attnflow.source_methods import METHOD
from attnflow.view.answer_numbers import STRONGEST
from attnflow.view.answer_page import html_of
from attnflow.view.answer_terminal import AnswerSheet
from attnflow.view.document import EXACT
from attnflow.view.page import framed

VERSION = 1

UNIT = "sentence"
"""The default unit."""

NOTEBOOK = 3.0
"""Time limit for fading in a notebook, which shows a page without being asked."""


@dataclass(frozen=True)
class AnswerView:
    """The interface between `Answer` and the views. Arguments are those of the answer's methods; method ranks units."""

    answer: Answer
    method: str | None = None

    def renderable(self) -> RenderableType:
        return self._sheet(None, UNIT, 0).printed()

    def show(self, span: Span | None, unit: str, verify: int, file: IO[str] | None) -> None:
        if file is not None and not hasattr(file, "write"):
            raise InputError(f"file is {kind(file)}: expected an open file; save() takes a name")
        Console(file=file).print(self._sheet(span, unit, verify).printed())

    def save(self, path: str | os.PathLike[str], unit: str, verify: int, span: Span | None) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"path is {kind(path)}: expected the name of a file")
        path = Path(path)
        table: dict[str, Callable[[], None]] = {
            ".html": lambda: self._save_text(path, self._html(unit, verify, span)),
            ".json": lambda: self._save_text(path, self._json(unit, verify, span)),
            ".csv": lambda: self._sources(span, unit, verify).save(path),
            ".parquet": lambda: self._sources(span, unit, verify).save(path),
        }
        of_extension(table, path)()

    def notebook_html(self) -> str:
        return framed(html_of(self.answer, UNIT, 0, None, seconds=NOTEBOOK))

    def _sources(self, span: Span | None, unit: str, verify: int = 0) -> TokenAttention:
        return self.answer.sources(span, unit, verify=verify, method=self.method)

    def _html(self, unit: str, verify: int, span: Span | None) -> str:
        if self.method not in (None, METHOD):
            raise InputError(
                f"method={self.method!r}: a page shows the recommended method of each unit, or {METHOD!r} for all; use the "
                "terminal, .json, .csv or .parquet for other methods"
            )
        return html_of(self.answer, unit, verify, span, self.method)

    def to_dict(self, unit: str, verify: int, span: Span | None) -> dict[str, Any]:
        answer, prompt, labels = self.answer, self.answer.prompt, self.answer.labels
        shares, parts = answer.sources(span), answer.sources(span, signed=True)
        matrix, units = answer.matrix(signed=True), self._sources(span, unit)
        return {
            "format": ANSWER_FORMAT,
            "version": VERSION,
            "prompt": {
                "text": prompt.text,
                "ids": list(prompt.ids),
                "tokens": list(prompt.tokens),
                "offsets": [list(offset) for offset in prompt.offsets],
                "special": list(prompt.special),
                "template": list(prompt.template),
                "messages": [asdict(part) for part in prompt.messages],
                "documents": [asdict(part) for part in prompt.documents],
            },
            "answer": {
                "text": answer.text,
                "ids": list(answer.ids),
                "tokens": list(answer.tokens),
                "offsets": [list(offset) for offset in labels.offsets],
                "special": list(labels.special),
                "log_probabilities": answer.log_probabilities.tolist(),
                "probability": answer.probability,
                "written": answer.written,
            },
            "sources": {
                "method": shares.method,
                "explains": shares.query_tokens[0],
                "answer_tokens": self._chosen(span),
                "shares": shares.row().tolist(),
                "parts": parts.row().tolist(),
                "unit": unit,
                "unit_method": units.method,
                "unit_values": units.provenance.get("values", units.method),
                "units": self._units(unit, verify, span, units),
                "verify": verify,
                "reliability": list(dict.fromkeys([*shares.reliability, *units.reliability])),
            },
            "evidence": dict(shares.provenance["evidence"]),
            "matrix": {**matrix_of(matrix), "evidence": dict(matrix.provenance["evidence"])},
            "hops": {"hops": "all", "shares": answer.hops("all", span).row()[: len(prompt.ids)].tolist()},
            "provenance": dict(shares.provenance),
        }

    def _units(self, unit: str, verify: int, span: Span | None, shares: TokenAttention) -> list[dict[str, Any]]:
        """Return the units of the prompt with their position, share and signed part of the log-odds.

        If some were left out, add the fall of the answer's log-probability, and whether it is verified or estimated.
        """
        units, parts = self.answer.prompt.units(unit), self.answer.sources(span, unit, signed=True)
        falls = self._sources(span, unit, verify) if verify else None
        entries: list[dict[str, Any]] = [
            {"text": text, "start": start, "end": end, "tokens": list(group), "share": share, "part": part}
            for text, (start, end), group, share, part in zip(
                units.texts, units.ranges, units.groups, shares.row().tolist(), parts.row().tolist(), strict=True
            )
        ]
        if falls is None:
            return entries
        measured = zip(entries, falls.row().tolist(), falls.parts, strict=True)
        return [{**entry, "fall": fall, "how": how} for entry, fall, how in measured]

    def _json(self, unit: str, verify: int, span: Span | None) -> str:
        return json.dumps(self.to_dict(unit, verify, span), allow_nan=False) + "\n"

    def _save_text(self, path: Path, text: str) -> None:
        write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))

    def _chosen(self, span: Span | None) -> list[int]:
        """Return the answer tokens to explain."""
        answer = self.answer
        return list(range(len(answer.ids))) if span is None else find_span(answer.text, span, answer.labels.offsets)

    def _sheet(self, span: Span | None, unit: str, verify: int) -> AnswerSheet:
        answer = self.answer
        return AnswerSheet(
            answer=answer,
            chosen=self._chosen(span),
            unit=unit,
            units=answer.prompt.units(unit),
            tokens=answer.sources(span),
            values=self._sources(span, unit),
            falls=self._sources(span, unit, verify) if verify else None,
        )


def matrix_of(matrix: TokenAttention) -> dict[str, Any]:
    """Return the signed parts of each answer token, over the tokens of the prompt and then of the answer.

    ``values`` has a row for each answer token. If there are more than `EXACT` numbers, ``strongest`` has for each row the
    tokens with the largest absolute values, these values, and the positive and negative sums of the others.
    """
    values = matrix.values[0]
    if values.size <= EXACT:
        return {"values": values.tolist(), "strongest": None}
    rows = []
    for row in values:
        places = np.sort(np.argsort(-np.abs(row), kind="stable")[:STRONGEST])
        others = np.delete(row, places)
        rows.append(
            {
                "tokens": places.tolist(),
                "values": row[places].tolist(),
                "others": [float(others[others > 0].sum()), float(others[others < 0].sum())],
            }
        )
    return {"values": None, "strongest": rows}
