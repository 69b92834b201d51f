"""A real browser for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Without a sandbox because containers have none to give; the rest keeps the browser from calling home.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, headless, driven by playwright; skips where one of them is missing. One a test module will do."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        pytest.skip("needs Debian's chromium and the playwright package")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


SETTLED = """() => {
    const page = document.querySelector("article.attnflow");
    return !!page && page.dataset.settled === page.dataset.updated && !page.querySelector("[aria-busy=true]");
}"""


@contextmanager
def opened(browser: Any, path: Path, fragment: str = "", **options: Any) -> Iterator[Any]:
    """A file as a page to drive. At the end: it asked for nothing but itself, raised nothing and told the console nothing.

    options: of playwright's context, as color_scheme.
    """
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, "color_scheme": "light", **options})
    context.set_default_timeout(8000)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(path.as_uri() + fragment)
        if len(page.frames) == 1:
            settle(page)
        yield page
        assert said == [], said
        strangers = [
            url for url in asked if not url.startswith(("data:", "blob:")) and url.split("#")[0] != path.as_uri()
        ]
        assert strangers == [], strangers
    finally:
        context.close()


def settle(page: Any) -> None:
    """Wait until every panel shows what is selected."""
    page.wait_for_function(SETTLED)


def exported(page: Any, name: str, kind: str) -> bytes:
    """What the menu of a panel saves."""
    menu = page.locator(f'details.export[data-name="{name}"]')
    menu.evaluate("menu => { menu.open = true }")
    with page.expect_download() as download:
        menu.locator(f'[data-kind="{kind}"]').click()
    saved = download.value
    assert saved.suggested_filename == f"attnflow-{name}.{kind}"
    content: bytes = Path(saved.path()).read_bytes()
    return content
