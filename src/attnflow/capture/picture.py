"""An image within a text: which positions of a vision-language model stand for which of its patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from attnflow._arrays import FloatArray
from attnflow.errors import InputError


@dataclass(frozen=True)
class Picture:
    """An image within a text. rows, columns: of the places that stand for it. places: their positions, row by row."""

    rows: int
    columns: int
    places: tuple[int, ...]

    def laid_out(self, values: Sequence[float] | FloatArray) -> FloatArray:
        """Values over all inputs as those of the image alone: ``[row, column]``.

        >>> Picture(1, 2, (1, 2)).laid_out([0.5, 0.25, 0.125, 0.125])
        array([[0.25 , 0.125]])
        """
        row = np.asarray(values)
        if row.ndim != 1 or len(row) <= max(self.places):
            raise InputError(
                f"values of shape {row.shape}: expected one row over all inputs, more than {max(self.places)} of them"
            )
        laid: FloatArray = row[list(self.places)].reshape(self.rows, self.columns)
        return laid


def picture_of(config: Any, tensors: Mapping[str, Tensor], patch: tuple[int, int] | None) -> Picture | None:
    """The one image that stands within a text; None where there is none, several, or nobody knows how it lies.

    Models put as many of one token into the text as the image has patches, or a fraction of them where they merge squares
    of patches (2×2 in Qwen2-VL, 4×4 in SmolVLM).
    """
    ids = tensors.get("input_ids")
    token = next((n for name in ("image_token_id", "image_token_index") if (n := getattr(config, name, None))), None)
    size = _patches(tensors, patch)
    if ids is None or token is None or size is None:
        return None
    places = [i for i, number in enumerate(ids[0].tolist()) if number == token]
    rows, columns = size
    for side in range(1, min(size) + 1):
        if rows % side == 0 and columns % side == 0 and rows * columns == side * side * len(places):
            return Picture(rows // side, columns // side, tuple(places))
    return None


def _patches(tensors: Mapping[str, Tensor], patch: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns of the patches of the only image."""
    sizes = tensors.get("image_grid_thw")
    if sizes is not None:  # [image, (frames, rows, columns)], pixels already cut into patches
        frames, rows, columns = (int(n) for n in sizes[0].tolist())
        return (rows, columns) if len(sizes) == 1 and frames == 1 else None
    pixels = tensors.get("pixel_values")
    if pixels is None or patch is None or pixels.dim() not in (4, 5) or int(np.prod(pixels.shape[:-3])) != 1:
        return None
    return int(pixels.shape[-2]) // patch[0], int(pixels.shape[-1]) // patch[1]
