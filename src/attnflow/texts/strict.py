"""Strict reading of whole files: the first unreadable row raises an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from attnflow.errors import InputError
from attnflow.texts.columnar import read_table
from attnflow.texts.sources import KNOWN, PACKED, File, file_of, plain
from attnflow.texts.text_files import Broken, Lines, Row


def read_rows(path: str | Path, kind: str | None = None, quoting: int | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a table, each with its place for messages.

    kind: "csv", "tsv", "jsonl", "parquet", or "txt", which has one column, text; by default chosen by the file extension.
    quoting: for csv and tsv, as in Python's csv module.
    """
    file = _file(Path(path), kind)
    if file.kind == "parquet":
        yield from ((f"{file.name}, row {number}", row) for number, row in enumerate(read_table(file), 1))
        return
    with closing(Lines(file, quoting=quoting)) as lines:
        for _, line, row in lines.rows(*lines.begin):
            where = f"{file.name}, line {line}"
            if isinstance(row, Broken):
                raise InputError(f"{where}: {row.reason}")
            try:
                "".join([cell for cell in row.values() if isinstance(cell, str)]).encode()
            except UnicodeEncodeError:
                raise InputError(f"{where} is not UTF-8: convert the file first") from None
            yield where, row


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the stripped lines of a text file that are not blank, with their numbers from 1."""
    for number, (_, row) in enumerate(read_rows(path, "txt"), 1):
        if row["text"].strip():
            yield number, row["text"].strip()


def read_whole(path: str | Path) -> str:
    """Return a whole text file without its last line end."""
    return "\n".join(row["text"] for _, row in read_rows(path, "txt"))


def _file(path: Path, kind: str | None) -> File:
    if not path.exists():
        raise InputError(
            f"there is no file {str(path)!r}: expected UTF-8 text, plain or compressed as {', '.join(PACKED)}"
        )
    if kind is not None:
        packed = path.suffix.lower()
        return File(str(path.absolute()), plain(path.name), kind, packed if packed in PACKED else "")
    file = file_of(path, path.name)
    if file is None:
        raise InputError(f"{str(path)!r}: expected a file that ends in {KNOWN}")
    return file
