"""The weight of an edge: functions from a trace to ``[layer, query, key]``, none of them negative.

Each follows its definition without further normalisation; `attnflow.edges.reweighed` puts the weights into a graph. In the
formulas h is a head, A its weights, v its values, and f(x) a value after the projection of its head, so the attention of a
layer adds ``Σ_k Σ_h A^h[q, k]·f^h(x_k)`` to the state at q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attnflow.capture.inside import Inside, Layer
from attnflow.capture.passes import Pass
from attnflow.capture.sublayer import Sublayer, refused
from attnflow.errors import InputError
from attnflow.reliability import answer_probability, evidence_notes, for_and_against
from attnflow.source_methods import METHOD

Signed = bool | Literal["shares"]
"""How to return parts of an answer's log-odds: shares of its support, the log-odds themselves, or shares of both signs."""

ZERO = 1e-6
"""Singular values below this, relative to the largest, are zero up to single precision."""

VECTORS = 1 << 24
"""The largest number of elements of vectors [query, key, width] at a time."""


def mean(trace: Pass) -> Tensor:
    """Return ``mean_h A``: the weights of the paper."""
    return _each(trace, mean_of)


def largest(trace: Pass) -> Tensor:
    """Return ``max_h A``: what any head looks at."""
    return _each(trace, largest_of)


def effective(trace: Pass) -> Tensor:
    """Return ``mean_h |A⊥|``: effective attention, the part of the weights that the values do not cancel.

    ``A⊥ = A - A·N·Nᵀ``, where the columns of N span the left null space of the values that a query can see: adding any of
    it to a row changes no output (Brunner et al. 2020, section 3.2). This space is not trivial if a query sees more
    positions than a value has dimensions, or positions with the same value. A⊥ may be negative; its absolute value is used.
    The projection of the head is ignored: it has full rank in any trained model, and then changes nothing.
    """
    return _each(trace, lambda layer: _effective(layer).abs().mean(0))


def gradient(trace: Pass) -> Tensor:
    """Return ``mean_h relu(∂y/∂A)``: how much the answer y would grow with the weight; 0 for masked weights.

    One of the two new tensors of generalised attention flow (Azarkhalili & Libbrecht 2025).
    """
    return _each(trace, lambda layer: positive_gradient(layer.weights, _gradient(trace, layer)))


def attention_gradient(trace: Pass) -> Tensor:
    """Return ``mean_h relu(A ⊙ ∂y/∂A)``: weights that support the answer y (Chefer et al. 2021, Eq. 5).

    The other tensor of generalised attention flow (Azarkhalili & Libbrecht 2025). ``∂y/∂A[q, k]`` is the product of the
    value at k with the gradient of the head's output at q, so values count here too.
    """
    return _each(trace, lambda layer: positive_product(layer.weights, _gradient(trace, layer)))


def positive_gradient(weights: Tensor, gradient: Tensor) -> Tensor:
    """Return `gradient` of one layer, from weights and ∂y/∂weights [..., head, query, key]: [..., query, key]."""
    return gradient.clamp(min=0).mean(-3) * (weights.amax(-3) > 0)


def positive_product(weights: Tensor, gradient: Tensor) -> Tensor:
    """Return `attention_gradient` of one layer, from weights and ∂y/∂weights [..., head, query, key]: [..., query, key]."""
    return (weights * gradient).clamp(min=0).mean(-3)


def value_norm(trace: Pass) -> Tensor:
    """Return ``‖Σ_h A^h[q, k]·f^h(x_k)‖``: the length of what is added along the edge (Kobayashi et al. 2020, Eq. 6)."""
    return _each(trace, value_norm_of)


def block_norm(trace: Pass) -> Tensor:
    """Return ``‖g(Σ_h A^h[q, k]·f^h(x_k) + [q = k]·x_q)‖``: `value_norm` with the residual connection and the norm g.

    Kobayashi et al. 2021, section 3. If the norm comes first (GPT-2, Llama) it is part of f, and g changes nothing.
    """

    def one(layer: Layer) -> Tensor:
        return torch.cat([vectors.norm(dim=-1) for _, _, vectors in _passed(layer, _sublayer(layer))])

    return _each(trace, one)


def head_norm(trace: Pass) -> Tensor:
    """Return ``Σ_h A^h[q, k]·‖f^h(x_k)‖ + [q = k]·‖x_q‖``: the lengths of what each head adds, and of the state itself.

    This is the sum of the lengths, whereas `value_norm` is the length of the sum: heads cannot cancel. Only one scale per
    head and key has to be kept, so these edges need no matrix (``memory="linear"``).
    """
    return _each(trace, head_norm_of)


