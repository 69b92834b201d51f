"""Frozen passes: attention weights, norm scales and gates are constant, so the answer's score splits over all edges.

With these constants (`attnflow.capture.freeze`) the score y of an answer is linear in the states, so it splits exactly:

    y = Σ_positions x0·g0  +  Σ_prefix E  +  constants

Here g0 is the gradient of y at the states x0 that enter the first layer, and ``E[q, k] = Σ_heads A[q, k]·v_k·∂y/∂o_q``
is what attention carries along an edge, signed. Positions whose keys and values are in a cache are constants: what is
read from them ends there. A decoder looks back only, so a pass over the answer's tokens on top of the prompt's cache
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
from attnflow.capture.predict import finds_spans
from attnflow.capture.sublayer import layer_path
from attnflow.capture.verify import cover
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import ModelOutput, Runner

POSITIONS = 8192
"""Positions whose states are multiplied in double precision at a time."""

PRODUCTS = 1 << 22
"""Numbers of logits that are multiplied in double precision at a time; logits are wider than states."""

SLACK = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""How much the parts may differ from the whole, relative to the sum of their sizes.

Rounding alone makes up to 1.7e-4 in float32, among 600 answers of SmolLM2; one of the worst is 3e-15 off in float64.
"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The score y of an answer, split into parts. The axes are those of one text.

    read: [query, key], what attention carries, summed over layers, for the requested rows.
    crossed: [query, source], the same for a decoder that reads a source.
    own: [query], what ends at the states that enter the first layer.
    constants: the part of biases and of the score's own constant.
    gap: the difference between the sum of the parts and y, relative to the sum of their sizes.
    layers: what attention carries at each layer, [query, key], if requested.
    holds: [query] for each layer, the part of the states that enter it, if requested.
    scored: the values of the score, before they were summed.
    tower: [position of the tower], what ends at the states that enter a vision tower, if the pass continues down to it.
    """

    y: float
    read: Tensor
    crossed: Tensor | None
    own: Tensor
    constants: float
    gap: float
    layers: tuple[Tensor, ...] = ()
    holds: tuple[Tensor, ...] = ()
    scored: Tensor | None = None
    tower: Tensor | None = None


