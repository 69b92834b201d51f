"""Explaining many texts with one model.

Texts are sorted by length and run in batches; rollouts are computed on the model's device, flows in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from attnflow.capture.assemble import natural_query
from attnflow.capture.check import Checked
from attnflow.capture.encode import encode_texts
from attnflow.capture.inputs import Encoded
from attnflow.capture.runner import Batch
from attnflow.corpus.corpus_options import BATCH_TOKENS as BATCH_TOKENS
from attnflow.corpus.corpus_options import BATCH_TOKENS_GPU as BATCH_TOKENS_GPU
from attnflow.corpus.corpus_options import Options as Options
from attnflow.corpus.schema import Explained, failed_row
from attnflow.corpus.text_methods import WHOLE_BYTES, check_finite, explained, followed, recipe_of, row_of
from attnflow.corpus.written_rows import answer_rows
from attnflow.errors import InputError
from attnflow.flow import cores
from attnflow.model import Model
from attnflow.trace import Trace

PROBE = "the key to the cabinets"
"""The model is checked on this text, so that the result does not depend on the first text of a job."""

WIDE = 128
"""From this many tokens on, fewer texts run together: the matrices of a batch grow with the square of its length."""

CHUNK = 8
"""Texts whose flows one thread solves at a time."""

Solved = tuple[list[int], list[Explained]]


def checked(model: Model) -> Checked:
    """Run the self-check; refuse models that take no text."""
    if getattr(model.model, "main_input_name", "input_ids") != "input_ids" or model.tokenizer is None:
        raise InputError(f"{model!r} takes no text: a corpus job needs a model with a tokenizer")
    if model.pooling is not None and (model.pooling.prompt or model.pooling.lowercase):
        raise InputError(
            f"{model!r} changes every text before reading it (it adds a prompt or lowercases), which a corpus job "
            "does not do: trace texts one by one"
        )
    encoded = encode_texts(model, [PROBE], truncate=True)[0]
    if isinstance(encoded, InputError):
        raise encoded
    return model.verify(encoded)


def check_pooled(model: Model, options: Options, checks: Checked) -> None:
    """Check that rows of a job are about single positions: a sentence embedding is pooled from several."""
    if model.pooling is None or options.query is not None or not options.layered:
        return
    encoded = encode_texts(model, [PROBE], truncate=True)[0]
    assert not isinstance(encoded, InputError)
    row = model.pooling.row(len(encoded.tokens))
    if row.several or row.positions != (natural_query(checks, encoded.special),):
        raise InputError(
            f"{model!r} pools its states by {model.pooling.name}, but a corpus job explains single positions: give "
            "query, such as '[CLS]', '-1' or 'all'; trace(text) explains the sentence embedding, one text at a time"
        )


def layer_count(checks: Checked) -> int:
    return len(checks.stack.decoder or checks.stack.main)


def batches(sizes: Sequence[tuple[int, int]], tokens: int) -> list[list[int]]:
    """Group texts (number, tokens) into batches: sorted by length, with at most `tokens` tokens including padding.

    Long texts come in smaller batches, because their matrices grow with the square.

    >>> batches([(0, 5), (1, 2), (2, 4), (3, 2)], 8)
    [[1, 3], [2], [0]]
    """
    groups: list[list[int]] = []
    for i, n in sorted(sizes, key=lambda one: (one[1], one[0])):
        room = min(tokens // n, tokens * WIDE // n**2)
        if not groups or len(groups[-1]) >= room:
            groups.append([])
        groups[-1].append(i)
    return groups


def at_once(checks: Checked, options: Options) -> bool:
    """Return whether a batch of texts is explained at once: there is one stack of layers, and padding changes nothing."""
    return checks.padding is not False and not checks.stack.cross and options.is_together


class Explainer:
    """Explains lists of texts with one model. The flows of a batch are solved while the model runs the next ones.

    solvers: threads for the flows.
    """

    def __init__(self, model: Model, options: Options, solvers: int | None = None) -> None:
        self.model = model
        self.options = options
        self.checked = checked(model)
        self.solvers = solvers or cores()
        self.pool = ThreadPoolExecutor(self.solvers, "attnflow-flow")
        stack = self.checked.stack
        self.together = self.checked.padding is not False and not stack.cross
        self.stacked = at_once(self.checked, options)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def explain(
        self, inputs: Sequence[Encoded | Explained], advance: Callable[[int, int], None]
    ) -> Callable[[], list[Explained]]:
        """Run the model on all inputs; return a function that waits for the remaining work and returns the rows.

        advance: called with the number of texts and of tokens of each batch.
        """
        rows: list[Explained | None] = [one if isinstance(one, Explained) else None for one in inputs]
        rest = {i: one for i, one in enumerate(inputs) if isinstance(one, Encoded)}
        sizes = [(i, int(one.tensors["input_ids"].shape[1])) for i, one in rest.items()]
        pending: list[Future[Solved]] = []
        one_by_one = not self.together or self.options.is_by_text  # progress then counts each text as it is done
        for members in batches(sizes, 1 if one_by_one else self.options.batch_tokens):
            pending += self._batch(members, [rest[i] for i in members])
            advance(len(members), sum(int(rest[i].tensors["input_ids"].shape[1]) for i in members))
            waiting = [f for f in pending if not f.done()]
            if len(waiting) > 4 * self.solvers:  # the graphs of waiting texts are in memory
                waiting[0].result()

        def collect() -> list[Explained]:
            for future in pending:
                for i, row in zip(*future.result(), strict=True):
                    rows[i] = row
            return [row for row in rows if row is not None]

        return collect

    def _batch(self, members: list[int], encoded: list[Encoded]) -> list[Future[Solved]]:
        """Run these texts together; if the model fails, run them one by one to isolate the failure."""
        try:
            if self.options.writing is not None:
                return [_done(members, answer_rows(self.model, self.options, self.options.writing, encoded))]
            if self.options.is_by_text:
                return [_done(members, explained(self.model, self.checked, self.options, encoded))]
            batch = self.model.run_batch(encoded, self.checked, whole_bytes=WHOLE_BYTES, measure=False)
            return list(self._traced(members, encoded, batch))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            if len(members) > 1:
                return [future for i, one in zip(members, encoded, strict=True) for future in self._batch([i], [one])]
            return [_done(members, [failed_row(e)])]

    def _traced(self, members: list[int], encoded: list[Encoded], batch: Batch) -> Iterator[Future[Solved]]:
        """Explain texts one by one through traces: for words and encoder-decoders."""
        options = self.options
        provenance = {**batch.provenance(), **recipe_of(options)}
        traces = [Trace.of(batch.passed(number, provenance=provenance)) for number in range(len(encoded))]

        def row(number: int) -> Explained:
            try:
                check_finite(traces[number])
                trace = traces[number].words() if options.words else traces[number]
                return row_of(trace, encoded[number], options, *followed(trace, options))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as e:
                return failed_row(e)

        def work(some: range) -> Solved:
            return [members[i] for i in some], [row(i) for i in some]

        for start in range(0, len(members), CHUNK):
            yield self.pool.submit(work, range(start, min(start + CHUNK, len(members))))


def _done(members: list[int], rows: list[Explained]) -> Future[Solved]:
    """Return a future that is already done."""
    future: Future[Solved] = Future()
    future.set_result((members, rows))
    return future
