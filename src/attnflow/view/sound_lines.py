"""Rows over a sound in the terminal: a bar over time, its highest stretches, and the words of a transcript."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from attnflow._arrays import FloatArray
from attnflow.reliability import percent
from attnflow.result import TokenAttention
from attnflow.seconds import stretches

if TYPE_CHECKING:
    from attnflow.view.terminal import Screen

BINS = 60
"""Maximum number of bins of a bar."""

LISTED = 5
LEAST = 0.03  # smallest share of a row that is listed
WORD_CELLS = 20
HEIGHTS = " ▁▂▃▄▅▆▇█"
ASCII_HEIGHTS = " .:-=+*#%@"


def time_lines(result: TokenAttention, at_layer: int, at_query: int, screen: Screen) -> Iterator[Text]:
    """Yield one row over a sound: a bar, an axis in seconds, and the highest stretches."""
    bins = min(BINS, screen.width)
    edges, values = result.over_time(bins)
    row = result.values[at_layer, at_query]
    yield Text(bar_over_time(values[at_layer, at_query], screen), no_wrap=True, overflow="crop")
    yield Text(axis(float(edges[-1]), bins), no_wrap=True, overflow="crop")
    for start, end, share in stretches(result.seconds, result.special, row, LISTED):
        if share >= LEAST:
            yield Text(f"{span_text(start, end, screen)}  {percent(share):>5}", no_wrap=True, overflow="crop")
    spans = zip(result.seconds, result.special, row.tolist(), strict=True)
    silent = sum(max(value, 0.0) for span, special, value in spans if span is not None and special)
    whole = float(row.clip(0).sum())
    if silent > 0.005 * whole:
        yield Text(f"{percent(silent / whole)} of the row is on the silence that the model adds after the sound")


def word_lines(result: TokenAttention, screen: Screen) -> Iterator[Text]:
    """Yield the words of a transcript: when each was spoken, the share of its row in that time, and its row."""
    names = [screen.shown(token) for token in result.query_tokens]
    wide = min(WORD_CELLS, max(map(cell_len, ["word", *names])))
    fronts = []
    for name, query in zip(names, result.queries, strict=True):
        start, end, share = result.stretch(query)
        fronts.append(f"{screen.fitted(name, wide)}  {span_text(start, end, screen)}  {percent(share):>5}  ")
    heading = f"{screen.fitted('word', wide)}  {'spoken in':>13}  share of its attention in that time"
    yield Text(heading, no_wrap=True, overflow="crop")
    bins = max(1, min(BINS, screen.width - cell_len(fronts[0])))
    edges, values = result.over_time(bins)
    for front, row in zip(fronts, values[-1], strict=True):
        yield Text(front + bar_over_time(row, screen), no_wrap=True, overflow="crop")
    yield Text(" " * cell_len(fronts[0]) + axis(float(edges[-1]), bins), no_wrap=True, overflow="crop")


def span_text(start: float, end: float, screen: Screen) -> str:
    """Return a range of seconds as text.

    >>> from attnflow.view.terminal import Screen
    >>> span_text(0.4, 12.25, Screen(80, False, "utf-8"))
    ' 0.40–12.25 s'
    """
    return f"{start:5.2f}{'–' if screen.blocks else '-'}{end:5.2f} s"


def bar_over_time(row: FloatArray, screen: Screen) -> str:
    """Return one character per bin, as high as its value."""
    heights = HEIGHTS if screen.blocks else ASCII_HEIGHTS
    top = float(row.max(initial=0.0))
    parts = row.clip(0) / top if top > 0 else np.zeros_like(row)
    return "".join(heights[round(part * (len(heights) - 1))] for part in parts.tolist())


def axis(duration: float, bins: int) -> str:
    """Return the axis in seconds below a bar of `bins` characters.

    >>> axis(10.0, 40)
    '0         2.5       5         7.5   10 s'
    """
    last = f"{seconds_text(duration)} s"
    line = [" "] * bins
    ticks = 4 if bins >= 40 else 2 if bins >= 20 else 1
    for tick in range(ticks):
        at = tick * bins // ticks
        text = seconds_text(tick * duration / ticks)
        if at + len(text) < bins - len(last):
            line[at : at + len(text)] = text
    line[max(0, bins - len(last)) :] = last[-bins:]
    return "".join(line)


def seconds_text(second: float) -> str:
    """Return seconds to two decimals, without trailing zeros.

    >>> seconds_text(2.5), seconds_text(11.004)
    ('2.5', '11')
    """
    return f"{second:.2f}".rstrip("0").rstrip(".")
