"""A job on Ray: workers that hold a tool take tasks as they come. Ray reserves their room, and restarts those that die."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from attnflow.errors import InputError, JobError
from attnflow.flow import cores

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

CORES = 2
"""Of a worker without a GPU, unless the number of workers says otherwise."""

PATIENCE = 5.0
"""Seconds for a cluster to answer."""

WAIT = 60.0
"""Seconds for a cluster to give the workers their room, at the beginning and when a machine is gone."""

RETRIES = 5
"""Of a task whose worker dies: one that is killed each time, for want of memory, ends the job."""

TOGETHER = 4
"""Tasks that a worker takes at once, to read one while it works on another, as long as all workers have enough."""

PARTS = 10_000
"""Of a GPU: Ray keeps four decimals of a fraction."""

DEATH = "a worker died, and Ray starts another; Ray's logs say why"

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Placement:
    """What the workers take of a cluster.

    cpus, gpus: of each worker, which has its own tool. bundles: how many workers are in each. Ray reserves a bundle on one
    machine, so workers that share a GPU are in one. device: of each model. whole: a bundle reserves all of its GPU.
    """

    cpus: int
    gpus: float
    bundles: tuple[int, ...]
    device: str
    whole: bool = False

    @property
    def workers(self) -> int:
        return sum(self.bundles)

    @property
    def resources(self) -> list[dict[str, float]]:
        """Of each bundle, in Ray's words."""
        gpus = [1 if self.whole else round(count * self.gpus, 4) for count in self.bundles]
        return [
            {"CPU": count * self.cpus} | ({"GPU": gpu} if gpu else {})
            for count, gpu in zip(self.bundles, gpus, strict=True)
        ]


@contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, with a cluster of this machine's cores unless there is one at an address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports to its makers unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it will do by itself, and warns of
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what its core says is in its log files
    try:
        import ray
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


def check_gpus(gpus_per_worker: float | None) -> None:
    """Refuses what Ray cannot give: more than one GPU, and not whole ones; less than it counts."""
    if gpus_per_worker is None:
        return
    fraction = 1 / PARTS <= gpus_per_worker <= 1
    if not fraction and not (gpus_per_worker > 1 and float(gpus_per_worker).is_integer()):
        raise InputError(
            f"gpus_per_worker={gpus_per_worker}: expected a fraction of a GPU from {1 / PARTS:.4f} to 1, or a whole number "
            "of GPUs"
        )


