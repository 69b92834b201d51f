"""What a reader keeps: the address, and files that open with the same view."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest

from helpers.browser import exported, opened, screenshot, settle
from helpers.page_reading import (
    Case,
    check_clean,
    check_drawn,
    selection,
    view_of,
)


def test_the_buttons_are_large_enough_for_touch(browser: Any, sentence: Case) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(browser, sentence.path, **phone) as page:
        page.locator(".keep > summary").tap()
        menu = page.locator(".keep > div").bounding_box()
        assert menu["x"] >= 0 and menu["x"] + menu["width"] <= 390
        sizes = page.locator(".keep button, .keep > summary, .link > button").evaluate_all(
            "all => all.map(x => x.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"
        )
        assert len(sizes) == 8 and min(sizes) >= 44
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_files_hold_the_view(browser: Any, sentence: Case, tmp_path: Path) -> None:
    with opened(browser, sentence.path, "#l=2&a=rollout&d=1") as page:
        content = {kind: exported(page, "page", kind) for kind in ("json", "png")}
        compared = json.loads(exported(page, "compare", "json"))
    written = json.loads(content["json"])
    assert compared["view"] == written["view"]
    view = dict(parse_qsl(written["view"]))
    assert view["l"] == "2" and view["a"] == "rollout"
    rollout = view_of(sentence.trace, "rollout")[1]
    np.testing.assert_allclose([row["rollout"] for row in written["rows"]], rollout, atol=1e-6)
    assert [row["token"] for row in written["rows"]] == list(sentence.trace.tokens)
    check_drawn(content["png"], tmp_path / "page.png")


def test_the_figure_of_an_image_shows_its_patches(browser: Any, images: tuple[Case, Case], tmp_path: Path) -> None:
    with opened(browser, images[0].path, details=False) as page:
        check_drawn(exported(page, "page", "png"), tmp_path / "image.png")
        rows = json.loads(exported(page, "page", "json"))["rows"]
        rollout = view_of(images[0].trace, "rollout")[-1]
        np.testing.assert_allclose([row["rollout"] for row in rows], rollout, atol=1e-6)


@pytest.mark.parametrize("which", ["sentence", "hostile", "decoder", "translation"])
def test_a_page_saved_by_itself_opens_with_the_view(
    browser: Any, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case: Case = request.getfixturevalue(which)
    with opened(browser, case.path, "#t=1&theme=dark&l=1") as page:
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
        chosen = page.locator(".reading .chosen")
        assert chosen.count() == 1 and selection(page) == {}
        chosen.click()
        assert selection(page)["t"] == "-1"  # the file opens with the token, so the address says that it is gone
        page.reload()
        settle(page)
        assert chosen.count() == 0
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
    with opened(browser, sentence.path, "#l=2&theme=dark") as page:
        page.evaluate("() => { window.print = () => { window.printed = true; } }")
        page.locator(".keep > summary").click()
        page.locator('.keep [data-kind="pdf"]').click()
        assert page.evaluate("window.printed")
        page.emulate_media(media="print")
        foot = page.locator(".print-foot").inner_text()
        assert "l=2" in foot
        for hidden in (".controls", ".quiet"):
            assert not any(page.locator(hidden).evaluate_all("all => all.map(x => x.checkVisibility())")), hidden
        check_drawn(screenshot(page), tmp_path / "print.png")
        assert page.pdf().startswith(b"%PDF")
        page.emulate_media(media="screen")
