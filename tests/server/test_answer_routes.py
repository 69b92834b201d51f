"""Answers and edits over real connections: growing answers, leaving out sources, and removing words."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the web app needs fastapi and uvicorn")
pytest.importorskip("uvicorn", reason="the web app needs fastapi and uvicorn")
pytest.importorskip("transformers", reason="models need torch and transformers")

import attnflow as af
from attnflow.server import edits, writing
from attnflow.server.app import Server
from attnflow.server.limits import Limits
from attnflow.server.queue import Job
from attnflow.server.service import Served, served
from attnflow.view.answer_page import document_of
from helpers.answers import decoder
from helpers.served import ask, plain, serving, until
from helpers.small_models import bert

PROMPT = "The key is in the cabinet. Nobody has the books. Who has the key?"
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def writer() -> Served:
    return served("writer", decoder())


@pytest.fixture(scope="module")
def server(writer: Served) -> Iterator[Server]:
    with serving([writer, served("verb-number", af.load(device="cpu"))], Limits(queue=20, tokens=128)) as running:
        yield running


def ended(server: Server, body: dict[str, Any]) -> str:
    """Return the path of an answer's job, once it has ended."""
    at = f"/api/jobs/{ask(server, 'POST', '/api/answers', body).json['id']}"
    until(lambda: ask(server, "GET", at).json["state"] not in ("queued", "running"))
    return at


def test_an_answer_is_what_the_library_answers(server: Server, writer: Served) -> None:
    at = ended(server, {"model": "writer", "text": PROMPT, "tokens": 5})
    expected = writer.model.answer(MESSAGES, max_new_tokens=5)
    assert ask(server, "GET", f"{at}/result").json == plain(document_of(expected, "sentence", 0, None))
    assert ask(server, "GET", at).json["partials"] >= 1
    assert ask(server, "GET", f"{at}/partial").body == ask(server, "GET", f"{at}/result").body
    at = ended(server, {"model": "writer", "text": PROMPT, "answer": "the rusty key"})
    expected = writer.model.answer(MESSAGES, answer="the rusty key")
    assert ask(server, "GET", f"{at}/result").json == plain(document_of(expected, "sentence", 0, None))


