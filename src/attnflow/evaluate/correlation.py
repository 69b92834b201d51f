"""The rank correlation of raw attention, rollout and flow with importance, at every layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from attnflow.errors import InputError
from attnflow.evaluate.arguments import ONE_TOKEN, none_left, one_of, readable, some_of
from attnflow.evaluate.evaluation import Evaluation, correlated, needs_scipy
from attnflow.evaluate.importances import answering_position, importances_of_texts, options_of, own_position
from attnflow.evaluate.statistics import TIES, Floats, ranks
from attnflow.version import __version__

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

VIEWS = ("raw", "rollout", "flow")
ROWS = ("answer", "max")
CHUNK = 128
SAME_IMPORTANCE, SAME_ATTENTION = "importance the same for all tokens", "attention the same for all tokens"
"""Why a text has no correlation."""


@dataclass(frozen=True, eq=False)
class TextScores:
    """One text: ``views[view, layer, input]`` and ``importance[importance, input]``.

    special: which inputs are special tokens.
    own: the position that answers, if the model is causal; it is not ranked.
    label, predicted: the true class, if known, and the model's.
    """

    views: Floats
    importance: Floats
    special: tuple[bool, ...]
    own: int | None
    label: int | str | None
    predicted: str | None


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of all texts; `summarize` ranks and compares. excluded: why texts were left out, and how many."""

    texts: tuple[TextScores, ...]
    importances: tuple[str, ...]
    views: tuple[str, ...]
    excluded: Mapping[str, int]
    labels: Mapping[int, str]
    provenance: Mapping[str, Any]


class Options(TypedDict, total=False):
    """Arguments of `measure` that `evaluate` passes on."""

    importance: Mapping[str, Mapping[str, Any]] | Sequence[str]
    views: Sequence[str]
    explain: str
    row: str
    signed: bool
    truncate: bool
    say: Callable[[str], None]


def evaluate(
    model: Model,
    texts: Sequence[Any],
    labels: Sequence[Any] | None = None,
    *,
    special: bool = True,
    ties: str = "mean",
    resamples: int = 5000,
    seed: int = 0,
    **options: Unpack[Options],
) -> Evaluation:
    """Compute Spearman's rank correlation of each view with each importance within every text, and summarize them.

    texts, labels, options: as in `attnflow.evaluate.correlation.measure`.
    special: whether special tokens are ranked too.
    ties: "mean", or "authors" as in `spearman`.
    resamples, seed: of the bootstrap.

    `Evaluation.cell(importance, view, layer)` is one mean; `show` prints all of them, `save` writes them.
    """
    one_of(ties, TIES, "ties")
    needs_scipy()  # fail early
    scores = measure(model, texts, labels, **options)
    return summarize(scores, special=special, ties=ties, resamples=resamples, seed=seed)


