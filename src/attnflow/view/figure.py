"""Figures for print, in the style of the paper: layered graphs, layer × token maps, shaded sentences.

Each function takes results or plain numbers and returns a matplotlib Figure; `save` writes it. Figures fit the width of a
page (about 7 inches) if there is room for the words, or have the width that you give. Fonts and sizes follow matplotlib's
rcParams.

    save(layered_graph({"raw": t.raw("all"), "flow": t.flow("all")}, width=3.3), "figure1.svg")
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
from attnflow.view.sheet import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["layer_maps", "layered_graph", "save", "shaded_lines"]

GAP = 0.22
TITLE = 0.24
FEW = 12  # tokens for which nearly all edges are visible
MOST = 200  # tokens in a graph


def layered_graph(
    results: Mapping[str, TokenAttention],
    *,
    query: int | str | None = 0,
    edges: int | None = None,
    width: float | None = None,
) -> Figure:
    """Draw Figure 1: for each method, the nodes (layer, token), and the token attention of layer l between l-1 and l.

    The width and opacity of an edge show its share of its query's row, on the same scale for all methods. The edges of one
    query are coloured.

    results: results by name ("raw", "rollout", "flow") for all queries: ``t.flow("all")``. Without special tokens, as from
        ``t.flow("all").without_special()``, their rows are left out too, except for the coloured query's.
    query: the position or token of the coloured query, or None.
    edges: maximum number of edges per query and layer, strongest first; by default, all for up to 12 tokens, otherwise 3.
    width: of the figure, in inches. Methods that do not fit next to each other are drawn below each other.
    """
    first = same_tokens(results)
    depth = len(first.layers)
    for name, result in results.items():
        if len(result.layers) != depth or result.queries != first.queries:
            raise InputError(
                f"{name!r} has {len(result.queries)} queries and {len(result.layers)} layers: expected "
                f"{len(first.queries)} and {depth}, like the first"
            )
    if edges is not None and (isinstance(edges, bool) or not isinstance(edges, int) or edges < 1):
        raise InputError(f"edges={edges!r}: expected an int of at least 1, or None")
    rows = _rows_of_inputs(first, next(iter(results)))
    chosen = None if query is None else first.where(query)[1]
    # nodes: the inputs, and the coloured query if it is no input, such as a class token that was left out
    nodes = rows if chosen is None or chosen in rows else sorted([*rows, chosen])
    if len(nodes) > MOST:
        raise InputError(f"a graph of {len(nodes)} tokens: expected at most {MOST}; choose a shorter text")
    words = [sheet.label(first.query_tokens[row]) for row in nodes]
    n = len(nodes)
    shares = {}
    for name, result in results.items():
        shares[name] = np.zeros((depth, n, n))
        shares[name][..., [nodes.index(row) for row in rows]] = _row_shares(result)[:, nodes]
    place = None if chosen is None else nodes.index(chosen)
    top = max(float(s.max()) for s in shares.values()) or 1.0
    most = edges or (FEW if n <= FEW else 3)
    with sheet.style():
        gap, title = sheet.scaled(GAP), sheet.scaled(TITLE)
        left, cells = sheet.room(words) + sheet.scaled(0.14), depth + 0.6
        columns, cell = _columns(width, len(results), left, cells, sheet.scaled(0.1), f"a graph of {n} tokens")
        wide = cell * cells
        height, lower = sheet.scaled(0.185) * n, sheet.scaled(0.2)
        layers = sheet.layer_names(first.layers, cell)
        bands = -(-len(results) // columns)
        page = sheet.empty(left + (wide + gap) * columns, bands * (lower + height + title))
        for number, (name, share) in enumerate(shares.items()):
            band, column = divmod(number, columns)
            bottom = (bands - 1 - band) * (lower + height + title) + lower
            at = sheet.axes(page, left + (wide + gap) * column, bottom, wide, height)
            _edges(at, share / top, place, most)
            at.set_title(sheet.title(name), pad=5)
            for side in at.spines.values():
                side.set_visible(False)
            at.tick_params(length=0)
            at.set(xlim=(-0.3, depth + 0.3), ylim=(n - 0.5, -0.5))
            at.set_xticks(range(1, depth + 1), layers, color=sheet.FAINT)
            at.set_yticks(range(n), words if column == 0 else [""] * n)
            marked = at.get_yticklabels() if column == 0 else []
            for i, (word, tick) in enumerate(zip(words, marked, strict=False)):
                tick.set(color=sheet.PAIR[1] if i == place else sheet.INK, fontfamily=sheet.families(word))
    return page


def _rows_of_inputs(result: TokenAttention, name: str) -> list[int]:
    """Return the row of each input among the queries: all of them, or those that are left without special tokens."""
    if result.queries == tuple(range(len(result.tokens))):
        return list(range(len(result.tokens)))
    rows: list[int] = []
    if "without_special" in result.provenance.get("steps", ()):
        row = -1
        for token in result.tokens:  # the inputs are what is left of the queries, in the same order
            row = next((i for i in range(row + 1, len(result.queries)) if result.query_tokens[i] == token), -1)
            if row < 0:
                break
            rows.append(row)
    if len(rows) < len(result.tokens):
        raise InputError(
            f"{name!r} has {len(result.queries)} queries of {len(result.tokens)} inputs: expected all queries, as from "
            f'.{name}("all")'
        )
    return rows


def _columns(width: float | None, count: int, left: float, cells: float, least: float, what: str) -> tuple[int, float]:
    """Return how many panels fit next to each other, and the width of a cell, in inches.

    width: of the figure; None for up to a page, all panels in one row. count: number of panels. left: room for labels.
    cells: number of cells across a panel. least: the narrowest cell. what: the figure, for messages.
    """
    gap = sheet.scaled(GAP)
    if width is None:
        return count, max(least, min(sheet.scaled(0.42), (sheet.PAGE - left - gap * count) / count / cells))
    if isinstance(width, bool) or not isinstance(width, int | float) or not 1 <= width <= 4 * sheet.PAGE:
        raise InputError(f"width={width!r}: expected inches from 1 to {4 * sheet.PAGE:g}, or None")
    narrowest = cells * least + gap
    columns = min(count, int((width - left + 1e-9) / narrowest))
    if columns < 1:
        raise InputError(
            f"width={width!r}: {what} needs at least {np.ceil(10 * (left + narrowest)) / 10:.1f} inches; give a greater "
            "width, a smaller font, or a shorter text"
        )
    return columns, ((width - left) / columns - gap) / cells


def _edges(at: Axes, share: FloatArray, chosen: int | None, most: int) -> None:
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
    lines = np.stack([above, under], 1).astype(float)
    colour = np.where(own[:, None], to_rgb(sheet.PAIR[1]), to_rgb("#33618c"))
    # width and opacity both show strength, so that weak edges are visible and do not hide strong ones
    opacity = np.where(own, 0.25 + 0.75 * strength, (0.08 + 0.8 * strength) * min(1, 1.5 * FEW / n))
    at.add_collection(
        LineCollection(
            list(lines), colors=np.column_stack([colour, opacity]), linewidths=0.3 + 2.6 * strength, capstyle="round"
        )
    )
    x, y = np.meshgrid(np.arange(depth + 1), np.arange(n), indexing="ij")
    at.scatter(x, y, s=5, color=sheet.INK, zorder=3, linewidths=0)
    if chosen is not None:
        at.scatter(x[1:, chosen], y[1:, chosen], s=9, color=sheet.PAIR[1], zorder=4, linewidths=0)


def layer_maps(
    rows: Sequence[tuple[str, Mapping[str, TokenAttention]]],
    *,
    query: int | str | None = None,
    width: float | None = None,
) -> Figure:
    """Draw Figures 2 and 3: for each example and method, the query's value for each token (x) and layer (y, L1 lowest).

    Each method has one colour scale, because flows are larger than shares.

    rows: (label, results by method) of each example, all with the same methods. A label may be empty.
    query: its position or token; optional if results have one query.
    width: of the figure, in inches. Methods that do not fit next to each other are drawn below each other.
    """
    if not rows:
        raise InputError("there are no examples: expected at least one (label, results by method)")
    names = list(rows[0][1])
    for title, results in rows:
        if list(results) != names:
            raise InputError(f"{title!r} has the methods {list(results)}: expected {names}, like the first example")
        same_tokens(results)
    maps = [{name: r.values[:, r.where(query)[1]].astype(float) for name, r in results.items()} for _, results in rows]
    ranges = {name: _range([m[name] for m in maps]) for name in names}
    with sheet.style():
        return _draw_maps(rows, names, maps, ranges, width)


def _draw_maps(
    rows: Sequence[tuple[str, Mapping[str, TokenAttention]]],
    names: Sequence[str],
    maps: Sequence[Mapping[str, FloatArray]],
    ranges: Mapping[str, tuple[float, float]],
    width: float | None,
) -> Figure:
    words = [[sheet.label(t) for t in results[names[0]].tokens] for _, results in rows]
    longest = max(map(len, words))
    gap, title = sheet.scaled(GAP), sheet.scaled(TITLE)
    first = sheet.room([w[0] for w in words], sheet.points("xtick.labelsize"))
    left = max(sheet.room(["L10"]) + sheet.scaled(0.1), 0.75 * first)
    columns, cell = _columns(width, len(names), left, longest, sheet.scaled(0.15), f"a map of {longest} tokens")
    cell = cell if width is not None else min(sheet.scaled(0.4), cell)
    heights = [sheet.scaled(0.17) * len(m[names[0]]) for m in maps]
    under = [sheet.below(w, cell) for w in words]
    bar = sheet.scaled(0.42)
    across = cell * longest + gap
    if width is None:  # there is room for the titles
        across = max(across, sheet.room(map(sheet.title, names), sheet.points("axes.titlesize")) + gap)
    whole = width or left + max(across * columns, sheet.PAGE - left)
    titles = [sheet.line(text, whole - left - gap) for text, _ in rows]
    over = [sheet.scaled(0.2 if text else 0.06) for text in titles]
    band = title + sum(heights) + sum(under) + sum(over) + bar
    bands = -(-len(names) // columns)
    page = sheet.empty(width or left + max(across * columns, sheet.room(titles) + gap), band * bands)
    for turn in range(bands):
        own = list(enumerate(names[turn * columns : (turn + 1) * columns]))
        y = band * (bands - turn) - title
        for column, name in own:  # a title keeps clear of its neighbour
            shown = sheet.line(sheet.title(name), across - gap / 2, sheet.points("axes.titlesize"))
            at_title = left + across * column, y + sheet.scaled(0.06)
            sheet.note(page, *at_title, shown, va="bottom", size=sheet.points("axes.titlesize"))
        heat: dict[str, Any] = {}
        for row, (_, results) in enumerate(rows):
            y -= over[row] + heights[row]
            sheet.note(page, left, y + heights[row] + 0.045, titles[row], style="italic", va="bottom")
            for column, name in own:
                at = sheet.axes(page, left + across * column, y, cell * len(words[row]), heights[row])
                heat[name] = _heat(at, maps[row][name], ranges[name])
                sheet.token_axis(at, words[row], cell)
                layers = [f"L{l + 1}" for l in results[name].layers]
                at.set_yticks(range(len(layers)), layers if column == 0 else [""] * len(layers))
                at.tick_params(length=0)
            y -= under[row]
        for column, name in own:
            bar_at = left + across * column, sheet.scaled(0.24) + y - bar, min(1.5, across - gap), sheet.scaled(0.06)
            _scale(sheet.axes(page, *bar_at), page, heat[name])
    return page


def _heat(at: Axes, values: FloatArray, limits: tuple[float, float]) -> Any:
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
    return shown


def _scale(at: Axes, page: Figure, shown: Any) -> None:
    bar = page.colorbar(shown, cax=at, orientation="horizontal")
    outline: Any = bar.outline
    outline.set_visible(False)
    low, high = shown.get_clim()
    at.set_xticks([low, (low + high) / 2, high], [f"{x:.2g}" for x in (low, (low + high) / 2, high)])
    at.get_xticklabels()[0].set_horizontalalignment("left")  # within the figure, however narrow it is


def same_tokens(results: Mapping[str, TokenAttention]) -> TokenAttention:
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
