"""A server in this process, and requests to it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pytest

from attnflow.cli import serve as commands
from attnflow.server.app import Server
from attnflow.server.limits import Limits
from attnflow.server.service import Served


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    @property
    def error(self) -> str:
        assert self.status >= 400 and set(self.json) == {"error"}
        return str(self.json["error"])


@contextmanager
def serving(
    models: list[Served], limits: Limits | None = None, browser: bool = False, host: str = "127.0.0.1"
) -> Iterator[Server]:
    with closing(commands.listen("127.0.0.1", 0)) as sock:
        server = Server(models, limits or Limits(), host, sock.getsockname()[1], commands.progress, browser)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            until(lambda: server.started)
            yield server
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def port(server: Server) -> int:
    return int(server.address.rsplit(":", 1)[1].rstrip("/"))


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    sent = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    more = {"Content-Type": "application/json"} if sent is not None else {}
    with closing(http.client.HTTPConnection("127.0.0.1", port(server), timeout=30)) as line:
        line.request(method, path, sent, more | {name.replace("_", "-"): value for name, value in headers.items()})
        return answered(line.getresponse())


def answered(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def until(true: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def plain(value: Any) -> Any:
    """Convert to JSON's types: tuples become lists."""
    return json.loads(json.dumps(value))
