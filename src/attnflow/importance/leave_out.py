"""Exact leave-one-out: the log-probability of a written answer without each group of the prompt's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.capture.answer_pass import log_probabilities
from attnflow.capture.encode import decoder_start
from attnflow.capture.generate import Progress
from attnflow.capture.predict import writes_next
from attnflow.errors import InputError, ModelError
from attnflow.importance.blank import blank_token
from attnflow.importance.prefix import Row, Variant, shared_prefix, without
from attnflow.importance.question import Tensors, outputs

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

HOW = ("remove", "replace")

STAGE = "leave-one-out"


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Log-probabilities of an answer's tokens, with the whole prompt and without each group of its tokens.

    whole, without: ``[answer token]`` and ``[group, answer token]``.
    shared_prefix: whether the groups ran on the prompt's key-value cache, which computes only what comes after each;
        otherwise every text ran from its beginning.
    """

    whole: NDArray[np.float64]
    without: NDArray[np.float64]
    shared_prefix: bool


def leave_out(
    model: Runner,
    ids: Sequence[int],
    answer: Sequence[int],
    groups: Sequence[Sequence[int]],
    *,
    how: str = "remove",
    replacement: str | int | None = None,
    breaks: Sequence[Sequence[int]] | None = None,
    cache: Any = None,
    progress: Progress | None = None,
) -> LeaveOneOut:
    """Return the log-probability of each token of the answer, with the whole prompt and without each group.

    model: a decoder, or an encoder-decoder, which reads the prompt and writes the answer.
    ids: the prompt's tokens.
    answer: the answer's tokens; for an encoder-decoder, those after the decoder's start token.
    groups: positions in the prompt; groups may overlap.
    how: "remove" deletes these tokens, and what follows moves up. "replace" puts another token in each of their places.
    replacement: the token for "replace", like `by` of `blank_out`: "unk", "mask", "pad" or an id.
    breaks: for "remove", tokens that take the place of each group, such as the line break of a token ".\\n\\n".
    cache: the model's key-value cache of the prompt, with or without the answer, from a generation; it is only read. By
        default one pass over prompt and answer makes it.
    progress: called with the stage, the number of groups done and the total; an exception from it stops the work.

    A decoder is causal: leaving out a group does not change what comes before it. Each group therefore runs from its first
    token on, with the cache of what comes before. The first time, one group also runs from the beginning. If the two
    disagree, or if the cache cannot be cut, every text runs from its beginning, in batches of one length.
    """
    sets = _position_sets(model, ids, answer, groups, how)
    token = blank_token(model, replacement, "replacement") if how == "replace" else None
    kept = breaks or [()] * len(sets)
    variants = [without(ids, positions, token, some) for positions, some in zip(sets, kept, strict=True)]
    variants.append(Variant(tuple(ids), len(ids)))
    if progress is not None:
        progress(STAGE, 0, len(variants))
    prefix = None
    if not _reads_first(model):
        prefix = shared_prefix(
            model, tuple(ids), tuple(answer), variants[:-1], cache, lambda one: next(_fresh(model, answer, [one]))[1]
        )
    rows = np.zeros((len(variants), len(answer)))
    source = _fresh(model, answer, variants) if prefix is None else prefix.rows(variants)
    for done, (number, row) in enumerate(source, 1):
        rows[number] = row
        if progress is not None:
            progress(STAGE, done, len(variants))
    for number in np.flatnonzero(np.isnan(rows).any(1)).tolist():
        raise ModelError(
            f"the model gives NaN without group {number}"
            if number < len(groups)
            else "the model gives NaN for this prompt and answer"
        )
    return LeaveOneOut(rows[-1], rows[:-1], prefix is not None)


def _fresh(model: Runner, answer: Sequence[int], variants: Sequence[Variant]) -> Iterator[tuple[int, Row]]:
    """Yield the number of each variant and the log-probabilities of the answer, every text from its beginning."""
    rows = [_tensors(model, variant, answer) for variant in variants]
    for numbers, logits in outputs(model, rows, keep=len(answer)):
        for number, row in zip(numbers, logits, strict=True):
            yield number, log_probabilities(row[-len(answer) :], answer)


def _tensors(model: Runner, variant: Variant, answer: Sequence[int]) -> Tensors:
    """Return one text as the model reads it from the beginning."""
    ids = list(variant.ids)
    if not _reads_first(model):
        return {"input_ids": torch.tensor([[*ids, *answer[:-1]]])}
    target = torch.tensor([[decoder_start(model), *answer[:-1]]])
    mask = torch.ones(1, len(ids), dtype=torch.long)
    return {"input_ids": torch.tensor([ids]), "attention_mask": mask, "decoder_input_ids": target}


def _reads_first(model: Runner) -> bool:
    """Return whether the prompt goes to an encoder and the answer to a decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _position_sets(
    model: Runner, ids: Sequence[int], answer: Sequence[int], groups: Sequence[Sequence[int]], how: str
) -> list[list[int]]:
    """Return the positions of each group in order, each once; refuse what cannot be left out."""
    model.check_evaluating()
    if how not in HOW:
        raise InputError(f"how={how!r}: expected one of {', '.join(map(repr, HOW))}")
    if not (_reads_first(model) or writes_next(model)):
        raise InputError(f"leave-one-out for {model!r}: expected a model that writes text")
    for name, tokens in (("ids", ids), ("answer", answer)):
        if not len(tokens):
            raise InputError(f"{name} is empty: expected at least one token")
        _check_numbers(name, tokens, model.vocabulary(), "ids of tokens")
    limit, length = model.limit(), len(ids) if _reads_first(model) else len(ids) + len(answer) - 1
    if limit is not None and length > limit:
        raise InputError(f"prompt and answer have {length} tokens, and the model takes {limit}: shorten the prompt")
    if not len(groups):
        raise InputError("groups is empty: expected at least one group of positions")
    sets = []
    for number, group in enumerate(groups):
        _check_numbers(f"group {number}", group, len(ids), "positions in the prompt")
        sets.append(sorted(set(map(int, group))))
        if not sets[-1]:
            raise InputError(f"group {number} is empty: expected at least one position in the prompt")
        if len(sets[-1]) == len(ids) and how != "replace":
            raise InputError(
                f"group {number} is the whole prompt, which leaves nothing to predict the answer's first token from: keep "
                "a token such as the one that begins every text, or use how='replace'"
            )
    return sets


def _check_numbers(name: str, numbers: Sequence[int], end: int, what: str) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < end:
            raise InputError(f"{name} has {number!r}: expected {what}, from 0 to {end - 1}")
