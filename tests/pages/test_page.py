"""The interactive page as a person uses it, in a real browser: every number beside the library's, every key, every export."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from browser import chromium, exported, opened, settle

import attnflow as af
from architectures import LLAMA, POSITIONS, hf
from attnflow.evaluate.statistics import spearman
from attnflow.result import TokenAttention
from attnflow.view import document
from attnflow.view.page import Page, of_result, of_trace, of_weights
from small_tokenizers import sentencepiece, wordpiece

METHODS = ("raw", "rollout", "flow")
SENTENCE = "the old key to my cabinets"  # no word twice, so that names of states are unique


@dataclass(frozen=True)
class Case:
    """A page on disk and the trace that it was made of."""

    path: Path
    page: Page
    trace: Any
    worth: Sequence[TokenAttention] = ()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    folder = tmp_path_factory.mktemp("pages")

    def save(name: str, page: Page, trace: Any = None, worth: Sequence[TokenAttention] = ()) -> Case:
        page.save(folder / f"{name}.html")
        return Case(folder / f"{name}.html", page, trace, worth)

    return save


@pytest.fixture(scope="module")
def sentence(saved: Any) -> Case:
    model = af.load()
    trace = model.trace(SENTENCE, keep_heads=True)
    return saved("sentence", model.explain(SENTENCE), trace, [model.gradient(SENTENCE), model.blank_out(SENTENCE)])


@pytest.fixture(scope="module")
def pieces(saved: Any) -> Case:
    """Words of several subwords, and special tokens."""
    tokenizer = wordpiece()
    shape = {**POSITIONS, "vocab_size": len(tokenizer)}
    model = af.wrap(hf("BertForSequenceClassification", **shape)(), tokenizer)
    text = "the unbelievable cabinets"
    trace = model.trace(text, keep_heads=True)
    return saved("pieces", model.explain(text), trace, [model.gradient(text), model.blank_out(text)])


@pytest.fixture(scope="module")
def decoder(saved: Any) -> Case:
    tokenizer = sentencepiece()
    model = af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": len(tokenizer)})(), tokenizer)
    trace = model.trace("the key to the cabinets is unbelievable", keep_heads=True)
    return saved("decoder", of_trace(trace), trace)


@pytest.fixture(scope="module")
def translation(saved: Any) -> Case:
    tokenizer = sentencepiece()
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    build = hf("T5ForConditionalGeneration", vocab_size=len(tokenizer), decoder_start_token_id=0, **shape)
    model = af.wrap(build(), tokenizer)
    trace = model.trace("the key to the cabinets", target="is unbelievable", keep_heads=True)
    page = model.explain("the key to the cabinets", target="is unbelievable")
    return saved("translation", page, trace)


def told(text: str) -> float:
    """A number as the page writes it."""
    text = text.replace("−", "-").replace("≈", "").strip()
    return {"–": float("nan"), "∞": float("inf")}.get(text) or float(text)


def check_told(texts: Any, values: Any, digits: int = 3) -> None:
    """Numbers on the page are those values, rounded to digits, or to two significant ones where they would be zero."""
    found, wanted = np.array([told(t) for t in np.ravel(texts)]), np.ravel(values).astype(float)
    assert found.shape == wanted.shape
    small = np.abs(wanted) < 0.5 * 10.0**-digits
    room = np.where(small, 0.06 * np.abs(wanted), 0.5001 * 10.0**-digits)
    np.testing.assert_array_less(np.abs(found - wanted), room + 1e-12)


def view_of(trace: Any, method: str, query: int | None = None, **options: Any) -> np.ndarray:
    """[layer, input] by the library."""
    asked = {} if query is None else {"query": query - trace.first_query}
    return getattr(trace, method)(**asked, **options).values[:, 0]


def choose(page: Any, **selected: Any) -> None:
    """Go to a selection by its address."""
    go(page, "&".join(f"{name}={value}" for name, value in selected.items()))


def go(page: Any, fragment: str) -> None:
    page.evaluate(
        """async fragment => {
            while (location.hash.slice(1) !== fragment) {
                const heard = new Promise(done => addEventListener("hashchange", done, {once: true}));
                location.hash = fragment;
                await heard;
            }
        }""",
        fragment,
    )
    settle(page)


def selection(page: Any) -> dict[str, str]:
    """The fragment, once it has been written."""
    page.wait_for_timeout(135)
    return dict(re.findall(r"([a-z]+)=([^&]*)", page.evaluate("location.hash")))


def rows_of(page: Any) -> dict[str, Any]:
    """The rows of Compare: for each method its tokens with text and colours, and the titles of its correlations."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".rows .row[data-method]")].map(row => [row.dataset.method, {
            tokens: [...row.querySelectorAll(".tok")].map(t => ({i: Number(t.dataset.i), text: t.textContent, joined: t.classList.contains("joined"),
                back: getComputedStyle(t).backgroundColor, ink: getComputedStyle(t).color})),
            rho: [...row.querySelectorAll(".rho span")].map(s => [s.title, s.textContent]), small: row.querySelector("small").textContent,
            why: row.querySelector(".why").hidden ? "" : row.querySelector(".why").textContent}]))"""
    )


def text_of(page: Any) -> str:
    """All that can be seen of the page: not the tables behind pictures, which are made later."""
    return page.evaluate(
        """() => {
            const copy = document.querySelector("article").cloneNode(true);
            for (const hidden of copy.querySelectorAll(".sr")) hidden.remove();
            return copy.textContent;
        }"""
    )


def table_of(page: Any, selector: str) -> list[list[str]]:
    page.wait_for_selector(selector, state="attached")  # tables behind pictures are made when nothing moves any more
    return page.evaluate(
        "s => [...document.querySelector(s).rows].map(row => [...row.cells].map(cell => cell.textContent))", selector
    )


def as_json(page: Any, name: str) -> list[dict[str, Any]]:
    return json.loads(exported(page, name, "json"))["rows"]


def column(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=float)


def rgb(colour: str) -> np.ndarray:
    return np.array([float(part) for part in re.findall(r"[\d.]+", colour)[:3]])


def linear(colour: str) -> np.ndarray:
    x = rgb(colour) / 255
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def lightness(colour: str) -> float:
    """L of OKLab (Ottosson 2020)."""
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    return float(np.dot([0.2104542553, 0.7936177850, -0.0040720468], np.cbrt(to_cones @ linear(colour))))


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted(float(np.dot([0.2126, 0.7152, 0.0722], linear(c))) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def picture(data: bytes) -> np.ndarray:
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    return np.asarray(image_module.open(io.BytesIO(data)).convert("RGB"))


def check_drawn(data: bytes, path: Path, width: int | None = None, colours: int = 12) -> None:
    """A picture of that width on which something is to be seen; kept in a file for whoever wants to look."""
    path.write_bytes(data)
    pixels = picture(data)
    if width is not None:
        assert pixels.shape[1] == width and pixels.shape[0] > 100
    assert len(np.unique(pixels[::3].astype(np.uint32) @ [65536, 256, 1])) >= colours


def test_compare_tells_the_numbers_of_the_library(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    tokens = len(trace.tokens)
    with opened(browser, sentence.path) as page:
        assert page.locator(".prediction").inner_text().startswith(f"class: {trace.prediction.top[0][0]} ")
        for query, layer in ((0, 6), (3, 4), (3, 1)):
            choose(page, q=query, l=layer)
            rows = as_json(page, "compare")
            wanted = {m: view_of(trace, m, query)[layer - 1] for m in METHODS}
            wanted |= {result.method: result.row() for result in sentence.worth}
            assert list(rows[0])[5:] == list(wanted)
            assert [row["token"] for row in rows] == list(trace.tokens)
            for method, values in wanted.items():
                np.testing.assert_allclose(column(rows, method), values, rtol=1e-12, atol=1e-15)
            table = table_of(page, ".numbers table")
            assert [row[:2] for row in table[1:]] == [[str(i), t] for i, t in enumerate(trace.tokens)]
            check_told([row[2:] for row in table[1:]], np.stack(list(wanted.values()), 1))
            shown = rows_of(page)
            assert list(shown) == list(wanted)
            for method in METHODS:
                found = [float(title.split(": ")[1]) for title, _ in shown[method]["rho"]]
                rho = [spearman(wanted[method], wanted[w.method]) for w in sentence.worth]
                np.testing.assert_allclose(found, rho, rtol=1e-12)
                check_told([text for _, text in shown[method]["rho"]], rho, digits=2)
            pairs = page.locator(".matrix td[title]").evaluate_all("cells => cells.map(cell => cell.title)")
            names = list(wanted)
            below = [(names[i], names[j]) for i in range(1, len(names)) for j in range(i)]
            found = [float(title.split(": ")[1]) for title in pairs]
            np.testing.assert_allclose(
                found, [spearman(wanted[a], wanted[b]) for a, b in below], rtol=1e-12, atol=1e-15
            )
        assert tokens == len(shown["flow"]["tokens"])


def test_shades_follow_the_values(browser: Any, sentence: Case) -> None:
    """Lightness is a straight line in a token's share, from the lowest to the highest of its row or of all layers."""
    trace = sentence.trace
    with opened(browser, sentence.path) as page:
        choose(page, l=4)
        for stretched in (True, False):
            stretch = page.get_by_label("shade each row from its lowest to its highest")
            stretch.set_checked(stretched)
            settle(page)
            shown = rows_of(page)
            for method in METHODS:
                values = view_of(trace, method)
                low, high = (values[3].min(), values[3].max()) if stretched else (0, values.max())
                share = (values[3] - low) / (high - low)
                found = [lightness(token["back"]) for token in shown[method]["tokens"]]
                np.testing.assert_allclose(found, 0.985 + (0.36 - 0.985) * share, atol=0.012)
        assert "from 0 to the highest value of each method over all layers" in page.locator(".legend").inner_text()


