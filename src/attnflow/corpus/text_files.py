"""Files of lines: txt, csv, tsv and jsonl, packed or not, read from any line on."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from attnflow.corpus.sources import (
    PACKED,
    Corpus,
    File,
    Found,
    Text,
    checked,
    columns,
    decoded,
    first_line,
    plain,
    reading,
)
from attnflow.errors import InputError
from attnflow.evaluate.dataset import LONGEST_CELL, TEXT

LONGEST = LONGEST_CELL
"""Bytes of a line, characters of a cell: what is longer becomes a row with a problem, so that memory stays bounded."""

HEAD = 100
"""Objects of a jsonl file in which a column is looked for: one that is null may be left out."""


class Lines:
    """An open file of lines: txt, csv, tsv or jsonl. begin: offset and number of the first line that may be a text."""

    def __init__(self, file: File, corpus: Corpus) -> None:
        self.file = file
        self.corpus = corpus
        self.whole = corpus.whole_files and file.kind == "txt"
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
                elif file.kind == "jsonl":
                    self._head_of_jsonl()
            except BaseException:
                self.stream.close()
                raise

    def close(self) -> None:
        self.stream.close()

    def records(self, offset: int, row: int, line: int) -> Generator[Found]:
        """Texts from there on, each with its own offset and line. row: of the first, for ids."""
        with reading(self.file):
            self.stream.seek(offset)
            if self.whole:
                yield from self._whole(offset, row)
            else:
                yield from {"txt": self._txt, "jsonl": self._jsonl}.get(self.file.kind, self._csv)(offset, row, line)

    def _problem(self, row: int, line: int, told: str, id: Any = None) -> Text:
        # the number that its id has comes first; in a csv, lines count others
        where = f"line {line}" if line == row + 1 else f"row {row + 1} (line {line})"
        return Text(self._id(id, row), None, None, plain(f"{self.file.name}, {where}: {told}"))

    def _id(self, given: Any, row: int) -> str:
        if given is None or given == "":
            return f"{self.file.name}:{row + 1}"
        return plain(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))

    def _whole(self, offset: int, row: int) -> Generator[Found]:
        if row == 0:
            data = self.stream.read(LONGEST + 1)
            if len(data) > LONGEST:
                problem = f"{self.file.name}: longer than {LONGEST:,} bytes; split it"
                yield offset, 1, Text(self.file.name, None, None, problem)
            else:
                yield offset, 1, Text(self.file.name, decoded(_ended(data)))

    def _txt(self, offset: int, row: int, line: int) -> Generator[Found]:
        name = self.file.name
        for raw, size in _lines(self.stream):
            if size == len(raw):
                text = Text(f"{name}:{row + 1}", decoded(_ended(raw)))
            else:
                text = self._problem(row, line, _too_long())
            yield offset, line, text
            offset, row, line = offset + size, row + 1, line + 1

    def _head_of_jsonl(self) -> None:
        """The names of the columns are those of the first object, and of a few more where it lacks what is needed."""
        self.text, self.pair, self.id = self.corpus.text or TEXT[0], self.corpus.pair, self.corpus.id or "id"
        self.stream.seek(self.begin[0])
        objects = (_object(raw) for raw, size in _lines(self.stream) if size == len(raw))
        names: dict[str, None] = {}
        missing = None
        for first in islice((found for found in objects if isinstance(found, dict)), HEAD):
            names |= dict.fromkeys(first)
            try:
                self.text, self.pair, id = columns(list(names), self.corpus, self.file)
                self.id = id or "id"
                return
            except InputError as e:
                missing = e
        if missing is not None:
            raise missing

    def _jsonl(self, offset: int, row: int, line: int) -> Generator[Found]:
        for raw, size in _lines(self.stream):
            if size != len(raw):
                yield offset, line, self._problem(row, line, _too_long())
                row += 1
            elif raw.strip():
                yield offset, line, self._of_object(_object(raw), row, line)
                row += 1
            offset, line = offset + size, line + 1

    def _of_object(self, found: Any, row: int, line: int) -> Text:
        if isinstance(found, ValueError):
            return self._problem(row, line, f"not JSON ({found}); expected one object a line")
        if not isinstance(found, dict):
            return self._problem(row, line, 'expected an object such as {"text": …}')
        id = found.get(self.id)
        for name in (self.text, self.pair):
            value = None if name is None else found.get(name)
            if not (value is None or isinstance(value, str)):
                return self._problem(row, line, f"the column {name!r} holds {value!r:.40}; expected text", id)
        pair = None if self.pair is None else found.get(self.pair) or ""
        return Text(self._id(id, row), found.get(self.text), pair)

    def _head_of_csv(self) -> None:
        csv.field_size_limit(LONGEST)
        # in tab-separated files a quotation mark is a character like any other
        self.dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if self.file.kind == "tsv" else {}
        feed = _Feed(self.stream, *self.begin)
        try:
            names = next((cells for cells in csv.reader(feed.lines(), **self.dialect) if cells), None)
        except csv.Error as e:
            raise InputError(f"{self.file.path!r}: the names of the columns cannot be read ({e}); mend it") from None
        if names is None:
            raise InputError(f"{self.file.path!r} is empty: expected the names of its columns in the first line")
        if feed.cut:
            raise InputError(
                f"{self.file.path!r}: the first line is {_too_long()}; expected the names of its columns and a line end"
            )
        if feed.ended:
            raise InputError(
                f"{self.file.path!r}: a quotation mark in the names of the columns is never closed; mend it"
            )
        found = columns(names, self.corpus, self.file)
        self.width = len(names)
        places = {name: place for place, name in enumerate(names)}
        self.at_text, self.at_pair, self.at_id = (None if name is None else places[name] for name in found)
        self.begin = (feed.offset, feed.line)

    def _csv(self, offset: int, row: int, line: int) -> Generator[Found]:
        feed = _Feed(self.stream, offset, line)
        rows = csv.reader(feed.lines(), **self.dialect)
        at_text, at_pair, at_id = cast("int", self.at_text), self.at_pair, self.at_id
        first = min(at_text, at_text if at_pair is None else at_pair)
        while True:
            offset, line, feed.cut = feed.offset, feed.line, False
            told = None
            cells: list[str] = []
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as e:  # the reader goes on at the next line
                told = f"not {self.file.kind} ({e})"
            if feed.cut:
                told = _too_long()
            elif told is None and not cells:
                continue
            elif told is None and feed.ended:  # the reader asks for more lines inside of quotation marks alone
                told = (
                    f"a quotation mark is never closed, so that all up to the end of the file, line {feed.line - 1}, is "
                    "this row; close it, or write it twice"
                )
                cells = cells[:-1]
            elif told is None and len(cells) != self.width:
                more = "more" if len(cells) > self.width else "fewer"
                told = f"{more} cells than the {self.width} columns of the first line"
            if told is not None:
                # a stray comma in a text moves what stands after it, and an id is kept only where it surely is one
                known = at_id is not None and at_id < len(cells) and (at_id < first or len(cells) < self.width)
                yield offset, line, self._problem(row, line, told, cells[cast("int", at_id)] if known else None)
            else:
                id = self._id(None if at_id is None else cells[at_id], row)
                yield offset, line, Text(id, cells[at_text], None if at_pair is None else cells[at_pair])
            row += 1


def _too_long() -> str:
    return f"longer than {LONGEST:,} bytes"


def _ended(line: bytes) -> bytes:
    """Without the end of the line."""
    return line[: -2 if line.endswith(b"\r\n") else -1] if line.endswith(b"\n") else line


def _lines(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Lines with their ends, and their sizes. What is longer than LONGEST is cut; its size is then not its length."""
    while line := stream.readline(LONGEST + 2):
        size = len(line)
        if size > LONGEST:
            end = line
            while not end.endswith(b"\n") and (end := stream.readline(1 << 16)):
                size += len(end)
        yield line, size


