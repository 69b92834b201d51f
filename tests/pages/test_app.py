"""The web app as a user sees it: `attnflow serve`, and a real browser that types, chooses, cancels and comes back."""

from __future__ import annotations

import http.server
import io
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

import attnflow as af
from attnflow.cli import serve as commands
from attnflow.model import embedded_folder
from attnflow.server import service
from attnflow.server.app import Server
from attnflow.server.limits import Limits
from attnflow.server.service import Served, served
from attnflow.view import document
from helpers.architectures import IMAGE, VOCABULARY, hf
from helpers.browser import HURRY, IDLE, PATIENCE, opened, screenshot
from helpers.small_tokenizers import wordpiece

EXAMPLE = "the key to the cabinets"
OTHER = "the keys near the old cabinet"
LONG = "the key to the cabinets " * 20


@pytest.fixture(scope="module", autouse=True)
def command() -> Iterator[subprocess.Popen[str]]:
    """Start `attnflow serve` with the embedded model under two names; autouse, so that it loads during other tests."""
    models = [f"{name}={embedded_folder()}" for name in ("first", "second")]
    options = ["--port", "0", "--no-open", "--device", "cpu", "-m", models[0], "-m", models[1]]
    child = subprocess.Popen(
        [sys.executable, "-m", "attnflow", "serve", *options],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def address(command: subprocess.Popen[str]) -> str:
    """Return the address of the server."""
    assert command.stderr is not None
    lines = iter(command.stderr.readline, "")
    told = next(line for line in lines if "Ctrl+C" in line)
    return re.findall(r"http://\S+", told)[0]


@cache
def library() -> Any:
    return af.load(device="cpu")


@contextmanager
def visiting(browser: Any, address: str, fragment: str = "", allowed: str = "", **options: Any) -> Iterator[Any]:
    """Open the app and wait for its first explanation; at the end, check that it contacted only its server, without errors.

    Details are open, because most tests read them.

    allowed: a regular expression of permitted console messages.
    options: of playwright's context.
    """
    fragment = f"{fragment}&d=1&b.d=1" if fragment else "#d=1&b.d=1"
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, "color_scheme": "light", **options})
    context.set_default_timeout(PATIENCE)
    context.add_init_script(HURRY)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(address + fragment)
        page.wait_for_selector(".slot")
        idle(page)
        yield page
        assert [line for line in said if not (allowed and re.search(allowed, line))] == []
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
        assert any("/api/jobs" in url for url in asked)
    finally:
        context.close()


def idle(page: Any) -> None:
    """Wait until nothing is being computed and every panel shows the selection."""
    page.wait_for_function(IDLE)


def slot(page: Any, place: int = 0) -> Any:
    return page.locator(".slot").nth(place)


def type_text(page: Any, text: str, place: int = 0, keys: bool = False) -> None:
    """Type a text and explain it, by the button or by Ctrl+Enter."""
    box = slot(page, place).get_by_label("text", exact=True)
    box.fill(text)
    if keys:
        box.press("Control+Enter")
    else:
        slot(page, place).get_by_role("button", name="Explain").click()
    idle(page)


def says(page: Any, place: int = 0) -> str:
    return str(slot(page, place).locator(".say").text_content())


def tokens(page: Any, place: int = 0) -> list[str]:
    return [text.strip() for text in slot(page, place).locator(".query .tok").all_text_contents()]


def chosen(page: Any, place: int = 0) -> str:
    """Return the token whose state is explained."""
    return str(slot(page, place).locator(".query [aria-selected=true]").inner_text())


def table(page: Any, place: int = 0) -> dict[str, list[float]]:
    """Return the numbers on the page, by column heading."""
    box = slot(page, place).locator(".numbers")
    cells = box.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].slice(2).map(cell => cell.textContent))"
    )
    columns = zip(*([float(cell.replace("−", "-")) for cell in row] for row in cells), strict=True)
    heads = [head.strip() for head in box.locator("thead th button").all_text_contents()][1:]
    return dict(zip(heads, map(list, columns), strict=True))


