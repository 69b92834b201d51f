"""Text sizes as compact arrays: all that cutting a corpus into shards needs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.plan import Piece, Reader, size_of
from attnflow.errors import InputError
from attnflow.texts.columnar import Table
from attnflow.texts.sources import decoded
from attnflow.texts.text_files import Lines, is_too_long

Integers = NDArray[np.integer]
"""In the smallest type that fits."""

MOST_TEXTS = 1 << 21
"""How many texts of an indivisible file are measured at once, so that the arrays of all workers fit into memory."""

POWERS = 10 ** np.arange(1, 19, dtype=np.int64)


@dataclass(frozen=True)
class Sizes:
    """The sizes of consecutive texts of one file. first: the piece they form.

    texts: UTF-8 bytes of each text and its pair.
    labels: UTF-8 bytes of its id, its problem and its answer.
    steps: bytes from its offset to the next text's; rows in a table.
    lines: its line, counted from the first text's; None if each text is one line.
    end: the offset after the last text; None if it is not known without reading on.
    rest: what the file has after these texts.
    """

    first: Piece
    texts: Integers
    labels: Integers
    steps: Integers
    lines: Integers | None
    end: int | None = None
    rest: Piece | None = None


def measure(reader: Reader, portions: Sequence[int | Piece]) -> list[Sizes | InputError]:
    """Return the sizes of the texts of some pieces, or of whole files by number.

    The texts of a piece were counted before; at most MOST_TEXTS of a file are measured. An error is the last entry of
    the list, because the texts before it may be enough.
    """
    sizes: list[Sizes | InputError] = []
    try:
        for portion in portions:
            count = 0
            for own in measure_piece(reader, _piece(reader, portion), whole=not isinstance(portion, Piece)):
                sizes.append(own)
                count = own.first.count
            if isinstance(portion, Piece) and count != portion.count:
                name = reader.corpus.files[portion.file].name
                raise InputError(
                    f"the input changed while it was read: {name} has fewer texts than at first; start again when "
                    "nothing writes to it"
                )
    except InputError as e:
        sizes.append(e)
    return sizes


def _piece(reader: Reader, portion: int | Piece) -> Piece:
    if isinstance(portion, Piece):
        return portion
    offset, line = reader.source(portion).begin
    return Piece(portion, offset, 0, MOST_TEXTS, line)


def measure_piece(reader: Reader, piece: Piece, whole: bool) -> Iterator[Sizes]:
    """Yield the sizes of a piece, or of the part that can be read. whole: check whether there is more after it."""
    source = reader.source(piece.file)
    sizes = _of_lines(source, piece, whole) if isinstance(source, Lines) and source.plain else None
    return _of_records(source, piece, whole) if sizes is None else iter([sizes] if sizes.first.count else [])


def _of_records(source: Lines | Table, piece: Piece, whole: bool) -> Iterator[Sizes]:
    """Measure by reading every text."""
    texts, labels, offsets, lines = (array("q") for _ in range(4))
    behind = failure = rest = None
    with closing(source.records(piece.offset, piece.row, piece.line)) as records:
        try:
            for offset, line, text in islice(records, piece.count):
                texts.append(size_of(text.text) + size_of(text.pair))
                labels.append(size_of(text.id) + size_of(text.problem) + size_of(text.answer))
                offsets.append(offset)
                lines.append(line)
            behind = next(records, None) if whole else None
        except InputError as e:
            failure = e
    if behind is not None:
        rest = Piece(piece.file, behind[0], piece.row + len(texts), MOST_TEXTS, behind[1])
    if texts:
        numbers = np.array(lines) - lines[0]
        yield Sizes(
            Piece(piece.file, offsets[0], piece.row, len(texts), lines[0]),
            _compact(np.array(texts)),
            _compact(np.array(labels)),
            _compact(np.diff(np.array(offsets), append=offsets[-1])),
            None if np.array_equal(numbers, np.arange(len(lines))) else _compact(numbers),
            rest=rest,
        )
    if failure is not None:
        raise failure


def _of_lines(source: Lines, piece: Piece, whole: bool) -> Sizes | None:
    """Measure lines of a .txt file by their ends alone; return None if a line is too long or cannot be read."""
    texts: list[NDArray[np.int64]] = []
    steps: list[NDArray[np.int64]] = []
    count = 0
    more = False
    try:
        with closing(source.blocks(piece.offset)) as blocks:
            for data in blocks:
                own_texts, own_steps = _of_block(data)
                if is_too_long(int(own_steps.max())):
                    return None
                left = piece.count - count
                more = len(own_steps) > left
                texts.append(own_texts[:left])
                steps.append(own_steps[:left])
                count += len(texts[-1])
                if more or (count == piece.count and not whole):
                    break
    except InputError:
        return None
    strides = np.concatenate([np.empty(0, np.int64), *steps])
    end = piece.offset + int(strides.sum())
    rows = np.arange(piece.row + 1, piece.row + count + 1)
    labels = size_of(f"{source.file.name}:") + 1 + np.searchsorted(POWERS, rows, side="right")
    return Sizes(
        Piece(piece.file, piece.offset, piece.row, count, piece.line),
        _compact(np.concatenate([np.empty(0, np.int64), *texts])),
        _compact(labels),
        _compact(strides),
        None,
        end,
        Piece(piece.file, end, piece.row + count, MOST_TEXTS, piece.line + count) if more and whole else None,
    )


def _of_block(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the UTF-8 bytes of each line's text, and its bytes including the line end."""
    block = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(block == ord("\n")) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data))
    steps = np.diff(ends, prepend=0)
    ended = block[ends - 1] == ord("\n")
    returned = ended & (steps > 1) & (block[ends - 2] == ord("\r"))
    texts = steps - ended - returned
    if not data.isascii():
        try:
            data.decode()  # valid UTF-8 needs no re-encoding to be measured
        except UnicodeDecodeError:
            for line in np.unique(np.searchsorted(ends, np.flatnonzero(block > 127), side="right")):
                start = int(ends[line] - steps[line])
                texts[line] = size_of(decoded(data[start : start + int(texts[line])]))
    return texts, steps


def _compact(values: NDArray[np.int64]) -> Integers:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
