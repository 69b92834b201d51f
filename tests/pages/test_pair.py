"""Two texts compared in a real browser: every number is the library's."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.texts.alignment import align
from attnflow.view.explain import explain
from helpers.browser import exported, opened, screenshot
from helpers.page_cases import HOSTILE, attention
from helpers.page_reading import Case, check_clean, check_drawn, check_numbers, column, rgb, selection, view_of

FIRST, SECOND = "the old key to my cabinets", "the keys to the cabinet in the hall"
MODULE = Path(__file__).parents[2] / "web" / "src" / "pair-data.js"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = af.load()
    pair = model.explain(FIRST).beside(model.explain(SECOND))
    path = tmp_path_factory.mktemp("pair") / "pair.html"
    pair.save(path)
    return path, pair


def expected(pair: Any, method: str) -> list[tuple[float | None, float | None]]:
    """Return the library's values of both texts, word by word."""
    model = af.load()

    def row(text: str) -> np.ndarray:
        if method == "answer_inputs":
            # If the answers are opposite, both texts are shown for or against the first.
            return model.trace(text, edges="answer").sources().row() * (1 if text == FIRST else -1)
        if method in ("raw", "rollout", "flow"):
            return getattr(model.trace(text), method)().values[-1, 0]
        return getattr(model, method.replace("-", "_"))(text).row()

    a, b = row(FIRST), row(SECOND)
    return [(None if i is None else a[i], None if j is None else b[j]) for i, j in pair.aligned()]


def table(page: Any) -> list[dict[str, Any]]:
    return json.loads(exported(page, "pair", "json"))["rows"]


def test_words_stand_beside_each_other_with_the_librarys_values(browser: Any, both: tuple[Path, Any]) -> None:
    path, pair = both
    model = af.load()
    methods = ["answer_inputs", "raw", "rollout", "flow", "gradient", "blank-out"]
    with opened(browser, path) as page:
        options = page.locator("select[data-pick=m] option").evaluate_all("all => all.map(o => o.value)")
        assert options == methods
        for method in methods:
            page.locator("select[data-pick=m]").select_option(method)
            values = expected(pair, method)
            rows = table(page)
            for row, (a, b) in zip(rows, values, strict=True):
                for name, value in (("value", a), ("value beside", b)):
                    assert row[name] is None if value is None else row[name] == pytest.approx(value, abs=1e-12)
            np.testing.assert_allclose(column(rows, "difference"), [(b or 0) - (a or 0) for a, b in values], atol=1e-12)
        assert selection(page)["m"] == "blank-out"
        answers = [model.trace(text).prediction.top[0] for text in (FIRST, SECOND)]
        head = page.locator(".pair-answer").inner_text()
        assert head == f"{answers[0][0]} {100 * answers[0][1]:.0f} % → {answers[1][0]} {100 * answers[1][1]:.0f} %"
        check_clean(page)


