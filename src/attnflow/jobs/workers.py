"""A crew of processes that may die. Each loads for itself what its work needs; a crew of one is this process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from attnflow.errors import JobError

Tool = TypeVar("Tool")
Tool_co = TypeVar("Tool_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


AHEAD = 2
"""Tasks for each worker whose results wait for their turn, at most, where results come in order."""


class Crew(Protocol[Tool_co]):
    """Does `work(tool, task)` for many tasks."""

    def __call__(self, work: Callable[[Tool_co, T], R], tasks: Mapping[int, T], /) -> Iterator[tuple[int, R]]:
        """Each result when it is there, behind the number of its task."""

    def in_order(self, work: Callable[[Tool_co, T], R], tasks: Iterable[T], /) -> Iterator[R]:
        """The results in the order of the tasks, which are drawn no earlier than workers need them.

        What drawing a task raises comes in its turn too, behind the results of the tasks before it.
        """


@contextmanager
def crew(tool: Tool, load: Callable[[], Tool], workers: int, main: bool = True) -> Iterator[Crew[Tool]]:
    """tool: what this process works with, if there is one worker; load: makes the same in each of several.

    main: whether workers import the main module of this process, which `load` and `work` may come from. Without it they
    start faster, and a script needs no ``if __name__ == "__main__"``.
    """
    if workers == 1:
        yield _Alone(tool)
        return
    context = SpawnContext() if main else _LightContext()  # a fork of a process with torch's threads may hang
    stop, until = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(load, stop))
    try:
        yield _Pool(pool, workers)
    except BaseException:
        until.close()  # the workers drop their tasks
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        stop.close()
        until.close()


@dataclass(frozen=True)
class _Alone(Generic[Tool]):
    """This process."""

    tool: Tool

    def __call__(self, work: Callable[[Tool, T], R], tasks: Mapping[int, T]) -> Iterator[tuple[int, R]]:
        return ((number, work(self.tool, task)) for number, task in tasks.items())

    def in_order(self, work: Callable[[Tool, T], R], tasks: Iterable[T]) -> Iterator[R]:
        return (work(self.tool, task) for task in tasks)


@dataclass(frozen=True)
class _Pool:
    """Several processes, each with a tool of its own."""

    pool: ProcessPoolExecutor
    workers: int

    def __call__(self, work: Callable[[Any, T], R], tasks: Mapping[int, T]) -> Iterator[tuple[int, R]]:
        with self._deaths():
            futures = {self.pool.submit(_in_worker, work, task): number for number, task in tasks.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()

    def in_order(self, work: Callable[[Any, T], R], tasks: Iterable[T]) -> Iterator[R]:
        futures: deque[Future[R]] = deque()
        failure = None
        source = iter(tasks)
        with self._deaths():
            while True:
                try:
                    task = next(source)
                except StopIteration:
                    break
                except Exception as e:
                    failure = e
                    break
                futures.append(self.pool.submit(_in_worker, work, task))
                if len(futures) == AHEAD * self.workers:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        if failure is not None:
            raise failure

    @contextmanager
    def _deaths(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool:
            raise JobError(
                f"one of {self.workers} workers died, most often because memory ran out: give fewer workers, and run the "
                "same again"
            ) from None


class _Light(SpawnProcess):
    """A process that leaves the main module of this one alone."""

    def start(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # of which a new process would import the file
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _LightContext(SpawnContext):
    Process = _Light


_tools: list[Any] = []
"""Of a worker: what it works with."""


_passing = threading.Lock()
"""Of a worker: it holds this while it may be passing a task or a result, which is whenever it does not work."""


def _start(load: Callable[[], Any], stop: connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the process that started us decides
    threading.Thread(target=_leave, args=(stop,), daemon=True).start()
    _tools.append(load())
    _passing.acquire()


def _leave(stop: connection.Connection) -> None:
    """Ends this worker in the middle of its task when its crew is given up, or when the process that started it is gone."""
    parent = parent_process()
    gone = [] if parent is None else [parent.sentinel]
    connection.wait([stop, *gone])
    # who is given half a result waits for the rest for ever, so what is not at work ends as it does after the last task
    while not _passing.acquire(timeout=0.1) and not connection.wait(gone, 0):
        pass
    os._exit(1)


def _in_worker(work: Callable[[Any, T], R], task: T) -> R:
    _passing.release()
    try:
        return work(_tools[0], task)
    finally:
        _passing.acquire()
