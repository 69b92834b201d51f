"""Inputs of a page: decoders, translations, images, arrays, results, and texts that are long or hostile."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.result import TokenAttention
from attnflow.view import document
from attnflow.view.page import of_result, of_weights
from helpers.browser import exported, opened, screenshot, settle
from helpers.page_cases import HOSTILE, attention
from helpers.page_reading import (
    METHODS,
    Case,
    as_json,
    carried,
    check_clean,
    check_drawn,
    check_paths,
    choose,
    column,
    flows_shown,
    lightness,
    rows_of,
    selection,
    text_of,
    view_of,
)


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
        for flow in translation.page.document["flows"][::4]:
            layer, query, token = flow["layer"] + 1, flow["query"], flow["token"]
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
        choose(page, v="graph", q=9)
        page.locator('circle[data-level="8"][data-position="9"]').hover()
        amounts = carried(trace.graph().astype(float), 9, 7)
        takes = page.locator(".tip div").nth(1).inner_text()
        np.testing.assert_allclose(
            [x for _, x in flows_shown(takes.split(": ", 1)[1])], np.sort(amounts[7][9])[::-1][:4], atol=6e-4
        )
        choose(page, v="heads", q=8)
        found = column(as_json(page, "heads"), "raw").reshape(3, 4, -1)
        np.testing.assert_allclose(found, [trace.weights[l][:, 2].numpy() for l in range(3)], rtol=1e-6)


def patch(page: Any, method: str, place: int, columns: int, rows: int) -> tuple[float, float]:
    """Return where on the screen a patch of a row's image is."""
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
        check_drawn(screenshot(page, full_page=True), tmp_path / "vit.png", 1200, 500)
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
        own = swin.page.document["flows"][0]
        choose(page, q=own["query"], v="paths", t=own["token"])
        value, solved = page.locator("strong.value"), af.max_flow(graph, own["query"], own["token"])
        assert float(value.get_attribute("data-value")) == pytest.approx(solved.value, abs=1e-12)
        choose(page, q=5, v="heads")
        assert "This page does not include single heads" in page.locator('[data-view="heads"] .why').inner_text()


def test_page_of_arrays(browser: Any, saved: Any) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(5), size=(3, 2, 5))
    case = saved("arrays", of_weights(weights, list("abcde"), query=3, residual=0.3))
    A = af.attention_graph(weights.astype(np.float32), residual=0.3)
    with opened(browser, case.path, "#v=paths&t=1") as page:
        assert page.locator(".model-name").inner_text() == "attention weights"
        assert page.locator(".settings").inner_text().startswith("captured given as arrays")
        assert "this page was made from attention weights only" in page.locator(".missing").inner_text()
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
        assert f"This page shows only the values of {method}" in page.locator(".left-out").inner_text()
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
    with opened(browser, case.path, details=False) as page:
        assert page.evaluate("location.hash") == ""
        assert page.get_by_label("method", exact=True).input_value() == "flow"
        page.locator(".everything summary").first.click()
        settle(page)
        assert page.locator('.query [aria-selected="true"]').inner_text() == "key"
        assert page.locator("output").inner_text() == "L4 of L6"
        assert not page.get_by_label("special tokens").is_checked()
        assert (
            page.get_by_role("group", name="method of the map").locator('[aria-pressed="true"]').inner_text() == "flow"
        )
        assert selection(page) == {}


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
            assert seen, ascii(token)  # no token is invisible
        for view in ("graph", "paths", "heads"):
            page.locator(f"#tab-{view}").click()
            settle(page)
            assert "\u202e" not in text_of(page)  # it would reverse the text after it
            page.locator('.row[data-method="flow"] .tok').nth(1).hover()
            assert page.locator(".tip div").first.inner_text().startswith("<img src=x onerror")
            assert page.evaluate("document.documentElement.scrollWidth") <= 1200
        for _ in HOSTILE:
            page.keyboard.press("ArrowRight")
        settle(page)
        check_clean(page)
        check_drawn(screenshot(page, full_page=True), tmp_path / "hostile.png", 1200, 100)


