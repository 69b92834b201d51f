"""The corpus page in a real browser: its lists, examples and choices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from attnflow.corpus import explain_corpus
from attnflow.corpus import summary as report
from attnflow.view.corpus_page import html_of, write
from helpers.browser import opened as opened_page
from helpers.browser import settle
from helpers.corpora import SENTENCES, WORDS, embedded, made_up, stored

METHODS = ("raw", "rollout", "flow")
VOCABULARY = (*WORDS, "</script><b>x", "日本", "\u202egnol", *(f"word{i}" for i in range(9)))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rows, columns = made_up(300, vocabulary=VOCABULARY)
    return report.summarize(stored(tmp_path_factory.mktemp("out") / "corpus", rows, columns))


@pytest.fixture(scope="module")
def path(summary: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("page") / "index.html", summary)


def shown(browser: Any, path: Path, fragment: str = "", **options: Any) -> Any:
    """Open the first screen."""
    return opened_page(browser, path, fragment, details=False, **options)


def opened(browser: Any, path: Path, fragment: str = "", **options: Any) -> Any:
    """Open the page with its details."""
    return shown(browser, path, f"{fragment or '#'}&open=1", **options)


def saved(path: Path, summary: dict[str, Any]) -> Path:
    path.write_text(html_of(summary), encoding="utf-8")
    return path


def panel(page: Any, name: str) -> Any:
    return page.locator(f'[data-panel="{name}"]')


def number(text: str) -> float:
    return float(text.replace("−", "-").rstrip("×% ").replace(",", ""))


def plain(text: str) -> str:
    """Return a token as the page shows it: bidirectional controls as escapes."""
    return text.replace("\u202e", "\\u202e")


def test_the_head_says_what_there_is(browser: Any, path: Path, summary: dict[str, Any], tmp_path: Path) -> None:
    with opened(browser, path) as page:
        assert page.title() == "corpus · attnflow"
        assert page.locator(".model-name").inner_text() == "small <model>"
        assert page.locator(".prediction").inner_text() == (
            "texts.txt: 288 texts explained by raw, rollout and flow at L2; 12 of 300 failed (empty 4, too long 4, encoding "
            "4). 1 text was truncated. If several positions of a text were explained (1 text), its scores are their mean. "
            "Model: revision 0123456789ab, float32."
        )
        assert page.locator(".missing").count() == 0
    elsewhere = {**summary["provenance"], "model": "/a/long/way/to/bert/model"}
    other = {"finished": False, "differing": ["device", "torch"], "provenance": elsewhere}
    half = saved(tmp_path / "half.html", {**summary, **other})
    with opened(browser, half) as page:
        assert page.locator(".missing").all_inner_texts() == [
            "The job is not finished: this page covers the 3 parts that are done."
        ]
        assert page.locator(".model-name").inner_text() == "bert/model"
        assert page.locator(".model-name").get_attribute("title") == elsewhere["model"]
        assert (
            page.locator(".prediction")
            .inner_text()
            .endswith(
                "The rows come from different runs, which differ in device, torch; the most frequent values are shown. "
                "Model: revision 0123456789ab, float32."
            )
        )


def visible_words(page: Any) -> list[str]:
    """Return the page's own visible words: not the user's words, labels and ids, nor closed menus."""
    text = page.evaluate(
        """() => {
            const style = document.head.appendChild(document.createElement("style"));
            style.textContent = ".sr, .spelling, .in-context, .words h3, .examples bdi, .headline strong, option { display: none }";
            const text = document.querySelector("article").innerText +
                [...document.querySelectorAll(".opening select")].map(one => " " + one.selectedOptions[0].textContent);
            style.remove();
            return text;
        }"""
    )
    return [word for word in text.split() if re.search(r"[^\W\d]", word) and not word.startswith("texts.txt:")]


def words_of(page: Any) -> dict[str, list[tuple[str, float]]]:
    """Return the lists of the first screen, by group: words and their numbers."""
    lists = page.locator(".words").evaluate_all(
        """all => all.map(one => [one.dataset.group, [...one.querySelectorAll(".word")].map(
            word => [word.querySelector(".spelling").textContent, word.querySelector(".number").textContent])])"""
    )
    return {key: [(word, number(text.replace("+", ""))) for word, text in words] for key, words in lists}


def words_of_all(summary: dict[str, Any], method: str, every: bool = False) -> list[tuple[str, float]]:
    """Return the words of all texts, highest first. every: include punctuation."""
    kinds = [dict(zip(summary["types"]["fields"], row, strict=True)) for row in summary["types"]["rows"]]
    rows = sorted(summary["top"][method], key=lambda row: -row[1])
    return [(plain(kinds[row[0]]["text"]), row[1]) for row in rows if every or not kinds[row[0]]["punctuation"]]


def grouped(
    summary: dict[str, Any], split: int, method: str, by: int = 1, every: bool = False
) -> dict[str, list[tuple[str, float]]]:
    """Return the expected lists of the first screen.

    by: 1 for lift, 2 for the difference.
    """
    kinds = [dict(zip(summary["types"]["fields"], row, strict=True)) for row in summary["types"]["rows"]]
    lists = {}
    for g, group in enumerate(summary["splits"][split]["groups"]):
        rows = [row for row in group["received"][method] if row[by] is not None]
        rows = [row for row in rows if every or not kinds[row[0]]["punctuation"]]
        rows = sorted(rows, key=lambda row: -row[by])[:10]
        lists[f"{split}.{g}"] = [(plain(kinds[row[0]]["text"]), row[by]) for row in rows]
    return lists


def alike(page: Any, wanted: dict[str, list[tuple[str, float]]]) -> None:
    lists = words_of(page)
    assert {key: [word for word, _ in words] for key, words in lists.items()} == {
        key: [word for word, _ in words] for key, words in wanted.items()
    }
    for key, words in wanted.items():
        assert [x for _, x in lists[key]] == pytest.approx([x for _, x in words], abs=0.0501)


def test_the_first_screen_says_it_in_words(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    assert summary["lead"] == {"method": "raw", "layer": "L2"}
    best = words_of_all(summary, "raw")
    with shown(browser, path) as page:
        assert page.locator(".headline").inner_text() == (
            f"Across 288 texts, attention goes most to {best[0][0]}, {best[1][0]} and {best[2][0]}."
        )
        assert page.locator(".reason").inner_text() == (
            "By raw, the attention of layer 2: where the model looks, not what its answer rests on."
        )
        assert len(visible_words(page)) <= 60, visible_words(page)
        assert not page.locator(".panel").first.is_visible()
        assert page.get_by_label("split").locator("option").all_inner_texts() == ["all texts", "prediction"]
        alike(page, grouped(summary, 0, "raw"))
        heads = page.locator(".words h3").all_inner_texts()
        assert heads == [f"{group['value']} {group['texts']} texts" for group in summary["splits"][0]["groups"]]
        page.get_by_label("split").select_option("all texts")
        settle(page)
        alike(page, {"": best[:15]})
        assert page.get_by_role("group", name="words").is_hidden()
        page.get_by_role("combobox", name="method").select_option("flow")
        settle(page)
        alike(page, {"": words_of_all(summary, "flow")[:15]})
        assert page.locator(".reason").inner_text().startswith("By flow, the most attention that could flow down")


def test_a_split_shows_what_differs(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with shown(browser, path) as page:
        page.get_by_role("group", name="words").get_by_role("button", name="what differs").click()
        settle(page)
        alike(page, grouped(summary, 0, "raw", by=2))
        assert page.locator(".measure").inner_text() == "+2× is two equal shares more than in all other texts."
        page.wait_for_function("() => location.hash.includes('x=differs')")
        page.reload()
        settle(page)
        alike(page, grouped(summary, 0, "raw", by=2))


def test_punctuation_only_when_it_is_asked_for(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    kinds = [dict(zip(summary["types"]["fields"], row, strict=True)) for row in summary["types"]["rows"]]
    assert [kind["text"] for kind in kinds if kind["punctuation"]] == ["."]
    with shown(browser, path, "#b=&v=rollout") as page:
        every = page.locator(".opening").get_by_label("punctuation")
        assert not every.is_checked() and page.locator(".apart").count() == 0
        assert "." not in [word for word, _ in words_of(page)[""]]
        every.focus()
        page.keyboard.press("Space")
        settle(page)
        alike(page, {"": words_of_all(summary, "rollout", every=True)[:15]})
        assert "." in [word for word, _ in words_of(page)[""]]
        page.get_by_label("split").select_option("prediction")
        settle(page)
        alike(page, grouped(summary, 0, "rollout", every=True))
        assert "." in [word for word, _ in words_of(page)["0.0"]]


def test_a_word_leads_to_its_examples(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    contexts = summary["contexts"]

    def shown_examples(page: Any, key: str, type_: str) -> None:
        wanted = [contexts["texts"][i] for i in contexts["of"][key][type_]]
        lines = page.locator(".examples li")
        assert lines.count() == len(wanted) > 0
        for line, text in zip(lines.all(), wanted, strict=True):
            plainly = [token for token, special in zip(text["tokens"], text["special"], strict=True) if not special]
            assert line.locator(".tok").all_inner_texts() == list(map(plain, plainly))
            assert line.locator(".the-word").all_inner_texts() == [plain(text["tokens"][text["at"]])]
            label = "" if key else f"predicted {text['prediction']} · "  # otherwise the heading of the group says it
            notes = f"{label}{text['lifts']['raw'][text['at']]:.1f}× · {text['id']}"
            assert line.locator(".note").inner_text() == notes
            titles = line.locator(".tok").evaluate_all("all => all.map(one => one.title)")
            lifts = [x for x, special in zip(text["lifts"]["raw"], text["special"], strict=True) if not special]
            assert [number(title.rsplit(": ", 1)[1].split("×")[0]) for title in titles] == pytest.approx(
                lifts, abs=6e-3
            )

    with shown(browser, path) as page:
        first = page.locator(".word").first
        assert first.get_attribute("aria-pressed") == "true" and page.locator('.word[aria-pressed="true"]').count() == 1
        shown_examples(page, *first.get_attribute("data-word").split(":"))
        other = page.locator('[data-group="0.1"] .word').nth(3)
        name = other.get_attribute("data-word")
        other.click()
        settle(page)
        shown_examples(page, *name.split(":"))
        assert page.locator(".examples h3").inner_text() == f"“{other.locator('bdi').inner_text()}” in context"
        value = summary["splits"][0]["groups"][1]["value"]
        assert {contexts["texts"][i]["prediction"] for i in contexts["of"]["0.1"][name.split(":")[1]]} == {value}
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        settle(page)
        after = page.evaluate("document.activeElement.dataset.word")
        assert after != name and page.locator('.word[aria-pressed="true"]').get_attribute("data-word") == after
        shown_examples(page, *after.split(":"))
        page.wait_for_function(f"() => new URLSearchParams(location.hash.slice(1)).get('w') === '{after}'")
        page.get_by_label("split").select_option("all texts")
        settle(page)
        shown_examples(page, *page.locator(".word").first.get_attribute("data-word").split(":"))
        shades = page.locator(".examples .tok").first.evaluate("one => one.style.background")
        page.get_by_role("button", name="dark theme").click()
        settle(page)
        assert page.locator(".examples .tok").first.evaluate("one => one.style.background") != shades


def test_what_is_left_out_has_no_shade(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    texts = [
        {**text, "apart": [1 - int(i == text["at"]) for i in range(len(text["tokens"]))]}
        for text in summary["contexts"]["texts"]
    ]
    sink = {
        **summary,
        "sink": True,
        "contexts": {**summary["contexts"], "texts": texts},
    }
    with shown(browser, saved(tmp_path / "sink.html", sink)) as page:
        assert page.locator(".apart").inner_text() == "Not listed: the first token, an attention sink"
        shaded = page.locator(".examples .tok").evaluate_all(
            "all => all.map(one => [one.className, one.style.background !== ''])"
        )
        assert all(("the-word" in name) == has_shade for name, has_shade in shaded) and len(shaded) > 3


def test_columns_of_the_input_are_splits(browser: Any, tmp_path: Path) -> None:
    rows, columns = made_up(120)
    table = [{"text": row["text"], "source": "news" if row["row"] % 3 else "web", "n": row["row"]} for row in rows]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    out = stored(tmp_path / "out", rows, columns)
    found = report.summarize(out, source=tmp_path / "texts.jsonl")
    with shown(browser, saved(tmp_path / "index.html", found)) as page:
        page.get_by_label("split").select_option("source")
        settle(page)
        alike(page, grouped(found, 1, "raw"))
        assert page.locator(".words h3").all_inner_texts() == [
            f"source: {group['value']} {group['texts']} texts" for group in found["splits"][1]["groups"]
        ]
        page.locator(".everything > summary").click()
        assert page.locator(".unsplit").inner_text() == "No split: n (fewer than two values have 5 texts)."
    gone = {**found, "splits": [], "no_columns": "The columns of texts.csv were not read: it has changed since."}
    with shown(browser, saved(tmp_path / "gone.html", gone)) as page:
        assert page.locator(".opening .missing").inner_text() == gone["no_columns"]
        assert page.get_by_label("split").count() == 0


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_fits(browser: Any, path: Path, width: int, scheme: str) -> None:
    touch = {"has_touch": True, "is_mobile": True} if width == 390 else {}
    with shown(browser, path, viewport={"width": width, "height": 844}, color_scheme=scheme, **touch) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        if touch:
            for control in page.locator(
                ".opening button:visible, .opening select, summary:visible, .checks label:visible"
            ).all():
                assert control.bounding_box()["height"] >= 44
            page.locator(".word").nth(2).tap()
            settle(page)
            examples = page.locator(".examples").bounding_box()
            assert examples["y"] < 844 and examples["y"] + examples["height"] > 0  # it scrolls into view
        beside = page.locator(".words").evaluate_all("all => new Set(all.map(one => one.offsetTop)).size")
        assert beside == (2 if width == 390 else 1)


def test_the_head_leads_to_what_failed(browser: Any, path: Path, tmp_path: Path, summary: dict[str, Any]) -> None:
    with shown(browser, path, "#v=flow") as page:
        assert page.locator(".failures li").first.is_hidden()
        page.get_by_role("button", name="12 of 300 failed").click()
        assert page.locator(".failures li").first.is_visible()
        top = page.evaluate("document.activeElement.getBoundingClientRect().top")
        assert page.evaluate("document.activeElement.textContent") == "empty: 4 texts"
        assert 0 < top < page.viewport_size["height"]
        page.wait_for_function("() => location.hash === '#v=flow&open=1'")
    whole = {**summary, "texts": summary["scored"], "errors": []}
    with opened(browser, saved(tmp_path / "whole.html", whole)) as page:
        assert (
            page.locator(".prediction")
            .inner_text()
            .startswith("texts.txt: 288 texts explained by raw, rollout and flow at L2. 1 text")
        )
        assert page.locator(".lead").count() == 0


def test_what_failed_and_little_to_show(browser: Any, path: Path, tmp_path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        failed = page.locator(".failures details")
        assert failed.locator("summary").all_inner_texts() == [
            f"{one['kind']}: {one['count']} texts" for one in summary["errors"]
        ]
        failed.first.locator("summary").click()
        example = summary["errors"][0]["examples"][0]
        assert failed.first.locator("li").first.inner_text() == f"{example['id']} {example['message']}"
    none: dict[str, list[Any]] = {method: [] for method in METHODS}
    with opened(browser, saved(tmp_path / "none.html", {**summary, "top": none, "splits": [], "errors": []})) as page:
        assert page.locator(".empty").all_inner_texts() == ["No token occurs often enough."]
        assert page.locator(".panel").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_fits(browser: Any, path: Path, scheme: str, width: int) -> None:
    with opened(browser, path, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        assert page.locator("#attnflow").get_attribute("data-theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") == width
        paper = page.evaluate("getComputedStyle(document.querySelector('#attnflow')).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme]


def test_the_file_asks_nobody(path: Path, summary: dict[str, Any]) -> None:
    file = path.read_text(encoding="utf-8")
    assert file.count("<script") == file.count("</script>") == 2
    assert not re.findall(r"https?://[\w./]+", file)
    found = embedded(path)
    assert found == {**summary, "input": "texts.txt"}


@pytest.mark.parametrize("methods", ["rollout,answer_inputs", "answer_inputs,answer_rows"])
def test_methods_about_the_answer_lead(browser: Any, methods: str, tmp_path: Path) -> None:
    source = tmp_path / "t.txt"
    source.write_text("".join(f"{text}\n" for text in SENTENCES))
    explain_corpus(source, tmp_path / "out", methods=methods, device="cpu")
    with opened(browser, write(tmp_path / "out")) as page:
        assert page.locator(".headline").inner_text().startswith("Across 12 texts, the answers rest most on ")
        assert page.locator(".reason").inner_text() == (
            "By answer_inputs, what each input contributes to the answer, followed through all layers. Values below zero count "
            "against the answer."
        )
