"""Texts of a corpus: a plan of shards, and the texts of each, always in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from attnflow.errors import InputError
from attnflow.texts.columnar import Table
from attnflow.texts.sources import TABLES, Corpus, File, Text, some
from attnflow.texts.text_files import Lines

SHARD_BYTES = 1 << 26
"""Of the texts of a shard, at most, whatever they cost: a shard is held in memory."""


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
class Shard:
    """Texts that are explained and written together.

    row: of its first text, in the whole input. digest: of what was read.
    """

    number: int
    row: int
    count: int
    pieces: tuple[Piece, ...]
    digest: str

    @property
    def file(self) -> str:
        """The name of its file in the output."""
        return f"part-{self.number:06}.parquet"


def plan(
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
) -> Iterator[Shard]:
    """The shards of a corpus, in one pass over it: they depend on the input and these arguments alone.

    A shard ends at most_texts texts, or where the next text would bring its cost above most_cost; what costs more than
    that by itself is a shard by itself. cost: of the number of UTF-8 bytes of a text and its pair, never below 0.
    samples: the first so many texts, and no more. This process does it alone; `parallel_plan` gives the same shards.
    """
    number = row = spent = size = 0
    texts: list[Text] = []
    starts: list[tuple[int, int, int, int, int]] = []  # where a file begins in the shard, and at which of its texts

    def shard() -> Shard:
        ends = [at for *_, at in starts[1:]] + [len(texts)]
        pieces = tuple(
            Piece(file, offset, here, end - at, line)
            for (file, offset, here, line, at), end in zip(starts, ends, strict=True)
        )
        return Shard(number, row, len(texts), pieces, digest(texts))

    with closing(_walk(corpus)) as walk:
        for file, offset, here, line, text in islice(walk, samples):
            bytes_ = size_of(text.text) + size_of(text.pair)
            price = cost(bytes_)
            bytes_ += size_of(text.id) + size_of(text.problem) + size_of(text.answer)
            if texts and (len(texts) == most_texts or spent + price > most_cost or size + bytes_ > SHARD_BYTES):
                yield shard()
                number, row, spent, size = number + 1, row + len(texts), 0, 0
                texts, starts = [], []
            if not starts or starts[-1][0] != file:
                starts.append((file, offset, here, line, len(texts)))
            texts.append(text)
            spent, size = spent + price, size + bytes_
    if not texts:
        raise no_texts(corpus)
    yield shard()


def no_texts(corpus: Corpus) -> InputError:
    """What an input without texts is answered with."""
    return InputError(f"{corpus.path!r} has no texts: expected at least one in {some(corpus.files)}")


class Reader:
    """Reads shards in any order. It keeps the last file open, so that in order nothing is read or unpacked twice."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._source: Lines | Table | None = None

    def texts(self, shard: Shard) -> list[Text]:
        """The texts of a shard, which have to be those that were planned."""
        texts = [text for piece in shard.pieces for text in self.read(piece)]
        if digest(texts) != shard.digest:
            files = some([self.corpus.files[piece.file] for piece in shard.pieces])
            raise InputError(
                f"the input changed while it was read: texts {shard.row} to {shard.row + shard.count - 1} are not what "
                f"they were at first, in {files}; start again when nothing writes to it"
            )
        return texts

    def read(self, piece: Piece) -> list[Text]:
        """The texts of a piece, as they are now."""
        source = self.source(piece.file)
        with closing(source.records(piece.offset, piece.row, piece.line)) as records:
            return [text for _, _, text in islice(records, piece.count)]

    def source(self, number: int) -> Lines | Table:
        """The file of this number, open."""
        file = self.corpus.files[number]
        if self._source is None or self._source.file is not file:
            self.close()
            self._source = open_file(file, self.corpus)
        return self._source

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


def open_file(file: File, corpus: Corpus) -> Lines | Table:
    """The reader of a file of the input."""
    return Table(file, corpus) if file.kind in TABLES.values() else Lines(file, corpus)


def _walk(corpus: Corpus) -> Generator[tuple[int, int, int, int, Text]]:
    """All texts, each with its file and its offset, row and line there."""
    for number, file in enumerate(corpus.files):
        with closing(open_file(file, corpus)) as source:
            first, head = source.begin
            for row, (offset, line, text) in enumerate(source.records(first, 0, head)):
                yield number, offset, row, line, text


def digest(texts: Sequence[Text]) -> str:
    """Of what was read."""
    return digest_of(*fields_of(texts))


def fields_of(texts: Sequence[Text]) -> tuple[list[int | None], list[str]]:
    """The lengths of all fields of texts, and the fields that are there."""
    fields = [field for text in texts for field in (text[:4] if text.answer is None else text)]
    return [None if field is None else len(field) for field in fields], [field for field in fields if field]


def digest_of(lengths: list[int | None], fields: Iterable[str]) -> str:
    """Lengths, then all strings one after another: other texts never make the same bytes."""
    joined = "".join(fields)
    return hashlib.sha256(f"{lengths}\n{joined}".encode("utf-8", "surrogatepass")).hexdigest()


def size_of(text: str | None) -> int:
    """UTF-8 bytes."""
    if text is None or text.isascii():
        return len(text or "")
    return len(text.encode("utf-8", "surrogatepass"))
