"""Work that is done in parts: in this process, or by several that each load for themselves what it needs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from typing import Any

from attnflow.errors import InputError

Work = Callable[[Any, Any], Any]
"""From what was loaded and a task to what is found."""

Do = Callable[[Work, Mapping[int, Any]], Iterator[tuple[int, Any]]]
"""Does the work of tasks, by their numbers, and gives each when it is done."""


@contextmanager
def crew(own: Any, load: Callable[[], Any], workers: int) -> Iterator[Do]:
    """own: what one worker, which is this process, works with; load: makes the same in each of several."""
    if workers == 1:
        yield lambda work, tasks: ((number, work(own, task)) for number, task in tasks.items())
        return
    context = get_context("spawn")  # a fork of a process with torch's threads may hang
    stop, until = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(load, stop))

    def do(work: Work, tasks: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        try:
            futures = {pool.submit(_in_worker, work, task): number for number, task in tasks.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise InputError(
                f"one of {workers} workers died, most often because memory ran out: give fewer workers, and run the same "
                "again to go on where it stopped"
            ) from None

    try:
        yield do
    except BaseException:
        until.close()  # the workers drop what they are at
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        stop.close()
        until.close()


_loaded: list[Any] = []
"""Of a worker: what it works with."""


def _start(load: Callable[[], Any], stop: connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: who started us decides
    threading.Thread(target=_leave, args=(stop,), daemon=True).start()
    _loaded.append(load())


def _leave(stop: connection.Connection) -> None:
    """Ends this worker in the middle of its part when it is told to, or when the process that started it is gone."""
    parent = parent_process()
    connection.wait([stop] if parent is None else [stop, parent.sentinel])
    os._exit(1)


def _in_worker(work: Work, task: Any) -> Any:
    return work(_loaded[0], task)
