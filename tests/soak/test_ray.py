"""The job on Ray: the same bytes as on one machine, whoever is killed; and no words but ours."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnflow.errors import InputError
from attnflow.jobs.cluster import Placement, placement
from helpers.processes import (
    CORES,
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

pytest.importorskip("ray", reason="the job on Ray needs ray: pip install 'attnflow[ray]'")
pq = pytest.importorskip("pyarrow.parquet", reason="a corpus is kept as parquet")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")

TEXTS = 300
SHARDS = TEXTS // SHARD_TEXTS
FAILED = {20: "empty", 100: "encoding", 250: "too long"}
Cluster = tuple[str, int]


def begun(corpus: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    """A job that has done some of its shards, and not all."""
    job = subprocess.Popen(command(corpus, output, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: shards_done(output) >= 3 or job.poll() is not None, "the first shards")
    assert job.poll() is None, job.communicate()
    return job


def tokens(folder: dict[str, bytes]) -> int:
    return int(json.loads(folder["_manifest.jsonl"].splitlines()[-1])["tokens"])


def test_a_local_cluster(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    """Two workers of its own, though another cluster runs; what fails is a row; nothing is said but what was done."""
    output = tmp_path / "out"
    job = begun(corpus, output, "--ray", "--workers", "2")
    started = below(job.pid)
    assert len(workers_of(job.pid)) == 2 and not workers_of(cluster[1])
    stdout, stderr = job.communicate(timeout=300)
    assert (stderr, job.returncode) == ("", 3)
    assert re.sub("in [0-9.]+ s", "in … s", stdout) == (
        f"300 texts, {tokens(one_machine):,} tokens, {SHARDS} shards in {output}\n"
        "explained: 297\nerror, empty: 1\nerror, encoding: 1\nerror, too long: 1\n"
        "why, for each: the columns error and message of its row\nin … s\n"
    )
    assert content(output) == one_machine
    rows = pq.read_table(output, columns=["row", "error"]).to_pylist()
    assert [row["row"] for row in rows] == list(range(TEXTS))
    assert {row["row"]: row["error"] for row in rows if row["error"]} == FAILED
    until(lambda: not started.keys() & processes().keys(), "the end of the local cluster", 120)


def test_one_worker_of_a_cluster(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = explain(
        corpus, output, "--ray", "--ray-address", cluster[0], "--workers", "1", "--progress", "json", "--json"
    )
    assert done.returncode == 3, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line["of"] == TEXTS for line in lines)
    assert [line["texts"] for line in lines] == sorted(line["texts"] for line in lines)
    assert {"texts": lines[-1]["texts"], "errors": lines[-1]["errors"]} == {"texts": TEXTS, "errors": 3}
    told = json.loads(done.stdout)
    assert (told["texts"], told["parts"], told["errors"]) == (TEXTS, SHARDS, dict.fromkeys(sorted(FAILED.values()), 1))
    assert content(output) == one_machine


def test_a_worker_that_is_killed(corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path) -> None:
    """There is only this one, so that without another the job would never end."""
    output = tmp_path / "out"
    job = begun(corpus, output, "--ray", "--ray-address", cluster[0], "--workers", "1", "--json")
    (worker,) = workers_of(cluster[1])
    os.kill(worker, signal.SIGKILL)
    before = shards_done(output)
    assert before < SHARDS and b'"finished"' not in (output / "_manifest.jsonl").read_bytes()
    until(lambda: bool(workers_of(cluster[1]) - {worker}), "another worker")
    assert worker not in processes() and job.poll() is None
    stdout, stderr = job.communicate(timeout=300)
    assert job.returncode == 3, stderr
    assert json.loads(stdout)["texts"] == TEXTS, "Ray's own words would make this no JSON"
    assert stderr == "a worker died, and Ray starts another; Ray's logs say why\n"
    assert content(output) == one_machine


@pytest.mark.parametrize("shared", [False, True], ids=["resumed here", "resumed on Ray"])
def test_a_driver_that_is_killed(
    corpus: Path, one_machine: dict[str, bytes], cluster: Cluster, tmp_path: Path, shared: bool
) -> None:
    """What it has started goes with it: a local cluster as a whole, of a shared one the workers."""
    output = tmp_path / "out"
    there = ("--ray", "--ray-address", cluster[0]) if shared else ("--ray",)
    job = begun(corpus, output, *there, "--workers", "1")
    started = below(cluster[1] if shared else job.pid)
    agents = {pid for pid, line in started.items() if line.startswith("ray::") and "Agent" in line}
    gone = workers_of(cluster[1]) if shared else started.keys() - agents
    assert workers_of(cluster[1] if shared else job.pid) <= gone != set()
    job.kill()
    job.communicate()
    assert job.returncode == -signal.SIGKILL
    assert shards_done(output) < SHARDS and b'"finished"' not in (output / "_manifest.jsonl").read_bytes()
    until(lambda: not gone & processes().keys(), "the end of what it has started", 120)
    if not shared:  # Ray's agents want to report this to the cluster that is gone, and give up after a minute or two
        for pid in agents & processes().keys():
            os.kill(pid, signal.SIGKILL)
    done = explain(corpus, output, "--resume", "--json", *(there if shared else ()))
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
    """As if the texts had changed between planning, which is done here, and reading, which is done there."""
    output = tmp_path / "out"
    line = command(corpus, output, "--ray", "--ray-address", cluster[0], "--workers", "1")
    done = subprocess.run([line[0], "-c", WRONG, *line[3:]], capture_output=True, text=True, timeout=300)
    assert done.stderr == (
        "attnflow: the input changed while it was read: texts 60 to 71 are not what they were at first, in texts.txt; "
        "start again when nothing writes to it\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert not (output / "part-000005.parquet").exists()


def test_more_workers_than_cores(corpus: Path, cluster: Cluster, tmp_path: Path) -> None:
    done = explain(corpus, tmp_path / "out", "--ray", "--ray-address", cluster[0], "--workers", "99")
    assert done.stderr == (
        f"attnflow: 99 workers: the cluster has {CORES} cores for them; expected at most one worker a core\n"
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_an_address_of_nothing(corpus: Path, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else takes it
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = explain(corpus, tmp_path / "out", "--ray", "--ray-address", address)
    assert done.stderr == (
        f"attnflow: no Ray cluster answers at {address!r} (Connection refused): give --ray-address of one that runs\n"
    )
    assert (done.returncode, done.stdout) == (1, "")


def machines(*nodes: dict[str, float]) -> Any:
    """A cluster of these, and of one that is gone."""
    told = [{"Alive": True, "Resources": node} for node in nodes]
    return SimpleNamespace(nodes=lambda: [*told, {"Alive": False, "Resources": {"CPU": 512.0, "GPU": 64.0}}])


@pytest.mark.parametrize(
    ("nodes", "workers", "device", "expected"),
    [
        ([{"CPU": 1.0}], None, None, Placement(1, 1, 0)),
        ([{"CPU": 2.0}], None, None, Placement(1, 2, 0)),
        ([{"CPU": 2.0}], 2, None, Placement(2, 1, 0)),
        ([{"CPU": 16.0}], None, "cpu", Placement(8, 2, 0)),
        ([{"CPU": 16.0}], 3, None, Placement(3, 5, 0)),
        ([{"CPU": 16.0, "GPU": 4.0}], None, None, Placement(4, 4, 1)),
        ([{"CPU": 16.0, "GPU": 4.0}], None, "cuda", Placement(4, 4, 1)),
        ([{"CPU": 16.0, "GPU": 4.0}], 2, "cuda:1", Placement(2, 8, 1)),
        ([{"CPU": 16.0, "GPU": 4.0}], None, "cpu", Placement(8, 2, 0)),
        ([{"CPU": 2.0, "GPU": 4.0}], None, None, Placement(2, 1, 1)),
        # a worker lies on one machine: of two with eight cores each, it cannot have sixteen
        ([{"CPU": 8.0}, {"CPU": 8.0}], 1, None, Placement(1, 8, 0)),
        ([{"CPU": 3.0}, {"CPU": 3.0}], None, None, Placement(2, 3, 0)),
        ([{"CPU": 3.0}, {"CPU": 3.0}], 3, None, Placement(3, 1, 0)),
        ([{"CPU": 64.0}, {"CPU": 8.0, "GPU": 2.0}, {}], None, None, Placement(2, 4, 1)),
        ([{"CPU": 16.0, "GPU": 2.0}], 5, None, Placement(5, 3, 1 / 3)),
        ([{"CPU": 16.0, "GPU": 1.0}, {"CPU": 64.0}], 16, "cuda", Placement(16, 1, 1 / 16)),
    ],
)
def test_placement(nodes: list[dict[str, float]], workers: int | None, device: str | None, expected: Placement) -> None:
    assert placement(machines(*nodes), workers, device) == expected


def test_shapes_that_do_not_fit() -> None:
    both = {"CPU": 16.0, "GPU": 4.0}
    for nodes, workers, device, message in (
        (
            [both],
            17,
            None,
            "17 workers: the cluster has 16 cores beside its GPUs for them; expected at most one worker a core",
        ),
        ([both], 17, "cpu", "17 workers: the cluster has 16 cores for them; expected at most one worker a core"),
        (
            [{"CPU": 1.0}, {"CPU": 2.0}],
            4,
            None,
            "4 workers: the cluster has 3 cores for them; expected at most one worker a core",
        ),
    ):
        with pytest.raises(InputError) as e:
            placement(machines(*nodes), workers, device)
        assert str(e.value) == message
