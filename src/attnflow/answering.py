"""How `Model.answer` makes an `Answer`: it reads the prompt, and lets the model write or takes the answer as given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow.answer import Answer
from attnflow.capture.encode import decoder_limit
from attnflow.capture.fingerprint import fingerprint_of_weights
from attnflow.capture.generate import Progress, Written, check_count, check_writer, write
from attnflow.capture.kv_cache import snapshot
from attnflow.capture.picture_prompt import read_picture_prompt
from attnflow.capture.prompt import AnswerLabels, Prompt, plain_ids, prompt_of_ids, read_prompt, with_answer
from attnflow.capture.runner import Runner
from attnflow.capture.same_prompt import check_cache, is_same
from attnflow.errors import InputError, TextError
from attnflow.source_methods import TOKENS as TOKENS

BATCH = 8
"""The number of prompts that the model answers at once."""

LONG_PROMPT = 8
"""An answer that begins with a prompt of at least this many tokens is taken for the whole text, which is a mistake."""

CHECKED = 32
"""The number of prompt tokens for which the cache left by generation is compared with a pass without a cache."""

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Reading:
    """How prompts are read: the arguments of `read_prompt`."""

    documents: Mapping[str, str] | None
    system: str | None
    interpret_special: bool
    image: Any = None

    def prompt(self, model: Runner, prompt: Any) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        if self.image is not None:
            if _is_ids(prompt) or self.documents:
                raise InputError(
                    "an image needs a text or messages as its prompt, and no documents: leave one of them out"
                )
            return read_picture_prompt(
                model, prompt, self.image, system=self.system, interpret_special=self.interpret_special
            )
        if _is_ids(prompt):
            if self.documents or self.system is not None:
                raise InputError("documents and system need a text or messages, and this prompt is made of tokens")
            return prompt_of_ids(model, _numbers(prompt))
        return read_prompt(
            model, prompt, documents=self.documents, system=self.system, interpret_special=self.interpret_special
        )


def answer_one(
    model: Runner,
    prompt: Any,
    answer: Any,
    max_new_tokens: int,
    reading: Reading,
    cache: Any,
    progress: Progress | None,
    streamer: Any = None,
) -> Answer:
    """Return the answer to one prompt."""
    check_writer(model)
    read = reading.prompt(model, prompt)
    if answer is None:
        if cache is not None:
            raise InputError("cache needs answer=, the tokens that were written with it: give both")
        return _wanted(_written(model, [read], max_new_tokens, progress, streamer)[0])
    if streamer is not None:
        raise InputError("streamer needs an answer that the model writes, and this one is given: leave either out")
    return _given(model, read, answer, cache, progress)


def answer_many(
    model: Runner,
    prompts: Sequence[Any],
    answers: Any,
    max_new_tokens: int,
    reading: Reading,
    progress: Progress | None,
) -> list[Answer]:
    """Return the answers to several prompts, which the model writes in batches."""
    check_writer(model)
    read = [reading.prompt(model, prompt) for prompt in prompts]
    if answers is not None:
        if isinstance(answers, str) or not isinstance(answers, Sequence) or len(answers) != len(read):
            raise InputError(
                f"answer={answers!r:.60} for {len(read)} prompts: expected a list with one for each, or None"
            )
        return [_given(model, prompt, answer, None, progress) for prompt, answer in zip(read, answers, strict=True)]
    return [_wanted(answer) for answer in written_answers(model, read, max_new_tokens, progress)]


def written_answers(
    model: Runner, prompts: Sequence[Prompt], max_new_tokens: int, progress: Progress | None = None
) -> list[Answer | InputError]:
    """Return what the model writes for each of several prompts, in batches; an error for each that failed."""
    batches = [prompts[i : i + BATCH] for i in range(0, len(prompts), BATCH)]
    return [answer for batch in batches for answer in _written(model, batch, max_new_tokens, progress)]


def _wanted(answer: Answer | InputError) -> Answer:
    if isinstance(answer, InputError):
        raise answer
    return answer


def is_several(prompt: Any) -> bool:
    """Return whether this is a list of prompts, not one prompt made of messages or tokens."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list | Tensor)


def _is_ids(prompt: Any) -> bool:
    if isinstance(prompt, Tensor | np.ndarray):
        return True
    listed = isinstance(prompt, list | tuple) and bool(prompt)
    return listed and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt)


def _numbers(ids: Any) -> list[int]:
    if isinstance(ids, Tensor | np.ndarray):
        if isinstance(ids, np.ndarray) and ids.dtype.kind not in "iuf":
            raise InputError(f"the tokens are an array of {ids.dtype}: expected whole numbers, one row")
        ids = torch.as_tensor(ids)
        whole = not (ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool)
        row = ids.dim() < 2 or (ids.dim() == 2 and len(ids) == 1)
        if not whole or not row or ids.layout != torch.strided or ids.is_meta:
            raise InputError(
                f"the tokens are a tensor of shape {tuple(ids.shape)}, {ids.dtype}: expected whole numbers, one row"
            )
        ids = ids.flatten().tolist()
    return [int(i) for i in ids]


