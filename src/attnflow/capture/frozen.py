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
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import routes
from attnflow.capture.check import Checked
from attnflow.capture.collect import Collector, eager_function, is_collecting
from attnflow.capture.freeze import Freeze
from attnflow.capture.fused import attention_output, is_fused, own_weights
from attnflow.capture.kv_cache import CacheInPlace, KeysLost, Snapshot
from attnflow.capture.layer_calls import states_of, with_states
from attnflow.capture.linear import add_edge_rows, value_gradient
from attnflow.capture.paged import Stored, shown_from
from attnflow.capture.scores import LazyMask, Scores, Weighing, mixed, scores_of
from attnflow.capture.sublayer import layer_path
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import Runner

KEEP_BYTES = 4 << 20
"""Weights of a layer up to this size wait for the backward pass; larger ones are computed again, some queries at a time:
fresh memory for all of them would cost more than they do."""

BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""How large the weights of some queries may be: a CPU wants them in its cache, a GPU wants few large steps."""

POSITIONS = 8192
"""States are multiplied in double precision, for so many positions at a time."""

ROWS = 64
"""The same of logits, which are wider."""

SLACK = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""How much the parts may differ from the whole, relative to the sum of their sizes.

Rounding alone makes up to 1.7e-4 of it in float32, among 600 answers of SmolLM2; one of the worst is 3e-15 off in float64.
"""


@dataclass
class Reading:
    """What one backward pass reads at the attention calls.

    local: each position by itself: its own score only, so that evidence goes to other positions and no further.
    rows: the queries whose edges are wanted; all of them where that is None. total: Σ over layers of the edges
    [batch, query, key], by the kind of call ("self", "cross"). layers: the edges of each call, where ``every``.
    """

    local: bool = False
    every: bool = False
    rows: slice | None = None
    total: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def range(self, queries: int) -> tuple[int, int]:
        """The first of the queries whose edges are wanted, and the one after the last."""
        return (0, queries) if self.rows is None else (self.rows.start, self.rows.stop)

    def room(self, kind: str, number: int, like: Tensor, rows: int, keys: int) -> list[Tensor]:
        """Where the edges of a call are added up: [batch, row, key], zeros at first."""
        wide = torch.float64 if like.dtype == torch.float64 else torch.float32

        def zeros() -> Tensor:
            return like.new_zeros(like.shape[0], rows, keys, dtype=wide)

        if kind not in self.total:
            self.total[kind] = zeros()
        if not self.every:
            return [self.total[kind]]
        self.layers[kind, number] = zeros()
        return [self.total[kind], self.layers[kind, number]]


