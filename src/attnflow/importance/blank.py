"""Blank-out: what happens to the answer without the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnflow.errors import InputError
from attnflow.importance.answer import Tensors, many, outputs, questions, result, said_at, score

if TYPE_CHECKING:
    from attnflow.model import Model

BLANKS = ("unk", "mask", "pad", "remove")


def blank_out(
    model: Model,
    text: Any,
    answer: Any = None,
    *,
    by: str | int | None = None,
    signed: bool = False,
    truncate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """How much of the answer's probability hangs on each token: ``|p(y | x) - p(y | x without token i)|``.

    text: a text, a pair, a dict of tensors; or a list of these, for a list of results.
    answer: y, the class or the token by name or number; the model's own answer by default. For a list, a list.
    by: what stands in the token's place: "unk", "mask", "pad", "remove" for nothing, or the id of a token. By default the
        first of unk, mask and pad that the tokenizer has, else "remove"; `provenance` says which.
    signed: keep the sign: positive where the token speaks for the answer.
    truncate: cut texts that are longer than the model takes.
    progress: called after every batch with how many texts with a blank are done and how many there are; what it raises
        stops the work.

    All tokens are blanked in turn, special ones too. Only the mask, or the one position that the class is read at, cannot
    be removed; it gets 0. For a model that answers with one number, the number takes the place of the probability.
    """
    texts, labels = many(text, answer)
    token = blank_id(model, by)
    asked = questions(model, texts, labels, truncate)
    rows: list[Tensors] = []
    of: list[tuple[int, int]] = []  # question and position of each row
    for number, question in enumerate(asked):
        for i in range(question.length):
            asks = i == question.place and question.kind != "next token"
            if token is None and (question.length == 1 or asks):
                continue
            rows.append(_without(question.tensors, i, token))
            of.append((number, i))
    values = [np.zeros(question.length) for question in asked]
    done = 0
    if progress is not None:
        progress(0, len(rows))
    for at, logits in outputs(model, rows):
        done += len(at)
        if progress is not None:
            progress(done, len(rows))
        pairs = [of[r] for r in at]
        said = [said_at(logits[k], _place(asked[number].place, i, token)) for k, (number, i) in enumerate(pairs)]
        kinds = asked[pairs[0][0]].kind
        chosen = torch.tensor([asked[number].chosen for number, _ in pairs])
        left = score(model, kinds, torch.stack(said).double().cpu(), chosen, None, "probability").numpy()
        for (number, i), p in zip(pairs, left, strict=True):
            values[number][i] = asked[number].chance - p
    name = by if by is not None else _default(model)
    told = {"by": name, "signed": signed}
    found = [
        result(model, question, v if signed else np.abs(v), "blank-out", **told)
        for question, v in zip(asked, values, strict=True)
    ]
    return found if isinstance(text, list) else found[0]


def blank_id(model: Model, by: str | int | None) -> int | None:
    """The id of the token that replaces another; None for removing it."""
    if isinstance(by, int) and not isinstance(by, bool):
        if 0 <= by < model._vocabulary():
            return by
        raise InputError(f"by={by}: expected the id of a token, from 0 to {model._vocabulary() - 1}")
    name = _default(model) if by is None else by
    if name not in BLANKS:
        raise InputError(f"by={by!r}: expected one of {', '.join(map(repr, BLANKS))}, or the id of a token")
    if name == "remove":
        return None
    found = getattr(model.tokenizer, f"{name}_token_id", None)
    if found is None:
        has = [n for n in BLANKS if n == "remove" or getattr(model.tokenizer, f"{n}_token_id", None) is not None]
        raise InputError(
            f"by={name!r}: the tokenizer of this model has no {name} token; expected one of "
            f"{', '.join(map(repr, has))}, or the id of a token"
        )
    return int(found)


def _default(model: Model) -> str:
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
