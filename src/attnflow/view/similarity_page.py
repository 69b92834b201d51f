"""The page of two texts and their similarity, shaded by what each word adds to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.result_files import plain_numbers
from attnflow.view import page

if TYPE_CHECKING:
    from attnflow.similarity import Sides, Similarity


@dataclass(frozen=True, eq=False)
class SimilarityPage:
    """The page of two texts and their similarity. It displays itself in a notebook; `save` writes a self-contained file.

    document: the contents of the page, as JSON.
    """

    document: Mapping[str, Any]

    def html(self) -> str:
        """Return the HTML file."""
        texts = [page.title_of(text["text"], 30) for text in self.document["texts"]]
        return page.file_of(f"{' · '.join(texts)} · attnflow", self.document, "similarity")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .html file. The write is atomic."""
        page.write_file(path, self.html())

    def _repr_html_(self) -> str:
        return page.framed(self.html())


def similarity_page(similarity: Similarity, methods: Sequence[Sides]) -> SimilarityPage:
    """Make the page of a similarity.

    methods: the values of both texts by each method; all for words, or all for subwords.
    """
    first = methods[0]
    texts = [
        {
            "text": side.text,
            "tokens": list(side.tokens),
            "special": list(side.special),
            "methods": [
                {"name": sides[number].method, "values": plain_numbers(sides[number].values)[-1][0]}
                for sides in methods
            ],
        }
        for number, side in enumerate(first)
    ]
    return SimilarityPage(
        {
            "format": "attnflow-similarity",
            "version": 1,
            "value": similarity.value,
            "measure": similarity.measure,
            "model": dict(first.first.provenance),
            "texts": texts,
        }
    )
