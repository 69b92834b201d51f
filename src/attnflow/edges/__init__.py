"""Other definitions of the weight of an edge.

``Model.trace(text, edges="alti")`` returns a trace whose graph has these weights, for raw attention, rollout and flow
alike. ``trace.with_edges("value-norm")`` switches to others. The functions of `attnflow.edges.weights` compute the bare
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnflow.capture.check import Checked, half
from attnflow.capture.frozen import Evidence, FrozenPass, no_answer, run_frozen
from attnflow.capture.inputs import Encoded
from attnflow.capture.inside import Inside, check_windows, main_calls, pass_with, run_inside, wide
from attnflow.capture.layer_gradients import Descent, run_layers
from attnflow.capture.linear import pass_down
from attnflow.capture.passes import Pass
from attnflow.capture.routes import running
from attnflow.capture.runner import Batch, Runner, check_calls
from attnflow.capture.verify import kind_of, probe
from attnflow.edges.weights import EDGES as EDGES
from attnflow.edges.weights import Edges, attention_gradient, rows
from attnflow.errors import InputError, ModelError
from attnflow.importance.question import (
    Question,
    answer_record,
    check_difference,
    check_of,
    logits_at,
    question_of,
    score,
)
from attnflow.method_table import LAYERED

PassT = TypeVar("PassT", bound=Pass)

NORMALIZE = ("rows", "graph", "none")

BY_LAYERS = ("attention-gradient", "answer")
"""Edges by gradients that need no matrix: layers run again one by one and return what their edges are made of."""


def edges_of(name: str) -> Edges:
    if not isinstance(name, str) or name not in EDGES:
        raise InputError(f"edges={name!r}: expected one of {', '.join(map(repr, EDGES))}")
    return EDGES[name]


def normalization_of(name: str, normalize: str | None) -> str:
    """Return how edges are put into a graph: as given, or as they were published."""
    how = edges_of(name).normalize if normalize is None else normalize
    if how not in NORMALIZE:
        raise InputError(f"normalize={normalize!r}: expected one of {', '.join(map(repr, NORMALIZE))}")
    return how


def check_choice(name: str, normalize: str | None, residual: object, methods: Sequence[str]) -> None:
    """Check edges and their options before a model is loaded. residual: None unless it was chosen."""
    normalization_of(name, normalize)
    followed = [method for method in methods if method in LAYERED]
    if EDGES[name].whole and residual is not None and followed:
        raise InputError(
            f"residual={residual!r} has no effect with edges={name!r}, which already include the residual connection: "
            "leave it out, or choose other edges"
        )


def reweighed(trace: PassT, name: str, normalize: str | None = None) -> PassT:
    """Return the same trace with other weights on its edges.

    normalize: "rows" divides each row by its sum. "graph" divides all layers by one number, the largest sum of any row, so
        that rows sum to at most one and keep their proportions. "none" uses the weights as they are. The default is what
        the weights were published with: "none" for gradients, "rows" for the others. Rollout ≤ flow ≤ 1 holds if no row
        sums to more than one: with "rows" and "graph", but not with "none".
    """
    kind, how = edges_of(name), normalization_of(name, normalize)
    edge_weights = normalized(kind.function(trace), how)  # [layer, query, key]
    steps = [  # sinks are recognized by attention, which these weights are not
        replace(step, weights=w.float(), whole=kind.whole, lengths=None)
        for step, w in zip(trace.steps, edge_weights, strict=True)
    ]
    # normalize determines what happens to rows with a sink
    provenance = {k: v for k, v in trace.provenance.items() if k != "missing"}
    return replace(trace, steps=tuple(steps), provenance={**provenance, "edges": name, "edges_normalized": how})


def normalized(edge_weights: Tensor, how: str) -> Tensor:
    """Return weights [layer, ..., query, key] of one text or many, normalised as `reweighed` says."""
    if how == "rows":
        return rows(edge_weights)
    if how == "none":
        return edge_weights
    largest = edge_weights.sum(-1).amax((0, -1))  # one number per text
    return edge_weights / torch.where(largest == 0, 1, largest)[..., None, None]


def traced(
    model: Runner, text: Any, name: str, normalize: str | None, *, answer: Any, of: str, missing: str, truncate: bool
) -> Pass:
    """Trace one text with these edges: `Model.trace` with edges=."""
    kind = edges_of(name)
    if missing != "keep":
        raise InputError(
            f"missing={missing!r} does not work with edges: use normalize= for rows that sum to less than one"
        )
    if name == "answer":
        return reweighed(_answered(model, model.encode(text, truncate=truncate), answer), name, normalize)
    seen = look_inside(model, text, gradient=kind.gradient, answer=answer, of=of, truncate=truncate)
    return reweighed(seen, name, normalize)


def traced_encoding(
    model: Runner, encoded: Encoded, name: str | None, score_of: Callable[[Tensor], Tensor], about: Mapping[str, Any]
) -> Pass:
    """Trace one encoded text, by attention alone if there is no name, or with edges about a score of its logits.

    about: what the score is, for the provenance.
    """
    if name is None:
        return model.run_batch([encoded]).passed(0)
    kind = edges_of(name)
    _check_one_stack(model, encoded, name)
    if name == "answer":
        batch, frozen = _run_once(model, encoded, every_logit=True)
        return reweighed(_with_answer(batch, about, frozen.evidence(score_of, every=True)), name)
    batch, inside = run_inside(model, encoded, kind.gradient, every_logit=True)
    if kind.gradient:
        inside = _differentiated(batch, inside, score_of, about)
    return reweighed(pass_with(batch, inside), name)


def _differentiated(
    batch: Batch, inside: Inside, score_of: Callable[[Tensor], Tensor], about: Mapping[str, Any]
) -> Inside:
    """Return ∂y/∂W of every layer, for a score y of the logits."""
    with torch.enable_grad(), running():  # even if the caller has turned gradients off
        y = score_of(batch.out["logits"])
        gradients = torch.autograd.grad(y, [call.heads for call in main_calls(batch)], allow_unused=True)
    layers = [
        replace(layer, gradient=torch.zeros_like(layer.weights) if g is None else wide(g[0]).to(layer.weights.device))
        for layer, g in zip(inside.layers, gradients, strict=True)
    ]
    return replace(inside, layers=tuple(layers), answer=about, unanswered="")


def _check_one_stack(model: Runner, encoded: Encoded, name: str) -> None:
    if model.verify(encoded).stack.cross:
        raise InputError(f"edges={name!r} need a model with one stack of layers: leave edges out")


def _run_once(model: Runner, encoded: Encoded, every_logit: bool = False) -> tuple[Batch, FrozenPass]:
    """Run one forward pass that serves both: the weights of attention, and what an answer owes to its edges."""
    checked = model.verify(encoded)
    check_windows(model, checked.paths[checked.stack.main[0]])
    ids = encoded.tensors.get("input_ids")  # an image has none
    lengths = [] if ids is None else [int(ids.shape[1])]
    last = model.last_logits([] if every_logit else lengths)
    down: dict[str, Any] = {}
    if encoded.picture is not None and encoded.wiring is not None:
        down = encoded.wiring.down(sorted(encoded.picture.places))
    frozen = run_frozen(model, encoded.tensors, checked, keep=True, **down, **last)
    check_calls(frozen.calls, checked)
    calls = list(frozen.calls)
    return Batch(model, checked, [encoded], frozen.out, calls, lengths, frozen.mode, "mean"), frozen


def _with_answer(batch: Batch, about: Mapping[str, Any], evidence: Evidence, place: int | None = None) -> Pass:
    """Return what the pass left, and how the score of its answer splits; no heads are kept."""
    passed = batch.passed(0)
    inside = Inside((), about, "", lambda: evidence, batch.checked.causal, place)
    return replace(passed, inside=inside)


def _answered(model: Runner, encoded: Encoded, answer: Any) -> Pass:
    """Run forward once, for the logits that choose the answer and the attention graph, and backward once."""
    _check_one_stack(model, encoded, "answer")
    batch, frozen = _run_once(model, encoded)
    question = question_of(model, encoded, frozen.logits[0].detach(), answer)
    about = _about(question, "log-odds")
    evidence = frozen.evidence(_score_of(model, question, "log-odds"), every=True)
    passed = _with_answer(batch, about, evidence, question.place)
    place = question.place if question.kind == "masked token" else passed.default_query
    return replace(passed, default_query=place, provenance={**passed.provenance, "answer": about})


@dataclass(frozen=True, eq=False)
class Explained:
    """The answer that the edges of a trace without matrices are about.

    descent: the way down from its score through the layers. about: what the answer is, for the provenance. place: the
    position that answers; None if the whole text does. causal: whether positions only look back.
    """

    descent: Descent
    about: Mapping[str, Any]
    place: int | None
    causal: bool


def explained(
    model: Runner, encoded: Encoded, checked: Checked, name: str, *, answer: Any, of: str
) -> tuple[Batch, Explained]:
    """Run one forward pass of one text, and return the way down from its answer, for edges of `BY_LAYERS`.

    answer, of: what the edges are about, as in `Model.gradient`; answer edges are about the log-odds.
    """
    check_of(of)
    frozen = name == "answer"
    kind = f"{kind_of(encoded)}, by layers"
    if kind not in model.checked_linear:
        _verify_layers(model, encoded, checked)
        model.checked_linear.add(kind)
    layers = run_layers(model, encoded, checked, frozen=frozen)
    question = _question(layers.batch, answer)
    if question is None:
        raise InputError(f"these edges are about an answer, and {no_answer(model)}")
    of = "log-odds" if frozen else of
    check_difference([question], of)
    about = _about(question, of)
    descent = layers.descent(_score_of(model, question, of))
    return layers.batch, Explained(descent, about, question.place, checked.causal)


def _verify_layers(model: Runner, encoded: Encoded, checked: Checked) -> None:
    """Compare gradients layer by layer with those of one pass, on the first tokens of the text.

    Anything else that passes between layers, such as shared keys, has gradients too.
    """
    tensors = probe(encoded.tensors)
    some = Encoded(tensors, ("",) * int(tensors["input_ids"].shape[1]))

    def likeliest(logits: Tensor) -> Tensor:
        return logits.double().flatten(0, -2)[-1].max()

    descent = run_layers(model, some, checked, frozen=False).descent(likeliest)
    whole = attention_gradient(traced_encoding(model, some, "attention-gradient", likeliest, {}))
    for o in descent.operands():
        expected = whole[o.number].sum(0)  # [key]
        every = expected.new_ones(1, 1, len(expected))
        gap = float((pass_down(o.scores, every, o.weighing)[0, 0] - expected).abs().max() / whole.sum(1).max())
        if not gap <= (0.2 if half(model.dtype) else 1e-3):
            raise ModelError(
                f"gradients of {type(model.model).__name__} layer by layer differ from those of one pass by {gap:.2g} "
                f"(relative) at layer {o.number}: something besides the states passes between its layers. Trace with "
                'memory="graph"'
            )


def look_inside(
    model: Runner, text: Any, *, gradient: bool, answer: Any = None, of: str = "logit", truncate: bool = False
) -> Pass:
    """Run one pass from which `reweighed` can make all kinds of edges; those by gradients if ``gradient``.

    answer, of: what the gradients are about, as in `Model.gradient`.
    """
    check_of(of)
    batch, inside = run_inside(model, model.encode(text, truncate=truncate), gradient)
    return pass_with(batch, _with_gradients(batch, inside, answer, of) if gradient else inside)


def _question(batch: Batch, answer: Any) -> Question | None:
    """Return what is explained; None if the model gives no answer."""
    logits = batch.out.get("logits") if hasattr(batch.out, "get") else None
    if not isinstance(logits, Tensor):
        return None
    return question_of(batch.runner, batch.encoded[0], logits[0].detach(), answer)


def _about(question: Question, of: str) -> dict[str, Any]:
    """Return the answer in question, for the provenance."""
    return {**answer_record(question), "of": "score" if question.kind == "score" else of}


def _score_of(model: Runner, question: Question, of: str) -> Callable[[Tensor], Tensor]:
    """Return the score of the answer in question, as a function of the logits."""

    def score_of(logits: Tensor) -> Tensor:
        row = logits_at(logits[0], question.place)[None]
        return score(model, question.kind, row, question.chosen, question.against or 0, of)[0]

    return score_of


def _with_evidence(batch: Batch, inside: Inside, question: Question) -> Inside:
    """Split the log-odds of the answer over the edges, on first use."""

    def find_evidence() -> Evidence:
        frozen = run_frozen(batch.runner, batch.encoded[0].tensors, batch.checked)
        return frozen.evidence(_score_of(batch.runner, question, "log-odds"), every=True)

    return replace(inside, find_evidence=find_evidence, place=question.place)


def _with_gradients(batch: Batch, inside: Inside, answer: Any, of: str) -> Inside:
    """Return ∂y/∂W of every layer, and what y is; or why there is none."""
    model = batch.runner
    question = _question(batch, answer)
    if question is None:
        return replace(inside, unanswered=no_answer(model))
    check_difference([question], of)
    about = _about(question, of)
    return _differentiated(batch, _with_evidence(batch, inside, question), _score_of(model, question, of), about)
