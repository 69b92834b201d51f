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
from attnflow.capture.freeze import Freeze, Notes
from attnflow.capture.frozen_attention import FrozenAttention, FrozenCall, Reading, Sums, frozen_call
from attnflow.capture.kv_cache import CacheInPlace, Snapshot
from attnflow.capture.layer_calls import states_of, with_states
from attnflow.capture.shares import measuring
from attnflow.capture.sublayer import layer_path
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import ModelOutput, Runner

POSITIONS = 8192
"""States are multiplied in double precision, for so many positions at a time."""

PRODUCTS = 1 << 22
"""The same of logits, which are wider: so many numbers at a time."""

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
class BatchEvidence:
    """How the scores y [text] of a batch split. own: [text, position], what ends at the states that enter the first layer.

    columns: of each layer, what attention carries from each key, summed over queries, [text, key]; rows: the same of the
    queries that were wanted. layers, holds: [text, query, key] and [text, position] of each layer, as in `Evidence`, where
    they were wanted. constants, gaps: [text], as in `Evidence`; constants are None, and the gaps are that of all texts
    together, where biases are added to states in another order than that of the texts.
    """

    y: Tensor
    own: Tensor
    constants: Tensor | None
    gaps: Tensor
    columns: tuple[Tensor, ...] = ()
    rows: tuple[Tensor, ...] = ()
    layers: tuple[Tensor, ...] = ()
    holds: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Backward:
    """What one backward pass gives. scored: what the score gave. holds: ``x·g`` of the states, [text, position], of the
    first layer, or of each. gradients: of the constants. along: what the slopes of the logits give, [text]."""

    scored: Tensor
    holds: tuple[Tensor, ...]
    gradients: Sequence[Tensor | None]
    along: Tensor