def test_what_changed_is_said_listed_and_shaded(browser: Any, both: tuple[Path, Any]) -> None:
    path, pair = both
    values = expected(pair, "answer_inputs")
    special = [True, *[False] * (len(values) - 2), True]
    change = np.array([(b or 0) - (a or 0) for a, b in values])
    words = [(FIRST.split(), SECOND.split())[side] for side in (0, 1)]
    order = sorted((c for c in range(len(values)) if not special[c]), key=lambda c: -abs(change[c]))
    with opened(browser, path) as page:
        columns = page.locator(".pair-lines .col")
        assert columns.count() == len(values)
        texts = columns.locator(".a").all_inner_texts(), columns.locator(".b").all_inner_texts()
        for side in (0, 1):
            assert [text for text in texts[side] if text][1:-1] == words[side]
        listed = page.locator(".pair-list tbody tr").evaluate_all(
            "rows => rows.map(row => [Number(row.dataset.c), ...[...row.cells].slice(1, 4).map(cell => cell.textContent)])"
        )
        assert [row[0] for row in listed] == order[:8]
        check_numbers([row[3].replace("+", "") for row in listed], change[order[:8]])
        page.get_by_role("button", name=f"{len(order) - 8} more").click()
        assert page.locator(".pair-list tbody tr").count() == len(order)
        said = page.locator(".pair-change").inner_text()
        top = order[0]
        one, other = (f"{value:.2f}" for value in values[top])
        happened = (
            f"{texts[1][top]} {'fell' if change[top] < 0 else 'rose'} from {one} to {other}"
            if texts[0][top] == texts[1][top]
            else f"{texts[0][top]} ({one}) became {texts[1][top]} ({other})"
        )
        assert said.startswith(f"What changed, for or against singular: {happened}".replace("-", "−"))
        # Orange above if a value falls, blue below if it rises; on its own side if only one text has the word.
        colours = columns.evaluate_all(
            "all => all.map(c => [...c.children].map(x => getComputedStyle(x).backgroundColor))"
        )
        for c, (above, below) in enumerate(colours):
            strength = [np.ptp(rgb(colour)) for colour in (above, below)]
            if special[c]:
                assert max(strength) < 12
            elif abs(change[c]) > 0.3 * np.abs(change[order]).max():
                side = 1 if values[c][0] is None or (change[c] > 0 and values[c][1] is not None) else 0
                assert strength[side] > 12
                if None not in values[c]:
                    assert strength[1 - side] < 12
                red, _, blue = rgb((above, below)[side])
                assert (blue > red) == (change[c] > 0)


