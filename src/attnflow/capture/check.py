"""The self-check on first use of a model: nothing is shown that was not compared with the model without hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnflow._arrays import indices
from attnflow.capture.collect import Call
from attnflow.capture.ranks import Ranks
from attnflow.errors import InputError

# Most model files take their softmax in single precision, also where the model has double.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}

ROUNDINGS, DRAWS = 4.0, 3
"""Outputs may differ by so many times what rounding the embeddings another way does, the most of so many draws."""


@dataclass(frozen=True)
class Stack:
    """The calls of one trace by number: a single stack, or an encoder and a decoder with cross-attention."""

    main: tuple[int, ...]
    decoder: tuple[int, ...] = ()
    cross: tuple[int, ...] = ()

    def calls_of(self, layers: Iterable[int]) -> frozenset[int]:
        """The calls that layers of the model stand for."""
        if not self.cross:
            return frozenset(self.main[l] for l in indices(layers, len(self.main), "layer"))
        chosen = indices(layers, len(self.cross), "layer")
        return frozenset(i for l in chosen for i in (self.decoder[l], self.cross[l]))


@dataclass(frozen=True)
class Checked:
    """What the self-check found.

    route: how attention is captured. difference: of the outputs, hooked against not; 0.0 is equal to the bit.
    blocks: whether the attention is softmax(scale·QKᵀ + mask) as we compute it, so that it can be had for some queries at a
    time. causal: whether changing later tokens leaves earlier outputs as they are. sinks: whether rows sum to less
    than one by the model's design. padding: whether a padded batch gives what single texts give. calls: how many attention
    calls a forward pass makes; stack: which are whose. heads, positions: the most of any call. reducers: see `routes`.
    paths: of the modules that made the calls. ranks: the processes that share the heads; None where this one has all.
    """

    route: str
    difference: float
    blocks: bool
    causal: bool
    sinks: bool
    padding: bool | None
    calls: int
    reducers: Mapping[str, int]
    stack: Stack
    heads: int
    positions: int
    paths: tuple[str, ...]
    ranks: Ranks | None = None


def float_outputs(out: Any) -> list[Tensor]:
    """All floating-point tensors of a model's output but its attentions and caches, in order."""
    tensors: list[Tensor] = []

    def visit(x: Any, name: str) -> None:
        if "attentions" in name or name == "past_key_values":
            return
        if isinstance(x, Tensor):
            if x.is_floating_point():
                tensors.append(x.detach())
        elif isinstance(x, Mapping):
            for key, value in x.items():
                visit(value, str(key))
        elif isinstance(x, list | tuple):
            for value in x:
                visit(value, name)

    visit(out, "")
    return tensors


def largest_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=False)):
        return float("inf")
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.numel():
            gap = (x.double() - y.double()).abs()
            # equal infinities differ by nan, and so do nans at the same place: a masked logit is both
            worst = max(worst, float(torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, gap).max()))
    return worst if worst == worst else float("inf")


def tolerance(model: Any, outputs: Sequence[Tensor]) -> float:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    scale = max([1.0, *(float(x.double().abs().nan_to_num(0, 0, 0).max()) for x in outputs if x.numel())])
    return TOLERANCE.get(dtype, 2e-5) * scale


def is_close(
    difference: float,
    model: Any,
    forward: Callable[[Mapping[str, Tensor]], Any],
    tensors: Mapping[str, Tensor],
    expected: Sequence[Tensor],
) -> bool:
    """Whether outputs that differ so much from the expected ones are the same but for rounding.

    On some texts a model amplifies rounding itself: there, what a change of the embeddings by their last digit does says
    how much of a difference counts for nothing. forward: the bare model.
    """
    return difference <= tolerance(model, expected) or difference <= ROUNDINGS * _noise(
        model, forward, tensors, expected
    )


def _noise(
    model: Any,
    forward: Callable[[Mapping[str, Tensor]], Any],
    tensors: Mapping[str, Tensor],
    expected: Sequence[Tensor],
) -> float:
    """How far outputs move when the embeddings are rounded another way, the most of some draws.

    In single precision, in which models of double precision compute parts of attention too. 0 for models of half precision,
    whose tolerance is wide, and for those without embeddings.
    """
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if half(dtype) or not isinstance(embeddings, torch.nn.Module):
        return 0.0
    draw = torch.Generator().manual_seed(0)

    def hook(module: Any, args: Any, out: Any) -> Any:
        if not isinstance(out, Tensor):
            return out
        signs = torch.randint(0, 2, out.shape, generator=draw, dtype=torch.int8).to(out.device) * 2 - 1
        return out * (1 + torch.finfo(torch.float32).eps * signs)

    handle = embeddings.register_forward_hook(hook)
    try:
        return max(largest_difference(float_outputs(forward(tensors)), expected) for _ in range(DRAWS))
    finally:
        handle.remove()