@dataclass(frozen=True, eq=False)
class BatchEvidence:
    """The scores y [text] of a batch, split into parts.

    own: [text, position], what ends at the states that enter the first layer.
    columns: for each layer, what attention carries from each key, summed over queries, [text, key].
    rows: the same for the requested queries.
    layers, holds: [text, query, key] and [text, position] of each layer, as in `Evidence`, if requested.
    constants, gaps: [text], as in `Evidence`. If biases are added to states in another order than that of the texts,
        constants is None, and every gap is that of all texts together.
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
    """Results of one backward pass.

    scored: the values of the score.
    holds: ``x·g`` of the states, [text, position], of the first layer, or of each.
    gradients: those of the constants.
    along: the products of logits and their slopes, [text].
    """

    scored: Tensor
    holds: tuple[Tensor, ...]
    gradients: Sequence[Tensor | None]
    along: Tensor


@dataclass(frozen=True, eq=False)
class FrozenPass:
    """A pass that splits scores of its logits over its edges, any number of times.

    states: [text, position, width], what enters each layer.
    logits: those of the same positions, or of the text.
    constants: what is added without coming from a state.
    sources: values that do not come from a state either, such as those of an encoder.
    prefix: the number of keys before the first position, in a cache.
    fades: whether the attention scores are known, which `slopes` needs.
    out, calls, mode: the model's output, its attention calls with reduced heads, and how these were computed, if kept.
    notes: for a batch, the contributions of constants to each text, recorded during the backward pass.
    bottom: what enters a vision tower, if the pass continues down to it.
    seats: for each position of the tower, the position of the text that it feeds, or -1.
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
    bottom: Tensor | None = None
    seats: Sequence[int] = ()
    lock: Lock = field(default_factory=Lock)

    def evidence(
        self,
        score: Callable[[Tensor], Tensor],
        *,
        local: bool = False,
        every: bool = False,
        rows: slice | None = None,
    ) -> Evidence:
        """Split ``score(logits)`` over edges; several scores are summed.

        local: ask each position only about its own logits.
        every: also keep the edges of each layer.
        rows: the positions whose edges are requested; with ``local``, all that the score depends on.
        """
        if self.snapshot is not None:
            self.snapshot.check()  # gradients read it too
        if not local and self.prefix:
            rows = None  # what all positions read from the prefix ends there, and has to add up
        reading = Reading(local, every, rows)
        backward = self._backward(score, reading, every)
        own, apart = self._seated(backward)
        total, by_layer = reading.collected(own.device)
        read, crossed = total["self"][0], total["cross"][0] if "cross" in total else None
        numbers = torch.stack([
            backward.scored.double().sum(), own.sum(), own.abs().sum(), *_ends(read, self.prefix, reading),
            own.new_zeros(()) if crossed is None else crossed.sum(dtype=torch.float64),
            constant_part(self.constants, backward.gradients).to(read.device), backward.along.sum(),
        ])  # fmt: skip
        # the only point that waits for the GPU
        y, bottom, size, ends, ends_size, through, biases, along = numbers.tolist()
        biases += apart
        check_finite(self.name, y)
        head = y - along
        # a large exact part is left out of the size, because it would hide errors of small parts
        gap = gap_of(self.name, y, bottom + ends + biases + head + through, size + ends_size + abs(biases), self.slack)
        layers = tuple(by_layer[k][0].double() for k in sorted(by_layer) if k[0] == "self")
        holds = (own, *(layer[0] for layer in backward.holds[1 : len(self.states)])) if every else ()
        tower = None if self.bottom is None else backward.holds[-1].flatten()
        return Evidence(y, read, crossed, own, biases + head, gap, layers, holds, backward.scored, tower)

    def _seated(self, backward: Backward) -> tuple[Tensor, float]:
        """Return the part of each position of the text, where those of an image get the parts of their patches; and the
        part of class tokens of the vision tower, which feed no position."""
        own = backward.holds[0][0]
        if self.bottom is None:
            return own, 0.0
        tower, seats = backward.holds[-1].flatten(), torch.tensor(self.seats, device=own.device)
        return own.index_add(0, seats[seats >= 0], tower[seats >= 0]), float(tower[seats < 0].sum())

    def evidence_of_texts(
        self, score: Callable[[Tensor], Tensor], *, taken: Tensor | None = None, every: bool = False
    ) -> BatchEvidence:
        """Split ``score(logits)`` of each text, [text], with one backward pass for all of them, which uses the pass up.

        A text's score depends only on its own states, so the gradient of the sum is the gradient of each.

        taken: [text, query], the weight of each query in ``rows``.
        every: return the edges of each layer instead of their sums.
        """
        reading = Reading(every=every, sums=None if every else Sums(taken))
        backward = self._backward(score, reading, every, again=False)
        y, own = backward.scored.double(), backward.holds[0]
        biases, split = self._biases(backward.gradients, y)
        head = y - backward.along
        parts = torch.stack([y, own.sum(1) + biases + head, own.abs().sum(1) + biases.abs()])
        if not split:
            parts = parts.sum(1, keepdim=True).expand_as(parts)  # only the batch as a whole adds up
        gaps = (parts[1] - parts[0]).abs() / parts[2].clamp(min=1e-30)
        # a text with NaN parts makes both of these NaN, so its batch is refused
        total, worst = torch.stack([y.sum(), gaps.max()]).tolist()  # the only point that waits for the GPU
        check_finite(self.name, total)
        check_gap(self.name, worst, self.slack)
        sums = Sums() if reading.sums is None else reading.sums
        columns, rows = (tuple(x.to(y.device) for _, x in sorted(some.items())) for some in (sums.columns, sums.rows))
        layers = tuple(reading.layers[key].to(y.device) for key in sorted(reading.layers))
        holds = backward.holds if every else ()
        return BatchEvidence(y, own, biases + head if split else None, gaps, columns, rows, layers, holds)

    def _biases(self, gradients: Sequence[Tensor | None], like: Tensor) -> tuple[Tensor, bool]:
        """Return the contribution of constants to each text, [text], or equal shares if it cannot be split."""
        assert self.notes is not None  # set for every batch
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
        """Run the backward pass of a score, observed by the reading.

        again: whether another backward pass may follow.
        """
        with self.lock, torch.inference_mode(False), torch.enable_grad(), routes.running():
            # attention calls write into it during the backward pass, so only one can run at a time
            self.readings[:] = [reading]
            logits = self.logits.detach().requires_grad_()
            scored = score(logits)
            (slope,) = torch.autograd.grad(scored.sum(), [logits])
            entered = list(self.states) if every else [self.states[0]]
            entered += [] if self.bottom is None else [self.bottom]
            shared = [] if self.notes is None else self.notes.leaves
            leaves = [*entered, *self.constants, *shared, *self.sources]
            gradients = torch.autograd.grad(
                self.logits, leaves, slope.to(self.logits.dtype), retain_graph=again, allow_unused=True
            )
        if gradients[0] is None:
            raise ModelError(f"the answer of {self.name} does not depend on the states of its layers")
        device = self.logits.device
        # some towers have no axis for images
        pairs = [
            (x, g) if x.dim() == 3 else (x[None], None if g is None else g[None])
            for x, g in zip(entered, gradients, strict=False)
        ]
        holds = tuple(holdings(x, g).to(device) for x, g in pairs)
        return Backward(scored.detach(), holds, gradients[len(entered) :], products(logits, slope))

    def slopes(self, score: Callable[[Tensor], Tensor], rows: slice) -> dict[str, Tensor]:
        """Return ``∂score/∂s[q, k]`` for the attention scores s of these queries, summed over layers and heads.

        The keys are the kinds of call, "self" and "cross". The pass must have run with ``freeze=False``.
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
        return {kind: x[0].double() for kind, x in reading.collected(logits.device)[0].items()}


def slope_of(name: str, y: Tensor, logits: Tensor) -> Tensor:
    """Return ``∂y/∂logits`` of a score; refuse a score that is not finite."""
    check_finite(name, float(y.detach()))
    (slope,) = torch.autograd.grad(y, [logits])
    return slope


def check_finite(name: str, y: float) -> None:
    if not math.isfinite(y):
        raise ModelError(
            f"the log-odds of this answer are {y}: {name} returns logits that are not finite, or rules the answer out, "
            "so there is nothing to split into parts"
        )


def products(x: Tensor, slope: Tensor) -> Tensor:
    """Return ``Σ x·slope`` of each text [text, …] in double precision. Logits of -inf contribute nothing."""
    x, slope = x.detach().reshape(len(x), -1), slope.reshape(len(x), -1)
    rows = max(1, PRODUCTS // max(1, x.shape[1]))
    sums = []
    for a, b in zip(x.split(rows), slope.split(rows), strict=True):
        pieces = zip(a.split(PRODUCTS, 1), b.split(PRODUCTS, 1), strict=True)
        sums.append(sum(torch.where(d == 0, 0, c.double() * d.double()).sum(1) for c, d in pieces))
    return torch.cat(sums)


def product(x: Tensor, slope: Tensor) -> Tensor:
    """Return ``Σ x·slope`` over everything, as one number."""
    return products(x[None], slope[None])[0]


def constant_part(constants: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the contribution of constants that are added to states, as one number."""
    parts = [product(b, g) for b, g in zip(constants, gradients, strict=False) if g is not None]
    return torch.stack([x.to(parts[0].device) for x in parts]).sum() if parts else torch.zeros((), dtype=torch.float64)


