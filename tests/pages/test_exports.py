"""Exports: files that open anywhere, figures that show the selection."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

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
    picture,
    view_of,
)

PANELS = {"graph": ("page", "compare", "layers", "map", "graph"), "paths": ("flow",), "heads": ("heads",)}


@pytest.mark.parametrize("which", ["sentence", "hostile"])
def test_exports(browser: Any, which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case: Case = request.getfixturevalue(which)
    with opened(browser, case.path, "#theme=dark") as page:
        figure = exported(page, "page", "svg")
        root = ElementTree.fromstring(figure)
        pixels = exported(page, "page", "png")
        check_drawn(pixels, tmp_path / "page.png")
        assert picture(pixels).shape[1] == round(3 * float(root.get("width")))
        for view, names in PANELS.items():
            page.locator(f"#tab-{view}").click()
            settle(page)
            for name in names:
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
    for node in root.iter():
        tag = node.tag.rpartition("}")[2]
        assert tag in {"svg", "g", "rect", "path", "line", "circle", "text", "title", "image", "metadata"}
        for attribute, value in node.attrib.items():
            attribute = attribute.rpartition("}")[2]
            assert attribute not in ("class", "tabindex") and not attribute.startswith("on")
            assert attribute != "href" or value.startswith("data:image/png;base64,")
            assert "url(" not in value and "var(" not in value
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert root.find("{http://www.w3.org/2000/svg}rect").get("fill") == "#ffffff"
    if which == "sentence":
        assert set(SENTENCE.split()) <= set(texts)
    (tmp_path / "page.svg").write_bytes(figure)
    alone.goto((tmp_path / "page.svg").as_uri())
    assert alone.locator("svg").first.get_attribute("aria-label") and alone.locator("parsererror").count() == 0
    check_drawn(screenshot(alone), tmp_path / "alone.png", 800)
    assert said == [] and alone.evaluate("window.pwned") is None
    context.close()


@pytest.mark.parametrize(("name", "kind"), [("page", "svg"), ("page", "png"), ("compare", "csv"), ("compare", "json")])
def test_what_is_made_is_saved(browser: Any, sentence: Case, name: str, kind: str) -> None:
    """The browser itself saves the file; the other tests intercept it."""
    with opened(browser, sentence.path) as page:
        assert downloaded(page, name, kind) == exported(page, name, kind)
        page.wait_for_function(
            "said => document.querySelector('.sr[aria-live]').textContent === said", arg=f"saved {name}.{kind}"
        )


def boxes(page: Any, data: bytes) -> list[tuple[str, float, float, float, float]]:
    """Return every text of a figure with its left, top, right and bottom, as a browser lays it out."""
    page.set_content(f"<body style='margin:0'>{data.decode().partition('?>')[2]}")
    found = page.locator("text").evaluate_all(
        "all => all.map(t => [t.textContent, ...(b => [b.left, b.top, b.right, b.bottom])(t.getBoundingClientRect())])"
    )
    return [tuple(one) for one in found if one[0].strip()]


@pytest.mark.parametrize("which", ["sentence", "pieces", "translation"])
def test_nothing_in_the_figure_is_written_over_something(
    browser: Any, which: str, request: pytest.FixtureRequest
) -> None:
    case: Case = request.getfixturevalue(which)
    with opened(browser, case.path) as page:
        data = exported(page, "page", "svg")
        words = boxes(page, data)
    width = float(ElementTree.fromstring(data).get("width"))
    for i, (text, left, top, right, bottom) in enumerate(words):
        assert left >= -0.5 and right <= width + 0.5, text
        for other, x, y, end, foot in words[:i]:
            apart = left >= end or x >= right or top >= foot - 2 or y >= bottom - 2  # lines may touch
            assert apart, (text, other)


def test_maps_have_their_scale(browser: Any, sentence: Case) -> None:
    def scales(box: str) -> list[list[str]]:
        found = page.locator(f'{box} svg[aria-label^="scale from "]')
        return found.evaluate_all("all => all.map(one => [...one.querySelectorAll('text')].map(t => t.textContent))")

    with opened(browser, sentence.path, "#q=3&m=flow&l=2") as page:
        highest = [view_of(sentence.trace, m, 3).max() for m in METHODS]
        check_numbers(scales(".maps:not(.whole)"), [[0, high] for high in highest], digits=2)
        whole = sentence.trace.flow(query="all", layer=1).values[0]
        check_numbers(scales(".whole"), [[0, whole.max()]], digits=2)


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
