"""The grid page in a real browser: its table, its choices, its pictures by pointer and by keys, both themes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnflow.edges import EDGES
from attnflow.evaluate import Evaluation, deletion
from attnflow.evaluate.methods import IMPORTANCES, all_methods
from attnflow.view.grid_page import html_of
from helpers.browser import opened as opened_page
from helpers.browser import settle
from helpers.measurements import summary_of

KINDS = {"raw": "paper", "rollout": "paper", "flow": "paper", "blank-out": "importance", "gradient": "importance",
         "random": "baseline", "last": "baseline"}  # fmt: skip
NAMES = (
    "raw", "rollout", "flow", "attention-gradient · rollout", "attention-gradient · flow", "alti · rollout", "value-zeroing · raw",
    "</script><b>max · rollout", "blank-out", "gradient", "random", "last",
)  # fmt: skip
METRICS = {
    "blank-out": "higher", "gradient": "higher",
    **{f"{name} ({by})": way for by in ("mask", "remove")
       for name, way in (("comprehensiveness", "higher"), ("sufficiency", "lower"), ("log-odds", "lower"))},
}  # fmt: skip


def measured(n: int = 60) -> Evaluation:
    """Twelve methods whose quality rises from 0.05 to 0.6, with curves to match."""
    rng = np.random.default_rng(0)
    methods = [
        {
            "name": name, "kind": KINDS.get(name, "edges"), "edges": name.split(" · ")[0], "normalize": None,
            "propagation": name.split(" · ")[-1], "receptive_field": None,
        }
        for name in NAMES
    ]  # fmt: skip
    good = np.array([0.15, 0.25, 0.22, 0.5, 0.52, 0.4, 0.3, 0.2, 0.6, 0.45, 0.05, 0.08])
    up = np.array([1.0 if way == "higher" else -1.0 for way in METRICS.values()])
    values = (
        good[None, :, None] * up + rng.normal(0, 0.15, (n, len(NAMES), len(METRICS))) + rng.normal(0, 0.1, (n, 1, 1))
    )
    for k, name in enumerate(("blank-out", "gradient")):
        values[:, NAMES.index(name), k] = np.nan
    step = np.linspace(0, 1, 11)
    deleted = 0.12 + 0.85 * (1 - step) ** (1 + 6 * good[:, None])
    kept = 0.12 + 0.85 * step ** (1 / (1 + 6 * good[:, None]))
    curves = np.stack([deleted, kept], 1) + rng.normal(0, 0.01, (n, 1, 1, 1))
    agreement = np.corrcoef(rng.normal(0, 1, (len(NAMES), 12)) + good[:, None] * rng.normal(0, 4, 12))
    levels = {"head": 0.9, "upper half": 0.5, "all": 0.1}
    sanity = {level: at * rng.uniform(0.5, 1, (20, len(NAMES))) - 0.05 for level, at in levels.items()}
    for table in sanity.values():
        table[:, [8, 9]] = np.nan
    cost = 10 ** np.linspace(-1, 1.6, len(NAMES))
    cost[NAMES.index("last")] = 0
    return Evaluation(
        methods=tuple(methods),
        metrics=METRICS,
        values=values,
        curves={"mask": curves, "remove": 0.5 * curves},
        agreement=agreement,
        sanity=sanity,
        seconds=np.tile(cost, (n, 1)),
        pass_seconds=np.ones(n),
        provenance={
            "model": "small <model>",
            "revision": "0123456789abcdef",
            "dtype": "float32",
            "data": "texts.tsv",
            "explained": "its own answer",
            "excluded": {"empty": 2},
            "sanity": 20,
        },
    )


def shown(browser: Any, path: Path, fragment: str = "", **options: Any) -> Any:
    """Open the first screen."""
    return opened_page(browser, path, fragment, details=False, **options)


def opened(browser: Any, path: Path, fragment: str = "", **options: Any) -> Any:
    """Open the page with its details."""
    return shown(browser, path, f"{fragment or '#'}&open=1", **options)


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summary_of(measured(), 500)


@pytest.fixture(scope="module")
def path(summary: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("grid") / "grid.html", summary)


def saved(path: Path, summary: dict[str, Any]) -> Path:
    path.write_text(html_of(summary), encoding="utf-8")
    return path


def means(summary: dict[str, Any], metric: str) -> dict[str, float | None]:
    return {cell["method"]: cell["mean"] for cell in summary["cells"] if cell["metric"] == metric}


def rows(page: Any) -> list[list[str]]:
    """Return the visible table, without what only screen readers get."""
    return page.evaluate(  # type: ignore[no-any-return]
        "() => [...document.querySelectorAll('.wide tbody tr')].map(row => [...row.children].map(cell => cell.firstChild.textContent))"
    )


def sort_by(page: Any, column: str) -> None:
    page.locator(".wide thead button", has_text=re.compile(f"^{column}$")).click()
    settle(page)


def panel(page: Any, name: str) -> Any:
    return page.locator(f'[data-panel="{name}"]')


def tip(page: Any) -> list[str]:
    found: list[str] = page.locator(".tip:not([hidden]) > div").all_inner_texts()
    return found


BOXES = """texts => texts.map(text => {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    return { left, right, top, bottom, text: text.textContent };
})"""


def overlap(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two boxes overlap by more than the margin around letters."""
    wide = min(a["right"], b["right"]) - max(a["left"], b["left"])
    high = min(a["bottom"], b["bottom"]) - max(a["top"], b["top"])
    return wide > 0 and high > 3


