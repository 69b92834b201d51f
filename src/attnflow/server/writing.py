"""Answers of language models: written while somebody watches, explained, and asked what they would be without a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnflow.answer import Answer
from attnflow.answering import Watch
from attnflow.capture.chat import has_template
from attnflow.capture.generate import is_writer
from attnflow.capture.prompt import read_prompt
from attnflow.errors import InputError
from attnflow.model import Model
from attnflow.server.limits import Refusal
from attnflow.server.queue import Job
from attnflow.server.recent import Recent
from attnflow.server.wire import AnswerRequest, LeaveOutRequest, encoded
from attnflow.source_methods import METHOD
from attnflow.view.answer_page import document_of

UNIT = "sentence"
"""What the page of an answer opens with."""

PROBE = "a b c d"
"""A prompt on which a model's answers are tried."""


def can_answer(model: Model) -> bool:
    """Whether the model answers prompts in a way that can be explained: tried once, so that no user waits for it."""
    if not is_writer(model):
        return False
    try:
        model.answer(PROBE, answer="a").matrix()
    except InputError:
        return False
    return True


def answered(model: Model, request: AnswerRequest, most: int, answers: Recent[Answer], job: Job) -> Answer:
    """The answer to a request, or the one that is kept; while the model writes, the job publishes the page so far.

    most: tokens of prompt and answer together.
    """
    prompt: str | list[Mapping[str, str]] = request.text
    if has_template(model.tokenizer):
        prompt = [{"role": "user", "content": request.text}]
    job.progress("reading the prompt", 0, 1)
    count = len(read_prompt(model, prompt))
    if count + (0 if request.answer else 1) > most:
        raise Refusal(
            413,
            f"the prompt has {count:,} tokens and this server takes {most:,} with its answer: shorten it, or have the "
            "server started with a higher limit",
        )
    if request.answer is not None and model.tokenizer is not None:
        _check_room(count, len(model.tokenizer(request.answer, add_special_tokens=False)["input_ids"]), most)
    key = (request.model, request.text, request.answer, request.tokens)

    def make() -> Answer:
        if request.answer is not None:
            return model.answer(prompt, answer=request.answer)
        room = min(request.tokens, most - count)
        return _unbound(model.answer(prompt, max_new_tokens=room, progress=job.progress, watch=_publisher(job)))

    answer = answers.get(key, make)
    _check_room(count, len(answer.ids), most)
    return answer


def _check_room(prompt: int, answer: int, most: int) -> None:
    if prompt + answer > most:
        raise Refusal(
            413,
            f"the prompt has {prompt:,} tokens, the answer {answer:,}, and this server takes {most:,}: shorten either, or "
            "have the server started with a higher limit",
        )


def page_of(answer: Answer, method: str | None = None) -> dict[str, Any]:
    """The document of an answer's page. method: None for the method that is recommended for each unit."""
    return document_of(answer, UNIT, method=method)


def without(answer: Answer, request: LeaveOutRequest) -> dict[str, float]:
    """By how much the log-probability of a part of the answer falls without a unit of the prompt, and what it was."""
    first, last = request.span
    if not first <= last < len(answer.ids):
        raise InputError(
            f"span {list(request.span)}: expected the first and the last token of a part of the answer, from 0 to "
            f"{len(answer.ids) - 1}"
        )
    left = answer.leave_out(request.unit, (first, last + 1), only=request.number)
    return {"fall": float(left.row()[0]), "logProbability": float(left.provenance["log_probability"])}


def _publisher(job: Job) -> Watch:
    # answer rows alone: fading would take a pass back for every token that is there already, while nothing is written
    return lambda answer: job.publish(encoded(page_of(answer, METHOD)))


def _unbound(answer: Answer) -> Answer:
    """The answer without the job that wrote it, which will have ended when more is asked about it."""
    return replace(answer, progress=None)
