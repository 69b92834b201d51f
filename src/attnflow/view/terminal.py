"""One row of token attention in the terminal: tokens shaded by their values, and a table with bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.style import Style
from rich.text import Text

from attnflow._arrays import FloatArray
from attnflow.errors import InputError
from attnflow.result import TokenAttention
from attnflow.source_methods import ANSWER_WAYS, METHOD
from attnflow.view.colour import RAMP, colours, ink, shares, signed_shares

if TYPE_CHECKING:
    from attnflow.view.comparison import Comparison

LONG = 60  # with more inputs, the table lists only the highest
HIGHEST = 20
HIGHEST_OF_AN_IMAGE = 5
BOLD = 3
SENTENCE = 400  # tokens; more would push everything else off the screen
TOKEN_CELLS = 28
BAR_CELLS = 40
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
SHADES = " ░▒▓█"
ASCII_SHADES = " .:-=+*#%@"
CONSTANT = 0.5  # fraction of the log-odds above which biases are mentioned
MOST_LINES = 40  # of a map
RED = (214, 52, 36)  # the largest value against an answer, on a map
AGAINST = Style(color="red", underline=True)  # tokens that count against an answer


def render(
    result: TokenAttention, query: int | str | None = None, layer: int = -1, width: int | None = None
) -> Printed:
    """Lay out one row ``values[layer, query]`` for rich: a header, the shaded tokens or patches, and a table.

    Shades range from the lowest value of the row to the highest, bars from 0 to the largest; bars of negative values have a
    lighter shade. With more than 60 inputs, the table lists the 20 highest. If tokens can count against an answer, shades
    range from 0 to the highest, tokens that do are underlined, and a line below the table says so.

    query, layer: as in `TokenAttention.row`.
    width: maximum number of columns; by default, those of the terminal.

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
    at = result.where(query, layer)
    return Printed(lambda screen: _lines(result, *at, screen), width)


