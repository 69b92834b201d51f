"""Every number of every view, compared with the library's."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.evaluate.statistics import spearman
from helpers.architectures import hf
from helpers.browser import exported, opened, settle
from helpers.page_reading import (
    METHODS,
    Case,
    as_json,
    carried,
    check_numbers,
    check_paths,
    choose,
    column,
    flows_shown,
    lightness,
    rows_of,
    selection,
    shown_number,
    table_of,
    view_of,
)
from helpers.small_models import sinking
from helpers.small_tokenizers import byte_level


def test_compare_tells_the_numbers_of_the_library(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    tokens = len(trace.tokens)
    with opened(browser, sentence.path) as page:
        assert page.locator(".prediction").inner_text().startswith(f"class: {trace.prediction.top[0][0]} ")
        for query, layer in ((0, 6), (3, 4), (3, 1)):
            choose(page, q=query, l=layer)
            rows = as_json(page, "compare")
            wanted = {"answer_inputs": sentence.edges.row()}
            wanted |= {m: view_of(trace, m, query)[layer - 1] for m in METHODS}
            wanted |= {result.method: result.row() for result in sentence.worth}
            assert list(rows[0])[5:] == list(wanted)
            assert [row["token"] for row in rows] == list(trace.tokens)
            for method, values in wanted.items():
                np.testing.assert_allclose(column(rows, method), values, rtol=1e-6, atol=1e-9)
            table = table_of(page, ".numbers table")
            assert [row[:2] for row in table[1:]] == [[str(i), t] for i, t in enumerate(trace.tokens)]
            check_numbers([row[2:] for row in table[1:]], np.stack(list(wanted.values()), 1))
            shown = rows_of(page)
            assert list(shown) == list(wanted)
            for method in ("answer_inputs", *METHODS):
                found = [float(title.split(": ")[1]) for title, _ in shown[method]["rho"]]
                rho = [spearman(np.abs(wanted[method]), wanted[w.method]) for w in sentence.worth]
                np.testing.assert_allclose(found, rho, rtol=1e-6)
                check_numbers([text for _, text in shown[method]["rho"]], rho, digits=2)
        assert tokens == len(shown["flow"]["tokens"])


def test_shades_follow_the_values(browser: Any, sentence: Case) -> None:
    """Lightness is linear in a token's share, from the lowest to the highest value of its row."""
    trace = sentence.trace
    with opened(browser, sentence.path) as page:
        choose(page, l=4)
        shown = rows_of(page)
        for method in METHODS:
            values = view_of(trace, method)[3]
            share = (values - values.min()) / np.ptp(values)
            found = [lightness(token["back"]) for token in shown[method]["tokens"]]
            np.testing.assert_allclose(found, 0.985 + (0.36 - 0.985) * share, atol=0.012)
        shares = sentence.edges.row() / np.abs(sentence.edges.row()).max()
        assert shares.min() < 0  # values against the answer have a hue of their own
        for share, token in zip(shares, shown["answer_inputs"]["tokens"], strict=True):
            red, _, blue = (int(part) for part in re.findall(r"\d+", token["back"])[:3])
            assert abs(share) < 0.05 or (red > blue) == (share < 0)
            deepest = 0.42 if share < 0 else 0.36
            assert lightness(token["back"]) == pytest.approx(0.985 + (deepest - 0.985) * abs(share), abs=0.012)
        legend = page.locator(".legend").inner_text()
        assert "from the lowest to the highest of each row" in legend
        assert legend.endswith("Brown values are below 0 and count against the answer.")


