"""The answer that importance is about: one number of the model's output, read at one place."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture.frozen import no_answer
from attnflow.capture.inputs import Encoded, unknown
from attnflow.capture.predict import answered, finds_spans, piece, writes_next
from attnflow.capture.routes import running
from attnflow.errors import AttentionWarning, InputError, LongAnswer, ModelError, TextError
from attnflow.importance.blank_units import BlankUnits, units_of
from attnflow.importance.tiles import Tiles, is_image, tiled
from attnflow.reliability import chance_text, computed_note, saturated_note, tie_notes
from attnflow.result import TokenAttention
from attnflow.version import __version__

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

Tensors = dict[str, Tensor]
Floats = NDArray[np.float64]

LOGITS = 1 << 25
"""The largest number of logits of one batch."""

TOKENS = {"cpu": 4096, "cuda": 1 << 17}
"""The largest number of tokens of one batch with few logits."""

PATCH = 16 * 16
"""Pixels of a patch, when the size of a batch is chosen."""

OF = ("probability", "logit", "log-odds", "difference")

SATURATED = 1e-4
"""A probability this near to 0 or 1 hardly changes, whatever happens to the text."""


@dataclass(frozen=True)
class Question:
    """One text and the answer that is explained.

    kind: "class", "score" (one number, no classes), "masked token" or "next token". place: the position that answers, None
    if the whole text does. chosen: the class or token. against: the likeliest other one. chance: the probability of the
    chosen one, or the score itself. rest: the tokens of a longer answer after the chosen one, which is then its first;
    `chance` is then the probability of all of them in order. tiles: the patches, if the input is an image.
    """

    encoded: Encoded
    kind: str
    place: int | None
    chosen: int
    against: int | None
    name: str
    chance: float
    rest: tuple[int, ...] = ()
    tiles: Tiles | None = None

    @property
    def tensors(self) -> Tensors:
        return self.encoded.tensors

    @property
    def answer(self) -> tuple[int, ...]:
        return (self.chosen, *self.rest)

    @property
    def forced(self) -> Tensors:
        """The text followed by the answer, except for its last token, which predicts nothing."""
        if not self.rest:
            return self.tensors
        more = {"input_ids": torch.tensor([self.answer[:-1]])}
        if "position_ids" in self.tensors:
            more["position_ids"] = self.tensors["position_ids"][:, -1:] + torch.arange(1, len(self.answer))
        return {
            name: torch.cat([x, more[name] if name in more else x[:, -1:].repeat(1, len(self.rest))], 1)
            if x.dim() == 2 and x.shape[1] == self.length
            else x
            for name, x in self.tensors.items()
        }

    @property
    def length(self) -> int:
        return len(self.encoded.tokens) if self.tiles is not None else int(self.tensors["input_ids"].shape[1])


def questions(
    model: Runner, texts: Sequence[Any], labels: Sequence[Any], truncate: bool, several: bool = False
) -> list[Question]:
    """Run the model once on every text. labels: the class or token to explain, None for the model's own answer.

    several: whether the continuation of a language model may have several tokens.
    """
    model.check_evaluating()
    encoded = [model.encode(text, truncate=truncate) for text in texts]
    tiles: list[Tiles | None] = [None] * len(texts)
    for i, e in enumerate(encoded):
        if is_image(e):
            encoded[i], tiles[i] = tiled(model, e)
        elif "input_ids" not in e.tensors or "pixel_values" in e.tensors or e.target is not None:
            raise InputError(
                f"importance of tokens for {model!r}: expected a model that reads one text or one image and answers with a "
                "class, a masked token or the next token"
            )
    answers: list[Question | None] = [None] * len(texts)
    for at, logits in outputs(model, [e.tensors for e in encoded]):
        for number, row in zip(at, logits, strict=True):
            question = question_of(model, encoded[number], row, labels[number], several)
            answers[number] = replace(question, tiles=tiles[number])
    return _with_chances(model, [question for question in answers if question is not None])


def _with_chances(model: Runner, about: list[Question]) -> list[Question]:
    """Return the same questions with the probabilities of answers of several tokens."""
    long = [number for number, question in enumerate(about) if question.rest]
    for number in long:
        limit, length = model.limit(), about[number].length + len(about[number].rest)
        if limit is not None and length > limit:
            raise InputError(f"text and answer have {length} tokens, and the model takes {limit}: shorten the text")
    rows = [about[number].forced for number in long]
    for at, logits in outputs(model, rows, keep=[len(about[number].answer) for number in long]):
        members = [long[i] for i in at]
        chances = answer_scores(model, [about[number] for number in members], logits, "probability").tolist()
        for number, chance in zip(members, chances, strict=True):
            about[number] = replace(about[number], chance=chance)
    return about


def question_of(model: Runner, encoded: Encoded, row: Tensor, label: Any, several: bool = False) -> Question:
    """Return the question for the logits of one text or image; an answer of several tokens does not have its chance yet."""
    ids = encoded.tensors.get("input_ids")
    if ids is None and row.dim() != 1:
        raise InputError(
            f"{model!r} reads no text and returns an answer of shape {tuple(row.shape)}: expected the classes of an image "
            "or a sound"
        )
    kind, place = answered(model, row[None], torch.empty(0) if ids is None else ids[0])
    logits = logits_at(row, place)
    rest: list[int] = []
    if kind in ("next token", "masked token") and isinstance(label, str):
        label, *rest = _tokens(model, kind, label, encoded.text, logits, several)
    chosen = int(logits.argmax()) if label is None else _chosen(model, kind, label, len(logits))
    against = None
    if len(logits) > 1:
        others = logits.clone()
        others[chosen] = -torch.inf
        against = int(others.argmax())
    chance = float(score(model, kind, logits[None], chosen, against, "probability")[0])
    name = answer_text(model, kind, [chosen, *rest])
    return Question(encoded, kind, place, chosen, against, name, chance, tuple(rest))


def outputs(
    model: Runner, rows: Sequence[Tensors], keep: int | Sequence[int] = 1
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield the logits of every row, in batches of one length, so that nothing is padded: which rows, and ``[row, …]``.

    keep: how many last positions a model that writes the next token must return, for all rows or for each.
    """
    for at, batch in batches(model, rows, keep):
        last = keep if isinstance(keep, int) else keep[at[0]]
        try:
            logits = logits_of(model, batch, keep=last)
        except InputError:
            if len(at) == 1:
                raise
            # some classifiers refuse batches, such as decoders without a padding token
            for i in at:
                yield [i], logits_of(model, dict(rows[i]), keep=last)
        else:
            yield at, logits


