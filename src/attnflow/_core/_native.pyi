"""The compiled solver: the interface of bindings.cpp."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Graph:
    """Capacities, one contiguous matrix ``[query, key]`` per layer, in the solver's memory layout."""

    def __init__(self, layers: Sequence[NDArray[np.float64]]) -> None: ...
    def flow(
        self, layers: Sequence[int], queries: Sequence[int], tokens: Sequence[int], threads: int
    ) -> tuple[NDArray[np.float64], dict[str, int]]:
        """Return flows ``[layer, query, token]``, and how many pairs each step proved. Layers count from 1 here."""

    def max_flow(
        self, layer: int, query: int, token: int
    ) -> tuple[float, float, list[NDArray[np.float64]], list[list[bool]]]:
        """Return the flow, the capacity of a cut, the flow on every edge, and each level's nodes on the sink's side."""

def text_flows(
    layers: Sequence[NDArray[np.floating[Any]]],
    lengths: NDArray[np.int32],
    pairs: NDArray[np.int32],
    threads: int,
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """Return flows ``[pair]`` of a batch of graphs, and how many pairs each step proved.

    layers: one contiguous array ``[text, position, position]`` per layer, float32 or float64; entries beyond the length
        of a text are not read.
    pairs: ``[pair, 4]``: text, layer (from 1), query and token, sorted by text.
    """

def instruction_set() -> str:
    """Return which of the compiled vector loops this machine runs: portable, avx2 or avx512."""
