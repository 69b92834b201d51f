# mypy: ignore-missing-imports, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flows that a GPU can prove, one program per pair: the first two steps of `_core` (columns.hpp, hops.hpp), and a third.

A program sends along the columns, then with one hop more, then with two (`flow_hops`), in float64. If what it sends fills
the narrower of the cuts around the query's column and around the token's, to within 1e-12, that cut is the maximum flow.
Other pairs are left open. No result can be wrong, because what is sent never exceeds a capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from attnflow.flow_hops import least_after, least_before, one, send_by_one_hop, send_by_two_hops, up_to

Tensor = Any

MOST_POSITIONS, MOST_LAYERS = 512, 63
MOST_HOPS = 2048  # per pair in step 3: a few of the hardest pairs would take longer than all others together
ALIGNED = 16  # graphs are padded to a multiple of this many positions, so that rows are loaded in wide words
OPEN, COLUMNS, HOPS, TWO_HOPS, CLOSED = range(5)  # the step of a pair; closed forms and pairs without a path need none
PROGRAMS_PER_PROCESSOR = 24  # registers allow 12 with 128 positions, 21 with 32
SHARE_OF_MEMORY = 32  # programs may use one part in this many for their edges


class Proofs(NamedTuple):
    """values: float64 [pair], valid unless the step is `OPEN`; steps: int8 [pair]."""

    values: Tensor
    steps: Tensor


class Paths(NamedTuple):
    """Which nodes are on paths, uint8: from sources [source, level, node] and to tokens [text, level, token, node]."""

    reached: Tensor
    reaching: Tensor
    source_of_pair: Tensor  # int32


