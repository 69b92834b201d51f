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
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import routes
from attnflow.capture.check import Checked
from attnflow.capture.collect import Call, Collector, is_collecting
from attnflow.capture.fading import FadingAttention
from attnflow.capture.freeze import Freeze
from attnflow.capture.frozen_attention import FrozenAttention, FrozenCall, Reading, frozen_call
from attnflow.capture.kv_cache import CacheInPlace, Snapshot
from attnflow.capture.layer_calls import states_of, with_states
from attnflow.capture.ranks import Ranks, spread_modules, whole
from attnflow.capture.shares import measuring
from attnflow.capture.sublayer import layer_path
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import ModelOutput, Runner

POSITIONS = 8192
"""States are multiplied in double precision, for so many positions at a time."""

ROWS = 64
"""The same of logits, which are wider."""

SLACK = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""How much the parts may differ from the whole, relative to the sum of their sizes.

Rounding alone makes up to 1.7e-4 of it in float32, among 600 answers of SmolLM2; one of the worst is 3e-15 off in float64.
"""


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
    before the first position, in a cache. fades: whether the scores of attention are known, which `slopes` are of. out,
    calls, mode: the model's output, its attention calls, heads reduced, and how these were computed, where they were kept.
    ranks: the processes that share the heads.
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
    fades: bool = True
    out: ModelOutput = None
    calls: Sequence[Call] = ()
    mode: str = "whole"
    ranks: Ranks | None = None
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
        device = self.logits.device
        holds = [holdings(x, g)[0].to(device) for x, g in zip(entered, gradients, strict=False)]
        total, by_layer = reading.collected(device, self.ranks)
        read, crossed = total["self"][0], total["cross"][0] if "cross" in total else None
        numbers = torch.stack([
            scored.detach().double().sum(), holds[0].sum(), holds[0].abs().sum(), *_ends(read, self.prefix, reading),
            holds[0].new_zeros(()) if crossed is None else crossed.sum(dtype=torch.float64),
            constant_part(self.constants, gradients[len(entered) :]).to(device), product(logits, slope),
        ])  # fmt: skip
        y, own, own_size, ends, ends_size, through, biases, along = numbers.tolist()  # the GPU is waited for here alone
        check_finite(self.name, y)
        head = y - along
        # beside a large exact part, small parts would hide what is wrong with them
        gap = gap_of(self.name, y, own + ends + biases + head + through, own_size + ends_size + abs(biases), self.slack)
        layers, crossed_layers = (
            tuple(by_layer[k][0].double() for k in sorted(by_layer) if k[0] == kind) for kind in ("self", "cross")
        )
        return Evidence(
            y, read, crossed, holds[0], biases + head, gap, layers, crossed_layers, tuple(holds) if every else (),
            scored.detach(),
        )  # fmt: skip

    def slopes(self, score: Callable[[Tensor], Tensor], rows: slice) -> dict[str, Tensor]:
        """``∂score/∂s[q, k]`` by the scores s of attention, summed over layers and heads: [query, key], of these queries.

        By the kind of call, "self" or "cross". The pass must have been run with nothing held constant.
        """
        if self.snapshot is not None:
            self.snapshot.check()
        reading = Reading(rows=rows)
        with self.lock, torch.inference_mode(False), torch.enable_grad(), routes.running():
            self.readings[:] = [reading]
            logits = self.logits.detach().requires_grad_()
            slope = slope_of(self.name, score(logits), logits)
            leaves = [self.states[0], *self.sources]
            torch.autograd.grad(self.logits, leaves, slope.to(self.logits.dtype), retain_graph=True, allow_unused=True)
        return {kind: x[0].double() for kind, x in reading.collected(logits.device, self.ranks)[0].items()}


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
    parts = [whole(product(b, g)) for b, g in zip(constants, gradients, strict=False) if g is not None]
    return torch.stack([x.to(parts[0].device) for x in parts]).sum() if parts else torch.zeros((), dtype=torch.float64)


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
    freeze: bool = True,
    keep: bool = False,
    **options: Any,
) -> FrozenPass:
    """One pass of one text, forward, with everything constant but the states.

    cache: keys and values of the ``prefix`` positions before these; see `attnflow.capture.kv_cache`. freeze: otherwise
    nothing is constant but what lies in the cache, and the pass can be asked for its `slopes` alone. keep: whether the pass
    is also to be what a trace is made of, so that the model runs once for both.
    """
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE:
        raise ModelError(
            f"the attention of {name} was captured as {checked.route}, and answer edges need the attention interface of "
            "transformers: trace it without edges, by its weights alone"
        )
    if not freeze and not checked.blocks:
        raise ModelError(
            f"the scores of attention in {name} cannot be computed again, and fading is the gradient by them"
        )
    calls: list[FrozenCall] = []
    readings: list[Reading] = []
    sources: list[Tensor] = []
    collector = Collector("frozen" if checked.blocks else "frozen, whole", names=keep or bool(checked.stack.cross))
    in_place = cache if isinstance(cache, CacheInPlace) else None

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Tensor:
        with torch._C.DisableTorchFunction():  # nothing here is for `Freeze` to see
            with torch.no_grad():
                call = frozen_call(
                    collector, len(calls), module, query, key, value, mask, kwargs, lambda: readings[0], in_place
                )
                if keep:
                    _keep(collector, module, call, value)
            calls.append(call)
            if not freeze:
                if (
                    not query.requires_grad
                ):  # of the first layer's own states nothing is asked, but autograd must go there
                    query = query.detach().requires_grad_()
                    sources.append(query)
                faded: Tensor = FadingAttention.apply(query, key, value, call)
                return faded
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
        measuring(model.forms(checked) if keep else (), checked, collector) as write,
        Freeze(spread_modules(model.model)) if freeze else nullcontext() as frozen,
    ):  # fmt: skip
        out = routes.capture(
            model.model, checked.route, lambda: model.forward(tensors, grad=True, **options), collector
        )
    write(collector.calls)
    collector.attend = None  # it refers to the collector: nothing of the pass should wait for the garbage collector
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor):
        raise ModelError(f"answer edges are about an answer, and {no_answer(model)}")
    if not states or not calls:
        raise ModelError(f"the layers of {name} were not seen, and answer edges are about them: trace it without edges")
    known = None if in_place is None else in_place.snapshot
    constants = [] if frozen is None else frozen.constants
    return FrozenPass(
        name, states, logits, constants, sources, prefix, SLACK[model.dtype], readings, known,
        checked.blocks, out if keep else None, collector.calls,
        "blocks" if any(call.weights is None for call in calls) else "whole", checked.ranks,
    )  # fmt: skip


def no_answer(model: Runner) -> str:
    """Why there are no answer edges of a model that gives no logits."""
    return f"{model!r} has no head, so it answers nothing: expected a classifier or a language model"


def _keep(collector: Collector, module: Any, call: FrozenCall, value: Tensor) -> None:
    """Keeps the weights of a call, heads reduced, as a pass that holds nothing constant does."""
    if call.weights is not None:
        collector.add(module, call.weights, value, getattr(module, "sinks", None) is not None)
    elif call.scores is not None:
        collector.add_blocks(module, call.scores, value, output=False)


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