def projection(trace: Pass) -> Tensor:
    """Return ``Σ_h A^h[q, k]·max(0, g_q·f^h(x_k)) + [q = k]·max(0, g_q·x_q)``: how far each part points to the whole.

    g_q is the unit vector of y_q, the sum of attention and residual connection, with which `alti` compares. If a norm
    follows, parts pass it with its scale held constant. A part's share is its projection instead of ALTI's distance. Heads
    are cut off at zero one by one, so no matrix is needed (``memory="linear"``).
    """

    def one(layer: Layer) -> Tensor:
        sublayer = _sublayer(layer)
        direction = sublayer.direction()  # [query, width]
        seen = torch.einsum("qw,hsw->hqs", direction, sublayer.projection)
        along = (seen @ layer.values.mT).clamp(min=0)  # [head, query, key]
        own = (direction * layer.states).sum(-1).clamp(min=0)
        return (layer.weights * along).sum(0) + torch.diag(own)

    return _each(trace, one)


def alti(trace: Pass) -> Tensor:
    """Return ``max(0, ‖y_q‖₁ - ‖y_q - T_q(x_k)‖₁)``, divided by its sum over k: how near a part comes to the whole.

    T are the vectors of `block_norm`, and y_q is their sum with the biases, the output of the attention sublayer (Ferrando
    et al. 2022, Eq. 9 and 10).
    """

    def one(layer: Layer) -> Tensor:
        sublayer, blocks = _sublayer(layer), []
        for start, stop, vectors in _passed(layer, sublayer):
            y = sublayer.y[start:stop]
            near = y.abs().sum(-1, keepdim=True) - (y[:, None] - vectors).abs().sum(-1)
            blocks.append(near.clamp(min=0) * _visible(layer)[start:stop])
        return rows(torch.cat(blocks))

    return _each(trace, one)


