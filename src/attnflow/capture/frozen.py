"""A pass with attention weights, norm scales and gates held constant, and what the answer's score owes to every edge.

With these constants (`attnflow.capture.freeze`) the score y of an answer is linear in the states, so it splits exactly:

    y = Σ_positions x0·g0  +  Σ_prefix E  +  constants

where g0 is the gradient of y at the states x0 that enter the first layer, and ``E[q, k] = Σ_heads A[q, k]·v_k·∂y/∂o_q`` is
what attention carries along an edge, signed. Positions whose keys and values lie in a cache are constants themselves: what
is read from them ends there. A decoder looks back only, so a pass over the answer's tokens on top of the prompt's cache
gives the same edges as a pass over everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import routes
from attnflow.capture.check import Checked
from attnflow.capture.collect import Collector, eager_function, is_collecting
from attnflow.capture.freeze import Freeze
from attnflow.capture.layer_calls import states_of, with_states
from attnflow.capture.scores import Scores, scores_of
from attnflow.capture.sublayer import layer_path
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

KEEP_BYTES = 32 << 20
"""Weights of a layer up to this size wait for the backward pass; larger ones are computed again, some queries at a time."""

BLOCK_BYTES = {"cuda": 256 << 20}
"""How large the weights of some queries may be when they are computed again: a GPU wants few large steps."""

SLACK = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""How much the parts may differ from the whole, relative to the sum of their sizes.

Rounding alone makes up to 1.7e-4 of it in float32, among 600 answers of SmolLM2; one of the worst is 3e-15 off in float64.
"""


@dataclass
class Reading:
    """What one backward pass reads at the attention calls.

    local: each position by itself: its own score only, so that evidence goes to other positions and no further.
    total: Σ over layers of the edges [batch, query, key], by the kind of call ("self", "cross"). layers: the edges of each
    call, where ``every``.
    """

    local: bool = False
    every: bool = False
    total: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[tuple[str, int], Tensor] = field(default_factory=dict)


