"""Removing or replacing one word of a text: the change that answer edges predict, and the measured change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow.errors import InputError
from attnflow.importance.question import Question, logits_at, outputs, question_of, score
from attnflow.model import Model
from attnflow.source_methods import INPUTS, trace_method
from attnflow.trace import Trace

OPENING, CLOSING = "([{«“‘", ".,;:!?)]}»”’"
"""Punctuation that attaches to the following word, and to the preceding word."""


def edit(model: Model, text: str, edited: str, word: int, truncate: bool) -> dict[str, Any]:
    """Return the answer to a text and to the same text with one word changed (see `changed`).

    All log-odds are of the answer to the original text. ``predicted`` is their change according to answer edges, which
    ignore the replacement: minus the contribution of the word. It is None if the model has no answer edges.
    """
    before, log_odds = _asked(model, text, None, truncate)
    after, other_odds = _asked(model, edited, before.chosen, truncate)
    own, _ = _asked(model, edited, None, truncate)
    return {
        "word": before.encoded.word_texts[word],
        "text": edited,
        "kind": before.kind,
        "answer": before.name,
        "before": {"probability": before.chance, "logOdds": log_odds},
        "after": {"probability": after.chance, "logOdds": other_odds},
        "own": {"answer": own.name, "probability": own.chance},
        "predicted": _predicted(model, text, word, truncate),
        "true": other_odds - log_odds,
    }


def changed(model: Model, text: str, word: int, replacement: str | None, truncate: bool) -> str:
    """Replace a word of the text, or remove it.

    word: its number among the words that the model reads.
    """
    encoded = model.encode(text, truncate=truncate)
    from_end = encoded.cut is not None and getattr(model.tokenizer, "truncation_side", "right") == "left"
    start, stop = word_range(text, encoded.word_texts, word, from_end)
    return text[:start] + replacement + text[stop:] if replacement else without(text, start, stop)


def word_range(text: str, words: Sequence[str], word: int, from_end: bool = False) -> tuple[int, int]:
    """Return the character range of a word.

    words: consecutive words of the text, in order and spelled as in the text.
    from_end: whether they are the last words of the text, because its beginning was cut off, or the first words.

    >>> word_range("a b a b", ["a", "b"], 0), word_range("a b a b", ["a", "b"], 0, from_end=True)
    ((0, 1), (4, 5))
    """
    if word >= len(words):
        raise InputError(f"word {word}: the text has {len(words)} words, expected a number from 0 to {len(words) - 1}")
    start, stop = len(text), 0
    for number in range(len(words) - 1, word - 1, -1) if from_end else range(word + 1):
        each = words[number]
        start = text.rfind(each, 0, start) if from_end else text.find(each, stop)
        if start < 0:
            raise InputError(
                f"word {number}, {each!r:.40}, is not in the text as the tokenizer spells it: edit the text itself"
            )
        stop = start + len(each)
    return start, stop


def without(text: str, start: int, stop: int) -> str:
    """Return the text without these characters and without the space that would be left over.

    >>> without("not bad, really", 4, 7), without("not bad, really", 0, 3)
    ('not, really', 'bad, really')
    """
    head, tail = text[:start], text[stop:]
    if tail[:1].isspace() and (not head or head[-1].isspace() or head[-1] in OPENING):
        return head + tail[1:]
    if head[-1:].isspace() and (not tail or tail[0] in CLOSING):
        return head[:-1] + tail
    return head + tail


def _asked(model: Model, text: str, label: int | None, truncate: bool) -> tuple[Question, float]:
    """Return the model's answer, or its probability of a given answer, with its log-odds (for scores, the score)."""
    encoded = model.encode(text, truncate=truncate)
    _, logits = next(outputs(model, [encoded.tensors]))
    question = question_of(model, encoded, logits[0], label)
    row = logits_at(logits[0], question.place)[None]
    return question, float(score(model, question.kind, row, question.chosen, question.against, "log-odds")[0])


def _predicted(model: Model, text: str, word: int, truncate: bool) -> float | None:
    """Return the predicted change of the answer's log-odds without the word; None without answer edges."""
    try:
        trace: Trace = model.trace(text, edges="answer", truncate=truncate)
        kind = trace.provenance["answer"]["kind"]
        parts = trace.answer_inputs(signed=True) if trace_method(kind) == INPUTS else trace.answer_rows(signed=True)
    except InputError:
        return None
    return -float(sum(part for part, of in zip(parts.row(), trace.word_ids, strict=True) if of == word))
