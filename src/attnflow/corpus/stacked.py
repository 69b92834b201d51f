"""Explaining the texts of a sheet in padded batches: everything is computed for a whole batch, on the model's device.

No step runs once per text. On a GPU the model takes 30 µs for a short text, less than Python takes to look at it.
Results are copied to memory while the next batch runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow._arrays import to_numpy
from attnflow.capture.assemble import natural_query
from attnflow.capture.check import Checked
from attnflow.capture.encode import encode_texts
from attnflow.capture.predict import NOT_FINITE, Likeliest, answer_name, best_of, likeliest
from attnflow.corpus.batch_parts import Copies, Layout, Part, finite_texts, write_part
from attnflow.corpus.corpus_options import Options
from attnflow.corpus.explainer import PROBE, batches
from attnflow.corpus.schema import Explained, failed_row, score_columns
from attnflow.corpus.text_arrays import Ints, Predictions, Scored, Sheet
from attnflow.corpus.text_methods import WHOLE_BYTES, recipe_of
from attnflow.edges import normalization_of
from attnflow.edges.batched import Answers, NotFinite, TextBatch, edges_of, split
from attnflow.errors import InputError
from attnflow.flow import flow
from attnflow.flow_batches import batch_flows
from attnflow.graph import with_residual
from attnflow.importance.question import answer_text
from attnflow.model import Model
from attnflow.rollout import roll_rows, rollout
from attnflow.source_methods import INPUTS, METHOD

WAITING = 4
"""How many batches may wait for their results; this bounds memory."""


Pending = Callable[[], Part]
T = TypeVar("T")


class Stacked:
    """Explains sheets with one model, a batch at a time. solvers: threads for the flows."""

    def __init__(self, model: Model, options: Options, checked: Checked, solvers: int) -> None:
        self.model, self.options, self.checked, self.solvers = model, options, checked, solvers
        self.pool = ThreadPoolExecutor(1, "attnflow-flow")  # one thread: each call uses all solvers
        self.natural = self._is_natural()

    def _is_natural(self) -> bool:
        """Return whether texts have a position that is explained by default."""
        probe = encode_texts(self.model, [PROBE], truncate=True)[0]
        return not isinstance(probe, InputError) and natural_query(self.checked, probe.special) is not None

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def explain(self, sheet: Sheet, advance: Callable[[int, int], None]) -> Callable[[], Scored]:
        """Run the model on all texts; return a function that waits for the remaining work and returns the scores.

        advance: called with the number of texts and of tokens of each batch.
        """
        layout = Layout.of(sheet)
        pending: list[Future[list[Part]]] = []
        failures: dict[int, Explained] = {}
        for members in batches(list(enumerate(sheet.lengths.tolist())), self.options.batch_tokens):
            places = np.array(members, np.int64)
            pending.append(self._begun(places, layout, failures))
            advance(len(members), int(sheet.lengths[places].sum()))
            if len(pending) > WAITING:
                pending[-WAITING - 1].result()

        def collect() -> Scored:
            return self._scored(layout, [part for future in pending for part in future.result()], failures)

        return collect

    def _begun(self, members: Ints, layout: Layout, failures: dict[int, Explained]) -> Future[list[Part]]:
        """Start a batch, which is finished while others run."""
        work = _attempt(lambda: self._run(members, layout))

        def finished() -> list[Part]:
            part = work if isinstance(work, BaseException) else _attempt(work)
            return self._apart(members, layout, failures, part) if isinstance(part, BaseException) else [part]

        return self.pool.submit(finished)

    def _apart(
        self, members: Ints, layout: Layout, failures: dict[int, Explained], reason: BaseException
    ) -> list[Part]:
        """Retry a failed batch in halves: one text must not affect others, and fewer texts may fit into memory."""
        if len(members) == 1:
            failures[int(members[0])] = failed_row(reason)
            return []
        parts: list[Part] = []
        for half in np.array_split(members, 2):
            part = _attempt(partial(self._explained, half, layout))
            parts += self._apart(half, layout, failures, part) if isinstance(part, BaseException) else [part]
        return parts

    def _explained(self, members: Ints, layout: Layout) -> Part:
        return self._run(members, layout)()

    def _run(self, members: Ints, layout: Layout) -> Pending:
        """Run the model on a batch; return a function that waits for its results."""
        tensors = self._padded(members, layout)
        lengths = layout.sheet.lengths[members].tolist()
        if self.options.is_by_text:
            return self._by_edges(members, layout, TextBatch(self.model, self.checked, self._placed(tensors), lengths))
        batch = self.model.run_tensors(
            self._placed(tensors), lengths, self.checked, whole_bytes=WHOLE_BYTES, measure=False
        )
        logits = batch.out.get("logits") if hasattr(batch.out, "get") else None
        answers = None
        if isinstance(logits, Tensor):
            answers = likeliest(self.model, logits.detach(), tensors["input_ids"], lengths, lengths)
        means = [batch.calls[i].mean for i in self.checked.stack.main[: self.options.layers[-1] + 1]]
        weights = [mean for mean in means if mean is not None]  # one per layer, [text, query, key]
        graphs = [with_residual(w, self.options.residual) for w in weights] if self._follows else []
        return self._followed(members, layout, weights, graphs, answers, batch.provenance())

    @property
    def _follows(self) -> bool:
        """Whether rows are followed down the graph; raw attention is not."""
        return set(self.options.methods) - {"raw"} != set()

    def _by_edges(self, members: Ints, layout: Layout, batch: TextBatch) -> Pending:
        """Run a batch with edges about the answers of the texts."""
        options, edges = self.options, self.options.edges
        try:
            if options.layered:
                assert edges is not None
                graph = edges_of(batch, edges, options.of or "logit")
                assert graph.answers is not None
                weights = list(graph.graph(options.normalize))[: options.layers[-1] + 1]
                graphs = weights if graph.whole else [with_residual(w, options.residual) for w in weights]
                return self._followed(members, layout, weights, graphs, self._best(graph.answers), self._record(edges))
            return self._added_up(members, layout, batch)
        except NotFinite:
            raise InputError(NOT_FINITE) from None

    def _added_up(self, members: Ints, layout: Layout, batch: TextBatch) -> Pending:
        """Add up over all layers what answer edges carry to the answer."""
        methods = self.options.methods
        natural = layout.sheet.queries[layout.query_starts[members]].tolist() if self.natural else None
        parts = split(batch, natural=natural)
        answers = parts.answers
        values: dict[str, Tensor] = {}  # one per method, [text, input]
        if METHOD in methods:
            values[METHOD] = parts.answer_rows()
        if INPUTS in methods:
            values[INPUTS] = parts.answer_inputs(signed="shares")
        stack = torch.stack([values[method].float()[:, None] for method in methods])  # [method, text, 1, input]
        places = answers.places
        copies = Copies([stack, *([] if places is None else [places])], self._best(answers))
        record = json.dumps({**self._record("answer"), **recipe_of(self.options)})

        def part() -> Part:
            (scores, *more), best = copies.arrays()
            own = dict(zip(methods, scores, strict=True))
            return Part(members, own, False, best, record, more[0].astype(np.int64) if more else None)

        return part

    def _best(self, answers: Answers) -> Likeliest:
        return best_of(self.model, answers.kind, answers.logits.detach())

    def _record(self, edges: str) -> dict[str, Any]:
        """Return the provenance that a trace with these edges has."""
        record = self.model.provenance(self.checked, "whole", "mean", "keep")
        record.pop("missing", None)
        return {**record, "edges": edges, "edges_normalized": normalization_of(edges, self.options.normalize)}

    def _followed(
        self,
        members: Ints,
        layout: Layout,
        weights: list[Tensor],
        graphs: list[Tensor],
        answers: Likeliest | None,
        provenance: Mapping[str, Any],
    ) -> Pending:
        """Return raw attention, rollout and flow for one row of each text, or for several.

        weights: one per layer, [text, query, key].
        graphs: the same with the residual connection.
        """
        options, sheet = self.options, layout.sheet
        lengths = sheet.lengths[members]
        several = bool((sheet.query_counts[members] != 1).any())
        places = sheet.queries[layout.query_starts[members]] if not several else None
        at = None if places is None else self._placed({"at": torch.from_numpy(places)})["at"]
        values: dict[str, list[Tensor]] = {}  # one per layer, [text, query, input]
        if "raw" in options.methods:
            values["raw"] = [_rows(weights[l], at) for l in options.layers]
        if "rollout" in options.methods:
            values["rollout"] = _rolled([g.double() for g in graphs], options.layers, at)
        columns = score_columns(list(values), options.layers)
        stack = [x.float() for layers in values.values() for x in layers]
        copies = Copies([torch.stack(stack)] if stack else [], answers)
        record = json.dumps({**provenance, **recipe_of(options)})
        flows = "flow" in options.methods

        def part() -> Part:
            arrays, best = copies.arrays()
            own = dict(zip(columns, arrays[0], strict=True)) if arrays else {}
            if flows:
                names = score_columns(["flow"], options.layers)
                own |= dict(zip(names, self._flows(graphs, lengths, members, layout, places), strict=True))
            return Part(members, own, several, best, record)

        return part

    def _padded(self, members: Ints, layout: Layout) -> dict[str, Tensor]:
        """Return the texts as one batch with its attention mask, padded on the right."""
        lengths = layout.sheet.lengths[members]
        steps = np.arange(int(lengths.max()))
        inside = steps < lengths[:, None]
        index = np.where(inside, layout.starts[members][:, None] + steps, 0)
        fill = {"input_ids": self.model.pad_id()}
        tensors = {
            name: torch.from_numpy(np.where(inside, x[index], fill.get(name, 0)))
            for name, x in layout.sheet.tensors.items()
        }
        return {**tensors, "attention_mask": torch.from_numpy(inside.astype(np.int64))}

    def _placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        device = self.model.device
        if device.type != "cuda":
            return {name: x.to(device) for name, x in tensors.items()}
        return {name: x.pin_memory().to(device, non_blocking=True) for name, x in tensors.items()}

    def _flows(
        self, graphs: list[Tensor], lengths: Ints, members: Ints, layout: Layout, places: Ints | None
    ) -> list[NDArray[np.float64]]:
        """Return the flows of each layer, [text, query, input]."""
        layers = self.options.layers
        if places is not None:
            solved, _ = batch_flows(graphs, lengths.tolist(), places.tolist(), layers, self.solvers)
            return [solved[:, i, None] for i in range(len(layers))]
        n = int(lengths.max())
        values = np.full((len(layers), len(members), n, n), np.nan)
        capacities = [to_numpy(g) for g in graphs]
        for number, (text, length) in enumerate(zip(members.tolist(), lengths.tolist(), strict=True)):
            rows = layout.queries(text)
            graph = [g[number, :length, :length] for g in capacities]
            if all(np.isfinite(g).all() for g in graph):
                solved = flow(graph, queries=rows, layers=layers, threads=self.solvers)
                values[:, number, rows, :length] = solved
        return list(values)

    def _scored(self, layout: Layout, parts: Sequence[Part], failures: Mapping[int, Explained]) -> Scored:
        """Put the parts together, in the order of the sheet."""
        sheet = layout.sheet
        failed = dict(failures)
        for part in parts:
            for place in part.members[~finite_texts(part, sheet, layout)].tolist():
                failed[place] = failed_row(InputError(NOT_FINITE))
        cells = sheet.lengths * sheet.query_counts
        cells[list(failed)] = 0
        starts = np.cumsum(cells) - cells
        values = {name: np.zeros(int(cells.sum()), np.float32) for name in self.options.columns}
        for part in parts:
            write_part(part, layout, starts, cells, values)
        record_of = np.zeros(len(cells), np.int64)
        records = list(dict.fromkeys(part.record for part in parts))
        for part in parts:
            record_of[part.members] = records.index(part.record)
        places = None
        if any(part.places is not None for part in parts):
            places = np.zeros(len(cells), np.int64)
            for part in parts:
                places[part.members] = 0 if part.places is None else part.places
        return Scored(values, self._predictions(parts, len(cells)), records, record_of, places, failed)

    def _predictions(self, parts: Sequence[Part], size: int) -> Predictions | None:
        answers = [(part.members, *part.likeliest) for part in parts if part.likeliest is not None]
        if not answers:
            return None
        kind, width = answers[0][1], answers[0][2].shape[1]
        numbers, chances = np.zeros((size, width), np.int64), np.zeros((size, width))
        answered = np.zeros(size, bool)
        for members, _, best, chance, present in answers:
            numbers[members], chances[members], answered[members] = best, chance, present
        names = {i: answer_name(self.model, kind, i) for i in np.unique(numbers[answered]).tolist()}
        about = None
        if self.options.has_answers:
            about = {i: answer_text(self.model, kind, [i]) for i in np.unique(numbers[answered, 0]).tolist()}
        return Predictions(kind, numbers, chances, answered, names, about)


def _attempt(work: Callable[[], T]) -> T | BaseException:
    """Return the result, or the exception without its traceback, whose frames would keep the batch in memory."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        return e.with_traceback(None)


def _rows(matrices: Tensor, at: Tensor | None) -> Tensor:
    """Return the row of each text at its own position, or all rows, [text, query, input]."""
    return matrices if at is None else matrices[torch.arange(len(at), device=at.device), at][:, None]


def _rolled(graphs: list[Tensor], layers: Sequence[int], at: Tensor | None) -> list[Tensor]:
    """Return the rollout at each layer for the row of each text at its own position, or for all rows."""
    if at is None:
        rolled = rollout(graphs, layers=layers)  # [text, layer, query, input]
        assert isinstance(rolled, Tensor)
        return [rolled[:, i] for i in range(len(layers))]
    rows = torch.arange(len(at), device=at.device), at
    down = roll_rows(graphs, dict.fromkeys(layers, rows))
    return [down[l] for l in layers]
