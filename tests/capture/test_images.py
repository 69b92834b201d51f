"""Images of any depth become the same pixels, and what has no pixels is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="images need pillow")
torch = pytest.importorskip("torch", reason="models need torch")

import attnflow as af  # noqa: E402
from attnflow.capture.images import read_image  # noqa: E402

GREY = np.random.default_rng(0).integers(0, 256, (6, 8), dtype=np.uint8)
RGB = np.repeat(GREY[:, :, None], 3, axis=2)


@pytest.mark.parametrize("image", [
    RGB, RGB.astype(np.int64), RGB.astype(float), RGB / 255, (RGB / 255).astype(np.float32), RGB.astype(np.uint16) * 257,
    Image.fromarray(RGB), Image.fromarray(GREY), Image.fromarray(GREY.astype(np.uint16) * 257),
    Image.fromarray(GREY.astype(np.int32) * 257), Image.fromarray(GREY.astype(np.int32)),
    Image.fromarray((GREY / 255).astype(np.float32)), Image.fromarray(RGB).convert("RGBA"),
    Image.fromarray(GREY).convert("LA"), Image.fromarray(GREY).convert("P"),
], ids=lambda image: getattr(image, "mode", None) or str(image.dtype))  # fmt: skip
def test_every_depth_gives_the_same_pixels(image: Any) -> None:
    np.testing.assert_array_equal(np.asarray(read_image(image)), RGB)


def test_files_of_16_bits(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "deep.png")), RGB)


@pytest.mark.parametrize(("image", "sentence"), [
    ([RGB, RGB], "image is a list of 2: expected one image"),
    (np.zeros((0, 0, 3), np.uint8), r"the image has shape \(0, 0, 3\), so it has no pixels"),
    (RGB / 255 * 2 - 1, "the pixels of the image go from -0.9686 to 0.9451: expected 0 to 255, or 0 to 1"),
    (np.full((2, 2, 3), np.nan), "the pixels of the image go from nan to nan"),
    (np.full((2, 2), "x"), "the image is an array of <U1: expected numbers"),
])  # fmt: skip
def test_what_is_no_image(image: Any, sentence: str) -> None:
    with pytest.raises(af.InputError, match=sentence):
        read_image(image)


def test_damaged_and_huge_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:4000])
    with pytest.raises(af.InputError, match=r"half\.png' cannot be read as an image: the file ends early"):
        read_image(tmp_path / "half.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        af.InputError, match=r"whole\.png' has too many pixels to be opened safely: scale it down first"
    ):
        read_image(tmp_path / "whole.png")


def oriented(path: Path, orientation: int) -> Path:
    """Write a picture as a camera does that was turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(GREY[:, :, None].repeat(3, 2)).resize((64, 40)).save(path, exif=exif, quality=95)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_files_are_turned_as_transformers_turns_them(orientation: int, suffix: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = oriented(tmp_path / f"turned.{suffix}", orientation)
    expected = transformers.image_utils.load_image(str(path))
    assert expected.size == ((64, 40) if orientation < 5 else (40, 64))
    for given in (path, str(path)):
        np.testing.assert_array_equal(np.asarray(read_image(given)), np.asarray(expected))
    with Image.open(path) as image:  # processors of transformers do not turn this
        np.testing.assert_array_equal(np.asarray(read_image(image)), np.asarray(image.convert("RGB")))
