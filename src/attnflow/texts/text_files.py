"""Line-based files: txt, csv, tsv and jsonl, compressed or not, read from any line on."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from attnflow.errors import InputError
from attnflow.texts.sources import (
    PACKED,
    TEXT,
    Corpus,
    File,
    Text,
    TextAt,
    checked,
    columns,
    decoded,
    first_line,
    plain,
    reading,
)

LONGEST = 1 << 24
"""The most bytes of a line, or characters of a cell; longer ones become rows with a problem, to bound memory."""

HEAD = 100
"""How many objects of a jsonl file are searched for a column, because null columns may be omitted."""


@dataclass(frozen=True)
class Broken:
    """A row that cannot be read, and why. id: its id, if that is certain."""

    reason: str
    id: Any = None


Row = Mapping[str, Any]
"""The cells of a row, by column."""


class Lines:
    """An open line-based file: txt, csv, tsv or jsonl. begin: offset and number of the first line that may be a text.

    corpus: which columns are texts; None for all columns as they are.
    quoting: how csv's reader treats quotation marks.
    """

    def __init__(self, file: File, corpus: Corpus | None = None, quoting: int | None = None) -> None:
        self.file = file
        self.corpus = corpus
        self.whole = corpus is not None and corpus.whole_files and file.kind == "txt"
        self.text: str = TEXT[0]
        self.pair: str | None = None
        self.id: str | None = None
        if quoting is None:  # quotation marks have no meaning in tab-separated files
            quoting = csv.QUOTE_NONE if file.kind == "tsv" else csv.QUOTE_MINIMAL
        self.dialect: dict[str, Any] = {"delimiter": "\t" if file.kind == "tsv" else ",", "quoting": quoting}
        with reading(file):
            path = checked(file)
            self.stream: IO[bytes] = PACKED[file.packed](path) if file.packed else Path(path).open("rb")  # noqa: SIM115
            try:
                start = self.stream.read(3)
                if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise InputError(f"{file.path!r} is UTF-16: expected UTF-8; convert it first")
                self.begin = (3 if start == b"\xef\xbb\xbf" else 0, 1)
                if file.kind in ("csv", "tsv"):
                    self._head_of_csv()
                elif file.kind == "jsonl" and corpus is not None:
                    self._head_of_jsonl(corpus)
            except BaseException:
                self.stream.close()
                raise

    def close(self) -> None:
        self.stream.close()

    def rows(self, offset: int, line: int) -> Generator[tuple[int, int, Row | Broken]]:
        """Yield rows from there on, each with its offset and line."""
        with reading(self.file):
            self.stream.seek(offset)
            kind = "whole" if self.whole else self.file.kind
            read = {"whole": self._whole, "txt": self._txt, "jsonl": self._jsonl}.get(kind, self._csv)
            yield from read(offset, line)

    def records(self, offset: int, row: int, line: int) -> Generator[TextAt]:
        """Yield texts from there on, each with its offset and line. row: of the first, for ids."""
        for number, (at, line_of_row, cells) in enumerate(self.rows(offset, line), row):
            yield at, line_of_row, self._text(cells, number, line_of_row)

    def labelled(self) -> Generator[tuple[Text, Row]]:
        """Yield all texts, each with the other cells of its row; without cells if the row cannot be read."""
        own = (self.text, self.pair, self.id)
        for number, (_, line, cells) in enumerate(self.rows(*self.begin)):
            others = {} if isinstance(cells, Broken) else {name: cells[name] for name in cells if name not in own}
            yield self._text(cells, number, line), others

    def _text(self, cells: Row | Broken, row: int, line: int) -> Text:
        if not isinstance(cells, Broken):
            text, pair, id = (None if name is None else cells.get(name) for name in (self.text, self.pair, self.id))
            if not (text is None or isinstance(text, str)):
                cells = Broken(f"the column {self.text!r} contains {text!r:.40}; expected text", id)
            elif not (pair is None or isinstance(pair, str)):
                cells = Broken(f"the column {self.pair!r} contains {pair!r:.40}; expected text", id)
            else:
                name = None if self.corpus is None else self.corpus.answer
                answer = None if name is None else _cell(cells.get(name))
                return Text(self._id(id, row), text, None if self.pair is None else pair or "", answer=answer)
        # the number that is also in its id comes first; line numbers differ in a csv
        where = "" if self.whole else f", line {line}" if line == row + 1 else f", row {row + 1} (line {line})"
        return Text(self._id(cells.id, row), None, None, plain(f"{self.file.name}{where}: {cells.reason}"))

    def _id(self, id: Any, row: int) -> str:
        if id is None or id == "":
            return self.file.name if self.whole else f"{self.file.name}:{row + 1}"
        return plain(id if isinstance(id, str) else json.dumps(id, ensure_ascii=False))

    def _whole(self, offset: int, line: int) -> Generator[tuple[int, int, Row | Broken]]:
        data = self.stream.read(LONGEST + 1)
        long = Broken(f"{_too_long()}; split it")
        yield offset, line, long if len(data) > LONGEST else {self.text: decoded(_ended(data))}

    def _txt(self, offset: int, line: int) -> Generator[tuple[int, int, Row | Broken]]:
        for raw, size in _lines(self.stream):
            yield offset, line, {self.text: decoded(_ended(raw))} if size == len(raw) else Broken(_too_long())
            offset, line = offset + size, line + 1

    def _head_of_jsonl(self, corpus: Corpus) -> None:
        """Read the column names from the first object, and from a few more if it lacks a needed column."""
        self.text, self.pair, self.id = corpus.text or TEXT[0], corpus.pair, corpus.id or "id"
        self.stream.seek(self.begin[0])
        objects = (_object(raw) for raw, size in _lines(self.stream) if size == len(raw))
        names: dict[str, None] = {}
        missing = None
        for first in islice((one for one in objects if isinstance(one, Mapping)), HEAD):
            names |= dict.fromkeys(first)
            try:
                self.text, self.pair, id = columns(list(names), corpus, self.file)
                self.id = id or "id"
                return
            except InputError as e:
                missing = e
        if missing is not None:
            raise missing

    def _jsonl(self, offset: int, line: int) -> Generator[tuple[int, int, Row | Broken]]:
        for raw, size in _lines(self.stream):
            if size != len(raw):
                yield offset, line, Broken(_too_long())
            elif raw.strip():
                yield offset, line, _object(raw)
            offset, line = offset + size, line + 1

    def _head_of_csv(self) -> None:
        csv.field_size_limit(LONGEST)
        feed = _Feed(self.stream, *self.begin)
        try:
            names = next((cells for cells in csv.reader(feed.lines(), **self.dialect) if cells), None)
        except csv.Error as e:
            raise InputError(
                f"{self.file.path!r}: the column names cannot be read ({e}); repair the first line"
            ) from None
        if names is None:
            raise InputError(f"{self.file.path!r} is empty: expected column names in the first line")
        if feed.cut:
            raise InputError(
                f"{self.file.path!r}: the first line is {_too_long()}; expected column names and a line end"
            )
        if feed.ended:
            raise InputError(f"{self.file.path!r}: a quotation mark in the column names is never closed; close it")
        if self.corpus is not None:
            self.text, self.pair, self.id = columns(names, self.corpus, self.file)
        self.names = names
        self.begin = (feed.offset, feed.line)

    def _csv(self, offset: int, line: int) -> Generator[tuple[int, int, Row | Broken]]:
        feed = _Feed(self.stream, offset, line)
        rows = csv.reader(feed.lines(), **self.dialect)
        while True:
            offset, line, feed.cut = feed.offset, feed.line, False
            reason = None
            cells: list[str] = []
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as e:  # the reader continues at the next line
                reason = f"not {self.file.kind} ({e})"
            if feed.cut:
                reason = _too_long()
            elif reason is None and not cells:
                continue
            elif reason is None and feed.ended:  # the reader asks for more lines only inside quotation marks
                reason = (
                    "a quotation mark is never closed, so everything up to the end of the file, line "
                    f"{feed.line - 1}, belongs to this row; close it, or double it"
                )
                cells = cells[:-1]
            elif reason is None and len(cells) != len(self.names):
                more = "more" if len(cells) > len(self.names) else "fewer"
                reason = f"{more} cells than the {len(self.names)} columns of the first line"
            row = dict(zip(self.names, cells, strict=True)) if reason is None else self._broken(reason, cells)
            yield offset, line, row

    def _broken(self, reason: str, cells: list[str]) -> Broken:
        """Return a broken row. A stray comma shifts later cells, so an id is kept only if it certainly is one."""
        if self.id is None or self.names.index(self.id) >= len(cells):
            return Broken(reason)
        at = self.names.index(self.id)
        first = min(self.names.index(name) for name in (self.text, self.pair) if name is not None)
        return Broken(reason, cells[at] if at < first or len(cells) < len(self.names) else None)


def _cell(value: Any) -> str:
    """Return a text, or a number or truth value as it is written; "" for nothing."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _too_long() -> str:
    return f"longer than {LONGEST:,} bytes"


