"""A forward pass as a user holds it: raw attention, rollout, flow and their kin, of any layer and query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow._arrays import index, indices, positions, to_numpy
from attnflow.answer_views import answer_inputs, answer_rows, gather, sources
from attnflow.capture.passes import Pass, Residual, Step, check_shares, measured_shares
from attnflow.edges import reweighed
from attnflow.edges.weights import Signed
from attnflow.errors import InputError
from attnflow.flow import flow as flow_of
from attnflow.flow import normalized
from attnflow.graph import merge
from attnflow.heads import Alignment, HeadScore, aligned_pairs, rank_heads, single_head
from attnflow.joint_flow import joint_flow_and_gaps
from attnflow.receptive import check_mode, relative
from attnflow.reliability import FlowBound, Notes
from attnflow.result import TokenAttention
from attnflow.rollout import rollout as rollout_of
from attnflow.selection import Query, head_name, select_layers, select_positions
from attnflow.sinks import check_sinks
from attnflow.trace_results import notes_of_rows, result_of, with_mixed, witnesses

Layers = int | Iterable[int] | None
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace(Pass):
    """A forward pass, ready to be explained.

    tokens, text, prediction, provenance: what went in, what the model answers, and how it was captured. weights: heads of
    the layers for which they were kept, [head, query, key]. `attnflow.capture.passes.Pass` describes all fields.
    unmerged: of a trace over words, the one over tokens.
    """

    encoder: Trace | None = field(default=None, repr=False)
    unmerged: Trace | None = field(default=None, repr=False)

    @staticmethod
    def of(passed: Pass) -> Trace:
        values = {f.name: getattr(passed, f.name) for f in fields(Pass)}
        return Trace(**{**values, "encoder": None if passed.encoder is None else Trace.of(passed.encoder)})

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"Trace({self.layer_count} layers, {len(self.tokens)} tokens, {shown!r})"

    def _repr_html_(self) -> str:
        from attnflow.view.page import of_trace

        return of_trace(self)._repr_html_()

    def graph(self, residual: Residual = 0.5, sinks: str = "keep") -> Floats | list[Floats]:
        """The attention graph as numpy: [layer, query, key], or a list of matrices where sizes differ.

        Arguments as in `rollout`.
        """
        check_shares(residual)
        matrices = [to_numpy(step.graph(residual)) for step in self._steps(sinks, residual)]
        return np.stack(matrices) if len({m.shape for m in matrices}) == 1 else matrices

    def raw(self, query: Query = None, layer: Layers = None, sinks: str = "keep") -> TokenAttention:
        """Raw attention: the weights of each layer, heads reduced, no residual connection.

        Where a layer has two attentions (a decoder over source and target), the mean of both. sinks: as in `rollout`.
        """
        layers, rows = self._selected(query, layer)
        steps = self._steps(sinks)
        matrices = []
        for l in layers:
            below = self.ends[l - 1] + 1 if l else 0
            own = [s for s in steps[below : self.ends[l] + 1] if s.residual]
            mean = torch.stack([step.weights[rows] for step in own]).mean(0)
            for step in reversed([s for s in steps[: self.ends[l]] if not s.residual]):
                if step.weights.shape[0] == mean.shape[1]:
                    mean = mean @ step.weights
            matrices.append(to_numpy(mean))
        values = np.stack(matrices)
        notes = notes_of_rows(self, "raw", values[-1], layers, rows, sinks)
        return result_of(self, "raw", values, layers, rows, {"layer": layers}, sinks, notes=notes)

    def rollout(
        self,
        query: Query = None,
        layer: Layers = None,
        residual: Residual = 0.5,
        receptive_field: str | None = None,
        start: int = 0,
        sinks: str = "keep",
    ) -> TokenAttention:
        """Attention rollout (Eq. 1).

        query, layer: which; None for the natural query and for all layers.
        residual: the weight of the residual connection; "measured" takes each position's own share at each layer, see
            `attnflow.capture.shares.own_share`.
        receptive_field: None, "ratio", "difference" or "layer"; see `attnflow.receptive`.
        start: the lowest layer that is multiplied; 0 leads to the input, others to the states below that layer.
        sinks: "residual" leaves where it is what goes to a sink of its layer; see `attnflow.sinks.sink_positions`.
        """
        layers, rows = self._selected(query, layer)
        check_shares(residual)
        steps = self._steps(sinks, residual)
        lowest = index(start, len(self.ends), "start")
        layers = [l for l in layers if l >= lowest] if layer is None else layers
        if min(layers) < lowest:
            raise InputError(
                f"start={start} is above layer {min(layers)}: expected a layer at or below those explained"
            )
        first = self.ends[lowest - 1] + 1 if lowest else 0
        ends = [self.ends[l] for l in layers]

        def graphs(weights: Sequence[Tensor]) -> list[Tensor]:
            return [replace(s, weights=w).graph(residual).double() for s, w in zip(steps, weights, strict=True)]

        def method(weights: Sequence[Tensor]) -> Floats:
            return to_numpy(rollout_of(graphs(weights), queries=rows, start=first, layers=ends))

        recipe = {"layer": layers, "residual": residual, "receptive_field": receptive_field, "start": start}
        if receptive_field is not None:
            return result_of(
                self, "rollout", self._relative(method, steps, receptive_field), layers, rows, recipe, sinks
            )
        matrices = graphs([step.weights for step in steps])
        values = to_numpy(rollout_of(matrices, queries=rows, start=first, layers=ends))
        notes = notes_of_rows(self, "rollout", values[-1], layers, rows, sinks)
        if others := witnesses(self, layers):
            their = to_numpy(rollout_of(matrices, queries=others, start=first, layers=ends[-1]))[0]
            notes = with_mixed(notes, values[-1], rows, their, others, "rollout")
        return result_of(self, "rollout", values, layers, rows, recipe, sinks, notes=notes)

    def flow(
        self,
        query: Query = None,
        layer: Layers = None,
        residual: Residual = 0.5,
        receptive_field: str | None = None,
        normalize: bool = False,
        sinks: str = "keep",
    ) -> TokenAttention:
        """Attention flow: the exact maximum flow to each input. Arguments as in `rollout`.

        normalize: each row divided by its sum.
        """
        layers, rows = self._selected(query, layer)
        check_shares(residual)
        steps = self._steps(sinks, residual)

        def method(weights: Sequence[Tensor]) -> Floats:
            divided = normalize and receptive_field is not None  # before it is compared with uniform attention
            pipes = _pipes(steps, weights, residual)
            return flow_of(pipes, queries=rows, layers=[self.ends[l] for l in layers], normalize=divided)

        values = self._relative(method, steps, receptive_field)
        notes: list[Notes] = []
        if receptive_field is None:
            bounds = _flow_bounds(steps[0], steps[self.ends[layers[-1]]], residual, rows)
            notes = notes_of_rows(self, "flow", values[-1], layers, rows, sinks, bounds)
            values = normalized(values) if normalize else values
        recipe = {"layer": layers, "residual": residual, "receptive_field": receptive_field, "normalize": normalize}
        return result_of(self, "flow", values, layers, rows, recipe, sinks, notes=notes)

    def joint_flow(
        self,
        query: Query = None,
        layer: Layers = None,
        residual: Residual = 0.5,
        receptive_field: str | None = None,
        sinks: str = "keep",
    ) -> TokenAttention:
        """Joint flow: the shares of all inputs in one maximum flow, that of least norm. Arguments as in `rollout`.

        ``provenance["certificate"]["gap"]`` is the largest relative gap between the norm of a flow and the bound that
        proves it. See `attnflow.joint_flow.joint_flow`.
        """
        layers, rows = self._selected(query, layer)
        check_shares(residual)
        steps = self._steps(sinks, residual)
        gap = 0.0

        def method(weights: Sequence[Tensor]) -> Floats:
            nonlocal gap
            pipes = _pipes(steps, weights, residual)
            values, gaps = joint_flow_and_gaps(pipes, queries=rows, layers=[self.ends[l] for l in layers])
            gap = max(gap, float(gaps.max()))
            return values

        values = self._relative(method, steps, receptive_field)
        recipe = {"layer": layers, "residual": residual, "receptive_field": receptive_field}
        notes: list[Notes] = []
        if receptive_field is None:
            notes = notes_of_rows(self, "joint flow", values[-1], layers, rows, sinks)
            if others := witnesses(self, layers)[::2]:  # each is a flow to be solved
                pipes = _pipes(steps, [step.weights for step in steps], residual)
                their = joint_flow_and_gaps(pipes, queries=others, layers=self.ends[layers[-1]])[0][0]
                notes = with_mixed(notes, values[-1], rows, their, others, "joint flow")
        result = result_of(self, "joint_flow", values, layers, rows, recipe, sinks, notes=notes)
        return replace(result, provenance={**result.provenance, "certificate": {"gap": gap}})

    def gather(self, residual: float | None = None, receptive_field: str | None = "layer") -> TokenAttention:
        """What all edges of all layers carried to the answer, each traced from its key to the input by rollout.

        ``T[t] = Σ_l Σ_k (Σ_q E(l)[q, k]) · Ã(l-1)[k, t]``, with E the weights of this trace, which must be by gradients,
        and Ã the rollout of the attention itself, the identity below the first layer. Rollout and flow follow one state
        down, and multiply or bound what edges say at every layer of a path; here each edge counts once, for what the answer
        takes along it, and rollout says only what was in its key. It is about the answer, not about a query.

        residual: of the rollout; by default ``1 - 2 / layers``, because what is mixed at each layer adds up with depth.
            With 1 every position stands for its own token at every layer.
        receptive_field: "layer" takes, for each key, the mean over the queries that can see it in place of the sum, and
            rolls out weights that are corrected as `attnflow.receptive.layerwise` does: under a causal mask early keys
            are seen by more queries. Without a mask it changes nothing but the scale. None leaves it out.
        """
        return gather(self, residual, receptive_field)

    def answer_rows(self, query: Query = None, signed: Signed = False) -> TokenAttention:
        """What the position that answers reads from each input, at all layers: ``T[k] = Σ_l Σ_q E(l)[q, k]``.

        E are answer edges, so this needs ``trace(..., edges="answer")``: what each edge carries to the log-odds of the
        answer, with attention, norm scales and gates held constant. Unlike rollout and flow it multiplies nothing along a
        path: each edge counts once, for what the answer takes along it.

        query: the positions q; by default the one that answers.
        signed: True gives the parts of the log-odds as they are; what speaks against the answer is negative. Otherwise
            shares: cut off at zero after summing, the first token of a model that looks back only left out (it is where
            attention goes that has nowhere to go), divided by their sum. "shares" divides by the same sum and cuts nothing
            off: what is above zero adds up to one, what is below speaks against the answer.
        """
        return answer_rows(self, query, signed)

    def answer_inputs(self, signed: Signed = False) -> TokenAttention:
        """What the answer owes to each input the whole way down: ``T[k] = x0[k]·∂y/∂x0[k]``, x0 the states that enter.

        y are the log-odds of the answer with attention, norm scales and gates held constant, so that this needs
        ``trace(..., edges="answer")``. All paths through all layers count, where `answer_rows` says what the answering
        position reads: of an input whose content another position picked up and passed on, this finds the input.

        signed: as in `answer_rows`.
        """
        return answer_inputs(self, signed)

    def sources(self) -> TokenAttention:
        """What the answer rests on, by the method that was measured best for its kind: `answer_rows` of the next token of a
        language model; of a class or a masked token `answer_inputs` with signs, as shares (``signed="shares"``).

        Needs ``trace(..., edges="answer")``. `attnflow.source_methods.trace_method` makes the choice, and docs/findings.md
        has the figures.
        """
        return sources(self)

    def single_head(self, layer: int, head: int, method: str = "rollout", query: Query = None) -> TokenAttention:
        """One head (Appendix A.1): the layers below with their heads reduced. Needs ``trace(..., keep_heads=True)``."""
        layers, rows = self._selected(query, layer)
        top = layers[0]
        self._check_kept(top)
        if len(self.steps) != len(self.ends) or self.parts:
            raise InputError("one head at a time needs a model with one stack of equal layers")
        stacked = [to_numpy(step.weights)[None] for step in self.steps[:top]]
        values = single_head([*stacked, to_numpy(self.weights[top])], top, head, method, rows)
        recipe = {"layer": layers, "head": head}
        notes = notes_of_rows(self, method, values, layers, rows)
        return result_of(self, method, values[None], layers, rows, recipe, words=False, notes=notes)

    def head(self, layer: int, head: int, query: Query = None) -> TokenAttention:
        """The attention of one head by itself, as a result that is named after it: "head L3.5".

        layer, head: which; both count from 0. query: as in `rollout`. Needs ``trace(..., keep_heads=True)``. `single_head`
        follows what the head reads down to the input.
        """
        layers, rows = self._selected(query, index(layer, len(self.ends), "layer"))
        top = layers[0]
        self._check_kept(top)
        heads = to_numpy(self.weights[top])  # [head, query, key]
        if heads.ndim != 3:
            raise InputError("the heads of a model that attends within windows have no row over all positions")
        number = index(head, len(heads), "head")
        first = self.first_query if self.parts else 0  # of an encoder-decoder, heads have the target's rows
        values = heads[number][[row - first for row in rows]][None]
        recipe = {"layer": layers, "head": number}
        notes = notes_of_rows(self, "raw", values[0], layers, rows)
        return result_of(self, f"head {head_name(top, number)}", values, layers, rows, recipe, words=False, notes=notes)

    def rank_heads(self, alignment: Alignment) -> list[HeadScore]:
        """Which heads attend as an alignment does, the nearest first; see `attnflow.rank_heads`.

        alignment: as in `attnflow.aligned_pairs`: "previous", "next", "self", "first", "same", "induction", pairs (query,
            key) or a mapping from queries to keys, of positions or tokens, or booleans [query, key]. Queries of an
            encoder-decoder are positions of its target. Needs ``trace(..., keep_heads=True)``; layers of which no heads
            were kept are left out.

        >>> import attnflow as af
        >>> trace = af.load().trace("the key to the cabinets", keep_heads=True)
        >>> [score.name for score in trace.rank_heads("previous")[:2]]
        ['L1.4', 'L3.8']
        """
        self._check_kept(None)
        return rank_heads(self.weights, aligned_pairs(alignment, self.tokens, self.first_query))

    def _check_kept(self, layer: int | None) -> None:
        """That the heads of a layer, or of any, are here."""
        if self.unmerged is not None:
            raise InputError("words() keeps no heads: ask the trace over tokens")
        if layer is None and not self.weights:
            raise InputError("no heads were kept: trace again with keep_heads=True")
        if layer is not None and layer not in self.weights:
            raise InputError(
                f"the heads of layer {layer} were not kept: trace again with keep_heads=True or keep_heads=[{layer}]"
            )

    def with_edges(self, edges: str, normalize: str | None = None) -> Trace:
        """The same with other weights on the edges, from the same pass. Needs ``trace(..., edges=...)``.

        edges: one of `attnflow.edges.EDGES`, for example "value-norm". normalize: see `attnflow.edges.reweighed`.
        """
        return reweighed(self, edges, normalize)

    def words(self) -> Trace:
        """The same over words: what a word attends to is the mean over its subwords, what it receives is their sum.

        Special tokens stay by themselves. The graph is merged, so rollout and flow are solved on words.
        """
        groups: dict[Any, list[int]] = {}
        for position, word in enumerate(self.word_ids):
            part = self.parts[position] if self.parts else ""
            groups.setdefault(("alone", position) if word is None else (part, word), []).append(position)
        members = list(groups.values())
        if len({s.weights.shape for s in self.steps}) > 1:
            raise InputError(
                "words need one position a token at every layer, and the layers of this model differ in size"
            )
        merged = merge(torch.stack([s.weights.double() for s in self.steps]), members)
        place = {position: g for g, group in enumerate(members) for position in group}
        starts = [group[0] for group in members]
        carried = [_range(s.carried, place) for s in self.steps]
        texts = tuple(
            self.tokens[i] if self.word_ids[i] is None else self.word_texts[self.word_ids[i] or 0] for i in starts
        )
        number = count()
        numbers = [None if self.word_ids[i] is None else next(number) for i in starts]
        return replace(
            self,
            tokens=texts,
            special=tuple(self.special[i] for i in starts),
            word_ids=tuple(numbers),
            word_texts=tuple(t for t, i in zip(texts, starts, strict=True) if self.word_ids[i] is not None),
            steps=tuple(
                replace(s, weights=w, carried=c, lengths=None, own=None)
                for s, w, c in zip(self.steps, merged, carried, strict=True)
            ),
            default_query=None
            if self.default_query is None
            else place[self.first_query + self.default_query] - place[self.first_query],
            parts=tuple(self.parts[i] for i in starts) if self.parts else (),
            first_query=place[self.first_query],
            provenance={**self.provenance, "unit": "word"},
            weights={},
            picture=None,
            inside=None,
            encoder=None if self.encoder is None else self.encoder.words(),
            word_groups=tuple(tuple(g) for g in members),
            unmerged=self,
        )

    def sinks(self, layers: Iterable[int] | None = None) -> tuple[int, ...] | None:
        """The positions that are sinks of at least one of these layers, all of them by default; None where nobody knows."""
        if self.unmerged is not None:
            positions = self.unmerged.sinks(layers)
            groups = enumerate(self.word_groups or ())
            return None if positions is None else tuple(g for g, group in groups if set(group) & set(positions))
        chosen = range(len(self.ends)) if layers is None else layers
        steps = [self.steps[self.ends[l]] for l in chosen]
        if any(step.sinks is None for step in steps):
            return None
        return tuple(sorted({position for step in steps for position in step.sinks or ()}))

    def _steps(self, sinks: str, residual: Residual = 0.5) -> tuple[Step, ...]:
        """The steps without what goes to sinks, where that is asked for.

        Sinks and measured shares are those of tokens: over words, they come before the words are merged.
        """
        check_sinks(sinks)
        measured = isinstance(residual, str)
        if self.unmerged is None:
            return self.steps if sinks == "keep" else tuple(step.without_sinks() for step in self.steps)
        if sinks == "keep" and not measured:
            return self.steps
        return tuple(
            _merged(of_tokens, step, self.word_groups or (), measured)
            for of_tokens, step in zip(self.unmerged._steps(sinks, residual), self.steps, strict=True)
        )

    def query_positions(self, query: Query) -> list[int]:
        """Positions among the queries: see `attnflow.selection.select_positions`."""
        count = self.steps[self.ends[-1]].weights.shape[0] - self.first_query
        labels = self.tokens[self.first_query :]
        if len(labels) != count:  # merged positions have no names
            labels = tuple(map(str, range(count)))
        return select_positions(query, labels, self.default_query)

    def _selected(self, query: Query, layer: Layers) -> tuple[list[int], list[int]]:
        """Layers, and rows of the steps' matrices."""
        if layer is not None:
            layer = positions(layer, "layer")
        sizes = [self.steps[end].weights.shape[0] for end in self.ends]
        layers = select_layers(layer, len(self.ends))
        if layer is None:
            layers = [l for l in layers if sizes[l] == sizes[-1]]
        if len({sizes[l] for l in layers}) > 1:
            raise InputError(
                f"the layers asked for have {[sizes[l] for l in layers]} positions: ask for layers of one size"
            )
        if sizes[layers[0]] == sizes[-1]:
            return layers, [self.first_query + i for i in self.query_positions(query)]
        # merged positions below the last ones have no names
        every = isinstance(query, str) and query == "all"
        return layers, indices(None if every else query, sizes[layers[0]], "query")  # type: ignore[arg-type]

    def _relative(
        self, method: Callable[[Sequence[Tensor]], Floats], steps: Sequence[Step], mode: str | None
    ) -> Floats:
        check_mode(mode)
        if mode is not None and (self.parts or any(not s.residual for s in self.steps)):
            raise InputError("receptive_field is for models with one stack of equal layers; leave it out here")
        return relative(method, [s.weights for s in steps], mode)


