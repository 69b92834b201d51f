"""A page that compares two texts, or two models on one text, aligned word by word."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnflow.errors import InputError
from attnflow.texts.alignment import Pairs, align
from attnflow.view import page
from attnflow.view.page import Page

UNITS = ("words", "subwords")


@dataclass(frozen=True, eq=False)
class Pair:
    """A comparison of two pages. It displays itself in a notebook; `save` writes a self-contained file.

    first, second: the pages of two texts, or of one text by two models.
    """

    first: Page
    second: Page

    def __post_init__(self) -> None:
        for one in (self.first, self.second):
            if one.document["patches"] is not None:
                raise InputError("a page of an image cannot be compared: expected two pages of texts")

    def __repr__(self) -> str:
        return f"Pair({self.first!r}, {self.second!r})"

    def aligned(self, unit: str = "words") -> Pairs:
        """Return the positions of each word in the first and second text, in order; None if a text lacks the word.

        unit: "words", or "subwords" for the models' tokens.
        """
        if unit not in UNITS:
            raise InputError(f"unit {unit!r}: expected one of {', '.join(map(repr, UNITS))}")
        a, b = (_labels(one.document, unit) for one in (self.first, self.second))
        return align(a["tokens"], b["tokens"], a["special"], b["special"])

    @property
    def document(self) -> dict[str, Any]:
        """The contents of the page, as JSON."""
        return {
            "format": "attnflow-pair",
            "version": 1,
            "pages": [self.first.document, self.second.document],
            "alignments": {
                unit: [[-1 if i is None else i, -1 if j is None else j] for i, j in self.aligned(unit)]
                for unit in UNITS
            },
        }

    def html(self) -> str:
        """Return the HTML file."""
        texts = [page.title_of(one.document["text"], 30) for one in (self.first, self.second)]
        return page.file_of(f"{' · '.join(dict.fromkeys(texts))} · attnflow", self.document, "pair")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .html file. The write is atomic."""
        page.write_file(path, self.html())

    def _repr_html_(self) -> str:
        return page.framed(self.html())


def _labels(document: Mapping[str, Any], unit: str) -> Mapping[str, Any]:
    """Return the tokens of a unit. If every token is a word, a document has only subwords."""
    units: Mapping[str, Mapping[str, Any]] = document["units"]
    return units.get(unit, units["subwords"])