class _Feed:
    """Lines for csv.reader, which pulls no more than it needs.

    offset, line: of the next one. cut: one was too long. ended: one was asked for after the last.
    """

    def __init__(self, stream: IO[bytes], offset: int, line: int) -> None:
        self.stream, self.offset, self.line, self.cut, self.ended = stream, offset, line, False, False
        stream.seek(offset)

    def lines(self) -> Iterator[str]:
        while raw := self.stream.readline(LONGEST + 2):
            inside = raw.removesuffix(b"\n").removesuffix(b"\r")
            pieces = raw.splitlines(keepends=True) if b"\r" in inside else [raw]  # a lone \r ends a line of csv
            if len(raw) > LONGEST and len(pieces) > 1:
                self.stream.seek(-len(pieces.pop()), os.SEEK_CUR)  # of which the end was not read
            skipped = self._skipped() if len(pieces[-1]) > LONGEST else 0
            self.cut = self.cut or skipped > 0
            for number, piece in enumerate(pieces, 1):
                self.offset += len(piece) + (skipped if number == len(pieces) else 0)
                self.line += 1
                yield decoded(piece)
        self.ended = True

    def _skipped(self) -> int:
        """Bytes up to the end of a line that was too long."""
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


def _object(raw: bytes) -> Any:
    """What a line of JSON says, or the error that tells why it says nothing."""
    try:
        return json.loads(decoded(raw))
    except json.JSONDecodeError as e:
        return ValueError(e.msg)
    except ValueError as e:  # numbers of thousands of digits
        return ValueError(first_line(e))
    except RecursionError:
        return ValueError("nested too deeply")
