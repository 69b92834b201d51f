"""One worker of a job, local or on a cluster. Reading, running, solving and writing of shards overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import attnflow
from attnflow.capture.encode import encode_texts
from attnflow.corpus.clerk import Clerk, Inputs, Tokenizing, prepared, unreadable
from attnflow.corpus.explainer import Explainer, Options
from attnflow.corpus.plan import Shard
from attnflow.corpus.row_inputs import prompt_input, with_answers
from attnflow.corpus.schema import Explained
from attnflow.corpus.stacked import Stacked
from attnflow.corpus.text_arrays import Scored, Sheet
from attnflow.jobs.store import Record
from attnflow.model import Model
from attnflow.texts.sources import Corpus, Text

AHEAD = 2
"""How many shards may wait to be written."""

Advance = Callable[[int, int], None]
"""Called with the number of texts and of their tokens as soon as the model has run on them."""

Rows = list[Explained] | Scored


@dataclass(frozen=True)
class Spec:
    """Everything a worker needs.

    loading: the arguments of `attnflow.load`.
    name: the model's name in results, wherever it was loaded from.
    """

    loading: Mapping[str, Any]
    name: str
    corpus: Corpus
    options: Options
    folder: str


class Worker:
    """Writes the shards of a corpus, one file each, with one model.

    One thread reads the next shard while the model runs, and one writes the last.
    """

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
        self.clerk = Clerk(spec.corpus, spec.folder, options.columns, options.has_answers, tokenizing)
        self.reading, self.writing = (ThreadPoolExecutor(1, f"attnflow-{name}") for name in ("read", "write"))

    def do(self, shards: Iterable[Shard], advance: Advance = lambda texts, tokens: None) -> Iterator[Record]:
        """Yield the records of shards, in order, each as soon as its file is on disk."""
        coming = iter(shards)
        begun = self._begun(coming)
        records: deque[Future[Record]] = deque()
        while begun is not None:
            shard, prepared = begun
            texts = prepared.result()
            del prepared
            begun = self._begun(coming)
            records.append(self.writing.submit(self._write, shard, self._explain(texts, advance)))
            del texts
            while records and (len(records) >= AHEAD or records[0].done()):
                yield records.popleft().result()
        while records:
            yield records.popleft().result()

    def _begun(self, coming: Iterator[Shard]) -> tuple[Shard, Future[Sheet | Inputs]] | None:
        """Start to read the next shard, if there is one."""
        shard = next(coming, None)
        return None if shard is None else (shard, self.reading.submit(self._read, shard))

    def _read(self, shard: Shard) -> Sheet | Inputs:
        if self.stacked is not None:
            return self.clerk.sheet(shard)
        return self.clerk.inputs(shard, partial(inputs_of, self.model, self.spec.options))

    def _explain(self, texts: Sheet | Inputs, advance: Advance) -> Callable[[], Rows]:
        if isinstance(texts, Sheet):
            assert self.stacked is not None
            advance(texts.size - len(texts.lengths), 0)
            return self.stacked.explain(texts, advance)
        advance(sum(isinstance(one, Explained) for one in texts), 0)
        return self.explainer.explain(texts, advance)

    def _write(self, shard: Shard, collect: Callable[[], Rows]) -> Record:
        return self.clerk.write(shard, collect())

    def close(self) -> None:
        for pool in (self.writing, self.reading):
            pool.shutdown(cancel_futures=True)
        self.clerk.close()
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
