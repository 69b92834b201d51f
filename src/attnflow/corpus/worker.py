"""What one worker does, here or on a cluster. Reading, running, solving and writing of shards overlap."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnflow
from attnflow.capture.inputs import Encoded
from attnflow.corpus.explainer import Explainer, Options, inputs_of
from attnflow.corpus.plan import Reader, Shard
from attnflow.corpus.schema import Explained, table
from attnflow.jobs.store import Record, write_shard
from attnflow.model import Model
from attnflow.texts.sources import Corpus, Text

AHEAD = 2
"""Shards that are begun before the oldest is written."""

Advance = Callable[[int, int], None]
"""Takes the number of texts and of their tokens, as soon as the model has run on them."""


@dataclass(frozen=True)
class Spec:
    """All that a worker needs.

    loading: the arguments of `attnflow.load`. name: how results name the model, wherever it was loaded from.
    """

    loading: Mapping[str, Any]
    name: str
    corpus: Corpus
    options: Options
    folder: str


class Worker:
    """Makes the shards of a corpus, each in its file, with one model."""

    def __init__(self, spec: Spec, model: Model | None = None, solvers: int | None = None) -> None:
        self.spec = spec
        self.model = attnflow.load(**spec.loading) if model is None else model
        self.model.name = spec.name
        self.explainer = Explainer(self.model, spec.options, solvers)
        self.reader = Reader(spec.corpus)

    def do(self, shards: Iterable[Shard], advance: Advance = lambda texts, tokens: None) -> Iterator[Record]:
        """The records of shards, in order, each when its file is on the disk."""
        with ExitStack() as stack:
            reading, writing = (ThreadPoolExecutor(1, f"attnflow-{name}") for name in ("read", "write"))
            for pool in (reading, writing):
                stack.callback(pool.shutdown, cancel_futures=True)
            records: deque[Future[Record]] = deque()
            coming = iter(shards)
            ahead = deque(reading.submit(self._prepared, shard) for _, shard in zip(range(1), coming, strict=False))
            while ahead:
                shard, texts, inputs = ahead.popleft().result()
                ahead.extend(reading.submit(self._prepared, shard) for _, shard in zip(range(1), coming, strict=False))
                advance(sum(isinstance(one, Explained) for one in inputs), 0)
                collect = self.explainer.explain(inputs, advance)
                records.append(writing.submit(self._written, shard, texts, collect))
                del texts, inputs, collect
                while records and (len(records) >= AHEAD or records[0].done()):
                    yield records.popleft().result()
            while records:
                yield records.popleft().result()

    def _prepared(self, shard: Shard) -> tuple[Shard, list[Text], list[Encoded | Explained]]:
        texts = self.reader.texts(shard)
        return shard, texts, inputs_of(self.model, texts, self.spec.options)

    def _written(self, shard: Shard, texts: list[Text], collect: Callable[[], list[Explained]]) -> Record:
        rows, options = collect(), self.spec.options
        content = table(shard.row, texts, rows, options.columns, options.has_answers)
        file = write_shard(Path(self.spec.folder) / shard.file, content)
        return {
            "part": shard.number,
            "row": shard.row,
            "texts": shard.count,
            "tokens": sum(len(row.tokens) for row in rows if row.tokens is not None),
            "errors": dict(sorted(Counter(row.error for row in rows if row.error is not None).items())),
            "digest": shard.digest,
            **file,
        }

    def close(self) -> None:
        self.explainer.close()
        self.reader.close()


def on_cluster(spec: Spec, cpus: int) -> Callable[[Iterable[Shard]], Iterator[Record]]:
    """The work of a worker of a cluster, which has so many cores."""
    import torch

    from attnflow.capture.silence import silence

    silence()
    torch.set_num_threads(cpus)
    return Worker(spec, solvers=cpus).do
