"""The answer page inside an app: sources that a server leaves out."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="answers need torch")
pytest.importorskip("transformers", reason="answers need transformers")

from attnflow.view.answer_page import document_of
from helpers.answers import QUESTION, decoder

SOURCES = Path(__file__).parents[2] / "web" / "src"
TEXT = "The key is in the cabinet. Nobody has the books. A rusty key is old."
WORDS = "the rusty key is in the cabinet"

MOUNT = """async ([doc, falls]) => {
    document.body.innerHTML = '<main id="attnflow"></main>';
    const { mountAnswer } = await import("/answer.js");
    window.questions = [];
    const leaveOut = async (question) => {
        window.questions.push(question);
        if (falls === null) throw new Error("the model is busy");
        return { fall: falls[question.number] };
    };
    window.shown = await mountAnswer(document.getElementById("attnflow"), doc, "x.", { leaveOut });
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SOURCES)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


def written(model: Any, words: int) -> Any:
    chat = [{"role": "user", "content": QUESTION}]
    return model.answer(chat, documents={"minutes.txt": TEXT}, answer=" ".join(WORDS.split()[:words]))


@contextmanager
def mounted(browser: Any, address: str, doc: Any, falls: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address + "types.d.ts")  # any page of that origin
    page.evaluate(MOUNT, [doc, falls])
    yield page
    assert errors == []
    page.close()


def test_the_server_leaves_a_source_out(browser: Any, address: str, model: Any) -> None:
    answer = written(model, 7)
    falls = answer.leave_out("sentence", (1, 3)).row()
    with mounted(browser, address, document_of(answer), falls.tolist()) as page:
        page.evaluate("shown.state.set({ s: '1-2' })")
        line = page.locator(".list li").first
        number = int(line.get_attribute("data-source"))
        assert page.locator(".list .verify").is_hidden()
        line.get_by_role("button", name="is it true?").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".list .agrees, .list .disagrees")
        assert page.evaluate("questions") == [{"span": [1, 2], "unit": "sentence", "number": number}]
        said = re.match(r"without it: log p (.)(\S+) (.+)", page.locator(".truth").inner_text())
        assert said is not None and float(said[2]) == pytest.approx(abs(falls[number]), abs=6e-3)
        agrees = falls[number] >= 0.1
        assert said[3] == ("✓" if agrees else "disagrees")
        page.evaluate("shown.state.set({ u: 'word' })")
        assert not page.locator(".truth").count(), "another unit was not left out"
        page.evaluate("shown.state.set({ u: 'sentence' })")
        assert page.locator(".truth").count() == 1
        assert np.isfinite(falls).all()


def test_a_server_that_cannot_says_why(browser: Any, address: str, model: Any) -> None:
    with mounted(browser, address, document_of(written(model, 3)), None) as page:
        page.locator(".list .ask").first.click()
        page.wait_for_selector(".truth")
        assert page.locator(".truth").inner_text() == "the model is busy"


def test_close_leaves_nothing(browser: Any, address: str, model: Any) -> None:
    with mounted(browser, address, document_of(written(model, 3), method="answer_rows"), []) as page:
        page.evaluate("shown.close()")
        assert page.locator("#attnflow > *").count() == 0