def check_rows(calls: Sequence[Call], dtype: torch.dtype) -> None:
    """That weights are numbers from 0 to 1 whose rows sum to one, or to less where the layer has a sink."""
    slack = 2e-2 if half(dtype) else 1e-4
    for number, call in enumerate(calls):
        if call.mean is None:
            continue
        sums = call.mean.sum(-1)
        if not bool(torch.isfinite(call.mean).all()) or float(call.mean.min()) < 0:
            raise InputError(f"attention call {number} ({call.path}) gives weights that are negative or not numbers")
        low, high = float(sums.min()), float(sums.max())
        if high > 1 + slack or (low < 1 - slack and not call.has_sinks):
            raise InputError(
                f"rows of attention call {number} ({call.path}) sum to {low:.3g} to {high:.3g}, not to one: this is not "
                "the attention that the model used"
            )


def sees_ahead(calls: Sequence[Call]) -> bool:
    return any(call.mean is not None and float(call.mean.triu(1).max()) > 0 for call in calls)


def check_future(calls: Sequence[Call]) -> None:
    for number, call in enumerate(calls):
        if call.mean is not None:
            ahead = float(call.mean.triu(1).max())
            if ahead > 0:
                raise InputError(
                    f"attention call {number} ({call.path}) gives {ahead:.3g} to a later position, but the outputs of this "
                    "model do not depend on later positions: this is not the attention that the model used"
                )


def half(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16)


def looks_back_only(
    run: Callable[[Mapping[str, Tensor]], Any], tensors: Mapping[str, Tensor], name: str, vocabulary: int
) -> bool | None:
    """Whether outputs of the first half stay the same when all tokens of the second half change.

    None where that cannot be told: no outputs by position, or a change as small as rounding (experts that are given other
    tokens beside, or a model that hardly looks around in half precision).
    """
    n = tensors[name].shape[1]
    gap = _gap_elsewhere(run, tensors, name, vocabulary, range(n // 2, n))
    if gap is None or gap > NOISE:
        return None if gap is None else False
    return gap == 0 or None


NOISE = 64
"""Differences of so many roundings are none."""


def check_nothing_else_mixes(
    run: Callable[[Mapping[str, Tensor]], Any], tensors: Mapping[str, Tensor], name: str, vocabulary: int
) -> None:
    """``run`` runs the model with every position attending to itself only: then none may depend on another."""
    n = tensors[name].shape[1]
    for changed in (range(n // 2, n), range(n // 2)):
        gap = _gap_elsewhere(run, tensors, name, vocabulary, changed)
        if gap is not None and gap > NOISE:
            raise InputError(
                "positions mix in other ways too: with attention to oneself only, outputs still depend on other positions "
                "(convolutions, recurrences, or attention in code that cannot be watched)"
            )


def _gap_elsewhere(
    run: Callable[[Mapping[str, Tensor]], Any],
    tensors: Mapping[str, Tensor],
    name: str,
    vocabulary: int,
    changed: range,
) -> float | None:
    """By how many roundings outputs elsewhere move when the tokens at ``changed`` do; None if no output has positions."""
    ids = tensors[name]
    others = [i for i in range(ids.shape[1]) if i not in changed]
    if not others or not len(changed):
        return None
    moved = ids.clone()
    chosen = list(changed)
    if moved.is_floating_point():
        moved[:, chosen] = moved[:, chosen].flip(-1) + 1
    else:
        moved[:, chosen] = (moved[:, chosen] + 1 + vocabulary // 2) % max(vocabulary, 2)
    before, after = float_outputs(run(tensors)), float_outputs(run({**tensors, name: moved}))
    worst: float | None = None
    for x, y in zip(before, after, strict=True):
        if x.dim() == 3 and x.shape[1] == ids.shape[1]:
            a, b = x[:, others].double(), y[:, others].double()
            scale = max(float(a.abs().nan_to_num(0, 0, 0).max()), 1e-30) * torch.finfo(x.dtype).eps
            worst = max(worst or 0.0, float((a - b).abs().nan_to_num(0, 0, 0).max()) / scale)
    return worst
