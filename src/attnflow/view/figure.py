"""Figures for print, in the style of the paper: layered graphs, layer × token maps, shaded sentences, correlation curves.

Each function takes results or plain numbers and returns a matplotlib Figure; `save` writes it. Figures fit the width of a
page (about 7 inches) if there is room for the words.

    save(layered_graph({"raw": t.raw("all"), "flow": t.flow("all")}), "figure1.svg")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.errors import InputError, a_type
from attnflow.result import TokenAttention
from attnflow.view import sheet
from attnflow.view.comparison_figure import shaded_lines
from attnflow.view.curves import correlation_curves
from attnflow.view.sheet import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["correlation_curves", "layer_maps", "layered_graph", "save", "shaded_lines"]

GAP = 0.22
TITLE = 0.24
FEW = 12  # tokens for which nearly all edges are visible


def layered_graph(
    results: Mapping[str, TokenAttention],
    *,
    query: int | str | None = 0,
    edges: int | None = None,
    upwards: bool = False,
) -> Figure:
    """Draw Figure 1: for each method, the nodes (layer, token), and the token attention of layer l between l-1 and l.

    The width and opacity of an edge show its share of its query's row, on the same scale for all methods. The edges of one
    query are coloured.

    results: results by name ("raw", "rollout", "flow") for all queries: ``t.flow("all")``.
    query: the position or token of the coloured query, or None.
    edges: maximum number of edges per query and layer, strongest first; by default, all for up to 12 tokens, otherwise 3.
    upwards: draw layers from bottom to top and tokens along x; by default, as in the paper, layers from left to right and
        tokens in lines.
    """
    first = _same_tokens(results)
    n, depth = len(first.tokens), len(first.layers)
    for name, result in results.items():
        if result.queries != tuple(range(n)) or len(result.layers) != depth:
            raise InputError(
                f"{name!r} has {len(result.queries)} queries and {len(result.layers)} layers of {n} inputs: expected all "
                f'queries and {depth} layers, as from .{name}("all")'
            )
    if edges is not None and (isinstance(edges, bool) or not isinstance(edges, int) or edges < 1):
        raise InputError(f"edges={edges!r}: expected an int of at least 1, or None")
    chosen = None if query is None else first.where(query)[1]
    shares = {name: _row_shares(result) for name, result in results.items()}
    top = max(float(s.max()) for s in shares.values()) or 1.0
    most = edges or (FEW if n <= FEW else 3)
    with sheet.style():
        words = [sheet.label(t) for t in first.tokens]
        if upwards:
            cell = max(0.17, min(0.42, (sheet.PAGE - 0.4) / len(results) / n))
            width, height, left = cell * n, 0.34 * (depth + 0.5), max(0.3, sheet.room(words[:1]))
            lower = sheet.below(words, cell)
        else:
            left = sheet.room(words) + 0.14
            cell = max(0.1, min(0.42, (sheet.PAGE - left - GAP * len(results)) / len(results) / (depth + 0.6)))
            width, height, lower = cell * (depth + 0.6), 0.185 * n, 0.2
        layers = sheet.layer_names(first.layers, 1.0 if upwards else cell)
        page = sheet.empty(left + (width + GAP) * len(results), lower + height + TITLE)
        for number, (name, share) in enumerate(shares.items()):
            at = sheet.axes(page, left + (width + GAP) * number, lower, width, height)
            _edges(at, share / top, chosen, most, upwards)
            at.set_title(sheet.title(name), pad=5)
            for side in at.spines.values():
                side.set_visible(False)
            at.tick_params(length=0)
            if upwards:
                at.set(xlim=(-0.5, n - 0.5), ylim=(-0.25, depth + 0.25))
                sheet.token_axis(at, words, cell)
                at.set_yticks(range(1, depth + 1), layers if number == 0 else [""] * depth, color=sheet.FAINT)
            else:
                at.set(xlim=(-0.3, depth + 0.3), ylim=(n - 0.5, -0.5))
                at.set_xticks(range(1, depth + 1), layers, color=sheet.FAINT)
                at.set_yticks(range(n), words if number == 0 else [""] * n)
            marked = at.get_xticklabels() if upwards else at.get_yticklabels() if number == 0 else []
            for i, (word, tick) in enumerate(zip(words, marked, strict=False)):
                tick.set(color=sheet.PAIR[1] if i == chosen else sheet.INK, fontfamily=sheet.families(word))
    return page


def _edges(at: Axes, share: FloatArray, chosen: int | None, most: int, upwards: bool) -> None:
    """Draw the edges of ``share[layer, query, key]``, weak ones first, and the nodes."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    depth, n = share.shape[:2]
    weakest = -np.sort(-share, axis=-1)[..., [min(most, n) - 1]]
    layer, query, key = np.nonzero(share >= np.maximum(weakest, 1e-3))  # weaker edges are invisible
    strength = share[layer, query, key]
    own = query == (-1 if chosen is None else chosen)
    order = np.lexsort((strength, own))
    layer, query, key, own = (x[order] for x in (layer, query, key, own))
    strength = strength[order]
    above, under = np.stack([layer + 1, query], -1), np.stack([layer, key], -1)  # (layer, token) of both ends
    lines = np.stack([above, under], 1)[..., :: -1 if upwards else 1].astype(float)
    colour = np.where(own[:, None], to_rgb(sheet.PAIR[1]), to_rgb("#33618c"))
    # width and opacity both show strength, so that weak edges are visible and do not hide strong ones
    opacity = np.where(own, 0.25 + 0.75 * strength, (0.08 + 0.8 * strength) * min(1, 1.5 * FEW / n))
    at.add_collection(
        LineCollection(
            list(lines), colors=np.column_stack([colour, opacity]), linewidths=0.3 + 2.6 * strength, capstyle="round"
        )
    )
    along, across = np.meshgrid(np.arange(depth + 1), np.arange(n), indexing="ij")
    x, y = (across, along) if upwards else (along, across)
    at.scatter(x, y, s=5, color=sheet.INK, zorder=3, linewidths=0)
    if chosen is not None:
        at.scatter(x[1:, chosen], y[1:, chosen], s=9, color=sheet.PAIR[1], zorder=4, linewidths=0)


