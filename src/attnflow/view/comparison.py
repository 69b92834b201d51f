"""One text by raw attention, rollout, flow, gradient and blank-out side by side, and how much they agree.

compare(af.load(), "the key to the cabinets").save("comparison.pdf")
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from attnflow.errors import InputError
from attnflow.evaluate.correlation import VIEWS
from attnflow.evaluate.importances import answering_position, importances_of, options_of
from attnflow.evaluate.statistics import rank_correlations
from attnflow.files import PICTURES, of_extension, table_text, write_whole
from attnflow.view import terminal
from attnflow.view.colour import shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.model import Model
    from attnflow.result import FloatArray, TokenAttention
    from attnflow.trace import Prediction, Trace

FORMAT = "attnflow.Comparison"
VERSION = 2  # 1 called patches grid
SENTENCE = terminal.SENTENCE // 2  # tokens: they are printed once for every method


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What each input is to one query at one layer, and to the model's answer: ``values[method, input]``.

    methods: raw, rollout and flow, then the importances there are. Importance counts by its size, and over words it is the
        sum over their subwords; it is about the model's answer, whatever query and layer are.
    correlations: Spearman's, ``[method, method]``; NaN where a row ranks nothing.
    layer: counted from 0; query: the position among the queries; place: where it stands among the inputs, None where it
        does not.
    tokens, special, parts, patches, text: the inputs, as in `TokenAttention`; words where provenance says so.
    prediction: what the model said; None where it answers nothing.
    missing: for each importance that there is not, why.
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
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"Comparison({', '.join(self.methods)}; query {self.query_token!r}, L{self.layer + 1}; {shown!r})"

    def __rich__(self) -> ComparisonView:
        return render(self)

    def row(self, method: str) -> FloatArray:
        """What each input has by one method."""
        row: FloatArray = self.values[self._number(method)]
        return row

    def correlation(self, first: str, second: str) -> float:
        """Spearman's rank correlation of two methods over these inputs; NaN where there is none."""
        return float(self.correlations[self._number(first), self._number(second)])

    @property
    def importances(self) -> tuple[str, ...]:
        return self.methods[len(VIEWS) :]

    @property
    def measure(self) -> str | None:
        """The importance that others are held against: blank-out, or the last there is."""
        return "blank-out" if "blank-out" in self.importances else next(reversed(self.importances), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the numbers, in sentences."""
        told = []
        for why in dict.fromkeys(self.missing.values()):
            told.append(f"no {' and no '.join(name for name in self.missing if self.missing[name] == why)}: {why}")
        return (*told, *([] if self.summed is None else [self.summed]))

    @property
    def summed(self) -> str | None:
        """Of words, how importance was merged: views are merged in the graph, and importance has none."""
        if self.provenance.get("unit") != "word" or not self.importances:
            return None
        return (
            f"{_listed(self.importances)} of a word: the sum over its subwords; the views add up too, so that long words "
            "rank high in all of them"
        )

    @property
    def sections(self) -> tuple[tuple[str, range], ...]:
        """The inputs of each part of an encoder-decoder's text, source and target; otherwise all, under no name."""
        starts = [i for i in range(len(self.tokens)) if i == 0 or (self.parts and self.parts[i] != self.parts[i - 1])]
        ends = [*starts[1:], len(self.tokens)]
        return tuple((self.parts[a] if self.parts else "", range(a, b)) for a, b in zip(starts, ends, strict=True))

    def show(self, sort: str | None = None, *, file: Any = None) -> None:
        """Print it in the terminal, or into a file; sort as in `render`."""
        Console(file=file).print(render(self, sort))

    def plot(self, width: float | None = None) -> Figure:
        """A matplotlib figure: a line of shaded tokens for each method; see `attnflow.view.figure.shaded_lines`."""
        from attnflow.view.figure import shaded_lines

        return shaded_lines(self, width=width)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as a .json file holds it; a correlation that there is not is None."""
        said = self.prediction
        known = [[None if np.isnan(rho) else rho for rho in row] for row in self.correlations.tolist()]
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
            "prediction": None if said is None else {"kind": said.kind, "top": [list(one) for one in said.top]},
            "methods": list(self.methods),
            "values": dict(zip(self.methods, self.values.tolist(), strict=True)),
            "correlations": {
                name: dict(zip(self.methods, row, strict=True)) for name, row in zip(self.methods, known, strict=True)
            },
            "missing": dict(self.missing),
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, whole or not at all: .svg, .pdf and .png are `plot`, .json is all of it, .csv the values.

        .csv has one row an input and one column a method, with layers counted from 1.
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
    importance: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("gradient", "blank-out"),
    trace: Trace | None = None,
) -> Comparison:
    """The text by raw attention, rollout and flow for one query at one layer, beside what each token is worth.

    text, target, truncate: as in `Model.trace`.
    query: its position or token; by default the position that answers ([MASK], [CLS], the last token of a decoder).
    layer: one, counted from 0; negative ones count from the last.
    words: words instead of subwords; special: whether special tokens are among the inputs.
    residual: the weight of the residual connection, in rollout and flow.
    importance: some of gradient, blank-out, integrated-gradients, shapley; or a dict from these to their options. A model
        that answers nothing has none: the comparison then holds the three views, and `missing` says why.
    trace: of the same text, where there is one already.

    >>> import attnflow as af
    >>> found = compare(af.load(), "the key to the cabinets", special=False)
    >>> found
    Comparison(raw, rollout, flow, gradient, blank-out; query '[CLS]', L6; 'the key to the cabinets')
    >>> found.tokens[found.row("blank-out").argmax()]
    'key'
    """
    options = options_of(importance)
    _check_one(query, layer)
    if trace is None:
        trace = model.trace(text, target=target, truncate=truncate)
    worth, missing = importances_of(model, text, trace, options, truncate)
    groups: Sequence[Sequence[int]] = [(i,) for i in range(len(trace.tokens))]
    asks = answering_position(trace, next(iter(worth.values()))) if worth else trace.default_query or 0
    if words:
        whole, trace = trace, trace.words()
        groups = trace.word_groups or groups
        of = {position: number for number, group in enumerate(groups) for position in group}
        asks = of[asks + whole.first_query] - trace.first_query
    asked: int | str = asks if query is None else query
    views = {
        "raw": trace.raw(asked, layer),
        "rollout": trace.rollout(asked, layer, residual),
        "flow": trace.flow(asked, layer, residual),
    }
    rows = [result.values[0, 0] for result in views.values()]
    rows += [np.array([sum(np.abs(r.row())[list(group)]) for group in groups]) for r in worth.values()]
    first = views["rollout"]
    keep = [i for i in range(len(first.tokens)) if special or not first.special[i]]
    if not keep:
        raise InputError(f"all {len(first.tokens)} inputs are special tokens: expected at least one that is not")
    values = np.stack(rows).astype(np.float64)[:, keep]
    values.flags.writeable = False
    stands = first.queries[0] + trace.first_query
    own = stands in keep and first.tokens[stands] == first.query_tokens[0]  # a merged position has no token of its own
    told = {"importance": {name: _told(result) for name, result in worth.items()}} if worth else {}
    return Comparison(
        methods=(*views, *worth),
        values=values,
        correlations=rank_correlations(values, values),
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
        missing=missing,
        provenance={**first.provenance, **told, **({} if special else {"steps": ["without_special"]})},
    )


def _check_one(query: Any, layer: Any) -> None:
    if query is not None and (isinstance(query, bool) or not isinstance(query, int | np.integer | str)):
        raise InputError(f"query={query!r}: a comparison is of one query; expected its position or token")
    if query == "all":
        raise InputError("query 'all': a comparison is of one query; expected its position or token")
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise InputError(
            f"layer={layer!r}: a comparison is of one layer; expected one int, such as -1 for the last one"
        )


def _told(result: TokenAttention) -> dict[str, Any]:
    """Of an importance, what it was of and by."""
    told = ("answer", "by", "signed", "reduce", "of", "steps", "samples", "seed")
    return {name: result.provenance[name] for name in told if name in result.provenance}


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _write_json(found: Comparison, path: Path) -> None:
    told = json.dumps(found.to_dict(), allow_nan=False) + "\n"
    write_whole(path, lambda beside: beside.write_text(told, encoding="ascii"))


def _write_csv(found: Comparison, path: Path) -> None:
    def write(beside: Path) -> None:
        with beside.open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file)
            out.writerow(["layer", "query", "query_token", "input", "token", "special", "part", *found.methods])
            for i, token in enumerate(found.tokens):
                marks = [str(found.special[i]).lower(), table_text(found.parts[i]) if found.parts else ""]
                own = [found.layer + 1, found.query, table_text(found.query_token), i, table_text(token)]
                out.writerow([*own, *marks, *found.values[:, i].tolist()])

    write_whole(path, write)


def _draw(found: Comparison, path: Path) -> None:
    from attnflow.view.sheet import save

    save(found.plot(), path)


WRITERS = {**dict.fromkeys(PICTURES, _draw), ".json": _write_json, ".csv": _write_csv}


def render(found: Comparison, sort: str | None = None, width: int | None = None) -> ComparisonView:
    """What rich prints: the tokens shaded by each method, a table of the numbers, and the rank correlations.

    Shades go from the lowest value of a method to its highest. Of more than 60 inputs the table has the 20 highest.

    sort: a method, whose highest are at the top; otherwise the table is in the order of the text.
    width: the columns to use at most; all that the terminal has, if not given.
    """
    terminal.check_width(width)
    if sort is not None and sort not in found.methods:
        raise InputError(f"sort {sort!r}: expected one of {', '.join(found.methods)}")
    return ComparisonView(found, sort, width)


@dataclass(frozen=True)
class ComparisonView:
    """A comparison, which takes its shape only when a console prints it."""

    found: Comparison
    sort: str | None
    width: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        page = terminal.page_of(console, options, self.width)
        yield from console.render(Group(*self._lines(page)), options.update(width=page.width))

    def _lines(self, page: terminal.Page) -> Iterator[Text]:
        found = self.found
        if found.prediction is not None:
            answers = ", ".join(f"{name!r} {chance:.3f}" for name, chance in found.prediction.top[:3])
            yield Text(page.shown(f"{found.prediction.kind}: {answers}"))
        model = found.provenance.get("model")
        unit = " (words)" if found.provenance.get("unit") == "word" else ""
        named = ([] if model is None else [page.shown(str(model))]) + [
            f"comparison{unit}",
            f"query {page.shown(found.query_token)}",
            f"L{found.layer + 1}",
        ]
        yield Text((" · " if page.blocks else " | ").join(named), style="bold")
        strange = terminal.unknown(found)
        if strange:
            yield Text("unknown to the model: " + page.shown(", ".join(strange)))
        yield from _sentences(found, page) if found.patches is None else _maps(found, page)
        yield terminal.ramp("lowest", "highest of each method", page)
        yield Text()
        yield from _table(found, self.sort, page)
        yield Text()
        yield from _agreement(found, page)
        for note in found.notes:
            yield Text(page.shown(note))


def _sentences(found: Comparison, page: terminal.Page) -> Iterator[Text]:
    """The tokens once for each method; without colours once, with shades below for each method."""
    front = max(map(len, found.methods)) + 2
    room = max(page.width - front, 1)
    tokens = [page.shown(token) for token in found.tokens[:SENTENCE]]
    tokens = [page.fitted(t, min(cell_len(t), terminal.TOKEN_CELLS, room)) for t in tokens]
    shade = [shares(row).tolist() for row in found.values]
    for name, section in found.sections:
        if name and section[0] < len(tokens):
            yield Text(page.shown(name))
        cells = [cell_len(tokens[i]) for i in section if i < len(tokens)]
        for number, line in enumerate(_wrapped(cells, room)):
            if number:
                yield Text()
            yield from _block(found.methods, tokens, shade, [section[i] for i in line], front, page)
    if len(found.tokens) > SENTENCE:
        yield Text(f"and {len(found.tokens) - SENTENCE:,} more")


def _block(
    methods: Sequence[str],
    tokens: Sequence[str],
    shade: Sequence[Sequence[float]],
    which: Sequence[int],
    front: int,
    page: terminal.Page,
) -> Iterator[Text]:
    """Some tokens that stand on one line, by all methods."""
    if not page.coloured:
        yield _cropped(Text(" " * front + " ".join(tokens[i] for i in which)))
    for name, of in zip(methods, shade, strict=True):
        line = Text(f"{name:<{front}}")
        for i in which:
            line.append("" if i == which[0] else " ")
            if page.coloured:
                line.append(tokens[i], terminal.shade(of[i]))
            else:
                line.append(terminal.character(of[i], page) * cell_len(tokens[i]))
        line.rstrip()
        yield _cropped(line)


def _maps(found: Comparison, page: terminal.Page) -> Iterator[Text]:
    """The patches of an image, once for each method."""
    rows, columns = found.patches or (0, 0)
    for name, row in zip(found.methods, found.values, strict=True):
        yield Text(name)
        yield from terminal.patch_lines(row[-rows * columns :].reshape(rows, columns), page)


def _wrapped(cells: Sequence[int], room: int) -> list[list[int]]:
    """Which tokens stand on each line, one cell apart.

    >>> _wrapped([3, 3, 3, 9], 7)
    [[0, 1], [2], [3]]
    """
    lines: list[list[int]] = []
    left = -1
    for i, wide in enumerate(cells):
        if wide + 1 > left:
            lines.append([])
            left = room + 1
        lines[-1].append(i)
        left -= wide + 1
    return lines


def _table(found: Comparison, sort: str | None, page: terminal.Page) -> Iterator[Text]:
    n = len(found.tokens)
    by = sort or found.measure or found.methods[-1]
    limit = terminal.HIGHEST_OF_AN_IMAGE if found.patches else terminal.HIGHEST if n > terminal.LONG else n
    listed = np.argsort(-found.row(by), kind="stable").tolist()[:limit]
    if sort is None:
        listed.sort()
    columns = [terminal.numbers_of(row[listed]) for row in found.values]
    tokens = [page.shown(found.tokens[i]) for i in listed]
    parts = [page.shown(found.parts[i]) for i in listed] if found.parts else [""] * len(listed)
    places = len(str(max(listed)))
    part_cells = min(max(map(cell_len, parts)), 12)
    token_cells = min(max(map(cell_len, [*tokens, "token"])), terminal.TOKEN_CELLS, max(page.width // 3, 1))
    front = places + 2 + (part_cells + 2 if part_cells else 0) + token_cells
    wide = _column_cells(found.methods, [max(map(len, column)) for column in columns], page.width - front)
    bold = [set(np.argsort(-row, kind="stable").tolist()[: terminal.BOLD]) for row in found.values]
    head = Text(" " * (front - token_cells) + page.fitted("token", token_cells), style="bold")
    for name, cells in zip(found.methods, wide, strict=True):
        head.append(f"  {page.fitted(name, min(cells, len(name))):>{cells}}")
    yield _cropped(head)
    for at, i in enumerate(listed):
        faint = "dim" if found.special[i] else ""
        line = Text()
        line.append(f"{i:>{places}}  " + (f"{page.fitted(parts[at], part_cells)}  " if part_cells else ""), faint)
        line.append(page.fitted(tokens[at], token_cells), faint)
        for number, cells in enumerate(wide):
            line.append(f"  {columns[number][at]:>{cells}}", "bold" if i in bold[number] else faint)
        yield _cropped(line)
    if limit < n:
        yield Text(f"{n - limit:,} of {n:,} inputs are left out: these are the {limit} highest by {by}")


def _agreement(found: Comparison, page: terminal.Page) -> Iterator[Text]:
    """The rank correlations of all pairs, each once."""
    front = max(map(len, [*found.methods[:-1], "rank correlation"]))
    front = min(front, max(page.width // 3, 1))
    wide = _column_cells(found.methods[1:], [5] * (len(found.methods) - 1), page.width - front)
    head = Text(page.fitted("rank correlation", front), style="bold")
    for name, cells in zip(found.methods[1:], wide, strict=True):
        head.append(f"  {page.fitted(name, min(cells, len(name))):>{cells}}")
    yield _cropped(head)
    for number, name in enumerate(found.methods[:-1]):
        line = Text(page.fitted(name, front))
        for other, cells in enumerate(wide, start=1):
            rho = found.correlations[number, other]
            line.append(f"  {'' if other <= number else 'none' if np.isnan(rho) else f'{rho:.2f}':>{cells}}")
        yield _cropped(line)


def _column_cells(names: Sequence[str], numbers: Sequence[int], room: int) -> list[int]:
    """As wide as names and numbers are; where that is too much, the longest names are cut, and numbers never."""
    wide = [max(len(name), cells) for name, cells in zip(names, numbers, strict=True)]
    while sum(wide) + 2 * len(wide) > room:
        spare = [w - cells for w, cells in zip(wide, numbers, strict=True)]
        if max(spare) <= 0:
            break
        wide[max((i for i in range(len(wide)) if spare[i] > 0), key=lambda i: wide[i])] -= 1
    return wide


def _cropped(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "crop"
    return line
