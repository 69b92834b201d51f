"""The same job on Ray Data: actors that hold the model take parts as they come, and write them where all can see them."""

from __future__ import annotations

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

from attnflow.command import quiet
from attnflow.corpus import job
from attnflow.corpus.folder import Folder, Record, part_path
from attnflow.corpus.progress import Progress
from attnflow.corpus.read import Part, Piece
from attnflow.errors import InputError
from attnflow.flow import cores

CORES = 2
"""Of a worker without a GPU, unless the number of workers says otherwise."""

PATIENCE = 5.0
"""Seconds for a cluster to answer."""

BLOCKS = 10_000
"""Ray plans one task a block; above so many parts, a task takes several."""


@dataclass(frozen=True)
class Shape:
    """How the work is spread. workers: each with a model. cpus, gpus: of each."""

    workers: int
    cpus: int
    gpus: int


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
        told = (getattr(e, "strerror", None) or str(e) or type(e).__name__).splitlines()[0]
        raise InputError(f"{where} ({told:.120}): give --ray-address of one that runs") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):  # where Ray says that a worker died; what we print is for programs too
            yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Fails at once where nobody listens, for which Ray itself needs a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


@contextmanager
def _muted() -> Iterator[None]:
    """Without what Ray's core writes to the file of standard error, past Python: it also says what it was told to say."""
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
    """One worker a GPU, or one for each two cores, where nothing else is said."""
    there = ray.cluster_resources()
    cpus, gpus = int(there.get("CPU", 1)), int(there.get("GPU", 0))
    if gpus and not str(device or "").startswith("cpu"):
        count = min(workers or gpus, gpus)
        return Shape(count, max(1, cpus // gpus), 1)
    count = workers or max(1, cpus // CORES)
    if count > cpus:
        raise InputError(f"{count} workers: the cluster has {cpus} cores; expected at most one worker a core")
    return Shape(count, cpus // count, 0)


def anywhere(spec: job.Spec) -> job.Spec:
    """The same, with paths that are good in any working directory."""
    model = spec.source["model"]
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())
    return replace(spec, source={**spec.source, "model": model}, folder=str(Path(spec.folder).resolve()))


class Actor:
    """A worker of the cluster."""

    def __init__(self, spec: job.Spec, cpus: int) -> None:
        quiet()
        import torch

        torch.set_num_threads(cpus)
        self.worker = job.Worker(spec, solvers=cpus)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        parts = [_part(json.loads(held)) for held in batch["part"]]
        return {"record": [json.dumps(record) for record in self.worker.do(parts)]}


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
        rows = ray.data.from_items(items, override_num_blocks=min(len(items), BLOCKS)).map_batches(
            Actor,
            fn_constructor_args=(spec, spread.cpus),
            batch_size=1,
            concurrency=min(spread.workers, len(items)),
            num_cpus=spread.cpus,
            num_gpus=spread.gpus or None,
        )
        for row in rows.iter_rows():
            record = json.loads(row["record"])
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


def _told(e: BaseException) -> str:
    """The sentence of ours that a worker failed with, or Ray's own last words."""
    cause: BaseException | None = e
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = getattr(cause, "cause", None) or cause.__cause__
    lines = [line for line in str(e).splitlines() if line.strip()]
    return f"the cluster failed ({lines[-1].strip() if lines else type(e).__name__:.200}): run it again with --resume"
