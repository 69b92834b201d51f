"""Edges about answers of many texts at once: one forward and one backward pass of a padded batch.

A text answers from its own states alone, so the gradient of the sum of all scores is, at each text, the gradient of its own
score. The numbers equal those of `attnflow.Trace` for single texts, up to rounding. Nothing here loops over texts or waits
for a GPU once per text. A batch with a number that is not finite is refused as a whole: the caller then runs its texts one
by one, so that the other texts lose nothing.

The memory of a batch grows with its tokens, as in any backward pass, and with the squares of its lengths, see `pair_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.check import Checked
from attnflow.capture.collect import Call, Collector
from attnflow.capture.freeze import Unchanging
from attnflow.capture.frozen import FrozenPass, entering, no_answer, run_frozen
from attnflow.capture.inputs import Encoded, batched
from attnflow.capture.inside import check_inside, check_windows, layers_of_texts, wide
from attnflow.capture.predict import answered, masked_positions, places_of
from attnflow.capture.routes import running
from attnflow.capture.runner import Runner
from attnflow.capture.sublayer import layer_path
from attnflow.edges import EDGES, normalization_of, normalized
from attnflow.edges.weights import (
    OF_LAYERS,
    Signed,
    check_signed,
    evidence_shares,
    positive_evidence,
    positive_gradient,
    positive_product,
    signed_shares,
)
from attnflow.errors import InputError, ModelError
from attnflow.importance.question import answer_text, check_of, score

BY_GRADIENT = {"gradient": positive_gradient, "attention-gradient": positive_product}
"""Edges made from weights and their gradients, by name: from [..., head, query, key] to [..., query, key]."""

TOGETHER = (*OF_LAYERS, *BY_GRADIENT, "answer")
"""Edges that work for many texts at once, by the names of `attnflow.edges.EDGES`; the others take one text at a time."""


class NotFinite(ModelError):
    """A batch with a text whose numbers are not finite."""


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Texts that run together, padded on the right. tensors: [text, position] each. lengths: the tokens of each text."""

    model: Runner
    checked: Checked
    tensors: Mapping[str, Tensor]
    lengths: Sequence[int]

    @classmethod
    def of(cls, model: Runner, encoded: Sequence[Encoded], checked: Checked | None = None) -> TextBatch:
        """Pad encoded texts to a batch."""
        checked = model.verify(encoded[0]) if checked is None else checked
        tensors = batched([one.tensors for one in encoded], model.pad_id())
        return cls(model, checked, tensors, [int(one.tensors["input_ids"].shape[1]) for one in encoded])

    @property
    def width(self) -> int:
        return int(self.tensors["input_ids"].shape[1])

    @property
    def depth(self) -> int:
        return len(self.checked.stack.main)

    @cached_property
    def placed(self) -> dict[str, Tensor]:
        """The tensors on the model's device."""
        return self.model.placed(self.tensors)

    @cached_property
    def sizes(self) -> Tensor:
        """The lengths, on the model's device."""
        return torch.tensor(self.lengths, device=self.model.device)

    @cached_property
    def ranks(self) -> Tensor:
        """[text]: the rank of a text's length among the batch's different lengths, the order of last-position logits."""
        rank = {length: number for number, length in enumerate(sorted(set(self.lengths)))}
        return torch.tensor([rank[length] for length in self.lengths], device=self.model.device)

    @cached_property
    def masked(self) -> Tensor:
        """[text, position]: whether a token is the mask of a masked language model."""
        return masked_positions(self.model, self.placed["input_ids"]) & self.present

    @cached_property
    def present(self) -> Tensor:
        """[text, position]: whether a text has a token; False at its padding."""
        return torch.arange(self.width, device=self.model.device) < self.sizes[:, None]

    @cached_property
    def pairs(self) -> Tensor:
        """[text, query, key]: whether a text has both."""
        return self.present[:, :, None] & self.present[:, None, :]

    @cached_property
    def example(self) -> Tensor:
        """The ids of one text, in host memory; of a text without a mask if there is one."""
        number = int(self.masked.any(1).int().argmin())
        return self.tensors["input_ids"][number, : self.lengths[number]].cpu()

    def prepare(self) -> None:
        """Copy what later steps need to the device, and back: once the model runs, a copy would wait for it."""
        if self.checked.padding is False and len(set(self.lengths)) > 1:
            raise ModelError(
                f"{type(self.model.model).__name__} computes other numbers for a padded text than for the text alone: run "
                "texts of one length together, or one by one"
            )
        _ = self.ranks, self.pairs, self.example


