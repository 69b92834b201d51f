"""Which method finds where an answer came from? ``python -m benchmarks.answers`` runs methods on tasks, case by case.

Tasks are puzzles whose source is known (`benchmarks.puzzles`), limited to those that the model solves, and passages
with an answer that it wrote (`benchmarks.ablation`). Every result is a line of JSON with its cost. A run is resumable,
and ``python -m benchmarks.evidence`` makes tables and tests from the lines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

import attnflow
from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from attnflow.errors import AttentionWarning, InputError
from benchmarks import ablation
from benchmarks.answer_cases import HALVES, KINDS, Case, half_of, sentences
from benchmarks.answer_methods import METHODS, Method, Scores, Units, of_tokens, of_units
from benchmarks.answer_metrics import SINKS, mass, source_measures
from benchmarks.command import run_command
from benchmarks.result_lines import Meter, ResultFile, check_half

if TYPE_CHECKING:
    from attnflow.model import Model

TASKS = (*KINDS, ablation.TASK)
BOTH = "both"
MIB = 1 << 20
FEW = 24
"""Tokens of a case that each method is tried on before anything is measured."""


@dataclass(frozen=True)
class Item:
    """A case for the runner. measures: maps scores to measures by name."""

    task: str
    half: str
    seed: int
    ids: list[int]
    answer: list[int]
    units: Units
    measures: Callable[[Scores], dict[str, float]]


@dataclass(frozen=True)
class Part:
    """Every `of`-th case, from number `number` on: the work of one of several processes."""

    number: int = 0
    of: int = 1

    def own(self, things: Sequence[Any]) -> Sequence[Any]:
        return things[self.number :: self.of]


def puzzle_item(half: str, case: Case) -> Item:
    def measures(scores: Scores) -> dict[str, float]:
        return source_measures(scores.tokens, scores.units, case.truth, case.truth_units, case.sinks, case.chain)

    return Item(case.kind, half, case.seed, case.ids, case.answer, case.units, measures)


def passage_item(half: str, passage: ablation.Passage) -> Item:
    """Return a passage as an item."""

    def measures(scores: Scores) -> dict[str, float]:
        result = ablation.sentence_measures(passage, scores.units)
        return result if scores.tokens is None else {**result, SINKS: mass(scores.tokens, passage.sinks)}

    return Item(ablation.TASK, half, passage.seed, passage.ids, passage.answer, passage.units, measures)


def items(
    model: Model,
    task: str,
    half: str,
    count: int,
    data: Path | None,
    cache: Path | None,
    part: Part,
) -> Iterator[Item]:
    """Yield the cases of one half of a task, and report how many the model solves."""
    if task != ablation.TASK:
        kept = half_of(task, half, count, model, sentences(data), cache)
        progress(f"{task}, {half}: {len(kept.cases)} kept of {kept.tried} tried")
        yield from (puzzle_item(half, case) for case in part.own(kept.cases))
        return
    if data is None:
        raise InputError(f"the task {task!r} needs passages: give a file of sentences with --data")
    texts = ablation.passages(data)
    first = HALVES.index(half)
    for seed in part.own(range(first, first + 2 * count, 2)):
        passage = ablation.cached(model, seed, texts, cache)
        if passage is None:
            progress(f"{task}, {half}: the answer of seed {seed} is too short")
        else:
            yield passage_item(half, passage)


def rivals(weights: Path | None = None) -> dict[str, Method]:
    """Return other authors' methods (`benchmarks.rivals`), if that module is available. weights: of a trained AT2.

    A method that scores tokens and also has its own way to score units becomes two methods.
    """
    if find_spec("benchmarks.rivals") is None:
        return {}
    module: Any = import_module("benchmarks.rivals")
    tokens, units = dict(module.RIVALS), dict(module.UNIT_RIVALS)
    if weights is not None:
        tokens[module.TRAINED], units[module.TRAINED] = module.at2(weights), module.at2_units(weights)
    both = {f"{name}, units" if name in tokens else name: function for name, function in units.items()}
    return {name: of_tokens(f) for name, f in tokens.items()} | {name: of_units(f) for name, f in both.items()}


def chosen(text: str, known: Mapping[str, Method], groups: Mapping[str, Sequence[str]]) -> dict[str, Method]:
    """Return the methods of a comma-separated list; names may contain commas, and the longest matching name is used.

    >>> known = dict.fromkeys(("IFR", "IFR, predicting positions", "flow"), of_tokens(print))
    >>> list(chosen("flow, IFR, predicting positions", known, {}))
    ['flow', 'IFR, predicting positions']
    """
    words = [word.strip() for word in text.split(",")]
    names: list[str] = []
    while words:
        for size in range(len(words), 0, -1):
            name = ", ".join(words[:size])
            if name in known or name in groups:
                names += groups.get(name, [name])
                words = words[size:]
                break
        else:
            listed = ", ".join(map(repr, [*groups, *known]))
            raise InputError(f"there is no method {words[0]!r}: expected some of {listed}")
    return {name: known[name] for name in dict.fromkeys(names)}


def part_of(text: str) -> Part:
    """Parse a part.

    >>> part_of("2/8")
    Part(number=2, of=8)
    """
    numbers = text.split("/")
    if len(numbers) != 2 or not all(n.isdigit() for n in numbers) or int(numbers[0]) >= int(numbers[1]):
        raise InputError(f"part {text!r}: expected a number and the number of parts, such as 0/8")
    return Part(*map(int, numbers))


def ready(model: Model, methods: Mapping[str, Method], ours: Sequence[str], item: Item) -> dict[str, Method]:
    """Return the methods that run, after trying each on a short case, so that one-time work is not measured.

    A rival that refuses is left out with its reason; one of ours is kept, and its results say what is wrong.
    """
    ids, answer = item.ids[:FEW], item.answer[:2]
    able = {}
    for name, method in methods.items():
        try:
            method(model, ids, answer, [list(range(1, len(ids) // 2)), list(range(len(ids) // 2, len(ids) - 1))])
        except (ImportError, InputError) as e:
            if name not in ours:
                progress(f"{name} is left out: {e}")
                continue
        except Exception:  # the cases will report it
            pass
        able[name] = method
    return able


def run(model: Model, item: Item, name: str, method: Method, meter: Meter) -> dict[str, Any]:
    """Return one result: measures, unit scores and cost (positions: those that ran forward); or what went wrong."""
    row: dict[str, Any] = {"model": model.name, "task": item.task, "half": item.half, "seed": item.seed, "method": name}
    row |= {"measures": {}, "tokens": len(item.ids) + len(item.answer), "units": len(item.units)}
    gpu = model.device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
    try:
        before = meter.positions
        scores, seconds, forwards = meter.measure(lambda: method(model, item.ids, item.answer, item.units))
        row |= {"seconds": seconds, "forwards": forwards, "positions": meter.positions - before}
        if gpu:
            row["peak_mib"] = torch.cuda.max_memory_allocated(model.device) / MIB
        row["scores"] = [float(f"{x:.6g}") for x in scores.units]  # unit scores, for later analyses
        return {**row, "measures": item.measures(scores)}
    except Exception as e:  # a method that fails on one case may work on others
        return {**row, "error": f"{type(e).__name__}: {e}"[:300]}


def measure_all(
    model: Model, methods: Mapping[str, Method], every: Iterator[Item], file: ResultFile, say: Callable[[str], None]
) -> None:
    """Run every method on every case that is not in the file yet."""
    meter = Meter(model)
    for number, item in enumerate(every, 1):
        for name, method in methods.items():
            key = {"model": model.name, "task": item.task, "half": item.half, "seed": item.seed, "method": name}
            if not file.has(**key):
                file.add(run(model, item, name, method, meter))
        if number % 10 == 0:
            say(f"{item.task}, {item.half}: {number} cases")


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .jsonl file; results in it are not measured again.")
    ],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="File of sentences, or folder with text.test.txt.xz; built-in sentences by default."),
    ] = None,
    tasks: Annotated[str, typer.Option(help=f"Some of {', '.join(TASKS)}.")] = ",".join(KINDS),
    methods: Annotated[
        str, typer.Option(help='Comma-separated names; "ours" and "rivals" stand for all of them.')
    ] = "ours",
    cases: Annotated[int, typer.Option(min=1, help="Cases of each task and half.")] = 150,
    half: Annotated[str, typer.Option(help="unseen, which nothing was tuned on, seen, or both.")] = "unseen",
    part: Annotated[
        str,
        typer.Option(help="i/n: every n-th case from the i-th on, for n processes, each with its own file."),
    ] = "0/1",
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps cases and the truth of passages.")] = None,
    build: Annotated[bool, typer.Option(help="Only build the cases, and report how many the model solves.")] = False,
    weights: Annotated[Path | None, typer.Option(help="Trained weights of the rival AT2 for this model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
) -> None:
    """Measure which method finds where an answer came from, with one line of JSON per case and method."""
    wanted = [task.strip() for task in tasks.split(",")]
    if strange := [task for task in wanted if task not in TASKS]:
        raise InputError(f"there is no task {strange[0]!r}: expected some of {', '.join(map(repr, TASKS))}")
    if half != BOTH:
        check_half(half)
    share, others = part_of(part), rivals(weights)
    functions = chosen(methods, METHODS | others, {"ours": list(METHODS), "rivals": list(others)})
    silence()
    file = ResultFile(output)
    loaded = attnflow.load(model, gguf_file=gguf, dtype="float32", device=device)
    if cache is not None:
        cache = cache / loaded.name.replace("/", "-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionWarning)
        halves = HALVES if half == BOTH else (half,)
        kept = ((task, h, cases, data, cache, share) for task in wanted for h in halves)
        every = chain.from_iterable(items(loaded, *which) for which in kept)
        first = next(every, None)
        able = {} if build or first is None else ready(loaded, functions, list(METHODS), first)
        measure_all(loaded, able, chain(filter(None, [first]), every), file, progress)
    progress(f"wrote {output}")


if __name__ == "__main__":
    run_command(main)
