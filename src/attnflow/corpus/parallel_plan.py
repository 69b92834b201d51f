"""The plan of a corpus by several processes: the shards are those of `plan`, which one process makes.

Three steps follow one another through the input, each a few tasks behind the one before: workers count the texts in ranges
of large files, so that the rows of each are known; workers measure texts, and this process cuts them into shards; workers
read each shard and find its digest.
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
"""Of a file that can be cut, or of several small files, that one task reads: a fraction of a second."""

SMALL_BYTES = 1 << 26
SMALL_TEXTS = 500_000
"""Of an input that one process has planned before others have started."""

REST_TEXTS = 1 << 16
"""That this process measures at once, of the rest of a file that cannot be cut."""

Range = tuple[int, int, int]
"""A file's number, and bytes of it, from the first to behind the last."""


def parallel_plan(
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
    processes: int | None = None,
) -> Iterator[Shard]:
    """The shards that `plan` gives for the same arguments, by several processes.

    processes: by default as many as there are cores for this one. Where there is one core, the input is small, or most of
    it is one file that cannot be cut (packed, .csv, .tsv or a table), `plan` itself does it.
    """
    if processes is None:
        processes = _processes(corpus, samples)
        if processes == 1:
            yield from plan(corpus, most_texts, most_cost, cost, samples)
            return
    try:
        with crew(Reader(corpus), partial(Reader, corpus), processes) as do:
            yield from plan_by(do, corpus, most_texts, most_cost, cost, samples)
    except JobError:
        raise JobError(
            f"one of {processes} processes that read the input died, most often because memory ran out: run the same again "
            "when more of it is free"
        ) from None


def plan_by(
    do: Crew[Reader],
    corpus: Corpus,
    most_texts: int,
    most_cost: int,
    cost: Callable[[int], int],
    samples: int | None = None,
) -> Iterator[Shard]:
    """The same, by a crew whose members have a reader each."""
    cutter = Cutter(most_texts, most_cost, cost, samples)
    with closing(Reader(corpus)) as reader:
        drafts = _drafts(do, corpus, cutter)
        # groupby and in_order are lazy: what comes here is drawn only as far as workers are free
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
    """Of each file; 0 where it cannot be told, which whoever reads the file will explain."""

    def size(path: str) -> int:
        try:
            return Path(path).stat().st_size
        except OSError:
            return 0

    return [size(file.path) for file in corpus.files]


def _portions(do: Crew[Reader], corpus: Corpus) -> Iterator[tuple[int | Piece, ...]]:
    """What is measured together: a piece of a large file, or several small files."""
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
    """Drafts that one task reads, behind whether this process does it: a packed file is only ever read on."""
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
    """What the digest of a piece is made of; most lines of .txt files are not read one by one for it."""
    source = reader.source(piece.file)
    if isinstance(source, Lines) and source.plain and end is not None and not is_too_long(end - piece.offset):
        ids, texts = source.plain_lines(piece.offset, piece.row, end - piece.offset)
        if len(texts) == piece.count:
            lengths = zip(map(len, ids), map(len, texts), repeat(None), repeat(None), strict=False)
            return list(chain.from_iterable(lengths)), list(chain.from_iterable(zip(ids, texts, strict=True)))
    return fields_of(reader.read(piece))