def test_sorting(browser: Any, sentence: Case) -> None:
    trace, names = sentence.trace, [*METHODS, "gradient", "blank-out"]
    values = [view_of(trace, m)[-1] for m in METHODS] + [w.row() for w in sentence.worth]

    def order() -> list[int]:
        return page.locator(".numbers tbody tr").evaluate_all("rows => rows.map(row => Number(row.dataset.i))")

    def sorted_by() -> dict[str, str]:
        heads = page.locator(".numbers th:has(button)").evaluate_all(
            "all => all.map(th => [th.textContent, th.ariaSort])"
        )
        return {name: way for name, way in heads if way != "none"}

    with opened(browser, sentence.path) as page:
        assert sorted_by() == {"token": "ascending"}
        for name, row in zip(names, values, strict=True):
            title = {"raw": "raw attention"}.get(name, name)
            head = page.get_by_role("columnheader", name=title).get_by_role("button")
            head.click()
            assert order() == sorted(range(len(row)), key=lambda i: (-row[i], i))
            assert sorted_by() == {title: "descending"}
            head.focus()
            page.keyboard.press("Enter")
            assert order() == sorted(range(len(row)), key=lambda i: (row[i], i))
            assert sorted_by() == {title: "ascending"}
            assert page.evaluate("document.activeElement.dataset.sort") == name  # not thrown to the top of the page
        page.get_by_role("columnheader", name="token").get_by_role("button").click()
        assert order() == list(range(len(values[0]))) and sorted_by() == {"token": "ascending"}
        page.get_by_role("columnheader", name="token").get_by_role("button").click()
        assert order() == list(range(len(values[0])))[::-1] and sorted_by() == {"token": "descending"}


def test_a_token_is_hovered_and_chosen_everywhere(browser: Any, sentence: Case) -> None:
    trace, names = sentence.trace, [*METHODS, "gradient", "blank-out"]
    values = [view_of(trace, m)[-1] for m in METHODS] + [w.row() for w in sentence.worth]
    with opened(browser, sentence.path) as page:
        page.locator('.row[data-method="flow"] .tok[data-i="3"]').hover()
        tip = page.locator(".tip")
        lines = tip.locator("div").all_inner_texts()
        assert lines[0] == "key · position 3"
        for name, row, line in zip(names, values, lines[1:], strict=True):
            own = {"raw": "raw attention"}.get(name, name)
            mark, number, rank = re.fullmatch(rf"(▸ )?{own} (\S+) · rank (\d+) of {len(row)}", line).groups()
            assert (mark is not None) == (name == "flow")
            assert float(number) == pytest.approx(row[3], rel=1e-12)
            assert int(rank) == 1 + int((row > row[3]).sum())
        lit = page.locator(".tok.lit")
        assert lit.count() == len(names) and set(lit.all_inner_texts()) == {"key"}
        page.mouse.move(5, 5)
        assert lit.count() == 0 and tip.is_hidden()
        page.locator('.row[data-method="raw"] .tok[data-i="6"]').click()
        settle(page)
        assert page.locator(".tok.chosen").evaluate_all("all => all.map(t => t.dataset.i)") == ["6"] * len(names)
        assert page.locator(".numbers tr.chosen th").inner_text() == "cabinets"
        page.get_by_role("tab", name="Flow paths").click()
        settle(page)
        assert page.get_by_label("input token").input_value() == "6"
        assert selection(page) == {"t": "6", "v": "paths"}
        page.locator(".numbers tbody tr").nth(2).click()
        settle(page)
        assert page.locator(".tok.chosen").first.inner_text() == "old"
        assert page.get_by_label("input token").input_value() == "2"
        page.get_by_role("listbox", name="query token").get_by_role("option", name="my").click()
        settle(page)
        assert page.get_by_role("listbox", name="query token").get_by_role("option", selected=True).inner_text() == "my"
        assert page.locator(".pair").inner_text() == "from my at L6"


