"""Style and layout of figures: fonts, widths of words, and reproducible files.

Everything is placed in inches, because matplotlib's layouts know the width of a token only after drawing it. This module
does not use pyplot and does not change global settings.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.view.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = 6.9  # inches
COLUMN = 3.25  # of a page with two columns
SIZE = 7.0  # points, readable in print
SMALL = 6.0
INK, FAINT = "#222222", "#9a9a9a"
# Okabe and Ito's colours, safe for colour blindness, each with its own marker for prints in grey
METHODS = {"raw": ("#6b6b6b", "s"), "rollout": ("#0072b2", "o"), "flow": ("#d55e00", "^")}
OTHERS = (("#009e73", "D"), ("#cc79a7", "v"), ("#56b4e9", "P"), ("#e69f00", "X"))
PAIR = ("#0072b2", "#d55e00")
TITLES = {"raw": "raw attention", "rollout": "attention rollout", "flow": "attention flow"}
LONGEST = 20  # characters per token
FONT = "DejaVu Sans"  # comes with matplotlib, so figures are the same on every machine

STYLE: dict[str, Any] = {
    "font.family": [FONT],
    "font.size": SIZE,
    "text.parse_math": False,  # a token may be "$"
    "text.hinting": "none",  # otherwise widths are rounded to pixels and differ from .svg and .pdf
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": SIZE,
    "axes.titlesize": SIZE + 0.5,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": SIZE,
    "ytick.labelsize": SIZE,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "legend.fontsize": SIZE,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.0,
    "figure.dpi": 200,
    "svg.fonttype": "none",  # text stays text: searchable, and shown in the fonts of the reader
    "svg.hashsalt": "attnflow",
    "pdf.fonttype": 42,  # embedded fonts, which publishers require
    "pdf.compression": 9,
}

FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"metadata": {"Date": None, "Creator": "attnflow"}},
    ".pdf": {"metadata": {"CreationDate": None, "Creator": "attnflow"}},
    ".png": {"metadata": {"Software": "attnflow"}, "dpi": 200},
}

_drawing = threading.RLock()  # matplotlib's settings are global


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in our style, independent of the user's settings."""
    try:
        from matplotlib import style as styles
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed: pip install 'attnflow[plot]'") from None
    with _drawing, styles.context(["default", STYLE]), warnings.catch_warnings():
        # a missing letter becomes a box, or in .svg a letter of the reader's fonts
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from", category=UserWarning)
        yield


def empty(width: float, height: float) -> Figure:
    """Return an empty figure. Sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def note(figure: Figure, x: float, y: float, words: str, **more: Any) -> None:
    """Add text at a position in inches."""
    across, up = figure.get_size_inches()
    figure.text(x / across, y / up, words, fontfamily=families(words), **more)


def label(token: str) -> str:
    r"""Return a token as a label: with visible characters, cut to `LONGEST`.

    >>> label("a\n"), label("internationalisation's")
    ('a\\n', 'internationalisatio…')
    """
    shown = visible(token)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def title(method: str) -> str:
    """Return the title of a method's panel."""
    return TITLES.get(method, label(method))


def line(words: str, width: float, size: float = SIZE) -> str:
    """Return a line of text, cut to `width` inches."""
    shown = "".join(c if c.isprintable() else " " for c in words).strip()
    if room([shown], size) <= width:
        return shown
    while shown and room([shown + "…"], size) > width:
        shown = shown[:-1]
    return shown.rstrip() + "…"


def room(words: Iterable[str], size: float = SIZE) -> float:
    """Return the width of the longest word in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    widths = [
        text_to_path.get_text_width_height_descent(w, FontProperties(family=families(w), size=size), ismath=False)[0]
        for w in words
    ]
    return max(widths, default=0.0) / 72


def slant(words: Sequence[str], cell: float, size: float = SIZE) -> int:
    """Return the angle at which words `cell` inches apart do not touch."""
    if room(words, size) <= 0.92 * cell:
        return 0
    return 45 if cell >= 1.7 * size / 72 else 90


def token_axis(at: Axes, tokens: Sequence[str], cell: float, size: float = SIZE) -> None:
    """Label the x axis with tokens `cell` inches apart."""
    angle = slant(tokens, cell, size)
    at.set_xticks(range(len(tokens)), tokens)
    for token, tick in zip(tokens, at.get_xticklabels(), strict=True):
        tick.set(rotation=angle, fontsize=size, fontfamily=families(token))
        if angle:
            tick.set(rotation_mode="anchor", ha="right", va="center_baseline")
    if angle == 45:
        at.tick_params(axis="x", pad=4.5)


def layer_names(layers: Sequence[int], cell: float, size: float = SIZE) -> list[str]:
    """Return L1, L2, … for axes with layers `cell` inches apart. Some are empty if there is no room for all."""
    names = [f"L{l + 1}" for l in layers]
    step = next(s for s in (1, 2, 3, 4, 6, 8, 12, 24, len(names) + 24) if room(names, size) + 0.04 <= s * cell)
    return [name if (len(names) - 1 - i) % step == 0 else "" for i, name in enumerate(names)]


def below(tokens: Sequence[str], cell: float, size: float = SIZE) -> float:
    """Return the inches that `token_axis` needs below the axes."""
    angle = slant(tokens, cell, size)
    line = 1.5 * size / 72
    return 0.08 + (line if angle == 0 else room(tokens, size) * (0.72 if angle == 45 else 1.0) + 0.5 * line)


def families(words: str) -> list[str]:
    """Return our font, followed by installed fonts for missing letters."""
    known = _letters(None)
    return [FONT, *dict.fromkeys(name for c in words if ord(c) not in known for name in _families_with(c))]


@lru_cache(maxsize=4096)
def _families_with(letter: str) -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    def rank(entry: Any) -> Any:
        # a font of matplotlib has a box for every letter
        return "Last Resort" in entry.name, entry.style != "normal", entry.name, str(entry.fname)

    for entry in sorted(fontManager.ttflist, key=rank):
        if ord(letter) in _letters(str(entry.fname)):
            return (entry.name,)
    return ()


@lru_cache(maxsize=512)
def _letters(path: str | None) -> frozenset[int]:
    """Return the letters of a font file, by default our own; none if matplotlib cannot draw it (colour fonts)."""
    from matplotlib.font_manager import findfont, get_font

    try:
        return frozenset(get_font(path or findfont(FONT)).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save a figure as .svg, .pdf or .png (200 dpi), by the extension. The write is atomic.

    The same figure always gives the same bytes. Words are text in .svg and .pdf.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{str(path)!r} has the extension {path.suffix!r}: expected one of {', '.join(FORMATS)}")
    content = io.BytesIO()
    with style():
        figure.savefig(content, format=path.suffix.lower()[1:], facecolor="white", **FORMATS[path.suffix.lower()])
    write_whole(path, lambda beside: beside.write_bytes(content.getvalue()))
