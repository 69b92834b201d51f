# mypy: ignore-errors
"""`edge_kernels.edge_rows` on Hopper GPUs: tiles of edges stay in registers while the heads pass by.

A tile has 128 queries and 192 keys, or 128 keys with directions. Warpgroups share it, and one warp loads the queries of
each head and, whenever they change, its keys. Each multiprocessor runs one program, which goes from tile to tile and
loads the start of the next tile while it stores this one. On an H200, 32 heads of 128 (8 of keys), bfloat16, causal,
32,768 positions, as a multiple of cuDNN's forward in the same run: 0.63, with lengths 0.67, with directions 1.11; the
plain kernels 1.19 and 2.44. Slower: keys in shared memory instead of registers 0.75 (each half of a tile reads them
again), queries instead of keys in the rows of a product 0.64, with lengths 0.90 (they take too many registers); with
directions, keys in the rows 1.15, and half a tile at a time 1.20.
"""

from __future__ import annotations

from functools import cache

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

TILE = 128
WIDE = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
NARROW = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


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
    """Write ``factor · Σ_h w·exp2(scale · query·key + shift[q])`` into out, [batch, queries, keys], rows of any stride.

    offset: the position of the first query relative to the first key.
    lengths: w, [batch, heads, keys].
    direction, value: w is their product, or zero if that is negative and not ``signed``.
    add: add to the contents of out.
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    shifts = shift.view(batch * heads, -1)
    directed = direction is not None
    tiles_q, tiles_k = triton.cdiv(queries, TILE), triton.cdiv(keys, TILE if directed else 192)
    tiles = tiles_q * tiles_k * batch

    def described(x, rows):
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, size], WIDE)

    rows = 64 if directed else TILE  # a warpgroup takes 64 queries with directions, else 64 keys
    shifts = TensorDescriptor(shifts, list(shifts.shape), list(shifts.stride()), [1, rows], NARROW)
    sizes = heads, heads // key.shape[1], queries, keys, tiles_q, tiles_k, tiles, offset, scale, factor
    options = {"CAUSAL": causal, "ADD": add, "SIZE": size, "num_warps": 4}
    places = out, out.stride(0), out.stride(1)
    grid = (min(tiles, _multiprocessors(query.device)),)
    if directed:
        _directed_rows[grid](
            described(query, rows), described(direction, rows), described(key, TILE), described(value, TILE), shifts,
            *places, *sizes, SIGNED=signed, GROUPED=16, STAGES=2, **options,
        )  # fmt: skip
    else:
        weights = out if lengths is None else lengths.float().contiguous()
        _edge_rows[grid](
            described(query, rows), described(key, 64), shifts, weights,
            *places, *sizes, LENGTHS=lengths is not None, TILE_Q=TILE, GROUPED=8, STAGES=4, **options,
        )  # fmt: skip


@cache
def _multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


@gluon.jit
def _place(t, spans, KEYS: gl.constexpr, TILE_Q: gl.constexpr, GROUPED: gl.constexpr, CAUSAL: gl.constexpr):
    """Return the text, first query and first key of tile t, and its number of heads, which is 0 if no query sees a key.

    Programs that run at the same time share GROUPED tiles of keys and a few of queries, which they find in the cache.
    """
    heads, _, _, _, tiles_q, tiles_k, _, offset = spans
    b = t // (tiles_q * tiles_k)
    t = t % (tiles_q * tiles_k)
    group = t // (GROUPED * tiles_q)
    within = t % (GROUPED * tiles_q)
    size = gl.minimum(GROUPED, tiles_k - group * GROUPED)
    first = (group * GROUPED + within % size) * KEYS
    at_q = within // size * TILE_Q
    count = heads
    if CAUSAL and first > at_q + TILE_Q - 1 + offset:
        count = 0
    return b, at_q, first, count


@gluon.jit
def _edge_rows(
    q_desc, k_desc, c_desc, lengths, out, o_b, o_q, heads, group, queries, keys, tiles_q, tiles_k, tiles, offset, scale,
    factor,
    CAUSAL: gl.constexpr, LENGTHS: gl.constexpr, SIZE: gl.constexpr, TILE_Q: gl.constexpr, GROUPED: gl.constexpr,
    ADD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
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
    spans = (heads, group, queries, keys, tiles_q, tiles_k, tiles, offset)
    store = (out, o_b, o_q, factor)
    gl.warp_specialize([
        (_add_heads, (pipe, store, lengths, spans, scale, 0, CAUSAL, LENGTHS, ADD, SIZE, TILE_Q, GROUPED, STAGES)),
        (_add_heads, (pipe, store, lengths, spans, scale, 1, CAUSAL, LENGTHS, ADD, SIZE, TILE_Q, GROUPED, STAGES)),
        (_add_heads, (pipe, store, lengths, spans, scale, 2, CAUSAL, LENGTHS, ADD, SIZE, TILE_Q, GROUPED, STAGES)),
        (_bring_heads, (pipe, q_desc, k_desc, c_desc, spans, CAUSAL, TILE_Q, GROUPED, STAGES)),
    ], [4, 4, 1], [160, 160, 24])  # fmt: skip


@gluon.jit
def _bring_heads(
    pipe, q_desc, k_desc, c_desc, spans,
    CAUSAL: gl.constexpr, TILE_Q: gl.constexpr, GROUPED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles, c_tiles, k_tiles, q_full, q_empty, k_full, k_empty = pipe
    heads, group, _, _, _, _, tiles, _ = spans
    i = 0  # counts the loaded queries; n counts the keys
    n = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        b, at_q, first, count = _place(t, spans, 192, TILE_Q, GROUPED, CAUSAL)
        for head in range(count // group):
            pair = n % 2
            mbarrier.wait(k_empty.index(pair), (n // 2 & 1) ^ 1)
            mbarrier.expect(k_full.index(pair), 3 * k_desc.block_type.nbytes)
            for part in gl.static_range(3):
                tma.async_copy_global_to_shared(
                    k_desc, [b, head, first + part * 64, 0], k_full.index(pair), k_tiles.index(pair * 3 + part)
                )
            n += 1
            for member in range(group):
                h = head * group + member
                slot = i % STAGES
                mbarrier.wait(q_empty.index(slot), (i // STAGES & 1) ^ 1)
                mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + c_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(q_desc, [b, h, at_q, 0], q_full.index(slot), q_tiles.index(slot))
                tma.async_copy_global_to_shared(c_desc, [b * heads + h, at_q], q_full.index(slot), c_tiles.index(slot))
                i += 1


@gluon.jit
def _add_heads(
    pipe, store, lengths, spans, scale, NUMBER: gl.constexpr,
    CAUSAL: gl.constexpr, LENGTHS: gl.constexpr, ADD: gl.constexpr, SIZE: gl.constexpr, TILE_Q: gl.constexpr,
    GROUPED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles, c_tiles, k_tiles, q_full, q_empty, k_full, k_empty = pipe
    heads, group, _, keys, _, _, tiles, _ = spans
    HALF: gl.constexpr = TILE_Q // 2
    tile: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, tile, 2)
    across: gl.constexpr = gl.SliceLayout(0, tile)
    down: gl.constexpr = gl.SliceLayout(1, tile)
    nothing = gl.zeros([64, HALF], gl.float32, layout=tile)
    i = 0
    n = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        b, at_q, first, count = _place(t, spans, 192, TILE_Q, GROUPED, CAUSAL)
        at_k = first + NUMBER * 64 + gl.arange(0, 64, layout=down)
        left = nothing
        right = nothing
        place = b * heads * keys
        for _head in range(count // group):
            # From registers, or the tensor cores would read these keys from shared memory for every head and half.
            mbarrier.wait(k_full.index(n % 2), n // 2 & 1)
            k = k_tiles.index(n % 2 * 3 + NUMBER).reshape([64, SIZE]).load(operand)
            mbarrier.arrive(k_empty.index(n % 2), count=1)
            n += 1
            for _member in range(group):
                slot = i % STAGES
                mbarrier.wait(q_full.index(slot), i // STAGES & 1)
                q = q_tiles.index(slot).reshape([TILE_Q, SIZE])
                c = c_tiles.index(slot).reshape([TILE_Q])
                s = warpgroup_mma(k, q.slice(0, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
                if LENGTHS:
                    w = gl.load(lengths + (place + at_k), mask=at_k < keys, other=0.0)
                    place += keys
                shift = c.slice(0, HALF, 0).load(across)
                s = warpgroup_mma_wait(0, deps=[s])
                p = gl.exp2(s * scale + shift[None, :])
                s = warpgroup_mma(k, q.slice(HALF, HALF, 0).permute([1, 0]), nothing, use_acc=False, is_async=True)
                left = gl.fma(p, gl.expand_dims(w, 1).broadcast_to([64, HALF]), left) if LENGTHS else left + p
                shift = c.slice(HALF, HALF, 0).load(across)
                s = warpgroup_mma_wait(0, deps=[s])
                mbarrier.arrive(q_empty.index(slot), count=1)
                p = gl.exp2(s * scale + shift[None, :])
                right = gl.fma(p, gl.expand_dims(w, 1).broadcast_to([64, HALF]), right) if LENGTHS else right + p
                i += 1
        rows = at_q + gl.arange(0, HALF, layout=across)
        _store(left, store, spans, b, rows, at_k, CAUSAL, ADD, 0)
        _store(right, store, spans, b, rows + HALF, at_k, CAUSAL, ADD, 0)


@gluon.jit
def _store(total, store, spans, b, at_q, at_k, CAUSAL: gl.constexpr, ADD: gl.constexpr, KEYS: gl.constexpr):
    """Store a tile.

    KEYS: the axis of the tile with the keys.
    """
    out, o_b, o_q, factor = store
    _, _, queries, keys, _, _, _, offset = spans
    rows = gl.expand_dims(at_q, KEYS)
    columns = gl.expand_dims(at_k, 1 - KEYS)
    if CAUSAL:
        total = gl.where(columns <= rows + offset, total, 0.0)
    exists = (rows < queries) & (columns < keys)
    place = out + b.to(gl.int64) * o_b + rows.to(gl.int64) * o_q + columns
    total = total * factor
    if ADD:
        total += gl.load(place, mask=exists, other=0.0)
    gl.store(place, total, mask=exists)


@gluon.jit
def _directed_rows(
    q_desc, g_desc, k_desc, v_desc, c_desc, out, o_b, o_q, heads, group, queries, keys, tiles_q, tiles_k, tiles, offset,
    scale, factor,
    CAUSAL: gl.constexpr, SIZE: gl.constexpr, GROUPED: gl.constexpr, ADD: gl.constexpr,
    SIGNED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [STAGES * 2, 1, 1, 64, SIZE], q_desc.layout)
    g_tiles = gl.allocate_shared_memory(g_desc.dtype, [STAGES * 2, 1, 1, 64, SIZE], g_desc.layout)
    c_tiles = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 1, 64], c_desc.layout)
    # Keys and values take three buffers in turn, so that the next keys load while these values are used.
    kv_tiles = gl.allocate_shared_memory(k_desc.dtype, [3, 1, 1, 128, SIZE], k_desc.layout)
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
    spans = (heads, group, queries, keys, tiles_q, tiles_k, tiles, offset)
    store = (out, o_b, o_q, factor)
    gl.warp_specialize([
        (_add_directed, (pipe, store, spans, scale, 0, CAUSAL, SIGNED, ADD, SIZE, GROUPED, STAGES)),
        (_add_directed, (pipe, store, spans, scale, 1, CAUSAL, SIGNED, ADD, SIZE, GROUPED, STAGES)),
        (_bring_directed, (pipe, q_desc, g_desc, k_desc, v_desc, c_desc, spans, CAUSAL, GROUPED, STAGES)),
    ], [4, 1], [232, 24])  # fmt: skip


@gluon.jit
def _bring_directed(
    pipe, q_desc, g_desc, k_desc, v_desc, c_desc, spans,
    CAUSAL: gl.constexpr, GROUPED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles, g_tiles, c_tiles, kv_tiles, full, empty, kv_full, kv_empty = pipe
    heads, group, _, _, _, _, tiles, _ = spans
    i = 0
    n = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        b, at_q, first, count = _place(t, spans, 128, 128, GROUPED, CAUSAL)
        for head in range(count // group):
            for which in gl.static_range(2):
                place = n % 3
                mbarrier.wait(kv_empty.index(place), (n // 3 & 1) ^ 1)
                mbarrier.expect(kv_full.index(place), k_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    k_desc if which == 0 else v_desc, [b, head, first, 0], kv_full.index(place), kv_tiles.index(place)
                )
                n += 1
            for member in range(group):
                h = head * group + member
                slot = i % STAGES
                mbarrier.wait(empty.index(slot), (i // STAGES & 1) ^ 1)
                mbarrier.expect(full.index(slot), 4 * q_desc.block_type.nbytes + 2 * c_desc.block_type.nbytes)
                for part in gl.static_range(2):
                    at = at_q + part * 64
                    tile = slot * 2 + part
                    tma.async_copy_global_to_shared(q_desc, [b, h, at, 0], full.index(slot), q_tiles.index(tile))
                    tma.async_copy_global_to_shared(c_desc, [b * heads + h, at], full.index(slot), c_tiles.index(tile))
                    tma.async_copy_global_to_shared(g_desc, [b, h, at, 0], full.index(slot), g_tiles.index(tile))
                i += 1


@gluon.jit
def _add_directed(
    pipe, store, spans, scale, NUMBER: gl.constexpr,
    CAUSAL: gl.constexpr, SIGNED: gl.constexpr, ADD: gl.constexpr, SIZE: gl.constexpr,
    GROUPED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_tiles, g_tiles, c_tiles, kv_tiles, full, empty, kv_full, kv_empty = pipe
    _, group, _, _, _, _, tiles, _ = spans
    tile: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    across: gl.constexpr = gl.SliceLayout(0, tile)
    down: gl.constexpr = gl.SliceLayout(1, tile)
    nothing = gl.zeros([64, 128], gl.float32, layout=tile)
    i = 0
    n = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        b, at_q, first, count = _place(t, spans, 128, 128, GROUPED, CAUSAL)
        total = nothing
        for _head in range(count // group):
            k_place = n % 3
            v_place = (n + 1) % 3
            mbarrier.wait(kv_full.index(k_place), n // 3 & 1)
            mbarrier.wait(kv_full.index(v_place), (n + 1) // 3 & 1)
            n += 2
            k = kv_tiles.index(k_place).reshape([128, SIZE]).permute([1, 0])
            v = kv_tiles.index(v_place).reshape([128, SIZE]).permute([1, 0])
            for _member in range(group):
                slot = i % STAGES
                mbarrier.wait(full.index(slot), i // STAGES & 1)
                q = q_tiles.index(slot * 2 + NUMBER).reshape([64, SIZE])
                g = g_tiles.index(slot * 2 + NUMBER).reshape([64, SIZE])
                s = warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
                u = warpgroup_mma(g, v, nothing, use_acc=False, is_async=True)
                shift = c_tiles.index(slot * 2 + NUMBER).reshape([64]).load(down)
                s = warpgroup_mma_wait(1, deps=[s])
                p = gl.exp2(s * scale + shift[:, None])
                u = warpgroup_mma_wait(0, deps=[u])
                mbarrier.arrive(empty.index(slot), count=1)
                total = gl.fma(p, u if SIGNED else gl.maximum(u, 0.0), total)
                i += 1
            mbarrier.arrive(kv_empty.index(k_place), count=1)
            mbarrier.arrive(kv_empty.index(v_place), count=1)
        at_k = first + gl.arange(0, 128, layout=across)
        _store(total, store, spans, b, at_q + NUMBER * 64 + gl.arange(0, 64, layout=down), at_k, CAUSAL, ADD, 1)