def placement(
    ray: ModuleType, workers: int | None, device: str | None = None, gpus_per_worker: float | None = None
) -> Placement:
    """One worker a GPU, or one for each two cores, by default; more than there are GPUs share them. Each has all cores that
    its machine can give to all of them.

    gpus_per_worker: of each worker, whatever the device; as many workers as GPUs and cores allow, unless `workers` says.
    """
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in resources]
    most = max((gpu for _, gpu in nodes), default=0)
    kind = str(device).split(":")[0] if device is not None else None  # a worker sees only its own GPUs, from cuda:0
    if kind not in (None, "cpu", "cuda"):
        raise InputError(f"device={device!r}: on Ray, expected cpu or cuda")
    size = max(1, int(gpus_per_worker or 1))  # GPUs of a bundle
    if most < size and (gpus_per_worker is not None or kind == "cuda"):
        name, value = ("device", f'"{device}"') if gpus_per_worker is None else ("gpus_per_worker", gpus_per_worker)
        limits = f"no machine of the cluster has more than {most}" if most else "the cluster has none"
        raise InputError(f"{name}={value} needs GPUs, and {limits}: give less, or leave it out")
    on_gpus = most > 0 and (gpus_per_worker is not None or kind != "cpu")
    # places: bundles that a machine could hold, if it had cores for them
    places = [(cpu, gpu // size if on_gpus else cpu) for cpu, gpu in nodes if not on_gpus or gpu >= size]
    fraction = 1.0 if gpus_per_worker is None else round(gpus_per_worker, 4)
    limit = (workers or 1) if on_gpus and gpus_per_worker is None else max(1, int(PARTS // round(fraction * PARTS)))

    def room(cpus: int, sharing: int) -> int:
        """Workers with so many cores, so many to a bundle, none of which can lie on two machines."""
        return sum(min(cpu // cpus, place * sharing) for cpu, place in places)

    count = workers or max(1, room(1 if on_gpus else CORES, limit))
    _check_room(count, places, limit, on_gpus, gpus_per_worker)
    sharing = next(n for n in range(1, limit + 1) if room(1, n) >= count)
    cpus = 1
    while room(cpus + 1, sharing) >= count:
        cpus += 1
    if not on_gpus:
        fraction = 0
    elif gpus_per_worker is None:
        fraction = math.floor(PARTS / sharing) / PARTS  # never more than a GPU in all
    bundles = _bundles([min(cpu // cpus, place * sharing) for cpu, place in places], sharing, count)
    return Placement(
        cpus, fraction, bundles, kind or ("cuda" if on_gpus else "cpu"), on_gpus and gpus_per_worker is None
    )


def _check_room(
    count: int, places: list[tuple[int, int]], limit: int, on_gpus: bool, gpus_per_worker: float | None
) -> None:
    if gpus_per_worker is not None and count > limit * sum(place for _, place in places):
        raise InputError(
            f"{count} workers: the GPUs of the cluster have room for {limit * sum(place for _, place in places)} with "
            f"gpus_per_worker={gpus_per_worker}; expected no more"
        )
    if count > sum(min(cpu, place * limit) for cpu, place in places):
        where = "beside its GPUs " if on_gpus else ""
        raise InputError(
            f"{count} workers: the cluster has {sum(cpu for cpu, _ in places)} cores {where}for them; expected at most one "
            "worker a core"
        )


def _bundles(rooms: list[int], sharing: int, count: int) -> tuple[int, ...]:
    """Sizes of bundles for so many workers, of which each machine has room for some.

    Ray places the largest bundles first, wherever they fit. Full ones, and what is then left of each machine, always fit;
    where there are fewer workers, full ones lose one each, and no more, because fewer to a bundle had too little room.
    """
    sizes = sorted((size for room in rooms for size in _split(room, sharing)), reverse=True)
    full = sizes.count(sharing)
    for index in range(sum(sizes) - count):
        sizes[full - 1 - index] -= 1
    return tuple(sorted(filter(None, sizes), reverse=True))


def _split(room: int, sharing: int) -> list[int]:
    return [sharing] * (room // sharing) + [room % sharing] * (room % sharing > 0)


def reserve(ray: ModuleType, place: Placement) -> PlacementGroup:
    """A placement group of Ray with the bundles of all workers, none of which then waits for the room of another."""
    # SPREAD, because workers never talk to each other: apart they share less of a machine's memory and disk, and a machine
    # that dies takes fewer with it. PACK would only leave machines free for others.
    group = ray.util.placement_group(place.resources, strategy="SPREAD")
    if not group.wait(WAIT):
        ray.util.remove_placement_group(group)
        free, total = ray.available_resources(), ray.cluster_resources()
        needs = " and ".join(f"{value:g} {name}" for name, value in (("CPU", place.cpus), ("GPU", place.gpus)) if value)
        rest = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in place.resources[0])
        count = f"{place.workers} worker" + "s" * (place.workers > 1)
        raise JobError(
            f"the cluster has no room for {count} with {needs} each: {rest} are free after {WAIT:g} s; wait for other "
            "jobs, or give fewer workers"
        )
    if place.device == "cuda":
        checks = [_options(ray, ray.remote(_sees_gpu), place, group, index) for index in range(len(place.bundles))]
        try:
            answers = ray.get([check.remote() for check in checks])
        except ray.exceptions.RayError as e:
            raise _job_error(e) from e
        if not all(answers):
            raise InputError(
                "a worker has a GPU of the cluster, and torch sees none there: install a torch with CUDA on every machine, "
                'or give device="cpu"'
            )
    return group


def _options(ray: ModuleType, remote: Any, place: Placement, group: PlacementGroup, index: int, **more: Any) -> Any:
    """A task or actor of Ray with the cores and GPUs of one worker of a bundle."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index)
    return remote.options(num_cpus=place.cpus, num_gpus=place.gpus, scheduling_strategy=strategy, **more)


def _sees_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def run(
    ray: ModuleType,
    place: Placement,
    group: PlacementGroup,
    start: Callable[[int], Callable[[list[T]], Iterator[R]]],
    tasks: Mapping[int, T],
    say: Callable[[str], None],
    helpers: int = 0,
) -> Iterator[R]:
    """The results of tasks, as they come. Ray restarts a worker that dies, and does its tasks again.

    start: makes, in a worker with so many cores, what gives the results of tasks in their order; it travels, as tasks do.
    helpers: processes that work for each worker, which takes so many more tasks at once that all of them have some.
    """
    if not tasks:
        return
    left = deque(tasks.items())
    bundles = [index for index, count in enumerate(place.bundles) for _ in range(count)][: len(tasks)]
    # Ray counts the deaths of a worker; it tries tasks for ever, because it does not learn at once that a machine is gone
    lives = {"max_restarts": RETRIES, "max_task_retries": -1}
    actor, tool = ray.remote(_Worker), ray.put(start)
    pending: dict[Any, tuple[int, list[tuple[int, T]]]] = {}
    survivors: set[int] = set()  # workers that went on after a death

    def begin(bundle: int) -> Any:
        return _options(ray, actor, place, group, bundle, **lives).remote(tool, place.cpus)

    def submit(index: int, batch: list[tuple[int, T]]) -> None:
        pending[workers[index].do.remote([task for _, task in batch])] = index, batch

    def next_batch() -> list[tuple[int, T]]:
        """A worker has one batch at a time, so that it is known which one kills it."""
        size = max(1, min(TOGETHER * (1 + helpers), len(left) // (2 * len(bundles))))
        return [left.popleft() for _ in range(min(size, len(left)))]

    try:
        workers = [begin(bundle) for bundle in bundles]
        for index in range(len(workers)):
            submit(index, next_batch())
        while pending:
            ready, _ = ray.wait(list(pending), timeout=WAIT)
            if not ready:
                if not group.wait(WAIT):  # it lacks bundles again
                    raise JobError(
                        "a machine of the cluster is gone, and no other has room for its workers: run the same again"
                    )
                continue
            index, batch = pending.pop(ready[0])
            try:
                restarted, results = ray.get(ready[0])
            except ray.exceptions.RayActorError as e:
                if index not in survivors:  # so all of its lives went into this batch
                    raise _death(e, [number for number, _ in batch]) from e
                survivors.remove(index)
                workers[index] = begin(bundles[index])
                say(DEATH)
                submit(index, batch)
                continue
            if isinstance(results, Exception):
                raise results
            if left:
                submit(index, next_batch())
            if restarted:
                survivors.add(index)
                say(DEATH)
            yield from results
    except ray.exceptions.RayError as e:
        raise _job_error(e) from e


class _Worker:
    """A worker of the cluster. It returns what it fails with: Ray would pass on where, and not what."""

    def __init__(self, start: Callable[[int], Callable[[list[Any]], Iterator[Any]]], cpus: int) -> None:
        import ray

        self.restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self.failure: Exception | None = None
        try:
            self.work = start(cpus)
        except Exception as e:
            self.failure = _job_error(e)

    def do(self, tasks: list[Any]) -> tuple[bool, list[Any] | Exception]:
        """Whether these are the first tasks after a death; and their results, or what went wrong."""
        restarted, self.restarted = self.restarted, False
        if self.failure is not None:
            return restarted, self.failure
        try:
            return restarted, list(self.work(tasks))
        except Exception as e:
            return restarted, _job_error(e)


def _death(e: Exception, numbers: list[int]) -> JobError:
    if getattr(
        e, "actor_init_failed", False
    ):  # not by the tool, whose mistakes are caught: by what is imported before it
        cause = str(e).strip().splitlines()[-1]
        return JobError(
            f"a worker could not start ({cause:.200}): install the same attnflow on every machine of the cluster, and run "
            "the same again"
        )
    where = f"shard {numbers[0]}" if len(numbers) == 1 else f"shards {numbers[0]} to {numbers[-1]}"
    return JobError(
        f"the worker at {where} died {RETRIES + 1} times, most often because memory ran out: give fewer workers or smaller "
        "batches, and run the same again"
    )


def _job_error(e: Exception) -> Exception:
    """A sentence of ours as it is; of anything else the first line."""
    if isinstance(e, InputError | JobError):
        return e
    line = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
    return JobError(f"the cluster failed ({type(e).__name__}: {line:.200}): run the same again")