@dataclass
class FrozenCall:
    """One attention call.

    scores: its operands; weights: [batch, head, query, key] where they are kept. before: values of the keys that lie before
    the new ones; skipped: how many keys stand before those, which no query sees.
    """

    number: int
    cross: bool
    scores: Scores | None
    weights: Tensor | None
    reading: Callable[[], Reading]
    before: Stored | None = None
    skipped: int = 0

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of queries with their weights [batch, head, some queries, the first keys]."""
        if self.weights is not None:
            yield first, last, self.weights[:, :, first:last]
            return
        assert self.scores is not None
        for start, stop in self.scores.blocks(_room(self.scores), first, last):
            yield start, stop, self.scores.weights(start, stop)

    def output(self, value: Tensor) -> Tensor:
        """What attention gives, [batch, query, head, size]; a log-sum-exp that comes with it is kept."""
        if self.weights is not None:
            return mixed(self.weights, value, self.before)
        assert self.scores is not None
        out, self.scores = attention_output(self.scores, value, before=self.before)
        return out


class FrozenAttention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``out[q, h] = Σ_k A[h, q, k]·v_k``: values [batch, key head, key, size] -> [batch, query, head, size]."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, call: FrozenCall, queries: int) -> Tensor:
        ctx.call, ctx.queries = call, queries
        ctx.save_for_backward(value)
        return call.output(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (value,) = ctx.saved_tensors
        call: FrozenCall = ctx.call
        reading = call.reading()
        first, last = reading.range(ctx.queries)
        upward = gradient.transpose(1, 2)  # [batch, head, query, size]
        weighing = Weighing(1.0, direction=upward, value=value, signed=True, before=call.before)
        keys = call.skipped + value.shape[2] + (0 if call.before is None else call.before.shape[2])
        kind = "cross" if call.cross else "self"
        totals = [x[..., call.skipped :] for x in reading.room(kind, call.number, value, last - first, keys)]
        if reading.local and not call.cross:
            return _read_by_itself(call, weighing, totals, first, last), None, None
        return _read_by_all(call, weighing, totals, first, last), None, None


def _read_by_itself(call: FrozenCall, weighing: Weighing, totals: list[Tensor], first: int, last: int) -> Tensor:
    """Adds up edges; the gradient goes to what a position reads from itself: [batch, key head, key, size].

    Each row has its own score, so that nothing comes to queries outside ``first:last``.
    """
    upward, value = weighing.direction, weighing.value
    assert upward is not None and value is not None
    if call.scores is not None and call.scores.lse is not None:
        own = own_weights(call.scores)[:, :, first:last]
        add_edge_rows(totals, call.scores, weighing, first, last, _room(call.scores))
    else:
        parts = []
        for start, stop, weights in call.blocks(first, last):
            _add(totals, weighing.of(weights, start, stop), start - first)
            place = int(totals[0].shape[-1]) - upward.shape[2] + start  # where the first of these queries finds itself
            parts.append(weights[..., place : place + stop - start].diagonal(dim1=-2, dim2=-1))
        own = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    batch, _, queries, size = upward.shape
    back = upward[:, :, first:last] * own.to(value.dtype)[..., None]
    back = back.reshape(batch, value.shape[1], -1, last - first, size).sum(2)
    if back.shape == value.shape:
        return back
    whole = torch.zeros_like(value)
    place = value.shape[2] - queries
    whole[:, :, place + first : place + last] = back
    return whole


def _read_by_all(call: FrozenCall, weighing: Weighing, totals: list[Tensor], first: int, last: int) -> Tensor:
    """Adds up edges; the gradient ``dV = Pᵀ dO`` goes to all that is read: [batch, key head, key, size]."""
    upward, value = weighing.direction, weighing.value
    assert upward is not None and value is not None
    if call.scores is not None and call.scores.lse is not None:
        add_edge_rows(totals, call.scores, weighing, first, last, _room(call.scores))
        return value_gradient(call.scores, upward, value)
    back = torch.zeros_like(value)
    before = 0 if call.before is None else int(call.before.shape[2])
    batch, key_heads = value.shape[:2]
    for start, stop, weights in call.blocks(0, upward.shape[2]):
        low, high = max(start, first), min(stop, last)
        if low < high:
            _add(totals, weighing.of(weights[:, :, low - start : high - start], low, high), low - first)
        stacked = upward[:, :, start:stop].reshape(batch, key_heads, -1, upward.shape[-1])
        new = weights[..., before:].to(value.dtype)
        new = new.reshape(batch, key_heads, -1, new.shape[-1])  # [batch, key head, its heads × query, key]
        back[:, :, : new.shape[-1]] += new.transpose(2, 3) @ stacked
    return back


def _add(totals: list[Tensor], edges: Tensor, row: int) -> None:
    for total in totals:
        total[:, row : row + edges.shape[1], : edges.shape[2]] += edges


def _room(scores: Scores) -> int:
    return BLOCK_BYTES.get(scores.query.device.type, BLOCK_BYTES["cuda"])


@dataclass(frozen=True, eq=False)
class Evidence:
    """How the score y of an answer splits. The axes are those of one text.

    read: [query, key], what attention carries, summed over layers; of a decoder over a source, crossed: [query, source].
    Both have the rows that were wanted.
    own: [query], what ends at the states that enter the first layer. constants: what biases and the score's own constant
    hold. gap: how far the parts are from y, relative to the sum of their sizes. layers, crossed_layers: read and crossed of
    each layer, and holds: [query], what the states that enter each layer hold, where they were asked for. scored: what the
    score gave, before it was added up.
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
    scored: Tensor | None = None


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
    snapshot: Snapshot | None = None
    lock: Lock = field(default_factory=Lock)

    def evidence(
        self,
        score: Callable[[Tensor], Tensor],
        *,
        local: bool = False,
        every: bool = False,
        rows: slice | None = None,
    ) -> Evidence:
        """How ``score(logits)`` splits over edges: one number, or several, which are added up.

        local: each position is asked about its own logits alone. every: also keep the edges of each layer. rows: the
        positions whose edges are wanted, and when asked locally, all that the score is about.
        """
        if self.snapshot is not None:
            self.snapshot.check()  # gradients read it too
        if not local and self.prefix:
            rows = None  # what all positions read from the prefix ends there, and has to add up
        reading = Reading(local, every, rows)
        with self.lock, torch.inference_mode(False), torch.enable_grad(), routes.running():
            self.readings[:] = [reading]  # attention calls write into it while the gradient passes: one at a time
            logits = self.logits.detach().requires_grad_()
            scored = score(logits)
            (slope,) = torch.autograd.grad(scored.sum(), [logits])
            entered = list(self.states) if every else [self.states[0]]
            leaves = [*entered, *self.constants, *self.sources]
            gradients = torch.autograd.grad(
                self.logits, leaves, slope.to(self.logits.dtype), retain_graph=True, allow_unused=True
            )
        if gradients[0] is None:
            raise ModelError(f"the answer of {self.name} does not depend on the states of its layers")
        holds = [holdings(x, g)[0] for x, g in zip(entered, gradients, strict=False)]
        read = reading.total["self"][0]
        crossed = reading.total["cross"][0] if "cross" in reading.total else None
        numbers = torch.stack([
            scored.detach().double().sum(), holds[0].sum(), holds[0].abs().sum(), *_ends(read, self.prefix, reading),
            holds[0].new_zeros(()) if crossed is None else crossed.sum(dtype=torch.float64),
            constant_part(self.constants, gradients[len(entered) :]).to(read.device), product(logits, slope),
        ])  # fmt: skip
        y, own, own_size, ends, ends_size, through, biases, along = numbers.tolist()  # the GPU is waited for here alone
        check_finite(self.name, y)
        head = y - along
        # beside a large exact part, small parts would hide what is wrong with them
        gap = gap_of(self.name, y, own + ends + biases + head + through, own_size + ends_size + abs(biases), self.slack)
        layers, crossed_layers = (
            tuple(reading.layers[k][0].double() for k in sorted(reading.layers) if k[0] == kind)
            for kind in ("self", "cross")
        )
        return Evidence(
            y, read, crossed, holds[0], biases + head, gap, layers, crossed_layers, tuple(holds) if every else (),
            scored.detach(),
        )  # fmt: skip


