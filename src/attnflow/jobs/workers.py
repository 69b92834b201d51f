"""Worker processes that may die. Each loads its own tool. A helper is one process; a crew is several that take turns.

They are started as separate programs. multiprocessing would run the caller's script again in each of them, and a script
that calls us at its top level must work too.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, Generic, Protocol, TypeVar

from attnflow.errors import JobError

Tool = TypeVar("Tool")
Tool_co = TypeVar("Tool_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


AHEAD = 2
"""How many results per worker may wait for their turn when results come in order."""


class Died(JobError):
    """A process died before it finished its task. loaded: whether it had loaded its tool."""

    def __init__(self, message: str, loaded: bool = True) -> None:
        super().__init__(message)
        self.loaded = loaded

    def sentence(self, whose: str, advice: str) -> str:
        """Return the error message. whose: the group it was one of. advice: what to do if memory ran out."""
        if self.loaded:
            return f"one of {whose} died, usually because memory ran out: {advice}, and run the same again"
        return f"one of {whose} could not start (its output is above): fix the cause, and run the same again"


class Crew(Protocol[Tool_co]):
    """Runs `work(tool, task)` for many tasks."""

    def __call__(self, work: Callable[[Tool_co, T], R], tasks: Mapping[int, T], /) -> Iterator[tuple[int, R]]:
        """Yield each result as it is ready, with the number of its task."""

    def in_order(self, work: Callable[[Tool_co, T], R], tasks: Iterable[T], /) -> Iterator[R]:
        """Yield the results in the order of the tasks, which are drawn only as workers need them.

        An exception raised while drawing a task comes in its turn too, after the results of earlier tasks.
        """


class Helper(Protocol[Tool_co]):
    """Runs `work(tool, task)` in a separate process, one task after another, and returns a future for each."""

    def __call__(self, work: Callable[[Tool_co, T], R], task: T, /) -> Future[R]: ...


@contextmanager
def crew(tool: Tool, load: Callable[[], Tool], workers: int) -> Iterator[Crew[Tool]]:
    """Start a crew. tool: what this process uses if there is one worker. load: makes the same in each of several."""
    if workers == 1:
        yield _Alone(tool)
        return
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(workers, "attnflow-crew")
        stack.callback(pool.shutdown, cancel_futures=True)
        yield _Several(pool, [stack.enter_context(helper(load)) for _ in range(workers)])


class _Alone(Generic[Tool]):
    """A crew of this process alone."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def __call__(self, work: Callable[[Tool, T], R], tasks: Mapping[int, T]) -> Iterator[tuple[int, R]]:
        return ((number, work(self.tool, task)) for number, task in tasks.items())

    def in_order(self, work: Callable[[Tool, T], R], tasks: Iterable[T]) -> Iterator[R]:
        return (work(self.tool, task) for task in tasks)


class _Several(Generic[Tool]):
    """A crew of several processes; each thread of the pool uses one of them at a time."""

    def __init__(self, pool: ThreadPoolExecutor, members: Sequence[Helper[Tool]]) -> None:
        self.pool, self.workers = pool, len(members)
        self.idle: queue.SimpleQueue[Helper[Tool]] = queue.SimpleQueue()
        for member in members:
            self.idle.put(member)

    def _one(self, work: Callable[[Tool, T], R], task: T) -> R:
        member = self.idle.get()
        try:
            return member(work, task).result()
        finally:
            self.idle.put(member)

    def __call__(self, work: Callable[[Tool, T], R], tasks: Mapping[int, T]) -> Iterator[tuple[int, R]]:
        futures = {self.pool.submit(self._one, work, task): number for number, task in tasks.items()}
        with self._deaths(futures):
            for future in as_completed(futures):
                yield futures[future], future.result()

    def in_order(self, work: Callable[[Tool, T], R], tasks: Iterable[T]) -> Iterator[R]:
        futures: deque[Future[R]] = deque()
        failure: Exception | None = None
        source = iter(tasks)
        with self._deaths(futures):
            while True:
                try:
                    task = next(source)
                except StopIteration:
                    break
                except Exception as e:
                    failure = e
                    break
                futures.append(self.pool.submit(self._one, work, task))
                if len(futures) == AHEAD * self.workers:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        if failure is not None:
            raise failure

    @contextmanager
    def _deaths(self, futures: Iterable[Future[Any]]) -> Iterator[None]:
        try:
            yield
        except Died as e:
            raise JobError(e.sentence(f"{self.workers} workers", "give fewer workers")) from None
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def helper(load: Callable[[], Tool]) -> Iterator[Helper[Tool]]:
    """Start a process that holds the tool made by `load`, until the context ends; `load` must be picklable.

    An error ends the process in the middle of its task, and so does the end of this process.
    """
    paths = os.pathsep.join(str(path) for path in sys.path if str(path))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from attnflow.jobs.workers import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    tasks, results = process.stdin, process.stdout
    assert tasks is not None and results is not None
    thread = ThreadPoolExecutor(1, "attnflow-helper")
    loaded = threading.Event()

    def exchange(message: Any) -> Any:
        """Send a message; return its reply, or raise the exception in it."""
        try:
            tasks.write(len(message).to_bytes(8, "little") + message)
            tasks.flush()
            done, reply = pickle.load(results)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            raise Died("a helper process died", loaded.is_set()) from None
        if not done:
            raise reply
        return reply

    def do(work: Callable[[Tool, T], R], task: T) -> Future[R]:
        return thread.submit(exchange, pickle.dumps((work, task), pickle.HIGHEST_PROTOCOL))

    def start() -> None:
        exchange(pickle.dumps(load, pickle.HIGHEST_PROTOCOL))
        loaded.set()

    loading = thread.submit(start)
    try:
        yield do
        thread.shutdown(cancel_futures=True)
        loading.result()  # raises the error if loading failed before any task
    except BaseException:
        process.kill()
        raise
    finally:
        thread.shutdown(cancel_futures=True)
        for pipe in (tasks, results):
            with suppress(OSError):
                pipe.close()
        process.wait()


def serve() -> None:
    """Run a helper process: the first message says how to load its tool, each later one is a task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent process decides
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print; stdout is for replies
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
    tool: Any = None
    failure: Exception | None = None
    first = True
    while True:
        message = messages.get()
        try:
            if failure is not None:
                raise failure
            if first:
                tool, result = pickle.loads(message)(), None
            else:
                work, task = pickle.loads(message)
                result = work(tool, task)
            reply = pickle.dumps((True, result), pickle.HIGHEST_PROTOCOL)
        except Exception as e:
            failure = e if first else failure
            reply = _failed(e)
        first = False
        replies.write(reply)
        replies.flush()


def _failed(e: Exception) -> bytes:
    try:
        pickle.loads(pickle.dumps(e))  # exceptions with their own arguments may fail only when unpickled
    except Exception:
        e = RuntimeError(f"{type(e).__name__}: {e}")
    return pickle.dumps((False, e), pickle.HIGHEST_PROTOCOL)


def _receive(stream: IO[bytes], messages: queue.SimpleQueue[Any]) -> None:
    """Receive messages, and end this process at once when the sender is gone."""
    while True:
        size = stream.read(8)
        if len(size) < 8:
            os._exit(1)
        message = stream.read(int.from_bytes(size, "little"))
        messages.put(message)