def batches(
    model: Runner, rows: Sequence[Tensors], keep: int | Sequence[int] = 1
) -> Iterator[tuple[list[int], Tensors]]:
    """Yield which rows run together, and their tensors. keep: as in `outputs`; it is the same for all rows of a batch."""
    groups: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        last = keep if isinstance(keep, int) else keep[number]
        groups.setdefault((_main(row).shape[1:], last, *row), []).append(number)
    writes = bool(rows) and "decoder_input_ids" in rows[0]
    wide = max(model.vocabulary() if writes or writes_words(model) else 1, 1)
    tokens = TOKENS.get(model.device.type, TOKENS["cpu"])
    for (_, last, *names), members in groups.items():
        n = _position_count(rows[members[0]])
        size = max(1, min(tokens // n, LOGITS // wide * (last if writes or _last_only(model) else n)))
        for start in range(0, len(members), size):
            at = members[start : start + size]
            yield at, {name: torch.cat([rows[i][name] for i in at]) for name in names}


def _main(row: Tensors) -> Tensor:
    return row["pixel_values"] if "input_ids" not in row else row["input_ids"]


def _position_count(row: Tensors) -> int:
    """Return the tokens of a text; about as many for an image as patches of 16 × 16 pixels would be."""
    main = _main(row)
    return int(main.shape[1]) if "input_ids" in row else max(1, main[0, 0].numel() // PATCH)


def logits_of(model: Runner, batch: Tensors, grad: bool = False, keep: int = 1) -> Tensor:
    """Return ``[row, class]`` or ``[row, position, token]``, the last positions for a model that writes the next token."""
    with running():
        out = model.forward(batch, grad=grad, **({"logits_to_keep": keep} if _last_only(model) else {}))
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor):
        if model.pooling is not None or finds_spans(model):
            raise ModelError(no_answer(model))
        raise ModelError(
            f"{model!r} has no head, so it answers nothing: expected a classifier or a language model, for example one "
            "loaded from a folder whose configuration names its class"
        )
    return logits


def logits_at(row: Tensor, place: int | None) -> Tensor:
    """Return the logits of one text at the place that answers, even if only the last position was computed."""
    return row if place is None else row[min(place, len(row) - 1)]


def _last_only(model: Runner) -> bool:
    return model.accepts("logits_to_keep") and writes_next(model)


def score(model: Runner, kind: str, logits: Tensor, chosen: Any, against: Any, of: str) -> Tensor:
    """Return the number that is explained, in double precision, from logits ``[row, class]``.

    "logit" z; "log-odds" ``log p/(1-p)``; "probability" p; "difference" ``p - p'`` of the chosen and the other answer. The
    probability is computed from the log-odds, by the smaller of p and 1-p, so that it and its gradient keep their digits
    when the model is confident.
    """
    logits = logits.double()
    if of == "logit" or kind == "score":
        return _column(logits, chosen)
    odds = _log_odds(model, logits, chosen)
    if of == "log-odds":
        return odds
    if of == "probability":
        return _probability(odds)
    return _probability(odds) - _probability(_log_odds(model, logits, against))


def answer_scores(
    model: Runner, about: Sequence[Question], logits: Tensor, of: str, places: Sequence[int | None] | None = None
) -> Tensor:
    """Return the explained number of each text, from the logits ``[row, …]`` of a batch with answers of one length.

    For an answer of several tokens it is the product of the probabilities, each given the tokens before, or the sum of the
    logits or log-odds. places: where the answers are read, if not where the questions say.
    """
    count = len(about[0].answer)
    if count > 1:
        each = token_scores(model, about, logits, of)  # [row, answer token]
        return each.prod(1) if of == "probability" else each.sum(1)
    at = [question.place for question in about] if places is None else places
    rows = torch.stack([logits_at(row, place) for row, place in zip(logits, at, strict=True)])
    own, other = (torch.tensor([getattr(question, name) or 0 for question in about]) for name in ("chosen", "against"))
    return score(model, about[0].kind, rows, own, other, of)


def token_scores(model: Runner, about: Sequence[Question], logits: Tensor, of: str) -> Tensor:
    """Return ``[row, answer token]``: `score` of every token of answers of one length, at the last positions."""
    count = len(about[0].answer)
    tokens = torch.tensor([question.answer for question in about])
    flat = score(model, about[0].kind, logits[:, -count:].flatten(0, 1), tokens.flatten(), tokens.flatten(), of)
    return flat.view(len(about), count)


def _column(rows: Tensor, chosen: Any) -> Tensor:
    places = torch.as_tensor(chosen, device=rows.device).expand(len(rows))[:, None]
    return rows.gather(1, places)[:, 0]


def _log_odds(model: Runner, logits: Tensor, chosen: Any) -> Tensor:
    """Return ``z_y - log Σ_{c≠y} exp z_c``, or z_y itself if labels are independent or there is only one."""
    own = _column(logits, chosen)
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        return own
    places = torch.as_tensor(chosen, device=logits.device).expand(len(logits))[:, None]
    return own - logits.scatter(1, places, -torch.inf).logsumexp(-1)


def _probability(odds: Tensor) -> Tensor:
    return torch.where(odds > 0, 1 - torch.sigmoid(-odds), torch.sigmoid(odds))


def is_saturated(question: Question, of: str) -> bool:
    """Return whether the measured probability can hardly change."""
    sure = 1 - question.chance < SATURATED or (question.kind == "class" and question.chance < SATURATED)
    return of in ("probability", "difference") and question.kind != "score" and sure


def warn_saturated(questions: Sequence[Question], stacklevel: int = 3) -> None:
    """Warn once if any of these probabilities are saturated.

    stacklevel: by default that of the caller of the function that calls this.
    """
    if questions:
        name, shown = questions[0].name, chance_text(questions[0].chance)
        warnings.warn(
            f"the probability of {name!r} is {shown} and hardly changes, whatever happens to the text"
            + (f" (and {len(questions) - 1} more texts)" if len(questions) > 1 else "")
            + ": use of='log-odds' or of='logit', which do not saturate",
            AttentionWarning,
            stacklevel=stacklevel,
        )


def check_of(of: str) -> None:
    if of not in OF:
        raise InputError(f"of={of!r}: expected one of {', '.join(map(repr, OF))}")


def check_difference(questions: Sequence[Question], of: str) -> None:
    if of == "difference" and any(question.against is None for question in questions):
        raise InputError(
            "of='difference': this model answers with one number, so there is no other answer; use 'logit'"
        )
    if of == "difference" and any(question.rest for question in questions):
        raise InputError(
            "of='difference': an answer of several tokens has no likeliest alternative; expected 'probability', 'logit' or "
            "'log-odds'"
        )


def result(
    model: Runner, question: Question, values: Any, method: str, over: BlankUnits | None = None, **options: Any
) -> TokenAttention:
    """Return one number per token, labelled like token attention: the last layer, the position that answers.

    over: the units of the numbers, if not tokens.
    """
    e = question.encoded
    units = units_of(e, "token") if over is None else over
    layers = _layer_count(model, question)
    place, name = question.place or 0, ""
    if question.place is None and model.pooling is not None:
        embedding = model.pooling.row(len(e.tokens))
        place, name = (len(units.tokens), embedding.name) if embedding.several else (embedding.positions[0], "")
    row = np.asarray(values, np.float64)
    notes = _reliability(question, row, units.special, method, options)
    return TokenAttention(
        values=row[None, None],
        method=method,
        layers=(layers - 1,),
        queries=(place,),
        query_tokens=(name or e.tokens[place],),
        tokens=units.tokens,
        word_ids=units.word_ids,
        word_texts=units.word_texts,
        special=units.special,
        text=e.text,
        patches=e.patches,
        image=e.image if question.tiles is not None else None,
        provenance={
            **model.identity(),
            **units.provenance,
            "answer": answer_record(question),
            **options,
            **({"reliability": notes} if notes else {}),
            **({"unknown": positions} if (positions := unknown(model.tokenizer, e)) else {}),
            "attnflow": __version__,
        },
    )


def _layer_count(model: Runner, question: Question) -> int:
    config: Any = model.text_config
    if question.tiles is not None:
        config = getattr(model.config, "vision_config", None) or model.config
        if getattr(config, "depths", None) is not None:  # stages of several layers (Swin)
            return sum(map(int, config.depths))
    return int(getattr(config, "num_hidden_layers", None) or 1)


def answer_record(question: Question) -> dict[str, Any]:
    """Return the answer in question, for the provenance: with its probability, or its score if it is one number."""
    measure = "score" if question.kind == "score" else "probability"
    return {"kind": question.kind, "name": question.name, measure: question.chance}


def _reliability(
    question: Question, row: Floats, special: Sequence[bool], method: str, options: Mapping[str, Any]
) -> list[str]:
    """Return notes: a gradient of a saturated probability is always tiny; a difference is if the blanks changed nothing."""
    about = options.get("computed")
    notes = [] if about is None else [computed_note(method, **about)]
    there = np.isfinite(row)
    if is_saturated(question, str(options.get("of"))) and (
        method == "gradient" or np.abs(row[there]).max(initial=0) < SATURATED
    ):
        return [*notes, saturated_note(question.name, question.chance)]
    return [*notes, *tie_notes(row[there & ~np.array(special, bool)], method).values()]


def many(texts: Any, labels: Any) -> tuple[list[Any], list[Any]]:
    """Return the texts and labels of one call, for one text or a list."""
    if not isinstance(texts, list):
        return [texts], [labels]
    if labels is None:
        return texts, [None] * len(texts)
    if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != len(texts):
        raise InputError(f"answer={labels!r:.60} for {len(texts)} texts: expected a list with one for each, or None")
    return texts, list(labels)


def writes_words(model: Runner) -> bool:
    """Return whether the model answers with a token: a masked or causal language model."""
    return re.search(r"For(Masked|Causal)LM|LMHead|ForPreTraining", type(model.model).__name__) is not None


def answer_text(model: Runner, kind: str, answer: list[int]) -> str:
    """Return the name of an answer: the label of a class, the text of tokens."""
    if kind in ("class", "score"):
        return model.class_names.get(answer[0], str(answer[0]))
    tokenizer: Any = model.tokenizer
    return piece(model, answer[0]) if len(answer) == 1 else str(tokenizer.decode(answer))


def _tokens(model: Runner, kind: str, label: str, text: str, logits: Tensor, several: bool) -> list[int]:
    """Return the tokens of an answer that continues the text, or fills its mask.

    A word in a running text begins with a space, which users leave out: of the two writings, one that is a single token is
    meant, else the one that begins likelier.
    """
    if model.tokenizer is None:
        raise InputError(f"answer={label!r}: this model was wrapped without a tokenizer; give the id of a token")
    spaced = [] if label[:1].isspace() or text[-1:].isspace() else [f" {label}"]
    unknown_id = getattr(model.tokenizer, "unk_token_id", None)
    writings = [model.tokenizer(one, add_special_tokens=False)["input_ids"] for one in (label, *spaced)]
    known = [[int(i) for i in ids] for ids in writings if ids and unknown_id not in ids]
    if not label.strip() or not known:
        reason = "is empty" if not label.strip() else "contains text that the tokenizer does not know"
        raise TextError.of(
            "answer", f"answer={label!r} {reason}: expected a text of known tokens, or the id of a token"
        )
    known = [ids for ids in known if len(ids) == 1] or known
    tokens = max(known, key=lambda ids: float(logits[ids[0]]))
    if len(tokens) > 1 and (kind == "masked token" or not several):
        pieces = ", ".join(repr(piece(model, token)) for token in tokens)
        advice = (
            "one mask stands for one token, so give the text of one, or its id"
            if kind == "masked token"
            else "edges explain one token, so give one; blank_out, gradient, integrated_gradients, shapley and "
            "Model.answer take several"
        )
        error = LongAnswer(f"answer={label!r} is {len(tokens)} tokens ({pieces}): {advice}")
        error.kind, error.tokens = "answer", tuple(tokens)
        raise error
    return tokens


def _chosen(model: Runner, kind: str, label: Any, count: int) -> int:
    """Return the class or token that a user names, by its number or its text."""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        if 0 <= label < count:
            return int(label)
        raise TextError.of("answer", f"answer={label}: expected a number from 0 to {count - 1}")
    if kind in ("class", "score"):
        names = {name: i for i, name in model.class_names.items()}
        if isinstance(label, str) and label in names:
            return names[label]
        if isinstance(label, str) and re.fullmatch("[0-9]+", label):  # options and columns are texts
            return _chosen(model, kind, int(label), count)
        shown = ", ".join(map(repr, names)) or f"0 to {count - 1}"
        raise TextError.of("answer", f"answer={label!r} is not a class of this model: expected one of {shown}")
    raise TextError.of(
        "answer", f"answer={label!r} is not one token of this model: expected the text of one token, or its id"
    )
