"""`attnflow serve`: the page as a local web app."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.cli.options import STAGES, AllowPickle, Device, Dtype, TrustRemoteCode, progress, start
from attnflow.errors import InputError
from attnflow.jobs.progress import Stages

if TYPE_CHECKING:
    from attnflow.server.service import Served


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--model",
            help="Model folder or hub id, or NAME=FOLDER to name it; repeat the option for more models. By default, the "
            "embedded verb-number model.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0 picks a free one.")] = 8421,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. There is no password: anyone who can reach it can use it."
        ),
    ] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option(" /--no-open", help="Do not open a browser.", show_default=False)] = True,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of tokens per text.")] = 512,
    queue: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of waiting requests.")] = 32,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Run the interactive page as a local web app, with a JSON API (/openapi.json)."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        raise InputError(f"the web app needs {e.name}: pip install 'attnflow[models]'") from None
    with closing(listen(host, port)) as sock:  # report a taken port before loading models
        start()
        from attnflow.server.app import run
        from attnflow.server.guard import own_names
        from attnflow.server.limits import Limits

        models = load_models(
            model or [], device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
        )
        if not ip_address(sock.getsockname()[0]).is_loopback:
            number = sock.getsockname()[1]
            names = [
                f"http://[{name}]:{number}/" if ":" in name else f"http://{name}:{number}/" for name in own_names(host)
            ]
            progress(f"attnflow: other machines can open {' or '.join(names)}, and there is no password")
        run(models, Limits(tokens=max_tokens, queue=queue), host, sock, progress, open_page)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an `InputError` that says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise InputError(f"unknown --host {host!r}: expected 127.0.0.1, or a name or address of this machine") from None
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # reuse a port whose old connections are still closing; on Windows this would share it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} is already in use: give another one with --port, or --port 0 to pick a free one"
            ) from None
        if e.errno == errno.EADDRNOTAVAIL:
            raise InputError(
                f"--host {host!r} is not an address of this machine: expected, for example, 127.0.0.1"
            ) from None
        raise InputError(f"cannot listen on {host} port {port} ({e.strerror}): give another --port or --host") from None
    return sock


def load_models(sources: list[str], **options: Any) -> list[Served]:
    """Load the models, each with a name that does not reveal its folder to clients.

    options: passed to `attnflow.load`.
    """
    import attnflow
    from attnflow.server.service import served

    if not sources:
        with Stages(STAGES) as stages:
            stages("load", 0, 1)
            embedded = attnflow.load(device=options["device"], dtype=options["dtype"])
        return [served(embedded.name, embedded)]
    folders: dict[str, str] = {}
    for source in sources:
        name, folder = name_and_folder(source)
        if name in folders:
            raise InputError(
                f"two models are named {name!r}, {folders[name]!r} and {folder!r}: rename one of them with -m "
                "NAME=FOLDER"
            )
        folders[name] = folder
    models = []
    for name, folder in folders.items():
        progress(f"attnflow: loading {folder}")
        with Stages(STAGES) as stages:
            stages("load", 0, 1)
            model = attnflow.load(folder, **options)
        model.name = name
        models.append(served(name, model))
    return models


def name_and_folder(source: str) -> tuple[str, str]:
    """Split NAME=FOLDER. Without a name, use the last part of a folder, or the whole hub id."""
    name, mark, folder = source.partition("=")
    if mark and not Path(source).exists():
        if not name or not folder:
            raise InputError(f"--model {source!r}: expected a folder, a hub id, or NAME=FOLDER")
        return name, folder
    return (Path(source).resolve().name if Path(source).exists() else source), source
