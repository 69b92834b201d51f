"""Importance of the patches of an image, next to a plain loop over patches that runs the bare model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import attnflow as af
from benchmarks.shapes import scenes
from helpers.architectures import IMAGE, hf
from helpers.image_models import CLASSIFIERS, PIXELS, bent, shapes_classifier

PATCH = 8


def classifier(name: str = "ViTForImageClassification") -> nn.Module:
    return bent(hf(name, **CLASSIFIERS[name])("eager" if name.startswith("ViT") else None))


def chances(model: nn.Module, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.softmax(model(pixel_values=pixels).logits.double(), -1)[0]


def fall_without_each_patch(model: nn.Module, chosen: int, size: int, colour: Any = 0.0) -> NDArray[np.float64]:
    """Return p(y | image) - p(y | image with one patch covered), patch by patch: [row, column]."""
    rows, columns = PIXELS.shape[2] // size, PIXELS.shape[3] // size
    whole = chances(model, PIXELS)[chosen]
    falls = np.zeros((rows, columns))
    for row in range(rows):
        for column in range(columns):
            pixels = PIXELS.clone()
            pixels[:, :, row * size : (row + 1) * size, column * size : (column + 1) * size] = colour
            falls[row, column] = whole - chances(model, pixels)[chosen]
    return falls


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_blank_out_is_the_loop_over_patches(name: str) -> None:
    model = classifier(name)
    chosen = int(chances(model, PIXELS).argmax())
    size = 2 if name.startswith("Swin") else PATCH
    expected = fall_without_each_patch(model, chosen, size)
    wrapped = af.wrap(model)
    trace = wrapped.trace(PIXELS)
    result = wrapped.blank_out(PIXELS, signed=True)
    assert result.tokens == trace.tokens and result.special == trace.special and result.patches == trace.patches
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(result.on_patches()[0, 0], expected, atol=1e-6)
    extra = len(trace.tokens) - expected.size
    assert (result.row()[:extra] == 0).all() and sum(result.special) == extra
    assert result.provenance["by"] == "mean" and result.image.shape == (32, 32, 3)
    assert result.layers == (trace.layer_count - 1,)


def test_the_mean_of_the_processor_is_zero_in_normalised_pixels() -> None:
    import transformers

    mean = [0.2, 0.4, 0.6]
    size = {"height": 32, "width": 32}
    processor = transformers.ViTImageProcessor(size=size, image_mean=mean, image_std=[0.5, 0.25, 0.125])
    model = af.wrap(classifier(), processor)
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3)).astype(np.uint8)
    covered = picture.copy()
    covered[8:16, 24:] = np.array(mean) * 255  # row 2, column 4
    before, after = (model.trace(p).prediction for p in (picture, covered))
    assert before is not None and after is not None
    (name, chance), other = before.top[0], dict(after.top)
    fall = model.blank_out(picture, signed=True).on_patches()[0, 0, 1, 3]
    assert fall == pytest.approx(chance - other[name], abs=1e-5)


@pytest.mark.parametrize("of", ["probability", "logit", "log-odds", "difference"])
def test_gradients_are_those_at_the_embeddings_of_patches(of: str) -> None:
    model = classifier()
    layer = model.vit.embeddings.patch_embeddings.projection
    leaves: list[Tensor] = []

    def leaf(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    handle = layer.register_forward_hook(leaf)
    logits = model(pixel_values=PIXELS).logits[0].double()
    handle.remove()
    p = torch.softmax(logits, -1)
    best, second = (int(i) for i in p.argsort(descending=True)[:2])
    y = {
        "probability": p[best],
        "logit": logits[best],
        "log-odds": torch.log(p[best] / (1 - p[best])),
        "difference": p[best] - p[second],
    }[of]
    (g,) = torch.autograd.grad(y, leaves[0])  # [1, dimension, row, column]
    wrapped = af.wrap(model)
    result = wrapped.gradient(PIXELS, of=of)
    np.testing.assert_allclose(result.on_patches()[0, 0], g[0].norm(dim=0), rtol=1e-4)
    assert result.row()[0] == 0 and result.special[0]
    product = wrapped.gradient(PIXELS, of=of, reduce="times-input").on_patches()[0, 0]
    np.testing.assert_allclose(product, (g * leaves[0]).sum(1)[0].detach(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradients_and_blank_out_of_several_images_are_those_of_each(name: str) -> None:
    model = af.wrap(classifier(name))
    images = [PIXELS, PIXELS.flip(3)]
    for method in (model.gradient, model.blank_out):
        together, alone = method(images), [method(one) for one in images]
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a.values, b.values, atol=1e-6)
            assert a.patches == b.patches and float(a.values.max()) > 0
    labelled = model.gradient(images, [0, 1], of="logit")
    assert [r.provenance["answer"]["name"] for r in labelled] == [model.class_names[0], model.class_names[1]]


def test_integrated_gradients_and_shapley_add_up() -> None:
    pytest.importorskip("captum", reason="captum is an optional dependency")
    model = classifier()
    wrapped = af.wrap(model)
    fall = float((chances(model, PIXELS) - chances(model, torch.zeros_like(PIXELS)))[1])
    integrated = wrapped.integrated_gradients(PIXELS, "boat", steps=200)
    assert float(integrated.values.sum()) == pytest.approx(fall, abs=2e-3)
    assert integrated.provenance["by"] == "mean" and integrated.patches == (4, 4) and integrated.row()[0] == 0
    # the embedding of a patch is an affine map of its pixels, so the integral is the same at either
    steps, total = 200, torch.zeros(1, 32, 4, 4)
    layer = model.vit.embeddings.patch_embeddings.projection
    with torch.no_grad():
        end, start = layer(PIXELS), layer(torch.zeros_like(PIXELS))
    for k in range(steps):
        point = (start + (k + 0.5) / steps * (end - start)).requires_grad_()
        handle = layer.register_forward_hook(lambda m, a, out, point=point: point)
        (g,) = torch.autograd.grad(torch.softmax(model(pixel_values=PIXELS).logits, -1)[0, 1], point)
        handle.remove()
        total += g / steps
    expected = ((end - start) * total).sum(1)[0].detach()
    np.testing.assert_allclose(integrated.on_patches()[0, 0], expected, atol=2e-4)
    sampled = wrapped.shapley(PIXELS, "boat", samples=5)
    assert float(sampled.values.sum()) == pytest.approx(fall, abs=1e-5)
    assert sampled.patches == (4, 4) and sampled.row()[0] == 0 and sampled.row()[1:].std() > 0


def test_time_and_order() -> None:
    model = af.wrap(classifier())
    first = model.trace(PIXELS, edges="answer").sources()
    result = model.blank_out(PIXELS, seconds=1e-9, first=first)
    assert result.provenance["computed"] == {"count": 9, "of": 17, "seconds": 1e-9, "first": "answer_inputs"}
    strongest = set(np.argsort(-np.abs(first.row()[1:]))[:8].tolist())
    assert set(np.flatnonzero(np.isfinite(result.row()[1:])).tolist()) == strongest
    calls: list[tuple[int, int]] = []
    whole = model.blank_out(PIXELS, progress=lambda count, total: calls.append((count, total)))
    assert calls[0] == (0, 16) and calls[-1] == (16, 16) and np.isfinite(whole.values).all()


def test_the_patch_with_the_shape_matters_most() -> None:
    """The trained vision tower of the small vision-language model, with a linear reading of the colour on top."""
    model = shapes_classifier()
    seen = scenes(24, seed=11, shown=1)
    pictures, places = list(seen.pixels), seen.places[:, 0]

    def share_of_hits(results: list[af.TokenAttention]) -> float:
        strongest = [int(result.on_patches()[0, 0].argmax()) for result in results]
        return float(np.mean(np.array(strongest) == places))

    assert [model.trace(p).prediction.top[0][0] for p in pictures] == [seen.colour(i) for i in range(24)]
    assert share_of_hits(model.blank_out(pictures)) == 1
    assert share_of_hits([model.trace(p, edges="answer").sources() for p in pictures]) == 1
    # the norm of a gradient says how much a small change matters, not what is there: better than one in 36, and no more
    assert 0.1 < share_of_hits(model.gradient(pictures, of="log-odds")) < 0.6


REFUSALS: dict[str, tuple[Any, str]] = {
    "no head": (lambda: af.wrap(hf("ViTModel", **IMAGE)()).blank_out(PIXELS), "has no head, so it answers nothing"),
    "another cover": (
        lambda: af.wrap(classifier()).blank_out(PIXELS, by="mask"),
        "by='mask': a patch of an image is covered by the image processor's mean colour; leave by out"
    ),
    "words": (
        lambda: af.wrap(classifier()).blank_out(PIXELS, unit="word"),
        "unit='word' of an image, whose units are patches: expected 'token'; leave unit out",
    ),
    "no patches": (
        lambda: af.wrap(hf("YolosForObjectDetection", **IMAGE | {"image_size": [32, 32]}, num_detection_tokens=3)()).blank_out(PIXELS),
        "has 20 positions, which are not one for each patch of an image: expected an image classifier whose last positions are "
        "patches, such as ViT; use raw attention or rollout of a trace",
    ),
    "no class": (
        lambda: af.wrap(hf("BeitForMaskedImageModeling", **IMAGE, use_mask_token=True)()).gradient(PIXELS),
        "expected the classes of an image or a sound",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_has_no_importance_says_why(name: str) -> None:
    call, message = REFUSALS[name]
    with pytest.raises(af.InputError) as caught:
        call()
    assert message in str(caught.value)
