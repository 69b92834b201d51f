"""Our ways to score the tokens of a prompt, and its sentences, by what they gave to an answer; and baselines."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.answer import Answer
from attnflow.answer_rows import by_units, combined, mean_shares, shares
from attnflow.capture.answer_pass import log_odds, log_probabilities
from attnflow.capture.frozen import run_frozen
from attnflow.capture.inputs import Encoded, labelled
from attnflow.edges import traced_encoding
from attnflow.importance.gradients import embeddings
from attnflow.importance.question import outputs
from attnflow.result import TokenAttention
from attnflow.trace import Trace
from benchmarks.answer_metrics import unit_scores
from benchmarks.fading import fading_everywhere

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]
Units = Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Scores:
    """tokens: of each token of the prompt, higher is more important; None of a method that scores units alone.

    units: of each unit.
    """

    tokens: Floats | None
    units: Floats


Method = Callable[["Model", list[int], list[int], Units], Scores]
"""From the tokens of a prompt, those of its answer, and the positions of each unit."""


def of_tokens(function: Callable[[Model, list[int], list[int]], Floats]) -> Method:
    """A method that knows tokens alone: a unit gets the sum of its tokens, cut off at zero."""

    def method(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
        tokens = np.asarray(function(model, ids, answer), np.float64)
        return Scores(tokens, unit_scores(tokens, units))

    return method


def of_units(function: Callable[[Model, list[int], list[int], Units], Floats]) -> Method:
    """A method that knows units alone."""

    def method(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
        return Scores(None, np.asarray(function(model, ids, answer, units), np.float64))

    return method


def signed_parts(answer: Answer) -> Floats:
    """The parts of each answer token's log-odds that come from tokens of the prompt, but the first: [row, token]."""
    rows = answer.matrix(signed=True).values[0, :, : len(answer.prompt.ids)].astype(np.float64)
    rows[:, 0] = 0  # where attention goes that has nowhere to go
    return rows


