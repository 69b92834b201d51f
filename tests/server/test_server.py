"""The web app over real connections: most failures concern bytes, time and origins."""

from __future__ import annotations

import base64
import http.client
import io
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the web app needs fastapi and uvicorn")
pytest.importorskip("uvicorn", reason="the web app needs fastapi and uvicorn")
transformers = pytest.importorskip("transformers", reason="models need torch and transformers")
Image = pytest.importorskip("PIL.Image", reason="images need pillow")

import attnflow as af  # noqa: E402
from attnflow.cli import serve as commands  # noqa: E402
from attnflow.errors import InputError  # noqa: E402
from attnflow.evaluate import importances  # noqa: E402
from attnflow.server import app, guard, service  # noqa: E402
from attnflow.server.app import Server  # noqa: E402
from attnflow.server.guard import authorities  # noqa: E402
from attnflow.server.limits import Limits, Refusal  # noqa: E402
from attnflow.server.queue import Job, JobQueue  # noqa: E402
from attnflow.server.recent import Recent  # noqa: E402
from attnflow.server.service import Served, Service, bytes_of, served  # noqa: E402
from attnflow.server.wire import ExplainRequest, PathsRequest, RowsRequest  # noqa: E402
from attnflow.view import document  # noqa: E402
from attnflow.view.explain import explain  # noqa: E402
from attnflow.view.page import application  # noqa: E402
from helpers.architectures import IMAGE, VOCABULARY, hf  # noqa: E402
from helpers.served import answered, ask, plain, port, serving, until  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402

transformers.utils.logging.set_verbosity_error()

TEXT = "the key to the cabinets"
UNEXPECTED = "something went wrong in the server: this is a bug in attnflow, not in your request; see the server's log"


