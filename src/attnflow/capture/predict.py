"""What the model answers, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.inputs import Encoded
from attnflow.capture.passes import Prediction
from attnflow.errors import InputError, TextError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

SHOWN = 5


def prediction(model: Runner, out: Any, encoded: Encoded, number: int, lengths: list[int]) -> Prediction | None:
    """The likeliest classes, or the likeliest next or masked tokens; None for a model without a head."""
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor) or logits.shape[-1] < 1:
        return None
    logits = logits.detach()
    if logits.dim() == 3 and encoded.target is not None:
        if model.tokenizer is None or logits.shape[-1] != model.vocabulary():
            return None
        return _likeliest("next token", logits[number, -1], lambda i: piece(model, i))
    ids = encoded.tensors["input_ids"][0] if "input_ids" in encoded.tensors else torch.empty(0)
    try:
        kind, place = answered(model, logits[number : number + 1], ids)
    except InputError:
        return None
    if place is None:
        answer = logits[number]
    elif kind == "next token" and model.tokenizer is None:
        return None
    elif kind == "next token" and logits.shape[1] == len(set(lengths)):  # only the last positions were computed
        answer = logits[number, sorted({n - 1 for n in lengths}).index(len(ids) - 1)]
    else:
        answer = logits[number, place]
    if kind in ("class", "score"):
        names = getattr(model.config, "id2label", None) or {}
        if kind == "score":
            return Prediction("score", ((str(names.get(0, "score")), float(answer[0])),))
        apart = getattr(model.config, "problem_type", None) == "multi_label_classification"
        return _likeliest("class", answer, lambda i: str(names.get(i, i)), apart)
    return _likeliest(kind, answer, lambda i: piece(model, i))


def answered(model: Runner, logits: Tensor, ids: Tensor) -> tuple[str, int | None]:
    """What the logits ``[1, …]`` of one text answer, and the position that does; None for the position of a whole text.

    A model whose configuration has ``prediction_position`` classifies the text at that position.
    """
    if logits.dim() == 2:
        return ("score" if logits.shape[-1] == 1 else "class"), None
    position = getattr(model.config, "prediction_position", None)
    if logits.dim() == 3 and isinstance(position, int):
        return "class", position % logits.shape[1]
    if logits.dim() != 3 or logits.shape[-1] != model.vocabulary() or not (model.tokenizer or writes_next(model)):
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


def _likeliest(kind: str, logits: Tensor, name: Callable[[int], str], apart: bool = False) -> Prediction:
    """apart: each label by itself, instead of one of all."""
    scores = torch.sigmoid(logits.double()) if apart else torch.softmax(logits.double(), -1)
    chances, places = scores.topk(min(SHOWN, logits.shape[-1]))
    return Prediction(kind, tuple((name(int(i)), float(p)) for p, i in zip(chances, places, strict=True)))
