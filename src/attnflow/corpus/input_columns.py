"""The other columns of a corpus's input, beside the rows of its shards: a text's label, its source."""

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
"""The values of a row by the names of their columns."""


def input_of(settings: Mapping[str, Any], source: str | Path | None = None) -> tuple[Corpus | None, str | None]:
    """The input of a job, where it can be read again; else why not, in a sentence. Lines of text have no columns.

    settings: of the job. source: where the input lies, unless the settings say so from here.
    """
    path = settings.get("input") if source is None else source
    name = re.split(r"[\\/]", str(path or "").rstrip("\\/"))[-1]
    if not path or name.endswith(".txt"):
        return None, None
    if str(path).startswith("hf:"):
        return None, f"The columns of {name} were not read: it lies on the hub."
    columns = {key: settings.get(key) for key in ("text", "id", "pair")}
    try:
        return open_corpus(path, whole_files=bool(settings.get("whole_files")), **columns), None
    except InputError:
        if source is not None:
            raise
        return None, f"The columns of {name} were not read: it is not where it was, or has several splits."


class InputRows:
    """The cells of one text of an input after another; none where there is no input."""

    def __init__(self, corpus: Corpus | None) -> None:
        self.corpus = corpus
        self._records = None if corpus is None else _records(corpus)
        self._next = 0

    def take(self, numbers: Sequence[int], texts: Sequence[str | None]) -> list[Cells]:
        """Those of the texts with these numbers in the input, which rise from call to call.

        texts: as the shards have them, which must be those of the input.
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
                    f"text {number} of {self.corpus.path!r} is not the one that was explained: the input has changed "
                    "since; explain it again, or give the report the input as it was"
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
    """What may name a group: texts, whole numbers and truth values, as text; "" where the cell is empty."""
    texts = {name: "" if value is None else value for name, value in row.items()}
    return {str(name): readable(str(value).strip()) for name, value in texts.items() if isinstance(value, str | int)}
