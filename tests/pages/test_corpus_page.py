"""The corpus page in a real browser: its tables, pictures and choices, and the pages of its texts."""

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
from helpers.corpora import SENTENCES, WORDS, embedded, made_up, stored, traced

METHODS = ("raw", "rollout", "flow")
PAIRS = ("raw – rollout", "raw – flow", "rollout – flow")
VOCABULARY = (*WORDS, "</script><b>x", "日本", "\u202egnol", *(f"word{i}" for i in range(9)))

BROKEN = """cells => cells.filter(cell => {
    const inside = document.createRange();
    inside.selectNodeContents(cell);
    return new Set([...inside.getClientRects()].map(box => box.top)).size > 1;
}).map(cell => cell.textContent)"""
"""The cells whose text wraps."""


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rows, columns = made_up(300, vocabulary=VOCABULARY)
    found = report.summarize(stored(tmp_path_factory.mktemp("out") / "corpus", rows, columns), texts=4)
    return {**found, "pages": [], "missing": "No text has a page of its own: the model is gone."}


@pytest.fixture(scope="module")
def path(summary: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("page") / "index.html", summary)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The report of twelve sentences, with pages for some of them."""
    return write(stored(tmp_path_factory.mktemp("real") / "out", *traced()), texts=2)


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


def cells(page: Any, where: str) -> list[list[str]]:
    return page.evaluate(  # type: ignore[no-any-return]
        "where => [...document.querySelectorAll(where)].map(row => [...row.children].map(cell => cell.textContent))",
        where,
    )


def received(page: Any, method: str) -> list[list[str]]:
    return cells(page, f'.received[data-method="{method}"] tbody tr')


def bars(page: Any, method: str, name: str) -> list[float]:
    """Return the lengths of the bars in a list, or the positions of the lines on them, in percent."""
    return page.evaluate(  # type: ignore[no-any-return]
        "([where, name]) => [...document.querySelectorAll(where)].map(one => parseFloat(one.style.getPropertyValue(name)))",
        [f'.received[data-method="{method}"] td.bar', name],
    )


def listed(page: Any, name: str) -> list[list[str]]:
    """Return what the pictures of a panel say to screen readers, one list each."""
    lists = panel(page, name).locator("ul.sr").all()
    return [[line.strip() for line in one.locator("li").all_text_contents()] for one in lists]


def ranked(
    summary: dict[str, Any], method: str, layer: str, by: str, special: bool, counted: bool = False
) -> list[list[Any]]:
    """Return the expected rows of a list: text, lift, share, count.

    counted: whether special tokens count.
    """
    kinds = [dict(zip(summary["types"]["fields"], row, strict=True)) for row in summary["types"]["rows"]]
    rows = [
        (kinds[kind], mean, share, lift if counted else plain)
        for kind, mean, share, lift, plain in summary["received"][method][layer]
    ]
    rows = [row for row in rows if counted or not row[0]["punctuation"]]
    rows = sorted((row for row in rows if row[0]["special"] == special), key=lambda row: -row[3 if by == "lift" else 2])
    return [[kind["text"], lift, share, kind["count"]] for kind, _, share, lift in rows]


def number(text: str) -> float:
    return float(text.replace("−", "-").rstrip("×% ").replace(",", ""))


def times(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 2 else 1 if ratio < 10 else 0}f}"


def plain(text: str) -> str:
    """Return a token as the page shows it: bidirectional controls as escapes."""
    return text.replace("\u202e", "\\u202e")


def same(found: list[list[str]], wanted: list[list[Any]]) -> None:
    assert [row[1] for row in found] == [plain(row[0]) for row in wanted]
    assert [number(row[2]) for row in found] == pytest.approx([row[1] for row in wanted], abs=6e-3)
    assert [number(row[3]) for row in found] == pytest.approx([100 * row[2] for row in wanted], abs=6e-3)
    assert [number(row[4]) for row in found] == [row[3] for row in wanted]


def test_the_head_says_what_there_is(browser: Any, path: Path, summary: dict[str, Any], tmp_path: Path) -> None:
    with opened(browser, path) as page:
        assert page.title() == "corpus · attnflow"
        assert page.locator(".model-name").inner_text() == "small <model>"
        assert page.locator(".prediction").inner_text() == (
            "texts.txt: 288 texts explained by raw, rollout, flow at 2 layers; 12 of 300 failed (empty 4, too long 4, encoding "
            "4). 1 text was truncated. If several positions of a text were explained (1 text), its scores are their mean. "
            "Model: revision 0123456789ab, float32."
        )
        means = {
            " – ".join(one["views"]): one["correlation"]["mean"]
            for one in summary["agreement"]
            if one["layer"] == "L2" and not one["special"]
        }
        told = ", ".join(f"{pair} {means[pair]:.2f}".replace("0.", ".") for pair in PAIRS)
        assert page.locator(".ahead").inner_text() == (
            "How similarly the methods rank the tokens of a text at L2, without special ones (mean rank correlation; 1 is the same "
            f"order, 0 is unrelated): {told}."
        )
        assert page.locator(".missing").all_inner_texts() == [summary["missing"]]
    elsewhere = {**summary["provenance"], "model": "/a/long/way/to/bert/model"}
    other = {"finished": False, "missing": None, "differing": ["device", "torch"], "provenance": elsewhere}
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
    best = ranked(summary, "raw", "L2", "lift", False)
    with shown(browser, path) as page:
        assert page.locator(".headline").inner_text() == (
            f"Across 288 texts, attention goes most to {plain(best[0][0])}, {plain(best[1][0])} and {plain(best[2][0])}."
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
        alike(page, {"": [(plain(row[0]), row[1]) for row in best[:15]]})
        assert page.get_by_role("group", name="words").is_hidden()
        page.get_by_role("combobox", name="method").select_option("flow")
        settle(page)
        alike(page, {"": [(plain(row[0]), row[1]) for row in ranked(summary, "flow", "L2", "lift", False)[:15]]})
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
        every = page.locator(".opening").get_by_label("punctuation and special tokens")
        assert not every.is_checked() and page.locator(".apart").count() == 0
        assert "." not in [word for word, _ in words_of(page)[""]]
        every.focus()
        page.keyboard.press("Space")
        settle(page)
        rows = summary["received"]["rollout"]["L2"]
        best = sorted((row for row in rows if not kinds[row[0]]["special"]), key=lambda row: -row[4])[:15]
        alike(page, {"": [(plain(kinds[row[0]]["text"]), row[4]) for row in best]})
        assert "." in [word for word, _ in words_of(page)[""]]
        special = sorted((row for row in rows if kinds[row[0]]["special"]), key=lambda row: -row[2])
        wanted = ", ".join(f"{kinds[row[0]]['text']} {100 * row[2]:.1f} %" for row in special)
        assert page.locator(".apart").inner_text() == f"Not listed (share of all attention): {wanted}"
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


def test_what_stands_apart_has_a_number_and_no_shade(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    first = {"raw": 0.494, "rollout": 0.9, "flow": 0.1}
    texts = [
        {**text, "apart": [1 - int(i == text["at"]) for i in range(len(text["tokens"]))]}
        for text in summary["contexts"]["texts"]
    ]
    sink = {
        **summary,
        "apart": {"first": first, "query": {**first, "raw": 0.25}},
        "contexts": {**summary["contexts"], "texts": texts},
    }
    with shown(browser, saved(tmp_path / "sink.html", sink)) as page:
        assert page.locator(".apart").inner_text() == (
            "Not listed (share of all attention): the first token 49.4 %, the explained position 25.0 %"
        )
        shaded = page.locator(".examples .tok").evaluate_all(
            "all => all.map(one => [one.className, one.style.background !== ''])"
        )
        assert all(("the-word" in name) == has_shade for name, has_shade in shaded) and len(shaded) > 3
        page.get_by_role("combobox", name="method").select_option("rollout")
        settle(page)
        assert "the first token 90.0 %" in page.locator(".apart").inner_text()


def test_columns_of_the_input_are_splits(browser: Any, tmp_path: Path) -> None:
    rows, columns = made_up(120)
    table = [{"text": row["text"], "source": "news" if row["row"] % 3 else "web", "n": row["row"]} for row in rows]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    out = stored(tmp_path / "out", rows, columns)
    summary_of = report.summarize(out, source=tmp_path / "texts.jsonl")
    found = {**summary_of, "pages": [], "missing": None}
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


def test_what_receives_attention(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        for method in METHODS:
            found = received(page, method)
            assert [row[0] for row in found] == [str(i + 1) for i in range(20)]
            same(found, ranked(summary, method, "L2", "lift", False)[:20])
            head = page.locator(f'.received[data-method="{method}"] h3').inner_text()
            assert number(head.split()[1]) == pytest.approx(100 * summary["special_share"][method]["L2"], abs=0.06)
            assert head.endswith(f" · largest {times(summary['ratio'][method]['L2'])}× smallest")
            lifts = [row[1] for row in ranked(summary, method, "L2", "lift", False)[:20]]
            most = max(1, *lifts)  # bars reach to the highest of their list, and a line marks 1×
            assert bars(page, method, "--part") == pytest.approx([100 * lift / most for lift in lifts], abs=0.06)
            assert bars(page, method, "--even") == pytest.approx([100 / most] * 20, abs=0.06)
        page.get_by_role("button", name="the first 27").click()
        assert page.evaluate("document.activeElement.textContent") == "show the first 20"
        page.get_by_role("button", name="by share").click()
        page.get_by_role("group", name="layer").get_by_role("button", name="L1").click()
        page.get_by_label("punctuation and special tokens too").check()
        settle(page)
        for method in METHODS:
            found = received(page, method)
            same(found[:2], ranked(summary, method, "L1", "share", True, counted=True))
            same(found[2:], ranked(summary, method, "L1", "share", False, counted=True))
            assert len(found) == 30 and [row[0] for row in found[:3]] == ["", "", "1"]
            assert max(bars(page, method, "--part")) == 100 and set(bars(page, method, "--even")) == {-1}  # no lines
        page.wait_for_function("() => location.hash.includes('l=L1')")
        address = dict(page.evaluate("[...new URLSearchParams(location.hash.slice(1))]"))
        assert address == {"l": "L1", "s": "1", "o": "share", "n": "1", "open": "1"}
        before = page.locator("article").inner_text()
        page.reload()
        settle(page)
        assert page.locator("article").inner_text() == before
        row = page.locator('.received[data-method="raw"] tbody tr').nth(5)
        row.hover()
        kind = row.get_attribute("data-type")
        assert page.locator("tr.lit").evaluate_all("rows => rows.map(row => row.dataset.type)") == [kind] * 3
        title = page.locator('.received[data-method="raw"] tbody tr').filter(has_text="cabinets").get_attribute("title")
        assert re.fullmatch(r"mean score 0\.\d{4}, token id 12, also “Cabinets”", title)


def test_what_stands_for_many_texts_has_no_name_of_its_own(
    browser: Any, tmp_path: Path, summary: dict[str, Any]
) -> None:
    rows = [list(row) for row in summary["types"]["rows"]]
    at = summary["types"]["fields"].index("spellings")
    (number_of,) = [i for i, row in enumerate(rows) if row[1] == "key"]
    rows[number_of][at] = summary["types"]["spellings"]
    with opened(
        browser, saved(tmp_path / "many.html", {**summary, "types": {**summary["types"], "rows": rows}})
    ) as page:
        named = page.locator(f'.received[data-method="raw"] tr[data-type="{number_of}"]')
        assert named.locator("em").inner_text() == "key, Key, …"
        assert named.get_attribute("title").endswith(
            "represents many spellings, mostly words that the tokenizer does not know"
        )
        assert page.locator('.received[data-method="raw"] em').count() == 1


@pytest.mark.parametrize(("end", "kind"), [("start", "plain"), ("end", "plain"), ("start", "all")])
def test_positions(browser: Any, path: Path, summary: dict[str, Any], end: str, kind: str) -> None:
    told = summary["positions"][end][kind]
    kept = [i for i, n in enumerate(told["counts"]) if n >= summary["least"]]
    assert 64 in kept and len(kept) > 10
    with opened(browser, path, "#s=1" if kind == "all" else "") as page:
        if end == "end":
            page.get_by_role("button", name="from the end").click()
            settle(page)
        (found,) = listed(page, "positions")
        side = " from the end" if end == "end" else ""
        wanted = [
            f"position {'65+' if i == 64 else i + 1}{side}, {told['counts'][i]} tokens, "
            + ", ".join(f"{method} {told['shares'][method]['L2'][i]:.4f}" for method in METHODS)
            + f", all the same {told['uniform'][i]:.4f}"
            for i in (kept[::-1] if end == "end" else kept)
        ]
        assert found == wanted
        ticks = panel(page, "positions").locator("text.tick").all_text_contents()
        assert {"65+", "5", "10", f"position{side}", "mean score"} <= set(ticks)
        # A value without neighbours is a dot, on each of the lines.
        alone = panel(page, "positions").locator("svg > circle")
        assert alone.count() == 4


def test_agreement(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        for special, layer in ((False, "L2"), (True, "L2"), (True, "L1")):
            page.get_by_label("punctuation and special tokens too").set_checked(special)
            page.get_by_role("group", name="layer").get_by_role("button", name=layer).click()
            settle(page)
            told = [one for one in summary["agreement"] if (one["layer"], one["special"]) == (layer, special)]
            rows = cells(page, '[data-panel="agreement"] tbody tr')
            assert [row[0] for row in rows] == list(PAIRS)
            for row, one in zip(rows, told, strict=True):
                mean, low, high = (number(text) for text in re.findall(r"−?\.\d\d|1\.00", row[1]))
                assert [mean, low, high] == pytest.approx(list(one["correlation"].values()), abs=6e-3)
                assert [number(text) for text in re.findall(r"\d+", row[2])] == pytest.approx(
                    [100 * x for x in one["first"].values()], abs=0.51
                )
                short = [f"{one['few']} too short"] if one["few"] else []
                assert row[3:] == [str(one["texts"]), ", ".join([*short, f"{one['flat']} all the same"])]
            *bars, layers = listed(page, "agreement")
            for found, one in zip(bars, told, strict=True):
                assert len(found) == 20 and found[0].startswith("ρ from −1.00 to −.90, ")
                counts = [int(re.search(r", (\d+) texts?$", line)[1]) for line in found]  # type: ignore[index]
                assert counts == one["histogram"]
            assert [line.split(",")[0] for line in layers] == ["L1", "L2"]


def test_where_views_disagree(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    held = summary["disagreement"]
    with opened(browser, path) as page:
        for number_of, pair in enumerate(PAIRS):
            page.get_by_role("group", name="methods").get_by_role("button", name=pair).click()
            settle(page)
            cases = page.locator(".case")
            wanted = held["pairs"][number_of]["texts"]
            assert cases.evaluate_all("all => all.map(one => Number(one.dataset.row))") == [
                one["row"] for one in wanted
            ]
            for case, one in zip(cases.all(), wanted, strict=True):
                text = held["texts"][str(one["row"])]
                rho = f"{one['correlation']:.2f}".replace("-", "−").replace("0.", ".")
                about = case.locator(".about > *").all_inner_texts()
                assert about == [
                    text["id"],
                    f"ρ {rho}",
                    f"{text['prediction']['label']} {text['prediction']['probability']:.2f}",
                ]
                views = case.locator(".row").evaluate_all("rows => rows.map(row => row.dataset.method)")
                assert views[:2] == pair.split(" – ") and set(views) == set(METHODS)
                for method in METHODS:
                    own = [x for x, special in zip(text["shares"][method], text["special"], strict=True) if not special]
                    told = case.locator(f'.row[data-method="{method}"] .range').inner_text()
                    low, high, ratio = map(number, re.fullmatch(r"(\S+) – (\S+) · (\S+)×", told).groups())  # type: ignore[union-attr]
                    assert [low, high] == pytest.approx([min(own), max(own)], abs=6e-4) and low < high
                    assert ratio == pytest.approx(max(own) / min(own), abs=0.51 if ratio >= 10 else 0.051)
                shown = [token for token, special in zip(text["tokens"], text["special"], strict=True) if not special]
                assert case.locator(".row").first.locator(".tok").all_inner_texts() == list(map(plain, shown))
        assert page.locator(".case a").count() == 0
        case = page.locator(".case").first
        text = held["texts"][str(wanted[0]["row"])]
        shades = (
            "toks => toks.map(tok => getComputedStyle(tok).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0))"
        )
        ends = set()
        for method in METHODS:
            light = case.locator(f'.row[data-method="{method}"] .tok').evaluate_all(shades)
            values = [x for x, special in zip(text["shares"][method], text["special"], strict=True) if not special]
            order = sorted(range(len(values)), key=lambda i: -values[i])
            assert [light[i] for i in order] == sorted(light)
            ends.add((min(light), max(light)))
        assert len(ends) == 1  # each row is shaded from its own lowest to its own highest
        page.get_by_label("punctuation and special tokens too").check()
        settle(page)
        assert case.locator(".row").first.locator(".tok").count() == len(text["tokens"])


def test_every_text_leads_to_its_page(browser: Any, real: list[Path]) -> None:
    index, *pages = real
    with opened(browser, index) as page:
        assert page.locator(".missing").count() == 0
        links = page.locator(".case a")
        assert links.count() == page.locator(".case").count() == 2
        href = links.first.get_attribute("href")
        name = links.first.inner_text()
        row = page.locator(".case").first.get_attribute("data-row")
        tokens = page.locator(".case").first.locator(".row").first.locator(".tok").all_inner_texts()
    assert href == f"texts/{row}.html#l=6&s=0" and name == f"s{row}"
    target = index.parent / href.split("#")[0]
    assert target in pages
    with opened_page(browser, target, "#l=6&s=0") as page:
        assert page.locator(".query .tok").all_inner_texts()[1:-1] == tokens


def test_a_number_stands_below_the_bar_of_its_length(browser: Any, real: list[Path]) -> None:
    with opened(browser, real[0]) as page:
        chart = panel(page, "texts").locator("svg.chart")
        boxes = [one.bounding_box() for one in chart.locator(".cell rect:first-child").all()]
        ticks = [one for one in chart.locator(".tick").all() if one.text_content().isdigit()]
        assert len(ticks) > 3
        for tick in ticks:
            bar, box = boxes[int(tick.text_content()) - 1], tick.bounding_box()
            assert box["x"] + box["width"] / 2 == pytest.approx(bar["x"] + bar["width"] / 2, abs=1)


def test_what_was_done_to_scores(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    same_sum = "are divided by their sum in a text, so that methods can be compared."
    for field, told, left in (
        (None, f"Scores by flow {same_sum}", ""),
        ("ratio", f"Scores by rollout and flow {same_sum}", "&f=ratio"),
        ("difference", "share is the part of the sum of absolute values.", "&f=difference"),
    ):
        rows = sorted(map(int, summary["disagreement"]["texts"]))
        divided = ["rollout", "flow"] if field == "ratio" else ["flow"]
        held = {**summary, "receptive_field": field, "divided": divided, "pages": rows, "words": True}
        with opened(browser, saved(tmp_path / "field.html", held)) as page:
            assert told in panel(page, "tokens").locator(".how").text_content()
            href = page.locator(".case a").first.get_attribute("href")
            row = page.locator(".case").first.get_attribute("data-row")
            assert href == f"texts/{row}.html#l=2&s=0{left}&u=words"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (None, "the answering position (the class token, or the last token of a decoder)"),
        ("all", "each position of its text (on average)"),
        ("3", "position 3 of its text (counted from 0)"),
        ("key", "“key”"),
    ],
)
def test_what_the_scores_are_of(
    browser: Any, tmp_path: Path, summary: dict[str, Any], query: str | None, told: str
) -> None:
    with opened(browser, saved(tmp_path / "query.html", {**summary, "query": query})) as page:
        how = panel(page, "tokens").locator(".how")
        assert how.locator("p").first.is_hidden()
        how.locator("summary").click()
        first, lift, share, ratio, signs, last = how.locator("p").all_inner_texts()
        assert signs == "Punctuation is left out, unless it is shown."
        assert first.startswith(f"The score of a token measures how much of {told} comes from it. Scores by flow")
        assert lift.endswith("Special tokens are left out of both, unless they are shown.")
        assert "including those of special tokens" in share and "the largest score divided by the smallest" in ratio
        assert f"at least {summary['least']} times in the corpus" in last
        assert panel(page, "tokens").locator(".hint").inner_text() == (
            "Lift compares a token's score with an equal share of its text: at 1×, the thin line, it gets exactly an equal share. "
            "Share is its part of all scores in the corpus."
        )


def test_scores_that_hardly_differ(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    """The page warns wherever readers might rely on their order, at the layers concerned."""
    ratio = {**summary["ratio"], "flow": {"L1": 3.5, "L2": 1.0412}, "raw": {"L1": None, "L2": 1.2}}
    told = "low hardly distinguishes tokens {}: in a typical text the largest score is only 1.04 times the smallest"
    with opened(browser, saved(tmp_path / "weak.html", {**summary, "ratio": ratio})) as page:
        assert page.locator(".weak").all_inner_texts() == [
            f"f{told.format('here')}.",
            f"f{told.format('at L2')}, so its order, and its agreement with other methods, says little.",
        ]
        assert page.locator('.received[data-method="flow"] .weak').count() == 1
        assert page.locator(".ahead").inner_text().endswith(f". F{told.format('there')}.")
        heads = page.locator(".received h3 small").all_inner_texts()
        assert ["largest" in head for head in heads] == [True, True, False]
        assert heads[0].endswith("largest 1.20× smallest")
        page.get_by_role("group", name="layer").get_by_role("button", name="L1").click()
        settle(page)
        assert page.locator(".weak").count() == 0
        heads = page.locator(".received h3 small").all_inner_texts()
        assert ["largest" in head for head in heads] == [False, True, True]


def test_the_head_leads_to_what_failed(browser: Any, path: Path, tmp_path: Path, summary: dict[str, Any]) -> None:
    with shown(browser, path, "#l=L1") as page:
        assert page.locator(".failures li").first.is_hidden()
        page.get_by_role("button", name="12 of 300 failed").click()
        assert page.locator(".failures li").first.is_visible()
        top = page.evaluate("document.activeElement.getBoundingClientRect().top")
        assert page.evaluate("document.activeElement.textContent") == "empty: 4 texts"
        assert 0 < top < page.viewport_size["height"]
        page.wait_for_function("() => location.hash === '#l=L1&open=1'")
    whole = {**summary, "texts": summary["scored"], "errors": []}
    with opened(browser, saved(tmp_path / "whole.html", whole)) as page:
        assert (
            page.locator(".prediction")
            .inner_text()
            .startswith("texts.txt: 288 texts explained by raw, rollout, flow at 2 layers. 1 text")
        )
        assert page.locator(".lead").count() == 0


def test_the_texts(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        (found,) = listed(page, "texts")
        counts = summary["lengths"]["counts"]
        assert found[:2] == [f"1 to 5 tokens, {counts[0]} texts", f"6 to 10 tokens, {counts[1]} texts"]
        assert len(found) == len(counts)
        assert panel(page, "texts").locator(".tick").all_text_contents()[:5] == ["0", "20", "40", "60", "80"]
        assert panel(page, "texts").locator(".hint").inner_text() == (
            "How many tokens the texts have, what the model predicted, which texts failed."
        )
        assert panel(page, "texts").locator(".summary").inner_text() == "288 texts of 3 to 82 tokens, median 9"
        rows = cells(page, ".predictions tbody tr")
        assert [row[:2] for row in rows] == [[one["label"], str(one["count"])] for one in summary["predictions"]["top"]]
        failed = page.locator(".failures details")
        assert failed.locator("summary").all_inner_texts() == [
            f"{one['kind']}: {one['count']} texts" for one in summary["errors"]
        ]
        failed.first.locator("summary").click()
        example = summary["errors"][0]["examples"][0]
        assert failed.first.locator("li").first.inner_text() == f"{example['id']} {example['message']}"


def test_keys_reach_everything(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        picture = panel(page, "positions").locator("svg.chart")
        picture.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        (_, second, *_), *_ = listed(page, "positions")
        tip = page.locator(".tip:not([hidden]) > div").all_inner_texts()
        assert ", ".join(tip) == second
        page.get_by_label("punctuation and special tokens too").focus()
        page.keyboard.press("Space")
        settle(page)
        assert page.locator('.received[data-method="flow"] tbody').count() == 2
        reached = set()
        page.locator("body").click(position={"x": 2, "y": 2})
        for _ in range(110):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.closest('[data-panel]')?.dataset.panel"))
        assert {"tokens", "positions", "agreement", "disagreement", "texts"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_fits(browser: Any, path: Path, scheme: str, width: int) -> None:
    with opened(browser, path, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        assert page.locator("#attnflow").get_attribute("data-theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") == width
        beside = page.locator(".received").evaluate_all("all => new Set(all.map(one => one.offsetTop)).size")
        assert beside == (3 if width == 400 else 1)
        broken = page.locator(".received tbody td").evaluate_all(BROKEN)
        assert broken == []
        for name in ("positions", "agreement", "texts"):
            for picture in panel(page, name).locator("svg.chart").all():
                own, around = picture.bounding_box(), picture.locator("..").bounding_box()
                assert around["x"] <= own["x"] and own["x"] + own["width"] <= around["x"] + around["width"] + 1 <= width
        paper = page.evaluate("getComputedStyle(document.querySelector('#attnflow')).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme]


def test_little_to_show(browser: Any, tmp_path: Path) -> None:
    rows, columns = made_up(4, ("rollout",), (5,))
    found = {**report.summarize(stored(tmp_path / "few", rows, columns, parts=1)), "pages": [], "missing": None}
    with opened(browser, saved(tmp_path / "few.html", found)) as page:
        assert [one.get_attribute("data-panel") for one in page.locator(".panel").all()] == [
            "tokens",
            "positions",
            "texts",
        ]
        assert page.locator(".ahead").count() == 0
    rows, columns = made_up(1)
    found = {**report.summarize(stored(tmp_path / "one", rows, columns, parts=1)), "pages": [], "missing": None}
    short = {**found["disagreement"], "pairs": [{**one, "texts": []} for one in found["disagreement"]["pairs"]]}
    none: dict[str, list[Any]] = {method: [] for method in METHODS}
    empty = {
        method: {layer: [] for layer in layers} for method, layers in found["received"].items() if method != "fields"
    }
    with opened(
        browser,
        saved(tmp_path / "one.html", {**found, "disagreement": short, "received": empty, "top": none, "splits": []}),
    ) as page:
        assert page.locator(".empty").all_inner_texts() == [
            "No token occurs often enough.",
            "Nothing occurs 2 times in the corpus.",
            "Every position has too few tokens.",
            "No text is long enough for a meaningful rank correlation.",
        ]
        hint = panel(page, "texts").locator(".hint").inner_text()
        assert hint == "How many tokens the texts have, what the model predicted."  # no failures are mentioned


def test_many_layers_are_a_menu(browser: Any, tmp_path: Path) -> None:
    rows, columns = made_up(40, ("raw", "flow"), range(1, 15))
    found = {**report.summarize(stored(tmp_path / "deep", rows, columns)), "pages": [], "missing": None}
    with opened(browser, saved(tmp_path / "deep.html", found)) as page:
        menu = page.get_by_role("combobox", name="layer")
        assert menu.input_value() == "L14" and menu.locator("option").count() == 14
        menu.select_option("L3")
        settle(page)
        same(received(page, "flow"), ranked(found, "flow", "L3", "lift", False)[:20])
        assert page.locator(".case").count() > 0 and "at L14" in panel(page, "disagreement").inner_text()


def test_the_file_asks_nobody(path: Path, summary: dict[str, Any]) -> None:
    file = path.read_text(encoding="utf-8")
    assert file.count("<script") == file.count("</script>") == 2
    assert set(re.findall(r"https?://[\w./]+", file)) == {"http://www.w3.org/2000/svg"}
    found = embedded(path)
    assert {**found, "disagreement": None} == {**summary, "disagreement": None, "input": "texts.txt"}
    whole = {"text", "pair"}  # they may be long
    for row, text in summary["disagreement"]["texts"].items():
        assert found["disagreement"]["texts"][row] == {name: text[name] for name in text if name not in whole}


@pytest.mark.parametrize("methods", ["rollout,answer_inputs", "answer_inputs,answer_rows"])
def test_methods_about_the_answer_lead(browser: Any, methods: str, tmp_path: Path) -> None:
    """They have signs, and the page offers layers only if a method has them."""
    source = tmp_path / "t.txt"
    source.write_text("".join(f"{text}\n" for text in SENTENCES))
    explain_corpus(source, tmp_path / "out", methods=methods, device="cpu")
    path, *_ = write(tmp_path / "out", texts=1)
    with opened(browser, path) as page:
        assert page.locator(".headline").inner_text().startswith("Across 12 texts, the answers rest most on ")
        assert page.locator(".reason").inner_text() == (
            "By answer_inputs, what each input contributes to the answer, followed through all layers. Values below zero count "
            "against the answer."
        )
        assert page.locator(".pick-layer").count() == ("rollout" in methods)
        assert len(received(page, "answer_inputs")) > 1