def test_three_pages_in_a_notebook(browser: Any, sentence: Case, decoder: Case, hostile: Case, tmp_path: Path) -> None:
    frames = "".join(case.page._repr_html_() for case in (sentence, decoder, hostile))
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{frames}", encoding="utf-8")
    assert frames.count("<iframe") == 3 and 'sandbox="allow-scripts allow-downloads"' in frames
    with opened(browser, tmp_path / "notebook.html") as page:
        first, second, third = page.frames[1:]
        for frame in (first, second, third):
            settle(frame)
            assert frame.evaluate("origin") == "null"
            frame.locator(".everything > summary").click()
            frame.wait_for_selector('[data-panel="compare"] .row[data-method]')  # the frame may hear of the click later
            settle(frame)
        before = [text_of(frame) for frame in (second, third)]
        first.locator('.row[data-method="raw"] .tok[data-i="3"]').click()
        settle(first)
        first.wait_for_function(
            "() => document.hasFocus()"
        )  # another process may draw the frame, and hears of it later
        page.keyboard.press("q")
        settle(first)
        first.locator("#tab-paths").click()
        settle(first)
        assert first.locator(".pair").inner_text() == "between key at L6"
        assert [text_of(frame) for frame in (second, third)] == before
        second.locator("#tab-heads").click()
        settle(second)
        assert first.get_by_role("tab", selected=True).inner_text() == "Flow paths"
        third.locator('details.export[data-name="compare"] summary').click()
        with page.expect_download() as download:
            third.locator('[data-name="compare"] [data-kind="csv"]').click()
        assert download.value.suggested_filename == "attnflow-compare.csv"
        assert page.evaluate("window.pwned") is None and third.evaluate("window.pwned") is None


def test_flow_of_the_query_alone(browser: Any, saved: Any) -> None:
    weights = attention(12, 2, 140)
    case = saved("query-alone", of_weights(weights, query=5))
    A = af.attention_graph(weights)
    with opened(browser, case.path) as page:
        left_out = page.locator(".left-out")
        left_out.locator("summary").click()
        assert (
            "Flow was computed only for the query '5': all pairs would take 235,200 maximum flows."
            in left_out.inner_text()
        )
        np.testing.assert_allclose(column(as_json(page, "compare"), "flow"), af.flow(A, 5, layers=-1)[0, 0], rtol=1e-6)
        assert page.locator(".numbers tbody tr").count() == 100
        page.get_by_role("button", name="show all 140 (now 100)").click()
        assert page.locator(".numbers tbody tr").count() == 140
        page.locator('.query [data-q="9"]').click()
        settle(page)
        shown = rows_of(page)
        assert shown["flow"]["why"] == "flow was computed only for 5: show 5" and shown["rollout"]["why"] == ""
        rows = as_json(page, "compare")
        assert "flow" not in rows[0]
        np.testing.assert_allclose(column(rows, "rollout"), af.rollout(A, 9, layers=-1)[0, 0], rtol=1e-6)
        choose(page, q=9, m="flow", v="heads")
        assert page.locator(".whole .why").is_visible()
        assert "This page includes single heads only for 5" in page.locator('[data-view="heads"] .why').inner_text()
        choose(page, q=9, t=3, l=2, v="paths")
        assert (
            "This page carries the paths of flow only for the strongest words of 5,"
            in page.locator(".bottleneck").inner_text()
        )
        page.get_by_role("button", name="show 5").click()
        settle(page)
        assert rows_of(page)["flow"]["why"] == "" and page.locator('.query [aria-selected="true"]').inner_text() == "5"
        check_rows_scroll_together(page)