def measure(
    model: Model,
    texts: Sequence[Any],
    labels: Sequence[Any] | None = None,
    *,
    importance: Mapping[str, Mapping[str, Any]] | Sequence[str] = ("blank-out", "gradient"),
    views: Sequence[str] = VIEWS,
    explain: str = "true",
    row: str = "answer",
    signed: bool = False,
    truncate: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Scores:
    """Compute every view and every importance of every text.

    texts: as `Model.trace` takes them.
    labels: the true class of each text, by name or number; None if there is none.
    importance: "blank-out", "gradient", "integrated-gradients", "shapley"; or a dict from these to their options, in
        which "method" may name one of the four under another key.
    explain: which answer importance is about: "true", the label if there is one; or "predicted", the model's own.
    row: "answer" takes the row of the position that answers ([CLS], the mask, the last token); "max" takes the maximum
        over all rows, as the paper's code did for DistilBERT.
    signed: keep the sign of importance, so that tokens that count against the answer come last; by default only its
        size counts.
    truncate: cut long texts; otherwise they are left out and counted.
    say: called with lines about progress.
    """
    options = options_of(importance)
    some_of(views, VIEWS, "views")
    one_of(explain, ("true", "predicted"), "explain")
    one_of(row, ROWS, "row")
    if labels is not None and not isinstance(texts, str) and len(labels) != len(texts):
        raise InputError(f"{len(labels)} labels for {len(texts)} texts: expected one for each")
    numbers, ids, excluded = readable(model, texts, truncate)
    if not numbers:
        raise none_left(excluded, "one")
    truth = [None if labels is None else labels[number] for number in numbers]
    scores: dict[int, TextScores] = {}
    unknown = tokens = 0
    order = sorted(range(len(numbers)), key=lambda k: len(ids[k]))  # texts of one length run together
    for start in range(0, len(order), CHUNK):
        at = order[start : start + CHUNK]
        chunk = [texts[numbers[k]] for k in at]
        answers = [truth[k] if explain == "true" else None for k in at]
        importances = [
            importances_of_texts(model, chunk, answers, {**own, "truncate": truncate}) for own in options.values()
        ]
        for k, trace, *own in zip(at, model.trace(chunk, truncate=truncate), *importances, strict=True):
            scores[k] = _text_scores(trace, own, views, row, signed, truth[k])
            unknown += len(trace.provenance.get("unknown", ()))
            tokens += len(trace.tokens)
        say(f"{min(start + CHUNK, len(numbers))} of {len(numbers)} texts")
    provenance = {
        "model": model.name, "revision": model.revision, "class": type(model.model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."), "importance": options, "explain": explain, "row": row,
        "signed": signed, "tokens": tokens, "unknown": unknown, "attnflow": __version__,
    }  # fmt: skip
    names = {int(i): str(name) for i, name in (getattr(model.config, "id2label", None) or {}).items()}
    ordered = tuple(scores[k] for k in range(len(numbers)))
    return Scores(ordered, tuple(options), tuple(views), dict(excluded), names, provenance)


def _text_scores(
    trace: Trace, importances: Sequence[TokenAttention], views: Sequence[str], row: str, signed: bool, label: Any
) -> TextScores:
    query: Any = "all" if row == "max" else answering_position(trace, importances[0])
    values = [getattr(trace, view)(query=query).values for view in views]  # each [layer, query, input]
    by_view = np.stack([v.max(1) if row == "max" else v[:, 0] for v in values]).astype(np.float64)
    rows = np.stack([importance.row() for importance in importances]).astype(np.float64)
    predicted = trace.prediction.top[0][0] if trace.prediction and trace.prediction.kind == "class" else None
    return TextScores(by_view, rows if signed else np.abs(rows), trace.special, own_position(trace), label, predicted)


def summarize(
    scores: Scores,
    *,
    importances: Sequence[str] | None = None,
    special: bool = True,
    ties: str = "mean",
    resamples: int = 5000,
    seed: int = 0,
) -> Evaluation:
    """Summarize rank correlations within each text as an evaluation of views at every layer.

    importances: which of those measured; all by default.
    special: whether special tokens are ranked too.
    ties: as in `spearman`.
    resamples, seed: of the bootstrap.

    A text without a correlation (one token, equal scores) is in no mean; cells say how many there were, and why.
    """
    one_of(ties, TIES, "ties")
    names = list(scores.importances if importances is None else importances)
    some_of(names, scores.importances, "importances")
    which = [scores.importances.index(name) for name in names]
    layers = scores.texts[0].views.shape[1]
    count = len(scores.views) * layers  # methods: views at layers
    rows = []  # one per text, [method and importance, token]
    for text in scores.texts:
        keep = np.array([(special or not mark) and i != text.own for i, mark in enumerate(text.special)])
        rows.append(np.concatenate([text.views.reshape(count, -1), text.importance[which]])[:, keep])
    every, agreement = correlated(rows, ties)
    values = every[:, :count, count:]  # [sample, method, importance]
    without: dict[tuple[int, int], Counter[str]] = {}
    for sample, m, k in np.argwhere(np.isnan(values)).tolist():
        without.setdefault((m, k), Counter())[_why(rows[sample][count + k])] += 1
    known = [(_label_name(scores, t.label), t.predicted) for t in scores.texts if t.label is not None]
    right = [predicted == label for label, predicted in known if predicted is not None]
    how = {"special": special, "ties": ties, "resamples": resamples, "seed": seed}
    common = {"kind": "paper", "edges": "mean", "normalize": "rows", "receptive_field": None}
    return Evaluation(
        methods=tuple(
            {"name": f"{view} L{layer + 1}", **common, "propagation": view, "layer": layer}
            for view in scores.views
            for layer in range(layers)
        ),
        metrics=dict.fromkeys(names, "higher"),
        values=values,
        agreement=agreement[:count, :count],
        layers=layers,
        without=without,
        accuracy=sum(right) / len(right) if right else None,
        notes=tuple(_notes(scores, {label for label, _ in known})),
        provenance={**scores.provenance, "excluded": scores.excluded, **how},
        resamples=resamples,
        seed=seed,
    )


def _why(importance: Floats) -> str:
    if len(importance) < 2:
        return ONE_TOKEN
    return SAME_IMPORTANCE if np.ptp(ranks(importance)) == 0 else SAME_ATTENTION


def _label_name(scores: Scores, label: int | str) -> str:
    return label if isinstance(label, str) else scores.labels.get(int(label), str(label))


def _notes(scores: Scores, present: set[str]) -> Iterator[str]:
    unknown, tokens = scores.provenance["unknown"], scores.provenance["tokens"]
    if unknown:
        yield (
            f"{unknown} of {tokens} tokens are unknown to the model: blanking them with the unknown token changes "
            "nothing"
        )
    if present:
        for name in scores.labels.values():
            if name not in present:
                yield f"the class {name!r} never occurs among the labels"
