"""softmax(scale·QKᵀ + bias + mask), computed for some queries at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.paged import Stored, blocks_of

BLOCK_BYTES = 1 << 20
"""How large the weights of one block of queries may be, all heads × queries × keys, where half of n×n is less than that."""

BLOCK_BYTES_AT_MOST = 32 << 20
"""And where it is more: long contexts get no larger blocks than this."""

FEW = 16
"""Up to so many queries are looked at one by one: the first step down is often from one position."""

LARGE_BYTES = 256 << 20
"""How large the weights of one block of queries may be on a GPU, which wants few large steps."""


@dataclass(frozen=True)
class LazyMask:
    """Which keys a query may see, as a rule instead of a matrix.

    rule: ``rule(batch, head, query, key)`` over index tensors, as in transformers' masking module.
    plain: what a fused kernel needs no matrix for: "causal", where the last query sees the last key, "full", or None for
        everything else.
    window: the width of the causal sliding window, where that is all there is besides causality.
    reach: no query sees a key that stands so many positions before it; None where it may see them all.
    unpadded: the same without what hides the padding of shorter texts, where it hides some.
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
        """The mask of one text of the batch, whose padding, if any, is on its right."""
        whole = self.unpadded or self

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return whole.rule(batch + number, head, query, key)

        return replace(whole, rule=rule, batch=1, queries=length, keys=length)

    def block(self, start: int, stop: int) -> Tensor:
        """True where visible: [batch, 1, stop - start, key]."""
        b = torch.arange(self.batch, device=self.device)[:, None, None, None]
        h = torch.zeros(1, dtype=torch.long, device=self.device)[None, :, None, None]
        q = (torch.arange(start, stop, device=self.device) + self.query_offset)[None, None, :, None]
        k = (torch.arange(self.keys, device=self.device) + self.key_offset)[None, None, None, :]
        return self.rule(b, h, q, k).expand(self.batch, -1, stop - start, self.keys)

    @cached_property
    def spans(self) -> tuple[Tensor, Tensor] | None:
        """The first and the last key that each query sees, [batch, query]; None where it sees some between and not all.

        Padding, texts side by side, windows and chunks are such rules. Of a query that sees nothing, the last is before the
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
        """The additive matrix that eager attention takes."""
        seen = self.block(0, self.queries)
        return torch.where(seen, torch.zeros((), dtype=dtype, device=self.device), torch.finfo(dtype).min)


@dataclass(frozen=True)
class Weighing:
    """What an edge weighs: ``E[q, k] = factor · Σ_h A^h[q, k]·w^h[q, k]``, where w is one unless told otherwise.

    lengths: w = lengths[h, k], [batch, head, key]; none is negative.
    direction, value: w = max(0, direction_q·value_k), or the product itself where ``signed``, so that heads may cancel;
        [batch, head, query, size] and [batch, key head, key, size]. before: values of the keys before those.
    """

    factor: float
    lengths: Tensor | None = None
    direction: Tensor | None = None
    value: Tensor | None = None
    signed: bool = False
    before: Stored | None = None

    def of(self, weights: Tensor, start: int, stop: int) -> Tensor:
        """Edges of weights [batch, head, queries ``start:stop``, the first keys]: heads are added up."""
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
        """That of one text of a batch that is padded on the right: a view."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[number : number + 1, :, :length]

        return replace(self, lengths=part(self.lengths), direction=part(self.direction), value=part(self.value))


