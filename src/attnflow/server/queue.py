"""The job queue, and the thread that computes one job after another."""

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
    """Raised from a progress call to stop a computation. Not an `Exception`, so that no code below catches it."""


@dataclass(eq=False)
class Job:
    """One computation with its state, progress, partial result and result.

    partials: how many partial results it has published; partial: the latest one, while the job runs.
    soon: whether it is short and a client is waiting; it runs before longer jobs, and between the steps of a running one.
    between: called at each step of a longer job.
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
        """Publish a partial result."""
        if self.cancelled.is_set():
            raise Cancelled
        self.partial, self.partials = partial, self.partials + 1


Work = Callable[[Job], bytes]
"""Computes the result of a job, and reports progress to it."""


class JobQueue:
    """The waiting jobs, the thread that computes them, and the finished jobs that clients may still request."""

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
        """Add work to the queue.

        on_end: called when the job ends. A job with this callback cannot be found by its id.
        soon: see `Job`.
        """
        with self.changed:
            if self.stopping:
                raise Refusal(503, STOPPING, RETRY)
            if len(self.waiting) >= self.limits.queue:
                raise Refusal(
                    503,
                    f"the queue is full ({len(self.waiting)} requests are waiting): try again in a few seconds",
                    RETRY,
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
                    f"there is no job {name!r:.40}: finished jobs are deleted after {minutes:g} minutes, or sooner if "
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
        """Cancel a job: at once if it is waiting, or at its next progress call if it is running."""
        with self.changed:
            job.cancelled.set()
            if self.waiting.pop(job, None):
                self._end(job, "cancelled", Refusal(409, "the job was cancelled: send the request again"))

    def stop(self) -> None:
        """Cancel all jobs and answer all waiting clients now, without waiting for the running job."""
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
            del work, job  # keep no references while waiting

    def _between(self) -> None:
        """Compute the short jobs that are waiting, at a step of a longer job."""
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
        except BaseException:  # even SystemExit, which a model's code may raise: it must not end this thread
            log.exception("a computation failed")
            state, problem = "failed", Refusal(500, UNEXPECTED)
        if job.cancelled.is_set():  # also if it finished before it noticed
            state, problem = "cancelled", Refusal(409, "the job was cancelled: send the request again")
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