def _ended(line: bytes) -> bytes:
    """Remove the line end."""
    return line[: -2 if line.endswith(b"\r\n") else -1] if line.endswith(b"\n") else line


def _lines(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield lines with their ends, and their sizes.

    Lines longer than LONGEST are cut; their sizes are then not lengths.
    """
    while line := stream.readline(LONGEST + 2):
        size = len(line)
        if size > LONGEST:
            end = line
            while not end.endswith(b"\n") and (end := stream.readline(1 << 16)):
                size += len(end)
        yield line, size


class _Feed:
    """Lines for csv.reader, which takes no more than it needs.

    offset, line: of the next line.
    cut: a line was too long.
    ended: a line was requested after the last.
    """

    def __init__(self, stream: IO[bytes], offset: int, line: int) -> None:
        self.stream, self.offset, self.line, self.cut, self.ended = stream, offset, line, False, False
        stream.seek(offset)

    def lines(self) -> Iterator[str]:
        while raw := self.stream.readline(LONGEST + 2):
            inside = raw.removesuffix(b"\n").removesuffix(b"\r")
            pieces = raw.splitlines(keepends=True) if b"\r" in inside else [raw]  # a lone \r ends a line of csv
            if len(raw) > LONGEST and len(pieces) > 1:
                self.stream.seek(-len(pieces.pop()), os.SEEK_CUR)  # its end has not been read
            skipped = self._skipped() if len(pieces[-1]) > LONGEST else 0
            self.cut = self.cut or skipped > 0
            for number, piece in enumerate(pieces, 1):
                self.offset += len(piece) + (skipped if number == len(pieces) else 0)
                self.line += 1
                yield decoded(piece)
        self.ended = True

    def _skipped(self) -> int:
        """Return the bytes up to the end of a line that was too long."""
        size = 0
        while more := self.stream.readline(1 << 16):
            end = more.find(b"\r") + 1
            if end and more[end : end + 1] != b"\n":
                self.stream.seek(end - len(more), os.SEEK_CUR)
                return size + end
            size += len(more)
            if more.endswith(b"\n"):
                break
        return size


def _object(raw: bytes) -> Row | Broken:
    """Return the object in a line of JSON, or why there is none."""
    try:
        value = json.loads(decoded(raw))
    except json.JSONDecodeError as e:
        reason = e.msg
    except ValueError as e:  # numbers with thousands of digits
        reason = first_line(e)
    except RecursionError:
        reason = "nested too deeply"
    else:
        return value if isinstance(value, dict) else Broken('expected an object such as {"text": …}')
    return Broken(f"not JSON ({reason}); expected one object per line")