def test_layers(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    whole = {m: getattr(trace, m)(query="all").values for m in METHODS}
    with opened(browser, sentence.path) as page:
        rows = as_json(page, "layers")
        for m in METHODS:
            np.testing.assert_allclose(column(rows, m).reshape(6, -1), whole[m][:, 0], rtol=1e-12, atol=1e-15)
            behind = table_of(page, f'[data-panel="layers"] figure[data-method="{m}"] table')
            assert behind[0] == ["layer", *trace.tokens] and [row[0] for row in behind[1:]] == [
                f"L{i}" for i in range(1, 7)
            ]
            check_told([row[1:] for row in behind[1:]], whole[m][:, 0])
        # of the drawing itself: the cell of the fourth token at L2
        box = page.locator('figure[data-method="rollout"] svg').first
        box.scroll_into_view_if_needed()
        cell = box.locator("rect").nth(1 + 1 * len(trace.tokens) + 3).bounding_box()
        page.mouse.move(cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
        first, second = page.locator(".tip div").all_inner_texts()
        assert first == "key · L2" and float(second.split()[-1]) == pytest.approx(whole["rollout"][1, 0, 3], rel=1e-12)
        page.mouse.down()
        page.mouse.up()
        settle(page)
        assert selection(page) == {"l": "2", "t": "3"}
        assert page.locator("output").inner_text() == "L2 of L6"
        for m in METHODS:
            page.get_by_role("group", name="method of the map").locator(f'[data-value="{m}"]').click()
            settle(page)
            rows = as_json(page, "map")
            np.testing.assert_allclose(column(rows, m).reshape(whole[m][1].shape), whole[m][1], rtol=1e-12, atol=1e-15)
            behind = table_of(page, ".whole table")
            assert [row[0] for row in behind[1:]] == list(trace.tokens)
            check_told([row[1:] for row in behind[1:]], whole[m][1])
        page.locator(".whole").scroll_into_view_if_needed()
        cell = page.locator(".whole svg").first.locator("rect").nth(1 + 5 * len(trace.tokens) + 1).bounding_box()
        page.mouse.click(cell["x"] + 3, cell["y"] + 3)
        settle(page)
        assert selection(page) == {"l": "2", "t": "1", "q": "5", "m": "flow"}
        page.get_by_label("shade each layer from its lowest to its highest").check()
        settle(page)
        first_cells = (
            page.locator('figure[data-method="flow"] svg')
            .first.locator("rect")
            .evaluate_all("all => all.map(r => r.getAttribute('fill'))")
        )
        drawn = np.array([lightness(c) for c in first_cells[1 : 1 + 6 * len(trace.tokens)]]).reshape(6, -1)
        values = view_of(trace, "flow", 5)
        share = (values - values.min(1, keepdims=True)) / np.ptp(values, 1)[:, None]
        np.testing.assert_allclose(drawn, 0.985 + (0.36 - 0.985) * share, atol=0.012)


def carried(graph: np.ndarray, query: int, end: int) -> list[np.ndarray]:
    """What rollout carries from a query along every edge: one matrix a step, lowest first."""
    mass = np.eye(graph.shape[-1])[query]
    found = []
    for matrix in graph[: end + 1][::-1]:
        found.append(mass[:, None] * matrix)
        mass = mass @ matrix
    return found[::-1]


def flows_told(text: str) -> list[tuple[str, float]]:
    """The list behind "takes from:" or "gives to:"."""
    return [(name, told(number)) for name, number in re.findall(r"(?:^|, )(.+?) (\S+)(?=, |$)", text)]


def test_graph(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    names, graph = trace.tokens, trace.graph().astype(float)

    def state(level: int, position: int) -> str:
        return f"{names[position]} at L{level}" if level else f"{names[position]} (input)"

    def check(lines: Sequence[str], amounts: Sequence[np.ndarray], level: int, position: int) -> None:
        most = max(a.max() for a in amounts)
        assert lines[0] == state(level, position)
        wanted = {}
        if level:
            wanted["takes from"] = [(state(level - 1, k), a) for k, a in enumerate(amounts[level - 1][position])]
        if level < len(amounts):
            wanted["gives to"] = [(state(level + 1, q), a) for q, a in enumerate(amounts[level][:, position])]
        assert [line.split(": ")[0] for line in lines[1:]] == list(wanted)
        for line, edges in zip(lines[1:], wanted.values(), strict=True):
            drawn = sorted((e for e in edges if e[1] >= 0.004 * most), key=lambda e: -e[1])[:4]
            if not drawn:
                assert line.endswith(": nothing drawn")
                continue
            found = flows_told(line.split(": ", 1)[1])
            assert [name for name, _ in found] == [name for name, _ in drawn]
            np.testing.assert_allclose([x for _, x in found], [x for _, x in drawn], atol=6e-4)

    with opened(browser, sentence.path) as page:
        told_line = page.locator('[data-view="graph"] .told')
        amounts = carried(graph, 0, 5)
        for level, position in ((6, 0), (4, 3), (1, 6), (0, 3), (6, 2)):
            page.locator(f'circle[data-level="{level}"][data-position="{position}"]').hover()
            lines = page.locator(".tip div").all_inner_texts()
            check(lines, amounts, level, position)
            assert told_line.inner_text() == " · ".join(lines)
        page.mouse.move(5, 5)
        # the same by keyboard, from the query's state on
        page.locator("svg.graph").focus()
        assert told_line.inner_text().startswith("[CLS] at L6")
        for key, level, position in (
            ("ArrowDown", 5, 0),
            ("ArrowRight", 5, 1),
            ("ArrowRight", 5, 2),
            ("ArrowDown", 4, 2),
            ("ArrowLeft", 4, 1),
            ("ArrowUp", 5, 1),
        ):
            page.keyboard.press(key)
            check(told_line.inner_text().split(" · "), amounts, level, position)
        page.keyboard.press("Enter")
        settle(page)
        assert selection(page) == {"q": "1", "l": "5"}
        assert page.evaluate("document.activeElement.tagName") == "svg"  # and the next arrow goes on from there
        amounts = carried(graph, 1, 4)
        page.keyboard.press("ArrowDown")
        check(told_line.inner_text().split(" · "), amounts, 4, 1)
        kinds = {"carried": amounts, "weights": list(graph[:5]), "attention": list(trace.graph(residual=0)[:5])}
        for kind, wanted in kinds.items():
            page.get_by_role("group", name="edges").locator(f'[data-value="{kind}"]').click()
            settle(page)
            rows = as_json(page, "graph")
            found = np.zeros((5, len(names), len(names)))
            for row in rows:
                assert row["from_level"] == row["to_level"] + 1
                found[row["to_level"], row["from"], row["to"]] = row["amount"]
            np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-6, atol=1e-12)
            edges = sorted((a for m in wanted for a in m.ravel()), reverse=True)
            check_told([row[2] for row in table_of(page, '[data-view="graph"] table')[1:]], edges[:20])
        page.locator('circle[data-level="2"][data-position="4"]').click()
        settle(page)
        page.locator('circle[data-level="0"][data-position="6"]').click()
        settle(page)
        assert selection(page) == {"q": "4", "l": "2", "t": "6", "g": "attention"}


def check_paths(
    page: Any,
    graph: Any,
    query: int,
    token: int,
    layer: int,
    names: Sequence[str],
    levels: Sequence[str],
    limits: Any = None,
) -> None:
    """What the view of paths says is what `max_flow` says. limits: the graph with what passes through unlimited."""
    end = len(graph) - 1
    found = af.max_flow(graph if limits is None else limits, query, token)
    value = page.locator("strong.value")
    assert float(value.get_attribute("data-value")) == pytest.approx(found.value, abs=1e-12)
    check_told(value.inner_text(), found.value)
    gap = re.search(r"the cut differs from it by (\S+)", value.get_attribute("title")).group(1)
    assert float(gap) <= 1e-12 and found.gap <= 1e-12
    assert (
        value.evaluate("v => v.parentNode.textContent")
        .split(" is the most that ")[1]
        .startswith(f"{names[query]} at L{layer} can get from {names[token]}. ")
    )
    rows = as_json(page, "flow")
    wanted = found.paths()
    np.testing.assert_allclose(column(rows, "flow").sum(), found.value, atol=1e-9)
    assert [row["path"] for row in rows] == [
        " > ".join(f"{names[p]}@{end + 1 - i}" for i, p in enumerate(path.positions)) for path in wanted
    ]
    np.testing.assert_allclose(column(rows, "flow"), [path.amount for path in wanted], atol=1e-12)
    along = [
        np.prod([graph[end - i][q, k] for i, (q, k) in enumerate(zip(p.positions, p.positions[1:], strict=False))])
        for p in wanted
    ]
    np.testing.assert_allclose(column(rows, "rollout"), along, rtol=1e-9, atol=1e-15)
    listed = table_of(page, ".paths table")[1:]
    check_told([row[1] for row in listed], [p.amount for p in wanted[:12]], digits=4)
    check_told([row[2] for row in listed], along[:12], digits=4)
    cut = table_of(page, ".cuts table")[1:]

    def name(edge: Any) -> str:
        return f"{names[edge.query]} at {levels[edge.layer]} → {names[edge.key]}" + (
            f" at {levels[edge.layer - 1]}" if edge.layer else ""
        )

    assert {row[0] for row in cut[:12]} == {name(edge) for edge in found.cut[:12]}
    check_told([row[1] for row in cut[:12]], [edge.capacity for edge in found.cut[:12]], digits=4)
    assert len(cut) == len(found.cut) if len(found.cut) <= 12 else cut[12][0] == f"and {len(found.cut) - 12} narrower"
    assert sum(told(row[1]) for row in cut) == pytest.approx(found.value, abs=1e-3)
    accent = page.evaluate("getComputedStyle(document.querySelector('article')).getPropertyValue('--accent')")
    drawn = page.locator('[data-view="paths"] path[data-cut]').evaluate_all(
        "all => all.map(p => p.getAttribute('stroke'))"
    )
    assert drawn and set(drawn) == {accent}


def test_flow_paths(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    levels = [f"L{i}" for i in range(1, 7)]
    with opened(browser, sentence.path, "#v=paths") as page:
        rollout = view_of(trace, "rollout")[-1]
        first = max(range(1, len(rollout)), key=lambda i: rollout[i])
        assert page.get_by_label("input token").input_value() == str(first)
        check_paths(page, trace.graph(), 0, first, 6, trace.tokens, levels)
        for query, layer, token in ((0, 6, 2), (4, 6, 2), (4, 3, 5), (6, 1, 5), (2, 2, 7)):
            page.locator(f'.query [data-q="{query}"]').click()
            page.get_by_label("layer", exact=True).fill(str(layer - 1))
            page.get_by_label("input token").select_option(str(token))
            settle(page)
            graph = trace.graph()[:layer]
            check_paths(page, graph, query, token, layer, trace.tokens, levels)
            beside = page.locator(".beside")
            sent = af.rollout(graph, queries=query, layers=-1)[0, 0, token]
            assert float(beside.get_attribute("data-rollout")) == pytest.approx(sent, rel=1e-6)


def test_heads(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    n = len(trace.tokens)

    def by_library(kind: str, query: int) -> np.ndarray:
        if kind == "raw":
            return np.stack([trace.weights[l][:, query].numpy() for l in range(6)])
        return np.stack([[trace.single_head(l, h, query=query).row() for h in range(8)] for l in range(6)])

    with opened(browser, sentence.path, "#v=heads") as page:
        for kind, query in (("rollout", 0), ("raw", 0), ("rollout", 4)):
            page.locator(f'.query [data-q="{query}"]').click()
            page.get_by_role("group", name="method of the heads").locator(f'[data-value="{kind}"]').click()
            settle(page)
            rows, wanted = as_json(page, "heads"), by_library(kind, query)
            assert [(r["layer"], r["head"]) for r in rows[::n]] == [
                (f"L{l}", h) for l in range(1, 7) for h in range(1, 9)
            ]
            np.testing.assert_allclose(column(rows, kind).reshape(6, 8, n), wanted, rtol=1e-6, atol=1e-9)
            behind = table_of(page, '[data-view="heads"] table')[1:]
            assert [row[1] for row in behind] == [trace.tokens[i] for i in wanted.reshape(48, n).argmax(1)]
            check_told([row[2] for row in behind], wanted.max(-1))
        strip = page.locator('[data-head="3.5"] rect').evaluate_all("all => all.map(r => r.getAttribute('fill'))")[:n]
        share = wanted[2, 4] / wanted.max()  # one scale for all heads
        np.testing.assert_allclose([lightness(c) for c in strip], 0.985 + (0.36 - 0.985) * share, atol=0.012)
        page.locator('[data-head="3.5"]').click()
        settle(page)
        assert page.locator(".detail h3").inner_text() == "L3 head 5"
        lines = page.locator(".detail .row").evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('.tok')].map(t => t.title))"
        )
        for line, kind in zip(lines, ("raw", "rollout"), strict=True):
            assert [title.rsplit(" ", 1)[0] for title in line] == list(trace.tokens)
            np.testing.assert_allclose([float(t.rsplit(" ", 1)[1]) for t in line], by_library(kind, 4)[2, 4], rtol=1e-6)
        written = (
            page.locator(".detail figure svg").first.locator("text").evaluate_all("all => all.map(t => t.textContent)")
        )
        numbers = [told(text) for text in written if re.fullmatch(r"\d\.\d\d", text)]
        np.testing.assert_allclose(numbers, trace.weights[2][4].numpy().ravel(), atol=0.0051)
        assert selection(page)["h"] == "3.5"


def test_words_and_special_tokens(browser: Any, pieces: Case) -> None:
    trace = pieces.trace
    words = trace.words()
    groups = [list(group) for group in words.word_groups]
    worth = {w.method: w.row() for w in pieces.worth}
    with opened(browser, pieces.path) as page:
        shown = rows_of(page)["raw"]["tokens"]
        assert [token["text"] for token in shown] == list(trace.tokens)
        assert [token["joined"] for token in shown] == [t.startswith("##") for t in trace.tokens]
        page.locator('.query [data-q="4"]').click()  # ##bel
        page.get_by_role("group", name="unit").get_by_role("button", name="words", exact=True).click()
        settle(page)
        assert page.locator('.query [aria-selected="true"]').inner_text() == "unbelievable"
        assert selection(page) == {"u": "words", "q": "2"}
        for special in (True, False):
            page.get_by_label("special tokens").set_checked(special)
            settle(page)
            rows = as_json(page, "compare")
            kept = [i for i, flag in enumerate(words.special) if special or not flag]
            assert [row["token"] for row in rows] == [words.tokens[i] for i in kept]
            wanted = {m: view_of(words, m, 2)[-1, kept] for m in METHODS}
            wanted |= {name: np.array([row[groups[i]].sum() for i in kept]) for name, row in worth.items()}
            for name, values in wanted.items():
                np.testing.assert_allclose(column(rows, name), values, rtol=1e-12, atol=1e-15)
            for m in METHODS:
                found = [float(title.split(": ")[1]) for title, _ in rows_of(page)[m]["rho"]]
                np.testing.assert_allclose(found, [spearman(wanted[m], wanted[name]) for name in worth], rtol=1e-12)
            layers = as_json(page, "layers")
            np.testing.assert_allclose(
                column(layers, "flow").reshape(3, -1), view_of(words, "flow", 2)[:, kept], rtol=1e-12
            )
            assert table_of(page, 'figure[data-method="raw"] table')[0] == ["layer", *(words.tokens[i] for i in kept)]
        page.get_by_role("tab", name="Heads").click()
        settle(page)
        n = len(words.tokens)
        merged = np.stack([af.merge(trace.weights[l].double().numpy(), groups) for l in range(3)])
        page.get_by_label("special tokens").check()
        settle(page)
        below = [words.graph()[:l] for l in range(3)]
        rolled = [
            [
                (0.5 * head[2] + 0.5 * np.eye(n)[2]) @ (af.rollout(below[l], layers=-1)[0] if l else np.eye(n))
                for head in merged[l]
            ]
            for l in range(3)
        ]
        found = column(as_json(page, "heads"), "rollout").reshape(3, 4, n)
        np.testing.assert_allclose(found, rolled, rtol=1e-6)
        page.get_by_role("tab", name="Flow paths").click()
        page.get_by_label("input token").select_option("3")
        settle(page)
        check_paths(page, words.graph(), 2, 3, 3, words.tokens, ["L1", "L2", "L3"])
        page.get_by_role("group", name="unit").get_by_role("button", name="subwords").click()
        settle(page)
        # back to the first subword of the word that was asked about
        assert page.locator('.query [aria-selected="true"]').inner_text() == "u"
        assert page.get_by_label("input token").input_value() == str(groups[3][0])


def test_receptive_field_of_a_decoder(browser: Any, decoder: Case) -> None:
    trace = decoder.trace
    last = len(trace.tokens) - 1
    with opened(browser, decoder.path) as page:
        assert page.locator('.query [aria-selected="true"]').inner_text() == trace.tokens[last]
        for field, query in (
            ("ratio", last),
            ("difference", last),
            ("layer", last),
            ("ratio", 3),
            ("layer", 3),
            ("difference", 3),
            ("", 3),
        ):
            page.get_by_label("receptive field").select_option(field)
            page.locator(f'.query [data-q="{query}"]').click()
            settle(page)
            rows = as_json(page, "layers")
            for m in ("rollout", "flow"):
                wanted = view_of(trace, m, query, receptive_field=field or None)
                np.testing.assert_allclose(column(rows, m).reshape(wanted.shape), wanted, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(column(rows, "raw").reshape(3, -1), view_of(trace, "raw", query), rtol=1e-6)
        assert "f" not in selection(page)
        choose(page, f="layer", v="paths", t=1)
        value = float(page.locator("strong.value").get_attribute("data-value"))
        assert value == pytest.approx(view_of(trace, "flow", receptive_field="layer")[-1, 1], abs=1e-6)
        choose(page, f="difference", q=3)
        assert page.get_by_label("receptive field").input_value() == "difference"
        negative = view_of(trace, "rollout", 3, receptive_field="difference")[-1] < 0
        hues = [rgb(token["back"])[0] > rgb(token["back"])[2] for token in rows_of(page)["rollout"]["tokens"]]
        assert negative.any() and hues == negative.tolist()  # what is below zero has the other hue


def test_source_and_target(browser: Any, translation: Case) -> None:
    trace = translation.trace
    levels = translation.page.document["levels"]
    with opened(browser, translation.path) as page:
        asked = page.locator(".query [role=option]").all_inner_texts()
        assert asked == list(trace.tokens[trace.first_query :])
        assert page.locator('.row[data-method="raw"] .part').all_inner_texts() == ["source", "target"]
        for query, layer in ((len(trace.tokens) - 1, 3), (trace.first_query, 2)):
            page.locator(f'.query [data-q="{query}"]').click()
            page.get_by_label("layer", exact=True).fill(str(layer - 1))
            settle(page)
            rows = as_json(page, "compare")
            for m in METHODS:
                np.testing.assert_allclose(column(rows, m), view_of(trace, m, query)[layer - 1], rtol=1e-6, atol=1e-9)
        for m in METHODS:
            choose(page, m=m)
            rows = as_json(page, "map")
            wanted = getattr(trace, m)(query="all", layer=-1).values[0]
            np.testing.assert_allclose(column(rows, m).reshape(wanted.shape), wanted, rtol=1e-6, atol=1e-9)
        for layer, query, token in ((3, 9, 2), (2, 7, 4), (1, 8, 6)):
            choose(page, v="paths", l=layer, q=query, t=token)
            graph = [m.astype(float) for m in trace.graph()[: trace.ends[layer - 1] + 1]]
            limits = [m.copy() for m in graph]
            for matrix, step in zip(limits, trace.steps, strict=False):
                for i in step.carried:
                    matrix[i, i] = np.inf
            assert af.max_flow(limits, query, token).value == pytest.approx(
                view_of(trace, "flow", query)[layer - 1, token], abs=1e-9
            )
            check_paths(page, graph, query, token, layer, trace.tokens, levels, limits)
        choose(page, v="graph")
        page.locator('circle[data-level="8"][data-position="9"]').hover()
        amounts = carried(trace.graph().astype(float), 9, 7)
        takes = page.locator(".tip div").nth(1).inner_text()
        np.testing.assert_allclose(
            [x for _, x in flows_told(takes.split(": ", 1)[1])], np.sort(amounts[7][9])[::-1][:4], atol=6e-4
        )
        choose(page, v="heads", q=8)
        found = column(as_json(page, "heads"), "raw").reshape(3, 4, -1)
        np.testing.assert_allclose(found, [trace.weights[l][:, 2].numpy() for l in range(3)], rtol=1e-6)


@pytest.fixture(scope="module")
def images(saved: Any) -> tuple[Case, Case]:
    """A ViT with the image it saw, and a Swin without."""
    pytest.importorskip("PIL.Image", reason="pillow is not installed")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    layers = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    vit = af.wrap(hf("ViTModel", image_size=32, patch_size=8, **layers)(), processor)
    shape = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    }
    swin = af.wrap(hf("SwinModel", **shape)(), processor)
    merging = swin.trace(pixels)
    return saved("vit", vit.explain(pixels), vit.trace(pixels)), saved("swin", of_trace(merging), merging)


def patch(page: Any, method: str, place: int, columns: int, rows: int) -> tuple[float, float]:
    """Where on the screen a patch of a row's image is."""
    box = page.locator(f'.row[data-method="{method}"] canvas.over').bounding_box()
    row, column = divmod(place, columns)
    return box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows


def test_patches_of_an_image(browser: Any, images: tuple[Case, Case], tmp_path: Path) -> None:
    vit, swin = images
    trace = vit.trace
    with opened(browser, vit.path) as page:
        page.get_by_role("listbox", name="query token").get_by_role("option", name="1,2").click()
        settle(page)
        assert selection(page) == {"q": "7"}
        rows = as_json(page, "compare")
        for m in METHODS:
            np.testing.assert_allclose(column(rows, m), view_of(trace, m, 7)[-1], rtol=1e-6)
        page.locator('.row[data-method="flow"]').scroll_into_view_if_needed()
        page.mouse.move(*patch(page, "flow", 9, 4, 4))
        lines = page.locator(".tip div").all_inner_texts()
        assert lines[0] == "2,1 · position 10"
        assert float(lines[3].split()[2]) == pytest.approx(view_of(trace, "flow", 7)[-1, 10], rel=1e-6)
        page.mouse.click(*patch(page, "flow", 9, 4, 4))
        settle(page)
        assert selection(page) == {"q": "7", "t": "10"}
        seen = page.locator(".patches").evaluate("p => getComputedStyle(p).backgroundImage")
        assert seen.startswith('url("data:image/png')
        check_drawn(page.screenshot(full_page=True), tmp_path / "vit.png", 1200, 500)
        page.locator(".query").focus()
        page.keyboard.press("ArrowRight")
        settle(page)
        active = page.locator(".query").get_attribute("aria-activedescendant")
        assert page.locator(f'[id="{active}"]').get_attribute("data-q") == "8"
        named = page.locator("canvas.over").evaluate_all("all => all.map(c => c.getAttribute('aria-label'))")
        assert all(named) and len(set(named)) == 3
    trace = swin.trace
    with opened(browser, swin.path) as page:
        assert page.locator(".query [role=option]").count() == 64
        page.locator('.query [data-q="5"]').click()
        settle(page)
        rows = as_json(page, "compare")
        for m in METHODS:
            values = view_of(trace, m, 5, layer=3)[-1]
            np.testing.assert_allclose(column(rows, m), values, rtol=1e-6, atol=1e-9)
            share = (values - values.min()) / np.ptp(values)
            drawn = page.locator(f'.row[data-method="{m}"] canvas.over').evaluate(
                """c => {
                    const {data} = c.getContext("2d").getImageData(0, 0, c.width, c.height);
                    const at = i => 4 * (Math.floor((Math.floor(i / 16) + 0.5) * c.height / 16) * c.width + Math.floor((i % 16 + 0.5) * c.width / 16));
                    return Array.from({length: 256}, (_, i) => [...data.subarray(at(i), at(i) + 3)].join(" "));
                }"""
            )
            np.testing.assert_allclose([lightness(c) for c in drawn], 0.985 + (0.36 - 0.985) * share, atol=0.012)
        choose(page, q=5, v="graph")
        page.locator('circle[data-level="5"][data-position="5"]').hover()
        assert page.locator(".tip div").first.inner_text() == "5 at L4"
        graph = [m.astype(float) for m in trace.graph()]
        choose(page, q=5, v="paths", t=40)
        value = page.locator("strong.value")
        assert float(value.get_attribute("data-value")) == pytest.approx(af.max_flow(graph, 5, 40).value, abs=1e-12)
        choose(page, q=5, v="heads")
        assert "Single heads are not held by this page" in page.locator('[data-view="heads"] .why').inner_text()


def test_page_of_arrays(browser: Any, saved: Any) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(5), size=(3, 2, 5))
    case = saved("arrays", of_weights(weights, list("abcde"), query=3, residual=0.3))
    A = af.attention_graph(weights.astype(np.float32), residual=0.3)
    with opened(browser, case.path, "#v=paths&t=1") as page:
        assert page.locator(".told-model").inner_text().startswith("attention weights · captured given as arrays")
        assert "this page was made of its weights of attention alone" in page.locator(".missing").inner_text()
        rows = as_json(page, "compare")
        wanted = {
            "raw": weights.mean(1)[-1, 3], "rollout": af.rollout(A, 3, layers=-1)[0, 0], "flow": af.flow(A, 3, layers=-1)[0, 0],
        }  # fmt: skip
        for m, values in wanted.items():
            np.testing.assert_allclose(column(rows, m), values, rtol=1e-6)
        found = float(page.locator("strong.value").get_attribute("data-value"))
        assert found == pytest.approx(af.max_flow(A, 3, 1).value, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_page_of_a_result_from_a_file(browser: Any, sentence: Case, saved: Any, tmp_path: Path, method: str) -> None:
    result = getattr(sentence.trace, method)(query=[3, 6])
    result.save(tmp_path / "result.json")
    case = saved(f"result-{method}", of_result(TokenAttention.load(tmp_path / "result.json")))
    with opened(browser, case.path) as page:
        assert list(rows_of(page)) == [method] and rows_of(page)[method]["why"] == ""
        assert page.locator(".query [role=option]").all_inner_texts() == ["key", "cabinets"]
        assert f"This page holds the values of {method} alone" in page.locator(".left-out").inner_text()
        for q in (0, 1):
            page.locator(f'.query [data-q="{q}"]').click()
            settle(page)
            assert column(as_json(page, "layers"), method).reshape(6, -1).tolist() == result.values[:, q].tolist()
        assert column(as_json(page, "map"), method).reshape(2, -1).tolist() == result.values[-1].tolist()
        assert page.get_by_role("tab").count() == 0
        page.locator("h2").first.click()
        page.keyboard.press("2")
        page.keyboard.press("ArrowDown")
        settle(page)
        assert page.locator("output").inner_text() == "L5 of L6"


def test_a_result_opens_where_it_is(browser: Any, sentence: Case, saved: Any) -> None:
    case = saved("opened", of_result(sentence.trace.flow(query="key", layer=[1, 3]).without_special()))
    with opened(browser, case.path) as page:
        assert page.locator('.query [aria-selected="true"]').inner_text() == "key"
        assert page.locator("output").inner_text() == "L4 of L6"
        assert not page.get_by_label("special tokens").is_checked()
        assert (
            page.get_by_role("group", name="method of the map").locator('[aria-pressed="true"]').inner_text() == "flow"
        )
        assert page.evaluate("location.hash") == ""


HOSTILE = [
    "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>", "<!--", "]]>", "\"'&amp;", "\u2028", "שלום", "👩‍👩‍👧‍👦",
    "W" * 300, " ", "\n", "\u200b", "\u00a0", "\u3000", "\ufeff", "", "\u202eabc", "=1+1", '@SUM(A1,"b")\nc', "\ufffe", "\x00", "\u00ad", "\ud800",
    "javascript:window.pwned=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(saved: Any) -> Case:
    n = len(HOSTILE)
    weights = np.random.default_rng(0).dirichlet(np.ones(n), size=(2, 2, n))
    return saved("hostile", of_weights(weights, HOSTILE))


def check_clean(page: Any) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert page.evaluate("document.scripts.length") == 2  # the document and the script


def test_a_hostile_text_is_shown_as_text(browser: Any, hostile: Case, tmp_path: Path) -> None:
    with opened(browser, hostile.path) as page:
        assert page.title().startswith("</script><script>window.pwned=1</script> <img")
        policy = page.locator('meta[http-equiv="Content-Security-Policy"]').get_attribute("content")
        assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "unsafe-inline'; img" in policy
        assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]+=*';", policy)
        shown = rows_of(page)["raw"]["tokens"]
        for token, found in zip(HOSTILE, shown, strict=True):
            plain = (token.isprintable() and token.strip() != "") or token == "👩‍👩‍👧‍👦"
            assert not plain or found["text"] == token
            seen = [
                c for c in found["text"] if unicodedata.category(c) not in ("Cf", "Cc", "Cn", "Cs") and not c.isspace()
            ]
            assert seen, ascii(token)  # nothing looks like nothing
        for view in ("graph", "paths", "heads"):
            page.locator(f"#tab-{view}").click()
            settle(page)
            assert "\u202e" not in text_of(page)  # it would turn round what stands after it
            page.locator('.row[data-method="flow"] .tok').nth(1).hover()
            assert page.locator(".tip div").first.inner_text().startswith("<img src=x onerror")
            assert page.evaluate("document.documentElement.scrollWidth") <= 1200
        for _ in HOSTILE:
            page.keyboard.press("ArrowRight")
        settle(page)
        check_clean(page)
        check_drawn(page.screenshot(full_page=True), tmp_path / "hostile.png", 1200, 100)


PANELS = {"graph": ("compare", "layers", "map", "graph"), "paths": ("flow",), "heads": ("heads",)}


@pytest.mark.parametrize("which", ["sentence", "hostile"])
def test_exports(browser: Any, which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case: Case = request.getfixturevalue(which)
    figures = {}
    with opened(browser, case.path, "#theme=dark&q=3") as page:
        for view, names in PANELS.items():
            page.locator(f"#tab-{view}").click()
            settle(page)
            for name in names:
                page.wait_for_timeout(400)  # a browser stops a page that saves more than ten files a second
                figures[name] = exported(page, name, "svg")
                root = ElementTree.fromstring(figures[name])
                if which == "sentence" or name == "compare":
                    pixels = exported(page, name, "png")
                    check_drawn(pixels, tmp_path / f"{name}.png")
                    assert picture(pixels).shape[1] == round(3 * float(root.get("width")))
                rows = list(csv.reader(io.StringIO(exported(page, name, "csv").decode("utf-8"), newline="")))
                held = as_json(page, name)
                assert [list(row) for row in held[:1]] == [rows[0]] and len(rows) == len(held) + 1
                for line, row in zip(rows[1:], held, strict=True):
                    for text, value in zip(line, row.values(), strict=True):
                        if isinstance(value, str):
                            value = (
                                value.encode("utf-8", "surrogatepass")
                                .decode("utf-8", "replace")
                                .replace("\ufffd\ufffd\ufffd", "\ufffd")
                            )
                            assert text == (f"'{value}" if re.match(r"[=+\-@\t\r]", value) else value)
                            assert not re.match(r"[=+\-@\t\r]", text)
                        elif isinstance(value, bool):
                            assert text == str(value).lower()
                        else:
                            assert float(text) == value
        tokens = case.page.document["units"]["subwords"]["tokens"]
        page.locator("#tab-graph").click()
        settle(page)
        assert [row["token"] for row in as_json(page, "compare")] == tokens
        check_clean(page)
    context = browser.new_context(viewport={"width": 800, "height": 600})
    alone, said = context.new_page(), []
    alone.on("pageerror", lambda error: said.append(str(error)))
    alone.on("console", lambda message: said.append(message.text))
    for name, data in figures.items():
        root = ElementTree.fromstring(data)
        for node in root.iter():
            assert node.tag.rpartition("}")[2] in {
                "svg",
                "g",
                "rect",
                "path",
                "line",
                "circle",
                "text",
                "title",
                "image",
            }
            for attribute, value in node.attrib.items():
                attribute = attribute.rpartition("}")[2]
                assert attribute not in ("class", "tabindex") and not attribute.startswith("on")
                assert attribute != "href" or value.startswith("data:image/png;base64,")
                assert "url(" not in value and "var(" not in value
        texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
        if which == "sentence" and name != "heads":
            assert set(SENTENCE.split()) <= set(texts)
        (tmp_path / f"{name}.svg").write_bytes(data)
        alone.goto((tmp_path / f"{name}.svg").as_uri())
        assert alone.locator("svg").first.get_attribute("aria-label") and alone.locator("parsererror").count() == 0
        check_drawn(alone.screenshot(), tmp_path / f"{name}-alone.png", 800)
        assert said == [] and alone.evaluate("window.pwned") is None
    context.close()


def test_figures_on_paper_are_light_and_hold_what_is_selected(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, "#theme=dark&q=3&l=2") as page:
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"
        root = ElementTree.fromstring(exported(page, "compare", "svg"))
        assert root.find("{http://www.w3.org/2000/svg}rect").get("fill") == "#ffffff"
        assert root.get("aria-label") == f"{SENTENCE} · query key · L2"
        texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [t for t in texts if t in sentence.trace.tokens] == list(sentence.trace.tokens) * 5
        rects = [node.get("fill") for node in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
        values = view_of(sentence.trace, "raw", 3)[1]
        share = (values - values.min()) / np.ptp(values)
        np.testing.assert_allclose(
            [lightness(c) for c in rects[: len(values)]], 0.985 + (0.36 - 0.985) * share, atol=0.012
        )


def test_every_view_is_drawn(browser: Any, sentence: Case, tmp_path: Path) -> None:
    shots = {}
    for scheme in ("light", "dark"):
        with opened(browser, sentence.path, color_scheme=scheme) as page:
            for view, name in (("graph", "Graph"), ("paths", "Flow paths"), ("heads", "Heads"))[
                : 3 if scheme == "light" else 1
            ]:
                page.get_by_role("tab", name=name).click()
                settle(page)
                shots[scheme, view] = page.screenshot(full_page=True)
                check_drawn(shots[scheme, view], tmp_path / f"{scheme}-{view}.png", 1200, 100)
                if scheme == "light":
                    check_drawn(page.locator(".panel").last.screenshot(), tmp_path / f"panel-{view}.png")
    assert len(set(shots.values())) == 4
    assert picture(shots["dark", "graph"]).mean() < 90 < 200 < picture(shots["light", "graph"]).mean()


def test_one_selection_in_the_address(browser: Any, sentence: Case, pieces: Case) -> None:
    with opened(browser, pieces.path) as page:
        assert page.evaluate("location.hash") == ""
        page.locator('.query [data-q="8"]').click()
        page.get_by_label("layer", exact=True).fill("1")
        page.locator('.row[data-method="raw"] .tok[data-i="9"]').click()
        page.get_by_label("special tokens").uncheck()
        page.get_by_label("shade each row").uncheck()
        page.get_by_label("shade each layer").check()
        page.get_by_role("columnheader", name="flow").get_by_role("button").click()
        page.get_by_role("group", name="method of the map").get_by_role("button", name="flow").click()
        page.get_by_role("group", name="edges").get_by_role("button", name="attention alone").click()
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
            "cs": "0",
            "ls": "1",
            "o": "flow.down",
            "m": "flow",
            "g": "attention",
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
        choose(page)
        assert page.evaluate("location.hash") == ""
    with opened(browser, sentence.path) as page:
        # back to what it opened with, by hand: nothing is left in the address
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


NONSENSE = [
    "q=999&l=-3&u=xyz&t=abc&h=9.99", "v=xyz&g=xyz&m=xyz&k=xyz&o=xyz.xyz&f=xyz&theme=xyz", "m=__proto__&u=__proto__&v=__proto__&f=__proto__&g=__proto__",
    "u=constructor", "v=constructor", "m=constructor&g=toString&f=valueOf", "q=-7&l=2.5&t=-9&s=zz&cs=4&ls=-1", "h=1&o=raw", "h=0.0&o=.",
    "t=1e3&q=1e999&l=Infinity", "%E0%A4%A&q=%", "constructor=1&__proto__=2",
]  # fmt: skip


def test_an_address_from_elsewhere_breaks_nothing(browser: Any, sentence: Case, decoder: Case) -> None:
    for case, fragments in ((sentence, NONSENSE), (decoder, NONSENSE[1:3] + NONSENSE[5:6])):
        with opened(browser, case.path) as page:
            opening = text_of(page)

            def check(fragment: str, opening: str = opening, page: Any = page) -> None:
                settle(page)
                assert page.get_by_role("tab", selected=True).count() == 1, fragment
                assert page.locator('[role=tab][tabindex="0"]').count() == 1, fragment
                assert page.locator(".choice").count() == page.locator('.choice [aria-pressed="true"]').count(), (
                    fragment
                )
                text = text_of(page)
                assert "undefined" not in text and "NaN" not in text and "xyz" not in text, fragment
                if not re.search(r"[qlsot]=|cs=|ls=", fragment):
                    assert text == opening, fragment

            for i, fragment in enumerate(fragments):
                page.goto(
                    f"{case.path.as_uri()}#{fragment}"
                )  # only the fragment is new: the page stays and hears of it
                page.wait_for_timeout(20)
                check(fragment)
                if 2 <= i < 6 or case is decoder:  # and again from the start
                    page.reload()
                    check(fragment)
                if i < 2:
                    for view in ("graph", "paths", "heads"):
                        page.locator(f"#tab-{view}").click()
                        settle(page)
                        assert page.locator(f'section[data-view="{view}"] svg').count() > 0, fragment


def focused(page: Any) -> str:
    return page.evaluate(
        """() => { const e = document.activeElement; return e === document.body ? "" : [e.tagName.toLowerCase(), e.id, e.dataset.sort, e.dataset.value, e.dataset.kind,
            e.getAttribute("aria-label"), e.tagName === "BUTTON" ? e.textContent : ""].filter(Boolean).join(" "); }"""
    )


def test_keys(browser: Any, pieces: Case) -> None:
    with opened(browser, pieces.path) as page:

        def pressed(*keys: str) -> dict[str, str]:
            for key in keys:
                page.keyboard.press(key)
            settle(page)
            return selection(page)

        # from the first moment, without a click
        assert pressed("2", "ArrowDown") == {"v": "paths", "l": "2"}
        assert pressed("3", "ArrowDown", "ArrowDown") == {"v": "heads", "l": "1"}
        assert pressed("1", "ArrowUp", "ArrowUp", "ArrowUp") == {}
        start = int(pressed("ArrowLeft")["t"])
        assert page.locator('.row[data-method="raw"] .tok.chosen').get_attribute("data-i") == str(start)
        assert pressed("ArrowRight") == {"t": str(start + 1)}
        live = page.locator(".sr[aria-live]").inner_text()
        assert live.startswith(f"{pieces.trace.tokens[start + 1]}, L3, rollout ")
        check_told(live.rsplit(" ", 1)[1], view_of(pieces.trace, "rollout")[-1, start + 1])
        assert pressed("q") == {"t": str(start + 1), "q": str(start + 1)}
        assert pressed("w")["u"] == "words"
        assert "u" not in pressed("w")
        assert pressed("s")["s"] == "0" and page.locator('.row[data-method="raw"] .tok').count() == 10
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        assert pressed("ArrowLeft")["t"] == "1"  # special tokens are stepped over
        assert "s" not in pressed("s")
        assert pressed("d")["theme"] == "dark"
        assert page.evaluate("document.querySelector('#attnflow').dataset.theme") == "dark"
        page.keyboard.press("d")
        page.keyboard.press("?")
        help_box = page.get_by_role("dialog")
        assert help_box.is_visible() and "previous or next token" in help_box.inner_text()
        before = selection(page)
        page.keyboard.press("2")  # not while the list of keys is open
        assert selection(page) == before
        page.keyboard.press("Escape")
        assert help_box.is_hidden()
        # keys belong to the control that has them
        page.get_by_label("layer", exact=True).focus()
        assert pressed("ArrowLeft")["l"] == "2"
        page.locator(".query").focus()
        assert "q" not in pressed("Home")  # [CLS], which it opened with
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
        assert download.value.suggested_filename == "attnflow-heads.svg"
        page.wait_for_function("document.querySelector('.sr[aria-live]').textContent === 'saved heads.svg'")
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
            for _ in range(wanted + 3):
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
    """Controls and pictures that a screen reader could not name, from the browser's own tree."""
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
                # a canvas is either named or decoration, and pictures have a table behind them
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
    """Every visible text of the page with its colour and what is behind it."""
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
    """Every shade there is, of both hues."""
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
            # of 256 stops some neighbours are one colour of eight bits
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
        page.emulate_media(color_scheme=other)  # while it is open
        page.wait_for_function("theme => document.querySelector('#attnflow').dataset.theme === theme", arg=other)


def test_three_pages_in_a_notebook(browser: Any, sentence: Case, decoder: Case, hostile: Case, tmp_path: Path) -> None:
    frames = "".join(case.page._repr_html_() for case in (sentence, decoder, hostile))
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{frames}", encoding="utf-8")
    assert frames.count("<iframe") == 3 and 'sandbox="allow-scripts allow-downloads"' in frames
    with opened(browser, tmp_path / "notebook.html") as page:
        first, second, third = page.frames[1:]
        for frame in (first, second, third):
            settle(frame)
            assert frame.evaluate("origin") == "null"
        before = [text_of(frame) for frame in (second, third)]
        first.locator('.row[data-method="raw"] .tok[data-i="3"]').click()
        page.keyboard.press("q")
        first.locator("#tab-paths").click()
        settle(first)
        assert first.locator(".pair").inner_text() == "from key at L6"
        assert [text_of(frame) for frame in (second, third)] == before
        second.locator("#tab-heads").click()
        settle(second)
        assert first.get_by_role("tab", selected=True).inner_text() == "Flow paths"
        third.locator("details.export summary").first.click()
        with page.expect_download() as download:
            third.locator('[data-name="compare"] [data-kind="csv"]').click()
        assert download.value.suggested_filename == "attnflow-compare.csv"
        assert page.evaluate("window.pwned") is None and third.evaluate("window.pwned") is None


def attention(layers: int, heads: int, n: int) -> np.ndarray:
    weights = np.random.default_rng(n).uniform(0.1, 1, (layers, heads, n, n)).astype(np.float32)
    return weights / weights.sum(-1, keepdims=True)


def test_flow_of_the_query_alone(browser: Any, saved: Any) -> None:
    weights = attention(12, 2, 140)
    case = saved("query-alone", of_weights(weights, query=5))
    A = af.attention_graph(weights)
    with opened(browser, case.path) as page:
        left_out = page.locator(".left-out")
        left_out.locator("summary").click()
        assert (
            "Flow was computed for the query '5' alone: for every pair it would be 235,200 maximum flows."
            in left_out.inner_text()
        )
        np.testing.assert_allclose(column(as_json(page, "compare"), "flow"), af.flow(A, 5, layers=-1)[0, 0], rtol=1e-6)
        assert page.locator(".numbers tbody tr").count() == 100
        page.get_by_role("button", name="show all 140 (100 are shown)").click()
        assert page.locator(".numbers tbody tr").count() == 140
        page.locator('.query [data-q="9"]').click()
        settle(page)
        shown = rows_of(page)
        assert shown["flow"]["why"] == "flow was computed for 5 alone: show 5" and shown["rollout"]["why"] == ""
        rows = as_json(page, "compare")
        assert "flow" not in rows[0]
        np.testing.assert_allclose(column(rows, "rollout"), af.rollout(A, 9, layers=-1)[0, 0], rtol=1e-6)
        choose(page, q=9, m="flow", v="heads")
        assert page.locator(".whole .why").is_visible()
        assert "Single heads are held for 5 alone" in page.locator('[data-view="heads"] .why').inner_text()
        choose(page, q=9, t=3, l=2, v="paths")  # one flow is solved here
        value = float(page.locator("strong.value").get_attribute("data-value"))
        assert value == pytest.approx(af.max_flow(A[:2], 9, 3).value, abs=1e-6)
        page.get_by_role("button", name="show 5").click()
        settle(page)
        assert rows_of(page)["flow"]["why"] == "" and page.locator('.query [aria-selected="true"]').inner_text() == "5"
        check_overview(page)


def check_overview(page: Any) -> None:
    """Rows of a long text scroll together, and the strip above them leads to a place."""
    page.locator('.row[data-method="rollout"] .overview').click(position={"x": 600, "y": 4})
    page.wait_for_function(
        """() => {
            const [first, ...others] = [...document.querySelectorAll(".rows .text")].map(text => text.scrollTop);
            return first > 0 && others.length === 2 && others.every(top => top === first);
        }"""
    )


def test_rounded_weights(browser: Any, saved: Any) -> None:
    weights = attention(12, 2, 300)
    case = saved("rounded", of_weights(weights))
    A = af.attention_graph(weights)
    with opened(browser, case.path) as page:
        assert "The weights are rounded to eight bits" in page.locator(".left-out").text_content()
        rows = as_json(page, "compare")
        for m, values in (
            ("raw", weights[-1].mean(0)[0]),
            ("rollout", af.rollout(A, 0, layers=-1)[0, 0]),
            ("flow", af.flow(A, 0, layers=-1)[0, 0]),
        ):
            np.testing.assert_allclose(column(rows, m), values, rtol=2e-6)
            assert rows_of(page)[m]["small"] == ""
        page.locator('.query [data-q="7"]').click()
        settle(page)
        rows = as_json(page, "compare")
        for m, values in (("raw", weights[-1].mean(0)[7]), ("rollout", af.rollout(A, 7, layers=-1)[0, 0])):
            np.testing.assert_allclose(column(rows, m), values, rtol=0.04)
            assert rows_of(page)[m]["small"] == "≈"
        assert "raw attention ≈" in page.locator('[data-panel="layers"] svg text').all_text_contents()
        assert rows_of(page)["flow"]["why"] == "flow was computed for 0 alone: show 0"
        choose(page, q=7, l=2, t=4, v="paths")
        value = page.locator("strong.value")
        assert value.inner_text().startswith("≈ ")
        assert float(value.get_attribute("data-value")) == pytest.approx(af.max_flow(A[:2], 7, 4).value, rel=0.04)
        choose(page, q=7, v="graph")
        assert re.fullmatch(
            r"the [\d,]+ strongest of [\d,]+ edges", page.locator('[data-view="graph"] .hint').first.inner_text()
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_weights_left_out(browser: Any, saved: Any, tmp_path: Path) -> None:
    weights = attention(12, 1, 560)
    case = saved("left-out", of_weights(weights))
    with opened(browser, case.path) as page:
        assert "The 3,763,200 weights of this text are left out" in page.locator(".left-out").text_content()
        rows = as_json(page, "compare")
        np.testing.assert_allclose(column(rows, "raw"), weights[-1, 0, 0], rtol=2e-6)
        reasons = {
            "graph": "The graph needs the weights, which this page does not hold.",
            "paths": "Flow paths need the weights, which this page does not hold.",
        }
        for query in (0, 3):
            page.locator(f'.query [data-q="{query}"]').click()
            for view in ("graph", "paths", "heads"):
                page.locator(f"#tab-{view}").click()
                settle(page)
                if view in reasons:
                    assert reasons[view] in page.locator(".viewbox").inner_text()
            check_drawn(page.screenshot(), tmp_path / f"left-out-{query}.png", 1200)
            assert "Single heads are held for 0 alone" in page.locator(".viewbox").inner_text() or query == 0
            assert (
                page.locator(".whole .why").inner_text()
                == "The map of a layer needs the weights, which this page does not hold."
            )
        shown = rows_of(page)
        assert {m: shown[m]["why"] for m in shown} == {
            "raw": "raw attention was computed for 0 alone: show 0", "rollout": "rollout was computed for 0 alone: show 0",
            "flow": "flow was computed for 0 alone: show 0",
        }  # fmt: skip
        # even with nothing to show, what is saved is a file that opens
        for name in ("compare", "layers", "map", "heads"):
            ElementTree.fromstring(exported(page, name, "svg"))
            assert exported(page, name, "csv").decode().count("\r\n") >= 1
        page.locator("#tab-graph").click()
        settle(page)
        ElementTree.fromstring(exported(page, "graph", "svg"))
        assert as_json(page, "graph") == []
        page.get_by_role("button", name="show 0").first.click()
        settle(page)
        assert rows_of(page)["flow"]["why"] == ""


def test_a_page_of_512_tokens_is_a_small_file() -> None:
    page = of_weights(attention(12, 2, 512))
    assert len(page.html().encode()) <= 5_000_000 and page.document["weights"]["type"] == "rounded"
    assert document.EXACT < 12 * 512 * 512 <= document.ROUNDED


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