def value_zeroing(trace: Pass) -> Tensor:
    """Return ``1 - cos(x̃_q, x_q)``: how far the layer's output turns without the value at k (Mohebbi et al. 2023, Eq. 3).

    The weights and the rest of the layer stay: residual connection, norms and feed-forward network.
    """

    def one(layer: Layer) -> Tensor:
        n = len(layer.states)
        keys = torch.arange(-1, n, device=layer.states.device)
        whole, *_ = layer.without(keys[:1])
        turned = [
            1 - torch.cosine_similarity(out.double(), whole.double()[None], dim=-1)  # [key, query]
            for part in keys[1:].split(max(1, VECTORS // whole.numel()))
            for out in [layer.without(part)]
        ]
        angles = torch.cat(turned).T  # [query, key]
        return torch.where(angles < rounding, 0, angles) * _visible(layer)

    # states that differ only by rounding have no angle between them
    rounding = 10 * torch.finfo(getattr(torch, str(trace.provenance["dtype"]))).eps ** 2
    return _each(trace, one)


def answer(trace: Pass) -> Tensor:
    """Return ``relu(E)`` and, on the diagonal, what the residual connection carries, each row divided by its sum.

    E is what an edge carries to the answer's log-odds with attention, norm scales and gates held constant, signed
    (`signed_edges`); `attnflow.capture.frozen` defines it. The residual connection carries what the state below holds and
    no edge reads.
    """
    return evidence_shares(evidence_graph(trace))


def evidence_graph(trace: Pass) -> Tensor:
    """Return the support for the answer along every edge, in its log-odds: [layer, query, key], none negative.

    ``relu(E)``, and on the diagonal also what the residual connection carries.
    """
    evidence = inside(trace).evidence
    return positive_evidence(torch.stack(evidence.layers), torch.stack(evidence.holds))


def positive_evidence(edges: Tensor, holds: Tensor) -> Tensor:
    """Return `evidence_graph` from E [..., query, key] and what the states below hold, [..., key]."""
    return edges.clamp(min=0) + torch.diag_embed((holds - edges.sum(-2)).clamp(min=0))


def evidence_shares(graph: Tensor) -> Tensor:
    """Return `answer` of an `evidence_graph` [..., query, key]."""
    idle = graph.sum(-1) == 0  # a row that carries nothing to the answer keeps its state
    return rows(graph + torch.diag_embed(idle.to(graph.dtype)))


def signed_edges(trace: Pass) -> Tensor:
    """Return ``E[layer, query, key]``, signed: what each edge carries to the answer's log-odds."""
    return torch.stack(inside(trace).evidence.layers)


def answer_rows(trace: Pass, queries: Sequence[int]) -> Tensor:
    """Return ``Σ_l Σ_{q in queries} E(l)[q, k]``: [key], signed: what these positions read, at all layers."""
    return signed_edges(trace)[:, list(queries)].sum((0, 1))


def answer_shares(parts: Tensor, left_out: Sequence[int] = ()) -> Tensor:
    """Return signed parts [..., key] as shares: cut off at zero, ``left_out`` keys set to zero, divided by the sum."""
    return signed_shares(parts, left_out).clamp(min=0)


def signed_shares(parts: Tensor, left_out: Sequence[int] = ()) -> Tensor:
    """Return the same without the cut: positive shares add up to one, negative ones are divided by the same sum.

    If nothing supports the answer, the negative ones add up to -1.

    >>> signed_shares(torch.tensor([3.0, 1.0, -2.0])), signed_shares(torch.tensor([-3.0, -1.0]))
    (tensor([ 0.7500,  0.2500, -0.5000]), tensor([-0.7500, -0.2500]))
    """
    shares = parts.clone()
    shares[..., list(left_out)] = 0
    total = shares.clamp(min=0).sum(-1, keepdim=True)
    total = torch.where(total == 0, shares.abs().sum(-1, keepdim=True), total)
    return shares / torch.where(total == 0, 1, total)


def check_signed(signed: Signed) -> None:
    if signed not in (False, True, "shares"):
        raise InputError(
            f'signed={signed!r}: expected False for shares of what supports the answer, "shares" to include what counts '
            "against it, or True for parts of the log-odds"
        )


def answer_values(
    parts: Tensor, causal: bool, gap: float, provenance: Mapping[str, Any], signed: Signed
) -> tuple[Tensor, dict[str, str]]:
    """Return parts [key] of an answer's log-odds as they are shown, and the notes on them.

    The shares leave out the first token of a causal model. gap: how far the parts are from their sum.
    signed: as in `attnflow.Trace.answer_rows`.
    """
    check_signed(signed)
    left_out = [0] if causal and len(parts) > 1 else []
    sizes = for_and_against(parts.cpu().numpy(), left_out)
    shares = {False: "positive", True: "none", "shares": "signed"}[signed]
    notes = evidence_notes(*sizes, gap, answer_probability(provenance), shares, _measured(provenance))
    if signed == "shares":
        return signed_shares(parts, left_out), notes
    return parts if signed else answer_shares(parts, left_out), notes


def evidence_sums(
    method: str, parts: Tensor, log_odds: float, constants: float, gap: float, causal: bool
) -> dict[str, float]:
    """Return what signed parts [key] and constants add up to.

    What one position of an encoder reads is not everything: "elsewhere" is what other positions give to the answer, and
    what the position holds itself.
    """
    sums = {"log_odds": log_odds, "constants": constants, "gap": gap}
    if method == METHOD and not causal:
        sums["elsewhere"] = log_odds - constants - float(parts.double().sum())
    return sums


def values_named(signed: Signed, provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return what values are, for the provenance: shares, or parts of the log-odds, or of the score of a model with one."""
    if signed == "shares":
        return {"values": "signed shares"}
    return {"values": _measured(provenance) if signed else "shares"}


def _measured(provenance: Mapping[str, Any]) -> str:
    return "score" if (provenance.get("answer") or {}).get("kind") == "score" else "log-odds"


def mean_of(layer: Layer) -> Tensor:
    return layer.weights.mean(-3)


def largest_of(layer: Layer) -> Tensor:
    return layer.weights.amax(-3)


def value_norm_of(layer: Layer) -> Tensor:
    return torch.cat([vectors.norm(dim=-1) for _, _, vectors in _added(layer, _sublayer(layer))], -2)


def head_norm_of(layer: Layer) -> Tensor:
    lengths = (layer.values @ _sublayer(layer).projection).norm(dim=-1)  # [..., head, key]
    own = torch.diag_embed(layer.states.norm(dim=-1))
    return torch.einsum("...hqk,...hk->...qk", layer.weights, lengths) + own


OF_LAYERS: dict[str, Callable[[Layer], Tensor]] = {
    "mean": mean_of,
    "max": largest_of,
    "value-norm": value_norm_of,
    "head-norm": head_norm_of,
}
"""Edges that one layer gives on its own, without gradients, for one text or a batch: [..., query, key]."""


def rows(weights: Tensor) -> Tensor:
    """Return each row divided by its sum; a row of zeros stays."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total)


def _each(trace: Pass, one: Callable[[Layer], Tensor]) -> Tensor:
    return torch.stack([one(layer).double() for layer in _layers(trace)])


def _layers(trace: Pass) -> tuple[Layer, ...]:
    layers = inside(trace).layers
    if not layers:
        raise InputError(
            'this trace kept only answer edges: trace the text with edges="mean", or with the edges that you want'
        )
    return layers


def inside(trace: Pass) -> Inside:
    if trace.inside is None:
        raise InputError(
            'this trace kept only weights: trace the text with edges="mean", or with the edges that you want; call words() '
            "last"
        )
    return trace.inside


def _gradient(trace: Pass, layer: Layer) -> Tensor:
    if layer.gradient is None:
        raise InputError(f"these edges need the gradient of the answer, and {inside(trace).unanswered}")
    return layer.gradient


def _sublayer(layer: Layer) -> Sublayer:
    if isinstance(layer.sublayer, str):
        instead = 'edges="effective", "attention-gradient" and "value-zeroing", for example, do not need this'
        raise refused(layer.sublayer, instead)
    return layer.sublayer


def _visible(layer: Layer) -> Tensor:
    return layer.weights.amax(0) > 0


def _effective(layer: Layer) -> Tensor:
    """Return A⊥ of every head: [head, query, key]."""
    # these matrices are small, and a GPU would be slower
    weights, values, sees = layer.weights.double().cpu().clone(), layer.values.double().cpu(), _visible(layer).cpu()
    if bool(sees.all()):
        return _outside(weights, values).to(layer.weights.device)
    size = torch.linalg.svdvals(values)
    if values.shape[1] > values.shape[2] or bool((size[:, -1] <= ZERO * size[:, 0]).any()):
        for q in range(weights.shape[1]):  # independent values have no null space
            keys = sees[q].nonzero().flatten()
            weights[:, q, keys] = _outside(weights[:, q : q + 1, keys], values[:, keys])[:, 0]
    return weights.to(layer.weights.device)


def _outside(weights: Tensor, values: Tensor) -> Tensor:
    """Return [head, query, key], projected on the columns of the values [head, key, size]."""
    left, size, _ = torch.linalg.svd(values, full_matrices=False)
    left = left * (size > ZERO * size[:, :1])[:, None]
    return (weights @ left) @ left.mT


def _added(layer: Layer, sublayer: Sublayer) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ``Σ_h A^h[q, k]·f^h(x_k)``: [..., query, key, width], some queries at a time."""
    f = layer.values @ sublayer.projection  # [..., head, key, width]
    heads, queries = layer.weights.shape[-3:-1]
    step = max(1, VECTORS * heads // f.numel())
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        # one product [query, head] · [head, width] per key
        vectors = torch.matmul(layer.weights[..., start:stop, :].transpose(-3, -1), f.transpose(-3, -2))
        yield start, stop, vectors.transpose(-3, -2)


def _passed(layer: Layer, sublayer: Sublayer) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ``g(Σ_h A^h[q, k]·f^h(x_k) + [q = k]·x_q)``."""
    for start, stop, vectors in _added(layer, sublayer):
        own = torch.arange(start, stop, device=vectors.device)
        vectors[own - start, own] += layer.states[own]
        yield start, stop, sublayer.passed(vectors, start, stop)


@dataclass(frozen=True)
class Edges:
    """A kind of edge. function: from a pass to weights. about: one line that describes them. normalize: how they are put
    into a graph by default.

    gradient: whether they need the gradient of the answer. whole: whether the weights already contain the residual
    connection, so that none is added.
    """

    function: Callable[[Pass], Tensor]
    about: str
    normalize: str = "rows"
    gradient: bool = False
    whole: bool = False


EDGES: dict[str, Edges] = {
    "mean": Edges(mean, "the mean attention of the heads, as in the paper"),
    "max": Edges(largest, "the largest attention of any head"),
    "effective": Edges(effective, "the mean over heads of attention without the part that cannot change the output"),
    "gradient": Edges(gradient, "how much the answer grows with a weight; mean over heads", "none", gradient=True),
    "attention-gradient": Edges(
        attention_gradient, "attention times its gradient, where positive; mean over heads", "none", gradient=True
    ),
    "value-norm": Edges(value_norm, "the length of attention times the projected value, over all heads"),
    "block-norm": Edges(
        block_norm, "that length with the residual connection, and after the norm if it comes last", whole=True
    ),
    "head-norm": Edges(
        head_norm, "the lengths of what each head adds, and of the state itself for the residual connection", whole=True
    ),
    "projection": Edges(
        projection, "how far what each head adds, and the state itself, point to the layer's output", whole=True
    ),
    "alti": Edges(alti, "how much closer to the layer's output the vector of block-norm comes, as a share", whole=True),
    "answer": Edges(
        answer,
        "what it carries to the answer's log-odds, with attention, norms and gates held constant",
        gradient=True,
        whole=True,
    ),
    "value-zeroing": Edges(value_zeroing, "how far the layer's output turns (1 − cosine) without the value"),
}
"""All kinds of edges, by name. A new one is a function above and a line here."""
