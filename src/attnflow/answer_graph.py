"""The attention graph of a prompt and its answer: raw attention, rollout and flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture.answer_pass import log_odds
from attnflow.capture.encode import decoder_start
from attnflow.capture.inputs import Encoded
from attnflow.capture.prompt import AnswerLabels, Prompt
from attnflow.capture.runner import Runner
from attnflow.edges import traced_encoding
from attnflow.errors import InputError
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
        self, method: str, tokens: Sequence[int], layer: int, residual: float, edges: str | None
    ) -> tuple[Floats, dict[str, Any]]:
        """Return what the graph gives each token of the prompt: the mean over the positions that decide the span."""
        n = len(self.prompt.ids)
        trace = self._trace(edges, tokens)
        queries = list(tokens) if self.two_stacks else [n - 1 + t for t in tokens]
        options: dict[str, Any] = {"query": queries, "layer": layer}
        result = getattr(trace, method)(**options, **({} if method == "raw" else {"residual": residual}))
        values: Floats = result.values[0].mean(0)[:n].astype(np.float64)
        return values, {k: v for k, v in result.provenance.items() if k in KEPT}

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
