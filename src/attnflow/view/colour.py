"""The colour ramp for the terminal and images, and overlays of patches on an image, as on the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.errors import InputError, a_type

# cividis: perceptually uniform, and readable with colour blindness
RAMP = np.array(
    [
        (0, 32, 77), (0, 51, 111), (57, 72, 107), (87, 92, 109), (112, 113, 115),
        (138, 135, 121), (166, 157, 117), (196, 181, 108), (228, 207, 91), (255, 234, 70),
    ]
)  # fmt: skip


# as in web/src/image-lead.js: warm colours support, blue counts against, and both stand out on a grey image
WARM = np.array([(255, 196, 64), (222, 48, 16)])
COOL = np.array([(120, 190, 255), (24, 78, 200)])
MOST = 0.7  # opacity of the largest value over an image, which stays visible; there is none below a plain grid
PLAIN = 0.03  # weaker patches get no overlay


def overlay_colours(x: FloatArray, over_image: bool) -> FloatArray:
    """Map shares from -1 to 1 to colours over a grey image or over white: RGBA from 0 to 1 on a new last axis.

    >>> overlay_colours(np.array([0.0, 1.0, -1.0]), over_image=True)[:, 3].tolist()
    [0.0, 0.7, 0.7]
    """
    size = np.minimum(np.abs(np.nan_to_num(x)), 1)[..., None]
    low, high = (np.where(np.nan_to_num(x)[..., None] < 0, COOL[i], WARM[i]) for i in (0, 1))
    opacity = np.where(size >= PLAIN, (MOST if over_image else 1) * size**0.7, 0)
    return np.concatenate([(low + (high - low) * size) / 255, opacity], axis=-1)


def shares(x: FloatArray) -> FloatArray:
    """Scale values from 0 at the lowest to 1 at the highest. Equal values all become 0; NaN stays NaN.

    >>> shares(np.array([2.0, 3.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    x = x.astype(np.float64)
    low, high = np.nanmin(x), np.nanmax(x)
    scaled: FloatArray = (x - low) / (high - low) if high > low else x * 0.0
    return scaled


def signed_shares(x: FloatArray) -> FloatArray:
    """Divide values by the largest absolute value if some are below 0; otherwise scale as `shares` does.

    >>> signed_shares(np.array([-2.0, 1.0, 4.0])).tolist()
    [-0.5, 0.25, 1.0]
    """
    if float(np.nanmin(x)) >= 0:
        return shares(x)
    scaled: FloatArray = x.astype(np.float64) / float(np.nanmax(np.abs(x)))
    return scaled


def colours(x: FloatArray) -> FloatArray:
    """Map numbers from 0 to 1 to colours of the ramp: RGB from 0 to 255 on a new last axis.

    >>> colours(np.array([0.0, 1.0])).tolist()
    [[0.0, 32.0, 77.0], [255.0, 234.0, 70.0]]
    """
    at = np.linspace(0, 1, len(RAMP))
    return np.stack([np.interp(x, at, channel) for channel in RAMP.T], axis=-1)


def ink(colour: Sequence[float]) -> str:
    """Return black or white, whichever is more readable on an RGB colour from 0 to 255.

    >>> ink((255, 234, 70)), ink((0, 32, 77))
    ('#000000', '#ffffff')
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # the contrasts of white, 1.05 / (luminance + 0.05), and black, (luminance + 0.05) / 0.05, are equal at this luminance
    return "#000000" if luminance > 0.179 else "#ffffff"


def _stretch(n: int, size: int) -> FloatArray:
    """Return the matrix [size, n] of linear interpolation from n patch centres to `size` pixel centres."""
    at = (np.arange(size) + 0.5) * n / size - 0.5
    return np.stack([np.interp(at, np.arange(n), unit) for unit in np.eye(n)], axis=1)


def pixels_of(image: Any) -> FloatArray:
    """Return the image as [height, width, 3] from 0 to 255."""
    # a PIL image with a palette would give colour indices
    try:
        pixels = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
    except (TypeError, ValueError):
        raise InputError(f"the image is {a_type(image)} and no array: expected an array or a PIL image") from None
    if pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or 0 in pixels.shape:
        raise InputError(
            f"the image has shape {pixels.shape}: expected [height, width] or [height, width, 3], or a PIL image"
        )
    if pixels.dtype.kind == "f" and pixels.min() >= 0 and pixels.max() <= 1:
        pixels = pixels * 255.0
    elif pixels.dtype != np.uint8:
        span = f" from {pixels.min():.4g} to {pixels.max():.4g}" if pixels.dtype.kind in "iuf" else ""
        raise InputError(f"the image contains {pixels.dtype}{span}: expected uint8, or floats from 0 to 1")
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    return pixels.astype(np.float64)


def laid_over(image: Any, patches: FloatArray, alpha: float) -> FloatArray:
    """Return the image with the patches, enlarged and coloured, on top: uint8 [height, width, 3]."""
    pixels = pixels_of(image)
    height, width = pixels.shape[:2]
    # [height, row] @ [row, column] @ [column, width]
    smooth = _stretch(patches.shape[0], height) @ patches @ _stretch(patches.shape[1], width).T
    mixed = (1 - alpha) * pixels + alpha * colours(shares(smooth))
    return np.rint(mixed).astype(np.uint8)
