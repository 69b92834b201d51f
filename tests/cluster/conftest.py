"""A corpus, what one machine makes of it, and a cluster that all tests share, since starting one takes seconds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PART_TEXTS = 12
ASKED = ["--part-texts", str(PART_TEXTS), "--method", "rollout,flow", "--query", "all", "--layer", "last"]
WORDS = "the a key keys cabinet cabinets author authors of to near that who likes like book books is are old".split()
CORES = 2


def command(corpus: Path, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", "from attnflow.cli import main; main()", "corpus", str(corpus), str(output), *ASKED, *more]  # fmt: skip


def explain(corpus: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(corpus, output, *more), capture_output=True, text=True, timeout=120)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.01)


def parts_done(output: Path) -> int:
    """Lines of the manifest, less its first."""
    manifest = output / "_manifest.jsonl"
    return manifest.read_bytes().count(b"\n") - 1 if manifest.exists() else 0


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command line of all that run, by their ids; those that ended, and nobody has asked how, do not."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has just ended
            continue
        if state != "Z":
            found[int(folder.name)] = (int(parent), line)
    return found


def below(root: int) -> dict[int, str]:
    """Command lines of all that a process has started, and these in turn."""
    running = processes()
    found: dict[int, str] = {}
    fresh = [root]
    while fresh:
        fresh = [pid for pid, (parent, _) in running.items() if parent in fresh]
        found |= {pid: running[pid][1] for pid in fresh}
    return found


def workers_of(root: int) -> set[int]:
    return {pid for pid, line in below(root).items() if "ray::MapWorker" in line}


@pytest.fixture(scope="session")
def ray_home() -> Iterator[Path]:
    """Where Ray keeps sockets and logs. The paths of sockets have to be short, so that pytest's own folder will not do."""
    home = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(home))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(ray_home: Path) -> Iterator[tuple[str, int]]:
    """Address of a cluster with two cores, and the process that has started all others of it."""
    start = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", "0", "--num-cpus", str(CORES),
        "--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(ray_home),
    ]  # fmt: skip
    address = ray_home / "ray_current_cluster"
    head = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: address.exists() and bool(address.read_text()), "a cluster")
        yield address.read_text().strip(), head.pid
    finally:
        started = below(head.pid)
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(30)
        finally:
            for pid in started.keys() & processes().keys():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 texts, of which three fail."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(8, 24))).encode() for _ in range(300)]
    lines[20], lines[100], lines[250] = b"", b"caf\xe9", b"key " * 3000
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.fixture(scope="session")
def one_machine(corpus: Path) -> dict[str, bytes]:
    output = corpus.parent / "one"
    done = explain(corpus, output, "--device", "cpu")
    assert (done.returncode, done.stderr) == (3, "")
    return content(output)
