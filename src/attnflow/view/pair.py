"""Two texts, or one text by two models, on one page: aligned word by word, with what differs shaded."""

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
    """Two pages beside each other. In a notebook it shows itself; `save` makes a file that opens offline.

    first, second: the pages, of two texts or of one text by two models.
    """

    first: Page
    second: Page

    def __post_init__(self) -> None:
        for one in (self.first, self.second):
            if one.document["patches"] is not None:
                raise InputError(
                    "a page of an image beside another: expected two pages of texts, whose words are aligned"
                )

    def __repr__(self) -> str:
        return f"Pair({self.first!r}, {self.second!r})"

    def aligned(self, unit: str = "words") -> Pairs:
        """Positions of each word in the first and in the second text, in order; None where a text has no such word.

        unit: "words", or "subwords" for the models' own tokens.
        """
        if unit not in UNITS:
            raise InputError(f"unit {unit!r}: expected one of {', '.join(map(repr, UNITS))}")
        a, b = (_labels(one.document, unit) for one in (self.first, self.second))
        return align(a["tokens"], b["tokens"], a["special"], b["special"])

    @property
    def document(self) -> dict[str, Any]:
        """All that the page shows, as JSON holds it."""
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
        """The file's content."""
        texts = [page.title_of(one.document["text"], 30) for one in (self.first, self.second)]
        return page.file_of(f"{' · '.join(dict.fromkeys(texts))} · attnflow", self.document, "pair")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .html file, whole or not at all."""
        page.write_file(path, self.html())

    def _repr_html_(self) -> str:
        return page.framed(self.html())


def _labels(document: Mapping[str, Any], unit: str) -> Mapping[str, Any]:
    """The tokens of a unit; where every token is a word, a document has no words of their own."""
    units: Mapping[str, Mapping[str, Any]] = document["units"]
    return units.get(unit, units["subwords"])
