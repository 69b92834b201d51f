"""The maximum flow of least norm in a layered graph, by an interior-point method whose steps are block tridiagonal.

``min ½ Σ_e f_e²`` over all maximum flows, ``0 ≤ f ≤ c``. Each node has a potential p; the query has π and the inputs have
0. At the optimum an edge from u down to v carries ``f = min(c, max(0, p_u - p_v))``. A step of Newton's method is a system
in the potentials alone, with the Laplacian of the graph, level by level: it costs depth · n³.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

TARGET = 1e-13  # relative gap at which a problem is solved
ROUNDING = 1e-12  # of conservation and of the total, which is one
NEGLIGIBLE = 1e-15  # widths below this count as zero
FREE = 1e-6  # the cost of the square of an infinitely wide edge: next to nothing, but enough for a unique answer
PATIENCE = 20  # steps without progress after which only rounding errors are left
STEPS = 120  # random graphs and attention of 64 tokens and 12 layers need 12 to 25
SHORT = 0.3  # if less of a step can be taken, it heads for the wrong place
NEAR = 0.99  # how far towards a bound one step goes


@dataclass(frozen=True, eq=False)
class LeastNorm:
    """Flows of least norm, one problem each.

    edges: one array ``[problem, row, key]`` per layer, lowest first. total: the whole flow, ``[problem]``.
    objective: ``½ Σ f²``. bound: the lower bound for flows of total one that the potentials prove.
    """

    edges: tuple[Floats, ...]
    total: Floats
    objective: Floats
    bound: Floats

    @property
    def gap(self) -> Floats:
        """How much the objective exceeds the bound, relative to it; at least the distance of the total from one."""
        return np.maximum((self.objective - self.bound) / self.objective, np.abs(1 - self.total))


def least_norm(capacities: Sequence[Floats]) -> LeastNorm:
    """Return the maximum flow of least norm of each problem, all of which have a maximum flow of one.

    capacities: one array ``[problem, row, key]`` per layer, lowest first; the highest has one row, the query. Edges of
        infinite width limit nothing, and their squares count a millionth.
    """
    layout = _Layout(tuple(c.shape[1:] for c in capacities))
    count = capacities[0].shape[0]
    flat = np.concatenate([np.asarray(c, dtype=np.float64).reshape(count, -1) for c in capacities], axis=1)
    cost = np.where(np.isinf(flat), FREE, 1.0)
    flat = np.minimum(flat, 2.0)  # no edge carries more than one
    flat = np.where(_used(layout, flat), flat, 0.0)
    flows, bound = np.zeros_like(flat), np.full(count, -np.inf)
    pending, source = np.arange(count), 2.0 * layout.depth
    # The query's potential must exceed the cost of one more unit along any path; no path is longer than the number of
    # nodes.
    while len(pending):
        flows[pending], bound[pending] = _solve(_Problem.of(layout, flat[pending], cost[pending], source))
        short = np.abs(1 - layout.views(flows[pending])[-1].sum((1, 2))) > 1e-9
        pending = pending[short] if source <= 2 * layout.nodes else pending[:0]
        source *= 8
    objective = (cost * flows**2).sum(1) / 2
    edges = tuple(layout.views(flows))
    return LeastNorm(edges, edges[-1].sum((1, 2)), objective, bound)


@dataclass(frozen=True)
class _Layout:
    """The positions of the layers in a flat array of edges. shapes: (rows, keys) of each layer, lowest first."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def depth(self) -> int:
        return len(self.shapes)

    @property
    def nodes(self) -> int:
        return sum(rows for rows, _ in self.shapes) + self.shapes[0][1]

    def views(self, flat: Floats) -> list[Floats]:
        """Return [problem, edge] as one ``[problem, row, key]`` per layer."""
        ends = np.cumsum([rows * keys for rows, keys in self.shapes])[:-1]
        parts = np.split(flat, ends, axis=1)
        return [part.reshape(len(flat), *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def excess(self, flat: Floats) -> list[Floats]:
        """Return what leaves minus what enters each node between query and inputs, one ``[problem, node]`` per level."""
        layers = self.views(flat)
        return [low.sum(2) - high.sum(1) for low, high in pairwise(layers)]

    def drops(self, potentials: Sequence[Floats], source: Floats) -> Floats:
        """Return p_u - p_v of each edge, flat; the inputs have potential 0."""
        count = len(source)
        levels = [np.zeros((count, self.shapes[0][1])), *potentials, source[:, None]]
        pairs = pairwise(levels)
        return np.concatenate([(high[:, :, None] - low[:, None, :]).reshape(count, -1) for low, high in pairs], axis=1)


def _used(layout: _Layout, capacities: Floats) -> Mask:
    """Return the edges on a path from the query to an input, flat."""
    layers = [layer > NEGLIGIBLE for layer in layout.views(capacities)]
    drains: list[Mask] = [np.ones((len(capacities), layout.shapes[0][1]), dtype=bool)]
    for layer in layers[:-1]:
        drains.append(np.any(layer & drains[-1][:, None, :], axis=2))
    used: list[Mask] = []
    reached: Mask = np.ones((len(capacities), 1), dtype=bool)
    for layer, drain in zip(reversed(layers), reversed(drains), strict=True):
        used.append(layer & drain[:, None, :] & reached[:, :, None])
        reached = np.any(used[-1], axis=1)
    return np.concatenate([layer.reshape(len(capacities), -1) for layer in reversed(used)], axis=1)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Problems of one layout, flat over edges: ``[problem, edge]``.

    used: 1 for edges that can carry something. cost: the weight of the square of an edge. source: the query's potential.
    """

    layout: _Layout
    capacities: Floats
    used: Floats
    cost: Floats
    source: Floats

    @staticmethod
    def of(layout: _Layout, capacities: Floats, cost: Floats, source: float) -> _Problem:
        used = (capacities > 0).astype(np.float64)
        return _Problem(layout, capacities, used, used * cost, np.full(len(capacities), source))

    def rows(self, chosen: NDArray[np.intp]) -> _Problem:
        parts = (self.capacities, self.used, self.cost, self.source)
        return _Problem(self.layout, *(part[chosen] for part in parts))

    def drops(self, potentials: Sequence[Floats]) -> Floats:
        return self.layout.drops(potentials, self.source)

    def bound(self, drops: Floats) -> Floats:
        """Return the bound that any potentials prove: ``½ Σ f² ≥ π - Σ_e max over 0 ≤ f ≤ c of (drop · f - ½ f²)``."""
        best = np.clip(drops / np.where(self.cost > 0, self.cost, 1), 0, self.capacities)
        bound: Floats = self.source - (drops * best - self.cost * best**2 / 2).sum(1)
        return bound

    def certificate(self, state: _State, drops: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the flow, the bound and their relative gap, which is infinite until what enters a node leaves it."""
        carried = self.used * state.flow
        objective, bound = (self.cost * carried**2).sum(1) / 2, self.bound(drops)
        missing = self.source * (1 - self.layout.views(carried)[-1].sum((1, 2)))
        excess = [np.abs(level).max(1) for level in self.layout.excess(carried)]
        balanced = np.max([np.zeros(len(bound)), *excess], axis=0) <= ROUNDING
        return carried, bound, np.where(balanced, np.abs(objective + missing - bound) / objective, np.inf)


@dataclass(frozen=True, eq=False)
class _State:
    """The state of the method: flow and room (what is left of the width), with a multiplier each, and the potentials.

    All four are one for edges that carry nothing, and stay so, to avoid dividing by zero.
    """

    flow: Floats
    room: Floats
    lower: Floats
    upper: Floats
    potentials: list[Floats]

    @staticmethod
    def start(problem: _Problem) -> _State:
        half = np.where(problem.used > 0, problem.capacities / 2, 1.0)
        shapes = problem.layout.shapes
        levels = [np.full((len(half), rows), (l + 1) / len(shapes)) for l, (rows, _) in enumerate(shapes[:-1])]
        return _State(half, half, np.ones_like(half), np.ones_like(half), levels)

    def rows(self, chosen: NDArray[np.intp]) -> _State:
        flow, room, lower, upper = (part[chosen] for part in (self.flow, self.room, self.lower, self.upper))
        return _State(flow, room, lower, upper, [level[chosen] for level in self.potentials])

    def moved(self, step: _State, length: Floats) -> _State:
        by = length[:, None]
        return _State(
            self.flow + by * step.flow,
            self.room + by * step.room,
            self.lower + by * step.lower,
            self.upper + by * step.upper,
            [level + by * change for level, change in zip(self.potentials, step.potentials, strict=True)],
        )

    def complementarity(self, problem: _Problem) -> Floats:
        """Return the mean product of a bound's distance and its multiplier: zero at the optimum."""
        products = problem.used * (self.flow * self.lower + self.room * self.upper)
        mean: Floats = products.sum(1) / (2 * problem.used.sum(1))
        return mean

    def longest(self, step: _State) -> Floats:
        """Return how far a step can go until something that must stay positive is zero; at most one."""
        pairs = (
            (step.flow, self.flow),
            (step.room, self.room),
            (step.lower, self.lower),
            (step.upper, self.upper),
        )
        fastest = np.max([(-change / value).max(1) for change, value in pairs], axis=0)
        length: Floats = 1 / np.maximum(1, fastest)
        return length


def _solve(problem: _Problem) -> tuple[Floats, Floats]:
    """Return the flows ``[problem, edge]``, and the bounds that their potentials prove, by Mehrotra's predictor-corrector.

    Each problem ends at the target, or when rounding prevents any improvement, with the best result so far.
    """
    count = len(problem.capacities)
    flows, bounds = np.zeros_like(problem.capacities), np.full(count, -np.inf)
    gaps, since = np.full(count, np.inf), np.zeros(count, dtype=np.intp)
    state, rest = _State.start(problem), np.arange(count)
    for _ in range(STEPS):
        drops = problem.drops(state.potentials)
        carried, bound, gap = problem.certificate(state, drops)
        better = gap < gaps[rest]
        improved = rest[better]
        flows[improved], bounds[improved], gaps[improved] = carried[better], bound[better], gap[better]
        since[rest] += np.isfinite(gaps[rest])
        since[improved] = 0
        remaining = np.flatnonzero((gaps[rest] > TARGET) & (since[rest] < PATIENCE))
        if not len(remaining):
            break
        if len(remaining) < len(rest):
            problem, state, rest = problem.rows(remaining), state.rows(remaining), rest[remaining]
            drops = drops[remaining]
        state = _next(problem, state, drops)
    return flows, bounds


def _next(problem: _Problem, state: _State, drops: Floats) -> _State:
    """Return the next state: aim for the optimum to see how far that goes, then for a point on the way that is well inside.

    If that step is short, some bound is much closer than the others, and the step aims for the middle instead.
    """
    system, none = _System.of(problem, state), np.zeros_like(drops)
    ahead = system.step(problem, state, drops, none, none)
    reached = state.moved(ahead, state.longest(ahead) * NEAR)
    mean = state.complementarity(problem)[:, None]
    aim = mean * (reached.complementarity(problem)[:, None] / mean) ** 3
    low, high = aim - ahead.flow * ahead.lower, aim - ahead.room * ahead.upper
    step = system.step(problem, state, drops, low, high)
    length = state.longest(step)
    short = length < SHORT
    if short.any():
        aside = short[:, None]
        step = system.step(problem, state, drops, np.where(aside, mean, low), np.where(aside, mean, high))
        length = state.longest(step)
    return state.moved(step, length * NEAR)


@dataclass(frozen=True, eq=False)
class _System:
    """The Laplacian of a graph with conductances ``1 / (cost + lower / flow + upper / room)``, eliminated level by level.

    conductance: ``[problem, edge]``. inverses: of the remaining blocks of each level, ``[problem, node, node]``.
    """

    conductance: Floats
    inverses: list[Floats]

    @staticmethod
    def of(problem: _Problem, state: _State) -> _System:
        conductance = problem.used / (problem.cost + state.lower / state.flow + state.upper / state.room)
        layers = problem.layout.views(conductance)
        inverses: list[Floats] = []
        for low, high in pairwise(layers):
            degree = low.sum(2) + high.sum(1)
            block = np.where(degree > 0, degree * (1 + 1e-14), 1)[:, :, None] * np.eye(degree.shape[1])
            if inverses:
                block -= low @ inverses[-1] @ low.swapaxes(1, 2)
            inverses.append(np.linalg.inv(block).astype(np.float64, copy=False))
        return _System(conductance, inverses)

    def potentials(self, problem: _Problem, excess: Sequence[Floats]) -> list[Floats]:
        """Return the changes of the potentials that send these amounts out of the nodes."""
        layers = problem.layout.views(self.conductance)
        rest: list[Floats] = []
        for number, amount in enumerate(excess):
            below = _product(layers[number], _product(self.inverses[number - 1], rest[-1])) if number else 0
            rest.append(amount + below)
        changes: list[Floats] = []
        for number in reversed(range(len(rest))):
            above = _product(layers[number + 1].swapaxes(1, 2), changes[0]) if changes else 0
            changes.insert(0, _product(self.inverses[number], rest[number] + above))
        return changes

    def step(self, problem: _Problem, state: _State, drops: Floats, low: Floats, high: Floats) -> _State:
        """Return Newton's step to ``flow · lower = low`` and ``room · upper = high``, with conservation."""
        wish = drops - problem.cost * state.flow + low / state.flow - high / state.room
        excess = problem.layout.excess(problem.used * state.flow + self.conductance * wish)
        potentials = self.potentials(problem, [-level for level in excess])
        change = self.conductance * (problem.layout.drops(potentials, np.zeros(len(drops))) + wish)
        return _State(
            change,
            -change,
            problem.used * ((low - state.lower * change) / state.flow - state.lower),
            problem.used * ((high + state.upper * change) / state.room - state.upper),
            potentials,
        )


def _product(matrix: Floats, vector: Floats) -> Floats:
    product: Floats = (matrix @ vector[:, :, None])[:, :, 0]
    return product