@dataclass(frozen=True)
class Scores:
    """The operands of one attention call, from which any rows of its weights can be had.

    query: [batch, head, query, size]. key: [batch, key head, key, size], with as many heads or a divisor of them.
    mask: additive float, boolean (True is visible), a rule, or None.
    causal: whether a query sees only what is not after it, where ``mask`` is None; the last query sees the last key.
    bias: additive, for position biases. softcap: c in c·tanh(s / c). sinks: one logit a head, in the denominator only.
    lse: the logarithm of each row's denominator, [batch, head, query], where the forward pass gave it.
    before: keys of the positions before those in ``key``, where they lie; the mask is about all of them.
    partial: whether weights are by ``lse`` alone, because its denominators are of more keys than these, or somebody's own.
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
    before: Stored | None = None
    partial: bool = False

    def of_text(self, number: int, length: int) -> Scores:
        """Those of one text of a batch that is padded on the right: a view."""

        def part(x: Tensor | None) -> Tensor | None:  # of [batch, …, query, key]; either side may be shared
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
        """Ranges of the queries ``first:last`` whose weights take ``room`` bytes; by default half of the matrix with the
        heads reduced, or BLOCK_BYTES."""
        last = self.queries if last is None else last
        row = self.query.shape[0] * self.query.shape[1] * self.keys * 4
        if room is None:
            room = max(BLOCK_BYTES, min(self.queries * self.keys * 2, BLOCK_BYTES_AT_MOST))
        step = max(1, min(self.queries, room // row))
        for start in range(first, last, step):
            yield start, min(start + step, last)

    def visible(self, stop: int) -> int:
        """How many keys the queries before ``stop`` can see at most: later columns of their block are zero."""
        if self._is_causal() or (isinstance(self.mask, LazyMask) and self.mask.window):
            return max(1, min(self.keys, stop + self.keys - self.queries))
        return self.keys

    def weights(self, start: int, stop: int) -> Tensor:
        """Rows ``start:stop`` of the attention weights in float32: [batch, head, stop - start, visible(stop)]."""
        low, s = self._first_visible(start), self._logits(start, stop)
        if self.partial and self.lse is not None:
            weights = s.sub_(self.lse[:, :, start:stop, None]).exp_()
        elif self.sinks is None:
            weights = torch.softmax(s, dim=-1)
        else:
            weights = torch.softmax(self._with_sinks(s), dim=-1)[..., :-1]
        return torch.nn.functional.pad(weights, (low, 0)) if low else weights

    def log_sum_exp(self, start: int, stop: int) -> Tensor:
        """The logarithm of the denominators of rows ``start:stop``: [batch, head, stop - start]."""
        s = self._logits(start, stop)
        return torch.logsumexp(s if self.sinks is None else self._with_sinks(s), dim=-1)

    def _with_sinks(self, s: Tensor) -> Tensor:
        """Scores [batch, head, query, key] with the sink of each head as one more key."""
        assert self.sinks is not None
        return torch.cat([s, self.sinks.to(s.dtype).reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], dim=-1)

    def _logits(self, start: int, stop: int) -> Tensor:
        """What the softmax of rows ``start:stop`` is over: [batch, head, stop - start, the keys that any of them sees]."""
        keys, low = self.visible(stop), self._first_visible(start)
        batch, heads, _, size = self.query.shape
        groups = heads // self.key.shape[1]
        # All query heads of a key head are one taller matrix: no key is copied.
        rows = self.query[:, :, start:stop].reshape(batch, heads // groups, groups * (stop - start), size)
        wide = self.query.dtype in (torch.float32, torch.float64)
        if wide:  # scaling the short side saves a pass; half precision is scaled where the model does it
            rows = rows * self.scale
        key = self.key[:, :, low:] if low else self.key
        s = times(rows, key, self.before, keys - low).reshape(batch, heads, stop - start, keys - low)
        s = s if wide else s.float().mul_(self.scale)
        if self.softcap is not None:
            s = s.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            s += self.bias[..., start:stop, low:keys]
        mask = self._mask(start, stop)
        if mask is not None and self._is_causal():  # every query of the block sees what stands before its first
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
        """Before which key no query from ``start`` on sees any: where there is a window."""
        window = self.mask.window if isinstance(self.mask, LazyMask) and self.before is None else None
        return 0 if window is None else max(0, start + self.keys - self.queries - window + 1)

    def _is_causal(self) -> bool:
        """Whether queries are the last positions, and see all that is not after them."""
        plain = self.mask.plain == "causal" if isinstance(self.mask, LazyMask) else self.mask is None and self.causal
        return plain and self.queries <= self.keys

    def _mask(self, start: int, stop: int) -> Tensor | None:
        """Which keys are visible to some queries; of causal attention, those from the first of these queries on."""
        if self._is_causal():
            if stop - start == 1:
                return None
            return torch.ones(stop - start, stop - start, dtype=torch.bool, device=self.query.device).tril()
        if isinstance(self.mask, LazyMask):
            # transformers makes one rule for all layers, and a layer may lie on another device
            return None if self.mask.plain == "full" else self.mask.block(start, stop).to(self.query.device)
        if self.mask is not None:
            return self.mask if self.mask.shape[-2] == 1 else self.mask[..., start:stop, :]
        if not self.causal:
            return None
        q = torch.arange(start, stop, device=self.query.device)[:, None] + self.keys - self.queries
        return torch.arange(self.keys, device=self.query.device)[None, :] <= q

    def sees(self, start: int, stop: int) -> Tensor:
        """Which keys the queries ``start:stop`` may see: [batch, 1 or head, stop - start, key]."""
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
        """Rows ``start:stop`` of what edges weigh, heads added up: [batch, stop - start, visible(stop)]."""
        return weighing.of(self.weights(start, stop), start, stop)


def times(rows: Tensor, last: Tensor, before: Stored | None, count: int) -> Tensor:
    """``rows·xᵀ`` over the first ``count`` of keys or values, those before first: [batch, key head, row, key]."""
    if before is None:
        return torch.matmul(rows, last[:, :, :count].transpose(2, 3))
    parts = [torch.matmul(rows, block.transpose(2, 3)) for _, _, block in blocks_of(before)]
    parts.append(torch.matmul(rows, last[:, :, : count - before.shape[2]].transpose(2, 3)))
    return torch.cat(parts, -1)


def mixed(weights: Tensor, value: Tensor, before: Stored | None = None) -> Tensor:
    """The output of attention, [batch, query, head, size], from weights [batch, head, query, key] of the first keys.

    before: values of the keys before those in ``value``.
    """
    batch, heads, rows, keys = weights.shape
    groups = heads // value.shape[1]
    stacked = weights.to(value.dtype).reshape(batch, heads // groups, groups * rows, keys)
    first = 0 if before is None else int(before.shape[2])
    out = torch.matmul(stacked[..., first:], value[:, :, : keys - first])
    for start, stop, block in () if before is None else blocks_of(before):
        out += torch.matmul(stacked[..., start:stop], block)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2)


def mixed_back(weights: Tensor, upward: Tensor, key_heads: int) -> Tensor:
    """``Pᵀ·upward``, the gradient of the values in `mixed` with the weights as constants: [batch, key head, key, size].

    weights: [batch, head, query, key]. upward: the gradient of what heads give, [batch, head, query, size].
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
    """What transformers hands to an attention function, as `Scores`. There, no mask means that everything is visible."""
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling)
    sinks = getattr(module, "sinks", None)
    sinks = None if sinks is None else sinks.detach().clone()  # training may go on while these are kept
    return Scores(query, key, scale, mask, bias=position_bias, softcap=softcap, sinks=sinks)
