"""Curves of rank correlations by layer, as in Tables 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.errors import InputError
from attnflow.view import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# (mean, low, high) of each layer, and the paper's mean of each layer, by view
Ours = Mapping[str, Sequence[tuple[float, float, float]]]
Papers = Mapping[str, Sequence[float | None]]


def correlation_curves(
    rows: Sequence[tuple[str, Ours, Papers | None]],
    *,
    layers: Sequence[str] | None = None,
    scale: str = "mean Spearman's ρ",
) -> Figure:
    """Draw Tables 1 to 3 as curves: one panel per row, with the mean by layer, its interval, and the paper's mean dashed.

    rows: (title, {view: (mean, low, high) of each layer}, the paper's {view: mean of each layer} or None). Layers for which
        the paper has no value are None.
    layers: names of the layers; by default, L1, L2, …
    scale: label of the vertical axis.
    """
    if not rows or not all(ours for _, ours, _ in rows):
        raise InputError(
            "there is nothing to draw: expected at least one row of (title, {view: values}, the paper's values or None)"
        )
    depth = len(next(iter(rows[0][1].values())))
    for title, ours, paper in rows:
        for name, curve in [*ours.items(), *(paper or {}).items()]:
            if len(curve) != depth:
                raise InputError(f"{title!r} has {len(curve)} layers of {name!r}: expected {depth}, like the first")
    if layers is not None and len(layers) != depth:
        raise InputError(f"layers={layers!r}: expected {depth} names, one per layer")
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
            for name, curve in ours.items():
                _curve(at, np.array(curve, float), (paper or {}).get(name), *_look(name, names))
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


def _curve(at: Axes, curve: FloatArray, paper: Sequence[float | None] | None, colour: str, mark: str) -> None:
    x = np.arange(len(curve))
    at.fill_between(x, curve[:, 1], curve[:, 2], color=colour, alpha=0.2, linewidth=0)
    at.plot(x, curve[:, 0], color=colour, marker=mark)
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