def layer_maps(
    rows: Sequence[tuple[str, Mapping[str, TokenAttention]]],
    *,
    query: int | str | None = None,
    shared: str = "method",
    values: bool = False,
) -> Figure:
    """Draw Figures 2 and 3: for each example and method, the query's value for each token (x) and layer (y, L1 lowest).

    rows: (label, results by method) of each example, all with the same methods. A label may be empty.
    query: its position or token; optional if results have one query.
    shared: "method" for one colour scale per method, because flows are larger than shares; "all" for a single scale.
    values: whether to write the numbers into the cells.
    """
    if shared not in ("method", "all"):
        raise InputError(f'shared={shared!r}: expected "method" or "all"')
    if not rows:
        raise InputError("there are no examples: expected at least one (label, results by method)")
    names = list(rows[0][1])
    for title, results in rows:
        if list(results) != names:
            raise InputError(f"{title!r} has the methods {list(results)}: expected {names}, like the first example")
        _same_tokens(results)
    maps = [{name: r.values[:, r.where(query)[1]].astype(float) for name, r in results.items()} for _, results in rows]
    ranges = {name: _range([m[name] for m in maps]) for name in names}
    if shared == "all":
        ranges = dict.fromkeys(names, _range([m[name] for m in maps for name in names]))
    with sheet.style():
        return _draw_maps(rows, names, maps, ranges, shared, values)


