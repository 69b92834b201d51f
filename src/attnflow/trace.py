"""A forward pass for users: raw attention, rollout, flow and other views, of any layer and query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow._arrays import index, indices, positions, to_numpy
from attnflow.answer_views import answer_inputs, answer_rows, sources
from attnflow.capture.passes import Pass, Step
from attnflow.edges import reweighed
from attnflow.edges.weights import Signed
from attnflow.errors import InputError
from attnflow.flow import flow as flow_of
from attnflow.flow import normalized
from attnflow.graph import check_residual, merge
from attnflow.heads import Alignment, HeadScore, aligned_pairs, rank_heads, single_head
from attnflow.receptive import check_mode, relative
from attnflow.reliability import FlowBound, Notes
from attnflow.result import TokenAttention
from attnflow.rollout import rollout as rollout_of
from attnflow.selection import Query, Row, head_name, select_layers, select_positions
from attnflow.texts.groups import PositionGroups, Positions
from attnflow.trace_results import Chosen, natural, notes_of_rows, result_of, with_mixed, witnesses

Layers = int | Iterable[int] | None
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace(Pass):
    """A forward pass, ready to be explained.

    tokens, text, prediction, provenance: the input, the model's answer, and how it was captured.
    weights: the heads of the layers for which they were kept, [head, query, key].
    unmerged: for a trace over words or groups, the one over tokens.

    `attnflow.capture.passes.Pass` describes all fields.
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

    def graph(self, residual: float = 0.5) -> Floats | list[Floats]:
        """Return the attention graph as numpy: [layer, query, key], or a list of matrices if sizes differ.

        residual: as in `rollout`.
        """
        check_residual(residual)
        matrices = [to_numpy(step.graph(residual)) for step in self.steps]
        return np.stack(matrices) if len({m.shape for m in matrices}) == 1 else matrices

    def raw(self, query: Query = None, layer: Layers = None) -> TokenAttention:
        """Return raw attention: the weights of each layer, heads reduced, without the residual connection.

        query: as in `rollout`.

        If a layer has two attentions (a decoder over source and target), it is the mean of both.
        """
        layers, chosen = self._selected(query, layer)
        steps = self.steps
        matrices = []
        for l in layers:
            below = self.ends[l - 1] + 1 if l else 0
            own = [s for s in steps[below : self.ends[l] + 1] if s.residual]
            mean = torch.stack([step.weights[chosen.rows] for step in own]).mean(0)
            for step in reversed([s for s in steps[: self.ends[l]] if not s.residual]):
                if step.weights.shape[0] == mean.shape[1]:
                    mean = mean @ step.weights
            matrices.append(to_numpy(mean))
        values = chosen.mixed(np.stack(matrices))
        notes = notes_of_rows(self, "raw", values[-1], layers, chosen)
        return result_of(self, "raw", values, layers, chosen, {"layer": layers}, True, notes=notes)

    def rollout(
        self,
        query: Query = None,
        layer: Layers = None,
        residual: float = 0.5,
        receptive_field: str | None = None,
        start: int = 0,
    ) -> TokenAttention:
        """Return attention rollout (Eq. 1).

        query, layer: which to explain. The default is all layers and the natural query: a class token, the last token of a
            decoder, or the embedding of a sentence-embedding model, whose row is the weighted mean of the pooled rows.
        residual: the weight of the residual connection.
        receptive_field: None, "ratio", "difference" or "layer"; see `attnflow.receptive`.
        start: the lowest layer that is multiplied; 0 leads to the input, others to the states below that layer.
        """
        layers, chosen = self._selected(query, layer)
        check_residual(residual)
        steps = self.steps
        lowest = index(start, len(self.ends), "start")
        layers = [l for l in layers if l >= lowest] if layer is None else layers
        if min(layers) < lowest:
            raise InputError(
                f"start={start} is above layer {min(layers)}: expected a layer at or below the explained ones"
            )
        first = self.ends[lowest - 1] + 1 if lowest else 0
        ends = [self.ends[l] for l in layers]

        def graphs(weights: Sequence[Tensor]) -> list[Tensor]:
            return [replace(s, weights=w).graph(residual).double() for s, w in zip(steps, weights, strict=True)]

        def method(weights: Sequence[Tensor]) -> Floats:
            return chosen.mixed(to_numpy(rollout_of(graphs(weights), queries=chosen.rows, start=first, layers=ends)))

        recipe = {"layer": layers, "residual": residual, "receptive_field": receptive_field, "start": start}
        if receptive_field is not None:
            return result_of(
                self, "rollout", self._relative(method, steps, receptive_field), layers, chosen, recipe, True
            )
        matrices = graphs([step.weights for step in steps])
        values = chosen.mixed(to_numpy(rollout_of(matrices, queries=chosen.rows, start=first, layers=ends)))
        notes = notes_of_rows(self, "rollout", values[-1], layers, chosen)
        if others := witnesses(self, layers):
            their = to_numpy(rollout_of(matrices, queries=others, start=first, layers=ends[-1]))[0]
            notes = with_mixed(notes, values[-1], chosen, their, others, "rollout")
        return result_of(self, "rollout", values, layers, chosen, recipe, True, notes=notes)

    def flow(
        self,
        query: Query = None,
        layer: Layers = None,
        residual: float = 0.5,
        receptive_field: str | None = None,
        normalize: bool = False,
    ) -> TokenAttention:
        """Return attention flow: the exact maximum flow to each input. Arguments as in `rollout`.

        For a sentence embedding it is the weighted mean of the flows of the pooled positions, each computed on its own.
        normalize: divide each row by its sum.
        """
        layers, chosen = self._selected(query, layer)
        check_residual(residual)
        steps = self.steps

        def method(weights: Sequence[Tensor]) -> Floats:
            divided = normalize and receptive_field is not None  # before the comparison with uniform attention
            pipes = _pipes(steps, weights, residual)
            ends = [self.ends[l] for l in layers]
            return chosen.mixed(flow_of(pipes, queries=chosen.rows, layers=ends, normalize=divided))

        values = self._relative(method, steps, receptive_field)
        notes: list[Notes] = []
        if receptive_field is None:
            bounds = _flow_bounds(steps[0], steps[self.ends[layers[-1]]], residual, chosen)
            notes = notes_of_rows(self, "flow", values[-1], layers, chosen, bounds)
            values = normalized(values) if normalize else values
        recipe = {"layer": layers, "residual": residual, "receptive_field": receptive_field, "normalize": normalize}
        return result_of(self, "flow", values, layers, chosen, recipe, True, notes=notes)

    def answer_rows(self, query: Query = None, signed: Signed = False) -> TokenAttention:
        """Return what the position that answers reads from each input, at all layers: ``T[k] = Σ_l Σ_q E(l)[q, k]``.

        E are answer edges, so this needs ``trace(..., edges="answer")``: what each edge carries to the log-odds of the
        answer, with attention, norm scales and gates held constant. Unlike rollout and flow it multiplies nothing along a
        path. Each edge counts once, for what the answer takes along it.

        query: the positions q; by default the one that answers.
        signed: True returns the parts of the log-odds; what counts against the answer is negative. False returns shares:
            cut off at zero after summing and divided by their sum, without the first token of a causal model (which takes
            the attention that has nowhere else to go). "shares" divides by the same sum without the cut: positive values
            add up to one, negative ones count against the answer.
        """
        return answer_rows(self, query, signed)

    def answer_inputs(self, signed: Signed = False) -> TokenAttention:
        """Return what the answer owes to each input, all the way down: ``T[k] = x0[k]·∂y/∂x0[k]``.

        x0 are the states that enter. y is the log-odds of the answer with attention, norm scales and gates held constant,
        so this needs ``trace(..., edges="answer")``. All paths through all layers count, whereas `answer_rows` shows what
        the answering position reads. If another position picked up the content of an input and passed it on, this finds the
        input. For an image within a text, x0 at its places are the patches that enter the vision tower.

        signed: as in `answer_rows`.
        """
        return answer_inputs(self, signed)

    def sources(self) -> TokenAttention:
        """Return what the answer rests on, by the method that was measured to be best for its kind.

        This is `answer_rows` for the next token of a language model, and `answer_inputs` with ``signed="shares"`` for a
        class, a masked token, or a text with an image. Needs ``trace(..., edges="answer")``.
        `attnflow.source_methods.trace_method` makes the choice, and docs/findings.md has the measurements.
        """
        return sources(self)

    def single_head(self, layer: int, head: int, method: str = "rollout", query: Query = None) -> TokenAttention:
        """Return one head (Appendix A.1), with the heads of lower layers reduced. Needs ``trace(..., keep_heads=True)``."""
        layers, chosen = self._selected(query, layer)
        top = layers[0]
        self._check_kept(top)
        if len(self.steps) != len(self.ends) or self.parts:
            raise InputError("one head at a time needs a model with one stack of equal layers")
        stacked = [to_numpy(step.weights)[None] for step in self.steps[:top]]
        heads = [*stacked, to_numpy(self.weights[top])]
        values = chosen.mixed(single_head(heads, top, head, method, chosen.rows)[None])
        recipe = {"layer": layers, "head": head}
        notes = notes_of_rows(self, method, values[0], layers, chosen)
        return result_of(self, method, values, layers, chosen, recipe, words=False, notes=notes)

    def head(self, layer: int, head: int, query: Query = None) -> TokenAttention:
        """Return the attention of one head alone, as a result that is named after it: "head L3.5".

        layer, head: the head; both count from 0.
        query: as in `rollout`.

        Needs ``trace(..., keep_heads=True)``. `single_head` follows what the head reads down to the input.
        """
        layers, chosen = self._selected(query, index(layer, len(self.ends), "layer"))
        top = layers[0]
        self._check_kept(top)
        heads = to_numpy(self.weights[top])  # [head, query, key]
        if heads.ndim != 3:
            raise InputError("the heads of a model that attends within windows have no row over all positions")
        number = index(head, len(heads), "head")
        first = self.first_query if self.parts else 0  # heads of an encoder-decoder have the rows of the target
        values = chosen.mixed(heads[number][[row - first for row in chosen.rows]][None])
        recipe = {"layer": layers, "head": number}
        notes = notes_of_rows(self, "raw", values[0], layers, chosen)
        name = f"head {head_name(top, number)}"
        return result_of(self, name, values, layers, chosen, recipe, words=False, notes=notes)

    def rank_heads(self, alignment: Alignment) -> list[HeadScore]:
        """Rank heads by how well they match an alignment, the best first; see `attnflow.rank_heads`.

        alignment: as in `attnflow.aligned_pairs`: "previous", "next", "self", "first", "same", "induction", pairs (query,
            key) or a mapping from queries to keys, of positions or tokens, or booleans [query, key]. Queries of an
            encoder-decoder are positions of its target. Needs ``trace(..., keep_heads=True)``; layers whose heads were not
            kept are skipped.

        >>> import attnflow as af
        >>> trace = af.load().trace("the key to the cabinets", keep_heads=True)
        >>> [score.name for score in trace.rank_heads("previous")[:2]]
        ['L1.4', 'L3.8']
        """
        self._check_kept(None)
        return rank_heads(self.weights, aligned_pairs(alignment, self.tokens, self.first_query))

    def _check_kept(self, layer: int | None) -> None:
        """Check that the heads of a layer, or of any layer, were kept."""
        if layer is None and not self.weights:
            raise InputError("no heads were kept: trace again with keep_heads=True")
        if layer is not None and layer not in self.weights:
            raise InputError(
                f"the heads of layer {layer} were not kept: trace again with keep_heads=True or keep_heads=[{layer}]"
            )

    def with_edges(self, edges: str, normalize: str | None = None) -> Trace:
        """Return the same trace with other weights on the edges, from the same pass. Needs ``trace(..., edges=...)``.

        edges: one of `attnflow.edges.EDGES`, for example "value-norm".
        normalize: see `attnflow.edges.reweighed`.
        """
        return reweighed(self, edges, normalize)

    def words(self) -> Trace:
        """Return the same trace over words: a word attends to the mean over its subwords and receives their sum.

        Special tokens stay separate. The graph is merged, so rollout and flow are solved on words.
        """
        if self.patches is not None:
            raise InputError(
                f"words() of an image of {self.patches[0]} × {self.patches[1]} patches: expected text; leave words out"
            )
        groups: dict[Any, list[int]] = {}
        for position, word in enumerate(self.word_ids):
            part = self.parts[position] if self.parts else ""
            groups.setdefault(("alone", position) if word is None else (part, word), []).append(position)
        members = list(groups.values())
        words = [self.word_ids[group[0]] for group in members]
        names = [None if word is None else self.word_texts[word] for word in words]
        return self._over(members, names, {"unit": "word"})

    def merged(self, groups: PositionGroups, names: Sequence[str] | None = None) -> Trace:
        """Return the same trace over groups of positions: residues, atoms, phrases, or regions of an image.

        A group attends to the mean over its members and receives their sum, as in `attnflow.merge`. The graph is merged, so
        rollout and flow are solved on groups, and answer edges are added up. Positions in no group stay separate.

        groups: a mapping from names to groups, or a list of groups. A group is a list of positions, a range or slice of
            them, or a piece of the text (all tokens of its words): "the key", or ("the key", 2) for its second occurrence.
        names: the names of a list of groups; by default, their tokens.

        >>> import attnflow as af
        >>> trace = af.load().trace("the key to the cabinets")
        >>> phrases = trace.merged({"subject": "the key", "place": [4, 5]})
        >>> phrases.tokens
        ('[CLS]', 'subject', 'to', 'place', '[EOS]')
        >>> phrases.rollout(layer=-1).top(1)[0].token
        'place'
        """
        named = Positions(self.tokens, self.text, self.word_ids, self.word_texts).grouped(groups, names)
        for group, name in named.items():
            if self.parts and len({self.parts[i] for i in group}) > 1:
                raise InputError(f"the group {name!r} has positions of the source and of the target: give two groups")
        of = {position: group for group in named for position in group}
        members = list(dict.fromkeys(of.get(position, (position,)) for position in range(len(self.tokens))))
        record = [[name, list(group)] for group, name in named.items()]
        return self._over(members, [named.get(group) for group in members], {"unit": "group", "groups": record})

    def _over(self, members: Sequence[Sequence[int]], names: Sequence[str | None], record: Mapping[str, Any]) -> Trace:
        """Return the trace over groups, which contain every position once and are in the order of their first ones.

        names: of each group, which then counts as a word; None for a position by itself. record: for the provenance.
        """
        if len({s.weights.shape for s in self.steps}) > 1:
            raise InputError(
                "words and groups need one position per token at every layer, and the layers of this model differ in size"
            )
        merged = merge(torch.stack([s.weights.double() for s in self.steps]), members)
        place = {position: g for g, group in enumerate(members) for position in group}
        starts = [group[0] for group in members]
        carried = [_range(s.carried, place) for s in self.steps]
        labels = _labels(self, starts, names)
        return replace(
            self,
            **labels,
            special=tuple(all(self.special[i] for i in group) for group in members),
            steps=tuple(
                replace(s, weights=w, carried=c, lengths=None)
                for s, w, c in zip(self.steps, merged, carried, strict=True)
            ),
            default_query=None
            if self.default_query is None
            else place[self.first_query + self.default_query] - place[self.first_query],
            parts=tuple(self.parts[i] for i in starts) if self.parts else (),
            first_query=place[self.first_query],
            provenance={**self.provenance, **record},
            weights={
                layer: w for layer, heads in self.weights.items() if (w := _merged_heads(heads, members)) is not None
            },
            patches=self.patches if len(members) == len(self.tokens) else None,
            picture=None,
            inside=None,
            encoder=None if self.encoder is None else self._encoder_over(members, names, record),
            word_groups=tuple(tuple(g) for g in members),
            unmerged=self,
            pooled=None if self.pooled is None else _over_words(self.pooled, place),
        )

    def _encoder_over(
        self, members: Sequence[Sequence[int]], names: Sequence[str | None], record: Mapping[str, Any]
    ) -> Trace | None:
        """Return the source alone over the same groups."""
        if self.encoder is None:
            return None
        count = sum(group[0] < len(self.encoder.tokens) for group in members)  # the source comes first
        return self.encoder._over(members[:count], names[:count], record)

    def sinks(self, layers: Iterable[int] | None = None) -> tuple[int, ...] | None:
        """Return the positions that are sinks of at least one of these layers, by default of any; None if unknown."""
        if self.unmerged is not None:
            positions = self.unmerged.sinks(layers)
            groups = enumerate(self.word_groups or ())
            return None if positions is None else tuple(g for g, group in groups if set(group) & set(positions))
        chosen = range(len(self.ends)) if layers is None else layers
        steps = [self.steps[self.ends[l]] for l in chosen]
        if any(step.sinks is None for step in steps):
            return None
        return tuple(sorted({position for step in steps for position in step.sinks or ()}))

    def query_positions(self, query: Query) -> list[int]:
        """Return positions among the queries: see `attnflow.selection.select_positions`."""
        count = self.steps[self.ends[-1]].weights.shape[0] - self.first_query
        labels = self.tokens[self.first_query :]
        if len(labels) != count:  # merged positions have no names
            labels = tuple(map(str, range(count)))
        return select_positions(query, labels, self.default_query)

    def _selected(self, query: Query, layer: Layers) -> tuple[list[int], Chosen]:
        """Return layers, and rows of the steps' matrices."""
        if layer is not None:
            layer = positions(layer, "layer")
        sizes = [self.steps[end].weights.shape[0] for end in self.ends]
        layers = select_layers(layer, len(self.ends))
        if layer is None:
            layers = [l for l in layers if sizes[l] == sizes[-1]]
        if len({sizes[l] for l in layers}) > 1:
            raise InputError(
                f"the chosen layers have {[sizes[l] for l in layers]} positions: choose layers of one size"
            )
        if sizes[layers[0]] == sizes[-1]:
            if query is None and self.pooled is not None:
                if self.pooled.refusal:
                    raise InputError(f"{self.pooled.refusal}: give query=, a position, a token, or 'all'")
                return layers, natural(self)
            return layers, Chosen([self.first_query + i for i in self.query_positions(query)])
        # merged positions below the last ones have no names
        every = isinstance(query, str) and query == "all"
        return layers, Chosen(indices(None if every else query, sizes[layers[0]], "query"))  # type: ignore[arg-type]

    def _relative(
        self, method: Callable[[Sequence[Tensor]], Floats], steps: Sequence[Step], mode: str | None
    ) -> Floats:
        check_mode(mode)
        if mode is not None and (self.parts or any(not s.residual for s in self.steps)):
            raise InputError("receptive_field needs a model with one stack of equal layers; leave it out here")
        return relative(method, [s.weights for s in steps], mode)