def holdings(states: Tensor, gradient: Tensor | None) -> Tensor:
    """Return ``x·g`` of each position: [text, position]."""
    if gradient is None:
        return torch.zeros(states.shape[:2], dtype=torch.float64, device=states.device)
    pairs = zip(states.detach().split(POSITIONS, 1), gradient.split(POSITIONS, 1), strict=True)
    return torch.cat([(x.double() * g.double()).sum(-1) for x, g in pairs], 1)


def conserved(name: str, y: float, own: Tensor, ends: Tensor, biases: float, exact: float, slack: float) -> float:
    """Return how far the parts are from y, relative to the sum of their sizes; refuse more than rounding.

    own: what ends at the first layer's states.
    ends: what edges carry to where it ends.
    exact: parts without rounding errors, such as the head's constant.
    """
    total = float(own.sum()) + float(ends.sum()) + biases + exact
    # a large exact part is left out of the size, because it would hide errors of small parts
    return gap_of(name, y, total, float(own.abs().sum() + ends.abs().sum()) + abs(biases), slack)


def gap_of(name: str, y: float, total: float, size: float, slack: float) -> float:
    """Return how far a total of parts is from y, relative to their size; refuse more than rounding."""
    gap = abs(total - y) / max(size, 1e-30)
    check_gap(name, gap, slack)
    return gap


