"""More ways to use the app, in a real browser: growing answers, removed words, partial and outdated results."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import attnflow as af
from attnflow.evaluate import importances
from attnflow.server import edits, service
from attnflow.server.app import Server
from attnflow.server.limits import Limits
from attnflow.server.queue import Job
from attnflow.server.service import served
from helpers.answers import decoder
from helpers.browser import HURRY, IDLE, PATIENCE
from helpers.served import serving

EXAMPLE = "the key to the cabinets"
PROMPT = "The key is in the cabinet. Nobody has the books. Who has the key?"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def library() -> Any:
    return af.load(device="cpu")


@pytest.fixture(scope="module")
def writer() -> Any:
    return decoder()


@pytest.fixture(scope="module")
def server(library: Any, writer: Any) -> Iterator[Server]:
    models = [served("classes", library), served("classes too", library), served("writer", writer)]
    with serving(models, Limits(tokens=200)) as running:
        yield running


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Any]:
    """Return visit(fragment, …), which opens the app; at the end, check that it reported only what the server refused."""
    contexts: list[Any] = []
    said: list[str] = []

    def open_page(fragment: str = "", wait: bool = True, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.add_init_script(HURRY)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(server.address + fragment)
        page.wait_for_selector(".slot")
        if wait:
            idle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [line for line in said if "422 (Unprocessable" not in line] == []


def idle(page: Any) -> None:
    page.wait_for_function(IDLE)


def answer_to(page: Any, prompt: str) -> None:
    page.get_by_label("model").select_option("writer")
    page.get_by_label("prompt").fill(prompt)
    page.get_by_label("tokens to write").fill("5")
    page.get_by_role("button", name="Answer", exact=True).click()


def said_text(page: Any) -> str:
    return str(page.locator(".answer .said").inner_text()).strip()


def shown_text(answer: Any, count: int | None = None) -> str:
    """Return the answer up to a token as a page shows it: control characters as escapes."""
    end = answer.labels.offsets[(count or len(answer.ids)) - 1][1]
    text = re.sub(r"[\x00-\x08\x0e-\x1f]", lambda sign: f"\\u{ord(sign[0]):04x}", str(answer.text[:end]))
    return re.sub(r"\s+", " ", text).strip()


def test_the_text_of_an_answer_grows_while_it_is_written(
    visit: Any, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, reached, go = Job.publish, threading.Event(), threading.Event()

    def stepwise(job: Job, partial: bytes) -> None:
        publish(job, partial)
        if job.partials == 3:
            reached.set()
            go.wait(20)

    page = visit()
    monkeypatch.setattr(Job, "publish", stepwise)
    expected = writer.answer([{"role": "user", "content": PROMPT}], max_new_tokens=5)
    try:
        answer_to(page, PROMPT)
        assert reached.wait(20)
        page.wait_for_function("() => document.querySelector('.growing').textContent")
        assert page.locator(".growing").text_content() == writer.tokenizer.decode(expected.ids[:3])
        assert page.get_by_role("button", name="Cancel").is_visible()
        page.get_by_text("writing 3 of 5").wait_for()
    finally:
        go.set()
    idle(page)
    page.wait_for_function("() => document.querySelectorAll('.answer .said .tok').length === 5")
    assert page.locator(".growing").is_hidden()
    assert re.sub(r"\s+", " ", said_text(page)) == shown_text(expected)
    assert page.locator(".say").inner_text() == "" and not page.get_by_role("button", name="Cancel").is_visible()
    fragment = page.evaluate("location.hash")
    assert "model=writer" in fragment and "tokens=5" in fragment
    page.reload()
    page.wait_for_selector(".answer .said")
    idle(page)
    assert re.sub(r"\s+", " ", said_text(page)) == shown_text(expected)


def test_an_answer_that_is_given_and_the_text_alone(visit: Any, writer: Any) -> None:
    page = visit(f"#model=writer&text={PROMPT.replace(' ', '+')}&answer=the+rusty+key")
    assert "the rusty key" in said_text(page)
    page.get_by_role("button", name="text only").click()
    assert page.locator(".stale-note").inner_text().startswith("These results are for the previous settings.")
    page.get_by_role("button", name="Explain").click()
    idle(page)
    assert page.locator(".answer").count() == 0 and page.locator("article.attnflow").count() == 1
    assert "as=text" in page.evaluate("location.hash") and page.locator(".stale-note").is_hidden()
    page.reload()
    page.wait_for_selector("article")
    idle(page)
    assert page.get_by_role("button", name="text only").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("way", ["mouse", "keys", "touch"])
def test_a_source_of_an_answer_is_really_left_out(visit: Any, writer: Any, way: str) -> None:
    page = visit(f"#model=writer&text={PROMPT.replace(' ', '+')}&tokens=5", **(PHONE if way == "touch" else {}))
    answer = writer.answer([{"role": "user", "content": PROMPT}], max_new_tokens=5)
    falls = answer.leave_out("sentence").row()
    first = page.get_by_role("button", name="is it true?").first
    if way == "mouse":
        first.click()
    elif way == "touch":
        first.tap()
    else:
        first.focus()
        page.keyboard.press("Enter")
    page.locator(".truth .agrees, .truth .disagrees").first.wait_for()
    told = page.locator(".truth").first.inner_text()
    said = [f"without it: log p {'+' if fall < 0 else '−'}{abs(fall):.2f}" for fall in falls]
    assert any(told.startswith(one) for one in said), (told, said)


def test_an_answer_is_cancelled(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Job.publish

    def slow(job: Job, partial: bytes) -> None:
        time.sleep(0.05)
        publish(job, partial)

    page = visit()
    monkeypatch.setattr(Job, "publish", slow)
    page.get_by_label("model").select_option("writer")
    page.get_by_label("tokens to write").fill("99")
    page.get_by_label("prompt").press("Control+Enter")
    page.wait_for_function("() => document.querySelector('.growing').textContent")
    page.get_by_role("button", name="Cancel").click()
    idle(page)
    assert page.locator(".say").inner_text() == "cancelled"
    assert page.locator(".growing").is_visible() and not page.locator(".answer").count()  # the text stays readable


def test_results_of_another_text_or_model_are_grey(visit: Any) -> None:
    page = visit()
    box, note, body = page.get_by_label("text", exact=True), page.locator(".stale-note"), page.locator(".body")
    faint = "node => Number(getComputedStyle(node).opacity) < 1"
    assert note.is_hidden() and not body.evaluate(faint)
    box.fill("the keys")
    assert note.inner_text() == "These results are for the previous text. Press Explain for new ones."
    page.wait_for_function("() => Number(getComputedStyle(document.querySelector('.body')).opacity) < 0.5")
    box.fill(EXAMPLE)
    assert note.is_hidden() and "stale" not in (body.get_attribute("class") or "")
    page.get_by_label("model").select_option("classes too")
    assert note.inner_text() == "These results are for classes. Press Explain for new ones."
    box.press("Control+Enter")
    idle(page)
    assert note.is_hidden() and "model=classes+too" in page.evaluate("location.hash")
    page.get_by_label("model").select_option("writer")
    assert note.inner_text() == "These results are for classes too. Press Answer for new ones."
    page.get_by_label("model").select_option("classes too")
    page.get_by_label("truncate a text that is too long").check()
    assert note.inner_text() == "These results are for the previous settings. Press Explain for new ones."


def test_places_in_another_text_are_no_places_in_this(visit: Any) -> None:
    page = visit("#model=classes&text=the+key+to+the+cabinets&q=2&t=2&theme=dark")
    assert re.search(r"[#&]q=2&t=2", page.evaluate("location.hash"))
    page.get_by_label("text", exact=True).fill("the keys")
    page.get_by_label("text", exact=True).press("Control+Enter")
    idle(page)
    assert not re.search(r"[#&][qt]=", page.evaluate("location.hash"))
    assert "theme=dark" in page.evaluate("location.hash")


def test_the_key_is_said_at_the_button(visit: Any) -> None:
    page = visit()
    assert page.locator(".go .keys").inner_text() == "Ctrl+Enter"
    assert visit(**PHONE).locator(".go .keys").is_hidden()  # phones have no such key


def test_what_is_left_is_estimated(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    explain = service.explain

    def slow(model: Any, text: Any, *, progress: Any, **options: Any) -> Any:
        for count in range(0 if "slow" in text else 40, 40):
            progress("blank-out", count, 40)
            time.sleep(0.02)
        return explain(model, text, progress=progress, **options)

    monkeypatch.setattr(service, "explain", slow)
    page = visit()
    page.get_by_label("text", exact=True).fill("the slow key")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text(re.compile(r"blank-out \d+ of 40 · about (a second|\d+ s) left")).wait_for()
    assert page.locator(".stale-note").inner_text() == (
        "These results are for the previous text. New ones are being computed."
    )
    idle(page)
    assert page.locator(".say").inner_text() == ""


def test_importance_fills_in_and_the_selection_stays(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, go = importances.importances_of, threading.Event()

    def waiting(model: Any, text: Any, *args: Any) -> Any:
        if "late" in text:
            go.wait(20)
        return measure(model, text, *args)

    monkeypatch.setattr(importances, "importances_of", waiting)
    page = visit("#d=1")
    page.get_by_label("text", exact=True).fill("the late key to the cabinets")
    page.get_by_label("text", exact=True).press("Control+Enter")
    try:
        page.get_by_text("filling in:").wait_for()
        names = "() => JSON.stringify([...document.querySelectorAll('[data-method]')].map(row => row.dataset.method))"
        assert "blank-out" not in page.evaluate(names)
        assert "late" in page.locator("article.attnflow").inner_text()
        page.evaluate("location.hash += '&q=3'")
        page.wait_for_function("() => location.hash.includes('q=3')")
    finally:
        go.set()
    idle(page)
    assert "blank-out" in page.evaluate(names)
    assert "q=3" in page.evaluate("location.hash")


def test_a_skeleton_stands_where_nothing_is_known_yet(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go, explain = threading.Event(), service.explain

    def waiting(*args: Any, **options: Any) -> Any:
        go.wait(20)
        return explain(*args, **options)

    monkeypatch.setattr(service, "explain", waiting)
    try:
        page = visit(wait=False)
        page.locator(".skeleton").wait_for()
        assert page.locator(".empty").is_hidden()
        page.get_by_role("button", name="Cancel").click()
        assert page.locator(".empty").inner_text() == "Type a text and press Explain."
        assert page.locator(".skeleton").is_hidden()
    finally:
        go.set()


def test_a_text_that_is_too_long_says_so_while_it_is_typed(visit: Any) -> None:
    page = visit()
    page.get_by_label("text", exact=True).fill("x" * 8001)
    assert page.locator(".long").inner_text() == "8,001 characters: this server accepts at most 8,000"
    page.get_by_label("text", exact=True).fill("x")
    assert page.locator(".long").is_hidden()


def change_of(library: Any, word: int, replacement: str | None) -> Any:
    return edits.edit(library, EXAMPLE, edits.changed(library, EXAMPLE, word, replacement, False), word, False)


def signed(x: float) -> str:
    return f"{'−' if x < 0 else '+'}{abs(x):.2f}"


@pytest.mark.parametrize("way", ["mouse", "keys", "touch"])
def test_a_word_is_deleted(visit: Any, library: Any, way: str) -> None:
    page = visit(**(PHONE if way == "touch" else {}))
    word, delete = page.locator(".edit").get_by_label("word", exact=True), page.get_by_role("button", name="Delete")
    assert word.locator("option").all_inner_texts() == EXAMPLE.split()
    word.select_option("1")
    if way == "mouse":
        delete.click()
    elif way == "touch":
        delete.tap()
    else:
        word.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    idle(page)
    page.locator(".outcome .next").wait_for()
    told, change = page.locator(".outcome").inner_text(), change_of(library, 1, None)
    assert told.startswith(f"Without “key”: {change['answer']} ")
    assert f"predicted {signed(change['predicted'])}, actual {signed(change['true'])}." in told
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_word_is_replaced_and_the_new_text_is_looked_at(visit: Any, library: Any) -> None:
    page = visit()
    row = page.locator(".edit")
    row.get_by_label("word", exact=True).select_option("1")
    row.get_by_label("another word").fill("keys")
    row.get_by_label("another word").press("Enter")
    row.locator(".next").wait_for()
    told, change = row.locator(".outcome").inner_text(), change_of(library, 1, "keys")
    assert told.startswith(f"“keys” for “key”: {change['answer']} ")
    assert f"(for deleting the word; it ignores the new one), actual {signed(change['true'])}." in told
    page.get_by_role("button", name="compare with the original").click()
    page.wait_for_selector(".slot:nth-child(2) article")
    idle(page)
    second = page.locator(".slot").nth(1)
    assert second.get_by_label("text", exact=True).input_value() == "the keys to the cabinets"
    assert page.get_by_label("text", exact=True).first.input_value() == EXAMPLE
    second.get_by_label("text", exact=True).fill("the key")
    second.get_by_role("button", name="close").click()
    page.get_by_role("button", name="explain this text").click()
    idle(page)
    assert page.get_by_label("text", exact=True).input_value() == "the keys to the cabinets"
    assert page.locator(".edit option").all_inner_texts() == ["the", "keys", "to", "the", "cabinets"]


def test_the_word_to_change_is_the_one_that_is_chosen_on_the_page(visit: Any) -> None:
    page = visit()
    word = page.locator(".edit").get_by_label("word", exact=True)
    assert word.input_value() == "0"
    page.evaluate("location.hash += '&t=5'")  # as a click does; [CLS] comes before the first word
    page.wait_for_function("() => document.querySelector('.edit select').value === '4'")
    assert word.evaluate("select => select.selectedOptions[0].textContent") == "cabinets"


def test_an_edit_that_fails_says_why(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise af.errors.InputError("the word cannot go: it holds everything together")

    monkeypatch.setattr(edits, "edit", refuse)
    page = visit()
    with page.expect_response("**/api/edits") as answer:
        page.get_by_role("button", name="Delete").click()
    assert answer.value.status == 422
    page.locator(".edit .bad").wait_for()
    assert page.locator(".edit .bad").inner_text() == "the word cannot go: it holds everything together"


def test_everything_can_be_touched_on_a_phone(visit: Any) -> None:
    for fragment in ("", "#model=writer&tokens=2"):
        page = visit(fragment, **PHONE)
        small = page.evaluate("""() => [...document.querySelectorAll(
            ".app-top button, .ask :is(button, select, input, textarea), .edit :is(button, select, input)")]
            .map(node => [node.closest("label") ?? node, node])
            .filter(([, node]) => node.offsetParent)
            .map(([area, node]) => [node.getAttribute("aria-label") ?? node.textContent, area.getBoundingClientRect()])
            .filter(([, box]) => box.width < 43.5 || box.height < 43.5).map(([name]) => name)""")
        assert small == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_type_grows_on_a_projector(visit: Any) -> None:
    sizes = []
    for width in (390, 1280, 1920, 3840):
        page = visit(viewport={"width": width, "height": 900})
        sizes.append(page.locator(".ask textarea").evaluate("node => parseFloat(getComputedStyle(node).fontSize)"))
    assert sizes == sorted(sizes) and sizes[0] == 14 and sizes[2] > 1.1 * sizes[1] and sizes[3] == 20
