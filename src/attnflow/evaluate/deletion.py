"""Deletion curves: how the answer changes when the tokens that a method ranks first are deleted, or alone kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.capture.predict import writes_next
from attnflow.errors import InputError
from attnflow.evaluate.arguments import ONE_TOKEN, readable, whole_number
from attnflow.evaluate.statistics import Floats, ranks
from attnflow.importance.blank import blank_id
from attnflow.importance.question import Question, Tensors, outputs, score, writes_words

if TYPE_CHECKING:
    from attnflow.model import Model

Positions = NDArray[np.intp]

STEPS = 10
DELETIONS = ("mask", "unk", "remove")

RATIONALE = 0.2
"""The fraction of tokens that form a method's rationale."""

LEAST = 1e-12
"""Probabilities are clipped to this before taking logarithms."""

METRICS = {
    "comprehensiveness": "higher",
    "sufficiency": "lower",
    "aopc": "higher",
    "log-odds": "lower",
    "deletion-area": "lower",
    "insertion-area": "higher",
}
"""Whether higher or lower values are better."""


def content(question: Question, causal: bool = False) -> Positions:
    """Return the positions that can be deleted: all but special tokens and the position that answers.

    The latter is the mask of a masked language model, the single position that a class is read at, or the last token of
    a decoder. Without it another position answers, and nearly any answer is lost, whatever the other tokens do.

    causal: whether the model is causal, so that the class of a whole text is read at its last token.
    """
    free = ~np.array(question.encoded.special, bool)
    if question.place is not None or causal:
        free[-1 if question.place is None else question.place] = False
    if question.kind == "masked token":  # other masks are not tokens of the text either
        ids = question.tensors["input_ids"][0]
        free &= (ids != ids[question.place]).cpu().numpy()
    return np.flatnonzero(free)


def rankable(model: Model, texts: Sequence[Any], truncate: bool) -> tuple[list[Any], Counter[str]]:
    """Return the texts with at least two tokens to rank, and why the others are left out."""
    numbers, all_ids, excluded = readable(model, texts, truncate)
    tokenizer: Any = model.tokenizer
    # a mask is the question, not a token that answers it; an unknown token counts as a word
    mask = getattr(tokenizer, "mask_token_id", None)
    outside = set(getattr(tokenizer, "all_special_ids", ())) - {getattr(tokenizer, "unk_token_id", None)} | {mask}
    place = getattr(model.config, "prediction_position", None)
    fills_masks = writes_words(model) and not writes_next(model) and mask is not None
    if not isinstance(place, int):
        first = None if fills_masks or not numbers else model.encode(texts[numbers[0]], truncate=True)
        place = -1 if first is not None and model.verify(first).causal else None
    used = []
    for number, own in zip(numbers, all_ids, strict=True):
        free = [i not in outside for i in own]
        if place is not None:  # as in `content`
            free[place % len(free)] = False
        if fills_masks and mask not in own:
            excluded[f"no {tokenizer.mask_token} in it"] += 1
        elif sum(free) < 2:
            excluded[ONE_TOKEN if any(free) else "no token but special ones"] += 1
        else:
            used.append(texts[number])
    return used, excluded


def orders(scores: Floats, seed: int) -> Positions:
    """Return the ranking of each method, most important first, from ``scores[method, token]`` over content tokens.

    Scores that agree to nine digits tie, as in `ranks`. One random permutation from the seed breaks the ties of all
    methods, so that no method gains from the order of tokens, and equal scores give equal rankings. A method without
    scores (NaN) has no ranking: its row is -1.

    >>> orders(np.array([[0.1, 0.7, 0.2], [3.0, 2.0, 1.0], [np.nan] * 3]), seed=0).tolist()
    [[1, 2, 0], [0, 1, 2], [-1, -1, -1]]
    """
    scores = np.asarray(scores, np.float64)
    turn = np.random.default_rng(seed).permutation(scores.shape[-1])
    order = np.lexsort((np.broadcast_to(turn, scores.shape), -ranks(scores, dense=True)), axis=-1)
    order[np.isnan(scores).any(-1)] = -1
    return order


