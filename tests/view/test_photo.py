"""The picture on the page of a vision model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import attnflow as af
from helpers.architectures import IMAGE, hf

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
PIXELS = np.random.default_rng(0).integers(0, 255, (60, 90, 3)).astype(np.uint8)


def model(**options: object) -> af.Model:
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, **options)
    return af.wrap(hf("ViTModel", **IMAGE)(), processor)


def seen(of: af.Model, picture: object) -> np.ndarray | None:
    """Return the image that a trace keeps."""
    shown: np.ndarray | None = of.encode(picture).image
    assert of.trace(picture).image is not None
    return shown


def test_a_picture_that_was_only_scaled_keeps_its_proportions(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "picture.png")
    for picture in (PIXELS, Image.fromarray(PIXELS), tmp_path / "picture.png", str(tmp_path / "picture.png")):
        assert np.array_equal(seen(model(), picture), PIXELS)


def test_a_large_picture_is_made_smaller() -> None:
    shown = seen(model(), np.zeros((600, 1200, 3), np.uint8))
    assert shown is not None and shown.shape == (224, 448, 3)


def test_what_was_cropped_is_shown_as_the_model_saw_it() -> None:
    shown = seen(model(do_center_crop=True, crop_size={"height": 32, "width": 32}), PIXELS)
    assert shown is not None and shown.shape == (32, 32, 3)
    bare = seen(af.wrap(hf("ViTModel", **IMAGE)()), torch.zeros(3, 32, 32))
    assert bare is not None and bare.shape == (32, 32, 3)
