"""A comparison in the terminal: shaded tokens for each method, a table of values, and rank correlations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from attnflow.view import terminal
from attnflow.view.colour import signed_shares

if TYPE_CHECKING:
    from attnflow.view.comparison import Comparison

SENTENCES = 5  # in the list
SENTENCE = terminal.SENTENCE // 2  # tokens, printed once per method
MAP_LINES = 20
MAP_GAP = 3  # columns between maps


def render(comparison: Comparison, width: int | None = None) -> terminal.Printed:
    """Lay out a comparison for rich.

    Shades range from the lowest value of a method to the highest. If a method has values below 0, they range from 0 to the
    largest absolute value, and values below 0 are underlined, or marked by arrows without colours. With more than 60
    inputs, the table lists the 20 highest.

    width: maximum number of columns; by default, those of the terminal.
    """
    return terminal.Printed(lambda screen: _lines(comparison, screen), width)


def _lines(comparison: Comparison, screen: terminal.Screen) -> Iterator[Text]:
    if comparison.prediction is not None:
        answers = ", ".join(f"{name!r} {chance:.3f}" for name, chance in comparison.prediction.top[:3])
        yield Text(screen.shown(f"{comparison.prediction.kind}: {answers}"))
    unit = " (words)" if comparison.provenance.get("unit") == "word" else ""
    query = screen.shown(comparison.query_token)
    names = [f"comparison{unit}", f"query {query}", f"L{comparison.layer + 1}"]
    yield from terminal.heading(comparison, names, screen)
    yield from _sentences(comparison, screen) if comparison.patches is None else _maps(comparison, screen)
    yield terminal.ramp("lowest", "highest of each method", screen)
    if comparison.against is not None:
        sign = terminal.below_mark(screen)
        if screen.coloured:
            sign = "underlined" if comparison.patches is None else "red"
        yield Text(screen.shown(f"values below 0 ({sign}) {comparison.against}"))
    yield Text()
    yield from _table(comparison, screen)
    yield Text()
    yield from _agreement(comparison, screen)
    yield from _left_out(comparison, screen)
    for note in comparison.notes:
        yield Text(screen.shown(note))


def _sentences(comparison: Comparison, screen: terminal.Screen) -> Iterator[Text]:
    """Yield the tokens once per method; without colours, once, with a line of shades per method below."""
    front = max(map(len, comparison.methods)) + 2
    room = max(screen.width - front, 1)
    tokens = [screen.shown(token) for token in comparison.tokens[:SENTENCE]]
    tokens = [screen.fitted(t, min(cell_len(t), terminal.TOKEN_CELLS, room)) for t in tokens]
    shade = [signed_shares(row).tolist() for row in comparison.values]
    for name, section in comparison.sections:
        if name and section[0] < len(tokens):
            yield Text(screen.shown(name))
        cells = [cell_len(tokens[i]) for i in section if i < len(tokens)]
        for number, line in enumerate(terminal.wrapped(cells, room, gap=1)):
            if number:
                yield Text()
            yield from _block(comparison.methods, tokens, shade, [section[i] for i in line], front, screen)
    if len(comparison.tokens) > SENTENCE:
        yield Text(f"and {len(comparison.tokens) - SENTENCE:,} more")


def _block(
    methods: Sequence[str],
    tokens: Sequence[str],
    shade: Sequence[Sequence[float]],
    which: Sequence[int],
    front: int,
    screen: terminal.Screen,
) -> Iterator[Text]:
    """Yield one line of tokens for all methods."""
    if not screen.coloured:
        yield _cropped(Text(" " * front + " ".join(tokens[i] for i in which)))
    for name, of in zip(methods, shade, strict=True):
        line = Text(f"{name:<{front}}")
        for i in which:
            line.append("" if i == which[0] else " ")
            if screen.coloured:
                line.append(tokens[i], terminal.AGAINST if of[i] < 0 else terminal.shade(of[i]))
            else:
                line.append(terminal.sign(of[i], screen) * cell_len(tokens[i]))
        line.rstrip()
        yield _cropped(line)


def _maps(comparison: Comparison, screen: terminal.Screen) -> Iterator[Text]:
    """Yield the patches of an image once per method, side by side as far as there is room."""
    rows, columns = comparison.patches or (0, 0)
    maps = [
        [Text(name), *terminal.patch_lines(row[-rows * columns :].reshape(rows, columns), screen, MAP_LINES)]
        for name, row in zip(comparison.methods, comparison.values, strict=True)
    ]
    *_, last = maps[0]
    about = [last] if last.style == "dim" else []  # what a cell is, once for all
    maps = [lines[: len(lines) - len(about)] for lines in maps]
    widths = [max(line.cell_len for line in lines) for lines in maps]
    for number, group in enumerate(terminal.wrapped(widths, screen.width, gap=MAP_GAP)):
        if number:
            yield Text()
        for place in range(len(maps[0])):
            line = Text(no_wrap=True)
            for i in group:
                part = maps[i][place].copy()
                line.append_text(part).append(" " * (widths[i] - part.cell_len + MAP_GAP if i != group[-1] else 0))
            if not screen.coloured:
                line.rstrip()
            yield _cropped(line)
    yield from about


def _table(comparison: Comparison, screen: terminal.Screen) -> Iterator[Text]:
    n, limit = len(comparison.tokens), terminal.most_listed(comparison)
    by = comparison.leading
    listed = np.argsort(-np.abs(comparison.row(by)), kind="stable").tolist()[:limit]
    listed.sort()
    columns = [terminal.numbers_of(row[listed]) for row in comparison.values]
    head, *fronts = terminal.fronts(comparison, listed, screen, 3, "token")
    wide = _column_cells(comparison.methods, [max(map(len, c)) for c in columns], screen.width - cell_len(head))
    bold = [set(np.argsort(-np.abs(row), kind="stable").tolist()[: terminal.BOLD]) for row in comparison.values]
    yield _head(head, comparison.methods, wide, screen)
    for at, i in enumerate(listed):
        faint = "dim" if comparison.special[i] else ""
        line = Text(fronts[at], faint)
        for number, cells in enumerate(wide):
            line.append(f"  {columns[number][at]:>{cells}}", "bold" if i in bold[number] else faint)
        yield _cropped(line)
    if limit < n:
        yield Text(f"{n - limit:,} of {n:,} inputs are not shown; these are the {limit} highest by {by}")


def _agreement(comparison: Comparison, screen: terminal.Screen) -> Iterator[Text]:
    """Yield the rank correlations of all pairs, each once."""
    front = max(map(len, [*comparison.methods[:-1], "rank correlation"]))
    front = min(front, max(screen.width // 3, 1))
    wide = _column_cells(comparison.methods[1:], [5] * (len(comparison.methods) - 1), screen.width - front)
    yield _head(screen.fitted("rank correlation", front), comparison.methods[1:], wide, screen)
    for number, name in enumerate(comparison.methods[:-1]):
        line = Text(screen.fitted(name, front))
        for other, cells in enumerate(wide, start=1):
            rho = comparison.correlations[number, other]
            line.append(f"  {'' if other <= number else 'none' if np.isnan(rho) else f'{rho:.2f}':>{cells}}")
        yield _cropped(line)


def _left_out(comparison: Comparison, screen: terminal.Screen) -> Iterator[Text]:
    """Yield the sentences whose removal changes the answer most."""
    known = [(text, value) for text, value in comparison.sentences if value is not None]
    if not known:
        return
    known.sort(key=lambda one: -abs(one[1]))
    numbers = terminal.numbers_of(np.array([value for _, value in known[:SENTENCES]]))
    yield Text()
    looked = "" if len(known) == len(comparison.sentences) else f" ({len(known)} measured)"
    yield Text(f"how much the answer loses without a sentence, of {len(comparison.sentences)}{looked}", style="bold")
    wide = max(map(len, numbers))
    for number, (text, _) in zip(numbers, known, strict=False):
        yield _cropped(
            Text(f"{number:>{wide}}  {screen.fitted(screen.shown(text), max(screen.width - wide - 2, 1))}".rstrip())
        )


def _head(front: str, names: Sequence[str], wide: Sequence[int], screen: terminal.Screen) -> Text:
    """Return the first line of a table. wide: the width of each column."""
    columns = [
        f"  {screen.fitted(name, min(cells, len(name))):>{cells}}" for name, cells in zip(names, wide, strict=True)
    ]
    return _cropped(Text(front + "".join(columns), style="bold"))


def _column_cells(names: Sequence[str], numbers: Sequence[int], room: int) -> list[int]:
    """Return the width of each column. If space is short, cut the longest names, never numbers."""
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
