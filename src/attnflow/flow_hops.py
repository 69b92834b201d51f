# mypy: ignore-missing-imports, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""What `flow_kernels` sends outside the two columns: from column h to columns with demand left, by one hop and by two.

Everything concerns one pair and one program. ``supplies[k]`` and ``demands[m]`` are what can still leave the source's
column at layer k and enter the sink's at layer m, by column. ``budget`` is what can still go straight down a column.
``source_column`` and ``sink_column`` are what the two columns can still carry, by layer. ``edges`` has the rows of inner
layers on which something was sent, less what was sent; bit m of ``changed[h]`` says that row (m, h) is among them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def least_after(values, at, k, top):
    """Return the least of layers k+1..top: what can come down the source's column to layer k."""
    return tl.min(tl.where((at > k) & (at <= top), values, float("inf")), 0)


@triton.jit
def least_before(values, at, m):
    """Return the least of layers 1..m-1: what can go down the sink's column from layer m."""
    return tl.min(tl.where((at > 0) & (at < m), values, float("inf")), 0)


@triton.jit
def one(values, at, i):
    return tl.sum(tl.where(at == i, values, 0), 0)


@triton.jit
def up_to(amounts, limit):
    """Return the amounts from the left until their sum reaches the limit, and that sum."""
    total = tl.sum(amounts, 0)
    if total > limit:
        before = tl.cumsum(amounts, 0) - amounts
        amounts = tl.minimum(amounts, tl.maximum(limit - before, 0.0))
        total = limit
    return amounts, total


@triton.jit
def _row(rows, down, edges, changed, m, h, width, j, BLOCK: tl.constexpr):
    """Return what the edges from (m, h) to other columns can still carry."""
    if ((one(changed, j, h) >> m) & 1) != 0:
        row = tl.load(edges + (m * BLOCK + h) * BLOCK + j)
    else:
        row = tl.load(rows + m * down + h * width + j, mask=(j < width) & (j != h), other=0.0).to(tl.float64)
    return row


@triton.jit
def _keep(edges, changed, m, h, row, j, BLOCK: tl.constexpr):
    tl.store(edges + (m * BLOCK + h) * BLOCK + j, row)
    tl.debug_barrier()
    return tl.where(j == h, changed | (tl.full([], 1, tl.int64) << m), changed)


@triton.jit
def _hop(
    rows, down, edges, demands, budget, sink_column, changed, m, h, barred, limit, sink_open,
    width, at, j, BLOCK: tl.constexpr,
):  # fmt: skip
    """Send up to `limit` from (m, h) to demands of the layer below, and straight down to those of the first layer.

    barred: the column that the flow came from, whose budget must not count twice.
    """
    row = _row(rows, down, edges, changed, m, h, width, j, BLOCK)
    sent = tl.full([], 0.0, tl.float64)
    if sink_open & (m >= 3):
        demand = tl.load(demands + (m - 1) * BLOCK + j)
        most = tl.maximum(tl.minimum(limit, least_before(sink_column, at, m - 1)), 0.0)
        amounts, total = up_to(tl.where(j == barred, 0.0, tl.minimum(row, demand)), most)
        if total > 0:
            tl.store(demands + (m - 1) * BLOCK + j, demand - amounts)
            sink_column -= tl.where(at < m - 1, total, 0.0)
            row -= amounts
            sent += total
    demand = tl.load(demands + BLOCK + j)
    amounts = tl.where(j == barred, 0.0, tl.minimum(row, demand))
    if m > 2:
        amounts = tl.minimum(amounts, budget)
    amounts, total = up_to(amounts, tl.maximum(limit - sent, 0.0))
    if total > 0:
        tl.store(demands + BLOCK + j, demand - amounts)
        if m > 2:
            budget -= amounts
        row -= amounts
        sent += total
    if sent > 0:
        changed = _keep(edges, changed, m, h, row, j, BLOCK)
    return sent, budget, sink_column, changed


