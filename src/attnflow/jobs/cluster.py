"""Jobs on Ray: workers take tasks as they become free. Ray reserves their resources and restarts workers that die."""

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
"""Cores per worker without a GPU, unless the number of workers decides."""

PATIENCE = 5.0
"""Seconds to wait for a cluster to answer."""

WAIT = 60.0
"""Seconds to wait for resources, at the start and after a machine is lost."""

RETRIES = 5
"""How often Ray restarts a worker: a task that kills its worker every time, for lack of memory, ends the job."""

TOGETHER = 4
"""Tasks that a worker takes at once, to read one while it works on another, as long as all workers have enough."""

PARTS = 10_000
"""The smallest part of a GPU: Ray keeps four decimals of a fraction."""

DEATH = "a worker died, and Ray is starting another; see Ray's logs for the reason"

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Placement:
    """The resources that the workers take from a cluster.

    cpus, gpus: of each worker.
    bundles: the number of workers in each bundle. Ray reserves a bundle on one machine, so workers that share a GPU are
        in one bundle.
    device: of each model.
    whole: whether a bundle reserves all of its GPU.
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
        """The resources of each bundle, in Ray's terms."""
        gpus = [1 if self.whole else round(count * self.gpus, 4) for count in self.bundles]
        return [
            {"CPU": count * self.cpus} | ({"GPU": gpu} if gpu else {})
            for count, gpu in zip(self.bundles, gpus, strict=True)
        ]


@contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Connect to the Ray cluster at an address, or start one with this machine's cores."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends usage reports unless this is set
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the coming default; without it Ray warns
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray's core also writes to its log files
    try:
        import ray
    except ImportError:
        raise InputError("ray=True needs ray: pip install 'attnflow[ray]'") from None
    # "local", because without an address Ray looks for a running cluster, and then rejects num_cpus
    options: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    try:
        if address is not None:
            _reach(address)
            options = {"address": address}
        with _muted():
            ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, OSError, OverflowError, RuntimeError, ValueError) as e:
        where = f"no Ray cluster answers at {address!r}" if address else "no local Ray cluster could be started"
        cause = e.__cause__ or e  # Ray says "failed to connect" for a missing token too
        reason = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).splitlines()[0]
        raise JobError(f"{where} ({reason:.120}): give ray_address= of a running cluster") from None
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):  # Ray prints to stdout, which is for results
        try:
            yield ray
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray itself would retry for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


@contextmanager
def _muted() -> Iterator[None]:
    """Silence what Ray's core writes directly to standard error, such as its log level."""
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
    """Refuse what Ray cannot provide: fractions above one GPU, and fractions too small for it to count."""
    if gpus_per_worker is None:
        return
    fraction = 1 / PARTS <= gpus_per_worker <= 1
    if not fraction and not (gpus_per_worker > 1 and float(gpus_per_worker).is_integer()):
        raise InputError(
            f"gpus_per_worker={gpus_per_worker}: expected a fraction of a GPU from {1 / PARTS:.4f} to 1, or a whole "
            "number of GPUs"
        )


