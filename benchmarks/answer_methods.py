"""Our methods to score the tokens and sentences of a prompt by what they contributed to an answer; and baselines."""

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

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]
Units = Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one method; higher is more important.

    tokens: of each token of the prompt; None for a method that scores only units.
    units: of each unit.
    """

    tokens: Floats | None
    units: Floats


Method = Callable[["Model", list[int], list[int], Units], Scores]
"""From the tokens of a prompt, those of its answer, and the positions of each unit to scores."""


def of_tokens(function: Callable[[Model, list[int], list[int]], Floats]) -> Method:
    """Make a method from scores of tokens: a unit gets the sum of its tokens, clipped at zero."""

    def method(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
        tokens = np.asarray(function(model, ids, answer), np.float64)
        return Scores(tokens, unit_scores(tokens, units))

    return method


def of_units(function: Callable[[Model, list[int], list[int], Units], Floats]) -> Method:
    """Make a method from scores of units."""

    def method(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
        return Scores(None, np.asarray(function(model, ids, answer, units), np.float64))

    return method


def signed_parts(answer: Answer) -> Floats:
    """Return the parts of each answer token's log-odds that come from prompt tokens, except the first: [row, token]."""
    rows = answer.matrix(signed=True).values[0, :, : len(answer.prompt.ids)].astype(np.float64)
    rows[:, 0] = 0  # the sink of unused attention
    return rows


def signed_rows(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """Return `signed_parts` of these tokens."""
    return signed_parts(model.answer(ids, answer=answer))


def answer_rows(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score by the default of `Answer.sources`: shares of the rows, with equal weight for each answer token."""
    rows = signed_rows(model, ids, answer)
    return Scores(mean_shares(rows, [(i,) for i in range(len(ids))]), unit_shares(rows, units))


def unit_shares(rows: Floats, units: Units, weights: Floats | None = None) -> Floats:
    """Return the mean of rows, optionally weighted, each as shares of units and of everything outside units.

    >>> unit_shares(np.array([[8.0, 3.0, -1.0, 10.0], [0.0, 0.0, 1.0, 0.0]]), [[1, 2], [3]])
    array([0.55, 0.25])
    """
    outside = sorted({*range(rows.shape[1])} - {i for unit in units for i in unit})
    each = shares(by_units(rows, [*units, outside]))
    mean: Floats = shares((each if weights is None else weights[:, None] * each).sum(0))
    return mean[:-1]


def answer_rows_sum(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score by signed parts of the log-odds of the whole answer: rows are added up as they are."""
    tokens = signed_rows(model, ids, answer).sum(0)
    return Scores(tokens, by_units(tokens, units))


def answer_rows_by_context(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score by the default, with answer tokens weighted by their gain ``max(0, log p - log p without the units)``.

    Without units, the prompt is the question alone, or its first token if everything is in units. If no token gains
    from the units, all have equal weight.
    """
    explained = model.answer(ids, answer=answer)
    rows = signed_parts(explained)
    members = {i for unit in units for i in unit}
    question = [token for i, token in enumerate(ids) if i not in members] or ids[:1]
    gains = explained.log_probabilities - log_p(model, [question], answer)[0]
    weights = np.maximum(gains, 0) if (gains > 0).any() else np.ones(len(answer))
    return Scores(shares((weights[:, None] * shares(rows)).sum(0)), unit_shares(rows, units, weights))


def log_p(model: Model, prompts: Sequence[Sequence[int]], answer: Sequence[int]) -> Floats:
    """Return the log-probability of each answer token after each prompt, in batches of one length."""
    texts = [{"input_ids": torch.tensor([[*prompt, *answer[:-1]]])} for prompt in prompts]
    rows = np.zeros((len(prompts), len(answer)))
    for numbers, logits in outputs(model, texts, keep=len(answer)):
        for number, row in zip(numbers, logits, strict=True):
            rows[number] = log_probabilities(row[-len(answer) :], answer)
    return rows


def hops(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """Score by what the prompt contributed, also by way of the answer's own tokens."""
    return model.answer(ids, answer=answer).hops().values[0, 0, : len(ids)].astype(np.float64)


def encoded(ids: list[int], answer: list[int]) -> Encoded:
    """Return prompt and answer without its last token, which nothing reads."""
    text = [*ids, *answer[:-1]]
    return labelled({"input_ids": torch.tensor([text])}, [str(i) for i in text])


def deciding(ids: list[int], answer: list[int]) -> slice:
    """Return the positions that predict the answer's tokens."""
    return slice(len(ids) - 1, len(ids) + len(answer) - 1)


def odds(ids: list[int], answer: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from logits [1, position, token] to the sum of the log-odds of the answer's tokens."""
    return log_odds(deciding(ids, answer), answer, [1.0] * len(answer))


def frozen_input(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """Score by ``x0·g0``: each embedding's part of the log-odds in the frozen pass, except the first token's."""
    text = encoded(ids, answer)
    frozen = run_frozen(model, text.tensors, model.verify(text))
    values: Floats = frozen.evidence(odds(ids, answer)).own[: len(ids)].cpu().numpy().astype(np.float64)
    values[0] = 0
    return values


def traced(edges: str | None, view: Callable[[Trace, list[int]], TokenAttention]) -> Method:
    """Make a method from a view of the attention graph: the mean over the deciding positions and over layers."""

    def function(model: Model, ids: list[int], answer: list[int]) -> Floats:
        passed = traced_encoding(model, encoded(ids, answer), edges, odds(ids, answer), {"name": "answer"})
        rows = deciding(ids, answer)
        values = view(Trace.of(passed), list(range(rows.start, rows.stop))).values  # [layer, query, input]
        return np.asarray(values.mean((0, 1))[: len(ids)], np.float64)

    return of_tokens(function)


def gradient_times_input(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """Score by the gradient of the answer's log-odds times the embedding of each token."""
    text = encoded(ids, answer).tensors
    with torch.enable_grad(), embeddings(model, text["input_ids"]) as read:
        logits = model.forward(text, grad=True).logits
        (slope,) = torch.autograd.grad(odds(ids, answer)(logits), read.leaves)
    products = (slope.double() * read.leaves[0].detach().double()).sum(-1)
    values: Floats = products[0, : len(ids)].cpu().numpy()
    return values


def fading(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score by how fast the answer falls as attention of the deciding positions fades, signed."""
    tokens = model.answer(ids, answer=answer).sources(method="fading", signed=True).values[0, 0]
    return Scores(tokens, by_units(tokens, units))


def rows_and_fading(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score by the sum of answer rows and fading on one scale, for tokens and units."""
    explained = model.answer(ids, answer=answer)
    rows = signed_parts(explained).sum(0)
    faded = explained.sources(method="fading", signed=True).values[0, 0]
    return Scores(combined(rows, faded), combined(by_units(rows, units), by_units(faded, units)))


def position(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score earlier positions higher."""
    return Scores(np.arange(len(ids), 0, -1.0), np.arange(len(units), 0, -1.0))


def recency(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score later positions higher."""
    return Scores(np.arange(1.0, len(ids) + 1), np.arange(1.0, len(units) + 1))


def chance(model: Model, ids: list[int], answer: list[int], units: Units) -> Scores:
    """Score by random numbers, the same for the same prompt."""
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
    "flow": traced(None, lambda trace, rows: trace.flow(rows, -1)),
    "gradient x input": of_tokens(gradient_times_input),
    "fading": fading,
    "answer rows and fading": rows_and_fading,
    "position": position,
    "recency": recency,
    "random": chance,
}
"""All methods by name; tables always include position, recency and random."""
