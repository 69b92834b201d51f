"""One row of token attention in the terminal: the tokens shaded by their values, and a table of numbers with bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.style import Style
from rich.text import Text

from attnflow.errors import InputError
from attnflow.result import FloatArray, TokenAttention
from attnflow.view.colour import colours, ink, shares

if TYPE_CHECKING:
    from attnflow.view.comparison import Comparison

LONG = 60  # inputs above which the table holds only the highest ones
HIGHEST = 20
HIGHEST_OF_AN_IMAGE = 5
BOLD = 3
SENTENCE = 400  # tokens: more than that would push everything else off the screen
TOKEN_CELLS = 28
BAR_CELLS = 40
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
SHADES = " ░▒▓█"
ASCII_SHADES = " .:-=+*#%@"


def render(
    result: TokenAttention, query: int | str | None = None, layer: int = -1, width: int | None = None
) -> TerminalView:
    """What rich prints for one row ``values[layer, query]``: a header, the shaded tokens or patches, and a table.

    Shades go from the lowest value of the row to the highest, bars from 0 to the largest. Of more than 60 inputs the
    table has the 20 highest.

    query, layer: as in `TokenAttention.row`.
    width: the columns to use at most; all that the terminal has, if not given.

    >>> key = TokenAttention(
    ...     values=[[[0.25, 0.75]]], method="raw", layers=[0], queries=[1], query_tokens=["key"], tokens=["the", "key"],
    ...     word_ids=[0, 1], word_texts=["the", "key"], special=[False, False], text="the key",
    ... )
    >>> Console(width=40, color_system=None).print(render(key))
    raw · query key · L1
    the key
    0  the  0.250  ████████▍
    1  key  0.750  █████████████████████████
    """
    at_layer, at_query = result.where(query, layer)
    check_width(width)
    return TerminalView(result, at_layer, at_query, width)


def check_width(width: int | None) -> None:
    if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
        raise InputError(f"width={width!r}: expected a number of columns, or None for all of the terminal's")


def visible(text: str) -> str:
    r"""The text with everything escaped that a terminal would act on or would not show.

    >>> visible("\x1b[1m"), visible("a\nb"), visible("[bold]"), visible(" ")
    ('\\x1b[1m', 'a\\nb', '[bold]', "' '")
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if shown.strip() else repr(shown)


def plain(text: str) -> Text:
    """Text that rich prints as it stands, with no markup read into it."""
    return Text(visible(text))


@dataclass(frozen=True)
class Page:
    """What the console that prints can do."""

    width: int
    coloured: bool
    encoding: str

    @property
    def blocks(self) -> bool:
        return self.encoding.lower().startswith("utf")

    def shown(self, text: str) -> str:
        return visible(text).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def fitted(self, text: str, cells: int) -> str:
        """Exactly so many cells of it."""
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        cut = "…" if self.blocks else "~"
        return set_cell_size(text, cells - 1) + cut


def page_of(console: Console, options: ConsoleOptions, width: int | None = None) -> Page:
    """What this console can do, within so many columns."""
    coloured = console.color_system is not None and not console.no_color
    # rich takes a console on sys.stdout for UTF-8, whatever the stream says
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    return Page(min(width or options.max_width, options.max_width), coloured, encoding)


@dataclass(frozen=True)
class TerminalView:
    """One row of a result, which takes its shape only when a console prints it."""

    result: TokenAttention
    at_layer: int
    at_query: int
    width: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        page = page_of(console, options, self.width)
        yield from console.render(Group(*self._lines(page)), options.update(width=page.width))

    def _lines(self, page: Page) -> Iterator[Text]:
        result, row = self.result, self.result.values[self.at_layer, self.at_query]
        model = result.provenance.get("model")
        yield Text(
            (" · " if page.blocks else " | ").join(
                ([] if model is None else [page.shown(str(model))])
                + [page.shown(_method(result)), f"query {page.shown(result.query_tokens[self.at_query])}"]
                + ([] if _of_no_layer(result) else [f"L{result.layers[self.at_layer] + 1}"])
            ),
            style="bold",
        )
        strange = unknown(result)
        if strange:
            yield Text("unknown to the model: " + page.shown(", ".join(strange)))
        if result.patches is None:
            yield _sentence(result.tokens, row, page)
            if page.coloured:
                yield legend(row, page)
        else:
            patches = result.on_patches()[self.at_layer, self.at_query]
            yield from patch_lines(patches, page)
            yield legend(patches, page)
        yield from _table(result, row, page)


def unknown(result: TokenAttention | Comparison) -> list[str]:
    """The words that the model cannot read; steps that drop inputs or merge them move positions, so these tell nothing."""
    places = result.provenance.get("unknown")
    moved = result.provenance.get("steps") or result.provenance.get("unit") == "word"
    if not isinstance(places, list) or moved:
        return []
    return [result.tokens[i] for i in places if isinstance(i, int) and 0 <= i < len(result.tokens)]


def _of_no_layer(result: TokenAttention) -> bool:
    """Importance is of the model's answer, and so is what is gathered; rollout and flow over gradients are of a layer."""
    return "answer" in result.provenance and ("edges" not in result.provenance or result.method == "gather")


