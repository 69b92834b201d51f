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
    Case,
    as_json,
    check_clean,
    check_drawn,
    picture,
)

FIGURES = ("page", "graph", "flow")
PANELS = {"graph": ("page", "compare", "layers", "map", "graph"), "paths": ("flow",), "heads": ("heads",)}


@pytest.mark.parametrize("which", ["sentence", "hostile"])
def test_exports(browser: Any, which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case: Case = request.getfixturevalue(which)
    figures = {}
    with opened(browser, case.path, "#theme=dark") as page:
        for view, names in PANELS.items():
            page.locator(f"#tab-{view}").click()
            settle(page)
            for name in names:
                if name in FIGURES:
                    figures[name] = exported(page, name, "svg")
                    pixels = exported(page, name, "png")
                    check_drawn(pixels, tmp_path / f"{name}.png")
                    width = float(ElementTree.fromstring(figures[name]).get("width"))
                    assert picture(pixels).shape[1] == round(3 * width)
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
        if which == "sentence" and name == "graph":
            assert set(SENTENCE.split()) <= set(texts)
        (tmp_path / f"{name}.svg").write_bytes(data)
        alone.goto((tmp_path / f"{name}.svg").as_uri())
        assert alone.locator("svg").first.get_attribute("aria-label") and alone.locator("parsererror").count() == 0
        check_drawn(screenshot(alone), tmp_path / f"{name}-alone.png", 800)
        assert said == [] and alone.evaluate("window.pwned") is None
    context.close()


def test_figures_on_paper_are_light_and_hold_what_is_selected(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, "#theme=dark&q=3&l=2&a=raw") as page:
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"
        root = ElementTree.fromstring(exported(page, "page", "svg"))
        assert root.find("{http://www.w3.org/2000/svg}rect").get("fill") == "#ffffff"
        texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "raw attention" in texts and set(SENTENCE.split()) <= set(texts)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_what_is_made_is_saved(browser: Any, sentence: Case, kind: str) -> None:
    """The browser itself saves the file; the other tests intercept it."""
    with opened(browser, sentence.path) as page:
        assert downloaded(page, "compare", kind) == exported(page, "compare", kind)
        page.wait_for_function(
            "kind => document.querySelector('.sr[aria-live]').textContent === `saved compare.${kind}`", arg=kind
        )


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
