"""Checks of arguments, and which texts can be evaluated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError, a_type

if TYPE_CHECKING:
    from attnflow.model import Model

ONE_TOKEN = "fewer than two tokens"


def one_of(value: str, known: Sequence[str], name: str) -> None:
    if value not in known:
        raise InputError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}")


def some_of(values: Sequence[str], known: Sequence[str], name: str) -> None:
    for value in values:
        if value not in known:
            raise InputError(f"{name} {value!r}: expected some of {', '.join(map(repr, known))}")
    if not values:
        raise InputError(f"{name} is empty: expected some of {', '.join(map(repr, known))}")


def whole_number(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: expected a whole number of at least {least}")


def readable(model: Model, texts: Sequence[Any], truncate: bool) -> tuple[list[int], list[list[int]], Counter[str]]:
    """Return the numbers of the texts that the model can read, their token ids, and why it cannot read the others."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InputError(f"texts is {a_type(texts)}: expected a list of texts")
    excluded: Counter[str] = Counter()
    numbers, ids = [], []
    limit = model.limit()
    for number, text in enumerate(texts):
        if isinstance(text, str) and not text.strip():
            excluded["empty"] += 1
            continue
        own = _token_ids(model, text, number)
        if limit is not None and len(own) > limit and not truncate:
            excluded[f"longer than the {limit} tokens that the model takes"] += 1
            continue
        numbers.append(number)
        ids.append(own)
    return numbers, ids, excluded


def none_left(excluded: Mapping[str, int], least: str) -> InputError:
    reasons = "; ".join(f"{count} {why}" for why, count in excluded.items()) or "none was given"
    return InputError(f"there is no text to evaluate ({reasons}): expected at least {least}")


def _token_ids(model: Model, text: Any, number: int) -> list[int]:
    if model.tokenizer is None and not isinstance(text, Mapping):
        raise InputError(f"{model!r} was wrapped without a tokenizer: give wrap(model, tokenizer)")
    parts = (text,) if isinstance(text, str) else text
    try:
        if isinstance(text, Mapping):
            return [int(i) for i in text["input_ids"][0]]
        if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
            raise TypeError
        " ".join(parts).encode()
        return [int(i) for i in model.tokenizer(*parts, verbose=False)["input_ids"]]  # type: ignore[misc]
    except (TypeError, KeyError, IndexError, UnicodeEncodeError):
        raise InputError(
            f"text {number} is {text!r:.40}: expected a text, a pair of texts as a tuple, or a dict with input_ids"
        ) from None