def test_keys_touch_and_the_address_choose_a_word(browser: Any, both: tuple[Path, Any]) -> None:
    path, _ = both
    with opened(browser, path) as page:
        page.locator(".pair-lines").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.locator(".pair-lines [aria-selected=true]").get_attribute("data-c") == "2"
        assert page.locator(".beside-view > [aria-live]").inner_text().endswith("gone")
        assert selection(page)["c"] == "2"
        page.reload()
        assert page.locator(".pair-lines [aria-selected=true]").get_attribute("data-c") == "2"
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(browser, path, **phone) as page:
        page.locator(".pair-lines .col").nth(3).tap()
        assert page.locator(".pair-list .chosen").count() == 1
        sizes = page.locator(".pair-lines .col, .pair-controls button, .pair-list tbody tr").evaluate_all(
            "all => all.filter(x => x.offsetParent).map(x => x.getBoundingClientRect().height)"
        )
        assert min(sizes) >= 44
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_saved_pair_opens_with_its_view(browser: Any, both: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = both
    with opened(browser, path, "#m=rollout&w=each&theme=dark") as page:
        page.locator(".keep summary").click()
        with page.expect_download() as download:
            page.locator('.keep [data-kind="page"]').click()
        assert download.value.suggested_filename == "attnflow-pair.html"
        download.value.save_as(tmp_path / "again.html")
    with opened(browser, tmp_path / "again.html") as page:
        assert page.locator("select[data-pick=m]").input_value() == "rollout"
        assert page.locator('.choice [aria-pressed="true"]').all_inner_texts() == ["each text"]
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"


def test_both_pages_stand_below(browser: Any, both: tuple[Path, Any]) -> None:
    with opened(browser, both[0]) as page:
        page.locator(".both > summary").click()
        page.locator(".pair-pages article").nth(1).wait_for()
        assert page.locator(".pair-pages article").count() == 2


def test_the_figure_holds_both_lines(browser: Any, both: tuple[Path, Any], tmp_path: Path) -> None:
    with opened(browser, both[0]) as page:
        root = ElementTree.fromstring(exported(page, "pair", "svg"))
        texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in (FIRST, SECOND):
            assert set(text.split()) <= set(texts)
        view = json.loads(root.find("{http://www.w3.org/2000/svg}metadata").text)
        assert view["text"] == [FIRST, SECOND] and "m=answer_inputs" in view["view"]["fragment"]
        check_drawn(exported(page, "pair", "png"), tmp_path / "pair.png")


def test_the_browser_aligns_as_the_library_does(browser: Any) -> None:
    source = MODULE.read_text(encoding="utf-8")
    start, end = source.index("// The same costs as attnflow"), source.index("/** Return the name of a unit in")
    page = browser.new_page()
    page.evaluate(
        """async source => {
            const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
            window.align = (await import(address)).align;
        }""",
        source[start:end],
    )
    rng = np.random.default_rng(1)
    vocabulary = [
        "a",
        "b",
        "A",
        "Ġkeys",
        "▁key",
        "cabinet",
        "cabinets",
        "[CLS]",
        "<s>",
        "##s",
        "▁",
        "naïve",
        "👩‍👩‍👧x",
        "👩‍👩‍👧y",
    ]
    for _ in range(200):
        first, second = ([str(word) for word in rng.choice(vocabulary, rng.integers(0, 12))] for _ in range(2))
        flags = [[word in ("[CLS]", "<s>") for word in words] for words in (first, second)]
        pairs = [[-1 if i is None else i, -1 if j is None else j] for i, j in align(first, second, *flags)]
        assert page.evaluate("([a, b, s, t]) => align(a, b, s, t)", [first, second, *flags]) == pairs
    page.close()


def test_tokens_that_are_no_words_do_no_harm(browser: Any, tmp_path: Path) -> None:
    from attnflow.view.page import of_weights

    pages = [of_weights(attention(2, 1, len(tokens)), tokens) for tokens in (HOSTILE, HOSTILE[3:])]
    pages[0].beside(pages[1]).save(tmp_path / "hostile.html")
    with opened(browser, tmp_path / "hostile.html") as page:
        assert page.locator(".pair-answer").inner_text() == "What changed"
        assert page.locator(".pair-lines .col").count() == len(HOSTILE)
        check_clean(page)


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_pair_is_drawn(browser: Any, both: tuple[Path, Any], width: int, theme: str, tmp_path: Path) -> None:
    with opened(browser, both[0], viewport={"width": width, "height": 900}, color_scheme=theme) as page:
        check_drawn(screenshot(page), tmp_path / f"pair-{width}-{theme}.png", width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_two_methods_of_one_text_stand_beside_each_other_as_shares(browser: Any, sentence: Case) -> None:
    apart = np.isin(
        np.arange(len(sentence.trace.tokens)), [0, len(sentence.trace.tokens) - 1]
    )  # [CLS], the query, and [EOS]

    def shares(values: np.ndarray) -> np.ndarray:
        return values / np.abs(values[~apart]).sum()

    with opened(browser, sentence.path, "#c=rollout&l=3", details=False) as page:
        expected = [shares(sentence.edges.row()), shares(view_of(sentence.trace, "rollout")[2])]
        rows = table(page)
        np.testing.assert_allclose(column(rows, "value"), expected[0], atol=1e-12)
        np.testing.assert_allclose(column(rows, "value beside"), expected[1], atol=1e-12)
        np.testing.assert_allclose(column(rows, "difference"), expected[1] - expected[0], atol=1e-12)
        most = int(np.argmax(np.where(apart, 0, np.abs(expected[1] - expected[0]))))
        said = page.locator(".pair-change").inner_text()
        assert said.startswith(f"They differ most on {sentence.trace.tokens[most]} (")
        page.get_by_label("compare with").select_option("flow")
        assert page.locator(".pair-answer").inner_text() == "answer edges and flow"
        assert selection(page)["c"] == "flow"
        page.get_by_label("compare with").select_option("")
        assert page.locator(".two-methods").is_hidden() and "c" not in selection(page)


def test_a_pair_opens_with_the_method_of_its_pages(browser: Any, tmp_path: Path) -> None:
    model = af.load()
    one, other = (explain(model, text, importance="none", state={"method": "flow"}) for text in (FIRST, SECOND))
    one.beside(other).save(tmp_path / "flow.html")
    with opened(browser, tmp_path / "flow.html") as page:
        assert page.locator("select[data-pick=m]").input_value() == "flow"