def visible(text: str) -> str:
    r"""Escape everything that a terminal would interpret or not show.

    >>> visible("\x1b[1m"), visible("a\nb"), visible("[bold]"), visible(" ")
    ('\\x1b[1m', 'a\\nb', '[bold]', "' '")
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if shown.strip() else repr(shown)


def plain(text: str) -> Text:
    """Return text that rich prints without interpreting markup."""
    return Text(visible(text))


def wrapped(widths: Sequence[float], room: float, gap: float) -> list[list[int]]:
    """Return the words of each line, `gap` apart.

    >>> wrapped([3, 3, 3, 9], room=7, gap=1)
    [[0, 1], [2], [3]]
    """
    lines: list[list[int]] = []
    x = float("inf")
    for i, width in enumerate(widths):
        if x + width > room + 1e-9:
            lines.append([])
            x = 0.0
        lines[-1].append(i)
        x += width + gap
    return lines


@dataclass(frozen=True)
class Screen:
    """The abilities of the console that prints."""

    width: int
    coloured: bool
    encoding: str

    @property
    def blocks(self) -> bool:
        return self.encoding.lower().startswith("utf")

    def shown(self, text: str) -> str:
        return visible(text).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def fitted(self, text: str, cells: int) -> str:
        """Pad or cut a text to a number of cells."""
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        return set_cell_size(text, cells - 1) + ("…" if self.blocks else "~")


@dataclass(frozen=True)
class Printed:
    """Lines that are laid out when a console prints them. width: maximum number of columns."""

    lines: Callable[[Screen], Iterable[Text]]
    width: int | None

    def __post_init__(self) -> None:
        width = self.width
        if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
            raise InputError(f"width={width!r}: expected a number of columns, or None for the width of the terminal")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        # rich assumes UTF-8 for sys.stdout, whatever its encoding
        encoding = getattr(console.file, "encoding", None) or "utf-8"
        screen = Screen(min(self.width or options.max_width, options.max_width), coloured, encoding)
        yield from console.render(Group(*self.lines(screen)), options.update(width=screen.width))


def _lines(result: TokenAttention, at_layer: int, at_query: int, screen: Screen) -> Iterator[Text]:
    result = few_places(result, at_layer, at_query)
    row = result.values[at_layer, at_query]
    layer = [] if of_no_layer(result) else [f"L{result.layers[at_layer] + 1}"]
    method, query = screen.shown(method_text(result)), screen.shown(result.query_tokens[at_query])
    yield from heading(result, [method, *map(screen.shown, explained(result, query)), *layer], screen)
    below = against(result, row)
    if result.patches is None:
        yield _sentence(result.tokens, row, below is not None, screen)
        if screen.coloured:
            yield _legend(row if below is None else np.append(row.clip(0), 0.0), screen)
    else:
        patches = result.on_patches()[at_layer, at_query]
        yield from patch_lines(patches, screen)
        signed = float(np.nanmin(patches)) < 0
        yield _legend(np.array([0.0, float(np.nanmax(np.abs(patches)))]) if signed else patches, screen)
        if signed:
            mark, low = "red" if screen.coloured else below_mark(screen), numbers_of(np.array([np.nanmin(patches)]))[0]
            yield Text(screen.shown(f"values below 0 ({mark} on the map) go down to {low}"))
    yield from _table(result, row, below is not None, screen)
    if below is not None:
        yield Text(screen.shown(f"values below 0 ({'░' if screen.blocks else '-'}) {below}"))
    if (rest := _constants(result)) is not None:
        yield Text(screen.shown(rest))
    if at_layer == len(result.layers) - 1:  # notes are about the last layer
        yield from (Text(screen.shown(note)) for note in result.reliability)


def few_places(result: TokenAttention, at_layer: int, at_query: int) -> TokenAttention:
    """Return a result for a text with an image, with all but the strongest places of the image merged into one."""
    about = result.provenance.get("picture")
    if not isinstance(about, dict):
        return result
    # by name, because dropping inputs changes positions
    named = {f"image {r + 1},{c + 1}": (r, c) for r in range(about["rows"]) for c in range(about["columns"])}
    places = {i: named[token] for i, token in enumerate(result.tokens) if token in named}
    row = np.abs(result.values[at_layer, at_query])
    strongest = sorted(places, key=lambda place: -row[place])[:HIGHEST_OF_AN_IMAGE]
    others = [place for place in places if place not in strongest]
    if len(others) < 2:
        return result
    keep = [i for i in range(len(result.tokens)) if i not in others or i == others[0]]
    names = {place: f"image, row {r + 1} column {c + 1}" for place, (r, c) in places.items()}
    names[others[0]] = f"image, {len(others):,} other places"
    values = result.values.copy()
    values[..., others[0]] = values[..., others].sum(-1)
    tokens = tuple(names.get(i, result.tokens[i]) for i in keep)
    return replace(
        result, values=values[..., keep], tokens=tokens, special=tuple(result.special[i] for i in keep),
        word_ids=tuple(range(len(keep))), word_texts=tokens, parts=(), source=None,
    )  # fmt: skip


def heading(result: TokenAttention | Comparison, names: Sequence[str], screen: Screen) -> Iterator[Text]:
    """Yield the model and what is shown, and the words that are unknown to the model."""
    provenance = result.provenance
    model = [] if provenance.get("model") is None else [screen.shown(str(provenance["model"]))]
    yield Text((" · " if screen.blocks else " | ").join([*model, *names]), style="bold")
    unknown = provenance.get("unknown")
    # dropping or merging inputs changes positions
    if isinstance(unknown, list) and not (provenance.get("steps") or provenance.get("unit") == "word"):
        words = [result.tokens[i] for i in unknown if isinstance(i, int) and 0 <= i < len(result.tokens)]
        if words:
            yield Text("unknown to the model: " + screen.shown(", ".join(words)))


def of_no_layer(result: TokenAttention) -> bool:
    """Return whether a result has no layer because it explains the answer: importance and answer edges."""
    return "answer" in result.provenance and ("edges" not in result.provenance or result.method in ANSWER_WAYS)


def against(result: TokenAttention, row: FloatArray) -> str | None:
    """Return what values below zero mean for the answer; None if there are none, or no answer is explained."""
    answer = result.provenance.get("answer")
    if not of_no_layer(result) or not isinstance(answer, dict) or float(np.nanmin(row)) >= 0:
        return None
    name = str(answer.get("name") or "the answer")
    return f"lower {name!r}" if answer.get("kind") == "score" else f"count against {name!r}"


def _constants(result: TokenAttention) -> str | None:
    """Return a sentence about the part of an answer that comes from no input, if it is large."""
    sums, answer = result.provenance.get("evidence"), result.provenance.get("answer")
    if not isinstance(sums, dict) or "constants" not in sums or result.method not in ANSWER_WAYS:
        return None
    whole, rest = float(sums["log_odds"]), float(sums["constants"])
    if abs(rest) < CONSTANT * abs(whole) or abs(rest) < 0.005:
        return None
    measured = "score" if isinstance(answer, dict) and answer.get("kind") == "score" else "log-odds"
    return f"{rest:+.2f} of the {measured} {whole:+.2f} comes from biases, not from tokens"


def explained(result: TokenAttention, query: str) -> list[str]:
    """Return what the numbers explain: a part of an answer, a class or next token, or a hidden state."""
    answer = result.provenance.get("answer")
    if isinstance(answer, dict) and answer.get("kind") == "answer":
        return [f"explains {query}"]
    if isinstance(answer, dict) and answer.get("name") and result.method in ANSWER_WAYS:
        at = [f"query {query}"] if result.method == METHOD else []  # answer_inputs is about all positions
        return [f"explains {answer['name']!r}", *at]
    return [f"query {query}"]


def method_text(result: TokenAttention) -> str:
    """Return the method with everything that changes its meaning: edges, receptive field, start, residual, units
    and the kind of values."""
    how = result.provenance
    more = [f"edges {how['edges']}"] if how.get("edges") and not result.method.startswith("answer_") else []
    more += [f"receptive field {how['receptive_field']}"] if how.get("receptive_field") else []
    more += [f"down to L{how['start'] + 1}"] if isinstance(how.get("start"), int) else []
    more += ["normalized"] if how.get("normalize") or "normalized" in (how.get("steps") or ()) else []
    more += [f"{how['unit']}s"] if how.get("unit") not in (None, "token") else []
    # shares are the default for a trace, so only other kinds of values are named
    usual = "shares" if (how.get("answer") or {}).get("kind") != "answer" else None
    more += [str(how["values"])] if how.get("values") not in (None, usual) else []
    return result.method + (f" ({', '.join(more)})" if more else "")


def shade(share: float) -> Style:
    """Return the style of a share: its colour as background with readable text; no style for NaN."""
    if math.isnan(share):
        return Style()
    red, green, blue = (int(c) for c in colours(np.array(share)).round())
    return Style(color=ink((red, green, blue)), bgcolor=Color.from_rgb(red, green, blue))


def character(share: float, screen: Screen) -> str:
    if math.isnan(share):
        return " "
    shades = SHADES if screen.blocks else ASCII_SHADES
    return shades[min(int(share * len(shades)), len(shades) - 1)]


def _sentence(tokens: Sequence[str], row: FloatArray, signed: bool, screen: Screen) -> Text:
    """Return the shaded tokens. signed: whether values below 0 count against an answer."""
    line = Text()
    depths = row.clip(0) / (np.nanmax(row) if np.nanmax(row) > 0 else 1) if signed else shares(row)
    for number, (token, depth, value) in enumerate(zip(tokens[:SENTENCE], depths.tolist(), row.tolist(), strict=False)):
        style = AGAINST if signed and value < 0 else shade(depth)
        line.append(" " if number else "").append(screen.shown(token), style if screen.coloured else None)
    if len(tokens) > SENTENCE:
        line.append(f" and {len(tokens) - SENTENCE:,} more")
    return line


def patch_lines(patches: FloatArray, screen: Screen, most: int = MOST_LINES) -> Iterator[Text]:
    """Yield a map of an image's patches, from the lowest value to the highest.

    If some values are below 0, shades show absolute values, and those below 0 are red, or arrows without colours. Where
    there are too many patches for the screen or for `most` lines, a cell is a block of them and shows the largest.
    """
    size = 1
    while -(-patches.shape[1] // size) > screen.width or -(-patches.shape[0] // size) > most:
        size += 1
    blocks = _blocks(signed_shares(patches), size)
    cell = 2 if 2 * blocks.shape[1] <= screen.width else 1  # two characters are about a square
    for of_row in blocks.tolist():
        line = Text(no_wrap=True)
        for share in of_row:
            if screen.coloured:
                line.append(" " * cell, _below_zero(share) if share < 0 else shade(share))
            else:
                line.append(sign(share, screen) * cell)
        yield line
    if size > 1:
        by = "×" if screen.blocks else "x"
        yield Text(f"a cell is a block of {size} {by} {size} patches, and shows the largest", style="dim")


def _blocks(patches: FloatArray, size: int) -> FloatArray:
    """Return the largest absolute value, with its sign, of each block of size × size patches; NaN where there is none."""
    rows, columns = (-(-n // size) for n in patches.shape)
    padded = np.full((rows * size, columns * size), np.nan)
    padded[: patches.shape[0], : patches.shape[1]] = patches
    cells = padded.reshape(rows, size, columns, size).swapaxes(1, 2).reshape(rows, columns, -1)
    largest = np.where(np.isnan(cells), -1, np.abs(cells)).argmax(-1)
    return np.take_along_axis(cells, largest[..., None], -1)[..., 0]


def sign(share: float, screen: Screen) -> str:
    """Return the character of a share from -1 to 1: an arrow below 0, unless the share is small."""
    depth = character(abs(share), screen)
    return depth if not share < 0 or depth == " " else below_mark(screen)


def below_mark(screen: Screen) -> str:
    return "↓" if screen.blocks else "v"


def _below_zero(share: float) -> Style:
    """Return the background of a patch that counts against an answer: from the ramp's lowest colour to red."""
    red, green, blue = (int(c) for c in (RAMP[0] + (np.array(RED) - RAMP[0]) * -share).round())
    return Style(bgcolor=Color.from_rgb(red, green, blue))


