"""A figure of a comparison: the sentence once per method, with shaded tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import InputError
from attnflow.view import sheet
from attnflow.view.colour import ink, signed_shares
from attnflow.view.terminal import numbers_of, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.view.comparison import Comparison

MOST = 1000  # tokens in a figure
BLOCKS = 6  # more in one column would fill over two thirds of a page
NARROWEST = 2.0  # inches
# lengths in inches if text has its default size; all of them grow with the text
LINE = 0.152  # height of a line
BOX = 0.136
PAD = 0.028  # between a word and the edge of its box
BETWEEN = 0.018  # boxes
APART = 0.09  # blocks of lines
SMALL_LINE = 0.115
STEPS = 12  # of the colour scale
MARGIN = 0.03
QUIET = "#6b6b6b"  # small text needs more contrast than the faint grey of other figures


def shaded_lines(comparison: Comparison, *, width: float | None = None) -> Figure:
    """Draw one line of tokens per method, shaded from its lowest value to its highest. Long texts are split into blocks.

    If a method has values below 0, shades show the absolute value, and values below 0 are orange. Next to each line is its
    rank correlation with blank-out. The query's token is framed.

    width: of the figure, in inches; by default, up to a column of a paper (3.25), or a page (6.9) if the column would need
        more than six blocks.
    """
    if comparison.patches is not None:
        raise InputError(
            f"shaded_lines of an image of {comparison.patches[0]} × {comparison.patches[1]} patches: expected text; use "
            "plot(), which draws maps"
        )
    if len(comparison.tokens) > MOST:
        raise InputError(
            f"plot() of {len(comparison.tokens):,} tokens: expected at most {MOST:,}; save longer texts as .csv or .json"
        )
    check_width(width)
    with sheet.style():
        words = [sheet.label(token) for token in comparison.tokens]
        boxes = {word: _room([word]) + 2 * PAD for word in set(words)}
        wide = [boxes[word] for word in words]
        left = _room(comparison.methods) + 0.07
        right = 0.0 if comparison.measure is None else _room(["−0.00"]) + 0.08
        widths = (sheet.COLUMN, sheet.PAGE) if width is None else (width,)
        for across in (one / sheet.scaled(1) for one in widths):
            room = max(across - 2 * MARGIN - left - right, *wide)
            blocks = [
                [section[i] for i in block]
                for _, section in comparison.sections
                for block in wrapped([wide[i] for i in section], room, BETWEEN)
            ]
            if len(blocks) <= BLOCKS:
                break
        least = 0.0 if width is None else width / sheet.scaled(1) - 2 * MARGIN
        return _draw(comparison, words, wide, blocks, left, room, right, least)


def check_width(width: float | None) -> None:
    if width is not None and (
        isinstance(width, bool) or not isinstance(width, int | float) or not NARROWEST <= width <= 4 * sheet.PAGE
    ):
        raise InputError(f"width={width!r}: expected inches from {NARROWEST:g} to {4 * sheet.PAGE:g}, or None")


def _draw(
    comparison: Comparison,
    words: Sequence[str],
    wide: Sequence[float],
    blocks: Sequence[Sequence[int]],
    left: float,
    room: float,
    right: float,
    least: float,
) -> Figure:
    from matplotlib import colormaps

    blues: Any = colormaps["Blues"]
    oranges: Any = colormaps["Oranges"]
    taken = max(sum(wide[i] + BETWEEN for i in block) for block in blocks)
    edge = left + min(taken, room) + right  # correlations stay next to a short sentence
    foot = _foot(comparison, max(edge, least or sheet.COLUMN - 2 * MARGIN))
    whole = max(edge, least, max(_room([line], sheet.small()) for line in foot), _scale_width())
    over, under = 0.16, 0.15 + SMALL_LINE * len(foot)
    begins = {section[0]: name for name, section in comparison.sections if name}
    height = over + len(blocks) * (len(comparison.methods) * LINE + APART) - APART + SMALL_LINE * len(begins) + under
    page = sheet.empty(*map(sheet.scaled, (whole + 2 * MARGIN, height + 2 * MARGIN)))
    at = sheet.axes(page, *map(sheet.scaled, (MARGIN, MARGIN, whole, height)))
    at.set(xlim=(0, whole), ylim=(0, height))
    at.set_axis_off()
    top = height - over
    title = sheet.line(heading(comparison), sheet.scaled(edge - left - right), sheet.small())
    _words(at, left, top + 0.05, title, color=QUIET)
    if comparison.measure is not None:
        _words(at, edge, top + 0.05, "ρ", ha="right", color=QUIET, style="italic")
    shade = [signed_shares(row) for row in comparison.values]
    y = top
    for number, block in enumerate(blocks):
        if block[0] in begins:
            y -= SMALL_LINE
            _words(at, left, y + 0.03, sheet.label(begins[block[0]]), color=QUIET, style="italic")
        for method, name in enumerate(comparison.methods):
            y -= LINE
            # all words of a line share a baseline
            base = y + 0.046
            at.text(0, base, name, va="baseline")
            if number == 0 and comparison.measure not in (None, name):
                rho = comparison.correlation(name, str(comparison.measure))
                shown = "none" if np.isnan(rho) else f"{rho:.2f}".replace("-", "−")
                at.text(edge, base, shown, ha="right", va="baseline")
            x = left
            for i in block:
                depth = float(shade[method][i])
                fill = (1.0, 1.0, 1.0, 1.0) if np.isnan(depth) else (oranges if depth < 0 else blues)(0.9 * abs(depth))
                _box(at, x, y, wide[i], fill, framed=i == comparison.place)
                back = [255 * c for c in fill[:3]]
                colour = "white" if ink(back) == "#ffffff" else sheet.INK
                at.text(
                    x + wide[i] / 2, base, words[i], ha="center", va="baseline", color=colour,
                    fontfamily=sheet.families(words[i]),
                )  # fmt: skip
                x += wide[i] + BETWEEN
        y -= APART
    y += APART - 0.12
    _scale(at, y, blues)
    for line in foot:
        y -= SMALL_LINE
        _words(at, 0, y, line, color=QUIET)
    return page


def _room(words: Iterable[str], size: float | None = None) -> float:
    """Return the width of the longest word in the lengths of this module."""
    return sheet.room(words, size) / sheet.scaled(1)


def _box(at: Axes, x: float, y: float, width: float, colour: Any, framed: bool = False) -> None:
    from matplotlib.patches import Rectangle

    edge = {"edgecolor": sheet.PAIR[1], "linewidth": 0.7, "zorder": 2} if framed else {"linewidth": 0, "zorder": 1}
    at.add_patch(Rectangle((x, y + (LINE - BOX) / 2), width, BOX, facecolor=colour, **edge))


def _words(at: Axes, x: float, y: float, words: str, **more: Any) -> None:
    at.text(x, y, words, va="baseline", size=sheet.small(), fontfamily=sheet.families(words), **more)


def heading(comparison: Comparison) -> str:
    """Return what is explained: the query, its layer, and the model's answer."""
    best = comparison.prediction
    answer = [] if best is None else [f"{best.kind} {best.top[0][0]!r} {best.top[0][1]:.2f}"]
    return " · ".join([f"query {sheet.label(comparison.query_token)}, L{comparison.layer + 1}", *answer])