@pytest.fixture(scope="module", autouse=True)
def command() -> Iterator[subprocess.Popen[str]]:
    """Start the command in its own process, early, because that takes seconds.

    It serves twice: first a computation that notices its cancellation, then one that never does.
    """
    script = textwrap.dedent("""
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits an ignored one

        import torch

        from attnflow import cli
        from attnflow.server import service
        from attnflow.cli import serve as commands

        loaded = []

        def once(*sources, load=commands.load_models, **options):
            loaded[:] = loaded or load(*sources, **options)
            return loaded

        def forever(*_, progress, **__):
            while True:
                progress("blank-out", 0, 1)
                time.sleep(0.01)

        def deaf(*_, **__):
            x = torch.eye(1000)
            while True:
                x = x @ x

        commands.load_models = once
        service.explain = forever
        commands.serve(port=0, open_page=False, device="cpu")
        print("stopped", flush=True)
        service.explain = deaf
        cli.main()
    """)
    options = ["serve", "--port", "0", "--no-open", "--device", "cpu", "--host", "0.0.0.0"]
    child = subprocess.Popen(
        [sys.executable, "-c", script, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield child
    child.kill()
    child.communicate()


@pytest.fixture(scope="module")
def embedded() -> Served:
    return served("verb-number", af.load(device="cpu"))


@pytest.fixture(scope="module")
def vision() -> Served:
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return served("eye", af.wrap(hf("ViTModel", **IMAGE)(), processor, name="eye"))


@pytest.fixture(scope="module")
def translator() -> Served:
    build = hf(
        "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return served("translator", af.wrap(build(), wordpiece(), name="translator"))


@pytest.fixture(scope="module")
def server(embedded: Served, vision: Served, translator: Served) -> Iterator[Server]:
    with serving([embedded, vision, translator], Limits(queue=200, body_seconds=0.4)) as found:
        yield found


class Slow:
    """Stands in for `explain`: runs until released or cancelled, like a long text."""

    def __init__(self) -> None:
        self.started, self.release, self.cancelled = threading.Event(), threading.Event(), threading.Event()
        self.texts: list[Any] = []

    def __call__(self, model: Any, text: Any, *, progress: Callable[[str, int, int], None], **_: Any) -> Any:
        self.texts.append(text)
        self.started.set()
        try:
            while not self.release.is_set():
                progress("blank-out", 3, 7)
                time.sleep(0.002)
        except BaseException:
            self.cancelled.set()
            raise
        return SimpleNamespace(document={"text": text})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    found = Slow()
    monkeypatch.setattr(service, "explain", found)
    yield found
    found.release.set()


def png(width: int = 48, height: int = 40) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def claims(width: int, height: int) -> bytes:
    """Return a PNG of a hundred bytes that claims to be large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_the_page_and_the_models(server: Server) -> None:
    known = [
        {"name": "verb-number", "kind": "text", "writes": False, "tokens": 64, "characters": 20480},
        {"name": "eye", "kind": "image", "writes": False, "tokens": None, "characters": None},
        {"name": "translator", "kind": "encoder-decoder", "writes": True, "tokens": 32, "characters": 20480},
    ]
    assert ask(server, "GET", "/api/models").json == known
    page = ask(server, "GET", "/")
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.body.decode() == application(known)


def test_explain_gives_the_document_of_the_page(server: Server, embedded: Served) -> None:
    found = ask(server, "POST", "/api/explain", {"model": "verb-number", "text": TEXT, "query": 2})
    assert found.status == 200 and found.headers["content-type"] == "application/json"
    assert found.json == plain(explain(embedded.model, TEXT, query=2).document)
    less = ask(server, "POST", "/api/explain", {"model": "verb-number", "text": TEXT, "importance": ["gradient"]})
    assert [each["name"] for each in less.json["importance"]] == ["answer_inputs", "gradient"]
    none = ask(server, "POST", "/api/explain", {"model": "verb-number", "text": TEXT, "importance": []})
    assert none.status == 200
    assert none.json == plain(explain(embedded.model, TEXT, importance=()).document)
    assert [each["name"] for each in none.json["importance"]] == ["answer_inputs"]


def test_a_text_with_its_target_and_a_pair(server: Server, translator: Served) -> None:
    asked = {"model": "translator", "text": "the key", "target": "a book"}
    found = ask(server, "POST", "/api/explain", asked).json
    assert found == plain(explain(translator.model, "the key", target="a book").document)
    assert found["units"]["subwords"]["parts"].count("target") == 4  # the start token, [CLS], a, book
    pair = ask(server, "POST", "/api/explain", {**asked, "pair": "a"})
    assert pair.json == plain(explain(translator.model, ("the key", "a"), target="a book").document)
    answer = ask(server, "POST", "/api/explain", {**asked, "model": "verb-number"})
    assert (answer.status, answer.error) == (
        422,
        "target is for encoder-decoder models, and this model is not one: leave it out",
    )


@pytest.mark.parametrize("head", ["", "data:image/png;base64,"])
def test_an_image(server: Server, vision: Served, head: str) -> None:
    given = png()
    found = ask(server, "POST", "/api/explain", {"model": "eye", "image": head + base64_of(given)})
    assert found.json == plain(explain(vision.model, Image.open(io.BytesIO(given))).document)
    assert found.json["patches"] == [4, 4]
    rows = ask(server, "POST", "/api/rows", {"model": "eye", "image": base64_of(given), "unit": "subwords", "query": 3})
    trace = vision.model.trace(Image.open(io.BytesIO(given)), keep_heads=True)
    assert rows.json == plain(document.rows(trace, "subwords", 3))


def test_rows_and_paths_of_the_same_text_take_one_forward_pass(
    embedded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = embedded.model.trace(TEXT, keep_heads=True)
    passes: list[Any] = []

    answered = embedded.model.trace(TEXT, edges="answer")

    def counted(text: Any, *, edges: str | None = None, **options: Any) -> Any:
        if edges is None:
            passes.append(text)
        return trace if edges is None else answered

    monkeypatch.setattr(embedded.model, "trace", counted)
    with serving([embedded]) as server:
        asked = {"model": "verb-number", "text": TEXT}
        ask(server, "POST", "/api/explain", asked)
        assert len(passes) == 1
        rows = ask(server, "POST", "/api/rows", {**asked, "unit": "words", "query": 5})
        assert rows.json == plain(document.rows(trace, "words", 5))
        pair = {"unit": "subwords", "query": 0, "layer": 5, "token": 2}
        paths = ask(server, "POST", "/api/paths", {**asked, **pair})
        assert paths.json == plain(document.paths(trace, **pair))
        assert abs(paths.json["value"] - paths.json["capacity"]) < 1e-12
        assert passes == [TEXT]
        ask(server, "POST", "/api/rows", {**asked, "text": "the key", "unit": "words", "query": 1})
        assert passes == [TEXT, "the key"]


@pytest.mark.parametrize(
    ("path", "more", "sentence"),
    [
        ("/api/rows", {"unit": "subwords", "query": 7}, "query 7: expected a position from 0 to 6"),
        ("/api/paths", {"unit": "words", "query": 0, "layer": 6, "token": 0}, "layer 6: expected a number from 0 to 5"),
        ("/api/paths", {"unit": "words", "query": 0, "layer": 0, "token": 9}, "token 9: expected a position from 0 to 6"),
        ("/api/explain", {"text": " "}, "the text ' ' is empty: expected at least one word"),
    ],
)  # fmt: skip
def test_the_sentences_of_the_library_are_the_answers(
    server: Server, path: str, more: dict[str, Any], sentence: str
) -> None:
    answer = ask(server, "POST", path, {"model": "verb-number", "text": TEXT, **more})
    assert (answer.status, answer.error) == (422, sentence)


def test_the_traces_used_last_are_kept_within_a_number_and_a_size() -> None:
    def of(numbers: int) -> Any:
        weights = np.zeros(numbers, np.float32)
        tensor = SimpleNamespace(numel=lambda: weights.size, element_size=lambda: 4)
        return SimpleNamespace(steps=[SimpleNamespace(weights=tensor)], weights={}, encoder=None)

    traces = Recent(2, 4000, bytes_of)
    for key, numbers in (("a", 100), ("b", 100), ("a", 100), ("c", 100)):
        traces.get((key,), lambda numbers=numbers: of(numbers))  # type: ignore[misc]
    assert list(traces.by_key) == [("a",), ("c",)]
    traces.get(("d",), lambda: of(950))
    assert list(traces.by_key) == [("d",)]
    assert traces.get(("e",), lambda: of(1001)).steps and not traces.by_key


def test_what_is_not_a_number_is_null(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        document, "rows", lambda *_: {"a": [float("nan"), 1.5, (float("inf"),)], "b": {"c": -float("inf")}, "n": "NaN"}
    )
    answer = ask(server, "POST", "/api/rows", {"model": "verb-number", "text": TEXT, "unit": "words", "query": 0})
    assert answer.body == b'{"a":[null,1.5,[null]],"b":{"c":null},"n":"NaN"}'


@pytest.mark.long
def test_a_hundred_requests_at_once_get_what_they_would_get_one_by_one(server: Server, embedded: Served) -> None:
    words = ["the", "key", "keys", "to", "cabinet", "cabinets", "near", "of"]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, rng.integers(2, 7))) for _ in range(10)]
    bodies: list[tuple[str, dict[str, Any]]] = []
    for number in range(100):
        asked: dict[str, Any] = {"model": "verb-number", "text": texts[number % 10]}
        if number % 4 == 1:
            bodies.append(("/api/rows", {**asked, "unit": "subwords", "query": number % 3}))
        elif number % 4 == 2:
            bodies.append(("/api/paths", {**asked, "unit": "words", "query": 0, "layer": number % 6, "token": 1}))
        else:
            bodies.append(("/api/explain", {**asked, "importance": ["gradient", "blank-out"][: 1 + (number % 8 == 0)]}))
    fresh = Service([embedded], Limits())
    kinds = {"/api/rows": RowsRequest, "/api/paths": PathsRequest, "/api/explain": ExplainRequest}

    @cache
    def alone(path: str, body: str) -> bytes:
        work = getattr(fresh, path.removeprefix("/api/"))(kinds[path](**json.loads(body)))
        return bytes(work(Job()))

    expected = [alone(path, json.dumps(body)) for path, body in bodies]
    assert len(set(expected)) > 40
    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(lambda each: ask(server, "POST", *each), bodies))
    assert {answer.status for answer in found} == {200}
    assert [answer.body for answer in found] == expected


def test_a_job_from_its_place_in_the_queue_to_its_result(server: Server, slow: Slow) -> None:
    first = ask(server, "POST", "/api/jobs", {"model": "verb-number", "text": "the key"})
    assert first.status == 202 and set(first.json) == {"id", "state", "position"}
    slow.started.wait(10)
    second = ask(server, "POST", "/api/jobs", {"model": "verb-number", "text": "the keys"})
    assert (second.json["state"], second.json["position"]) == ("queued", 1)
    at = f"/api/jobs/{first.json['id']}"
    until(lambda: ask(server, "GET", at).json["stage"] == "blank-out")
    assert ask(server, "GET", at).json == {
        "id": first.json["id"], "state": "running", "position": 0, "stage": "blank-out", "done": 3, "total": 7, "partials": 0, "error": None,
    }  # fmt: skip
    early = ask(server, "GET", f"{at}/result")
    assert (early.status, early.error) == (409, f"the job is running: try again when {at} says done")
    slow.release.set()
    after = f"/api/jobs/{second.json['id']}"
    until(lambda: ask(server, "GET", after).json["state"] == "done")
    assert ask(server, "GET", f"{at}/result").json == {"text": "the key"}
    assert ask(server, "GET", f"{after}/result").json == {"text": "the keys"}
    assert ask(server, "GET", after).json["position"] is None
    assert ask(server, "DELETE", after).json["state"] == "done"
    assert ask(server, "GET", f"{after}/result").status == 200


def test_the_result_of_a_job_is_what_explain_gives(server: Server) -> None:
    asked = {"model": "verb-number", "text": TEXT}
    at = f"/api/jobs/{ask(server, 'POST', '/api/jobs', asked).json['id']}"
    until(lambda: ask(server, "GET", at).json["state"] == "done")
    assert ask(server, "GET", f"{at}/result").body == ask(server, "POST", "/api/explain", asked).body


def test_the_page_is_there_before_flow_and_importance_are(
    server: Server, embedded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    measure = importances.importances_of

    def waiting(*args: Any) -> Any:
        begun.set()
        go.wait(20)
        return measure(*args)

    monkeypatch.setattr(importances, "importances_of", waiting)
    at = f"/api/jobs/{ask(server, 'POST', '/api/jobs', {'model': 'verb-number', 'text': TEXT}).json['id']}"
    try:
        assert begun.wait(20) and ask(server, "GET", at).json["partials"] == 1
        early = ask(server, "GET", f"{at}/partial").json
    finally:
        go.set()
    until(lambda: ask(server, "GET", at).json["state"] == "done")
    whole = ask(server, "GET", f"{at}/result").json
    later = ("methods", "flows", "importance", "leftOut", "notes", "reliability", "missing")
    assert {name: early[name] for name in early if name not in later} == {
        name: whole[name] for name in whole if name not in later
    }
    assert early["importance"] == whole["importance"][:1] and len(whole["importance"]) == 3
    assert early["methods"]["subwords"]["flow"] is None and whole["methods"]["subwords"]["flow"] is not None
    assert early["leftOut"] == [*whole["leftOut"], "Flow is still being computed."]


def test_a_short_request_need_not_wait_for_a_long_one(server: Server, embedded: Served, slow: Slow) -> None:
    asked = {"model": "verb-number", "text": "the key"}
    first = ask(server, "POST", "/api/jobs", asked).json
    second = ask(server, "POST", "/api/jobs", asked).json
    assert slow.started.wait(10)
    rows = ask(server, "POST", "/api/rows", {"model": "verb-number", "text": TEXT, "unit": "words", "query": 5})
    assert rows.json == plain(document.rows(embedded.model.trace(TEXT, keep_heads=True), "words", 5))
    bad = ask(server, "POST", "/api/rows", {"model": "verb-number", "text": TEXT, "unit": "words", "query": 99})
    assert bad.status == 422  # a failed request does not affect the long one
    states = [ask(server, "GET", f"/api/jobs/{job['id']}").json for job in (first, second)]
    assert [(state["state"], state["position"]) for state in states] == [("running", 0), ("queued", 1)]
    slow.release.set()
    until(lambda: ask(server, "GET", f"/api/jobs/{second['id']}").json["state"] == "done")
    assert ask(server, "GET", f"/api/jobs/{first['id']}/result").json == {"text": "the key"}


def test_cancelling_a_running_job_and_one_that_waits(server: Server, slow: Slow) -> None:
    running, waiting = (
        f"/api/jobs/{ask(server, 'POST', '/api/jobs', {'model': 'verb-number', 'text': text}).json['id']}"
        for text in ("the key", "the keys")
    )
    slow.started.wait(10)
    gone = ask(server, "DELETE", waiting)
    assert (gone.status, gone.json["state"], gone.json["position"]) == (200, "cancelled", None)
    assert not slow.cancelled.is_set()
    ask(server, "DELETE", running)
    until(lambda: ask(server, "GET", running).json["state"] == "cancelled")
    assert slow.cancelled.is_set() and slow.texts == ["the key"]
    for at in (running, waiting):
        answer = ask(server, "GET", f"{at}/result")
        assert (answer.status, answer.error) == (409, "the job was cancelled: send the request again")


def test_a_failed_job_says_why(server: Server) -> None:
    at = f"/api/jobs/{ask(server, 'POST', '/api/jobs', {'model': 'verb-number', 'text': ' '}).json['id']}"
    until(lambda: ask(server, "GET", at).json["state"] == "failed")
    sentence = "the text ' ' is empty: expected at least one word"
    assert ask(server, "GET", at).json["error"] == sentence
    answer = ask(server, "GET", f"{at}/result")
    assert (answer.status, answer.error) == (422, sentence)


def test_a_client_that_leaves_cancels_what_it_asked_for(server: Server, slow: Slow) -> None:
    body = json.dumps({"model": "verb-number", "text": TEXT}).encode()
    with socket.create_connection(("127.0.0.1", port(server))) as line:
        head = f"POST /api/explain HTTP/1.1\r\nHost: 127.0.0.1:{port(server)}\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert slow.started.wait(10)
        assert not slow.cancelled.wait(0.05)
    assert slow.cancelled.wait(10)


def test_a_full_queue_says_so_and_the_event_loop_answers_meanwhile(embedded: Served, slow: Slow) -> None:
    asked = {"model": "verb-number", "text": TEXT}
    with serving([embedded], Limits(queue=2)) as server:
        first = ask(server, "POST", "/api/jobs", asked)
        slow.started.wait(10)
        assert [ask(server, "POST", "/api/jobs", asked).json["position"] for _ in range(2)] == [1, 2]
        for path in ("/api/jobs", "/api/explain"):
            answer = ask(server, "POST", path, asked)
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert answer.error == "the queue is full (2 requests are waiting): try again in a few seconds"
        assert ask(server, "GET", "/api/models").status == 200 and not slow.cancelled.is_set()  # the first still runs
        ask(server, "DELETE", f"/api/jobs/{first.json['id']}")
        until(lambda: len(slow.texts) == 2)
        assert ask(server, "POST", "/api/jobs", asked).status == 202


def test_finished_jobs_are_forgotten_by_number_size_and_age() -> None:
    jobs = JobQueue(Limits(finished=3, finished_bytes=100, finished_seconds=0.5))

    def finished(size: int) -> str:
        job = jobs.submit(lambda job: b"x" * size)
        until(lambda: job.state == "done")
        return job.id

    ids = [finished(10) for _ in range(5)]
    assert list(jobs.known) == ids[2:]
    large = finished(95)
    assert list(jobs.known) == [large]
    larger = finished(500)  # the newest stays, however large, because its client is about to fetch it
    assert list(jobs.known) == [larger]
    until(lambda: not jobs.known, seconds=2)  # without any request
    with pytest.raises(Refusal, match=r"^there is no job") as problem:
        jobs.find(larger)
    assert problem.value.status == 404
    jobs.stop()
    jobs.thread.join(5)
    assert not jobs.thread.is_alive()
    with pytest.raises(Refusal, match=r"^the server is stopping: start it again with attnflow serve$"):
        jobs.submit(lambda job: b"")


def test_a_job_that_nobody_knows(server: Server) -> None:
    for method, path in (("GET", "/api/jobs/no"), ("GET", "/api/jobs/no/result"), ("DELETE", "/api/jobs/no")):
        answer = ask(server, method, path)
        assert answer.status == 404
        assert answer.error == (
            "there is no job 'no': finished jobs are deleted after 10 minutes, or sooner if there are many"
        )


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_fault_of_ours_is_one_neutral_sentence_and_a_traceback_in_the_log(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise kind("secret in /home/somebody")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(service, "explain", broken)
        answer = ask(server, "POST", "/api/explain", {"model": "verb-number", "text": TEXT})
    assert (answer.status, answer.error) == (500, UNEXPECTED)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["secret in /home/somebody"]
    assert ask(server, "POST", "/api/explain", {"model": "verb-number", "text": TEXT}).status == 200


def test_a_fault_outside_of_computations_looks_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret in /home/somebody")

    monkeypatch.setattr(Service, "known", broken)
    with caplog.at_level(logging.ERROR):
        answer = ask(server, "GET", "/api/models")
        until(lambda: caplog.records)  # the response comes first
    assert (answer.status, answer.error) == (500, UNEXPECTED)
    assert [(record.getMessage(), str(record.exc_info[1])) for record in caplog.records if record.exc_info] == [
        ("GET /api/models failed", "secret in /home/somebody")
    ]


def test_a_long_text_is_refused_before_the_model_reads_it(
    server: Server, embedded: Served, translator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (embedded, translator):
        monkeypatch.setattr(each.model, "trace", lambda *_, **__: pytest.fail("the model ran"))
    answer = ask(server, "POST", "/api/explain", {"model": "verb-number", "text": "the " * 5121})
    assert (answer.status, answer.error) == (
        413,
        "the text has 20,484 characters, and this server accepts 20,480: shorten it",
    )
    answer = ask(server, "POST", "/api/jobs", {"model": "verb-number", "text": "the ", "target": "a" * 20477})
    assert answer.error == "the text has 20,481 characters, and this server accepts 20,480: shorten it"
    answer = ask(server, "POST", "/api/explain", {"model": "verb-number", "text": "the " * 600})
    assert answer.status == 422
    assert answer.error.startswith("the text has 602 tokens and the model takes")
    with serving([embedded, translator], Limits(tokens=6)) as small:
        assert [known["tokens"] for known in ask(small, "GET", "/api/models").json] == [6, 6]
        for path, more in (("/api/explain", {}), ("/api/rows", {"unit": "words", "query": 0})):
            answer = ask(small, "POST", path, {"model": "verb-number", "text": TEXT, **more})
            assert answer.status == 413
            assert answer.error == (
                "the text has 7 tokens, and this server accepts 6: shorten it, or restart the server with a higher limit"
            )
        both = {"model": "translator", "text": "the key", "target": "the key"}
        assert ask(small, "POST", "/api/explain", both).error.startswith(
            "the text has 8 tokens, and this server accepts 6:"
        )


def test_a_text_that_is_cut_if_asked(server: Server, embedded: Served) -> None:
    asked = {"model": "verb-number", "text": "the key " * 400, "truncate": True, "importance": ["gradient"]}
    found = ask(server, "POST", "/api/explain", asked)
    assert len(found.json["units"]["subwords"]["tokens"]) == embedded.model.limit()
    rows = ask(
        server,
        "POST",
        "/api/rows",
        {**{k: asked[k] for k in ("model", "text", "truncate")}, "unit": "words", "query": 1},
    )
    assert rows.status == 200


def test_a_large_request_is_refused_whether_it_says_its_length_or_not(embedded: Served) -> None:
    with serving([embedded], Limits(tokens=6)) as server:
        most = Limits(tokens=6).body(images=False)
        sentence = f"the request is larger than {most:,} bytes: send a shorter text or a smaller image"
        body = json.dumps({"model": "verb-number", "text": "the"}).encode()
        assert ask(server, "POST", "/api/explain", body.ljust(most)).status == 200
        answer = ask(server, "POST", "/api/explain", body.ljust(most + 1))
        assert (answer.status, answer.error) == (413, sentence)
        with closing(http.client.HTTPConnection("127.0.0.1", port(server), timeout=30)) as line:
            parts = (b" " * 4096 for _ in range(most // 4096 + 2))
            line.request("POST", "/api/explain", parts, {"Content-Type": "application/json"}, encode_chunked=True)
            answer = answered(line.getresponse())
        assert (answer.status, answer.error) == (413, sentence)
        with closing(http.client.HTTPConnection("127.0.0.1", port(server), timeout=30)) as line:
            line.putrequest("POST", "/api/explain")  # the server does not wait for the body
            line.putheader("Content-Type", "application/json")
            line.putheader("Content-Length", str(10**12))
            line.endheaders()
            answer = answered(line.getresponse())
        assert (answer.status, answer.error, answer.headers["connection"]) == (413, sentence, "close")


def test_a_body_without_end_is_read_only_so_far(embedded: Served) -> None:
    with serving([embedded], Limits(tokens=6)) as server, closing(socket.socket()) as line:
        line.settimeout(20)
        line.connect(("127.0.0.1", port(server)))
        head = f"POST /api/explain HTTP/1.1\r\nHost: 127.0.0.1:{port(server)}\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece, sent = b"10000\r\n" + b" " * 0x10000 + b"\r\n", 0
        with pytest.raises(OSError):
            while sent < 1000:
                line.sendall(piece)
                sent += 1
        assert sent < 200


def test_a_slow_body_holds_nobody_and_is_given_up(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", port(server)), timeout=10) as line:
        head = f"POST /api/explain HTTP/1.1\r\nHost: 127.0.0.1:{port(server)}\r\nContent-Type: application/json\r\n"
        line.sendall(f'{head}Content-Length: 100\r\n\r\n{{"model": '.encode())
        assert ask(server, "POST", "/api/explain", {"model": "verb-number", "text": TEXT}).status == 200
        response = http.client.HTTPResponse(line)
        response.begin()
        answer = answered(response)
    assert answer.status == 408
    assert answer.error == "the body did not arrive within 0.4 seconds: send a smaller one"


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ("***", "the image is not base64: expected a PNG or JPEG file, encoded in base64"),
        (base64_of(b"no image"), "the image cannot be read: expected a complete PNG or JPEG file, encoded in base64"),
        (
            base64_of(b"GIF89a" + png()),
            "the image cannot be read: expected a complete PNG or JPEG file, encoded in base64",
        ),
        (base64_of(png()[:-200]), "the image cannot be read: expected a complete PNG or JPEG file, encoded in base64"),
        (
            base64_of(claims(5000, 5000)),
            "the image has more than 16,777,216 pixels: resize it",
        ),
        (
            base64_of(claims(12000, 12000)),
            "the image has more than 16,777,216 pixels: resize it",
        ),
        (
            base64_of(claims(60000, 60000)),
            "the image has more than 16,777,216 pixels: resize it",
        ),
    ],
)
def test_what_is_no_image_or_too_large_a_one(server: Server, image: str, sentence: str) -> None:
    answer = ask(server, "POST", "/api/explain", {"model": "eye", "image": image})
    assert (answer.status, answer.error) == (422, sentence)


def test_an_image_of_many_bytes(server: Server) -> None:
    answer = ask(server, "POST", "/api/explain", {"model": "eye", "image": "A" * (12 << 20)})
    assert (answer.status, answer.error) == (
        413,
        "the request is larger than 11,496,104 bytes: send a shorter text or a smaller image",
    )


def test_a_text_is_never_taken_for_the_path_of_an_image(server: Server, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(png())
    expected = "the model 'eye' reads images: give image (a PNG or JPEG file in base64), and no text"
    for given in ({"text": str(tmp_path / "picture.png")}, {"text": "a", "image": base64_of(png())}, {}):
        answer = ask(server, "POST", "/api/explain", {"model": "eye", **given})
        assert (answer.status, answer.error) == (422, expected)
    answer = ask(server, "POST", "/api/explain", {"model": "eye", "image": str(tmp_path / "picture.png")})
    assert answer.error == "the image is not base64: expected a PNG or JPEG file, encoded in base64"
    for given in ({"image": base64_of(png())}, {}):
        answer = ask(server, "POST", "/api/explain", {"model": "verb-number", **given})
        assert (answer.status, answer.error) == (422, "the model 'verb-number' reads text: give text, and no image")


def test_only_models_of_the_start_can_be_asked(server: Server) -> None:
    for name in ("bert-base-uncased", "/etc", str(Path(af.__file__).parent / "paper" / "verb-number"), ""):
        answer = ask(server, "POST", "/api/explain", {"model": name, "text": TEXT})
        assert answer.status == 404
        assert answer.error.endswith(": expected one of 'verb-number', 'eye', 'translator'")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:{port}"}, 200),
        ({"Host": "LOCALHOST:{port}"}, 200),
        ({"Host": "[::1]:{port}"}, 200),
        ({"Host": "127.0.0.1"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": "rebound.example:{port}"}, 403),
        ({"Host": "127.0.0.1:{port}.example"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Origin": "http://localhost:{port}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
    ],
)
def test_pages_elsewhere_cannot_use_it(server: Server, headers: dict[str, str], status: int) -> None:
    sent = {name: value.format(port=port(server)) for name, value in headers.items()}
    body = {"model": "verb-number", "text": "the key", "unit": "words", "query": 0}
    assert ask(server, "POST", "/api/rows", body, **sent).status == status
    assert ask(server, "GET", "/api/models", **sent).status == status


def test_a_link_elsewhere_may_lead_to_the_page(server: Server) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(server, "GET", "/", **link).status == 200
    answer = ask(server, "GET", "/", **{**link, "Sec_Fetch_Dest": "iframe"})
    assert answer.error == "the request comes from another page: only the server's own page may send requests"
    answer = ask(server, "GET", "/", Origin="http://evil.example")
    assert (
        answer.error
        == "the request comes from a page on 'http://evil.example': only the server's own page may send requests"
    )
    at = port(server)
    answer = ask(server, "GET", "/", Host="evil.example")
    assert answer.error == (
        f"the Host header is 'evil.example': expected one of 127.0.0.1:{at}, localhost:{at}, [::1]:{at}"
    )


def test_the_host_of_the_start_may_be_called() -> None:
    assert authorities("Box.local", 80) == [
        "127.0.0.1:80", "localhost:80", "[::1]:80", "box.local:80", "127.0.0.1", "localhost", "[::1]", "box.local",
    ]  # fmt: skip
    assert authorities("fe80::1", 81)[-1] == "[fe80::1]:81"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_cannot_ask(server: Server, kind: str) -> None:
    answer = ask(server, "POST", "/api/explain", b'{"model": "verb-number", "text": "the"}', Content_Type=kind)
    assert (answer.status, answer.error) == (415, f"the content type is {kind!r}: expected application/json")


def test_no_other_origin_is_ever_allowed(server: Server) -> None:
    answer = ask(server, "OPTIONS", "/api/explain")
    assert answer.status == 405 and not any("allow-origin" in name for name in answer.headers)


def test_every_answer_carries_what_browsers_should_know(server: Server) -> None:
    answers = {
        200: ask(server, "GET", "/api/models"),
        403: ask(server, "GET", "/", Host="evil.example"),
        404: ask(server, "GET", "/nowhere"),
        415: ask(server, "POST", "/api/explain", b"", Content_Type="text/plain"),
        422: ask(server, "POST", "/api/explain", {}),
    }
    assert [answer.status for answer in answers.values()] == list(answers)
    for answer in (*answers.values(), ask(server, "GET", "/")):
        told = answer.headers
        assert told["x-content-type-options"] == "nosniff" and told["x-frame-options"] == "DENY"
        assert told["cache-control"] == "no-store" and told["referrer-policy"] == "same-origin"
        assert told["content-security-policy"].endswith("frame-ancestors 'none'")
        assert told["cross-origin-resource-policy"] == "same-origin" and "server" not in told
    assert answers[200].headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 422, "the body is not JSON: expected one object; see /openapi.json"),
        (b"[]", 422, "the body is not a JSON object: expected one; see /openapi.json"),
        (
            b"[" * 60000,
            400,
            "the body is not readable JSON: expected one object; see /openapi.json",
        ),
        ({}, 422, "the field 'model' is missing; see /openapi.json"),
        ({"model": "m", "txt": "a"}, 422, "unknown field 'txt': see /openapi.json for the known fields"),
        ({"model": "m", "query": True}, 422, "the field 'query' is not valid: it should be a valid integer"),
        ({"model": "m", "query": -1}, 422, "the field 'query' is not valid: it should be greater than or equal to 0"),
        (
            {"model": "m", "importance": ["shapley"]},
            422,
            "the field 'importance.0' is not valid: it should be 'gradient' or 'blank-out'",
        ),
    ],
)
def test_a_body_that_is_not_what_was_expected(server: Server, body: Any, status: int, sentence: str) -> None:
    answer = ask(server, "POST", "/api/explain", body)
    assert (answer.status, answer.error) == (status, sentence)


def test_half_a_character_is_refused(server: Server) -> None:
    for body, status in (
        (b'{"model": "verb-number", "text": "\\ud800"}', 422),
        (b'{"model": "\\ud800", "text": "the"}', 404),
        (b'{"model": "verb-number", "\\ud800": "the"}', 422),
    ):
        answer = ask(server, "POST", "/api/explain", body)
        assert answer.status == status and answer.error


def test_paths_that_are_not_there(server: Server) -> None:
    assert ask(server, "GET", "/docs").error == "there is nothing at '/docs': see /openapi.json for the routes"
    assert ask(server, "GET", "/redoc").status == ask(server, "GET", "/api/models/").status == 404
    answer = ask(server, "DELETE", "/api/models")
    assert (answer.status, answer.error) == (
        405,
        "'/api/models' does not accept DELETE: see /openapi.json for the routes",
    )


def test_the_api_lists_its_routes(server: Server) -> None:
    assert set(ask(server, "GET", "/openapi.json").json["paths"]) == {
        "/", "/api/models", "/api/explain", "/api/rows", "/api/paths", "/api/leave-out", "/api/edits", "/api/jobs",
        "/api/answers", "/api/jobs/{id}", "/api/jobs/{id}/partial", "/api/jobs/{id}/result",
    }  # fmt: skip


def test_the_browser_is_opened_at_the_address_that_is_told(
    embedded: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(app.webbrowser, "open", opened.append)
    with serving([embedded], browser=True) as server:
        until(lambda: opened)
        assert opened == [server.address]
        assert capsys.readouterr() == ("", f"attnflow: verb-number at {server.address} (press Ctrl+C to stop)\n")
    with serving([embedded]):
        time.sleep(0.05)
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("host", "address"),
    [("::1", "http://[::1]:8/"), ("0.0.0.0", "http://127.0.0.1:8/"), ("localhost", "http://localhost:8/")],
)
def test_the_address_of_a_host(host: str, address: str) -> None:
    server = Server([], Limits(), host, 8)
    server.jobs.stop()
    assert server.address == address


def test_a_wildcard_stands_for_the_names_of_this_machine(embedded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other machines use these names in the Host header; any other name may be DNS rebinding."""
    monkeypatch.setattr(guard.socket, "gethostname", lambda: "Teacher")
    entries = [
        (2, 1, 6, "", ("127.0.1.1", 0)),
        (2, 1, 6, "", ("10.1.2.3", 0)),
        (10, 1, 6, "", ("fe80::1%eth0", 0, 0, 2)),
    ]
    monkeypatch.setattr(guard.socket, "getaddrinfo", lambda *_: entries)
    names = guard.own_names("0.0.0.0")
    assert names[:3] == ["teacher", "10.1.2.3", "fe80::1"] and not any(name.startswith("127.") for name in names)
    allowed = guard.authorities("0.0.0.0", 8)
    assert {"teacher:8", "10.1.2.3:8", "[fe80::1]:8", "127.0.0.1:8", "localhost:8", "0.0.0.0:8"} <= set(allowed)
    assert guard.own_names("Example.org") == ["example.org"]
    assert guard.authorities("Example.org", 8) == ["127.0.0.1:8", "localhost:8", "[::1]:8", "example.org:8"]
    with monkeypatch.context() as without_names:
        without_names.setattr(guard.socket, "getaddrinfo", _no_names)
        assert guard.own_names("::")[0] == "teacher"
    monkeypatch.undo()
    monkeypatch.setattr(guard.socket, "gethostname", lambda: "Teacher")
    with serving([embedded], host="0.0.0.0") as server:
        assert ask(server, "GET", "/", Host=f"teacher:{port(server)}").status == 200
        assert ask(server, "GET", "/", Host=f"evil.example:{port(server)}").status == 403


def _no_names(*_: Any, **__: Any) -> Any:
    raise OSError("no such name")


def test_whoever_waits_is_told_that_the_server_stops(embedded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()

    def deaf(*_: Any, **__: Any) -> Any:
        begun.set()
        release.wait(20)
        return SimpleNamespace(document={})

    monkeypatch.setattr(service, "explain", deaf)
    asked = {"model": "verb-number", "text": TEXT}
    with ThreadPoolExecutor(2) as pool:
        try:
            with serving([embedded]) as server:
                answers = [pool.submit(ask, server, "POST", "/api/explain", asked) for _ in range(2)]
                begun.wait(10)
                until(lambda: server.jobs.waiting)
            for answer in answers:
                found = answer.result(5)
                assert (found.status, found.headers["retry-after"]) == (503, "5")
                assert found.error == "the server is stopping: start it again with attnflow serve"
        finally:
            release.set()
    server.jobs.thread.join(5)
    assert not server.jobs.thread.is_alive()


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM for a single child process")
def test_a_server_from_its_start_to_its_end(command: subprocess.Popen[str]) -> None:
    """Twice in one process, with a computation running at the signal: one that notices, and one that does not."""
    body = json.dumps({"model": "verb-number", "text": TEXT})
    assert command.stdout is not None and command.stderr is not None
    for stop in (signal.SIGTERM, signal.SIGINT):
        if stop is signal.SIGINT:
            assert command.stdout.readline() == "stopped\n"
            line = command.stderr.readline()
            assert line.startswith("attnflow: other machines can open http://")
            assert line.endswith("/, and there is no password\n") and "0.0.0.0" not in line and "//127." not in line
        line = command.stderr.readline()
        assert line.startswith("attnflow: verb-number at http://127.0.0.1:")
        assert line.endswith("/ (press Ctrl+C to stop)\n")
        running: Any = SimpleNamespace(address=line.split()[3])
        assert b"<title>attnflow</title>" in ask(running, "GET", "/").body
        with closing(http.client.HTTPConnection("127.0.0.1", port(running), timeout=30)) as waiting:
            waiting.request("POST", "/api/explain", body, {"Content-Type": "application/json"})
            time.sleep(0.1)
            command.send_signal(stop)
            assert waiting.getresponse().status == 503
    out, err = command.communicate(timeout=20)
    assert (command.returncode, out, err) == (0, "", "")


def test_a_port_that_is_taken_and_hosts_that_are_not_here() -> None:
    with closing(commands.listen("127.0.0.1", 0)) as sock:
        taken = sock.getsockname()[1]
        assert taken > 0
        with pytest.raises(
            InputError, match=f"^port {taken} is already in use: give another one with --port, or --port 0 to pick a"
        ):
            commands.listen("127.0.0.1", taken)
    with pytest.raises(
        InputError,
        match=r"^--host '192\.0\.2\.1' is not an address of this machine: expected, for example, 127\.0\.0\.1$",
    ):
        commands.listen("192.0.2.1", 0)
    with pytest.raises(InputError, match=r"^unknown --host 'a b': expected 127\.0\.0\.1, or a name or address of"):
        commands.listen("a b", 0)


def test_a_taken_port_is_told_before_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "load_models", lambda *_, **__: pytest.fail("a model was loaded"))
    with closing(commands.listen("127.0.0.1", 0)) as sock, pytest.raises(InputError, match="is already in use"):
        commands.serve(port=sock.getsockname()[1])


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("bert", "a=b"):
        (tmp_path / folder).mkdir()
    assert commands.name_and_folder("org/bert") == ("org/bert", "org/bert")
    assert commands.name_and_folder(str(tmp_path / "bert")) == ("bert", str(tmp_path / "bert"))
    assert commands.name_and_folder("./bert/") == ("bert", "./bert/")
    assert commands.name_and_folder("mine=./bert") == ("mine", "./bert")
    assert commands.name_and_folder("a=b") == ("a=b", "a=b")
    for given in ("=bert", "mine="):
        with pytest.raises(InputError, match=f"^--model '{given}': expected a folder, a hub id, or NAME=FOLDER$"):
            commands.name_and_folder(given)
    with pytest.raises(
        InputError,
        match=r"^two models are named 'bert', 'bert' and './bert': rename one of them with -m NAME=FOLDER$",
    ):
        commands.load_models(["bert", "./bert"], device=None, dtype="auto")


def test_models_are_loaded_under_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(af.__file__).parent / "paper" / "verb-number"
    (found,) = commands.load_models([f"mine={folder}"], device="cpu", dtype="float64")
    assert (found.name, found.kind, str(found.model.dtype)) == ("mine", "text", "torch.float64")
    assert capsys.readouterr().err == f"attnflow: loading {folder}\n"
    told = Service([found], Limits()).rows(RowsRequest(model="mine", text=TEXT, unit="words", query=0))
    assert str(folder) not in told(Job()).decode()
    assert explain(found.model, TEXT, importance=["gradient"]).document["model"]["model"] == "mine"
    with pytest.raises(InputError, match=r"^there is no folder './nowhere/at/all'"):
        commands.load_models(["./nowhere/at/all"], device="cpu", dtype="auto")


def test_models_that_cannot_be_served_say_so_at_the_start() -> None:
    for main in ("input_values", "input_features"):
        ear = SimpleNamespace(model=SimpleNamespace(main_input_name=main), config=None)
        with pytest.raises(
            InputError, match=r"^the model 'ear' reads audio: the web app supports text and image models only$"
        ):
            served("ear", ear)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="wrapped without a tokenizer"):
        served(
            "dumb",
            af.wrap(hf("BertModel", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)()),
        )


def test_the_command_is_there_without_what_it_needs() -> None:
    script = textwrap.dedent("""
        import sys
        sys.modules["fastapi"] = None
        from attnflow.cli.serve import serve
        print(sorted({"fastapi", "uvicorn", "pydantic", "torch", "transformers"} & {n for n, m in sys.modules.items() if m}))
        try:
            serve(port=0)
        except ValueError as e:
            print(e)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\nthe web app needs fastapi: pip install 'attnflow[models]'\n", done.stderr