def slope_of(name: str, y: Tensor, logits: Tensor) -> Tensor:
    """``∂y/∂logits`` of a score that is a number; otherwise there is nothing to split."""
    check_finite(name, float(y.detach()))
    (slope,) = torch.autograd.grad(y, [logits])
    return slope


def check_finite(name: str, y: float) -> None:
    if not math.isfinite(y):
        raise ModelError(
            f"the log-odds of this answer are {y}: {name} gives logits that are no numbers, "
            "or rules the answer out, and there is nothing to split into parts"
        )


def product(x: Tensor, slope: Tensor) -> Tensor:
    """Their product in double precision, in which tokens that a model rules out by logits of -inf have no part."""
    width = x.shape[-1] if x.dim() else 1
    rows = zip(x.detach().reshape(-1, width).split(ROWS), slope.reshape(-1, width).split(ROWS), strict=True)
    return torch.stack([torch.where(b == 0, 0, a.double() * b.double()).sum() for a, b in rows]).sum()


def constant_part(constants: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """What constants that are added to states give to the score: one number."""
    parts = [product(b, g) for b, g in zip(constants, gradients, strict=False) if g is not None]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)


def holdings(states: Tensor, gradient: Tensor | None) -> Tensor:
    """``x·g`` of each position: [text, position]."""
    if gradient is None:
        return torch.zeros(states.shape[:2], dtype=torch.float64, device=states.device)
    pairs = zip(states.detach().split(POSITIONS, 1), gradient.split(POSITIONS, 1), strict=True)
    return torch.cat([(x.double() * g.double()).sum(-1) for x, g in pairs], 1)


def conserved(name: str, y: float, own: Tensor, ends: Tensor, biases: float, exact: float, slack: float) -> float:
    """How far the parts are from y, relative to the sum of their sizes; refused where that is more than rounding.

    own: what ends at the first layer's states. ends: what edges carry to where it ends. exact: parts that are no matter of
    rounding, such as the head's constant.
    """
    total = float(own.sum()) + float(ends.sum()) + biases + exact
    # beside a large exact part, small parts would hide what is wrong with them
    return gap_of(name, y, total, float(own.abs().sum() + ends.abs().sum()) + abs(biases), slack)


