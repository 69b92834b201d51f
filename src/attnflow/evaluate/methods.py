"""The methods of the grid: edge weights × normalisation × propagation, and what they are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from attnflow.edges import EDGES, edges_of, look_inside, reweighed
from attnflow.errors import InputError, ModelError
from attnflow.evaluate.arguments import some_of
from attnflow.evaluate.deletion import content
from attnflow.evaluate.importances import query_of
from attnflow.evaluate.statistics import Floats
from attnflow.importance import blank_out, integrated_gradients
from attnflow.importance.gradients import REDUCE, forward_and_backward
from attnflow.importance.question import Question, questions
from attnflow.source_methods import ANSWER_WAYS
from attnflow.trace import Trace

if TYPE_CHECKING:
    from attnflow.model import Model

Result = TypeVar("Result")

PROPAGATIONS = ("raw", "rollout", "flow")
FIELDS = ("ratio", "difference", "layer")
IMPORTANCES = ("blank-out", "gradient", "gradient-input", "integrated-gradients")
BASELINES = ("random", "first", "last")
ANSWER_OF = "logit"
"""What gradient edges are the gradient of, as in Chefer et al. (2021)."""


@dataclass(frozen=True)
class Method:
    """A method.

    kind: "paper" for the three of Abnar & Zuidema, "edges" for other combinations, "importance", "baseline".
    """

    name: str
    kind: str
    edges: str | None = None
    normalize: str | None = None
    propagation: str | None = None
    receptive_field: str | None = None


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of one text.

    question: the answer that is explained.
    content: the ranked positions, without special tokens.
    scores: ``[method, content token]``, NaN if a method has none.
    seconds: what each method takes on its own, including everything it needs.
    pass_seconds: one forward and backward pass.
    """

    question: Question
    content: tuple[int, ...]
    scores: Floats
    seconds: Floats
    pass_seconds: float


def methods_of(
    model: Model, *, edges: Sequence[str] | None = None, importances: Sequence[str] | None = None
) -> tuple[Method, ...]:
    """Return all combinations for this model. The paper's three methods and the baselines are always included.

    edges: some of `attnflow.edges.EDGES`; all by default.
    importances: some of `IMPORTANCES`; all by default.

    Edges by gradients also come normalised. A causal model also gets the receptive field variants.
    """
    if importances:
        some_of(importances, IMPORTANCES, "importances")
    without = lacking(model)
    names = [name for name in EDGES if name not in without] if edges is None else list(dict.fromkeys(edges))
    for name in names:
        if name in without:
            raise InputError(f"edges {name!r}: {without[name]}")
    chosen = IMPORTANCES if importances is None else tuple(dict.fromkeys(importances))
    return tuple(all_methods(names, chosen, model.verify(model.encode(_probe(model), truncate=True)).causal))


def lacking(model: Model) -> dict[str, str]:
    """Return the edges that this model does not support, and why, tested on a short text."""
    trace = look_inside(model, _probe(model), gradient=False, truncate=True)
    reasons = {}
    for name in EDGES:
        if not edges_of(name).gradient:  # these need an answer, which any model of the grid has
            try:
                reweighed(trace, name)
            except InputError as e:
                reasons[name] = str(e)
    try:  # needs a model that is linear when attention, norms and gates are held constant
        reweighed(look_inside(model, _probe(model), gradient=True, truncate=True), "answer")
    except ModelError as e:
        reasons["answer"] = str(e)
    except InputError:  # the probe has no answer
        pass
    return reasons


def _probe(model: Model) -> Any:
    if model.tokenizer is not None:
        return "the key to the old cabinets is on the table near the door"
    return {"input_ids": torch.arange(2, 14)[None] % model.vocabulary()}


def all_methods(edges: Sequence[str], importances: Sequence[str], causal: bool) -> Iterator[Method]:
    """Yield all methods. causal: whether the model is causal."""
    for propagation in PROPAGATIONS:
        yield Method(f"mean · {propagation}", "paper", "mean", "rows", propagation)
    for name in edges:
        kind = edges_of(name)
        if name == "mean":
            continue
        rows = ANSWER_WAYS if name == "answer" else ()
        for propagation in (*PROPAGATIONS, *rows):
            yield Method(f"{name} · {propagation}", "edges", name, kind.normalize, propagation)
        for normalize in ("rows", "graph") if kind.normalize == "none" else ():
            for propagation in ("rollout", "flow"):
                yield Method(f"{name} ({normalize}) · {propagation}", "edges", name, normalize, propagation)
    for propagation in ("rollout", "flow") if causal else ():
        for field in FIELDS:
            yield Method(f"mean · {propagation} · {field}", "edges", "mean", "rows", propagation, field)
    yield from (Method(name, "importance") for name in importances)
    yield from (Method(name, "baseline") for name in BASELINES)


