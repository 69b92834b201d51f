"""Shifted windows (Swin): windowed attention as one matrix over all patches, and merging of patches between stages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnflow.capture.collect import Call
from attnflow.capture.passes import Step
from attnflow.errors import ModelError


def is_windowed(model: Any, call: Call) -> bool:
    """Return whether the call belongs to a block with a window and a shift."""
    return has_windows(model, call.path)


def has_windows(model: Any, path: str) -> bool:
    """Return whether the attention at this path has windows, before it is called."""
    block = _block(model, path)
    return hasattr(block, "shift_size") and hasattr(block, "window_size")


def _block(model: Any, path: str) -> Any:
    parts = path.split(".")
    last = max((i for i, part in enumerate(parts) if part.isdigit()), default=None)
    try:
        return None if last is None else model.get_submodule(".".join(parts[: last + 1]))
    except AttributeError:  # a path that names a layer but no module
        return None


def unwindowed(model: Any, call: Call, patches: tuple[int, int]) -> Tensor:
    """Convert [window, query, key] -> [query, key] over all patches; zero between windows.

    Attention to the padding at the edge of the image belongs to no patch, so such rows sum to less than one.
    """
    assert call.mean is not None
    block = _block(model, call.path)
    size, shift = int(block.window_size), int(block.shift_size)
    rows, columns = patches
    window = round(call.mean.shape[-1] ** 0.5)
    if window != size:
        raise ModelError(f"{call.path} has windows of {window}×{window} positions, but its block says {size}×{size}")
    high, wide = -(-rows // size) * size, -(-columns // size) * size
    place = torch.full((high, wide), -1, dtype=torch.long)
    place[:rows, :columns] = torch.arange(rows * columns).reshape(rows, columns)
    if shift:
        place = torch.roll(place, (-shift, -shift), (0, 1))
    windows = place.reshape(high // size, size, wide // size, size).transpose(1, 2).reshape(-1, size * size)
    if windows.shape[0] != call.mean.shape[0]:
        raise ModelError(
            f"{call.path} has {call.mean.shape[0]} windows, but {rows}×{columns} patches make {windows.shape[0]}"
        )
    matrix = call.mean.new_zeros(rows * columns + 1, rows * columns + 1)  # the last one takes the padding
    index = windows.to(call.mean.device)
    matrix[index[:, :, None].expand_as(call.mean), index[:, None, :].expand_as(call.mean)] = call.mean
    return matrix[:-1, :-1]


def merging_step(patches: tuple[int, int], like: Tensor | None) -> tuple[Step, tuple[int, int]]:
    """Merge four neighbours into one position, each with the same share."""
    assert like is not None
    rows, columns = patches
    smaller = (-(-rows // 2), -(-columns // 2))
    r = torch.arange(rows)[:, None].expand(rows, columns).reshape(-1)
    c = torch.arange(columns)[None, :].expand(rows, columns).reshape(-1)
    matrix = like.new_zeros(smaller[0] * smaller[1], rows * columns)
    matrix[((r // 2) * smaller[1] + c // 2).to(like.device), torch.arange(rows * columns, device=like.device)] = 1
    return Step(matrix / matrix.sum(-1, keepdim=True), residual=False), smaller
