"""Kill a corpus job again and again, and compare its final output with an undisturbed run.

python killing.py FOLDER --kills 50 kills at random moments; --steps also kills at each step of writing. The job runs in a
fork of this process, which has loaded the libraries, so that a kill costs no import.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet
import torch

import attnflow
import attnflow.corpus.worker
from attnflow.cli import app
from attnflow.cli.corpus import FAILED

TEXTS = 240
SHARD = 6
WORDS = ("the", "key", "to", "cabinets", "near", "old", "doors", "of", "a", "house", "is", "lost", "and", "found", "by")


def texts(count: int, seed: int) -> list[str]:
    """Return texts, some of which fail: a blank line, invalid bytes, one that is too long for the model."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(count)]
    lines[7], lines[50], lines[101] = "", "caf\udce9 in the house", " ".join(WORDS * 40)
    return lines


def job(folder: Path, output: Path) -> int:
    args = ["corpus", "run", str(folder / "texts.txt"), str(output), "--method", "raw,rollout,flow", "--layer", "all"]
    return int(app([*args, "--shard-texts", str(SHARD), "--resume", "--json"], standalone_mode=False) or 0)


def forked(folder: Path, output: Path, at: int | None = None) -> int:
    """Start the job in a fork.

    at: the step of writing at which it kills itself; see `Steps`.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        if at is not None:
            Steps(at).watch()
        os._exit(job(folder, output))
    except BaseException as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
        os._exit(9)


class Steps:
    """Counts the steps of writing to the disk, and kills this process at one of them, halfway through a write."""

    def __init__(self, at: int) -> None:
        self.left = at

    def watch(self) -> None:
        for name in ("fsync", "write", "ftruncate"):
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        Path.replace = self._wrapped("replace", Path.replace)  # type: ignore[method-assign]

    def _wrapped(self, name, do):  # type: ignore[no-untyped-def]
        def step(*args):  # type: ignore[no-untyped-def]
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    do(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return do(*args)

        return step


def timed(folder: Path, output: Path) -> float:
    began = time.monotonic()
    assert ended(forked(folder, output)) == FAILED
    return time.monotonic() - began


def ended(pid: int) -> int:
    """Return the exit status of a fork; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def whole(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check_valid(output: Path) -> int:
    """Check that every part in the manifest is there and complete, and return how many there are."""
    manifest = output / "_manifest.jsonl"
    lines = manifest.read_bytes().split(b"\n")[:-1] if manifest.exists() else []
    done = [line["part"] for line in map(json.loads, lines[1:]) if "part" in line]
    for number in done:
        pyarrow.parquet.read_table(output / f"part-{number:06}.parquet")
    return len(done)


def main(folder: Path, kills: int, steps: int, seed: int) -> dict[str, object]:
    lines = texts(TEXTS, seed)
    data = "\n".join(lines).encode(errors="surrogateescape") + b"\n"
    (folder / "texts.txt").write_bytes(data)
    torch.set_num_threads(1)  # a fork would lose other threads
    attnflow.load()  # its imports are the longest part of the start
    took = min(timed(folder, folder / name) for name in ("expected", "again"))
    expected = whole(folder / "expected")
    assert whole(folder / "again") == expected
    draw = random.Random(seed)
    killed = finished = 0
    kept: list[int] = []
    output = folder / "output"

    def compare() -> None:
        assert whole(output) == expected, "an interrupted job gave something else"
        shutil.rmtree(output)

    def go_on_to_the_end() -> None:
        assert ended(forked(folder, output)) == FAILED
        compare()

    while killed < kills:
        pid = forked(folder, output)
        time.sleep(draw.uniform(0, took))
        os.kill(pid, signal.SIGKILL)
        if ended(pid) == -signal.SIGKILL:
            killed += 1
            kept.append(check_valid(output))
        else:  # it finished before the kill
            finished += 1
            compare()
    if output.exists():
        go_on_to_the_end()
    for at in range(1, steps + 1):
        for step in (at, at + 3, at + 7):  # killed, killed again while it resumes, and again
            assert ended(forked(folder, output, step)) == -signal.SIGKILL
            check_valid(output)
        go_on_to_the_end()
    return {
        "killed": killed, "finished between": finished, "at steps": 3 * steps, "parts": TEXTS // SHARD,
        "parts there after a kill": kept, "seconds of a run": round(took, 2),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(main(given.folder, given.kills, given.steps, given.seed)))
