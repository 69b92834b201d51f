"""Fingerprints of tensors, which change when any value does, however it was written: in place, by `.data` or by NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

CHUNK = 1 << 27  # bytes that are mixed at a time on a GPU
MIX = -0x61C8864680B583EB  # odd, with evenly spread bits


def fingerprint(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Return a checksum of the values of each tensor, whatever its layout in memory.

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
    flat = x.contiguous().reshape(-1).view(torch.uint8)
    if flat.device.type == "cpu":
        return zlib.crc32(flat.numpy())
    total = 0
    for part in flat.split(CHUNK):
        words = torch.nn.functional.pad(part, (0, -len(part) % 8)).view(torch.int64) * MIX
        mixed = (words ^ (words >> 29)) * torch.arange(1, 2 * len(words), 2, device=words.device)
        total = hash((total, int(mixed.sum())))
    return total