def visible_words(page: Any) -> list[str]:
    """Return the page's own visible words, without numbers or signs."""
    text = page.evaluate(
        """() => {
            const style = document.head.appendChild(document.createElement("style"));
            style.textContent = ".sr { display: none }";
            const text = document.querySelector("article").innerText;
            style.remove();
            return text;
        }"""
    )
    return [word for word in text.split() if re.search(r"[^\W\d]", word)]


def listed_cells(page: Any) -> list[str]:
    lines: list[str] = panel(page, "verdict").locator("ul.sr li").all_text_contents()
    return lines


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_the_table_is_the_summary(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        assert page.title() == "small <model> · attnflow"
        head = page.locator("article").inner_text()
        assert "small <model>" in head
        told = (
            "texts.tsv: 60 texts, 12 methods, 8 metrics. Explained: its own answer. 2 texts left out: empty. "
            "Model: revision 0123456789ab, float32."
        )
        assert page.locator(".prediction").inner_text() == told
        ahead = [f"{one['method']} ({one['cost']:.2g}×)" for one in summary["ahead_of_all"]]
        assert ahead and page.locator(".ahead strong").inner_text() == ", ".join(ahead)
        sentence = summary["recommendation"]
        assert sentence.startswith("Use ") and page.locator(".recommendation").inner_text() == sentence
        found = rows(page)
        wanted = means(summary, "blank-out")
        assert [row[0] for row in found] == sorted(NAMES, key=lambda name: (wanted[name] is None, -(wanted[name] or 0)))
        for row in found:
            for text, metric in zip(row[1:-1], list(METRICS)[:5], strict=True):
                mean = means(summary, metric)[row[0]]
                assert text == "–" if mean is None else number(text) == pytest.approx(mean, abs=6e-4)
        for k, metric in enumerate(list(METRICS)[:5]):
            cells = [c for c in summary["cells"] if c["metric"] == metric]
            level = {c["method"] for c in cells if c["level"]}
            column = page.locator(f".wide tbody tr > :nth-child({k + 2})")
            kinds = [
                names or "" for names in column.evaluate_all("cells => cells.map(cell => cell.getAttribute('class'))")
            ]
            assert {row[0] for row, kind in zip(found, kinds, strict=True) if "level" in kind} == level
            extreme = (max if METRICS[metric] == "higher" else min)(c["mean"] for c in cells if c["mean"] is not None)
            (best,) = [row[0] for row, kind in zip(found, kinds, strict=True) if "best" in kind]
            assert means(summary, metric)[best] == extreme
        cell = next(c for c in summary["cells"] if (c["method"], c["metric"]) == (found[0][0], "blank-out"))
        first = page.locator(".wide tbody td").first
        shown = first.get_attribute("title").replace("−", "-")
        assert (
            shown
            == f"{cell['mean']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}], 60 texts, mean rank {cell['rank']:.1f}, the best"
        )
        assert first.locator(".sr").text_content() == f" from {cell['low']:.3f} to {cell['high']:.3f}, the best"


def test_the_first_screen_is_a_recommendation(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with shown(browser, path) as page:
        chosen = summary["recommended"]
        assert summary["verdict"]["headline"] == f"Use {chosen}."
        assert page.locator(".headline").inner_text() == summary["verdict"]["headline"]
        assert page.locator(".headline strong").inner_text() == chosen
        assert page.locator(".reason").inner_text() == summary["verdict"]["reason"]
        assert page.locator(".panel").count() == 6 and not page.locator(".panel").first.is_visible()
        assert len(visible_words(page)) <= 60
        what = page.locator(".what")
        assert not what.locator("p").is_visible()
        what.locator("summary").focus()
        page.keyboard.press("Enter")
        meaning = what.locator("p").inner_text()
        assert f"in a layer: {EDGES['attention-gradient'].about}." in meaning and "width of a pipe." in meaning


def test_methods_are_ranked_beside_it(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    metric = summary["verdict"]["metric"]
    assert metric == "comprehensiveness (mask)"
    cells = {cell["method"]: cell for cell in summary["cells"] if cell["metric"] == metric}
    order = sorted(cells, key=lambda name: -cells[name]["mean"])
    compared = [*summary["verdict"]["methods"], *(name for name in order if name not in summary["verdict"]["methods"])]
    wanted = [name for name in order if name in compared[:7]]
    with shown(browser, path) as page:
        assert listed_cells(page) == [
            f"{name}, {metric} {cells[name]['mean']:.3f} [{cells[name]['low']:.3f}, {cells[name]['high']:.3f}], 60 texts"
            for name in wanted
        ]
        spoken = {"random": "chance", "last": "latest first", "blank-out": "leaving each token out"}
        rows = panel(page, "verdict").locator(".ranked")
        assert rows.locator(".who").all_text_contents() == [spoken.get(name, name) for name in wanted]
        assert [float(text) for text in rows.locator(".mean").all_text_contents()] == pytest.approx(
            [cells[name]["mean"] for name in wanted], abs=0.0051
        )
        assert panel(page, "verdict").locator(".chosen .who").text_content() == summary["recommended"]
        x = [float(dot.get_attribute("cx")) for dot in rows.locator("circle").all()]
        means_of = [cells[name]["mean"] for name in wanted]
        pixels, start = np.polyfit(means_of, x, 1)
        np.testing.assert_allclose(x, start + pixels * np.array(means_of), atol=0.01)
        ends = [re.findall(r"[MH]([\d.]+)", span.get_attribute("d")) for span in rows.locator(".span").all()]
        for (low, high), name in zip(ends, wanted, strict=True):
            assert [float(low), float(high)] == pytest.approx(
                [start + pixels * cells[name][side] for side in ("low", "high")], abs=0.01
            )
        panel(page, "verdict").locator("svg.chart").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert tip(page)[0] == wanted[1]
        page.mouse.move(0, 0)
        rows.nth(3).locator(".who").hover()
        assert tip(page)[0] == wanted[3]


def test_too_few_texts_are_said_first(browser: Any, tmp_path: Path) -> None:
    few = summary_of(replace(measured(14), sanity={}), 50)
    assert few["recommended"] is None
    with shown(browser, saved(tmp_path / "few.html", few)) as page:
        headline = page.locator(".headline").inner_text()
        assert headline == few["verdict"]["headline"] and headline.startswith("14 texts are too few to decide between ")
        assert page.locator(".reason").inner_text() == few["verdict"]["reason"]
        assert page.locator(".headline strong, .what, .chosen").count() == 0
        assert len(visible_words(page)) <= 60
    bare = {**few, "verdict": None, "recommendation": None}
    with shown(browser, saved(tmp_path / "bare.html", bare)) as page:
        assert page.locator(".headline").inner_text() == (
            "This grid recommends no method: it has nothing to compare the methods with."
        )
        assert panel(page, "verdict").locator("svg.chart").get_attribute("aria-label").endswith("ranked by blank-out")


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_details_open_by_click_key_and_address(browser: Any, path: Path, width: int) -> None:
    touch = {"has_touch": True, "is_mobile": True} if width == 390 else {}
    with shown(browser, path, viewport={"width": width, "height": 900}, **touch) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        summary_of_details = page.locator(".everything > summary")
        if touch:
            for control in page.locator("summary:visible, button:visible").all():
                assert control.bounding_box()["height"] >= 44
            summary_of_details.tap()
        else:
            summary_of_details.focus()
            page.keyboard.press("Space")
        page.wait_for_function("() => location.hash.includes('open=1')")
        assert page.locator(".panel").first.is_visible()
        assert panel(page, "curves").locator("svg.chart").bounding_box()["width"] > 200  # drawn when visible
        summary_of_details.click()
        page.wait_for_function("() => !location.hash.includes('open=1')")
        assert not page.locator(".panel").first.is_visible()
        for text in panel(page, "verdict").locator("svg text").evaluate_all(BOXES):
            assert text["left"] >= 0 and text["right"] <= width


def test_sorting_filtering_and_the_address(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        wanted = means(summary, "sufficiency (mask)")
        head = page.locator("th", has_text="sufficiency")
        for way, sign in (("ascending", 1), ("descending", -1)):  # lower is better, so the best come first
            sort_by(page, "sufficiency")
            assert head.get_attribute("aria-sort") == way
            assert page.locator("[aria-sort]").count() == 1
            assert [row[0] for row in rows(page)] == sorted(NAMES, key=lambda name: sign * (wanted[name] or 0))
        sort_by(page, "method")
        assert [row[0] for row in rows(page)][-1] == "value-zeroing · raw"
        sort_by(page, "cost")
        assert [row[0] for row in rows(page)] == [NAMES[-1], *NAMES[:-1]]
        page.get_by_label("baselines").uncheck()
        page.get_by_label("the paper's").uncheck()
        assert [row[0] for row in rows(page)] == [
            name for name in NAMES if KINDS.get(name, "edges") in ("edges", "importance")
        ]
        panel(page, "curves").get_by_label("deletion").select_option("remove")
        assert panel(page, "table").get_by_label("deletion").input_value() == "remove"
        column = [number(row[3]) for row in rows(page)]
        assert column == pytest.approx(
            [means(summary, "comprehensiveness (remove)")[row[0]] for row in rows(page)], abs=6e-4
        )
        page.get_by_role("button", name="kept").click()
        panel(page, "cost").get_by_label("metric").select_option("log-odds (mask)")
        assert panel(page, "ranks").get_by_label("metric").input_value() == "log-odds (mask)"
        page.get_by_role("button", name="dark theme").click()
        page.wait_for_function("() => location.hash.includes('theme=dark')")
        address = page.evaluate("[...new URLSearchParams(location.hash.slice(1))]")
        assert dict(address) == {
            "o": "cost.up", "k": "edges,importance", "d": "remove", "c": "kept", "r": "log-odds (mask)", "theme": "dark",
            "open": "1",
        }  # fmt: skip
        before = page.locator("article").inner_text()
        page.reload()
        settle(page)
        assert page.locator("article").inner_text() == before
        assert page.locator("#attnflow").get_attribute("data-theme") == "dark"


def test_heads_say_which_way_is_better_and_another_sign_how_it_is_sorted(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        sort_by(page, "sufficiency")
        heads = page.locator(".wide thead th")
        assert [re.sub(r"\s+", " ", text) for text in heads.all_inner_texts()] == [
            "method", "blank-out higher is better", "gradient higher is better", "comprehensiveness higher is better",
            "sufficiency lower is better", "log-odds lower is better", "cost",
        ]  # fmt: skip
        signs = [
            button.evaluate("button => getComputedStyle(button, '::after').content")
            for button in page.locator(".wide thead button").all()
        ]
        assert signs == ["none"] * 4 + ['" ▴"'] + ["none"] * 2
        sort_by(page, "sufficiency")
        assert heads.nth(4).locator("button").evaluate("b => getComputedStyle(b, '::after').content") == '" ▾"'


def test_names_are_explained(browser: Any, path: Path, tmp_path: Path, summary: dict[str, Any]) -> None:
    def told(page: Any) -> dict[str, dict[str, str]]:
        return page.evaluate(  # type: ignore[no-any-return]
            """() => Object.fromEntries([...document.querySelectorAll("details.names section")].map(part => [
                part.querySelector("h3").textContent.split(":")[0],
                Object.fromEntries([...part.querySelectorAll("dt")].map(
                    term => [term.textContent, term.nextSibling.textContent])),
            ]))"""
        )

    with opened(browser, path) as page:
        details = page.locator("details.names")
        assert not details.locator("dl").first.is_visible()
        details.locator("summary").click()
        assert details.locator("dl").first.is_visible()
        found = told(page)
        assert {part: list(names) for part, names in found.items()} == {
            "Edges": ["gradient", "attention-gradient", "alti", "value-zeroing"],  # the ones in this grid
            "Propagations": ["raw", "rollout", "flow"],
            "Metrics": ["an importance's name", "comprehensiveness", "sufficiency", "log-odds"],
            "Deletions": ["mask", "remove"],
            "Importances": ["blank-out", "gradient"],
            "Baselines": ["random", "last"],
        }
        for metric, way in METRICS.items():
            if "(" in metric:
                assert found["Metrics"][metric.split(" (")[0]].endswith(f"; {way} is better")
    methods = [asdict(method) for method in all_methods(EDGES, IMPORTANCES, True)]
    every = {**summary, "methods": [{**method, "cost": 1.0} for method in methods], "sanity": {}, "cells": []}
    every |= {"curves": {}, "ahead_of_all": [], "agreement": [[None] * len(methods)] * len(methods)}
    every["metrics"] = [
        {"name": f"{name} (unk)" if name in deletion.METRICS else name, "better": "higher"}
        for name in (*IMPORTANCES, *deletion.METRICS)
    ]
    none = {"methods": [], "ranks": [], "n": 0, "friedman": None, "critical_difference": None, "groups": []}
    every["ranking"] = {metric["name"]: none for metric in every["metrics"]}
    with opened(browser, saved(tmp_path / "every.html", every)) as page:
        found = told(page)
        assert set(found["Edges"]) == set(EDGES)
        assert set(found["Normalisations"]) == {method["normalize"] for method in methods} - {None}
        assert set(found["Propagations"]) == {method["propagation"] for method in methods} - {None}
        assert set(found["Receptive field"]) == {method["receptive_field"] for method in methods} - {None}
        assert set(found["Metrics"]) == {"an importance's name", *deletion.METRICS}
        assert set(found["Importances"]) == set(IMPORTANCES) and set(found["Baselines"]) == {"random", "first", "last"}


def test_too_few_texts_to_tell(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    for texts, told in (
        (1200, "60 texts are too few to tell: 15 comparisons need at least 1,200."),
        (60, "Better than all of the paper's methods, in comprehensiveness and in rank correlation with blank-out: "),
    ):
        file = saved(tmp_path / "few.html", {**summary, "needed": {"texts": texts, "comparisons": 15}})
        with opened(browser, file) as page:
            assert page.locator(".ahead").inner_text().startswith(told)
            assert page.locator(".ahead strong").count() == (texts == 60)
    older = {name: value for name, value in summary.items() if name != "needed"}
    with opened(browser, saved(tmp_path / "older.html", older)) as page:
        assert page.locator(".ahead").inner_text().startswith(told)


def test_next_to_nothing_has_as_many_decimals(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    small = {"mean": -4.1e-4, "low": -1e-5, "high": 3e-7}
    cells = [{**cell, **(small if cell["method"] == "random" else {})} for cell in summary["cells"]]
    with opened(browser, saved(tmp_path / "small.html", {**summary, "cells": cells})) as page:
        (row,) = [row for row in rows(page) if row[0] == "random"]
        assert row[1:-1] == ["−0.000"] * 5
        title = page.locator(".wide tbody tr", has_text="random").locator("td").first.get_attribute("title")
        assert title.startswith("−0.000 [−0.000, 0.000], 60 texts")
        assert not re.search(r"\de[−-]\d", page.locator("article").text_content())


def test_an_address_from_elsewhere(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        before = page.locator("article").inner_text()
    with opened(browser, path, "#o=evil.up&d=none&c=x&m=99,toString&r=nothing&theme=pink&k=") as page:
        assert rows(page) == []
        page.evaluate("location.hash = 'm=length&open=1'")
        page.wait_for_function("() => document.querySelectorAll('.wide tbody tr').length === 12")
        assert page.locator("article").inner_text() == before


def test_curves(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    def drawn(page: Any) -> list[str]:
        found: list[str] = panel(page, "curves").locator("svg text:not(.tick)").all_text_contents()
        return found

    with opened(browser, path) as page:
        curves = panel(page, "curves")
        edges = [name for name in summary["ranking"]["comprehensiveness (mask)"]["methods"] if name not in KINDS]
        first = {"raw", "rollout", "flow", *edges[:3], "random"}
        area = {name: sum(summary["curves"]["mask"][name]["deleted"]) for name in NAMES}
        assert drawn(page) == sorted(first, key=lambda name: -area[name])
        checked = curves.locator("input:checked").evaluate_all(
            "boxes => boxes.map(box => box.parentNode.textContent.trim())"
        )
        assert set(checked) == first
        curves.get_by_label("blank-out").check()
        assert set(drawn(page)) == {*first, "blank-out"}
        chart = curves.locator("svg.chart")
        chart.locator(".band").nth(5).hover()
        values = {name: summary["curves"]["mask"][name]["deleted"][5] for name in (*first, "blank-out")}
        wanted = sorted(values, key=lambda name: -values[name])
        head, *lines = tip(page)
        assert head == "50 % deleted" and [line.split(" ", 1)[1] for line in lines] == wanted
        assert [number(line.split(" ")[0]) for line in lines] == pytest.approx(
            [values[name] for name in wanted], abs=6e-4
        )
        assert chart.locator(".band.lit").count() == 1 and chart.locator(".band.lit circle").first.is_visible()
        assert not chart.locator(".band circle").first.is_visible()
        dots = chart.locator(".band.lit circle").evaluate_all("dots => dots.map(dot => Number(dot.getAttribute('cy')))")
        height = dict(zip(drawn(page), dots, strict=True))
        assert [height[name] for name in wanted] == sorted(dots)
        page.mouse.move(0, 0)
        assert tip(page) == []
        curves.get_by_role("button", name="kept").click()
        settle(page)
        chart.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert tip(page)[0] == "20 % kept"  # the first key press selects the first point
        best = max(NAMES, key=lambda name: summary["curves"]["mask"][name]["kept"][2] if name in values else -1)
        assert tip(page)[1] == f"{summary['curves']['mask'][best]['kept'][2]:.3f} {best}"
        told = curves.locator("ul.sr li").nth(2).text_content()
        assert told == ", ".join(tip(page))
        for box in curves.locator("input").all():
            box.uncheck()
        assert curves.locator(".empty").inner_text() == "None of the selected methods has a curve."


def test_ranks(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        for metric in ("blank-out", "sufficiency (remove)"):
            panel(page, "ranks").get_by_label("metric").select_option(metric)
            settle(page)
            found = summary["ranking"][metric]
            names = panel(page, "ranks").locator(".leader text").all_text_contents()
            half = -(-len(found["methods"]) // 2)
            for i, (text, name, rank) in enumerate(zip(names, found["methods"], found["ranks"], strict=True)):
                words = re.sub(r"\s+", " ", text)
                shown, number_of = words.rsplit(" ", 1) if i < half else words.split(" ", 1)[::-1]
                assert shown == name and float(number_of) == pytest.approx(rank, abs=0.0501)
            drawn = {
                kind: panel(page, "ranks")
                .locator(kind)
                .evaluate_all("lines => lines.map(line => line.getAttribute('d'))")
                for kind in (".leader path", ".joined", 'path[stroke="var(--accent)"]')
            }
            hang, bars, (ruler,) = ([re.findall(r"[MH]([\d.]+)", d) for d in lines] for lines in drawn.values())
            x = np.array([float(at) for at, _ in hang])
            pixels, start = np.polyfit(found["ranks"], x, 1)
            np.testing.assert_allclose(x, start + pixels * np.array(found["ranks"]), atol=0.01)
            assert len(bars) == len(found["groups"]) > 0
            for bar, (i, j) in zip(bars, found["groups"], strict=True):
                assert [float(end) for end in bar] == pytest.approx([x[i] - 3, x[j] + 3], abs=0.01)
            assert float(ruler[1]) - float(ruler[0]) == pytest.approx(pixels * found["critical_difference"], abs=0.01)
            assert (
                f"critical difference {found['critical_difference']:.2f}"
                in panel(page, "ranks").locator("svg").text_content()
            )
        panel(page, "ranks").locator(".leader text").first.hover()
        assert tip(page)[:2] == [found["methods"][0], f"mean rank {found['ranks'][0]:.2f}"]


def test_many_methods(browser: Any, tmp_path: Path) -> None:
    """The diagram shows the best twenty methods, and all on demand; lines that join hidden methods are cut."""
    given = measured()
    more = tuple({**method, "name": f"{method['name']} again"} for method in given.methods)
    twice = replace(
        given,
        methods=(*given.methods, *more),
        values=np.concatenate([given.values, given.values + 0.01], 1),
        curves={},
        agreement=np.tile(given.agreement, (2, 2)),
        sanity={},
        seconds=np.tile(given.seconds, (1, 2)),
    )
    with opened(browser, saved(tmp_path / "many.html", summary_of(twice, 50))) as page:
        ranks = panel(page, "ranks")
        assert panel(page, "curves").count() == panel(page, "sanity").count() == 0
        assert ranks.locator(".leader").count() == 20 and "the best 20 of 22 methods" in ranks.inner_text()
        box = ranks.locator("svg").bounding_box()
        for bar in ranks.locator(".joined").all():
            assert bar.bounding_box()["x"] + bar.bounding_box()["width"] < box["x"] + box["width"]
        ranks.get_by_label("all methods").check()
        assert ranks.locator(".leader").count() == 22
        assert panel(page, "agreement").locator(".cell").count() == 24 * 24
    with opened(browser, tmp_path / "many.html", viewport={"width": 480, "height": 900}) as page:
        numbers = panel(page, "agreement").locator(".tick").evaluate_all(BOXES)  # of columns
        assert [box["text"] for box in numbers] == [str(k + 1) for k in range(24)]
        for a, b in combinations(numbers, 2):
            assert b["left"] - a["right"] > 3 or abs(a["top"] - b["top"]) > 10


def test_agreement_by_keys(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        order = summary["ranking"]["blank-out"]["methods"]
        first, second, third = (NAMES.index(name) for name in order[:3])
        panel(page, "agreement").locator("svg.chart").focus()
        page.keyboard.press("ArrowDown")
        assert tip(page) == [f"{order[0]} and {order[0]}", "the same method"]
        hatched = panel(page, "agreement").locator(".cell:has(path)")  # hatching looks unlike any value
        assert [cell.get_attribute("class").split()[:3] for cell in hatched.all()] == [["mark-of", "cell", "self"]] * 12
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        value = f"{summary['agreement'][second][third]:.2f}".replace("-", "−").replace("0.", ".")
        assert tip(page) == [f"{order[1]} and {order[2]}", value]
        page.keyboard.press("Tab")
        assert tip(page) == []
        cell = panel(page, "agreement").locator(".cell").nth(2)
        cell.hover()
        assert tip(page)[0] == f"{order[0]} and {order[2]}"
        # The other theme shows the same numbers in other colours.
        fill = cell.locator("rect").get_attribute("fill")
        page.get_by_role("button", name="dark theme").click()
        settle(page)
        assert cell.locator("rect").get_attribute("fill") != fill
        assert summary["agreement"][first][third] is not None


def test_sanity_and_cost(browser: Any, path: Path, summary: dict[str, Any]) -> None:
    with opened(browser, path) as page:
        sanity = panel(page, "sanity")
        assert sanity.locator(".hint").inner_text().endswith("Measured on the first 20 of 60 texts.")
        assert sanity.locator("ul.sr li").count() == 10 * 3  # importance methods have no sanity check
        top = summary["ranking"]["blank-out"]["methods"][0]
        cell = summary["sanity"]["upper half"][top]
        sanity.locator(".mark-of").nth(1).locator("path").last.hover()
        assert tip(page) == [top, f"upper half: {cell['mean']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"]
        dots = [sanity.locator(".mark-of").nth(k).locator("path").last.bounding_box() for k in range(3)]
        x = [box["x"] + box["width"] / 2 for box in dots]
        means_of = [summary["sanity"][level][top]["mean"] for level in ("head", "upper half", "all")]
        scale = (x[0] - x[2]) / (means_of[0] - means_of[2])
        assert x[1] == pytest.approx(x[2] + scale * (means_of[1] - means_of[2]), abs=1)
        cost = panel(page, "cost")
        assert cost.locator(".mark-of").count() == 11  # blank-out has no correlation with itself
        point = cost.locator(".mark-of").filter(has=page.locator(".importance"))
        assert point.count() == 1
        point.locator(".importance").hover()
        assert tip(page)[:2] == ["gradient", "cost 13×"]
        free = summary["ranking"]["blank-out"]["methods"].index("last")  # left of all others, at its own tick
        left = [dot.bounding_box()["x"] for dot in cost.locator(".mark-of > path:last-child").all()]
        assert left[free] == min(left) and "0×" in cost.locator(".tick").all_text_contents()
        limit = cost.locator('path[stroke="var(--accent)"]').bounding_box()["x"]
        for i in range(11):
            dot = cost.locator(".mark-of").nth(i).locator("path").last.bounding_box()
            name = summary["ranking"]["blank-out"]["methods"][i]
            cheap = summary["methods"][NAMES.index(name)]["cost"] < 3
            assert (dot["x"] + dot["width"] / 2 < limit) == cheap


@pytest.mark.parametrize("width", [1280, 480])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_and_follows_the_system(browser: Any, path: Path, width: int, theme: str) -> None:
    with opened(browser, path, viewport={"width": width, "height": 900}, color_scheme=theme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("#attnflow").get_attribute("data-theme") == theme
        paper = page.evaluate("getComputedStyle(document.querySelector('#attnflow')).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[theme]
        for chart in page.locator("svg.chart").all():
            # Text stays inside the picture,
            outside = chart.evaluate(
                """picture => [...picture.querySelectorAll("text")].filter(text => {
                    const own = text.getBoundingClientRect(), box = picture.getBoundingClientRect();
                    return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
                }).map(text => text.textContent)"""
            )
            assert outside == []
            # and neither ticks nor names overlap.
            for kind in (".tick", "text:not(.tick)"):
                boxes = chart.locator(kind).evaluate_all(BOXES)
                assert [(a["text"], b["text"]) for a, b in combinations(boxes, 2) if overlap(a, b)] == []
        cost = panel(page, "cost")
        assert cost.locator(".name.paper").all_text_contents() == ["rollout", "flow", "raw"]  # best first
        sanity = panel(page, "sanity").locator("svg text:not(.tick)").all_text_contents()
        assert set(sanity) == {*NAMES, "head", "upper half", "all"} - {"blank-out", "gradient"}  # no name is cut
        assert page.locator(".panel").count() == page.locator(".panel > .hint").count() == 6


def test_edges_say_that_there_is_more_beyond(browser: Any, path: Path) -> None:
    def shadows(page: Any) -> dict[str, list[str]]:
        return page.evaluate(  # type: ignore[no-any-return]
            """() => Object.fromEntries([...document.querySelectorAll(".sideways")].map(box => [
                box.closest(".panel").dataset.panel,
                [...box.classList].filter(name => name.startsWith("more-")).sort(),
            ]))"""
        )

    scroll = "(box, x) => box.scrollTo(x, 0)"
    with opened(browser, path) as page:
        assert shadows(page) == {
            name: [] for name in ("table", "curves", "ranks", "agreement", "sanity", "cost")
        }  # nothing is cut off
    with opened(browser, path, viewport={"width": 480, "height": 900}) as page:
        narrow = {"table": ["more-right"], "ranks": ["more-right"], "curves": [], "sanity": [], "cost": []}
        assert {**shadows(page), **narrow} == shadows(page)
        shown = "box => getComputedStyle(box, '::after').width"
        assert panel(page, "ranks").locator(".sideways").evaluate(shown) == "16px"
        for x, sides in ((30, ["more-left", "more-right"]), (9999, ["more-left"]), (0, ["more-right"])):
            for name in ("table", "ranks"):
                panel(page, name).locator(".scroll").evaluate(scroll, x)
                page.wait_for_function(
                    """([name, sides]) => ["more-left", "more-right"].every(side => sides.includes(side) ===
                        document.querySelector(`[data-panel=${name}] .sideways`).classList.contains(side))""",
                    arg=[name, sides],
                )


def test_ticks_of_the_cost_stand_apart(browser: Any, tmp_path: Path, summary: dict[str, Any]) -> None:
    """Methods without cost have no logarithm: their tick is left of all others, wherever those begin."""
    for least in (0.11, 0.02, 0.9):
        methods = [
            {**method, "cost": 0.0 if method["name"] == "last" else least * (1 + k)}
            for k, method in enumerate(summary["methods"])
        ]
        file = saved(tmp_path / "cost.html", {**summary, "methods": methods})
        for width in (1280, 480):
            with opened(browser, file, viewport={"width": width, "height": 900}) as page:
                boxes = [box for box in panel(page, "cost").locator(".tick").evaluate_all(BOXES) if "×" in box["text"]]
                assert {"0×", "3×"} <= {box["text"] for box in boxes}
                assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
                places = sorted(boxes, key=lambda box: box["left"])
                assert places == sorted(boxes, key=lambda box: float(box["text"][:-1]))


def test_nothing_to_show(browser: Any, tmp_path: Path) -> None:
    given = measured()
    empty = replace(
        given, metrics={"blank-out": "higher"}, values=np.full((60, 12, 1), np.nan), curves={}, sanity={},
        seconds=np.full((60, 12), np.nan), agreement=np.full((12, 12), np.nan),
    )  # fmt: skip
    with opened(browser, saved(tmp_path / "empty.html", summary_of(empty, 50))) as page:
        assert page.locator(".empty").all_inner_texts() == [
            "No method has a value by this metric.",
            "By this metric, no text has a value for every method.",
            "No method has both a cost and a value by this metric.",
        ]
        assert [row[1:] for row in rows(page)] == [["–", "–"]] * 12


def test_the_file_asks_nobody(path: Path) -> None:
    file = path.read_text(encoding="utf-8")
    assert file.count("<script") == file.count("</script>") == 2
    assert set(re.findall(r"https?://[\w./]+", file)) == {"http://www.w3.org/2000/svg"}
    held = re.search(r'id="attnflow-document">(.*?)</script>', file, re.DOTALL)
    assert held is not None
    told = json.loads(held[1])
    assert "tests" not in told and [method["name"] for method in told["methods"]] == list(NAMES)
