"""Long contexts: traces that keep queries and keys only, and explain a few positions by products Pᵀ·r."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow._arrays import indices, positions
from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Collector
from attnflow.capture.inputs import Encoded
from attnflow.capture.linear import step, uniform_step
from attnflow.capture.passes import Prediction, Residual, check_shares, measured_shares
from attnflow.capture.runner import Runner
from attnflow.capture.scores import Scores
from attnflow.capture.verify import kind_of, probe
from attnflow.errors import InputError, ModelError
from attnflow.receptive import compared
from attnflow.result import TokenAttention
from attnflow.rollout import roll_down
from attnflow.selection import select_layers
from attnflow.sinks import overwhelming, short_values


@dataclass(frozen=True, eq=False)
class LinearTrace:
    """A forward pass of which only queries and keys were kept: memory grows with the length, not with its square.

    `raw` and `rollout` explain the positions and layers that `Model.trace` was asked for; flow needs the matrices.
    """

    tokens: tuple[str, ...] = field(repr=False)
    special: tuple[bool, ...] = field(repr=False)
    word_ids: tuple[int | None, ...] = field(repr=False)
    word_texts: tuple[str, ...] = field(repr=False)
    text: str = field(repr=False)
    scores: tuple[Scores, ...] = field(repr=False)
    device: torch.device
    queries: tuple[int, ...]
    layers: tuple[int, ...]
    provenance: Mapping[str, Any] = field(repr=False)
    prediction: Prediction | None = None
    own: tuple[Tensor | None, ...] = field(default=(), repr=False)
    lengths: tuple[Tensor | None, ...] = field(default=(), repr=False)

    def raw(self) -> TokenAttention:
        """Raw attention of the chosen positions at the chosen layers."""
        return self._result("raw", torch.stack([step(self.scores[l], self._one_hot())[0] for l in self.layers]), {})

    def rollout(self, residual: Residual = 0.5, receptive_field: str | None = None) -> TokenAttention:
        """Attention rollout of the chosen positions, from each chosen layer down to the input.

        ``r(l-1) = (1 - residual) · mean_h P_h(l)ᵀ·r(l) + residual · r(l)``, from the one-hot row of the query down.
        residual: a weight, or "measured", each position's own share at each layer.
        receptive_field: None, "ratio" or "difference", as in `attnflow.receptive`; the uniform attention beside it is
        computed without matrices too.
        """
        if receptive_field not in (None, "ratio", "difference"):
            raise InputError(
                f'receptive_field={receptive_field!r}: expected "ratio" or "difference" here, or None for none'
            )
        check_shares(residual)
        values = self._rolled(residual, step)
        options: dict[str, Any] = {"residual": residual}
        if receptive_field is not None:
            options["receptive_field"] = receptive_field
            values = compared(values, self._rolled(residual, uniform_step), receptive_field)
        else:
            options |= self._note(values)
        return self._result("rollout", values, options)

    def flow(self, *_: Any, **__: Any) -> TokenAttention:
        raise InputError('flow needs one matrix a layer, which memory="linear" never makes: trace with memory="graph"')

    def _rolled(self, residual: Residual, transposed: Callable[[Scores, Tensor], Tensor]) -> Tensor:
        """[layer, query, input]; all rows go down together: several at once cost less than one at a time."""

        def through(l: int, state: Tensor | None) -> Tensor:
            rows = [x for x in (state, self._one_hot() if l in self.layers else None) if x is not None]
            both = torch.cat(rows, dim=1)
            if isinstance(residual, str):
                own = measured_shares(self.own[l]).to(both)
                return transposed(self.scores[l], (1 - own) * both) + own * both
            return (1 - residual) * transposed(self.scores[l], both) + residual * both

        rolled = roll_down(self.layers, 0, through)
        return torch.stack([rolled[l][0] for l in self.layers])

    def _note(self, values: Tensor) -> dict[str, list[str]]:
        """The sentence for a row that one token takes, whose values are short in most layers: a sink by the row itself."""
        below = [x for x in self.lengths[: max(self.layers) + 1] if x is not None]
        row = values[-1].mean(0)
        first = int(row.argmax())
        if not below or sum(first in short_values(x) for x in below) <= len(below) / 2:
            return {}
        note = overwhelming(row, [first], "rollout", self.tokens)
        return {} if note is None else {"notes": [note]}

    def _one_hot(self) -> Tensor:
        rows = torch.zeros(1, len(self.queries), len(self.tokens), device=self.device)
        rows[0, torch.arange(len(self.queries)), torch.tensor(self.queries)] = 1
        return rows

    def _result(self, method: str, values: Tensor, options: Mapping[str, Any]) -> TokenAttention:
        return TokenAttention(
            values=values.cpu().numpy().astype(np.float64),
            method=method,
            layers=self.layers,
            queries=self.queries,
            query_tokens=tuple(self.tokens[q] for q in self.queries),
            tokens=self.tokens,
            word_ids=self.word_ids,
            word_texts=self.word_texts,
            special=self.special,
            text=self.text,
            provenance={**self.provenance, **options},
        )


def trace_linear(
    model: Runner,
    encoded: Encoded,
    reduce: str | list[int],
    queries: Sequence[int] | None,
    layers: Sequence[int] | None,
    offload: bool,
) -> LinearTrace:
    """`Model.trace` with memory="linear"."""
    if reduce != "mean":
        raise InputError(f'heads={reduce!r}: memory="linear" takes the mean over heads; leave heads out')
    queries = None if queries is None else positions(queries, "query")
    layers = None if layers is None else positions(layers, "layer")
    for name, numbers in (("queries", queries), ("layers", layers)):
        if numbers == []:
            raise InputError(f"{name} is an empty list: expected at least one")
    if "input_ids" not in encoded.tensors or encoded.target is not None:
        raise InputError('memory="linear" is for texts and models with one stack; trace this one with memory="graph"')
    checked = model.verify(encoded)
    if not checked.blocks:
        raise ModelError(
            f'memory="linear" needs attention that is softmax(QKᵀ + mask), which {type(model.model).__name__} was not '
            'found to have: trace with memory="graph"'
        )
    kind = kind_of(encoded)
    if kind not in model.checked_linear:
        _verify(model, encoded, checked)
        model.checked_linear.add(kind)
    return _trace(model, encoded, checked, queries, layers, offload)


def _trace(
    model: Runner,
    encoded: Encoded,
    checked: Checked,
    queries: Sequence[int] | None,
    layers: Sequence[int] | None,
    offload: bool,
) -> LinearTrace:
    n = int(encoded.tensors["input_ids"].shape[1])
    # A mask of ones would be read at every layer for nothing; beside positions it says that they are one text.
    positioned = "position_ids" in encoded.tensors
    tensors = {k: v for k, v in encoded.tensors.items() if positioned or k != "attention_mask" or not bool(v.all())}
    collector = Collector("operands", offload=offload)
    batch = model.run_batch([replace(encoded, tensors=tensors)], checked, collector=collector)
    scores = [batch.calls[i].scores for i in checked.stack.main]
    return LinearTrace(
        tokens=encoded.tokens,
        special=encoded.special,
        word_ids=encoded.word_ids,
        word_texts=encoded.word_texts,
        text=encoded.text,
        scores=tuple(s for s in scores if s is not None),
        device=model.device,
        queries=tuple(indices([n - 1] if queries is None else queries, n, "query")),
        layers=tuple(select_layers([-1] if layers is None else layers, len(scores))),
        provenance=batch.provenance(),
        prediction=batch.prediction(0),
        own=tuple(None if own is None else own[0] for own in (batch.calls[i].own for i in checked.stack.main)),
        lengths=tuple(None if x is None else x[0] for x in (batch.calls[i].lengths for i in checked.stack.main)),
    )


def _verify(model: Runner, encoded: Encoded, checked: Checked) -> None:
    """Products without matrices against matrices, from the same operands, on the first tokens of the text."""
    tensors = probe(encoded.tensors)
    n = int(tensors["input_ids"].shape[1])
    trace = _trace(model, Encoded(tensors, ("",) * n), checked, None, None, False)
    rows = torch.rand(1, 2, n, generator=torch.Generator().manual_seed(0)).to(model.device)
    for number, scores in enumerate(trace.scores):
        whole = scores.weights(0, n).mean(1).float()
        gap = float((step(scores, rows) - rows @ whole).abs().max())
        if gap > (2e-2 if half(model.dtype) else 1e-4):
            raise ModelError(
                f'layer {number} by memory="linear" differs from its matrix by {gap:.3g}: trace with memory="graph"'
            )
