"""Long contexts: traces that keep only queries and keys, and explain a few positions by products Pᵀ·r."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow._arrays import positions
from attnflow.capture.assemble import natural_query
from attnflow.capture.check import Checked, half
from attnflow.capture.inputs import Encoded
from attnflow.capture.linear import Operands, pass_down, reach_of, row_sums, step
from attnflow.capture.operands import PLAIN, VALUED, Descend, run_kept
from attnflow.capture.passes import Prediction
from attnflow.capture.runner import Batch, Runner
from attnflow.capture.verify import kind_of, probe
from attnflow.edges import BY_LAYERS, Explained, edges_of, explained, normalization_of
from attnflow.edges.weights import Signed, answer_values, evidence_sums, values_named
from attnflow.errors import InputError, ModelError
from attnflow.graph import check_residual
from attnflow.reliability import (
    Labels,
    Notes,
    of_rows,
    row_notes,
)
from attnflow.result import TokenAttention
from attnflow.rollout import roll_down
from attnflow.selection import Queries, Query, Row, select_layers, select_positions, select_rows
from attnflow.sinks import SHORT
from attnflow.source_methods import INPUTS, trace_method
from attnflow.trace_results import query_weights

LINEAR = (PLAIN, *VALUED, *BY_LAYERS)
"""Edges that need no matrix."""


@dataclass(frozen=True, eq=False)
class LinearTrace:
    """A forward pass without its matrices: memory grows with the length, not with its square.

    `raw` and `rollout` explain the positions and layers given to `Model.trace`; flow needs the matrices.

    rows: the positions, one by one or several with weights.
    edges: what an edge weighs; None for plain attention.
    normalized: "rows", "graph" or "none".
    descend: goes through what is kept of the layers, from the top down.
    explained: for edges by gradients, the answer that they are about.
    """

    tokens: tuple[str, ...] = field(repr=False)
    special: tuple[bool, ...] = field(repr=False)
    word_ids: tuple[int | None, ...] = field(repr=False)
    word_texts: tuple[str, ...] = field(repr=False)
    text: str = field(repr=False)
    descend: Descend = field(repr=False)
    device: torch.device
    dtype: torch.dtype
    rows: tuple[Row, ...] = field(repr=False)
    layers: tuple[int, ...]
    depth: int
    provenance: Mapping[str, Any] = field(repr=False)
    prediction: Prediction | None = None
    default_query: int | None = None
    edges: str | None = None
    normalized: str = "none"
    lengths: tuple[Tensor | None, ...] = field(default=(), repr=False)
    explained: Explained | None = field(default=None, repr=False)

    def __reduce__(self) -> str:
        raise TypeError(
            "a linear trace refers to a model's tensors and cannot be pickled: save its results instead, such as "
            "trace.rollout()"
        )

    def __copy__(self) -> LinearTrace:
        return self  # immutable

    def __deepcopy__(self, memo: Any) -> LinearTrace:
        return self

    @property
    def queries(self) -> tuple[int, ...]:
        """The numbers of the rows in results: their positions; rows of several positions have numbers past the text."""
        past = iter(range(len(self.tokens), len(self.tokens) + len(self.rows)))
        return tuple(next(past) if row.several else row.positions[0] for row in self.rows)

    def raw(self) -> TokenAttention:
        """Return the attention of the chosen positions at the chosen layers."""
        rows = {o.number: self._edges(o, self._start())[0] for o in self._down() if o.number in self.layers}
        values = torch.stack([rows[l] for l in self.layers])
        return self._result("raw", values, self._reliability("raw", values[-1]))

    def rollout(self, residual: float = 0.5) -> TokenAttention:
        """Return attention rollout of the chosen positions, from each chosen layer down to the input.

        ``r(l-1) = (1 - residual) · mean_h P_h(l)ᵀ·r(l) + residual · r(l)``, from the one-hot row of the query down. With
        edges, their rows replace the mean of P, and nothing is added if they contain the residual connection.
        residual: the weight of the residual connection.
        """
        check_residual(residual)
        values = self._rolled(residual)
        return self._result("rollout", values, {"residual": residual, **self._reliability("rollout", values[-1])})

    def answer_rows(self, query: Query = None, signed: Signed = False) -> TokenAttention:
        """Return what the position that answers reads from each input, at all layers: ``T[k] = Σ_l Σ_q E(l)[q, k]``.

        `attnflow.Trace.answer_rows` defines it and its arguments. Needs ``trace(..., memory="linear", edges="answer")``.
        """
        explained = self._answer_edges("answer rows")
        place = explained.place if query is None else query
        rows = select_positions(place, self.tokens, self.default_query)
        if not rows:
            raise InputError("query is an empty list: expected at least one position")
        start = torch.zeros(1, 1, len(self.tokens), dtype=self.dtype)
        start[0, 0, rows] = 1
        parts, own = torch.zeros(len(self.tokens), dtype=torch.float64, device=self.device), None
        for o in self.descend():
            parts += pass_down(o.scores, start.to(self.device), o.weighing)[0, 0]
            own = o.holds
            del o
        if explained.causal and own is not None:
            parts[rows] = own[0, rows].to(parts)  # what a position reads from itself stays there
        return self._answer_parts("answer_rows", parts, rows, signed)

    def answer_inputs(self, signed: Signed = False) -> TokenAttention:
        """Return what the answer owes to each input, all the way down: ``T[k] = x0[k]·∂y/∂x0[k]``.

        `attnflow.Trace.answer_inputs` defines it. Needs ``trace(..., memory="linear", edges="answer")``.
        """
        explained = self._answer_edges("answer inputs")
        own = None
        for o in self.descend():
            own = o.holds
            del o
        assert own is not None  # answer edges have it
        rows = select_positions(explained.place, self.tokens, self.default_query) or [0]
        return self._answer_parts("answer_inputs", own[0].double().clone(), rows, signed)

    def sources(self) -> TokenAttention:
        """Return what the answer rests on, by the method that was measured to be best for this kind of model.

        `attnflow.Trace.sources` defines it. Needs ``trace(..., memory="linear", edges="answer")``.
        """
        inputs = trace_method(self._answer_edges("sources").about.get("kind")) == INPUTS
        return self.answer_inputs(signed="shares") if inputs else self.answer_rows()

    def _answer_edges(self, what: str) -> Explained:
        if self.explained is None or self.edges != "answer":
            raise InputError(f'{what} need answer edges: trace with memory="linear", edges="answer"')
        return self.explained

    def _answer_parts(self, method: str, parts: Tensor, rows: Sequence[int], signed: Signed) -> TokenAttention:
        """Return parts [input] of the answer's log-odds, signed or as shares, with their notes."""
        assert self.explained is not None
        evidence = self.explained.descent.conserved
        assert evidence is not None  # a complete descent has checked it
        causal = self.explained.causal
        about = evidence_sums(method, parts, evidence.y, evidence.constants, evidence.gap, causal)
        parts, said = answer_values(parts, causal, evidence.gap, self.provenance, signed)
        options = {
            **self._reliability(method, parts[None], rows[:1], said),
            **values_named(signed, self.provenance),
            "evidence": about,
        }
        labels = (rows[0],), (self.tokens[rows[0]],)
        return self._labelled(method, parts[None, None], (self.depth - 1,), *labels, options)

    def flow(self, *_: Any, **__: Any) -> TokenAttention:
        """Raise InputError: flow needs the matrices, which a linear trace does not keep."""
        raise InputError(
            'flow needs one matrix per layer, which memory="linear" never makes: trace with memory="graph"'
        )

    @property
    def _whole(self) -> bool:
        """Whether the edges contain the residual connection."""
        return self.edges is not None and edges_of(self.edges).whole

    @cached_property
    def _largest(self) -> Tensor:
        """The largest sum of any row of any layer, by which normalize="graph" divides."""
        sums = [row_sums(o.scores, o.weighing, o.own).to(self.device).max() for o in self.descend()]
        largest = torch.stack(sums).max()
        return torch.where(largest == 0, 1, largest)

    def _down(self) -> Iterator[Operands]:
        """Yield the layers from the highest chosen one down."""
        return (o for o in self.descend() if o.number <= max(self.layers))

    def _edges(self, o: Operands, rows: Tensor, reach: int | None = None) -> Tensor:
        """Return ``r·E`` of each row r, with E as in the graph: normalised, with the residual connection if it is whole."""
        if self.edges == "answer":  # rows are shares in any normalisation
            own = self._residual(o)
            return pass_down(o.scores, rows, o.weighing, own, normalized=True, clipped=True, reach=reach)
        by_rows = self.normalized == "rows"
        if self.edges in (None, PLAIN) and not (by_rows and o.scores.sinks is not None):
            down = step(o.scores, rows, reach)  # rows of attention already sum to one
        else:
            down = pass_down(o.scores, rows, o.weighing, o.own, normalized=by_rows, reach=reach)
        return down / self._largest.to(down) if self.normalized == "graph" else down

    def _residual(self, o: Operands) -> Tensor:
        """Return what the residual connection carries for answer edges: what the state below holds and no edge reads."""
        assert o.holds is not None
        every = torch.ones(1, 1, len(self.tokens), device=self.device, dtype=self.dtype)
        carried = pass_down(o.scores, every, o.weighing)[0, 0]
        return (o.holds.to(self.device, self.dtype) - carried).clamp(min=0)

    def _rolled(self, residual: float) -> Tensor:
        """Return [layer, query, input]. All rows go down together, which costs less than one at a time."""
        down = self._down()
        reach: int | None = None  # rows that are positive at many queries stay so in all layers below

        def through(l: int, state: Tensor | None) -> Tensor:
            nonlocal reach
            operands = next(down)
            assert operands.number == l
            rows = [x for x in (state, self._start() if l in self.layers else None) if x is not None]
            both = torch.cat(rows, dim=1)
            covered = reach = reach_of(both) if reach is None else reach
            if covered is not None:
                reach = max(covered, operands.scores.visible(covered))
            if self._whole:
                return self._edges(operands, both, covered)
            return (1 - residual) * self._edges(operands, both, covered) + residual * both

        rolled = roll_down(self.layers, 0, through)
        return torch.stack([rolled[l][0] for l in self.layers])

    def _reliability(
        self, method: str, values: Tensor, places: Sequence[int] | None = None, more: Notes | None = None
    ) -> dict[str, list[str]]:
        """Return notes on the rows of the highest layer, ``values[query, input]``, as a part of the provenance.

        places: the positions of the queries, those of `rows` by default. more: further notes on every row. A sink is found
        from the row itself: its highest position, if its values are short in most layers.
        """
        layer = self.depth - 1 if places is not None else self.layers[-1]
        below = [x for x in self.lengths[: layer + 1] if x is not None] if self.edges is None else []
        lengths = torch.stack(below) if below else None
        own = list(places) if places is not None else [None if r.several else r.positions[0] for r in self.rows]
        names = [self.tokens[p] for p in places] if places is not None else [r.label(self.tokens) for r in self.rows]
        causal = self.default_query == len(self.tokens) - 1
        notes = []
        for row, place in zip(values.cpu().double().numpy(), own, strict=True):
            highest = int(row.argmax())
            short = lengths is not None and short_in_most(lengths, highest)
            labels = Labels(self.tokens, self.special, (highest,) if short else (), causal)
            notes.append({**row_notes(row, labels, method, layer, place), **(more or {})})
        sentences = of_rows(notes, names)
        return {"reliability": sentences} if sentences else {}

    def _start(self) -> Tensor:
        """Return [1, row, position]: the weights of the rows."""
        rows = torch.zeros(1, len(self.rows), len(self.tokens), dtype=self.dtype)
        for number, row in enumerate(self.rows):
            rows[0, number, list(row.positions)] = torch.tensor(row.weights, dtype=self.dtype)
        return rows.to(self.device)

    def _result(self, method: str, values: Tensor, options: Mapping[str, Any]) -> TokenAttention:
        labels = tuple(row.label(self.tokens) for row in self.rows)
        spans = {number: row for number, row in zip(self.queries, self.rows, strict=True) if row.several}
        more = {**options, **({"query_weights": query_weights(spans)} if spans else {})}
        return self._labelled(method, values, self.layers, self.queries, labels, more)

    def _labelled(
        self,
        method: str,
        values: Tensor,
        layers: tuple[int, ...],
        queries: tuple[int, ...],
        labels: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> TokenAttention:
        return TokenAttention(
            values=values.cpu().numpy().astype(np.float64),
            method=method,
            layers=layers,
            queries=queries,
            query_tokens=labels,
            tokens=self.tokens,
            word_ids=self.word_ids,
            word_texts=self.word_texts,
            special=self.special,
            text=self.text,
            provenance={**self.provenance, **options},
        )


def short_in_most(lengths: Tensor, position: int) -> bool:
    """Return whether the value at this position is at most half as long as the median in most layers, [layer, position]."""
    medians = lengths.kthvalue(lengths.shape[1] // 2 + 1, dim=1).values
    short = (lengths[:, position] <= SHORT * medians) & (medians > 0)
    return bool(short.float().mean() > 0.5)


def trace_linear(
    model: Runner,
    encoded: Sequence[Encoded],
    reduce: str | list[int],
    queries: Queries | None,
    layers: Sequence[int] | None,
    edges: str | None = None,
    normalize: str | None = None,
    answer: Any = None,
    of: str = "logit",
) -> list[LinearTrace]:
    """Run `Model.trace` with memory="linear" for texts that may run together; one at a time for edges by gradients."""
    if reduce != "mean":
        raise InputError(f'heads={reduce!r}: memory="linear" takes the mean over heads; leave heads out')
    normalized = "none"
    if edges is not None:
        normalized = normalization_of(edges, normalize)
        if edges not in LINEAR:
            raise InputError(
                f'edges={edges!r} need matrices: memory="linear" supports {", ".join(map(repr, LINEAR))}; or trace with '
                'memory="graph"'
            )
    layers = None if layers is None else positions(layers, "layer")
    if layers == []:
        raise InputError("layers is an empty list: expected at least one")
    checked = check_linear(model, encoded)
    rows = [_rows_of(model, one, queries) for one in encoded]
    if not rows[0]:
        raise InputError("queries is an empty list: expected at least one")
    chosen = tuple(select_layers([-1] if layers is None else layers, len(checked.stack.main)))
    reasons = None
    if edges in BY_LAYERS:
        batch, reasons = explained(model, _bare(encoded[0]), checked, edges, answer=answer, of=of)
        descend: Descend = reasons.descent.operands
    else:
        batch, descend = run_kept(model, [_bare(one) for one in encoded], checked, edges or PLAIN)
    traces = [
        _trace_of(replace(batch, encoded=encoded), number, descend, rows[number], chosen, edges, normalized)
        for number in range(len(encoded))
    ]
    return traces if reasons is None else [_about(traces[0], reasons)]


def _rows_of(model: Runner, encoded: Encoded, queries: Queries | None) -> tuple[Row, ...]:
    """Return the rows to explain: the given ones, the sentence embedding of a model that has one, or the last position."""
    n = int(encoded.tensors["input_ids"].shape[1])
    if queries is not None or model.pooling is None:
        return tuple(select_rows(queries, n))
    pooled = model.pooling.row(n)
    if pooled.refusal:
        raise InputError(f"{pooled.refusal}: give queries=, the positions to explain")
    return (pooled,)


def check_linear(model: Runner, encoded: Sequence[Encoded]) -> Checked:
    """Check that these inputs can be explained without matrices; numerically on the first use of their kind."""
    texts = all("input_ids" in one.tensors for one in encoded)
    checked = model.verify(encoded[0]) if texts else None
    # a decoder that makes its own input has no target, so the check decides
    if checked is None or checked.stack.cross:
        raise InputError('memory="linear" supports texts and models with one stack; trace this one with memory="graph"')
    if not checked.blocks:
        raise ModelError(
            f'memory="linear" needs attention that is softmax(QKᵀ + mask), and {type(model.model).__name__} does not '
            'appear to have it: trace with memory="graph"'
        )
    kind = kind_of(encoded[0])
    if kind not in model.checked_linear:
        _verify(model, encoded[0], checked)
        model.checked_linear.add(kind)
    return checked


def _about(trace: LinearTrace, reasons: Explained) -> LinearTrace:
    """Return the trace with the answer that its edges are about; answer edges of a masked token use its position."""
    masked = trace.edges == "answer" and reasons.about["kind"] == "masked token"
    place = reasons.place if masked else trace.default_query
    provenance = {**trace.provenance, "answer": dict(reasons.about)}
    return replace(trace, explained=reasons, default_query=place, provenance=provenance)


def _bare(encoded: Encoded) -> Encoded:
    """Return the input without a mask of ones, which every layer would read for nothing. Next to positions it is kept: it
    says that they are one text."""
    positioned = "position_ids" in encoded.tensors
    tensors = {k: v for k, v in encoded.tensors.items() if positioned or k != "attention_mask" or not bool(v.all())}
    return replace(encoded, tensors=tensors)


def _trace_of(
    batch: Batch,
    number: int,
    descend: Descend,
    rows: tuple[Row, ...],
    layers: tuple[int, ...],
    edges: str | None,
    normalized: str,
) -> LinearTrace:
    encoded, n = batch.encoded[number], batch.lengths[number]
    calls = [batch.calls[i] for i in batch.checked.stack.main]
    about = {} if edges is None else {"edges": edges, "edges_normalized": normalized}

    alone = len(batch.encoded) == 1

    def down() -> Iterator[Operands]:
        return descend() if alone else (o.of_text(number, n) for o in descend())

    lengths = tuple(None if call.lengths is None else call.lengths[number, :n] for call in calls)
    return LinearTrace(
        tokens=encoded.tokens,
        special=encoded.special,
        word_ids=encoded.word_ids,
        word_texts=encoded.word_texts,
        text=encoded.text,
        descend=down,
        device=batch.runner.device,
        dtype=torch.float64 if batch.runner.dtype == torch.float64 else torch.float32,
        rows=rows,
        layers=layers,
        depth=len(calls),
        provenance={**batch.provenance(), **about},
        prediction=batch.prediction(number),
        default_query=natural_query(batch.checked, encoded.special),
        edges=edges,
        normalized=normalized,
        lengths=lengths,
    )


def _verify(model: Runner, encoded: Encoded, checked: Checked) -> None:
    """Compare products without matrices to matrices, from the same operands, on the first tokens of the text."""
    tensors = probe(encoded.tensors)
    n = int(tensors["input_ids"].shape[1])
    _, descend = run_kept(model, [_bare(Encoded(tensors, ("",) * n))], checked, PLAIN)
    rows = torch.rand(1, 2, n, generator=torch.Generator().manual_seed(0)).to(model.device)
    for operands in descend():
        whole = operands.scores.weights(0, n).mean(1)
        gap = float((step(operands.scores, rows) - (rows.to(whole) @ whole).to(rows.device)).abs().max())
        if gap > (2e-2 if half(model.dtype) else 1e-4):
            raise ModelError(
                f'layer {operands.number} with memory="linear" differs from its matrix by {gap:.3g}: trace with '
                'memory="graph"'
            )