def _legend(values: FloatArray, screen: Screen) -> Text:
    low, high = numbers_of(np.array([np.nanmin(values), np.nanmax(values)]))
    return ramp(low, high, screen)


def ramp(low: str, high: str, screen: Screen) -> Text:
    """Return a scale of all shades between two labels."""
    line = Text(f"{low} ")
    for share in np.linspace(0, 1, 20 if screen.coloured else 10).tolist():
        line.append(" " if screen.coloured else character(share, screen), shade(share) if screen.coloured else None)
    return line.append(f" {high}")


def most_listed(inputs: TokenAttention | Comparison) -> int:
    """Return the number of inputs in a table."""
    n = len(inputs.tokens)
    return HIGHEST_OF_AN_IMAGE if inputs.patches else HIGHEST if n > LONG else n


def _token(inputs: TokenAttention | Comparison, i: int) -> str:
    """Return a token as it is listed; a patch by its row and column."""
    rows, columns = inputs.patches or (0, 0)
    place = i - (len(inputs.tokens) - rows * columns)
    if not columns or place < 0:
        return inputs.tokens[i]
    return f"row {place // columns + 1}, column {place % columns + 1}"


def fronts(
    inputs: TokenAttention | Comparison, listed: Sequence[int], screen: Screen, share: int, head: str = ""
) -> list[str]:
    """Return the first columns of a table: a header, and the position, part and token of each input.

    share: tokens take at most 1 / share of the screen.
    head: the name of the token column.
    """
    tokens = [head, *(screen.shown(_token(inputs, i)) for i in listed)]
    parts = ["", *(screen.shown(inputs.parts[i]) if inputs.parts else "" for i in listed)]
    place_cells, part_cells = len(str(max(listed))), min(max(map(cell_len, parts)), 12)
    token_cells = min(max(map(cell_len, tokens)), TOKEN_CELLS, max(screen.width // share, 1))
    return [
        f"{i:>{place_cells}}  "
        + (f"{screen.fitted(part, part_cells)}  " if part_cells else "")
        + screen.fitted(token, token_cells)
        for i, part, token in zip(["", *listed], parts, tokens, strict=True)
    ]


def _table(result: TokenAttention, row: FloatArray, signed: bool, screen: Screen) -> Iterator[Text]:
    """Yield the table. signed: whether values below 0 count against an answer, and are ranked by absolute value."""
    order = np.argsort(-np.abs(row) if signed else -row, kind="stable").tolist()
    limit = min(most_listed(result), len(order))
    listed, bold = sorted(order[:limit]), set(order[:BOLD])
    if not listed:
        return
    numbers = numbers_of(row[listed])
    number_cells = max(map(len, numbers))
    largest = float(np.nanmax(np.abs(row))) or 1.0
    for i, front, number in zip(listed, fronts(result, listed, screen, 2)[1:], numbers, strict=True):
        line = f"{front}  {number:>{number_cells}}  "
        cells = min(BAR_CELLS, screen.width - cell_len(line))
        style = "bold" if i in bold else "dim" if result.special[i] else ""
        line += bar(float(row[i]) / largest, max(cells, 0), screen)
        yield Text(line.rstrip(), style=style, no_wrap=True, overflow="crop")
    if limit < len(order):
        kind = "largest" if signed else "highest"
        yield Text(f"{len(order) - limit:,} of {len(order):,} inputs are not shown; these are the {limit} {kind}")


def bar(share: float, cells: int, screen: Screen) -> str:
    """Return a bar of up to `cells` characters; lighter for a negative share, empty for NaN."""
    if math.isnan(share):
        return ""
    if share < 0:
        return ("░" if screen.blocks else "-") * round(-share * cells)
    if not screen.blocks:
        return "#" * round(share * cells)
    whole, eighths = divmod(round(share * cells * 8), 8)
    return "█" * whole + EIGHTHS[eighths]


def numbers_of(values: FloatArray) -> list[str]:
    """Format numbers with three digits of the largest, so that small values are not all 0.000. NaN becomes -."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    if np.isnan(values).any():  # not computed
        shown = iter(numbers_of(values[~np.isnan(values)]))
        return ["-" if np.isnan(value) else next(shown) for value in values.tolist()]
    if largest and not 1e-6 <= largest < 1e6:
        return [f"{value:.2e}" for value in values.tolist()]
    digits = 3 if largest == 0 else max(3, 2 - math.floor(math.log10(largest)))
    return [f"{value:.{digits}f}" for value in values.tolist()]
