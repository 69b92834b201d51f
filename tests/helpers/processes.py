"""Corpus jobs in separate processes, and the processes they start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SHARD_TEXTS = 12
ASKED = ["--shard-texts", str(SHARD_TEXTS), "--method", "rollout,flow", "--query", "all", "--layer", "last"]
CORES = 2
GPUS = 2


def command(corpus: Path, output: Path, *more: str) -> list[str]:
    run = "from attnflow.cli import main; main()"
    return [sys.executable, "-c", run, "corpus", "run", str(corpus), str(output), *ASKED, *more]


def explain(corpus: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(corpus, output, *more), capture_output=True, text=True, timeout=600)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def until(true: Callable[[], bool], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.01)


def shards_done(output: Path) -> int:
    """Count the lines of the manifest after the first."""
    manifest = output / "_manifest.jsonl"
    return manifest.read_bytes().count(b"\n") - 1 if manifest.exists() else 0


def processes() -> dict[int, tuple[int, str]]:
    """Return parent and command line of all running processes by id, without zombies."""
    running = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # the process has just ended
            continue
        if state != "Z":
            running[int(folder.name)] = (int(parent), line)
    return running


def below(root: int) -> dict[int, str]:
    """Return the command lines of all descendants of a process."""
    running = processes()
    descendants: dict[int, str] = {}
    fresh = [root]
    while fresh:
        fresh = [pid for pid, (parent, _) in running.items() if parent in fresh]
        descendants |= {pid: running[pid][1] for pid in fresh}
    return descendants


def workers_of(root: int) -> set[int]:
    return {pid for pid, line in below(root).items() if "ray::_Worker" in line}
