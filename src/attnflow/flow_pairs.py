"""Flows of many pairs of a batch of graphs: proven on the GPU that they lie on, if it can, else by the compiled solver."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
    "a flow of this graph exceeds the largest double (about 1.8e308): make its capacities smaller, for example by "
    "A * 2.0**-64, and the flows come out smaller by the same factor"
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
AT_ONCE = 1 << 30  # bytes of graphs that are prepared on a GPU at a time


@dataclass(frozen=True)
class Question:
    """Flows of every text, level, query and token.

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
        """Which flows there are, ``[text, level, query, token]``."""
        inside = self.tokens < self.lengths[:, None]
        return np.broadcast_to(inside[:, None, None, :], self.shape)

    def of(self, texts: slice | NDArray[np.int64]) -> Question:
        """The same of some texts."""
        return Question(self.lengths[texts], self.levels, self.queries[texts], self.tokens)


def can_prove(layers: Sequence[Array], levels: Sequence[int]) -> bool:
    """Whether the graphs lie on a GPU that can prove flows of them: square, not too large, and deep enough."""
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
    """Whether a GPU finds the flows that the solver finds, of two small graphs: kernels are compiled anew on every machine.

    Where it does not, or they cannot be compiled, a warning says so, and the solver does everything.
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
    except Exception as e:  # whatever a compiler says
        reason = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]:.120}"
    if reason:
        warnings.warn(
            f"flows are not proven on {device} ({reason}): the solver does all of them, which takes longer",
            AttentionWarning,
            stacklevel=2,
        )
    return not reason


def pair_flows(layers: Sequence[Array], question: Question, threads: int) -> tuple[Floats, Steps]:
    """Flows ``[text, level, query, token]``, zero where a token is beyond its text, and how many pairs each step proved.

    layers: one array or tensor ``[text, position, position]`` a layer, float32 or float64, no number negative or NaN.
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
    """The flows at some places ``[pair, 4]`` of the question, sorted by text, by the compiled solver."""
    text, level, query, token = places.T
    pairs = np.stack([text, np.array(question.levels)[level], question.queries[text, query], question.tokens[token]], 1)
    try:
        return native().text_flows(layers, question.lengths, pairs.astype(np.int32, order="C"), threads)
    except OverflowError:
        raise InputError(TOO_LARGE) from None


def _proven_first(layers: Sequence[Any], question: Question, threads: int) -> tuple[Floats, Steps]:
    from attnflow.flow_device import launch

    values = np.zeros(question.shape)
    counts: list[Steps] = []
    running: tuple[slice, Batch] | None = None
    for texts in (*_parts(layers), None):
        following = None
        if texts is not None:  # the GPU proves the next part while the solver finishes this one
            own = question.of(texts)
            batch = launch([layer[texts] for layer in layers], own.lengths, own.levels, own.queries, own.tokens)
            following = (texts, batch)
        if running is not None:
            counts.append(_finish(running[1], question.of(running[0]), values[running[0]], threads))
        running = following
    return values, total_steps(counts) | {"pairs": int(question.valid().sum())}


def _parts(layers: Sequence[Any]) -> Iterator[slice]:
    texts, n, _ = layers[0].shape
    size = max(1, AT_ONCE // (2 * len(layers) * n * n * layers[0].element_size()))
    return (slice(first, min(first + size, texts)) for first in range(0, texts, size))


def _finish(batch: Batch, question: Question, values: Floats, threads: int) -> Steps:
    """Writes what the GPU proved into `values`, and solves the rest, of which it copies the graphs."""
    from attnflow.flow_device import collect, graphs_of
    from attnflow.flow_kernels import COLUMNS, HOPS, OPEN, TWO_HOPS

    flows, codes = collect(batch)
    valid = question.valid()
    unproven = np.zeros(question.shape, dtype=np.bool_)
    values[valid], unproven[valid] = flows, codes == OPEN
    rest = np.argwhere(unproven)
    steps: Steps = {}
    if len(rest):
        texts, number = np.unique(rest[:, 0], return_inverse=True)
        renumbered = np.concatenate([number[:, None], rest[:, 1:]], 1)
        values[unproven], steps = _solve(graphs_of(batch, texts), question.of(texts), renumbered, threads)
    count = np.bincount(codes, minlength=TWO_HOPS + 1)
    names = {"device columns": COLUMNS, "device hops": HOPS, "device two hops": TWO_HOPS}
    return steps | {name: int(count[code]) for name, code in names.items()}
