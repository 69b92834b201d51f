"""The page of an answer in a real browser: what it shades and lists is what the library computes, for any part."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="answers need torch")
pytest.importorskip("transformers", reason="answers need transformers")

import attnflow as af
from attnflow.answer_rows import shares
from attnflow.view import answer_page
from attnflow.view.answer_page import html_of
from helpers.answers import ANSWER, chatted, decoder, shared
from helpers.browser import opened, settle

UNITS = ("token", "word", "sentence", "paragraph", "message", "document")
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


def rows(page: Any, name: str) -> dict[int, float]:
    """A column of the table by unit, without what stands under "most against"."""
    cells: list[list[str]] = page.evaluate(
        """name => [...document.querySelectorAll(".sources [data-row]")].map(row =>
            [row.dataset.row, row.querySelector(`[data-of="${name}"]`).textContent])""",
        name,
    )
    return {int(unit): number(text) for unit, text in cells if text != "–"}


def option(page: Any, token: int) -> Any:
    return page.locator(".said .tok").nth(token)


def check_table(page: Any, wanted: Any, signed: Any = None) -> None:
    """The strongest units with their shares, then those that are most against. wanted, signed: values of all units."""
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


def check_span(page: Any, answer: Any, unit: str, span: Any = None) -> None:
    rows = answer.sources(span, unit, method="answer_rows")
    check_table(page, rows.row(), answer.sources(span, unit, signed=True).row())


def test_the_first_screen(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path) as page:
        assert page.title() == f"{ANSWER} · attnflow"
        assert page.locator(".said").inner_text().replace("⏎", "") == ANSWER
        likely = page.locator(".likely").inner_text()
        assert likely.startswith("This answer was given, the model did not write it here: probability ")
        assert likely.endswith(" a token. Click or drag over it to explain a part.")
        text = page.locator(".prompt").evaluate("node => node.textContent")
        escaped = answer.prompt.text.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
        assert text == escaped
        assert page.locator(".prompt .mark").first.inner_text() == "<|start|>"
        assert page.locator(".said [aria-selected=true]").count() == 0
        words = page.evaluate(
            "[...document.querySelectorAll('.likely, .pickers, .facts p:not(.reliability), thead')].map(node => node.innerText).join(' ')"
        )
        assert len(re.findall(r"[a-z]{2,}", words)) <= 60


def test_the_table_is_the_library(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path) as page:
        for unit in UNITS:
            page.get_by_role("group", name="units").get_by_role("button", name=f"{unit}s", exact=True).click()
            settle(page)
            check_span(page, answer, unit)
            texts = answer.prompt.units(unit).texts
            for line in page.locator(".sources [data-row]").all():
                name = " ".join(line.locator(".name").inner_text().split())
                if name.isascii() and "\\u" not in name and "…" not in name:
                    assert name == " ".join(texts[int(line.get_attribute("data-row"))].split()) or name == "␣"


def test_the_page_tells_what_stands_in_no_unit(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path) as page:
        outside = page.locator(".sources .outside")
        assert (
            outside.inner_text()
            == f"in no sentence: a share of {1 - answer.sources(unit='sentence', method='answer_rows').row().sum():.3f}"
        )
        before = range(answer.tokens.index("🙂"))  # several tokens are one option there
        rests = [answer.sources(k, "sentence", method="answer_rows").provenance["outside"] for k in before]
        rest, token = max(rests), int(np.argmax(rests))
        assert rest > 0.1
        option(page, token).click()
        settle(page)
        assert outside.inner_text() == f"in no sentence: a share of {rest:.3f}"
        page.get_by_role("group", name="units").get_by_role("button", name="tokens", exact=True).click()
        settle(page)
        assert outside.count() == 0


def test_shades_follow_shares(browser: Any, path: Path, answer: Any) -> None:
    marks = [a or b for a, b in zip(answer.prompt.template, answer.prompt.special, strict=True)]
    row = answer.sources().row()
    light = """nodes => nodes.map(node => [node.textContent, node.style.background
        ? getComputedStyle(node).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) : 1000])"""
    with opened(browser, path) as page:
        pieces = page.locator(".prompt [data-at]").evaluate_all(light)
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


def test_clicks_drags_and_keys_choose_a_part(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path) as page:
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
        boxes = [tokens.nth(i).bounding_box() for i in (4, 7)]
        page.mouse.move(boxes[0]["x"] + 2, boxes[0]["y"] + 8)
        page.mouse.down()
        page.mouse.move(boxes[1]["x"] + 2, boxes[1]["y"] + 8, steps=4)
        page.mouse.up()
        settle(page)
        assert page.locator(".said [aria-selected=true]").count() == 4
        check_span(page, answer, "sentence", (4, 8))
        page.wait_for_function("location.hash === '#s=4-7'")


def test_through_the_answer(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#s=5-9&u=word") as page:
        page.get_by_role("button", name="through the answer").click()
        settle(page)
        wanted = answer.hops("all", (5, 10), "word").row()[: -len(answer.ids)]
        assert abs(wanted - answer.hops(0, (5, 10), "word").row()[: -len(answer.ids)]).max() > 1e-3
        check_table(page, wanted)
    with opened(browser, path, "#h=all&u=sentence") as page:
        check_table(page, answer.hops("all", None, "sentence").row()[: -len(answer.ids)])


def test_what_speaks_against_is_told(browser: Any, path: Path, answer: Any) -> None:
    parts = answer.sources(signed=True).row()
    with opened(browser, path, "#u=token") as page:
        assert page.locator(".apart").inner_text() == "most against"
        worst = int(np.argmin(parts))
        last = page.locator(".apart + tr")
        assert last.get_attribute("data-row") == str(worst)
        line = page.locator(f'.sources [data-row="{worst}"]')
        assert number(line.locator('[data-of="log-odds"]').inner_text()) == pytest.approx(parts[worst], abs=6e-3)
        token = page.locator(f'.prompt [data-unit="{worst}"] .tok')
        token.hover()
        tip = page.locator(".tip").inner_text()
        assert (
            f"share {answer.sources().row()[worst]:.3f}" in tip
            and f"against: −{abs(parts[worst]):.2f} of the log-odds" in tip
        )
        page.locator(".more").click()
        settle(page)
        assert page.locator(".sources [data-row]").count() == len(parts)
        assert page.locator('.sources [data-row="0"] [data-of="share"]').inner_text() == "–"


def test_facts(browser: Any, path: Path, answer: Any) -> None:
    sums = answer.sources().provenance["evidence"]
    with opened(browser, path) as page:
        numbers = [number(x) for x in re.findall(r"(−?[\d.]+\d)", page.locator(".odds").inner_text())]
        first = sums["first_token"]
        wanted = [sums["log_odds"], sums["prompt"] - first, first, sums["answer"], sums["constants"]]
        assert numbers == pytest.approx(wanted, abs=0.06)
        parts = np.clip(answer.matrix(signed=True).values[0][:, : len(answer.prompt.ids)], 0, None)
        counted = sum(row / row.sum() for row in parts if row.sum()) / sum(bool(row.sum()) for row in parts)
        assert f"first token {round(100 * counted[0])} %" in page.locator(".unshaded").inner_text()


def test_reliability_is_what_the_library_says_of_the_part(browser: Any, path: Path, answer: Any) -> None:
    sentences = set()
    with opened(browser, path) as page:
        for span in (None, (0, 1), (2, 5), (len(answer.ids) - 1, len(answer.ids))):
            if span is not None:
                page.goto(f"{path.as_uri()}#s={span[0]}-{span[1] - 1}")
                settle(page)
            expected = list(answer.sources(span).reliability)
            assert page.locator(".facts .reliability").all_inner_texts() == expected
            sentences |= set(expected)
    assert len(sentences) > 2, "parts differ in what speaks against them"


def test_verified_values(browser: Any, verified: Path, answer: Any) -> None:
    falls = answer.sources(unit="sentence", verify=2, method="answer_rows")
    order = np.argsort(-falls.row(), kind="stable").tolist()[:SHOWN]
    with opened(browser, verified) as page:
        button = page.get_by_role("button", name="verified (2 left out)")
        assert button.get_attribute("aria-pressed") == "true"
        values = rows(page, "log p falls by")
        assert list(values)[: len(order)] == order
        assert values == pytest.approx({i: falls.row()[i] for i in values}, abs=6e-3)
        states = page.locator('.sources [data-of="how"]').all_inner_texts()
        assert states == [falls.parts[i] for i in values] and set(states) == {"verified", "estimated"}
        button.click()
        settle(page)
        check_span(page, answer, "sentence")
        assert page.locator('[data-of="how"]').count() == 0
        button.click()
        option(page, 0).click()  # of a part of the answer nothing was measured
        settle(page)
        assert button.get_attribute("aria-pressed") == "false" and page.locator('[data-of="how"]').count() == 0


def test_a_page_opens_with_a_span(browser: Any, answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "span.html"
    answer.save(path, unit="word", verify=3, span="rusty key")
    falls = answer.sources("rusty key", "word", verify=3)
    with opened(browser, path) as page:
        assert "".join(page.locator(".said [aria-selected=true]").all_inner_texts()) == "rustykey"
        values = rows(page, "log p falls by")
        assert values == pytest.approx({i: falls.row()[i] for i in values}, abs=6e-3)
        page.get_by_role("button", name="verified (3 left out)").click()
        settle(page)
        check_span(page, answer, "word", "rusty key")
        option(page, 0).focus()
        page.keyboard.press("Escape")
        settle(page)
        assert page.locator(".said [aria-selected=true]").count() == 0
        check_span(page, answer, "word")
        page.wait_for_function("location.hash.includes('s=')")
    with pytest.raises(
        af.InputError, match="a page opens with neighbouring tokens, and these have others between them"
    ):
        answer.save(path, span=slice(0, 5, 2))


def test_without_them_the_page_says_how_to_make_them(browser: Any, path: Path) -> None:
    with opened(browser, path, "#u=paragraph") as page:
        assert page.locator(".verify-note").is_hidden()
        page.get_by_role("button", name="verify …").click()
        assert page.locator(".verify-note code").all_inner_texts() == [
            'answer.save("answer.html", unit="paragraph", verify=4)',
            "attnflow answer PROMPT -m MODEL --unit paragraph --verify 4 -o answer.html",
        ]


def test_a_row_leads_to_its_place(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        line = page.locator(".sources [data-row]").nth(1)
        unit = line.get_attribute("data-row")
        line.locator(".name").focus()
        lit = page.locator(".prompt .lit")
        assert {one.get_attribute("data-unit") for one in lit.all()} == {unit}


def test_addresses_from_anywhere(browser: Any, path: Path, answer: Any) -> None:
    with opened(browser, path, "#s=999&u=verse&h=x&v=7") as page:
        assert page.locator(".said [aria-selected=true]").count() == 0
        check_span(page, answer, "sentence")


def test_long_texts_keep_the_largest_parts(
    browser: Any, answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_page, "EXACT", 100)
    monkeypatch.setattr(answer_page, "STRONGEST", 40)
    values = answer.matrix(signed=True).values[0]
    kept = np.array([np.where(np.isin(np.arange(len(row)), np.argsort(-np.abs(row))[:40]), row, 0) for row in values])
    covered = (np.abs(kept).sum(1) / np.abs(values).sum(1)).min()
    path = tmp_path / "long.html"
    path.write_text(html_of(answer, "sentence", 0, None), encoding="utf-8")
    with opened(browser, path, "#u=token") as page:
        check_span(page, answer, "token")  # what it opens with is exact
    with opened(browser, path, "#s=6&u=token") as page:
        check_table(page, shares(kept[6][: len(answer.prompt.ids)], [0]))
        text = page.locator(".how").evaluate("node => node.textContent")
        assert f"at least {int(100 * covered)} % of their size" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_fits(browser: Any, verified: Path, scheme: str, width: int) -> None:
    with opened(browser, verified, viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        assert page.locator("#attnflow").get_attribute("data-theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") == width
        prompt, table = page.locator(".prompt").bounding_box(), page.locator(".sources").bounding_box()
        assert (table["x"] > prompt["x"]) == (width == 1400)
        for line in page.locator(".sources .name").all():
            box = line.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert page.locator(".sources .scroll").evaluate("box => box.scrollWidth - box.clientWidth") <= 1


def test_the_file_asks_nobody(path: Path, answer: Any) -> None:
    file = path.read_text(encoding="utf-8")
    assert file.count("<script") == file.count("</script>") == 2
    assert set(re.findall(r"https?://[\w./]+", file)) <= {"http://www.w3.org/2000/svg"}
    notebook = answer._repr_html_()
    assert notebook.startswith('<iframe title="attnflow" sandbox="allow-scripts allow-downloads" srcdoc="')
