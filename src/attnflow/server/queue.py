"""The queue of jobs, which one thread computes one after another."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnflow.errors import InputError
from attnflow.server.limits import UNEXPECTED, Limits, Refusal

log = logging.getLogger(__name__)

STOPPING = "the server is stopping: start it again with attnflow serve"
RETRY = {"Retry-After": "5"}


class Cancelled(BaseException):
    """Leaves a computation from its progress call. Not an Exception: nothing below may take it for a failure of its own."""


@dataclass(eq=False)
class Job:
    """One computation: its state, its progress, what is known before it has ended, and its result.

    partials: how many times it has said what is known; partial: the last of these, as long as it runs.
    soon: whether it is short, and somebody waits for it: longer ones let it go first, also while they run.
    between: what a longer one does at each step.
    """

    on_end: Callable[[], None] | None = None
    soon: bool = False
    between: Callable[[], None] | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: str = "queued"
    stage: str = ""
    done: int = 0
    total: int = 0
    partials: int = 0
    partial: bytes = b""
    result: bytes = b""
    problem: Refusal | None = None
    ended: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def progress(self, stage: str, done: int, total: int) -> None:
        if self.cancelled.is_set():
            raise Cancelled
        self.stage, self.done, self.total = stage, done, total
        if self.between is not None:
            self.between()

    def publish(self, partial: bytes) -> None:
        """Says what is known before all is."""
        if self.cancelled.is_set():
            raise Cancelled
        self.partial, self.partials = partial, self.partials + 1


Work = Callable[[Job], bytes]
"""What the computing thread does for a job, which it tells how far it is: the result."""


class JobQueue:
    """The queue, the one thread that works on it, and the finished jobs that somebody may still ask for."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.changed = threading.Condition()
        self.waiting: dict[Job, Work] = {}
        self.running: list[Job] = []
        self.known: dict[str, Job] = {}
        self.stopping = False
        self.thread = threading.Thread(target=self._work, name="attnflow", daemon=True)
        self.thread.start()

    def submit(self, work: Work, on_end: Callable[[], None] | None = None, soon: bool = False) -> Job:
        """Puts work into the queue. With ``on_end``, which is called at its end, nobody can ask for it by its id.

        soon: see `Job`.
        """
        with self.changed:
            if self.stopping:
                raise Refusal(503, STOPPING, RETRY)
            if len(self.waiting) >= self.limits.queue:
                raise Refusal(
                    503, f"{len(self.waiting)} requests are waiting, as many as may: try again in some seconds", RETRY
                )
            job = Job(on_end, soon)
            self.waiting[job] = work
            if on_end is None:
                self.known[job.id] = job
            self._forget()
            self.changed.notify()
            return job

    def find(self, name: str) -> Job:
        with self.changed:
            self._forget()
            if name not in self.known:
                minutes = self.limits.finished_seconds / 60
                raise Refusal(
                    404,
                    f"there is no job {name!r:.40}: finished jobs are forgotten after {minutes:g} minutes, or sooner when "
                    "there are many",
                )
            return self.known[name]

    def describe(self, job: Job) -> dict[str, Any]:
        with self.changed:
            place = None
            if job in self.waiting:
                place = list(self.waiting).index(job) + bool(self.running)
            elif job in self.running and job.ended is None:
                place = 0
            problem = None if job.problem is None else str(job.problem)
            return {
                "id": job.id, "state": job.state, "position": place, "stage": job.stage, "done": job.done,
                "total": job.total, "partials": job.partials, "error": problem,
            }  # fmt: skip

    def cancel(self, job: Job) -> None:
        """Cancels a job: at once where it waits; where it runs, at its next progress call."""
        with self.changed:
            job.cancelled.set()
            if self.waiting.pop(job, None):
                self._end(job, "cancelled", Refusal(409, "the job was cancelled: send it again"))

    def stop(self) -> None:
        """Cancels everything and answers whoever waits now, even where the running job takes its time."""
        with self.changed:
            self.stopping = True
            for job in [*self.waiting, *self.running]:
                job.cancelled.set()
                self._end(job, "cancelled", Refusal(503, STOPPING, RETRY))
            self.waiting.clear()
            self.changed.notify()

    def _work(self) -> None:
        while True:
            with self.changed:
                while not self.waiting and not self.stopping:
                    self.changed.wait(self.limits.finished_seconds)
                    self._forget()
                if self.stopping:
                    return
                job, work = self._begun(next(iter(self.waiting)))
            job.between = None if job.soon else self._between
            self._compute(job, work)
            del work, job  # while this thread waits, it holds nothing

    def _between(self) -> None:
        """Computes what is short and waits, at a step of a longer job."""
        while True:
            with self.changed:
                first = next((job for job in self.waiting if job.soon), None)
                if first is None or self.stopping:
                    return
                job, work = self._begun(first)
            self._compute(job, work)

    def _begun(self, job: Job) -> tuple[Job, Work]:
        work = self.waiting.pop(job)
        job.state = "running"
        self.running.append(job)
        return job, work

    def _compute(self, job: Job, work: Work) -> None:
        state, problem, result = "done", None, b""
        try:
            result = work(job)
        except Cancelled:
            state = "cancelled"
        except Refusal as e:
            state, problem = "failed", e
        except InputError as e:
            state, problem = "failed", Refusal(422, str(e))
        except BaseException:  # even SystemExit, which a model's code may raise: nobody else works on the queue
            log.exception("a computation failed")
            state, problem = "failed", Refusal(500, UNEXPECTED)
        if job.cancelled.is_set():  # also if it was done before it could notice: nobody wants it any more
            state, problem = "cancelled", Refusal(409, "the job was cancelled: send it again")
        job.between = None
        with self.changed:
            self.running.remove(job)
            self._end(job, state, problem, result if state == "done" else b"")

    def _end(self, job: Job, state: str, problem: Refusal | None, result: bytes = b"") -> None:
        if job.ended is not None:
            return
        job.state, job.problem, job.result, job.ended = state, problem, result, time.monotonic()
        job.partial = b""
        if job.on_end is not None:
            job.on_end()
        self._forget()

    def _forget(self) -> None:
        now = time.monotonic()
        ended = sorted((job for job in self.known.values() if job.ended is not None), key=lambda job: job.ended or 0)
        size = sum(len(job.result) for job in ended)
        for newer, job in zip(reversed(range(len(ended))), ended, strict=True):
            old = now - (job.ended or 0) > self.limits.finished_seconds
            if old or newer >= self.limits.finished or (newer and size > self.limits.finished_bytes):
                size -= len(job.result)
                del self.known[job.id]
