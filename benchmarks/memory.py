"""Peak memory of a task, read from /proc (Linux only), and tasks in separate processes."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnflow.errors import InputError


def peak_of(task: Callable[[], Any]) -> tuple[Any, float]:
    """Return a task's result, and by how many MB memory rose."""
    ctypes.CDLL(None).malloc_trim(0)  # memory freed earlier would hide new allocations
    page = resource.getpagesize()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    before, peak, over = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.is_set():
            peak = max(peak, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = task()
    finally:  # else the watcher of a failed task would never stop
        over.set()
        watcher.join()
    return result, (max(peak, resident()) - before) / 2**20


def in_process(task: str, *arguments: Any, hoard: bool = False) -> Any:
    """Return what ``task``, named as module:function, returns in a separate process.

    hoard: let glibc keep freed memory. By default it is returned at once, to measure only what is in use.
    """
    module, _, function = task.partition(":")
    script = f"import sys, json; from {module} import {function} as f; print(json.dumps(f(*json.loads(sys.argv[1]))))"
    variables = dict(os.environ) if hoard else {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    words = [sys.executable, "-c", script, json.dumps(arguments)]
    child = subprocess.run(words, capture_output=True, text=True, env=variables)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [str(child.returncode)]
        raise InputError(f"measuring {task} failed: {lines[-1]}")
    return json.loads(child.stdout.splitlines()[-1])
