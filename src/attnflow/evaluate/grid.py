"""The grid: every method on every text by every metric, saved shard by shard, on all cores or on a GPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnflow.capture.silence import silence
from attnflow.errors import InputError
from attnflow.evaluate import deletion
from attnflow.evaluate.arguments import none_left, some_of, whole_number
from attnflow.evaluate.evaluation import Evaluation, correlated
from attnflow.evaluate.methods import Method, lacking, methods_of, score_text
from attnflow.evaluate.randomize import LEVELS, agreement, layers_of
from attnflow.evaluate.statistics import Floats
from attnflow.files import arrow, table_text
from attnflow.flow import cores
from attnflow.importance.blank import blank_id
from attnflow.importance.question import questions
from attnflow.jobs.identity import digest, fingerprint, weights_hash
from attnflow.jobs.progress import Meter, duration
from attnflow.jobs.store import Store, read_shard
from attnflow.jobs.workers import crew
from attnflow.model import Model, load
from attnflow.version import __version__

STAGES = ("scores", "curves", "sanity")
SHARD = 16
"""Texts per shard: the most that each worker loses when a run is stopped."""

LEAST_STEPS = 3
SMALL = 10_000_000
"""Models with fewer parameters run in one thread: their products are too small to share."""

Source = Mapping[str, Any]
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """What a worker needs besides the model and the texts."""

    methods: tuple[Method, ...]
    deletions: tuple[str, ...]
    steps: int
    seed: int
    truncate: bool


@dataclass(frozen=True)
class Task:
    """One shard: the numbers of its texts, the texts, and their rows of scores if there are any."""

    numbers: tuple[int, ...]
    texts: tuple[Any, ...]
    scored: tuple[Row, ...] = ()


def run(
    source: Source,
    texts: Sequence[Any],
    folder: str | Path,
    *,
    edges: Sequence[str] | None = None,
    importances: Sequence[str] | None = None,
    deletions: Sequence[str] | None = None,
    steps: int = deletion.STEPS,
    sanity: int = 100,
    truncate: bool = False,
    seed: int = 0,
    workers: int | None = None,
    device: str | None = None,
    stages: Sequence[str] = STAGES,
    data: str | None = None,
    say: Say = lambda line: None,
) -> Evaluation:
    """Measure what is not yet in the folder, and return all results. The model's own answers are explained.

    source: arguments of `attnflow.load`, because every worker loads the model itself; {} is the embedded model.
    texts: as `Model.trace` takes them; `Evaluation.excluded` counts those that cannot be used.
    folder: contains shards of 16 texts, each a parquet file in scores/, curves/ or sanity/. The same call resumes an
        interrupted run.
    edges, importances: as `methods_of` takes them.
    deletions: some of "mask", "unk", "remove"; by default those that the tokenizer supports.
    steps: of the deletion curves.
    sanity: how many of the texts are also scored with shuffled weights.
    truncate: cut long texts.
    seed: for ties, the random baseline and shuffled weights.
    workers: the number of processes; by default one per core, or one if there is a GPU, which several can share. A
        single worker runs in this process. A script that uses more must do so below ``if __name__ == "__main__":``,
        because each worker imports it.
    stages: some of "scores", "curves" and "sanity"; the last two need the first. You may copy the folder to a machine
        with a GPU for one of them.
    data: the name of the texts in the results.
    say: called with lines about progress.
    """
    folder = Path(folder)
    some_of(stages, STAGES, "stages")
    for name, value, least in (("steps", steps, LEAST_STEPS), ("sanity", sanity, 0), ("seed", seed, 0)):
        whole_number(name, value, least)
    if workers is not None:
        whole_number("workers", workers, 1)
    arrow()  # fail early
    source = {**source, **({} if device is None else {"device": device})}
    model = load(**source)
    if deletions is None:
        own = {by: getattr(model.tokenizer, f"{by}_token_id", None) for by in ("mask", "unk")}
        deletions = [by for by in deletion.DELETIONS if by == "remove" or own[by] is not None]
    some_of(deletions, deletion.DELETIONS, "deletions")
    for by in deletions:
        blank_id(model, by)
    with _few_threads(model):
        methods = methods_of(model, edges=edges, importances=importances)
        without = {} if edges is not None else lacking(model)
    job = Job(methods, tuple(dict.fromkeys(deletions)), steps, seed, truncate)
    if "sanity" in stages and sanity:
        layers_of(model)
    used, ids, excluded = deletion.rankable(model, texts, truncate)
    if not used:
        raise none_left(excluded, "one with two tokens")
    settings = _settings(model, job, used, ids)
    counts = {stage: min(sanity, len(used)) if stage == "sanity" else len(used) for stage in STAGES}
    shards: dict[str, dict[str, tuple[int, ...]]] = {stage: {} for stage in STAGES}  # the numbers of the texts, by file
    for stage, count in counts.items():
        for place, k in enumerate(range(0, count, SHARD)):
            shards[stage][f"{stage}/{place:05}.parquet"] = tuple(range(k, min(k + SHARD, count)))
    plans = {name: {"shard": name, "samples": list(own)} for by in shards.values() for name, own in by.items()}
    rows: dict[str, list[Row]] = {}  # for each complete stage
    size = workers or (cores() if model.device.type == "cpu" else 1)
    load_again = partial(_loaded, {**source, "device": str(model.device)}, max(1, cores() // size))
    with (
        _few_threads(model),
        Store(folder, "grid", settings, plans, "*.parquet") as store,
        crew(model, load_again, size) as do,
    ):
        for stage in STAGES:
            for name in store.damaged:
                if name in shards[stage]:
                    say(f"{name.replace('/', ': ')} is damaged or from another run, and is computed again")
            if stage in stages:
                scored = rows.get("scores") or [{}] * len(used)
                tasks = {
                    place: Task(shard, tuple(used[k] for k in shard), tuple(scored[k] for k in shard))
                    for place, (name, shard) in enumerate(shards[stage].items())
                    if name not in store.records
                }
                names = list(shards[stage])
                results = do(partial(WORK[stage], job), tasks)
                for place, own_rows in _with_progress(stage, counts[stage], tasks, results, say):
                    on_device = [{**row, "device": model.device.type} for row in own_rows]
                    store.write(names[place], arrow()[0].Table.from_pylist(on_device))
            if shards[stage].keys() <= store.records.keys():
                rows[stage] = [row for name in shards[stage] for row in read_shard(folder / name)]
            elif stage == "scores":
                raise InputError(
                    f"{str(folder)!r} does not contain the scores of all {len(used)} texts, which curves and sanity "
                    "need: run the stage 'scores' first"
                )
    sanity_rows = rows.get("sanity", [])
    provenance = {
        **{name: value for name, value in settings.items() if name not in ("texts", "tokens", "methods")},
        "revision": model.revision, "data": data, "explained": "the model's own answer",
        "answers": dict(Counter(json.loads(row["answer"])["kind"] for row in rows["scores"])),
        "texts": len(texts), "samples": len(used), "excluded": dict(excluded), "without edges": without,
        "sanity": len(sanity_rows) // len(LEVELS),
        "without sanity": dict(Counter(row["why"] for row in sanity_rows if row["why"])),
        "devices": {stage: sorted({row["device"] for row in own_rows}) for stage, own_rows in rows.items()},
    }  # fmt: skip
    return _evaluation(job, rows, provenance)


def _settings(model: Model, job: Job, texts: Sequence[Any], ids: Sequence[list[int]]) -> Row:
    """Return the first line of the manifest: the settings that must not change when a run is resumed."""
    plain = json.dumps(list(texts), default=lambda x: torch.as_tensor(x).tolist())
    return {
        "model": model.name, "class": type(model.model).__name__, "dtype": str(model.dtype).removeprefix("torch."),
        "weights": weights_hash(model), "texts": digest(plain), "tokens": digest(list(ids)),
        **json.loads(json.dumps(asdict(job))), "attnflow": __version__, "configuration": fingerprint(model),
    }  # fmt: skip


def _scores(job: Job, model: Model, task: Task) -> list[Row]:
    rows = []
    for number, text in zip(task.numbers, task.texts, strict=True):
        with _about(text):
            scored = score_text(model, text, job.methods, truncate=job.truncate, seed=job.seed + number)
        rows.append({
            "sample": number, "content": list(scored.content), "tokens": list(map(table_text, scored.tokens)),
            "scores": scored.scores.ravel().tolist(), "seconds": scored.seconds.tolist(),
            "pass_seconds": scored.pass_seconds, "answer": json.dumps(dict(scored.answer)),
        })  # fmt: skip
    return rows


def _curves(job: Job, model: Model, task: Task) -> list[Row]:
    # the answer by its number: rounding on another machine may break a tie the other way
    answers = [json.loads(row["answer"])["number"] for row in task.scored]
    explained, places, rankings = [], [], []
    for number, text, answer, row in zip(task.numbers, task.texts, answers, task.scored, strict=True):
        with _about(text):
            (question,) = questions(model, [text], [answer], job.truncate)
        explained.append(question)
        places.append(np.array(row["content"], np.intp))
        rankings.append(deletion.orders(_table(row, len(job.methods)), job.seed + number))
    curves = {by: deletion.curves(model, explained, rankings, by, job.steps, places=places) for by in job.deletions}
    return [
        {"sample": number, "deletion": by, "curve": curves[by][k].ravel().tolist()}
        for k, number in enumerate(task.numbers)
        for by in job.deletions
    ]


def _sanity(job: Job, model: Model, task: Task) -> list[Row]:
    scores = [_table(row, len(job.methods)) for row in task.scored]
    answers = [json.loads(row["answer"])["number"] for row in task.scored]
    seeds = [job.seed + number for number in task.numbers]
    by_level = agreement(model, task.texts, job.methods, scores, answers, seeds, job.seed, job.truncate)
    return [
        {"sample": number, "level": level, "correlation": by_level[level][k][0].tolist(), "why": by_level[level][k][1]}
        for k, number in enumerate(task.numbers)
        for level in LEVELS
    ]


WORK = {"scores": _scores, "curves": _curves, "sanity": _sanity}


def _loaded(source: Source, threads: int) -> Model:
    """Load the model of a worker."""
    silence()
    torch.set_num_threads(threads)
    return load(**source)


@contextmanager
def _few_threads(model: Model) -> Iterator[None]:
    """Run a small model on the CPU in one torch thread inside the block, as each of many workers does."""
    before = torch.get_num_threads()
    small = model.device.type == "cpu" and sum(p.numel() for p in model.model.parameters()) < SMALL
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _about(text: Any) -> Iterator[None]:
    """Name the text in errors raised inside the block, since one of hundreds stops the run."""
    try:
        yield
    except InputError as e:
        raise InputError(f"the text {text!r:.40}: {e}") from e


def _table(row: Row, methods: int) -> Floats:
    return np.array(row["scores"], np.float64).reshape(methods, -1)


def _with_progress(
    stage: str, count: int, tasks: Mapping[int, Task], results: Iterator[tuple[int, list[Row]]], say: Say
) -> Iterator[tuple[int, list[Row]]]:
    """Yield the results of shards, and report each once it has been processed."""
    meter = Meter(count, count - sum(len(task.numbers) for task in tasks.values()))
    if tasks and meter.before:
        say(f"{stage}: {meter.before} of {count} texts are already done")
    for place, own_rows in results:
        yield place, own_rows
        meter.count += len(tasks[place].numbers)
        left = f", about {duration(meter.seconds_left or 0)} left" if meter.finished < count else ""
        say(f"{stage}: {meter.finished} of {count} texts, {meter.rate:.3g} texts/s{left}")


def _evaluation(job: Job, rows: Mapping[str, list[Row]], provenance: Mapping[str, Any]) -> Evaluation:
    methods, scores = job.methods, []
    importances = [m for m, method in enumerate(methods) if method.kind == "importance"]
    for row in rows["scores"]:
        scores.append(_table(row, len(methods)))
        scores[-1][importances] = np.abs(scores[-1][importances])  # only the size of an importance counts
    every, agreement = correlated(scores)
    own = every[:, :, importances]
    own[:, importances, np.arange(len(importances))] = np.nan
    metrics = {methods[m].name: "higher" for m in importances}
    values, curves = [own], {}
    kinds = np.array([json.loads(row["answer"])["kind"] for row in rows["scores"]])
    for by in job.deletions if "curves" in rows else ():
        flat = [row["curve"] for row in rows["curves"] if row["deletion"] == by]
        curves[by] = np.array(flat, np.float64).reshape(len(scores), len(methods), 2, job.steps + 1)
        # the curve without deletion is the probability of the answer
        by_name = deletion.metrics(curves[by], curves[by][..., 0, 0])
        by_name["log-odds"][kinds == "score"] = np.nan
        metrics |= {f"{name} ({by})": deletion.METRICS[name] for name in by_name}
        values.append(np.stack(list(by_name.values()), -1))
    sanity = {}
    for level in LEVELS if rows.get("sanity") else ():
        sanity[level] = np.full((len(scores), len(methods)), np.nan)
        for row in rows["sanity"]:
            if row["level"] == level:
                sanity[level][row["sample"]] = row["correlation"]
    return Evaluation(
        methods=tuple(asdict(method) for method in methods),
        metrics=metrics,
        values=np.concatenate(values, -1),
        agreement=agreement,
        curves=curves,
        sanity=sanity,
        seconds=np.array([row["seconds"] for row in rows["scores"]], np.float64),
        pass_seconds=np.array([row["pass_seconds"] for row in rows["scores"]], np.float64),
        provenance=provenance,
        seed=job.seed,
    )
