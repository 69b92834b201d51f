"""What the model said, in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnflow.capture.inputs import Encoded
from attnflow.capture.trace import Prediction

SHOWN = 5


def prediction(model: Any, out: Any, encoded: Encoded, number: int, lengths: list[int]) -> Prediction | None:
    """The likeliest classes, or the likeliest next or masked tokens; None for a model without a head."""
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor) or logits.shape[-1] < 1:
        return None
    if logits.dim() == 2:
        names = getattr(model.config, "id2label", None) or {}
        if logits.shape[-1] == 1:
            return Prediction("score", ((str(names.get(0, "score")), float(logits[number, 0])),))
        apart = getattr(model.config, "problem_type", None) == "multi_label_classification"
        return _likeliest("class", logits[number], lambda i: str(names.get(i, i)), apart)
    if logits.dim() != 3 or model.tokenizer is None or logits.shape[-1] != model._vocabulary():
        return None

    def piece(i: int) -> str:
        return str(model.tokenizer.decode([i])) or str(i)

    if encoded.target is not None:
        return _likeliest("next token", logits[number, -1], piece)
    ids = encoded.tensors["input_ids"][0]
    mask = getattr(model.tokenizer, "mask_token_id", None)
    if mask is not None:
        places = (ids == mask).nonzero().flatten().tolist()
        return _likeliest("masked token", logits[number, places[0]], piece) if places else None
    row = sorted({n - 1 for n in lengths}).index(len(ids) - 1) if logits.shape[1] == len(set(lengths)) else len(ids) - 1
    return _likeliest("next token", logits[number, row], piece)


def _likeliest(kind: str, logits: Tensor, name: Any, apart: bool = False) -> Prediction:
    """apart: each label by itself, instead of one of all."""
    scores = torch.sigmoid(logits.double()) if apart else torch.softmax(logits.double(), -1)
    chances, places = scores.topk(min(SHOWN, logits.shape[-1]))
    return Prediction(kind, tuple((name(int(i)), float(p)) for p, i in zip(chances, places, strict=True)))