def check_rows_scroll_together(page: Any) -> None:
    page.locator('.row[data-method="rollout"] .text').evaluate("text => text.scrollTop = 60")
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
        assert "weights are rounded to eight bits" in page.locator(".left-out").text_content()
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
        assert rows_of(page)["flow"]["why"] == "flow was computed only for 0: show 0"
        choose(page, q=0, v="paths")  # from the weights as they are
        token = int(page.get_by_label("input token").input_value())
        value = page.locator("strong.value")
        assert float(value.get_attribute("data-value")) == pytest.approx(af.max_flow(A, 0, token).value, rel=1e-6)
        choose(page, q=7, v="graph")
        assert re.fullmatch(
            r"the [\d,]+ strongest of [\d,]+ edges", page.locator('[data-view="graph"] .hint').first.inner_text()
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_the_largest_weights_of_each_row(browser: Any, saved: Any) -> None:
    """For files that would be too large, the page keeps the largest weights and says so."""
    weights = attention(12, 1, 560) ** 8  # as uneven as real attention
    weights /= weights.sum(-1, keepdims=True)
    case = saved("largest", of_weights(weights))
    kept = 3_600_000 // (12 * 560)
    part = np.sort(weights, -1)[..., -kept:].sum() / weights.sum()
    with opened(browser, case.path) as page:
        assert (
            f"Of the 3,763,200 weights, the page has the {kept} largest of each row, rounded to eight bits: {100 * part:.1f} % of"
            in page.locator(".left-out").text_content()
        )
        page.locator('.query [data-q="7"]').click()
        settle(page)
        assert rows_of(page)["raw"]["small"] == "≈"
        largest = np.argsort(-weights[-1, 0, 7])[:50]
        found = column(as_json(page, "compare"), "raw")
        np.testing.assert_allclose(found[largest], weights[-1, 0, 7][largest], rtol=0.05)
        assert found.sum() == pytest.approx(1, rel=1e-5)  # rows keep their sums
        assert page.locator('section[data-view="graph"] path').count() > 100


def test_weights_left_out(browser: Any, saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LARGEST", 3_700_000)
    weights = attention(12, 1, 560)
    case = saved("left-out", of_weights(weights))
    with opened(browser, case.path) as page:
        assert (
            "The 3,763,200 weights of this text would make the file too large"
            in page.locator(".left-out").text_content()
        )
        rows = as_json(page, "compare")
        np.testing.assert_allclose(column(rows, "raw"), weights[-1, 0, 0], rtol=2e-6)
        reasons = {
            "graph": "The graph needs the weights, which this page does not include.",
        }
        for query in (0, 3):
            page.locator(f'.query [data-q="{query}"]').click()
            for view in ("graph", "paths", "heads"):
                page.locator(f"#tab-{view}").click()
                settle(page)
                if view in reasons:
                    assert reasons[view] in page.locator(".viewbox").inner_text()
            check_drawn(screenshot(page), tmp_path / f"left-out-{query}.png", 1200)
            assert "This page includes single heads only for 0" in page.locator(".viewbox").inner_text() or query == 0
            assert (
                page.locator(".whole .why").inner_text()
                == "The map of a layer needs the weights, which this page does not include."
            )
        shown = rows_of(page)
        assert {m: shown[m]["why"] for m in shown} == {
            "raw": "raw attention was computed only for 0: show 0", "rollout": "rollout was computed only for 0: show 0",
            "flow": "flow was computed only for 0: show 0",
        }  # fmt: skip
        # Exports open even if there is nothing to show.
        for name in ("compare", "layers", "map", "heads"):
            assert exported(page, name, "csv").decode().count("\r\n") >= 1
        page.locator("#tab-graph").click()
        settle(page)
        assert as_json(page, "graph") == []
        page.get_by_role("button", name="show 0").first.click()
        settle(page)
        assert rows_of(page)["flow"]["why"] == ""


def test_a_page_of_512_tokens_is_a_small_file() -> None:
    page = of_weights(attention(12, 2, 512))
    assert len(page.html().encode()) <= 5_000_000 and page.document["weights"]["type"] == "rounded"
    assert document.EXACT < 12 * 512 * 512 <= document.ROUNDED