def curves(
    model: Model,
    questions: Sequence[Question],
    rankings: Sequence[Positions],
    by: str,
    steps: int = STEPS,
    *,
    places: Sequence[Positions] | None = None,
) -> list[Floats]:
    """Return for each question the probability of its answer, ``[method, 2, steps + 1]``.

    ``[.., 0, s]`` is without the ``⌈s·m/steps⌉`` most important of the m content tokens, ``[.., 1, s]`` with only
    those. All other positions always stay.

    questions: from `attnflow.importance.question.questions`; their answer is explained even if it does not stay the
        likeliest.
    rankings: for each question ``[method, token]`` from `orders`. A row of -1 gives a curve of NaN.
    by: "mask" or "unk" replaces each deleted token by that token; "remove" takes it out, and the rest moves up.
    places: for each question the positions that its rankings cover; `content` by default.

    A text without special tokens would become empty, and models cannot run on nothing. Then one token stays: the least
    important one when all are deleted, the most important one when none is kept. For a model that answers with one
    number, that number takes the place of the probability.

    Methods often delete the same tokens. Each set of tokens of a text runs once, and the whole text is not repeated.
    """
    token = blank_id(model, by)
    whole_number("steps", steps, 1)
    if len(rankings) != len(questions):
        raise InputError(f"{len(rankings)} rankings for {len(questions)} questions: expected one for each")
    rows: list[Tensors] = []
    of: list[tuple[int, int, int]] = []  # question, set and answering position of each row
    chances: list[Floats] = []  # one per set of a question
    sets: list[Positions] = []  # which set belongs to [method, 2, step]
    for number, (question, ranking) in enumerate(zip(questions, rankings, strict=True)):
        free = content(question) if places is None else places[number]
        stays = _stays(question.length, free, _checked(ranking, len(free), number), steps, token is None)
        distinct, which = np.unique(stays.reshape(-1, question.length), axis=0, return_inverse=True)
        chances.append(np.full(len(distinct), question.chance))
        sets.append(which.reshape(stays.shape[:-1]))
        for k in np.flatnonzero(~distinct.all(-1)).tolist():
            rows.append(_only(question.tensors, distinct[k], token))
            of.append((number, k, _place(question, distinct[k], token)))
    for at, logits in outputs(model, rows):
        numbers, members, answering = zip(*(of[r] for r in at), strict=True)
        if questions[0].place is not None:  # a decoder may have computed only its last position
            logits = logits[torch.arange(len(at)), torch.tensor(answering).clamp(max=logits.shape[1] - 1)]
        chosen = torch.tensor([questions[number].chosen for number in numbers])
        # on the model's device: a language model returns tens of thousands of numbers, and one is needed
        left = score(model, questions[0].kind, logits.double(), chosen, None, "probability").cpu().numpy()
        for number, k, p in zip(numbers, members, left, strict=True):
            chances[number][k] = p
    all_curves = [chance[which] for chance, which in zip(chances, sets, strict=True)]
    for curve, ranking in zip(all_curves, rankings, strict=True):
        curve[_missing(ranking)] = np.nan
    return all_curves