def signed_rows(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """`signed_parts` of these tokens."""
    return signed_parts(model.answer(ids, answer=answer))


def answer_rows(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """The default, as `Answer.sources` has it: shares of the rows, each answer token counted alike."""
    rows = signed_rows(model, ids, answer)
    return Scores(mean_shares(rows, [(i,) for i in range(len(ids))]), unit_shares(rows, units))


def unit_shares(rows: Floats, units: Units, weights: Floats | None = None) -> Floats:
    """The mean of rows, weighted where there are weights, each as shares of units and of all that is in no unit.

    >>> unit_shares(np.array([[8.0, 3.0, -1.0, 10.0], [0.0, 0.0, 1.0, 0.0]]), [[1, 2], [3]])
    array([0.55, 0.25])
    """
    outside = sorted({*range(rows.shape[1])} - {i for unit in units for i in unit})
    each = shares(by_units(rows, [*units, outside]))
    mean: Floats = shares((each if weights is None else weights[:, None] * each).sum(0))
    return mean[:-1]


def answer_rows_sum(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Parts of the log-odds of the whole answer, signed: rows are added up as they are."""
    tokens = signed_rows(model, ids, answer).sum(0)
    return Scores(tokens, by_units(tokens, units))


def answer_rows_by_context(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """The default with each answer token weighted by what the units gave it: ``max(0, log p - log p without them)``.

    Without units is the question alone, and where everything is in units the prompt's first token alone. Where no token
    gains from them, all count alike.
    """
    explained = model.answer(ids, answer=answer)
    rows = signed_parts(explained)
    members = {i for unit in units for i in unit}
    question = [token for i, token in enumerate(ids) if i not in members] or ids[:1]
    gains = explained.log_probabilities - log_p(model, [question], answer)[0]
    weights = np.maximum(gains, 0) if (gains > 0).any() else np.ones(len(answer))
    return Scores(shares((weights[:, None] * shares(rows)).sum(0)), unit_shares(rows, units, weights))


def log_p(model: Model, prompts: Sequence[Sequence[int]], answer: Sequence[int]) -> Floats:
    """The log-probability of each answer token after each prompt, ``[prompt, answer token]``, in batches of one length."""
    texts = [{"input_ids": torch.tensor([[*prompt, *answer[:-1]]])} for prompt in prompts]
    rows = np.zeros((len(prompts), len(answer)))
    for numbers, logits in outputs(model, texts, keep=len(answer)):
        for number, row in zip(numbers, logits, strict=True):
            rows[number] = log_probabilities(row[-len(answer) :], answer)
    return rows


def hops(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """What the prompt gave by way of the answer's own tokens, too."""
    return model.answer(ids, answer=answer).hops().values[0, 0, : len(ids)].astype(np.float64)


def encoded(ids: list[int], answer: list[int]) -> Encoded:
    """Prompt and answer, without its last token, which nothing reads."""
    text = [*ids, *answer[:-1]]
    return labelled({"input_ids": torch.tensor([text])}, [str(i) for i in text])


def deciding(ids: list[int], answer: list[int]) -> slice:
    """The positions that predict the answer's tokens."""
    return slice(len(ids) - 1, len(ids) + len(answer) - 1)


def odds(ids: list[int], answer: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum over the answer of its tokens' log-odds, from logits [1, position, token]."""
    return log_odds(deciding(ids, answer), answer, [1.0] * len(answer))


def frozen_input(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """``x0·g0``: what the log-odds owe to the embedding of each token through the frozen pass, but the first token's."""
    text = encoded(ids, answer)
    frozen = run_frozen(model, text.tensors, model.verify(text))
    values: Floats = frozen.evidence(odds(ids, answer)).own[: len(ids)].cpu().numpy().astype(np.float64)
    values[0] = 0
    return values


def traced(edges: str | None, view: Callable[[Trace, list[int]], TokenAttention]) -> Method:
    """The mean, over the positions that decide and over layers, of what a view of the attention graph gives each token."""

    def function(model: Model, ids: list[int], answer: list[int]) -> Floats:
        passed = traced_encoding(model, encoded(ids, answer), edges, odds(ids, answer), {"name": "answer"})
        rows = deciding(ids, answer)
        values = view(Trace.of(passed), list(range(rows.start, rows.stop))).values  # [layer, query, input]
        return np.asarray(values.mean((0, 1))[: len(ids)], np.float64)

    return of_tokens(function)


def gradient_times_input(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """The plain gradient of the answer's log-odds, times the embedding of each token."""
    text = encoded(ids, answer).tensors
    with torch.enable_grad(), embeddings(model, text["input_ids"]) as read:
        logits = model.forward(text, grad=True).logits
        (slope,) = torch.autograd.grad(odds(ids, answer)(logits), read.leaves)
    products = (slope.double() * read.leaves[0].detach().double()).sum(-1)
    values: Floats = products[0, : len(ids)].cpu().numpy()
    return values


def fading(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """How fast the answer falls as attention of the positions that decide it fades, signed."""
    tokens = model.answer(ids, answer=answer).sources(method="fading", signed=True).values[0, 0]
    return Scores(tokens, by_units(tokens, units))


def everywhere(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """The same of the attention of all positions."""
    tokens = fading_everywhere(model, ids, answer)
    return Scores(tokens, by_units(tokens, units))


def rows_and_fading(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """What was read and what fading takes, added up on one scale, of tokens and of units."""
    explained = model.answer(ids, answer=answer)
    rows = signed_parts(explained).sum(0)
    faded = explained.sources(method="fading", signed=True).values[0, 0]
    return Scores(combined(rows, faded), combined(by_units(rows, units), by_units(faded, units)))


def position(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """The first comes first."""
    return Scores(np.arange(len(ids), 0, -1.0), np.arange(len(units), 0, -1.0))


def recency(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """The last comes first."""
    return Scores(np.arange(1.0, len(ids) + 1), np.arange(1.0, len(units) + 1))


def chance(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Random numbers, the same for the same prompt."""
    draw = np.random.default_rng(zlib.crc32(np.array(ids, np.int64).tobytes()))
    return Scores(draw.random(len(ids)), draw.random(len(units)))


METHODS: dict[str, Method] = {
    "answer rows": answer_rows,
    "answer rows, sum": answer_rows_sum,
    "answer rows, mean weights by context": answer_rows_by_context,
    "hops": of_tokens(hops),
    "input": of_tokens(frozen_input),
    "answer · rollout": traced("answer", lambda trace, rows: trace.rollout(rows, -1)),
    "attention-gradient rows": traced("attention-gradient", lambda trace, rows: trace.raw(rows)),
    "raw last layer": traced(None, lambda trace, rows: trace.raw(rows, -1)),
    "raw mean of layers": traced(None, lambda trace, rows: trace.raw(rows)),
    "rollout": traced(None, lambda trace, rows: trace.rollout(rows, -1)),
    "rollout, measured residual": traced(None, lambda trace, rows: trace.rollout(rows, -1, "measured")),
    "rollout without sinks": traced(None, lambda trace, rows: trace.rollout(rows, -1, sinks="residual")),
    "flow": traced(None, lambda trace, rows: trace.flow(rows, -1)),
    "gradient x input": of_tokens(gradient_times_input),
    "fading": fading,
    "fading everywhere": everywhere,
    "answer rows and fading": rows_and_fading,
    "position": position,
    "recency": recency,
    "random": chance,
}
"""By their names; in a table position, recency and random always stand beside the others."""
