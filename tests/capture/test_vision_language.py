"""An image within a text: which positions are which patches, and what the answer takes from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture.answer_pass import run_answer
from attnflow.capture.frozen import run_frozen
from attnflow.capture.generate import Written
from attnflow.capture.picture import Picture, picture_of
from attnflow.capture.wiring import Wiring
from helpers.vision_language import MODELS, WITHOUT_PLACES, llava


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
    for number, place in enumerate(trace.picture.places):  # deployments/picture_cells checks which part each stands for
        row, column = divmod(number, trace.picture.columns)
        assert trace.tokens[place] == f"image {row + 1},{column + 1}" and not trace.special[place]
    row = trace.answer_rows(signed=True).row()
    laid = trace.picture.laid_out(row)
    assert laid.shape == (trace.picture.rows, trace.picture.columns)
    assert np.abs(laid).max() > 0 and laid[0, 1] == row[trace.picture.places[1]]


@pytest.mark.parametrize("name", WITHOUT_PLACES)
def test_positions_that_stand_for_no_patch_are_not_said_to(name: str) -> None:
    """Query tokens and crops can be as many as the patches, yet none of them is a patch."""
    model, inputs = WITHOUT_PLACES[name]()
    trace = af.wrap(model).trace(inputs)
    assert trace.picture is None
    assert not any(token.startswith("image ") for token in trace.tokens)


def test_squares_of_patches() -> None:
    """Squares may come in any order; the result is None if a position's patches are not a square."""
    place = np.array([1, 1, 0, 0, 1, 1, 0, 0])

    def wiring(place: np.ndarray) -> Wiring:
        return Wiring(2, 4, np.arange(8), place, "layers")

    assert picture_of(wiring(place), [3, 4]) == Picture(1, 2, (4, 3))
    assert picture_of(wiring(np.arange(8)), list(range(5, 13))) == Picture(2, 4, tuple(range(5, 13)))
    assert picture_of(wiring(np.array([1, 1, 0, 0, 0, 1, 1, 0])), [3, 4]) is None
    assert picture_of(wiring(np.full(8, -2)), [3, 4]) is None
    assert picture_of(wiring(place), [3, 4, 5]) is None and picture_of(None, [3]) is None
    with pytest.raises(
        af.InputError, match=r"^values have shape \(3,\): expected one row over all inputs, with more than 4"
    ):
        Picture(2, 2, (1, 2, 3, 4)).laid_out([0.1, 0.2, 0.7])


@pytest.mark.parametrize("name", MODELS)
def test_the_way_through_the_tower_changes_nothing_above_it(name: str) -> None:
    """Words get what they get in a pass that ends at the text, and patches get the image's part.

    Only biases of the tower and the projector make a difference.
    """
    model, inputs = MODELS[name]()
    runner = af.wrap(model)
    trace = runner.trace(inputs, edges="answer")
    own = trace.answer_inputs(signed=True)
    encoded = runner.encode(inputs)
    ends = run_frozen(runner, encoded.tensors, runner.verify(encoded))

    def log_odds(logits: torch.Tensor) -> torch.Tensor:
        row = logits[0, -1].double()
        best = int(row.argmax())
        return row[best] - torch.cat([row[:best], row[best + 1 :]]).logsumexp(0)

    evidence = ends.evidence(log_odds)
    assert trace.picture is not None and encoded.wiring is not None
    words = [i for i in range(len(trace.tokens)) if i not in trace.picture.places]
    assert np.allclose(own.row()[words], evidence.own[words].numpy(), atol=1e-4)
    below = runner.trace(inputs, edges="answer").inside
    assert below is not None and below.evidence.y == pytest.approx(evidence.y, abs=1e-4)
    assert np.abs(trace.picture.laid_out(own.row())).max() > 0
    assert trace.sources().method == "answer_inputs"


def test_a_linear_tower_hands_down_what_its_patches_hold() -> None:
    """Without attention between patches, feed-forward networks or biases, a position gets what its own patch gets."""
    model, inputs = llava()
    with torch.no_grad():
        for layer in model.model.vision_tower.encoder.layers:
            layer.self_attn.out_proj.weight.zero_()
            layer.mlp.fc2.weight.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    runner = af.wrap(model)
    trace = runner.trace(inputs, edges="answer")
    encoded = runner.encode(inputs)
    ends = run_frozen(runner, encoded.tensors, runner.verify(encoded))
    best = int(torch.as_tensor(model(**inputs).logits[0, -1]).argmax())
    own = ends.evidence(lambda z: z[0, -1, best].double() - torch.cat([z[0, -1, :best], z[0, -1, best + 1 :]]).double().logsumexp(0)).own  # fmt: skip
    assert trace.picture is not None
    assert np.allclose(
        trace.picture.laid_out(trace.answer_inputs(signed=True).row()), trace.picture.laid_out(own.numpy()), atol=1e-5
    )


@pytest.mark.parametrize("name", [*MODELS, *WITHOUT_PLACES])
def test_written_answers_are_explained_as_they_were_written(name: str) -> None:
    """Log-probabilities equal those of generation, even if an image or a prompt attends in both directions."""
    model, inputs = {**MODELS, **WITHOUT_PLACES}[name]()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True)  # fmt: skip
    ids = out.sequences[0, -4:].tolist()
    expected = [float(logits[0].double().log_softmax(-1)[i]) for logits, i in zip(out.logits, ids, strict=True)]
    runner = af.wrap(model)
    beside = {k: v for k, v in inputs.items() if k != "input_ids"}
    prompt = inputs["input_ids"][0].tolist()
    passed = run_answer(runner, prompt, Written(tuple(ids)), beside=beside)
    assert passed.log_probabilities == pytest.approx(expected, abs=1e-4)
    parts = passed.parts()
    assert parts.prompt.shape == (4, len(prompt)) and parts.gap < 1e-5
    total = parts.prompt.sum(dtype=np.float64) + parts.answer.sum(dtype=np.float64) + parts.rest
    assert total == pytest.approx(parts.log_odds.sum(), abs=1e-3)


def test_importance_of_a_text_with_an_image_is_refused() -> None:
    model, inputs = llava()
    with pytest.raises(
        af.InputError, match=r"expected a model that reads one text or one image and answers with a class"
    ):
        af.wrap(model).blank_out(inputs)
    assert af.wrap(model).trace(inputs).words().picture is None
