"""Exports: files that open anywhere, figures that show the selection."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.browser import downloaded, exported, opened, screenshot, settle
from helpers.page_cases import SENTENCE
from helpers.page_reading import (
    METHODS,
    Case,
    as_json,
    check_clean,
    check_drawn,
    check_numbers,
    choose,
    lightness,
    picture,
    view_of,
)

PANELS = {"graph": ("compare", "layers", "map", "graph"), "paths": ("flow",), "heads": ("heads",)}


@pytest.mark.parametrize("which", ["sentence", "hostile"])
def test_exports(browser: Any, which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case: Case = request.getfixturevalue(which)
    figures = {}
    with opened(browser, case.path, "#theme=dark&q=3") as page:
        for view, names in PANELS.items():
            page.locator(f"#tab-{view}").click()
            settle(page)
            for name in names:
                figures[name] = exported(page, name, "svg")
                root = ElementTree.fromstring(figures[name])
                if which == "sentence" or name == "compare":
                    pixels = exported(page, name, "png")
                    check_drawn(pixels, tmp_path / f"{name}.png")
                    assert picture(pixels).shape[1] == round(3 * float(root.get("width")))
                rows = list(csv.reader(io.StringIO(exported(page, name, "csv").decode("utf-8"), newline="")))
                held = as_json(page, name)
                assert [list(row) for row in held[:1]] == [rows[0]] and len(rows) == len(held) + 1
                for line, row in zip(rows[1:], held, strict=True):
                    for text, value in zip(line, row.values(), strict=True):
                        if isinstance(value, str):
                            value = (
                                value.encode("utf-8", "surrogatepass")
                                .decode("utf-8", "replace")
                                .replace("\ufffd\ufffd\ufffd", "\ufffd")
                            )
                            assert text == (f"'{value}" if re.match(r"[=+\-@\t\r]", value) else value)
                            assert not re.match(r"[=+\-@\t\r]", text)
                        elif isinstance(value, bool):
                            assert text == str(value).lower()
                        else:
                            assert float(text) == value
        tokens = case.page.document["units"]["subwords"]["tokens"]
        page.locator("#tab-graph").click()
        settle(page)
        assert [row["token"] for row in as_json(page, "compare")] == tokens
        check_clean(page)
    context = browser.new_context(viewport={"width": 800, "height": 600})
    alone, said = context.new_page(), []
    alone.on("pageerror", lambda error: said.append(str(error)))
    alone.on("console", lambda message: said.append(message.text))
    for name, data in figures.items():
        root = ElementTree.fromstring(data)
        for node in root.iter():
            assert node.tag.rpartition("}")[2] in {
                "svg",
                "g",
                "rect",
                "path",
                "line",
                "circle",
                "text",
                "title",
                "image",
                "metadata",
            }
            for attribute, value in node.attrib.items():
                attribute = attribute.rpartition("}")[2]
                assert attribute not in ("class", "tabindex") and not attribute.startswith("on")
                assert attribute != "href" or value.startswith("data:image/png;base64,")
                assert "url(" not in value and "var(" not in value
        texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
        if which == "sentence" and name not in ("heads", "flow"):
            assert set(SENTENCE.split()) <= set(texts)
        (tmp_path / f"{name}.svg").write_bytes(data)
        alone.goto((tmp_path / f"{name}.svg").as_uri())
        assert alone.locator("svg").first.get_attribute("aria-label") and alone.locator("parsererror").count() == 0
        check_drawn(screenshot(alone), tmp_path / f"{name}-alone.png", 800)
        assert said == [] and alone.evaluate("window.pwned") is None
    context.close()


def test_figures_on_paper_are_light_and_hold_what_is_selected(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, "#theme=dark&q=3&l=2") as page:
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"
        root = ElementTree.fromstring(exported(page, "compare", "svg"))
        assert root.find("{http://www.w3.org/2000/svg}rect").get("fill") == "#ffffff"
        assert root.get("aria-label") == f"{SENTENCE} · query key · L2"
        texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [t for t in texts if t in sentence.trace.tokens] == list(sentence.trace.tokens) * 6
        rects = [node.get("fill") for node in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
        values = view_of(sentence.trace, "raw", 3)[1]
        rects = rects[len(values) :]  # answer edges come first
        share = (values - values.min()) / np.ptp(values)
        np.testing.assert_allclose(
            [lightness(c) for c in rects[: len(values)]], 0.985 + (0.36 - 0.985) * share, atol=0.012
        )


@pytest.mark.parametrize("kind", ["svg", "png", "csv", "json"])
def test_what_is_made_is_saved(browser: Any, sentence: Case, kind: str) -> None:
    """The browser itself saves the file; the other tests intercept it."""
    with opened(browser, sentence.path) as page:
        assert downloaded(page, "compare", kind) == exported(page, "compare", kind)
        page.wait_for_function(
            "kind => document.querySelector('.sr[aria-live]').textContent === `saved compare.${kind}`", arg=kind
        )


def boxes(page: Any, data: bytes) -> list[tuple[str, float, float, float, float]]:
    """Return every text of a figure with its left, top, right and bottom, as a browser lays it out."""
    page.set_content(f"<body style='margin:0'>{data.decode().partition('?>')[2]}")
    found = page.locator("text").evaluate_all(
        "all => all.map(t => [t.textContent, ...(b => [b.left, b.top, b.right, b.bottom])(t.getBoundingClientRect())])"
    )
    return [tuple(one) for one in found if one[0].strip()]


@pytest.mark.parametrize("which", ["sentence", "pieces", "translation"])
def test_nothing_in_compare_is_written_over_something(browser: Any, which: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(which)
    with opened(browser, case.path) as page:
        data = exported(page, "compare", "svg")
        words = boxes(page, data)
    width = float(ElementTree.fromstring(data).get("width"))
    assert [text for text, *_ in words if text.startswith("ρ")] == [f"ρ {w.method}" for w in case.worth]
    for i, (text, left, top, right, bottom) in enumerate(words):
        assert left >= -0.5 and right <= width + 0.5, text
        for other, x, y, end, foot in words[:i]:
            apart = left >= end or x >= right or top >= foot - 2 or y >= bottom - 2  # lines may touch
            assert apart, (text, other)


def test_compare_of_an_image_is_one_picture_a_method(browser: Any, images: tuple[Case, Case]) -> None:
    namespace = "{http://www.w3.org/2000/svg}"
    for case, query, layer in zip(images, (7, 5), (-1, 3), strict=True):
        with opened(browser, case.path, f"#q={query}") as page:
            root = ElementTree.fromstring(exported(page, "compare", "svg"))
        assert root.get("aria-label").endswith(f" · L{case.trace.layer_count}")
        names = [node.text for node in root.findall(f"{namespace}text")]
        assert names == [root.get("aria-label"), "raw attention", "rollout", "flow"]
        drawn = root.findall(f"{namespace}image")
        places = [[float(image.get(side)) for side in ("x", "y", "width", "height")] for image in drawn]
        assert len(drawn) == len(METHODS) and all(wide > 100 and high > 100 for _, _, wide, high in places)
        for (x, _, wide, _), (after, *_) in itertools.pairwise(places):
            assert x + wide < after
        assert places[-1][0] + places[-1][2] <= float(root.get("width"))
        assert all(y + high <= float(root.get("height")) for _, y, _, high in places)
        for image, method in zip(drawn, METHODS, strict=True):
            pixels = picture(base64.b64decode(image.get("href").partition("base64,")[2]))
            values = view_of(case.trace, method, query, layer=layer)[-1]
            side = math.isqrt(len(values))
            values = values[len(values) - side * side :]
            centres = ((np.arange(side) + 0.5) * len(pixels) / side).astype(int)
            light = [lightness(" ".join(map(str, pixels[r, c]))) for r in centres for c in centres]
            share = (values - values.min()) / np.ptp(values)
            if case is images[1]:  # no image underneath
                np.testing.assert_allclose(light, 0.985 + (0.36 - 0.985) * share, atol=0.012)
            else:
                assert np.corrcoef(light, share)[0, 1] < -0.6 and len(np.unique(pixels)) > 100


def test_maps_carry_their_scale(browser: Any, sentence: Case) -> None:
    namespace = "{http://www.w3.org/2000/svg}"

    def scales(name: str) -> list[list[str]]:
        root = ElementTree.fromstring(exported(page, name, "svg"))
        found = [
            node for node in root.iter(f"{namespace}svg") if (node.get("aria-label") or "").startswith("scale from ")
        ]
        for scale in found:
            _paper, *stops = scale.iter(f"{namespace}rect")
            shades = [lightness(stop.get("fill")) for stop in stops]
            assert len(shades) == 40 and (np.diff(shades) < 0).all()
            assert float(scale.get("y", "0")) + float(scale.get("height")) <= float(root.get("height"))
        return [[node.text for node in scale.iter(f"{namespace}text")] for scale in found]

    with opened(browser, sentence.path, "#q=3&m=flow&l=2") as page:
        highest = [view_of(sentence.trace, m, 3).max() for m in METHODS]
        check_numbers(scales("layers"), [[0, high] for high in highest], digits=2)
        whole = sentence.trace.flow(query="all", layer=1).values[0]
        check_numbers(scales("map"), [[0, whole.max()]], digits=2)
        choose(page, q=3, ls=1)  # one scale per layer
        assert scales("layers") == []


def test_every_view_is_drawn(browser: Any, sentence: Case, tmp_path: Path) -> None:
    shots = {}
    for scheme in ("light", "dark"):
        with opened(browser, sentence.path, color_scheme=scheme) as page:
            for view, name in (("graph", "Graph"), ("paths", "Flow paths"), ("heads", "Heads"))[
                : 3 if scheme == "light" else 1
            ]:
                page.get_by_role("tab", name=name).click()
                settle(page)
                shots[scheme, view] = screenshot(page, full_page=True)
                check_drawn(shots[scheme, view], tmp_path / f"{scheme}-{view}.png", 1200, 100)
                if scheme == "light":
                    check_drawn(screenshot(page.locator(".panel").last), tmp_path / f"panel-{view}.png")
    assert len(set(shots.values())) == 4
    assert picture(shots["dark", "graph"]).mean() < 90 < 200 < picture(shots["light", "graph"]).mean()
