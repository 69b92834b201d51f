"""The answer of a model that importance is about: one number of its output, read at one place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnflow.capture import encode
from attnflow.capture.inputs import Encoded, unknown
from attnflow.capture.predict import answered, piece, writes_next
from attnflow.errors import InputError
from attnflow.model import running
from attnflow.result import TokenAttention

if TYPE_CHECKING:
    from attnflow.model import Model

Tensors = dict[str, Tensor]

LOGITS = 1 << 25
"""Largest number of logits of one batch."""

TOKENS = {"cpu": 4096, "cuda": 1 << 17}
"""Largest number of tokens of one batch, where the logits are few."""

OF = ("probability", "logit", "difference")


@dataclass(frozen=True)
class Question:
    """One text and the answer that is explained.

    kind: "class", "score" (one number, no classes), "masked token" or "next token". place: the position that answers, None
    where the whole text does. chosen: the class or token. against: the likeliest other one. chance: the probability of
    the chosen one; of a score, the score itself.
    """

    encoded: Encoded
    kind: str
    place: int | None
    chosen: int
    against: int | None
    name: str
    chance: float

    @property
    def tensors(self) -> Tensors:
        return self.encoded.tensors

    @property
    def length(self) -> int:
        return int(self.tensors["input_ids"].shape[1])


def questions(model: Model, texts: Sequence[Any], labels: Sequence[Any], truncate: bool) -> list[Question]:
    """Runs the model once on every text; labels: the class or token to explain, None for the model's own answer."""
    if model.model.training:
        raise InputError("the model is in training mode, where dropout changes the answer: call model.eval() first")
    encoded = [encode.encode(model, text, None, truncate, None) for text in texts]
    for e in encoded:
        if "input_ids" not in e.tensors or e.target is not None:
            raise InputError(
                f"importance of a token for {model!r}: expected a model that reads one text and answers with a class, a "
                "masked token or the next token"
            )
    found: list[Question | None] = [None] * len(texts)
    for at, logits in outputs(model, [e.tensors for e in encoded]):
        for number, row in zip(at, logits, strict=True):
            found[number] = question_of(model, encoded[number], row, labels[number])
    return [q for q in found if q is not None]


def question_of(model: Model, encoded: Encoded, row: Tensor, label: Any) -> Question:
    """The question behind the logits of one text."""
    kind, place = answered(model, row[None], encoded.tensors["input_ids"][0])
    said = said_at(row, place)
    chosen = int(said.argmax()) if label is None else _chosen(model, kind, label, len(said))
    against = None
    if len(said) > 1:
        others = said.clone()
        others[chosen] = -torch.inf
        against = int(others.argmax())
    chance = float(score(model, kind, said[None].double(), chosen, against, "probability")[0])
    return Question(encoded, kind, place, chosen, against, _name(model, kind, chosen), chance)


def outputs(model: Model, rows: Sequence[Tensors]) -> Iterator[tuple[list[int], Tensor]]:
    """The logits of every row, in batches of one length: which rows, and ``[row, …]``. So nothing is ever padded."""
    for at, batch in batches(model, rows):
        try:
            logits = logits_of(model, batch)
        except InputError:
            if len(at) == 1:
                raise
            # some classifiers refuse batches: decoders without a padding token
            for i in at:
                yield [i], logits_of(model, dict(rows[i]))
        else:
            yield at, logits


