"""The other columns of a corpus's input, such as labels and sources, read in step with the rows of its shards."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from attnflow.corpus.plan import open_file
from attnflow.corpus.schema import readable
from attnflow.errors import InputError
from attnflow.texts.sources import Corpus, Text, open_corpus

Cells = Mapping[str, str]
"""The values of a row, by column name."""


def input_of(settings: Mapping[str, Any], source: str | Path | None = None) -> tuple[Corpus | None, str | None]:
    """Return the input of a job if it can be read again, or a sentence that says why not.

    Lines of text have no columns, and give neither.
    settings: of the job.
    source: where the input is, if it is not at the path in the settings.
    """
    path = settings.get("input") if source is None else source
    name = re.split(r"[\\/]", str(path or "").rstrip("\\/"))[-1]
    if not path or name.endswith(".txt"):
        return None, None
    columns = {key: settings.get(key) for key in ("text", "id", "pair")}
    try:
        return open_corpus(path, whole_files=bool(settings.get("whole_files")), **columns), None
    except InputError:
        if source is not None:
            raise
        return None, f"The columns of {name} were not read: it was moved."


class InputRows:
    """The cells of an input, text by text; empty if there is no input."""

    def __init__(self, corpus: Corpus | None) -> None:
        self.corpus = corpus
        self._records = None if corpus is None else _records(corpus)
        self._next = 0

    def take(self, numbers: Sequence[int], texts: Sequence[str | None]) -> list[Cells]:
        """Return the cells of the texts with these numbers, which must increase from call to call.

        texts: the same texts as stored in the shards, to check that the input has not changed.
        """
        if self._records is None or self.corpus is None:
            return [{}] * len(numbers)
        cells = []
        for number, wanted in zip(numbers, texts, strict=True):
            for _ in range(number - self._next):
                next(self._records, None)
            self._next = number + 1
            text, row = next(self._records, (None, {}))
            if text is None or (text.text is None) != (wanted is None) or readable(text.text or "") != (wanted or ""):
                raise InputError(
                    f"text {number} of {self.corpus.path!r} is not the one that was explained, so the input has "
                    "changed: explain it again, or give the report the original input"
                )
            cells.append(_labels(row))
        return cells

    def close(self) -> None:
        if self._records is not None:
            self._records.close()


def _records(corpus: Corpus) -> Generator[tuple[Text, Mapping[str, Any]]]:
    for file in corpus.files:
        with closing(open_file(file, corpus)) as reader, closing(reader.labelled()) as records:
            yield from records


def _labels(row: Mapping[str, Any]) -> Cells:
    """Return the cells that can name a group (texts, whole numbers, truth values) as text; "" for an empty cell."""
    texts = {name: "" if value is None else value for name, value in row.items()}
    return {str(name): readable(str(value).strip()) for name, value in texts.items() if isinstance(value, str | int)}
