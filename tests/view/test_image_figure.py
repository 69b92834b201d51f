"""Figures of an image: maps of its patches over the image, one panel per layer or method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import attnflow as af
from attnflow import InputError, TokenAttention
from attnflow.view import sheet
from attnflow.view.colour import overlay_colours
from attnflow.view.comparison import Comparison, compare
from helpers.image_models import shapes_classifier

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")

PHOTO = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def result(layers: int = 1, lowest: float = 0.0, image: Any = PHOTO, **changes: Any) -> TokenAttention:
    """Return rows over a class token, two registers and 4 × 6 patches that sum to one."""
    values = np.random.default_rng(1).random((layers, 1, 27)) + lowest
    values /= np.maximum(values, 0).sum(-1, keepdims=True)
    values[:, :, :3] = np.array([0.12, 0.02, 0.03]) / 0.83 * np.maximum(values[:, :, 3:], 0).sum(-1, keepdims=True)
    values /= np.maximum(values, 0).sum(-1, keepdims=True)
    tokens = ["[CLS]", "[REG1]", "[REG2]", *(f"{r},{c}" for r in range(4) for c in range(6))]
    fields = {
        "values": values, "method": "rollout", "layers": range(layers), "queries": [0], "query_tokens": ["[CLS]"],
        "tokens": tokens, "word_ids": [None] * 27, "word_texts": [], "special": [True] * 3 + [False] * 24, "text": "",
        "patches": (4, 6), "image": image,
    }  # fmt: skip
    return TokenAttention(**{**fields, **changes})


@pytest.fixture(scope="module")
def compared() -> Comparison:
    from benchmarks.shapes import scenes

    return compare(shapes_classifier(), scenes(1, seed=11).pixels[0])


def panels(figure: Any) -> list[Any]:
    """Return the axes of maps; the last axes are those of the scale."""
    return figure.axes[:-1]


def words(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.texts]


def overlaps(figure: Any) -> Iterator[tuple[str, str]]:
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.texts]
    for i, (one, box) in enumerate(boxes):
        yield from ((one, other) for other, there in boxes[:i] if box.shrunk(0.98, 0.8).overlaps(there))
        yield from ((one, "a map") for at in figure.axes if box.shrunk(1, 0.8).overlaps(at.get_window_extent()))
        if not (box.x0 >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1):
            yield one, "the edge"


@pytest.mark.parametrize(("layers", "across"), [(1, 1), (2, 2), (6, 3), (12, 6)])
def test_there_is_one_panel_per_layer_within_the_page(layers: int, across: int) -> None:
    figure = result(layers).plot()
    assert len(panels(figure)) == layers
    assert len({round(at.get_position().x0, 6) for at in panels(figure)}) == across
    assert figure.get_size_inches()[0] <= sheet.PAGE + 1e-9
    titles = [word for word in words(figure) if word.startswith("L")]
    assert titles == ([f"L{n + 1}" for n in range(layers)] if layers > 1 else [])
    assert words(figure)[0] == ("rollout · query [CLS]" if layers > 1 else "rollout · query [CLS] · L1")
    assert words(figure).count("[CLS] 12 %, [REG] 5 %") == layers
    for at in panels(figure):  # patches keep the proportions of the image
        box = at.get_window_extent()
        assert box.width / box.height == pytest.approx(30 / 20, rel=1e-3)
    assert not list(overlaps(figure))


def test_values_that_are_no_shares_are_not_added_up() -> None:
    flows = result(method="flow")
    assert "[CLS] 0.360, [REG] up to 0.090" in words(replace(flows, values=flows.values * 3).plot())
    assert not any("[CLS]" in word for word in words(flows.without_special().plot())[1:])


def test_a_map_is_the_image_in_grey_below_its_patches() -> None:
    one = result()
    photo, patches = panels(one.plot())[0].images
    assert photo.get_array().shape == (20, 30) and photo.get_cmap().name == "gray"
    values = one.on_patches()[0, 0]
    shares = (values - values.min()) / (values.max() - values.min())
    np.testing.assert_allclose(patches.get_array(), overlay_colours(shares, True), atol=1e-6)
    assert patches.get_array()[..., 3].max() == pytest.approx(0.7)  # the image stays visible


def test_without_an_image_the_map_is_a_plain_grid_unless_one_is_given(tmp_path: Path) -> None:
    result().save(tmp_path / "x.json")
    back = TokenAttention.load(tmp_path / "x.json")
    assert back.image is None and len(panels(back.plot())[0].images) == 1
    grid = panels(back.plot())[0].get_window_extent()
    assert grid.width / grid.height == pytest.approx(6 / 4, rel=1e-3)
    for image in (PHOTO, PHOTO[:, :, 0], PHOTO / 255):
        assert len(panels(back.plot(image=image))[0].images) == 2
    back.save(tmp_path / "given.png", image=PHOTO)
    result().save(tmp_path / "own.png")
    assert (tmp_path / "given.png").read_bytes() == (tmp_path / "own.png").read_bytes()
    with pytest.raises(InputError, match=r"^this result does not have its image, because it comes from a file or from"):
        back.overlay()
    assert (result().overlay() == result().overlay(PHOTO)).all()


def test_values_below_zero_have_their_own_hue_and_their_numbers() -> None:
    answer = {"kind": "class", "name": "boat", "probability": 0.5}
    signed = result(lowest=-0.5, method="answer_inputs", provenance={"answer": answer, "edges": "answer"})
    figure = signed.plot()
    values, colours = signed.on_patches()[0, 0], panels(figure)[0].images[1].get_array()
    strong = np.abs(values) > 0.05 * np.abs(values).max()
    assert ((colours[..., 0] > colours[..., 2]) == (values > 0))[strong].all() and (values < 0).any()
    low, high = f"{values.min():.3f}".replace("-", "−"), f"{values.max():.3f}"
    assert words(figure)[0] == "answer_inputs · explains 'boat'" and low in words(figure) and high in words(figure)
    assert words(figure)[-1] == "Blue values count against 'boat'."
    low_end, high_end = figure.axes[-1].get_xlim()
    assert low_end < 0 < high_end and max(-low_end, high_end) == pytest.approx(1)


def test_patches_that_were_not_computed_are_pale_and_said_so() -> None:
    whole = result()
    values = whole.values.copy()
    values[..., 20:] = np.nan
    record = {"count": 20, "of": 27, "seconds": 1, "first": None}
    partial = replace(whole, values=values, provenance={"computed": record}, method="blank-out")
    figure = partial.plot()
    assert words(figure)[-1] == "Pale patches were not computed."
    assert (panels(figure)[0].images[1].get_array().reshape(24, 4)[17:] == (1, 1, 1, 0.65)).all()
    assert words(replace(partial, image=None).plot())[-1] == "Grey patches were not computed."


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_files_are_reproducible_and_words_stay_words(kind: str, tmp_path: Path, compared: Comparison) -> None:
    for name, shown in (("a", result(3)), ("b", compared)):
        shown.save(tmp_path / f"{name}1.{kind}")
        shown.save(tmp_path / f"{name}2.{kind}")
        assert (tmp_path / f"{name}1.{kind}").read_bytes() == (tmp_path / f"{name}2.{kind}").read_bytes()
    if kind == "svg":
        text = " ".join(ElementTree.parse(tmp_path / "b1.svg").getroot().itertext())
        for word in ("answer_inputs", "blank-out", "rollout", "ρ", "highest of each method", "[CLS]"):
            assert word in text


def test_a_comparison_has_a_panel_per_method_with_its_correlation(compared: Comparison) -> None:
    assert compared.methods == ("answer_inputs", "raw", "rollout", "flow", "gradient", "blank-out")
    figure = compared.plot()
    assert len(panels(figure)) == 6 and figure.get_size_inches()[0] <= sheet.PAGE
    shown = words(figure)
    for name in compared.methods:
        assert name in shown
        rho = f"ρ {compared.correlation(name, 'blank-out'):.2f}".replace("-", "−")
        assert (rho in shown) == (name != "blank-out")
    assert shown[0] == f"query [CLS], L2 · class {compared.prediction.top[0][0]!r} {compared.prediction.top[0][1]:.2f}"
    assert "ρ: rank correlation with blank-out over the patches." in " ".join(shown[-3:])
    assert not list(overlaps(figure))
    assert compared.plot(width=sheet.COLUMN).get_size_inches()[0] == pytest.approx(sheet.COLUMN)
    with pytest.raises(InputError, match=r"^width=1: expected inches from 2 to 27\.6, or None"):
        compared.plot(width=1)


def test_correlations_are_over_patches(compared: Comparison) -> None:
    from attnflow.evaluate.statistics import spearman

    raw, blank = (np.abs(compared.row(name))[1:] for name in ("raw", "blank-out"))
    assert compared.correlation("raw", "blank-out") == pytest.approx(spearman(raw, blank))
    bare = compare(shapes_classifier(), compared.image, special=False)
    np.testing.assert_allclose(bare.correlations, compared.correlations)


def test_arguments_that_fit_nothing() -> None:
    with pytest.raises(
        InputError, match=r"^image= for 'x.json': expected one of .svg, .pdf, .png, which draw it; leave"
    ):
        result().save("x.json", image=PHOTO)
    with pytest.raises(InputError, match=r"^the image has shape \(3, 8, 8\): expected \[height, width\]"):
        result().plot(image=np.zeros((3, 8, 8)))
    with pytest.raises(
        InputError, match=r"^image= for a comparison of a text: expected one of an image; leave it out$"
    ):
        compare(af.load(), "the key", importance="none").plot(image=PHOTO)


def test_a_page_of_a_saved_result_has_its_image(tmp_path: Path) -> None:
    result().save(tmp_path / "x.html")
    from attnflow.view.document import of_result

    assert of_result(result())["image"]["shape"] == [20, 30, 3] and of_result(result(image=None))["image"] is None
