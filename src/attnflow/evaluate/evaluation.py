"""The results of every method on every text by every metric, with statistics, tables and files."""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from rich.console import Console, Group

from attnflow.errors import InputError
from attnflow.evaluate import evaluation_files, ranking
from attnflow.evaluate.evaluation_tables import tables
from attnflow.evaluate.recommend import Recommendation, recommend, table_of
from attnflow.evaluate.statistics import Floats, Interval, effect, holm, intervals, rank_correlations, wilcoxon

if TYPE_CHECKING:
    import pandas

DIGITS = 6
SIDES = ("deleted", "kept")
"""The two sides of a curve."""


@dataclass(frozen=True)
class Cell:
    """One method by one metric: mean and standard deviation over n samples, and why other samples have no value.

    layer: from 0; None in a grid, which uses the last layer.
    """

    metric: str
    method: str
    layer: int | None
    n: int
    sd: float | None
    mean: Interval | None
    without: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Two methods by one metric: the mean of their differences, first minus second, over samples.

    about: what the two differ in, see `attnflow.evaluate.ranking.pairs`.
    effect: the matched-pairs rank-biserial correlation, positive if the first is better.
    p: of Wilcoxon's signed-rank test.
    adjusted: p after Holm's correction; in a grid for all comparisons about the same thing by this metric, otherwise
        for all comparisons.
    """

    metric: str
    layer: int | None
    first: str
    second: str
    about: str
    n: int
    difference: Interval | None
    effect: float | None
    p: float | None
    adjusted: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Every method on every text by every metric, with NaN for missing values.

    methods: each a mapping with name, kind ("paper", "edges", "importance" or "baseline"), edges, normalize,
        propagation and receptive_field; the last four are None if they do not apply.
    metrics: from a name ("blank-out", "comprehensiveness (mask)") to "higher" or "lower", whichever is better.
    values: ``[sample, method, metric]``; a method's correlation with itself is NaN.
    agreement: ``[method, method]``, the mean rank correlation over samples.
    layers: the number of layers each propagation is measured at: the methods are then ``[propagation, layer]``. None in
        a grid.
    curves: from a deletion ("mask", "unk", "remove") to probabilities ``[sample, method, deleted or kept, step]``.
    seconds: ``[sample, method]``.
    pass_seconds: ``[sample]``, for one forward and backward pass.
    without: by the numbers of a method and a metric, why samples have no value, and how many.
    accuracy: of the model on these texts, if there are labels.
    notes: other things that a reader must know.
    resamples, seed: of the bootstrap.
    """

    methods: tuple[Mapping[str, Any], ...]
    metrics: Mapping[str, str]
    values: Floats
    agreement: Floats
    provenance: Mapping[str, Any]
    layers: int | None = None
    curves: Mapping[str, Floats] = field(default_factory=dict)
    seconds: Floats | None = None
    pass_seconds: Floats | None = None
    without: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    accuracy: float | None = None
    notes: tuple[str, ...] = ()
    resamples: int = 2000
    seed: int = 0

    @property
    def recommendation(self) -> str | None:
        """One sentence that says which method to use on these texts, or why that is undecided.

        See `attnflow.evaluate.recommend`. None for an evaluation of layers, and for a grid without deletion and
        blank-out, or without methods or baselines.
        """
        return None if self._recommendation is None else self._recommendation.sentence

    @cached_property
    def _recommendation(self) -> Recommendation | None:
        if self.layers:
            return None
        needs_scipy()
        seconds, costs = (
            np.array([np.nan if (x := _over_samples(np.median, own)) is None else x for own in table.T])
            for table in self._times
        )
        draws = {"resamples": self.resamples, "seed": self.seed}
        table = table_of(self.methods, self.metrics, self.values, seconds, costs, **draws)
        return None if table is None else recommend(table)

    @property
    def _times(self) -> tuple[Floats, Floats]:
        """Return seconds and passes of the model, ``[sample, method]``, NaN if they were not measured."""
        unknown = np.full(self.values.shape[:2], np.nan)
        seconds = unknown if self.seconds is None else self.seconds
        return seconds, unknown if self.pass_seconds is None else seconds / self.pass_seconds[:, None]

    @property
    def samples(self) -> int:
        return len(self.values)

    @property
    def excluded(self) -> Mapping[str, int]:
        """Why texts were left out, and how many."""
        excluded: Mapping[str, int] = self.provenance.get("excluded", {})
        return excluded

    @property
    def importances(self) -> tuple[str, ...]:
        """The metrics that are rank correlations with an importance."""
        return tuple(name for name in self.metrics if "(" not in name)

    @property
    def views(self) -> tuple[str, ...]:
        """The methods, each once for all of its layers."""
        return tuple(dict.fromkeys(map(self._name, range(len(self.methods)))))

    @property
    def correlations(self) -> Floats:
        """``[sample, importance, view, layer]``, NaN for missing values."""
        own = np.moveaxis(self.values[:, :, : len(self.importances)], 2, 1)
        return own.reshape(*own.shape[:2], -1, self.layers or 1)

    def cell(self, metric: str, method: str, layer: int | None = None) -> Cell:
        """Return one cell. layer: from 0; None in a grid."""
        for cell in self.cells:
            if (cell.metric, cell.method, cell.layer) == (metric, method, layer):
                return cell
        raise InputError(f"there is no cell {metric!r}, {method!r} at layer {layer}")

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """One cell for each metric and method."""
        cells = []
        for k, m, column, mean in self._columns(self.values):
            there = column[np.isfinite(column)]
            sd = float(there.std(ddof=1)) if len(there) > 1 else None
            why = dict(self.without.get((m, k), {}))
            cells.append(Cell(self._metrics[k], self._name(m), self._layer(m), len(there), sd, mean, why))
        return tuple(cells)

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons of `ranking.pairs` for each metric; with layers, of every two methods at every layer."""
        needs_scipy()
        pairs = list(self._layer_pairs() if self.layers else ranking.pairs(self.methods))
        if not pairs:
            return ()
        abouts, first, second = map(list, zip(*pairs, strict=True))
        rows = list(self._columns(self.values[:, first] - self.values[:, second]))
        p: list[float | None] = []
        tested: dict[tuple[int, int, int], float | None] = {}  # two methods may differ in several things
        families: dict[tuple[int, str] | None, list[int]] = {}
        for i, (k, pair, column, _) in enumerate(rows):
            key = k, first[pair], second[pair]
            if key not in tested:
                tested[key] = wilcoxon(self._up[k] * column)
            p.append(tested[key])
            families.setdefault(None if self.layers else (k, abouts[pair]), []).append(i)
        adjusted: dict[int, float | None] = {}
        for members in families.values():
            adjusted.update(zip(members, holm([p[i] for i in members]), strict=True))
        return tuple(
            Comparison(
                self._metrics[k], self._layer(first[pair]), self._name(first[pair]), self._name(second[pair]),
                abouts[pair], int(np.isfinite(column).sum()), mean, effect(self._up[k] * column), p[i], adjusted[i],
            )
            for i, (k, pair, column, mean) in enumerate(rows)
        )  # fmt: skip

    def _columns(self, table: Floats) -> Iterator[tuple[int, int, Floats, Interval | None]]:
        """Yield each column of ``table[sample, number, metric]`` with its metric, number and interval, by metric.

        `intervals` is called once per metric to bound the memory of a grid; the few columns of layers go together.
        """
        every = list(range(len(self.metrics)))
        for metrics in [every] if self.layers else [[k] for k in every]:
            columns = np.moveaxis(table[:, :, metrics], 2, 1).reshape(len(table), -1)  # [sample, metric · number]
            places = [(k, number) for k in metrics for number in range(table.shape[1])]
            means = intervals(columns, self.resamples, self.seed)
            yield from ((*place, column, mean) for place, column, mean in zip(places, columns.T, means, strict=True))

    def _name(self, method: int) -> str:
        return str(self.methods[method]["propagation" if self.layers else "name"])

    def _layer(self, method: int) -> int | None:
        return method % self.layers if self.layers else None

    def _layer_pairs(self) -> Iterator[tuple[str, int, int]]:
        count = self.layers or 1
        for layer in range(count):
            for a, b in combinations(reversed(range(len(self.methods) // count)), 2):
                yield "propagation", a * count + layer, b * count + layer

    @property
    def _metrics(self) -> list[str]:
        return list(self.metrics)

    @property
    def _up(self) -> list[float]:
        """For each metric the factor that makes higher better."""
        return [1.0 if way == "higher" else -1.0 for way in self.metrics.values()]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return everything that tables and files show, as JSON-compatible data.

        Floats have six digits; missing values are null.
        """
        needs_scipy()
        names = [method["name"] for method in self.methods]
        places = [(k, m) for k in range(len(self.metrics)) for m in range(len(names))]
        cells = [
            {"method": names[m], "metric": cell.metric, "n": cell.n, **_sides(cell.mean), "sd": cell.sd}
            for (_, m), cell in zip(places, self.cells, strict=True)
        ]
        tests = [
            {
                "metric": c.metric, "first": _at(c.first, c.layer), "second": _at(c.second, c.layer), "about": c.about,
                "n": c.n, **_sides(c.difference, "difference"), "effect": c.effect, "p": c.p, "adjusted": c.adjusted,
            }
            for c in self.comparisons
        ]  # fmt: skip
        seconds, costs = self._times
        methods = [
            {**method, "seconds": _over_samples(np.median, own), "cost": _over_samples(np.median, cost)}
            for method, own, cost in zip(self.methods, seconds.T, costs.T, strict=True)
        ]
        ahead = ranking.ahead(self.methods, self._metrics, tests)
        curves = {
            by: {
                name: {side: [_over_samples(np.mean, v) for v in table[:, m, s].T] for s, side in enumerate(SIDES)}
                for m, name in enumerate(names)
            }
            for by, table in self.curves.items()
        }
        plain: dict[str, Any] = _rounded({
            "samples": self.samples, "recommendation": self.recommendation,
            "recommended": self._recommendation and self._recommendation.method,
            "methods": methods,
            "metrics": [{"name": name, "better": way} for name, way in self.metrics.items()],
            "cells": cells, "tests": tests, "ahead": ahead, "needed": ranking.needed(self.methods),
            "ahead_of_all": ranking.ahead_of_all(ahead, methods),
            "curves": curves, "agreement": self.agreement, "provenance": self.provenance,
        })  # fmt: skip
        return plain

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the single values, as in a .json file: for a grid its `summary`; layers count from 1."""
        if not self.layers:
            return self.summary
        cells = [
            {
                "importance": c.metric, "view": c.method, "layer": (c.layer or 0) + 1, "n": c.n, "sd": c.sd,
                "mean": c.mean and asdict(c.mean), "without": dict(c.without),
            }
            for c in self.cells
        ]  # fmt: skip
        comparisons = [
            {
                "importance": c.metric, "layer": (c.layer or 0) + 1, "first": c.first, "second": c.second, "n": c.n,
                "difference": c.difference and asdict(c.difference), "p": c.p, "adjusted": c.adjusted,
            }
            for c in self.comparisons
        ]  # fmt: skip
        provenance = {name: value for name, value in self.provenance.items() if name != "excluded"}
        return {
            "samples": self.samples, "excluded": dict(self.excluded), "accuracy": self.accuracy,
            "notes": list(self.notes), "provenance": provenance, "cells": cells, "comparisons": comparisons,
        }  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for every cell: metric, method, layer (from 1), n, mean, low, high, sd. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas() needs pandas, which is not installed: pip install pandas") from None
        rows = [
            {
                "metric": c.metric, "method": c.method, **({} if c.layer is None else {"layer": c.layer + 1}), "n": c.n,
                **_sides(c.mean), "sd": c.sd,
            }
            for c in self.cells
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        where = f" at {self.layers} layers" if self.layers else ""
        texts = f"{self.samples} text{'s' * (self.samples != 1)}"
        return f"Evaluation({len(self.views)} methods{where} by {len(self.metrics)} metrics, {texts})"

    def __rich__(self) -> Group:
        return Group(*tables(self))

    def _repr_html_(self) -> str:
        console = Console(record=True, width=120, file=io.StringIO())
        console.print(*tables(self), sep="\n\n")
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def show(self, *, file: TextIO | None = None) -> None:
        """Print the tables in the terminal, or into a file."""
        Console(file=file).print(*tables(self), sep="\n\n")

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the evaluation and return the paths written. Each file is written atomically.

        .json is `to_dict`, with the cells and tests of a grid as fields and rows; .csv has a row for every single
        value. A path without an extension is a folder for both.
        """
        path = Path(path)
        if path.suffix and not path.is_dir():
            return evaluation_files.write(self, path)
        return evaluation_files.write_folder(self, path)


def correlated(scores: Sequence[Floats], ties: str = "mean") -> tuple[Floats, Floats]:
    """Return the rank correlations of all methods within each text, ``[sample, method, method]``, and their means.

    scores: for each text ``[method, token]``.
    ties: as in `spearman`.
    """
    every = np.stack([rank_correlations(own, own, ties) for own in scores])
    there = np.isfinite(every)
    counts = there.sum(0)
    return every, np.where(there, every, 0).sum(0) / np.where(counts, counts, np.nan)


def needs_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise InputError("evaluation needs scipy for its tests: pip install 'attnflow[models]'")


def _at(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name} L{layer + 1}"


def _sides(mean: Interval | None, name: str = "mean") -> dict[str, float | None]:
    return dict(zip((name, "low", "high"), (None,) * 3 if mean is None else astuple(mean), strict=True))


def _over_samples(average: Any, column: Floats) -> float | None:
    """Return the average over the samples that have a value."""
    there = column[np.isfinite(column)]
    return float(average(there)) if len(there) else None


def _rounded(value: Any) -> Any:
    """Return a JSON value: floats have six digits, None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _rounded(own) for name, own in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [_rounded(own) for own in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    return value
