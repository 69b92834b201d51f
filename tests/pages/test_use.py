"""Using the page: keys, a screen reader, the address, themes, small windows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from attnflow.result import TokenAttention
from attnflow.view.page import of_result
from helpers.browser import opened, settle
from helpers.page_reading import (
    Case,
    check_numbers,
    choose,
    contrast,
    focused,
    go,
    lightness,
    rows_of,
    selection,
    text_of,
    view_of,
)


def test_one_selection_in_the_address(browser: Any, sentence: Case, pieces: Case) -> None:
    with opened(browser, pieces.path, details=False) as page:
        assert page.evaluate("location.hash") == ""
        page.locator(".everything > summary").click()
        page.locator('.query [data-q="8"]').click()
        page.get_by_label("layer", exact=True).fill("1")
        page.locator('.row[data-method="raw"] .tok[data-i="9"]').click()
        page.get_by_label("special tokens").uncheck()
        page.get_by_role("columnheader", name="flow").get_by_role("button").click()
        page.get_by_role("group", name="method of the map").get_by_role("button", name="flow").click()
        page.get_by_role("tab", name="Heads").click()
        page.get_by_role("group", name="method of the heads").get_by_role("button", name="raw").click()
        page.locator('[data-head="2.3"]').click()
        page.get_by_role("button", name="dark theme").click()
        settle(page)
        wanted = {
            "q": "8",
            "l": "2",
            "t": "9",
            "s": "0",
            "o": "flow.down",
            "m": "flow",
            "v": "heads",
            "k": "raw",
            "h": "2.3",
            "theme": "dark",
        }
        assert selection(page) == wanted
        before = (rows_of(page), text_of(page))
        page.reload()
        settle(page)
        assert (rows_of(page), text_of(page)) == before and selection(page) == wanted
        choose(page, u="words", q=2)
        assert page.locator('.query [aria-selected="true"]').inner_text() == "unbelievable"
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "light"
        page.go_back()
        settle(page)
        choose(page, d=0)
        assert page.evaluate("location.hash.replace('#d=0', '')") == ""
    with opened(browser, sentence.path) as page:
        # The initial choices, made by mouse, leave nothing in the address.
        page.locator('.query [data-q="2"]').click()
        page.get_by_role("tab", name="Heads").click()
        page.get_by_label("layer", exact=True).fill("0")
        page.get_by_label("special tokens").uncheck()
        assert set(selection(page)) == {"q", "v", "l", "s"}
        page.locator('.query [data-q="0"]').click()
        page.get_by_role("tab", name="Graph").click()
        page.get_by_label("layer", exact=True).fill("5")
        page.get_by_label("special tokens").check()
        assert selection(page) == {}


def test_an_address_that_comes_while_another_is_being_written(browser: Any, sentence: Case) -> None:
    """The page writes a selection with a delay: a link followed in the meantime is not lost."""
    with opened(browser, sentence.path) as page:
        written = page.evaluate(
            """() => {
                const wait = window.setTimeout, writes = [];
                window.setTimeout = (work, delay) => delay === 120 ? writes.push(work) : wait(work, delay);
                document.querySelector('.query [data-q="6"]').click();
                window.setTimeout = wait;
                location.hash = "q=2&l=3&d=1";
                writes.forEach(write => write());  // its time comes before the page hears of the address
                return [writes.length, location.hash];
            }"""
        )
        assert written[0] == 1 and sorted(written[1].strip("#").split("&")) == ["d=1", "q=6"]
        assert selection(page) == {"q": "2", "l": "3"}
        settle(page)
        assert page.locator('.query [aria-selected="true"]').get_attribute("data-q") == "2"
        assert page.locator("output").inner_text() == "L3 of L6"


NONSENSE = [
    "q=999&l=-3&u=xyz&t=abc&h=9.99", "v=xyz&m=xyz&k=xyz&o=xyz.xyz&theme=xyz", "m=__proto__&u=__proto__&v=__proto__",
    "u=constructor", "v=constructor", "m=constructor&k=toString", "q=-7&l=2.5&t=-9&s=zz", "h=1&o=raw", "h=0.0&o=.",
    "t=1e3&q=1e999&l=Infinity", "%E0%A4%A&q=%", "constructor=1&__proto__=2",
]  # fmt: skip


def test_an_address_from_elsewhere_breaks_nothing(browser: Any, sentence: Case, decoder: Case) -> None:
    for case, fragments in ((sentence, NONSENSE), (decoder, NONSENSE[1:3] + NONSENSE[5:6])):
        with opened(browser, case.path) as page:
            opening = text_of(page)

            def check(fragment: str, opening: str = opening, page: Any = page) -> None:
                settle(page)
                count = "selectors => selectors.map(selector => document.querySelectorAll(selector).length)"
                chosen, reached, choices, pressed = page.evaluate(
                    count,
                    [
                        '[role=tab][aria-selected="true"]', '[role=tab][tabindex="0"]',
                        ".choice", '.choice [aria-pressed="true"]',
                    ],
                )  # fmt: skip
                assert (chosen, reached) == (1, 1) and choices == pressed, fragment
                text = text_of(page)
                assert "undefined" not in text and "NaN" not in text and "xyz" not in text, fragment
                if not re.search(r"[qlsot]=", fragment):
                    assert text == opening, fragment

            for i, fragment in enumerate(fragments):
                go(page, fragment)  # without a reload
                check(fragment)
                if 2 <= i < 6 or case is decoder:  # once more after a reload
                    page.reload()
                    check(fragment)
                if i < 2:
                    for view in ("graph", "paths", "heads"):
                        page.locator(f"#tab-{view}").click()
                        settle(page)
                        without = view == "paths" and page.locator(".paths table").is_visible()  # another query
                        assert without or page.locator(f'section[data-view="{view}"] svg').count() > 0, fragment


def test_keys(browser: Any, pieces: Case) -> None:
    with opened(browser, pieces.path) as page:

        def pressed(*keys: str) -> dict[str, str]:
            for key in keys:
                page.keyboard.press(key)
            settle(page)
            return selection(page)

        # No click is needed first.
        assert pressed("2", "ArrowDown") == {"v": "paths", "l": "2"}
        assert pressed("3", "ArrowDown", "ArrowDown") == {"v": "heads", "l": "1"}
        assert pressed("1", "ArrowUp", "ArrowUp", "ArrowUp") == {}
        start = int(pressed("ArrowLeft")["t"])
        assert page.locator('.row[data-method="raw"] .tok.chosen').get_attribute("data-i") == str(start)
        assert pressed("ArrowRight") == {"t": str(start + 1)}
        live = page.locator(".sr[aria-live]").inner_text()
        assert live.startswith(f"{pieces.trace.tokens[start + 1]}, L3, rollout ")
        check_numbers(live.rsplit(" ", 1)[1], view_of(pieces.trace, "rollout")[-1, start + 1])
        assert pressed("q") == {"t": str(start + 1), "q": str(start + 1)}
        assert pressed("w")["u"] == "words"
        assert "u" not in pressed("w")
        assert pressed("s")["s"] == "0" and page.locator('.row[data-method="raw"] .tok').count() == 10
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        assert pressed("ArrowLeft")["t"] == "1"  # skips special tokens
        assert "s" not in pressed("s")
        assert pressed("d")["theme"] == "dark"
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"
        page.keyboard.press("d")
        page.keyboard.press("?")
        help_box = page.get_by_role("dialog")
        assert help_box.is_visible() and "previous or next token" in help_box.inner_text()
        before = selection(page)
        page.keyboard.press("2")  # ignored while the list of keys is open
        assert selection(page) == before
        page.keyboard.press("Escape")
        assert help_box.is_hidden()
        # A focused control receives the keys.
        page.get_by_label("layer", exact=True).focus()
        assert pressed("ArrowLeft")["l"] == "2"
        page.locator(".query").focus()
        assert "q" not in pressed("Home")  # the initial query, [CLS]
        assert pressed("End")["q"] == "11"
        assert page.locator(".query").get_attribute("aria-activedescendant") == "q11"
        page.get_by_role("tab", name="Graph").focus()
        assert pressed("ArrowRight")["v"] == "paths" and focused(page) == "button tab-paths Flow paths"
        assert pressed("ArrowLeft", "ArrowLeft")["v"] == "heads" and focused(page) == "button tab-heads Heads"
        with page.expect_download() as download:
            page.locator('details[data-name="heads"] summary').focus()
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == "attnflow-heads.csv"
        page.wait_for_function("() => document.querySelector('.sr[aria-live]').textContent === 'saved heads.csv'")
        assert focused(page) == "summary export heads"


def test_tab_reaches_every_control(browser: Any, pieces: Case) -> None:
    with opened(browser, pieces.path) as page:
        for view in ("graph", "paths", "heads"):
            page.evaluate("document.activeElement.blur()")
            page.locator(f"#tab-{view}").click()
            settle(page)
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
            wanted = page.evaluate(
                """() => { let n = 0; for (const e of document.querySelectorAll("button, input, select, summary, [role=listbox], svg.graph"))
                    if (e.checkVisibility() && !e.closest("dialog") && !(e.role === "tab" && e.ariaSelected !== "true")) e.dataset.reach = n++; return n; }"""
            )
            page.locator("h1").click()
            reached = set()
            for _ in range(wanted + 12):  # rows of the first table are reached too
                page.keyboard.press("Tab")
                reached.add(page.evaluate("document.activeElement.dataset.reach"))
            assert reached - {None} == {str(i) for i in range(wanted)}
            page.evaluate("document.querySelectorAll('[data-reach]').forEach(e => { delete e.dataset.reach })")


CONTROLS = {
    "button",
    "checkbox",
    "slider",
    "combobox",
    "tab",
    "tabpanel",
    "listbox",
    "option",
    "img",
    "image",
    "table",
    "dialog",
    "group",
    "DisclosureTriangle",
}


def unnamed(page: Any) -> list[str]:
    """Return controls and pictures without an accessible name, from the browser's accessibility tree."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in tree if not node["ignored"] and node["role"]["value"] in CONTROLS]
    assert len(seen) > 20
    return [
        node["role"]["value"] for node in seen if node["role"]["value"] != "group" and not node["name"]["value"].strip()
    ]


