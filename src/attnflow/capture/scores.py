"""softmax(scale·QKᵀ + bias + mask), computed for a few queries at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

BLOCK_BYTES = 1 << 20
"""Maximal size of the weights of one block of queries, all heads × queries × keys, if half of n×n is less than that."""

BLOCK_BYTES_AT_MOST = 32 << 20
"""Maximal size of a block if half of n×n is more, for long contexts."""

FEW = 16
"""Up to this many queries are handled one by one: the first step down is often from one position."""

LARGE_BYTES = 256 << 20
"""Maximal size of the weights of one block of queries on a GPU, which prefers few large steps."""


@dataclass(frozen=True)
class LazyMask:
    """The keys that a query may see, as a rule instead of a matrix.

    rule: ``rule(batch, head, query, key)`` over index tensors, as in transformers' masking module.
    plain: the kind of mask for which a fused kernel needs no matrix: "causal", where the last query sees the last key,
        "full", or None for everything else.
    window: the width of the causal sliding window, if there is nothing else besides causality.
    reach: no query sees a key this many positions before it; None if there is no limit.
    unpadded: the same rule without the padding of shorter texts, if there is padding.
    """

    rule: Callable[..., Tensor]
    batch: int
    queries: int
    keys: int
    query_offset: int
    key_offset: int
    plain: str | None
    window: int | None
    device: torch.device
    reach: int | None = None
    unpadded: LazyMask | None = None

    def of_text(self, number: int, length: int) -> LazyMask:
        """Return the mask of one text of the batch, whose padding, if any, is on its right."""
        whole = self.unpadded or self

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return whole.rule(batch + number, head, query, key)

        return replace(whole, rule=rule, batch=1, queries=length, keys=length)

    def block(self, start: int, stop: int) -> Tensor:
        """Return True where visible: [batch, 1, stop - start, key]."""
        b = torch.arange(self.batch, device=self.device)[:, None, None, None]
        h = torch.zeros(1, dtype=torch.long, device=self.device)[None, :, None, None]
        q = (torch.arange(start, stop, device=self.device) + self.query_offset)[None, None, :, None]
        k = (torch.arange(self.keys, device=self.device) + self.key_offset)[None, None, None, :]
        return self.rule(b, h, q, k).expand(self.batch, -1, stop - start, self.keys)

    @cached_property
    def spans(self) -> tuple[Tensor, Tensor] | None:
        """The first and the last key that each query sees, [batch, query]; None if a query skips keys in between.

        Padding, texts side by side, windows and chunks have spans. If a query sees nothing, its last key is before its
        first.
        """
        firsts, lasts = [], []
        step = max(1, BLOCK_BYTES_AT_MOST // (self.batch * self.keys))
        for start in range(0, self.queries, step):
            seen = self.block(start, min(start + step, self.queries))[:, 0].to(torch.int32)  # [batch, query, key]
            first, count = seen.argmax(-1), seen.sum(-1)
            last = first + count - 1
            behind = self.keys - 1 - seen.flip(-1).argmax(-1)
            if not bool(((behind == last) | (count == 0)).all()):
                return None
            firsts.append(first.int())
            lasts.append(last.int())
        return torch.cat(firsts, 1), torch.cat(lasts, 1)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the additive matrix for eager attention."""
        seen = self.block(0, self.queries)
        return torch.where(seen, torch.zeros((), dtype=dtype, device=self.device), torch.finfo(dtype).min)


