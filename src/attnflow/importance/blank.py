"""Blank-out: what happens to the answer without the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import torch

from attnflow.errors import InputError
from attnflow.importance.question import (
    SATURATED,
    Tensors,
    answer_scores,
    check_difference,
    check_of,
    is_saturated,
    many,
    outputs,
    questions,
    result,
    warn_saturated,
)
from attnflow.result import TokenAttention

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

BLANKS = ("unk", "mask", "pad", "remove")


class BlankOptions(TypedDict, total=False):
    """The options of `blank_out`."""

    by: str | int | None
    of: str
    signed: bool
    truncate: bool
    progress: Callable[[int, int], None] | None


@overload
def blank_out(
    model: Runner, text: list[Any], answer: Any = None, **options: Unpack[BlankOptions]
) -> list[TokenAttention]: ...
@overload
def blank_out(model: Runner, text: Any, answer: Any = None, **options: Unpack[BlankOptions]) -> TokenAttention: ...
def blank_out(
    model: Runner,
    text: Any,
    answer: Any = None,
    *,
    by: str | int | None = None,
    of: str = "probability",
    signed: bool = False,
    truncate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TokenAttention | list[TokenAttention]:
    """How much of the answer's probability depends on each token: ``|p(y | x) - p(y | x without token i)|``.

    text: a text, a pair, a dict of tensors; or a list of these, for a list of results.
    answer: y, the class or the token by name or number; the model's own answer by default. For a list, a list. Of a model
        that writes the next token, also a text of several, as it is written (a space before it counts): y is then all of
        them, each after the ones before, by the product of their probabilities or the sum of their logits or log-odds.
    by: what stands in the token's place: "unk", "mask", "pad", "remove" for nothing, or the id of a token. By default the
        first of unk, mask and pad that the tokenizer has, else "remove"; `provenance` says which.
    of: what is measured: the "probability", "logit", "log-odds" or "difference" of the answer, as in `gradient`. Where a
        sure model stays sure whatever is blanked, a warning says that the probability ranks next to nothing.
    signed: keep the sign: positive where the token speaks for the answer.
    truncate: cut texts that are longer than the model takes.
    progress: called after every batch with how many texts with a blank are done and how many there are; what it raises
        stops the work.

    All tokens are blanked in turn, special ones too. Only the mask, or the one position that the class is read at, cannot
    be removed; it gets 0. For a model that answers with one number, the number takes the place of the probability.
    """
    check_of(of)
    texts, labels = many(text, answer)
    token = blank_id(model, by)
    about = questions(model, texts, labels, truncate, several=True)
    check_difference(about, of)
    rows: list[Tensors] = []
    sources: list[tuple[int, int]] = []  # question and blanked position of each row; -1 for the text as it is
    for number, question in enumerate(about):
        if of != "probability":
            rows.append(question.forced)
            sources.append((number, -1))
        for i in range(question.length):
            answers = i == question.place and question.kind != "next token"
            if token is None and (question.length == 1 or answers):
                continue
            rows.append(_without(question.forced, i, token))
            sources.append((number, i))
    whole = [question.chance for question in about]
    left: list[dict[int, float]] = [{} for _ in about]  # what is left of the score without each position
    if progress is not None:
        progress(0, len(rows))
    count = 0
    for at, logits in outputs(model, rows, keep=[len(about[number].answer) for number, _ in sources]):
        count += len(at)
        if progress is not None:
            progress(count, len(rows))
        pairs = [sources[r] for r in at]
        places = [_place(about[n].place, i, token) for n, i in pairs]
        scores = answer_scores(model, [about[n] for n, _ in pairs], logits.cpu(), of, places).tolist()
        for (number, i), y in zip(pairs, scores, strict=True):
            if i < 0:
                whole[number] = y
            else:
                left[number][i] = y
    values = [
        np.array([w - y[i] if i in y else 0.0 for i in range(question.length)])
        for question, w, y in zip(about, whole, left, strict=True)
    ]
    still = [q for q, v in zip(about, values, strict=True) if is_saturated(q, of) and np.abs(v).max() < SATURATED]
    warn_saturated(still)
    options = {"by": by if by is not None else _default(model), "signed": signed, "of": of}
    results = [
        result(model, question, v if signed else np.abs(v), "blank-out", **options)
        for question, v in zip(about, values, strict=True)
    ]
    return results if isinstance(text, list) else results[0]


def blank_id(model: Runner, by: str | int | None, argument: str = "by") -> int | None:
    """The id of the token that replaces another; None for removing it. argument: what a user calls `by`."""
    if isinstance(by, int) and not isinstance(by, bool):
        if 0 <= by < model.vocabulary():
            return by
        raise InputError(f"{argument}={by}: expected the id of a token, from 0 to {model.vocabulary() - 1}")
    name = _default(model) if by is None else by
    if name not in BLANKS:
        raise InputError(f"{argument}={by!r}: expected one of {', '.join(map(repr, BLANKS))}, or the id of a token")
    if name == "remove":
        return None
    number = getattr(model.tokenizer, f"{name}_token_id", None)
    if number is None:
        has = [n for n in BLANKS if n == "remove" or getattr(model.tokenizer, f"{n}_token_id", None) is not None]
        raise InputError(
            f"{argument}={name!r}: the tokenizer of this model has no {name} token; expected one of "
            f"{', '.join(map(repr, has))}, or the id of a token"
        )
    return int(number)


def blank_token(model: Runner, by: str | int | None, argument: str = "by") -> int:
    """The id of the token that replaces another, where one must."""
    token = blank_id(model, by, argument)
    if token is None:
        raise InputError(
            f"{argument}={by!r}: the blank text is as long as the text, so a token must stand in each place; expected "
            "'unk', 'mask', 'pad' or the id of a token"
        )
    return token


def _default(model: Runner) -> str:
    for name in BLANKS[:-1]:
        if getattr(model.tokenizer, f"{name}_token_id", None) is not None:
            return name
    return "remove"


def _without(tensors: Tensors, i: int, token: int | None) -> Tensors:
    n = tensors["input_ids"].shape[1]
    if token is None:
        keep = torch.arange(n) != i
        return {k: x[:, keep] if x.dim() > 1 and x.shape[1] == n else x for k, x in tensors.items()}
    ids = tensors["input_ids"].clone()
    ids[0, i] = token
    return {**tensors, "input_ids": ids}


def _place(place: int | None, i: int, token: int | None) -> int | None:
    return place - 1 if place is not None and token is None and i <= place else place