def test_sorting(browser: Any, sentence: Case) -> None:
    trace, names = sentence.trace, ["answer_inputs", *METHODS, "gradient", "blank-out"]
    values = [sentence.edges.row(), *(view_of(trace, m)[-1] for m in METHODS), *(w.row() for w in sentence.worth)]

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
            title = {"raw": "raw attention", "answer_inputs": "answer edges"}.get(name, name)
            head = page.get_by_role("columnheader", name=title).get_by_role("button")
            head.click()
            assert order() == sorted(range(len(row)), key=lambda i: (-row[i], i))
            assert sorted_by() == {title: "descending"}
            head.focus()
            page.keyboard.press("Enter")
            assert order() == sorted(range(len(row)), key=lambda i: (row[i], i))
            assert sorted_by() == {title: "ascending"}
            assert page.evaluate("document.activeElement.dataset.sort") == name  # the focus stays
        page.get_by_role("columnheader", name="token").get_by_role("button").click()
        assert order() == list(range(len(values[0]))) and sorted_by() == {"token": "ascending"}
        page.get_by_role("columnheader", name="token").get_by_role("button").click()
        assert order() == list(range(len(values[0])))[::-1] and sorted_by() == {"token": "descending"}


def test_a_token_is_hovered_and_chosen_everywhere(browser: Any, sentence: Case) -> None:
    trace, names = sentence.trace, ["answer_inputs", *METHODS, "gradient", "blank-out"]
    values = [sentence.edges.row(), *(view_of(trace, m)[-1] for m in METHODS), *(w.row() for w in sentence.worth)]
    with opened(browser, sentence.path) as page:
        page.locator('.row[data-method="flow"] .tok[data-i="3"]').hover()
        tip = page.locator(".tip")
        lines = tip.locator("div").all_inner_texts()
        assert lines[0] == "key · position 3"
        for name, row, line in zip(names, values, lines[1:], strict=True):
            own = {"raw": "raw attention", "answer_inputs": "answer edges"}.get(name, name)
            mark, number, rank = re.fullmatch(rf"(▸ )?{own} (\S+) · rank (\d+) of {len(row)}", line).groups()
            assert (mark is not None) == (name == "flow")
            assert float(number) == pytest.approx(row[3], rel=1e-6)
            assert int(rank) == 1 + int((row > row[3]).sum())
        lit = page.locator(".tok.lit")
        assert lit.count() == len(names) and set(lit.all_inner_texts()) == {"key"}
        page.mouse.move(5, 5)
        assert lit.count() == 0 and tip.is_hidden()
        page.locator('.row[data-method="raw"] .tok[data-i="6"]').click()
        settle(page)
        assert page.locator(".rows .tok.chosen").evaluate_all("all => all.map(t => t.dataset.i)") == ["6"] * len(names)
        assert page.locator(".numbers tr.chosen th").inner_text() == "cabinets"
        page.get_by_role("tab", name="Flow paths").click()
        settle(page)
        assert page.get_by_label("input token").input_value() == "6"
        assert selection(page) == {"t": "6", "v": "paths"}
        page.locator(".numbers tbody tr").nth(2).click()
        settle(page)
        assert page.locator(".rows .tok.chosen").first.inner_text() == "old"
        assert page.get_by_label("input token").input_value() == "2"
        page.get_by_role("listbox", name="query token").get_by_role("option", name="my").click()
        settle(page)
        assert page.get_by_role("listbox", name="query token").get_by_role("option", selected=True).inner_text() == "my"
        assert page.locator(".pair").inner_text() == "between my at L6"


