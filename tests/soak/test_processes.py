"""A job with reader/writer processes next to the model: the same bytes, whichever process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import command, content, explain, helpers_of, processes, shards_done, until

pytest.importorskip("torch", reason="a corpus needs torch")
pytest.importorskip("pyarrow", reason="a corpus is kept as parquet")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


def begun(corpus: Path, output: Path) -> subprocess.Popen[str]:
    """Start a job with two reader/writer processes, and wait until some of its shards are done."""
    words = command(corpus, output, "--processes", "2")
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: shards_done(output) >= 3 or job.poll() is not None, "the first shards")
    assert job.poll() is None, job.communicate()
    return job


def test_the_same_bytes(corpus: Path, one_machine: dict[str, bytes], tmp_path: Path) -> None:
    job = begun(corpus, tmp_path / "out")
    assert len(helpers_of(job.pid)) == 2
    _, stderr = job.communicate(timeout=300)
    assert (stderr, job.returncode) == ("", 3)  # some texts fail; nothing else is reported
    assert content(tmp_path / "out") == one_machine


def test_a_clerk_that_is_killed_ends_the_job_which_goes_on(
    corpus: Path, one_machine: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    job = begun(corpus, output)
    os.kill(min(helpers_of(job.pid)), signal.SIGKILL)
    _, stderr = job.communicate(timeout=300)
    assert (job.returncode, stderr.strip()) == (
        1,
        (
            "attnflow: one of 2 processes that read and write next to the model died, usually because memory ran "
            "out: give fewer processes, and run the same again with --resume"
        ),
    )
    assert explain(corpus, output, "--resume", "--processes", "2").returncode == 3
    assert content(output) == one_machine


def test_clerks_end_with_a_job_that_is_killed(corpus: Path, one_machine: dict[str, bytes], tmp_path: Path) -> None:
    output = tmp_path / "out"
    job = begun(corpus, output)
    children = helpers_of(job.pid)
    assert len(children) == 2
    job.kill()
    job.communicate()
    until(lambda: not children & processes().keys(), "the end of what it has started")
    assert explain(corpus, output, "--resume").returncode == 3  # the number of processes may change
    assert content(output) == one_machine
