"""Attention with constant weights: its output, and what its edges carry to a score in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.collect import Collector, eager_function
from attnflow.capture.fused import attention_output, is_fused, own_weights
from attnflow.capture.kv_cache import CacheInPlace, KeysLost
from attnflow.capture.linear import add_edge_rows, value_gradient
from attnflow.capture.scores import LARGE_BYTES, LazyMask, Scores, Weighing, mixed, mixed_back, scores_of

KEEP_BYTES = 4 << 20
"""Weights of one text in a layer up to this size are kept for the backward pass. Larger ones are recomputed a few
queries at a time, because fresh memory for all of them would cost more. Many short texts keep theirs, however many they
are: compared with the states that are kept too, the weights of a short text are small."""

BLOCK_BYTES = {"cpu": 4 << 20, "cuda": LARGE_BYTES}
"""Maximal size of the weights of some queries: a CPU needs them in its cache, a GPU prefers few large steps."""


@dataclass
class Sums:
    """Edges summed over queries during the backward pass, so that no matrix [query, key] is made.

    ``Σ_q w[q]·E[q, k] = Σ_heads v_k·(Pᵀ·w·dO)_k``.

    taken: the weight w of each query, [text, query]; None if rows are not requested.
    columns: the sums over all queries, [text, key], by the number of the call.
    rows: the sums over the taken queries, [text, key], by the number of the call.
    """

    taken: Tensor | None = None
    columns: dict[int, Tensor] = field(default_factory=dict)
    rows: dict[int, Tensor] = field(default_factory=dict)

    def read(self, call: FrozenCall, upward: Tensor, value: Tensor) -> Tensor:
        """Sum the edges of a call; return the gradient that goes to everything that is read."""
        back = _back_to_values(call, upward, value)
        self.columns[call.number] = _summed(value, back)
        if self.taken is not None:
            some = upward * self.taken[:, None, :, None].to(upward)
            self.rows[call.number] = _summed(value, _back_to_values(call, some, value))
        return back


def _summed(value: Tensor, back: Tensor) -> Tensor:
    """Return ``Σ v·dV`` over key heads and sizes, in at least single precision: [text, key]."""
    wide = torch.promote_types(value.dtype, torch.float32)
    return (value.to(wide) * back.to(wide)).sum((1, 3))


@dataclass
class Reading:
    """What one backward pass reads at the attention calls.

    local: each position has its own score only, so evidence goes to other positions and no further.
    rows: the queries whose edges are requested; None for all.
    total: Σ over layers of the edges [batch, query, key], by the kind of call ("self", "cross") and the device of the
        layers.
    layers: the edges of each call, if ``every``.
    sums: for a batch of texts, what to read instead of all this.
    """

    local: bool = False
    every: bool = False
    rows: slice | None = None
    sums: Sums | None = None
    total: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict)
    layers: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def range(self, queries: int) -> tuple[int, int]:
        """Return the first requested query, and the one after the last."""
        return (0, queries) if self.rows is None else (self.rows.start, self.rows.stop)

    def room(self, kind: str, number: int, like: Tensor, rows: int, keys: int) -> list[Tensor]:
        """Return the tensors to which the edges of a call are added: [batch, row, key], initially zero."""
        wide = torch.float64 if like.dtype == torch.float64 else torch.float32

        def zeros() -> Tensor:
            return like.new_zeros(like.shape[0], rows, keys, dtype=wide)

        place = kind, like.device
        if place not in self.total:
            self.total[place] = zeros()
        if not self.every:
            return [self.total[place]]
        self.layers[kind, number] = zeros()
        return [self.total[place], self.layers[kind, number]]

    def collected(self, device: torch.device) -> tuple[dict[str, Tensor], dict[tuple[str, int], Tensor]]:
        """Return totals and layers on one device."""
        total: dict[str, Tensor] = {}
        for (kind, _), x in self.total.items():
            total[kind] = total[kind] + x.to(device) if kind in total else x.to(device)
        return total, {key: x.to(device) for key, x in self.layers.items()}


@dataclass
class FrozenCall:
    """One attention call.

    scores: its operands, if known.
    weights: [batch, head, query, key], if kept.
    before: values of the keys before the new ones.
    skipped: the number of keys before those, which no query sees.
    """

    number: int
    cross: bool
    scores: Scores | None
    weights: Tensor | None
    reading: Callable[[], Reading]
    before: Tensor | None = None
    skipped: int = 0

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield ranges of queries with their weights [batch, head, some queries, the first keys]."""
        if self.weights is not None:
            yield first, last, self.weights[:, :, first:last]
            return
        assert self.scores is not None
        for start, stop in self.scores.blocks(_room(self.scores), first, last):
            yield start, stop, self.scores.weights(start, stop)

    def output(self, value: Tensor) -> Tensor:
        """Compute the attention output, [batch, query, head, size]; keep the log-sum-exp if there is one."""
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
        if reading.sums is not None:
            return reading.sums.read(call, upward, value), None, None
        weighing = Weighing(1.0, direction=upward, value=value, signed=True, before=call.before)
        keys = call.skipped + value.shape[2] + (0 if call.before is None else call.before.shape[2])
        kind = "cross" if call.cross else "self"
        totals = [x[..., call.skipped :] for x in reading.room(kind, call.number, value, last - first, keys)]
        if reading.local and not call.cross:
            return _read_by_itself(call, weighing, totals, first, last), None, None
        return _read_by_all(call, weighing, totals, first, last), None, None


