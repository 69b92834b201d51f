"""Blank-out: what happens to the answer without a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.errors import InputError, ModelError
from attnflow.importance.blank_units import BlankUnits, check_unit, units_of
from attnflow.importance.blanked import Blank, Replacement, cost, parts, prefix_of, scores
from attnflow.importance.question import (
    SATURATED,
    Question,
    check_difference,
    check_of,
    is_saturated,
    many,
    questions,
    result,
    warn_saturated,
)
from attnflow.importance.tiles import Cover, cover_of
from attnflow.result import TokenAttention

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

BLANKS = ("unk", "mask", "pad", "remove")


class BlankOptions(TypedDict, total=False):
    """The options of `blank_out`."""

    by: str | int | None
    of: str
    signed: bool
    unit: str
    seconds: float | None
    first: TokenAttention | None
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
    unit: str = "token",
    seconds: float | None = None,
    first: TokenAttention | None = None,
    truncate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TokenAttention | list[TokenAttention]:
    """Return how much the answer's probability depends on each token: ``|p(y | x) - p(y | x without token i)|``.

    text: a text, a pair, a dict of tensors, or an image for an image classifier; or a list of these, for a list of results.
        The tokens of an image are its patches.
    answer: y, the class or the token by name or number; by default the model's own answer. For a list of texts, a list. For
        a model that writes the next token, also a text of several tokens: y is then all of them in order, by the product of
        their probabilities or the sum of their logits or log-odds. A missing space before it is added if that makes it one
        token, or likelier.
    by: what replaces the token: "unk", "mask", "pad", "remove" for nothing, or the id of a token. The default is the first
        of unk, mask and pad that the tokenizer has, else "remove"; `provenance` says which. A patch of an image is covered
        by 0 in normalised pixels, the mean colour that the image processor subtracts ("mean").
    of: what is measured: the "probability", "logit", "log-odds" or "difference" of the answer, as in `gradient`. If a
        confident model stays confident whatever is blanked, a warning says that the probability ranks next to nothing.
    signed: keep the sign: positive if the token supports the answer.
    unit: what is blanked at once: "token"; "word", all its tokens together; or "sentence". The result is over these units.
    seconds: a time limit per text; by default there is none. Values that were not computed in time are NaN, not 0, and
        ``provenance["computed"]`` says how many there are. The first eight are always computed.
    first: another result of the same text, whose largest values are blanked first, such as `Trace.sources`; by default
        the order is that of the text.
    truncate: cut texts that are longer than the model takes.
    progress: called after every batch with the number of blanked texts done and the total; an exception from it stops the
        work.

    For a model that writes the next token, a long text with a blank runs on the key-value cache of what comes before the
    blank, which the blank does not change, if the cache gives the same results as a pass from the beginning.

    All tokens are blanked in turn, special ones too. Only the mask, or the one position that the class is read at, cannot
    be removed; it gets 0, and so do the class and register tokens of an image, which have no pixels. For a model that
    answers with one number, the number takes the place of the probability.
    """
    check_of(of)
    check_unit(unit)
    _check_time(text, seconds, first)
    begun = time.monotonic()
    texts, labels = many(text, answer)
    about = questions(model, texts, labels, truncate, several=True)
    token = replacement(model, about, by)
    check_difference(about, of)
    if isinstance(token, Cover) and unit != "token":
        raise InputError(f"unit={unit!r} of an image, whose units are patches: expected 'token'; leave unit out")
    over = [units_of(question.encoded, unit) for question in about]
    orders = [_order(units, question, first) for units, question in zip(over, about, strict=True)]
    blanks = [
        Blank(number, group, over[number].groups[group])
        for number, question in enumerate(about)
        for group in orders[number]
        if _can_be_blanked(question, over[number].groups[group], token)
    ]
    if of != "probability":
        blanks = [*(Blank(number, -1) for number in range(len(about))), *blanks]
    left = _left(model, about, blanks, token, of, seconds, begun, progress)
    whole = [left.get((number, -1), question.chance) for number, question in enumerate(about)]
    wanted = {(blank.text, blank.group) for blank in blanks}
    values = [
        np.array(
            [
                whole[number] - left[number, g] if (number, g) in left else np.nan if (number, g) in wanted else 0.0
                for g in range(len(units.groups))
            ]
        )
        for number, units in enumerate(over)
    ]
    still = [q for q, v in zip(about, values, strict=True) if is_saturated(q, of) and _largest(v) < SATURATED]
    warn_saturated(still)
    name = token.name if isinstance(token, Cover) else by if by is not None else _default(model)
    options = {"by": name, "signed": signed, "of": of}
    results = []
    for question, units, row in zip(about, over, values, strict=True):
        more = _partial(row, seconds, first) if len(left) < len(blanks) else {}
        results.append(result(model, question, row if signed else np.abs(row), "blank-out", units, **options, **more))
    return results if isinstance(text, list) else results[0]


def _left(
    model: Runner,
    about: list[Question],
    blanks: list[Blank],
    token: Replacement,
    of: str,
    seconds: float | None,
    begun: float,
    progress: Callable[[int, int], None] | None,
) -> dict[tuple[int, int], float]:
    """Return the score of each text (the first number) without each group (the second), as far as time allowed."""
    if progress is not None:
        progress(0, len(blanks))
    prefixes = {}
    for number, question in enumerate(about):
        prefix = prefix_of(model, question, [blank for blank in blanks if blank.text == number], token)
        if prefix is not None:
            prefixes[number] = prefix
    costs = [cost(about[blank.text], blank, prefixes.get(blank.text)) for blank in blanks]
    left: dict[tuple[int, int], float] = {}
    for part, planned in parts(blanks, costs, seconds, begun):
        for batch in scores(model, about, part, token, of, prefixes):
            for blank, value in batch:
                if np.isnan(value):
                    raise ModelError(
                        f"values are nan without the tokens {list(blank.positions)}: expected finite numbers"
                    )
                left[blank.text, blank.group] = value
            if progress is not None:
                progress(len(left), planned)
    if progress is not None and len(left) < len(blanks):
        progress(len(left), len(left))  # time ran out before the plan was done
    return left


def _check_time(text: Any, seconds: float | None, first: TokenAttention | None) -> None:
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise InputError(f"seconds={seconds!r}: expected a number above 0, or None for all tokens")
    if isinstance(text, list) and (seconds is not None or first is not None):
        raise InputError("seconds and first need a single text: give one at a time")
    if first is not None and not isinstance(first, TokenAttention):
        raise InputError(
            f"first={first!r:.60}: expected a result for this text, such as model.gradient(text) or Trace.sources()"
        )


def _order(units: BlankUnits, question: Question, first: TokenAttention | None) -> list[int]:
    """Return the groups in the order in which they are blanked: the largest by another result first."""
    if first is None:
        return list(range(len(units.groups)))
    row, tokens = np.abs(first.row()), question.encoded.tokens
    if len(row) != len(tokens):
        raise InputError(
            f"first has {len(row)} inputs, and the text has {len(tokens)} tokens: expected a result for this text"
        )
    for i, (other, token) in enumerate(zip(first.tokens, tokens, strict=True)):
        if other != token:
            raise InputError(
                f"first is for another text: its token {i} is {other!r}, and that of this text is {token!r}; expected a "
                "result for this text"
            )
    sums = [float(row[list(group)].sum()) for group in units.groups]
    return sorted(range(len(sums)), key=lambda group: -sums[group])


def _can_be_blanked(question: Question, group: Sequence[int], token: Replacement) -> bool:
    """Return whether there is something to blank, and the answer can still be read without it."""
    if question.tiles is not None:  # class and register tokens come before the patches, and have no pixels
        return group[0] >= question.tiles.before
    if token is not None:
        return True
    return len(group) < question.length and (question.kind == "next token" or question.place not in group)


def _largest(row: FloatArray) -> float:
    return float(np.nanmax(np.abs(row), initial=0.0))


def _partial(row: FloatArray, seconds: float | None, first: TokenAttention | None) -> dict[str, Any]:
    """Return the provenance of a result whose values were not all computed in time: the others are NaN."""
    count = int(np.isfinite(row).sum())
    return {"computed": {"count": count, "of": len(row), "seconds": seconds, "first": first and first.method}}


def replacement(model: Runner, about: Sequence[Question], by: str | int | None) -> Replacement:
    """Return what replaces a token of these texts, or covers a patch of these images."""
    images = any(question.tiles is not None for question in about)
    return cover_of(by) if images else blank_id(model, by)


def blank_id(model: Runner, by: str | int | None, argument: str = "by") -> int | None:
    """Return the id of the token that replaces another; None for removing it. argument: the user's name for `by`."""
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
    """Return the id of the token that replaces another, if removing it is not possible."""
    token = blank_id(model, by, argument)
    if token is None:
        raise InputError(
            f"{argument}={by!r}: the blank text must be as long as the text, so each token needs a replacement; expected "
            "'unk', 'mask', 'pad' or the id of a token"
        )
    return token


def _default(model: Runner) -> str:
    for name in BLANKS[:-1]:
        if getattr(model.tokenizer, f"{name}_token_id", None) is not None:
            return name
    return "remove"
