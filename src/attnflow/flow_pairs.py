"""Flows of many pairs of a batch of graphs: proven on their GPU if possible, otherwise by the compiled solver."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import Array, is_tensor
from attnflow._core import native
from attnflow.errors import AttentionWarning, InputError

if TYPE_CHECKING:
    from attnflow.flow_device import Batch

Floats = NDArray[np.float64]
Steps = dict[str, int]
TOO_LARGE = (
    "a flow of this graph exceeds the largest double (about 1.8e308): scale its capacities down, for example by "
    "A * 2.0**-64; the flows scale by the same factor"
)
STEPS = (
    "pairs",
    "device columns",
    "device hops",
    "device two hops",
    "columns",
    "hops",
    "search",
    "reference",
    "phases",
)
MOST_POSITIONS, MOST_LAYERS = 512, 63  # of `flow_kernels`
AT_ONCE = 1 << 30  # bytes of graphs prepared on a GPU at a time
MANY_QUERIES = 32  # this many or more are divided


@dataclass(frozen=True)
class Question:
    """A request for the flows of every text, level, query and token.

    lengths: positions of each text, int32.
    levels: layers, counted from 1.
    queries: ``[text, query]``; tokens: ``[token]``. Tokens beyond the length of a text have no flow.
    """

    lengths: NDArray[np.int32]
    levels: list[int]
    queries: NDArray[np.int32]
    tokens: NDArray[np.int32]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.lengths), len(self.levels), self.queries.shape[1], len(self.tokens)

    def valid(self) -> NDArray[np.bool_]:
        """Return which flows exist, ``[text, level, query, token]``."""
        inside = self.tokens < self.lengths[:, None]
        return np.broadcast_to(inside[:, None, None, :], self.shape)

    def of(self, texts: slice | NDArray[np.int64], queries: slice = slice(None)) -> Question:
        """Return the same question for some texts and some of their queries."""
        return Question(self.lengths[texts], self.levels, self.queries[texts][:, queries], self.tokens)

    def pairs(self, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return text, level, query and token of some places ``[pair, 4]``."""
        text, level, query, token = places.T
        numbers = [text, np.array(self.levels)[level], self.queries[text, query], self.tokens[token]]
        return np.stack(numbers, 1).astype(np.int32, order="C")


def can_prove(layers: Sequence[Array], levels: Sequence[int]) -> bool:
    """Return whether the graphs are on a GPU that can prove their flows: square, not too large, and deep enough."""
    shapes = {tuple(layer.shape[-2:]) for layer in layers}
    rows, columns = next(iter(shapes))
    return (
        all(is_tensor(layer) and layer.is_cuda for layer in layers)
        and len(shapes) == 1
        and rows == columns <= MOST_POSITIONS
        and len(layers) <= MOST_LAYERS
        and max(levels, default=0) > 2
        and _has_triton()
        and proves_right(str(layers[0].device))
    )


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def proves_right(device: str) -> bool:
    """Return whether a GPU finds the flows of the solver for two small graphs: every machine compiles its own kernels.

    If it does not, or if the kernels do not compile, warn; the solver then does everything.
    """
    torch: Any = sys.modules["torch"]
    weights = np.exp(np.random.default_rng(0).normal(size=(6, 2, 20, 20)))  # [layer, text, query, key]
    layers = (0.5 * weights / weights.sum(-1, keepdims=True) + 0.5 * np.eye(20)).astype(np.float32)
    queries = np.array([[0, 7], [3, 9]], np.int32)
    question = Question(np.array([20, 13], np.int32), [1, 2, 3, 4, 6], queries, np.arange(20, dtype=np.int32))
    places = np.argwhere(question.valid())
    expected, _ = _solve(list(layers), question, places, 1)
    try:
        flows, _ = _proven_first([torch.as_tensor(layer, device=device) for layer in layers], question, 1)
        apart = float(np.abs(flows[tuple(places.T)] - expected).max())
        reason = f"the flows that it proves differ from the solver's by {apart:.1e}" if apart > 1e-12 else ""
    except Exception as e:  # compilers raise anything
        reason = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]:.120}"
    if reason:
        warnings.warn(
            f"flows are not proven on {device} ({reason}): the solver computes all of them, which takes longer",
            AttentionWarning,
            stacklevel=2,
        )
    return not reason


