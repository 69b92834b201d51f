# mypy: ignore-missing-imports, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flows that a GPU can prove: the first two steps of the solver (`_core/columns.hpp` and `hops.hpp`), one program a pair.

A program sends along the columns, then with one hop more, as those files say, in float64. Where what it sends fills the
narrower of the cuts around the query's column and around the token's, to within 1e-12 of it, that cut is the maximum flow.
Other pairs are left open; a wrong one cannot come out, because what is sent never exceeds a capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

Tensor = Any

MOST_POSITIONS, MOST_LAYERS = 512, 63
OPEN, COLUMNS, HOPS, CLOSED = range(4)  # the step of a pair; closed forms, and pairs without a path, need none
PROGRAMS_PER_PROCESSOR = 16
MOST_RESIDUAL = 2 << 30  # bytes for what programs keep of edges


class Proofs(NamedTuple):
    """values: float64 [pair], of use where the step is not `OPEN`; steps: int8 [pair]."""

    values: Tensor
    steps: Tensor


class Paths(NamedTuple):
    """Which nodes lie on paths, uint8: from sources [source, level, node] and to tokens [text, level, token, node]."""

    reached: Tensor
    reaching: Tensor
    source_of_pair: Tensor  # int32


def prove(graphs: Tensor, pairs: Tensor, paths: Paths | None) -> Proofs:
    """Which pairs the first two steps prove, and their flows.

    graphs: ``[2, layer, text, position, position]``, float32 or float64, finite: every layer and every layer transposed,
        zero beyond the length of a text.
    pairs: int32 ``[pair, 4]``: text, layer (from 1), query and token.
    paths: for graphs with zeros within the length of a text; None where there are none.
    """
    count, (_, depth, texts, n, _) = len(pairs), graphs.shape
    block, levels = max(16, triton.next_power_of_2(n)), max(4, triton.next_power_of_2(depth + 1))
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
        count, depth, texts, n, NARROWED=paths is not None, LEVELS=levels, BLOCK=block,
        num_warps=1 if block <= 128 else block // 128,
    )  # fmt: skip
    return Proofs(values, steps)