def metrics(curve: Floats, chance: Floats | float, kind: str = "class") -> dict[str, Floats]:
    """Compute metrics from the curves ``[…, 2, steps + 1]`` of `curves`: one number each, by the names of `METRICS`.

    chance: p(y | x), the probability of the answer for the whole text; broadcast to the axes before the last two.
    kind: of the question.

    With ``d(s)`` the probability without the first s/steps tokens, ``k(s)`` with only those, and S the steps:

    | name | formula | after | better |
    |---|---|---|---|
    | comprehensiveness | p - d(r), r the step nearest to 20 % of the tokens | DeYoung et al. 2020 | higher |
    | sufficiency | p - k(r) | DeYoung et al. 2020 | lower |
    | aopc | Σ_{s=1..S} (p - d(s)) / S | Samek et al. 2017, who divide by S + 1 | higher |
    | log-odds | Σ_{s=1..H} log(d(s) / p) / H, H = ⌊S/2⌋, probabilities of at least 1e-12 | Shrikumar et al. 2017; Chen et al. 2020 | lower |
    | deletion-area | under d over [0, 1], by trapezoids | Petsiuk et al. 2018 | lower |
    | insertion-area | under k over [0, 1], by trapezoids | Petsiuk et al. 2018 | higher |

    An answer of kind "score" is not a probability: its log-odds are NaN, and everything else is in units of the score.

    >>> falls = np.array([[0.9, 0.7, 0.5, 0.3, 0.1, 0.1], [0.1, 0.8, 0.9, 0.9, 0.9, 0.9]])
    >>> {name: round(float(value), 3) for name, value in metrics(falls, 0.9).items()}
    {'comprehensiveness': 0.2, 'sufficiency': 0.1, 'aopc': 0.56, 'log-odds': -0.42, 'deletion-area': 0.42, 'insertion-area': 0.8}
    """  # noqa: E501, a table's row is one line
    curve = np.asarray(curve, np.float64)
    if curve.ndim < 2 or curve.shape[-2] != 2 or curve.shape[-1] < 4:
        raise InputError(
            f"curve has shape {curve.shape}: expected [..., 2, steps + 1] with at least 3 steps, so that one is near "
            f"{100 * RATIONALE:.0f} % of the tokens"
        )
    steps = curve.shape[-1] - 1
    whole = np.broadcast_to(np.asarray(chance, np.float64), curve.shape[:-2])
    without, alone = curve[..., 0, :], curve[..., 1, :]
    rationale, half = round(RATIONALE * steps), steps // 2
    odds = np.log(np.maximum(without[..., 1 : half + 1], LEAST)) - np.log(np.maximum(whole, LEAST))[..., None]
    return {
        "comprehensiveness": whole - without[..., rationale],
        "sufficiency": whole - alone[..., rationale],
        "aopc": whole - without[..., 1:].mean(-1),
        "log-odds": np.full(whole.shape, np.nan) if kind == "score" else odds.mean(-1),
        "deletion-area": _area(without),
        "insertion-area": _area(alone),
    }


def _checked(ranking: Positions, m: int, number: int) -> Positions:
    ranking = np.asarray(ranking)
    if ranking.ndim != 2 or ranking.shape[1] != m:
        raise InputError(
            f"the ranking of question {number} has shape {ranking.shape}: expected [method, {m}], one for each content "
            "token"
        )
    if not ((np.sort(ranking, -1) == np.arange(m)).all(-1) | (ranking == -1).all(-1)).all():
        raise InputError(
            f"the ranking of question {number} does not name each content token once: expected rows of the numbers from 0 "
            f"to {m - 1}, as orders() gives them"
        )
    return ranking


def _missing(ranking: Positions) -> NDArray[np.bool_]:
    return np.asarray((np.asarray(ranking) < 0).any(-1))


def _stays(length: int, free: Positions, ranking: Positions, steps: int, remove: bool) -> NDArray[np.bool_]:
    """Return which positions are kept, ``[method, 2, step, position]``; all of them if there is no ranking."""
    m = len(free)
    counts = -(np.arange(steps + 1) * -m // steps)[:, None]  # ⌈s·m/steps⌉ in whole numbers
    nothing_else = remove and m == length
    deleted = np.minimum(counts, m - 1) if nothing_else else counts
    alone = np.maximum(counts, 1) if nothing_else else counts
    rank = np.argsort(ranking, -1)[:, None]  # [method, 1, token]
    stays = np.ones((len(ranking), 2, steps + 1, length), bool)
    stays[..., free] = np.stack([rank >= deleted, rank < alone], 1)
    stays[_missing(ranking)] = True
    return stays


def _only(tensors: Tensors, stays: NDArray[np.bool_], token: int | None) -> Tensors:
    keep = torch.from_numpy(stays)
    if token is None:
        return {k: x[:, keep] if x.dim() > 1 and x.shape[1] == len(keep) else x for k, x in tensors.items()}
    ids = tensors["input_ids"].clone()
    ids[:, ~keep] = token
    return {**tensors, "input_ids": ids}


def _place(question: Question, stays: NDArray[np.bool_], token: int | None) -> int:
    """Return where the answer is read: the last kept position up to that of the whole text; 0 if the text answers."""
    if question.place is None:
        return 0
    return question.place if token is not None else int(stays[: question.place + 1].sum()) - 1


def _area(values: Floats) -> Floats:
    area: Floats = (values[..., 1:] + values[..., :-1]).mean(-1) / 2
    return area
