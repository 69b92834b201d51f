"""Checks of origin and size for every request: other web pages must not be able to use a server without a password."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from attnflow.server.limits import UNEXPECTED, Refusal
from attnflow.server.wire import refused

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that mean every address of the machine, each with the loopback address to open."""


def own_names(host: str) -> list[str]:
    """Return the names and addresses of this machine that other machines may use for a server on this host.

    A wildcard stands for all of them. Only names that the machine has are allowed, because any other name in a Host header
    is a sign of DNS rebinding.
    """
    if host not in WILDCARDS:
        return [host.lower()]
    name = socket.gethostname().lower()
    names = [name]
    with contextlib.suppress(OSError):
        names += [str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # connecting a datagram socket sends nothing, but chooses the address that other machines see
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            names.append(str(probe.getsockname()[0]))
    return [one for one in dict.fromkeys(names) if not one.startswith("127.") and one != "::1"]


def authorities(host: str, port: int) -> list[str]:
    """Return the allowed Host headers: loopback names and those of the host that the server was started with."""
    own = [f"[{name}]" if ":" in name else name for name in (host.lower(), *own_names(host))]
    names = dict.fromkeys(["127.0.0.1", "localhost", "[::1]", *own])
    return [f"{name}:{port}" for name in names] + (list(names) if port == 80 else [])


class Guard:
    """ASGI middleware that checks the origin and size of requests, and adds security headers to responses.

    The server has no password, so other web pages must not be able to use it through the user's browser. The Host header
    reveals DNS rebinding; Origin and Sec-Fetch-Site reveal requests from other origins. Old browsers without these headers
    are covered by the content type, which a form cannot send.
    """

    def __init__(self, app: Any, hosts: Sequence[str], largest: int, seconds: float) -> None:
        self.app = app
        self.hosts = hosts
        self.largest = largest
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False
        own = "" if scope["path"] == "/" else "default-src 'none'; "
        more = [
            (b"x-content-type-options", b"nosniff"),
            (b"x-frame-options", b"DENY"),
            (b"content-security-policy", f"{own}frame-ancestors 'none'".encode()),
            # no-referrer would make some requests of our own page send "Origin: null"
            (b"referrer-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        try:
            self.check(scope, headers)
            if scope["method"] == "POST":
                receive = _again(await self.body(headers, receive), receive)
            await self.app(scope, receive, guarded)
        except Refusal as problem:
            await refused(problem)(scope, receive, guarded)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not started:
                await refused(Refusal(500, UNEXPECTED))(scope, receive, guarded)

    def check(self, scope: Scope, headers: Mapping[str, list[str]]) -> None:
        host = ", ".join(headers.get("host", []))
        if host.lower() not in self.hosts:
            raise Refusal(403, f"the Host header is {host!r:.80}: expected one of {', '.join(self.hosts)}")
        for origin in headers.get("origin", []):
            if origin.lower() not in [f"http://{each}" for each in self.hosts]:
                raise Refusal(
                    403,
                    f"the request comes from a page on {origin!r:.80}: only the server's own page may send requests",
                )
        site = headers.get("sec-fetch-site", ["none"])
        arrives = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
        link = scope["path"] == "/" and scope["method"] == "GET" and arrives  # opening the page is harmless
        if not link and not set(site) <= {"none", "same-origin"}:
            raise Refusal(403, "the request comes from another page: only the server's own page may send requests")
        if scope["method"] == "POST":
            kind = headers.get("content-type", [""])[0]
            if kind.partition(";")[0].strip().lower() != "application/json":
                raise Refusal(415, f"the content type is {kind!r:.80}: expected application/json")

    async def body(self, headers: Mapping[str, list[str]], receive: Receive) -> bytes:
        """Read the body, up to its maximum size.

        A moderate excess is read and discarded, because a client that is still sending would not read the response.
        """
        close = {"Connection": "close"}
        large = Refusal(
            413, f"the request is larger than {self.largest:,} bytes: send a shorter text or a smaller image", close
        )
        length = headers.get("content-length", ["0"])[0]
        if length.isdecimal() and int(length) > 8 * self.largest:
            raise large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.seconds):
                more = True
                while more and size <= 8 * self.largest:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refusal(400, "the connection was closed before the whole body arrived: send it again")
                    size += len(message.get("body", b""))
                    if size > self.largest:
                        parts.clear()
                    else:
                        parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refusal(
                408, f"the body did not arrive within {self.seconds:g} seconds: send a smaller one", close
            ) from None
        if size > self.largest:
            raise large
        return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a channel that repeats the body and then continues with `receive`."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def channel() -> Message:
        return left.pop() if left else await receive()

    return channel