def check_gap(name: str, gap: float, slack: float) -> None:
    if not gap <= slack:
        raise ModelError(
            f"{name} is not linear when attention, norms and gates are held constant: its edges miss the answer's "
            f"score by {gap:.2g} of the score, so answer edges would mislead. Use other edges, for example "
            'edges="attention-gradient"'
        )


def _ends(read: Tensor, prefix: int, reading: Reading) -> tuple[Tensor, Tensor]:
    """Return the sum and the size of what edges carry to its end: the prefix, or with ``local`` every other
    position."""
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
    tower: str | None = None,
    image: Sequence[int] = (),
    seats: Sequence[int] = (),
    **options: Any,
) -> FrozenPass:
    """Run one text, or a batch that is padded on the right, with everything constant but the states.

    cache: keys and values of the ``prefix`` positions before these; see `attnflow.capture.kv_cache`.
    freeze: if False, only the contents of the cache are constant, and the pass supports `slopes` alone.
    keep: whether a trace is made from the same pass, so that the model runs once for both.
    measure: as in `Runner.run_batch`.
    texts: the number of texts of a batch, for `evidence_of_texts`.
    tower: path of the layers of a vision tower, down to which the pass continues for the positions in ``image``. The
        parts of a position of the image are then those of its patches.
    seats: for each position of the tower, the position of the text that it feeds.
    """
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE:
        raise ModelError(
            f"the attention of {name} was captured as {checked.route}, but answer edges need the attention interface "
            "of transformers: trace it without edges, by its weights alone"
        )
    if not freeze and not checked.blocks:
        raise ModelError(
            f"the attention scores of {name} cannot be recomputed, but fading needs the gradient with respect to them"
        )
    model.check_gradients()
    calls: list[FrozenCall] = []
    readings: list[Reading] = []
    sources: list[Tensor] = []
    notes = None if texts is None else Notes(texts)
    mode, names = "frozen" if checked.blocks else "frozen, whole", keep or bool(checked.stack.cross)
    collector = Collector(mode, measure=measure, names=names)
    in_place = cache if isinstance(cache, CacheInPlace) else None
    bottom: list[Tensor] = []

    def reading() -> Callable[[], Reading]:
        if states or checked.stack.cross:
            return lambda: readings[0]
        # for a vision tower, which runs before the layers of the text and has other positions
        own = Reading(sums=Sums())
        return lambda: own

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Tensor:
        with torch._C.DisableTorchFunction():  # `Freeze` must not see this
            with torch.no_grad():
                call = frozen_call(collector, len(calls), module, query, key, value, mask, kwargs, reading(), in_place)
                if keep:
                    _keep(collector, module, call, value)
            calls.append(call)
            of_text = bool(states or checked.stack.cross)  # not of a vision tower
            if not freeze:
                # the first layer's states are not asked about, but autograd must reach them
                if of_text and not query.requires_grad:
                    query = query.detach().requires_grad_()
                    sources.append(query)
                faded: Tensor = FadingAttention.apply(query, key, value, call)
                return faded
            # values of a source are constants whose edges count, so autograd must reach them
            if of_text and not value.requires_grad:
                value = value.detach().requires_grad_()
                sources.append(value)
            out: Tensor = FrozenAttention.apply(value, call, int(query.shape[2]))
            return out

    collector.attend = attend
    layers = [layer_path(checked.paths[i]) for i in checked.stack.decoder or checked.stack.main]
    if cache is None and "encoder_outputs" not in options:  # otherwise these tensors are only a part of the text
        cover(model, tensors, checked)
    routes.prepare(model.model, checked.route)
    if cache is not None:
        options |= {"past_key_values": cache if in_place is None else in_place.cache, "use_cache": True}
    with (
        torch.inference_mode(False), routes.running(), entering(model.model, layers, collector, image) as states,
        _bottom(model.model, tower, collector, bottom),
        Freeze(notes) if freeze else nullcontext() as frozen,
    ):  # fmt: skip
        out = routes.capture(
            model.model, checked.route, lambda: model.forward(tensors, grad=True, **options), collector
        )
    collector.attend = None  # it refers to the collector; breaking the cycle frees the pass at once
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor):
        raise ModelError(f"answer edges explain an answer, but {no_answer(model)}")
    if not states or not calls:
        raise ModelError(f"the layers of {name} were not seen, but answer edges need them: trace it without edges")
    known = None if in_place is None else in_place.snapshot
    constants = [] if frozen is None else frozen.constants
    return FrozenPass(
        name, states, logits, constants, sources, prefix, SLACK[model.dtype], readings, known,
        checked.blocks, out if keep else None, collector.calls,
        "blocks" if any(call.weights is None for call in calls) else "whole", notes,
        bottom[0] if bottom else None, seats,
    )  # fmt: skip


