"""The plan that cuts a corpus into shards, and a reader for the texts of each shard. Both use bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from attnflow.errors import InputError
from attnflow.texts.columnar import Table
from attnflow.texts.sources import Corpus, File, Text, some
from attnflow.texts.text_files import Lines

SHARD_BYTES = 1 << 26
"""The most bytes of text in a shard, whatever the cost: a shard is held in memory."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file.

    offset: in bytes of the uncompressed file; in rows of a table.
    row: from 0.
    line: the number of the first line, from 1, for messages: a csv cell may have several lines.
    """

    file: int
    offset: int
    row: int
    count: int
    line: int = 0


@dataclass(frozen=True)
class Shard:
    """Texts that are explained and written together.

    row: the number of its first text in the whole input.
    digest: a hash of the texts that were read.
    """

    number: int
    row: int
    count: int
    pieces: tuple[Piece, ...]
    digest: str

    @property
    def file(self) -> str:
        """The name of its output file."""
        return f"part-{self.number:06}.parquet"


def plan(
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
) -> Iterator[Shard]:
    """Yield the shards of a corpus in one pass. They depend only on the input and these arguments.

    A shard ends at most_texts texts, or before the text that would raise its cost above most_cost. A text that costs
    more than most_cost is a shard of its own.
    cost: maps the UTF-8 bytes of a text and its pair to a cost of 0 or more.
    samples: use only the first N texts.
    """
    number = row = spent = size = 0
    texts: list[Text] = []
    # where each file begins in the shard: file, offset, row, line, place in the shard
    starts: list[tuple[int, int, int, int, int]] = []

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
        raise InputError(f"{corpus.path!r} has no texts: expected at least one in {some(corpus.files)}")
    yield shard()


class Reader:
    """Reads shards in any order. It keeps the last file open, so that reading in order reads nothing twice."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._source: Lines | Table | None = None

    def texts(self, shard: Shard) -> list[Text]:
        """Return the texts of a shard, after checking that they are still those that were planned."""
        texts = [text for piece in shard.pieces for text in self.read(piece)]
        if digest(texts) != shard.digest:
            files = some([self.corpus.files[piece.file] for piece in shard.pieces])
            raise InputError(
                f"the input changed while it was read: texts {shard.row} to {shard.row + shard.count - 1} in {files} "
                "are different now; start again when nothing writes to it"
            )
        return texts

    def read(self, piece: Piece) -> list[Text]:
        """Return the texts of a piece, as they are now."""
        source = self.source(piece.file)
        with closing(source.records(piece.offset, piece.row, piece.line)) as records:
            return [text for _, _, text in islice(records, piece.count)]

    def source(self, number: int) -> Lines | Table:
        """Open the file with this number."""
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
    """Return a reader for a file of the input."""
    return Table(file, corpus) if file.kind == "parquet" else Lines(file, corpus)


def _walk(corpus: Corpus) -> Generator[tuple[int, int, int, int, Text]]:
    """Yield all texts, each with its file, and its offset, row and line there."""
    for number, file in enumerate(corpus.files):
        with closing(open_file(file, corpus)) as source:
            first, head = source.begin
            for row, (offset, line, text) in enumerate(source.records(first, 0, head)):
                yield number, offset, row, line, text


def digest(texts: Sequence[Text]) -> str:
    """Hash the lengths of all fields, then their strings: different texts never give the same bytes."""
    fields = [field for text in texts for field in (text[:4] if text.answer is None else text)]
    lengths = [None if field is None else len(field) for field in fields]
    joined = "".join(field for field in fields if field)
    return hashlib.sha256(f"{lengths}\n{joined}".encode("utf-8", "surrogatepass")).hexdigest()


def size_of(text: str | None) -> int:
    """Return the UTF-8 bytes of a text and its pair."""
    if text is None or text.isascii():
        return len(text or "")
    return len(text.encode("utf-8", "surrogatepass"))