def _programs(device: Any, bytes_each: int) -> int:
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return max(1, min(processors * PROGRAMS_PER_PROCESSOR, MOST_RESIDUAL // bytes_each))


@triton.jit
def _least_after(values, at, k, top):
    """The least of layers k+1..top: what can come down the source's column to layer k."""
    return tl.min(tl.where((at > k) & (at <= top), values, float("inf")), 0)


@triton.jit
def _least_before(values, at, m):
    """The least of layers 1..m-1: what can go down the sink's column from layer m."""
    return tl.min(tl.where((at > 0) & (at < m), values, float("inf")), 0)


@triton.jit
def _one(values, at, i):
    return tl.sum(tl.where(at == i, values, 0), 0)


@triton.jit
def _up_to(amounts, limit):
    """The amounts from the left until their sum is the limit, and that sum."""
    total = tl.sum(amounts, 0)
    if total > limit:
        before = tl.cumsum(amounts, 0) - amounts
        amounts = tl.minimum(amounts, tl.maximum(limit - before, 0.0))
        total = limit
    return amounts, total


@triton.jit
def _on_paths(reached, reaching, source, text, token, level, depth, n, j, NARROWED: tl.constexpr):
    """Which nodes of a level, counted as in the graph, lie on a path of the pair."""
    inside = j < n
    if NARROWED:
        first = tl.load(reached + (source.to(tl.int64) * (depth + 1) + level) * n + j, mask=inside, other=0)
        last = tl.load(reaching + ((text.to(tl.int64) * (depth + 1) + level) * n + token) * n + j, mask=inside, other=0)
        inside = (first & last) != 0
    return inside


@triton.jit
def _has_node(reached, reaching, levels, i, n, inner):
    """For every level, whether node i lies on a path."""
    first = tl.load(reached + levels * n + i, mask=inner, other=0)
    last = tl.load(reaching + levels * n * n + i, mask=inner, other=0)
    return (first & last) != 0


@triton.jit
def _bounds(
    graphs, reached, reaching, source, text, top, query, token, depth, texts, n, j,
    NARROWED: tl.constexpr,
):  # fmt: skip
    """The narrowest cuts around the query's column and around the token's (bounds.cpp)."""
    stride = texts.to(tl.int64) * n * n
    upright = graphs + text.to(tl.int64) * n * n
    turned = upright + depth * stride
    unlimited = tl.full([], float("inf"), tl.float64)
    above, below = unlimited, unlimited
    beside_above, beside_below = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    above_ends, below_ends = top < 2, top < 2
    for step in range(0, top - 1):
        layer = top - step  # from the query down
        nodes = _on_paths(reached, reaching, source, text, token, layer - 1, depth, n, j, NARROWED)
        edges = tl.load(upright + (layer - 1) * stride + query * n + j, mask=nodes, other=0.0).to(tl.float64)
        beside, own = tl.sum(tl.where(j == query, 0.0, edges), 0), _one(edges, j, query)
        above = tl.where(above_ends, above, tl.minimum(above, beside_above + (beside + own)))
        beside_above += tl.where(above_ends, 0.0, beside)
        above_ends = above_ends | (own == 0)
        layer = 1 + step  # from the token up
        nodes = _on_paths(reached, reaching, source, text, token, layer, depth, n, j, NARROWED)
        edges = tl.load(turned + (layer - 1) * stride + token * n + j, mask=nodes, other=0.0).to(tl.float64)
        beside, own = tl.sum(tl.where(j == token, 0.0, edges), 0), _one(edges, j, token)
        below = tl.where(below_ends, below, tl.minimum(below, beside_below + (beside + own)))
        beside_below += tl.where(below_ends, 0.0, beside)
        below_ends = below_ends | (own == 0)
    last_above = tl.load(upright + query * n + token).to(tl.float64)
    last_below = tl.load(upright + (top - 1) * stride + query * n + token).to(tl.float64)
    above = tl.minimum(above, beside_above + tl.where(above_ends, 0.0, last_above))
    below = tl.minimum(below, beside_below + tl.where(below_ends, 0.0, last_below))
    return above, below


@triton.jit
def _prove(
    graphs, pairs, reached, reaching, source_of_pair, values, steps, ends, edges, next_pair,
    count, depth, texts, n, NARROWED: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    ends += program * (2 * LEVELS * BLOCK)
    edges += program * depth * (BLOCK * BLOCK)
    j = tl.arange(0, BLOCK)
    p = tl.atomic_add(next_pair, 1)
    while p < count:
        text, top = tl.load(pairs + p * 4), tl.load(pairs + p * 4 + 1)
        query, token = tl.load(pairs + p * 4 + 2), tl.load(pairs + p * 4 + 3)
        source = text
        if NARROWED:
            source = tl.load(source_of_pair + p)
        if top <= 2:
            bound = _first_layers(graphs, text, top, query, token, depth, texts, n, j)
            step = tl.where(bound < float("inf"), 3, 0)
        else:
            above, below = _bounds(
                graphs, reached, reaching, source, text, top, query, token, depth, texts, n, j, NARROWED
            )
            bound = tl.minimum(above, below)
            step = tl.where(bound == 0, 3, 0)
            if (bound > 0) & (bound < float("inf")):
                step = _attempt(
                    graphs, reached, reaching, ends, edges, source, text, top, query, token, below < above, bound,
                    depth, texts, n, j, NARROWED, LEVELS, BLOCK,
                )  # fmt: skip
        tl.store(values + p, bound)
        tl.store(steps + p, step.to(tl.int8))
        p = tl.atomic_add(next_pair, 1)


@triton.jit
def _first_layers(graphs, text, top, query, token, depth, texts, n, j):
    """The closed forms ``A1[q, t]`` and ``Σ_j min(A2[q, j], A1[j, t])``."""
    stride = texts.to(tl.int64) * n * n
    upright = graphs + text.to(tl.int64) * n * n
    value = tl.load(upright + query * n + token).to(tl.float64)
    if top == 2:
        out = tl.load(upright + stride + query * n + j, mask=j < n, other=0.0).to(tl.float64)
        into = tl.load(upright + depth * stride + token * n + j, mask=j < n, other=0.0).to(tl.float64)
        value = tl.sum(tl.minimum(out, into), 0)
    return value


@triton.jit
def _attempt(
    graphs, reached, reaching, ends, edges, source, text, top, query, token, flipped, bound,
    depth, texts, n, j, NARROWED: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Steps 1 and 2 for one pair, seen with the limiting side at the top (pair.hpp); which of them proves it."""
    stride = texts.to(tl.int64) * n * n
    upright = graphs + text.to(tl.int64) * n * n
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
            reached, reaching, source, text, token, level_0 + (k - 1) * turn, depth, n, j, NARROWED
        )
        edge = tl.load(rows + (first + k * down) + s * n + j, mask=nodes, other=0.0).to(tl.float64)
        tl.store(supplies + k * BLOCK + j, tl.minimum(edge, bound))
        nodes = others & _on_paths(reached, reaching, source, text, token, level_0 + k * turn, depth, n, j, NARROWED)
        edge = tl.load(cols + (first + k * down) + t * n + j, mask=nodes, other=0.0).to(tl.float64)
        tl.store(demands + k * BLOCK + j, tl.minimum(edge, bound))
    budget = tl.full([BLOCK], float("inf"), tl.float64)
    for k in range(2, top):
        straight = tl.load(rows + (first + k * down) + j * (n + 1), mask=j < n, other=0.0).to(tl.float64)
        budget = tl.minimum(budget, straight)
    at = tl.arange(0, LEVELS)
    inner = (at >= 1) & (at <= top)
    layer = first + at * down
    source_column = tl.load(rows + layer + s * (n + 1), mask=inner, other=0.0).to(tl.float64)
    sink_column = tl.load(rows + layer + t * (n + 1), mask=inner & (s != t), other=0.0).to(tl.float64)
    direct = tl.load(rows + layer + s * n + t, mask=inner & (s != t), other=0.0).to(tl.float64)
    if NARROWED:
        level = level_0 + at * turn
        own_reached = reached + source.to(tl.int64) * (depth + 1) * n
        own_reaching = reaching + (text.to(tl.int64) * (depth + 1) * n + token) * n
        # Layer `at` joins this level to the one below it.
        s_above = _has_node(own_reached, own_reaching, level, s, n, inner)
        s_below = _has_node(own_reached, own_reaching, level - turn, s, n, inner)
        t_above = _has_node(own_reached, own_reaching, level, t, n, inner)
        t_below = _has_node(own_reached, own_reaching, level - turn, t, n, inner)
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
        value = _hops(
            rows + first, down, edges, supplies, demands, budget, source_column, sink_column, value, enough,
            top, n, at, j, BLOCK,
        )  # fmt: skip
        step = tl.where(value >= enough, 2, 0)
    return step


@triton.jit
def _columns(supplies, demands, budget, source_column, sink_column, direct, s, t, top, at, j, BLOCK: tl.constexpr):
    """Step 1 (columns.cpp): what is sent, and what is left of the columns."""
    value = tl.full([], 0.0, tl.float64)
    if s == t:
        value = _least_after(source_column, at, 0, top)
        source_column -= value
    k = top
    while k >= 1:
        amount = tl.minimum(_one(direct, at, k), _least_after(source_column, at, k, top))
        amount = tl.maximum(tl.minimum(amount, _least_before(sink_column, at, k)), 0.0)
        source_column -= tl.where(at > k, amount, 0.0)
        sink_column -= tl.where(at < k, amount, 0.0)
        value += amount
        k -= 1
    # High layers are served first, by the highest demands below them; the demands of the first layer, which every supply
    # can use, are left to the lowest layers.
    k = top
    while k >= 3:
        m = k - 1
        while (m >= 2) & (_least_after(source_column, at, k, top) > 0):
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
    """Paths that hop out of the source's column at layer k and into the sink's at layer m, all columns at once."""
    sent = tl.full([], 0.0, tl.float64)
    room = tl.minimum(_least_after(source_column, at, k, top), _least_before(sink_column, at, m))
    if room > 0:
        supply, demand = tl.load(supplies + k * BLOCK + j), tl.load(demands + m * BLOCK + j)
        passed_over = m + 1 < k
        amounts = tl.minimum(supply, demand)
        amounts = tl.where(passed_over, tl.minimum(amounts, budget), amounts)
        amounts, sent = _up_to(amounts, room)
        if sent > 0:
            tl.store(supplies + k * BLOCK + j, supply - amounts)
            tl.store(demands + m * BLOCK + j, demand - amounts)
            budget -= tl.where(passed_over, amounts, 0.0)
            source_column -= tl.where(at > k, sent, 0.0)
            sink_column -= tl.where(at < m, sent, 0.0)
            tl.debug_barrier()
    return budget, source_column, sink_column, sent


@triton.jit
def _hops(
    rows, down, edges, supplies, demands, budget, source_column, sink_column, value, enough,
    top, n, at, j, BLOCK: tl.constexpr,
):  # fmt: skip
    """Step 2 (hops.cpp): from column h, one hop at layer m to demands of the layer below and of the first."""
    sink_open = _least_before(sink_column, at, 2) > 0
    changed = tl.zeros([BLOCK], tl.int64)  # bit m: row (m, h) is in `edges`, less what was sent
    k = top
    while (k >= 3) & (value < enough):
        room = _least_after(source_column, at, k, top)
        supply = tl.load(supplies + k * BLOCK + j)
        h = tl.min(tl.where(supply > 0, j, BLOCK), 0)
        while (h < BLOCK) & (room > 0) & (value < enough):
            amount = tl.minimum(_one(supply, j, h), room)
            left = amount
            bits = _one(changed, j, h)
            m = k - 1
            while (m >= 2) & (left > 0):
                limit = left
                if m < k - 1:
                    limit = tl.minimum(left, _one(budget, j, h))
                if limit > 0:
                    here = edges + (m * BLOCK + h) * BLOCK + j
                    if ((bits >> m) & 1) != 0:
                        row = tl.load(here)
                    else:
                        row = tl.load(rows + m * down + h * n + j, mask=(j < n) & (j != h), other=0.0).to(tl.float64)
                    sent = tl.full([], 0.0, tl.float64)
                    if sink_open & (m >= 3):
                        demand = tl.load(demands + (m - 1) * BLOCK + j)
                        most = tl.maximum(tl.minimum(limit, _least_before(sink_column, at, m - 1)), 0.0)
                        amounts, total = _up_to(tl.minimum(row, demand), most)
                        if total > 0:
                            tl.store(demands + (m - 1) * BLOCK + j, demand - amounts)
                            sink_column -= tl.where(at < m - 1, total, 0.0)
                            row -= amounts
                            sent += total
                    demand = tl.load(demands + BLOCK + j)
                    amounts = tl.minimum(row, demand)
                    if m > 2:
                        amounts = tl.minimum(amounts, budget)
                    amounts, total = _up_to(amounts, tl.maximum(limit - sent, 0.0))
                    if total > 0:
                        tl.store(demands + BLOCK + j, demand - amounts)
                        if m > 2:
                            budget -= amounts
                        row -= amounts
                        sent += total
                    if sent > 0:
                        tl.store(here, row)
                        bits = bits | (tl.full([], 1, tl.int64) << m)
                        left = tl.maximum(left - sent, 0.0)
                        if m < k - 1:
                            budget -= tl.where(j == h, sent, 0.0)
                        tl.debug_barrier()
                m -= 1
            changed = tl.where(j == h, bits, changed)
            gone = amount - left
            supply -= tl.where(j == h, gone, 0.0)
            source_column -= tl.where(at > k, gone, 0.0)
            value += gone
            room = _least_after(source_column, at, k, top)
            h = tl.min(tl.where((supply > 0) & (j > h), j, BLOCK), 0)
        k -= 1
    return value
