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

# Containers have no sandbox; the other options keep the browser from calling home.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


PATIENCE = 60_000
"""How many milliseconds a test waits for a page before it fails. Long, because other work may share the machine."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Debian's headless Chromium with playwright; skip the test if either is missing."""
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


# Browsers report in a later task that a <details> was opened, so events that are due come first. Frames of their own
# process may be later still: wait for what they show. A predicate that is waited for must not be async itself.
DUE = "() => new Promise(done => setTimeout(done))"

SETTLED = """() => {
    const page = document.querySelector("article.attnflow");
    return !!page && page.dataset.settled === page.dataset.updated && !page.querySelector("[aria-busy=true]");
}"""

# The same for the app, whose pages are in slots: no slot, no page and no edit is at work.
IDLE = """() => {
    const settled = page => page.dataset.settled === page.dataset.updated && !page.querySelector("[aria-busy=true]");
    const forms = [...document.querySelectorAll(".slot .go [type=submit]")];
    return !document.querySelector(".edit[aria-busy=true]") && forms.every(go => !go.disabled) &&
        [...document.querySelectorAll("article.attnflow")].every(settled);
}"""


# The page's own timers, such as those for its address and hidden tables, take a tenth of their time.
HURRY = """(() => {
    const wait = window.setTimeout;
    window.setTimeout = (work, delay, ...given) => wait(work, delay / 10, ...given);
})()"""

# Browsers stop a page that saves more than ten files a second, so a `keep` function receives the files instead.
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


# Pages by browser and options. A new page costs more than most tests, and pages keep no state but their address.
PAGES: dict[tuple[Any, ...], Any] = {}


@contextmanager
def opened(browser: Any, path: Path, fragment: str = "", details: bool = True, **options: Any) -> Iterator[Any]:
    """Open a file as a page. Check at the end that it made no other requests, raised no errors and logged nothing.

    details: whether Details are open, which most tests read. options: for playwright's context, such as color_scheme.
    """
    if details and not re.search(r"[#&]d=", fragment):
        fragment = f"{fragment}&d=1" if fragment else "#d=1"
    options = {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light", **options}
    key = (browser, str(sorted(options.items())))
    page = PAGES.pop(key, None)  # comes back only after its test has passed
    if page is None:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
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
    page.evaluate(DUE)
    page.wait_for_function(SETTLED)


def exported(page: Any, name: str, kind: str) -> bytes:
    """Return what the menu of a panel would save."""
    file, content = page.evaluate(EXPORT, [name, kind])
    assert file == f"attnflow-{name}.{kind}"
    return base64.b64decode(content)


def downloaded(page: Any, name: str, kind: str) -> bytes:
    """Return what the menu of a panel saves."""
    menu = page.locator(f'details.export[data-name="{name}"]')
    menu.locator("summary").click()
    with page.expect_download() as download:
        menu.locator(f'[data-kind="{kind}"]').click()
    saved = download.value
    assert saved.suggested_filename == f"attnflow-{name}.{kind}"
    content: bytes = Path(saved.path()).read_bytes()
    return content


def screenshot(page: Any, tries: int = 3, **options: Any) -> bytes:
    """Take a screenshot of a page or a part of it, with retries because Chromium sometimes fails on a busy machine."""
    for _ in range(tries - 1):
        try:
            taken: bytes = page.screenshot(**options)
            return taken
        except Exception as e:
            if "Unable to capture screenshot" not in str(e):
                raise
    last: bytes = page.screenshot(**options)
    return last
