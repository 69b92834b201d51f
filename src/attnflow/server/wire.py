"""The shapes of requests and responses in JSON; every error is one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from attnflow.answering import TOKENS
from attnflow.server.limits import Refusal

Position = Annotated[int, Field(strict=True, ge=0)]


class Input(BaseModel):
    """The input of a model.

    model: a name from /api/models. text: for text models. pair: a second text, for models that read pairs.
    target: for encoder-decoders, the text that the decoder writes; by default, the model's own.
    image: for image models, a PNG or JPEG file in base64, with or without a data URL prefix.
    truncate: cut a text that is too long for the model.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    text: str | None = None
    pair: str | None = None
    target: str | None = None
    image: str | None = None
    truncate: Annotated[bool, Field(strict=True)] = False


class ExplainRequest(Input):
    """A text or an image to explain.

    query: the position to explain first; by default, the one that answers.
    importance: what to compute for every token; by default, both, with at most 20 seconds for blank-out.
    """

    query: Position | None = None
    importance: Annotated[list[Literal["gradient", "blank-out"]], Field(max_length=2)] | None = None


class RowsRequest(Input):
    """One query of an input, for a page that does not contain its rows: a position among all tokens or all words."""

    unit: Literal["subwords", "words"]
    query: Position


class PathsRequest(RowsRequest):
    """A hidden state, by its layer from 0, and the position of an input token."""

    layer: Position
    token: Position


class EditRequest(Input):
    """A text in which to replace one word, by its number from 0 among those that the model reads, or to remove it."""

    word: Position
    replacement: str | None = None


class AnswerRequest(BaseModel):
    """A prompt that a language model answers, through its chat template if it has one.

    answer: the answer to explain; by default, the model writes one of at most ``tokens`` tokens.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    text: str
    answer: str | None = None
    tokens: Annotated[int, Field(strict=True, ge=1)] = TOKENS


class LeaveOutRequest(AnswerRequest):
    """The first and the last token of a part of an answer, and a unit of its prompt to leave out, by its number from 0."""

    span: tuple[Position, Position]
    unit: Literal["token", "word", "sentence", "paragraph", "message", "document"]
    number: Position


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