def check(page: Any, text: str, place: int = 0) -> None:
    """Check that the page shows this text with the library's numbers, at the query it opens with."""
    model, trace = library(), library().trace(text)
    assert tokens(page, place) == list(trace.tokens)
    found = table(page, place)
    wanted = {"answer edges": model.trace(text, edges="answer").sources()}
    wanted |= {"raw attention": trace.raw(), "rollout": trace.rollout(), "flow": trace.flow()}
    wanted |= {"gradient": model.gradient(text), "blank-out": model.blank_out(text)}
    assert list(found) == list(wanted)
    for name, result in wanted.items():
        np.testing.assert_allclose(found[name], result.values[-1, 0], atol=0.00051, err_msg=name)


def check_picture(page: Any) -> None:
    """Check that the screen is not blank."""
    pixels = np.asarray(Image.open(io.BytesIO(screenshot(page))).convert("L")).ravel()
    assert len(np.unique(pixels)) > 50
    assert 0.02 < (np.abs(pixels.astype(int) - pixels[0]) > 20).mean() < 0.98


def fragment(page: Any) -> str:
    """Return the address without Details, which are open in all of these tests."""
    return re.sub(r"&?(b\.)?d=1(?=&|$)", "", str(page.evaluate("location.hash"))).replace("#&", "#")


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 8
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def models() -> list[Served]:
    """Models of text, of images and of translation, in this process."""
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    t5 = hf(
        "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return [
        served("first", library()),
        served("eye", af.wrap(hf("ViTForImageClassification", **IMAGE)(), processor)),
        served("translator", af.wrap(t5(), wordpiece())),
    ]


@pytest.fixture(scope="module")
def near(models: list[Served]) -> Iterator[str]:
    """The address of a server in this process, which tests can patch."""
    with closing(commands.listen("127.0.0.1", 0)) as sock:
        server = Server(models, Limits(), "127.0.0.1", sock.getsockname()[1])
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        until(lambda: server.started)
        yield server.address
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def test_a_job_is_watched_and_cancelled(browser: Any, near: str, monkeypatch: pytest.MonkeyPatch) -> None:
    explain, cancelled = service.explain, []

    def slow(model: Any, text: Any, *, progress: Callable[[str, int, int], None], **options: Any) -> Any:
        try:
            while "slow" in text:
                progress("blank-out", 3, 7)
                time.sleep(0.002)
        except BaseException:
            cancelled.append(text)
            raise
        return explain(model, text, progress=progress, **options)

    monkeypatch.setattr(service, "explain", slow)
    with visiting(browser, near) as page:
        box, cancel = slot(page).get_by_label("text", exact=True), slot(page).get_by_role("button", name="Cancel")
        go, said = slot(page).get_by_role("button", name="Explain"), slot(page).locator(".say")
        box.fill("the slow key")
        go.click()
        said.get_by_text("blank-out 3 of 7").wait_for()
        assert abs(slot(page).locator("progress").evaluate("bar => bar.value") - 3 / 7) < 1e-9
        assert go.is_disabled() and cancel.is_visible()
        cancel.click()
        idle(page)
        assert says(page) == "cancelled" and not cancel.is_visible()
        until(lambda: cancelled == ["the slow key"])
        assert tokens(page)[1:-1] == EXAMPLE.split()

        box.fill("the slow keys")  # a new text replaces a running one, even if that was sent a moment ago
        box.press("Control+Enter")
        box.fill("a slow key")
        box.press("Control+Enter")
        box.fill(OTHER)
        box.press("Control+Enter")
        idle(page)
        check(page, OTHER)
        assert says(page) == ""

        page.get_by_role("button", name="compare with another text or model").click()  # two share one thread
        box.fill("one slow key")
        go.click()
        said.get_by_text("blank-out 3 of 7").wait_for()
        second = slot(page, 1)
        second.get_by_label("text", exact=True).fill("two slow keys")
        second.get_by_role("button", name="Explain").click()
        second.get_by_text("waiting: 1 ahead of this").wait_for()
        second.get_by_role("button", name="close").click()
        cancel.click()
        idle(page)
        type_text(page, EXAMPLE)
        check(page, EXAMPLE)
        assert "two slow keys" not in cancelled and "one slow key" in cancelled


