"""Two texts and their similarity, and the page of a sentence embedding, in a real browser: every number is the library's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from helpers.browser import exported, opened
from helpers.page_reading import rgb
from helpers.sentence_models import encoder
from helpers.small_tokenizers import wordpiece

FIRST, SECOND = "the unbelievable key to the cabinet", "a book is the answer, nobody"
HOSTILE = "the <b>key</b> </script> to"

DRAWN = """(side) => [...document.querySelectorAll(".reading")[side].querySelectorAll(".tok")].map(
    (tok) => [Number(tok.dataset.i), tok.textContent, getComputedStyle(tok).backgroundColor])"""


@pytest.fixture(scope="module")
def model() -> af.Model:
    return af.wrap(encoder(), wordpiece(), pooling="mean", name="small")


def test_both_texts_are_shaded_by_what_their_words_give(browser: Any, model: af.Model, tmp_path: Path) -> None:
    similarity = model.similarity(FIRST, SECOND)
    methods = [similarity.by(name) for name in ("blank-out", "answer_inputs")]
    similarity.page(*methods).save(tmp_path / "s.html")
    with opened(browser, tmp_path / "s.html") as page:
        headline = page.locator(".headline").inner_text()
        assert headline.startswith(f"{similarity.value:.3f}".replace("-", "−") + " cosine similarity")
        for sides in methods:
            page.locator(f"[data-value='{sides.first.method}']").click()
            most = max(np.abs(side.without_special().row()).max() for side in sides)
            for number, side in enumerate(sides):
                drawn = page.evaluate(DRAWN, number)
                words = [i for i, special in enumerate(side.special) if not special]
                assert [i for i, _, _ in drawn] == words
                assert [text for _, text, _ in drawn] == [side.tokens[i] for i in words]
                top = max(words, key=lambda i: side.row()[i])
                red, _, blue = rgb({i: colour for i, _, colour in drawn}[top])
                if side.row()[top] > 0.3 * most:
                    assert blue > red, "what brings the texts together is blue"
                rows = page.locator("table").nth(number).locator("tbody tr").all_inner_texts()
                order = sorted(words, key=lambda i: -abs(side.row()[i]))
                assert [row.split() for row in rows] == [
                    [side.tokens[i], f"{side.row()[i]:.3f}".replace("-", "−")] for i in order[:8]
                ]


def test_a_text_is_no_markup(browser: Any, model: af.Model, tmp_path: Path) -> None:
    model.similarity(HOSTILE, SECOND).page().save(tmp_path / "s.html")
    with opened(browser, tmp_path / "s.html", "#theme=dark") as page:
        assert page.locator(".reading").first.inner_text().replace(" ", "") == HOSTILE.replace(" ", "")
        assert page.evaluate("document.querySelector('[data-theme]').dataset.theme") == "dark"


def test_the_page_of_a_text_opens_at_its_embedding(browser: Any, model: af.Model, tmp_path: Path) -> None:
    page_of = model.explain(FIRST)
    page_of.save(tmp_path / "e.html")
    trace = model.trace(FIRST)
    n = len(trace.tokens)
    with opened(browser, tmp_path / "e.html") as page:
        assert f"sentence embedding: mean of {n} tokens at L2" in page.locator(".headline").inner_text()
        rows = json.loads(exported(page, "compare", "json"))["rows"]
        words = trace.words()
        for name, result in (("raw", words.raw()), ("rollout", words.rollout()), ("flow", words.flow())):
            np.testing.assert_allclose([row[name] for row in rows], result.row(), atol=1e-6)
        page.locator("[data-panel=views] button", has_text="show ").click()  # the graph needs a single token
        page.wait_for_selector("[data-panel=views] svg")
        assert "sentence embedding" not in page.locator(".headline").inner_text()
        page.locator(".query [data-q]").last.click()
        assert "sentence embedding" in page.locator(".headline").inner_text()
        page.get_by_role("button", name="subwords").click()
        rows = json.loads(exported(page, "compare", "json"))["rows"]
        np.testing.assert_allclose([row["rollout"] for row in rows], trace.rollout().row(), atol=1e-6)
