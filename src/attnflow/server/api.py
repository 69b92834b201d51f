"""The routes of the web app."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import attnflow
from attnflow.server.limits import UNEXPECTED, Refusal
from attnflow.server.queue import JobQueue, Work
from attnflow.server.service import Service
from attnflow.server.wire import (
    AnswerRequest,
    EditRequest,
    ExplainRequest,
    LeaveOutRequest,
    PathsRequest,
    RowsRequest,
    answer,
    refused,
    sentence,
)
from attnflow.view import page


def api(service: Service, jobs: JobQueue) -> FastAPI:
    """Build the routes. `Guard` checks where requests come from."""
    app = FastAPI(title="attnflow", version=attnflow.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    html = page.application(service.known()).encode()

    async def wait(request: Request, work: Work, soon: bool = True) -> Response:
        """Run a job for a request and return its result. The job is cancelled if the client disconnects."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        job = jobs.submit(work, on_end=lambda: _notify(loop, ended), soon=soon)
        both = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(_left(request))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            jobs.cancel(job)  # does nothing if it has ended
        return answer(job.result) if job.problem is None else refused(job.problem)

    @app.get("/")
    async def show() -> Response:
        return Response(html, media_type="text/html; charset=utf-8")

    @app.get("/api/models")
    async def models() -> Response:
        return answer(service.known())

    @app.post("/api/explain")
    async def explained(body: ExplainRequest, request: Request) -> Response:
        return await wait(request, service.explain(body), soon=False)

    @app.post("/api/rows")
    async def rows(body: RowsRequest, request: Request) -> Response:
        return await wait(request, service.rows(body))

    @app.post("/api/paths")
    async def paths(body: PathsRequest, request: Request) -> Response:
        return await wait(request, service.paths(body))

    @app.post("/api/leave-out")
    async def leave_out(body: LeaveOutRequest, request: Request) -> Response:
        return await wait(request, service.leave_out(body))

    @app.post("/api/edits")
    async def edited(body: EditRequest, request: Request) -> Response:
        return await wait(request, service.edit(body))

    def accepted(work: Work) -> Response:
        job = jobs.describe(jobs.submit(work))
        return answer({name: job[name] for name in ("id", "state", "position")}, 202)

    @app.post("/api/jobs")
    async def submit(body: ExplainRequest) -> Response:
        return accepted(service.explain(body))

    @app.post("/api/answers")
    async def write(body: AnswerRequest) -> Response:
        return accepted(service.answer(body))

    @app.get("/api/jobs/{id}")
    async def state(id: str) -> Response:
        return answer(jobs.describe(jobs.find(id)))

    @app.get("/api/jobs/{id}/partial")
    async def partial(id: str) -> Response:
        job = jobs.find(id)
        if not (known := job.partial or job.result):
            return refused(
                Refusal(409, f"the job is {job.state}, and there is no partial result: see /api/jobs/{job.id}")
            )
        return answer(known)

    @app.get("/api/jobs/{id}/result")
    async def result(id: str) -> Response:
        job = jobs.find(id)
        if job.problem is not None:
            return refused(job.problem)
        if job.state != "done":
            return refused(Refusal(409, f"the job is {job.state}: try again when /api/jobs/{job.id} says done"))
        return answer(job.result)

    @app.delete("/api/jobs/{id}")
    async def cancel(id: str) -> Response:
        job = jobs.find(id)
        jobs.cancel(job)
        return answer(jobs.describe(job))

    for kind in (Refusal, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _failed)
    return app


async def _failed(request: Request, problem: Exception) -> Response:
    """Return any error as one sentence."""
    if isinstance(problem, Refusal):
        return refused(problem)
    if isinstance(problem, RequestValidationError):
        return refused(Refusal(422, sentence(problem.errors()[0])))
    if not isinstance(problem, HTTPException):
        return refused(Refusal(500, UNEXPECTED))  # Guard logs it
    path, status = f"{request.url.path:.80}", problem.status_code
    sentences = {
        400: "the body is not readable JSON: expected one object; see /openapi.json",
        404: f"there is nothing at {path!r}: see /openapi.json for the routes",
        405: f"{path!r} does not accept {request.method:.20}: see /openapi.json for the routes",
    }
    return refused(Refusal(status, sentences.get(status, HTTPStatus(status).phrase)))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _notify(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(ended.set)