@dataclass(frozen=True, eq=False)
class Answers:
    """The model's likeliest answer to each text of a batch.

    kind: the same for all, as in `attnflow.importance.question.Question`. places: [text], the position that answers; None
    if the whole text does. chosen: [text], the class or token. chances: [text], its probability, or the score itself.
    logits: [text, class or token], at the answering places. of: the number that edges are about.
    """

    kind: str
    places: Tensor | None
    logits: Tensor
    chosen: Tensor
    chances: Tensor
    of: str

    def records(self, model: Runner) -> list[dict[str, Any]]:
        """Return the answer of each text, as in the provenance of a trace. Waits for the GPU once."""
        numbers, chances = torch.stack([self.chosen.double(), self.chances.double()]).tolist()
        names = {number: answer_text(model, self.kind, [int(number)]) for number in set(numbers)}
        measure = "score" if self.kind == "score" else "probability"
        about = {"of": "score" if self.kind == "score" else self.of}
        return [
            {"kind": self.kind, "name": names[number], measure: chance, **about}
            for number, chance in zip(numbers, chances, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class BatchEdges:
    """The weights of edges, [text, query, key] for each layer, zero if a text has no such position.

    weights: as defined. answers: None if edges are not about an answer.
    """

    name: str
    weights: tuple[Tensor, ...]
    answers: Answers | None

    @property
    def whole(self) -> bool:
        """Whether the weights already contain the residual connection, so that none is added."""
        return EDGES[self.name].whole

    def graph(self, normalize: str | None = None) -> tuple[Tensor, ...]:
        """Return the weights as in the graph of a trace: see `attnflow.edges.reweighed`."""
        return tuple(normalized(torch.stack(self.weights), normalization_of(self.name, normalize)))


@dataclass(frozen=True, eq=False)
class BatchParts:
    """How the log-odds of each text's answer split over its tokens: [text, position] each, signed, zero at padding.

    rows: what the requested queries read, at all layers. inputs: what the answer owes to each input, all the way down.
    log_odds, constants, gaps: [text], as in `attnflow.capture.frozen.BatchEvidence`.
    """

    batch: TextBatch
    answers: Answers
    rows: Tensor
    inputs: Tensor
    log_odds: Tensor
    constants: Tensor | None
    gaps: Tensor

    def answer_rows(self, signed: Signed = False) -> Tensor:
        """Return `Trace.answer_rows` of every text."""
        return self._shown(self.rows, signed)

    def answer_inputs(self, signed: Signed = False) -> Tensor:
        """Return `Trace.answer_inputs` of every text."""
        return self._shown(self.inputs, signed)

    def _shown(self, parts: Tensor, signed: Signed) -> Tensor:
        check_signed(signed)
        if signed is True:
            return parts
        if self.batch.checked.causal:  # a text of one token has only its first
            parts = parts.clone()
            parts[:, 0] = torch.where(self.batch.sizes > 1, 0, parts[:, 0])
        shares = signed_shares(parts)
        return shares if signed else shares.clamp(min=0)


def edges_of(batch: TextBatch, name: str, of: str = "logit") -> BatchEdges:
    """Return the edges of this name in each text. of: what edges by gradients are about; answer edges use the log-odds."""
    if name == "answer":
        return answer_edges(batch)
    if name in BY_GRADIENT:
        return edges_by_gradient(batch, name, of)
    if name in OF_LAYERS:
        return edges_of_layers(batch, name)
    raise InputError(f"edges={name!r}: for a batch, expected {', '.join(map(repr, TOGETHER))}")


def edges_by_gradient(batch: TextBatch, name: str = "attention-gradient", of: str = "logit") -> BatchEdges:
    """Return edges "gradient" or "attention-gradient" of each text, about its own answer: a forward and a backward pass.

    of: as in `Model.gradient`, except "difference".
    """
    check_of(of)
    if of == "difference":
        raise InputError("of='difference': for a batch, expected 'probability', 'logit' or 'log-odds'")
    logits, calls = _run_with_graph(batch)
    with torch.inference_mode(False), torch.enable_grad(), running():
        answers, score_of = _likeliest_answers(batch, logits, of)
        y = score_of(logits)
        gradients = list(torch.autograd.grad(y.sum(), [call.heads for call in calls], allow_unused=True))
    weights = []
    for number, call in enumerate(calls):
        heads, gradient = wide(call.heads), gradients[number]
        edges = BY_GRADIENT[name](heads, torch.zeros_like(heads) if gradient is None else wide(gradient))
        edges = edges.to(batch.pairs.device)
        weights.append(torch.where(batch.pairs, edges, 0))
        call.heads = call.value = gradients[number] = None  # the heads of a layer take most of a batch's memory
    _check_finite(batch, [y.detach(), *weights])
    return BatchEdges(name, tuple(weights), answers)


def edges_of_layers(batch: TextBatch, name: str) -> BatchEdges:
    """Return edges that are not about an answer, by a forward pass: "mean", "max", "value-norm" or "head-norm"."""
    batch.prepare()
    layers = layers_of_texts(batch.model, batch.placed, batch.checked, batch.lengths)
    weights = tuple(torch.where(batch.pairs, OF_LAYERS[name](layer), 0) for layer in layers)
    _check_finite(batch, weights)
    return BatchEdges(name, weights, None)


def answer_edges(batch: TextBatch) -> BatchEdges:
    """Return edges "answer" of each text, about the log-odds of its own answer: a frozen forward and backward pass."""
    frozen = _run_frozen(batch)
    answers, score_of = _likeliest_answers(batch, frozen.logits, "log-odds")
    evidence = frozen.evidence_of_texts(score_of, every=True)
    weights = []
    for edges, holds in zip(evidence.layers, evidence.holds, strict=True):
        shares = evidence_shares(positive_evidence(edges.double(), holds))
        weights.append(torch.where(batch.pairs, shares, 0))
    return BatchEdges("answer", tuple(weights), answers)


def split(batch: TextBatch, queries: Tensor | None = None, *, natural: Sequence[int] | None = None) -> BatchParts:
    """Split the log-odds of each text's own answer over its tokens: a frozen forward and backward pass.

    queries: [text, position], 1 at the positions whose rows are requested; by default the one that answers. natural: the
    position of each text to explain if the answer has no single place, for example that of a class token
    (`attnflow.capture.assemble.natural_query`); by default the last position of a causal model, and all positions of
    others.
    """
    # copied before the model runs, because a later copy would wait for it
    wanted = None if queries is None else queries.to(batch.model.device)
    places = None if natural is None else torch.tensor(natural, device=batch.model.device)
    frozen = _run_frozen(batch)
    answers, score_of = _likeliest_answers(batch, frozen.logits, "log-odds")
    taken = _taken(batch, answers, places) if wanted is None else wanted
    evidence = frozen.evidence_of_texts(score_of, taken=taken)
    rows = torch.stack(evidence.columns if taken is None else evidence.rows).sum(0, dtype=torch.float64)
    if batch.checked.causal:
        # what a position reads from itself stays there, so its part is what it holds at the bottom
        rows = torch.where(batch.present if taken is None else taken > 0, evidence.own, rows)
    rows, inputs = (torch.where(batch.present, parts, 0) for parts in (rows, evidence.own))
    return BatchParts(batch, answers, rows, inputs, evidence.y, evidence.constants, evidence.gaps)


def pair_bytes(layers: int, heads: int, edges: str) -> int:
    """Return about how many bytes a batch needs for each pair of a query and a key of each text, padding included.

    In addition it needs for each token what the plain backward pass needs: for BERT, some nine states per layer.

    >>> 2000 * 32**2 * pair_bytes(6, 12, "attention-gradient") >> 20  # MiB of 2,000 texts of 32 tokens
    1500
    """
    if edges in BY_GRADIENT:  # all heads and their gradients, and what is left of each layer, in float32
        return layers * (2 * heads + 2) * 4 + 3 * heads * 4
    if edges == "answer":  # all heads, and the edges with their sum, with float64 on the way
        return layers * (heads + 4) * 4 + 4 * heads * 4
    return layers * (heads + 2) * 4  # edges by norms also need some vectors of a layer's width per head and token


def _run_with_graph(batch: TextBatch) -> tuple[Tensor | None, list[Call]]:
    """Return the logits, if there are any, and the attention calls with all heads, which gradients reach."""
    model, checked = batch.model, batch.checked
    check_inside(model, checked)
    batch.prepare()
    calls = checked.stack.main
    check_windows(model, checked.paths[calls[0]])
    model.check_gradients()
    collector = Collector("inside", measure=False)
    with (
        torch.inference_mode(False),
        entering(model.model, [layer_path(checked.paths[calls[0]])], collector),  # to build the autograd graph
        Unchanging(),
    ):
        out = model.run(batch.placed, collector, checked, last=_read_last(batch), grad=True)
    logits = out.get("logits") if hasattr(out, "get") else None
    return logits if isinstance(logits, Tensor) else None, [collector.calls[i] for i in calls]


def _run_frozen(batch: TextBatch) -> FrozenPass:
    """Return a frozen pass."""
    model, checked = batch.model, batch.checked
    check_inside(model, checked)
    batch.prepare()
    check_windows(model, checked.paths[checked.stack.main[0]])
    last = model.last_logits(_read_last(batch))
    return run_frozen(model, batch.placed, checked, texts=len(batch.lengths), **last)


def _read_last(batch: TextBatch) -> Sequence[int]:
    """Return the lengths, if the last logits of texts are enough."""
    return () if isinstance(getattr(batch.model.config, "prediction_position", None), int) else batch.lengths


def _likeliest_answers(batch: TextBatch, logits: Tensor | None, of: str) -> tuple[Answers, Callable[[Tensor], Tensor]]:
    """Return the likeliest answer to each text, and its score as a function of the logits: [text]."""
    model = batch.model
    if logits is None:
        raise InputError(f"these edges are about an answer, and {no_answer(model)}")
    kind, places = _places(batch, logits)
    at = None if places is None else _logit_places(batch, logits, places)

    def rows_of(logits: Tensor) -> Tensor:
        """Return [text, class]."""
        return logits if at is None else logits[torch.arange(len(at), device=at.device), at]

    with torch.no_grad():
        rows = rows_of(logits)
        chosen = rows.argmax(-1)
        chances = score(model, kind, rows, chosen, 0, "probability")

    def score_of(logits: Tensor) -> Tensor:
        return score(model, kind, rows_of(logits), chosen, 0, of)

    return Answers(kind, places, rows.detach(), chosen, chances, of), score_of


def _places(batch: TextBatch, logits: Tensor) -> tuple[str, Tensor | None]:
    """Return the kind of answer and the position that answers: `attnflow.capture.predict.answered` for a batch."""
    kind, place = answered(batch.model, logits[:1], batch.example)
    return kind, None if place is None else places_of(batch.model, kind, batch.masked, batch.sizes)


def _logit_places(batch: TextBatch, logits: Tensor, places: Tensor) -> Tensor:
    """Return where the logits of these positions are; by length if only the last positions of texts were computed."""
    return places if logits.shape[1] == batch.width else batch.ranks


def _taken(batch: TextBatch, answers: Answers, natural: Tensor | None) -> Tensor | None:
    """Return [text, position]: True at the query of each text that answers; None if all of them do."""
    places = natural if answers.places is None else answers.places
    if places is None and batch.checked.causal:
        places = batch.sizes - 1
    return None if places is None else torch.arange(batch.width, device=places.device) == places[:, None]


def _check_finite(batch: TextBatch, tensors: Sequence[Tensor]) -> None:
    """Refuse numbers that are not finite; waits for the GPU once."""
    if not bool(torch.stack([x.sum(dtype=torch.float64) for x in tensors]).isfinite().all()):
        raise NotFinite(
            f"{type(batch.model.model).__name__} gives numbers that are not finite for a text of this batch of "
            f"{len(batch.lengths)}: run its texts one by one"
        )
