"""Which method finds the route of an answer if it is known? ``python -m benchmarks.planted`` tests circuits.

The circuits (`benchmarks.circuits`) are the previous token, induction, a copy in two hops, and induction among heads
that look at a sink. Every case is checked: the answer must follow the source, and nothing off the route. Results are
JSON lines; ``python -m benchmarks.evidence`` makes tables from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

import attnflow
from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from attnflow.errors import AttentionWarning, InputError, ModelError
from benchmarks import answer_methods
from benchmarks.answer_methods import Method, of_tokens
from benchmarks.answer_metrics import SINKS, mass, precision
from benchmarks.circuits import BLANK, CIRCUITS, SINK, Planted, build, interventions, prompt
from benchmarks.command import run_command
from benchmarks.result_lines import Meter, ResultFile, check_half, seeds_of

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]

MODEL = "planted"
TRIES = 3
"""How many other tokens replace the source."""


def sources(**options: Any) -> Method:
    """Return `Answer.sources` with these options as a method."""

    def function(model: Model, ids: list[int], answer: list[int]) -> Floats:
        values: Floats = model.answer(ids, answer=answer).sources(**options).values[0, 0]
        return values

    return of_tokens(function)


def blank_out(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """Return how much the answer's log-probability falls when another token replaces each token."""
    falls = model.answer(ids, answer=answer).leave_out("token", how="replace", replacement=BLANK)
    values: Floats = falls.values[0, 0]
    return values


SAME = ("answer rows, sum", "answer rows, mean weights by context", "hops")
"""Methods that equal answer rows if the answer is one token and the prompt has no question."""

METHODS: Mapping[str, Method] = {
    **{name: method for name, method in answer_methods.METHODS.items() if name not in SAME},
    "answer · flow": sources(method="flow", edges="answer"),
    "blank-out": of_tokens(blank_out),
}


def wrapped(circuit: str) -> Model:
    return attnflow.wrap(build(circuit), name=MODEL)


def check(model: Model, case: Planted) -> None:
    """Refuse a case whose source is not certain: see `interventions`."""
    prompts, answers = interventions(case, TRIES)
    with torch.inference_mode():
        logits = model.model(input_ids=torch.tensor([case.ids, *prompts], device=model.device)).logits
    if logits[:, -1].argmax(-1).tolist() != [case.answer, *answers]:
        raise ModelError(f"the circuit {case.circuit!r} does not answer seed {case.seed} by its source alone")


def measures(scores: Floats, case: Planted) -> dict[str, float]:
    """Measure the source, and how much mass is on positions that only decide where to look, and on sinks."""
    source = np.arange(len(scores)) == case.source
    result = {
        "top-1": precision(scores, source, 1),
        "mass on truth": mass(scores, [case.source]),
        "mass on route": mass(scores, case.route),
    }
    if case.through is not None:
        result["mass on hub"] = mass(scores, [case.through])
    if SINK in case.ids:
        result[SINKS] = mass(scores, [case.ids.index(SINK)])
    # float32 noise around zero is no difference between methods
    return {name: round(x, 6) for name, x in result.items()}


def measure(
    circuit: str, half: str, count: int, file: ResultFile, methods: Mapping[str, Method] = METHODS
) -> Iterator[int]:
    """Append results that the file lacks; yield how many cases are finished."""
    model = wrapped(circuit)
    meter = Meter(model)
    for number, seed in enumerate(seeds_of(half, count), 1):
        case = prompt(circuit, seed)
        check(model, case)
        if number == 1:
            model.verify(model.encode({"input_ids": torch.tensor([case.ids])}))  # once per model, not part of any cost
        key = {"model": MODEL, "task": circuit, "half": half, "seed": seed}
        for name, method in methods.items():
            if not file.has(**key, method=name):
                file.add({**key, "method": name, **result(model, case, method, meter)})
        yield number


def result(model: Model, case: Planted, method: Method, meter: Meter) -> dict[str, Any]:
    units = [[i] for i in range(len(case.ids))]
    scores, seconds, forwards = meter.measure(partial(method, model, case.ids, [case.answer], units))
    assert scores.tokens is not None  # all of METHODS score tokens
    return {"measures": measures(scores.tokens, case), "seconds": round(seconds, 5), "forwards": forwards}


def main(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .jsonl file; results in it are not measured again.")
    ],
    circuits: Annotated[str, typer.Option(help="Comma-separated circuits; all by default.")] = ",".join(CIRCUITS),
    cases: Annotated[int, typer.Option(min=1, help="Cases of each circuit.")] = 300,
    half: Annotated[str, typer.Option(help="unseen or seen: odd or even seeds.")] = "unseen",
) -> None:
    """Measure which method finds the route of an answer if it is known."""
    names = [name.strip() for name in circuits.split(",")]
    if strange := [name for name in names if name not in CIRCUITS]:
        raise InputError(f"circuit {strange[0]!r}: expected one of {', '.join(CIRCUITS)}")
    check_half(half)
    silence()
    file = ResultFile(output)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionWarning)
        for name in names:
            for number in measure(name, half, cases, file):
                if number % 50 == 0:
                    progress(f"{name}: {number} of {cases} cases")
    progress(f"wrote {output}")


if __name__ == "__main__":
    run_command(main)
