"""The files of an input, a file or a folder; and what all readers share."""

from __future__ import annotations

import gzip
import lzma
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from attnflow.errors import InputError

LINES = {".txt": "txt", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
PARQUET = ".parquet"
PACKED: Mapping[str, Callable[[str], Any]] = {".gz": gzip.open, ".xz": lzma.open}
TEXT = ("text", "sentence", "words")
"""The usual names of a text column."""
KNOWN = f"{', '.join(LINES)} (each also {', '.join(PACKED)}), {PARQUET}"


class Text(NamedTuple):
    """One text of the input. Bytes that are not UTF-8 appear in it as lone surrogates.

    text: None if the row has none.
    pair: the second text; "" if the row has none, None if no column was named.
    problem: a sentence that says why the row cannot be read.
    answer: the cell of the answer column; "" and None as for pair.
    """

    id: str
    text: str | None
    pair: str | None = None
    problem: str | None = None
    answer: str | None = None


TextAt = tuple[int, int, Text]
"""Offset, line and text."""


@dataclass(frozen=True)
class File:
    """A file of the input.

    path: absolute, since workers may run elsewhere.
    name: used in ids and messages.
    packed: .gz, .xz or nothing.
    """

    path: str
    name: str
    kind: str
    packed: str = ""


@dataclass(frozen=True)
class Corpus:
    """An input: its files in order, and which columns to read. Small enough to send to workers."""

    path: str
    files: tuple[File, ...]
    text: str | None = None
    id: str | None = None
    pair: str | None = None
    whole_files: bool = False
    answer: str | None = None


def open_corpus(
    path: str | Path,
    *,
    text: str | None = None,
    id: str | None = None,
    pair: str | None = None,
    whole_files: bool = False,
    answer: str | None = None,
) -> Corpus:
    """Find the files of an input, a file or a folder. No text is read yet.

    text, id, pair: column names; by default the usual names of texts, and "id" if there is one.
    whole_files: treat each .txt file as one text instead of one per line.
    answer: the column with the answers, if any.
    """
    path = os.fspath(path)
    files = _files(path)
    lines = next((file for file in files if file.kind == "txt"), None)
    if whole_files and lines is None:
        raise InputError(f"whole_files=True applies to .txt files, and there are none in {path!r}: leave it out")
    for argument, name in (("text", text), ("id", id), ("pair", pair), ("answer_column", answer)):
        if name is not None and lines is not None:
            raise InputError(
                f"{argument}={name!r} names a column, and {lines.name} has no columns: leave it out, or give only "
                "tables"
            )
    return Corpus(path, files, text, id, pair, whole_files, answer)


def file_of(path: Path, name: str) -> File | None:
    """Return None if the file extension is unknown."""
    *_, last, end = "", "", *(suffix.lower() for suffix in PurePath(name).suffixes)
    if end in PACKED:
        return File(str(path.absolute()), plain(name), LINES[last], end) if last in LINES else None
    kind = (LINES | {PARQUET: "parquet"}).get(end)
    return None if kind is None else File(str(path.absolute()), plain(name), kind)


def _files(path: str) -> tuple[File, ...]:
    top = Path(path)
    if top.is_dir():
        below = sorted(_below(top))
        files = tuple(file for name in below if (file := file_of(top / name, name)) is not None)
        if not files:
            raise InputError(f"the folder {path!r} contains no file to read: expected files that end in {KNOWN}")
        return files
    if not top.exists():
        raise InputError(
            f"there is no file or folder {path!r}: expected a file that ends in {KNOWN}, or a folder of such files"
        )
    file = file_of(top, top.name)
    if file is None:
        raise InputError(f"{path!r}: expected a file that ends in {KNOWN}")
    return (file,)


def _below(folder: Path) -> Iterator[str]:
    """Yield the paths of files below a folder, with "/".

    Linked folders are followed; one that leads back to itself, once.
    """

    def stop(e: OSError) -> None:
        raise InputError(
            f"cannot read the folder {e.filename!r}: {e.strerror}; make it readable, or remove it from the input"
        ) from None

    seen = set()
    for at, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        here = Path(at)
        stats = here.stat()
        if (stats.st_dev, stats.st_ino) in seen:
            folders.clear()
            continue
        seen.add((stats.st_dev, stats.st_ino))
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        for name in names:
            if name[0] not in "._":
                yield (here / name).relative_to(folder).as_posix()


@contextmanager
def reading(file: File) -> Iterator[None]:
    """Turn any error inside the block into a message that names the file."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as e:  # gzip, lzma and pyarrow have no common base class for errors in garbled files
        if isinstance(e, OSError) and e.errno and e.strerror:
            raise InputError(
                f"cannot read {file.path!r}: {e.strerror}; make it readable, or remove it from the input"
            ) from None
        raise InputError(
            f"{file.path!r} cannot be read as {file.kind}{file.packed}: {first_line(e)}; repair it, or remove it "
            "from the input"
        ) from None


def checked(file: File) -> str:
    """Return the path if it is a regular file: a pipe would block, and cannot be read from the middle."""
    if not stat.S_ISREG(Path(file.path).stat().st_mode):
        raise InputError(f"cannot read {file.path!r}: expected a file, not a pipe or a device; copy it into a file")
    return file.path


def columns(names: Sequence[str], corpus: Corpus, file: File) -> tuple[str, str | None, str | None]:
    """Return the columns of text, pair and id. The answer column must exist too."""
    column(names, corpus.answer, (), file.name, "answer_column", corpus.answer is not None)
    text = cast("str", column(names, corpus.text, TEXT, file.name, "text", True))
    pair = None if corpus.pair is None else column(names, corpus.pair, (), file.name, "pair", True)
    return text, pair, column(names, corpus.id, ("id",), file.name, "id", False)


def column(
    columns: Sequence[str], name: str | None, usual: Sequence[str], file: str, argument: str, needed: bool
) -> str | None:
    """Return the column that the user names, or the first with a usual name. file: the name of the table."""
    listed = ", ".join(map(repr, columns))
    if name is not None and name not in columns:
        raise InputError(f"{file} has no column {name!r}: expected one of {listed}")
    chosen = name or next((one for one in usual if one in columns), None)
    if chosen is None and needed:
        raise InputError(
            f"{file} has no column {' or '.join(map(repr, usual))}: name the column of the {argument} with "
            f"{argument}=, one of {listed}"
        )
    return chosen


def plain(text: str) -> str:
    """Return an id or sentence with broken characters escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def decoded(data: bytes) -> str:
    """Decode UTF-8. Invalid bytes become lone surrogates, to be found and reported later."""
    return data.decode("utf-8", "surrogateescape")


def some(files: Sequence[File]) -> str:
    names = list(dict.fromkeys(file.name for file in files))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


def first_line(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else repr(e)
