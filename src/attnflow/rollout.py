"""Attention rollout: Eq. 1 of the paper."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attnflow._arrays import concatenate, index, indices, positions, stack
from attnflow.errors import InputError
from attnflow.graph import graph_layers, level_widths


def rollout(
    A: Any, queries: int | Iterable[int] | None = None, start: int = 0, layers: int | Iterable[int] | None = None
) -> Any:
    """Token attention by attention rollout (Eq. 1): ``Ã(l) = A(l) · Ã(l-1)``, ``Ã(start) = A(start)``.

    An edge is read as the proportion of a state that comes along it; a path multiplies its edges, and all paths add up.

    A: ``[layer, query, key]`` from `attention_graph`, with a batch axis in front if there is a batch, or a list of
        matrices that fit together. Attention weights with a head axis would be read as a batch.
        numpy in, numpy out; torch in, torch out, on its device and with its gradient.
    queries: which positions to explain; None for all. Few queries are rolled down one vector each, in O(n²) a layer
        below, without any n×n product; where that would cost more than the products, the products are made.
    start: the lowest layer that is multiplied, so 0 leads to the input tokens.
    layers: which layers to explain; None for all from ``start`` up.

    Returns ``[layer, query, input]``; a list of ``[query, input]`` where the layers differ in size. All axes stay, also
    where one int was given.

    >>> import numpy as np, attnflow as af
    >>> A = af.attention_graph(np.full((2, 1, 2, 2), 0.5))
    >>> af.rollout(A, queries=0).tolist()
    [[[0.75, 0.25]], [[0.625, 0.375]]]
    """
    matrices, _ = graph_layers(A)
    depth = len(matrices)
    start = index(start, depth, "start")
    wanted = list(range(start, depth)) if layers is None else indices(layers, depth, "layer")
    if not wanted or min(wanted) < start:
        raise InputError(f"layers={layers!r}: expected at least one, from start={start} to {depth - 1}")
    widths = level_widths(matrices)
    if queries is not None:
        queries = positions(queries, "query")
    rows = [indices(queries, widths[l + 1], "query") for l in wanted]
    few = queries is not None
    vectors = sum(len(r) * (l - start) for r, l in zip(rows, wanted, strict=True))
    products = sum(widths[l + 1] for l in range(start, max(wanted)))
    found = _by_vectors(matrices, rows, start, wanted) if few and vectors <= products else None
    if found is None:
        found = _by_products(matrices, start, wanted)
        if few:
            found = [x[..., r, :] for x, r in zip(found, rows, strict=True)]
    if any(x.shape != found[0].shape for x in found):
        return found
    return stack(found, axis=found[0].ndim - 2)


def _by_products(matrices: list[Any], start: int, wanted: list[int]) -> list[Any]:
    rolled = {start: matrices[start]}
    for l in range(start + 1, max(wanted) + 1):
        rolled[l] = matrices[l] @ rolled[l - 1]
        if l - 1 not in wanted:
            del rolled[l - 1]
    return [rolled[l] for l in wanted]


def _by_vectors(matrices: list[Any], rows: list[list[int]], start: int, wanted: list[int]) -> list[Any]:
    """All wanted rows go down together, each from its own layer: one product of [rows, key] a layer."""
    state: Any = None
    order: list[int] = []  # which entry of `wanted` each block of rows in `state` belongs to
    for m in range(max(wanted), start - 1, -1):
        if state is not None:
            state = state @ matrices[m]
        for number, l in enumerate(wanted):
            if l == m:
                block = matrices[m][..., rows[number], :]
                state = block if state is None else concatenate([state, block], axis=block.ndim - 2)
                order.append(number)
    found: list[Any] = [None] * len(wanted)
    at = 0
    for number in order:
        found[number] = state[..., at : at + len(rows[number]), :]
        at += len(rows[number])
    return found