def test_what_a_screen_reader_finds(browser: Any, sentence: Case, pieces: Case, images: tuple[Case, Case]) -> None:
    for case, names in ((sentence, ("Graph", "Flow paths", "Heads")), (pieces, ("Heads",)), (images[0], ("Graph",))):
        with opened(browser, case.path) as page:
            for name in names:
                page.get_by_role("tab", name=name).click()
                settle(page)
                assert unnamed(page) == []
                tab = page.get_by_role("tab", selected=True)
                assert tab.count() == 1 and tab.inner_text() == name
                assert page.get_by_role("tabpanel", name=name).is_visible()
                assert tab.get_attribute("aria-controls") == page.get_by_role("tabpanel").get_attribute("id")
                # A canvas is either named or decoration, and pictures have a table as well.
                bare = page.evaluate(
                    "[...document.querySelectorAll('canvas')].filter(c => !c.ariaLabel && c.ariaHidden !== 'true').length"
                )
                assert bare == 0
                if name != "Flow paths" or case is sentence:
                    page.locator("[role=tabpanel] table").first.wait_for(state="attached")
            assert page.get_by_role("listbox", name="query token").get_by_role("option", selected=True).count() == 1
            last = f"L{case.trace.layer_count}"
            assert page.get_by_role("slider", name="layer").get_attribute("aria-valuetext") == last
            figures = page.locator('[data-panel="layers"] figure')
            for i in range(figures.count()):
                figures.nth(i).locator("table").wait_for(state="attached")
            ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
            assert len(ids) == len(set(ids))


