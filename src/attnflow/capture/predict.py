"""What the model answers, in words."""

from __future__ import annotations

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

DOUBLES = 1 << 25
"""So many logits are turned into probabilities at a time, in double precision."""


@dataclass(frozen=True, eq=False)
class Likeliest:
    """The likeliest answers to the texts of a batch, as arrays on the model's device.

    kind: of all of them, as in `Prediction`. numbers, chances: [text, answer], of classes or tokens, the likeliest first.
    answered: [text], False for a text that the model answers nothing to; None where it answers all.
    """

    kind: str
    numbers: Tensor
    chances: Tensor
    answered: Tensor | None = None


def prediction(model: Runner, out: Any, encoded: Encoded, number: int, lengths: list[int]) -> Prediction | None:
    """The likeliest classes, or the likeliest next or masked tokens; None for a model without a head."""
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor) or logits.shape[-1] < 1:
        return None
    logits = logits.detach()[number : number + 1]
    if logits.dim() == 3 and encoded.target is not None:
        if model.tokenizer is None or logits.shape[-1] != model.vocabulary():
            return None
        best = _likeliest("next token", logits[:, -1])
    else:
        ids = encoded.tensors["input_ids"] if "input_ids" in encoded.tensors else torch.empty(1, 0)
        answers = likeliest(model, logits, ids, [int(ids.shape[1])], lengths)
        if answers is None or (answers.answered is not None and not bool(answers.answered[0])):
            return None
        best = answers
    numbers, chances = best.numbers[0].tolist(), best.chances[0].tolist()
    return Prediction(
        best.kind, tuple((answer_name(model, best.kind, i), p) for i, p in zip(numbers, chances, strict=True))
    )


def likeliest(
    model: Runner, logits: Tensor, ids: Tensor, lengths: Sequence[int], together: Sequence[int]
) -> Likeliest | None:
    """The likeliest answers to texts ids [text, position] of these lengths; None where the model answers nothing.

    together: the lengths of all texts of the batch, which tell where logits were computed for last positions alone.
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
    """The likeliest answers by logits [text, class or token] at the position of each text that answers."""
    if kind == "score":
        return Likeliest(kind, torch.zeros_like(logits, dtype=torch.int64), logits.double())
    apart = kind == "class" and getattr(model.config, "problem_type", None) == "multi_label_classification"
    return _likeliest(kind, logits, apart)


def _places(
    model: Runner, logits: Tensor, ids: Tensor, ends: Tensor
) -> tuple[str | None, Tensor | None, Tensor | None]:
    """What all texts answer, the position of each that does (`answered`), and whether it does; no kind where none does."""
    try:
        kind, place = answered(model, logits[:1], ids[0, : int(ends[0]) + 1])
    except InputError:
        if (
            logits.dim() != 3
            or getattr(model.tokenizer, "mask_token_id", None) is None
            or not _answers_words(model, logits)
        ):
            return None, None, None
        kind, place = "masked token", 0  # the first text has no mask, and others may
    masks = masked_positions(model, ids)
    places = None if place is None else places_of(model, kind, masks, ends + 1)
    return kind, places, masks.any(1) if kind == "masked token" else None


def masked_positions(model: Runner, ids: Tensor) -> Tensor:
    """[text, position]: where a token is the mask of a masked language model."""
    mask = getattr(model.tokenizer, "mask_token_id", None)
    return torch.zeros_like(ids, dtype=torch.bool) if mask is None else ids == mask


def places_of(model: Runner, kind: str, masks: Tensor, lengths: Tensor) -> Tensor:
    """The position of each text that answers, [text], where one of them does; `answered` says it of one text.

    masks: `masked_positions`. lengths: [text], because positions count from the end of a text, not of its padding.
    """
    if kind == "masked token":
        return masks.int().argmax(1)
    position = getattr(model.config, "prediction_position", None) if kind == "class" else -1
    return (position or 0) % lengths


def answer_name(model: Runner, kind: str, number: int) -> str:
    """How an answer is called: a class by its label, a token by its text."""
    if kind in ("class", "score"):
        names = getattr(model.config, "id2label", None) or {}
        return str(names.get(number, "score" if kind == "score" else number))
    return piece(model, number)


def answered(model: Runner, logits: Tensor, ids: Tensor) -> tuple[str, int | None]:
    """What the logits ``[1, …]`` of one text answer, and the position that does; None for the position of a whole text.

    A model whose configuration has ``prediction_position`` classifies the text at that position.
    """
    if logits.dim() == 2:
        return ("score" if logits.shape[-1] == 1 else "class"), None
    position = getattr(model.config, "prediction_position", None)
    if logits.dim() == 3 and isinstance(position, int):
        return "class", position % logits.shape[1]
    if not _answers_words(model, logits):
        raise InputError(
            f"{model!r} gives an answer of shape {tuple(logits.shape)}: expected the classes of a text, or words of its "
            "tokenizer's vocabulary"
        )
    mask = getattr(model.tokenizer, "mask_token_id", None)
    if mask is None or writes_next(model):
        return "next token", len(ids) - 1
    places = (ids == mask).nonzero().flatten().tolist()
    if not places:
        mark = getattr(model.tokenizer, "mask_token", "mask")
        raise TextError.of(
            "answer", f"the text has no {mark}, so the masked language model answers nothing: put one into it"
        )
    return "masked token", int(places[0])


def piece(model: Runner, i: int) -> str:
    return str(model.tokenizer.decode([i]) if model.tokenizer is not None else "") or str(i)


def writes_next(model: Runner) -> bool:
    """Whether the class of the model predicts the next token: without a tokenizer nothing else says so."""
    from transformers.models.auto import modeling_auto as auto

    name = type(model.model).__name__
    known = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return any(name in names.values() for names in known)


def _answers_words(model: Runner, logits: Tensor) -> bool:
    """Whether logits ``[text, position, word]`` are over the words of the model's vocabulary."""
    return logits.dim() == 3 and logits.shape[-1] == model.vocabulary() and bool(model.tokenizer or writes_next(model))


def _likeliest(kind: str, logits: Tensor, apart: bool = False) -> Likeliest:
    """apart: each label by itself, instead of one of all."""
    count = min(SHOWN, logits.shape[-1])
    best = [
        (torch.sigmoid(some.double()) if apart else torch.softmax(some.double(), -1)).topk(count)
        for some in logits.split(max(1, DOUBLES // logits.shape[-1]))
    ]
    return Likeliest(kind, torch.cat([one.indices for one in best]), torch.cat([one.values for one in best]))
