"""A crew of processes that may die. Each loads for itself what its work needs; a crew of one is this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from typing import Any, Protocol, TypeVar

from attnflow.errors import JobError

Tool = TypeVar("Tool")
Tool_co = TypeVar("Tool_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class Crew(Protocol[Tool_co]):
    """Does `work(tool, task)` for tasks by their numbers, and gives each result when it is there."""

    def __call__(self, work: Callable[[Tool_co, T], R], tasks: Mapping[int, T], /) -> Iterator[tuple[int, R]]: ...


@contextmanager
def crew(tool: Tool, load: Callable[[], Tool], workers: int) -> Iterator[Crew[Tool]]:
    """tool: what this process works with, if there is one worker; load: makes the same in each of several."""
    if workers == 1:
        yield lambda work, tasks: ((number, work(tool, task)) for number, task in tasks.items())
        return
    context = get_context("spawn")  # a fork of a process with torch's threads may hang
    stop, until = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(load, stop))

    def do(work: Callable[[Tool, T], R], tasks: Mapping[int, T]) -> Iterator[tuple[int, R]]:
        try:
            futures = {pool.submit(_in_worker, work, task): number for number, task in tasks.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise JobError(
                f"one of {workers} workers died, most often because memory ran out: give fewer workers, and run the same "
                "again"
            ) from None

    try:
        yield do
    except BaseException:
        until.close()  # the workers drop their tasks
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        stop.close()
        until.close()


_tools: list[Any] = []
"""Of a worker: what it works with."""


def _start(load: Callable[[], Any], stop: connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the process that started us decides
    threading.Thread(target=_leave, args=(stop,), daemon=True).start()
    _tools.append(load())


def _leave(stop: connection.Connection) -> None:
    """Ends this worker in the middle of its task when its crew is given up, or when the process that started it is gone."""
    parent = parent_process()
    connection.wait([stop] if parent is None else [stop, parent.sentinel])
    os._exit(1)


def _in_worker(work: Callable[[Any, T], R], task: T) -> R:
    return work(_tools[0], task)
