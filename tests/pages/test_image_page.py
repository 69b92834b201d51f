"""The first screen of a vision model: the picture in grey, with the values of its patches on top."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from helpers.browser import opened, settle
from helpers.page_reading import Case, choose, selection, shown_number

NUMBER = re.compile(r"row (\d+), column (\d+): ([\d.]+) % (for|against) (\w+)")


def labels(page: Any) -> list[tuple[Any, ...]]:
    texts = page.locator(".cells [role=option]").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
    found = [NUMBER.fullmatch(text) for text in texts]
    assert all(found)
    return [m.groups() for m in found if m]


def test_every_patch_has_the_share_that_the_library_gives_it(browser: Any, photo: Case) -> None:
    values = photo.edges.row()[1:]  # the class token is shown separately
    whole = photo.edges.row()
    total = whole[whole > 0].sum()
    assert (values < 0).any() and (values > 0).any()
    with opened(browser, photo.path) as page:
        answer = photo.trace.prediction.top[0][0]
        for place, (row, column, share, side, name) in enumerate(labels(page)):
            assert (int(row), int(column)) == (place // 4 + 1, place % 4 + 1) and name == answer
            assert side == ("against" if values[place] < 0 else "for")
            assert float(share) == pytest.approx(100 * abs(values[place]) / total, abs=0.501)
        colours = page.locator(".cells span").evaluate_all("all => all.map(c => getComputedStyle(c).backgroundColor)")
        parsed = [[float(x) for x in re.findall(r"[\d.]+", colour)] for colour in colours]
        size = np.abs(values) / np.abs(values).max()
        for (r, _, b, *alpha), value, part in zip(parsed, values, size, strict=True):
            if part < 0.03:
                assert alpha == [0]
                continue
            assert (r > b) == (value > 0)  # warm supports the answer, blue counts against it
            assert alpha[0] == pytest.approx(0.7 * part**0.7, abs=0.01)
        says = page.locator(".image-lead .patch").inner_text()
        best = int(values.argmax())
        assert says.startswith(f"Strongest: row {best // 4 + 1}, column {best % 4 + 1} · ") and says.endswith(answer)


def test_the_picture_keeps_its_proportions_and_stands_alone(browser: Any, photo: Case) -> None:
    for width in (390, 1280, 1920):
        with opened(browser, photo.path) as page:
            page.set_viewport_size({"width": width, "height": 900})
            settle(page)
            box = page.locator(".image-lead .frame").bounding_box()
            assert box["width"] / box["height"] == pytest.approx(80 / 48, rel=0.01)
            assert box["width"] > (340 if width == 390 else 600)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator(".lead table").count() == 0 and page.locator(".lead .reading").count() == 0
            red, green, blue = page.locator("canvas.photo").evaluate(
                """c => {
                    const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, sums = [0, 0, 0];
                    for (let i = 0; i < data.length; i += 4) for (const j of [0, 1, 2]) sums[j] += data[i + j];
                    return sums;
                }"""
            )
            assert red == green == blue > 0


def test_mouse_keys_and_touch_reach_every_patch(browser: Any, photo: Case) -> None:
    with opened(browser, photo.path) as page:
        cell = page.locator(".cells span")
        cell.nth(6).hover()
        tip = page.locator(".tip div").all_inner_texts()
        assert tip[0] == "row 2, column 3" and tip[1] == page.locator(".image-lead .patch").inner_text().split(" · ")[1]
        cell.nth(6).click()
        settle(page)
        assert selection(page)["t"] == "7"
        page.mouse.move(5, 5)
        assert page.locator(".image-lead .patch").inner_text().startswith("row 2, column 3 · ")
        grid = page.get_by_role("listbox", name=re.compile("^the image in 4 rows and 4 columns"))
        grid.focus()
        for key, place in (
            ("ArrowRight", 7),
            ("ArrowRight", 7),
            ("ArrowDown", 11),
            ("Home", 8),
            ("ArrowUp", 4),
            ("End", 7),
        ):
            page.keyboard.press(key)
            settle(page)
            assert selection(page)["t"] == str(place + 1)
            assert grid.get_attribute("aria-activedescendant") == cell.nth(place).get_attribute("id")
            assert cell.nth(place).get_attribute("aria-selected") == "true"
        page.keyboard.press("Escape")
        settle(page)
        assert "t" not in selection(page) and grid.get_attribute("aria-activedescendant") is None


def test_another_method_is_laid_over_the_picture(browser: Any, photo: Case) -> None:
    with opened(browser, photo.path) as page:
        choose(page, a="flow", l=2)
        flow = photo.trace.flow(layer=1).row()
        texts = page.locator(".cells span").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
        shown = [shown_number(text.split(": ")[1].removesuffix(" by flow")) for text in texts]
        np.testing.assert_allclose(shown, flow[1:], atol=6e-4)
        choose(page, a="rollout", l=2)
        texts = page.locator(".cells span").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
        row = photo.trace.rollout(layer=1).row()
        found = [float(text.split(": ")[1].split(" %")[0]) / 100 for text in texts]
        np.testing.assert_allclose(found, row[1:] / row.sum(), atol=0.006)


def test_an_image_within_a_text(browser: Any, picture: Case) -> None:
    places = list(picture.trace.picture.places)

    def shares(page: Any) -> list[float]:
        texts = page.locator(".cells span").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
        return [float(text.split(": ")[1].split(" %")[0]) / 100 for text in texts]

    with opened(browser, picture.path) as page:
        row = picture.edges.row()  # signed shares: support adds up to one
        assert picture.edges.method == "answer_inputs" and row.clip(0).sum() == pytest.approx(1)
        np.testing.assert_allclose(shares(page), np.abs(row[places]), atol=0.006)
        texts = page.locator(".cells span").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
        assert [" against " in text for text in texts] == (row[places] < 0).tolist()
        total = re.search(r"([\d.]+) % from the image", page.locator(".image-lead .scale").inner_text())
        assert total and float(total[1]) == pytest.approx(100 * row[places].clip(0).sum(), abs=0.51)
        assert page.locator(".reading .tok").all_inner_texts() == [
            token for i, token in enumerate(picture.trace.tokens) if i not in places
        ]
