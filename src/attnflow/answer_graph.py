"""The attention graph of a prompt and its answer: raw attention, rollout and flow, and bottlenecks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.answer_paths import Bottleneck, named
from attnflow.answer_rows import Units
from attnflow.capture.answer_pass import log_odds
from attnflow.capture.encode import decoder_start
from attnflow.capture.inputs import Encoded
from attnflow.capture.prompt import AnswerLabels, Prompt
from attnflow.capture.runner import Runner
from attnflow.edges import traced_encoding
from attnflow.edges.weights import evidence_graph
from attnflow.errors import InputError
from attnflow.flow import flow, max_flow
from attnflow.graph import merge
from attnflow.trace import Trace

Floats = NDArray[np.float64]

GRAPH_TOKENS = 4096
"""The longest text, in tokens, for methods that need the whole attention graph, one matrix per layer."""

KEPT = ("residual", "edges", "sinks", "reliability", "heads", "captured")
"""The fields that a result keeps from the provenance of the graph."""


@dataclass(frozen=True)
class AnswerGraph:
    """A prompt and its answer in one graph. two_stacks: whether the model is an encoder-decoder. beside: the tensors of an
    image that go with the tokens."""

    model: Runner
    prompt: Prompt
    ids: tuple[int, ...]
    labels: AnswerLabels
    two_stacks: bool
    beside: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def attention(self) -> Trace:
        """The graph of attention itself."""
        return self._trace(None, range(len(self.ids)))

    def scores(
        self, method: str, tokens: Sequence[int], layer: int, residual: float, sinks: str, edges: str | None
    ) -> tuple[Floats, dict[str, Any]]:
        """Return what the graph gives each token of the prompt: the mean over the positions that decide the span."""
        n = len(self.prompt.ids)
        trace = self._trace(edges, tokens)
        queries = list(tokens) if self.two_stacks else [n - 1 + t for t in tokens]
        options: dict[str, Any] = {"query": queries, "layer": layer, "sinks": sinks}
        result = getattr(trace, method)(**options, **({} if method == "raw" else {"residual": residual}))
        values: Floats = result.values[0].mean(0)[:n].astype(np.float64)
        return values, {k: v for k, v in result.provenance.items() if k in KEPT}

    def flow_to(
        self, units: Units, tokens: Sequence[int], layer: int, residual: float, sinks: str, edges: str | None
    ) -> Floats:
        """Return the maximum flow from the span to each unit, merged before solving; a unit that only decides gets 0."""
        if self.two_stacks:
            raise InputError(
                'flow to units needs one stack of layers, and an encoder-decoder has two: give unit="token"'
            )
        trace = self._trace(edges, tokens)
        groups, deciding, order = self._merging(units, tokens, len(trace.tokens))
        graph = merge(np.stack(list(trace.graph(residual, sinks))), order)
        filled = [number for number, group in enumerate(groups) if group]
        values = np.zeros(len(groups))
        query = order.index(deciding)
        values[filled] = flow(graph, queries=query, tokens=list(range(len(filled))), layers=layer)[0, 0]
        return values

    def bottleneck(self, units: Units, to: int | str, tokens: Sequence[int], edges: str) -> Bottleneck:
        """Return the maximum flow from the span to one unit, with its minimum cut."""
        number = units.number(to)
        if edges not in ("answer", "attention"):
            raise InputError(f'edges={edges!r}: expected "answer" or "attention"')
        if self.two_stacks:
            raise InputError("the bottleneck needs one stack of layers, and an encoder-decoder has two")
        trace = self._trace("answer" if edges == "answer" else None, tokens)
        groups, deciding, order = self._merging(units, tokens, len(trace.tokens))
        if not groups[number]:
            raise InputError(f"unit {number} contains the position that decides the answer: choose another")
        if edges == "attention":
            graph = merge(np.stack(list(trace.graph())), order)
        else:
            members = np.array([[float(i in group) for i in range(len(trace.tokens))] for group in order])
            graph = members @ evidence_graph(trace).cpu().numpy() @ members.T
        token = sum(1 for group in groups[:number] if group)
        filled = [text for text, group in zip(units.texts, groups, strict=True) if group]
        span = self.labels.quoted(tokens)
        nodes = [*filled, span, *(trace.tokens[i] for (i,) in order[len(filled) + 1 :])]
        return named(max_flow(graph, query=order.index(deciding), token=token, layer=-1), nodes, span)

    def _merging(
        self, units: Units, tokens: Sequence[int], length: int
    ) -> tuple[list[list[int]], list[int], list[list[int]]]:
        """Return the units without the positions that decide the span, these positions, and all merged nodes."""
        deciding = [len(self.prompt.ids) - 1 + t for t in tokens]
        groups = [[i for i in group if i not in deciding] for group in units.groups]
        apart = {i for group in groups for i in group} | set(deciding)
        return groups, deciding, [*filter(None, groups), deciding, *([i] for i in range(length) if i not in apart)]

    def _trace(self, edges: str | None, tokens: Sequence[int]) -> Trace:
        length = len(self.prompt.ids) + len(self.ids)
        if length > GRAPH_TOKENS:
            raise InputError(
                f"prompt and answer have {length} tokens, and the attention graph takes at most {GRAPH_TOKENS}: use "
                "method='answer_rows', which needs no graph"
            )
        rows = slice(0, len(self.ids)) if self.two_stacks else slice(len(self.prompt.ids) - 1, length - 1)
        score = log_odds(rows, self.ids, [float(i in tokens) for i in range(len(self.ids))])
        name = {"name": self.labels.quoted(tokens)}
        return Trace.of(traced_encoding(self.model, self._encoded(), edges, score, name))

    def _encoded(self) -> Encoded:
        """Return prompt and answer without the last token, which nothing reads."""
        prompt, answer, keep = self.prompt, self.labels, len(self.ids) - 1
        written = list(self.ids[:keep])
        if self.two_stacks:
            start = decoder_start(self.model)
            ids = torch.tensor([[start, *written]])
            name = str(self.model.tokenizer.convert_ids_to_tokens(start)) if self.model.tokenizer else str(start)
            side = Encoded(
                {}, (name, *answer.tokens[:keep]), (True, *answer.special[:keep]), (None, *answer.word_ids[:keep]),
                answer.word_texts, answer.text,
            )  # fmt: skip
            tensors = {"input_ids": torch.tensor([list(prompt.ids)]), "decoder_input_ids": ids}
            return Encoded(
                tensors, prompt.tokens, prompt.special, prompt.word_ids, prompt.word_texts, prompt.text, target=side
            )
        shift = len(prompt.word_texts)
        words = tuple(None if w is None else w + shift for w in answer.word_ids[:keep])
        return Encoded(
            {"input_ids": torch.tensor([[*prompt.ids, *written]]), **self.beside}, (*prompt.tokens, *answer.tokens[:keep]),
            (*prompt.special, *answer.special[:keep]), (*prompt.word_ids, *words),
            (*prompt.word_texts, *answer.word_texts), prompt.text + answer.text
        )  # fmt: skip
