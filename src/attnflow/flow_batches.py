"""Flow for corpora: one query of each of many texts in one call."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import Array, as_layers, indices, is_tensor, positions
from attnflow.errors import InputError
from attnflow.flow import thread_count
from attnflow.flow_pairs import Floats, Question, Steps, pair_flows, total_steps


def batch_flows(
    layers: Sequence[Array],
    lengths: Iterable[int],
    queries: Iterable[int],
    at: int | Iterable[int] | None = None,
    threads: int | None = None,
) -> tuple[Floats, Steps]:
    """Return `flow` from one query of every text of a padded batch to all its tokens, and the pairs that each step proved.

    layers: one array or tensor ``[text, position, position]`` per layer; rows are queries. Entries beyond the length of a
        text are not read. Tensors on a CUDA device stay there, except for texts that the GPU cannot finish.
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
    arrays = _square(as_layers(layers, "the batch"))
    texts, n, _ = arrays[0].shape
    sizes = _lengths(lengths, texts, n)
    rows = _queries(queries, sizes)
    levels = [number + 1 for number in indices(at, len(arrays), "layer")]
    workers = thread_count(threads)
    finite = _finite_texts(arrays, sizes)
    values = np.full((texts, len(levels), n), np.nan)
    values[finite] = 0.0
    if not finite.any() or not levels:
        return values, total_steps([])
    if not finite.all():
        kept = np.flatnonzero(finite)
        arrays = [layer[_on_device_of(layer, kept)] for layer in arrays]
        sizes, rows = sizes[kept], rows[kept]
    flows, steps = pair_flows(arrays, Question(sizes, levels, rows[:, None], np.arange(n, dtype=np.int32)), workers)
    values[finite] = flows[:, :, 0]
    return values, steps


def _square(layers: list[Array]) -> list[Array]:
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


def _finite_texts(layers: Sequence[Array], sizes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which texts have only finite numbers within their length; all texts are checked at once, on their device."""
    xp: Any = sys.modules["torch"] if is_tensor(layers[0]) else np
    within = _on_device_of(layers[0], np.arange(layers[0].shape[1]) < sizes[:, None])
    inside = within[:, :, None] & within[:, None, :]
    finite = [(xp.isfinite(layer) | ~inside).all((1, 2)) for layer in layers]
    negative = [((layer < 0) & inside).any((1, 2)) for layer in layers]
    flags = xp.stack([xp.stack(finite).all(0), xp.stack(negative).any(0)])
    good, bad = flags.cpu().numpy() if is_tensor(flags) else flags
    if bad.any():
        text = int(np.argmax(bad))
        raise InputError(f"the graph of text {text} has a negative capacity: expected non-negative numbers")
    kept: NDArray[np.bool_] = good
    return kept


def _on_device_of(layer: Array, x: NDArray[Any]) -> Array:
    return sys.modules["torch"].as_tensor(x, device=layer.device) if is_tensor(layer) else x
