"""Inputs of a corpus: files, folders and datasets → a plan of parts, and the texts of each, always in bounded memory."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import json
import lzma
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple, cast

from attnflow.errors import InputError
from attnflow.evaluate.read import LONGEST_CELL, TEXT, column

LINES = {".txt": "txt", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
TABLES = {".parquet": "parquet", ".arrow": "arrow"}
PACKED: Mapping[str, Callable[[str], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
KNOWN = f"{', '.join(LINES)} (each also {', '.join(PACKED)}), {', '.join(TABLES)}"

SAVED = (("dataset_dict.json",), ("dataset_info.json", "state.json"))
"""What tells a folder that save_to_disk of Hugging Face datasets wrote: of several splits, or of one."""

LONGEST = LONGEST_CELL
"""Bytes of a line, characters of a cell: what is longer becomes a row with a problem, so that memory stays bounded."""

PART_BYTES = 1 << 26
"""Of the texts of a part, at most, whatever they cost: a part is held in memory."""

ROWS = 256
"""Rows of a table that are made into Python's strings at once."""

HEAD = 100
"""Objects of a jsonl file in which a column is looked for: one that is null may be left out."""

SAY_EVERY = 100_000


class Text(NamedTuple):
    """One text of the input. Bytes that are no UTF-8 stand in it as lone surrogates.

    text: None where the row has none. pair: the second text, "" where the row has none; None where none was asked for.
    problem: why the row cannot be read, in a sentence.
    """

    id: str
    text: str | None
    pair: str | None = None
    problem: str | None = None


Found = tuple[int, int, Text]
"""A text, behind its offset and its line."""


@dataclass(frozen=True)
class Piece:
    """Rows of one file, one after another. offset: bytes, of what a packed file holds; rows in a table. row: from 0.

    line: number of the first line, from 1, for what is said of it: a csv cell may have several lines.
    """

    file: int
    offset: int
    row: int
    count: int
    line: int = 0


@dataclass(frozen=True)
class Part:
    """What is worked on and written together. row: of its first text, in the whole input. digest: of what was read."""

    number: int
    row: int
    count: int
    pieces: tuple[Piece, ...]
    digest: str


@dataclass(frozen=True)
class File:
    """path: absolute, since workers may run elsewhere. name: in ids and sentences. packed: .gz, .xz, .bz2 or nothing."""

    path: str
    name: str
    kind: str
    packed: str = ""


@dataclass(frozen=True)
class Corpus:
    """An input: its files in order, and which of their columns are read. Small, so that it can travel to workers."""

    path: str
    files: tuple[File, ...]
    text: str | None = None
    id: str | None = None
    pair: str | None = None
    whole_files: bool = False
    split: str | None = None


def open_corpus(
    path: str | Path,
    *,
    text: str | None = None,
    id: str | None = None,
    pair: str | None = None,
    whole_files: bool = False,
    split: str | None = None,
) -> Corpus:
    """The files of an input: a file, a folder, a dataset that Hugging Face datasets saved, or one of its hub (hf://…).

    text, id, pair: columns; by default the usual names of texts, and "id" where there is one. whole_files: a .txt file is
    one text, not one a line. split: of a dataset. No text is read yet.
    """
    path = os.fspath(path)
    if path.startswith("hf:"):
        files = _of_hub(path, split)
    elif any(all((Path(path) / name).is_file() for name in names) for names in SAVED):
        files = _saved(Path(path), split)
    elif split is not None:
        raise InputError(
            f"--split {split!r} chooses a split of a Hugging Face dataset, and {path!r} is none: leave it out"
        )
    else:
        files = _found(Path(path))
    plain = next((file for file in files if file.kind == "txt"), None)
    if whole_files and plain is None:
        raise InputError(f"--whole-files is about .txt files, and there are none in {path!r}: leave it out")
    for option, given in (("text", text), ("id", id), ("pair", pair)):
        if given is not None and plain is not None:
            raise InputError(
                f"--{option} {given!r} names a column, and {plain.name} has none: leave it out, or give tables alone"
            )
    return Corpus(path, files, text, id, pair, whole_files, split)


