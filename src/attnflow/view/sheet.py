"""The paper that figures are drawn on: its style, the room that words take, and files that are the same every time.

Everything is placed in inches, because a printed page has a size: matplotlib's own layouts know how wide a token is only
after it is drawn. Nothing here touches pyplot or leaves a setting behind.
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
COLUMN = 3.25  # of a page with two
SIZE = 7.0  # points: what is read at the width of a printed page
SMALL = 6.0
INK, FAINT = "#222222", "#9a9a9a"
# Okabe and Ito's colours for every kind of sight, with a mark of its own for each, so that a grey print still tells
METHODS = {"raw": ("#6b6b6b", "s"), "rollout": ("#0072b2", "o"), "flow": ("#d55e00", "^")}
OTHERS = (("#009e73", "D"), ("#cc79a7", "v"), ("#56b4e9", "P"), ("#e69f00", "X"))
PAIR = ("#0072b2", "#d55e00")
TITLES = {"raw": "raw attention", "rollout": "attention rollout", "flow": "attention flow"}
LONGEST = 20  # characters of a token
FONT = "DejaVu Sans"  # comes with matplotlib, so that a figure is the same on every machine

STYLE: dict[str, Any] = {
    "font.family": [FONT],
    "font.size": SIZE,
    "text.parse_math": False,  # a token may well be "$"
    "text.hinting": "none",  # or widths are rounded to dots, and differ from those of .svg and .pdf
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
    "svg.fonttype": "none",  # words stay words: searchable, and shown where no font here has their letters
    "svg.hashsalt": "attnflow",
    "pdf.fonttype": 42,  # whole fonts, which publishers ask for
    "pdf.compression": 9,
}

FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"metadata": {"Date": None, "Creator": "attnflow"}},
    ".pdf": {"metadata": {"CreationDate": None, "Creator": "attnflow"}},
    ".png": {"metadata": {"Software": "attnflow"}, "dpi": 200},
}

_drawing = threading.RLock()  # matplotlib's settings belong to the whole process


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in our style, whatever the user's own settings are."""
    try:
        from matplotlib import style as styles
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed: pip install 'attnflow[plot]'") from None
    with _drawing, styles.context(["default", STYLE]), warnings.catch_warnings():
        # a letter that no font has becomes a box, and in .svg whatever the reader's fonts have for it
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from", category=UserWarning)
        yield


def empty(width: float, height: float) -> Figure:
    """An empty page, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place of the page, in inches."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def note(figure: Figure, x: float, y: float, words: str, **more: Any) -> None:
    """Words at a place of the page, in inches."""
    across, up = figure.get_size_inches()
    figure.text(x / across, y / up, words, fontfamily=families(words), **more)


def label(token: str) -> str:
    r"""A token as it is printed: visible, and no longer than there is room for.

    >>> label("a\n"), label("internationalisation's")
    ('a\\n', 'internationalisatio…')
    """
    shown = visible(token)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def title(method: str) -> str:
    """The title of a method's panel."""
    return TITLES.get(method, label(method))


def line(words: str, width: float, size: float = SIZE) -> str:
    """A line of text as it is printed, cut where it is wider than `width` inches."""
    shown = "".join(c if c.isprintable() else " " for c in words).strip()
    if room([shown], size) <= width:
        return shown
    while shown and room([shown + "…"], size) > width:
        shown = shown[:-1]
    return shown.rstrip() + "…"


def room(words: Iterable[str], size: float = SIZE) -> float:
    """The width of the longest of some words, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    widths = [
        text_to_path.get_text_width_height_descent(w, FontProperties(family=families(w), size=size), ismath=False)[0]
        for w in words
    ]
    return max(widths, default=0.0) / 72


def slant(words: Sequence[str], cell: float, size: float = SIZE) -> int:
    """The angle at which words do not touch where they stand `cell` inches apart."""
    if room(words, size) <= 0.92 * cell:
        return 0
    return 45 if cell >= 1.7 * size / 72 else 90


def token_axis(at: Axes, tokens: Sequence[str], cell: float, size: float = SIZE) -> None:
    """Tokens as the labels below the axes, `cell` inches apart."""
    angle = slant(tokens, cell, size)
    at.set_xticks(range(len(tokens)), tokens)
    for token, tick in zip(tokens, at.get_xticklabels(), strict=True):
        tick.set(rotation=angle, fontsize=size, fontfamily=families(token))
        if angle:
            tick.set(rotation_mode="anchor", ha="right", va="center_baseline")
    if angle == 45:
        at.tick_params(axis="x", pad=4.5)


def layer_names(layers: Sequence[int], cell: float, size: float = SIZE) -> list[str]:
    """L1, L2, … for axes on which they stand `cell` inches apart; some are empty where not all have room."""
    names = [f"L{l + 1}" for l in layers]
    step = next(s for s in (1, 2, 3, 4, 6, 8, 12, 24, len(names) + 24) if room(names, size) + 0.04 <= s * cell)
    return [name if (len(names) - 1 - i) % step == 0 else "" for i, name in enumerate(names)]


def below(tokens: Sequence[str], cell: float, size: float = SIZE) -> float:
    """The inches that `token_axis` needs below the axes."""
    angle = slant(tokens, cell, size)
    line = 1.5 * size / 72
    return 0.08 + (line if angle == 0 else room(tokens, size) * (0.72 if angle == 45 else 1.0) + 0.5 * line)


def families(words: str) -> list[str]:
    """Our font, followed by installed fonts for the letters that it lacks."""
    known = _letters(None)
    return [FONT, *dict.fromkeys(name for c in words if ord(c) not in known for name in _families_with(c))]


@lru_cache(maxsize=4096)
def _families_with(letter: str) -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    def rank(entry: Any) -> Any:
        # matplotlib brings a font that has a box for every letter
        return "Last Resort" in entry.name, entry.style != "normal", entry.name, str(entry.fname)

    for entry in sorted(fontManager.ttflist, key=rank):
        if ord(letter) in _letters(str(entry.fname)):
            return (entry.name,)
    return ()


@lru_cache(maxsize=512)
def _letters(path: str | None) -> frozenset[int]:
    """The letters of a font file, of our own by default; none where matplotlib cannot draw it (colour fonts)."""
    from matplotlib.font_manager import findfont, get_font

    try:
        return frozenset(get_font(path or findfont(FONT)).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, whole or not at all: .svg, .pdf or .png (200 dots an inch), by the extension.

    The same figure gives the same bytes: no date, no random names. Words are text in .svg and .pdf.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{str(path)!r} has the extension {path.suffix!r}: expected one of {', '.join(FORMATS)}")
    content = io.BytesIO()
    with style():
        figure.savefig(content, format=path.suffix.lower()[1:], facecolor="white", **FORMATS[path.suffix.lower()])
    write_whole(path, lambda beside: beside.write_bytes(content.getvalue()))
