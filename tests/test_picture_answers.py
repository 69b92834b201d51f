"""Answers to a prompt with an image: a written word finds its patch in Python, on the command line and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import attnflow as af
from attnflow.cli import app
from attnflow.view.answer_page import document_of
from benchmarks.picture_words import measured
from benchmarks.shapes import FOLDER, SIDE, Scenes, scenes


@pytest.fixture(scope="module")
def model() -> af.Model:
    return af.load(FOLDER, device="cpu")


@pytest.fixture(scope="module")
def shown() -> Scenes:
    """Return the images of seed 4, starting at the first whose answer is not "red".

    The model says "red" whatever it sees, so the map of that answer need not find the shape (docs/answers.md).
    """
    every = scenes(20, 4)
    first = next(i for i in range(len(every)) if every.colour(i) != "red")
    return Scenes(every.pixels[first:], every.shapes[first:], every.colours[first:], every.places[first:])


@pytest.fixture(scope="module")
def answer(model: af.Model, shown: Scenes) -> Any:
    return model.answer(shown.question(0), image=shown.pixels[0])


@pytest.fixture
def photo(shown: Scenes, tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "shapes.png"
    image.fromarray(shown.pixels[0]).save(path)
    return path


@pytest.mark.long
def test_a_written_word_finds_its_patch(model: af.Model) -> None:
    """For all colours; `python -m benchmarks.picture_words` measures more images."""
    found = measured(model, scenes(100, 2027))
    assert found.right >= 0.95 and found.hits >= 0.9 and found.share >= 0.6


def test_the_parts_add_up(answer: Any, shown: Scenes) -> None:
    assert answer.text.strip() == shown.answer(0) and answer.written
    sums = answer.sources(signed=True).provenance["evidence"]
    assert sums["prompt"] + sums["answer"] + sums["constants"] == pytest.approx(sums["log_odds"], abs=1e-3)
    word = shown.colour(0)
    parts = answer.sources(word, signed=True)
    assert parts.method == "answer_inputs" and answer.sources(word, "sentence").method == "answer_inputs"
    patches = answer.patches(word, signed=True)
    assert patches.shape == (SIDE, SIDE)
    assert np.allclose(
        answer.prompt.picture.laid_out(parts.row()), patches, atol=1e-6
    )  # each position is one patch here
    assert answer.matrix(signed=True).values[0, -1, : len(answer.prompt)] == pytest.approx(parts.row())
    read = answer.sources(word, signed=True, method="answer_rows")
    sums = read.provenance["evidence"]
    assert read.row().sum() == pytest.approx(sums["prompt"], abs=1e-4)
    assert sums["prompt"] + sums["answer"] + sums["constants"] == pytest.approx(sums["log_odds"], abs=1e-4)


def test_shares_of_patches(answer: Any, shown: Scenes) -> None:
    word, place = shown.colour(0), int(shown.places[0, 0])
    shares = answer.patches(word)
    assert int(shares.argmax()) == place and 0 < shares.sum() <= 1 and shares.min() >= 0
    each = [answer.patches(token) for token in range(len(answer.ids))]
    assert np.allclose(answer.patches(), np.mean([one for one in each if one.any()], 0))


def test_an_image_is_a_unit(answer: Any, shown: Scenes) -> None:
    units = answer.prompt.units("sentence")
    assert units.texts == ("image", shown.question(0)) and len(units.groups[0]) == SIDE * SIDE
    words = answer.prompt.units("word")
    assert "image, row 6 column 6" in words.texts and "colour" in words.texts
    assert answer.prompt.tokens[1] == "image, row 1 column 1"


def test_page(answer: Any, shown: Scenes) -> None:
    document = document_of(answer, span=shown.colour(0))
    picture = document["picture"]
    assert (picture["rows"], picture["columns"]) == (SIDE, SIDE)
    assert picture["maps"]["shape"] == [len(answer.ids), SIDE * SIDE] and picture["image"]["shape"] == [48, 48, 3]
    assert document["units"]["sentence"]["names"][0] == "image" and document["fading"] is None


def test_refusals(model: af.Model, answer: Any, shown: Scenes, tmp_path: Path) -> None:
    question, image = shown.question(0), shown.pixels[0]
    with pytest.raises(af.InputError, match="parts of a prompt with an image cannot be left out: the model counts"):
        answer.leave_out("sentence")
    with pytest.raises(af.InputError, match="an image needs a text or messages as its prompt, and no documents"):
        model.answer(question, image=image, documents={"a": "b"})
    with pytest.raises(af.InputError, match="image needs a single prompt: give one at a time"):
        model.answer([question, question], image=image)
    with pytest.raises(af.InputError, match=r"there is no image '.*none\.png': expected the path of an image file"):
        model.answer(question, image=tmp_path / "none.png")
    with pytest.raises(af.InputError, match="the prompt contains '</s>', which would act as a special token"):
        model.answer("what </s> ?", image=image)
    with pytest.raises(af.InputError, match="the prompt contains <image> 2 times: expected it once, for one image"):
        model.answer("<image> <image> what ?", image=image)
    with pytest.raises(
        af.InputError, match="the processor of this model has no chat template: give the prompt as one text"
    ):
        model.answer([{"role": "user", "content": question}], image=image)
    with pytest.raises(
        af.InputError, match="has no processor for texts with an image: expected a vision-language model"
    ):
        af.wrap(model.model).answer(question, image=image)
    with pytest.raises(af.InputError, match="method='nothing': expected one of 'answer_inputs', 'answer_rows'"):
        answer.sources(method="nothing")


@pytest.mark.parametrize("how", ["floats", "16 bits", "tensor"])
def test_the_depth_of_an_image_does_not_matter(model: af.Model, shown: Scenes, answer: Any, how: str) -> None:
    pixels = shown.pixels[0]
    image = {
        "floats": pixels / 255,
        "16 bits": pixels.astype(np.uint16) * 257,
        "tensor": torch.from_numpy(pixels / 255).permute(2, 0, 1).float(),
    }[how]
    assert model.answer(shown.question(0), image=image).text == answer.text


def test_commands(photo: Path, shown: Scenes, tmp_path: Path) -> None:
    runner, row, column = CliRunner(), *(n + 1 for n in divmod(int(shown.places[0, 0]), SIDE))
    options = ["--image", str(photo), "-m", str(FOLDER)]
    result = runner.invoke(app, ["answer", shown.question(0), *options, "--span", shown.colour(0)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    after = lines.index("Patches of the image, by answer edges through the vision tower:")
    assert f"image, row {row} column {column}" in lines[after + SIDE + 1]
    assert "on 31 other patches" in result.output and result.output.count("image, row") == 5
    for command in ("answer", "show"):
        result = runner.invoke(app, [command, shown.question(0), *options, "--image", str(photo)])
        assert "--image is given 2 times: expected one image" in str(result.exception)
    page = tmp_path / "page.html"
    result = runner.invoke(app, ["answer", shown.question(0), *options, "-o", str(page)])
    assert result.exit_code == 0 and "attnflow-answer" in page.read_text(encoding="utf-8")
    begun = f"{shown.question(0)} {shown.answer(0).rsplit(' ', 1)[0]}"
    result = runner.invoke(app, ["show", begun, *options])
    assert result.exit_code == 0, result.output
    assert f"image, row {row} column {column}" in result.output and "image, 31 other places" in result.output
    assert result.output.count("column") == 10  # in the line of tokens and in the table
    result = runner.invoke(app, ["show", begun, *options, "--json"])
    values = json.loads(result.stdout)
    assert values["provenance"]["picture"]["rows"] == SIDE
    top = values["tokens"][int(np.argmax(values["values"]))]
    assert top == f"image {row},{column}"
    result = runner.invoke(app, ["answer", "what ?", *options, "--verify", "2"])
    assert "--image cannot be combined with --document or --verify: leave them out" in str(result.exception)
