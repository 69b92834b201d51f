"""The speed of the pages in a real browser, on opening and after a change: ``python -m benchmarks.page_speed``."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson, numbers, progress
from attnflow.errors import InputError
from benchmarks.answer_documents import synthetic_page
from benchmarks.command import run_command

VIEWS = ("first screen", "compare", "graph", "paths", "heads")

# the time from the start of navigation to the first frame with the headline and the shaded text
SHOWN = """
const look = () => document.querySelector(".attnflow[data-updated]")
  ? setTimeout(() => { document.documentElement.dataset.shown = performance.now(); }) : requestAnimationFrame(look);
requestAnimationFrame(look);
"""

# from the slider's event to the frame that shows its effect
CHANGE = """async layer => {
  const slider = document.querySelector(".pick-layer input"), start = performance.now();
  slider.value = layer;
  slider.dispatchEvent(new Event("input", {bubbles: true}));
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""

# from a press on a token of the answer to the frame that shows its sources
SPAN = """async token => {
  const one = document.querySelectorAll(".said .tok")[token], start = performance.now();
  one.dispatchEvent(new PointerEvent("pointerdown", {bubbles: true, button: 0}));
  dispatchEvent(new PointerEvent("pointerup"));
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""


@dataclass(frozen=True)
class AnswerRow:
    """One size of the answer page. Milliseconds; for changes of span the median and the longest, by unit."""

    tokens: int
    answer: int
    megabytes: float
    made_s: float
    shown_ms: float
    change_ms: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One size. Milliseconds; for changes of layer the median and the longest."""

    tokens: int
    layers: int
    heads: int
    megabytes: float
    made_s: float
    shown_ms: float
    change_ms: dict[str, tuple[float, float]]


def run(sizes: list[int], layers: int, heads: int, rounds: int, say: Callable[[str], None]) -> list[Row]:
    rows = []
    with _browser() as (browser, folder):
        for tokens in sizes:
            say(f"{tokens} tokens")
            path = folder / f"{tokens}.html"
            seconds = _made(tokens, layers, heads, path)
            shown = [_shown(browser, path) for _ in range(rounds)]
            changes = {view: _changes(browser, path, view, layers) for view in VIEWS}
            medians = {view: (statistics.median(times), max(times)) for view, times in changes.items()}
            size = path.stat().st_size / 1e6
            rows.append(Row(tokens, layers, heads, size, seconds, statistics.median(shown), medians))
    return rows


def run_answers(sizes: list[int], answer: int, rounds: int, say: Callable[[str], None]) -> list[AnswerRow]:
    """Measure the page of an answer of `answer` tokens after prompts of these sizes."""
    rows = []
    with _browser() as (browser, folder):
        for tokens in sizes:
            say(f"an answer to {tokens} tokens")
            path = folder / f"answer-{tokens}.html"
            start = time.perf_counter()
            path.write_text(synthetic_page(tokens, answer), encoding="utf-8")
            seconds = time.perf_counter() - start
            shown = [_shown(browser, path) for _ in range(rounds)]
            changes = {unit: _span_changes(browser, path, unit, answer) for unit in ("sentence", "token")}
            medians = {unit: (statistics.median(times), max(times)) for unit, times in changes.items()}
            size = path.stat().st_size / 1e6
            rows.append(AnswerRow(tokens, answer, size, seconds, statistics.median(shown), medians))
    return rows


@contextmanager
def _browser() -> Iterator[tuple[Any, Path]]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        raise InputError("this benchmark needs a real browser: install chromium, and pip install playwright")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser, Path(folder)
        browser.close()


def weights(tokens: int, layers: int, heads: int, seed: int = 0) -> Any:
    """Return attention that compresses as badly as real attention: noise with a preference for neighbours, by head."""
    random = np.random.default_rng(seed)
    near = np.exp(-np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens))) / 6).astype(np.float32)
    logits = 1.6 * random.standard_normal((layers, heads, tokens, tokens), dtype=np.float32)
    logits += 2.5 * near * random.random((layers, heads, 1, 1), dtype=np.float32)
    logits = np.exp(logits - logits.max(-1, keepdims=True))
    return logits / logits.sum(-1, keepdims=True)


