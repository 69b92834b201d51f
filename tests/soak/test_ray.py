"""The job on Ray: the same bytes as on one machine, whichever process is killed; and no output but ours."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attnflow.errors import InputError, JobError
from attnflow.jobs import cluster as jobs
from attnflow.jobs.cluster import Placement, check_gpus, placement
from helpers.processes import (
    CORES,
    GPUS,
    SHARD_TEXTS,
    below,
    command,
    content,
    explain,
    processes,
    shards_done,
    until,
    workers_of,
)

if find_spec("ray") is None:  # not imported here: ray reads the environment on import, so only `connected` imports it
    pytest.skip("the job on Ray needs ray: pip install 'attnflow[ray]'", allow_module_level=True)
pq = pytest.importorskip("pyarrow.parquet", reason="a corpus is kept as parquet")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")

TEXTS = 300
SHARDS = TEXTS // SHARD_TEXTS
FAILED = {20: "empty", 100: "encoding", 250: "too long"}
Cluster = tuple[str, int]


def there(cluster: Cluster) -> tuple[str, ...]:
    """Return the options of a job on the cluster; without a device, it would look for the declared GPUs."""
    return ("--ray", "--ray-address", cluster[0], "--device", "cpu")


def begun(corpus: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    """Start a job and wait until some of its shards are done."""
    job = subprocess.Popen(command(corpus, output, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: shards_done(output) >= 3 or job.poll() is not None, "the first shards")
    assert job.poll() is None, job.communicate()
    return job


def tokens(folder: dict[str, bytes]) -> int:
    return int(json.loads(folder["_manifest.jsonl"].splitlines()[-1])["tokens"])


def test_a_local_cluster(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    """The job starts two workers of its own, although another cluster runs, and prints only its summary."""
    output = tmp_path / "out"
    job = begun(corpus, output, "--ray", "--workers", "2")
    started = below(job.pid)
    assert len(workers_of(job.pid)) == 2 and not workers_of(cluster[1])
    stdout, stderr = job.communicate(timeout=300)
    assert (stderr, job.returncode) == ("", 3)
    assert re.sub("in [0-9.]+ s", "in … s", stdout) == (
        f"300 texts, {tokens(one_machine):,} tokens, {SHARDS} shards in {output}\n"
        "explained: 297\nerror, empty: 1\nerror, encoding: 1\nerror, too long: 1\n"
        "the columns error and message of each failed row say why\nin … s\n"
    )
    assert content(output) == one_machine
    rows = pq.read_table(output, columns=["row", "error"]).to_pylist()
    assert [row["row"] for row in rows] == list(range(TEXTS))
    assert {row["row"]: row["error"] for row in rows if row["error"]} == FAILED
    until(lambda: not started.keys() & processes().keys(), "the end of the local cluster", 120)


def test_one_worker_of_a_cluster(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = explain(corpus, output, *there(cluster), "--workers", "1", "--progress", "json", "--json")
    assert done.returncode == 3, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line["of"] == TEXTS for line in lines)
    assert [line["texts"] for line in lines] == sorted(line["texts"] for line in lines)
    assert {"texts": lines[-1]["texts"], "errors": lines[-1]["errors"]} == {"texts": TEXTS, "errors": 3}
    told = json.loads(done.stdout)
    assert (told["texts"], told["parts"], told["errors"]) == (TEXTS, SHARDS, dict.fromkeys(sorted(FAILED.values()), 1))
    assert content(output) == one_machine


def test_a_worker_that_is_killed(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    """It is the only one: without a replacement, the job would never end."""
    output = tmp_path / "out"
    job = begun(corpus, output, *there(cluster), "--workers", "1", "--json")
    (worker,) = workers_of(cluster[1])
    os.kill(worker, signal.SIGKILL)
    before = shards_done(output)
    assert before < SHARDS and b'"finished"' not in (output / "_manifest.jsonl").read_bytes()
    until(lambda: bool(workers_of(cluster[1]) - {worker}), "another worker")
    assert worker not in processes() and job.poll() is None
    stdout, stderr = job.communicate(timeout=300)
    assert job.returncode == 3, stderr
    assert json.loads(stdout)["texts"] == TEXTS, "Ray's own words would make this no JSON"
    assert stderr == "a worker died, and Ray is starting another; see Ray's logs for the reason\n"
    assert content(output) == one_machine


@pytest.mark.parametrize("shared", [False, True], ids=["resumed here", "resumed on Ray"])
def test_a_driver_that_is_killed(
    corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path, shared: bool
) -> None:
    """What it started ends with it: a whole local cluster, or its workers on a shared one."""
    output = tmp_path / "out"
    where = there(cluster) if shared else ("--ray",)
    job = begun(corpus, output, *where, "--workers", "1")
    started = below(cluster[1] if shared else job.pid)
    agents = {pid for pid, line in started.items() if line.startswith("ray::") and "Agent" in line}
    gone = workers_of(cluster[1]) if shared else started.keys() - agents
    assert workers_of(cluster[1] if shared else job.pid) <= gone != set()
    job.kill()
    job.communicate()
    assert job.returncode == -signal.SIGKILL
    assert shards_done(output) < SHARDS and b'"finished"' not in (output / "_manifest.jsonl").read_bytes()
    until(lambda: not gone & processes().keys(), "the end of what it has started", 120)
    if not shared:  # Ray's agents try to reach the cluster for a minute or two
        for pid in agents & processes().keys():
            os.kill(pid, signal.SIGKILL)
    done = explain(corpus, output, "--resume", "--json", *(where if shared else ()))
    assert (done.returncode, done.stderr) == (3, "")
    assert 3 * SHARD_TEXTS <= json.loads(done.stdout)["resumed"] < TEXTS
    assert content(output) == one_machine


WRONG = """
from dataclasses import replace
from attnflow.cli import main
from attnflow.corpus import corpus_job