def plan(
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[Part]:
    """The parts of a corpus, in one pass over it: they depend on the input and these arguments alone.

    A part ends at most_texts texts, or where the next text would bring its cost above most_cost; what costs more than
    that by itself is a part by itself. cost: of the number of UTF-8 bytes of a text and its pair. samples: the first so
    many texts, and no more. say: is told of progress.
    """
    number = row = spent = size = 0
    texts: list[Text] = []
    starts: list[tuple[int, int, int, int, int]] = []  # where a file begins in the part, and at which of its texts

    def part() -> Part:
        ends = [at for *_, at in starts[1:]] + [len(texts)]
        pieces = tuple(
            Piece(file, offset, here, end - at, line)
            for (file, offset, here, line, at), end in zip(starts, ends, strict=True)
        )
        return Part(number, row, len(texts), pieces, _digest(texts))

    with closing(_walk(corpus)) as walk:
        for file, offset, here, line, text in islice(walk, samples):
            bytes_ = _size(text.text) + _size(text.pair)
            price = cost(bytes_)
            if texts and (len(texts) == most_texts or spent + price > most_cost or size + bytes_ > PART_BYTES):
                yield part()
                number, row, spent, size = number + 1, row + len(texts), 0, 0
                texts, starts = [], []
            if not starts or starts[-1][0] != file:
                starts.append((file, offset, here, line, len(texts)))
            texts.append(text)
            spent, size = spent + price, size + bytes_
            if say is not None and (row + len(texts)) % SAY_EVERY == 0:
                say(f"{row + len(texts):,} texts found so far")
    if not texts:
        raise InputError(f"{corpus.path!r} has no texts: expected at least one in {_some(corpus.files)}")
    yield part()


class Reader:
    """Reads parts in any order. It keeps the last file open, so that in order nothing is read or unpacked twice."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._number = -1
        self._source: _Lines | _Table | None = None

    def texts(self, part: Part) -> list[Text]:
        """The texts of a part, which have to be those that were planned."""
        found: list[Text] = []
        for piece in part.pieces:
            source = self._open(piece.file)
            with closing(source.records(piece.offset, piece.row, piece.line)) as records:
                found.extend(text for _, _, text in islice(records, piece.count))
        if _digest(found) != part.digest:
            files = _some([self.corpus.files[piece.file] for piece in part.pieces])
            raise InputError(
                f"the input changed while it was read: texts {part.row} to {part.row + part.count - 1} are not what they "
                f"were at first, in {files}; start again when nothing writes to it"
            )
        return found

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source, self._number = None, -1

    def __del__(self) -> None:
        self.close()

    def _open(self, number: int) -> _Lines | _Table:
        if self._source is None or self._number != number:
            self.close()
            self._source, self._number = _open(self.corpus, number), number
        return self._source


def _walk(corpus: Corpus) -> Generator[tuple[int, int, int, int, Text]]:
    """All texts, each with its file and its offset, row and line there."""
    for number in range(len(corpus.files)):
        with closing(_open(corpus, number)) as source:
            first, head = source.begin
            for row, (offset, line, text) in enumerate(source.records(first, 0, head)):
                yield number, offset, row, line, text


def _digest(texts: Sequence[Text]) -> str:
    """Lengths, then all strings one after another: other texts never make the same bytes."""
    fields = [field for text in texts for field in text]
    lengths = repr([None if field is None else len(field) for field in fields])
    joined = "".join([field for field in fields if field])
    return hashlib.sha256(f"{lengths}\n{joined}".encode("utf-8", "surrogatepass")).hexdigest()


def _size(text: str | None) -> int:
    if text is None or text.isascii():
        return len(text or "")
    return len(text.encode("utf-8", "surrogatepass"))


def _plain(text: str) -> str:
    """Ids and sentences are written as they are: what is broken in them is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _some(files: Sequence[File]) -> str:
    names = list(dict.fromkeys(file.name for file in files))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


def _first_line(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else repr(e)


def _file(path: Path, name: str) -> File | None:
    """None where the ending is not known."""
    *_, last, end = "", "", *(suffix.lower() for suffix in PurePath(name).suffixes)
    if end in PACKED:
        return File(str(path.absolute()), _plain(name), LINES[last], end) if last in LINES else None
    kind = (LINES | TABLES).get(end)
    return None if kind is None else File(str(path.absolute()), _plain(name), kind)


def _found(path: Path) -> tuple[File, ...]:
    if path.is_dir():
        below = sorted(_below(path))
        files = tuple(file for name in below if (file := _file(path / name, name)) is not None)
        if not files:
            raise InputError(f"there is no file to read in the folder {str(path)!r}: expected some that end in {KNOWN}")
        return files
    if not path.exists():
        raise InputError(
            f"there is no file or folder {str(path)!r}: expected texts in a file that ends in {KNOWN}, or a folder of them"
        )
    file = _file(path, path.name)
    if file is None:
        raise InputError(f"{str(path)!r}: expected a file that ends in {KNOWN}")
    return (file,)


def _below(folder: Path) -> Iterator[str]:
    """The paths of files below a folder, with "/". Linked folders count too; one that leads back to itself, once."""

    def stop(e: OSError) -> None:
        raise InputError(
            f"cannot read the folder {e.filename!r}: {e.strerror}; make it readable, or take it out of the input"
        ) from None

    seen = set()
    for at, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        here = Path(at)
        told = here.stat()
        if (told.st_dev, told.st_ino) in seen:
            folders.clear()
            continue
        seen.add((told.st_dev, told.st_ino))
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        for name in names:
            if name[0] not in "._":
                yield (here / name).relative_to(folder).as_posix()


def _saved(folder: Path, split: str | None) -> tuple[File, ...]:
    """The Arrow files that save_to_disk of Hugging Face datasets has written."""
    top, below = folder, ""
    try:
        if (folder / "dataset_dict.json").is_file():
            names = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
            below = _split(names, split, str(folder)) + "/"
            folder = folder / below
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [str(entry["filename"]) for entry in state["_data_files"]]
    except InputError:
        raise
    except Exception as e:  # what is missing or garbled here raises anything
        raise InputError(
            f"{str(folder)!r} is no dataset that can be read ({type(e).__name__}: {_first_line(e)}): save it again with "
            "save_to_disk"
        ) from None
    if not below and split is not None:
        _split([state["_split"]] if state.get("_split") else [], split, str(folder))
    if state.get("_indices_data_files"):
        raise InputError(
            f"{str(folder)!r} is a selection of rows, which is kept beside them: call flatten_indices() before save_to_disk"
        )
    return tuple(File(str((top / below / name).absolute()), _plain(below + name), "arrow") for name in files)


def _split(names: Sequence[str], split: str | None, path: str) -> str:
    listed = ", ".join(map(repr, names))
    if split is None:
        if len(names) == 1:
            return names[0]
        raise InputError(f"{path!r} has {len(names)} splits: choose one with --split, of {listed}")
    if split not in names:
        told = f"expected one of {listed}" if names else "it has none, so leave it out"
        raise InputError(f"{path!r} has no split {split!r}: {told}")
    return split


def _of_hub(path: str, split: str | None) -> tuple[File, ...]:
    found = re.fullmatch(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/([^/]+))?", path)
    if found is None:
        raise InputError(
            f"{path!r} names no dataset: expected hf://datasets/OWNER/NAME, also with @REVISION or /CONFIG behind it"
        )
    name, revision, config = found.groups()
    return _loaded(path, name, config, revision, split)


def _loaded(path: str, name: str, config: str | None, revision: str | None, split: str | None) -> tuple[File, ...]:
    """The Arrow files that load_dataset of Hugging Face datasets keeps of a dataset, downloaded if need be."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{path!r} is loaded by Hugging Face datasets: pip install datasets") from None
    try:
        held: Any = datasets.load_dataset(name, config, revision=revision, split=split)
    except Exception as e:  # of the hub, the network and every format it knows
        raise InputError(f"{path!r} cannot be loaded: {_first_line(e)}") from None
    if isinstance(held, dict):
        held = held[_split([str(name) for name in held], None, path)]
    paths = [Path(entry["filename"]) for entry in held.cache_files]
    files = tuple(File(str(path.absolute()), _plain(path.name), "arrow") for path in paths)
    rows = sum(map(_rows_of, files))
    if rows != len(held):
        raise InputError(
            f"{path!r} with the split {split!r} has {len(held):,} of the {rows:,} rows in its files: expected a whole "
            "split; for its first texts use --samples"
        )
    return files


def _rows_of(file: File) -> int:
    import pyarrow as pa

    with _reading(file), pa.memory_map(file.path) as held:
        return sum(batch.num_rows for batch in pa.ipc.open_stream(held))


@contextmanager
def _reading(file: File) -> Iterator[None]:
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as e:  # gzip, lzma and pyarrow share no base class for what a garbled file raises
        if isinstance(e, OSError) and e.errno and e.strerror:
            raise InputError(
                f"cannot read {file.path!r}: {e.strerror}; make it readable, or take it out of the input"
            ) from None
        raise InputError(
            f"{file.path!r} cannot be read as {file.kind}{file.packed}: {_first_line(e)}; mend it, or take it out of the "
            "input"
        ) from None


def _open(corpus: Corpus, number: int) -> _Lines | _Table:
    file = corpus.files[number]
    return _Table(file, corpus) if file.kind in TABLES.values() else _Lines(file, corpus)


def _checked(file: File) -> str:
    """Its path, if it is a file: reading a pipe would wait for ever, and could not begin in the middle."""
    if not stat.S_ISREG(Path(file.path).stat().st_mode):
        raise InputError(f"cannot read {file.path!r}: expected a file, not a pipe or a device; copy it into a file")
    return file.path


class _Lines:
    """An open file of lines: txt, csv, tsv or jsonl. begin: offset and number of the first line that may be a text."""

    def __init__(self, file: File, corpus: Corpus) -> None:
        self.file = file
        self.corpus = corpus
        self.whole = corpus.whole_files and file.kind == "txt"
        with _reading(file):
            path = _checked(file)
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
        with _reading(self.file):
            self.stream.seek(offset)
            if self.whole:
                yield from self._whole(offset, row)
            else:
                yield from {"txt": self._txt, "jsonl": self._jsonl}.get(self.file.kind, self._csv)(offset, row, line)

    def _problem(self, row: int, line: int, told: str, id: Any = None) -> Text:
        return Text(self._id(id, row), None, None, _plain(f"{self.file.name}, line {line}: {told}"))

    def _id(self, given: Any, row: int) -> str:
        if given is None or given == "":
            return f"{self.file.name}:{row + 1}"
        return _plain(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))

    def _whole(self, offset: int, row: int) -> Generator[Found]:
        if row == 0:
            data = self.stream.read(LONGEST + 1)
            if len(data) > LONGEST:
                problem = f"{self.file.name}: longer than {LONGEST:,} bytes; split it"
                yield offset, 1, Text(self.file.name, None, None, problem)
            else:
                yield offset, 1, Text(self.file.name, _decoded(_ended(data)))

    def _txt(self, offset: int, row: int, line: int) -> Generator[Found]:
        name = self.file.name
        for raw, size in _lines(self.stream):
            if size == len(raw):
                text = Text(f"{name}:{row + 1}", _decoded(_ended(raw)))
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
                self.text, self.pair, id = _columns(list(names), self.corpus, self.file)
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
        found = _columns(names, self.corpus, self.file)
        self.width = len(names)
        places = {name: place for place, name in enumerate(names)}
        self.at_text, self.at_pair, self.at_id = (None if name is None else places[name] for name in found)
        self.begin = (feed.offset, feed.line)

    def _csv(self, offset: int, row: int, line: int) -> Generator[Found]:
        feed = _Feed(self.stream, offset, line)
        rows = csv.reader(feed.lines(), **self.dialect)
        at_text, at_pair, at_id = cast("int", self.at_text), self.at_pair, self.at_id
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
            elif told is None and len(cells) != self.width:
                more = "more" if len(cells) > self.width else "fewer"
                told = f"{more} cells than the {self.width} columns of the first line"
            if told is not None:
                yield offset, line, self._problem(row, line, told)
            else:
                id = self._id(None if at_id is None else cells[at_id], row)
                yield offset, line, Text(id, cells[at_text], None if at_pair is None else cells[at_pair])
            row += 1


def _too_long() -> str:
    return f"longer than {LONGEST:,} bytes"


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


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
    """Lines for csv.reader, which pulls no more than it needs. offset, line: of the next one. cut: one was too long."""

    def __init__(self, stream: IO[bytes], offset: int, line: int) -> None:
        self.stream, self.offset, self.line, self.cut = stream, offset, line, False
        stream.seek(offset)

    def lines(self) -> Iterator[str]:
        for raw, size in _lines(self.stream):
            self.cut = self.cut or size != len(raw)
            pieces = raw.splitlines(keepends=True) if b"\r" in raw[:-2] else [raw]  # a lone \r ends a line of csv
            for piece in pieces[:-1]:
                self.offset, self.line = self.offset + len(piece), self.line + 1
                yield _decoded(piece)
            self.offset, self.line = self.offset + size - len(raw) + len(pieces[-1]), self.line + 1
            yield _decoded(pieces[-1])


def _object(raw: bytes) -> Any:
    """What a line of JSON says, or the error that tells why it says nothing."""
    try:
        return json.loads(_decoded(raw))
    except json.JSONDecodeError as e:
        return ValueError(e.msg)
    except ValueError as e:  # numbers of thousands of digits
        return ValueError(_first_line(e))
    except RecursionError:
        return ValueError("nested too deeply")


def _columns(names: Sequence[str], corpus: Corpus, file: File) -> tuple[str, str | None, str | None]:
    """The columns of text, pair and id."""
    text = cast("str", column(names, corpus.text, TEXT, file.name, "text", True))
    pair = None if corpus.pair is None else column(names, corpus.pair, (), file.name, "pair", True)
    return text, pair, column(names, corpus.id, ("id",), file.name, "id", False)


class _Table:
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
        with _reading(file):
            path = _checked(file)
            self.held: Any = self._parquet(path) if file.kind == "parquet" else self.pa.memory_map(path)
            try:
                schema = self.held.schema_arrow if file.kind == "parquet" else self._arrow().schema
                self.names = _columns(schema.names, corpus, file)
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
        with _reading(self.file):
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
        name = self.file.name
        return [
            Text(_plain(i) if i else f"{name}:{row + number}", t, p)
            for number, (i, t, p) in enumerate(zip(ids, self._strings(text), pairs, strict=True), 1)
        ]

    def _strings(self, values: Any) -> list[str | None]:
        """Each decoded by itself, so that broken bytes harm their own row alone."""
        types = self.pa.types
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        plain = (self._textual, types.is_null, types.is_binary, types.is_large_binary)
        if not any(of(values.type) for of in plain):
            return [None if value is None else str(value) for value in values.to_pylist()]
        # large, because a batch of Arrow may hold more than 2 GiB, of which a slice still has the offsets
        data = values.cast(self.pa.large_binary()).to_pylist()
        return [None if value is None else _decoded(value) for value in data]

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
