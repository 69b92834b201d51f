"""A model and many texts: sorted by length, run in batches, rolled out where the model is, flows in threads beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attnflow.capture.check import Checked
from attnflow.capture.encode import encode_texts
from attnflow.capture.inputs import Encoded
from attnflow.capture.runner import Batch
from attnflow.corpus.schema import Explained, failed_row, score_columns
from attnflow.errors import InputError
from attnflow.flow import cores
from attnflow.long import LinearTrace, check_linear, trace_linear
from attnflow.model import Model
from attnflow.selection import places_of, select_rows
from attnflow.trace import Trace

PROBE = "the key to the cabinets"
"""What the model is checked on, whatever the first text is: what a job finds must not depend on where it begins."""

WIDE = 128
"""Tokens of a text from which on fewer run together: the matrices of a batch grow with the square of its length."""

WHOLE_BYTES = 1 << 30
"""Of all heads of a layer, of one batch: up to this they are computed at once; short texts are far below."""

CHUNK = 8
"""Texts whose flows one thread solves before it takes others."""

BATCH_TOKENS = 2048
BATCH_TOKENS_GPU = 65536

NOT_FINITE = "the model's attention is not finite on this text: another dtype may help"

Solved = tuple[list[int], list[Explained]]


@dataclass(frozen=True)
class Options:
    """What is computed of every text. layers: from 0. batch_tokens: how many run together, with their padding.

    memory: "graph" makes one matrix a layer, "linear" none, for long texts.
    """

    methods: tuple[str, ...]
    layers: tuple[int, ...]
    query: str | None = None
    residual: float = 0.5
    receptive_field: str | None = None
    words: bool = False
    truncate: bool = False
    batch_tokens: int = BATCH_TOKENS
    memory: str = "graph"

    @property
    def columns(self) -> list[str]:
        return score_columns(self.methods, self.layers)


def checked(model: Model, memory: str = "graph") -> Checked:
    """The self-check; refuses what takes no text, or what the memory is not for."""
    if getattr(model.model, "main_input_name", "input_ids") != "input_ids" or model.tokenizer is None:
        raise InputError(f"{model!r} takes no text: a corpus is of texts, and needs a model with a tokenizer")
    encoded = encode_texts(model, [PROBE], truncate=True)[0]
    if isinstance(encoded, InputError):
        raise encoded
    return check_linear(model, [encoded]) if memory == "linear" else model.verify(encoded)


def layer_count(checks: Checked) -> int:
    return len(checks.stack.decoder or checks.stack.main)


def batches(sizes: Sequence[tuple[int, int]], tokens: int, matrices: bool = True) -> list[list[int]]:
    """Texts (number, tokens) that run together: sorted by length, up to so many tokens with their padding.

    matrices: whether fewer long texts run together, because their matrices grow with the square.

    >>> batches([(0, 5), (1, 2), (2, 4), (3, 2)], 8)
    [[1, 3], [2], [0]]
    """
    groups: list[list[int]] = []
    for i, n in sorted(sizes, key=lambda one: (one[1], one[0])):
        room = min(tokens // n, tokens * WIDE // n**2) if matrices else tokens // n
        if not groups or len(groups[-1]) >= room:
            groups.append([])
        groups[-1].append(i)
    return groups


class Explainer:
    """One model that explains lists of texts. The flows of a batch are solved while the model runs the next ones.

    solvers: threads for the flows.
    """

    def __init__(self, model: Model, options: Options, solvers: int | None = None) -> None:
        self.model = model
        self.options = options
        self.checked = checked(model, options.memory)
        self.linear = options.memory == "linear"
        self.solvers = solvers or cores()
        self.pool = ThreadPoolExecutor(self.solvers, "attnflow-flow")
        stack = self.checked.stack
        self.together = self.checked.padding is not False and not stack.cross
        plain = not options.words and options.receptive_field is None and not self.linear
        self.stacked = self.together and plain

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def explain(
        self, inputs: Sequence[Encoded | Explained], advance: Callable[[int, int], None]
    ) -> Callable[[], list[Explained]]:
        """Runs the model on all of them, and returns a function that waits for the rest of the work.

        advance: takes the number of texts and of tokens of each batch.
        """
        rows: list[Explained | None] = [one if isinstance(one, Explained) else None for one in inputs]
        rest = {i: one for i, one in enumerate(inputs) if isinstance(one, Encoded)}
        sizes = [(i, int(one.tensors["input_ids"].shape[1])) for i, one in rest.items()]
        pending: list[Future[Solved]] = []
        for members in batches(sizes, self.options.batch_tokens if self.together else 1, not self.linear):
            pending += self._batch(members, [rest[i] for i in members])
            advance(len(members), sum(int(rest[i].tensors["input_ids"].shape[1]) for i in members))
            waiting = [f for f in pending if not f.done()]
            if len(waiting) > 4 * self.solvers:  # the graphs of these are held: what is bounded here is memory
                waiting[0].result()

        def collect() -> list[Explained]:
            for future in pending:
                for i, row in zip(*future.result(), strict=True):
                    rows[i] = row
            return [row for row in rows if row is not None]

        return collect

    def _batch(self, members: list[int], encoded: list[Encoded]) -> list[Future[Solved]]:
        """Runs these together; what the model does not take is tried one by one, so that one text harms no other."""
        try:
            if self.linear:
                return [_done(members, self._rows(encoded))]
            batch = self.model.run_batch(encoded, self.checked, whole_bytes=WHOLE_BYTES, measure=False)
            return list(self._traced(members, encoded, batch))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            if len(members) > 1:
                return [future for i, one in zip(members, encoded, strict=True) for future in self._batch([i], [one])]
            return [_done(members, [failed_row(e)])]

    def _rows(self, encoded: list[Encoded]) -> list[Explained]:
        """Texts of a batch without matrices, at once: what is kept of a long text is too much to wait."""
        traces = trace_linear(self.model, encoded, "mean", None, self.options.layers, False)
        rows = []
        for trace, one in zip(traces, encoded, strict=True):
            try:
                query = places_of(self.options.query, one.tokens, trace.default_query)
            except InputError as e:
                rows.append(failed_row(e, "query"))
                continue
            chosen = replace(trace, rows=tuple(select_rows(query, len(one.tokens))))
            rows.append(_explained_linear(chosen, one, self.options))
        return rows

    def _provenance(self, batch: Batch) -> dict[str, Any]:
        record = {**batch.provenance(), "residual": self.options.residual}
        if self.options.receptive_field is not None:
            record["receptive_field"] = self.options.receptive_field
        return record

    def _solved(self, members: list[int], scored: Callable[[int], Explained], each: int) -> Iterator[Future[Solved]]:
        for start in range(0, len(members), each):
            some = range(start, min(start + each, len(members)))

            def row(i: int) -> Explained:
                try:
                    return scored(i)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as e:
                    return failed_row(e)

            def work(some: Iterable[int] = some) -> Solved:
                return [members[i] for i in some], [row(i) for i in some]

            yield self.pool.submit(work)

    def _traced(self, members: list[int], encoded: list[Encoded], batch: Batch) -> Iterator[Future[Solved]]:
        """Text by text, by way of traces: words, receptive fields, encoder-decoders."""
        options = self.options
        provenance = self._provenance(batch)
        traces = [Trace.of(batch.passed(number, provenance=provenance)) for number in range(len(encoded))]

        def scored(number: int) -> Explained:
            one, trace = encoded[number], traces[number]
            if not all(bool(step.weights.isfinite().all()) for step in trace.steps):
                return failed_row(InputError(NOT_FINITE))
            try:
                return _explained(trace.words() if options.words else trace, one, options)
            except InputError as e:
                return failed_row(e, "query")

        yield from self._solved(members, scored, CHUNK)


def _done(members: list[int], rows: list[Explained]) -> Future[Solved]:
    """What is solved already."""
    future: Future[Solved] = Future()
    future.set_result((members, rows))
    return future


def _explained_linear(trace: LinearTrace, encoded: Encoded, options: Options) -> Explained:
    results = {}
    if "raw" in options.methods:
        results["raw"] = trace.raw()
    if "rollout" in options.methods:
        results["rollout"] = trace.rollout(options.residual, options.receptive_field)
    if not all(np.isfinite(result.values).all() for result in results.values()):
        return failed_row(InputError(NOT_FINITE))
    scores: dict[str, Any] = {}
    for method, result in results.items():
        scores |= zip(score_columns([method], options.layers), result.values, strict=True)
    more = {"residual": options.residual} | (
        {} if options.receptive_field is None else {"receptive_field": options.receptive_field}
    )
    return Explained(
        trace.tokens, encoded.tensors["input_ids"][0].tolist(), trace.special, trace.word_ids, trace.word_texts, None,
        encoded.cut is not None, list(trace.queries), trace.prediction, scores,
        provenance=json.dumps({**trace.provenance, **more}),
    )  # fmt: skip


def _explained(trace: Trace, encoded: Encoded, options: Options) -> Explained:
    query = places_of(options.query, trace.tokens[trace.first_query :], trace.default_query)
    scores: dict[str, Any] = {}
    for method in options.methods:
        more: dict[str, Any] = {"residual": options.residual, "receptive_field": options.receptive_field}
        result = getattr(trace, method)(query, options.layers, **({} if method == "raw" else more))
        scores |= zip(score_columns([method], options.layers), result.values, strict=True)
    ids = [int(i) for name in ("input_ids", "decoder_input_ids") for i in encoded.tensors.get(name, _NONE)[0].tolist()]
    return Explained(
        trace.tokens, None if options.words else ids, trace.special, trace.word_ids, trace.word_texts, trace.parts or None,
        encoded.cut is not None, query, trace.prediction, scores,
        provenance=json.dumps(trace.provenance),
    )  # fmt: skip


_NONE = torch.empty(1, 0, dtype=torch.int64)
