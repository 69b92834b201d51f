"""Comparison of answer edges, raw attention, rollout, flow, gradient and blank-out on one text, and their agreement.

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
from attnflow.evaluate.importances import Importance, Report, answering_position, by_reason, plan_of, worth_of
from attnflow.evaluate.statistics import rank_correlations, spearman
from attnflow.files import PICTURES, of_extension, table_text, write_whole
from attnflow.source_methods import ANSWER_WAYS
from attnflow.view.comparison_figure import shaded_lines
from attnflow.view.comparison_text import render
from attnflow.view.figure import same_tokens
from attnflow.view.image_figure import method_maps
from attnflow.view.sheet import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow._arrays import FloatArray
    from attnflow.capture.passes import Prediction
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

FORMAT = "attnflow.Comparison"
VERSION = 4  # 1 called patches grid; 2 had no answer edges; 3 had answer_rows for every model, without signs


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A comparison of methods on one text, for one query at one layer and for the model's answer.

    methods: answer edges (`Trace.sources`: answer_inputs for a class or a masked token, where values below zero count
        against the answer, or answer_rows for the next token); raw, rollout and flow; then the computed importances, as
        absolute values. Answer edges and importance are about the model's answer and do not depend on query and layer. For
        words, they are summed over subwords.
    values: ``[method, input]``; NaN if not computed.
    correlations: Spearman's rank correlations of the absolute values, ``[method, method]``; NaN if undefined. For an image,
        over its patches.
    layer: counted from 0.
    query: the position among the queries.
    place: its position among the inputs, or None.
    tokens, special, parts, patches, text: the inputs, as in `TokenAttention`; words if provenance says so.
    prediction: the model's prediction; None if it has none.
    missing: why answer edges or an importance are missing, by name.
    sentences: for a long text with blank-out, each sentence and how much the answer loses without it; None if there was
        no time to compute it.
    image: for an image, what the model saw, as in `TokenAttention`; for pictures, and not saved.
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
    image: FloatArray | None = None

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"Comparison({', '.join(self.methods)}; query {self.query_token!r}, L{self.layer + 1}; {shown!r})"

    def __rich__(self) -> RenderableType:
        return render(self)

    def row(self, method: str) -> FloatArray:
        """Return the values of the inputs by one method."""
        row: FloatArray = self.values[self._number(method)]
        return row

    def correlation(self, first: str, second: str) -> float:
        """Return Spearman's rank correlation of two methods over the inputs; NaN if it is undefined."""
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
        """The method that selects which inputs a long table lists: answer edges, or the measure."""
        return self.methods[0] if self.methods[0] in ANSWER_WAYS else self.measure or self.methods[-1]

    @property
    def against(self) -> str | None:
        """What values below zero mean for the answer; None if there are none."""
        if float(np.nanmin(self.values)) >= 0:
            return None
        about: Mapping[str, Any] = self.provenance.get("importance", {}).get(self.methods[0], {}).get("answer") or {}
        name = repr(about["name"]) if about.get("name") else "the answer"
        return f"lower {name}" if about.get("kind") == "score" else f"count against {name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the numbers, as sentences."""
        reasons = [f"no {names}: {why}" for names, why in self.reasons]
        return (*self.reliability, *reasons, *([] if self.summed is None else [self.summed]))

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """What is missing, and why: (names, reason)."""
        return by_reason(self.missing)

    @property
    def reliability(self) -> tuple[str, ...]:
        """Why some rows are not reliable: the notes of `TokenAttention.reliability` for each row."""
        return tuple(self.provenance.get("reliability", ()))

    @property
    def summed(self) -> str | None:
        """How importance was merged into words. Attention is merged in the graph instead."""
        if self.provenance.get("unit") != "word" or not self.importances:
            return None
        names = " and ".join(", ".join(self.importances).rsplit(", ", 1))
        return (
            f"{names} of a word are sums over its subwords; attention adds up too, so long words rank high everywhere"
        )

    @property
    def sections(self) -> tuple[tuple[str, range], ...]:
        """The inputs of each part of an encoder-decoder's text, source and target; otherwise one unnamed section."""
        starts = [i for i in range(len(self.tokens)) if i == 0 or (self.parts and self.parts[i] != self.parts[i - 1])]
        ends = [*starts[1:], len(self.tokens)]
        return tuple((self.parts[a] if self.parts else "", range(a, b)) for a, b in zip(starts, ends, strict=True))

    def show(self, *, file: IO[str] | None = None) -> None:
        """Print the comparison in the terminal or to a file."""
        Console(file=file).print(render(self))

    def plot(self, width: float | None = None, *, image: Any = None) -> Figure:
        """Return a matplotlib figure with a line of shaded tokens per method (see `comparison_figure.shaded_lines`), or for
        an image a map of its patches per method (`image_figure.method_maps`).

        image: as in `TokenAttention.overlay`; by default the one that the model saw.
        """
        if self.patches is not None:
            return method_maps(self, width, image)
        if image is not None:
            raise InputError("image= for a comparison of a text: expected one of an image; leave it out")
        return shaded_lines(self, width=width)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of a .json file. Undefined correlations and values that were not computed are None."""
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
        """Save as .svg, .pdf or .png (the figure of `plot`), .json (everything) or .csv (the values). Writes are atomic.

        .csv has one row per input and one column per method. Layers are counted from 1; empty cells were not computed.
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
    residual: float = 0.5,
    target: str | None = None,
    truncate: bool = False,
    importance: Importance | None = None,
    of: str | None = None,
    trace: Trace | None = None,
    progress: Report = lambda stage, done, total: None,
) -> Comparison:
    """Compare answer edges, raw attention, rollout, flow and the importance of each token, for one query at one layer.

    text, target, truncate: as in `Model.trace`.
    query: its position or token; by default, the position that answers ([MASK], [CLS], the last token of a decoder).
    layer: one layer, counted from 0; negative numbers count from the last.
    words: whether to merge subwords into words.
    special: whether to include special tokens.
    residual: as in `Trace.rollout`.
    importance: "none"; "fast" (the default): gradient, and blank-out for up to 20 seconds, starting with the tokens that
        answer edges rank highest; a number of seconds: the same with this limit; "full": both for every token. Or a list of
        gradient, blank-out, integrated-gradients and shapley, or a dict from these to their options. Models without an
        answer have no importance. `missing` says what is missing, and why.
    of: what importance measures, unless its options say so, as in `Model.gradient`.
    trace: an existing trace of the same text.
    progress: called with a stage, the number of finished steps and the total.

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
    pooled = query is None and not worth.importances and trace.pooled is not None
    if words:
        whole, trace = trace, trace.words()
        groups = trace.word_groups or groups
        word_of = {position: number for number, group in enumerate(groups) for position in group}
        position = word_of[position + whole.first_query] - trace.first_query
    query = position if query is None and not pooled else query
    progress("flow", 0, 1)
    results = {
        "raw": trace.raw(query, layer),
        "rollout": trace.rollout(query, layer, residual),
        "flow": trace.flow(query, layer, residual),
    }
    rows = {name: result.values[0, 0] for name, result in results.items()}
    for name, result in worth.importances.items():
        tokens = result.row() if name in ANSWER_WAYS else np.abs(result.row())
        rows[name] = np.array([tokens[list(group)].sum() for group in groups])
    methods = sorted(rows, key=lambda name: name not in ANSWER_WAYS)
    first = results["rollout"]
    keep = [i for i in range(len(first.tokens)) if special or not first.special[i]]
    if not keep:
        raise InputError(f"all {len(first.tokens)} inputs are special tokens: expected at least one other token")
    values = np.stack([rows[name] for name in methods]).astype(np.float64)[:, keep]
    values.flags.writeable = False
    # class tokens of an image have no pixels, so they have no importance that attention could be compared with
    compared = [i for i, place in enumerate(keep) if first.patches is None or not first.special[place]]
    stands = first.queries[0] + trace.first_query
    own = stands in keep and first.tokens[stands] == first.query_tokens[0]  # a merged position has no token
    notes = [note for result in (*worth.importances.values(), *results.values()) for note in result.reliability]
    origins = {name: _origin(result) for name, result in worth.importances.items()}
    return Comparison(
        methods=tuple(methods),
        values=values,
        correlations=_correlations(np.abs(values[:, compared])),
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
        image=first.image,
    )


def of_results(results: Mapping[str, TokenAttention], *, query: int | str | None = None, layer: int = -1) -> Comparison:
    """Return the comparison of results by name, for one query at one layer, without a model.

    results: results of one text, such as those of `attnflow.token_attention` or of files.
    query, layer: as in `TokenAttention.row`.

    >>> import numpy as np
    >>> from attnflow import token_attention
    >>> weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 3))
    >>> of_results({m: token_attention(weights, ["the", "old", "key"], m) for m in ("raw", "flow")})
    Comparison(raw, flow; query 'the', L2; 'the old key')
    """
    first = same_tokens(results)
    rows = np.stack([result.row(query, layer) for result in results.values()]).astype(np.float64)
    rows.flags.writeable = False
    level, number = first.where(query, layer)
    token, position = first.query_tokens[number], first.queries[number]
    stands = position < len(first.tokens) and first.tokens[position] == token
    return Comparison(
        methods=tuple(results), values=rows, correlations=_correlations(np.abs(rows)), layer=first.layers[level],
        query=position, query_token=token, place=position if stands else None, tokens=first.tokens,
        special=first.special, text=first.text, parts=first.parts, patches=first.patches,
        missing=dict.fromkeys(("gradient", "blank-out"), "there is no model"),
        provenance={
            **first.provenance, "reliability": [note for result in results.values() for note in result.reliability],
        },
    )  # fmt: skip


def _correlations(values: NDArray[np.float64]) -> FloatArray:
    """Return the rank correlation of every pair of rows, over the inputs that have both values."""
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
        raise InputError(f"query={query!r}: a comparison has one query; expected its position or token")
    if query == "all":
        raise InputError("query 'all': a comparison has one query; expected its position or token")
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise InputError(f"layer={layer!r}: a comparison has one layer; expected an int, such as -1 for the last")


def _origin(result: TokenAttention) -> dict[str, Any]:
    """Return the settings of an importance."""
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