def batches(model: Model, rows: Sequence[Tensors]) -> Iterator[tuple[list[int], Tensors]]:
    """Which rows, and their tensors together."""
    groups: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row["input_ids"].shape[1], *row), []).append(number)
    wide = max(model._vocabulary() if writes_words(model) else 1, 1)
    tokens = TOKENS.get(model.device.type, TOKENS["cpu"])
    for (n, *names), members in groups.items():
        size = max(1, min(tokens // n, LOGITS // (wide if _last_only(model) else wide * n)))
        for start in range(0, len(members), size):
            at = members[start : start + size]
            yield at, {name: torch.cat([rows[i][name] for i in at]) for name in names}


def logits_of(model: Model, batch: Tensors, grad: bool = False) -> Tensor:
    """``[row, class]``, or ``[row, position, token]``: of a model that writes the next token, at the last position only."""
    with running():
        out = model._forward(batch, grad=grad, **({"logits_to_keep": 1} if _last_only(model) else {}))
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor):
        raise InputError(
            f"{model!r} has no head, so it answers nothing: expected a classifier or a language model, for example one "
            "loaded from a folder whose configuration names such a class"
        )
    return logits


def said_at(row: Tensor, place: int | None) -> Tensor:
    """What the logits of one text say at the place that answers: its own row, also where only the last was computed."""
    return row if place is None else row[min(place, len(row) - 1)]


def _last_only(model: Model) -> bool:
    return model._accepts("logits_to_keep") and writes_next(model)


def score(model: Model, kind: str, logits: Tensor, chosen: Any, against: Any, of: str) -> Tensor:
    """The number that is explained, of logits ``[row, class]``: a probability, a logit, a difference of probabilities."""
    at = torch.as_tensor(chosen, device=logits.device).expand(len(logits))[:, None]
    if of == "logit" or kind == "score":
        return logits.gather(1, at)[:, 0]
    apart = getattr(model.config, "problem_type", None) == "multi_label_classification"
    chances = torch.sigmoid(logits) if apart else torch.softmax(logits, -1)
    own = chances.gather(1, at)[:, 0]
    if of == "probability":
        return own
    other = torch.as_tensor(against, device=logits.device).expand(len(logits))[:, None]
    return own - chances.gather(1, other)[:, 0]


def check_of(of: str) -> None:
    if of not in OF:
        raise InputError(f"of={of!r}: expected one of {', '.join(map(repr, OF))}")


def result(model: Model, question: Question, values: Any, method: str, **told: Any) -> TokenAttention:
    """One number a token, labelled as token attention is: the last layer, the position that answers."""
    import attnflow

    e = question.encoded
    layers = getattr(getattr(model.config, "text_config", None) or model.config, "num_hidden_layers", None) or 1
    place = question.place if question.place is not None else 0
    return TokenAttention(
        values=np.asarray(values, np.float64)[None, None],
        method=method,
        layers=(int(layers) - 1,),
        queries=(place,),
        query_tokens=(e.tokens[place],),
        tokens=e.tokens,
        word_ids=e.word_ids,
        word_texts=e.word_texts,
        special=e.special,
        text=e.text,
        provenance={
            "model": model.name,
            "revision": model.revision,
            "class": type(model.model).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "answer": {"kind": question.kind, "name": question.name, "probability": question.chance},
            **told,
            **({"unknown": strange} if (strange := unknown(model.tokenizer, e)) else {}),
            "attnflow": attnflow.__version__,
        },
    )


def many(texts: Any, labels: Any) -> tuple[list[Any], list[Any]]:
    """Texts and labels of one call, whether it was about one text or a list."""
    if not isinstance(texts, list):
        return [texts], [labels]
    if labels is None:
        return texts, [None] * len(texts)
    if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != len(texts):
        raise InputError(f"answer={labels!r:.60} for {len(texts)} texts: expected a list with one for each, or None")
    return texts, list(labels)


def writes_words(model: Model) -> bool:
    """Whether it answers with a token: a masked or causal language model."""
    return re.search(r"For(Masked|Causal)LM|LMHead|ForPreTraining", type(model.model).__name__) is not None


def _name(model: Model, kind: str, chosen: int) -> str:
    if kind in ("class", "score"):
        return str((getattr(model.config, "id2label", None) or {}).get(chosen, chosen))
    return piece(model, chosen)


def _chosen(model: Model, kind: str, label: Any, count: int) -> int:
    """The class or the token that a user names, by its number or its text."""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        if 0 <= label < count:
            return int(label)
        raise InputError(f"answer={label}: expected a number from 0 to {count - 1}")
    if kind in ("class", "score"):
        names = {str(name): int(i) for i, name in (getattr(model.config, "id2label", None) or {}).items()}
        if isinstance(label, str) and label in names:
            return names[label]
        shown = ", ".join(map(repr, names)) or f"0 to {count - 1}"
        raise InputError(f"answer={label!r} is no class of this model: expected one of {shown}")
    if isinstance(label, str) and label and model.tokenizer is not None:
        for text in (label, " " + label):
            ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) == 1 and ids[0] != getattr(model.tokenizer, "unk_token_id", None):
                return int(ids[0])
    raise InputError(f"answer={label!r} is not one token of this model: expected the text of one token, or its id")
