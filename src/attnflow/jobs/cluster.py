"""A job on Ray Data: workers that hold a tool take tasks as they come. Ray starts another for one that dies."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from attnflow.errors import InputError, JobError
from attnflow.files import BESIDE
from attnflow.flow import cores

CORES = 2
"""Of a worker without a GPU, unless the number of workers says otherwise."""

PATIENCE = 5.0
"""Seconds for a cluster to answer."""

RETRIES = 5
"""Of a task whose worker dies: one that is killed each time, for want of memory, ends the job."""

TOGETHER = 4
"""Tasks that a worker takes at once, to read one while it works on another, as long as all workers have enough."""

BLOCKS = 10_000
"""Ray plans one of its own tasks for each block: at most so many."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Placement:
    """How the work is spread. workers: each with its own tool. cpus, gpus: of each; several workers may share a GPU."""

    workers: int
    cpus: int
    gpus: float


@contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, with a cluster of this machine's cores unless there is one at an address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports to its makers unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it will do by itself, and warns of
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what its core says is in its log files
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("ray=True needs ray: pip install 'attnflow[ray]'") from None
    # "local", because without an address Ray looks for a cluster that runs, and refuses to be told its cores
    options: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    try:
        if address is not None:
            _reach(address)
            options = {"address": address}
        with _muted():
            ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, OSError, OverflowError, RuntimeError, ValueError) as e:
        where = f"no Ray cluster answers at {address!r}" if address else "no local Ray cluster could be started"
        cause = e.__cause__ or e  # Ray says "failed to connect", of a token that is missing too
        reason = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).splitlines()[0]
        raise JobError(f"{where} ({reason:.120}): give ray_address= of one that runs") from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # of what it raises, the sentence is enough
    ray.data.DataContext.get_current().enable_progress_bars = False
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):  # Ray prints where only results belong
        try:
            yield ray
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Fails at once where nobody listens, where Ray itself would go on trying for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


@contextmanager
def _muted() -> Iterator[None]:
    """Without what Ray's core writes to the file of standard error, past Python, such as its log level."""
    sys.stderr.flush()
    stderr = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def placement(ray: ModuleType, workers: int | None, device: str | None) -> Placement:
    """One worker a GPU, or one for each two cores, by default; more than there are GPUs share them. Each has all cores that
    its machine can give to all of them."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in resources]
    if str(device or "").startswith("cpu"):
        nodes = [(cpu, 0) for cpu, _ in nodes]
    gpus = sum(gpu for _, gpu in nodes)
    if gpus:
        nodes = [(cpu, gpu) for cpu, gpu in nodes if gpu]
    sharing = -(-(workers or gpus) // gpus) if gpus else 0

    def room(cpus: int) -> int:
        """Workers with so many cores, none of which can lie on two machines."""
        return sum(min(cpu // cpus, gpu * sharing) if gpus else cpu // cpus for cpu, gpu in nodes)

    count = workers or max(1, room(1 if gpus else CORES))
    if count > room(1):
        where = "beside its GPUs " if gpus else ""
        raise InputError(
            f"{count} workers: the cluster has {sum(cpu for cpu, _ in nodes)} cores {where}for them; expected at most one "
            "worker a core"
        )
    cpus = 1
    while room(cpus + 1) >= count:
        cpus += 1
    return Placement(count, cpus, 1 / sharing if gpus else 0)


def run(
    ray: ModuleType,
    place: Placement,
    start: Callable[[int], Callable[[list[T]], Iterator[R]]],
    tasks: Mapping[int, T],
    folder: Path,
    say: Callable[[str], None],
) -> Iterator[R]:
    """The results of tasks, as they come. A task whose worker dies is done again by another.

    start: makes, in a worker with so many cores, what gives the results of tasks in their order; it travels, as tasks do.
    folder: all machines see it, for notes on the tries.
    """
    if not tasks:
        return
    items = [{"number": number, "task": pickle.dumps(task)} for number, task in tasks.items()]
    blocks = min(max(-(-len(items) // TOGETHER), min(len(items), TOGETHER * place.workers)), BLOCKS)
    rows = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
        _Actor,
        fn_constructor_args=(start, place.cpus, str(folder)),
        batch_size=TOGETHER,
        concurrency=min(place.workers, len(items)),
        num_cpus=place.cpus,
        num_gpus=place.gpus or None,
    )
    actors: set[str] = set()
    retries = deaths = 0
    try:
        for row in rows.iter_rows():
            actors.add(row["actor"])
            retries += row["tries"] > 0
            if max(len(actors) - place.workers, retries) > deaths:
                deaths = max(len(actors) - place.workers, retries)
                say("a worker died, and Ray starts another; Ray's logs say why")
            result = pickle.loads(row["result"])
            if isinstance(result, Exception):
                raise result
            yield result
    except ray.exceptions.RayError as e:
        raise _job_error(e) from e


class _Actor:
    """A worker of the cluster. It returns what it fails with: Ray would pass on where, and not what."""

    def __init__(self, start: Callable[[int], Callable[[list[Any]], Iterator[Any]]], cpus: int, folder: str) -> None:
        self.folder = Path(folder)
        self.name = os.urandom(8).hex()
        self.failure: Exception | None = None
        try:
            self.work = start(cpus)
        except Exception as e:
            self.failure = e

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        tries = 0
        results: list[Any]
        try:
            if self.failure is not None:
                raise self.failure
            with _tried(self.folder, int(batch["number"][0])) as tries:
                results = list(self.work([pickle.loads(task) for task in batch["task"]]))
        except Exception as e:
            results = [_job_error(e)]
        return {
            "actor": [self.name] * len(results),
            "tries": [tries] + [0] * (len(results) - 1),
            "result": [pickle.dumps(result) for result in results],
        }


@contextmanager
def _tried(folder: Path, number: int) -> Iterator[int]:
    """How often a task was begun before. A file counts it, because Ray tries for ever: the job must end some time."""
    path = folder / BESIDE.replace("*", f"tried-{number:06}")
    tries = path.stat().st_size if path.exists() else 0
    if tries > RETRIES:
        path.unlink()
        raise JobError(
            f"the worker at shard {number} died {tries} times, most often because memory ran out: give fewer workers or "
            "smaller batches, and run the same again"
        )
    with path.open("ab") as file:
        file.write(b"x")
    try:
        yield tries
    finally:
        path.unlink(missing_ok=True)


def _job_error(e: Exception) -> Exception:
    """A sentence of ours as it is; of anything else the first line."""
    if isinstance(e, InputError | JobError):
        return e
    line = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
    return JobError(f"the cluster failed ({type(e).__name__}: {line:.200}): run the same again")
