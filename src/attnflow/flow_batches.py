"""Flow for corpora: one query of each of many texts in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import Array, as_layers, indices, is_tensor, positions
from attnflow._core import native
from attnflow.errors import InputError
from attnflow.flow import TOO_LARGE, Floats, Steps, thread_count


def batch_flows(
    layers: Sequence[Array],
    lengths: Iterable[int],
    queries: Iterable[int],
    at: int | Iterable[int] | None = None,
    threads: int | None = None,
) -> tuple[Floats, Steps]:
    """Return `flow` from one query of every text of a padded batch to all its tokens, and the pairs that each step proved.

    layers: one array or tensor ``[text, position, position]`` per layer; rows are queries. Entries beyond the length of a
        text are not read. Tensors are copied to the CPU.
    lengths, queries: one for each text; negative queries count from the end of the text.
    at: which layers to compute, counted from 0, as in `flow`.
    threads: the number of threads of the solver; None for all cores. The result does not depend on it.

    The result is float64 ``[text, layer, position]``, zero beyond the length of a text. A text with a number that is not
    finite gets NaN and does not affect the others; a negative number is an error.

    >>> import numpy as np, attnflow as af
    >>> A = af.attention_graph(np.full((2, 1, 2, 2), 0.5))
    >>> values, steps = batch_flows([layer[None] for layer in A], lengths=[2], queries=[0])
    >>> values.tolist()
    [[[0.75, 0.25], [1.0, 0.5]]]
    """
    arrays = _square([_on_host(layer) for layer in as_layers(layers, "the batch")])
    texts, n, _ = arrays[0].shape
    sizes = _lengths(lengths, texts, n)
    rows = _queries(queries, sizes)
    levels = [number + 1 for number in indices(at, len(arrays), "layer")]
    workers = thread_count(threads)
    finite = _finite_texts(arrays, sizes)
    values = np.full((texts, len(levels), n), np.nan)
    values[finite] = 0.0
    if not finite.any() or not levels:
        return values, {}
    if not finite.all():
        kept = np.flatnonzero(finite)
        arrays = [layer[kept] for layer in arrays]
        sizes, rows = sizes[kept], rows[kept]
    there = np.broadcast_to(np.arange(n) < sizes[:, None, None], (len(sizes), len(levels), n))
    text, level, token = np.nonzero(there)
    pairs = np.stack([text, np.array(levels)[level], rows[text], token], 1).astype(np.int32)
    flows = np.zeros(there.shape)
    try:
        flows[there], steps = native().text_flows(arrays[: max(levels)], sizes, pairs, workers)
    except OverflowError:
        raise InputError(TOO_LARGE) from None
    values[finite] = flows
    return values, steps


def _on_host(layer: Array) -> NDArray[Any]:
    return np.ascontiguousarray(layer.detach().cpu().numpy() if is_tensor(layer) else layer)


def _square(layers: list[NDArray[Any]]) -> list[NDArray[Any]]:
    if not layers:
        raise InputError("the batch has no layers: expected at least one array [text, position, position]")
    for number, layer in enumerate(layers):
        shape = tuple(layer.shape)
        if len(shape) != 3 or shape[1] != shape[2] or 0 in shape or shape != tuple(layers[0].shape):
            raise InputError(
                f"layer {number} of the batch has shape {shape}: expected [text, position, position] in all layers"
            )
    return layers


def _lengths(lengths: Iterable[int], texts: int, n: int) -> NDArray[np.int32]:
    sizes = np.array(positions(lengths, "length"), dtype=np.int64)
    if len(sizes) != texts or (sizes < 1).any() or (sizes > n).any():
        shown = sizes.tolist() if len(sizes) < 20 else f"{len(sizes)} numbers from {sizes.min()} to {sizes.max()}"
        raise InputError(f"lengths={shown}: expected {texts} numbers, one for each text, from 1 to {n}")
    return sizes.astype(np.int32)


def _queries(queries: Iterable[int], sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    rows = np.array(positions(queries, "query"), dtype=np.int64)
    if len(rows) != len(sizes):
        raise InputError(f"queries has {len(rows)} positions: expected {len(sizes)}, one for each text")
    wrong = (rows < -sizes) | (rows >= sizes)
    if wrong.any():
        text = int(np.argmax(wrong))
        raise InputError(f"query {rows[text]} does not exist in text {text}, which has {sizes[text]} positions")
    return (rows % sizes).astype(np.int32)


def _finite_texts(layers: Sequence[NDArray[Any]], sizes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which texts have only finite numbers within their length."""
    within = np.arange(layers[0].shape[1]) < sizes[:, None]
    inside = within[:, :, None] & within[:, None, :]
    bad = np.stack([((layer < 0) & inside).any((1, 2)) for layer in layers]).any(0)
    if bad.any():
        text = int(np.argmax(bad))
        raise InputError(f"the graph of text {text} has a negative capacity: expected non-negative numbers")
    finite: NDArray[np.bool_] = np.logical_and.reduce([(np.isfinite(x) | ~inside).all((1, 2)) for x in layers])
    return finite
