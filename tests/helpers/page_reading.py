"""Read the pages in tests, and compare their numbers with the library's."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.result import TokenAttention
from attnflow.view.page import Page
from helpers.browser import exported, settle

METHODS = ("raw", "rollout", "flow")


@dataclass(frozen=True)
class Case:
    """A page on disk and its trace. worth: importances. edges: answer rows."""

    path: Path
    page: Page
    trace: Any
    worth: Sequence[TokenAttention] = ()
    edges: TokenAttention | None = None


def shown_number(text: str) -> float:
    """Parse a number as the page writes it."""
    text = text.replace("−", "-").replace("≈", "").strip()
    return {"–": float("nan"), "∞": float("inf")}.get(text) or float(text)


def check_numbers(texts: Any, values: Any, digits: int = 3) -> None:
    """Check that the page shows these values, rounded to digits, or to two significant digits if they would be zero."""
    numbers, expected = np.array([shown_number(t) for t in np.ravel(texts)]), np.ravel(values).astype(float)
    assert numbers.shape == expected.shape
    small = np.abs(expected) < 0.5 * 10.0**-digits
    room = np.where(small, 0.06 * np.abs(expected), 0.5001 * 10.0**-digits)
    np.testing.assert_array_less(np.abs(numbers - expected), room + 1e-12)


def view_of(trace: Any, method: str, query: int | None = None, **options: Any) -> np.ndarray:
    """Return the library's values [layer, input]."""
    selection = {} if query is None else {"query": query - trace.first_query}
    return getattr(trace, method)(**selection, **options).values[:, 0]


def choose(page: Any, **selected: Any) -> None:
    """Go to a selection by its address."""
    go(page, "&".join(f"{name}={value}" for name, value in selected.items()))


def go(page: Any, fragment: str) -> None:
    """Go to an address, with Details open unless it says otherwise."""
    if not re.search(r"(^|&)d=", fragment):
        fragment = f"{fragment}&d=1" if fragment else "d=1"
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
    """Return the fragment after the page has written it."""
    written = "() => new Promise(done => setTimeout(() => done(location.hash), 125))"  # longer than the page's own wait
    named = dict(re.findall(r"([a-z]+)=([^&]*)", page.evaluate(written)))
    return {name: value for name, value in named.items() if name != "d"}  # nearly every test opens Details


def rows_of(page: Any) -> dict[str, Any]:
    """Return the rows of Compare: each method's tokens with text and colours, and the titles of its correlations."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".rows .row[data-method]")].map(row => [row.dataset.method, {
            tokens: [...row.querySelectorAll(".tok")].map(t => ({i: Number(t.dataset.i), text: t.textContent, joined: t.classList.contains("joined"),
                back: getComputedStyle(t).backgroundColor, ink: getComputedStyle(t).color})),
            rho: [...row.querySelectorAll(".rho span")].map(s => [s.title, s.textContent]), small: row.querySelector("small").textContent,
            why: row.querySelector(".why").hidden ? "" : row.querySelector(".why").textContent}]))"""
    )


def text_of(page: Any) -> str:
    """Return all visible text of the page, without the tables behind pictures, which are made later."""
    return page.evaluate(
        """() => {
            const copy = document.querySelector("article").cloneNode(true);
            for (const hidden of copy.querySelectorAll(".sr")) hidden.remove();
            return copy.textContent;
        }"""
    )


def table_of(page: Any, selector: str) -> list[list[str]]:
    page.wait_for_selector(selector, state="attached")  # tables behind pictures are made once nothing moves
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
    """Return L of OKLab (Ottosson 2020)."""
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    return float(np.dot([0.2104542553, 0.7936177850, -0.0040720468], np.cbrt(to_cones @ linear(colour))))


