"""Parquet and Arrow tables, read from any row in small batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

from attnflow.errors import InputError
from attnflow.files import arrow
from attnflow.texts.sources import Corpus, File, Text, TextAt, checked, columns, decoded, plain, reading

ROWS = 256
"""How many rows are converted to Python strings at once."""


class Table:
    """An open Parquet or Arrow table. It keeps the last batch. begin: as for `Lines`."""

    begin = (0, 0)

    def __init__(self, file: File, corpus: Corpus) -> None:
        pa, _ = arrow(file.kind)
        self.pa = pa
        self.file = file
        self.groups = [0]  # rows at which reading can begin
        with reading(file):
            path = checked(file)
            self.content: Any = self._parquet(path) if file.kind == "parquet" else self.pa.memory_map(path)
            try:
                schema = self.content.schema_arrow if file.kind == "parquet" else _reader(pa, self.content).schema
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
            Text(plain(i) if i else self._place(row + number), t, p, None, answer)
            for number, (i, t, p, answer) in enumerate(zip(ids, self._strings(text), pairs, answers, strict=True))
        ]

    def _place(self, row: int) -> str:
        """Return the id of a row that has none."""
        if self.file.split:
            return f"{self.file.split}[{self.file.before + row}]"
        return f"{self.file.name}:{row + 1}"

    def _strings(self, values: Any) -> list[str | None]:
        """Decode each value separately, so that broken bytes affect only their own row."""
        types = self.pa.types
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        kinds = (self._textual, types.is_null, types.is_binary, types.is_large_binary)
        if not any(of(values.type) for of in kinds):
            return [None if value is None else str(value) for value in values.to_pylist()]
        # large, because an Arrow batch may exceed 2 GiB, and a slice keeps its offsets
        data = values.cast(self.pa.large_binary()).to_pylist()
        return [None if value is None else decoded(value) for value in data]

    def _textual(self, kind: Any) -> bool:
        types = self.pa.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        view = getattr(types, "is_string_view", None)  # since pyarrow 16
        return bool(types.is_string(kind) or types.is_large_string(kind) or (view is not None and view(kind)))

    def _parquet(self, path: str) -> Any:
        _, pq = arrow()
        # by default pyarrow reads whole columns of a row group, which may be the whole file
        parquet = pq.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False)
        counts = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        self.groups = list(accumulate(counts[:-1], initial=0))
        return parquet

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
        if self.file.kind == "parquet":
            groups = range(group, self.content.num_row_groups)
            yield from self.content.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False)
            return
        reader = _reader(self.pa, self.content, sorted(self.schema.names.index(name) for name in names))
        if hasattr(reader, "num_record_batches"):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader


def _reader(pa: ModuleType, content: Any, fields: Sequence[int] | None = None) -> Any:
    """Return a reader of an Arrow file, which may have the stream or the file format."""
    options = pa.ipc.IpcReadOptions(**({} if fields is None else {"included_fields": list(fields)}))
    content.seek(0)
    seekable = content.read(6) == b"ARROW1"
    content.seek(0)
    return (pa.ipc.open_file if seekable else pa.ipc.open_stream)(content, options=options)


def read_table(file: File) -> list[dict[str, Any]]:
    """Return all rows of a table, with all columns."""
    pa, parquet = arrow(file.kind)
    rows: list[dict[str, Any]]
    with reading(file):
        if file.kind == "parquet":
            rows = parquet.read_table(checked(file)).to_pylist()
        else:
            with pa.memory_map(checked(file)) as content:
                rows = _reader(pa, content).read_all().to_pylist()
    return rows
