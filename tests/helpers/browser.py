"""A real browser for the tests of the page."""

from __future__ import annotations

import base64
import re
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
    """Debian's Chromium, headless, driven by playwright; skips where one of them is missing."""
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
            PAGES.clear()
            browser.close()


SETTLED = """() => {
    const page = document.querySelector("article.attnflow");
    return !!page && page.dataset.settled === page.dataset.updated && !page.querySelector("[aria-busy=true]");
}"""


# Every wait of the page, for its address or for the tables behind its pictures, takes a tenth of its time.
HURRY = """(() => {
    const wait = window.setTimeout;
    window.setTimeout = (work, delay, ...given) => wait(work, delay / 10, ...given);
})()"""

# A browser stops a page that saves more than ten files a second: while there is a `keep`, it gets what would be saved.
CATCH = """(() => {
    const made = new Map(), address = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
    URL.createObjectURL = blob => {
        const url = address.call(URL, blob);
        made.set(url, blob);
        return url;
    };
    HTMLAnchorElement.prototype.click = function () {
        if (window.keep) window.keep([this.download, made.get(this.href)]);
        else click.call(this);
    };
})()"""

EXPORT = """async ([name, kind]) => {
    const menu = document.querySelector(`details.export[data-name="${name}"]`);
    const saved = new Promise((done, fail) => {
        window.keep = done;
        setTimeout(() => fail(new Error(`no ${kind} of ${name}: ${document.querySelector("[aria-live]").textContent}`)), 50000);
    });
    menu.open = true;
    menu.querySelector(`[data-kind="${kind}"]`).click();
    try {
        const [file, blob] = await saved;
        const reader = new FileReader();
        await new Promise(done => { reader.onload = done; reader.readAsDataURL(blob); });
        return [file, reader.result.split(",")[1] ?? ""];
    } finally {
        window.keep = null;
    }
}"""


# By browser and options. A new one costs more than most tests do with it, and a file keeps nothing but its address.
PAGES: dict[tuple[Any, ...], Any] = {}


@contextmanager
def opened(browser: Any, path: Path, fragment: str = "", details: bool = True, **options: Any) -> Iterator[Any]:
    """A file as a page to drive. At the end: it asked for nothing but itself, raised nothing and told the console nothing.

    details: whether Details are open, as most tests read what stands there. options: of playwright's context, as
    color_scheme.
    """
    if details and not re.search(r"[#&]d=", fragment):
        fragment = f"{fragment}&d=1" if fragment else "#d=1"
    options = {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light", **options}
    key = (browser, str(sorted(options.items())))
    page = PAGES.pop(key, None)  # not there again before its test has passed
    if page is None:
        context = browser.new_context(**options)
        context.set_default_timeout(8000)
        context.add_init_script(CATCH)
        context.add_init_script(HURRY)
        page = context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    listeners = {
        "request": lambda request: requests.append(request.url),
        "console": lambda message: messages.append(message.text),
        "pageerror": lambda error: messages.append(str(error)),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        page.goto(path.as_uri() + fragment)
        if len(page.frames) == 1:
            settle(page)
        yield page
        assert messages == [], messages
        strangers = [
            url for url in requests if not url.startswith(("data:", "blob:")) and url.split("#")[0] != path.as_uri()
        ]
        assert strangers == [], strangers
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.mouse.move(0, 0)
        page.goto("about:blank")
        PAGES[key] = page
    finally:
        if PAGES.get(key) is not page:
            page.context.close()


def settle(page: Any) -> None:
    """Wait until every panel shows what is selected."""
    page.wait_for_function(SETTLED)


def exported(page: Any, name: str, kind: str) -> bytes:
    """What the menu of a panel would save."""
    file, content = page.evaluate(EXPORT, [name, kind])
    assert file == f"attnflow-{name}.{kind}"
    return base64.b64decode(content)


def downloaded(page: Any, name: str, kind: str) -> bytes:
    """What it saves."""
    menu = page.locator(f'details.export[data-name="{name}"]')
    menu.locator("summary").click()
    with page.expect_download() as download:
        menu.locator(f'[data-kind="{kind}"]').click()
    saved = download.value
    assert saved.suggested_filename == f"attnflow-{name}.{kind}"
    content: bytes = Path(saved.path()).read_bytes()
    return content


def screenshot(page: Any, tries: int = 3, **options: Any) -> bytes:
    """A screenshot of a page or a part of it. On a busy machine Chromium now and then says that it cannot take one."""
    for _ in range(tries - 1):
        try:
            taken: bytes = page.screenshot(**options)
            return taken
        except Exception as e:
            if "Unable to capture screenshot" not in str(e):
                raise
    last: bytes = page.screenshot(**options)
    return last
