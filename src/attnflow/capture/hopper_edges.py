# mypy: ignore-errors
"""`edge_kernels.edge_rows` on Hopper GPUs: tiles of edges in registers, while the heads pass by.

A tile has 192 keys (128 with directions) and 128 queries. A warpgroup holds 64 of its keys; one warp brings the queries of
each head and, as often as they change, its keys. Products run on the tensor cores for one half of the queries while the
exponentials of the other half are taken.
"""

from __future__ import annotations

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

TILE_Q = 128


def edge_rows(
    query,
    key,
    shift,
    out,
    scale,
    factor,
    causal,
    offset,
    lengths=None,
    direction=None,
    value=None,
    signed=False,
    add=False,
):
    """Writes ``factor · Σ_h w·exp2(scale · query·key + shift[q])`` into out, [batch, queries, keys], rows of any stride.

    offset: how many positions the first query stands behind the first key. lengths: w, [batch, heads, keys]. direction,
    value: w is their product, as large as zero at least unless ``signed``.
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    wide = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    narrow = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    shifts = shift.view(batch * heads, -1)
    tile_k = 128 if direction is not None else 192

    def described(x, rows):
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, size], wide)

    arguments = (
        described(query, TILE_Q), described(key, 64),
        described(query if direction is None else direction, TILE_Q), described(key if value is None else value, 64),
        TensorDescriptor(shifts, list(shifts.shape), list(shifts.stride()), [1, TILE_Q], narrow),
        out if lengths is None else lengths, out, out.stride(0), out.stride(1),
        heads, heads // key.shape[1], queries, keys, triton.cdiv(queries, TILE_Q), triton.cdiv(keys, tile_k),
        offset, scale, factor,
    )  # fmt: skip
    grid = (triton.cdiv(queries, TILE_Q) * triton.cdiv(keys, tile_k), batch)
    options = {
        "CAUSAL": causal,
        "LENGTHS": lengths is not None,
        "SIZE": size,
        "TILE_Q": TILE_Q,
        "GROUPED": 8,
        "ADD": add,
    }
    if direction is None:
        _edge_rows[grid](*arguments, STAGES=4, num_warps=4, **options)
    else:
        _directed_rows[grid](*arguments, SIGNED=signed, STAGES=2, num_warps=4, **options)


@gluon.jit
def _place(tiles_q, tiles_k, GROUPED: gl.constexpr):
    """Which tile of keys and of queries a program has: neighbours share both, so that they find them in the cache."""
    program = gl.program_id(0)
    group = program // (GROUPED * tiles_q)
    within = program % (GROUPED * tiles_q)
    size = gl.minimum(GROUPED, tiles_k - group * GROUPED)
    return group * GROUPED + within % size, within // size


@gluon.jit
def _edge_rows(
    q_desc, k_desc, g_desc, v_desc, c_desc, lengths, out, o_b, o_q, heads, group, queries, keys, tiles_q, tiles_k,
    offset, scale, factor,
    CAUSAL: gl.constexpr, LENGTHS: gl.constexpr, SIZE: gl.constexpr, TILE_Q: gl.constexpr, GROUPED: gl.constexpr,
    ADD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    tile_k, tile_q = _place(tiles_q, tiles_k, GROUPED)
    b = gl.program_id(1)
    at_q = tile_q * TILE_Q
    first = tile_k * 192
    # Tiles in which no query sees a key take no products; zeros are stored all the same.
    count = heads
    if CAUSAL and first > at_q + TILE_Q - 1 + offset:
        count = 0
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, TILE_Q, SIZE], q_desc.layout)
    c_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 1, TILE_Q], c_desc.layout)
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [2 * 3, 1, 1, 64, SIZE], k_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=3)
    for i in gl.static_range(2):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=3)
    fence_async_shared()
    pipe = (q_tiles, c_tiles, k_tiles, q_full, q_empty, k_full, k_empty)
    spans = (at_q, queries, keys, offset, count, group)
    lengths += b.to(gl.int64) * heads * keys
    out += b.to(gl.int64) * o_b
    store = (out, o_q, factor)
    gl.warp_specialize([
        (_add_heads, (pipe, store, lengths, first, spans, scale, 0, CAUSAL, LENGTHS, ADD, SIZE, TILE_Q, STAGES)),
        (_add_heads, (pipe, store, lengths, first + 64, spans, scale, 1, CAUSAL, LENGTHS, ADD, SIZE, TILE_Q, STAGES)),
        (_add_heads, (pipe, store, lengths, first + 128, spans, scale, 2, CAUSAL, LENGTHS, ADD, SIZE, TILE_Q, STAGES)),
        (_bring_heads, (pipe, q_desc, k_desc, c_desc, b, heads, first, spans, STAGES)),
    ], [4, 4, 1], [160, 160, 24])  # fmt: skip


@gluon.jit
def _bring_heads(pipe, q_desc, k_desc, c_desc, b, heads, first, spans, STAGES: gl.constexpr):
    q_tiles, c_tiles, k_tiles, q_full, q_empty, k_full, k_empty = pipe
    at_q, _, _, _, count, group = spans
    for h in range(count):
        if h % group == 0:
            number = h // group
            pair = number % 2
            mbarrier.wait(k_empty.index(pair), (number // 2 & 1) ^ 1)
            mbarrier.expect(k_full.index(pair), 3 * k_desc.block_type.nbytes)
            for part in gl.static_range(3):
                tma.async_copy_global_to_shared(
                    k_desc, [b, number, first + part * 64, 0], k_full.index(pair), k_tiles.index(pair * 3 + part)
                )
        slot = h % STAGES
        mbarrier.wait(q_empty.index(slot), (h // STAGES & 1) ^ 1)
        mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + c_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [b, h, at_q, 0], q_full.index(slot), q_tiles.index(slot))
        tma.async_copy_global_to_shared(c_desc, [b * heads + h, at_q], q_full.index(slot), c_tiles.index(slot))


@gluon.jit
def _add_heads(
    pipe, store, lengths, first, spans, scale, NUMBER: gl.constexpr,
    CAUSAL: gl.constexpr, LENGTHS: gl.constexpr, ADD: gl.constexpr, SIZE: gl.constexpr, TILE_Q: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles, c_tiles, k_tiles, q_full, q_empty, k_full, k_empty = pipe
    at_q, queries, keys, offset, count, group = spans
    HALF: gl.constexpr = TILE_Q // 2
    tile: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    across: gl.constexpr = gl.SliceLayout(0, tile)
    down: gl.constexpr = gl.SliceLayout(1, tile)
    at_k = first + gl.arange(0, 64, layout=down)
    nothing = gl.zeros([64, HALF], gl.float32, layout=tile)
    left = nothing
    right = nothing
    for h in range(count):
        pair = h // group % 2
        if h % group == 0:
            mbarrier.wait(k_full.index(pair), h // group // 2 & 1)
        slot = h % STAGES
        mbarrier.wait(q_full.index(slot), h // STAGES & 1)
        k = k_tiles.index(pair * 3 + NUMBER).reshape([64, SIZE])
        q = q_tiles.index(slot).reshape([TILE_Q, SIZE])
        c = c_tiles.index(slot).reshape([TILE_Q])
        first_half = warpgroup_mma(k, q.slice(0, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
        second_half = warpgroup_mma(k, q.slice(HALF, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
        w = gl.full([64], 1.0, gl.float32, layout=down)
        if LENGTHS:
            w = gl.load(lengths + (h * keys + at_k), mask=at_k < keys, other=0.0)
        c_left = c.slice(0, HALF, 0).load(across)
        first_half = warpgroup_mma_wait(1, deps=[first_half])
        p = gl.exp2(first_half * scale + c_left[None, :])
        left = gl.fma(p, gl.expand_dims(w, 1).broadcast_to([64, HALF]), left) if LENGTHS else left + p
        c_right = c.slice(HALF, HALF, 0).load(across)
        second_half = warpgroup_mma_wait(0, deps=[second_half])
        mbarrier.arrive(q_empty.index(slot), count=1)
        if h % group == group - 1:
            mbarrier.arrive(k_empty.index(pair), count=1)
        p = gl.exp2(second_half * scale + c_right[None, :])
        right = gl.fma(p, gl.expand_dims(w, 1).broadcast_to([64, HALF]), right) if LENGTHS else right + p
    _store_half(left, store, at_q, at_k, queries, keys, offset, HALF, CAUSAL, ADD, across)
    _store_half(right, store, at_q + HALF, at_k, queries, keys, offset, HALF, CAUSAL, ADD, across)


@gluon.jit
def _store_half(
    total, store, at, at_k, queries, keys, offset,
    HALF: gl.constexpr, CAUSAL: gl.constexpr, ADD: gl.constexpr, across: gl.constexpr,
):  # fmt: skip
    out, o_q, factor = store
    at_q = at + gl.arange(0, HALF, layout=across)
    if CAUSAL:
        total = gl.where(at_k[:, None] <= at_q[None, :] + offset, total, 0.0)
    exists = (at_q < queries)[None, :] & (at_k < keys)[:, None]
    place = out + at_q.to(gl.int64)[None, :] * o_q + at_k[:, None]
    total = total * factor
    if ADD:
        total += gl.load(place, mask=exists, other=0.0)
    gl.store(place, total, mask=exists)


@gluon.jit
def _directed_rows(
    q_desc, k_desc, g_desc, v_desc, c_desc, lengths, out, o_b, o_q, heads, group, queries, keys, tiles_q, tiles_k,
    offset, scale, factor,
    CAUSAL: gl.constexpr, LENGTHS: gl.constexpr, SIZE: gl.constexpr, TILE_Q: gl.constexpr, GROUPED: gl.constexpr,
    ADD: gl.constexpr, SIGNED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    tile_k, tile_q = _place(tiles_q, tiles_k, GROUPED)
    b = gl.program_id(1)
    at_q = tile_q * TILE_Q
    first = tile_k * 128
    count = heads
    if CAUSAL and first > at_q + TILE_Q - 1 + offset:
        count = 0
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, TILE_Q, SIZE], q_desc.layout)
    g_tiles = gl.allocate_shared_memory(g_desc.dtype, [STAGES, 1, 1, TILE_Q, SIZE], g_desc.layout)
    c_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 1, TILE_Q], c_desc.layout)
    # Keys and values take three places in turn, so that the next keys come while these values are used.
    kv_tiles = gl.allocate_shared_memory(k_desc.dtype, [3 * 2, 1, 1, 64, SIZE], k_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    kv_full = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    kv_empty = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    for i in gl.static_range(3):
        mbarrier.init(kv_full.index(i), count=1)
        mbarrier.init(kv_empty.index(i), count=2)
    fence_async_shared()
    pipe = (q_tiles, g_tiles, c_tiles, kv_tiles, full, empty, kv_full, kv_empty)
    spans = (at_q, queries, keys, offset, count, group)
    out += b.to(gl.int64) * o_b
    store = (out, o_q, factor)
    gl.warp_specialize([
        (_add_directed, (pipe, store, first, spans, scale, 0, CAUSAL, SIGNED, ADD, SIZE, TILE_Q, STAGES)),
        (_add_directed, (pipe, store, first + 64, spans, scale, 1, CAUSAL, SIGNED, ADD, SIZE, TILE_Q, STAGES)),
        (_bring_directed, (pipe, q_desc, k_desc, g_desc, v_desc, c_desc, b, heads, first, spans, STAGES)),
    ], [4, 1], [232, 24])  # fmt: skip


@gluon.jit
def _bring_directed(pipe, q_desc, k_desc, g_desc, v_desc, c_desc, b, heads, first, spans, STAGES: gl.constexpr):
    q_tiles, g_tiles, c_tiles, kv_tiles, full, empty, kv_full, kv_empty = pipe
    at_q, _, _, _, count, group = spans
    for h in range(count):
        if h % group == 0:
            head = h // group
            for which in gl.static_range(2):
                number = 2 * head + which
                place = number % 3
                mbarrier.wait(kv_empty.index(place), (number // 3 & 1) ^ 1)
                mbarrier.expect(kv_full.index(place), 2 * k_desc.block_type.nbytes)
                for part in gl.static_range(2):
                    tma.async_copy_global_to_shared(
                        k_desc if which == 0 else v_desc, [b, head, first + part * 64, 0], kv_full.index(place),
                        kv_tiles.index(place * 2 + part),
                    )  # fmt: skip
        slot = h % STAGES
        mbarrier.wait(empty.index(slot), (h // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(slot), 2 * q_desc.block_type.nbytes + c_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [b, h, at_q, 0], full.index(slot), q_tiles.index(slot))
        tma.async_copy_global_to_shared(c_desc, [b * heads + h, at_q], full.index(slot), c_tiles.index(slot))
        tma.async_copy_global_to_shared(g_desc, [b, h, at_q, 0], full.index(slot), g_tiles.index(slot))


@gluon.jit
def _add_directed(
    pipe, store, first, spans, scale, NUMBER: gl.constexpr,
    CAUSAL: gl.constexpr, SIGNED: gl.constexpr, ADD: gl.constexpr, SIZE: gl.constexpr, TILE_Q: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles, g_tiles, c_tiles, kv_tiles, full, empty, kv_full, kv_empty = pipe
    at_q, queries, keys, offset, count, group = spans
    HALF: gl.constexpr = TILE_Q // 2
    tile: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    across: gl.constexpr = gl.SliceLayout(0, tile)
    down: gl.constexpr = gl.SliceLayout(1, tile)
    at_k = first + gl.arange(0, 64, layout=down)
    nothing = gl.zeros([64, HALF], gl.float32, layout=tile)
    left = nothing
    right = nothing
    for h in range(count):
        head = h // group
        k_place = 2 * head % 3
        v_place = (2 * head + 1) % 3
        if h % group == 0:
            mbarrier.wait(kv_full.index(k_place), 2 * head // 3 & 1)
            mbarrier.wait(kv_full.index(v_place), (2 * head + 1) // 3 & 1)
        slot = h % STAGES
        mbarrier.wait(full.index(slot), h // STAGES & 1)
        k = kv_tiles.index(k_place * 2 + NUMBER).reshape([64, SIZE])
        v = kv_tiles.index(v_place * 2 + NUMBER).reshape([64, SIZE])
        q = q_tiles.index(slot).reshape([TILE_Q, SIZE])
        g = g_tiles.index(slot).reshape([TILE_Q, SIZE])
        c = c_tiles.index(slot).reshape([TILE_Q])
        s_left = warpgroup_mma(k, q.slice(0, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
        s_right = warpgroup_mma(k, q.slice(HALF, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
        u_left = warpgroup_mma(v, g.slice(0, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
        c_left = c.slice(0, HALF, 0).load(across)
        s_left = warpgroup_mma_wait(2, deps=[s_left])
        p_left = gl.exp2(s_left * scale + c_left[None, :])
        s_right = warpgroup_mma_wait(1, deps=[s_right])
        if h % group == group - 1:
            mbarrier.arrive(kv_empty.index(k_place), count=1)
        u_right = warpgroup_mma(v, g.slice(HALF, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
        c_right = c.slice(HALF, HALF, 0).load(across)
        p_right = gl.exp2(s_right * scale + c_right[None, :])
        u_left = warpgroup_mma_wait(1, deps=[u_left])
        left = gl.fma(p_left, u_left if SIGNED else gl.maximum(u_left, 0.0), left)
        u_right = warpgroup_mma_wait(0, deps=[u_right])
        mbarrier.arrive(empty.index(slot), count=1)
        if h % group == group - 1:
            mbarrier.arrive(kv_empty.index(v_place), count=1)
        right = gl.fma(p_right, u_right if SIGNED else gl.maximum(u_right, 0.0), right)
    _store_half(left, store, at_q, at_k, queries, keys, offset, HALF, CAUSAL, ADD, across)
    _store_half(right, store, at_q + HALF, at_k, queries, keys, offset, HALF, CAUSAL, ADD, across)
