"""Receptive-field normalisation: token attention relative to what uniform attention under the same mask would give.

Under a causal mask early tokens are seen by every later query and along more paths, so rollout and flow favour them
whatever the model does. The paper names the remedy (section 5) and leaves it open; these are three ways to do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attnflow._arrays import Array, ArrayT, is_tensor
from attnflow.errors import InputError

ResultT = TypeVar("ResultT", bound=Any)

MODES = ("ratio", "difference", "layer")


def check_mode(mode: str | None) -> None:
    if mode is not None and mode not in MODES:
        raise InputError(f"receptive_field={mode!r}: expected one of {', '.join(map(repr, MODES))}, or None for none")


def uniform(layer: ArrayT) -> ArrayT:
    """Return attention that sees the same positions and prefers none: ``U[q, k] = [W[q, k] > 0] / keys that q sees``.

    A weight that has underflowed to zero in all heads counts as not seen.

    >>> import numpy as np
    >>> uniform(np.array([[1.0, 0.0], [0.9, 0.1]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    weights: Array = layer
    seen = (weights > 0).to(weights.dtype) if is_tensor(layer) else (weights > 0).astype(weights.dtype)
    count = seen.sum(-1)[..., None]
    shares: ArrayT = seen / (count + (count == 0))
    return shares


def layerwise(layer: ArrayT) -> ArrayT:
    """Return each key's weight divided by what uniform attention sends to that key; rows keep their sums.

    ``W'[q, k] ∝ W[q, k] / Σ_q' U[q', k]``, with U from `uniform`.

    >>> import numpy as np
    >>> layerwise(np.array([[1.0, 0.0], [0.5, 0.5]])).tolist()
    [[1.0, 0.0], [0.25, 0.75]]
    """
    received = uniform(layer).sum(-2)[..., None, :]
    scaled = layer / (received + (received == 0))
    total = scaled.sum(-1)[..., None]
    corrected: ArrayT = scaled * (layer.sum(-1)[..., None] / (total + (total == 0)))
    return corrected


def relative(method: Callable[[Sequence[ArrayT]], ResultT], layers: Sequence[ArrayT], mode: str | None) -> ResultT:
    """Return the token attention of attention weights ``layers``, relative to their receptive field.

    ``method`` turns the weights of all layers into token attention T; it adds the residual connection itself. With
    U = ``method`` of the `uniform` weights:

    None: ``T``.
    "ratio": ``T / U``. One means as much as the mask alone explains. 0 if U is 0.
    "difference": ``T - U``, signed: what the model adds to the mask.
    "layer": ``method`` of the `layerwise` weights: each layer is corrected before anything is propagated.
    """
    check_mode(mode)
    if mode is None:
        return method(layers)
    if mode == "layer":
        return method([layerwise(layer) for layer in layers])
    values: ResultT = compared(method(layers), method([uniform(layer) for layer in layers]), mode)
    return values


def compared(values: ArrayT, field: ArrayT, mode: str) -> ArrayT:
    """Return ``T - U`` for "difference", else ``T / U``, 0 if U is 0."""
    gain: ArrayT = values - field if mode == "difference" else values / (field + (field == 0)) * (field > 0)
    return gain