def texts_of(page: Any) -> list[tuple[str, str, str]]:
    """Return every visible text of the page with its colour and its background."""
    return page.evaluate(
        """() => {
            const found = new Map(), walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
            while (walker.nextNode()) {
                const e = walker.currentNode.parentElement;
                if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest("svg, .sr, .mark, option")) continue;
                let back = "rgba(0, 0, 0, 0)";
                for (let box = e; box && back === "rgba(0, 0, 0, 0)"; box = box.parentElement) back = getComputedStyle(box).backgroundColor;
                const ink = getComputedStyle(e).color;
                found.set(ink + back, [walker.currentNode.data.trim().slice(0, 40), ink, back]);
            }
            return [...found.values()];
        }"""
    )


@pytest.fixture(scope="module")
def shades(saved: Any) -> Case:
    """Every shade, in both hues."""
    values = np.linspace(-1, 1, 511)
    n = len(values)
    result = TokenAttention(
        values=[[values]], method="rollout", layers=[0], queries=[0], query_tokens=["q"], tokens=[f"t{i}" for i in range(n)],
        word_ids=[None] * n, word_texts=[], special=[False] * n, text="shades", provenance={"model": "none"},
    )  # fmt: skip
    return saved("shades", of_result(result))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_and_contrast(browser: Any, shades: Case, sentence: Case, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    with opened(browser, shades.path, color_scheme=scheme) as page:
        tokens = rows_of(page)["rollout"]["tokens"]
        worst = min(tokens, key=lambda token: contrast(token["ink"], token["back"]))
        assert contrast(worst["ink"], worst["back"]) >= 4.5, worst
        levels = np.array([lightness(token["back"]) for token in tokens])
        for half in (levels[255:], levels[255::-1]):  # from zero to one, and from zero to minus one
            away = half * (-1 if scheme == "light" else 1)
            # With 256 stops, some neighbours round to the same eight-bit colour.
            assert len(half) == 256 and (np.diff(away[::2]) > 0.002).all() and (np.diff(away) > -1e-4).all()
    with opened(browser, sentence.path, color_scheme=scheme) as page:
        for view in ("graph", "paths", "heads"):
            page.locator(f"#tab-{view}").click()
            settle(page)
            for text, ink, back in texts_of(page):
                assert contrast(ink, back) >= 4.5, (text, ink, back)
        paper = page.evaluate("getComputedStyle(document.querySelector('article')).backgroundColor")
        assert (lightness(paper) > 0.9) == (scheme == "light")
        page.get_by_role("button", name=f"{other} theme").click()
        settle(page)
        assert page.evaluate("getComputedStyle(document.querySelector('article')).backgroundColor") != paper
        for text, ink, back in texts_of(page):
            assert contrast(ink, back) >= 4.5, (text, ink, back)
        assert selection(page)["theme"] == other
        page.get_by_role("button", name=f"{scheme} theme").click()
        settle(page)
        assert page.evaluate("getComputedStyle(document.querySelector('article')).backgroundColor") == paper
    with opened(browser, sentence.path, color_scheme=scheme) as page:
        page.emulate_media(color_scheme=other)  # while the page is open
        page.wait_for_function("theme => document.querySelector('#attnflow').dataset.theme === theme", arg=other)
        page.emulate_media(color_scheme=scheme)


@pytest.mark.parametrize("which", ["sentence", "translation", "hostile"])
def test_a_narrow_window_and_zoom(browser: Any, which: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(which)
    for options in (
        {"viewport": {"width": 400, "height": 800}},
        {"viewport": {"width": 600, "height": 450}, "device_scale_factor": 2},
    ):
        with opened(browser, case.path, **options) as page:
            for view in ("graph", "paths", "heads"):
                page.locator(f"#tab-{view}").click()
                settle(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= options["viewport"]["width"], view
                assert page.evaluate("document.body.scrollWidth") <= options["viewport"]["width"], view


def test_print_is_light_and_whole_whatever_the_screen_shows(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, color_scheme="dark") as page:
        theme = "document.querySelector('#attnflow').dataset.theme"
        assert page.evaluate(theme) == "dark"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(theme) == "light"
        page.emulate_media(media="print")
        assert page.locator(".export").first.is_hidden() and page.locator(".numbers tbody tr").last.is_visible()
        tok = page.locator('.row[data-method="blank-out"] .tok').nth(3)
        assert tok.evaluate("t => getComputedStyle(t).printColorAdjust") == "exact"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(theme) == "dark"
