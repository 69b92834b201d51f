"""Figures of numbers by layer: Figure 4's candidates of a masked pronoun, and the correlations of Tables 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import InputError
from attnflow.result import FloatArray
from attnflow.view import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.paper.pronouns import MaskedPronoun

# (mean, low, high) of each layer, and the paper's mean of each layer, by view
Ours = Mapping[str, Sequence[tuple[float, float, float]]]
Papers = Mapping[str, Sequence[float | None]]


def pronoun_figure(examples: Sequence[MaskedPronoun]) -> Figure:
    """Figure 4: for each sentence p(his) against p(her), and for each view the mask's weight on both candidates by layer.

    The bars share 1 between the two forms, and have the colour of the candidate that each form implies. The squares above
    the curves say which candidate is favoured at each layer; curves have scales of their own, because flows are larger.

    examples: of `attnflow.paper.pronouns.masked_pronoun`; all have the same views.
    """
    if not examples:
        raise InputError("there are no examples: expected at least one of masked_pronoun()")
    names = list(examples[0].weights)
    if any(list(e.weights) != names for e in examples):
        raise InputError(f"the examples have different views: expected {names} of each, as the first one has")
    with sheet.style():
        bars, tall, over, under = 0.8, 0.95, 0.5, 0.26
        left = 0.1 + sheet.room(form for e in examples for form in e.forms)
        right = 0.16 + sheet.room(sheet.label(name) for e in examples for name in e.example.names)
        wide = (sheet.PAGE - left - bars - right - 0.42 * len(names)) / len(names)
        page = sheet.empty(sheet.PAGE, (tall + over + under) * len(examples) + 0.06)
        for number, e in enumerate(examples):
            y = page.get_size_inches()[1] - (tall + over + under) * number - over - tall
            sentence = sheet.line(e.example.filled("[MASK]")[0], sheet.PAGE - 0.3)
            sheet.note(page, 0.04, y + tall + 0.3, sentence, style="italic", va="bottom")
            _bars(sheet.axes(page, left, y + 0.22, bars, tall - 0.4), e)
            sheet.note(page, left, y + 1.15 * tall, "prediction", va="bottom")
            for column, name in enumerate(names):
                x = left + bars + 0.42 + (wide + 0.42) * column
                at = sheet.axes(page, x, y, wide, tall)
                _candidate_curves(at, e, name, wide)
                at.text(0, 1.15, sheet.title(name), transform=at.transAxes, va="bottom")
                if column == 0:
                    at.set_ylabel("weight", size=sheet.SMALL)
                if column == len(names) - 1:
                    _name_lines(at, e, name, tall)
    return page


def _bars(at: Axes, e: MaskedPronoun) -> None:
    from attnflow.paper.pronouns import implied

    total = (e.p_male + e.p_female) or 1.0
    meant = (implied(e.example, 1.0, 0.0), implied(e.example, 0.0, 1.0))
    for row, (form, p, candidate) in enumerate(zip(e.forms, (e.p_male, e.p_female), meant, strict=True)):
        at.barh(row, p / total, height=0.62, color=sheet.FAINT if candidate is None else sheet.PAIR[candidate])
        at.text(p / total + 0.04, row, f"{p / total:.2f}", va="center", size=sheet.SMALL)
        at.text(-0.06, row, form, va="center", ha="right")
    at.set(xlim=(0, 1.25), ylim=(1.6, -0.6), xticks=[], yticks=[])
    at.spines["bottom"].set_visible(False)


def _candidate_curves(at: Axes, e: MaskedPronoun, name: str, wide: float) -> None:
    weights = e.weights[name]
    layers = np.arange(len(weights))
    for candidate, mark in ((0, "o"), (1, "^")):
        at.plot(layers, weights[:, candidate], color=sheet.PAIR[candidate], marker=mark, markersize=2.6, clip_on=False)
    at.set(xlim=(-0.4, len(weights) - 0.6), ylim=(0, max(float(weights.max()), 1e-12) * 1.04))
    at.set_xticks(layers, sheet.layer_names(range(len(weights)), wide / len(weights), sheet.SMALL), size=sheet.SMALL)
    at.locator_params(axis="y", nbins=4)
    at.tick_params(axis="y", labelsize=sheet.SMALL)
    for layer in layers:
        which = e.favoured(name, int(layer))
        at.scatter(
            layer, 1.08, s=9, marker="s", color=sheet.FAINT if which is None else sheet.PAIR[which], linewidths=0,
            transform=at.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip


def _name_lines(at: Axes, e: MaskedPronoun, name: str, tall: float) -> None:
    """The candidates' names at the ends of their curves, moved apart where these meet."""
    ends = e.weights[name][-1] / at.get_ylim()[1]
    apart = 1.3 * sheet.SIZE / 72 / tall
    middle, half = float(ends.mean()), max(float(abs(ends[0] - ends[1])), apart) / 2
    upper = int(ends[1] > ends[0])
    for candidate, word in enumerate(e.example.names):
        y = middle + (half if candidate == upper else -half)
        at.annotate(
            sheet.label(word), (1, y), xycoords="axes fraction", xytext=(4, 0), textcoords="offset points", va="center",
            color=sheet.PAIR[candidate], fontfamily=sheet.families(word), annotation_clip=False,
        )  # fmt: skip