def contrast(one: str, other: str) -> float:
    """Return the contrast as WCAG 2 defines it."""
    low, high = sorted(float(np.dot([0.2126, 0.7152, 0.0722], linear(c))) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def picture(data: bytes) -> np.ndarray:
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    return np.asarray(image_module.open(io.BytesIO(data)).convert("RGB"))


def check_drawn(data: bytes, path: Path, width: int | None = None, colours: int = 12) -> None:
    """Check that a picture has this width and shows something; keep it in a file for inspection."""
    path.write_bytes(data)
    pixels = picture(data)
    if width is not None:
        assert pixels.shape[1] == width and pixels.shape[0] > 100
    assert len(np.unique(pixels[::3].astype(np.uint32) @ [65536, 256, 1])) >= colours


def carried(graph: np.ndarray, query: int, end: int) -> list[np.ndarray]:
    """Return what rollout carries from a query along every edge: one matrix per step, lowest first."""
    mass = np.eye(graph.shape[-1])[query]
    steps = []
    for matrix in graph[: end + 1][::-1]:
        steps.append(mass[:, None] * matrix)
        mass = mass @ matrix
    return steps[::-1]


def flows_shown(text: str) -> list[tuple[str, float]]:
    """Parse the list after "takes from:" or "gives to:"."""
    return [(name, shown_number(number)) for name, number in re.findall(r"(?:^|, )(.+?) (\S+)(?=, |$)", text)]


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
    """Check the view of paths against `max_flow`. limits: the graph with unlimited capacity for carried states."""
    end = len(graph) - 1
    solved = af.max_flow(graph if limits is None else limits, query, token)
    value = page.locator("strong.value")
    assert float(value.get_attribute("data-value")) == pytest.approx(solved.value, abs=1e-12)
    check_numbers(value.inner_text(), solved.value)
    gap = re.search(r"the capacity of the cut differs by (\S+)", value.get_attribute("title")).group(1)
    assert float(gap) <= 1e-12 and solved.gap <= 1e-12
    assert (
        value.evaluate("v => v.parentNode.textContent")
        .split(" is the most that ")[1]
        .startswith(f"{names[query]} at L{layer} can get from {names[token]}. ")
    )
    rows = as_json(page, "flow")
    paths = solved.paths(8)
    assert [row["path"] for row in rows] == [
        " > ".join(f"{names[p]}@{end + 1 - i}" for i, p in enumerate(path.positions)) for path in paths
    ]
    np.testing.assert_allclose(column(rows, "flow"), [path.amount for path in paths], rtol=1e-8)
    along = [
        np.prod([graph[end - i][q, k] for i, (q, k) in enumerate(zip(p.positions, p.positions[1:], strict=False))])
        for p in paths
    ]
    np.testing.assert_allclose(column(rows, "rollout"), along, rtol=1e-6, atol=1e-12)
    listed = table_of(page, ".paths table")[1:]
    check_numbers([row[1] for row in listed], [p.amount for p in paths], digits=4)
    check_numbers([row[2] for row in listed], along, digits=4)
    cut = table_of(page, ".cuts table")[1:]

    def name(edge: Any) -> str:
        return f"{names[edge.query]} at {levels[edge.layer]} → {names[edge.key]}" + (
            f" at {levels[edge.layer - 1]}" if edge.layer else ""
        )

    assert {row[0] for row in cut[:8]} == {name(edge) for edge in solved.cut[:8]}
    check_numbers([row[1] for row in cut[:8]], [edge.capacity for edge in solved.cut[:8]], digits=4)
    assert len(cut) == len(solved.cut) if len(solved.cut) <= 8 else cut[8][0] == f"and {len(solved.cut) - 8} narrower"
    assert sum(shown_number(row[1]) for row in cut) == pytest.approx(solved.value, abs=1e-3)
    accent = page.evaluate("getComputedStyle(document.querySelector('article')).getPropertyValue('--accent')")
    drawn = page.locator('[data-view="paths"] path[data-cut]').evaluate_all(
        "all => all.map(p => p.getAttribute('stroke'))"
    )
    assert drawn and set(drawn) == {accent}


def check_clean(page: Any) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert page.evaluate("document.scripts.length") == 2  # the document and the script


def focused(page: Any) -> str:
    return page.evaluate(
        """() => { const e = document.activeElement; return e === document.body ? "" : [e.tagName.toLowerCase(), e.id, e.dataset.sort, e.dataset.value, e.dataset.kind,
            e.getAttribute("aria-label"), e.tagName === "BUTTON" ? e.textContent : ""].filter(Boolean).join(" "); }"""
    )
