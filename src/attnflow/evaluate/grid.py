"""The grid: every method on every text by every metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from attnflow.errors import InputError
from attnflow.evaluate import deletion
from attnflow.evaluate.arguments import none_left, some_of, whole_number
from attnflow.evaluate.evaluation import Evaluation, correlated
from attnflow.evaluate.methods import Method, Scored, lacking, methods_of, score_text
from attnflow.evaluate.statistics import Floats
from attnflow.importance.blank import blank_id
from attnflow.jobs.identity import fingerprint, weights_hash
from attnflow.jobs.progress import Meter, duration
from attnflow.model import Model
from attnflow.version import __version__

BATCH = 16
"""Texts between two reports, whose deletions are computed together."""

LEAST_STEPS = 3

Say = Callable[[str], None]


def run(
    model: Model,
    texts: Sequence[Any],
    *,
    edges: Sequence[str] | None = None,
    importances: Sequence[str] | None = None,
    deletions: Sequence[str] | None = None,
    steps: int = deletion.STEPS,
    truncate: bool = False,
    seed: int = 0,
    data: str | None = None,
    say: Say = lambda line: None,
) -> Evaluation:
    """Measure every method on every text by every metric. The model's own answers are explained.

    texts: as `Model.trace` takes them; `Evaluation.excluded` counts those that cannot be used.
    edges, importances: as `methods_of` takes them.
    deletions: some of "mask", "unk", "remove"; by default those that the tokenizer supports.
    steps: of the deletion curves.
    truncate: cut long texts.
    seed: for ties and the random baseline.
    data: the name of the texts in the results.
    say: called with lines about progress.
    """
    for name, value, least in (("steps", steps, LEAST_STEPS), ("seed", seed, 0)):
        whole_number(name, value, least)
    if deletions is None:
        own = {by: getattr(model.tokenizer, f"{by}_token_id", None) for by in ("mask", "unk")}
        deletions = [by for by in deletion.DELETIONS if by == "remove" or own[by] is not None]
    some_of(deletions, deletion.DELETIONS, "deletions")
    deletions = list(dict.fromkeys(deletions))
    for by in deletions:
        blank_id(model, by)
    methods = methods_of(model, edges=edges, importances=importances)
    without = {} if edges is not None else lacking(model)
    used, excluded = deletion.rankable(model, texts, truncate)
    if not used:
        raise none_left(excluded, "one with two tokens")
    scored: list[Scored] = []
    for part in _parts("scores", len(used), say):
        for number in part:
            with _about(used[number]):
                scored.append(score_text(model, used[number], methods, truncate=truncate, seed=seed + number))
    curves = _curves(model, scored, deletions, steps, seed, say)
    provenance = {
        "model": model.name, "revision": model.revision, "class": type(model.model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."), "weights": weights_hash(model),
        "configuration": fingerprint(model), "device": model.device.type, "attnflow": __version__, "data": data,
        "deletions": deletions, "steps": steps, "seed": seed, "truncate": truncate,
        "explained": "the model's own answer", "answers": dict(Counter(one.question.kind for one in scored)),
        "texts": len(texts), "samples": len(used), "excluded": dict(excluded), "without edges": without,
    }  # fmt: skip
    return _evaluation(methods, scored, curves, seed, provenance)


def _curves(
    model: Model, scored: Sequence[Scored], deletions: Sequence[str], steps: int, seed: int, say: Say
) -> dict[str, Floats]:
    """Return ``[sample, method, deleted or kept, step]`` for each deletion."""
    curves: dict[str, list[Floats]] = {by: [] for by in deletions}
    for part in _parts("curves", len(scored), say):
        explained = [scored[k].question for k in part]
        places = [np.array(scored[k].content, np.intp) for k in part]
        rankings = [deletion.orders(scored[k].scores, seed + k) for k in part]
        for by in deletions:
            curves[by] += deletion.curves(model, explained, rankings, by, steps, places=places)
    return {by: np.stack(own) for by, own in curves.items()}


@contextmanager
def _about(text: Any) -> Iterator[None]:
    """Name the text in errors raised inside the block, since one of hundreds stops the run."""
    try:
        yield
    except InputError as e:
        raise InputError(f"the text {text!r:.40}: {e}") from e


def _parts(stage: str, count: int, say: Say) -> Iterator[range]:
    """Yield the numbers of the texts in parts, and report after each."""
    meter = Meter(count)
    for first in range(0, count, BATCH):
        part = range(first, min(first + BATCH, count))
        yield part
        meter.count += len(part)
        left = f", about {duration(meter.seconds_left or 0)} left" if meter.finished < count else ""
        say(f"{stage}: {meter.finished} of {count} texts, {meter.rate:.3g} texts/s{left}")


def _evaluation(
    methods: Sequence[Method],
    scored: Sequence[Scored],
    curves: Mapping[str, Floats],
    seed: int,
    provenance: Mapping[str, Any],
) -> Evaluation:
    importances = [m for m, method in enumerate(methods) if method.kind == "importance"]
    scores = [one.scores.copy() for one in scored]
    for own in scores:
        own[importances] = np.abs(own[importances])  # only the size of an importance counts
    every, agreement = correlated(scores)
    correlations = every[:, :, importances]
    correlations[:, importances, np.arange(len(importances))] = np.nan
    metrics = {methods[m].name: "higher" for m in importances}
    values = [correlations]
    of_score = np.array([one.question.kind == "score" for one in scored])
    for by, curve in curves.items():
        # the curve without deletion is the probability of the answer
        by_name = deletion.metrics(curve, curve[..., 0, 0])
        by_name["log-odds"][of_score] = np.nan
        metrics |= {f"{name} ({by})": deletion.METRICS[name] for name in by_name}
        values.append(np.stack(list(by_name.values()), -1))
    return Evaluation(
        methods=tuple(asdict(method) for method in methods),
        metrics=metrics,
        values=np.concatenate(values, -1),
        agreement=agreement,
        curves=curves,
        seconds=np.stack([one.seconds for one in scored]),
        pass_seconds=np.array([one.pass_seconds for one in scored]),
        provenance=provenance,
        seed=seed,
    )