planned = corpus_job.planned

def wrong(*given, **more):
    shards = planned(*given, **more)
    return {**shards, 5: replace(shards[5], digest="of other texts")}

corpus_job.planned = wrong
main()
"""


def test_a_refusal_of_a_worker(corpus: Path, cluster: Cluster, tmp_path: Path) -> None:
    """As if the texts had changed between planning, done here, and reading, done there."""
    output = tmp_path / "out"
    line = command(corpus, output, *there(cluster), "--workers", "1")
    done = subprocess.run([line[0], "-c", WRONG, *line[3:]], capture_output=True, text=True, timeout=300)
    assert done.stderr == (
        "attnflow: the input changed while it was read: texts 60 to 71 in texts.txt are different now; start again "
        "when nothing writes to it\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert not (output / "part-000005.parquet").exists()


def test_more_workers_than_cores(corpus: Path, cluster: Cluster, tmp_path: Path) -> None:
    done = explain(corpus, tmp_path / "out", *there(cluster), "--workers", "99")
    assert done.stderr == (
        f"attnflow: 99 workers do not fit: the cluster has {CORES} cores for them; expected at most one worker per core\n"
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_a_fraction_of_a_gpu(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    """Two workers, one per core, reserve half a GPU each, and run on the CPU as requested."""
    output = tmp_path / "out"
    job = begun(corpus, output, *there(cluster), "--gpus-per-worker", "0.5")
    with jobs.connected(cluster[0]) as ray:
        (group,) = (group for group in ray.util.placement_group_table().values() if group["state"] == "CREATED")
        assert list(group["bundles"].values()) == [{"CPU": 1.0, "GPU": 0.5}] * 2
        assert (ray.available_resources()["GPU"], ray.available_resources().get("CPU", 0)) == (GPUS - 1, CORES - 2)
        assert len(workers_of(cluster[1])) == 2
        _, stderr = job.communicate(timeout=300)
        assert (stderr, job.returncode) == ("", 3)
        until(lambda: ray.available_resources()["GPU"] == GPUS, "the GPUs of a job that has ended", 60)
    assert content(output) == one_machine


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="torch would see the GPU that it must miss here")
def test_a_gpu_that_torch_does_not_see(corpus: Path, cluster: Cluster, tmp_path: Path) -> None:
    done = explain(corpus, tmp_path / "out", "--ray", "--ray-address", cluster[0], "--workers", "1")
    assert done.stderr == (
        "attnflow: a worker has a GPU, but torch does not see it there: install torch with CUDA on every machine, or "
        'give device="cpu"\n'
    )
    assert (done.returncode, done.stdout, (tmp_path / "out").exists()) == (2, "", False)


@pytest.fixture(scope="module")
def connection(cluster: Cluster) -> Iterator[ModuleType]:
    with jobs.connected(cluster[0]) as ray:
        yield ray


def results(ray: ModuleType, place: Placement, start: Callable[[int], Any], tasks: int) -> list[Any]:
    """Run numbered tasks with a tool in place of a model, and return their results."""
    group = jobs.reserve(ray, place)
    try:
        return list(jobs.run(ray, place, group, start, {number: number for number in range(tasks)}, lambda line: None))
    finally:
        ray.util.remove_placement_group(group)


def test_workers_share_a_gpu(connection: ModuleType) -> None:
    def start(cpus: int) -> Callable[[list[int]], Iterator[Any]]:
        import ray

        context = ray.get_runtime_context()
        facts = (cpus, context.get_actor_id(), context.get_assigned_resources(), context.get_accelerator_ids()["GPU"])
        return lambda numbers: iter([(number, *facts) for number in numbers])

    rows = results(connection, Placement(1, 0.25, (2,), "cpu"), start, 40)
    assert sorted(row[0] for row in rows) == list(range(40))
    assert len({row[2] for row in rows}) == 2
    assert len({tuple(row[4]) for row in rows}) == 1
    assert all((row[1], row[3]) == (1, {"CPU": 1.0, "GPU": 0.25}) for row in rows)


def test_a_cluster_without_room(connection: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job has one of the cores: the error is reported, and later the freed core can be used."""
    other = connection.util.placement_group([{"CPU": 1}])
    assert other.wait(30)
    place = placement(connection, 2, "cpu", 0.5)
    with monkeypatch.context() as patch, pytest.raises(JobError) as e:
        patch.setattr(jobs, "WAIT", 3)
        jobs.reserve(connection, place)
    assert str(e.value) == (
        "the cluster has no room for 2 workers with 1 CPU and 0.5 GPU each: 1 of 2 CPU, 2 of 2 GPU are free after 3 s; wait "
        "for other jobs, or give fewer workers"
    )
    connection.util.remove_placement_group(other)
    assert sorted(results(connection, place, lambda cpus: iter, 3)) == [0, 1, 2]