def _flow_bounds(lowest: Step, highest: Step, residual: Residual, rows: Sequence[int]) -> list[FlowBound]:
    entering, leaving = (to_numpy(step.graph(residual)).astype(np.float64) for step in (lowest, highest))
    for i in lowest.carried:
        entering[i, i] = np.inf  # what only passes through limits nothing
    into = entering.sum(0)
    return [FlowBound(float(leaving[row].sum()), into) for row in rows]


def _merged(of_tokens: Step, step: Step, groups: Sequence[Sequence[int]], measured: bool) -> Step:
    """A step over words: ``A'[Q, K] = (1 - R_Q) · W' + R_Q · I`` is the merged graph of tokens, with R the mean of r."""
    weights = of_tokens.weights.double()
    if not measured or step.whole or not step.residual:
        return replace(step, weights=merge(weights[None], groups)[0])
    own = measured_shares(of_tokens.own).double()
    merged = merge(((1 - own)[:, None] * weights)[None], groups)[0]
    mean = torch.stack([own[list(group)].mean() for group in groups])
    rest = 1 - mean
    return replace(step, weights=merged / torch.where(rest == 0, 1, rest)[:, None], own=mean)


def _pipes(steps: Sequence[Step], weights: Sequence[Tensor], residual: Residual) -> list[Floats]:
    """The widths of the edges for flows."""
    matrices = []
    for step, own in zip(steps, weights, strict=True):
        matrix = to_numpy(replace(step, weights=own).graph(residual))
        for i in step.carried:  # what only passes through limits nothing
            matrix[i, i] = np.inf
        matrices.append(matrix)
    return matrices


def _range(carried: range, place: Mapping[int, int]) -> range:
    places = sorted({place[i] for i in carried})
    return range(places[0], places[-1] + 1) if places else range(0)
