"""What comes back: JSON, and every error as one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel, Field

from attnflow.server.jobs import Refusal


class Problem(BaseModel):
    """What every error looks like."""

    error: str = Field(description="One sentence: what was given, what was expected, what to do.")


class Known(BaseModel):
    """A model that this server was started with."""

    name: str = Field(description="What requests call it.", examples=["verb-number"])
    kind: Literal["text", "image", "encoder-decoder"]
    tokens: int | None = Field(description="How many tokens a text may have here; null for images.", examples=[128])
    characters: int | None = Field(description="How many characters it may have; null for images.", examples=[20480])


class Accepted(BaseModel):
    """A job that was taken."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int | None = Field(description="How many requests are before it; null once it has ended.")


class JobState(Accepted):
    """How far a job has come."""

    stage: str = Field(description="What is being computed.")
    done: int = Field(description="How much of that is done …")
    total: int = Field(description="… and how much there is.")
    error: str | None = Field(description="Why there is no result.")


def encoded(value: Any) -> bytes:
    """JSON, in which what is not a number is null: no browser reads NaN."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = value if isinstance(value, bytes) else encoded(value)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def refused(problem: Refusal) -> Response:
    return answer({"error": str(problem)}, problem.status, problem.headers)


def sentence(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors, for people."""
    name = ".".join(str(part) for part in error["loc"][1:])[:80]
    if error["type"] == "json_invalid":
        return "the body is not JSON: expected one object, as /openapi.json describes it"
    if not name:
        return "the body is not a JSON object: expected one, as /openapi.json describes it"
    if error["type"] == "missing":
        return f"the field {name!r} is missing: /openapi.json says what is expected"
    if error["type"] == "extra_forbidden":
        return f"the field {name!r} is not known: /openapi.json lists those that are"
    told = str(error["msg"])[:200].removeprefix("Input ")
    return (
        f"the field {name!r} cannot be used: it {told}"
        if str(error["msg"]).startswith("Input ")
        else f"the field {name!r}: {told}"
    )


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route, as the description of the API lists them."""
    return {status: {"model": Problem, "description": HTTPStatus(status).phrase} for status in statuses}


def result_of(description: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same beside an answer that the description says no more of than that it is an object."""
    shape = {"application/json": {"schema": {"type": "object"}}}
    return {200: {"description": description, "content": shape}, **problems(*statuses)}
