"""The image that a vision model saw, small enough to be kept: pages and figures draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from attnflow.capture.runner import Runner

PHOTO = 448
"""Longer side of an image on a page, in pixels: about 400 KB of the file."""


def photo(model: Runner, picture: Any, tensors: Mapping[str, Tensor]) -> FloatArray | None:
    """Return the image as the model saw it, uint8 [height, width, 3]. If it was only scaled, keep its proportions.

    picture: the image as it was given; tensors: as it was encoded. None if neither can be shown.
    """
    pixels = tensors.get("pixel_values")
    if pixels is not None and pixels.dim() == 5 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]  # a list of images with one entry
    if pixels is None:
        return None
    processor = getattr(model.processor, "image_processor", model.processor)
    whole = None if processor is None or _crops(processor) else _as_photo(picture)
    if whole is not None or pixels.dim() != 4:
        return whole
    image = np.nan_to_num(pixels[0].detach().float().cpu().numpy().transpose(1, 2, 0))
    if image.shape[2] not in (1, 3):  # no colours that could be shown
        return None
    mean, spread = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if mean is not None and spread is not None and getattr(processor, "do_normalize", True):
        image = image * np.asarray(spread) + np.asarray(mean)
    else:
        low, high = float(image.min()), float(image.max())
        image = (image - low) / (high - low or 1.0)
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    shown: FloatArray = (image.clip(0, 1) * 255).round().astype(np.uint8)
    return shown


def _crops(processor: Any) -> bool:
    """Return whether patches cover something other than exactly the whole image."""
    return any(getattr(processor, name, None) for name in ("do_center_crop", "do_pad", "do_image_splitting"))


def _as_photo(picture: Any) -> FloatArray | None:
    """Return a PIL image, array or file as pixels, no larger than a page needs; None if it is not an image."""
    from attnflow.capture.images import read_image

    try:
        from PIL import Image
    except ImportError:
        return None
    picture = read_image(picture)
    if isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3:
        picture = Image.fromarray(picture)
    if not isinstance(picture, Image.Image):
        return None
    small = picture.convert("RGB")
    small.thumbnail((PHOTO, PHOTO))
    shown: FloatArray = np.asarray(small)
    return shown