def test_layers(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    whole = {m: getattr(trace, m)(query="all").values for m in METHODS}
    with opened(browser, sentence.path) as page:
        rows = as_json(page, "layers")
        for m in METHODS:
            np.testing.assert_allclose(column(rows, m).reshape(6, -1), whole[m][:, 0], rtol=1e-6, atol=1e-9)
            behind = table_of(page, f'[data-panel="layers"] figure[data-method="{m}"] table')
            assert behind[0] == ["layer", *trace.tokens] and [row[0] for row in behind[1:]] == [
                f"L{i}" for i in range(1, 7)
            ]
            check_numbers([row[1:] for row in behind[1:]], whole[m][:, 0])
        # In the drawing: the cell of the fourth token at L2.
        box = page.locator('figure[data-method="rollout"] svg').first
        box.scroll_into_view_if_needed()
        cell = box.locator("rect").nth(1 + 1 * len(trace.tokens) + 3).bounding_box()
        page.mouse.move(cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
        first, second = page.locator(".tip div").all_inner_texts()
        assert first == "key · L2" and float(second.split()[-1]) == pytest.approx(whole["rollout"][1, 0, 3], rel=1e-6)
        page.mouse.down()
        page.mouse.up()
        settle(page)
        assert selection(page) == {"l": "2", "t": "3"}
        assert page.locator("output").inner_text() == "L2 of L6"
        for m in METHODS:
            page.get_by_role("group", name="method of the map").locator(f'[data-value="{m}"]').click()
            settle(page)
            rows = as_json(page, "map")
            np.testing.assert_allclose(column(rows, m).reshape(whole[m][1].shape), whole[m][1], rtol=1e-6, atol=1e-9)
            behind = table_of(page, ".whole table")
            assert [row[0] for row in behind[1:]] == list(trace.tokens)
            check_numbers([row[1:] for row in behind[1:]], whole[m][1])
        page.locator(".whole").scroll_into_view_if_needed()
        cell = page.locator(".whole svg").first.locator("rect").nth(1 + 5 * len(trace.tokens) + 1).bounding_box()
        page.mouse.click(cell["x"] + 3, cell["y"] + 3)
        settle(page)
        assert selection(page) == {"l": "2", "t": "1", "q": "5", "m": "flow"}
        first_cells = (
            page.locator('figure[data-method="flow"] svg')
            .first.locator("rect")
            .evaluate_all("all => all.map(r => r.getAttribute('fill'))")
        )
        drawn = np.array([lightness(c) for c in first_cells[1 : 1 + 6 * len(trace.tokens)]]).reshape(6, -1)
        values = view_of(trace, "flow", 5)
        np.testing.assert_allclose(drawn, 0.985 + (0.36 - 0.985) * values / values.max(), atol=0.012)


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
                assert line.endswith(": nothing shown")
                continue
            found = flows_shown(line.split(": ", 1)[1])
            assert [name for name, _ in found] == [name for name, _ in drawn]
            np.testing.assert_allclose([x for _, x in found], [x for _, x in drawn], atol=6e-4)

    with opened(browser, sentence.path) as page:
        told_line = page.locator('[data-view="graph"] .summary')
        amounts = carried(graph, 0, 5)
        for level, position in ((6, 0), (4, 3), (1, 6), (0, 3), (6, 2)):
            page.locator(f'circle[data-level="{level}"][data-position="{position}"]').hover()
            lines = page.locator(".tip div").all_inner_texts()
            check(lines, amounts, level, position)
            assert told_line.inner_text() == " · ".join(lines)
        page.mouse.move(5, 5)
        # The same by keyboard, starting at the query's state.
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
        assert page.evaluate("document.activeElement.tagName") == "svg"  # the next arrow continues from there
        amounts = carried(graph, 1, 4)
        page.keyboard.press("ArrowDown")
        check(told_line.inner_text().split(" · "), amounts, 4, 1)
        rows = as_json(page, "graph")
        found = np.zeros((5, len(names), len(names)))
        for row in rows:
            assert row["from_level"] == row["to_level"] + 1
            found[row["to_level"], row["from"], row["to"]] = row["amount"]
        drawn = [np.where(a < 0.004 * max(m.max() for m in amounts), 0, a) for a in amounts]
        np.testing.assert_allclose(found, drawn, rtol=1e-6, atol=1e-12)
        edges = sorted((a for m in amounts for a in m.ravel()), reverse=True)
        check_numbers([row[2] for row in table_of(page, '[data-view="graph"] table')[1:]], edges[:20])
        page.locator('circle[data-level="2"][data-position="4"]').click()
        settle(page)
        page.locator('circle[data-level="0"][data-position="6"]').click()
        settle(page)
        assert selection(page) == {"q": "4", "l": "2", "t": "6"}


def test_flow_paths(browser: Any, sentence: Case) -> None:
    trace = sentence.trace
    levels = [f"L{i}" for i in range(1, 7)]
    with opened(browser, sentence.path, "#v=paths") as page:
        document = sentence.page.document
        sinks = {i for layer in document["units"]["subwords"]["sinks"] for i in layer}
        values = document["importance"][0]["values"]
        words = {i for i, mark in enumerate(trace.special) if not mark and i} - sinks
        first, *_ = known = sorted(words, key=lambda i: -values[i])[:5]
        assert page.get_by_label("input token").input_value() == str(first)
        offered = (
            page.get_by_label("input token").locator("option").evaluate_all("all => all.map(o => Number(o.value))")
        )
        assert offered == sorted(known)
        check_paths(page, trace.graph(), 0, first, 6, trace.tokens, levels)
        for layer, token in ((6, known[1]), (3, known[2]), (1, known[3])):
            page.get_by_label("layer", exact=True).fill(str(layer - 1))
            page.get_by_label("input token").select_option(str(token))
            settle(page)
            graph = trace.graph()[:layer]
            check_paths(page, graph, 0, token, layer, trace.tokens, levels)
            beside = page.locator(".beside")
            sent = af.rollout(graph, queries=0, layers=-1)[0, 0, token]
            assert float(beside.get_attribute("data-rollout")) == pytest.approx(sent, rel=1e-6)
            notes = trace.flow(layer=layer - 1).reliability
            said = page.locator(".bottleneck").inner_text()
            assert said.startswith(" ".join(notes)) and said.endswith(
                next(f["limit"] for f in document["flows"] if (f["layer"], f["token"]) == (layer - 1, token))
            )
        choose(page, v="paths", q=4, t=2)
        assert page.locator(".bottleneck").inner_text() == (
            "This page carries the paths of flow only for the strongest words of [CLS], the query that it opened with: "
            "attnflow serve computes others, or make the page with another query."
        )
        listed = table_of(page, ".paths table")[1:]
        row = view_of(trace, "flow", 4)[-1]
        assert [own[0] for own in listed] == [trace.tokens[i] for i in np.argsort(-row, kind="stable")]
        check_numbers([own[1] for own in listed], np.sort(row)[::-1], digits=4)


def test_flow_paths_open_at_a_word(browser: Any, pieces: Case, decoder: Case) -> None:
    for case in (pieces, decoder):
        with opened(browser, case.path, "#v=paths") as page:
            trace = case.trace
            chosen = int(page.get_by_label("input token").input_value())
            query = trace.default_query
            assert not trace.special[chosen] and chosen != query
            if case is decoder:
                row = view_of(trace, "rollout")[-1]
                sinks = {i for layer in case.page.document["units"]["subwords"]["sinks"] for i in layer}
                assert chosen == max(set(range(1, query)) - sinks, key=lambda i: row[i])


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
            check_numbers([row[2] for row in behind], wanted.max(-1))
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
        numbers = [shown_number(text) for text in written if re.fullmatch(r"\d\.\d\d", text)]
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
            sums = {"answer_inputs": pieces.edges.row(), **worth}
            wanted |= {name: np.array([row[groups[i]].sum() for i in kept]) for name, row in sums.items()}
            for name, values in wanted.items():
                np.testing.assert_allclose(column(rows, name), values, rtol=1e-6, atol=1e-9)
            for m in METHODS:
                found = [float(title.split(": ")[1]) for title, _ in rows_of(page)[m]["rho"]]
                np.testing.assert_allclose(found, [spearman(wanted[m], wanted[name]) for name in worth], rtol=1e-6)
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
        own = next(flow for flow in pieces.page.document["flows"] if flow["unit"] == "words" and flow["layer"] == 2)
        choose(page, u="words", v="paths", q=own["query"], t=own["token"])
        check_paths(page, words.graph(), own["query"], own["token"], 3, words.tokens, ["L1", "L2", "L3"])
        choose(page, u="words", v="paths", q=2, t=3)
        page.get_by_role("group", name="unit").get_by_role("button", name="subwords").click()
        settle(page)
        # The query is the first subword of the word that was selected.
        assert page.locator('.query [aria-selected="true"]').inner_text() == "u"
        assert page.get_by_label("input token").input_value() == str(groups[3][0])


def test_numbers_are_written_as_people_read_them(browser: Any) -> None:
    source = (Path(__file__).parents[2] / "web" / "src" / "draw.js").read_text(encoding="utf-8")
    context = browser.new_context()
    written = context.new_page().evaluate(
        """async source => {
            const {number, correlation} = await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));
            return [
                [0.12345, -0.5, 0, -0, 0.0004, -0.00012, 1, Infinity, NaN].map(x => number(x)),
                [0.123, -0.5, 1, -1, 0, 0.001, -0.001, -0.005001, NaN].map(correlation),
            ];
        }""",
        source,
    )
    context.close()
    assert written == [
        ["0.123", "−0.500", "0.000", "0.000", "4.0e−4", "−1.2e−4", "1.000", "∞", "–"],
        [".12", "−.50", "1.00", "−1.00", ".00", ".00", ".00", "−.01", "–"],
    ]


def test_what_a_reader_must_know_stands_with_the_numbers(
    browser: Any, sentence: Case, pieces: Case, decoder: Case
) -> None:
    trace, answer = sentence.trace, sentence.worth[0].provenance["answer"]["name"]
    with opened(browser, sentence.path) as page:
        for layer in (1, 3, 6):
            choose(page, l=layer)
            results = [getattr(trace, name)(layer=layer - 1) for name in ("raw", "rollout", "flow")]
            expected = [note for result in (*sentence.worth, *results) for note in result.reliability]
            notes = page.locator(".notes li").all_inner_texts()
            assert notes[0] == (
                f"answer edges: what each token contributes to the answer ({answer}), as a share of its total support; values "
                "below 0 count against it."
            )
            assert notes[1] == (
                f"gradient and blank-out: how much the answer ({answer}) changes with a token, up or down; gradient is the length "
                "of the derivative; blank-out puts the unk token in its place."
            )
            assert page.locator(".notes .reliability").all_inner_texts() == notes[2:] == expected
        assert "at its upper bound for" in expected[0], "the last layer is where flow has reached its bound"
    with opened(browser, pieces.path, "#u=words") as page:
        assert "A word gets the sum of its pieces" in page.locator(".notes").inner_text()
    with opened(browser, decoder.path) as page:
        assert "mostly show the position" in page.locator(".notes").inner_text()


def test_words_that_the_model_does_not_know_are_named(browser: Any, saved: Any) -> None:
    page = af.load().explain("the zookeeper of Kraków", importance=())
    strange = [page.document["units"]["subwords"]["tokens"][i] for i in page.document["model"]["unknown"]]
    assert strange
    with opened(browser, saved("unknown", page).path) as shown:
        assert shown.locator(".unknown").inner_text() == f"unknown to the model: {', '.join(strange)}"


def test_heads_follow_the_layer_until_one_is_chosen(browser: Any, sentence: Case) -> None:
    with opened(browser, sentence.path, "#v=heads") as page:
        one = page.locator(".detail h3")
        assert one.inner_text() == "L6 head 1"
        choose(page, v="heads", l=2)
        assert one.inner_text() == "L2 head 1"
        page.locator('[data-head="4.3"]').click()
        settle(page)
        choose(page, v="heads", h="4.3", l=5)
        assert one.inner_text() == "L4 head 3"
        drawn = page.locator("[data-head]").evaluate_all(
            "all => all.filter(g => g.lastChild.getAttribute('stroke-width') === '2').map(g => g.dataset.head)"
        )
        assert drawn == ["4.3"]


def test_the_page_says_what_a_sink_takes(browser: Any, tmp_path: Path) -> None:
    trace = sinking().trace({"input_ids": torch.tensor([[1, 6, 7, 8, 9, 10, 11]])})
    results = [getattr(trace, name)(layer=-1) for name in ("raw", "rollout", "flow")]
    expected = [note for result in results for note in result.reliability]
    assert [words in " ".join(expected) for words in ("of this rollout is on", "can flow to")] == [True, True]
    trace.rollout().save(tmp_path / "whole.html")
    trace.rollout(layer=-1, start=1).save(tmp_path / "values.html")
    with opened(browser, tmp_path / "whole.html") as page:
        notes = page.locator(".notes li").all_inner_texts()
        assert [note for note in notes if note in expected] == expected
        choose(page, l=1)
        lowest = [getattr(trace, name)(layer=0) for name in ("raw", "rollout", "flow")]
        notes = page.locator(".notes .reliability").all_inner_texts()
        assert notes == [note for result in lowest for note in result.reliability] != expected
    with opened(browser, tmp_path / "values.html") as page:
        notes = page.locator(".notes li").all_inner_texts()
        assert [note for note in notes if "of this rollout" in note] == list(trace.rollout(start=1).reliability)


def test_what_was_not_computed_is_no_number_and_no_shade(browser: Any, tmp_path: Path) -> None:
    """Blank-out of a long text covers what its time allowed: the rest is empty, not zero, wherever it is shown."""
    tokenizer = byte_level()
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    model = af.wrap(hf("GPT2LMHeadModel", vocab_size=len(tokenizer), **shape)(), tokenizer)
    text = "The key to the cabinets is old. Nobody has it, and nobody will. The book is to answer the cabinet. It is the unbelievable cabinetmaker."
    made = model.explain(text, importance=1e-6)
    made.save(tmp_path / "part.html")
    blank = made.document["importance"][2]["values"]
    there = [i for i, value in enumerate(blank) if value is not None]
    assert len(there) == 8
    with opened(browser, tmp_path / "part.html", "#u=subwords") as page:
        rows = as_json(page, "compare")
        assert [row["blank-out"] for row in rows] == blank
        for name in ("compare", "page"):
            saved = list(csv.DictReader(io.StringIO(exported(page, name, "csv").decode())))
            assert [row["blank-out"] == "" for row in saved] == [value is None for value in blank]
            assert [float(saved[i]["blank-out"]) for i in there] == [blank[i] for i in there]
        back = {token["back"] for i, token in enumerate(rows_of(page)["blank-out"]["tokens"]) if i not in there}
        assert back == {"rgb(255, 255, 255)"}
        cells = [row[-1] for row in table_of(page, ".numbers table")[1:]]
        assert all((cell == "–") == (i not in there) for i, cell in enumerate(cells))
        flow = column(rows, "flow")  # another test compares it with the library
        rho = [float(title.split(": ")[1]) for title, _ in rows_of(page)["flow"]["rho"]]
        assert rho[1] == pytest.approx(spearman(flow[there], np.array([blank[i] for i in there])), rel=1e-12)
        head = page.get_by_role("columnheader", name="blank-out").get_by_role("button")
        for up in (False, True):
            head.click()
            order = page.locator(".numbers tbody tr").evaluate_all("rows => rows.map(row => Number(row.dataset.i))")
            assert order[:8] == sorted(there, key=lambda i: blank[i], reverse=not up)
        said = page.locator(".notes").inner_text()
        assert (
            f"Blank-out covers only the 8 highest of {len(blank)} by answer_rows" in said
            and 'importance="full" computes all.' in said
        )
        assert "The sentence that matters most to the answer" in said
        page.get_by_label("method", exact=True).select_option("blank-out")
        settle(page)
        assert "NaN" not in page.locator(".attnflow").inner_text()
