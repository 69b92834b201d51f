"""The model's answer, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.inputs import Encoded
from attnflow.capture.passes import Prediction
from attnflow.errors import InputError, TextError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

SHOWN = 5

NOT_FINITE = (
    "the model's attention or answer is not finite on this text: check its weights, or load it in another dtype"
)

DOUBLES = 1 << 25
"""Logits that are turned into probabilities at a time, in double precision."""


@dataclass(frozen=True, eq=False)
class Likeliest:
    """The likeliest answers to the texts of a batch, as arrays on the model's device.

    kind: that of all of them, as in `Prediction`.
    numbers, chances: [text, answer], numbers and probabilities of classes or tokens, the likeliest first.
    answered: [text], False for a text without an answer; None if all have one.
    """

    kind: str
    numbers: Tensor
    chances: Tensor
    answered: Tensor | None = None


def prediction(model: Runner, out: Any, encoded: Encoded, number: int, lengths: list[int]) -> Prediction | None:
    """Return the likeliest classes, or the likeliest next or masked tokens; None for a model without a head."""
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor) or logits.shape[-1] < 1:
        return None
    logits = logits.detach()[number : number + 1]
    if logits.dim() == 3 and encoded.target is not None:
        if model.tokenizer is None or logits.shape[-1] != model.vocabulary():
            return None
        best = _likeliest("next token", logits[:, -1])
    else:
        embedded = encoded.tensors.get("inputs_embeds")
        # states of tokens have no numbers, so none is a mask
        ids = torch.full(embedded.shape[:2], -1) if embedded is not None else torch.empty(1, 0)
        ids = encoded.tensors.get("input_ids", ids)
        if logits.dim() == 3 and not ids.shape[1]:  # an answer for each frame of a sound or patch of an image
            return None
        answers = likeliest(model, logits, ids, [int(ids.shape[1])], lengths)
        if answers is None or (answers.answered is not None and not bool(answers.answered[0])):
            return None
        best = answers
    numbers, chances = best.numbers[0].tolist(), best.chances[0].tolist()
    if any(math.isnan(chance) for chance in chances):
        raise InputError(NOT_FINITE)
    return Prediction(
        best.kind, tuple((answer_name(model, best.kind, i), p) for i, p in zip(numbers, chances, strict=True))
    )


def likeliest(
    model: Runner, logits: Tensor, ids: Tensor, lengths: Sequence[int], together: Sequence[int]
) -> Likeliest | None:
    """Return the likeliest answers to texts ids [text, position] of these lengths; None if the model gives no answer.

    together: the lengths of all texts of the batch, which show whether logits were computed for last positions only.
    """
    if logits.shape[-1] < 1:
        return None
    ends = torch.tensor(lengths) - 1
    kind, place, present = _places(model, logits, ids, ends)
    if kind is None or (kind == "next token" and model.tokenizer is None):
        return None
    if place is None:
        answers = logits
    else:
        if kind == "next token" and logits.shape[1] == len(set(together)):  # only the last positions were computed
            place = torch.searchsorted(torch.tensor(sorted({n - 1 for n in together})), ends)
        answers = logits[torch.arange(len(logits), device=logits.device), place.to(logits.device)]
    return replace(best_of(model, kind, answers), answered=present)


def best_of(model: Runner, kind: str, logits: Tensor) -> Likeliest:
    """Return the likeliest answers from the logits [text, class or token] at the answering position of each text."""
    if kind == "score":
        return Likeliest(kind, torch.zeros_like(logits, dtype=torch.int64), logits.double())
    apart = kind == "class" and getattr(model.config, "problem_type", None) == "multi_label_classification"
    return _likeliest(kind, logits, apart)


def _places(
    model: Runner, logits: Tensor, ids: Tensor, ends: Tensor
) -> tuple[str | None, Tensor | None, Tensor | None]:
    """Return the kind of answer, the answering position of each text, and whether it answers; no kind if none does."""
    try:
        kind, place = answered(model, logits[:1], ids[0, : int(ends[0]) + 1])
    except InputError:
        if (
            logits.dim() != 3
            or getattr(model.tokenizer, "mask_token_id", None) is None
            or not _answers_words(model, logits)
        ):
            return None, None, None
        kind, place = "masked token", 0  # the first text has no mask, but others may
    masks = masked_positions(model, ids)
    places = None if place is None else places_of(model, kind, masks, ends + 1)
    return kind, places, masks.any(1) if kind == "masked token" else None


def masked_positions(model: Runner, ids: Tensor) -> Tensor:
    """Return where a token is the mask of a masked language model: [text, position]."""
    mask = getattr(model.tokenizer, "mask_token_id", None)
    return torch.zeros_like(ids, dtype=torch.bool) if mask is None else ids == mask


def places_of(model: Runner, kind: str, masks: Tensor, lengths: Tensor) -> Tensor:
    """Return the answering position of each text, [text], as `answered` does for one text.

    masks: from `masked_positions`.
    lengths: [text], because positions count from the end of a text, not of its padding.
    """
    if kind == "masked token":
        return masks.int().argmax(1)
    position = getattr(model.config, "prediction_position", None) if kind == "class" else -1
    return (position or 0) % lengths


def answer_name(model: Runner, kind: str, number: int) -> str:
    """Return the name of an answer: a class by its label, a token by its text."""
    if kind in ("class", "score"):
        return model.class_names.get(number, "score" if kind == "score" else str(number))
    return piece(model, number)


def answered(model: Runner, logits: Tensor, ids: Tensor) -> tuple[str, int | None]:
    """Return the kind of answer of one text's logits ``[1, …]``, and the answering position, None for the whole text.

    A model whose configuration has ``prediction_position`` classifies the text at that position.
    """
    if logits.dim() == 2:
        return ("score" if logits.shape[-1] == 1 else "class"), None
    position = getattr(model.config, "prediction_position", None)
    if logits.dim() == 3 and isinstance(position, int):
        return "class", position % logits.shape[1]
    if not _answers_words(model, logits):
        raise InputError(
            f"{model!r} returns an answer of shape {tuple(logits.shape)}: expected classes of the text, or tokens from "
            "the tokenizer's vocabulary"
        )
    mask = getattr(model.tokenizer, "mask_token_id", None)
    if mask is None or writes_next(model):
        return "next token", len(ids) - 1
    places = (ids == mask).nonzero().flatten().tolist()
    if not places:
        mark = getattr(model.tokenizer, "mask_token", "mask")
        raise TextError.of(
            "answer",
            f"the text has no {mark}, so the masked language model has nothing to predict: put one into the text",
        )
    return "masked token", int(places[0])


def piece(model: Runner, i: int) -> str:
    return str(model.tokenizer.decode([i]) if model.tokenizer is not None else "") or str(i)


def writes_next(model: Runner) -> bool:
    """Return whether the class of the model predicts the next token, which nothing else shows without a tokenizer."""
    return _is_among(model, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")


def finds_spans(model: Runner) -> bool:
    """Return whether the class of the model marks where in a text an answer starts and ends."""
    return model.config is not None and _is_among(model, "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES")


def _is_among(model: Runner, *lists: str) -> bool:
    """Return whether the class of the model is in one of these lists of transformers."""
    from transformers.models.auto import modeling_auto as auto

    classes = {cls.__name__ for cls in type(model.model).__mro__}
    return any(not classes.isdisjoint(getattr(auto, name).values()) for name in lists)


def _answers_words(model: Runner, logits: Tensor) -> bool:
    """Return whether logits ``[text, position, word]`` are over the model's vocabulary."""
    return logits.dim() == 3 and logits.shape[-1] == model.vocabulary() and bool(model.tokenizer or writes_next(model))


def _likeliest(kind: str, logits: Tensor, apart: bool = False) -> Likeliest:
    """Return the likeliest answers.

    apart: treat each label separately instead of choosing one.
    """
    count = min(SHOWN, logits.shape[-1])
    best = [
        (torch.sigmoid(some.double()) if apart else torch.softmax(some.double(), -1)).topk(count)
        for some in logits.split(max(1, DOUBLES // logits.shape[-1]))
    ]
    return Likeliest(kind, torch.cat([one.indices for one in best]), torch.cat([one.values for one in best]))
