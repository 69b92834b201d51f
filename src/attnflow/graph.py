"""From attention weights to the attention graph: heads reduced, residual connection added, positions merged."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import (
    Array,
    ArrayT,
    as_array,
    as_layers,
    check_batch,
    eye_like,
    indices,
    is_tensor,
    positions,
    stack,
)
from attnflow.errors import AttentionWarning, InputError

Groups = Sequence[Any] | NDArray[Any]
"""Lists of positions, or one label per position; or one of these for every level of the graph."""

LAYER_AXES = "[head, query, key] or [batch, head, query, key]"
ARRAY_AXES = "[layer, head, query, key], or for a batch a list with [batch, head, query, key] of every layer"


def attention_graph(
    weights: ArrayT | Sequence[ArrayT] | Mapping[int, ArrayT],
    heads: str | Iterable[int] = "mean",
    residual: float = 0.5,
    strict: bool = False,
) -> ArrayT:
    """Return the attention graph ``A = (1 - residual) · W̄ + residual · I``, with W̄ the heads reduced (paper, section 3).

    ``weights`` is ``W[layer, head, query, key]``, or a sequence with one array per layer, ``[head, query, key]`` or
    ``[batch, head, query, key]``. ``attentions`` of transformers is a sequence like this: pass it as it is, not stacked,
    because nothing in an array of five axes says whether layers or texts come first. ``trace.weights`` of a trace that
    kept all heads works too. The result is of the type of the input, numpy or torch, on its device and with its gradient;
    half precision becomes single. It is ``[layer, query, key]`` with the batch axis in front if there is a batch, or a
    list of matrices if the layers differ in size (these need ``residual=0``).

    heads: "mean", "max", "min", or a list of heads to average. After "max" and "min" each row is divided by its sum, so
        that rows sum to one again.
    residual: the weight of the residual connection. 0 gives raw attention, the first of the three views.
    strict: raise an error, instead of a warning, if rows do not sum to one.

    >>> import numpy as np, attnflow as af
    >>> A = af.attention_graph(np.full((1, 2, 3, 3), 1 / 3))
    >>> A.round(2).tolist()
    [[[0.67, 0.17, 0.17], [0.17, 0.67, 0.17], [0.17, 0.17, 0.67]]]
    """
    graph: ArrayT = reduced_graph(weight_layers(weights, strict), heads, residual)
    return graph


def check_residual(residual: float) -> None:
    if isinstance(residual, bool) or not isinstance(residual, int | float | np.number) or not 0 <= residual <= 1:
        raise InputError(f"residual={residual!r}: expected a number between 0 and 1 (the paper uses 0.5)")


def with_residual(weights: ArrayT, residual: float) -> ArrayT:
    """Return ``(1 - residual) · W + residual · I`` for square weights ``[…, query, key]``, with any leading axes."""

    if residual == 0:
        return weights
    graph: ArrayT = (1 - residual) * weights + residual * eye_like(weights, int(weights.shape[-1]))
    return graph


def reduced_graph(layers: Sequence[Array], heads: str | Iterable[int], residual: float) -> Array:
    """Return `attention_graph` without checking the weights."""
    check_residual(residual)
    residual = float(residual)
    if not isinstance(heads, str):
        heads = positions(heads, "head")
    graph = [_add_residual(_reduce(layer, heads), residual, number) for number, layer in enumerate(layers)]
    if any(layer.shape != graph[0].shape for layer in graph):
        return graph
    return stack(graph, axis=graph[0].ndim - 2)


@overload
def merge(A: ArrayT, groups: Groups) -> ArrayT: ...
@overload
def merge(A: Sequence[ArrayT], groups: Groups) -> ArrayT | list[ArrayT]: ...
def merge(A: Any, groups: Groups) -> Array | list[Array]:
    """Return the same graph over groups of positions: words of subwords, spans, regions of an image.

    ``A'[Q, K] = mean over q in Q of Σ over k in K of A[q, k]``: what a group attends to is the mean over its members, and
    what it receives is the sum, so rows keep their sum.

    groups: a list of lists of positions, each position in exactly one; or one label per position, like ``word_ids()`` of a
        tokenizer: equal labels are a group, groups are in the order of their first position, and None (a special token) is
        a separate group. If the levels of the graph differ in size: one such list for every level, input first. Weights
        ``[layer, head, query, key]`` can be merged in the same way.

    >>> import numpy as np, attnflow as af
    >>> af.merge(np.eye(3)[None], [[0], [1, 2]]).tolist()
    [[[1.0, 0.0], [0.0, 1.0]]]
    """
    layers, stacked = graph_layers(A)
    widths = level_widths(layers)
    per_level = _groups_per_level(groups, widths)
    merged = []
    for number, layer in enumerate(layers):
        above, below = per_level[number + 1], per_level[number]
        # [group, position]: means for rows above, sums for rows below
        means = above / above.sum(axis=1, keepdims=True)
        if is_tensor(layer):
            merged.append(layer.new_tensor(means) @ layer @ layer.new_tensor(below.T))
        else:
            merged.append(means @ layer @ below.T)
    return stack(merged, axis=merged[0].ndim - 2) if stacked else merged


def weight_layers(weights: Any, strict: bool = False) -> list[Array]:
    """Return one checked array per layer, each ``[head, query, key]`` or ``[batch, head, query, key]``."""
    if isinstance(weights, Mapping):
        if sorted(weights) != list(range(len(weights))) or not weights:
            listed = ", ".join(map(str, sorted(weights))) or "none"
            raise InputError(f"weights of layers {listed}: expected all layers from 0 up; trace with keep_heads=True")
        weights = [weights[layer] for layer in range(len(weights))]
    if isinstance(weights, list | tuple) and (not weights or any(layer is None for layer in weights)):
        raise InputError(
            "there are no attention weights: transformers returns none unless the model was loaded with "
            'attn_implementation="eager"; load() and wrap() work with any implementation'
        )
    if isinstance(weights, list | tuple) and hasattr(weights[0], "shape"):
        layers = as_layers(weights, "the weights")
        for number, layer in enumerate(layers):
            if layer.ndim not in (3, 4) or layer.ndim != layers[0].ndim:
                raise InputError(f"layer {number} of the weights has shape {tuple(layer.shape)}: expected {LAYER_AXES}")
    else:
        array = as_array(weights, "weights")
        if array.ndim == 5:
            raise InputError(
                f"weights have shape {tuple(array.shape)}, and five axes may be [layer, batch, …] or [batch, layer, …]: "
                "give one array [batch, head, query, key] per layer, such as the tuple outputs.attentions of transformers, "
                "or list(weights) if layers come first"
            )
        if array.ndim != 4:
            raise InputError(
                f"weights have shape {tuple(array.shape)}: expected {ARRAY_AXES}; add the missing axes, "
                "for example weights[:, None] if the heads are already averaged"
            )
        layers = list(array)
    if not layers:
        raise InputError(f"weights have no layers: expected {ARRAY_AXES}, with at least one layer")
    check_batch(layers, 3, "the weights")
    for number, layer in enumerate(layers):
        if 0 in layer.shape:
            raise InputError(f"layer {number} of the weights has shape {tuple(layer.shape)}: an axis is empty")
        if number and layer.shape[-1] != layers[number - 1].shape[-2]:
            raise InputError(_misfit(number, layer.shape, layers[number - 1].shape))
        _check_numbers(layer, f"layer {number} of the weights", infinite=False)
    _check_rows(layers, _rounding(weights), strict)
    return layers


def graph_layers(A: Any, infinite: bool = False) -> tuple[list[Array], bool]:
    """Return one checked matrix per layer (with a batch axis in front if A has one), and whether A was one array."""
    stacked = not (isinstance(A, list | tuple) and len(A) and hasattr(A[0], "shape"))
    if stacked:
        array = as_array(A, "the graph")
        if array.ndim not in (3, 4):
            raise InputError(
                f"the graph has shape {tuple(array.shape)}: expected [layer, query, key] or [batch, layer, query, key]"
                "; attention_graph() makes one from attention weights"
            )
        layers = [array[..., number, :, :] for number in range(array.shape[-3])]
    else:
        layers = as_layers(A, "the graph")
    if not layers:
        raise InputError("the graph has no layers: expected at least one matrix [query, key]")
    check_batch(layers, 2, "the graph")
    for number, layer in enumerate(layers):
        if layer.ndim not in (2, 3) or 0 in layer.shape:
            raise InputError(
                f"layer {number} of the graph has shape {tuple(layer.shape)}: expected [query, key] with both at least 1"
            )
        if number and layer.shape[-1] != layers[number - 1].shape[-2]:
            raise InputError(_misfit(number, layer.shape, layers[number - 1].shape))
        _check_numbers(layer, f"layer {number} of the graph", infinite)
    return layers, stacked


def level_widths(layers: Sequence[Array]) -> list[int]:
    """Return the number of positions at each level, input first."""
    return [int(layers[0].shape[-1]), *(int(layer.shape[-2]) for layer in layers)]


def _misfit(number: int, upper: Sequence[int], lower: Sequence[int]) -> str:
    return (
        f"layer {number} has {upper[-1]} keys but layer {number - 1} below it has {lower[-2]} queries: "
        "expected the same number, because the keys of a layer are the positions of the layer below"
    )


def _check_numbers(x: Array, what: str, infinite: bool) -> None:
    values = x.detach() if is_tensor(x) else x
    if values.min() >= 0 and (infinite or values.max() < np.inf):
        return  # a NaN fails both comparisons
    for wrong, name in ((values != values, "NaN"), (values < 0, "negative")):
        if wrong.any():
            at = tuple(int(axis[0]) for axis in np.nonzero(np.asarray(wrong.cpu() if is_tensor(wrong) else wrong)))
            raise InputError(f"{what} is {name} at {list(at)}: expected non-negative numbers")
    raise InputError(f"{what} contains infinity: expected finite numbers (only flow takes infinite capacities)")


def _rounding(weights: Any) -> float:
    """Return how far the sum of a row may be from one because of its number format alone."""
    parts = weights if isinstance(weights, list | tuple) else [weights]
    return 0.02 if any("float16" in str(getattr(part, "dtype", "")) for part in parts) else 1e-4


def _check_rows(layers: Sequence[Array], tolerance: float, strict: bool) -> None:
    worst, where = 0.0, 0
    for number, layer in enumerate(layers):
        values = layer.detach() if is_tensor(layer) else layer
        deviation = float(abs(values.sum(-1) - 1).max())
        if deviation > worst:
            worst, where = deviation, number
    if worst <= tolerance:
        return
    message = (
        f"rows of the attention weights do not sum to one: the largest deviation is {worst:.3g}, in layer {where}. "
        "Softmax rows do; dropout (training mode), masking after the softmax or transposed axes break this"
    )
    if strict:
        raise InputError(message)
    warnings.warn(message, AttentionWarning, stacklevel=4)


def _reduce(layer: Array, heads: str | Iterable[int]) -> Array:
    count = int(layer.shape[-3])
    if isinstance(heads, str):
        if heads == "mean":
            return layer.mean(-3)
        if heads in ("max", "min"):
            extreme = getattr(layer, f"a{heads}")(-3) if is_tensor(layer) else getattr(layer, heads)(-3)
            total = extreme.sum(-1)[..., None]
            return extreme / (total + (total == 0))
        raise InputError(f'heads={heads!r}: expected "mean", "max", "min" or a list of heads from 0 to {count - 1}')
    chosen = indices(heads, count, "head")
    if not chosen:
        raise InputError(f"heads is an empty list: expected heads from 0 to {count - 1}")
    return layer[..., chosen, :, :].mean(-3)


def _add_residual(layer: Array, residual: float, number: int) -> Array:
    queries, keys = layer.shape[-2:]
    if residual and queries != keys:
        raise InputError(
            f"layer {number} has {queries} queries and {keys} keys: a residual connection joins equal positions, "
            "so give residual=0 and add the residual edges yourself"
        )
    return with_residual(layer, residual)


def _groups_per_level(groups: Any, widths: list[int]) -> list[np.ndarray[Any, Any]]:
    if len(set(widths)) == 1:
        return [_membership(groups, widths[0])] * len(widths)
    of_levels = _listed(groups)
    if len(of_levels) != len(widths):
        raise InputError(
            f"the levels of this graph have {widths} positions: expected one list of groups for each of the "
            f"{len(widths)} levels, input first; got {len(of_levels)}"
        )
    return [_membership(of_level, width) for of_level, width in zip(of_levels, widths, strict=True)]


def _listed(groups: Any) -> list[Any]:
    try:
        return list(groups.tolist() if hasattr(groups, "tolist") else groups)
    except TypeError:
        raise InputError(
            f"groups={groups!r}: expected a list of lists of positions, or one label per position"
        ) from None


def _membership(groups: Any, width: int) -> np.ndarray[Any, Any]:
    """Return [group, position]: one if the position is in the group."""
    groups = _listed(groups)
    if not all(isinstance(group, list | tuple | set | range | np.ndarray) for group in groups):
        if len(groups) != width:
            raise InputError(f"groups has {len(groups)} labels: expected one for each of {width} positions")
        places: dict[object, list[int]] = {}
        try:
            for position, label in enumerate(groups):
                places.setdefault(("alone", position) if label is None else label, []).append(position)
        except TypeError:
            raise InputError(
                "groups mixes lists and labels: expected only lists of positions, or only labels"
            ) from None
        groups = list(places.values())
    member = np.zeros((len(groups), width))
    for g, group in enumerate(groups):
        chosen = indices(list(group), width, "position")
        if not chosen:
            raise InputError(f"group {g} is empty: expected at least one position")
        member[g, chosen] = 1
    times = member.sum(axis=0)
    if (times != 1).any():
        p = int(np.argmax(times != 1))
        raise InputError(
            f"position {p} is in {int(times[p])} groups: expected each of {width} positions in exactly one"
        )
    return member
