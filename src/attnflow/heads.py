"""One head at a time: Appendix A.1 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import Array, ArrayT, index
from attnflow.errors import InputError
from attnflow.flow import flow
from attnflow.graph import graph_layers, reduced_graph, weight_layers
from attnflow.joint_flow import joint_flow
from attnflow.rollout import rollout

METHODS: dict[str, Callable[..., Any]] = {"rollout": rollout, "flow": flow, "joint_flow": joint_flow}


@overload
def single_head(
    weights: ArrayT | Sequence[ArrayT] | Mapping[int, ArrayT], layer: int, head: int,
    method: Literal["rollout"] = "rollout", queries: int | Iterable[int] | None = None, residual: float = 0.5,
) -> ArrayT: ...  # fmt: skip
@overload
def single_head(
    weights: Any, layer: int, head: int, method: str, queries: int | Iterable[int] | None = None, residual: float = 0.5
) -> NDArray[np.float64]: ...
def single_head(
    weights: Any,
    layer: int,
    head: int,
    method: str = "rollout",
    queries: int | Iterable[int] | None = None,
    residual: float = 0.5,
) -> Array:
    """Token attention of one head (Appendix A.1): ``Ã(i, k) = A(i, k) · Ã(i-1)``, and flow in the same graph.

    Heads mix in every feed-forward network, so all layers below layer i are taken as single-head layers (mean over
    heads), and only layer i is replaced by its head k.

    weights: as in `attention_graph`.
    layer, head: which; layers count from 0. The head gets the residual connection too.
    method: "rollout", "flow" or "joint_flow".
    queries: which positions to explain; None for all.
    residual: the weight of the residual connection, in all layers.

    Returns ``[query, input]``, with the batch axis in front if there is a batch.

    >>> import numpy as np, attnflow as af
    >>> W = np.stack([np.eye(2), np.ones((2, 2)) / 2])[None].repeat(2, axis=0)   # 2 layers of 2 heads
    >>> af.single_head(W, layer=1, head=0).tolist()
    [[0.875, 0.125], [0.125, 0.875]]
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}")
    layers = weight_layers(weights)
    layer = index(layer, len(layers), "layer")
    head = index(head, int(layers[layer].shape[-3]), "head")
    top, _ = graph_layers(reduced_graph([layers[layer]], [head], residual))
    below, _ = graph_layers(reduced_graph(layers[:layer], "mean", residual)) if layer else ([], True)
    values = METHODS[method]([*below, *top], queries=queries, layers=-1)
    return values[..., 0, :, :]