@dataclass(frozen=True)
class Weighing:
    """How to weigh edges: ``E[q, k] = factor · Σ_h A^h[q, k]·w^h[q, k]``, where w is one by default.

    lengths: w = lengths[h, k], [batch, head, key], not negative.
    direction, value: w = max(0, direction_q·value_k), or the product itself if ``signed``, so that heads may cancel;
        [batch, head, query, size] and [batch, key head, key, size].
    before: values of the keys before those.
    """

    factor: float
    lengths: Tensor | None = None
    direction: Tensor | None = None
    value: Tensor | None = None
    signed: bool = False
    before: Tensor | None = None

    def of(self, weights: Tensor, start: int, stop: int) -> Tensor:
        """Return the edges of weights [batch, head, queries ``start:stop``, the first keys], summed over heads."""
        batch, heads, rows, keys = weights.shape
        if self.lengths is not None:
            weights = weights * self.lengths[:, :, None, :keys]
        if self.direction is not None and self.value is not None:
            directions = self.direction[:, :, start:stop]
            stacked = directions.reshape(batch, self.value.shape[1], -1, directions.shape[-1])
            along = times(stacked, self.value, self.before, keys).reshape(batch, heads, rows, keys)
            weights = weights * (along if self.signed else along.clamp_(min=0))
        edges = weights.sum(1)
        return edges if self.factor == 1 else edges * self.factor

    def of_text(self, number: int, length: int) -> Weighing:
        """Return a view of one text of a batch that is padded on the right."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[number : number + 1, :, :length]

        return replace(self, lengths=part(self.lengths), direction=part(self.direction), value=part(self.value))


@dataclass(frozen=True)
class Scores:
    """The operands of one attention call, from which any rows of its weights can be computed.

    query: [batch, head, query, size].
    key: [batch, key head, key, size], with as many heads or a divisor of them.
    mask: additive float, boolean (True is visible), a rule, or None.
    causal: whether a query sees no later position, if ``mask`` is None; the last query sees the last key.
    bias: additive, for position biases.
    softcap: c in c·tanh(s / c).
    sinks: one logit per head, in the denominator only.
    lse: the logarithm of each row's denominator, [batch, head, query], if the forward pass returned it.
    before: stored keys of the positions before those in ``key``; the mask covers all of them.
    partial: whether weights use ``lse`` alone, because its denominators include other keys or were given.
    """

    query: Tensor
    key: Tensor
    scale: float
    mask: Tensor | LazyMask | None = None
    causal: bool = False
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    lse: Tensor | None = None
    before: Tensor | None = None
    partial: bool = False

    def of_text(self, number: int, length: int) -> Scores:
        """Return a view of one text of a batch that is padded on the right."""

        # a part of [batch, …, query, key], of which either side may be shared
        def part(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            mine = x[number : number + 1] if x.shape[0] > 1 else x
            return mine[..., : min(length, x.shape[-2]), :length]

        mine = slice(number, number + 1)
        return replace(
            self,
            query=self.query[mine, :, :length],
            key=self.key[mine, :, :length],
            mask=self.mask.of_text(number, length) if isinstance(self.mask, LazyMask) else part(self.mask),
            bias=part(self.bias),
            lse=None if self.lse is None else self.lse[mine, :, :length],
        )

    @property
    def queries(self) -> int:
        return int(self.query.shape[2])

    @property
    def keys(self) -> int:
        return int(self.key.shape[2]) + (0 if self.before is None else int(self.before.shape[2]))

    def blocks(self, room: int | None = None, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield ranges of the queries ``first:last`` whose weights take ``room`` bytes; by default half of the matrix
        with the heads reduced, or BLOCK_BYTES."""
        last = self.queries if last is None else last
        row = self.query.shape[0] * self.query.shape[1] * self.keys * 4
        if room is None:
            room = max(BLOCK_BYTES, min(self.queries * self.keys * 2, BLOCK_BYTES_AT_MOST))
        step = max(1, min(self.queries, room // row))
        for start in range(first, last, step):
            yield start, min(start + step, last)

    def visible(self, stop: int) -> int:
        """Return how many keys the queries before ``stop`` can see at most: later columns of their block are zero."""
        if self._is_causal() or (isinstance(self.mask, LazyMask) and self.mask.window):
            return max(1, min(self.keys, stop + self.keys - self.queries))
        return self.keys

    def weights(self, start: int, stop: int) -> Tensor:
        """Return rows ``start:stop`` of the attention weights, float32 [batch, head, stop - start, visible(stop)]."""
        low, s = self._first_visible(start), self._logits(start, stop)
        if self.partial and self.lse is not None:
            weights = s.sub_(self.lse[:, :, start:stop, None]).exp_()
        elif self.sinks is None:
            weights = torch.softmax(s, dim=-1)
        else:
            weights = torch.softmax(self._with_sinks(s), dim=-1)[..., :-1]
        return torch.nn.functional.pad(weights, (low, 0)) if low else weights

    def _with_sinks(self, s: Tensor) -> Tensor:
        """Append the sink of each head to scores [batch, head, query, key] as one more key."""
        assert self.sinks is not None
        return torch.cat([s, self.sinks.to(s.dtype).reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], dim=-1)

    def _logits(self, start: int, stop: int) -> Tensor:
        """Return the logits of rows ``start:stop``: [batch, head, stop - start, the keys that any of them sees]."""
        keys, low = self.visible(stop), self._first_visible(start)
        batch, heads, _, size = self.query.shape
        groups = heads // self.key.shape[1]
        # All query heads of a key head form one taller matrix, so no key is copied.
        rows = self.query[:, :, start:stop].reshape(batch, heads // groups, groups * (stop - start), size)
        wide = self.query.dtype in (torch.float32, torch.float64)
        if wide:  # scaling the short side saves a pass; in half precision, scale where the model does
            rows = rows * self.scale
        key = self.key[:, :, low:] if low else self.key
        s = times(rows, key, self.before, keys - low).reshape(batch, heads, stop - start, keys - low)
        s = s if wide else s.float().mul_(self.scale)
        if self.softcap is not None:
            s = s.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            s += self.bias[..., start:stop, low:keys]
        mask = self._mask(start, stop)
        if mask is not None and self._is_causal():  # every query of the block sees all keys before its first query
            own = s[..., start - stop :]
            own.masked_fill_(~mask, torch.finfo(self.query.dtype).min)
        elif mask is not None:
            mask = mask[..., low:keys]
            if mask.dtype == torch.bool:
                s.masked_fill_(~mask, torch.finfo(self.query.dtype).min)
            else:
                s += mask
        return s

    def _first_visible(self, start: int) -> int:
        """Return the first key that any query from ``start`` on sees, if there is a window."""
        window = self.mask.window if isinstance(self.mask, LazyMask) and self.before is None else None
        return 0 if window is None else max(0, start + self.keys - self.queries - window + 1)

    def _is_causal(self) -> bool:
        """Return whether queries are the last positions and see everything that is not after them."""
        plain = self.mask.plain == "causal" if isinstance(self.mask, LazyMask) else self.mask is None and self.causal
        return plain and self.queries <= self.keys

    def _mask(self, start: int, stop: int) -> Tensor | None:
        """Return which keys some queries see; for causal attention, only keys from the first of these queries on."""
        if self._is_causal():
            if stop - start == 1:
                return None
            return torch.ones(stop - start, stop - start, dtype=torch.bool, device=self.query.device).tril()
        if isinstance(self.mask, LazyMask):
            # transformers makes one rule for all layers, but a layer may be on another device
            return None if self.mask.plain == "full" else self.mask.block(start, stop).to(self.query.device)
        if self.mask is not None:
            return self.mask if self.mask.shape[-2] == 1 else self.mask[..., start:stop, :]
        if not self.causal:
            return None
        q = torch.arange(start, stop, device=self.query.device)[:, None] + self.keys - self.queries
        return torch.arange(self.keys, device=self.query.device)[None, :] <= q

    def sees(self, start: int, stop: int) -> Tensor:
        """Return which keys the queries ``start:stop`` may see: [batch, 1 or head, stop - start, key]."""
        if self._is_causal():
            q = torch.arange(start, stop, device=self.query.device)[:, None] + self.keys - self.queries
            return (torch.arange(self.keys, device=self.query.device) <= q)[None, None]
        mask = self._mask(start, stop)
        if mask is None:
            return torch.ones(1, 1, stop - start, self.keys, dtype=torch.bool, device=self.query.device)
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        while seen.dim() < 4:
            seen = seen[None]
        return seen.expand(*seen.shape[:2], stop - start, self.keys)

    def edge_rows(self, weighing: Weighing, start: int, stop: int) -> Tensor:
        """Return rows ``start:stop`` of the edge weights, summed over heads: [batch, stop - start, visible(stop)]."""
        return weighing.of(self.weights(start, stop), start, stop)


def times(rows: Tensor, last: Tensor, before: Tensor | None, count: int) -> Tensor:
    """Compute ``rows·xᵀ`` over the first ``count`` keys or values, earlier ones first: [batch, key head, row, key]."""
    if before is None:
        return torch.matmul(rows, last[:, :, :count].transpose(2, 3))
    new = last[:, :, : count - before.shape[2]]
    return torch.cat([torch.matmul(rows, x.transpose(2, 3)) for x in (before, new)], -1)


def mixed(weights: Tensor, value: Tensor, before: Tensor | None = None) -> Tensor:
    """Compute the attention output, [batch, query, head, size], from weights [batch, head, query, first keys].

    before: values of the keys before those in ``value``.
    """
    batch, heads, rows, keys = weights.shape
    groups = heads // value.shape[1]
    stacked = weights.to(value.dtype).reshape(batch, heads // groups, groups * rows, keys)
    first = 0 if before is None else int(before.shape[2])
    out = torch.matmul(stacked[..., first:], value[:, :, : keys - first])
    if before is not None:
        out += torch.matmul(stacked[..., :first], before)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2)


def mixed_back(weights: Tensor, upward: Tensor, key_heads: int) -> Tensor:
    """Compute ``Pᵀ·upward``, the gradient of the values in `mixed` with constant weights: [batch, key head, key, size].

    weights: [batch, head, query, key].
    upward: the gradient of the heads' outputs, [batch, head, query, size].
    """
    by_key_head = weights.to(upward.dtype).reshape(weights.shape[0], key_heads, -1, weights.shape[-1])
    return by_key_head.transpose(2, 3) @ upward.reshape(upward.shape[0], key_heads, -1, upward.shape[-1])


def scores_of(
    module: Any,
    query: Tensor,
    key: Tensor,
    mask: Tensor | LazyMask | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> Scores:
    """Convert the arguments of a transformers attention function, where no mask means that all keys are visible."""
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling)
    sinks = getattr(module, "sinks", None)
    sinks = None if sinks is None else sinks.detach().clone()  # training may continue while these are kept
    return Scores(query, key, scale, mask, bias=position_bias, softcap=softcap, sinks=sinks)
