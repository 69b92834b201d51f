"""Attention rollout: Eq. 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from attnflow._arrays import Array, ArrayT, concatenate, index, indices, positions, stack
from attnflow.graph import graph_layers, level_widths
from attnflow.selection import select_layers


@overload
def rollout(
    A: ArrayT, queries: int | Iterable[int] | None = None, start: int = 0, layers: int | Iterable[int] | None = None
) -> ArrayT: ...
@overload
def rollout(
    A: Sequence[ArrayT], queries: int | Iterable[int] | None = None, start: int = 0,
    layers: int | Iterable[int] | None = None,
) -> ArrayT | list[ArrayT]: ...  # fmt: skip
def rollout(
    A: Any, queries: int | Iterable[int] | None = None, start: int = 0, layers: int | Iterable[int] | None = None
) -> Array | list[Array]:
    """Return token attention by attention rollout (Eq. 1): ``Ã(l) = A(l) · Ã(l-1)``, ``Ã(start) = A(start)``.

    An edge is the proportion of a state that comes along it; a path multiplies its edges, and all paths add up.

    A: ``[layer, query, key]`` from `attention_graph`, with a batch axis in front if there is a batch, or a list of
        matrices that fit together. Attention weights with a head axis would be read as a batch.
        The result is of the same type, numpy or torch, on the same device and with its gradient.
    queries: the positions to explain; None for all. A few queries are rolled down as one vector each, in O(n²) per layer
        below, without any n×n product; if that would cost more than the products, the products are computed.
    start: the lowest layer that is multiplied; 0 leads to the input tokens.
    layers: the layers to explain; None for all from ``start`` up.

    The result is ``[layer, query, input]``, or a list of ``[query, input]`` if the layers differ in size. All axes stay,
    even for a single int.

    >>> import numpy as np, attnflow as af
    >>> A = af.attention_graph(np.full((2, 1, 2, 2), 0.5))
    >>> af.rollout(A, queries=0).tolist()
    [[[0.75, 0.25]], [[0.625, 0.375]]]
    """
    matrices, _ = graph_layers(A)
    depth = len(matrices)
    start = index(start, depth, "start")
    chosen = select_layers(layers, depth, start)
    widths = level_widths(matrices)
    if queries is not None:
        queries = positions(queries, "query")
    rows = {l: indices(queries, widths[l + 1], "query") for l in chosen}
    vectors = sum(len(rows[l]) * (l - start) for l in chosen)
    products = sum(widths[l + 1] for l in range(start, max(chosen)))
    if queries is not None and vectors <= products:
        rolled = roll_rows(matrices, rows, start)
    else:
        rolled = _by_products(matrices, start, chosen)
        if queries is not None:
            rolled = {l: rolled[l][..., rows[l], :] for l in chosen}
    results = [rolled[l] for l in chosen]
    if any(x.shape != results[0].shape for x in results):
        return results
    return stack(results, axis=results[0].ndim - 2)


def _by_products(matrices: Sequence[Array], start: int, layers: Sequence[int]) -> dict[int, Array]:
    rolled = {start: matrices[start]}
    for l in range(start + 1, max(layers) + 1):
        rolled[l] = matrices[l] @ rolled[l - 1]
        if l - 1 not in layers:
            del rolled[l - 1]
    return rolled


def roll_rows(matrices: Sequence[ArrayT], rows: Mapping[int, Any], start: int = 0) -> dict[int, ArrayT]:
    """Return the rollout of some rows of some layers: one product ``[rows, key]`` per layer, without any n×n product.

    rows: an index of the queries of each layer: a list, or for a batch a pair of index arrays, one row for each text.
    """

    def through(l: int, state: ArrayT | None) -> ArrayT:
        parts: list[Array] = [] if state is None else [state @ matrices[l]]
        if l in rows:
            chosen = rows[l]
            parts.append(matrices[l][chosen][:, None] if isinstance(chosen, tuple) else matrices[l][..., chosen, :])
        both: ArrayT = parts[0] if len(parts) == 1 else concatenate(parts, axis=parts[0].ndim - 2)
        return both

    return roll_down(rows, start, through)


def roll_down(layers: Iterable[int], start: int, through: Callable[[int, ArrayT | None], ArrayT]) -> dict[int, ArrayT]:
    """Roll the rows of several layers down together, each from its own layer; return ``[…, row, input]`` of each layer.

    through: takes a layer and the rows that come from above it (None at the top), and returns the rows below it. It appends
        the rows that start at this layer.
    """
    starts = set(layers)
    state: ArrayT | None = None
    blocks: dict[int, tuple[int, int]] = {}  # which rows of the state belong to a layer
    for l in range(max(starts), start - 1, -1):
        before = 0 if state is None else int(state.shape[-2])
        state = through(l, state)
        if l in starts:
            blocks[l] = before, int(state.shape[-2])
    rows: Array = state
    return {l: rows[..., first:last, :] for l, (first, last) in blocks.items()}
