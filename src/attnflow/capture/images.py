"""Reading of images: files, PIL images and arrays become 8-bit RGB, whatever their depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError

KINDS = "expected a PIL image, an array [height, width, 3] or the path of an image file"


def read_image(image: object) -> object:
    """Return an image file or a PIL image as RGB, and an array with values from 0 to 255; anything else unchanged.

    A file is turned as its EXIF orientation says. A PIL image is not, because processors of transformers use it as it is.
    """
    if isinstance(image, list | tuple):
        raise InputError(f"image is a {type(image).__name__} of {len(image)}: expected one image")
    if isinstance(image, np.ndarray):
        return _as_bytes(image)
    try:
        from PIL import Image
    except ImportError:
        if not isinstance(image, str | Path):
            return image
        raise InputError("images need pillow: pip install 'attnflow[models]'") from None
    if isinstance(image, str | Path):
        return _read_file(image)
    return _as_rgb(image) if isinstance(image, Image.Image) else image


def _read_file(path: str | Path) -> Any:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            # cameras store pictures as the sensor lay and say how to turn them; transformers turns files too
            return _as_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise InputError(f"there is no image {str(path)!r}: expected the path of an image file") from None
    except Image.DecompressionBombError:
        raise InputError(f"{str(path)!r} has too many pixels to be opened safely: scale it down first") from None
    except (OSError, SyntaxError) as e:  # Pillow raises SyntaxError for damaged PNG files
        reason = "the file ends early" if "truncated" in str(e) else "expected a PNG or JPEG file"
        raise InputError(f"{str(path)!r} cannot be read as an image: {reason}") from None


def _as_rgb(image: Any) -> Any:
    """Return a PIL image as 8-bit RGB. Pillow itself would cut 16-bit values off at 255."""
    if image.mode[0] in "IF":  # 16 or 32 bits, or floats
        from PIL import Image

        values = np.asarray(image)
        if image.mode == "I" and values.size and 255 < values.max() <= 0xFFFF and values.min() >= 0:
            values = values.astype(np.uint16)  # older versions of Pillow open 16-bit files so
        image = Image.fromarray(_as_bytes(values))
    return image.convert("RGB")


def _as_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return pixels from 0 to 255. Floats may go from 0 to 1 or from 0 to 255; two bytes from 0 to 65,535."""
    if not pixels.size:
        raise InputError(f"the image has shape {pixels.shape}, so it has no pixels: {KINDS}")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.uint16:
        return (pixels / 257).round().astype(np.uint8)
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype.kind not in "iuf":
        raise InputError(f"the image is an array of {pixels.dtype}: expected numbers from 0 to 255, or from 0 to 1")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 255):  # NaN included
        raise InputError(
            f"the pixels of the image go from {low:.4g} to {high:.4g}: expected 0 to 255, or 0 to 1; give pixels that are "
            "normalised already as a tensor"
        )
    scale = 255 if pixels.dtype.kind == "f" and high <= 1 else 1
    return (pixels * scale).round().astype(np.uint8)
