"""Starting, running and stopping the server."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from attnflow.server.api import api
from attnflow.server.guard import WILDCARDS, Guard, authorities
from attnflow.server.limits import Limits
from attnflow.server.queue import JobQueue
from attnflow.server.service import Served, Service

Say = Callable[[str], None]


class Server(uvicorn.Server):
    """A uvicorn server that reports its address once it is ready, and stops the queue before it waits for connections.

    say: called with the line that contains the address.
    """

    def __init__(
        self,
        models: Sequence[Served],
        limits: Limits,
        host: str,
        port: int,
        say: Say = lambda line: None,
        browser: bool = False,
    ) -> None:
        images = any(each.kind == "image" for each in models)
        hosts = authorities(host, port)
        name = WILDCARDS.get(host, host)  # a wildcard is no address to open
        self.jobs = JobQueue(limits)
        self.address = f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
        self.say = say
        self.browser = browser
        self.names = [each.name for each in models]
        guard = Guard(api(Service(models, limits), self.jobs), hosts, limits.body(images), limits.body_seconds)
        # Errors in the app go to our own log, and a client that disconnects is not an error
        super().__init__(
            uvicorn.Config(
                guard, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, log_level="critical",
                access_log=False, proxy_headers=False, server_header=False, timeout_graceful_shutdown=2,
            )
        )  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.say(f"attnflow: {', '.join(self.names)} at {self.address} (press Ctrl+C to stop)")
        if self.browser:  # in a thread, because a terminal browser blocks until it is closed
            threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True).start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.jobs.stop()
        await super().shutdown(sockets)


def run(models: Sequence[Served], limits: Limits, host: str, sock: socket.socket, say: Say, browser: bool) -> None:
    """Serve until SIGINT or SIGTERM. A computation that does not stop within seconds ends with the process."""
    server = Server(models, limits, host, sock.getsockname()[1], say, browser)
    with _asked_to_stop():
        server.run(sockets=[sock])
        server.jobs.thread.join(timeout=2)
        if server.jobs.thread.is_alive():  # still in torch, which would abort at interpreter shutdown
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


@contextmanager
def _asked_to_stop() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again after it has stopped."""
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
