# mypy: ignore-missing-imports, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Attention weights times one row on the GPU, directly from queries and keys: no n×n matrix is ever stored.

Keys are the rows of every tile of scores, so the sum over queries stays in a thread's registers, and a query needs only
one number: ``r·exp(s - lse) = exp2(s·log2(e) + c)`` with ``c = log2(r) - lse·log2(e)``. Heads are summed afterwards, in
a fixed order, so that two runs give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = Any

LOG2E = 1.4426950408889634


def transposed_product(query: Tensor, key: Tensor, lse: Tensor, r: Tensor, **options: Any) -> Tensor:
    """Return the mean over heads of `head_sums`: float32 [batch, keys]."""
    return head_sums(query, key, lse, r, **options).mean(1)


def head_sums(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    r: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute ``out[b, h, k] = Σ_q r[b, q] · exp(s[b, h, q, k] - lse[b, h, q])``.

    query: [batch, heads, queries, size].
    key: [batch, kv heads, keys, size], each shared by ``heads / kv heads`` heads.
    lse: [batch, heads, queries], of the scores as the model's softmax saw them. If it is not finite, the query has no
        key at all and gives 0.
    r: [batch, queries], not negative.
    causal: queries are aligned with the last keys.
    window: how many positions a query sees, including its own, to one side if causal and to both if not.
    bias: added to the scores, broadcast to [batch, heads, queries, keys]; -inf and the lowest number of its type mask.

    Returns float32 [batch, heads, keys].
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    shift = shifts_of(lse.reshape(batch, heads, queries).float().contiguous(), r.float().contiguous())
    out = torch.empty((batch, heads, keys), dtype=torch.float32, device=query.device)
    block_k, block_q, warps, stages = _tiles(query.dtype, size, bias is not None)
    _transposed_product[(triton.cdiv(keys, block_k), heads, batch)](
        query, key, shift, out, bias if bias is not None else shift,
        *query.stride(), *key.stride(), *bias_strides(bias, (batch, heads, queries, keys)),
        heads, heads // key.shape[1], queries, shift.shape[2], keys,
        scale * LOG2E if not softcap else scale / softcap, (softcap or 0.0) * LOG2E, lowest_bias(bias),
        CAUSAL=causal, WINDOW=window or 0, SOFTCAP=bool(softcap), BIAS=bias is not None,
        SIZE=size, BLOCK_D=max(16, triton.next_power_of_2(size)), BLOCK_K=block_k, BLOCK_Q=block_q,
        PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def log_sum_exp(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    spans: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute ``log Σ_k exp(s[b, h, q, k])``, for models whose forward does not return it.

    Arguments are as in `transposed_product`, and:

    sinks: [heads], one more score per head, which takes weight but is not a key.
    spans: the first and the last key that each query sees, int32 [batch, queries], for masks of texts side by side.

    Returns float32 [batch, heads, queries]; -inf if a query sees no key and there is no sink.
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    out = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    block_q, block_k, warps, stages = _tiles(query.dtype, size, bias is not None)
    _log_sum_exp[(triton.cdiv(queries, block_q), heads, batch)](
        query, key, out, bias if bias is not None else out, sinks if sinks is not None else out,
        *(spans if spans is not None else (out, out)),
        *query.stride(), *key.stride(), *bias_strides(bias, (batch, heads, queries, keys)),
        heads, heads // key.shape[1], queries, keys,
        scale * LOG2E if not softcap else scale / softcap, (softcap or 0.0) * LOG2E, lowest_bias(bias),
        CAUSAL=causal, WINDOW=window or 0, SOFTCAP=bool(softcap), BIAS=bias is not None, SINKS=sinks is not None,
        SPANS=spans is not None,
        SIZE=size, BLOCK_D=max(16, triton.next_power_of_2(size)), BLOCK_K=block_k, BLOCK_Q=block_q,
        PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _tiles(dtype: Any, size: int, busy: bool) -> tuple[int, int, int, int]:
    """Return keys and queries per tile (swapped for `log_sum_exp`), warps, and pipeline stages.

    The best of those tried on an H200 at 32,768 × 32,768, 32 heads of 128, 8 of keys, bfloat16, causal; in ms: one row,
    128×64 with 4 warps 9.2, 256×64 10.4, 64×128 10.5, 128×128 12.7; 16 rows (still summed in the tensor cores), 128×64
    with 8 warps 14.6, with 4 14.8, 256×64 16.9, 64×64 17.2. Other sizes and float32 take what fits.
    """
    padded = triton.next_power_of_2(size)
    if dtype == torch.float32:
        return (64, 64, 4, 2) if padded <= 64 else (64 if padded <= 128 else 32, 32, 4, 2)
    if padded > 128:
        return 128, 64, 8, 2
    return 128, 64, 8 if busy else 4, 3


def shifts_of(lse: Tensor, r: Tensor | None) -> Tensor:
    """Return the offsets of queries' exponents of two: [batch, heads, queries rounded up], -inf for ignored queries."""
    batch, heads, queries = lse.shape
    padded = triton.cdiv(queries, 128) * 128
    out = torch.empty((batch, heads, padded), dtype=torch.float32, device=lse.device)
    grid = (triton.cdiv(padded, 1024), batch * heads)
    _shifts[grid](lse, r if r is not None else lse, out, heads, queries, padded, ROW=r is not None, BLOCK=1024)
    return out


def bias_strides(bias: Tensor | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(bias.expand(shape).stride()) if bias is not None else (0, 0, 0, 0)


def lowest_bias(bias: Tensor | None) -> float:
    """Return the bias at or below which a key is masked: half the lowest number, because biases may add up."""
    return float(torch.finfo(bias.dtype).min) / 2 if bias is not None else 0.0


@triton.jit
def _shifts(lse, r, out, heads, queries, padded, ROW: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1).to(tl.int64)
    e = tl.load(lse + head * queries + at, mask=at < queries, other=float("inf"))
    c = -1.4426950408889634 * e
    counts = (e > -1e30) & (e < 1e30)  # softmax over only the lowest float32 has a lse near it; NaN fails both
    if ROW:
        weight = tl.load(r + head // heads * queries + at, mask=at < queries, other=0.0)
        c += tl.log2(weight)
        counts = counts & (weight > 0)
    tl.store(out + head * padded + at, tl.where(counts, c, -float("inf")), mask=at < padded)


@triton.jit
def bent(scores, scale, cap, SOFTCAP: tl.constexpr):
    """Convert raw products to exponents of two. tanh uses exp2, which is accurate enough and needs no library."""
    if SOFTCAP:
        return cap - 2 * cap / (tl.exp2(scores * (scale * 2.8853900817779268)) + 1)
    return scores * scale


@triton.jit
def visible(at_q, at_k, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    if CAUSAL and WINDOW > 0:
        return (at_k <= at_q) & (at_k > at_q - WINDOW)
    elif CAUSAL:
        return at_k <= at_q
    else:
        return (at_k < at_q + WINDOW) & (at_k > at_q - WINDOW)


@triton.jit
def _transposed_product(
    query, key, shift, out, bias,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, b_b, b_h, b_q, b_k,
    heads, group, queries, padded, keys, scale, cap, lowest,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_K
    h = tl.program_id(1)
    b = tl.program_id(2)
    at_k = first + tl.arange(0, BLOCK_K)
    d = tl.arange(0, BLOCK_D)
    base_k = key + b.to(tl.int64) * k_b + (h // group).to(tl.int64) * k_h
    k = tl.load(
        base_k + at_k.to(tl.int64)[:, None] * k_t + d[None, :] * k_d,
        mask=(at_k < keys)[:, None] & (d < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    base_q = query + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    base_c = shift + (b * heads + h).to(tl.int64) * padded
    offset = keys - queries
    # Queries that see any of these keys, and among them those that see all: only the others need a mask.
    begin, all_from, all_to, end = 0, 0, queries, queries
    if CAUSAL:
        begin = tl.maximum(first - offset, 0)
        all_from = tl.maximum(first + BLOCK_K - 1 - offset, 0)
    elif WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1 - offset, 0)
        all_from = tl.maximum(first + BLOCK_K - WINDOW - offset, 0)
    if WINDOW > 0:
        end = tl.minimum(first + BLOCK_K - 1 + WINDOW - offset, queries)
        all_to = tl.minimum(first + WINDOW - offset, queries)
    begin = begin // BLOCK_Q * BLOCK_Q
    all_from = tl.minimum(tl.cdiv(all_from, BLOCK_Q) * BLOCK_Q, tl.maximum(end, begin))
    if WINDOW > 0:
        all_to = tl.maximum(all_to // BLOCK_Q * BLOCK_Q, all_from)
    sums = tl.zeros([BLOCK_K], tl.float32)
    for zone in tl.static_range(3):
        if zone == 0:
            lower, upper = begin, all_from
        elif zone == 1:
            lower, upper = all_from, all_to
        else:
            lower, upper = all_to, end
        if (zone == 1) or (CAUSAL and zone == 0) or (WINDOW > 0):
            for start in tl.range(lower, upper, BLOCK_Q):
                at_q = start + tl.arange(0, BLOCK_Q)
                inside = at_q < queries
                q = tl.load(
                    base_q + at_q.to(tl.int64)[None, :] * q_t + d[:, None] * q_d,
                    mask=inside[None, :] & (d < SIZE)[:, None], other=0.0,
                )  # fmt: skip
                c = tl.load(base_c + at_q, mask=inside, other=-float("inf"))
                s = bent(tl.dot(k, q, input_precision=PRECISION), scale, cap, SOFTCAP)
                if BIAS:
                    added = tl.load(
                        bias + b.to(tl.int64) * b_b + h.to(tl.int64) * b_h
                        + at_q.to(tl.int64)[None, :] * b_q + at_k.to(tl.int64)[:, None] * b_k,
                        mask=inside[None, :] & (at_k < keys)[:, None], other=0.0,
                    ).to(tl.float32)  # fmt: skip
                    s = tl.where(added > lowest, s + added * 1.4426950408889634, -float("inf"))
                p = tl.exp2(s + c[None, :])
                if zone != 1:
                    p = tl.where(visible((at_q + offset)[None, :], at_k[:, None], CAUSAL, WINDOW), p, 0.0)
                sums += tl.sum(p, 1)
    tl.store(out + (b * heads + h).to(tl.int64) * keys + at_k, sums, mask=at_k < keys)


@triton.jit
def _log_sum_exp(
    query, key, out, bias, sinks, firsts, lasts,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, b_b, b_h, b_q, b_k,
    heads, group, queries, keys, scale, cap, lowest,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr,
    SPANS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_Q
    h = tl.program_id(1)
    b = tl.program_id(2)
    at_q = first + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    q = tl.load(
        query + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h + at_q.to(tl.int64)[:, None] * q_t + d[None, :] * q_d,
        mask=(at_q < queries)[:, None] & (d < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    base_k = key + b.to(tl.int64) * k_b + (h // group).to(tl.int64) * k_h
    offset = keys - queries
    begin, end = 0, keys
    if CAUSAL:
        end = tl.minimum(first + BLOCK_Q + offset, keys)
    elif WINDOW > 0:
        end = tl.minimum(first + BLOCK_Q - 1 + WINDOW + offset, keys)
    if WINDOW > 0:
        begin = tl.maximum(first + offset - WINDOW + 1, 0) // BLOCK_K * BLOCK_K
    if SPANS:
        lower = tl.load(firsts + b.to(tl.int64) * queries + at_q, mask=at_q < queries, other=keys)
        upper = tl.load(lasts + b.to(tl.int64) * queries + at_q, mask=at_q < queries, other=-1)
        begin = tl.min(lower, 0) // BLOCK_K * BLOCK_K
        end = tl.minimum(tl.max(upper, 0) + 1, keys)
    # A finite start keeps a row without keys at zero instead of NaN.
    top = tl.full([BLOCK_Q], -1e30, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    for start in tl.range(begin, end, BLOCK_K):
        at_k = start + tl.arange(0, BLOCK_K)
        inside = at_k < keys
        k = tl.load(
            base_k + at_k.to(tl.int64)[None, :] * k_t + d[:, None] * k_d,
            mask=inside[None, :] & (d < SIZE)[:, None], other=0.0,
        )  # fmt: skip
        s = bent(tl.dot(q, k, input_precision=PRECISION), scale, cap, SOFTCAP)
        if BIAS:
            added = tl.load(
                bias + b.to(tl.int64) * b_b + h.to(tl.int64) * b_h
                + at_q.to(tl.int64)[:, None] * b_q + at_k.to(tl.int64)[None, :] * b_k,
                mask=inside[None, :] & (at_q < queries)[:, None], other=0.0,
            ).to(tl.float32)  # fmt: skip
            s = tl.where(added > lowest, s + added * 1.4426950408889634, -float("inf"))
        seen = inside[None, :]
        if CAUSAL or WINDOW > 0:
            seen = seen & visible((at_q + offset)[:, None], at_k[None, :], CAUSAL, WINDOW)
        if SPANS:
            seen = seen & (at_k[None, :] >= lower[:, None]) & (at_k[None, :] <= upper[:, None])
        s = tl.where(seen, s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(s - higher[:, None]), 1)
        top = higher
    if SINKS:
        sink = tl.load(sinks + h).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
        top = higher
    tl.store(
        out + (b * heads + h).to(tl.int64) * queries + at_q,
        (top + tl.log2(total)) * 0.6931471805599453, mask=at_q < queries,
    )  # fmt: skip
