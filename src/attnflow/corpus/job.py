"""A job: what is asked of which texts, done on one machine. Reading, running, solving and writing overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import attnflow
from attnflow.corpus.explainer import Explainer, Wanted, prepared
from attnflow.corpus.folder import Folder, Record, write_part
from attnflow.corpus.plan import Part, Reader, plan
from attnflow.corpus.progress import Progress
from attnflow.corpus.schema import Explained, table
from attnflow.corpus.sources import Corpus, Text
from attnflow.errors import InputError
from attnflow.evaluate.parts import fingerprint, weights_hash
from attnflow.model import Model

PART_CELLS = 1 << 24
"""Scores in a part, at most, as far as the lengths of texts tell: parts in work are held in memory."""

BYTES_A_TOKEN = 3
AHEAD = 2
"""Parts that are begun before the oldest is written."""

Seen = Callable[[int, int], None]
"""Is told of texts and their tokens, as soon as the model has run on them."""


@dataclass(frozen=True)
class Spec:
    """All that a worker needs, here or on another machine.

    source: the arguments of `attnflow.load`. name: how results name the model, wherever it was loaded from.
    """

    source: Mapping[str, Any]
    name: str
    corpus: Corpus
    wanted: Wanted
    folder: str


class Worker:
    """Does parts, each into its file, with one model."""

    def __init__(self, spec: Spec, model: Model | None = None, solvers: int | None = None) -> None:
        self.spec = spec
        self.model = attnflow.load(**spec.source) if model is None else model
        self.model.name = spec.name
        self.explainer = Explainer(self.model, spec.wanted, solvers)
        self.reader = Reader(spec.corpus)

    def do(self, parts: Iterable[Part], seen: Seen = lambda texts, tokens: None) -> Iterator[Record]:
        """The lines of the manifest, in order, each when its part is on the disk."""
        with ExitStack() as stack:
            reading, writing = (ThreadPoolExecutor(1, f"attnflow-{name}") for name in ("read", "write"))
            for pool in (reading, writing):
                stack.callback(pool.shutdown, cancel_futures=True)
            written: deque[Future[Record]] = deque()
            coming = iter(parts)
            ahead = deque(reading.submit(self._prepared, part) for _, part in zip(range(1), coming, strict=False))
            while ahead:
                part, texts, given = ahead.popleft().result()
                ahead.extend(reading.submit(self._prepared, part) for _, part in zip(range(1), coming, strict=False))
                seen(sum(isinstance(one, Explained) for one in given), 0)
                collected = self.explainer.explain(given, seen)
                written.append(writing.submit(self._written, part, texts, collected))
                del texts, given, collected
                while written and (len(written) >= AHEAD or written[0].done()):
                    yield written.popleft().result()
            while written:
                yield written.popleft().result()

    def _prepared(self, part: Part) -> tuple[Part, list[Text], list[Any]]:
        texts = self.reader.texts(part)
        return part, texts, prepared(self.model, texts, self.spec.wanted.truncate)

    def _written(self, part: Part, texts: list[Text], collected: Callable[[], list[Explained]]) -> Record:
        rows = table(part.row, texts, collected(), self.spec.wanted.columns)
        return write_part(Path(self.spec.folder), part, rows)

    def close(self) -> None:
        self.explainer.close()
        self.reader.close()


def planned(
    corpus: Corpus,
    wanted: Wanted,
    limit: int | None,
    part_texts: int,
    samples: int | None = None,
    counted: Callable[[int], None] = lambda texts: None,
) -> dict[int, Part]:
    """The parts of a corpus by their numbers: they depend on texts and settings alone, never on how far a job has come.

    limit: of tokens that the model takes. counted: is told how many texts there are, as far as that is known.
    """
    columns = len(wanted.columns)
    many = wanted.query is not None and not wanted.query.lstrip("-").isdecimal()  # all, or a token wherever it stands

    def cells(size: int) -> int:
        tokens = size // BYTES_A_TOKEN + 2
        tokens = tokens if limit is None else min(tokens, limit)
        return columns * tokens * (tokens if many else 1)

    found = {}
    for part in plan(corpus, part_texts, PART_CELLS, cells, samples):
        found[part.number] = part
        counted(part.row + part.count)
    return found


def settings(
    model: Model,
    wanted: Wanted,
    corpus: Corpus,
    device: str,
    gguf_file: str | None,
    part_texts: int,
    samples: int | None,
) -> dict[str, Any]:
    """The first line of the manifest: what has to be the same for a job to go on."""
    asked = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(wanted).items()}
    asked["layers"] = [layer + 1 for layer in wanted.layers]
    return {
        "attnflow": attnflow.__version__,
        "model": model.name,
        "revision": model.revision,
        "gguf_file": gguf_file,
        "class": type(model.model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": device,
        "weights": weights_hash(model),
        "configuration": fingerprint(model),
        "input": corpus.path,
        **{name: getattr(corpus, name) for name in ("text", "id", "pair", "whole_files")},
        **asked,
        "part_texts": part_texts,
        "samples": samples,
    }


def run_here(
    folder: Folder, parts: Mapping[int, Part], spec: Spec, model: Model, shown: Progress, solvers: int | None = None
) -> Record:
    """The job on this machine, with a model that is loaded."""
    worker = Worker(spec, model, solvers)
    try:
        return run(folder, parts, lambda left: worker.do(left, shown.seen), shown)
    finally:
        worker.close()


def run(
    folder: Folder, parts: Mapping[int, Part], does: Callable[[list[Part]], Iterator[Record]], shown: Progress
) -> Record:
    """Has the parts done that are not there yet, and finishes the manifest. does: parts, in any order."""
    left = [part for number, part in parts.items() if number not in folder.done]
    there = folder.done.values()
    shown.start(
        sum(part.count for part in parts.values()),
        sum(record["texts"] for record in there),
        sum(record["tokens"] for record in there),
        sum(sum(record["errors"].values()) for record in there),
    )
    try:
        for record in does(left):
            failed = sum(record["errors"].values())
            if not folder.done and failed == record["texts"]:
                shown.say(
                    f"all {failed:,} texts of the first part failed ({', '.join(record['errors'])}): see its messages"
                )
            folder.add(record)
            shown.failed(failed)
        return folder.finish()
    except InputError as e:
        if not str(e).startswith("cannot write "):
            raise
        raise InputError(
            f"{e}; {len(folder.done)} of {len(parts)} parts are finished and stay valid: make room, and run the same "
            "command with --resume"
        ) from None
