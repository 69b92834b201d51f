"""Figures of an image: the values of its patches as maps over the image in grey, one panel per layer or method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.result import TokenAttention
from attnflow.view import sheet
from attnflow.view.colour import overlay_colours, pixels_of, signed_shares
from attnflow.view.comparison_figure import QUIET, check_width, heading
from attnflow.view.terminal import against, explained, method_text, numbers_of, of_no_layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.view.comparison import Comparison

ALONE = 2.9  # inches of a single panel, which fits a column
WIDEST = 1.62  # of one among several
TALLEST = 2.9
GAP = 0.14
MARGIN = 0.05
BAR, BAR_HEIGHT = 0.9, 0.07
STEPS = 64
WHOLE = 1e-3  # a sum this near to one makes values shares
EDGE, GRID = "#c4c4c4", "#e4e4e4"
UNKNOWN = {True: (1.0, 1.0, 1.0, 0.65), False: (0.5, 0.5, 0.5, 0.2)}  # patches without a value, over an image or not


@dataclass(frozen=True)
class Panel:
    """One map. shares: from -1 to 1, ``[row, column]``. corner: what is written at the right of the title."""

    title: str
    shares: FloatArray
    notes: tuple[str, ...]
    corner: str = ""


@dataclass(frozen=True)
class Scale:
    """A bar of colours from one share to another, with a label at each end."""

    ends: tuple[float, float]
    labels: tuple[str, str]


def patch_maps(result: TokenAttention, query: int | str | None = None, image: Any = None) -> Figure:
    """Draw what one query takes from each patch of an image: a panel per layer, all on one scale.

    Warm colours are above the lowest value, or above 0 if some values are below; those are blue. Class and register tokens
    have no place in the image, so their shares are written below.

    query: as in `TokenAttention.row`.
    image: as in `TokenAttention.overlay`; by default the one that the result has. Without any, the map is a plain grid.
    """
    at = result.where(query)[1]
    rows, maps = result.values[:, at].astype(np.float64), result.on_patches()[:, at].astype(np.float64)
    photo = _photo(result.image if image is None else image)
    with sheet.style():
        several = len(result.layers) > 1
        panels = [
            Panel(f"L{layer + 1}" if several else "", shares, (aside,) if aside else ())
            for layer, shares, aside in zip(
                result.layers, signed_shares(maps), [_aside(result, row) for row in rows], strict=True
            )
        ]
        ends = (float(np.nanmin(maps)), float(np.nanmax(maps)))
        low, high = numbers_of(np.array(ends))
        foot = [f"Blue values {meaning}." for meaning in [against(result, rows[-1])] if meaning is not None]
        foot += [f"{_unknown(photo)} patches were not computed."] if np.isnan(maps).any() else []
        scale = Scale(_span(ends), (_minus(low), _minus(high)))
        return _draw(panels, photo, _title(result, at, several), scale, foot, None)


def method_maps(comparison: Comparison, width: float | None = None, image: Any = None) -> Figure:
    """Draw one panel per method of a comparison, each from its lowest value to its highest, with its rank correlation.

    If a method has values below 0, shades show the absolute value, and values below 0 are blue. Below the panels are the
    range of each method, the shares of class and register tokens, and what is missing.

    width: in inches; by default, panels have a common width, and all fit a page.
    image: as in `patch_maps`.
    """
    check_width(width)
    high, wide = comparison.patches or (1, 1)
    photo = _photo(comparison.image if image is None else image)
    with sheet.style():
        panels = []
        for name, row in zip(comparison.methods, comparison.values, strict=True):
            patches = row[-high * wide :].reshape(high, wide)
            ends = numbers_of(np.array([np.nanmin(patches), np.nanmax(patches)]))
            notes = (_minus(f"{ends[0]} to {ends[1]}"), _aside(comparison, row))
            panels.append(Panel(name, signed_shares(patches), notes, _correlation(comparison, name)))
        scale = Scale((0.0, 1.0), ("lowest", "highest of each method"))
        return _draw(panels, photo, heading(comparison), scale, _foot(comparison, photo), width)


def _foot(comparison: Comparison, photo: FloatArray | None) -> list[str]:
    foot = []
    if comparison.against is not None:
        foot.append(f"Blue values are below 0: they {comparison.against}.")
    if np.isnan(comparison.values).any():
        foot.append(f"{_unknown(photo)} patches were not computed.")
    if comparison.measure is not None:
        foot.append(f"ρ: rank correlation with {comparison.measure} over the patches.")
    for names, why in comparison.reasons:
        foot.append(f"No {names}: {why.split(': ')[0]}.")  # the rest says what to do, which no reader of a figure can
    return foot


def _title(result: TokenAttention, at: int, several: bool) -> str:
    answer = result.provenance.get("answer")
    if of_no_layer(result) and isinstance(answer, dict) and answer.get("name"):
        what = [f"explains {answer['name']!r}"]
    else:
        what = explained(result, sheet.label(result.query_tokens[at]))
        what += [] if several or of_no_layer(result) else [f"L{result.layers[0] + 1}"]
    return " · ".join([method_text(result), *what])


def _correlation(comparison: Comparison, name: str) -> str:
    if comparison.measure in (None, name):
        return ""
    rho = comparison.correlation(name, str(comparison.measure))
    return "ρ none" if np.isnan(rho) else _minus(f"ρ {rho:.2f}")


def _aside(inputs: TokenAttention | Comparison, row: FloatArray) -> str:
    """Return the shares of class and register tokens in a row, or their values if the row has no shares; maybe empty."""
    values: dict[str, list[float]] = {}
    for token, special, value in zip(inputs.tokens, inputs.special, row.tolist(), strict=True):
        if special:
            values.setdefault("[REG]" if token.startswith("[REG") else sheet.label(token), []).append(value)
    if not any(map(any, values.values())):  # importance, which needs pixels
        return ""
    if abs(float(np.nansum(np.maximum(row, 0))) - 1) < WHOLE:
        return _minus(", ".join(f"{name} {100 * sum(each):.0f} %" for name, each in values.items()))
    # flows of several tokens do not add up
    names = [name if len(each) == 1 else f"{name} up to" for name, each in values.items()]
    numbers = numbers_of(np.array([max(each) for each in values.values()]))
    return _minus(", ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True)))


def _photo(image: Any) -> FloatArray | None:
    """Return an image in grey, a little softer, so that every colour means a value; None without one."""
    if image is None:
        return None
    grey = pixels_of(image) @ np.array([0.2126, 0.7152, 0.0722]) / 255
    soft: FloatArray = (((grey - 0.5) * 0.9 + 0.5) * 1.05).clip(0, 1)
    return soft


def _unknown(photo: FloatArray | None) -> str:
    return "Grey" if photo is None else "Pale"


def _span(ends: tuple[float, float]) -> tuple[float, float]:
    """Return the shares of the lowest and the highest value."""
    low, high = ends
    return (0.0, 1.0) if low >= 0 else (low / max(-low, high, 1e-300), high / max(-low, high, 1e-300))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _across(count: int) -> int:
    """Return the number of panels side by side.

    >>> [_across(n) for n in (1, 4, 6, 8, 12, 24)]
    [1, 4, 3, 4, 6, 6]
    """
    return count if count <= 4 else 3 if count <= 6 else 4 if count <= 8 else 6


def _draw(
    panels: Sequence[Panel],
    photo: FloatArray | None,
    title: str,
    scale: Scale,
    foot: Sequence[str],
    width: float | None,
) -> Figure:
    usual, small = sheet.points(), sheet.small()
    line, small_line = 1.45 * usual / 72, 1.4 * small / 72
    across = _across(len(panels))
    down = -(-len(panels) // across)
    high, wide = panels[0].shares.shape if photo is None else photo.shape
    most = (sheet.PAGE if width is None else width) - 2 * MARGIN
    each = (most - GAP * (across - 1)) / across
    each = min(each, (ALONE if len(panels) == 1 else WIDEST) if width is None else each, TALLEST * wide / high)
    tall = each * high / wide
    over = line if any(panel.title for panel in panels) else 0.0
    notes = max(len([note for note in panel.notes if note]) for panel in panels)
    block = over + tall + notes * small_line + GAP
    bar = _bar_width(scale, small)
    inner = max(across * each + GAP * (across - 1), bar, min(sheet.room([title], usual), most), min(most, 2.4))
    below = _wrapped(foot, inner, small)
    height = 2 * MARGIN + line + 0.04 + down * block + small_line + len(below) * small_line
    page = sheet.empty(inner + 2 * MARGIN, height)
    y = height - MARGIN - line
    sheet.note(page, MARGIN, y + 0.3 * line, sheet.line(title, inner, usual), va="baseline")
    y -= 0.04
    for number, panel in enumerate(panels):
        x = MARGIN + (number % across) * (each + GAP)
        if number and number % across == 0:
            y -= block
        top = y - over
        if panel.title:
            room = each - sheet.room([panel.corner], small) - 0.05
            sheet.note(page, x, top + 0.3 * line, sheet.line(panel.title, room, usual), va="baseline")
        if panel.corner:
            sheet.note(
                page,
                x + each,
                top + 0.3 * line,
                panel.corner,
                va="baseline",
                ha="right",
                size=sheet.small(),
                color=QUIET,
            )
        _map(sheet.axes(page, x, top - tall, each, tall), panel.shares, photo)
        for place, note in enumerate([note for note in panel.notes if note]):
            words = sheet.line(note, each, small)
            sheet.note(
                page, x, top - tall - (place + 0.85) * small_line, words, va="baseline", size=sheet.small(), color=QUIET
            )
    y = MARGIN + len(below) * small_line + 0.3 * small_line
    _bar(page, y, scale, 1.0 if photo is None else float(photo.mean()), photo is not None, small)
    for words in below:
        y -= small_line
        sheet.note(page, MARGIN, y, words, va="baseline", size=sheet.small(), color=QUIET)
    return page


def _map(at: Axes, shares: FloatArray, photo: FloatArray | None) -> None:
    """Draw one map: the image in grey below its patches, or patches alone with lines between them."""
    rows, columns = shares.shape
    place = (0, columns, rows, 0)
    if photo is not None:
        at.imshow(photo, cmap="gray", vmin=0, vmax=1, extent=place, aspect="auto")
    colours = overlay_colours(shares, photo is not None)
    colours[np.isnan(shares)] = UNKNOWN[photo is not None]
    at.imshow(colours, extent=place, aspect="auto", interpolation="nearest")
    at.set(xticks=[], yticks=[], xlim=(0, columns), ylim=(rows, 0))
    if photo is None:
        at.set_xticks(np.arange(1, columns), minor=True)
        at.set_yticks(np.arange(1, rows), minor=True)
        at.grid(which="minor", color=GRID, linewidth=0.4)
        at.tick_params(which="minor", length=0)
    for side in at.spines.values():
        side.set(visible=True, color=EDGE, linewidth=0.5)


def _bar_width(scale: Scale, size: float) -> float:
    return BAR + sum(sheet.room([label], size) for label in scale.labels) + 0.1


def _bar(page: Figure, y: float, scale: Scale, ground: float, over_image: bool, size: float) -> None:
    """Draw the scale on a ground as bright as the image is on average."""
    first, last = scale.labels
    x = MARGIN + sheet.room([first], size) + 0.05
    sheet.note(page, MARGIN, y, first, va="baseline", size=sheet.small(), color=QUIET)
    at = sheet.axes(page, x, y, BAR, BAR_HEIGHT)
    low, high = scale.ends
    at.set_facecolor(str(ground))
    shares = np.linspace(low, high, STEPS)[None]
    at.imshow(overlay_colours(shares, over_image), extent=(low, high, 0, 1), aspect="auto", interpolation="nearest")
    at.set(xticks=[], yticks=[])
    for side in at.spines.values():
        side.set(visible=True, color=EDGE, linewidth=0.4)
    if low < 0 < high:
        at.axvline(0, color=sheet.INK, linewidth=0.5)
    sheet.note(page, x + BAR + 0.05, y, last, va="baseline", size=sheet.small(), color=QUIET)


def _wrapped(sentences: Sequence[str], width: float, size: float) -> list[str]:
    """Return sentences in lines of this width."""
    lines: list[str] = []
    for word in " ".join(sentences).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and sheet.room([longer], size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
