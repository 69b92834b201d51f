"""The answer page in a real browser: for any part of the answer, its shades and lists match the library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="answers need torch")
pytest.importorskip("transformers", reason="answers need transformers")

import attnflow as af
from attnflow.answer_rows import mean_shares
from attnflow.view import answer_numbers
from attnflow.view.answer_page import document_of, html_of, written_document
from attnflow.view.page import file_of
from benchmarks.shapes import FOLDER, scenes
from helpers.answer_documents import synthetic
from helpers.answers import ANSWER, chatted, decoder, shared
from helpers.browser import opened, settle

UNITS = ("token", "word", "sentence", "paragraph", "message", "document")
SPANS: tuple[tuple[int, int] | None, ...] = (None, (0, 1), (2, 5), (4, 8))
SHOWN = 8


@pytest.fixture(scope="module")
def answer() -> Any:
    return chatted(decoder())


@pytest.fixture(scope="module")
def path(answer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answer") / "answer.html"
    answer.save(path)
    return path


@pytest.fixture(scope="module")
def verified(answer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answer") / "verified.html"
    answer.save(path, verify=2)
    return path


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def chosen(span: tuple[int, int] | None, **choices: str) -> str:
    """Return the address of a page with Details open."""
    where = {} if span is None else {"s": f"{span[0]}-{span[1] - 1}"}
    return "#" + "&".join(f"{name}={value}" for name, value in {"d": "1", **where, **choices}.items())


def rows(page: Any, name: str) -> dict[int, float]:
    """Return a column of the table, by unit."""
    cells: list[list[str]] = page.evaluate(
        """name => [...document.querySelectorAll(".sources [data-row]")].map(row =>
            [row.dataset.row, row.querySelector(`[data-of="${name}"]`).textContent])""",
        name,
    )
    return {int(unit): number(text) for unit, text in cells if text != "–"}


def option(page: Any, token: int) -> Any:
    return page.locator(".said .tok").nth(token)


def press(page: Any, unit: str) -> None:
    page.get_by_role("group", name="units").get_by_role("button", name=f"{unit}s", exact=True).click()
    settle(page)


def check_table(page: Any, wanted: Any, signed: Any = None) -> None:
    """Check the strongest units and their shares, then those that count most against the answer.

    wanted, signed: values of all units.
    """
    values = rows(page, "share")
    top = np.argsort(-wanted, kind="stable")[:SHOWN].tolist()
    listed = list(values)[: len(top)]
    assert [values[i] for i in listed] == pytest.approx(wanted[top].tolist(), abs=6e-4)
    assert values == pytest.approx({i: wanted[i] for i in values}, abs=6e-4)
    if signed is not None:
        parts = rows(page, "log-odds")
        assert parts == pytest.approx({i: signed[i] for i in parts}, abs=6e-3)
        hidden = [i for i in np.argsort(signed).tolist() if signed[i] < 0 and i not in listed][:3]
        assert list(values)[len(listed) :] == hidden


def check_list(page: Any, wanted: Any) -> None:
    """Check the sources on the first screen, in percent."""
    entries: list[list[str]] = page.evaluate(
        """[...document.querySelectorAll(".list li")].map(one =>
            [one.dataset.source, one.querySelector(".share").textContent])"""
    )
    listed = [(int(i), float(text.strip("<> %"))) for i, text in entries]
    assert [share for _, share in listed] == pytest.approx([100 * wanted[i] for i, _ in listed], abs=0.51)
    top = np.sort(wanted[wanted > 1e-9])[::-1][:6]
    assert [wanted[i] for i, _ in listed] == pytest.approx(top.tolist(), abs=1e-5)


def check_span(page: Any, answer: Any, unit: str, span: Any = None) -> None:
    """Check a span against the method that the library recommends for the unit."""
    result = answer.sources(span, unit)
    check_list(page, result.row())
    check_table(page, result.row(), answer.sources(span, unit, signed=True).row())


def test_the_first_screen(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, details=False) as page:
        assert page.title() == f"{ANSWER} · attnflow"
        assert page.locator(".said").inner_text().replace("⏎", "") == ANSWER
        text = page.locator(".prompt").evaluate("node => node.textContent")
        escaped = answer.prompt.text.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
        assert text == escaped
        assert page.locator(".prompt .mark").first.inner_text() == "<|start|>"
        assert page.locator(".said [aria-selected=true]").count() == 0
        assert not page.locator(".everything").evaluate("node => node.open")
        user = "bdi, .lead mark, .said, .prompt, .list .name"
        words = page.evaluate(
            """user => { const copy = document.querySelector("article").cloneNode(true);
                copy.querySelectorAll(user + ", .everything > :not(summary), [hidden]").forEach(node => node.remove());
                return copy.textContent; }""",
            user,
        )
        assert len(re.findall(r"[^\W\d]{2,}", words)) <= 60, words
        for term in ("query", "edge", "gather", "column", "rollout", "combined", "log-odds", "token_"):
            assert term not in words


def test_the_headline_says_what_the_answer_rests_on(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, details=False) as page:
        assert page.locator(".lead h2").inner_text() == "The answer rests on"
        top = answer.sources(unit="sentence").top(1)[0]
        first = page.locator(".cause").first
        assert first.locator("mark").inner_text() == " ".join(top.token.split())
        assert first.locator(".share").inner_text() == f"{round(100 * top.value)} %"
        press(page, "word")
        option(page, 1).click()
        settle(page)
        span = (1, 2)
        assert page.locator(".lead h2").inner_text() == f"“{answer.tokens[1]}” rests on"
        named = answer.sources(span, "word").row()
        shown = page.locator(".cause .share").all_inner_texts()
        assert shown == [f"{round(100 * x)} %" for x in sorted(named, reverse=True)[: len(shown)]] and len(shown) <= 3
        caution = page.locator(".caution")
        note = answer.sources(span, "word").reliability[0]
        assert caution.get_attribute("title").startswith(note)
        assert caution.inner_text().removeprefix("⚠ ") == re.split("[:(]", note)[0].strip()
        caution.click()
        settle(page)
        assert page.locator(".everything").evaluate("node => node.open")


def test_the_table_is_the_library(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#d=1") as page:
        for unit in UNITS:
            press(page, unit)
            check_span(page, answer, unit)
            texts = answer.prompt.units(unit).texts
            for line in page.locator(".sources [data-row]").all():
                name = " ".join(line.locator(".name").inner_text().split())
                if name.isascii() and "\\u" not in name and "…" not in name:
                    assert name == " ".join(texts[int(line.get_attribute("data-row"))].split()) or name == "␣"


def test_every_span_has_the_method_of_its_unit(browser: Any, path: Path, answer: Any) -> None:
    """Sentences and larger units use the combined method, even for spans that were not saved."""
    different = False
    for span in SPANS[1:]:
        for unit in UNITS:
            with opened(browser, path, chosen(span, u=unit)) as page:
                check_span(page, answer, unit, span)
                method = page.locator(".method").inner_text()
                assert ("(combined)" if answer.sources(span, unit).method == "combined" else "(answer rows)") in method
            rows_alone = answer.sources(span, unit, method="answer_rows").row()
            different |= bool(np.abs(rows_alone - answer.sources(span, unit).row()).max() > 0.01)
    assert different


def test_fading_is_limited_by_time_and_the_page_says_so(browser: Any, answer: Any, tmp_path: Path) -> None:
    alone = document_of(answer, seconds=0.0)
    assert alone["fading"] == {"spans": [[0, len(answer.ids) - 1]], "by": "span"}
    assert document_of(answer)["fading"]["by"] == "token"
    assert document_of(answer, method="answer_rows")["fading"] is None
    path = tmp_path / "short.html"
    path.write_text(html_of(answer, "sentence", 0, None, seconds=0.0), encoding="utf-8")
    with opened(browser, path, "#d=1") as page:
        check_span(page, answer, "sentence")
        assert not page.locator(".by-rows").count()
    with opened(browser, path, chosen((2, 5))) as page:
        wanted = answer.sources((2, 5), "sentence", method="answer_rows").row()
        check_table(page, wanted)
        said = page.locator(".method").inner_text()
        lead = "This part uses a weaker measure: only what the model read from each source."
        assert page.locator(".lead .by-rows").inner_text() == lead
        assert said == (
            "Shares of sentences by what the answer read from them (answer rows). The answer is long: the page has the "
            "better method, combined, only for the part that it opens with."
        )


def test_fading_of_sentences_of_the_answer(browser: Any, tmp_path: Path) -> None:
    """Whole sentences of the answer are exact; parts of them use answer_rows."""
    answer = decoder().answer("The key is here. It is old.", answer="It is here. The key is old. Yes.")
    sentences = answer_numbers.answer_sentences(answer.labels)
    assert len(sentences) == 3 and sentences[0][0] == 0 and sentences[-1][1] == len(answer.ids) - 1
    assert [b + 1 for _, b in sentences[:-1]] == [a for a, _ in sentences[1:]]
    whole = answer_numbers.faded_rows(answer, range(len(answer.ids)))
    assert whole is not None and whole.by == "token"
    np.testing.assert_allclose(whole.slopes[1:].sum(0), whole.slopes[0], atol=1e-5)


def test_the_page_tells_what_stands_in_no_unit(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#d=1") as page:
        outside = page.locator(".sources .outside")
        before = range(answer.tokens.index("🙂"))  # later, one option covers several tokens
        rests = [answer.sources(k, "sentence").provenance["outside"] for k in before]
        rest, token = max(rests), int(np.argmax(rests))
        assert rest > 0.1
        option(page, token).click()
        settle(page)
        assert outside.inner_text() == f"in no sentence: a share of {rest:.3f}"
        press(page, "token")
        assert outside.count() == 0


LIGHT = """nodes => nodes.map(node => [node.textContent, node.style.background
    ? getComputedStyle(node).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) : 1000])"""


def test_shades_follow_shares(browser: Any, path: Path, answer: Any) -> None:
    marks = [a or b for a, b in zip(answer.prompt.template, answer.prompt.special, strict=True)]
    row = answer.sources().row()
    with opened(browser, path, "#u=token") as page:
        pieces = page.locator(".prompt [data-at]").evaluate_all(LIGHT)
        assert not page.locator(".prompt .mark[style]").count()
    texts = [(text.replace("\\u001b", "\x1b").replace("\\u202e", "\u202e"), value) for text, value in pieces]
    characters = [(character, value) for text, value in texts for character in text if not character.isspace()]
    wanted = []
    for place, character in enumerate(answer.prompt.text):
        tokens = [i for i, (a, b) in enumerate(answer.prompt.offsets) if a <= place < b]
        if not character.isspace():
            wanted.append(
                (character, -1.0 if any(marks[i] for i in tokens) else shared(place, row, answer.prompt.offsets))
            )
    assert [character for character, _ in characters] == [character for character, _ in wanted]
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i][1])
    lightness = [characters[i][1] for i in order]
    assert lightness == sorted(lightness) and len(set(lightness)) > 5 and lightness[-1] == 1000


def test_one_shading_of_the_unit_that_is_chosen(browser: Any, path: Path, answer: Any) -> None:
    each = [answer.sources(k, "sentence").row() for k in range(len(answer.ids))]
    span = max(range(len(each)), key=lambda k: (each[k] > 0.03).sum())
    with opened(browser, path, f"#s={span}") as page:
        assert not page.locator(".prompt .tok[style]").count()
        spans = page.locator(".prompt .unit").evaluate_all(
            """nodes => nodes.map(node => [+node.dataset.unit, node.style.background
                ? getComputedStyle(node).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) : 1000])"""
        )
    light = dict(spans)
    order = sorted(light, key=lambda i: -each[span][i])
    assert [light[i] for i in order] == sorted(light[i] for i in order) and len(set(light.values())) > 2


def test_what_stands_apart_has_its_share_and_a_button_brings_it_in(browser: Any, path: Path, answer: Any) -> None:
    signed = answer.matrix(signed=True).values[0]
    size = len(answer.prompt.ids)
    marks = [i for i, sign in enumerate(zip(answer.prompt.template, answer.prompt.special, strict=True)) if any(sign)]
    for span in SPANS:
        lines = signed if span is None else signed[slice(*span)]
        everything = mean_shares(lines, [(i,) for i in range(signed.shape[1])])
        direct = answer.hops(0, span).row()
        with opened(browser, path, chosen(span)) as page:
            said = page.locator(".apart-line").inner_text()
            expected = [("first token", everything[0]), ("chat marks", direct[marks].sum())]
            parts = [f"{name} {round(100 * share)} %" for name, share in expected if share > 0.01]
            inside = direct[size:].sum()
            assert said.startswith(f"Not shaded: {', '.join(parts)}.")
            if inside > 0.01:
                assert f"{round(100 * inside)} % comes from earlier words of the answer." in said
            press(page, "token")
            assert not page.locator(".prompt .mark[style]").count()
            page.locator(".bring").click()
            settle(page)
            assert page.locator(".bring").get_attribute("aria-pressed") == "true"
            seen = [i for i in marks if answer.prompt.text[slice(*answer.prompt.offsets[i])].strip()]
            shaded = [i for i in seen if everything[i] >= 0.03 * everything.max()]
            assert page.locator(".prompt .mark[style]").count() == len(shaded) > 0


def test_clicks_drags_and_keys_choose_a_part(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#d=1") as page:
        option(page, 0).click()
        settle(page)
        check_span(page, answer, "sentence", 0)
        assert page.locator(".said [aria-selected=true]").all_inner_texts() == [answer.tokens[0]]
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+ArrowRight")
        settle(page)
        check_span(page, answer, "sentence", (0, 3))
        facts = page.locator(".odds").inner_text()
        odds = sum(p - np.log(-np.expm1(p)) for p in answer.log_probabilities[:3])
        assert number(re.search(r"Log-odds (\S+):", facts)[1]) == pytest.approx(odds, abs=0.06)  # type: ignore[index]
        page.keyboard.press("Escape")
        settle(page)
        check_span(page, answer, "sentence")
        tokens = page.locator(".said .tok")
        tokens.nth(4).scroll_into_view_if_needed()
        boxes = [tokens.nth(i).bounding_box() for i in (4, 7)]
        page.mouse.move(boxes[0]["x"] + 2, boxes[0]["y"] + 8)
        page.mouse.down()
        page.mouse.move(boxes[1]["x"] + 2, boxes[1]["y"] + 8, steps=4)
        page.mouse.up()
        settle(page)
        assert page.locator(".said [aria-selected=true]").count() == 4
        check_span(page, answer, "sentence", (4, 8))
        page.wait_for_function("() => location.hash.includes('s=4-7')")


def test_a_finger_chooses_a_part(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#d=1", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as page:
        option(page, 2).tap()
        settle(page)
        check_span(page, answer, "sentence", (2, 3))
        for name in (".pickers button", ".list .name", ".bring", ".everything > summary"):
            assert page.locator(name).first.bounding_box()["height"] >= 44, name


def test_hops_from_the_answer_to_the_prompt(browser: Any, path: Path, answer: Any) -> None:
    count = len(answer.ids)
    span = (5, 9)
    with opened(browser, path, chosen(span, u="word")) as page:
        slider = page.locator(".hops input")
        slider.focus()
        seen = []
        for step in range(1, 8):
            page.keyboard.press("ArrowRight")
            settle(page)
            hops: Any = "all" if step == 7 else step
            result = answer.hops(hops, span, "word").row()
            check_table(page, result[:-count])
            seen.append(result[:-count])
            far = "all the way" if step == 7 else "one step" if step == 1 else f"{step} steps"
            assert page.locator(".hop").inner_text() == (
                f"What came through earlier words of the answer is followed back {far}. Shares now add up over prompt and "
                "answer."
            )
            left = result[-count:].sum()
            said = page.locator(".apart-line").inner_text()
            assert (f"{round(100 * left)} % comes from earlier words" in said) == (left > 0.01)
        assert np.abs(answer.hops(0, span, "word").row()[:-count] - seen[-1]).max() > 1e-3
        page.keyboard.press("Home")
        settle(page)
        check_table(page, answer.hops(0, span, "word").row()[:-count])
        page.locator(".reset").click()
        settle(page)
        check_span(page, answer, "word", span)
    for unit in ("token", "sentence", "document"):
        for hops in (0, 1, "all"):
            with opened(browser, path, chosen(None, u=unit, h=str(hops))) as page:
                check_table(page, answer.hops(hops, None, unit).row()[:-count])


def feeds(answer: Any, shares: Any) -> str:
    """Return what the page says about a source: the words it contributes to most, each by the mean over its tokens."""
    labels = answer.labels
    numbers = [("alone", k) if word is None else word for k, word in enumerate(labels.word_ids)]
    words = [[k for k, own in enumerate(numbers) if own == number] for number in dict.fromkeys(numbers)]
    fed = [(shares[word].mean(), labels.quoted(word)) for word in words if shares[word].mean() >= 0.05]
    fed.sort(key=lambda one: -one[0])
    named = " · ".join(f"“{text}” {int(100 * share + 0.5)} %" for share, text in fed[:4])
    return f"It contributes to {named}{' …' if len(fed) > 4 else ''}"


def test_a_source_lights_up_what_it_feeds(browser: Any, path: Path, answer: Any) -> None:
    for unit in ("token", "sentence"):
        each = np.array([answer.sources(k, unit).row() for k in range(len(answer.ids))])  # [answer token, unit]
        with opened(browser, path, f"#u={unit}") as page:
            for place in range(min(2, page.locator(".list li").count())):
                line = page.locator(".list li").nth(place)
                source = int(line.get_attribute("data-source"))
                line.locator(".name").focus()
                lit = page.locator(".prompt .lit")
                assert {one.get_attribute("data-unit") for one in lit.all()} == {str(source)}
                said = page.locator(".feeds").inner_text()
                fed = [float(x) for x in re.findall(r"(\d+) %", said)]
                assert fed and fed == sorted(fed, reverse=True)
                assert said == feeds(answer, each[:, source])
                smiles = [k for k, token in enumerate(answer.tokens) if token == "🙂"]
                others = [k for k in range(len(answer.ids)) if k not in smiles]
                strong = sum(each[k, source] >= 0.05 for k in others) + (each[smiles, source].mean() >= 0.05)
                assert page.locator(".said .tok[style]").count() == strong
            page.locator(".said .tok").first.focus()
            assert not page.locator(".said .tok[style]").count() and not page.locator(".prompt .lit").count()


def test_what_speaks_against_is_told(browser: Any, path: Path, answer: Any) -> None:
    parts = answer.sources(signed=True).row()
    with opened(browser, path, "#u=token&d=1") as page:
        assert page.locator(".apart").inner_text() == "most against"
        worst = int(np.argmin(parts))
        last = page.locator(".apart + tr")
        assert last.get_attribute("data-row") == str(worst)
        line = page.locator(f'.sources [data-row="{worst}"]')
        assert number(line.locator('[data-of="log-odds"]').inner_text()) == pytest.approx(parts[worst], abs=6e-3)
        bar = page.evaluate(
            """row => [".bar", ".sources tbody tr .bar"].map((name, i) => {
                const style = (i ? document : row).querySelector(name).style;
                return [style.getPropertyValue("--hue"), parseFloat(style.getPropertyValue("--part"))];
            })""",
            line.element_handle(),
        )
        assert bar[0][0] != bar[1][0] and bar[1][1] == 100  # another hue than that of support
        assert bar[0][1] == pytest.approx(100 * abs(parts[worst]) / np.abs(parts).max(), abs=0.06)
        token = page.locator(f'.prompt [data-unit="{worst}"] .tok')
        token.hover()
        tip = page.locator(".tip").inner_text()
        assert (
            f"share {answer.sources().row()[worst]:.3f}" in tip
            and f"against: −{abs(parts[worst]):.2f} of the log-odds" in tip
        )
        page.locator(".sources .more").click()
        settle(page)
        assert page.locator(".sources [data-row]").count() == len(parts)
        assert page.locator('.sources [data-row="0"] [data-of="share"]').inner_text() == "–"


def test_facts(browser: Any, path: Path, answer: Any) -> None:
    sums = answer.sources().provenance["evidence"]
    with opened(browser, path, "#d=1") as page:
        likely = page.locator(".likely").inner_text()
        assert likely.startswith("This answer was given, not written by the model: probability ")
        numbers = [number(x) for x in re.findall(r"(−?[\d.]+\d)", page.locator(".odds").inner_text())]
        first = sums["first_token"]
        wanted = [sums["log_odds"], sums["prompt"] - first, first, sums["answer"], sums["constants"]]
        assert numbers == pytest.approx(wanted, abs=0.06)
        assert f"attnflow {af.__version__}" in page.locator(".made").inner_text()
    span = (2, 5)
    part = answer.sources(span).provenance["evidence"]
    with opened(browser, path, chosen(span)) as page:
        numbers = [number(x) for x in re.findall(r"(−?[\d.]+\d)", page.locator(".odds").inner_text())]
        wanted = [part["log_odds"], part["prompt"] - part["first_token"], part["first_token"], part["answer"]]
        assert numbers[:4] == pytest.approx(wanted, abs=0.06)


def test_reliability_is_what_the_library_says_of_the_part(browser: Any, path: Path, answer: Any) -> None:
    sentences = set()
    for span in (None, *((i, i + 1) for i in range(len(answer.ids)))):
        with opened(browser, path, chosen(span)) as page:
            expected = list(answer.sources(span).reliability)
            assert page.locator(".facts .reliability").all_inner_texts() == expected
            sentences |= set(expected)
    assert len(sentences) > 2, "parts differ in what speaks against them"


def bears_out(share: float, fall: float, most_share: float, most_fall: float) -> bool:
    """Apply the rule that the page states."""
    if fall < 0.1 and share >= 0.1:
        return False
    return not (share < 0.1 * most_share and fall >= 0.1 and fall > 0.5 * most_fall)


def test_a_source_that_was_left_out_says_whether_it_is_true(browser: Any, answer: Any, tmp_path: Path) -> None:
    seen = set()
    for span in (None, "rusty key", 0):
        path = tmp_path / "verified.html"
        answer.save(path, verify=5, span=span)
        result = answer.sources(span, "sentence").row()
        falls = answer.sources(span, "sentence", verify=5)
        exact = answer.leave_out("sentence", span).row()
        measured = [i for i, part in enumerate(falls.parts) if part == "verified"]
        most = max(result[measured]), max(exact[measured].max(), 0.0)
        with opened(browser, path) as page:
            lines = page.locator(".list li")
            for k in range(lines.count()):
                i = int(lines.nth(k).get_attribute("data-source"))
                said = lines.nth(k).locator(".truth")
                assert said.count() == int(i in measured)
                if i not in measured:
                    continue
                sign = "±" if abs(exact[i]) < 0.005 else "+" if exact[i] < 0 else "−"
                verdict = "✓" if exact[i] >= 0.1 else "little effect, as its share says"
                verdict = verdict if bears_out(result[i], exact[i], *most) else "disagrees"
                seen.add(verdict)
                text = re.match(r"without it: log p (.)(\S+) (.+)", said.inner_text())
                assert text is not None and text[1] == sign and text[3] == verdict
                assert float(text[2]) == pytest.approx(abs(exact[i]), abs=6e-3)
            assert page.locator(".list .verify").is_hidden()
            option(page, 3).click()  # nothing was measured for another part
            settle(page)
            assert not page.locator(".truth").count()
    assert {"✓", "disagrees"} <= seen


def test_verified_values_in_the_table(browser: Any, verified: Path, answer: Any) -> None:
    falls = answer.sources(unit="sentence", verify=2)
    with opened(browser, verified, "#d=1") as page:
        values = rows(page, "log p falls by")
        assert values == pytest.approx({i: falls.row()[i] for i in values}, abs=6e-3)
        states = page.locator('.sources [data-of="how"]').all_inner_texts()
        assert states == [falls.parts[i] for i in values] and set(states) == {"verified", "estimated"}
        option(page, 0).click()  # nothing was measured for a part of the answer
        settle(page)
        assert page.locator('[data-of="how"]').count() == 0


def test_a_page_opens_with_a_span(browser: Any, answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "span.html"
    answer.save(path, unit="word", verify=3, span="rusty key")
    falls = answer.sources("rusty key", "word", verify=3)
    with opened(browser, path, "#d=1") as page:
        assert "".join(page.locator(".said [aria-selected=true]").all_inner_texts()) == "rustykey"
        assert page.locator(".lead h2").inner_text() == "“rusty key” rests on"
        values = rows(page, "log p falls by")
        assert values == pytest.approx({i: falls.row()[i] for i in values}, abs=6e-3)
        measured = {i for i, part in enumerate(falls.parts) if part == "verified"}
        shares = answer.sources("rusty key", "word").row()
        listed = [int(line.get_attribute("data-source")) for line in page.locator(".list li").all()]
        ranked = sorted(
            np.flatnonzero(shares > 0).tolist(),
            key=lambda i: (-falls.row()[i] if i in measured else np.inf, -shares[i]),
        )
        assert listed == ranked[: len(listed)] and measured & set(
            listed[:3]
        )  # what was measured comes first, by its effect
        assert page.locator(".lead mark").first.inner_text() == falls.tokens[ranked[0]]
        check_table(page, shares, answer.sources("rusty key", "word", signed=True).row())
        option(page, 0).focus()
        page.keyboard.press("Escape")
        settle(page)
        assert page.locator(".said [aria-selected=true]").count() == 0
        check_span(page, answer, "word")
        page.wait_for_function("() => location.hash.includes('s=')")
    with pytest.raises(af.InputError, match="expected consecutive tokens, for a page to open with"):
        answer.save(path, span=slice(0, 5, 2))


def test_without_them_the_page_says_how_to_make_them(browser: Any, path: Path) -> None:
    with opened(browser, path, "#u=paragraph") as page:
        assert page.locator(".verify-note").is_hidden()
        page.get_by_role("button", name="is it true?").click()
        assert page.locator(".verify-note code").all_inner_texts() == [
            'answer.save("answer.html", unit="paragraph", verify=4)',
            "attnflow answer PROMPT -m MODEL --unit paragraph --verify 4 -o answer.html",
        ]


def test_sources_of_a_prompt_with_an_image_cannot_be_left_out(browser: Any, tmp_path: Path) -> None:
    scene = scenes(1, 4)
    asked = af.load(FOLDER, device="cpu").answer(scene.question(0), image=scene.pixels[0])
    with pytest.raises(af.InputError):
        asked.leave_out()
    path = tmp_path / "image.html"
    asked.save(path)
    with opened(browser, path, details=False) as page:
        assert page.locator(".image-lead").is_visible() and page.locator(".list li").count()
        assert page.get_by_role("button", name="is it true?").count() == 0


def test_addresses_from_anywhere(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#s=999&u=verse&h=x&v=7&d=1") as page:
        assert page.locator(".said [aria-selected=true]").count() == 0
        check_span(page, answer, "sentence")


def test_long_texts_keep_the_largest_parts(
    browser: Any, answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_numbers, "EXACT", 100)
    monkeypatch.setattr(answer_numbers, "STRONGEST", 40)
    values = answer.matrix(signed=True).values[0]
    kept = np.array([np.where(np.isin(np.arange(len(row)), np.argsort(-np.abs(row))[:40]), row, 0) for row in values])
    covered = (np.abs(kept).sum(1) / np.abs(values).sum(1)).min()
    path = tmp_path / "long.html"
    path.write_text(html_of(answer, "sentence", 0, None), encoding="utf-8")
    with opened(browser, path, "#u=token&d=1") as page:
        check_span(page, answer, "token")  # the opening view is exact
        assert f"at least {int(100 * covered)} % of their size" in page.locator(".covered").inner_text()
    with opened(browser, path, "#s=6&u=token&d=1") as page:
        exact = answer.sources(6).row()
        check_table(page, np.where(kept[6][: len(exact)] != 0, exact, 0))  # kept entries have their true share


def test_a_long_prompt_is_read_in_blocks(browser: Any, tmp_path: Path) -> None:
    """All of its text is there, tokens exist only where the reader looks, and the page opens at the strongest sentence."""
    explained = synthetic(6000, 12)
    size = len(explained.prompt)
    document = written_document(explained, "sentence")
    path = tmp_path / "long.html"
    path.write_text(file_of("long", document, "answer"), encoding="utf-8")
    with opened(browser, path, details=False) as page:
        assert page.locator(".prompt").evaluate("node => node.textContent") == explained.prompt.text
        page.wait_for_function("() => document.querySelectorAll('.prompt .tok').length > 0")
        assert page.locator(".prompt .tok").count() < size / 2
        number = page.locator(".list li").first.get_attribute("data-source")
        page.wait_for_function(
            """unit => { const box = document.querySelector(".prompt").getBoundingClientRect();
                const one = document.querySelector(`.prompt [data-unit="${unit}"]`)?.getBoundingClientRect();
                return one && one.top >= box.top - 2 && one.bottom <= box.bottom + 2; }""",
            arg=number,
        )
        ink = "document.querySelector('.strip').getContext('2d').getImageData(0, 0, 1, 600).data.some(x => x > 0)"
        assert page.evaluate(ink)
        last = page.locator(".list li").nth(4)
        last.locator(".name").click()
        page.wait_for_selector(f'.prompt .lit[data-unit="{last.get_attribute("data-source")}"]')
        press(page, "token")
        page.wait_for_function("() => document.querySelectorAll('.prompt .tok[style]').length > 0")
        assert page.locator(".list li").count() == 6, "never an empty panel"


def test_where_nothing_stands_out_the_headline_says_so(browser: Any, tmp_path: Path) -> None:
    explained = synthetic(6000, 12)
    path = tmp_path / "spread.html"
    path.write_text(file_of("long", written_document(explained, "word"), "answer"), encoding="utf-8")
    with opened(browser, path, details=False) as page:
        assert page.locator(".lead h2").inner_text() == "The answer rests a little on many words, most of all on"
        assert page.locator(".list li").count() == 6
        assert all(float(text.strip("<> %")) > 0 for text in page.locator(".list .share").all_inner_texts())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_fits(browser: Any, verified: Path, scheme: str, width: int) -> None:
    with opened(browser, verified, "#d=1", viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        assert page.locator("#attnflow").get_attribute("data-theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") == width
        prompt, beside = page.locator(".prompt").bounding_box(), page.locator(".list").bounding_box()
        assert (beside["x"] > prompt["x"]) == (width == 1400)
        for line in page.locator(".list .name, .sources .name").all():
            box = line.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert page.locator(".sources .scroll").evaluate("box => box.scrollWidth - box.clientWidth") <= 1


def test_the_file_asks_nobody(path: Path, answer: Any) -> None:
    file = path.read_text(encoding="utf-8")
    assert file.count("<script") == file.count("</script>") == 2
    assert set(re.findall(r"https?://[\w./]+", file)) <= {"http://www.w3.org/2000/svg"}
    notebook = answer._repr_html_()
    assert notebook.startswith('<iframe title="attnflow" sandbox="allow-scripts allow-downloads" srcdoc="')
