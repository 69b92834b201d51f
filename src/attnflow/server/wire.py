"""The shapes of requests and responses in JSON; every error is one sentence."""

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
    """The input of a model."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="A model name from /api/models.", examples=["verb-number"])
    text: str | None = Field(None, description="For text models: the text.", examples=["the key to the cabinets"])
    pair: str | None = Field(None, description="A second text, for models that read pairs.")
    target: str | None = Field(
        None, description="For encoder-decoders: the text that the decoder writes; by default, the model's own."
    )
    image: str | None = Field(
        None, description="For image models: a PNG or JPEG file in base64, with or without a data URL prefix."
    )
    truncate: bool = Field(False, strict=True, description="Cut a text that is too long for the model.")


class ExplainRequest(Input):
    """A text or an image to explain."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "verb-number", "text": "the key to the cabinets"}]}
    )

    query: Position | None = Field(None, description="The position to explain first; by default, the one that answers.")
    importance: list[Literal["gradient", "blank-out"]] | None = Field(
        None,
        max_length=2,
        description="Importance methods to compute for every token; by default, both, with at most 20 seconds for "
        "blank-out.",
    )


class RowsRequest(Input):
    """One query of an input, for a page that does not contain its rows."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "verb-number", "text": "the key to the cabinets", "unit": "subwords", "query": 5}]
        }
    )

    unit: Literal["subwords", "words"]
    query: Position = Field(description="The position among all tokens, or all words, of the input.")


class PathsRequest(RowsRequest):
    """A hidden state and an input token."""

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
    """A text in which to replace or remove one word."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "verb-number", "text": "the key to the cabinets", "word": 4}]}
    )

    word: Position = Field(description="The number of the word, from 0, among those that the model reads.")
    replacement: str | None = Field(None, description="The replacement; by default, the word is removed.")


class AnswerRequest(BaseModel):
    """A prompt that a language model answers."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"model": "smol", "text": "Who has the key?", "tokens": 20}]}
    )

    model: str = Field(description="The name of a model from /api/models that writes.")
    text: str = Field(description="The prompt. It goes through the model's chat template if there is one.")
    answer: str | None = Field(None, description="The answer to explain; by default, the model writes one.")
    tokens: Annotated[int, Field(strict=True, ge=1)] = Field(
        TOKENS, description="Maximum number of tokens that the model writes."
    )


class LeaveOutRequest(AnswerRequest):
    """A part of an answer, and a unit of its prompt to leave out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "smol", "text": "Who has the key?", "span": [0, 2], "unit": "word", "number": 1}]
        }
    )

    span: tuple[Position, Position] = Field(description="The first and the last token of a part of the answer.")
    unit: Literal["token", "word", "sentence", "paragraph", "message", "document"]
    number: Position = Field(description="The number of the unit in the prompt, from 0.")


class Problem(BaseModel):
    """The shape of every error."""

    error: str = Field(description="One sentence: what was given, what was expected, what to do.")


class Known(BaseModel):
    """A model of this server."""

    name: str = Field(description="Its name in requests.", examples=["verb-number"])
    kind: Literal["text", "image", "encoder-decoder"]
    writes: bool = Field(description="Whether it is a language model that answers prompts (see /api/answers).")
    tokens: int | None = Field(description="Maximum number of tokens per text; null for images.", examples=[128])
    characters: int | None = Field(
        description="Maximum number of characters per text; null for images.", examples=[20480]
    )


class Accepted(BaseModel):
    """A job in the queue."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int | None = Field(description="Number of requests before it; null once it has ended.")


class JobState(Accepted):
    """The state of a job."""

    stage: str = Field(description="The current stage of the computation.")
    done: int = Field(description="Number of finished steps of the stage.")
    total: int = Field(description="Number of steps of the stage.")
    partials: int = Field(description="How many times /api/jobs/{id}/partial has changed.")
    error: str | None = Field(description="Why there is no result.")


def encoded(value: Any) -> bytes:
    """Encode JSON, with null for NaN and infinity, which browsers cannot parse."""
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
    """Return one sentence for a pydantic error."""
    name = ".".join(str(part) for part in error["loc"][1:])[:80]
    if error["type"] == "json_invalid":
        return "the body is not JSON: expected one object; see /openapi.json"
    if not name:
        return "the body is not a JSON object: expected one; see /openapi.json"
    if error["type"] == "missing":
        return f"the field {name!r} is missing; see /openapi.json"
    if error["type"] == "extra_forbidden":
        return f"unknown field {name!r}: see /openapi.json for the known fields"
    message = str(error["msg"])[:200]
    own = message.removeprefix("Input ")
    return f"the field {name!r} is not valid: it {own}" if own != message else f"the field {name!r}: {message}"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route for the OpenAPI description."""
    return {status: {"model": Problem, "description": HTTPStatus(status).phrase} for status in statuses}


def result_of(description: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route: an object, or one of the errors."""
    shape = {"application/json": {"schema": {"type": "object"}}}
    return {200: {"description": description, "content": shape}, **problems(*statuses)}
