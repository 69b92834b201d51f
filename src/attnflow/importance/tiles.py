"""The patches of an image as squares of its pixels: which positions they are, how they are covered and embedded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.encode import patch_size
from attnflow.errors import InputError, ModelError

if TYPE_CHECKING:
    from attnflow.capture.inputs import Encoded
    from attnflow.capture.runner import Runner

COVER = "mean"


@dataclass(frozen=True)
class Tiles:
    """The patches of one image.

    rows, columns: those of the patches.
    height, width: the pixels of one patch.
    before: the number of positions before the patches: class and register tokens, which have no pixels.
    """

    rows: int
    columns: int
    height: int
    width: int
    before: int

    @property
    def count(self) -> int:
        return self.rows * self.columns

    def numbers(self, pixels: Tensor) -> Tensor:
        """Return the patch of each pixel, [1, 1, height, width]. Pixels past the last patch, which no model reads, get
        the nearest one."""
        down = torch.arange(pixels.shape[-2], device=pixels.device).div(self.height, rounding_mode="floor")
        right = torch.arange(pixels.shape[-1], device=pixels.device).div(self.width, rounding_mode="floor")
        return (down.clamp(max=self.rows - 1)[:, None] * self.columns + right.clamp(max=self.columns - 1))[None, None]

    def sums(self, values: Tensor) -> Tensor:
        """Sum values over the channels and pixels of each patch: [row, channel, height, width] -> [row, position]."""
        high, wide = self.rows * self.height, self.columns * self.width
        squares = values.sum(1)[:, :high, :wide].reshape(-1, self.rows, self.height, self.columns, self.width)
        return self.positions(squares.sum((2, 4)).flatten(1))

    def positions(self, patches: Tensor) -> Tensor:
        """Return values of patches, [row, patch, …], as values of positions, with 0 where there are no pixels."""
        front = patches.new_zeros(len(patches), self.before, *patches.shape[2:])
        return torch.cat([front, patches], 1)


@dataclass(frozen=True)
class Cover:
    """What covers a patch: 0 in normalised pixels, the mean colour that the image processor subtracts (black if none)."""

    name: str = COVER

    def over(self, pixels: Tensor, tiles: Tiles, positions: Sequence[int]) -> Tensor:
        """Return pixels [1, channel, height, width] with the patches at these positions covered."""
        covered = torch.isin(tiles.numbers(pixels), torch.tensor(positions, device=pixels.device) - tiles.before)
        return torch.where(covered, 0, pixels)


def cover_of(by: Any) -> Cover:
    """Return the cover that a user names."""
    if by not in (None, COVER):
        raise InputError(
            f"by={by!r}: a patch of an image is covered by the image processor's mean colour; leave by out"
        )
    return Cover()


def is_image(encoded: Encoded) -> bool:
    """Return whether an input is an image and nothing else."""
    return "pixel_values" in encoded.tensors and "input_ids" not in encoded.tensors


def tiled(model: Runner, encoded: Encoded) -> tuple[Encoded, Tiles]:
    """Return an image labelled like its trace, and its patches.

    A model whose attention cannot be traced still has patches; there are then no labels for its other tokens.
    """
    pixels, size = encoded.tensors["pixel_values"], patch_size(model)
    if encoded.patches is None or size is None or pixels.dim() != 4:
        raise ModelError(_refusal(model, f"reads pixel_values of shape {tuple(pixels.shape)}"))
    try:
        labels = model.run_batch([encoded], measure=False).passed(0)
    except ModelError:
        count = len(encoded.tokens)
        alone = replace(encoded, special=(False,) * count, word_ids=tuple(range(count)), word_texts=encoded.tokens)
        return alone, Tiles(*encoded.patches, *size, 0)
    if labels.patches is None:
        raise ModelError(_refusal(model, f"has {len(labels.tokens)} positions"))
    encoded = replace(
        encoded, tokens=labels.tokens, special=labels.special, word_ids=labels.word_ids, word_texts=labels.word_texts
    )
    rows, columns = labels.patches
    return encoded, Tiles(rows, columns, *size, len(labels.tokens) - rows * columns)


def _refusal(model: Runner, what: str) -> str:
    return (
        f"{model!r} {what}, which are not one for each patch of an image: expected an image classifier whose last "
        "positions are patches, such as ViT; use raw attention or rollout of a trace"
    )


def patch_layers(model: Runner, tiles: Tiles) -> list[torch.nn.Module]:
    """Return the convolutions that could embed these patches, each from its own pixels alone."""
    size = (tiles.height, tiles.width)
    layers: list[torch.nn.Module] = [
        module
        for module in model.model.modules()
        if isinstance(module, torch.nn.Conv2d)
        and module.kernel_size == module.stride == size
        and module.padding in ((0, 0), "valid")
    ]
    if not layers:
        raise ModelError(
            f"gradients need the convolution that embeds patches of {size[0]} × {size[1]} pixels, and "
            f"{type(model.model).__name__} has none: use blank_out, which needs no gradients"
        )
    return layers
