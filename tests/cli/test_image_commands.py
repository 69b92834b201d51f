"""`attnflow show` and `attnflow compare` of an image file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnflow as af
from benchmarks.shapes import scenes
from helpers.image_models import shapes_classifier

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
pytest.importorskip("matplotlib", reason="pictures need matplotlib")

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a photo with one shape, at row 5 and column 6."""
    place = tmp_path_factory.mktemp("image")
    model = shapes_classifier()
    model.unwrap().save_pretrained(place / "model")
    model.processor.save_pretrained(place / "model")
    seen = scenes(40, seed=2, shown=1)
    number = next(i for i in range(40) if seen.places[i, 0] == 4 * 6 + 5)
    Image.fromarray(seen.pixels[number]).resize((96, 96)).save(place / "photo.png")
    return place


@pytest.fixture
def given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("NO_COLOR", "1")
    return [str(folder / "photo.png"), "-m", str(folder / "model")]


@pytest.mark.parametrize("options", [[], ["--method", "blank-out"], ["--method", "integrated-gradients"]])
def test_show_prints_a_map_and_the_strongest_patches(attnflow: Command, given: list[str], options: list[str]) -> None:
    lines = attnflow("show", *given, *options).out.splitlines()
    assert lines[0].startswith("class: '") and len(lines) < 20
    table = {line.split("  ")[1].strip(): line for line in lines if ", column " in line}
    assert len(table) in (4, 5) and not any("5,6" in line or "0,0" in line for line in lines)
    strongest = max(table, key=lambda name: table[name].count("█"))
    assert strongest == "row 5, column 6"
    assert any(line.rstrip().endswith("██") and len(line) <= 12 for line in lines)  # the last cell of its line


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_pictures(attnflow: Command, given: list[str], tmp_path: Path, kind: str) -> None:
    for name, words in {
        "answer": ["show", *given],
        "layers": ["show", *given, "--method", "rollout", "--layer", "all"],
        "gradient": ["show", *given, "--method", "gradient"],
        "compare": ["compare", *given],
    }.items():
        path = tmp_path / f"{name}.{kind}"
        assert attnflow(*words, "-o", str(path)).out == "" and path.stat().st_size > 2000
    if kind == "svg":
        assert "L2" in (tmp_path / "layers.svg").read_text() and "ρ" in (tmp_path / "compare.svg").read_text()


def test_compare_prints_maps_side_by_side(attnflow: Command, given: list[str]) -> None:
    lines = attnflow("compare", *given).out.splitlines()
    names = [line for line in lines if line.startswith("answer_inputs ") and "raw" in line]
    assert names and "blank-out" in "\n".join(lines) and max(map(len, lines)) <= 80 and len(lines) < 45
    assert any(line.strip().startswith("30  row 5, column 6") for line in lines)
    data = json.loads(attnflow("compare", *given, "--json").out)
    assert data["patches"] == [6, 6] and "image" not in data and data["missing"] == {}


def test_refusals(attnflow: Command, given: list[str]) -> None:
    for words, sentence in {
        ("show", "--method", "blank-out", "--words"): "unit='word' of an image, whose units are patches",
        ("show", "--words"): "words() of an image of 6 × 6 patches: expected text; leave words out",
        ("compare", "--words"): "words() of an image of 6 × 6 patches: expected text",
    }.items():
        command, *options = words
        assert sentence in attnflow(command, *given, *options, status=2).err


def test_the_page_has_blank_out_and_gradient(folder: Path) -> None:
    page = af.load(str(folder / "model")).explain(str(folder / "photo.png"))
    names = [one["name"] for one in page.document["importance"]]
    assert names == ["answer_inputs", "gradient", "blank-out"] and page.document["missing"] == ""
    blank = page.document["importance"][2]
    assert len(blank["values"]) == 37 and max(range(37), key=blank["values"].__getitem__) == 30
    assert page.document["image"]["shape"] == [96, 96, 3]
