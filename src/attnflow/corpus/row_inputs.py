"""Model inputs for rows: the text, the answer that its row names, and the prompt of a language model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from attnflow.capture.chat import has_template
from attnflow.capture.inputs import Encoded
from attnflow.capture.prompt import Prompt, read_prompt
from attnflow.capture.runner import Runner
from attnflow.corpus.corpus_options import Options, Writing
from attnflow.corpus.schema import Explained, failed_row
from attnflow.errors import InputError, TextError
from attnflow.importance.question import writes_words
from attnflow.texts.sources import Text


@dataclass(frozen=True)
class RowInput(Encoded):
    """A text as model input. answer: the one that its row names. prompt: set if a language model answers it."""

    answer: str | None = None
    prompt: Prompt | None = None


def with_answers(
    texts: Sequence[Text], inputs: Sequence[Encoded | Explained], column: str
) -> list[Encoded | Explained]:
    """Return the inputs with the answers from this column of their rows; a row without an answer fails."""
    return [
        one if isinstance(one, Explained) else _with_answer(text, one, column)
        for text, one in zip(texts, inputs, strict=True)
    ]


def _with_answer(text: Text, encoded: Encoded, column: str) -> RowInput | Explained:
    if not (text.answer or "").strip():
        return failed_row(TextError.of("answer", f"the column {column!r} has no answer for this text: expected one"))
    values: dict[str, Any] = {field.name: getattr(encoded, field.name) for field in fields(encoded)}
    return RowInput(**{**values, "answer": text.answer})


def prompt_input(model: Runner, text: Text, writing: Writing) -> RowInput | Explained:
    """Return a text as the prompt of a language model, or its error row."""
    in_chat = has_template(model.tokenizer) if writing.chat is None else writing.chat
    content = text.text or ""
    try:
        is_message = in_chat and bool(content.strip())  # the prompt reader has the better error for an empty message
        prompt = read_prompt(model, [{"role": "user", "content": content}] if is_message else content)
    except InputError as e:
        return failed_row(e, "tokenizer")
    return RowInput(
        {"input_ids": torch.tensor([prompt.ids])}, prompt.tokens, prompt.special, prompt.word_ids, prompt.word_texts,
        prompt.text, prompt=prompt,
    )  # fmt: skip


def label_of(model: Runner, options: Options, encoded: Encoded) -> int | str | None:
    """Return the class or token that a row is about; None for the model's own answer.

    The cell of a classifier's column may contain the number of a class, unless a class has that number as its name. The
    cell of a language model is text.
    """
    label = getattr(encoded, "answer", None)
    if label is None:
        return options.answer
    names = map(str, (getattr(model.config, "id2label", None) or {}).values())
    # a column of whole numbers with missing cells is read as 1.0
    is_number = re.fullmatch(r"[0-9]+(\.0)?", label) and label not in names and not writes_words(model)
    return int(float(label)) if is_number else str(label)