def _labels(trace: Trace, starts: Sequence[int], names: Sequence[str | None]) -> dict[str, Any]:
    """Return the tokens and words of groups: a named group is a word; another position keeps its token and its word."""
    tokens = tuple(trace.tokens[i] if name is None else name for i, name in zip(starts, names, strict=True))
    keys = [
        None if name is None and trace.word_ids[i] is None else ("group", i) if name is not None else trace.word_ids[i]
        for i, name in zip(starts, names, strict=True)
    ]
    texts = {
        key: token if name is not None else trace.word_texts[trace.word_ids[i] or 0]
        for key, token, name, i in zip(keys, tokens, names, starts, strict=True)
        if key is not None
    }
    numbers = {key: number for number, key in enumerate(texts)}
    return {
        "tokens": tokens,
        "word_ids": tuple(None if key is None else numbers[key] for key in keys),
        "word_texts": tuple(texts.values()),
    }


def _merged_heads(heads: Tensor, members: Sequence[Sequence[int]]) -> Tensor | None:
    """Return heads [head, query, key] over groups; None for the heads of windows, which have no row over all positions.

    Heads of an encoder-decoder have the rows of the target, which are the last positions.
    """
    if heads.ndim != 3:
        return None
    queries, keys = heads.shape[1:]
    own = [[i - (keys - queries) for i in group] for group in members if group[0] >= keys - queries]
    return merge([heads.double()], members if queries == keys else [members, own])[0].to(heads.dtype)


