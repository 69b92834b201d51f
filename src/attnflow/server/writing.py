"""Answers of language models: writing them step by step, explaining them, and leaving out parts of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnflow.answer import Answer
from attnflow.capture.chat import has_template
from attnflow.capture.generate import is_writer
from attnflow.capture.prompt import read_prompt
from attnflow.errors import InputError
from attnflow.model import Model
from attnflow.server.limits import Refusal
from attnflow.server.queue import Job
from attnflow.server.recent import Recent
from attnflow.server.wire import AnswerRequest, LeaveOutRequest, encoded
from attnflow.view.answer_page import document_of

UNIT = "sentence"
"""The unit that the page of an answer opens with."""

PROBE = "a b c d"
"""A prompt for testing whether a model can answer."""


def can_answer(model: Model) -> bool:
    """Return whether the model can answer prompts and the answers can be explained. It is tried once at startup."""
    if not is_writer(model):
        return False
    try:
        model.answer(PROBE, answer="a").matrix()
    except InputError:
        return False
    return True


def answered(model: Model, request: AnswerRequest, most: int, answers: Recent[Answer], job: Job) -> Answer:
    """Return the answer to a request, from the cache if possible. While the model writes, the job publishes the text.

    most: maximum number of tokens of prompt and answer together.
    """
    prompt: str | list[Mapping[str, str]] = request.text
    if has_template(model.tokenizer):
        prompt = [{"role": "user", "content": request.text}]
    job.progress("reading the prompt", 0, 1)
    count = len(read_prompt(model, prompt))
    if count + (0 if request.answer else 1) > most:
        raise Refusal(
            413,
            f"the prompt has {count:,} tokens, and this server accepts {most:,} including the answer: shorten it, or "
            "restart the server with a higher limit",
        )
    if request.answer is not None and model.tokenizer is not None:
        _check_room(count, len(model.tokenizer(request.answer, add_special_tokens=False)["input_ids"]), most)
    key = (request.model, request.text, request.answer, request.tokens)

    def make() -> Answer:
        if request.answer is not None:
            return model.answer(prompt, answer=request.answer)
        room = min(request.tokens, most - count)
        return _unbound(model.answer(prompt, max_new_tokens=room, progress=job.progress, streamer=_Stream(model, job)))

    answer = answers.get(key, make)
    _check_room(count, len(answer.ids), most)
    return answer


def _check_room(prompt: int, answer: int, most: int) -> None:
    if prompt + answer > most:
        raise Refusal(
            413,
            f"the prompt has {prompt:,} tokens, the answer {answer:,}, and this server accepts {most:,}: shorten one of "
            "them, or restart the server with a higher limit",
        )


def page_of(answer: Answer) -> dict[str, Any]:
    """Return the document of an answer's page."""
    return document_of(answer, UNIT)


def without(answer: Answer, request: LeaveOutRequest) -> dict[str, float]:
    """Return how much the log-probability of a part of the answer drops without a unit of the prompt, and its value."""
    first, last = request.span
    if not first <= last < len(answer.ids):
        raise InputError(
            f"span {list(request.span)}: expected the first and the last token of a part of the answer, from 0 to "
            f"{len(answer.ids) - 1}"
        )
    left = answer.leave_out(request.unit, (first, last + 1), only=request.number)
    return {"fall": float(left.row()[0]), "logProbability": float(left.provenance["log_probability"])}


class _Stream:
    """A streamer for transformers that publishes the text so far. The first tokens that it gets are the prompt."""

    def __init__(self, model: Model, job: Job) -> None:
        self.model, self.job = model, job
        self.ids: list[int] | None = None

    def put(self, ids: Tensor) -> None:
        if self.ids is None:
            self.ids = []
            return
        self.ids += ids.flatten().tolist()
        if self.model.tokenizer is not None:
            text = self.model.tokenizer.decode(self.ids, skip_special_tokens=True)
            self.job.publish(encoded({"text": text}))

    def end(self) -> None:
        """Required by transformers."""


def _unbound(answer: Answer) -> Answer:
    """Return the answer without its job, which will have ended by the next request."""
    return replace(answer, progress=None)
