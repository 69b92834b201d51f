"""The plan of a corpus, made by several processes: the shards are the same as those of `plan`, which uses one process.

Three steps run through the input, each a few tasks behind the one before. Workers count the texts in ranges of large
files, so that the row numbers of each range are known. Workers measure texts, and this process cuts them into shards.
Workers read each shard and compute its digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, pairwise, repeat
from operator import itemgetter
from pathlib import Path

from attnflow.corpus.cut import Cutter, Draft
from attnflow.corpus.measure import Sizes, measure, measure_piece
from attnflow.corpus.plan import Piece, Reader, Shard, digest_of, fields_of, no_texts, plan
from attnflow.errors import InputError, JobError
from attnflow.flow import cores
from attnflow.jobs.workers import Crew, crew
from attnflow.texts.sources import Corpus
from attnflow.texts.text_files import Lines, can_be_cut, is_too_long

RANGE_BYTES = 1 << 25
"""How many bytes of a divisible file, or of several small files, one task reads: a fraction of a second."""

SMALL_BYTES = 1 << 26
SMALL_TEXTS = 500_000
"""One process plans an input below these sizes before other processes would have started."""

REST_TEXTS = 1 << 16
"""How many texts this process measures at once, in the rest of an indivisible file."""

Range = tuple[int, int, int]
"""A file's number, and the first and end byte of a range in it."""


def parallel_plan(
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
    processes: int | None = None,
) -> Iterator[Shard]:
    """Yield the shards that `plan` gives for the same arguments, using several processes.

    processes: by default one per available core. `plan` does the work if there is one core, if the input is small, or
        if most of it is one file that cannot be divided (compressed, .csv, .tsv or a table).
    """
    if processes is None:
        processes = _processes(corpus, samples)
        if processes == 1:
            yield from plan(corpus, most_texts, most_cost, cost, samples)
            return
    try:
        with (
            closing(Reader(corpus)) as reader,
            crew(reader, partial(Reader, corpus), processes) as do,
        ):
            yield from plan_by(do, corpus, most_texts, most_cost, cost, samples)
    except JobError:
        raise JobError(
            f"one of {processes} processes that read the input died, usually because memory ran out: run the same "
            "again when more memory is free"
        ) from None


def plan_by(
    do: Crew[Reader],
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
) -> Iterator[Shard]:
    """Plan with a crew whose members have a reader each."""
    cutter = Cutter(most_texts, most_cost, cost, samples)
    with closing(Reader(corpus)) as reader:
        drafts = _drafts(do, corpus, cutter)
        # groupby and in_order are lazy: tasks are drawn only as workers become free
        for here, groups in groupby(drafts, key=itemgetter(0)):
            tasks = (group for _, group in groups)
            shards = (_digested(reader, group) for group in tasks) if here else do.in_order(_digested, tasks)
            for finished in shards:
                yield from finished
    if not cutter.row:
        raise no_texts(corpus)


def _processes(corpus: Corpus, samples: int | None) -> int:
    if samples is not None and samples <= SMALL_TEXTS:
        return 1
    sizes = _bytes_on_disk(corpus)
    whole = [size for file, size in zip(corpus.files, sizes, strict=True) if not can_be_cut(file, corpus)]
    if sum(sizes) <= SMALL_BYTES or 2 * max(whole, default=0) > sum(sizes):
        return 1
    return cores()


def _bytes_on_disk(corpus: Corpus) -> list[int]:
    """Return the size of each file; 0 if it is unknown, since reading the file will report the reason."""

    def size(path: str) -> int:
        try:
            return Path(path).stat().st_size
        except OSError:
            return 0

    return [size(file.path) for file in corpus.files]


def _portions(do: Crew[Reader], corpus: Corpus) -> Iterator[tuple[int | Piece, ...]]:
    """Yield what is measured together: a piece of a large file, or several small files."""
    sizes = _bytes_on_disk(corpus)
    cuts: dict[int, list[Range]] = {}
    for number, (file, size) in enumerate(zip(corpus.files, sizes, strict=True)):
        if size > RANGE_BYTES and can_be_cut(file, corpus):
            starts = [*range(0, size, RANGE_BYTES), size]
            cuts[number] = [(number, start, end) for start, end in pairwise(starts)]
    counts = do.in_order(_counted, (own for ranges in cuts.values() for own in ranges))
    files: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        if files and (number in cuts or total + size > RANGE_BYTES):
            yield tuple(files)
            files, total = [], 0
        if number not in cuts:
            files.append(number)
            total += size
            continue
        row, line = 0, 1
        for _ in cuts[number]:
            offset, rows, lines = next(counts)
            if rows:
                yield (Piece(number, offset, row, rows, line),)
            row, line = row + rows, line + lines
    if files:
        yield tuple(files)


def _counted(reader: Reader, place: Range) -> tuple[int, int, int]:
    number, start, end = place
    source = reader.source(number)
    assert isinstance(source, Lines)
    return source.count(start, end)


def _drafts(do: Crew[Reader], corpus: Corpus, cutter: Cutter) -> Iterator[tuple[bool, list[Draft]]]:
    """Yield drafts that one task reads, and whether this process must do it: a compressed file is only read forwards."""
    with closing(Reader(corpus)) as reader:
        for portions in do.in_order(measure, _portions(do, corpus)) if cutter.left else ():
            drafts: list[Draft] = []
            for sizes in portions:
                if isinstance(sizes, InputError):
                    yield False, drafts
                    raise sizes
                drafts += cutter.add(sizes)
                if sizes.rest is not None and cutter.left:
                    yield False, drafts
                    drafts = []
                    packed = bool(corpus.files[sizes.first.file].packed)
                    for more in _rest(reader, sizes.rest):
                        yield packed, cutter.add(more)
                        if not cutter.left:
                            break
                if not cutter.left:
                    break
            yield False, drafts
            if not cutter.left:
                break
    yield False, cutter.close()


def _rest(reader: Reader, piece: Piece | None) -> Iterator[Sizes]:
    while piece is not None:
        sizes = None
        for sizes in measure_piece(reader, replace(piece, count=REST_TEXTS), whole=True):
            yield sizes
        piece = None if sizes is None else sizes.rest


def _digested(reader: Reader, drafts: Sequence[Draft]) -> list[Shard]:
    return [replace(draft.shard, digest=_digest(reader, draft)) for draft in drafts]


def _digest(reader: Reader, draft: Draft) -> str:
    lengths: list[int | None] = []
    fields: list[str] = []
    for piece, end in zip(draft.shard.pieces, draft.ends, strict=True):
        own_lengths, own_fields = _fields(reader, piece, end)
        lengths += own_lengths
        fields += own_fields
    return digest_of(lengths, fields)


def _fields(reader: Reader, piece: Piece, end: int | None) -> tuple[list[int | None], list[str]]:
    """Return the fields for the digest of a piece; most lines of .txt files need not be read one by one."""
    source = reader.source(piece.file)
    if isinstance(source, Lines) and source.plain and end is not None and not is_too_long(end - piece.offset):
        ids, texts = source.plain_lines(piece.offset, piece.row, end - piece.offset)
        if len(texts) == piece.count:
            lengths = zip(map(len, ids), map(len, texts), repeat(None), repeat(None), strict=False)
            return list(chain.from_iterable(lengths)), list(chain.from_iterable(zip(ids, texts, strict=True)))
    return fields_of(reader.read(piece))
