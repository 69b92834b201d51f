"""Tables: parquet and Arrow, read from any row on, a few rows at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from typing import Any

from attnflow.corpus.sources import Corpus, File, Found, Text, checked, columns, decoded, plain, reading
from attnflow.errors import InputError

ROWS = 256
"""Rows of a table that are made into Python's strings at once."""


class Table:
    """An open table, parquet or Arrow: rows in batches, of which the last is kept. begin: as of lines."""

    begin = (0, 0)

    def __init__(self, file: File, corpus: Corpus) -> None:
        try:
            import pyarrow as pa
        except ImportError:
            raise InputError(f"{file.kind} needs pyarrow: pip install 'attnflow[corpus]'") from None
        self.pa: Any = pa
        self.file = file
        self.groups = [0]  # rows from which reading can begin
        with reading(file):
            path = checked(file)
            self.held: Any = self._parquet(path) if file.kind == "parquet" else self.pa.memory_map(path)
            try:
                schema = self.held.schema_arrow if file.kind == "parquet" else self._arrow().schema
                self.names = columns(schema.names, corpus, file)
                for name in self.names[:2]:
                    kind = None if name is None else schema.types[schema.names.index(name)]
                    if kind is not None and not (self._textual(kind) or pa.types.is_null(kind)):
                        raise InputError(
                            f"{file.name}: the column {name!r} holds {kind}; expected text, so name another with "
                            f"--{'text' if name == self.names[0] else 'pair'}"
                        )
                self.fields = sorted({schema.names.index(name) for name in self.names if name is not None})
            except BaseException:
                self.held.close()
                raise
        self.batches: Iterator[Any] = iter(())
        self.batch: Any = None
        self.first = 0
        self.texts: list[Text] = []
        self.at = 0

    def close(self) -> None:
        self.batches, self.batch = iter(()), None
        self.held.close()

    def records(self, offset: int, row: int, line: int) -> Generator[Found]:
        """Texts from that row on; a table has neither offsets nor lines, and its offsets are rows."""
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
        """Rows from there on, of one batch; None where there are none. Going on is cheap, as is passing over a group."""
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
        return [
            Text(plain(i) if i else self._place(row + number), t, p)
            for number, (i, t, p) in enumerate(zip(ids, self._strings(text), pairs, strict=True))
        ]

    def _place(self, row: int) -> str:
        """The id of a row that has none."""
        if self.file.split:
            return f"{self.file.split}[{self.file.before + row}]"
        return f"{self.file.name}:{row + 1}"

    def _strings(self, values: Any) -> list[str | None]:
        """Each decoded by itself, so that broken bytes harm their own row alone."""
        types = self.pa.types
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        kinds = (self._textual, types.is_null, types.is_binary, types.is_large_binary)
        if not any(of(values.type) for of in kinds):
            return [None if value is None else str(value) for value in values.to_pylist()]
        # large, because a batch of Arrow may hold more than 2 GiB, of which a slice still has the offsets
        data = values.cast(self.pa.large_binary()).to_pylist()
        return [None if value is None else decoded(value) for value in data]

    def _textual(self, kind: Any) -> bool:
        types = self.pa.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        view = getattr(types, "is_string_view", None)  # since pyarrow 16
        return bool(types.is_string(kind) or types.is_large_string(kind) or (view is not None and view(kind)))

    def _parquet(self, path: str) -> Any:
        import pyarrow.parquet as pq

        # by default whole columns of a row group, which may be all there is, are read at once
        held = pq.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False)
        told = held.metadata
        counts = [told.row_group(group).num_rows for group in range(told.num_row_groups)]
        self.groups = list(accumulate(counts[:-1], initial=0))
        return held

    def _arrow(self, fields: Sequence[int] | None = None) -> Any:
        """A reader of the file from its beginning; Arrow has a format for streams and one for files."""
        ipc = self.pa.ipc
        options = ipc.IpcReadOptions() if fields is None else ipc.IpcReadOptions(included_fields=list(fields))
        self.held.seek(0)
        seekable = self.held.read(6) == b"ARROW1"
        self.held.seek(0)
        return (ipc.open_file if seekable else ipc.open_stream)(self.held, options=options)

    def _from(self, group: int) -> Iterator[Any]:
        if self.file.kind == "parquet":
            names = [name for name in self.names if name is not None]
            groups = range(group, self.held.num_row_groups)
            yield from self.held.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False)
            return
        reader = self._arrow(self.fields)
        if hasattr(reader, "num_record_batches"):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader
