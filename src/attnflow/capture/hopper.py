# mypy: ignore-errors
"""Kernels for one row on Hopper GPUs, where exp2 costs as much as the matrix product and both must overlap.

Three warpgroups hold 64 keys each in registers and share the tiles of queries that a fourth loads. A warpgroup works in
sequence (product, exp2, sum), and while it computes exponentials the tensor cores work for the two others. On an H200,
32 heads of 128 (8 of keys), bfloat16, causal, 32,768 positions, as a multiple of cuDNN's forward in the same run: 0.49,
the plain kernel 0.71. Slower: two warpgroups that start the next product before the exponentials of this one 0.54, four
warpgroups with the keys in shared memory 0.50, a polynomial for one exp2 in eight 0.58; warpgroups that take turns at
the tensor cores were 4 % slower than without. The limit is probably power (680 W of 700 read), not a full unit.

Gluon is experimental and changes with Triton; `kernels` uses this module only with the version it was tested with.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

BLOCK_Q = 128
STAGES = 5


def sums(query, key, shift, scale, causal):
    """Return [batch, heads, keys]: ``Σ_q exp2(scale · query·key + shift[q])``.

    shift: [batch, heads, a multiple of BLOCK_Q].
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    out = torch.empty((batch, heads, keys), dtype=torch.float32, device=query.device)
    q_layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    c_layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    rows = shift.view(batch * heads, -1)
    blocks = triton.cdiv(keys, 3 * 64)
    _sums[(blocks * batch * heads,)](
        TensorDescriptor(query, list(query.shape), list(query.stride()), [1, 1, BLOCK_Q, size], q_layout),
        TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [1, BLOCK_Q], c_layout),
        key, out, *key.stride()[:3], batch * heads, heads, heads // key.shape[1], queries, keys, blocks, scale,
        CAUSAL=causal, SIZE=size, BLOCK_Q=BLOCK_Q, STAGES=STAGES, MIX=4, num_warps=4,
    )  # fmt: skip
    return out


@gluon.jit
def _sums(
    q_desc, c_desc, key, out, k_b, k_h, k_t, total, heads, group, queries, keys, blocks, scale,
    CAUSAL: gl.constexpr, SIZE: gl.constexpr, BLOCK_Q: gl.constexpr, STAGES: gl.constexpr, MIX: gl.constexpr,
):  # fmt: skip
    # The first keys have the most queries. A few heads take turns: their queries stay in the cache, and the long
    # programs of the last heads do not start last.
    program = gl.program_id(0)
    chunk = program // (MIX * blocks)
    within = program % (MIX * blocks)
    size = gl.minimum(MIX, total - chunk * MIX)
    first = within // size * 192
    head = chunk * MIX + within % size
    b = head // heads
    h = head % heads
    offset = keys - queries
    begin = 0
    if CAUSAL:
        begin = gl.maximum(first - offset, 0) // BLOCK_Q * BLOCK_Q
    tiles = gl.maximum(gl.cdiv(queries - begin, BLOCK_Q), 0)

    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_Q, SIZE], q_desc.layout)
    c_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_Q], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=3)
    fence_async_shared()
    key += b.to(gl.int64) * k_b + (h // group).to(gl.int64) * k_h
    out += head.to(gl.int64) * keys
    pipe = (q_tiles, c_tiles, full, empty)
    spans = (offset, begin, tiles, keys)
    gl.warp_specialize([
        (_consume, (pipe, key, out, k_t, first, spans, scale, CAUSAL, SIZE, BLOCK_Q, STAGES)),
        (_consume, (pipe, key, out, k_t, first + 64, spans, scale, CAUSAL, SIZE, BLOCK_Q, STAGES)),
        (_consume, (pipe, key, out, k_t, first + 128, spans, scale, CAUSAL, SIZE, BLOCK_Q, STAGES)),
        (_produce, (pipe, q_desc, c_desc, b, h, head, begin, tiles, BLOCK_Q, STAGES)),
    ], [4, 4, 1], [160, 160, 24])  # fmt: skip


@gluon.jit
def _produce(pipe, q_desc, c_desc, b, h, head, begin, tiles, BLOCK_Q: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, c_tiles, full, empty = pipe
    for i in range(tiles):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(slot), q_desc.block_type.nbytes + c_desc.block_type.nbytes)
        at = begin + i * BLOCK_Q
        tma.async_copy_global_to_shared(q_desc, [b, h, at, 0], full.index(slot), q_tiles.index(slot))
        tma.async_copy_global_to_shared(c_desc, [head, at], full.index(slot), c_tiles.index(slot))


@gluon.jit
def _consume(
    pipe, key, out, k_t, first, spans, scale,
    CAUSAL: gl.constexpr, SIZE: gl.constexpr, BLOCK_Q: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    _, _, full, empty = pipe
    offset, begin, tiles, keys = spans
    tile: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_Q, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, tile, 2)
    across: gl.constexpr = gl.SliceLayout(0, tile)
    down: gl.constexpr = gl.SliceLayout(1, tile)
    hidden = 0
    masked = 0
    if CAUSAL:  # tiles in which no query sees any of these keys, and tiles in which not all see all
        hidden = gl.minimum(gl.maximum(first - offset - begin, 0) // BLOCK_Q, tiles)
        masked = gl.minimum(gl.maximum(gl.cdiv(first + 63 - offset - begin, BLOCK_Q), hidden), tiles)
    rows = first + gl.arange(0, 64, layout=gl.SliceLayout(1, operand))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, operand))
    k = gl.load(key + rows.to(gl.int64)[:, None] * k_t + d[None, :], mask=(rows < keys)[:, None], other=0.0)
    at_k = first + gl.arange(0, 64, layout=down)
    nothing = gl.zeros([64, BLOCK_Q], gl.float32, layout=tile)
    sums = _in_thread(nothing, BLOCK_Q)
    for i in range(0, hidden):
        mbarrier.wait(full.index(i % STAGES), i // STAGES & 1)
        mbarrier.arrive(empty.index(i % STAGES), count=1)
    for i in range(hidden, masked):
        s, c = _scores(pipe, i, k, nothing, across, SIZE, BLOCK_Q, STAGES)
        at_q = offset + begin + i * BLOCK_Q + gl.arange(0, BLOCK_Q, layout=across)
        p = gl.where(at_k[:, None] <= at_q[None, :], gl.exp2(s * scale + c[None, :]), 0.0)
        sums += _in_thread(p, BLOCK_Q)
    for i in range(masked, tiles):
        s, c = _scores(pipe, i, k, nothing, across, SIZE, BLOCK_Q, STAGES)
        sums += _in_thread(gl.exp2(s * scale + c[None, :]), BLOCK_Q)
    gl.store(out + at_k, gl.convert_layout(gl.sum(sums, 1), down), mask=at_k < keys)


@gluon.jit
def _scores(pipe, i, k, nothing, across: gl.constexpr, SIZE: gl.constexpr, BLOCK_Q: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, c_tiles, full, empty = pipe
    slot = i % STAGES
    mbarrier.wait(full.index(slot), i // STAGES & 1)
    q = q_tiles.index(slot).reshape([BLOCK_Q, SIZE]).permute([1, 0])
    s = warpgroup_mma(k, q, nothing, use_acc=False, is_async=True)
    c = c_tiles.index(slot).reshape([BLOCK_Q]).load(across)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(empty.index(slot), count=1)
    return s, c


@gluon.jit
def _in_thread(p, BLOCK_Q: gl.constexpr):
    """Sum over the queries of a thread; the four threads of a row are combined after the last tile."""
    return gl.sum(gl.sum(p.reshape([64, BLOCK_Q // 8, 4, 2]), 3), 1)


def log_sum_exp(query, key, scale, causal):
    """Return [batch, heads, queries]: ``log2 Σ_k exp2(scale · query·key)``."""
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    out = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    blocks = triton.cdiv(queries, 3 * 64)
    _log_sums[(blocks * batch * heads,)](
        TensorDescriptor(key, list(key.shape), list(key.stride()), [1, 1, BLOCK_Q, size], layout),
        query, out, *query.stride()[:3], batch * heads, heads, heads // key.shape[1], queries, keys, blocks, scale,
        CAUSAL=causal, SIZE=size, TILE=BLOCK_Q, STAGES=STAGES, MIX=4, num_warps=4,
    )  # fmt: skip
    return out


@gluon.jit
def _log_sums(
    k_desc, query, out, q_b, q_h, q_t, total, heads, group, queries, keys, blocks, scale,
    CAUSAL: gl.constexpr, SIZE: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, MIX: gl.constexpr,
):  # fmt: skip
    # As `_sums`, with the roles of queries and keys exchanged: here the last queries have the most keys.
    program = gl.program_id(0)
    chunk = program // (MIX * blocks)
    within = program % (MIX * blocks)
    size = gl.minimum(MIX, total - chunk * MIX)
    first = (blocks - 1 - within // size) * 192
    head = chunk * MIX + within % size
    b = head // heads
    h = head % heads
    offset = keys - queries
    end = keys
    if CAUSAL:
        end = gl.maximum(gl.minimum(first + 192 + offset, keys), 0)
    tiles = gl.cdiv(end, TILE)

    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, TILE, SIZE], k_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=3)
    fence_async_shared()
    query += b.to(gl.int64) * q_b + h.to(gl.int64) * q_h
    out += head.to(gl.int64) * queries
    pipe = (k_tiles, full, empty)
    spans = (offset, tiles, queries, keys)
    gl.warp_specialize([
        (_sum_row, (pipe, query, out, q_t, first, spans, scale, CAUSAL, SIZE, TILE, STAGES)),
        (_sum_row, (pipe, query, out, q_t, first + 64, spans, scale, CAUSAL, SIZE, TILE, STAGES)),
        (_sum_row, (pipe, query, out, q_t, first + 128, spans, scale, CAUSAL, SIZE, TILE, STAGES)),
        (_bring_keys, (pipe, k_desc, b, h // group, tiles, TILE, STAGES)),
    ], [4, 4, 1], [160, 160, 24])  # fmt: skip


@gluon.jit
def _bring_keys(pipe, k_desc, b, head, tiles, TILE: gl.constexpr, STAGES: gl.constexpr):
    k_tiles, full, empty = pipe
    for i in range(tiles):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(slot), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [b, head, i * TILE, 0], full.index(slot), k_tiles.index(slot))


@gluon.jit
def _sum_row(
    pipe, query, out, q_t, first, spans, scale,
    CAUSAL: gl.constexpr, SIZE: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    offset, tiles, queries, keys = spans
    tile: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, tile, 2)
    across: gl.constexpr = gl.SliceLayout(0, tile)
    down: gl.constexpr = gl.SliceLayout(1, tile)
    whole = keys // TILE  # tiles in which every query sees every key
    if CAUSAL:
        whole = gl.minimum(whole, gl.maximum(first + offset + 1, 0) // TILE)
    rows = first + gl.arange(0, 64, layout=gl.SliceLayout(1, operand))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, operand))
    q = gl.load(query + rows.to(gl.int64)[:, None] * q_t + d[None, :], mask=(rows < queries)[:, None], other=0.0)
    at_q = first + gl.arange(0, 64, layout=down)
    nothing = gl.zeros([64, TILE], gl.float32, layout=tile)
    # Each thread keeps the maximum and the sum of its own values; the four threads of a row are combined at the end.
    total = _in_thread(nothing, TILE)
    top = total - 1e30
    for i in range(0, whole):
        s = _products(pipe, i, q, nothing, SIZE, TILE, STAGES)
        top, total = _add_tile(s, top, total, scale, TILE)
    for i in range(whole, tiles):
        s = _products(pipe, i, q, nothing, SIZE, TILE, STAGES)
        at_k = i * TILE + gl.arange(0, TILE, layout=across)
        seen = (at_k < keys)[None, :] & (at_q >= 0)[:, None]
        if CAUSAL:
            seen = seen & (at_k[None, :] <= at_q[:, None] + offset)
        # Scale first: hidden scores must be exactly as low as the initial maximum, or exp2 of their gap overflows.
        top, total = _add_tile(gl.where(seen, s * scale, -1e30), top, total, 1.0, TILE)
    highest = gl.max(top, 1)
    total = gl.sum(total * gl.exp2(top - gl.expand_dims(highest, 1)), 1)
    sums = highest + gl.log2(total)
    sums = gl.where(highest > -1e29, sums, -float("inf"))  # a query that sees no key
    gl.store(out + at_q, gl.convert_layout(sums, down), mask=at_q < queries)


@gluon.jit
def _products(pipe, i, q, nothing, SIZE: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr):
    k_tiles, full, empty = pipe
    slot = i % STAGES
    mbarrier.wait(full.index(slot), i // STAGES & 1)
    k = k_tiles.index(slot).reshape([TILE, SIZE]).permute([1, 0])
    s = warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(empty.index(slot), count=1)
    return s


@gluon.jit
def _add_tile(s, top, total, scale, TILE: gl.constexpr):
    parts = s.reshape([64, TILE // 8, 4, 2])
    higher = gl.maximum(top, gl.max(gl.max(parts, 3), 1) * scale)
    p = gl.exp2(parts * scale - gl.expand_dims(gl.expand_dims(higher, 1), 3))
    return higher, total * gl.exp2(top - higher) + gl.sum(gl.sum(p, 3), 1)