def test_a_job_is_cancelled_before_the_server_has_named_it(browser: Any, near: str) -> None:
    with visiting(browser, near) as page:
        page.evaluate("""() => {
            const real = window.fetch;
            window.log = [];
            window.fetch = async (path, options) => {
                window.log.push(`${options.method} ${path}`);
                const answer = await real(path, options);
                if (options.method === "POST") await new Promise(resolve => { window.name_it = resolve; });
                return answer;
            };
        }""")
        slot(page).get_by_role("button", name="Explain").click()
        slot(page).get_by_role("button", name="Cancel").click()
        idle(page)
        assert says(page) == "cancelled"
        page.wait_for_function("() => !!window.name_it")
        page.evaluate("name_it()")
        page.wait_for_function("() => log.some(line => line.startsWith('DELETE /api/jobs/'))")
        assert page.evaluate("log.length") == 2 and says(page) == "cancelled"


def test_rows_that_the_page_does_not_hold_are_asked_for(
    browser: Any, near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "PAIRS", 10)
    with visiting(browser, near) as page:
        assert "flow" in table(page)
        with page.expect_response(f"{near}api/rows") as answer:
            slot(page).locator(".query .tok", has_text="cabinets").click()
        assert answer.value.status == 200
        page.locator('.row[data-method="flow"]:not(.absent)').wait_for()
        idle(page)
        flow = library().trace(EXAMPLE).flow(query=5)
        np.testing.assert_allclose(table(page)["flow"], flow.values[-1, 0], atol=0.00051)


