"""The first screen of a sound: its words, its waveform over an axis in seconds, and where each word was heard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnflow as af
from benchmarks import tones
from helpers.browser import opened, settle
from helpers.page_reading import Case


@pytest.fixture(scope="module")
def spoken() -> tones.Spoken:
    return tones.unseen(4)[3]


@pytest.fixture(scope="module")
def case(saved: Callable[..., Case], spoken: tones.Spoken) -> Case:
    return saved("tones", tones.load().explain(spoken.wave, importance="none"))


def test_a_word_is_marked_where_it_sounds(browser: Any, case: Case, spoken: tones.Spoken) -> None:
    with opened(browser, case.path) as page:
        buttons = page.locator(".spoken button")
        assert tuple(buttons.all_inner_texts()) == spoken.words
        for number, (word, (start, end)) in enumerate(zip(spoken.words, spoken.times, strict=True)):
            buttons.nth(number).click()
            settle(page)
            assert page.locator(".headline").inner_text().startswith(f"{word} — heard at ")
            assert buttons.nth(number).get_attribute("aria-pressed") == "true"
            box = page.locator(".sound-lead svg").bounding_box()
            mark = page.locator(".sound-lead svg rect[stroke]").bounding_box()
            whole = case.page.document["sound"]["end"]
            middle = (mark["x"] + mark["width"] / 2 - box["x"]) / box["width"] * whole
            assert start - tones.SLACK <= middle <= end + tones.SLACK


def test_the_axis_is_in_seconds(browser: Any, case: Case) -> None:
    for width in (390, 1280):
        with opened(browser, case.path, viewport={"width": width, "height": 900}) as page:
            texts = page.locator(".sound-lead svg text").all_text_contents()
            assert texts[0] == "0 s" and 2 <= len(texts) <= 16 and all(text.endswith(" s") for text in texts)
            assert [float(text[:-2]) for text in texts] == sorted(float(text[:-2]) for text in texts)
            sizes = page.locator(".sound-lead svg").evaluate("node => [node.clientWidth, node.parentNode.clientWidth]")
            assert abs(sizes[0] - sizes[1]) <= 1


def test_another_method_is_shaded_over_the_same_seconds(browser: Any, case: Case) -> None:
    with opened(browser, case.path) as page:
        before = page.locator(".sound-lead svg").inner_html()
        page.locator(".lead select[aria-label=method]").select_option("rollout")
        settle(page)
        assert page.locator(".sound-lead svg").inner_html() != before
        assert page.locator(".sound-lead .scale").inner_text() == "shaded by rollout"
        assert page.locator(".sound-lead .patch").inner_text().startswith("Strongest: ")
        page.locator(".spoken button").first.click()
        settle(page)
        assert page.locator(".sound-lead .scale").inner_text() == "shaded by cross-attention"


def test_a_result_alone_has_its_seconds_too(browser: Any, saved: Callable[..., Case], spoken: tones.Spoken) -> None:
    from attnflow.view.page import of_result

    result = tones.load().trace(spoken.wave, sampling_rate=tones.RATE).spoken()
    with opened(browser, saved("result", of_result(result)).path) as page:
        assert page.locator(".headline").inner_text().startswith(f"{spoken.words[0]} — heard at ")


def test_a_classifier_of_sounds_says_which_seconds(browser: Any, saved: Callable[..., Case]) -> None:
    from deployments.sound_cells import ast, sound

    model, extractor, _ = ast()
    page_of = af.wrap(model, extractor).explain(sound(), importance="none")
    assert np.isfinite(page_of.document["sound"]["end"]) and not page_of.document["sound"]["words"]
    with opened(browser, saved("classifier", page_of).path) as page:
        assert "the marked seconds" in page.locator(".headline").inner_text()
        assert page.locator(".sound-lead svg text").first.text_content() == "0 s"
