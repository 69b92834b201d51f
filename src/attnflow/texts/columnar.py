"""Parquet tables, read from any row in small batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from typing import Any

from attnflow.errors import InputError
from attnflow.files import arrow
from attnflow.texts.sources import Corpus, File, Text, TextAt, checked, columns, decoded, plain, reading

ROWS = 256
"""How many rows are converted to Python strings at once."""


class Table:
    """An open Parquet table. It keeps the last batch. begin: as for `Lines`."""

    begin = (0, 0)

    def __init__(self, file: File, corpus: Corpus) -> None:
        pa, pq = arrow(file.kind)
        self.pa = pa
        self.file = file
        with reading(file):
            path = checked(file)
            # by default pyarrow reads whole columns of a row group, which may be the whole file
            self.content: Any = pq.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False)
            try:
                metadata, schema = self.content.metadata, self.content.schema_arrow
                counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
                self.groups = list(accumulate(counts[:-1], initial=0))  # rows at which reading can begin
                self.names = columns(schema.names, corpus, file)
                for name in self.names[:2]:
                    kind = None if name is None else schema.types[schema.names.index(name)]
                    if kind is not None and not (self._textual(kind) or pa.types.is_null(kind)):
                        argument = "text" if name == self.names[0] else "pair"
                        raise InputError(
                            f"{file.name}: the column {name!r} contains {kind}, not text: name another column with "
                            f"{argument}="
                        )
                self.schema, self.answer = schema, corpus.answer
            except BaseException:
                self.content.close()
                raise
        self.batches: Iterator[Any] = iter(())
        self.batch: Any = None
        self.first = 0
        self.texts: list[Text] = []
        self.at = 0

    def close(self) -> None:
        self.batches, self.batch = iter(()), None
        self.content.close()

    def records(self, offset: int, row: int, line: int) -> Generator[TextAt]:
        """Yield texts from that row on. A table has no byte offsets or lines: its offsets are rows."""
        with reading(self.file):
            while True:
                if not self.at <= row < self.at + len(self.texts):
                    rows = self._rows(row)
                    if rows is None:
                        return
                    self.at, self.texts = row, self._read(rows, row)
                yield row, 0, self.texts[row - self.at]
                row += 1

    def _rows(self, row: int) -> Any:
        """Return rows from there on, from one batch; None at the end. Reading on and skipping row groups are cheap."""
        group = bisect_right(self.groups, row) - 1
        if self.batch is None or row < self.first or self.groups[group] > self.first + self.batch.num_rows:
            self.batches, self.first = self._from(group), self.groups[group]
            self.batch = next(self.batches, None)
        while self.batch is not None and row >= self.first + self.batch.num_rows:
            self.first += self.batch.num_rows
            self.batch = next(self.batches, None)
        return None if self.batch is None else self.batch.slice(row - self.first, ROWS)

    def _read(self, rows: Any, row: int) -> list[Text]:
        text, pair, id = (None if name is None else rows.column(rows.schema.names.index(name)) for name in self.names)
        none = [None] * rows.num_rows
        pairs = none if pair is None else [value or "" for value in self._strings(pair)]
        ids = none if id is None else self._strings(id)
        answers: Sequence[str | None] = none
        if self.answer is not None:
            answers = [value or "" for value in self._strings(rows.column(rows.schema.names.index(self.answer)))]
        return [
            Text(plain(i) if i else f"{self.file.name}:{row + number + 1}", t, p, None, answer)
            for number, (i, t, p, answer) in enumerate(zip(ids, self._strings(text), pairs, answers, strict=True))
        ]

    def _strings(self, values: Any) -> list[str | None]:
        """Decode each value separately, so that broken bytes affect only their own row."""
        types = self.pa.types
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        kinds = (self._textual, types.is_null, types.is_binary, types.is_large_binary)
        if not any(of(values.type) for of in kinds):
            return [None if value is None else str(value) for value in values.to_pylist()]
        data = values.cast(self.pa.large_binary()).to_pylist()
        return [None if value is None else decoded(value) for value in data]

    def _textual(self, kind: Any) -> bool:
        types = self.pa.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        view = getattr(types, "is_string_view", None)  # since pyarrow 16
        return bool(types.is_string(kind) or types.is_large_string(kind) or (view is not None and view(kind)))

    def labelled(self) -> Generator[tuple[Text, dict[str, str | None]]]:
        """Yield all texts, each with the other cells of its row that are text, whole numbers or truth values."""
        also = [name for name, kind in zip(self.schema.names, self.schema.types, strict=True) if self._short(kind)]
        also = [name for name in also if name not in self.names]
        with reading(self.file):
            row = 0
            for batch in self._from(0, also):
                for start in range(0, batch.num_rows, ROWS):
                    rows = batch.slice(start, ROWS)
                    cells = [self._strings(rows.column(rows.schema.names.index(name))) for name in also]
                    for number, text in enumerate(self._read(rows, row)):
                        yield text, {name: own[number] for name, own in zip(also, cells, strict=True)}
                    row += rows.num_rows

    def _short(self, kind: Any) -> bool:
        types = self.pa.types
        return bool(self._textual(kind) or types.is_integer(kind) or types.is_boolean(kind))

    def _from(self, group: int, also: Sequence[str] = ()) -> Iterator[Any]:
        """Yield batches of the text columns and of some others."""
        names = list(dict.fromkeys(name for name in (*self.names, self.answer, *also) if name is not None))
        groups = range(group, self.content.num_row_groups)
        yield from self.content.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False)


def read_table(file: File) -> list[dict[str, Any]]:
    """Return all rows of a table, with all columns."""
    _, parquet = arrow(file.kind)
    with reading(file):
        rows: list[dict[str, Any]] = parquet.read_table(checked(file)).to_pylist()
    return rows