def _made(tokens: int, layers: int, heads: int, path: Path) -> float:
    from attnflow.view.page import of_weights

    attention = weights(tokens, layers, heads)
    start = time.perf_counter()
    of_weights(attention, [f"token{i % 97}" for i in range(tokens)]).save(path)
    return time.perf_counter() - start


def _opened(browser: Any, path: Path, fragment: str = "") -> Any:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.add_init_script(SHOWN)
    page.goto(path.as_uri() + fragment)
    page.wait_for_selector("html[data-shown]")
    return page


def _shown(browser: Any, path: Path) -> float:
    page = _opened(browser, path)
    milliseconds = float(page.evaluate("document.documentElement.dataset.shown"))
    page.close()
    return milliseconds


def _span_changes(browser: Any, path: Path, unit: str, answer: int) -> list[float]:
    page = _opened(browser, path)
    page.get_by_role("button", name=f"{unit}s", exact=True).click()
    times = []
    for token in np.linspace(0, answer - 1, 20).astype(int).tolist():
        times.append(float(page.evaluate(SPAN, token)))
        page.wait_for_timeout(100)
    page.close()
    return times


def _changes(browser: Any, path: Path, view: str, layers: int) -> list[float]:
    page = _opened(browser, path, "#a=rollout" if view == "first screen" else "#d=1")
    page.wait_for_selector(".attnflow[data-settled]")
    if view == "compare":
        page.locator('[data-panel="compare"]').scroll_into_view_if_needed()
    elif view != "first screen":
        page.locator(f".tabs [data-view={view}]").click()
        page.wait_for_timeout(3000)  # heads are computed once
    times = []
    for layer in [*range(layers - 1), *reversed(range(layers - 1))]:
        times.append(float(page.evaluate(CHANGE, layer)))
        page.wait_for_timeout(400)  # hidden parts are painted later
    page.close()
    return times


def main(
    sizes: Annotated[str, typer.Option(help="Tokens.")] = "16,128,512",
    layers: Annotated[int, typer.Option(min=2, help="Layers.")] = 12,
    heads: Annotated[int, typer.Option(min=1, help="Heads per layer.")] = 12,
    rounds: Annotated[int, typer.Option(min=1, help="How often the page is opened, to take medians.")] = 5,
    answers: Annotated[
        str, typer.Option(help="Measure the page of an answer instead, after prompts of this many tokens.")
    ] = "",
    written: Annotated[int, typer.Option(min=2, help="Tokens of the answer.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Measure the interactive pages in a real browser: size, time until shown, time of a change of layer or span."""
    if answers:
        _print_answers(run_answers(numbers(answers, "answers", 2), written, rounds, progress), as_json)
        return
    rows = run(numbers(sizes, "sizes", 2), layers, heads, rounds, progress)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table(
        "tokens", "MB", "made, s", "shown, ms", *(f"layer, ms ({view})" for view in VIEWS),
        caption=f"{layers} layers of {heads} heads; layer: median and longest of {2 * (layers - 1)} changes",
    )  # fmt: skip
    for row in rows:
        changes = (f"{median:.0f} / {most:.0f}" for median, most in row.change_ms.values())
        table.add_row(str(row.tokens), f"{row.megabytes:.2f}", f"{row.made_s:.1f}", f"{row.shown_ms:.0f}", *changes)
    Console().print(table)


def _print_answers(rows: list[AnswerRow], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    units = list(rows[0].change_ms)
    table = Table(
        "tokens", "answer", "MB", "made, s", "shown, ms", *(f"span, ms ({unit}s)" for unit in units),
        caption="span: median and longest of 20 changes",
    )  # fmt: skip
    for row in rows:
        changes = (f"{median:.0f} / {most:.0f}" for median, most in row.change_ms.values())
        sizes = (str(row.tokens), str(row.answer), f"{row.megabytes:.2f}", f"{row.made_s:.1f}", f"{row.shown_ms:.0f}")
        table.add_row(*sizes, *changes)
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