def test_the_text_so_far_is_there_while_it_is_written(
    server: Server, writer: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, go = threading.Event(), threading.Event()
    publish = Job.publish

    def stepwise(job: Job, partial: bytes) -> None:
        publish(job, partial)
        if job.partials == 2:
            step.set()
            go.wait(20)

    monkeypatch.setattr(Job, "publish", stepwise)
    body = {"model": "writer", "text": PROMPT + " ", "tokens": 4}
    at = f"/api/jobs/{ask(server, 'POST', '/api/answers', body).json['id']}"
    try:
        assert step.wait(20)
        state = ask(server, "GET", at).json
        assert (state["state"], state["stage"], state["done"], state["total"]) == ("running", "writing", 2, 4)
        assert state["partials"] == 2
        grown = ask(server, "GET", f"{at}/partial").json
    finally:
        go.set()
    until(lambda: ask(server, "GET", at).json["state"] == "done")
    expected = writer.model.answer([{"role": "user", "content": PROMPT + " "}], max_new_tokens=4)
    assert grown == {"text": writer.model.tokenizer.decode(expected.ids[:2])}
    assert ask(server, "GET", f"{at}/result").json["answer"]["tokens"] == plain(expected.tokens)


def test_an_answer_is_cancelled_while_it_is_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def slow(job: Job, partial: bytes) -> None:
        begun.set()
        time.sleep(0.01)

    monkeypatch.setattr(Job, "publish", slow)
    body = {"model": "writer", "text": "a b", "tokens": 100}
    at = f"/api/jobs/{ask(server, 'POST', '/api/answers', body).json['id']}"
    assert begun.wait(20)
    ask(server, "DELETE", at)
    until(lambda: ask(server, "GET", at).json["state"] == "cancelled")
    assert ask(server, "GET", at).json["done"] < 100
    known = ask(server, "GET", f"{at}/partial")
    assert (known.status, known.error) == (409, f"the job is cancelled, and there is no partial result: see {at}")
    monkeypatch.undo()
    at = ended(server, {"model": "writer", "text": "a b", "tokens": 2})  # the model still works, and so does the queue
    assert ask(server, "GET", at).json["state"] == "done"


def test_what_an_answer_loses_without_a_part_of_its_prompt(
    server: Server, writer: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": "writer", "text": PROMPT, "tokens": 5}
    ended(server, asked)
    answer = writer.model.answer(MESSAGES, max_new_tokens=5)
    for unit, number in (("sentence", 0), ("sentence", 2), ("word", 3), ("token", 4)):
        left = ask(server, "POST", "/api/leave-out", {**asked, "span": [1, 3], "unit": unit, "number": number}).json
        expected = answer.leave_out(unit, (1, 4))
        assert left["fall"] == pytest.approx(expected.row()[number], abs=1e-4)
        assert left["logProbability"] == pytest.approx(float(answer.log_probabilities[1:4].sum()), abs=1e-4)
    monkeypatch.setattr(writer.model, "answer", lambda *_, **__: pytest.fail("the answer is kept"))
    assert ask(server, "POST", "/api/leave-out", {**asked, "span": [0, 4], "unit": "word", "number": 0}).status == 200
    for more, sentence in (
        ({"number": 9}, "unit 9 does not exist: there are 3 units, expected 0 to 2"),
        ({"span": [3, 5]}, "span [3, 5]: expected the first and the last token of a part of the answer, from 0 to 4"),
        ({"span": [3, 1]}, "span [3, 1]: expected the first and the last token of a part of the answer, from 0 to 4"),
        ({"unit": "document"}, "the prompt has no documents"),
    ):
        body = {**asked, "span": [0, 4], "unit": "sentence", "number": 0, **more}
        answer = ask(server, "POST", "/api/leave-out", body)
        assert answer.status == 422 and answer.error.startswith(sentence), answer.error


def test_answers_that_cannot_be(server: Server, writer: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.model, "answer", lambda *_, **__: pytest.fail("the model ran"))
    answer = ask(server, "POST", "/api/answers", {"model": "verb-number", "text": "the key"})
    assert (answer.status, answer.error) == (
        422,
        "the model 'verb-number' does not answer prompts: use /api/explain, or a model that does (see /api/models)",
    )
    answer = ask(server, "POST", "/api/answers", {"model": "writer", "text": "x" * 5000, "answer": "y" * 200})
    assert (answer.status, answer.error) == (
        413,
        "the text has 5,200 characters, and this server accepts 5,120: shorten it",
    )
    for more, sentence in (
        (
            {"text": "key " * 130},
            r"the prompt has \d+ tokens, and this server accepts 128 including the answer: shorten it, or",
        ),
        (
            {"text": "key " * 20, "answer": "key " * 100},
            r"the prompt has \d+ tokens, the answer \d+, and this server ac",
        ),
        ({"text": " "}, r".* empty"),
    ):
        at = ended(server, {"model": "writer", "tokens": 3, **more})
        state = ask(server, "GET", at).json
        assert state["state"] == "failed"
        assert re.match(sentence, state["error"]), state["error"]
    answer = ask(server, "POST", "/api/answers", {"model": "writer", "text": "key", "tokens": 0})
    assert answer.error == "the field 'tokens' is not valid: it should be greater than or equal to 1"


def test_a_long_answer_ends_where_the_server_says(server: Server, writer: Served) -> None:
    at = ended(server, {"model": "writer", "text": "key " * 20, "tokens": 500})
    whole = ask(server, "GET", f"{at}/result").json
    prompt = writer.model.answer([{"role": "user", "content": "key " * 20}], answer="a").prompt
    assert len(prompt) + len(whole["answer"]["tokens"]) == 128


def test_a_model_that_cannot_be_explained_by_answers_is_served_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()

    def refuse(*_: Any, **__: Any) -> Any:
        raise af.errors.ModelError("no")

    assert writing.can_answer(model)
    monkeypatch.setattr(model, "answer", refuse)
    assert not writing.can_answer(model)
    assert not served("verb-number", af.load(device="cpu")).writes


def test_a_word_is_taken_out_or_replaced(server: Server) -> None:
    model, text = af.load(device="cpu"), "the key to the cabinets"
    for more, edited in (({}, "the to the cabinets"), ({"replacement": "keys"}, "the keys to the cabinets")):
        change = ask(server, "POST", "/api/edits", {"model": "verb-number", "text": text, "word": 1, **more}).json
        assert (change["word"], change["text"]) == ("key", edited)
        before, after = (dict(model.trace(one).prediction.top) for one in (text, edited))
        name = change["answer"]
        assert name == max(before, key=lambda each: before[each])
        assert change["before"]["probability"] == pytest.approx(before[name], abs=1e-6)
        assert change["after"]["probability"] == pytest.approx(after[name], abs=1e-6)
        assert change["own"]["answer"] == max(after, key=lambda each: after[each])
        odds = [change[when]["logOdds"] for when in ("before", "after")]
        assert change["true"] == pytest.approx(odds[1] - odds[0], abs=1e-9)
        traced = model.trace(text, edges="answer")
        assert odds[0] == pytest.approx(traced.answer_inputs(signed=True).provenance["evidence"]["log_odds"], rel=1e-4)
        assert change["predicted"] == pytest.approx(-traced.answer_inputs(signed=True).row()[2], rel=1e-4)


def test_a_word_of_a_text_that_was_cut_is_the_one_that_the_page_shows(server: Server) -> None:
    model, words = af.load(device="cpu"), ("the key to the cabinets near " * 14).split()
    text = " ".join(words)
    read = model.encode(text, truncate=True)
    assert read.cut and list(read.word_texts) == words[-62:]  # the model keeps the end
    for word in (0, 3, 61):
        body = {"model": "verb-number", "text": text, "word": word, "truncate": True}
        change = ask(server, "POST", "/api/edits", body).json
        place = len(words) - 62 + word
        assert change["word"] == read.word_texts[word]
        assert change["text"] == " ".join([*words[:place], *words[place + 1 :]])
        change = ask(server, "POST", "/api/edits", {**body, "replacement": "keys"}).json
        assert change["text"] == " ".join([*words[:place], "keys", *words[place + 1 :]])
        after = dict(model.trace(change["text"], truncate=True).prediction.top)
        assert change["after"]["probability"] == pytest.approx(after[change["answer"]], abs=1e-6)


def test_an_edit_takes_no_more_than_a_text_does(server: Server) -> None:
    body = {"model": "writer", "text": "the key", "word": 1, "replacement": "key " * 200}
    answer = ask(server, "POST", "/api/edits", body)
    assert answer.status == 413
    assert re.match(r"the text has \d+ tokens, and this server accepts 128: shorten it, or", answer.error), answer.error


def test_a_word_of_several_tokens_of_a_decoder(server: Server, writer: Served) -> None:
    text = "Nobody's rusty cabinets, said twice"
    trace = writer.model.trace(text, edges="answer")
    word = trace.word_texts.index("rusty")
    tokens = [i for i, of in enumerate(trace.word_ids) if of == word]
    assert len(tokens) > 1
    change = ask(server, "POST", "/api/edits", {"model": "writer", "text": text, "word": word}).json
    assert change["text"] == "Nobody's cabinets, said twice" and change["kind"] == "next token"
    parts = trace.answer_rows(signed=True).row()
    assert change["predicted"] == pytest.approx(-sum(parts[i] for i in tokens), abs=1e-6)


def test_edits_that_cannot_be(server: Server) -> None:
    answer = ask(server, "POST", "/api/edits", {"model": "verb-number", "text": "the key", "word": 2})
    assert (answer.status, answer.error) == (422, "word 2: the text has 2 words, expected a number from 0 to 1")
    answer = ask(server, "POST", "/api/edits", {"model": "verb-number", "text": "the key", "pair": "a", "word": 0})
    assert answer.error == ("the model 'verb-number' cannot edit this input: expected one text and a text model")
    answer = ask(server, "POST", "/api/edits", {"model": "verb-number", "text": "the", "word": 0})
    assert (answer.status, answer.error) == (422, "the text '' is empty: expected at least one word")
    answer = ask(server, "POST", "/api/edits", {"model": "verb-number", "text": "the key", "target": "a", "word": 0})
    sentence = "the model 'verb-number' has no decoder: leave target out"
    assert (answer.status, answer.error) == (422, sentence)
    with pytest.raises(af.errors.InputError, match=r"^word 1, 'Key', is not in the text as the tokenizer spells it"):
        edits.word_range("the key", ["the", "Key"], 1)


def test_a_model_without_an_answer_takes_no_edit() -> None:
    with pytest.raises(af.errors.InputError, match="has no head, so it answers nothing"):
        edits.edit(bert("BertModel"), "the key", "the", 1, False)