def pair_flows(layers: Sequence[Array], question: Question, threads: int) -> tuple[Floats, Steps]:
    """Return flows ``[text, level, query, token]``, zero for tokens beyond their text, and the pairs that each step proved.

    layers: one array or tensor ``[text, position, position]`` per layer, float32 or float64, no number negative or NaN.
    """
    layers = layers[: max(question.levels)]
    if can_prove(layers, question.levels):
        return _proven_first(layers, question, threads)
    arrays = [np.ascontiguousarray(layer.detach().cpu().numpy() if is_tensor(layer) else layer) for layer in layers]
    values, places = np.zeros(question.shape), np.argwhere(question.valid())
    values[tuple(places.T)], steps = _solve(arrays, question, places, threads)
    return values, total_steps([steps])


def total_steps(parts: Sequence[Steps]) -> Steps:
    return {name: sum(part.get(name, 0) for part in parts) for name in STEPS}


def _solve(
    layers: list[NDArray[Any]], question: Question, places: NDArray[np.int64], threads: int
) -> tuple[Floats, Steps]:
    """Return the flows at some places ``[pair, 4]`` of the question, sorted by text, by the compiled solver."""
    try:
        return native().text_flows(layers, question.lengths, question.pairs(places), threads)
    except OverflowError:
        raise InputError(TOO_LARGE) from None


def _proven_first(layers: Sequence[Any], question: Question, threads: int) -> tuple[Floats, Steps]:
    from attnflow.flow_device import are_full

    values = np.zeros(question.shape)
    full = are_full(layers, question.lengths)
    counts: list[Steps] = []
    running: Unit | None = None
    for unit in chain(_units(layers, question, full), [None]):  # the GPU works on it while the solver finishes the last
        if running is not None:
            counts.append(running.finish(values, threads))
        running = unit
    return values, total_steps(counts) | {"pairs": int(question.valid().sum())}


def _units(layers: Sequence[Any], question: Question, full: bool) -> Iterator[Unit]:
    """Yield texts that fit onto the GPU; if there are many queries, a few first, because the solver waits only for them."""
    from attnflow.flow_device import prepare

    texts, n, _ = layers[0].shape
    size = max(1, AT_ONCE // (2 * len(layers) * n * n * layers[0].element_size()))
    queries = question.queries.shape[1]
    cuts = [0, queries // 16, queries // 4, queries] if queries >= MANY_QUERIES else [0, queries]
    for first in range(0, texts, size):
        some = slice(first, min(first + size, texts))
        batch = prepare([layer[some] for layer in layers], question.lengths[some], full)
        for begin, end in pairwise(cuts):
            yield Unit(batch, question, some, slice(begin, end))


class Unit:
    """Texts and queries whose flows the GPU proves in the background."""

    def __init__(self, batch: Batch, question: Question, texts: slice, queries: slice) -> None:
        from attnflow.flow_device import launch

        self.batch, self.texts, self.queries = batch, texts, queries
        self.question = question.of(texts, queries)
        self.places = np.argwhere(self.question.valid())
        shape = self.question.shape[:3]
        source = np.ravel_multi_index(tuple(self.places[:, :3].T), shape).astype(np.int32)
        pairs = self.question.pairs(self.places)
        self.proving = launch(batch, pairs, self.question.levels, self.question.queries, source)

    def finish(self, values: Floats, threads: int) -> Steps:
        """Write what the GPU proved into the values of all, and solve the rest, whose graphs are copied from the GPU."""
        from attnflow.flow_device import collect, graphs_of
        from attnflow.flow_kernels import COLUMNS, HOPS, OPEN, TWO_HOPS

        flows, codes = collect(self.proving)
        unproven = codes == OPEN
        rest = self.places[unproven]
        steps: Steps = {}
        if len(rest):
            texts, number = np.unique(rest[:, 0], return_inverse=True)
            renumbered = np.concatenate([number[:, None], rest[:, 1:]], 1)
            flows[unproven], steps = _solve(graphs_of(self.batch, texts), self.question.of(texts), renumbered, threads)
        values[self.texts][:, :, self.queries][tuple(self.places.T)] = flows
        count = np.bincount(codes, minlength=TWO_HOPS + 1)
        names = {"device columns": COLUMNS, "device hops": HOPS, "device two hops": TWO_HOPS}
        return steps | {name: int(count[code]) for name, code in names.items()}