@triton.jit
def send_by_one_hop(
    rows, down, edges, supplies, demands, budget, source_column, sink_column, value, enough,
    top, width, at, j, BLOCK: tl.constexpr,
):  # fmt: skip
    """Run step 2 of the solver (hops.cpp) in its order: high layers first, then columns, then the layers of the hop."""
    sink_open = least_before(sink_column, at, 2) > 0
    changed = tl.zeros([BLOCK], tl.int64)
    k = top
    while (k >= 3) & (value < enough):
        room = least_after(source_column, at, k, top)
        supply = tl.load(supplies + k * BLOCK + j)
        h = tl.min(tl.where(supply > 0, j, BLOCK), 0)
        while (h < BLOCK) & (room > 0) & (value < enough):
            amount = tl.minimum(one(supply, j, h), room)
            left = amount
            m = k - 1
            while (m >= 2) & (left > 0):
                limit = left
                if m < k - 1:
                    limit = tl.minimum(left, one(budget, j, h))
                if limit > 0:
                    sent, budget, sink_column, changed = _hop(
                        rows, down, edges, demands, budget, sink_column, changed, m, h, h, limit, sink_open,
                        width, at, j, BLOCK,
                    )  # fmt: skip
                    left = tl.maximum(left - sent, 0.0)
                    if m < k - 1:
                        budget -= tl.where(j == h, sent, 0.0)
                m -= 1
            gone = amount - left
            supply -= tl.where(j == h, gone, 0.0)
            source_column -= tl.where(at > k, gone, 0.0)
            value += gone
            room = least_after(source_column, at, k, top)
            h = tl.min(tl.where((supply > 0) & (j > h), j, BLOCK), 0)
        tl.store(supplies + k * BLOCK + j, supply)
        k -= 1
    tl.debug_barrier()
    return value, budget, source_column, sink_column, changed


@triton.jit
def send_by_two_hops(
    rows, down, edges, supplies, demands, budget, source_column, sink_column, changed, value, enough,
    negligible, s, t, top, width, at, j, most_hops, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do the same through an intermediate column: a hop at layer m, and the next one right below it.

    Every cut around the source's column contains all edges that leave it at the top. If one of them cannot be filled, the
    pair cannot be proven in this way, and nothing more is tried. The same applies after `most_hops`, because a few pairs
    would delay all others.
    """
    hops = tl.full([], 0, tl.int32)
    sink_open = least_before(sink_column, at, 2) > 0
    goal = enough
    k = top
    while (k >= 4) & (value < goal) & (hops < most_hops):
        room = least_after(source_column, at, k, top)
        supply = tl.load(supplies + k * BLOCK + j)
        h = tl.min(tl.where(supply > 0, j, BLOCK), 0)
        while (h < BLOCK) & (room > 0) & (value < goal) & (hops < most_hops):
            whole = one(supply, j, h)
            amount = tl.minimum(whole, room)
            left = amount
            m = k - 1
            while (m >= 3) & (left > 0):
                limit = left
                if m < k - 1:
                    limit = tl.minimum(left, one(budget, j, h))
                row = _row(rows, down, edges, changed, m, h, width, j, BLOCK)
                row = tl.where((j == s) | (j == t), 0.0, row)  # no step sends anything that way
                total = tl.full([], 0.0, tl.float64)
                between = tl.min(tl.where(row > 0, j, BLOCK), 0)
                while (between < BLOCK) & (limit > 0) & (hops < most_hops):
                    most = tl.minimum(limit, one(row, j, between))
                    sent, budget, sink_column, changed = _hop(
                        rows, down, edges, demands, budget, sink_column, changed, m - 1, between, h, most, sink_open,
                        width, at, j, BLOCK,
                    )  # fmt: skip
                    row -= tl.where(j == between, sent, 0.0)
                    total += sent
                    hops += 1
                    limit = tl.maximum(limit - sent, 0.0)
                    between = tl.min(tl.where((row > 0) & (j > between), j, BLOCK), 0)
                if total > 0:
                    changed = _keep(edges, changed, m, h, row, j, BLOCK)
                    left = tl.maximum(left - total, 0.0)
                    if m < k - 1:
                        budget -= tl.where(j == h, total, 0.0)
                m -= 1
            gone = amount - left
            supply -= tl.where(j == h, gone, 0.0)
            source_column -= tl.where(at > k, gone, 0.0)
            value += gone
            room = least_after(source_column, at, k, top)
            goal = tl.where((k == top) & (whole - gone > negligible), value, goal)
            h = tl.min(tl.where((supply > 0) & (j > h), j, BLOCK), 0)
        k -= 1
    return value
