"""Peak memory of a task, read from /proc: Linux only."""

from __future__ import annotations

import ctypes
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak_of(task: Callable[[], Any]) -> tuple[Any, float]:
    """What a task returns, and by how many MB memory rose above where it was."""
    ctypes.CDLL(None).malloc_trim(0)  # or memory freed before would hide what is taken now
    page = resource.getpagesize()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = task()
    done.set()
    watcher.join()
    return found, (max(peak, resident()) - before) / 2**20