@dataclass(frozen=True, eq=False)
class FrozenPass:
    """A pass that can be asked what a score of its logits owes to its edges, as often as one likes.

    states: [text, position, width], what enters each layer. logits: of the same positions, or of the text. constants: what
    is added and comes from no state. sources: values that come from none either, of an encoder. prefix: how many keys lie
    before the first position, in a cache. fades: whether the scores of attention are known, which `slopes` are of. out,
    calls, mode: the model's output, its attention calls, heads reduced, and how these were computed, where they were kept.
    notes: of a batch, what constants give to each text, noted while gradients come back.
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
    notes: Notes | None = None
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
        backward = self._backward(score, reading, every)
        own = backward.holds[0][0]
        read = reading.total["self"][0]
        crossed = reading.total["cross"][0] if "cross" in reading.total else None
        numbers = torch.stack([
            backward.scored.double().sum(), own.sum(), own.abs().sum(), *_ends(read, self.prefix, reading),
            own.new_zeros(()) if crossed is None else crossed.sum(dtype=torch.float64),
            constant_part(self.constants, backward.gradients).to(read.device), backward.along.sum(),
        ])  # fmt: skip
        y, bottom, size, ends, ends_size, through, biases, along = numbers.tolist()  # the GPU is waited for here alone
        check_finite(self.name, y)
        head = y - along
        # beside a large exact part, small parts would hide what is wrong with them
        gap = gap_of(self.name, y, bottom + ends + biases + head + through, size + ends_size + abs(biases), self.slack)
        layers, crossed_layers = (
            tuple(reading.layers[k][0].double() for k in sorted(reading.layers) if k[0] == kind)
            for kind in ("self", "cross")
        )
        holds = tuple(layer[0] for layer in backward.holds) if every else ()
        return Evidence(
            y, read, crossed, own, biases + head, gap, layers, crossed_layers, holds, backward.scored
        )  # fmt: skip

    def evidence_of_texts(
        self, score: Callable[[Tensor], Tensor], *, taken: Tensor | None = None, every: bool = False
    ) -> BatchEvidence:
        """How ``score(logits)`` of each text, [text], splits, by one backward pass for all of them; then the pass is spent.

        A text's score depends on its own states alone, so that the gradient of the sum is the gradient of each.
        taken: [text, query], the weight of each query in ``rows``. every: the edges of each layer in place of their sums.
        """
        reading = Reading(every=every, sums=None if every else Sums(taken))
        backward = self._backward(score, reading, every, again=False)
        y, own = backward.scored.double(), backward.holds[0]
        biases, split = self._biases(backward.gradients, y)
        head = y - backward.along
        parts = torch.stack([y, own.sum(1) + biases + head, own.abs().sum(1) + biases.abs()])
        if not split:
            parts = parts.sum(1, keepdim=True).expand_as(parts)  # the batch has to add up as a whole
        gaps = (parts[1] - parts[0]).abs() / parts[2].clamp(min=1e-30)
        # a text whose parts are no numbers makes both of these none, and is refused with its batch
        total, worst = torch.stack([y.sum(), gaps.max()]).tolist()  # the GPU is waited for here alone
        check_finite(self.name, total)
        check_gap(self.name, worst, self.slack)
        sums = Sums() if reading.sums is None else reading.sums
        columns, rows = (tuple(x for _, x in sorted(some.items())) for some in (sums.columns, sums.rows))
        layers = tuple(reading.layers[key] for key in sorted(reading.layers))
        holds = backward.holds if every else ()
        return BatchEvidence(y, own, biases + head if split else None, gaps, columns, rows, layers, holds)

    def _biases(self, gradients: Sequence[Tensor | None], like: Tensor) -> tuple[Tensor, bool]:
        """What constants give to each text, [text]; or a share of what they give to all, where that cannot be split."""
        assert self.notes is not None  # the pass of a batch has them
        pairs = [(b, g) for b, g in zip(self.constants, gradients, strict=False) if g is not None]
        shared = [(b, g) for b, g in zip(self.notes.leaves, gradients[len(self.constants) :], strict=False)]
        unsplit = [*self.notes.unsplit, *(product(b, g) for b, g in shared if g is not None)]
        biases = torch.zeros_like(like)
        for part in [*self.notes.parts, *(products(b, g) for b, g in pairs)]:
            biases = biases + part.to(biases.device)
        for part in unsplit:
            biases = biases + part.to(biases.device) / len(biases)
        return biases, not unsplit

    def _backward(
        self, score: Callable[[Tensor], Tensor], reading: Reading, every: bool, again: bool = True
    ) -> Backward:
        """The backward pass of a score, which the reading sees. again: whether there may be another one after it."""
        with self.lock, torch.inference_mode(False), torch.enable_grad(), routes.running():
            self.readings[:] = [reading]  # attention calls write into it while the gradient passes: one at a time
            logits = self.logits.detach().requires_grad_()
            scored = score(logits)
            (slope,) = torch.autograd.grad(scored.sum(), [logits])
            entered = list(self.states) if every else [self.states[0]]
            shared = [] if self.notes is None else self.notes.leaves
            leaves = [*entered, *self.constants, *shared, *self.sources]
            gradients = torch.autograd.grad(
                self.logits, leaves, slope.to(self.logits.dtype), retain_graph=again, allow_unused=True
            )
        if gradients[0] is None:
            raise ModelError(f"the answer of {self.name} does not depend on the states of its layers")
        holds = tuple(holdings(x, g) for x, g in zip(entered, gradients, strict=False))
        return Backward(scored.detach(), holds, gradients[len(entered) :], products(logits, slope))

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
        return {kind: total[0].double() for kind, total in reading.total.items()}


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


def products(x: Tensor, slope: Tensor) -> Tensor:
    """``Σ x·slope`` of each text [text, …] in double precision; what a model rules out by logits of -inf has no part."""
    x, slope = x.detach().reshape(len(x), -1), slope.reshape(len(x), -1)
    rows = max(1, PRODUCTS // max(1, x.shape[1]))
    sums = []
    for a, b in zip(x.split(rows), slope.split(rows), strict=True):
        pieces = zip(a.split(PRODUCTS, 1), b.split(PRODUCTS, 1), strict=True)
        sums.append(sum(torch.where(d == 0, 0, c.double() * d.double()).sum(1) for c, d in pieces))
    return torch.cat(sums)


def product(x: Tensor, slope: Tensor) -> Tensor:
    """The same over everything: one number."""
    return products(x[None], slope[None])[0]


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
    check_gap(name, gap, slack)
    return gap


def check_gap(name: str, gap: float, slack: float) -> None:
    if not gap <= slack:
        raise ModelError(
            f"{name} is not linear when attention, norms and gates are held constant: its edges carry other than "
            f"the answer's score, by {gap:.2g} of it, so answer edges would mislead. Other edges, for example "
            'edges="attention-gradient", need no such model'
        )


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
    measure: bool = True,
    texts: int | None = None,
    **options: Any,
) -> FrozenPass:
    """One pass of one text, or of a batch that is padded on the right, forward, with everything constant but the states.

    cache: keys and values of the ``prefix`` positions before these; see `attnflow.capture.kv_cache`. freeze: otherwise
    nothing is constant but what lies in the cache, and the pass can be asked for its `slopes` alone. keep: whether the pass
    is also to be what a trace is made of, so that the model runs once for both. measure: as in `Runner.run_batch`.
    texts: how many a batch has, which is then asked for its `evidence_of_texts`.
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
    notes = None if texts is None else Notes(texts)
    mode, names = "frozen" if checked.blocks else "frozen, whole", keep or bool(checked.stack.cross)
    collector = Collector(mode, measure=measure, names=names)
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
        torch.inference_mode(False), routes.running(), entering(model.model, layers, collector) as states,
        measuring(model.forms(checked) if keep and measure else (), checked, collector) as write,
        Freeze(notes) if freeze else nullcontext() as frozen,
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
        "blocks" if any(call.weights is None for call in calls) else "whole", notes,
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
def entering(model: Any, paths: Sequence[str], collector: Collector) -> Iterator[list[Tensor]]:
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
