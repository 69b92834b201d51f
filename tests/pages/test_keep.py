"""What a reader keeps: pins, names and groups, the address, and files that open with the same view."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.browser import exported, opened, screenshot, settle
from helpers.page_reading import (
    METHODS,
    Case,
    check_clean,
    check_drawn,
    check_numbers,
    choose,
    selection,
    text_of,
    view_of,
)

PINS = "p=2:age:adjectives;3;6::adjectives"
SVG = "{http://www.w3.org/2000/svg}"


def pins(page: Any) -> dict[str, list[str]]:
    """Return the values of pins and the sums of groups, by token and by group."""
    return page.locator(".pins tbody tr").evaluate_all(
        """rows => Object.fromEntries(rows.map(row => [row.dataset.pin ?? row.dataset.group,
            [...row.cells].slice(1).filter(cell => !cell.querySelector("input, button") && cell.colSpan === 1).map(cell => cell.textContent)]))"""
    )


def values(case: Case) -> np.ndarray:
    """Return [method, token] from the library: answer edges, raw attention, rollout, flow, importance."""
    return np.stack(
        [
            case.edges.row(),
            *(view_of(case.trace, method)[-1] for method in METHODS),
            *(worth.row() for worth in case.worth),
        ]
    )


def test_pins_show_values_by_every_method_and_groups_their_sums(browser: Any, sentence: Case) -> None:
    expected = values(sentence)
    with opened(browser, sentence.path, f"#{PINS}") as page:
        shown = pins(page)
        assert list(shown) == ["2", "3", "6", "adjectives"]
        for token in (2, 3, 6):
            check_numbers(shown[str(token)], expected[:, token])
        check_numbers(shown["adjectives"], expected[:, 2] + expected[:, 6])
        assert page.locator('.reading .tok[data-i="2"]').inner_text() == "age"  # its name replaces the token everywhere
        marks = page.locator(".reading .tok").evaluate_all("all => all.map(t => getComputedStyle(t).boxShadow)")
        assert [mark != "none" for mark in marks] == [False, True, True, False, False, True]
        check_clean(page)


def test_mouse_keys_and_touch_pin_a_token(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path) as page:
        assert page.locator(".pins").is_hidden()
        page.locator('.reading .tok[data-i="3"]').click(modifiers=["Shift"])
        assert selection(page)["p"] == "3" and "t" not in selection(page)
        page.locator('.reading .tok[data-i="5"]').click()
        page.keyboard.press("p")
        assert selection(page)["p"] == "3%3B5"
        page.get_by_role("button", name="unpin “my”").click()
        assert selection(page)["p"] == "3"
        page.get_by_role("button", name="unpin key").click()
        assert "p" not in selection(page) and page.locator(".pins").is_hidden()
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(browser, sentence.path, **phone) as page:
        page.locator('.reading .tok[data-i="3"]').tap()
        page.get_by_role("button", name="pin “key”").tap()
        assert selection(page)["p"] == "3"
        page.locator(".keep > summary").tap()
        menu = page.locator(".keep > div").bounding_box()
        assert menu["x"] >= 0 and menu["x"] + menu["width"] <= 390
        small = page.locator(".keep button, .keep .load").evaluate_all(
            "all => all.map(x => x.getBoundingClientRect().height)"
        )
        assert len(small) == 7 and min(small) >= 44
        sizes = page.locator(".pin, .pins button, .pins input, .keep > summary, .link > button").evaluate_all(
            "all => all.map(x => x.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"
        )
        assert len(sizes) == 6 and min(sizes) >= 44
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_names_and_groups_are_typed_and_survive_a_reload(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, "#p=2;3") as page:
        page.get_by_label("name of old").fill("  so: old;\u2028!")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.ariaLabel") == "group of old"  # the focus stays in the table
        page.keyboard.type("<b>both</b>")
        page.keyboard.press("Tab")
        page.get_by_label("group of key").fill("<b>both</b>")
        page.keyboard.press("Enter")
        written = page.evaluate("() => new Promise(done => setTimeout(() => done(location.hash), 125))")
        page.reload()
        settle(page)
        assert page.evaluate("location.hash") == written
        assert page.get_by_label("name of old").input_value() == "so old !"
        assert page.locator("[data-group]").get_attribute("data-group") == "<b>both</b>"
        assert page.locator(".pins b").count() == 0
        assert "so old !" in text_of(page)
        check_clean(page)


@pytest.mark.parametrize(
    "text",
    ["99", "-1", "1;1", "2;1", "x", "1.5", "1:a:b:c", f"1:{'n' * 41}", "1: a", "01", ";".join(["1"] * 300), "1:a%00b"],
)
def test_pins_from_elsewhere_that_fit_nothing_do_not_count(browser: Any, sentence: Case, text: str) -> None:
    with opened(browser, sentence.path, f"#p={text}") as page:
        assert page.locator(".pins").is_hidden() and page.locator(".pins tbody tr").count() == 0


def test_a_word_is_pinned_with_its_pieces(browser: Any, pieces: Case) -> None:
    words = pieces.page.document["units"]["words"]
    at = next(i for i, group in enumerate(words["groups"]) if len(group) > 1)
    with opened(browser, pieces.path, "#u=words") as page:
        page.locator(f'.reading .tok[data-i="{at}"]').click(modifiers=["Shift"])
        assert list(pins(page)) == [str(at)]
        check_numbers(pins(page)[str(at)][2], view_of(pieces.trace.words(), "rollout")[-1][at])
        choose(page, u="subwords", p=selection(page)["p"])
        assert list(pins(page)) == [str(i) for i in words["groups"][at]]


def test_files_hold_the_view_and_give_it_back(browser: Any, sentence: Case, tmp_path: Path) -> None:
    with opened(browser, sentence.path, f"#{PINS}&l=2&a=rollout&d=1") as page:
        content = {kind: exported(page, "page", kind) for kind in ("json", "svg", "csv", "png")}
        compared = json.loads(exported(page, "compare", "json"))
    held = json.loads(content["json"])
    assert held["view"]["pins"] == [
        {"position": 2, "name": "age", "group": "adjectives", "token": "old"},
        {"position": 3, "name": "", "group": "", "token": "key"},
        {"position": 6, "name": "", "group": "adjectives", "token": "cabinets"},
    ]
    assert held["view"]["groups"] == [{"name": "adjectives", "positions": [2, 6]}]
    assert held["view"]["selection"]["l"] == 2 and compared["view"] == held["view"]
    rollout = view_of(sentence.trace, "rollout")[1]
    np.testing.assert_allclose([row["rollout"] for row in held["rows"]], rollout, atol=1e-12)
    assert [row["token"] for row in held["rows"]] == list(sentence.trace.tokens)
    root = ElementTree.fromstring(content["svg"])
    data = json.loads(root.find(f"{SVG}metadata").text)
    assert data["view"] == held["view"] and data["text"] == held["text"]
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert "age" in texts and "pinned: age (old), key, cabinets" in texts and "adjectives: age (old), cabinets" in texts
    check_drawn(content["png"], tmp_path / "page.png")
    for kind in ("json", "svg"):
        (tmp_path / f"view.{kind}").write_bytes(content[kind])
        with opened(browser, sentence.path) as page:
            page.locator(".keep > summary").click()
            page.get_by_label("load a view").set_input_files(tmp_path / f"view.{kind}")
            page.locator(".pins tr[data-pin]").nth(2).wait_for()
            settle(page)
            chosen = selection(page)
            assert chosen["l"] == "2" and chosen["a"] == "rollout"
            assert page.get_by_label("name of old").input_value() == "age"


def test_the_figure_of_an_image_shows_its_patches(browser: Any, images: tuple[Case, Case], tmp_path: Path) -> None:
    with opened(browser, images[0].path, details=False) as page:
        check_drawn(exported(page, "page", "png"), tmp_path / "image.png")
        rows = json.loads(exported(page, "page", "json"))["rows"]
        rollout = view_of(images[0].trace, "rollout")[-1]
        np.testing.assert_allclose([row["rollout"] for row in rows], rollout, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "sentence_said"),
    [
        ("a.json", "{}", "This file contains no view: choose a JSON, SVG or HTML file that was saved here."),
        ("a.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", "This file contains no view: choose a JSON, SVG or HTML file that was saved here."),
        ("a.json", "[1,", "This file contains no view: choose a JSON, SVG or HTML file that was saved here."),
        ("a.json", '{"text": "another", "view": {"fragment": "l=1"}}', "This view belongs to another text: load it on that text's page."),
    ],
)  # fmt: skip
def test_files_without_a_view_are_refused(
    browser: Any, sentence: Case, tmp_path: Path, name: str, content: str, sentence_said: str
) -> None:
    (tmp_path / name).write_text(content)
    with opened(browser, sentence.path) as page:
        page.locator(".keep > summary").click()
        page.get_by_label("load a view").set_input_files(tmp_path / name)
        page.get_by_text(sentence_said).wait_for()
        assert selection(page) == {}


@pytest.mark.parametrize("which", ["sentence", "hostile", "decoder", "translation"])
def test_a_page_saved_by_itself_opens_with_the_view(
    browser: Any, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case: Case = request.getfixturevalue(which)
    with opened(browser, case.path, "#p=1:one&theme=dark&l=1") as page:
        page.locator(".keep > summary").click()
        with page.expect_download() as download:
            page.locator('.keep [data-kind="page"]').click()
        assert download.value.suggested_filename == "attnflow-page.html"
        download.value.save_as(tmp_path / "again.html")
    before, after = (
        json.loads(re.search(r'id="attnflow-document">(.*?)</script>', path.read_text(encoding="utf-8"), re.S).group(1))
        for path in (case.path, tmp_path / "again.html")
    )
    view = after.pop("view")
    assert after == before and "theme=dark" in view
    with opened(browser, tmp_path / "again.html") as page:
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"
        assert list(pins(page)) == ["1"] and selection(page) == {}
        page.get_by_role("button", name="unpin").click()
        assert selection(page)["p"] == ""  # the file opens with the pin, so the address says that it is gone
        page.reload()
        settle(page)
        assert page.locator(".pins").is_hidden()
        check_clean(page)


def test_the_link_is_copied_or_shown(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, "#l=2") as page:
        page.evaluate("() => { navigator.clipboard.writeText = async text => { window.copied = text; } }")
        page.locator('.reading .tok[data-i="3"]').click()
        page.locator(".link > button").click()
        page.get_by_role("button", name="copied").wait_for()
        assert page.evaluate("window.copied") == f"{sentence.path.as_uri()}#l=2&d=1&t=3"
        page.get_by_role("button", name="link").wait_for()
        page.evaluate("() => { navigator.clipboard.writeText = async () => { throw new Error('not allowed'); } }")
        page.locator(".link > button").click()
        field = page.get_by_label("the address of this view")
        assert field.input_value() == f"{sentence.path.as_uri()}#l=2&d=1&t=3"
        assert page.evaluate("document.activeElement.selectionEnd") == len(field.input_value())
        page.keyboard.press("Escape")
        assert field.is_hidden() and page.evaluate("document.activeElement.textContent") == "link"


def test_a_frame_without_an_address_shows_what_stands_behind_a_file(
    browser: Any, sentence: Case, tmp_path: Path
) -> None:
    (tmp_path / "notebook.html").write_text(sentence.page.notebook_html(), encoding="utf-8")
    with opened(browser, tmp_path / "notebook.html") as page:
        frame = page.frame_locator("iframe")
        frame.locator('.reading .tok[data-i="3"]').click()
        frame.locator(".link > button").click()
        assert frame.get_by_label("the address of this view").input_value() == "#t=3"
        assert (
            frame.locator(".link-box .hint")
            .inner_text()
            .startswith("This page is in a frame and has no address. Save it")
        )
        assert frame.locator('.keep [data-kind="pdf"]').count() == 0


def test_printed_it_is_a_figure_with_its_view_in_the_foot(browser: Any, sentence: Case, tmp_path: Path) -> None:
    with opened(browser, sentence.path, f"#{PINS}&theme=dark") as page:
        page.evaluate("() => { window.print = () => { window.printed = true; } }")
        page.locator(".keep > summary").click()
        page.locator('.keep [data-kind="pdf"]').click()
        assert page.evaluate("window.printed")
        page.emulate_media(media="print")
        foot = page.locator(".print-foot").inner_text()
        assert "pinned: age (old), key, cabinets" in foot and "p=2%3Aage%3Aadjectives" in foot
        for hidden in (".controls", ".pin", ".pins .drop", ".quiet"):
            assert not any(page.locator(hidden).evaluate_all("all => all.map(x => x.checkVisibility())")), hidden
        check_drawn(screenshot(page), tmp_path / "print.png")
        assert page.pdf().startswith(b"%PDF")
        page.emulate_media(media="screen")


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pins_are_drawn(browser: Any, sentence: Case, width: int, theme: str, tmp_path: Path) -> None:
    with opened(
        browser, sentence.path, f"#{PINS}", viewport={"width": width, "height": 900}, color_scheme=theme
    ) as page:
        check_drawn(screenshot(page), tmp_path / f"pins-{width}-{theme}.png", width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
