"""The compiled solver, as bindings.cpp makes it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Graph:
    """Capacities, one contiguous matrix ``[query, key]`` a layer, in the solver's own memory layout."""

    def __init__(self, layers: Sequence[NDArray[np.float64]]) -> None: ...
    def flow(
        self, layers: Sequence[int], queries: Sequence[int], tokens: Sequence[int], threads: int
    ) -> tuple[NDArray[np.float64], dict[str, int]]:
        """Flows ``[layer, query, token]``, and how many pairs each step proved. Layers count from 1 here."""

    def max_flow(
        self, layer: int, query: int, token: int
    ) -> tuple[float, float, list[NDArray[np.float64]], list[list[bool]]]:
        """The flow, the capacity of a cut, what flows on every edge, and which nodes of every level the sink's side has."""

def text_flows(
    layers: Sequence[NDArray[np.floating[Any]]],
    lengths: NDArray[np.int32],
    pairs: NDArray[np.int32],
    threads: int,
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """Flows ``[pair]`` of a batch of graphs, and how many pairs each step proved.

    layers: one contiguous array ``[text, position, position]`` a layer, float32 or float64; what lies beyond the length of
        a text is not read.
    pairs: ``[pair, 4]``: text, layer (from 1), query and token, sorted by text.
    """

def instruction_set() -> str:
    """Which of the compiled vector loops this machine runs: portable, avx2 or avx512."""
