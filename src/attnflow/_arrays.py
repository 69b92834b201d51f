"""Helpers for code that takes numpy arrays and torch tensors. They never import torch: a tensor means it is loaded."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.floating[Any]]

Array = Any
"""A numpy array or a torch tensor, in code that treats them alike."""

ArrayT = TypeVar("ArrayT", "NDArray[Any]", "Tensor")
"""One of the two: the result has the type of the argument."""


def is_tensor(x: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_array(x: Any, what: str) -> Array:
    """Return a floating-point tensor or array. Half precision and integers are widened; nothing is narrowed."""
    if is_tensor(x):
        torch = sys.modules["torch"]
        if x.layout != torch.strided or x.is_complex() or x.device.type == "meta":
            raise InputError(
                f"{what} is a {x.layout} tensor of {x.dtype} on {x.device}: expected a dense tensor of reals"
            )
        if not x.is_floating_point():
            return x.to(torch.float64)
        return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    if isinstance(x, np.ma.MaskedArray):
        raise InputError(
            f"{what} is a masked array: expected plain numbers, so fill it first (with 0 for masked entries)"
        )
    try:
        array = np.asarray(x)
        if array.dtype.kind not in "fiubO" or array.dtype.itemsize > 8:
            raise TypeError
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InputError(
            f"{what} cannot be read as an array of numbers: got {_described(x)}, expected an array, a tensor or nested "
            "lists of equal lengths"
        ) from None
    return array


def _described(x: Any) -> str:
    return f"an array of {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__


def as_layers(layers_in: Any, what: str) -> list[Array]:
    """Return one array per layer: all numpy or all torch, of one precision and one batch size."""
    layers = [as_array(layer, f"layer {number} of {what}") for number, layer in enumerate(layers_in)]
    tensors = [is_tensor(layer) for layer in layers]
    if any(tensors) and not all(tensors):
        raise InputError(f"{what} mixes numpy arrays and torch tensors: expected all layers of one kind")
    if len({layer.dtype for layer in layers}) > 1:
        torch = sys.modules.get("torch")
        layers = [
            layer.to(torch.float64) if is_tensor(layer) and torch else layer.astype(np.float64) for layer in layers
        ]
    return layers


def check_batch(layers: Sequence[Array], axes: int, what: str) -> None:
    """Check that all layers have the same leading axes (none, or a batch) and that no batch is empty."""
    for number, layer in enumerate(layers):
        batch, first = tuple(layer.shape[:-axes]), tuple(layers[0].shape[:-axes])
        if batch != first:
            raise InputError(
                f"layer {number} of {what} has batch {list(batch)}, layer 0 has {list(first)}: expected the same"
            )
        if 0 in batch:
            raise InputError(f"{what} is an empty batch: expected at least one")


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """Return a float64 numpy array on the host, without gradient."""
    if is_tensor(x):
        x = x.detach().cpu().numpy()
    return np.asarray(x, dtype=np.float64)


def stack(arrays: Sequence[Array], axis: int) -> Array:
    if is_tensor(arrays[0]):
        return sys.modules["torch"].stack(list(arrays), dim=axis)
    return np.stack(arrays, axis=axis)


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    if is_tensor(arrays[0]):
        return sys.modules["torch"].cat(list(arrays), dim=axis)
    return np.concatenate(arrays, axis=axis)


def eye_like(x: Array, n: int) -> Array:
    if is_tensor(x):
        return sys.modules["torch"].eye(n, dtype=x.dtype, device=x.device)
    return np.eye(n, dtype=x.dtype)


def indices(numbers: int | Iterable[int] | None, size: int, what: str) -> list[int]:
    """Return positions as a list of non-negative ints; negative ones count from the end, None means all.

    >>> indices([0, -1], 4, "query")
    [0, 3]
    """
    if numbers is None:
        return list(range(size))
    chosen = positions(numbers, what)
    for i in chosen:
        if not -size <= i < size:
            raise InputError(f"{what} {i} does not exist: there are {size}, so expected {-size} to {size - 1}")
    return [i % size for i in chosen]


def positions(numbers: int | Iterable[int], what: str) -> list[int]:
    """Return one int or several as a list. Iterators are read once, so that all layers can use them."""
    try:
        if hasattr(numbers, "__index__") and not hasattr(numbers, "__len__"):
            numbers = [numbers]  # type: ignore[list-item]
        items = [i for i in numbers]  # type: ignore[union-attr]  # noqa: C416
        if any(isinstance(i, bool | np.bool_) or str(getattr(i, "dtype", "")) == "torch.bool" for i in items):
            raise TypeError
        return [i.__index__() for i in items]
    except (TypeError, AttributeError):
        shown = repr(numbers) if len(repr(numbers)) < 60 else type(numbers).__name__
        raise InputError(f"{what}={shown} is not a position: expected an int or a list of ints") from None


def finite_number(x: Any) -> float | None:
    """Return a real number of any type as a float; None for a bool, a non-number or a number too large for a float.

    >>> finite_number(np.float32(0.5)), finite_number(10**400), finite_number(True), finite_number("1")
    (0.5, None, None, None)
    """
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        return None
    try:
        value = float(x)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def index(number: int, size: int, what: str) -> int:
    """Return one position, like `indices`."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InputError(f"{what}={number!r} is not a position: expected one int")
    return indices(number, size, what)[0]
