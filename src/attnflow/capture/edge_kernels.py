# mypy: ignore-missing-imports, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Edge weights on the GPU: heads are summed inside a tile, so only [query, key] of a few queries is written.

A tile of edges stays in registers while the heads pass by. All requested rows then come from one thin product with the
tiles, and the row sums of the edges from the same tiles: 256 rows cost the scores of one pass, not 256 per head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from attnflow.capture.kernels import LOG2E, bent, bias_strides, lowest_bias, shifts_of, visible

Tensor = Any


def edge_rows(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    *,
    scale: float,
    factor: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    offset: int | None = None,
    spans: tuple[Tensor, Tensor] | None = None,
    lengths: Tensor | None = None,
    direction: Tensor | None = None,
    value: Tensor | None = None,
    signed: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``factor · Σ_h w·exp(s[b, h, q, k] - lse[b, h, q])``, float32 [batch, queries, keys].

    query, key, lse, scale, causal, window, softcap, bias: as in `kernels.transposed_product`.
    offset: the position of the first query relative to the first key; by default the last query and the last key align.
    spans: the first and the last key that each query sees, int32 [batch, queries], for masks of texts side by side.
    lengths: w = lengths[b, h, k].
    direction, value: w = direction_q·value_k, [batch, heads, queries, size] and as key; negative values count as 0
        unless ``signed``.
    out: rows to add this to, instead of new ones.
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    offset = keys - queries if offset is None else offset
    shift = shifts_of(lse.reshape(batch, heads, queries).float().contiguous(), None)
    add = out is not None
    if out is None:
        out = torch.empty((batch, queries, keys), dtype=torch.float32, device=query.device)
    block_q, block_k, warps, stages = _tiles(query.dtype, size, direction is not None)
    first, last = spans if spans is not None else (shift, shift)
    grid = (triton.cdiv(keys, block_k), triton.cdiv(queries, block_q), batch)
    _edge_rows[grid](
        query, key, query if direction is None else direction, key if value is None else value, shift,
        shift if lengths is None else lengths.float().contiguous(), shift if bias is None else bias,
        first, last, out,
        *query.stride(), *key.stride(), *(query if direction is None else direction).stride(),
        *(key if value is None else value).stride(), *bias_strides(bias, (batch, heads, queries, keys)),
        out.stride(0), out.stride(1), heads, heads // key.shape[1], queries, shift.shape[2], keys, offset,
        scale * LOG2E if not softcap else scale / softcap, (softcap or 0.0) * LOG2E, lowest_bias(bias), factor,
        CAUSAL=causal, WINDOW=window or 0, SOFTCAP=bool(softcap), BIAS=bias is not None, SPANS=spans is not None,
        LENGTHS=lengths is not None, DIRECTED=direction is not None, SIGNED=signed, ADD=add,
        SIZE=size, BLOCK_D=max(16, triton.next_power_of_2(size)), BLOCK_K=block_k, BLOCK_Q=block_q,
        PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def thin_product(rows: Tensor, edges: Tensor) -> Tensor:
    """Compute ``rows @ edges``: [batch, row, query] · [batch, query, key], with the accuracy of float32.

    A matrix product of float32 runs on tensor cores only with 11 bits. Two bfloat16 numbers represent 16 bits of each
    factor, and three products of these are exact to 1e-6, in a tenth of the time of the plain product.
    """
    batch, count, queries = rows.shape
    keys = edges.shape[2]
    if count == 1:  # limited by memory, not by arithmetic
        return torch.matmul(rows, edges)
    out = torch.empty((batch, count, keys), dtype=torch.float32, device=rows.device)
    rows = rows.float().contiguous()
    block_r = min(128, max(16, triton.next_power_of_2(count)))
    block_k, warps = (128, 8) if block_r == 128 else (64, 4)
    grid = (triton.cdiv(keys, block_k), triton.cdiv(count, block_r), batch)
    _thin_product[grid](
        rows, edges, out, edges.stride(0), edges.stride(1), count, queries, keys,
        BLOCK_R=block_r, BLOCK_Q=64, BLOCK_K=block_k, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out


def value_gradient(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    upward: Tensor,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    spans: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute ``dV[b, g, k] = Σ_q Σ_h exp(s[b, h, q, k] - lse[b, h, q])·upward[b, h, q]``.

    The sum is over the heads h that share values g. With constant weights, this is the whole backward pass of attention.

    upward: the gradient of the heads' outputs, [batch, heads, queries, size]. Other arguments are as in `edge_rows`.
    Returns [batch, kv heads, keys, size] in the dtype of ``upward``.
    """
    batch, heads, queries, size = query.shape
    kv_heads, keys, wide = key.shape[1], key.shape[2], upward.shape[3]
    shift = shifts_of(lse.reshape(batch, heads, queries).float().contiguous(), None)
    out = torch.empty((batch, kv_heads, keys, wide), dtype=upward.dtype, device=query.device)
    block_q, block_k, warps, stages = (64, 64, 4, 1) if query.dtype == torch.float32 else (64, 128, 8, 2)
    first, last = spans if spans is not None else (shift, shift)
    _value_gradient[(triton.cdiv(keys, block_k), kv_heads, batch)](
        query, key, upward, shift, shift if bias is None else bias, first, last, out,
        *query.stride(), *key.stride(), *upward.stride(), *out.stride()[:3],
        *bias_strides(bias, (batch, heads, queries, keys)), heads, heads // kv_heads, queries, shift.shape[2], keys,
        scale * LOG2E if not softcap else scale / softcap, (softcap or 0.0) * LOG2E, lowest_bias(bias),
        CAUSAL=causal, WINDOW=window or 0, SOFTCAP=bool(softcap), BIAS=bias is not None, SPANS=spans is not None,
        SIZE=size, WIDE=wide, BLOCK_D=max(16, triton.next_power_of_2(size)),
        BLOCK_W=max(16, triton.next_power_of_2(wide)), BLOCK_K=block_k, BLOCK_Q=block_q,
        PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def squared_lengths(value: Tensor, gram: Tensor) -> Tensor:
    """Compute ``vᵀ·G·v`` of values v [batch, kv heads, keys, size] in half precision and G [heads, size, size].

    Returns float32 [batch, heads, keys]. G is float32, and is split into two half-precision matrices, which together
    represent it to 16 bits.
    """
    batch, kv_heads, keys, size = value.shape
    heads = gram.shape[0]
    high = gram.to(value.dtype)
    low = (gram - high.float()).to(value.dtype)
    out = torch.empty((batch, heads, keys), dtype=torch.float32, device=value.device)
    _squared_lengths[(triton.cdiv(keys, 128), heads, batch)](
        value, high.contiguous(), low.contiguous(), out, *value.stride(), heads, heads // kv_heads, keys,
        SIZE=size, BLOCK_D=max(16, triton.next_power_of_2(size)), BLOCK_K=128, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out


def _tiles(dtype: Any, size: int, directed: bool) -> tuple[int, int, int, int]:
    """Return queries and keys per tile, warps, and pipeline stages."""
    padded = triton.next_power_of_2(size)
    if dtype == torch.float32:
        return (64, 32, 4, 1) if padded > 64 or directed else (64, 64, 4, 2)
    if padded > 128:
        return (64, 64, 4, 1) if directed else (128, 64, 8, 2)
    return (128, 64, 8, 2) if directed else (128, 128, 8, 2)


@triton.jit
def _edge_rows(
    query, key, direction, value, shift, lengths, bias, first, last, out,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, g_b, g_h, g_t, g_d, v_b, v_h, v_t, v_d, b_b, b_h, b_q, b_k,
    o_b, o_q, heads, group, queries, padded, keys, offset, scale, cap, lowest, factor,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, SPANS: tl.constexpr,
    LENGTHS: tl.constexpr, DIRECTED: tl.constexpr, SIGNED: tl.constexpr, ADD: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    start_k = tl.program_id(0) * BLOCK_K
    start_q = tl.program_id(1) * BLOCK_Q
    b = tl.program_id(2).to(tl.int64)
    at_k = start_k + tl.arange(0, BLOCK_K)
    at_q = start_q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    exists_q, exists_k = at_q < queries, at_k < keys
    # Skip all heads if no query of the tile sees any of its keys.
    count = heads
    if CAUSAL:
        if start_k > start_q + BLOCK_Q - 1 + offset:
            count = 0
    elif WINDOW > 0 and start_k > start_q + BLOCK_Q - 2 + WINDOW + offset:
        count = 0
    if WINDOW > 0 and start_k + BLOCK_K - 1 < start_q + offset - WINDOW + 1:
        count = 0
    seen = exists_q[:, None] & exists_k[None, :]
    if CAUSAL or WINDOW > 0:
        seen = seen & visible((at_q + offset)[:, None], at_k[None, :], CAUSAL, WINDOW)
    if SPANS:
        lower = tl.load(first + b * queries + at_q, mask=exists_q, other=0)
        upper = tl.load(last + b * queries + at_q, mask=exists_q, other=-1)
        seen = seen & (at_k[None, :] >= lower[:, None]) & (at_k[None, :] <= upper[:, None])
        if start_k > tl.max(upper, 0):
            count = 0
    lies = at_k.to(tl.int64)
    total = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    inside_q = exists_q[:, None] & (d < SIZE)[None, :]
    inside_k = exists_k[None, :] & (d < SIZE)[:, None]
    rows = at_q.to(tl.int64)[:, None]
    for number in tl.range(0, count):
        h = tl.full([], 0, tl.int64) + number
        q = tl.load(query + b * q_b + h * q_h + rows * q_t + d[None, :] * q_d, mask=inside_q, other=0.0)
        k = tl.load(
            key + b * k_b + (h // group) * k_h + lies[None, :] * k_t + d[:, None] * k_d, mask=inside_k, other=0.0
        )
        c = tl.load(shift + (b * heads + h) * padded + at_q, mask=exists_q, other=-float("inf"))
        s = bent(tl.dot(q, k, input_precision=PRECISION), scale, cap, SOFTCAP)
        if BIAS:
            added = tl.load(
                bias + b * b_b + h * b_h + rows * b_q + at_k.to(tl.int64)[None, :] * b_k,
                mask=exists_q[:, None] & exists_k[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
            s = tl.where(added > lowest, s + added * 1.4426950408889634, -float("inf"))
        # Hidden keys may have scores far above the row's sum; they must not become inf, nor inf · 0.
        p = tl.exp2(tl.where(seen, s + c[:, None], -float("inf")))
        if LENGTHS:
            p = p * tl.load(lengths + (b * heads + h) * keys + at_k, mask=exists_k, other=0.0)[None, :]
        if DIRECTED:
            g = tl.load(direction + b * g_b + h * g_h + rows * g_t + d[None, :] * g_d, mask=inside_q, other=0.0)
            v = tl.load(
                value + b * v_b + (h // group) * v_h + lies[None, :] * v_t + d[:, None] * v_d, mask=inside_k, other=0.0
            )
            along = tl.dot(g, v, input_precision=PRECISION)
            p = p * (along if SIGNED else tl.maximum(along, 0.0))
        total += p
    total = total * factor
    place = out + b * o_b + rows * o_q + at_k[None, :]
    within = exists_q[:, None] & exists_k[None, :]
    if ADD:
        total += tl.load(place, mask=within, other=0.0)
    tl.store(place, total, mask=within)


@triton.jit
def _thin_product(
    rows, edges, out, e_b, e_q, count, queries, keys,
    BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    at_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    b = tl.program_id(2).to(tl.int64)
    total = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for start in tl.range(0, queries, BLOCK_Q):
        at_q = start + tl.arange(0, BLOCK_Q)
        weight = tl.load(
            rows + (b * count + r.to(tl.int64)[:, None]) * queries + at_q[None, :],
            mask=(r < count)[:, None] & (at_q < queries)[None, :], other=0.0,
        )  # fmt: skip
        edge = tl.load(
            edges + b * e_b + at_q.to(tl.int64)[:, None] * e_q + at_k[None, :],
            mask=(at_q < queries)[:, None] & (at_k < keys)[None, :], other=0.0,
        )  # fmt: skip
        # Rounded, so that the remainder has either sign, and so has the omitted product of the two remainders.
        weight_high, edge_high = weight.to(tl.bfloat16), edge.to(tl.bfloat16)
        weight_low = (weight - weight_high.to(tl.float32)).to(tl.bfloat16)
        edge_low = (edge - edge_high.to(tl.float32)).to(tl.bfloat16)
        part = tl.dot(weight_high, edge_high)
        part = tl.dot(weight_high, edge_low, part)
        part = tl.dot(weight_low, edge_high, part)
        # Tensor cores truncate sums, which adds up over many tiles, and the compiler would turn a plain sum into
        # theirs.
        total = tl.fma(part, tl.full([BLOCK_R, BLOCK_K], 1.0, tl.float32), total)
    place = out + (b * count + r.to(tl.int64)[:, None]) * keys + at_k[None, :]
    tl.store(place, total, mask=(r < count)[:, None] & (at_k < keys)[None, :])


@triton.jit
def _value_gradient(
    query, key, upward, shift, bias, firsts, lasts, out,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, u_b, u_h, u_t, u_d, o_b, o_h, o_t, b_b, b_h, b_q, b_k,
    heads, group, queries, padded, keys, scale, cap, lowest,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, SPANS: tl.constexpr,
    SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    start_k = tl.program_id(0) * BLOCK_K
    g = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    at_k = start_k + tl.arange(0, BLOCK_K)
    d, w = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
    exists_k = at_k < keys
    k = tl.load(
        key + b * k_b + g.to(tl.int64) * k_h + at_k.to(tl.int64)[:, None] * k_t + d[None, :] * k_d,
        mask=exists_k[:, None] & (d < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    offset = keys - queries
    begin, end = 0, queries
    if CAUSAL:
        begin = tl.maximum(start_k - offset, 0) // BLOCK_Q * BLOCK_Q
    elif WINDOW > 0:
        begin = tl.maximum(start_k - WINDOW + 1 - offset, 0) // BLOCK_Q * BLOCK_Q
    if WINDOW > 0:
        end = tl.maximum(tl.minimum(start_k + BLOCK_K - 1 + WINDOW - offset, queries), begin)
    steps = tl.cdiv(end - begin, BLOCK_Q)
    total = tl.zeros([BLOCK_K, BLOCK_W], tl.float32)
    # Loop over steps and heads of the group at once, so that loads run ahead across the ends of heads.
    for number in tl.range(0, steps * group):
        h = (g * group + number // steps).to(tl.int64)
        at_q = begin + number % steps * BLOCK_Q + tl.arange(0, BLOCK_Q)
        exists_q = at_q < queries
        rows = at_q.to(tl.int64)
        q = tl.load(
            query + b * q_b + h * q_h + rows[None, :] * q_t + d[:, None] * q_d,
            mask=exists_q[None, :] & (d < SIZE)[:, None], other=0.0,
        )  # fmt: skip
        u = tl.load(
            upward + b * u_b + h * u_h + rows[:, None] * u_t + w[None, :] * u_d,
            mask=exists_q[:, None] & (w < WIDE)[None, :], other=0.0,
        )  # fmt: skip
        c = tl.load(shift + (b * heads + h) * padded + at_q, mask=exists_q, other=-float("inf"))
        s = bent(tl.dot(k, q, input_precision=PRECISION), scale, cap, SOFTCAP)
        if BIAS:
            added = tl.load(
                bias + b * b_b + h * b_h + rows[None, :] * b_q + at_k.to(tl.int64)[:, None] * b_k,
                mask=exists_q[None, :] & exists_k[:, None], other=0.0,
            ).to(tl.float32)  # fmt: skip
            s = tl.where(added > lowest, s + added * 1.4426950408889634, -float("inf"))
        seen = exists_q[None, :] & exists_k[:, None]
        if CAUSAL or WINDOW > 0:
            seen = seen & visible((at_q + offset)[None, :], at_k[:, None], CAUSAL, WINDOW)
        if SPANS:
            lower = tl.load(firsts + b * queries + at_q, mask=exists_q, other=0)
            upper = tl.load(lasts + b * queries + at_q, mask=exists_q, other=-1)
            seen = seen & (at_k[:, None] >= lower[None, :]) & (at_k[:, None] <= upper[None, :])
        p = tl.exp2(tl.where(seen, s + c[None, :], -float("inf")))
        total = tl.dot(p.to(u.dtype), u, total, input_precision=PRECISION)
    place = out + b * o_b + g.to(tl.int64) * o_h + at_k.to(tl.int64)[:, None] * o_t + w[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=exists_k[:, None] & (w < WIDE)[None, :])


@triton.jit
def _squared_lengths(
    value, high, low, out, v_b, v_h, v_t, v_d, heads, group, keys,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    at_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    h = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside = d < SIZE
    v = tl.load(
        value + b * v_b + (h // group).to(tl.int64) * v_h + at_k.to(tl.int64)[:, None] * v_t + d[None, :] * v_d,
        mask=(at_k < keys)[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    place = h * SIZE * SIZE + d[:, None] * SIZE + d[None, :]
    square = inside[:, None] & inside[None, :]
    product = tl.dot(v, tl.load(high + place, mask=square, other=0.0))
    product = tl.dot(v, tl.load(low + place, mask=square, other=0.0), product)
    tl.store(out + (b * heads + h) * keys + at_k, tl.sum(product * v.to(tl.float32), 1), mask=at_k < keys)