@dataclass
class FrozenCall:
    """One attention call. scores: its operands; weights: [batch, head, query, key] where they are kept."""

    number: int
    cross: bool
    scores: Scores | None
    weights: Tensor | None
    reading: Callable[[], Reading]

    def blocks(self, queries: int) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of queries with their weights [batch, head, some queries, the first keys]."""
        if self.weights is not None:
            yield 0, queries, self.weights
            return
        assert self.scores is not None
        for start, stop in self.scores.blocks(BLOCK_BYTES.get(self.scores.query.device.type, KEEP_BYTES)):
            yield start, stop, self.scores.weights(start, stop)


class FrozenAttention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``out[q, h] = Σ_k A[h, q, k]·v_k``: values [batch, key head, key, size] -> [batch, query, head, size]."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, call: FrozenCall, queries: int) -> Tensor:
        ctx.call, ctx.queries = call, queries
        ctx.save_for_backward(value)
        parts = []
        for _, _, weights in call.blocks(queries):
            batch, heads, rows, keys = weights.shape
            stacked = _by_key_head(weights.to(value.dtype), value.shape[1])
            parts.append((stacked @ value[:, :, :keys]).reshape(batch, heads, rows, -1).transpose(1, 2))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (value,) = ctx.saved_tensors
        call: FrozenCall = ctx.call
        reading = call.reading()
        batch, key_heads, keys, size = value.shape
        back = torch.zeros_like(value)
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        carried = value.new_zeros(batch, ctx.queries, keys, dtype=wide)
        for start, stop, weights in call.blocks(ctx.queries):
            seen, rows = weights.shape[-1], stop - start
            upward = gradient[:, start:stop].transpose(1, 2)  # [batch, head, query, size]
            groups = upward.shape[1] // key_heads
            stacked = upward.reshape(batch, key_heads, groups * rows, size)
            spread = (stacked @ value[:, :, :seen].transpose(2, 3)).reshape(batch, -1, rows, seen)
            carried[:, start:stop, :seen] = (weights * spread).sum(1, dtype=wide)
            if reading.local and not call.cross:
                own = torch.arange(start, stop, device=value.device) + keys - ctx.queries
                share = weights.to(value.dtype)[
                    :, :, torch.arange(rows, device=value.device), own
                ]  # [batch, head, query]
                to_own = (upward * share[..., None]).reshape(batch, key_heads, groups, rows, size).sum(2)
                back[:, :, own] += to_own
            else:
                back[:, :, :seen] += _by_key_head(weights.to(value.dtype), key_heads).transpose(2, 3) @ stacked
        kind = "cross" if call.cross else "self"
        reading.total[kind] = carried.clone() if kind not in reading.total else reading.total[kind].add_(carried)
        if reading.every:
            reading.layers[kind, call.number] = carried
        return back, None, None


def _by_key_head(weights: Tensor, key_heads: int) -> Tensor:
    """[batch, head, query, key] -> [batch, key head, its heads × query, key]."""
    batch, heads, rows, keys = weights.shape
    return weights.reshape(batch, key_heads, heads // key_heads * rows, keys)


@dataclass(frozen=True, eq=False)
class Evidence:
    """How the score y of an answer splits. The axes are those of one text.

    read: [query, key], what attention carries, summed over layers; of a decoder over a source, crossed: [query, source].
    own: [query], what ends at the states that enter the first layer. constants: what biases and the score's own constant
    hold. gap: how far the parts are from y, relative to the sum of their sizes. layers, crossed_layers: read and crossed of
    each layer, and holds: [query], what the states that enter each layer hold, where they were asked for.
    """

    y: float
    read: Tensor
    crossed: Tensor | None
    own: Tensor
    constants: float
    gap: float
    layers: tuple[Tensor, ...] = ()
    crossed_layers: tuple[Tensor, ...] = ()
    holds: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class FrozenPass:
    """A pass that can be asked what a score of its logits owes to its edges, as often as one likes.

    states: [1, position, width], what enters each layer. logits: of the same positions, or of the text. constants: what
    is added and comes from no state. sources: values that come from none either, of an encoder. prefix: how many keys lie
    before the first position, in a cache.
    """

    name: str
    states: Sequence[Tensor]
    logits: Tensor
    constants: Sequence[Tensor]
    sources: Sequence[Tensor]
    prefix: int
    slack: float
    readings: list[Reading]
    lock: Lock = field(default_factory=Lock)

    def evidence(self, score: Callable[[Tensor], Tensor], *, local: bool = False, every: bool = False) -> Evidence:
        """How ``score(logits)``, one number, splits over edges.

        local: each position is asked about its own logits alone. every: also keep the edges of each layer.
        """
        reading = Reading(local, every)
        with self.lock, torch.inference_mode(False), torch.enable_grad(), routes.running():
            self.readings[:] = [reading]  # attention calls write into it while the gradient passes: one at a time
            logits = self.logits.detach().requires_grad_()
            y = score(logits)
            slope = slope_of(self.name, y, logits)
            entered = list(self.states) if every else [self.states[0]]
            leaves = [*entered, *self.constants, *self.sources]
            gradients = torch.autograd.grad(
                self.logits, leaves, slope.to(self.logits.dtype), retain_graph=True, allow_unused=True
            )
        if gradients[0] is None:
            raise ModelError(f"the answer of {self.name} does not depend on the states of its layers")
        holds = [holdings(x, g)[0] for x, g in zip(entered, gradients, strict=False)]
        own = holds[0]
        biases = float(constant_part(self.constants, gradients[len(entered) :]))
        head = float(y.detach() - product(logits, slope))
        read = reading.total["self"][0].double()
        crossed = reading.total["cross"][0].double() if "cross" in reading.total else None
        ends = _ends(read, self.prefix, local)
        through = 0.0 if crossed is None else float(crossed.sum())
        gap = conserved(self.name, float(y.detach()), own, ends, biases, head + through, self.slack)
        layers, crossed_layers = (
            tuple(reading.layers[k][0].double() for k in sorted(reading.layers) if k[0] == kind)
            for kind in ("self", "cross")
        )
        return Evidence(
            float(y.detach()),
            read,
            crossed,
            own,
            biases + head,
            gap,
            layers,
            crossed_layers,
            tuple(holds) if every else (),
        )


def slope_of(name: str, y: Tensor, logits: Tensor) -> Tensor:
    """``∂y/∂logits`` of a score that is a number; otherwise there is nothing to split."""
    if not math.isfinite(float(y.detach())):
        raise ModelError(
            f"the log-odds of this answer are {float(y.detach())}: {name} gives logits that are no numbers, "
            "or rules the answer out, and there is nothing to split into parts"
        )
    (slope,) = torch.autograd.grad(y, [logits])
    return slope


def product(x: Tensor, slope: Tensor) -> Tensor:
    """Their product, one number, in which tokens that a model rules out by logits of -inf have no part."""
    slope = slope.double()
    return torch.where(slope == 0, 0, x.detach().double() * slope).sum()


def constant_part(constants: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """What constants that are added to states give to the score: one number."""
    parts = [product(b, g) for b, g in zip(constants, gradients, strict=False) if g is not None]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)


def holdings(states: Tensor, gradient: Tensor | None) -> Tensor:
    """``x·g`` of each position: [text, position]."""
    if gradient is None:
        return torch.zeros(states.shape[:2], dtype=torch.float64, device=states.device)
    return (states.detach().double() * gradient.double()).sum(-1)


def conserved(name: str, y: float, own: Tensor, ends: Tensor, biases: float, exact: float, slack: float) -> float:
    """How far the parts are from y, relative to the sum of their sizes; refused where that is more than rounding.

    own: what ends at the first layer's states. ends: what edges carry to where it ends. exact: parts that are no matter of
    rounding, such as the head's constant.
    """
    total = float(own.sum()) + float(ends.sum()) + biases + exact
    # beside a large exact part, small parts would hide what is wrong with them
    size = float(own.abs().sum() + ends.abs().sum()) + abs(biases)
    gap = abs(total - y) / max(size, 1e-30)
    if not gap <= slack:
        raise ModelError(
            f"{name} is not linear when attention, norms and gates are held constant: its edges carry other than "
            f"the answer's score, by {gap:.2g} of it, so answer edges would mislead. Other edges, for example "
            'edges="attention-gradient", need no such model'
        )
    return gap


def _ends(read: Tensor, prefix: int, local: bool) -> Tensor:
    """What edges carry to where it ends: the prefix; asked locally, every other position."""
    if not local:
        return read[:, :prefix]
    own = torch.arange(len(read), device=read.device)
    others = read.clone()
    others[own, own + prefix] = 0
    return others


def run_frozen(
    model: Runner,
    tensors: Mapping[str, Tensor],
    checked: Checked,
    *,
    cache: Any = None,
    prefix: int = 0,
    **options: Any,
) -> FrozenPass:
    """One pass of one text, forward, with everything constant but the states.

    cache: keys and values of the ``prefix`` positions before these; see `attnflow.capture.kv_cache`.
    """
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE:
        raise ModelError(
            f"the attention of {name} was captured as {checked.route}, and answer edges need the attention interface of "
            "transformers: trace it without edges, by its weights alone"
        )
    calls: list[FrozenCall] = []
    readings: list[Reading] = []
    sources: list[Tensor] = []
    collector = Collector("frozen" if checked.blocks else "frozen, whole")

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            call = _call(collector, len(calls), module, query, key, value, mask, kwargs, lambda: readings[0])
        calls.append(call)
        if not value.requires_grad:  # of a source: constants whose edges count, so that autograd must go there
            value = value.detach().requires_grad_()
            sources.append(value)
        out: Tensor = FrozenAttention.apply(value, call, int(query.shape[2]))
        return out

    collector.attend = attend
    layers = [layer_path(checked.paths[i]) for i in checked.stack.decoder or checked.stack.main]
    routes.prepare(model.model, checked.route)
    if cache is not None:
        options |= {"past_key_values": cache, "use_cache": True}
    with (
        torch.inference_mode(False), routes.running(), _entering(model.model, layers, collector) as states,
        Freeze() as freeze,
    ):  # fmt: skip
        out = routes.capture(
            model.model, checked.route, lambda: model.forward(tensors, grad=True, **options), collector
        )
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor):
        raise ModelError(f"{name} gives no logits: answer edges are for classifiers and language models")
    if not states or not calls:
        raise ModelError(f"the layers of {name} were not seen, and answer edges are about them: trace it without edges")
    return FrozenPass(name, states, logits, freeze.constants, sources, prefix, SLACK[model.dtype], readings)


def _call(
    collector: Collector, number: int, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any,
    options: Mapping[str, Any], reading: Callable[[], Reading],
) -> FrozenCall:  # fmt: skip
    _, cross = collector.named(module)
    query, key = query.detach(), key.detach()
    if collector.mode == "frozen, whole":
        _, weights = eager_function(module)(module, query, key, value.detach(), mask, **options)
        return FrozenCall(number, cross, None, weights, reading)
    scores = scores_of(module, query, key, mask, **options)
    batch, heads, rows, _ = query.shape
    small = batch * heads * rows * scores.keys * 4 <= KEEP_BYTES
    weights = scores.weights(0, rows) if small else None
    return FrozenCall(number, cross, None if small else scores, weights, reading)


@contextmanager
def _entering(model: Any, paths: Sequence[str], collector: Collector) -> Iterator[list[Tensor]]:
    """While it lasts, the list gets the states that enter these layers; those of the first are a leaf of autograd."""
    if not all(paths):
        raise ModelError(f"{type(model).__name__} has no numbered layers, and answer edges are about layers")
    states: list[Tensor] = []

    def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not is_collecting(collector):
            return None
        entering = states_of(args, named)
        states.append(entering if states else entering.detach().requires_grad_())
        return with_states(args, named, states[-1])

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            layer = model.get_submodule(path)
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield states