def score_text(model: Model, text: Any, methods: Sequence[Method], *, truncate: bool = False, seed: int = 0) -> Scored:
    """Compute the scores of every method on one text, about the model's own answer. seed: of the random baseline."""
    (question,) = questions(model, [text], [None], truncate)
    places = content(question, model.verify(question.encoded).causal)
    scorer = _Scorer(model, text, question, truncate, seed)
    rows, seconds = zip(*map(scorer.score, methods), strict=True)
    return Scored(
        question=question,
        content=tuple(int(i) for i in places),
        scores=np.stack([np.asarray(row, np.float64)[places] for row in rows]),
        seconds=np.array(seconds, np.float64),
        pass_seconds=scorer.took["pass"],
    )


class _Scorer:
    """Computes shared results once, and counts their time for each method. took: seconds, by name."""

    def __init__(self, model: Model, text: Any, question: Question, truncate: bool, seed: int) -> None:
        self.model, self.text, self.question, self.truncate, self.seed = model, text, question, truncate, seed
        self.took: dict[str, float] = {}
        self.traces: dict[str, Trace] = {}
        self.gradient, self.embedding = self._timed("pass", lambda: forward_and_backward(model, question))

    def score(self, method: Method) -> tuple[Floats, float]:
        """Return the scores of all positions, and the seconds they take."""
        if method.kind == "baseline":  # random, or by position in the text
            place = np.arange(self.question.length, dtype=np.float64)
            random = np.random.default_rng(self.seed).random(len(place))
            return {"random": random, "first": -place, "last": place}[method.name], 0.0
        if method.kind == "importance":
            return self._importance(method.name)
        edges = str(method.edges)
        gradient = edges_of(edges).gradient
        inside, weighed = f"inside, gradient {gradient}", f"{edges}, {method.normalize}"
        if inside not in self.traces:
            self.traces[inside] = self._timed(inside, lambda: self._look_inside(gradient))
        if weighed not in self.traces:
            trace = self.traces[inside]
            for layer in trace.inside.layers if trace.inside is not None else ():
                vars(layer).pop("sublayer", None)  # each method computes it, so that each is timed with it
            self.traces[weighed] = self._timed(weighed, lambda: reweighed(trace, edges, method.normalize))
        values = self._timed(method.name, lambda: self._propagate(self.traces[weighed], method))
        return values, self.took[inside] + self.took[weighed] + self.took[method.name]

    def _timed(self, name: str, work: Callable[[], Result]) -> Result:
        """Time some work, including the GPU's."""
        wait = torch.cuda.synchronize if self.model.device.type == "cuda" else lambda device: None
        wait(self.model.device)
        start = time.perf_counter()
        result = work()
        wait(self.model.device)
        self.took[name] = time.perf_counter() - start
        return result

    def _importance(self, name: str) -> tuple[Floats, float]:
        if name in ("gradient", "gradient-input"):
            reduced = REDUCE["l2" if name == "gradient" else "times-input"](g=self.gradient, x=self.embedding)
            return reduced.abs().cpu().numpy(), self.took["pass"]
        importance = blank_out if name == "blank-out" else integrated_gradients
        scores = self._timed(
            name, lambda: importance(self.model, self.text, self.question.chosen, truncate=self.truncate)
        )
        return np.abs(scores.row()), self.took[name]

    def _look_inside(self, gradient: bool) -> Trace:
        chosen = self.question.chosen
        return Trace.of(
            look_inside(self.model, self.text, gradient=gradient, answer=chosen, of=ANSWER_OF, truncate=self.truncate)
        )

    def _propagate(self, trace: Trace, method: Method) -> Floats:
        if method.propagation in ANSWER_WAYS:
            return np.asarray(getattr(trace, method.propagation)().row(), np.float64)
        query = query_of(trace, self.question.kind, self.question.place)
        field = {} if method.receptive_field is None else {"receptive_field": method.receptive_field}
        values: Floats = getattr(trace, str(method.propagation))(query=query, layer=-1, **field).values[0, 0]
        return values