@pytest.mark.parametrize("moment", ["while it works", "while it makes its tool"])
def test_a_task_that_kills_its_worker(
    connection: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    monkeypatch.setattr(jobs, "RETRIES", 2)
    tries = tmp_path / "tries"

    def die() -> None:
        with tries.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    def start(cpus: int) -> Callable[[list[int]], Iterator[int]]:
        if moment == "while it makes its tool":
            die()
        return lambda numbers: (number if number != 2 else die() for number in numbers)  # type: ignore[misc]

    with pytest.raises(JobError) as e:
        results(connection, Placement(2, 0, (1,), "cpu"), start, 3)
    shard = 2 if moment == "while it works" else 0
    assert str(e.value) == (
        f"the worker at shard {shard} died 3 times, usually because memory ran out: give fewer workers or smaller "
        "batches, and run the same again"
    )
    assert tries.read_text() == "xxx"


def test_a_worker_that_dies_now_and_then(
    connection: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In total more often than Ray restarts it, but never at the same task."""
    monkeypatch.setattr(jobs, "RETRIES", 1)
    monkeypatch.setattr(jobs, "TOGETHER", 1)

    def work(numbers: list[int]) -> Iterator[int]:
        for number in numbers:
            if not (tmp_path / str(number)).exists():
                (tmp_path / str(number)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield number

    assert results(connection, Placement(2, 0, (1,), "cpu"), lambda cpus: work, 4) == [0, 1, 2, 3]


def test_a_machine_that_is_gone(
    connection: ModuleType, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others finish their work. Ray finds no room for a replacement, and the job ends instead of waiting forever."""
    monkeypatch.setattr(jobs, "WAIT", 5)
    join = ["-m", "ray.scripts.scripts", "start", "--address", cluster[0], "--block", "--num-cpus", "1"]
    machine = subprocess.Popen([sys.executable, *join], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def work(numbers: list[int]) -> Iterator[int]:
        import time

        for number in numbers:
            while number >= 20 and not (tmp_path / "gone").exists():
                time.sleep(0.1)
            yield number

    try:
        until(lambda: len([node for node in connection.nodes() if node["Alive"]]) == 2, "another machine", 60)
        place = placement(connection, 3, "cpu")
        group = jobs.reserve(connection, place)
        records = jobs.run(connection, place, group, lambda cpus: work, dict(enumerate(range(40))), print)
        numbers = [next(records) for _ in range(8)]
    finally:
        for pid in (*below(machine.pid), machine.pid):
            os.kill(pid, signal.SIGKILL)
        machine.wait()
    (tmp_path / "gone").touch()
    with pytest.raises(JobError) as e:
        numbers.extend(records)
    connection.util.remove_placement_group(group)
    assert str(e.value) == (
        "a machine of the cluster is gone, and no other has room for its workers: run the same again"
    )
    assert 40 - jobs.TOGETHER <= len(set(numbers)) == len(numbers) < 40


def test_a_mistake_is_not_retried(connection: ModuleType, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    def work(numbers: list[int]) -> Iterator[int]:
        with tries.open("a") as file:
            file.write("x")
        raise InputError("the texts are others now: start again")

    with pytest.raises(InputError, match=r"^the texts are others now: start again$"):
        results(connection, Placement(2, 0, (1,), "cpu"), lambda cpus: work, 1)
    assert tries.read_text() == "x"


def test_an_address_of_nothing(corpus: Path, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening, so the port stays unused
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = explain(corpus, tmp_path / "out", "--ray", "--ray-address", address)
    assert done.stderr == (
        f"attnflow: no Ray cluster answers at {address!r} (Connection refused): give ray_address= of a running cluster\n"
    )
    assert (done.returncode, done.stdout) == (1, "")


def machines(*nodes: dict[str, float]) -> Any:
    """Return a cluster of these machines, and of one that is gone."""
    told = [{"Alive": True, "Resources": node} for node in nodes]
    return SimpleNamespace(nodes=lambda: [*told, {"Alive": False, "Resources": {"CPU": 512.0, "GPU": 64.0}}])


@pytest.mark.parametrize(
    ("nodes", "workers", "device", "gpus", "expected"),
    [
        ([{"CPU": 1.0}], None, None, None, Placement(1, 0, (1,), "cpu")),
        ([{"CPU": 2.0}], None, None, None, Placement(2, 0, (1,), "cpu")),
        ([{"CPU": 2.0}], 2, None, None, Placement(1, 0, (1, 1), "cpu")),
        ([{"CPU": 16.0}], None, "cpu", None, Placement(2, 0, (1,) * 8, "cpu")),
        ([{"CPU": 16.0}], 3, None, None, Placement(5, 0, (1,) * 3, "cpu")),
        ([{"CPU": 16.0, "GPU": 4.0}], None, None, None, Placement(4, 1, (1,) * 4, "cuda", True)),
        ([{"CPU": 16.0, "GPU": 4.0}], None, "cuda", None, Placement(4, 1, (1,) * 4, "cuda", True)),
        ([{"CPU": 16.0, "GPU": 4.0}], 2, "cuda:1", None, Placement(8, 1, (1, 1), "cuda", True)),
        ([{"CPU": 16.0, "GPU": 4.0}], None, "cpu", None, Placement(2, 0, (1,) * 8, "cpu")),
        ([{"CPU": 2.0, "GPU": 4.0}], None, None, None, Placement(1, 1, (1, 1), "cuda", True)),
        # a worker needs a single machine: two with eight cores each cannot give it sixteen
        ([{"CPU": 8.0}, {"CPU": 8.0}], 1, None, None, Placement(8, 0, (1,), "cpu")),
        ([{"CPU": 3.0}, {"CPU": 3.0}], None, None, None, Placement(3, 0, (1, 1), "cpu")),
        ([{"CPU": 3.0}, {"CPU": 3.0}], 3, None, None, Placement(1, 0, (1,) * 3, "cpu")),
        ([{"CPU": 64.0}, {"CPU": 8.0, "GPU": 2.0}, {}], None, None, None, Placement(4, 1, (1, 1), "cuda", True)),
        ([{"CPU": 16.0, "GPU": 2.0}], 5, None, None, Placement(3, 0.3333, (3, 2), "cuda", True)),
        ([{"CPU": 16.0, "GPU": 1.0}, {"CPU": 64.0}], 16, "cuda", None, Placement(1, 0.0625, (16,), "cuda", True)),
        # a machine with few cores gets few workers, and the others share the GPU of the other machine
        ([{"CPU": 2.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}], 6, None, None, Placement(1, 0.25, (4, 2), "cuda", True)),
        (
            [{"CPU": 6.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}],
            6,
            None,
            None,
            Placement(1, 0.3333, (3, 2, 1), "cuda", True),
        ),
        # a fraction determines the number of workers, up to the number of cores; the device may still be the CPU
        ([{"CPU": 16.0, "GPU": 2.0}], None, None, 0.25, Placement(2, 0.25, (4, 4), "cuda")),
        ([{"CPU": 16.0, "GPU": 2.0}], None, "cpu", 0.25, Placement(2, 0.25, (4, 4), "cpu")),
        ([{"CPU": 6.0, "GPU": 2.0}], None, None, 0.25, Placement(1, 0.25, (3, 3), "cuda")),
        ([{"CPU": 16.0, "GPU": 2.0}], 3, None, 0.25, Placement(5, 0.25, (2, 1), "cuda")),
        ([{"CPU": 16.0, "GPU": 2.0}], None, None, 0.4, Placement(4, 0.4, (2, 2), "cuda")),
        ([{"CPU": 64.0}, {"CPU": 8.0, "GPU": 1.0}], None, None, 0.5, Placement(4, 0.5, (2,), "cuda")),
        # Ray would round these up to more than one GPU in total
        ([{"CPU": 16.0, "GPU": 1.0}], 6, None, None, Placement(2, 0.1666, (6,), "cuda", True)),
        ([{"CPU": 16.0, "GPU": 1.0}], None, None, 1 / 3, Placement(5, 0.3333, (3,), "cuda")),
        ([{"CPU": 16.0, "GPU": 1.0}], None, None, 0.3334, Placement(8, 0.3334, (2,), "cuda")),
        ([{"CPU": 16.0, "GPU": 8.0}, {"CPU": 4.0, "GPU": 1.0}], None, None, 2, Placement(4, 2, (1,) * 4, "cuda")),
    ],
)
def test_placement(
    nodes: list[dict[str, float]], workers: int | None, device: str | None, gpus: float | None, expected: Placement
) -> None:
    assert placement(machines(*nodes), workers, device, gpus) == expected


def test_bundles() -> None:
    """By default each bundle has a whole GPU, since Ray would put two halves on one; a fraction reserves only itself."""
    assert Placement(3, 0.3333, (3, 2), "cuda", True).resources == [{"CPU": 9, "GPU": 1}, {"CPU": 6, "GPU": 1}]
    assert Placement(3, 0.3333, (3, 2), "cuda").resources == [{"CPU": 9, "GPU": 0.9999}, {"CPU": 6, "GPU": 0.6666}]
    assert Placement(2, 0, (1,), "cpu").resources == [{"CPU": 2}]


def test_bundles_fit_wherever_ray_begins() -> None:
    """Ray places the largest bundle first; other choices are random here. Each fraction comes from one GPU."""
    rng = random.Random(0)
    plans = 0
    for _ in range(3000):
        nodes = [{"CPU": float(rng.randint(0, 12)), "GPU": float(rng.randint(0, 4))} for _ in range(rng.randint(1, 4))]
        workers = rng.choice([None, *range(1, 20)])
        try:
            place = placement(machines(*nodes), workers, None, rng.choice([None, 0.1, 0.25, 1 / 3, 0.4, 0.5, 1, 2]))
        except InputError:
            continue
        plans += 1
        assert workers is None or place.workers == workers
        free = [(node["CPU"], [1.0] * int(node["GPU"])) for node in nodes]
        for bundle in sorted(place.resources, key=lambda one: (one.get("GPU", 0), one["CPU"]), reverse=True):
            choices = []
            for index, (cpu, parts) in enumerate(free):
                rest = taken(parts, bundle.get("GPU", 0))
                if cpu >= bundle["CPU"] and rest is not None:
                    choices.append((index, (cpu - bundle["CPU"], rest)))
            assert choices, (nodes, place)
            index, state = rng.choice(choices)
            free[index] = state
    assert plans > 1000


def taken(parts: list[float], gpus: float) -> list[float] | None:
    """Return what remains of a machine's GPUs, or None if there is too little; a fraction comes from the fullest GPU."""
    parts = sorted(parts)
    whole = [index for index, part in enumerate(parts) if part == 1]
    if gpus >= 1:
        return (
            None if len(whole) < gpus else [part for index, part in enumerate(parts) if index not in whole[: int(gpus)]]
        )
    for index, part in enumerate(parts):
        if part >= gpus - 1e-9:
            return [*parts[:index], part - gpus, *parts[index + 1 :]]
    return None if gpus else parts


def test_shapes_that_do_not_fit() -> None:
    both = {"CPU": 16.0, "GPU": 4.0}
    few = {"CPU": 1.0}, {"CPU": 2.0}
    for nodes, workers, device, gpus, message in (
        (
            [both], 17, None, None,
            ("17 workers do not fit: the cluster has 16 cores on machines with GPUs for them; expected at most one worker "
            "per core"),
        ),
        ([both], 17, "cpu", None, "17 workers do not fit: the cluster has 16 cores for them; expected at most one worker per core"),
        (few, 4, None, None, "4 workers do not fit: the cluster has 3 cores for them; expected at most one worker per core"),
        (
            [both], 9, None, 0.5,
            "9 workers do not fit: with gpus_per_worker=0.5, the cluster's GPUs have room for 8: give fewer workers",
        ),
        (
            [both], 17, "cpu", 0.1,
            ("17 workers do not fit: the cluster has 16 cores on machines with GPUs for them; expected at most one worker "
            "per core"),
        ),
        (few, None, "cpu", 0.5, "gpus_per_worker=0.5 needs GPUs, but the cluster has none: give less, or leave it out"),
        (
            [both, both], None, None, 5,
            "gpus_per_worker=5 needs GPUs, but no machine in the cluster has more than 4: give less, or leave it out",
        ),
        (few, None, "cuda:0", None, 'device="cuda:0" needs GPUs, but the cluster has none: give less, or leave it out'),
        ([both], None, "gpu", None, "device='gpu' does not work on Ray: expected cpu or cuda"),
    ):  # fmt: skip
        with pytest.raises(InputError) as e:
            placement(machines(*nodes), workers, device, gpus)
        assert str(e.value) == message


@pytest.mark.parametrize("gpus", [0, -0.5, 0.00001, 1.5, float("nan"), float("inf")])
def test_fractions_that_ray_cannot_give(gpus: float) -> None:
    with pytest.raises(InputError) as e:
        check_gpus(gpus)
    assert str(e.value) == (
        f"gpus_per_worker={gpus}: expected a fraction of a GPU from 0.0001 to 1, or a whole number of GPUs"
    )


@pytest.mark.parametrize("gpus", [None, 0.0001, 0.25, 1, 1.0, 2, 8.0])
def test_fractions_that_ray_can_give(gpus: float | None) -> None:
    check_gpus(gpus)