def _over_words(row: Row, place: Mapping[int, int]) -> Row:
    """Return the same row over words: the weight of a word is the sum over its subwords."""
    weights: dict[int, float] = {}
    for position, weight in zip(row.positions, row.weights, strict=True):
        weights[place[position]] = weights.get(place[position], 0.0) + weight
    return replace(row, positions=tuple(weights), weights=tuple(weights.values()))


def _flow_bounds(lowest: Step, highest: Step, residual: float, chosen: Chosen) -> list[FlowBound]:
    entering, leaving = (to_numpy(step.graph(residual)).astype(np.float64) for step in (lowest, highest))
    for i in lowest.carried:
        entering[i, i] = np.inf  # a carried position is not limited
    into = entering.sum(0)
    sums = chosen.mixed(leaving[chosen.rows].sum(1)[None, :, None])[0, :, 0]
    return [FlowBound(float(total), into) for total in sums]


def _pipes(steps: Sequence[Step], weights: Sequence[Tensor], residual: float) -> list[Floats]:
    """Return the widths of the edges for flows."""
    matrices = []
    for step, own in zip(steps, weights, strict=True):
        matrix = to_numpy(replace(step, weights=own).graph(residual))
        for i in step.carried:  # a carried position is not limited
            matrix[i, i] = np.inf
        matrices.append(matrix)
    return matrices


def _range(carried: range, place: Mapping[int, int]) -> range:
    places = sorted({place[i] for i in carried})
    return range(places[0], places[-1] + 1) if places else range(0)
