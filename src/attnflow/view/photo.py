"""The picture that a vision model saw, for its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray

if TYPE_CHECKING:
    from attnflow.model import Model

PHOTO = 448
"""The longer side of a photo on a page, in pixels: some 400 KB of a file."""


def seen(model: Model, picture: Any) -> FloatArray | None:
    """The image as the model saw it, cropped and scaled; in its own proportions where it was scaled alone: uint8 [height,
    width, 3]."""
    from attnflow.capture import encode

    encoded = encode.encode(model, picture, None, False, None)
    pixels = encoded.tensors.get("pixel_values")
    if pixels is not None and pixels.dim() == 5 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]  # of several images, the only one
    if pixels is None or pixels.dim() != 4:
        return None
    image = pixels[0].float().cpu().numpy().transpose(1, 2, 0)
    processor = getattr(model.processor, "image_processor", model.processor)
    whole = None if processor is None or _crops(processor) else _as_photo(picture)
    if whole is not None:
        return whole
    mean, spread = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if mean is not None and spread is not None and getattr(processor, "do_normalize", True):
        image = image * np.asarray(spread) + np.asarray(mean)
    else:
        low, high = float(image.min()), float(image.max())
        image = (image - low) / (high - low or 1.0)
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    shown: FloatArray = (image[:, :, :3].clip(0, 1) * 255).round().astype(np.uint8)
    return shown


def _crops(processor: Any) -> bool:
    """Whether patches cover another part of the image than all of it."""
    return any(getattr(processor, name, None) for name in ("do_center_crop", "do_pad", "do_image_splitting"))


def _as_photo(picture: Any) -> FloatArray | None:
    """A picture of PIL, or of a file, no larger than a page needs; None of what is no picture."""
    try:
        from PIL import Image
    except ImportError:
        return None
    if isinstance(picture, str | Path):
        picture = Image.open(picture)
    elif isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        picture = Image.fromarray(picture)
    if not isinstance(picture, Image.Image):
        return None
    photo = picture.convert("RGB")
    photo.thumbnail((PHOTO, PHOTO))
    shown: FloatArray = np.asarray(photo)
    return shown