def no_answer(model: Runner) -> str:
    """Return why there are no answer edges for a model without logits."""
    if model.pooling is not None:
        return f"{model!r} returns an embedding of a text: similarity(first, second) explains how similar two texts are"
    if finds_spans(model):
        return (
            f"{model!r} marks where an answer starts and ends (start_logits and end_logits), which is no single answer: "
            "expected a classifier or a language model; trace() without edges shows its attention"
        )
    return f"{model!r} has no head, so it answers nothing: expected a classifier or a language model"


def _keep(collector: Collector, module: Any, call: FrozenCall, value: Tensor) -> None:
    """Keep the weights of a call, heads reduced, as in a pass that holds nothing constant."""
    if call.weights is not None:
        collector.add(module, call.weights, value, getattr(module, "sinks", None) is not None)
    elif call.scores is not None:
        collector.add_blocks(module, call.scores, value, output=False)


@contextmanager
def entering(
    model: Any, paths: Sequence[str], collector: Collector, image: Sequence[int] = ()
) -> Iterator[list[Tensor]]:
    """Collect the states that enter these layers while active. Those of the first layer become an autograd leaf.

    image: positions whose states stay connected to their source.
    """
    if not all(paths):
        raise ModelError(f"{type(model).__name__} has no numbered layers, but answer edges need them")
    states: list[Tensor] = []

    def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not is_collecting(collector):
            return None
        entering = states_of(args, named)
        if states or not image:
            states.append(entering if states else entering.detach().requires_grad_())
            return with_states(args, named, states[-1])
        states.append(entering.detach().requires_grad_())
        with torch._C.DisableTorchFunction():
            kept = torch.zeros(entering.shape[1], dtype=torch.bool, device=entering.device)
            kept[list(image)] = True
            joined = torch.where(kept[:, None], entering, states[0])
        return with_states(args, named, joined)

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            layer = model.get_submodule(path)
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield states


@contextmanager
def _bottom(model: Any, tower: str | None, collector: Collector, bottom: list[Tensor]) -> Iterator[None]:
    """Collect what enters the first layer of a vision tower while active, as an autograd leaf."""
    if tower is None:
        yield
        return

    def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not is_collecting(collector):
            return None
        bottom.append((args[0] if args else named["hidden_states"]).detach().requires_grad_())
        return with_states(args, named, bottom[-1])

    handle = model.get_submodule(f"{tower}.0").register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
