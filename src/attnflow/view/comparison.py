"""One text by answer edges, raw attention, rollout, flow, gradient and blank-out side by side, and how much they agree.

compare(af.load(), "the key to the cabinets").save("comparison.pdf")
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType

from attnflow.errors import InputError
from attnflow.evaluate.correlation import VIEWS
from attnflow.evaluate.importances import Importance, Report, answering_position, plan_of, worth_of
from attnflow.evaluate.statistics import rank_correlations, spearman
from attnflow.files import PICTURES, of_extension, table_text, write_whole
from attnflow.source_methods import ANSWER_WAYS
from attnflow.view.comparison_figure import shaded_lines
from attnflow.view.comparison_text import render
from attnflow.view.explain import by_reason
from attnflow.view.sheet import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow._arrays import FloatArray
    from attnflow.capture.passes import Prediction, Residual
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

FORMAT = "attnflow.Comparison"
VERSION = 4  # 1 called patches grid; 2 had no answer edges; 3 had answer_rows of every model, and signs of nothing


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What each input is to one query at one layer, and to the model's answer: ``values[method, input]``, NaN for what was
    not computed.

    methods: what the answer rests on by answer edges (`Trace.sources`: answer_inputs of a class or a masked token, where
        what is below zero speaks against the answer, or answer_rows of the next token); raw, rollout and flow; then the
        importances there are, which count by their size. Over words, answer edges and importance are the sum over their
        subwords; both are about the model's answer, whatever query and layer are.
    correlations: Spearman's of the sizes, ``[method, method]``; NaN where a row ranks nothing.
    layer: counted from 0; query: the position among the queries; place: where it stands among the inputs, None where it
        does not.
    tokens, special, parts, patches, text: the inputs, as in `TokenAttention`; words where provenance says so.
    prediction: what the model said; None where it answers nothing.
    missing: for answer edges and each importance, if there is none, why.
    sentences: of a long text with blank-out, each sentence and what the answer loses without it; None where there was no
        time to look.
    """

    methods: tuple[str, ...]
    values: FloatArray
    correlations: FloatArray
    layer: int
    query: int
    query_token: str
    place: int | None
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    text: str
    parts: tuple[str, ...] = ()
    patches: tuple[int, int] | None = None
    prediction: Prediction | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    sentences: tuple[tuple[str, float | None], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"Comparison({', '.join(self.methods)}; query {self.query_token!r}, L{self.layer + 1}; {shown!r})"

    def __rich__(self) -> RenderableType:
        return render(self)

    def row(self, method: str) -> FloatArray:
        """The values of the inputs by one method."""
        row: FloatArray = self.values[self._number(method)]
        return row

    def correlation(self, first: str, second: str) -> float:
        """Spearman's rank correlation of two methods over these inputs; NaN where there is none."""
        return float(self.correlations[self._number(first), self._number(second)])

    @property
    def importances(self) -> tuple[str, ...]:
        return tuple(method for method in self.methods if method not in (*ANSWER_WAYS, *VIEWS))

    @property
    def measure(self) -> str | None:
        """The importance that the others are compared with: blank-out, or the last one."""
        return "blank-out" if "blank-out" in self.importances else next(reversed(self.importances), None)

    @property
    def leading(self) -> str:
        """The method whose highest inputs are listed where not all can be: answer edges, or the measure."""
        return self.methods[0] if self.methods[0] in ANSWER_WAYS else self.measure or self.methods[-1]

    @property
    def against(self) -> str | None:
        """What inputs below zero do to the answer; None where there are none."""
        if float(np.nanmin(self.values)) >= 0:
            return None
        about: Mapping[str, Any] = self.provenance.get("importance", {}).get(self.methods[0], {}).get("answer") or {}
        name = repr(about["name"]) if about.get("name") else "the answer"
        return f"lower {name}" if about.get("kind") == "score" else f"speak against {name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the numbers, in sentences."""
        reasons = [f"no {names}: {why}" for names, why in by_reason(self.missing)]
        return (*self.reliability, *reasons, *([] if self.summed is None else [self.summed]))

    @property
    def reliability(self) -> tuple[str, ...]:
        """Why some of the rows must not be read as they stand, as `TokenAttention.reliability` of each tells it."""
        return tuple(self.provenance.get("reliability", ()))

    @property
    def summed(self) -> str | None:
        """How importance was merged into words: attention is merged in the graph, and importance has none."""
        if self.provenance.get("unit") != "word" or not self.importances:
            return None
        names = " and ".join(", ".join(self.importances).rsplit(", ", 1))
        return (
            f"{names} of a word: the sum over its subwords; attention adds up too, so that long words rank high in all of "
            "them"
        )

    @property
    def sections(self) -> tuple[tuple[str, range], ...]:
        """The inputs of each part of an encoder-decoder's text, source and target; otherwise all, under no name."""
        starts = [i for i in range(len(self.tokens)) if i == 0 or (self.parts and self.parts[i] != self.parts[i - 1])]
        ends = [*starts[1:], len(self.tokens)]
        return tuple((self.parts[a] if self.parts else "", range(a, b)) for a, b in zip(starts, ends, strict=True))

    def show(self, sort: str | None = None, *, file: IO[str] | None = None) -> None:
        """Print it in the terminal, or into a file; sort as in `render`."""
        Console(file=file).print(render(self, sort))

    def plot(self, width: float | None = None) -> Figure:
        """A matplotlib figure: a line of shaded tokens for each method; see `comparison_figure.shaded_lines`."""
        return shaded_lines(self, width=width)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as a .json file stores it; an undefined correlation and a value that was not computed are None."""
        answer = self.prediction
        known, values = (
            [[None if np.isnan(x) else x for x in row] for row in table.tolist()]
            for table in (self.correlations, self.values)
        )
        return {
            "format": FORMAT,
            "version": VERSION,
            "text": self.text,
            "layer": self.layer,
            "query": self.query,
            "query_token": self.query_token,
            "place": self.place,
            "tokens": list(self.tokens),
            "special": list(self.special),
            "parts": list(self.parts),
            "patches": None if self.patches is None else list(self.patches),
            "prediction": None if answer is None else {"kind": answer.kind, "top": [list(one) for one in answer.top]},
            "methods": list(self.methods),
            "values": dict(zip(self.methods, values, strict=True)),
            "correlations": {
                name: dict(zip(self.methods, row, strict=True)) for name, row in zip(self.methods, known, strict=True)
            },
            "missing": dict(self.missing),
            "sentences": [list(one) for one in self.sentences],
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, whole or not at all: .svg, .pdf and .png are `plot`, .json is everything, .csv the values.

        .csv has one row an input and one column a method, with layers counted from 1; an empty cell was not computed.
        """
        path = Path(path)
        of_extension(WRITERS, path)(self, path)

    def _number(self, method: str) -> int:
        if method not in self.methods:
            raise InputError(f"{method!r} is not in this comparison: expected one of {', '.join(self.methods)}")
        return self.methods.index(method)


def compare(
    model: Model,
    text: Any,
    *,
    query: int | str | None = None,
    layer: int = -1,
    words: bool = False,
    special: bool = True,
    residual: Residual = 0.5,
    sinks: str = "keep",
    target: str | None = None,
    truncate: bool = False,
    importance: Importance | None = None,
    of: str | None = None,
    trace: Trace | None = None,
    progress: Report = lambda stage, done, total: None,
) -> Comparison:
    """Compare what the answer takes from each token with raw attention, rollout and flow of one query at one layer, and
    with the importance of each token.

    text, target, truncate: as in `Model.trace`.
    query: its position or token; by default the position that answers ([MASK], [CLS], the last token of a decoder).
    layer: one, counted from 0; negative ones count from the last.
    words: words instead of subwords; special: whether special tokens are among the inputs.
    residual, sinks: of rollout and flow, and of raw attention, as in `Trace.rollout`.
    importance: "none"; "fast", the default: gradient, and blank-out within 20 seconds, of what answer edges rank highest
        where there is no time for all tokens; a number: the same within so many seconds; "full": both, of every token. Or
        some of gradient, blank-out, integrated-gradients, shapley, or a dict from these to their options. A model that
        answers nothing has none. `missing` says what there is not, and why.
    of: what importance is of, where its own options do not say it, as in `Model.gradient`.
    trace: of the same text, where there is one already.
    progress: called with a stage, how much of it is done and how much there is.

    >>> import attnflow as af
    >>> by_all = compare(af.load(), "the key to the cabinets", special=False)
    >>> by_all
    Comparison(answer_inputs, raw, rollout, flow, gradient, blank-out; query '[CLS]', L6; 'the key to the cabinets')
    >>> by_all.tokens[by_all.row("blank-out").argmax()]
    'key'
    """
    options = plan_of(importance)
    _check_one(query, layer)
    if trace is None:
        progress("model", 0, 1)
        trace = model.trace(text, target=target, truncate=truncate)
    worth = worth_of(model, text, trace, options, of, truncate, progress)
    groups: Sequence[Sequence[int]] = [(i,) for i in range(len(trace.tokens))]
    position = (
        answering_position(trace, next(iter(worth.importances.values())))
        if worth.importances
        else trace.default_query or 0
    )
    if words:
        whole, trace = trace, trace.words()
        groups = trace.word_groups or groups
        word_of = {position: number for number, group in enumerate(groups) for position in group}
        position = word_of[position + whole.first_query] - trace.first_query
    query = position if query is None else query
    progress("flow", 0, 1)
    results = {
        "raw": trace.raw(query, layer, sinks),
        "rollout": trace.rollout(query, layer, residual, sinks=sinks),
        "flow": trace.flow(query, layer, residual, sinks=sinks),
    }
    rows = {name: result.values[0, 0] for name, result in results.items()}
    for name, result in worth.importances.items():
        tokens = result.row() if name in ANSWER_WAYS else np.abs(result.row())
        rows[name] = np.array([tokens[list(group)].sum() for group in groups])
    methods = sorted(rows, key=lambda name: name not in ANSWER_WAYS)
    first = results["rollout"]
    keep = [i for i in range(len(first.tokens)) if special or not first.special[i]]
    if not keep:
        raise InputError(f"all {len(first.tokens)} inputs are special tokens: expected at least one that is not")
    values = np.stack([rows[name] for name in methods]).astype(np.float64)[:, keep]
    values.flags.writeable = False
    stands = first.queries[0] + trace.first_query
    own = stands in keep and first.tokens[stands] == first.query_tokens[0]  # a merged position has no token of its own
    notes = [note for result in (*worth.importances.values(), *results.values()) for note in result.reliability]
    origins = {name: _origin(result) for name, result in worth.importances.items()}
    return Comparison(
        methods=tuple(methods),
        values=values,
        correlations=_correlations(np.abs(values)),
        layer=first.layers[0],
        query=first.queries[0],
        query_token=first.query_tokens[0],
        place=keep.index(stands) if own else None,
        tokens=tuple(first.tokens[i] for i in keep),
        special=tuple(first.special[i] for i in keep),
        text=first.text,
        parts=tuple(first.parts[i] for i in keep) if first.parts else (),
        patches=first.patches,
        prediction=trace.prediction,
        missing=worth.missing,
        sentences=() if worth.sentences is None else _pairs(worth.sentences),
        provenance={
            **first.provenance,
            **({"importance": origins} if origins else {}),
            "reliability": notes,
            **({} if special else {"steps": ["without_special"]}),
        },
    )


def _correlations(values: NDArray[np.float64]) -> FloatArray:
    """Of every pair of rows, over the inputs that have both values."""
    if np.isfinite(values).all():
        return rank_correlations(values, values)
    table = np.full((len(values), len(values)), np.nan)
    for i, first in enumerate(values):
        for j, second in enumerate(values):
            both = np.isfinite(first) & np.isfinite(second)
            table[i, j] = spearman(first[both], second[both])
    return table


def _pairs(sentences: TokenAttention) -> tuple[tuple[str, float | None], ...]:
    values = [None if np.isnan(value) else value for value in sentences.row().tolist()]
    return tuple(zip(sentences.tokens, values, strict=True))


def _check_one(query: Any, layer: Any) -> None:
    if query is not None and (isinstance(query, bool) or not isinstance(query, int | np.integer | str)):
        raise InputError(f"query={query!r}: a comparison is of one query; expected its position or token")
    if query == "all":
        raise InputError("query 'all': a comparison is of one query; expected its position or token")
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise InputError(
            f"layer={layer!r}: a comparison is of one layer; expected one int, such as -1 for the last one"
        )


def _origin(result: TokenAttention) -> dict[str, Any]:
    """The settings of an importance."""
    names = ("answer", "by", "signed", "reduce", "of", "steps", "samples", "seed", "computed")
    return {name: result.provenance[name] for name in names if name in result.provenance}


def _write_json(comparison: Comparison, path: Path) -> None:
    text = json.dumps(comparison.to_dict(), allow_nan=False) + "\n"
    write_whole(path, lambda beside: beside.write_text(text, encoding="ascii"))


def _write_csv(comparison: Comparison, path: Path) -> None:
    own = [comparison.layer + 1, comparison.query, table_text(comparison.query_token)]
    parts = comparison.parts or [""] * len(comparison.tokens)

    def write(beside: Path) -> None:
        with beside.open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file)
            out.writerow(["layer", "query", "query_token", "input", "token", "special", "part", *comparison.methods])
            for i, (token, special, part) in enumerate(zip(comparison.tokens, comparison.special, parts, strict=True)):
                labels = [i, table_text(token), str(special).lower(), table_text(part)]
                values = ["" if np.isnan(x) else x for x in comparison.values[:, i].tolist()]
                out.writerow([*own, *labels, *values])

    write_whole(path, write)


def _draw(comparison: Comparison, path: Path) -> None:
    save(comparison.plot(), path)


WRITERS = {**dict.fromkeys(PICTURES, _draw), ".json": _write_json, ".csv": _write_csv}
