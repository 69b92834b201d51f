"""Scores of all methods on one text of a classifier or masked language model, with their costs.

Methods that need the same pass share it, and its cost counts for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.edges.weights import inside
from attnflow.importance.question import Question
from benchmarks.result_lines import Meter

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Floats = NDArray[np.float64]
Reader = Callable[[Any], Floats]

BASELINES = ("first", "last", "random")
VIEWS = ("raw", "rollout", "flow")
"""Views of attention, at every layer."""


@dataclass(frozen=True)
class Explained:
    """A method's score for each token. forwards: how many texts the model ran, each with or without a backward pass."""

    method: str
    scores: Floats
    seconds: float
    forwards: int


@dataclass(frozen=True)
class Family:
    """Methods that read the same result, which `prepare` computes by running the model."""

    prepare: Callable[[], Any]
    readers: Mapping[str, Reader]


def explanations(model: Model, question: Question, seed: int, skip: Collection[str] = ()) -> Iterator[Explained]:
    """Yield all methods on one text. seed: for the random baseline. skip: methods to leave out."""
    model.verify(question.encoded)  # the check runs once per model and is not part of a method's cost
    meter = Meter(model)
    for family in families(model, question):
        wanted = {name: read for name, read in family.readers.items() if name not in skip}
        if not wanted:
            continue
        prepared, before, forwards = meter.measure(family.prepare)
        for name, read in wanted.items():
            scores, seconds, more = meter.measure(partial(read, prepared))
            yield Explained(name, np.asarray(scores, np.float64), before + seconds, forwards + more)
    place = np.arange(question.length, dtype=np.float64)
    chance = np.random.default_rng(seed).random(len(place))
    for name, scores in zip(BASELINES, (-place, place, chance), strict=True):
        if name not in skip:
            # the mass of a score counts from 0
            yield Explained(name, scores - scores.min(), 0.0, 0)


def families(model: Model, question: Question) -> tuple[Family, ...]:
    """Return answer edges, attention at every layer, and importances.

    Blank-out, gradients and integrated gradients explain the log-odds by size; signed variants come with them.
    """
    text, chosen = question.tensors, question.chosen
    query = 0 if question.place is None else question.place
    layers = range(len(model.verify(question.encoded).stack.main))
    return (
        Family(
            partial(model.trace, text, edges="answer", answer=chosen),
            {
                "answer rows": lambda trace: _row(trace.answer_rows()),
                "answer rows, signed": lambda trace: _row(trace.answer_rows(signed=True)),
                "answer · rollout": lambda trace: _row(trace.rollout(query=query, layer=-1)),
                "answer · flow": lambda trace: _row(trace.flow(query=query, layer=-1)),
                "answer · input": lambda trace: np.maximum(_input(trace), 0),
                "answer · input, signed": _input,
            },
        ),
        Family(partial(model.trace, text), attention_readers(query, layers)),
        Family(partial(model.blank_out, text, chosen, of="log-odds", signed=True), sizes_and_signs("blank-out")),
        Family(partial(model.blank_out, text, chosen, of="probability"), {"blank-out, probability": _row}),
        Family(partial(model.gradient, text, chosen, of="log-odds"), {"gradient": _row}),
        Family(
            partial(model.gradient, text, chosen, of="log-odds", reduce="times-input"),
            sizes_and_signs("gradient × input"),
        ),
        Family(
            partial(model.integrated_gradients, text, chosen, of="log-odds"), sizes_and_signs("integrated gradients")
        ),
    )


def attention_readers(query: int, layers: range) -> dict[str, Reader]:
    """Return the views of attention for a query at every layer from L1, and the mean of raw attention over layers."""
    readers: dict[str, Reader] = {
        f"{view} L{layer + 1}": partial(_attention, view=view, query=query, layer=layer)
        for view in VIEWS
        for layer in layers
    }
    return {**readers, "raw, mean of layers": lambda trace: trace.raw(query=query).values[:, 0].mean(0)}


def sizes_and_signs(name: str) -> dict[str, Reader]:
    """Return a method by the size of its values, and with their signs."""
    return {name: lambda result: np.abs(_row(result)), f"{name}, signed": _row}


def _attention(trace: Trace, view: str, query: int, layer: int) -> Floats:
    return _row(getattr(trace, view)(query=query, layer=layer))


def _row(result: Any) -> Floats:
    values: Floats = result.values[0, 0]
    return values


def _input(trace: Trace) -> Floats:
    """Return the signed parts of the log-odds in the states that enter the first layer."""
    own: Floats = inside(trace).evidence.own.cpu().numpy()
    return own
