"""The first screen of a text: the answer in words, the shaded text, the tokens set apart, and the picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.origin import strongest_ways
from attnflow.view.page import of_weights
from helpers.architectures import LLAMA, hf
from helpers.browser import opened, settle
from helpers.page_cases import save
from helpers.page_reading import Case, check_numbers, choose, lightness, selection, shown_number
from helpers.small_tokenizers import sentencepiece

TEXT = "the key to the cabinets is unbelievable"


@pytest.fixture(scope="module")
def decoder_answer(tmp_path_factory: pytest.TempPathFactory) -> Case:
    tokenizer = sentencepiece()
    model = af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": len(tokenizer)})(), tokenizer)
    answered = model.trace(TEXT, edges="answer")
    return save(
        tmp_path_factory.mktemp("lead"), "decoder-answer", model.explain(TEXT), answered, (), answered.sources()
    )


def words_of(page: Any) -> list[str]:
    """Return the page's own words on the first screen: neither the user's text nor numbers."""
    return page.evaluate(
        """() => {
            const copy = document.querySelector("article").cloneNode(true);
            for (const part of copy.querySelectorAll(".everything > :not(summary), .sr, .reading, em, tbody th, svg, .tip, dialog, .model-name, [hidden]"))
                part.remove();
            for (const pick of copy.querySelectorAll("select")) pick.replaceWith(pick.options[0]?.textContent ?? "");
            return copy.innerText.split(/\\s+/).filter(word => /\\p{L}{2}/u.test(word));
        }"""
    )


def shades_of(page: Any) -> dict[int, str]:
    return {
        int(i): colour
        for i, colour in page.locator(".reading .tok").evaluate_all(
            "all => all.map(t => [t.dataset.i, t.style.background])"
        )
    }


def test_the_headline_names_the_answer_and_what_it_rests_on(browser: Any, sentence: Case) -> None:
    values, tokens = sentence.edges.row(), sentence.trace.tokens
    plain = [i for i in range(len(tokens)) if not sentence.trace.special[i]]
    order = sorted(plain, key=lambda i: -values[i])
    top = [i for i in order[:3] if values[i] >= values[order[0]] / 2]
    against = [i for i in order[-1:] if values[i] < -0.4 * values[order[0]]]
    (answer, chance), *_ = sentence.trace.prediction.top
    with opened(browser, sentence.path, details=False) as page:
        assert not page.locator(".everything").evaluate("box => box.open")
        headline = page.locator(".headline")
        assert headline.locator("strong").inner_text() == answer
        assert headline.locator(".chance").inner_text() == f"{100 * chance:.0f} %"
        named = headline.locator("em").evaluate_all("all => all.map(e => Number(e.dataset.i))")
        assert named == top + against
        assert "rests on" in headline.inner_text()
        assert len(words_of(page)) <= 60, words_of(page)


def test_the_text_is_shaded_once_and_special_tokens_stand_apart(browser: Any, sentence: Case) -> None:
    values, special = sentence.edges.row(), np.array(sentence.trace.special)
    most = np.abs(values[~special]).max()
    with opened(browser, sentence.path, details=False) as page:
        assert page.locator(".reading").inner_text() == "the old key to my cabinets"
        shades = shades_of(page)
        assert sorted(shades) == np.flatnonzero(~special).tolist()
        for i, colour in shades.items():
            if values[i] > 0.03 * most:
                assert lightness(colour) == pytest.approx(0.985 + (0.36 - 0.985) * values[i] / most, abs=0.012)
        chips = page.locator(".chip").all_inner_texts()
        total = values.clip(0).sum()
        for chip in chips:
            name, share = re.fullmatch(r"(\S+) (\S+) %", chip).groups()
            i = sentence.trace.tokens.index(name)
            assert special[i] and shown_number(share) == pytest.approx(100 * values[i] / total, abs=0.51)
        page.get_by_role("button", name="shade them too").click()
        settle(page)
        assert selection(page) == {"x": "1"}
        assert page.get_by_role("button", name="leave them out").is_visible()


def test_every_method_is_a_choice_with_what_it_asks(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, details=False) as page:
        pick, asked = page.get_by_label("method", exact=True), set()
        for method in ("answer_inputs", "raw", "rollout", "flow", "gradient", "blank-out"):
            pick.select_option(method)
            settle(page)
            asked.add(page.locator(".asks").inner_text())
            assert selection(page) == {"a": method}
            worth = {"answer_inputs": sentence.edges, **{w.method: w for w in sentence.worth}}.get(method)
            row = worth.row() if worth else getattr(sentence.trace, method)().values[-1, 0]
            table = page.locator(".list tbody tr").evaluate_all(
                "rows => rows.map(row => [Number(row.dataset.i), row.cells[1].textContent])"
            )
            check_numbers([text for _, text in table], row[[i for i, _ in table]])
            sizes = [abs(row[i]) for i, _ in table]
            assert sizes == sorted(sizes, reverse=True)
            assert page.get_by_label("layer to shade").is_visible() == (method in ("raw", "rollout", "flow"))
        assert len(asked) == 6 and "" not in asked
        page.get_by_label("method", exact=True).select_option("rollout")
        page.get_by_label("layer to shade").select_option("2")
        settle(page)
        top = page.locator(".list tbody tr").first
        row = sentence.trace.rollout(layer=1).values[0, 0]
        check_numbers(top.locator("td").first.inner_text(), row[int(top.get_attribute("data-i"))])


def test_what_is_left_out_shows_beside_a_source(browser: Any, sentence: Case) -> None:
    blanked = next(w for w in sentence.worth if w.method == "blank-out").row()
    with opened(browser, sentence.path, details=False) as page:
        cells = page.locator(".list tbody tr").evaluate_all(
            "rows => rows.map(row => [Number(row.dataset.i), row.cells[3].textContent])"
        )
        check_numbers([text for _, text in cells], blanked[[i for i, _ in cells]])


def test_the_picture_holds_the_ways_of_the_library(browser: Any, sentence: Case) -> None:
    answered = af.load().trace(sentence.trace.text, edges="answer")
    evidence = answered.inside.evidence
    graphs = [
        edges.clamp(min=0).numpy() + np.diag((holds - edges.sum(0)).clamp(min=0).numpy())
        for edges, holds in zip(evidence.layers, evidence.holds, strict=True)
    ]
    shares = np.where(sentence.trace.special, 0, sentence.edges.row())
    ways = strongest_ways(graphs, shares, [answered.inside.place])
    held = sentence.page.document["origin"]["subwords"]
    assert held["carried"] == pytest.approx(ways.carried) and held["top"] == [answered.inside.place]
    np.testing.assert_allclose(held["edges"], [list(edge) for edge in ways.edges], rtol=1e-6, atol=1e-9)
    with opened(browser, sentence.path, details=False) as page:
        figure = page.locator(".origin")
        assert f"carry {100 * ways.carried:.0f} %" in figure.inner_text()
        assert figure.locator("path").count() == len(ways.edges)
        word = sentence.trace.tokens.index("key")
        page.locator(f'.reading [data-i="{word}"]').hover()
        lit = figure.locator("path").evaluate_all("all => all.map(path => path.style.opacity)")
        reached = {word}  # from the word upwards, edge by edge
        for layer in range(len(graphs)):
            on = [edge for edge in ways.edges if edge.layer == layer and edge.key in reached]
            assert all(lit[ways.edges.index(edge)] == "1" for edge in on if edge.part > 1e-3)
            off = [edge for edge in ways.edges if edge.layer == layer and edge.key not in reached]
            assert all(lit[ways.edges.index(edge)] == "0.12" for edge in off)
            reached = {edge.query for edge in on}
        page.mouse.move(2, 2)
        assert set(figure.locator("path").evaluate_all("all => all.map(path => path.style.opacity)")) == {""}


def test_a_decoder_leaves_its_first_token_and_its_own_position_out(browser: Any, decoder_answer: Case) -> None:
    answered, sources = decoder_answer.trace, decoder_answer.edges
    parts = answered.answer_rows(signed=True).row().clip(0)
    with opened(browser, decoder_answer.path, "#u=subwords", details=False) as page:
        chips = dict(text.rsplit(" ", 2)[:2] for text in page.locator(".chip").all_inner_texts())
        assert shown_number(chips["<s>"]) == pytest.approx(100 * parts[0] / parts.sum(), abs=0.51)
        last = answered.tokens[-1]
        assert shown_number(chips[last.strip("▁")] if last not in chips else chips[last]) == pytest.approx(
            100 * sources.row()[-1], abs=0.51
        )
        assert set(page.locator(".reading .tok.apart").evaluate_all("all => all.map(t => Number(t.dataset.i))")) <= {
            0,
            len(parts) - 1,
        }
        assert page.locator(".headline").inner_text().startswith("Next: ")


def test_no_answer_no_claim(browser: Any, tmp_path: Path, decoder: Case) -> None:
    weights = np.full((2, 1, 6, 6), 1 / 6)
    of_weights(weights, list("abcdef")).save(tmp_path / "even.html")
    with opened(browser, tmp_path / "even.html", details=False) as page:
        assert page.locator(".headline").inner_text() == "a at L2 — no word stands out"
    with opened(browser, decoder.path, details=False) as page:  # a trace alone has only attention
        assert "could come from" in page.locator(".headline").inner_text()
        assert page.get_by_label("method", exact=True).input_value() == "rollout"


def test_details_open_by_mouse_keys_and_address(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, details=False) as page:
        assert page.locator('[data-panel="compare"] .row').count() == 0  # nothing hidden is rendered
        page.locator(".everything > summary").click()
        page.wait_for_selector('[data-panel="compare"] .row[data-method]')
        settle(page)
        assert page.locator('[data-panel="compare"] .row[data-method]').count() == 6
        page.locator("h1").click()
        page.keyboard.press("o")
        settle(page)
        assert not page.locator(".everything").evaluate("box => box.open")
        page.keyboard.press("2")  # a key that selects a panel scrolls it into view
        settle(page)
        assert page.get_by_role("tab", name="Flow paths").evaluate(
            "tab => { const box = tab.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight }"
        )
        choose(page, d=0, t=3)
        assert page.locator(".list tr.chosen").get_attribute("data-i") == "3"


def test_words_and_rows_by_touch_and_keys(browser: Any, sentence: Case) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(browser, sentence.path, details=False, **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for control in (
            ".lead select:visible",
            ".top button:visible",
            ".everything > summary",
            ".lead button:visible",
            ".list tbody tr",
        ):
            heights = page.locator(control).evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
            assert heights and min(heights) >= 43.9, control
        page.locator('.reading [data-i="3"]').tap()
        settle(page)
        assert selection(page) == {"t": "3"}
    with opened(browser, sentence.path, details=False) as page:
        page.locator(".list tbody tr").nth(1).focus()
        page.keyboard.press("Enter")
        settle(page)
        assert selection(page) == {"t": page.locator(".list tbody tr").nth(1).get_attribute("data-i")}


def test_a_long_text_is_a_paragraph_with_an_overview(browser: Any, tmp_path: Path) -> None:
    n = 400
    weights = np.random.default_rng(0).dirichlet(np.full(n, 0.05), size=(2, 1, n))
    of_weights(weights, [f"considerable{i}" for i in range(n)]).save(tmp_path / "long.html")
    with opened(browser, tmp_path / "long.html", details=False) as page:
        assert page.locator(".reading.paragraph").is_visible() and page.locator(".ribbon").is_visible()
        page.locator(".ribbon").click(position={"x": 500, "y": 5})
        page.wait_for_function("() => document.querySelector('.reading').scrollTop > 0")
