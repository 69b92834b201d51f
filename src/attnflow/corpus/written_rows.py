"""Rows of prompts: a language model's answer to each, and what parts of the prompt the answer or a span rests on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow.answer import Answer
from attnflow.answering import BATCH, Reading, answer_one, written_answers
from attnflow.capture.inputs import Encoded
from attnflow.capture.passes import Prediction
from attnflow.capture.prompt import Span, find_span
from attnflow.corpus.corpus_options import Options, Writing
from attnflow.corpus.row_inputs import RowInput
from attnflow.corpus.schema import Explained, failed_row, score_columns
from attnflow.errors import InputError, TextError
from attnflow.method_table import LAYERED, takes
from attnflow.model import Model
from attnflow.version import __version__

PLAIN = Reading(None, None, False)


def answer_rows(model: Model, options: Options, writing: Writing, encoded: Sequence[Encoded]) -> list[Explained]:
    """Return the rows of these prompts. The model answers a few at a time, to bound memory."""
    inputs = [one for one in encoded if isinstance(one, RowInput)]
    return [
        row
        for start in range(0, len(inputs), BATCH)
        for row in _rows(model, options, writing, inputs[start : start + BATCH])
    ]


def _rows(model: Model, options: Options, writing: Writing, inputs: Sequence[RowInput]) -> list[Explained]:
    """Answer prompts together; if that fails, answer them one by one to isolate the failure."""
    try:
        answers = _answers_to(model, options, writing, inputs)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        if len(inputs) > 1:
            return [row for one in inputs for row in _rows(model, options, writing, [one])]
        return [failed_row(e)]
    rows: list[Explained] = []
    for answer in answers:
        try:
            rows.append(
                failed_row(answer) if isinstance(answer, InputError) else explained_answer(answer, options, writing)
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            rows.append(failed_row(e))
    return rows


def _answers_to(
    model: Model, options: Options, writing: Writing, inputs: Sequence[RowInput]
) -> list[Answer | InputError]:
    prompts = [one.prompt for one in inputs if one.prompt is not None]
    if options.answer_column is None and options.answer is None:
        return written_answers(model, prompts, writing.max_new_tokens)
    answers: list[Answer | InputError] = []
    for one, prompt in zip(inputs, prompts, strict=True):
        text = one.answer if options.answer is None else str(options.answer)
        try:
            answers.append(answer_one(model, prompt, text, writing.max_new_tokens, PLAIN, None, None))
        except InputError as e:
            answers.append(e)
    return answers


def explained_answer(answer: Answer, options: Options, writing: Writing) -> Explained:
    """Return the row of one answer."""
    span = _span(answer, writing)
    scores: dict[str, Any] = {}
    units: tuple[str, ...] | None = None
    for method in options.methods:
        more: dict[str, Any] = {"edges": options.edges} if takes(method, "edges") else {}
        more |= {"residual": options.residual} if takes(method, "residual") else {}
        for layer in options.layers if method in LAYERED else (-1,):
            result = answer.sources(span, writing.unit, method=method, layer=layer, **more)
            name = score_columns([method], [layer])[0]
            scores[name] = result.values[0]
            units = None if writing.unit == "token" else result.tokens
    prompt = answer.prompt
    if not all(np.isfinite(values).all() for values in scores.values()):
        raise InputError("the answer's scores are not finite on this prompt: another dtype may help")
    return Explained(
        prompt.tokens, prompt.ids, prompt.special, prompt.word_ids, prompt.word_texts, None, False, None,
        Prediction("answer", ((answer.text, answer.probability),)), scores,
        provenance=json.dumps(provenance_of(answer, options, writing)), answer=answer.text, answer_tokens=answer.tokens,
        answer_log_probability=float(answer.log_probabilities.sum()), units=units,
    )  # fmt: skip


def _span(answer: Answer, writing: Writing) -> Span | None:
    """Return the part of the answer to explain; it must occur in the answer."""
    if writing.span is None:
        return None
    span: Span = writing.span if writing.occurrence is None else (writing.span, writing.occurrence)
    try:
        find_span(answer.text, span, answer.labels.offsets)
    except InputError as e:
        raise TextError.of("answer", str(e)) from None
    return span


def provenance_of(answer: Answer, options: Options, writing: Writing) -> dict[str, Any]:
    """Return the provenance that all rows share."""
    recipe: dict[str, Any] = {"unit": writing.unit, "span": writing.span, "edges": options.edges}
    if any(takes(method, "residual") for method in options.methods):
        recipe["residual"] = options.residual
    settings = {name: value for name, value in recipe.items() if value is not None}
    return {**answer.model.identity(), "answers": True, **settings, "attnflow": __version__}
