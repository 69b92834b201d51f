"""Fingerprints of tensors, which change when any value does, however it was written: in place, by `.data` or by NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Return one number for each tensor: the sum of its bits, each row weighted by its place.

    This reads every value once, which costs less than one token's pass through the same weights.

    >>> x = torch.ones(2, 3)
    >>> before = fingerprint([x])
    >>> x.numpy()[1, 2] = 5
    >>> fingerprint([x]) == before
    False
    """
    return tuple(_bits(part) for x in tensors for part in _plain(x.detach()))


def fingerprint_of_weights(model: torch.nn.Module) -> tuple[int, ...]:
    """Return the fingerprint of a model's parameters, and of buffers that are saved with it (quantized weights).

    Other buffers, such as rotary frequencies, may depend on the length of the text. Weights that are offloaded to disk
    have no values here and count as unchanged.
    """
    return fingerprint(_weights(model))


def _weights(model: torch.nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    for module in model.modules():
        passing = module._non_persistent_buffers_set
        yield from (x for name, x in module._buffers.items() if x is not None and name not in passing)


def _plain(x: Tensor) -> Iterator[Tensor]:
    """Yield the strided tensors that a tensor consists of: quantized ones have several."""
    if hasattr(x, "__tensor_flatten__"):
        for name in x.__tensor_flatten__()[0]:
            yield from _plain(getattr(x, name))
    elif x.layout == torch.strided and not x.is_meta and x.numel():
        yield torch.view_as_real(x) if x.is_complex() else x


def _bits(x: Tensor) -> int:
    x = x.reshape(1) if x.dim() == 0 else x
    try:
        bits = x.view(torch.int64)  # eight bytes at a time
    except RuntimeError:  # rows that do not divide into eights
        bits = x.view(WHOLE[x.element_size()])
    rows = (bits if x.dim() == 1 else bits.sum(-1, dtype=torch.int64)).flatten().long()
    return int((rows * torch.arange(1, 2 * len(rows), 2, device=rows.device)).sum())