def _draw_maps(
    rows: Sequence[tuple[str, Mapping[str, TokenAttention]]],
    names: Sequence[str],
    maps: Sequence[Mapping[str, FloatArray]],
    ranges: Mapping[str, tuple[float, float]],
    shared: str,
    values: bool,
) -> Figure:
    words = [[sheet.label(t) for t in results[names[0]].tokens] for _, results in rows]
    longest = max(map(len, words))
    cell = max(0.3 if values else 0.15, min(0.4, (sheet.PAGE - 0.5 - GAP * len(names)) / len(names) / longest))
    tall = 0.2 if values else 0.17
    left = max([0.32, *(sheet.room(w[:1]) * (0.75 if sheet.slant(w, cell) == 45 else 0.5) for w in words)])
    heights = [tall * len(m[names[0]]) for m in maps]
    under = [sheet.below(w, cell) for w in words]
    bar = 0.42
    across = max(cell * longest, sheet.room(map(sheet.title, names), sheet.SIZE + 0.5)) + GAP
    titles = [sheet.line(title, max(across * len(names), sheet.PAGE - left) - GAP) for title, _ in rows]
    wide = max(across * len(names), sheet.room(titles) + GAP)
    over = [0.2 if title else 0.06 for title in titles]
    page = sheet.empty(left + wide, TITLE + sum(heights) + sum(under) + sum(over) + bar)
    y = page.get_size_inches()[1] - TITLE
    shown: dict[str, Any] = {}
    for number, (_, results) in enumerate(rows):
        y -= over[number] + heights[number]
        sheet.note(page, left, y + heights[number] + 0.045, titles[number], style="italic", va="bottom")
        for column, name in enumerate(names):
            at = sheet.axes(page, left + across * column, y, cell * len(words[number]), heights[number])
            shown[name] = _heat(at, maps[number][name], ranges[name], values)
            sheet.token_axis(at, words[number], cell)
            layers = [f"L{l + 1}" for l in results[name].layers]
            at.set_yticks(range(len(layers)), layers if column == 0 else [""] * len(layers))
            at.tick_params(length=0)
        y -= under[number]
    head = page.get_size_inches()[1] - TITLE + 0.06
    for column, name in enumerate(names):
        sheet.note(page, left + across * column, head, sheet.title(name), va="bottom", size=sheet.SIZE + 0.5)
        if shared == "method" or column == 0:
            scale = sheet.axes(page, left + across * column, 0.24, min(1.5, across - GAP), 0.06)
            _scale(scale, page, shown[name])
    return page


def _heat(at: Axes, values: FloatArray, limits: tuple[float, float], written: bool) -> Any:
    # light to dark, unlike on a screen: paper is white, and pale tints are easier to distinguish in print
    low, high = limits
    scale = "Blues" if low >= 0 else "RdBu"  # red is below zero, and white is zero
    shown = at.imshow(values, cmap=scale, vmin=low, vmax=high, origin="lower", aspect="auto", interpolation="nearest")
    for side in at.spines.values():
        side.set(visible=True, color="#cccccc", linewidth=0.4)
    # thin lines separate cells, which would run together in print
    at.set_xticks(np.arange(0.5, values.shape[1] - 1), minor=True)
    at.set_yticks(np.arange(0.5, values.shape[0] - 1), minor=True)
    at.grid(which="minor", color="white", linewidth=0.4)
    at.tick_params(which="minor", length=0)
    if written:
        dark = max(low, 0.0) + 0.6 * (high - max(low, 0.0))
        for (layer, token), value in np.ndenumerate(values):
            ink = sheet.INK if abs(value) < dark else "white"
            at.text(token, layer, f"{value:.2f}", ha="center", va="center", size=5.5, color=ink)
    return shown


def _scale(at: Axes, page: Figure, shown: Any) -> None:
    bar = page.colorbar(shown, cax=at, orientation="horizontal")
    outline: Any = bar.outline
    outline.set_visible(False)
    low, high = shown.get_clim()
    at.set_xticks([low, (low + high) / 2, high], [f"{x:.2g}" for x in (low, (low + high) / 2, high)])


def _same_tokens(results: Mapping[str, TokenAttention]) -> TokenAttention:
    """Check that all results are of the same text, and return the first."""
    if not results:
        raise InputError("there are no results: expected at least one, by the name of its method")
    first = next(iter(results.values()))
    for name, result in results.items():
        if not isinstance(result, TokenAttention):
            raise InputError(f"{name!r} is {a_type(result)}: expected a TokenAttention")
        if result.tokens != first.tokens:
            raise InputError(
                f"{name!r} is a result for {result.text[:40]!r}: expected {first.text[:40]!r}, like the first"
            )
    return first


def _row_shares(result: TokenAttention) -> FloatArray:
    """Divide each row by its sum, with negative values as 0."""
    positive: FloatArray = np.maximum(result.values.astype(float), 0)
    total = positive.sum(-1, keepdims=True)
    shares: FloatArray = positive / np.where(total == 0, 1, total)
    return shares


def _range(values: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the range from 0 to the highest value; symmetric around 0 if some values are negative."""
    low, high = min(0.0, *(float(v.min()) for v in values)), max(float(v.max()) for v in values)
    if low < 0:
        return -max(-low, high), max(-low, high)
    return low, high if high > low else low + 1.0
