"""The same job on Ray Data: actors that hold the model take parts as they come, and write them where all can see them."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnflow.cli.options import progress, quiet
from attnflow.corpus import job
from attnflow.corpus.folder import Folder, Record, part_path
from attnflow.corpus.plan import Part, Piece
from attnflow.corpus.progress import Progress
from attnflow.errors import InputError
from attnflow.files import BESIDE
from attnflow.flow import cores

CORES = 2
"""Of a worker without a GPU, unless the number of workers says otherwise."""

PATIENCE = 5.0
"""Seconds for a cluster to answer."""

RETRIES = 5
"""Of a part whose worker dies: one that is killed each time, for want of memory, ends the job."""

TOGETHER = 4
"""Parts that a worker takes at once, to read one while it works on another, as long as all workers have enough."""

BLOCKS = 10_000
"""Ray plans one task a block: at most so many."""


@dataclass(frozen=True)
class Shape:
    """How the work is spread. workers: each with a model. cpus, gpus: of each; several workers may share a GPU."""

    workers: int
    cpus: int
    gpus: float


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, with a cluster of this machine's cores unless there is one at an address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports to its makers unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it will do by itself, and warns of
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what its core says is in its log files
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("--ray needs ray: pip install 'attnflow[ray]'") from None
    # "local", because without an address Ray looks for a cluster that runs, and refuses to be told its cores
    given: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    try:
        if address is not None:
            _reach(address)
            given = {"address": address}
        with _muted():
            ray.init(**given, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, OSError, OverflowError, RuntimeError, ValueError) as e:
        where = f"no Ray cluster answers at {address!r}" if address else "no local Ray cluster could be started"
        why = e.__cause__ or e  # Ray says "failed to connect", of a token that is missing too
        told = (getattr(why, "strerror", None) or str(why) or type(why).__name__).splitlines()[0]
        raise InputError(f"{where} ({told:.120}): give --ray-address of one that runs") from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # of what it raises, the sentence is enough
    with redirect_stdout(_Heard()):
        try:
            yield ray
        finally:
            ray.shutdown()


class _Heard(io.TextIOBase):
    """What Ray prints on standard output, where only results belong. That a worker died is passed on, in a sentence."""

    def write(self, text: str) -> int:
        if "worker died" in text:
            progress("a worker died, and Ray starts another; Ray's logs say why")
        return len(text)


def _reach(address: str) -> None:
    """Fails at once where nobody listens, where Ray itself would go on trying for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


@contextmanager
def _muted() -> Iterator[None]:
    """Without what Ray's core writes to the file of standard error, past Python, such as its log level."""
    sys.stderr.flush()
    held = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(held, 2)
        os.close(held)
        os.close(nothing)


def shape(ray: Any, workers: int | None, device: str | None) -> Shape:
    """One worker a GPU, or one for each two cores, where nothing else is said; more than there are GPUs share them. Each
    has all cores that its machine can give to all of them."""
    held = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in held]
    if str(device or "").startswith("cpu"):
        nodes = [(cpu, 0) for cpu, _ in nodes]
    gpus = sum(gpu for _, gpu in nodes)
    if gpus:
        nodes = [(cpu, gpu) for cpu, gpu in nodes if gpu]
    sharing = -(-(workers or gpus) // gpus) if gpus else 0

    def room(cpus: int) -> int:
        """Workers with so many cores, none of which can lie on two machines."""
        return sum(min(cpu // cpus, gpu * sharing) if gpus else cpu // cpus for cpu, gpu in nodes)

    most = sum(cpu for cpu, _ in nodes)
    count = workers or max(1, room(1 if gpus else CORES))
    if count > room(1):
        where = "beside its GPUs " if gpus else ""
        raise InputError(
            f"{count} workers: the cluster has {most} cores {where}for them; expected at most one worker a core"
        )
    cpus = 1
    while room(cpus + 1) >= count:
        cpus += 1
    return Shape(count, cpus, 1 / sharing if gpus else 0)


def anywhere(spec: job.Spec) -> job.Spec:
    """The same, with paths that are good in any working directory."""
    model = spec.source["model"]
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())
    return replace(spec, source={**spec.source, "model": model}, folder=str(Path(spec.folder).resolve()))


class Actor:
    """A worker of the cluster. What it fails with it returns: Ray would pass on where, and not what."""

    def __init__(self, spec: job.Spec, cpus: int) -> None:
        quiet()
        import torch

        torch.set_num_threads(cpus)
        self.worker: job.Worker | None = None
        try:
            self.worker = job.Worker(spec, solvers=cpus)
        except Exception as e:
            self.told = _told(e)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.worker is None:
            return {"record": [json.dumps({"failed": self.told})]}
        parts = [_part(json.loads(held)) for held in batch["part"]]
        try:
            with _tried(Path(self.worker.spec.folder), parts[0].number):
                return {"record": [json.dumps(record) for record in self.worker.do(parts)]}
        except Exception as e:
            return {"record": [json.dumps({"failed": _told(e)})]}


@contextmanager
def _tried(folder: Path, number: int) -> Iterator[None]:
    """Counts in a file how often a task was begun, because Ray tries for ever: who dies of it each time ends the job."""
    path = folder / BESIDE.replace("*", f"tried-{number:06}")
    before = path.stat().st_size if path.exists() else 0
    if before > RETRIES:
        path.unlink()
        raise InputError(
            f"the worker at part {number} died {before} times, most often because memory ran out: give fewer workers or "
            "fewer --batch-tokens, and run it again with --resume"
        )
    with path.open("ab") as file:
        file.write(b"x")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _part(held: dict[str, Any]) -> Part:
    return Part(**{**held, "pieces": tuple(Piece(**piece) for piece in held["pieces"])})


def run(folder: Folder, parts: Mapping[int, Part], spec: job.Spec, shown: Progress, ray: Any, spread: Shape) -> Record:
    """The job on a cluster. Who dies is started again by Ray, and its part is done again, into the same bytes."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False

    def does(left: list[Part]) -> Iterator[Record]:
        if not left:
            return
        items = [{"part": json.dumps(asdict(part))} for part in left]
        blocks = min(max(-(-len(items) // TOGETHER), min(len(items), TOGETHER * spread.workers)), BLOCKS)
        rows = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
            Actor,
            fn_constructor_args=(spec, spread.cpus),
            batch_size=TOGETHER,
            concurrency=min(spread.workers, len(items)),
            num_cpus=spread.cpus,
            num_gpus=spread.gpus or None,
        )
        for row in rows.iter_rows():
            record = json.loads(row["record"])
            if "failed" in record:
                raise InputError(record["failed"])
            path = part_path(folder.path, record["part"])
            if not path.exists() or path.stat().st_size != record["bytes"]:
                raise InputError(
                    f"a worker has written {str(path)!r} where this machine does not see it: give a folder that all "
                    "machines of the cluster share"
                )
            shown.seen(record["texts"], record["tokens"])
            yield record

    try:
        return job.run(folder, parts, does, shown)
    except ray.exceptions.RayError as e:
        raise InputError(_told(e)) from e


def _told(e: Exception) -> str:
    """A sentence of ours as it is; of anything else the first line."""
    if isinstance(e, InputError):
        return str(e)
    told = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
    return f"the cluster failed ({type(e).__name__}: {told:.200}): run it again with --resume"
