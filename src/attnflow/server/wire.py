"""The shapes of requests and answers: JSON, and every error as one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from attnflow.answering import TOKENS
from attnflow.server.limits import Refusal

Position = Annotated[int, Field(strict=True, ge=0)]


class Input(BaseModel):
    """What a model reads."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="The name of one of /api/models.", examples=["verb-number"])
    text: str | None = Field(None, description="For models of text.", examples=["the key to the cabinets"])
    pair: str | None = Field(None, description="A second text, for models that read pairs.")
    target: str | None = Field(
        None, description="For encoder-decoders: what the decoder writes; its own answer if not given."
    )
    image: str | None = Field(
        None, description="For models of images: a PNG or JPEG file in base64, with or without the head of a data URL."
    )
    truncate: bool = Field(False, strict=True, description="Cut a text that is too long for the model.")


class ExplainRequest(Input):
    """A text or an image to explain."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "verb-number", "text": "the key to the cabinets"}]}
    )

    query: Position | None = Field(None, description="The position to explain first; the one that answers by default.")
    importance: list[Literal["gradient", "blank-out"]] | None = Field(
        None,
        max_length=2,
        description="What tokens are worth to the answer, and by which measures: both by default, blank-out as far as 20 "
        "seconds go. What is named is measured of every token.",
    )


class RowsRequest(Input):
    """One query of an input, for a page that does not hold it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "verb-number", "text": "the key to the cabinets", "unit": "subwords", "query": 5}]
        }
    )

    unit: Literal["subwords", "words"]
    query: Position = Field(description="A position among all tokens, or all words, of the input.")


class PathsRequest(RowsRequest):
    """One pair of a hidden state and an input token."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "verb-number", "text": "the key to the cabinets", "unit": "subwords", "query": 0, "layer": 5,
                    "token": 2,
                }
            ]
        }
    )  # fmt: skip

    layer: Position = Field(description="The layer of the hidden state, from 0.")
    token: Position = Field(description="The position of the input token.")


class EditRequest(Input):
    """A text in which one word is to be another, or none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "verb-number", "text": "the key to the cabinets", "word": 4}]}
    )

    word: Position = Field(description="The word's number, from 0, in what the model reads of the text.")
    replacement: str | None = Field(None, description="What stands in its place; without it, the word is left out.")


class AnswerRequest(BaseModel):
    """A prompt that a language model answers."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"model": "smol", "text": "Who has the key?", "tokens": 20}]}
    )

    model: str = Field(description="The name of one of /api/models that writes.")
    text: str = Field(description="The prompt. It goes through the model's chat template, where it has one.")
    answer: str | None = Field(None, description="The answer to explain; without it, the model writes one.")
    tokens: Annotated[int, Field(strict=True, ge=1)] = Field(
        TOKENS, description="How many tokens the model writes at most."
    )


class LeaveOutRequest(AnswerRequest):
    """A part of an answer, and a unit of its prompt that is to be left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "smol", "text": "Who has the key?", "span": [0, 2], "unit": "word", "number": 1}]
        }
    )

    span: tuple[Position, Position] = Field(description="The first and the last token of a part of the answer.")
    unit: Literal["token", "word", "sentence", "paragraph", "message", "document"]
    number: Position = Field(description="The unit's number in the prompt, from 0.")


class Problem(BaseModel):
    """What every error looks like."""

    error: str = Field(description="One sentence: what was given, what was expected, what to do.")


class Known(BaseModel):
    """A model that this server was started with."""

    name: str = Field(description="What requests call it.", examples=["verb-number"])
    kind: Literal["text", "image", "encoder-decoder"]
    writes: bool = Field(description="Whether it is a language model that answers a prompt: /api/answers.")
    tokens: int | None = Field(description="How many tokens a text may have here; null for images.", examples=[128])
    characters: int | None = Field(description="How many characters it may have; null for images.", examples=[20480])


class Accepted(BaseModel):
    """A job in the queue."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int | None = Field(description="How many requests are before it; null once it has ended.")


class JobState(Accepted):
    """How far a job has come."""

    stage: str = Field(description="What is being computed.")
    done: int = Field(description="How much of that is done …")
    total: int = Field(description="… and how much there is.")
    partials: int = Field(description="How many times /api/jobs/{id}/partial has changed: what is known so far.")
    error: str | None = Field(description="Why there is no result.")


def encoded(value: Any) -> bytes:
    """Encode JSON with null for NaN and infinity, which no browser reads."""
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
    """One sentence for one of pydantic's errors."""
    name = ".".join(str(part) for part in error["loc"][1:])[:80]
    if error["type"] == "json_invalid":
        return "the body is not JSON: expected one object, as /openapi.json describes it"
    if not name:
        return "the body is not a JSON object: expected one, as /openapi.json describes it"
    if error["type"] == "missing":
        return f"the field {name!r} is missing: /openapi.json says what is expected"
    if error["type"] == "extra_forbidden":
        return f"the field {name!r} is not known: /openapi.json lists those that are"
    message = str(error["msg"])[:200]
    own = message.removeprefix("Input ")
    return f"the field {name!r} cannot be used: it {own}" if own != message else f"the field {name!r}: {message}"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route, as the description of the API lists them."""
    return {status: {"model": Problem, "description": HTTPStatus(status).phrase} for status in statuses}


def result_of(description: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same, beside a successful answer of any object."""
    shape = {"application/json": {"schema": {"type": "object"}}}
    return {200: {"description": description, "content": shape}, **problems(*statuses)}
