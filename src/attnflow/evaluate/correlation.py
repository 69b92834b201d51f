"""Views of attention against importance, sample by sample."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.evaluate.statistics import TIES, Interval, holm, intervals, rank_correlations, ranks, wilcoxon

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

Floats = NDArray[np.float64]

VIEWS = ("raw", "rollout", "flow")
IMPORTANCES = ("blank-out", "gradient", "integrated-gradients", "shapley")
ROWS = ("answer", "max")
CHUNK = 128
ONE_TOKEN, SAME_WORTH = "fewer than two tokens", "importance the same for all tokens"
SAME_ATTENTION = "attention the same for all tokens"
"""Why a text has no correlation."""


@dataclass(frozen=True)
class Cell:
    """One view at one layer (from 0) against one importance: mean and standard deviation over n samples, and why others
    have no correlation."""

    importance: str
    view: str
    layer: int
    n: int
    sd: float | None
    mean: Interval | None
    without: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Two views at one layer: the mean of the differences of their correlations, first minus second, sample by sample.

    p: of Wilcoxon's signed-rank test; adjusted: after Holm's correction for all comparisons of the evaluation.
    """

    importance: str
    layer: int
    first: str
    second: str
    n: int
    difference: Interval | None
    p: float | None
    adjusted: float | None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found. correlations: ``[sample, importance, view, layer]``, NaN where there is none."""

    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    correlations: Floats = field(repr=False)
    importances: tuple[str, ...]
    views: tuple[str, ...]
    samples: int
    excluded: Mapping[str, int]
    accuracy: float | None
    notes: tuple[str, ...]
    provenance: Mapping[str, Any] = field(repr=False)

    def cell(self, importance: str, view: str, layer: int) -> Cell:
        for cell in self.cells:
            if (cell.importance, cell.view, cell.layer) == (importance, view, layer):
                return cell
        raise InputError(f"no cell of {importance!r}, {view!r} at layer {layer}")

    @property
    def layers(self) -> int:
        return int(self.correlations.shape[3])

    def to_dict(self) -> dict[str, Any]:
        """All of it but the single correlations, as JSON holds it; layers are counted from 1."""
        told = {
            "samples": self.samples,
            "excluded": dict(self.excluded),
            "accuracy": self.accuracy,
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }
        for name in ("cells", "comparisons"):
            rows = [asdict(row) for row in getattr(self, name)]
            told[name] = [{**row, "layer": row["layer"] + 1} for row in rows]
        return told


@dataclass(frozen=True, eq=False)
class Measured:
    """One text: ``views[view, layer, input]``, ``worth[importance, input]``, and which inputs are special tokens."""

    views: Floats
    worth: Floats
    special: tuple[bool, ...]
    label: int | str | None
    predicted: str | None


@dataclass(frozen=True, eq=False)
class Measurement:
    """All texts, measured: `summarize` ranks and compares. excluded: why texts were left out, and how many."""

    texts: tuple[Measured, ...]
    importances: tuple[str, ...]
    views: tuple[str, ...]
    excluded: Mapping[str, int]
    labels: Mapping[int, str]
    provenance: Mapping[str, Any]


def evaluate(
    model: Model,
    texts: Sequence[Any],
    labels: Sequence[Any] | None = None,
    *,
    special: bool = True,
    ties: str = "mean",
    resamples: int = 5000,
    seed: int = 0,
    **options: Any,
) -> Evaluation:
    """Spearman's rank correlation of each view with each importance, within every text, and what that comes to over all.

    texts: as `Model.trace` takes them. labels: the true class of each, by name or number; None where there is none.
    special: whether special tokens are among those ranked. ties: "mean", or "authors" as in `spearman`.
    resamples, seed: of the bootstrap.
    options: importance, views, explain, row, signed, truncate, say; see `attnflow.evaluate.correlation.measure`.

    `Evaluation.cell(importance, view, layer)` is one mean; `attnflow.evaluate.evaluate_report.tables` prints all.
    """
    _one_of(ties, TIES, "ties")
    if importlib.util.find_spec("scipy") is None:  # before anything is measured in vain
        raise InputError("evaluate needs scipy for its tests: pip install 'attnflow[evaluate]'")
    return summarize(
        measure(model, texts, labels, **options), special=special, ties=ties, resamples=resamples, seed=seed
    )


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
) -> Measurement:
    """Every view and every importance of every text.

    texts: as `Model.trace` takes them. labels: the true class of each, by name or number; None where there is none.
    importance: "blank-out", "gradient", "integrated-gradients", "shapley"; or a dict from these to their options, in which
        "method" may name one of the four under a key of its own.
    explain: the answer that importance is of: "true", the label where there is one; or "predicted", the model's own.
    row: "answer" takes the row of the position that answers ([CLS], the mask, the last token); "max" the largest over all
        rows, as the paper's code did for DistilBERT.
    signed: importance as it is, with tokens that speak against the answer last; by default its size alone counts.
    truncate: cut long texts; otherwise they are left out, and counted. say: is told of progress.
    """
    options = options_of(importance)
    _check(views, VIEWS, "views")
    _one_of(explain, ("true", "predicted"), "explain")
    _one_of(row, ROWS, "row")
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InputError(f"texts is a {type(texts).__name__}: expected a list of texts")
    if labels is not None and len(labels) != len(texts):
        raise InputError(f"{len(labels)} labels for {len(texts)} texts: expected one for each")
    used, truth, sizes, excluded = _usable(model, texts, labels, truncate)
    if not used:
        reasons = "; ".join(f"{count} {why}" for why, count in excluded.items()) or "none was given"
        raise InputError(f"there is no text to evaluate on ({reasons}): expected at least one")
    found: list[Measured | None] = [None] * len(used)
    unknown = tokens = 0
    order = sorted(range(len(used)), key=lambda k: sizes[k])  # texts of one length run together
    for start in range(0, len(order), CHUNK):
        at = order[start : start + CHUNK]
        part, true = [used[k] for k in at], [truth[k] for k in at]
        answers = true if explain == "true" else [None] * len(part)
        worth = [importances_of(model, part, answers, {**o, "truncate": truncate}) for o in options.values()]
        for k, trace, *scores in zip(at, model.trace(part, truncate=truncate), *worth, strict=True):
            seen = _views(trace, scores[0], views, row)
            said = trace.prediction.top[0][0] if trace.prediction and trace.prediction.kind == "class" else None
            rows = np.stack([s.row() for s in scores])
            found[k] = Measured(seen, rows if signed else np.abs(rows), trace.special, truth[k], said)
            unknown += len(trace.provenance.get("unknown", ()))
            tokens += len(trace.tokens)
        say(f"{min(start + CHUNK, len(used))} of {len(used)} texts")
    told = {
        "model": model.name, "revision": model.revision, "class": type(model.model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."), "importance": options, "explain": explain, "row": row,
        "signed": signed, "tokens": tokens, "unknown": unknown, "attnflow": _version(),
    }  # fmt: skip
    names = {int(i): str(name) for i, name in (getattr(model.config, "id2label", None) or {}).items()}
    return Measurement(
        tuple(m for m in found if m is not None), tuple(options), tuple(views), dict(excluded), names, told
    )


def summarize(
    measured: Measurement,
    *,
    importances: Sequence[str] | None = None,
    special: bool = True,
    ties: str = "mean",
    resamples: int = 5000,
    seed: int = 0,
) -> Evaluation:
    """Rank correlations within each text; over all texts mean, standard deviation, interval, and paired comparisons.

    importances: which of those measured; all by default. special: whether special tokens are among those ranked.
    ties: as in `spearman`. resamples, seed: of the bootstrap.

    A text without a correlation (one token, scores all equal) counts in no mean; cells say how many there were, and why.
    """
    _one_of(ties, TIES, "ties")
    names = list(measured.importances if importances is None else importances)
    _check(names, measured.importances, "importances")
    which = [measured.importances.index(name) for name in names]
    reasons: dict[tuple[int, int, int], Counter[str]] = {}
    found = []
    for text in measured.texts:
        keep = np.array([special or not mark for mark in text.special])
        views, worth = text.views[:, :, keep], text.worth[which][:, keep]
        flat = views.reshape(-1, views.shape[-1])
        table = rank_correlations(flat, worth, ties).T.reshape(len(worth), *views.shape[:2])
        for m, v, layer in np.argwhere(np.isnan(table)).tolist():
            reasons.setdefault((m, v, layer), Counter())[_why(worth[m])] += 1
        found.append(table)
    correlations = np.stack(found)
    known = [(_label_name(measured, t.label), t.predicted) for t in measured.texts if t.label is not None]
    told = [predicted == label for label, predicted in known if predicted is not None]
    return Evaluation(
        cells=_cells(correlations, names, measured.views, reasons, resamples, seed),
        comparisons=_comparisons(correlations, names, measured.views, resamples, seed),
        correlations=correlations,
        importances=tuple(names),
        views=measured.views,
        samples=len(measured.texts),
        excluded=measured.excluded,
        accuracy=sum(told) / len(told) if told else None,
        notes=tuple(_notes(measured, {label for label, _ in known})),
        provenance={**measured.provenance, "special": special, "ties": ties, "resamples": resamples, "seed": seed},
    )


def options_of(importance: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> dict[str, dict[str, Any]]:
    if isinstance(importance, str):
        importance = [importance]
    options = {k: dict(importance[k]) if isinstance(importance, Mapping) else {} for k in importance}
    options = {k: {"method": k, **o} for k, o in options.items()}
    _check([o["method"] for o in options.values()], IMPORTANCES, "importance")
    return options


def _one_of(given: str, known: Sequence[str], name: str) -> None:
    if given not in known:
        raise InputError(f"{name}={given!r}: expected one of {', '.join(map(repr, known))}")


def _check(given: Sequence[str], known: Sequence[str], name: str) -> None:
    for one in given:
        if one not in known:
            raise InputError(f"{name} {one!r}: expected some of {', '.join(map(repr, known))}")
    if not given:
        raise InputError(f"{name} is empty: expected some of {', '.join(map(repr, known))}")


def _usable(
    model: Model, texts: Sequence[Any], labels: Sequence[Any] | None, truncate: bool
) -> tuple[list[Any], list[Any], list[int], Counter[str]]:
    """The texts that the model can read, with their labels and lengths, and why the others are left out."""
    excluded: Counter[str] = Counter()
    used, truth, sizes = [], [], []
    limit = model.limit()
    for number, text in enumerate(texts):
        label = None if labels is None else labels[number]
        if isinstance(text, str) and not text.strip():
            excluded["empty"] += 1
            continue
        size = _size(model, text, number)
        if limit is not None and size > limit and not truncate:
            excluded[f"longer than the {limit} tokens that the model takes"] += 1
            continue
        used.append(text)
        truth.append(label)
        sizes.append(size)
    return used, truth, sizes, excluded


def _size(model: Model, text: Any, number: int) -> int:
    """In tokens."""
    if model.tokenizer is None and not isinstance(text, Mapping):
        raise InputError(f"{model!r} was wrapped without a tokenizer: give wrap(model, tokenizer)")
    parts = (text,) if isinstance(text, str) else text
    try:
        if isinstance(text, Mapping):
            return len(text["input_ids"][0])
        if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
            raise TypeError
        " ".join(parts).encode()
        return len(model.tokenizer(*parts, verbose=False)["input_ids"])  # type: ignore[misc]
    except (TypeError, KeyError, IndexError, UnicodeEncodeError):
        raise InputError(
            f"text {number} is {text!r:.40}: expected a text, a pair of texts as a tuple, or a dict with input_ids"
        ) from None


def importances_of(model: Model, texts: list[Any], answers: list[Any], options: dict[str, Any]) -> list[Any]:
    method = options.pop("method").replace("-", "_")
    found: list[Any] = getattr(model, method)(texts, answers, **options)
    return found


def worth_of(
    model: Model,
    text: Any,
    trace: Trace,
    options: Mapping[str, Mapping[str, Any]],
    truncate: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[dict[str, TokenAttention], dict[str, str]]:
    """What the tokens of one traced text are worth by every method of `options_of`, and why there is none of some."""
    if trace.parts:  # asking would have the model write its answer once more for each
        return {}, dict.fromkeys(
            options, f"{model!r} reads a text and writes another, and importance is about models that read one text"
        )
    found: dict[str, TokenAttention] = {}
    missing: dict[str, str] = {}
    for name, given in options.items():
        progress(name, 0, 1)
        more: dict[str, Any] = {**given, "truncate": truncate}
        if given["method"] == "blank-out":
            more["progress"] = partial(progress, name)
        try:
            found[name] = importances_of(model, [text], [None], more)[0]
        except InputError as e:
            missing[name] = str(e)
    return found, missing


def _views(trace: Trace, worth: TokenAttention, views: Sequence[str], row: str) -> Floats:
    """``[view, layer, input]``."""
    place: Any = "all" if row == "max" else asking(trace, worth)
    values = [getattr(trace, view)(query=place).values for view in views]  # each [layer, query, input]
    return np.stack([v.max(1) if row == "max" else v[:, 0] for v in values]).astype(np.float64)


def asking(trace: Trace, worth: TokenAttention) -> int:
    return query_of(trace, worth.provenance["answer"]["kind"], worth.queries[0])


def query_of(trace: Trace, kind: str, place: int | None) -> int:
    """The position whose state the answer is read from."""
    if kind in ("masked token", "next token") or trace.default_query is None:
        return place or 0
    return trace.default_query


def _why(worth: Floats) -> str:
    if len(worth) < 2:
        return ONE_TOKEN
    return SAME_WORTH if np.ptp(ranks(worth)) == 0 else SAME_ATTENTION


def _cells(
    correlations: Floats, names: Sequence[str], views: Sequence[str], reasons: Any, resamples: int, seed: int
) -> tuple[Cell, ...]:
    places = list(np.ndindex(*correlations.shape[1:]))
    columns = correlations.reshape(len(correlations), -1)
    found = []
    for (m, v, layer), column, mean in zip(places, columns.T, intervals(columns, resamples, seed), strict=True):
        there = column[np.isfinite(column)]
        sd = float(there.std(ddof=1)) if len(there) > 1 else None
        why = dict(reasons.get((m, v, layer), {}))
        found.append(Cell(names[m], views[v], int(layer), len(there), sd, mean, why))
    return tuple(found)


def _comparisons(
    correlations: Floats, names: Sequence[str], views: Sequence[str], resamples: int, seed: int
) -> tuple[Comparison, ...]:
    """Every pair of views at every layer, where they differ at all: at L1 rollout and flow are the same by definition."""
    asked = [
        (m, layer, a, b)
        for m in range(len(names))
        for layer in range(correlations.shape[3])
        for a, b in combinations(reversed(range(len(views))), 2)
    ]
    if not asked:
        return ()
    columns = np.stack([correlations[:, m, a, layer] - correlations[:, m, b, layer] for m, layer, a, b in asked], 1)
    means = intervals(columns, resamples, seed)
    p = [wilcoxon(column) for column in columns.T]
    found = []
    for (m, layer, a, b), column, mean, one, all_of in zip(asked, columns.T, means, p, holm(p), strict=True):
        n = int(np.isfinite(column).sum())
        found.append(Comparison(names[m], layer, views[a], views[b], n, mean, one, all_of))
    return tuple(found)


def _label_name(measured: Measurement, label: int | str) -> str:
    return label if isinstance(label, str) else measured.labels.get(int(label), str(label))


def _notes(measured: Measurement, present: set[str]) -> Iterator[str]:
    unknown, tokens = measured.provenance["unknown"], measured.provenance["tokens"]
    if unknown:
        yield f"{unknown} of {tokens} tokens are unknown to the model: to blank one by the unknown token changes nothing"
    if present:
        for name in measured.labels.values():
            if name not in present:
                yield f"the class {name!r} never occurs among the labels"


def _version() -> str:
    import attnflow

    return attnflow.__version__