def _read_by_itself(call: FrozenCall, weighing: Weighing, totals: list[Tensor], first: int, last: int) -> Tensor:
    """Sum edges; return the gradient that goes to what a position reads from itself: [batch, key head, key, size].

    Each row has its own score, so queries outside ``first:last`` get nothing.
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
            place = int(totals[0].shape[-1]) - upward.shape[2] + start  # where the first of these queries sees itself
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
    """Sum edges; return the gradient ``dV = Pᵀ dO`` for everything that is read: [batch, key head, key, size]."""
    upward, value = weighing.direction, weighing.value
    assert upward is not None and value is not None
    if call.scores is not None and call.scores.lse is not None:
        add_edge_rows(totals, call.scores, weighing, first, last, _room(call.scores))
        return value_gradient(call.scores, upward, value)
    back = torch.zeros_like(value)
    before = 0 if call.before is None else int(call.before.shape[2])
    for start, stop, weights in call.blocks(0, upward.shape[2]):
        low, high = max(start, first), min(stop, last)
        if low < high:
            _add(totals, weighing.of(weights[:, :, low - start : high - start], low, high), low - first)
        new = weights[..., before:]
        back[:, :, : new.shape[-1]] += mixed_back(new, upward[:, :, start:stop], value.shape[1])
    return back


def _back_to_values(call: FrozenCall, upward: Tensor, value: Tensor) -> Tensor:
    """Return only ``dV = Pᵀ dO``: [batch, key head, key, size]."""
    if call.weights is not None:
        return mixed_back(call.weights, upward, value.shape[1])
    assert call.scores is not None
    return value_gradient(call.scores, upward, value)


def _add(totals: list[Tensor], edges: Tensor, row: int) -> None:
    for total in totals:
        total[:, row : row + edges.shape[1], : edges.shape[2]] += edges


def _room(scores: Scores) -> int:
    return BLOCK_BYTES.get(scores.query.device.type, BLOCK_BYTES["cuda"])


def frozen_call(
    collector: Collector, number: int, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any,
    options: Mapping[str, Any], reading: Callable[[], Reading], in_place: CacheInPlace | None,
) -> FrozenCall:  # fmt: skip
    """Prepare an attention call of the model for its output and its evidence.

    in_place: the cache with its first keys.
    """
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
            raise KeysLost(f"a layer has dropped {stored.first} keys, but queries still see some of them")
        before = stored.values[:, :, skipped - stored.first :]
        scores = _after(scores, stored.keys[:, :, skipped - stored.first :], skipped)
    batch, heads, rows, _ = query.shape
    small = heads * rows * scores.keys * 4 <= KEEP_BYTES and (batch > 1 or not is_fused(scores, value))
    weights = scores.weights(0, rows) if small else None
    return FrozenCall(number, cross, scores, weights, reading, before, skipped)


def _unseen(mask: Tensor | LazyMask | None) -> int:
    """Return how many of the first keys no query sees."""
    if not isinstance(mask, LazyMask) or mask.reach is None:
        return 0
    return max(0, mask.query_offset - mask.key_offset - mask.reach + 1)


def _after(scores: Scores, before: Tensor, skipped: int) -> Scores:
    """Return the scores with earlier keys in front of their own, of which the first are skipped."""
    mask = scores.mask
    if isinstance(mask, LazyMask):
        mask = replace(mask, keys=mask.keys - skipped, key_offset=mask.key_offset + skipped) if skipped else mask
    elif mask is not None:
        mask = mask[..., skipped:]
    bias = scores.bias if scores.bias is None else scores.bias[..., skipped:]
    return replace(scores, before=before, mask=mask, bias=bias)
