"""Share a corpus, its results on one machine, and a Ray cluster, which takes seconds to start."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.processes import CORES, GPUS, below, content, explain, processes, until

WORDS = ("the", "a", "key", "keys", "cabinet", "cabinets", "author", "authors", "of", "to", "near", "that", "is", "are")


@pytest.fixture(scope="session")
def ray_home() -> Iterator[Path]:
    """The folder for Ray's sockets and logs; pytest's own path is too long for a socket."""
    home = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    (home / "token").write_text(secrets.token_hex(32))
    (home / "token").chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(home))
        patch.setenv("RAY_AUTH_MODE", "token")  # by default Ray would create a token in the user's home
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "token"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("OMP_WAIT_POLICY", "passive")  # spinning threads would block the cores of other processes
        yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(ray_home: Path) -> Iterator[tuple[str, int]]:
    """The address of a cluster with two cores, and its head process.

    Its GPUs are only declared: workers that request them run on the CPU.
    """
    start = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", "0", "--num-cpus", str(CORES),
        "--num-gpus", str(GPUS), "--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(ray_home),
    ]  # fmt: skip
    address = ray_home / "ray_current_cluster"
    head = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: address.exists() and bool(address.read_text()), "a cluster")
        yield address.read_text().strip(), head.pid
    finally:
        started = below(head.pid)
        head.kill()  # a clean shutdown takes half a minute
        head.wait()
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
def one_machine(corpus: Path, ray_home: Path) -> dict[str, bytes]:
    output = corpus.parent / "one"
    done = explain(corpus, output, "--device", "cpu")
    assert (done.returncode, done.stderr) == (3, "")
    return content(output)