def _written(
    model: Runner,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    progress: Progress | None,
    streamer: Any = None,
) -> list[Answer | InputError]:
    """Return what the model writes for the prompts of one batch, or errors. streamer: only for one prompt."""
    check_count(max_new_tokens)
    limit = model.limit()
    two_stacks = getattr(model.config, "is_encoder_decoder", False)
    rooms = []
    answers: dict[int, Answer | InputError] = {}
    for number, prompt in enumerate(prompts):
        if limit is not None and not two_stacks and len(prompt.ids) >= limit:
            answers[number] = TextError.of(
                "too long",
                f"the prompt has {len(prompt.ids)} tokens and the model takes {limit}: there is no room for an answer",
            )
        room = decoder_limit(model) if two_stacks else None if limit is None else limit - len(prompt.ids)
        rooms.append(max_new_tokens if room is None else min(max_new_tokens, room))
    for room in dict.fromkeys(rooms):  # a long prompt must not shorten the answers to others
        numbers = [number for number, other in enumerate(rooms) if other == room and number not in answers]
        beside = prompts[numbers[0]].tensors if numbers else None  # a prompt with an image is alone in its batch
        ids = [prompts[number].ids for number in numbers]
        texts = write(model, ids, room, progress, streamer, beside) if numbers else []
        for number, written in zip(numbers, texts, strict=True):
            answers[number] = _answer(model, prompts[number], written, progress)
    return [answers[number] for number in range(len(prompts))]


def _answer(model: Runner, prompt: Prompt, written: Written, progress: Progress | None) -> Answer | InputError:
    if not written.ids:
        return TextError.of(
            "answer",
            "the model writes nothing: its first token ends the text. Change the prompt, or give a text as answer=",
        )
    usable = not prompt.tensors and written.cache is not None
    if not usable or not is_same(model, written.cache, prompt.ids[:CHECKED], written.item, written.start):
        written = replace(written, cache=None)  # it does not contain what the model computes without a cache
    labels, weights = _labels(model, prompt, written.ids), fingerprint_of_weights(model.model)
    return Answer(model, prompt, written.ids, labels, True, written, weights, progress)


def _given(model: Runner, prompt: Prompt, answer: Any, cache: Any, progress: Progress | None) -> Answer:
    if _is_ids(answer):
        ids = _numbers(answer)
        if not ids:
            raise InputError("the answer has no tokens: expected at least one")
        if strange := [i for i in ids if not 0 <= i < model.vocabulary()]:
            raise InputError(
                f"the answer contains token {strange[0]}: expected numbers from 0 to {model.vocabulary() - 1}"
            )
        if len(prompt.ids) >= LONG_PROMPT and list(ids[: len(prompt.ids)]) == list(prompt.ids):
            raise InputError(
                f"the answer begins with all {len(prompt.ids)} tokens of the prompt: give only the tokens after them, for "
                f"example sequences[0, {len(prompt.ids)}:] of what generate returns"
            )
        if cache is not None and not getattr(model.config, "is_encoder_decoder", False):
            check_cache(model, cache, prompt.ids)
            cache = snapshot(cache, len(prompt.ids) - 1) if len(prompt.ids) > 1 else None
        return _of(model, prompt, ids, cache, progress)
    if not isinstance(answer, str):
        raise InputError(f"answer={answer!r:.60}: expected a text, or token numbers")
    if not answer.strip():
        raise TextError.of("answer", f"the answer {answer!r:.60} is empty: expected at least one word")
    if cache is not None:
        raise InputError("cache needs the tokens that were written with it: give answer= as token numbers")
    if model.tokenizer is None:
        raise InputError("this model was wrapped without a tokenizer: give answer= as token numbers")
    choices = [plain_ids(model, answer)]
    if _joins(prompt, answer):  # within a running text a word begins with a space
        choices.append(plain_ids(model, " " + answer))
    candidates = [_of(model, prompt, ids, None, progress) for ids in dict.fromkeys(map(tuple, choices))]
    return max(candidates, key=lambda candidate: float(candidate.log_probabilities.sum()))


def _joins(prompt: Prompt, answer: str) -> bool:
    ends = prompt.text[-1:]
    return (
        bool(ends) and not ends.isspace() and not answer[0].isspace() and not (prompt.template and prompt.template[-1])
    )


def _of(model: Runner, prompt: Prompt, ids: Sequence[int], cache: Any, progress: Progress | None) -> Answer:
    limit = model.limit()
    total = len(prompt.ids) + len(ids)
    if limit is not None and not getattr(model.config, "is_encoder_decoder", False) and total > limit:
        raise TextError.of(
            "too long",
            f"the prompt has {len(prompt.ids)} tokens, the answer {len(ids)}, and the model takes {limit}: shorten either",
        )
    longest = decoder_limit(model) if getattr(model.config, "is_encoder_decoder", False) else None
    if longest is not None and len(ids) > longest:
        raise TextError.of(
            "too long", f"the answer has {len(ids)} tokens, and the model writes at most {longest}: shorten it"
        )
    numbers = tuple(int(i) for i in ids)
    labels, weights = _labels(model, prompt, numbers), fingerprint_of_weights(model.model)
    return Answer(model, prompt, numbers, labels, False, Written(numbers, cache), weights, progress)


def _labels(model: Runner, prompt: Prompt, ids: Sequence[int]) -> AnswerLabels:
    if model.tokenizer is not None:
        return with_answer(prompt, ids, model)
    labels = prompt_of_ids(model, ids)
    return AnswerLabels(labels.tokens, labels.offsets, labels.special, labels.text, labels.word_ids, labels.word_texts)