def placement(
    ray: ModuleType, workers: int | None, device: str | None = None, gpus_per_worker: float | None = None
) -> Placement:
    """Choose the number of workers and their resources.

    The default is one worker per GPU, or one per two cores. If there are more workers than GPUs, they share them. Each
    worker gets as many cores as its machine can give to all of them.
    gpus_per_worker: of each worker, on any device. Without `workers`, there are as many workers as GPUs and cores
        allow.
    """
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in resources]
    most = max((gpu for _, gpu in nodes), default=0)
    kind = str(device).split(":")[0] if device is not None else None  # a worker sees only its own GPUs, from cuda:0
    if kind not in (None, "cpu", "cuda"):
        raise InputError(f"device={device!r} does not work on Ray: expected cpu or cuda")
    size = max(1, int(gpus_per_worker or 1))  # GPUs per bundle
    if most < size and (gpus_per_worker is not None or kind == "cuda"):
        name, value = ("device", f'"{device}"') if gpus_per_worker is None else ("gpus_per_worker", gpus_per_worker)
        limits = f"no machine in the cluster has more than {most}" if most else "the cluster has none"
        raise InputError(f"{name}={value} needs GPUs, but {limits}: give less, or leave it out")
    on_gpus = most > 0 and (gpus_per_worker is not None or kind != "cpu")
    # places: the bundles that a machine could take if it had the cores
    places = [(cpu, gpu // size if on_gpus else cpu) for cpu, gpu in nodes if not on_gpus or gpu >= size]
    fraction = 1.0 if gpus_per_worker is None else round(gpus_per_worker, 4)
    limit = (workers or 1) if on_gpus and gpus_per_worker is None else max(1, int(PARTS // round(fraction * PARTS)))

    def room(cpus: int, sharing: int) -> int:
        """Return how many workers with `cpus` cores fit, `sharing` per bundle; a bundle cannot span two machines."""
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
        fraction = math.floor(PARTS / sharing) / PARTS  # rounded down, so that the sum never exceeds one GPU
    bundles = _bundles([min(cpu // cpus, place * sharing) for cpu, place in places], sharing, count)
    return Placement(
        cpus, fraction, bundles, kind or ("cuda" if on_gpus else "cpu"), on_gpus and gpus_per_worker is None
    )


def _check_room(
    count: int, places: list[tuple[int, int]], limit: int, on_gpus: bool, gpus_per_worker: float | None
) -> None:
    if gpus_per_worker is not None and count > limit * sum(place for _, place in places):
        raise InputError(
            f"{count} workers do not fit: with gpus_per_worker={gpus_per_worker}, the cluster's GPUs have room for "
            f"{limit * sum(place for _, place in places)}: give fewer workers"
        )
    if count > sum(min(cpu, place * limit) for cpu, place in places):
        where = "on machines with GPUs " if on_gpus else ""
        raise InputError(
            f"{count} workers do not fit: the cluster has {sum(cpu for cpu, _ in places)} cores {where}for them; "
            "expected at most one worker per core"
        )


def _bundles(rooms: list[int], sharing: int, count: int) -> tuple[int, ...]:
    """Return the sizes of bundles for `count` workers, given each machine's room.

    Ray places the largest bundles first, wherever they fit. Full bundles and what is then left of each machine always
    fit. If there are fewer workers, some full bundles have one worker less; smaller bundles would not have fit.
    """
    sizes = sorted((size for room in rooms for size in _split(room, sharing)), reverse=True)
    full = sizes.count(sharing)
    for index in range(sum(sizes) - count):
        sizes[full - 1 - index] -= 1
    return tuple(sorted(filter(None, sizes), reverse=True))


def _split(room: int, sharing: int) -> list[int]:
    return [sharing] * (room // sharing) + [room % sharing] * (room % sharing > 0)


def reserve(ray: ModuleType, place: Placement) -> PlacementGroup:
    """Reserve the bundles of all workers in a Ray placement group, so that no worker waits for another's resources."""
    # SPREAD, because workers never talk to each other: on separate machines they share less memory and disk, and a
    # machine that dies takes fewer of them with it. PACK would only leave machines free for other jobs.
    group = ray.util.placement_group(place.resources, strategy="SPREAD")
    if not group.wait(WAIT):
        ray.util.remove_placement_group(group)
        free, total = ray.available_resources(), ray.cluster_resources()
        needs = " and ".join(f"{value:g} {name}" for name, value in (("CPU", place.cpus), ("GPU", place.gpus)) if value)
        rest = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in place.resources[0])
        count = f"{place.workers} worker" + "s" * (place.workers > 1)
        raise JobError(
            f"the cluster has no room for {count} with {needs} each: {rest} are free after {WAIT:g} s; wait for "
            "other jobs, or give fewer workers"
        )
    if place.device == "cuda":
        checks = [_options(ray, ray.remote(_sees_gpu), place, group, index) for index in range(len(place.bundles))]
        try:
            answers = ray.get([check.remote() for check in checks])
        except ray.exceptions.RayError as e:
            raise _job_error(e) from e
        if not all(answers):
            raise InputError(
                "a worker has a GPU, but torch does not see it there: install torch with CUDA on every machine, or "
                'give device="cpu"'
            )
    return group


def _options(ray: ModuleType, remote: Any, place: Placement, group: PlacementGroup, index: int, **more: Any) -> Any:
    """Return a Ray task or actor with the cores and GPUs of one worker of a bundle."""
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
) -> Iterator[R]:
    """Yield the results of tasks as they come. Ray restarts a worker that dies and repeats its tasks.

    start: called in a worker with its number of cores; returns a function that yields the results of tasks in order. It
        is pickled, as tasks are.
    """
    if not tasks:
        return
    left = deque(tasks.items())
    bundles = [index for index, count in enumerate(place.bundles) for _ in range(count)][: len(tasks)]
    # Ray counts the deaths of a worker. Task retries are unlimited, because Ray notices late that a machine is gone.
    lives = {"max_restarts": RETRIES, "max_task_retries": -1}
    actor, tool = ray.remote(_Worker), ray.put(start)
    pending: dict[Any, tuple[int, list[tuple[int, T]]]] = {}
    survivors: set[int] = set()  # workers that continued after a death

    def begin(bundle: int) -> Any:
        return _options(ray, actor, place, group, bundle, **lives).remote(tool, place.cpus)

    def submit(index: int, batch: list[tuple[int, T]]) -> None:
        pending[workers[index].do.remote([task for _, task in batch])] = index, batch

    def next_batch() -> list[tuple[int, T]]:
        """Return the next batch. A worker has one at a time, so that it is known which batch kills it."""
        size = max(1, min(TOGETHER, len(left) // (2 * len(bundles))))
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
                if index not in survivors:  # all of its restarts went into this batch
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
    """A worker of the cluster. It returns exceptions instead of raising them: Ray would wrap them."""

    def __init__(self, start: Callable[[int], Callable[[list[Any]], Iterator[Any]]], cpus: int) -> None:
        import ray

        self.restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self.failure: Exception | None = None
        try:
            self.work = start(cpus)
        except Exception as e:
            self.failure = _job_error(e)

    def do(self, tasks: list[Any]) -> tuple[bool, list[Any] | Exception]:
        """Return whether these are the first tasks after a restart, and their results or the exception."""
        restarted, self.restarted = self.restarted, False
        if self.failure is not None:
            return restarted, self.failure
        try:
            return restarted, list(self.work(tasks))
        except Exception as e:
            return restarted, _job_error(e)


def _death(e: Exception, numbers: list[int]) -> JobError:
    if getattr(e, "actor_init_failed", False):  # an import failed; errors while loading the tool are caught
        cause = str(e).strip().splitlines()[-1]
        return JobError(
            f"a worker could not start ({cause:.200}): install the same attnflow on every machine of the cluster, "
            "and run the same again"
        )
    where = f"shard {numbers[0]}" if len(numbers) == 1 else f"shards {numbers[0]} to {numbers[-1]}"
    return JobError(
        f"the worker at {where} died {RETRIES + 1} times, usually because memory ran out: give fewer workers or "
        "smaller batches, and run the same again"
    )


def _job_error(e: Exception) -> Exception:
    """Return our own errors as they are; for others, an error with the first line."""
    if isinstance(e, InputError | JobError):
        return e
    line = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
    return JobError(f"the cluster failed ({type(e).__name__}: {line:.200}): run the same again")