def test_an_image(browser: Any, near: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 48, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    with visiting(browser, near) as page:
        slot(page).get_by_label("model").select_option("eye")
        assert not slot(page).get_by_label("text", exact=True).is_visible()
        go = slot(page).get_by_role("button", name="Explain")
        go.click()
        idle(page)
        assert says(page) == "choose an image first"
        slot(page).get_by_label("image", exact=True).set_input_files(
            {"name": "noise.png", "mimeType": "image/png", "buffer": out.getvalue()}
        )
        go.click()
        idle(page)
        assert says(page) == "" and page.locator(".patches span").count() == 16
        assert fragment(page) == "#model=eye"
        check_picture(page)
        page.reload()
        page.get_by_text("Choose an image and press Explain.").wait_for()


def test_what_the_decoder_writes(browser: Any, near: str, models: list[Served]) -> None:
    with visiting(browser, near) as page:
        slot(page).get_by_label("model").select_option("translator")
        slot(page).get_by_label("what the decoder writes").fill("a book")
        type_text(page, "the key")
        trace = models[2].model.trace("the key", target="a book")
        assert tokens(page) == list(trace.tokens[trace.first_query :])
        np.testing.assert_allclose(
            table(page)["rollout"], trace.rollout(query=trace.default_query).values[-1, 0], atol=0.00051
        )
        assert "target=a+book" in fragment(page)


def test_it_opens_with_an_example_explained(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        assert page.title() == "attnflow"
        assert slot(page).get_by_label("text", exact=True).input_value() == EXAMPLE
        assert slot(page).get_by_label("model").input_value() == "first"
        assert slot(page).locator(".model-name").inner_text() == "first"
        assert says(page) == "" and not slot(page).locator("progress").is_visible()
        assert not slot(page).get_by_role("button", name="Cancel").is_visible()
        check(page, EXAMPLE)
        check_picture(page)


def test_another_text(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        slot(page).locator(".query .tok", has_text="cabinets").click()
        page.wait_for_function("() => location.hash.includes('q=5')")
        type_text(page, OTHER)
        check(page, OTHER)
        assert chosen(page) == "[CLS]" and "q=" not in fragment(page)  # positions do not carry over to another text
        odd = "the «key» 🔑 <b>to</b>\n\nthe cabinets & more"
        type_text(page, odd, keys=True)
        check(page, odd)


def test_the_other_model(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        slot(page).get_by_label("model").select_option("second")
        assert slot(page).locator(".model-name").inner_text() == "first"  # nothing changes before Explain
        type_text(page, EXAMPLE)
        assert slot(page).locator(".model-name").inner_text() == "second"
        check(page, EXAMPLE)


def test_how_it_looks_stays_with_another_text(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        page.get_by_role("tab", name="Flow paths").click()
        page.get_by_role("button", name="dark theme").click()
        assert page.locator("#attnflow").get_attribute("data-theme") == "dark"
        type_text(page, OTHER)
        assert page.get_by_role("tab", name="Flow paths").get_attribute("aria-selected") == "true"
        assert page.locator("#attnflow").get_attribute("data-theme") == "dark"
        page.get_by_role("button", name="light theme").click()
        page.wait_for_timeout(40)  # by then the previous page has noticed that it has no width any more
        assert page.locator("#attnflow").get_attribute("data-theme") == "light"
    with visiting(browser, address, color_scheme="dark") as page:
        assert page.locator("#attnflow").get_attribute("data-theme") == "dark"
        assert page.locator(".ask").evaluate("node => getComputedStyle(node).color") == "rgb(231, 235, 240)"
        check_picture(page)


def test_two_texts_beside_each_other(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        page.get_by_role("button", name="compare with another text or model").click()
        assert page.locator(".slot").count() == 2
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        assert slot(page, 1).get_by_label("text", exact=True).input_value() == EXAMPLE
        assert slot(page, 1).locator(".body").inner_text() == "Type a text and press Explain."
        type_text(page, OTHER, place=1)
        check(page, EXAMPLE)
        check(page, OTHER, place=1)
        left, right = (slot(page, place).bounding_box() for place in (0, 1))
        assert left["x"] + left["width"] <= right["x"] + 1 and abs(left["y"] - right["y"]) < 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        slot(page, 1).locator(".query .tok", has_text="old").click()  # the tokens differ: each side has its own query
        idle(page)
        assert (chosen(page), chosen(page, 1)) == ("[CLS]", "old")
        check_picture(page)
        page.wait_for_function("() => location.hash.includes('b.q=5')")
        slot(page, 1).get_by_role("button", name="close").click()
        assert page.locator(".slot").count() == 1 and "b." not in fragment(page)
        assert page.evaluate("document.activeElement.textContent") == "compare with another text or model"
        idle(page)
        check(page, EXAMPLE)
        assert slot(page).bounding_box()["width"] > left["width"] * 1.9


def test_a_page_saved_from_the_app_opens_by_itself(browser: Any, address: str, tmp_path: Path) -> None:
    with visiting(browser, address, "#t=2") as page:
        slot(page).locator(".keep > summary").click()
        with page.expect_download() as download:
            slot(page).locator('.keep [data-kind="page"]').click()
        download.value.save_as(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        assert page.title() == f"{EXAMPLE} · attnflow"
        assert page.locator(".reading .chosen").inner_text() == "key"
        assert page.locator(".slot").count() == 0


def test_two_models_of_one_text_move_together(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        slot(page).locator(".query .tok", has_text="cabinets").click()
        page.get_by_role("button", name="compare with another text or model").click()
        slot(page, 1).get_by_label("model").select_option("second")
        type_text(page, EXAMPLE, place=1)
        assert (chosen(page), chosen(page, 1)) == ("cabinets", "cabinets")  # the second copies the query
        for leader, token in ((0, "key"), (1, "to")):
            slot(page, leader).locator(".query .tok", has_text=re.compile(f"^{token}$")).click()
            idle(page)
            assert (chosen(page), chosen(page, 1)) == (token, token)
        slot(page, 1).get_by_role("slider").fill("2")
        idle(page)
        assert [slot(page, place).locator(".pick-layer output").inner_text() for place in (0, 1)] == ["L3 of L6"] * 2
        assert table(page) == table(page, 1)
        np.testing.assert_allclose(
            table(page)["flow"], library().trace(EXAMPLE).flow(query=3, layer=2).values[0, 0], atol=0.00051
        )
        slot(page, 1).get_by_role("button", name="dark theme").click()
        assert page.locator("#attnflow [data-theme=dark]").count() == 2
        type_text(page, OTHER)  # now the texts differ, so each side has its own query, in the address too
        slot(page, 1).locator(".query .tok", has_text="cabinets").click()
        idle(page)
        assert (chosen(page), chosen(page, 1)) == ("[CLS]", "cabinets")
        page.wait_for_function("() => location.hash.includes('b.q=5')")
        assert not re.search(r"[#&]q=", fragment(page))
        page.reload()
        page.wait_for_selector(".slot:nth-child(2) article")
        idle(page)
        assert (chosen(page), chosen(page, 1)) == ("[CLS]", "cabinets")


def test_the_address_is_the_view(browser: Any, address: str) -> None:
    with visiting(browser, address) as page:
        slot(page).get_by_label("model").select_option("second")
        type_text(page, OTHER)
        slot(page).locator(".query .tok", has_text="cabinet").click()
        slot(page).get_by_role("slider").fill("1")
        page.get_by_role("tab", name="Heads").click()
        page.wait_for_function("() => location.hash.includes('v=heads')")
        idle(page)
        assert fragment(page) == "#model=second&text=the+keys+near+the+old+cabinet&q=6&l=2&v=heads"
        view = table(page)
        page.reload()
        page.wait_for_selector("article")
        idle(page)
        link = fragment(page)
        assert table(page) == view
    with visiting(browser, address, link) as page:
        assert fragment(page) == link and table(page) == view
        assert slot(page).get_by_label("model").input_value() == "second" and chosen(page) == "cabinet"
        assert page.get_by_role("tab", name="Heads").get_attribute("aria-selected") == "true"
        both = "#model=first&text=the+key&q=2&b.model=second&b.text=the+keys&d=1&b.d=1"
        page.goto(f"{address}{both}")  # the app is already open
        page.wait_for_selector(".slot:nth-child(2) article")
        idle(page)
        assert (tokens(page)[1:-1], tokens(page, 1)[1:-1]) == (["the", "key"], ["the", "keys"])
        assert (chosen(page), chosen(page, 1)) == ("key", "[CLS]")
        page.go_back()
        page.wait_for_function(
            "() => document.querySelectorAll('.slot').length === 1 && document.querySelectorAll('.query .tok').length === 8"
        )
        idle(page)
        assert table(page) == view
    with visiting(browser, address, "#model=nowhere&text=&q=99&v=constructor&b.q=3") as page:
        assert slot(page).get_by_label("model").input_value() == "first" and page.locator(".slot").count() == 1
        assert says(page) == "the text '' is empty: expected at least one word"


def test_what_goes_wrong_is_one_sentence(browser: Any, address: str) -> None:
    with visiting(browser, address, allowed="413") as page:
        for text in ("", "  \n "):
            type_text(page, text)
            assert says(page) == f"the text {text!r} is empty: expected at least one word"
            assert slot(page).locator(".say.bad").is_visible()
        assert tokens(page)[1:-1] == EXAMPLE.split()  # the last result stays
        type_text(page, "the " * 5121)
        assert says(page) == "the text has 20,484 characters, and this server accepts 20,480: shorten it"
        type_text(page, LONG)
        assert says(page).startswith("the text has 102 tokens and the model takes 64: shorten it")
        page.get_by_label("truncate a text that is too long").check()
        type_text(page, LONG)
        assert says(page) == "" and not slot(page).locator(".say.bad").count()
        assert len(tokens(page)) == 64
        rollout = library().trace(LONG, truncate=True).rollout()
        np.testing.assert_allclose(table(page)["rollout"], rollout.values[-1, 0], atol=0.00051)
        page.reload()
        page.wait_for_selector("article")
        idle(page)
        assert len(tokens(page)) == 64 and page.get_by_label("truncate a text that is too long").is_checked()


def test_its_content_policy_is_in_force(browser: Any, address: str) -> None:
    with closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(address)
        blocked = page.evaluate("""async address => {
            const found = [];
            document.addEventListener("securitypolicyviolation", event => found.push(event.effectiveDirective));
            const elsewhere = address.replace("127.0.0.1", "localhost");
            await fetch(`${elsewhere}api/models`).catch(() => null);
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            const picture = new Image();
            picture.src = `${elsewhere}x.png`;
            const frame = document.createElement("iframe");
            frame.src = elsewhere;
            document.body.append(frame);
            await new Promise(resolve => setTimeout(resolve, 100));
            return [found.sort(), window.ran ?? false];
        }""", address)  # fmt: skip
        assert blocked == [["connect-src", "frame-src", "img-src", "script-src-elem"], False]


ELSEWHERE = """<!doctype html><title>elsewhere</title>
<a href="ADDRESS#text=the+key">link</a>
<form method="post" enctype="text/plain" action="ADDRESSapi/explain">
<input name='{"model":"first","text":"the key","x":"' value='"}'><button>send</button></form>"""


@pytest.fixture
def elsewhere(address: str) -> Iterator[str]:
    """A page of another origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(ELSEWHERE.replace("ADDRESS", address).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://localhost:{found.server_address[1]}/"
        found.shutdown()
        thread.join()


def test_a_page_elsewhere_gets_nothing(browser: Any, address: str, elsewhere: str) -> None:
    with closing(browser.new_context()) as context:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        statuses: list[tuple[str, int]] = []
        page.on(
            "response", lambda answer: answer.url.startswith(address) and statuses.append((answer.url, answer.status))
        )
        page.goto(elsewhere)
        told = page.evaluate("""async address => {
            const body = JSON.stringify({model: "first", text: "the key"}), tried = [];
            const asks = [
                [address, {}], [`${address}api/models`, {}], [`${address}openapi.json`, {}],
                [`${address}api/explain`, {method: "POST", body}],
                [`${address}api/explain`, {method: "POST", body, headers: {"Content-Type": "application/json"}}],
            ];
            asks.push([`${address}api/jobs`, {method: "POST", body, mode: "no-cors"}]);
            for (const ask of asks) tried.push(await fetch(...ask).then(() => "read", error => error.name));
            const frame = document.createElement("iframe");
            frame.src = address;
            await new Promise(resolve => { frame.onload = resolve; document.body.append(frame); });
            return tried;
        }""", address)  # fmt: skip
        assert told == ["TypeError"] * 6
        assert statuses and {status for _, status in statuses} <= {403, 405, 415}, statuses
        assert not any(frame.query_selector("#attnflow") for frame in page.frames)
        page.get_by_role("button", name="send").click()
        page.wait_for_url(f"{address}api/explain")
        sentence = f"the request comes from a page on '{elsewhere[:-1]}': only the server's own page may send requests"
        assert json.loads(page.locator("body").inner_text()) == {"error": sentence}
        page.goto(elsewhere)  # links to the app are allowed
        page.get_by_role("link").click()
        page.wait_for_selector("article")
        idle(page)
        assert tokens(page)[1:-1] == ["the", "key"]


def test_the_server_is_gone(browser: Any, address: str, command: subprocess.Popen[str]) -> None:
    """Runs last, because it stops the server."""
    with visiting(browser, address, allowed="ERR_CONNECTION") as page:
        command.kill()
        command.wait(10)
        type_text(page, OTHER)
        assert says(page) == "The server does not respond. Is attnflow serve still running?"
        check(page, EXAMPLE)  # the last result stays readable
        slot(page).locator(".query .tok", has_text="cabinets").click()
        idle(page)
        assert chosen(page) == "cabinets"
