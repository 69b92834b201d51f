"""One worker of a job, local or on a cluster. Reading, running, solving and writing of shards overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import attnflow
from attnflow.capture.encode import encode_texts
from attnflow.corpus.clerk import Clerk, Inputs, Tokenizing, hire, prepared, unreadable
from attnflow.corpus.explainer import Explainer, Options
from attnflow.corpus.plan import Shard
from attnflow.corpus.row_inputs import prompt_input, with_answers
from attnflow.corpus.schema import Explained
from attnflow.corpus.stacked import Stacked
from attnflow.corpus.text_arrays import Scored, Sheet
from attnflow.errors import JobError
from attnflow.jobs.store import Record
from attnflow.jobs.workers import Died
from attnflow.model import Model
from attnflow.texts.sources import Corpus, Text

AHEAD = 2
"""How many shards are started before the oldest is written, if one process does everything."""

Advance = Callable[[int, int], None]
"""Called with the number of texts and of their tokens as soon as the model has run on them."""

Rows = list[Explained] | Scored


@dataclass(frozen=True)
class Spec:
    """Everything a worker needs.

    loading: the arguments of `attnflow.load`.
    name: the model's name in results, wherever it was loaded from.
    clerks: how many processes read, tokenize and write next to the model; 0 for threads.
    """

    loading: Mapping[str, Any]
    name: str
    corpus: Corpus
    options: Options
    folder: str
    clerks: int = 0


@dataclass(frozen=True)
class Desks:
    """Where shards are started and finished. reading, writing: how many at a time."""

    begin: Callable[[Shard], Future[Any]]
    finish: Callable[[Shard, Callable[[], Any]], Future[Record]]
    reading: int
    writing: int


class Worker:
    """Writes the shards of a corpus, one file each, with one model."""

    def __init__(self, spec: Spec, model: Model | None = None, solvers: int | None = None) -> None:
        self.spec, options = spec, spec.options
        self.model = attnflow.load(**spec.loading) if model is None else model
        self.model.name = spec.name
        self.explainer = Explainer(self.model, options, solvers)
        checked = self.explainer.checked
        self.stacked: Stacked | None = None
        tokenizing: Tokenizing | None = None
        if self.explainer.stacked:
            self.stacked = Stacked(self.model, options, checked, self.explainer.solvers)
            tokenizing = Tokenizing(
                self.model.tokenizer,
                self.model.limit(),
                options.truncate,
                self.model.accepts("token_type_ids"),
                checked.causal,
                options.query,
                not options.layered,
            )
        self.new_clerk = partial(Clerk, spec.corpus, spec.folder, options.columns, options.has_answers, tokenizing)
        self.stack = ExitStack()
        self.desks: Desks | None = None  # shared by successive calls of `do`

    def do(self, shards: Iterable[Shard], advance: Advance = lambda texts, tokens: None) -> Iterator[Record]:
        """Yield the records of shards, in order, each as soon as its file is on disk."""
        try:
            self.desks = self.desks or self._desks(self.stack)
            yield from self._through(self.desks, iter(shards), advance)
        except BaseException as e:
            self.desks = None
            self.stack.__exit__(type(e), e, e.__traceback__)
            if isinstance(e, Died):
                whose = f"{self.spec.clerks} processes that read and write next to the model"
                raise JobError(e.sentence(whose, "give fewer processes")) from None
            raise

    def _through(self, desks: Desks, coming: Iterator[Shard], advance: Advance) -> Iterator[Record]:
        begun: deque[tuple[Shard, Future[Any]]] = deque()
        records: deque[Future[Record]] = deque()

        def begin() -> None:
            shard = next(coming, None)
            if shard is not None:
                begun.append((shard, desks.begin(shard)))

        for _ in range(desks.reading):
            begin()
        while begun:
            shard, prepared = begun.popleft()
            texts = prepared.result()
            del prepared
            begin()
            records.append(desks.finish(shard, self._explain(texts, advance)))
            del texts
            while records and (len(records) >= desks.writing or records[0].done()):
                yield records.popleft().result()
        while records:
            yield records.popleft().result()

    def _explain(self, texts: Sheet | Inputs, advance: Advance) -> Callable[[], Rows]:
        if isinstance(texts, Sheet):
            assert self.stacked is not None
            advance(texts.size - len(texts.lengths), 0)
            return self.stacked.explain(texts, advance)
        advance(sum(isinstance(one, Explained) for one in texts), 0)
        return self.explainer.explain(texts, advance)

    def _desks(self, stack: ExitStack) -> Desks:
        """Read and write shards in separate processes if requested and possible, else in threads."""
        if self.spec.clerks and self.stacked is not None:
            clerks = hire(self.new_clerk, self.spec.clerks, stack)
            if clerks is not None:
                return Desks(clerks.sheet, clerks.write, self.spec.clerks, self.spec.clerks + AHEAD)
        clerk = self.new_clerk()
        stack.callback(clerk.close)
        reading, writing = (ThreadPoolExecutor(1, f"attnflow-{name}") for name in ("read", "write"))
        for pool in (reading, writing):
            stack.callback(pool.shutdown, cancel_futures=True)

        def begin(shard: Shard) -> Future[Any]:
            if self.stacked is not None:
                return reading.submit(clerk.sheet, shard)
            return reading.submit(clerk.inputs, shard, partial(inputs_of, self.model, self.spec.options))

        def finish(shard: Shard, collect: Callable[[], Rows]) -> Future[Record]:
            return writing.submit(lambda: clerk.write(shard, collect()))

        return Desks(begin, finish, 1, AHEAD)

    def close(self) -> None:
        self.stack.close()
        self.explainer.close()
        if self.stacked is not None:
            self.stacked.close()


def inputs_of(model: Model, options: Options, texts: Sequence[Text]) -> Inputs:
    """Return the texts as model inputs, with the answers that their rows name; error rows for texts that fail."""
    writing = options.writing
    if writing is None:
        inputs = prepared(texts, partial(encode_texts, model, truncate=options.truncate))
    else:
        inputs = [unreadable(text) or prompt_input(model, text, writing) for text in texts]
    return inputs if options.answer_column is None else with_answers(texts, inputs, options.answer_column)


def on_cluster(spec: Spec, cpus: int) -> Callable[[Iterable[Shard]], Iterator[Record]]:
    """Return the work function of a worker on a cluster that has `cpus` cores."""
    import torch

    from attnflow.capture.silence import silence

    silence()
    torch.set_num_threads(cpus)
    return Worker(spec, solvers=cpus).do
