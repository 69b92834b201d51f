"""Self-check of a model on first use: attention is only shown after a comparison with the model without hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnflow._arrays import indices
from attnflow.capture.collect import Call
from attnflow.errors import InputError

# Most model files compute softmax in single precision, even if the model is in double precision.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}

ROUNDINGS, DRAWS = 4.0, 3
"""Outputs may differ by ROUNDINGS times the effect of rounding the embeddings differently, the largest of DRAWS."""

AMPLIFIED = 0.01
"""The most by which rounding may excuse a difference, as a share of the largest output. If a last digit decides more,
as between keys that a model picks with equal scores, right outputs cannot be distinguished from wrong ones."""


@dataclass(frozen=True)
class Stack:
    """The numbers of the calls of one trace: a single stack, or an encoder and a decoder with cross-attention."""

    main: tuple[int, ...]
    decoder: tuple[int, ...] = ()
    cross: tuple[int, ...] = ()

    def calls_of(self, layers: Iterable[int]) -> frozenset[int]:
        """Return the calls of these layers of the model."""
        if not self.cross:
            return frozenset(self.main[l] for l in indices(layers, len(self.main), "layer"))
        chosen = indices(layers, len(self.cross), "layer")
        return frozenset(i for l in chosen for i in (self.decoder[l], self.cross[l]))


@dataclass(frozen=True)
class Checked:
    """Results of the self-check.

    route: how attention is captured.
    difference: the difference between the outputs with and without hooks; 0.0 means bit-identical.
    blocks: whether our softmax(scale·QKᵀ + mask) reproduces the attention, so that it can be computed for a few queries
        at a time.
    causal: whether earlier outputs stay the same when later tokens change.
    sinks: whether rows sum to less than one by the model's design.
    padding: whether a padded batch gives the same results as single texts.
    calls: the number of attention calls in a forward pass.
    stack: which call belongs to which layer.
    heads, positions: the largest number in any call.
    reducers: see `routes`.
    paths: the paths of the modules that made the calls.
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


def float_outputs(out: Any) -> list[Tensor]:
    """Return all floating-point tensors of a model's output in order, except attentions and caches."""
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
            # equal infinities give NaN, and so do NaNs at the same place; masked logits may be either
            worst = max(worst, float(torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, gap).max()))
    return worst if worst == worst else float("inf")


def tolerance(model: Any, outputs: Sequence[Tensor]) -> float:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return TOLERANCE.get(dtype, 2e-5) * _scale(outputs)


def _scale(outputs: Sequence[Tensor]) -> float:
    return max([1.0, *(float(x.double().abs().nan_to_num(0, 0, 0).max()) for x in outputs if x.numel())])


def is_close(
    difference: float,
    model: Any,
    forward: Callable[[Mapping[str, Tensor]], Any],
    tensors: Mapping[str, Tensor],
    expected: Sequence[Tensor],
) -> bool:
    """Return whether outputs with this difference from the expected ones are equal up to rounding.

    On some texts the model itself amplifies rounding. There, the effect of changing the embeddings by their last digit
    shows which differences are harmless.

    forward: the bare model.
    """
    if difference <= tolerance(model, expected):
        return True
    if difference > AMPLIFIED * _scale(expected):
        return False
    return difference <= ROUNDINGS * _noise(model, forward, tensors, expected)