def _foot(comparison: Comparison, width: float) -> list[str]:
    """Return the explanation of shades and ρ, in lines of the given width."""
    pieces = []
    for number, (name, row) in enumerate(zip(comparison.methods, comparison.values, strict=True)):
        low, high = numbers_of(np.array([np.nanmin(row), np.nanmax(row)]))
        pieces.append(f"{name} {low} to {high}{'.' if number == len(comparison.values) - 1 else ','}")
    if comparison.against is not None:
        pieces += f"Orange values are below 0: they {comparison.against}.".split(" ")
    if np.isnan(comparison.values).any():
        pieces.append("White: not computed.")
    if comparison.measure is not None:
        pieces.append(f"ρ: rank correlation with {comparison.measure}.")
    for names, why in comparison.reasons:
        pieces += f"No {names}: {why}.".split(" ")
    if comparison.summed is not None:
        pieces += f"{comparison.summed[0].upper()}{comparison.summed[1:]}.".split(" ")
    lines = [""]
    for piece in pieces:  # keep a name with its numbers
        longer = f"{lines[-1]} {piece}".strip()
        if _room([longer], sheet.small()) <= width:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


LOWEST, HIGHEST = "lowest", "highest of each method"


def _scale_width() -> float:
    return 0.8 + _room([LOWEST], sheet.small()) + _room([HIGHEST], sheet.small())


def _scale(at: Axes, y: float, blues: Any) -> None:
    from matplotlib.patches import Rectangle

    _words(at, 0, y, LOWEST, color=QUIET)
    x = _room([LOWEST], sheet.small()) + 0.05
    for step in range(STEPS):
        colour = blues(0.9 * step / (STEPS - 1))
        at.add_patch(Rectangle((x + 0.05 * step, y), 0.0505, 0.06, facecolor=colour, linewidth=0))
    _words(at, x + 0.05 * STEPS + 0.05, y, HIGHEST, color=QUIET)
