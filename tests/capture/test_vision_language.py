"""An image within a text: which positions stand for which patches, and what the answer takes from them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture.picture import Picture, picture_of
from helpers.vision_language import IMAGE_TOKEN, MODELS, llava


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_those_that_the_model_returns(name: str) -> None:
    model, inputs = MODELS[name]()
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    trace = af.wrap(model).trace(inputs)
    assert trace.layer_count == len(expected) == 3
    for step, heads in zip(trace.steps, expected, strict=True):
        assert np.allclose(step.weights.numpy(), heads[0].mean(0).numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_each_place_stands_for_its_part_of_the_image(name: str) -> None:
    """Changing a part of the image changes the states that enter the text at its place more than at any other."""
    model, inputs = MODELS[name]()
    trace = af.wrap(model).trace(inputs)
    picture = trace.picture
    assert picture is not None and all(inputs["input_ids"][0, i] == IMAGE_TOKEN for i in picture.places)
    assert (picture.rows, picture.columns) == ((2, 2) if name == "Idefics3" else (4, 4))
    model.set_attn_implementation("eager")
    entering: list[torch.Tensor] = []
    layer = next(m for path, m in model.named_modules() if re.search(r"(language|text)_model\.layers\.0$", path))
    hook = layer.register_forward_pre_hook(lambda _, args, named: entering.append((args or [named["hidden_states"]])[0][0]), with_kwargs=True)  # fmt: skip
    high, wide = 32 // picture.rows, 32 // picture.columns

    def states(pixels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model(**{**inputs, "pixel_values": pixels})
        return entering.pop()

    before = states(inputs["pixel_values"])
    for number, place in enumerate(picture.places):
        row, column = divmod(number, picture.columns)
        changed = inputs["pixel_values"].clone()
        changed[..., row * high : (row + 1) * high, column * wide : (column + 1) * wide] += 2
        moved = (states(changed) - before).norm(dim=-1)
        assert int(moved.argmax()) == place
        assert trace.tokens[place] == f"image {row + 1},{column + 1}" and not trace.special[place]
    hook.remove()


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_is_split_over_text_and_image(name: str) -> None:
    model, inputs = MODELS[name]()
    trace = af.wrap(model).trace(inputs, edges="answer")
    whole = trace.answer_inputs(signed=True)
    evidence = whole.provenance["evidence"]
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1].double()
    best = int(logits.argmax())
    others = torch.cat([logits[:best], logits[best + 1 :]])
    assert evidence["log_odds"] == pytest.approx(float(logits[best] - others.logsumexp(0)), abs=1e-4)
    assert float(whole.values.sum()) + evidence["constants"] == pytest.approx(evidence["log_odds"], abs=1e-4)
    assert trace.picture is not None
    row = trace.answer_rows().row()
    laid = trace.picture.laid_out(row)
    assert laid.shape == (trace.picture.rows, trace.picture.columns)
    assert 0 < laid.sum() <= 1 and laid[0, 1] == row[trace.picture.places[1]]


def test_texts_whose_image_lies_otherwise_have_no_picture() -> None:
    class Config:
        image_token_id = 9

    ids = torch.tensor([[1, 9, 9, 9, 9, 2]])
    one = torch.zeros(1, 3, 16, 16)
    assert picture_of(Config, {"input_ids": ids, "pixel_values": one}, (8, 8)) == Picture(2, 2, (1, 2, 3, 4))
    assert picture_of(Config, {"input_ids": ids, "pixel_values": torch.zeros(1, 3, 32, 32)}, (8, 8)) == Picture(2, 2, (1, 2, 3, 4))  # fmt: skip
    rows = {"input_ids": ids, "image_grid_thw": torch.tensor([[1, 2, 8]]), "pixel_values": torch.zeros(16, 12)}
    assert picture_of(Config, rows, None) == Picture(1, 4, (1, 2, 3, 4))
    several: list[dict[str, Any]] = [
        {"input_ids": ids, "pixel_values": torch.zeros(2, 3, 16, 16)},
        {"input_ids": ids, "pixel_values": torch.zeros(1, 2, 3, 16, 16)},
        {"input_ids": ids, "pixel_values": torch.zeros(1, 3, 24, 24)},
        {"input_ids": ids},
        {"input_ids": ids, "image_grid_thw": torch.tensor([[1, 2, 4], [1, 2, 4]])},
        {"input_ids": ids, "image_grid_thw": torch.tensor([[2, 2, 4]])},
    ]
    assert all(picture_of(Config, tensors, (8, 8)) is None for tensors in several)
    assert picture_of(object(), {"input_ids": ids, "pixel_values": one}, (8, 8)) is None
    with pytest.raises(af.InputError, match=r"^values of shape \(3,\): expected one row over all inputs, more than 4"):
        Picture(2, 2, (1, 2, 3, 4)).laid_out([0.1, 0.2, 0.7])


def test_importance_of_a_text_with_an_image_is_refused() -> None:
    model, inputs = llava()
    with pytest.raises(af.InputError, match=r"expected a model that reads one text and answers with a class"):
        af.wrap(model).blank_out(inputs)
    assert af.wrap(model).trace(inputs).words().picture is None