def prove(graphs: Tensor, pairs: Tensor, paths: Paths | None) -> Proofs:
    """Return which pairs can be proven, and their flows.

    graphs: ``[2, layer, text, position, position]``, float32 or float64: every layer and every layer transposed, zero
        beyond the length of a text, padded to a multiple of `ALIGNED` positions.
    pairs: int32 ``[pair, 4]``: text, layer (from 1), query and token.
    paths: for graphs with zeros within the length of a text, padded alike; None for graphs without zeros.
    """
    count, (_, depth, texts, width, _) = len(pairs), graphs.shape
    block, levels = triton.next_power_of_2(width), max(4, triton.next_power_of_2(depth + 1))
    values = torch.empty(count, dtype=torch.float64, device=graphs.device)
    steps = torch.empty(count, dtype=torch.int8, device=graphs.device)
    if not count:
        return Proofs(values, steps)
    programs = min(count, _programs(graphs.device, depth * block * block * 8))
    ends = torch.empty((programs, 2, levels, block), dtype=torch.float64, device=graphs.device)
    edges = torch.empty((programs, depth, block, block), dtype=torch.float64, device=graphs.device)
    next_pair = torch.zeros(1, dtype=torch.int32, device=graphs.device)
    reached, reaching, source_of_pair = paths or (steps, steps, pairs)
    _prove[(programs,)](
        graphs, pairs, reached, reaching, source_of_pair, values, steps, ends, edges, next_pair,
        count, depth, texts, width // ALIGNED, MOST_HOPS, NARROWED=paths is not None, LEVELS=levels, BLOCK=block,
        num_warps=max(1, block // 128),
    )  # fmt: skip
    return Proofs(values, steps)


def _programs(device: Any, bytes_each: int) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter, for tests
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory // SHARE_OF_MEMORY
    return int(max(1, min(properties.multi_processor_count * PROGRAMS_PER_PROCESSOR, memory // bytes_each)))


@triton.jit
def _on_paths(reached, reaching, source, text, token, level, depth, width, j, NARROWED: tl.constexpr):
    """Return which nodes of a level, counted as in the graph, are on a path of the pair."""
    inside = j < width
    if NARROWED:
        first = tl.load(reached + (source.to(tl.int64) * (depth + 1) + level) * width + j, mask=inside, other=0)
        last = tl.load(
            reaching + ((text.to(tl.int64) * (depth + 1) + level) * width + token) * width + j, mask=inside, other=0
        )
        inside = (first & last) != 0
    return inside


@triton.jit
def _has_node(reached, reaching, levels, i, width, inner):
    """Return for every level whether node i is on a path."""
    first = tl.load(reached + levels * width + i, mask=inner, other=0)
    last = tl.load(reaching + levels * width * width + i, mask=inner, other=0)
    return (first & last) != 0


@triton.jit
def _bounds(
    graphs, reached, reaching, source, text, top, query, token, depth, texts, width, j,
    NARROWED: tl.constexpr,
):  # fmt: skip
    """Return the narrowest cuts around the query's column and around the token's (bounds.cpp)."""
    stride = texts.to(tl.int64) * width * width
    upright = graphs + text.to(tl.int64) * width * width
    turned = upright + depth * stride
    unlimited = tl.full([], float("inf"), tl.float64)
    above, below = unlimited, unlimited
    beside_above, beside_below = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    above_ends, below_ends = top < 2, top < 2
    for step in range(0, top - 1):
        layer = top - step  # from the query down
        nodes = _on_paths(reached, reaching, source, text, token, layer - 1, depth, width, j, NARROWED)
        edges = tl.load(upright + (layer - 1) * stride + query * width + j, mask=nodes, other=0.0).to(tl.float64)
        beside, own = tl.sum(tl.where(j == query, 0.0, edges), 0), one(edges, j, query)
        above = tl.where(above_ends, above, tl.minimum(above, beside_above + (beside + own)))
        beside_above += tl.where(above_ends, 0.0, beside)
        above_ends = above_ends | (own == 0)
        layer = 1 + step  # from the token up
        nodes = _on_paths(reached, reaching, source, text, token, layer, depth, width, j, NARROWED)
        edges = tl.load(turned + (layer - 1) * stride + token * width + j, mask=nodes, other=0.0).to(tl.float64)
        beside, own = tl.sum(tl.where(j == token, 0.0, edges), 0), one(edges, j, token)
        below = tl.where(below_ends, below, tl.minimum(below, beside_below + (beside + own)))
        beside_below += tl.where(below_ends, 0.0, beside)
        below_ends = below_ends | (own == 0)
    last_above = tl.load(upright + query * width + token).to(tl.float64)
    last_below = tl.load(upright + (top - 1) * stride + query * width + token).to(tl.float64)
    above = tl.minimum(above, beside_above + tl.where(above_ends, 0.0, last_above))
    below = tl.minimum(below, beside_below + tl.where(below_ends, 0.0, last_below))
    return above, below


# The numbers of texts and pairs change between calls, and specializing on them would make no kernel faster.
@triton.jit(do_not_specialize=["count", "depth", "texts", "sixteenths", "most_hops"])
def _prove(
    graphs, pairs, reached, reaching, source_of_pair, values, steps, ends, edges, next_pair,
    count, depth, texts, sixteenths, most_hops, NARROWED: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    ends += program * (2 * LEVELS * BLOCK)
    edges += program * depth * (BLOCK * BLOCK)
    j = tl.arange(0, BLOCK)
    width = sixteenths * 16
    p = count - 1 - tl.atomic_add(next_pair, 1)  # from the end, because deep pairs come last and take longest
    while p >= 0:
        text, top = tl.load(pairs + p * 4), tl.load(pairs + p * 4 + 1)
        query, token = tl.load(pairs + p * 4 + 2), tl.load(pairs + p * 4 + 3)
        source = text
        if NARROWED:
            source = tl.load(source_of_pair + p)
        if top <= 2:
            bound = _first_layers(graphs, text, top, query, token, depth, texts, width, j)
            step = tl.where(bound < float("inf"), 4, 0)
        else:
            above, below = _bounds(
                graphs, reached, reaching, source, text, top, query, token, depth, texts, width, j, NARROWED
            )
            bound = tl.minimum(above, below)
            step = tl.where(bound == 0, 4, 0)
            if (bound > 0) & (bound < float("inf")):
                step = _attempt(
                    graphs, reached, reaching, ends, edges, source, text, top, query, token, below < above, bound,
                    depth, texts, width, j, most_hops, NARROWED, LEVELS, BLOCK,
                )  # fmt: skip
        tl.store(values + p, bound)
        tl.store(steps + p, step.to(tl.int8))
        p = count - 1 - tl.atomic_add(next_pair, 1)


@triton.jit
def _first_layers(graphs, text, top, query, token, depth, texts, width, j):
    """Return the closed forms ``A1[q, t]`` and ``Σ_j min(A2[q, j], A1[j, t])``."""
    stride = texts.to(tl.int64) * width * width
    upright = graphs + text.to(tl.int64) * width * width
    value = tl.load(upright + query * width + token).to(tl.float64)
    if top == 2:
        out = tl.load(upright + stride + query * width + j, mask=j < width, other=0.0).to(tl.float64)
        into = tl.load(upright + depth * stride + token * width + j, mask=j < width, other=0.0).to(tl.float64)
        value = tl.sum(tl.minimum(out, into), 0)
    return value


@triton.jit
def _attempt(
    graphs, reached, reaching, ends, edges, source, text, top, query, token, flipped, bound,
    depth, texts, width, j, most_hops, NARROWED: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Run steps 1 and 2 for one pair, with the limiting side at the top (pair.hpp); return which of them proves it."""
    stride = texts.to(tl.int64) * width * width
    upright = graphs + text.to(tl.int64) * width * width
    upturn = flipped.to(tl.int64) * depth * stride
    rows, cols = upright + upturn, upright + (depth * stride - upturn)
    s, t = tl.where(flipped, token, query), tl.where(flipped, query, token)
    # Layer k of the pair begins at rows + first + k * down; level k is level `level_0 + k * turn` of the graph.
    turn = tl.where(flipped, -1, 1)
    level_0 = tl.where(flipped, top, 0)
    first, down = tl.where(flipped, top, -1) * stride, turn * stride
    supplies, demands = ends, ends + LEVELS * BLOCK
    others = (j != s) & (j != t)
    for k in range(1, top + 1):
        nodes = others & _on_paths(
            reached, reaching, source, text, token, level_0 + (k - 1) * turn, depth, width, j, NARROWED
        )
        edge = tl.load(rows + (first + k * down) + s * width + j, mask=nodes, other=0.0).to(tl.float64)
        tl.store(supplies + k * BLOCK + j, tl.minimum(edge, bound))
        nodes = others & _on_paths(
            reached, reaching, source, text, token, level_0 + k * turn, depth, width, j, NARROWED
        )
        edge = tl.load(cols + (first + k * down) + t * width + j, mask=nodes, other=0.0).to(tl.float64)
        tl.store(demands + k * BLOCK + j, tl.minimum(edge, bound))
    budget = tl.full([BLOCK], float("inf"), tl.float64)
    for k in range(2, top):
        straight = tl.load(rows + (first + k * down) + j * (width + 1), mask=j < width, other=0.0).to(tl.float64)
        budget = tl.minimum(budget, straight)
    at = tl.arange(0, LEVELS)
    inner = (at >= 1) & (at <= top)
    layer = first + at * down
    source_column = tl.load(rows + layer + s * (width + 1), mask=inner, other=0.0).to(tl.float64)
    sink_column = tl.load(rows + layer + t * (width + 1), mask=inner & (s != t), other=0.0).to(tl.float64)
    direct = tl.load(rows + layer + s * width + t, mask=inner & (s != t), other=0.0).to(tl.float64)
    if NARROWED:
        level = level_0 + at * turn
        own_reached = reached + source.to(tl.int64) * (depth + 1) * width
        own_reaching = reaching + (text.to(tl.int64) * (depth + 1) * width + token) * width
        # Layer `at` joins this level to the one below it.
        s_above = _has_node(own_reached, own_reaching, level, s, width, inner)
        s_below = _has_node(own_reached, own_reaching, level - turn, s, width, inner)
        t_above = _has_node(own_reached, own_reaching, level, t, width, inner)
        t_below = _has_node(own_reached, own_reaching, level - turn, t, width, inner)
        source_column = tl.where(s_above & s_below, source_column, 0.0)
        sink_column = tl.where(t_above & t_below, sink_column, 0.0)
        direct = tl.where(s_above & t_below, direct, 0.0)
    source_column = tl.minimum(source_column, bound)
    sink_column = tl.minimum(sink_column, bound)
    direct = tl.minimum(direct, bound)
    tl.debug_barrier()
    value, budget, source_column, sink_column = _columns(
        supplies, demands, budget, source_column, sink_column, direct, s, t, top, at, j, BLOCK
    )
    enough = bound * (1 - 1e-12)
    step = (value >= enough).to(tl.int32)
    if value < enough:
        value, budget, source_column, sink_column, changed = send_by_one_hop(
            rows + first, down, edges, supplies, demands, budget, source_column, sink_column, value, enough,
            top, width, at, j, BLOCK,
        )  # fmt: skip
        step = tl.where(value >= enough, 2, 0)
        if (value < enough) & (top > 3):
            value = send_by_two_hops(
                rows + first, down, edges, supplies, demands, budget, source_column, sink_column, changed, value, enough,
                bound - enough, s, t, top, width, at, j, most_hops, BLOCK,
            )  # fmt: skip
            step = tl.where(value >= enough, 3, 0)
    return step


@triton.jit
def _columns(supplies, demands, budget, source_column, sink_column, direct, s, t, top, at, j, BLOCK: tl.constexpr):
    """Run step 1 (columns.cpp); return what is sent, and what is left of the columns."""
    value = tl.full([], 0.0, tl.float64)
    if s == t:
        value = least_after(source_column, at, 0, top)
        source_column -= value
    k = top
    while k >= 1:
        amount = tl.minimum(one(direct, at, k), least_after(source_column, at, k, top))
        amount = tl.maximum(tl.minimum(amount, least_before(sink_column, at, k)), 0.0)
        source_column -= tl.where(at > k, amount, 0.0)
        sink_column -= tl.where(at < k, amount, 0.0)
        value += amount
        k -= 1
    # High layers are served first, by the highest demands below them. Every supply can use the demands of the first layer,
    # so these are left to the lowest layers.
    k = top
    while k >= 3:
        m = k - 1
        while (m >= 2) & (least_after(source_column, at, k, top) > 0):
            budget, source_column, sink_column, total = _match(
                supplies, demands, budget, source_column, sink_column, k, m, top, at, j, BLOCK
            )
            value += total
            m -= 1
        k -= 1
    for k in range(2, top + 1):
        budget, source_column, sink_column, total = _match(
            supplies, demands, budget, source_column, sink_column, k, 1, top, at, j, BLOCK
        )
        value += total
    return value, budget, source_column, sink_column


@triton.jit
def _match(supplies, demands, budget, source_column, sink_column, k, m, top, at, j, BLOCK: tl.constexpr):
    """Send along paths that leave the source's column at layer k and enter the sink's at layer m, all columns at once."""
    sent = tl.full([], 0.0, tl.float64)
    room = tl.minimum(least_after(source_column, at, k, top), least_before(sink_column, at, m))
    if room > 0:
        supply, demand = tl.load(supplies + k * BLOCK + j), tl.load(demands + m * BLOCK + j)
        passed_over = m + 1 < k
        amounts = tl.minimum(supply, demand)
        amounts = tl.where(passed_over, tl.minimum(amounts, budget), amounts)
        amounts, sent = up_to(amounts, room)
        if sent > 0:
            tl.store(supplies + k * BLOCK + j, supply - amounts)
            tl.store(demands + m * BLOCK + j, demand - amounts)
            budget -= tl.where(passed_over, amounts, 0.0)
            source_column -= tl.where(at > k, sent, 0.0)
            sink_column -= tl.where(at < m, sent, 0.0)
            tl.debug_barrier()
    return budget, source_column, sink_column, sent
