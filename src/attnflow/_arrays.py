"""The few places where numpy arrays and torch tensors differ. torch is never imported here: a tensor brings it along."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnflow.errors import InputError

Array = Any
"""A numpy array or a torch tensor."""


def is_tensor(x: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_array(x: Any, what: str) -> Array:
    """A floating-point tensor or array; half precision and integers become wider, nothing becomes narrower."""
    if is_tensor(x):
        torch = sys.modules["torch"]
        if not x.is_floating_point():
            return x.to(torch.float64)
        return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    try:
        array = np.asarray(x)
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{what} cannot be read as an array of numbers: got {type(x).__name__}, expected an array, a tensor or nested "
            "lists of equal lengths"
        ) from None
    return array


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """A float64 numpy array without gradient, on the host."""
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


def indices(given: int | Iterable[int] | None, size: int, what: str) -> list[int]:
    """Positions as a list of non-negative ints; negative ones count from the end, None means all.

    >>> indices([0, -1], 4, "query")
    [0, 3]
    """
    if given is None:
        return list(range(size))
    try:
        wanted = [given] if isinstance(given, int | np.integer) else list(given)
        found = [i.__index__() for i in wanted]
    except (TypeError, AttributeError):
        raise InputError(f"{what}={given!r} is not a position: expected an int or a list of ints") from None
    for i in found:
        if not -size <= i < size:
            raise InputError(f"{what} {i} does not exist: there are {size}, so expected {-size} to {size - 1}")
    return [i % size for i in found]


def index(given: int, size: int, what: str) -> int:
    """One position, like `indices`."""
    if not isinstance(given, int | np.integer):
        raise InputError(f"{what}={given!r} is not a position: expected one int")
    return indices(given, size, what)[0]