def correlation_curves(
    rows: Sequence[tuple[str, Ours, Papers | None]],
    *,
    layers: Sequence[str] | None = None,
    scale: str = "mean Spearman's ρ",
) -> Figure:
    """Tables 1 to 3 as curves: for each row a panel with the mean by layer, its interval as a band, the paper's dashed.

    rows: (title, {view: (mean, low, high) of each layer}, the paper's {view: mean of each layer} or None). Where the paper
        has no value for a layer, None stands for it.
    layers: their names; L1, L2, … if not given. scale: what the vertical axis says.
    """
    if not rows or not all(ours for _, ours, _ in rows):
        raise InputError(
            "there is nothing to draw: expected at least one row of (title, {view: values}, paper's or None)"
        )
    depth = len(next(iter(rows[0][1].values())))
    for title, ours, paper in rows:
        for name, found in [*ours.items(), *(paper or {}).items()]:
            if len(found) != depth:
                raise InputError(f"{title!r} has {len(found)} layers of {name!r}: expected {depth}, as the first has")
    if layers is not None and len(layers) != depth:
        raise InputError(f"layers={layers!r}: expected {depth} names, one a layer")
    names = list(dict.fromkeys(name for _, ours, _ in rows for name in ours))
    with sheet.style():
        left, wide, tall = 0.5, min(2.9, (sheet.PAGE - 0.5) / len(rows) - 0.2), 1.75
        across = left + (wide + 0.2) * len(rows)
        shown = [sheet.label(name) for name in names] + ["paper"] * any(paper for _, _, paper in rows)
        columns = max(1, min(len(shown), int(across / (sheet.room(shown) + 0.5))))
        page = sheet.empty(across, tall + 0.65 + 0.15 * -(-len(shown) // columns))
        first: Axes | None = None
        for number, (title, ours, paper) in enumerate(rows):
            at = sheet.axes(page, left + (wide + 0.2) * number, 0.3, wide, tall)
            at.axhline(0, color=sheet.FAINT, linewidth=0.5, zorder=0)
            for name, found in ours.items():
                _curve(at, np.array(found, float), (paper or {}).get(name), *_look(name, names))
            ticks = sheet.layer_names(range(depth), wide / depth) if layers is None else list(layers)
            at.set_xticks(range(depth), ticks)
            at.set_title(sheet.line(title, wide), loc="left", fontfamily=sheet.families(title))
            at.margins(x=0.04)
            if first is None:
                first = at
                at.set_ylabel(scale)
            else:
                at.sharey(first)
                at.tick_params(labelleft=False)
        _legend(page, names, shown, columns)
    return page


def _curve(at: Axes, found: FloatArray, paper: Sequence[float | None] | None, colour: str, mark: str) -> None:
    x = np.arange(len(found))
    at.fill_between(x, found[:, 1], found[:, 2], color=colour, alpha=0.2, linewidth=0)
    at.plot(x, found[:, 0], color=colour, marker=mark)
    if paper is not None:
        y = np.array([np.nan if value is None else value for value in paper], float)
        there = np.isfinite(y)
        at.plot(
            x[there], y[there], color=colour, marker=mark, linestyle=(0, (3, 2)), linewidth=0.8, markerfacecolor="white",
            markeredgewidth=0.6,
        )  # fmt: skip


def _look(name: str, names: Sequence[str]) -> tuple[str, str]:
    others = [n for n in names if n not in sheet.METHODS]
    return sheet.METHODS[name] if name in sheet.METHODS else sheet.OTHERS[others.index(name) % len(sheet.OTHERS)]


def _legend(page: Figure, names: Sequence[str], shown: Sequence[str], columns: int) -> None:
    from matplotlib.lines import Line2D

    dashed: dict[str, Any] = {
        "linestyle": (0, (3, 2)),
        "linewidth": 0.8,
        "markerfacecolor": "white",
        "markeredgewidth": 0.6,
    }
    lines = []
    for number, words in enumerate(shown):
        if number < len(names):
            colour, mark = _look(names[number], names)
            lines.append(Line2D([], [], color=colour, marker=mark, label=words))
        else:
            lines.append(Line2D([], [], color=sheet.INK, marker="o", label=words, **dashed))
    page.legend(handles=lines, loc="upper center", ncols=columns, handlelength=2.4, columnspacing=1.6)