def _method(result: TokenAttention) -> str:
    """The method with what changes its meaning: edges, receptive field, a start above the input, normalisation, words."""
    told = result.provenance
    more = [f"edges {told['edges']}"] if told.get("edges") else []
    more += [f"receptive field {told['receptive_field']}"] if told.get("receptive_field") else []
    more += [f"down to L{told['start'] + 1}"] if isinstance(told.get("start"), int) else []
    more += ["normalized"] if told.get("normalize") or "normalized" in (told.get("steps") or ()) else []
    more += ["words"] if told.get("unit") == "word" else []
    return result.method + (f" ({', '.join(more)})" if more else "")


def shade(share: float) -> Style:
    """The colour of a share as background, with black or white on it, whichever reads better."""
    red, green, blue = (int(c) for c in colours(np.array(share)).round())
    return Style(color=ink((red, green, blue)), bgcolor=Color.from_rgb(red, green, blue))


def character(share: float, page: Page) -> str:
    shades = SHADES if page.blocks else ASCII_SHADES
    return shades[min(int(share * len(shades)), len(shades) - 1)]


def _sentence(tokens: Sequence[str], row: FloatArray, page: Page) -> Text:
    line = Text()
    for number, (token, share) in enumerate(zip(tokens[:SENTENCE], shares(row).tolist(), strict=False)):
        line.append(" " if number else "").append(page.shown(token), shade(share) if page.coloured else None)
    if len(tokens) > SENTENCE:
        line.append(f" and {len(tokens) - SENTENCE:,} more")
    return line


def patch_lines(patches: FloatArray, page: Page) -> Iterator[Text]:
    rows, columns = patches.shape
    if columns > page.width:
        yield Text(f"{rows} by {columns} patches are too wide for {page.width} columns: use overlay()")
        return
    cell = 2 if 2 * columns <= page.width else 1  # two columns of a terminal are about a square
    for of_row in shares(patches).tolist():
        line = Text(no_wrap=True)
        for share in of_row:
            if page.coloured:
                line.append(" " * cell, shade(share))
            else:
                line.append(character(share, page) * cell)
        yield line


def legend(values: FloatArray, page: Page) -> Text:
    low, high = numbers_of(np.array([values.min(), values.max()]))
    return ramp(low, high, page)


def ramp(low: str, high: str, page: Page) -> Text:
    """All shades between two names."""
    line = Text(f"{low} ")
    for share in np.linspace(0, 1, 20 if page.coloured else 10).tolist():
        line.append(" " if page.coloured else character(share, page), shade(share) if page.coloured else None)
    return line.append(f" {high}")


def _table(result: TokenAttention, row: FloatArray, page: Page) -> Iterator[Text]:
    order = np.argsort(-row, kind="stable").tolist()
    limit = HIGHEST_OF_AN_IMAGE if result.patches else HIGHEST if len(row) > LONG else len(row)
    listed, bold = sorted(order[:limit]), set(order[:BOLD])
    tokens = [page.shown(result.tokens[i]) for i in listed]
    parts = [page.shown(result.parts[i]) for i in listed] if result.parts else [""] * len(listed)
    numbers = numbers_of(row[listed])
    number_cells, position_cells = max(map(len, numbers)), len(str(listed[-1]))
    token_cells = min(max(map(cell_len, tokens)), TOKEN_CELLS, max(page.width // 2, 1))
    part_cells = min(max(map(cell_len, parts)), 12)
    largest = float(np.abs(row).max()) or 1.0
    for i, token, part, number in zip(listed, tokens, parts, numbers, strict=True):
        front = f"{i:>{position_cells}}  " + (f"{page.fitted(part, part_cells)}  " if part_cells else "")
        front += f"{page.fitted(token, token_cells)}  {number:>{number_cells}}  "
        cells = min(BAR_CELLS, page.width - cell_len(front))
        style = "bold" if i in bold else "dim" if result.special[i] else ""
        bar = _bar(max(float(row[i]), 0.0) / largest, max(cells, 0), page)  # what is negative has its sign, and no bar
        yield Text((front + bar).rstrip(), style=style, no_wrap=True, overflow="crop")
    if limit < len(row):
        yield Text(f"{len(row) - limit:,} of {len(row):,} inputs are left out: these are the {limit} highest")


def _bar(share: float, cells: int, page: Page) -> str:
    if not page.blocks:
        return "#" * round(share * cells)
    whole, eighths = divmod(round(share * cells * 8), 8)
    return "█" * whole + EIGHTHS[eighths]


def numbers_of(values: FloatArray) -> list[str]:
    """Three digits of the largest one, so that rows over many thousand inputs are not all 0.000."""
    largest = float(np.abs(values).max())
    if largest and not 1e-6 <= largest < 1e6:
        return [f"{value:.2e}" for value in values.tolist()]
    digits = 3 if largest == 0 else max(3, 2 - math.floor(math.log10(largest)))
    return [f"{value:.{digits}f}" for value in values.tolist()]