def gap_of(name: str, y: float, total: float, size: float, slack: float) -> float:
    """How far a total of parts is from y, relative to their size; refused where that is more than rounding."""
    gap = abs(total - y) / max(size, 1e-30)
    if not gap <= slack:
        raise ModelError(
            f"{name} is not linear when attention, norms and gates are held constant: its edges carry other than "
            f"the answer's score, by {gap:.2g} of it, so answer edges would mislead. Other edges, for example "
            'edges="attention-gradient", need no such model'
        )
    return gap


def _ends(read: Tensor, prefix: int, reading: Reading) -> tuple[Tensor, Tensor]:
    """What edges carry to where it ends, the prefix, or asked locally every other position: its sum and its size."""
    if not reading.local:
        read = read[:, :prefix]
        return read.sum(dtype=torch.float64), read.abs().sum(dtype=torch.float64)
    first, _ = reading.range(len(read))
    own = read.diagonal(prefix + first)[: len(read)]
    total, size = (
        x.sum(dtype=torch.float64) - y.sum(dtype=torch.float64) for x, y in ((read, own), (read.abs(), own.abs()))
    )
    return total, size


def run_frozen(
    model: Runner,
    tensors: Mapping[str, Tensor],
    checked: Checked,
    *,
    cache: CacheInPlace | KeyValueCache | None = None,
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
    collector = Collector("frozen" if checked.blocks else "frozen, whole", names=bool(checked.stack.cross))
    in_place = cache if isinstance(cache, CacheInPlace) else None

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Tensor:
        with torch._C.DisableTorchFunction():  # nothing here is for `Freeze` to see
            with torch.no_grad():
                call = _call(
                    collector, len(calls), module, query, key, value, mask, kwargs, lambda: readings[0], in_place
                )
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
        options |= {"past_key_values": cache if in_place is None else in_place.cache, "use_cache": True}
    with (
        torch.inference_mode(False), routes.running(), _entering(model.model, layers, collector) as states,
        Freeze() as freeze,
    ):  # fmt: skip
        out = routes.capture(
            model.model, checked.route, lambda: model.forward(tensors, grad=True, **options), collector
        )
    collector.attend = None  # it refers to the collector: nothing of the pass should wait for the garbage collector
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor):
        raise ModelError(f"{name} gives no logits: answer edges are for classifiers and language models")
    if not states or not calls:
        raise ModelError(f"the layers of {name} were not seen, and answer edges are about them: trace it without edges")
    known = None if in_place is None else in_place.snapshot
    return FrozenPass(name, states, logits, freeze.constants, sources, prefix, SLACK[model.dtype], readings, known)


def _call(
    collector: Collector, number: int, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any,
    options: Mapping[str, Any], reading: Callable[[], Reading], in_place: CacheInPlace | None,
) -> FrozenCall:  # fmt: skip
    cross = collector.names and collector.named(module)[1]
    if collector.mode == "frozen, whole":
        _, weights = eager_function(module)(module, query.detach(), key.detach(), value.detach(), mask, **options)
        return FrozenCall(number, cross, None, weights, reading)
    before, skipped = None, 0
    scores = scores_of(module, query.detach(), key.detach(), mask, **options)
    if in_place is not None:
        stored = in_place.before(key, value)
        skipped = _unseen(mask)
        if skipped < stored.first:
            raise KeysLost(f"a layer has dropped {stored.first} keys, of which some are seen")
        before = shown_from(stored.values, skipped - stored.first)
        scores = _after(scores, shown_from(stored.keys, skipped - stored.first), skipped)
    batch, heads, rows, _ = query.shape
    small = batch * heads * rows * scores.keys * 4 <= KEEP_BYTES and not is_fused(scores, value)
    weights = scores.weights(0, rows) if small else None
    return FrozenCall(number, cross, None if small else scores, weights, reading, before, skipped)


def _unseen(mask: Tensor | LazyMask | None) -> int:
    """How many of the first keys no query sees."""
    if not isinstance(mask, LazyMask) or mask.reach is None:
        return 0
    return max(0, mask.query_offset - mask.key_offset - mask.reach + 1)


def _after(scores: Scores, before: Stored, skipped: int) -> Scores:
    """The same with keys that lie before its own, of which the first are left out."""
    mask = scores.mask
    if isinstance(mask, LazyMask):
        mask = replace(mask, keys=mask.keys - skipped, key_offset=mask.key_offset + skipped) if skipped else mask
    elif mask is not None:
        mask = mask[..., skipped:]
    bias = scores.bias if scores.bias is None else scores.bias[..., skipped:]
    return replace(scores, before=before, mask=mask, bias=bias)


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