def _noise(
    model: Any,
    forward: Callable[[Mapping[str, Tensor]], Any],
    tensors: Mapping[str, Tensor],
    expected: Sequence[Tensor],
) -> float:
    """Return how far outputs move when the embeddings are rounded differently, the largest of several draws.

    The rounding is that of single precision, because models in double precision also compute parts of attention in it.
    The result is 0 for models in half precision, whose tolerance is wide, and for models without embeddings.
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
    """Check that weights are between 0 and 1, and that rows sum to one, or to less if the layer has a sink."""
    slack = 2e-2 if half(dtype) else 1e-4
    for number, call in enumerate(calls):
        if call.mean is None:
            continue
        sums = call.mean.sum(-1)
        if not bool(torch.isfinite(call.mean).all()) or float(call.mean.min()) < 0:
            raise InputError(f"attention call {number} ({call.path}) has weights that are negative or NaN")
        low, high = float(sums.min()), float(sums.max())
        if high > 1 + slack or (low < 1 - slack and not call.has_sinks):
            raise InputError(
                f"rows of attention call {number} ({call.path}) sum to {low:.3g} to {high:.3g} instead of 1: this is "
                "not the attention that the model used"
            )


def sees_ahead(calls: Sequence[Call], among: Sequence[int] = ()) -> bool:
    """Return whether positions attend to later ones.

    among: positions of an image, which may attend to one another (Gemma 3).
    """
    for call in calls:
        if call.mean is not None:
            ahead = call.mean.triu(1)
            if among:
                image = torch.zeros(ahead.shape[-1], dtype=torch.bool, device=ahead.device)
                image[list(among)] = True
                ahead = ahead.masked_fill(image[:, None] & image, 0)
            if float(ahead.max()) > 0:
                return True
    return False


def check_future(calls: Sequence[Call]) -> None:
    for number, call in enumerate(calls):
        if call.mean is not None:
            ahead = float(call.mean.triu(1).max())
            if ahead > 0:
                raise InputError(
                    f"attention call {number} ({call.path}) gives {ahead:.3g} to a later position, but the outputs of "
                    "this model do not depend on later positions: this is not the attention that the model used"
                )


def half(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16)


def looks_back_only(
    run: Callable[[Mapping[str, Tensor]], Any], tensors: Mapping[str, Tensor], name: str, vocabulary: int
) -> bool | None:
    """Return whether outputs of the first half stay the same when all tokens of the second half change.

    Return None if that is undecidable: there are no outputs by position, or the change is as small as rounding (experts
    that receive other tokens, or a model that hardly looks around in half precision).
    """
    n = tensors[name].shape[1]
    gap = _gap_elsewhere(run, tensors, name, vocabulary, range(n // 2, n))
    if gap is None or gap > NOISE:
        return None if gap is None else False
    return gap == 0 or None


NOISE = 64
"""Differences of up to this many roundings are ignored."""


def check_nothing_else_mixes(
    run: Callable[[Mapping[str, Tensor]], Any], tensors: Mapping[str, Tensor], name: str, vocabulary: int
) -> None:
    """Check that no position depends on another when ``run`` makes every position attend only to itself."""
    n = int(tensors[name].shape[1])
    if n < 2:
        return
    # half of the positions change, such that most pairs, and all neighbours, are once on different sides
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(n)).tolist()
    before = float_outputs(run(tensors))
    for changed in (drawn[: n // 2], drawn[n // 2 :], range(0, n, 2)):
        gap = _gap_elsewhere(run, tensors, name, vocabulary, changed, before)
        if gap is None:
            raise InputError(
                "neither the model nor its layers return one state per position, so it is unknown whether positions "
                "mix outside attention: wrap the part that returns its states"
            )
        if gap > NOISE:
            raise _mixes()


def check_same_beside(states: Tensor) -> None:
    """Check that positions do not mix, given the states [3, position, width] of the last layer. The second item entered
    the first layer with a different second half, the third item with a different first half."""
    half = states.shape[1] // 2
    if max(_roundings(states[0, :half], states[1, :half]), _roundings(states[0, half:], states[2, half:])) > NOISE:
        raise _mixes()


def _mixes() -> InputError:
    return InputError(
        "positions mix in other ways too: when every position attends only to itself, outputs still depend on other "
        "positions (convolutions, recurrences, or attention in code that cannot be observed)"
    )


def _gap_elsewhere(
    run: Callable[[Mapping[str, Tensor]], Any],
    tensors: Mapping[str, Tensor],
    name: str,
    vocabulary: int,
    changed: Sequence[int],
    unchanged: Sequence[Tensor] | None = None,
) -> float | None:
    """Return by how many roundings other outputs move with the tokens at ``changed``; None if no output has positions.

    unchanged: the outputs before the change, if they are known.
    """
    ids = tensors[name]
    others = [i for i in range(ids.shape[1]) if i not in changed]
    if not others or not len(changed):
        return None
    moved = ids.clone()
    chosen = list(changed)
    if moved.is_floating_point():
        moved[:, chosen] = moved[:, chosen].flip(-1) + 1
    else:
        far = 1 if vocabulary <= 2 else 1 + vocabulary // 2  # 2 stands for an unknown vocabulary
        moved[:, chosen] = (moved[:, chosen] + far) % max(vocabulary, 2)
    n = int(ids.shape[1])
    outputs = float_outputs(run(tensors)) if unchanged is None else unchanged
    before, after = (by_position(some, n) for some in (outputs, float_outputs(run({**tensors, name: moved}))))
    gaps = [_roundings(x[:, others], y[:, others]) for x, y in zip(before, after, strict=True)]
    return max(gaps, default=None)


def by_position(outputs: Sequence[Tensor], n: int) -> list[Tensor]:
    """Return those outputs that have a state for each of n positions: [1, position, size]."""
    flat = [x[:, None] if x.dim() == 2 and x.shape[0] == n else x for x in outputs]  # [position, size]
    turned = [x.transpose(0, 1) if x.dim() == 3 and x.shape[:2] == (n, 1) else x for x in flat]
    return [x for x in turned if x.dim() == 3 and x.shape[1] == n]


def _roundings(x: Tensor, y: Tensor) -> float:
    """Return by how many roundings two tensors differ."""
    a, b = x.double(), y.double()
    scale: float = max(float(a.abs().nan_to_num(0, 0, 0).max()), 1e-30) * torch.finfo(x.dtype).eps
    return float((a - b).abs().nan_to_num(0, 0, 0).max()) / scale
