"""The methods of the grid: what an edge weighs × how it is normalised × how it is propagated, and what judges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.edges import EDGES, edges_of, look_inside, reweighed
from attnflow.errors import InputError
from attnflow.evaluate.deletion import content
from attnflow.evaluate.importances import query_of
from attnflow.importance import blank_out, integrated_gradients
from attnflow.importance.answer import Question, questions
from attnflow.importance.gradients import REDUCE, forward_and_backward
from attnflow.trace import Trace

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]
Found = TypeVar("Found")

PROPAGATIONS = ("raw", "rollout", "flow")
GATHERS: dict[str, float | None] = {"gather": None, "columns": 1.0}
"""Two ways of `Trace.gather`, by the residual connection that it takes: its own, and every position for its own token."""
FIELDS = ("ratio", "difference", "layer")
IMPORTANCES = ("blank-out", "gradient", "gradient-input", "integrated-gradients")
BASELINES = ("random", "first", "last")
ANSWER_OF = "logit"
"""What edges by gradients are the gradient of, as in Chefer et al. (2021)."""


@dataclass(frozen=True)
class Method:
    """kind: "paper" for the three of Abnar & Zuidema, "edges" for other combinations, "importance", "baseline"."""

    name: str
    kind: str
    edges: str | None = None
    normalize: str | None = None
    propagation: str | None = None
    receptive_field: str | None = None


@dataclass(frozen=True, eq=False)
class Scored:
    """One text. content: the positions that are ranked, no special ones; tokens: their texts.

    scores: ``[method, content token]``, NaN where a method has none. seconds: what each method takes by itself, all that it
    needs counted; pass_seconds: one forward and backward pass. answer: what is explained.
    """

    content: tuple[int, ...]
    tokens: tuple[str, ...]
    scores: Floats
    seconds: Floats
    pass_seconds: float
    answer: Mapping[str, Any]


def methods_of(
    model: Model, *, edges: Sequence[str] | None = None, importances: Sequence[str] | None = None
) -> tuple[Method, ...]:
    """All combinations for this model; the paper's three methods and the baselines are always among them.

    edges: some of `attnflow.edges.EDGES`; importances: some of `IMPORTANCES`; all by default. Edges by gradients also come
    normalised, and gathered. A model that looks back only gets the readings of the receptive field too.
    """
    importances = IMPORTANCES if importances is None else importances
    for name in importances:
        if name not in IMPORTANCES:
            raise InputError(f"importances {name!r}: expected some of {', '.join(map(repr, IMPORTANCES))}")
    without = lacking(model)
    names = [name for name in EDGES if name not in without] if edges is None else list(dict.fromkeys(edges))
    for name in names:
        if name in without:
            raise InputError(f"edges {name!r}: {without[name]}")
    return tuple(_methods(names, list(dict.fromkeys(importances)), looks_back(model)))


def lacking(model: Model) -> dict[str, str]:
    """Edges that this model cannot give, and why not, as a short text of it shows."""
    trace = look_inside(model, _probe(model), gradient=False, truncate=True)
    found = {}
    for name in EDGES:
        if not edges_of(name).gradient:  # those need an answer, which any model of the grid has
            try:
                reweighed(trace, name)
            except InputError as e:
                found[name] = str(e)
    return found


def looks_back(model: Model) -> bool:
    return model.verify(model.encode(_probe(model), truncate=True)).causal


def _probe(model: Model) -> Any:
    if model.tokenizer is not None:
        return "the key to the old cabinets is on the table near the door"
    return {"input_ids": torch.arange(2, 14)[None] % model.vocabulary()}


def _methods(edges: Sequence[str], importances: Sequence[str], causal: bool) -> Iterator[Method]:
    for propagation in PROPAGATIONS:
        yield Method(f"mean · {propagation}", "paper", "mean", "rows", propagation)
    for name in edges:
        kind = edges_of(name)
        if name == "mean":
            continue
        for propagation in (*PROPAGATIONS, *(GATHERS if kind.gradient else ())):
            yield Method(f"{name} · {propagation}", "edges", name, kind.normalize, propagation)
        for normalize in ("rows", "graph") if kind.gradient else ():
            for propagation in ("rollout", "flow"):
                yield Method(f"{name} ({normalize}) · {propagation}", "edges", name, normalize, propagation)
    for propagation in ("rollout", "flow") if causal else ():
        for field in FIELDS:
            yield Method(f"mean · {propagation} · {field}", "edges", "mean", "rows", propagation, field)
    yield from (Method(name, "importance") for name in importances)
    yield from (Method(name, "baseline") for name in BASELINES)


def score_text(
    model: Model, text: Any, methods: Sequence[Method], *, truncate: bool = False, seed: int = 0, answer: Any = None
) -> Scored:
    """What every method says of one text.

    answer: the class or token that is explained; the model's own by default. seed: of the random baseline.
    """
    (question,) = questions(model, [text], [answer], truncate)
    places = content(question, model.verify(question.encoded).causal)
    clock = Clock(model.device)
    gradient, embedding = clock("pass", lambda: forward_and_backward(model, question))
    scorers = _Scorers(model, text, question, truncate, clock, {"gradient": gradient, "embedding": embedding})
    rows, seconds = [], []
    for method in methods:
        if method.kind == "baseline":
            values, took = _baseline(method.name, question.length, seed), 0.0
        elif method.kind == "importance":
            values, took = scorers.importance(method.name)
        else:
            values, took = scorers.propagated(method)
        rows.append(np.asarray(values, np.float64)[places])
        seconds.append(took)
    return Scored(
        content=tuple(int(i) for i in places),
        tokens=tuple(question.encoded.tokens[i] for i in places),
        scores=np.stack(rows),
        seconds=np.array(seconds),
        pass_seconds=clock.took["pass"],
        answer={
            "kind": question.kind,
            "name": question.name,
            "number": question.chosen,
            "probability": question.chance,
        },
    )


class Clock:
    """How long things took, by name; a GPU is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.took: dict[str, float] = {}

    def __call__(self, name: str, do: Callable[[], Found]) -> Found:
        self._wait()
        begun = time.perf_counter()
        found = do()
        self._wait()
        self.took[name] = time.perf_counter() - begun
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _Scorers:
    """What methods share is computed once, and counted for each of them."""

    def __init__(
        self, model: Model, text: Any, question: Question, truncate: bool, clock: Clock, passed: Mapping[str, Any]
    ) -> None:
        self.model, self.text, self.question, self.truncate = model, text, question, truncate
        self.clock, self.passed = clock, passed
        self.captured: dict[bool, Trace] = {}
        self.weighed: dict[tuple[str | None, str | None], Trace] = {}

    def importance(self, name: str) -> tuple[Any, float]:
        chosen, truncate = self.question.chosen, self.truncate
        if name in ("gradient", "gradient-input"):
            reduced = REDUCE["l2" if name == "gradient" else "times-input"](**_named(self.passed))
            return reduced.abs().cpu().numpy(), self.clock.took["pass"]
        ways: dict[str, Callable[[], Any]] = {
            "blank-out": lambda: blank_out(self.model, self.text, chosen, truncate=truncate),
            "integrated-gradients": lambda: integrated_gradients(self.model, self.text, chosen, truncate=truncate),
        }
        found = self.clock(name, ways[name])
        return np.abs(found.row()), self.clock.took[name]

    def propagated(self, method: Method) -> tuple[Any, float]:
        assert method.edges is not None and method.propagation is not None
        gradient = edges_of(method.edges).gradient
        if gradient not in self.captured:
            self.captured[gradient] = self.clock(f"captured {gradient}", lambda: self._capture(gradient))
        key = method.edges, method.normalize
        if key not in self.weighed:
            way = self.captured[gradient]
            for layer in way.inside.layers if way.inside is not None else ():
                vars(layer).pop("sublayer", None)  # each finds it by itself, and is timed so
            self.weighed[key] = self.clock(f"weighed {key}", lambda: reweighed(way, *key))
        trace, took = self.weighed[key], self.clock.took
        values = self.clock(method.name, lambda: self._propagate(trace, method))
        return values, took[f"captured {gradient}"] + took[f"weighed {key}"] + took[method.name]

    def _capture(self, gradient: bool) -> Trace:
        chosen = self.question.chosen
        return Trace.of(
            look_inside(self.model, self.text, gradient=gradient, answer=chosen, of=ANSWER_OF, truncate=self.truncate)
        )

    def _propagate(self, trace: Trace, method: Method) -> Any:
        if method.propagation in GATHERS:
            return trace.gather(GATHERS[method.propagation]).row()
        query = query_of(trace, self.question.kind, self.question.place)
        field = {} if method.receptive_field is None else {"receptive_field": method.receptive_field}
        return getattr(trace, str(method.propagation))(query=query, layer=-1, **field).values[0, 0]


def _named(passed: Mapping[str, Any]) -> dict[str, Any]:
    return {"g": passed["gradient"], "x": passed["embedding"]}


def _baseline(name: str, n: int, seed: int) -> Floats:
    """Chance, or the place in the text alone."""
    if name == "random":
        return np.random.default_rng(seed).random(n)
    return np.arange(n, dtype=np.float64) * (1 if name == "last" else -1)
