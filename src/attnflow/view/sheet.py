"""Style and layout of figures: fonts, widths of words, and reproducible files.

Everything is placed in inches, because matplotlib's layouts know the width of a token only after drawing it. This module
does not use pyplot and does not change global settings. Fonts and sizes follow the user's rcParams where these differ
from matplotlib's defaults; lengths grow with the font size.
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

from attnflow.errors import AttentionWarning, InputError
from attnflow.files import write_whole
from attnflow.view.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = 6.9  # inches
COLUMN = 3.25  # of a page with two columns
SIZE = 7.0  # points, readable in print; the default
INK, FAINT = "#222222", "#9a9a9a"
# Okabe and Ito's colours, safe for colour blindness, each with its own marker for prints in grey
METHODS = {"raw": ("#6b6b6b", "s"), "rollout": ("#0072b2", "o"), "flow": ("#d55e00", "^")}
OTHERS = (("#009e73", "D"), ("#cc79a7", "v"), ("#56b4e9", "P"), ("#e69f00", "X"))
PAIR = ("#0072b2", "#d55e00")
TITLES = {"raw": "raw attention", "rollout": "attention rollout", "flow": "attention flow"}
LONGEST = 20  # characters per token
TITLE_SIZE = 7.5 / 7  # of the size of other text
FONT = "DejaVu Sans"  # comes with matplotlib, so figures are the same on every machine

STYLE: dict[str, Any] = {
    "font.family": [FONT],
    "text.parse_math": False,  # a token may be "$"
    "text.hinting": "none",  # otherwise widths are rounded to pixels and differ from .svg and .pdf
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.0,
    "figure.dpi": 200,
    "svg.fonttype": "none",  # text stays text: searchable, and shown in the fonts of the reader
    "svg.hashsalt": "attnflow",
    "pdf.fonttype": 42,  # embedded fonts, which publishers require
    "pdf.compression": 9,
}

FOLLOWED = (
    "font.family", "font.serif", "font.sans-serif", "font.monospace", "font.cursive", "font.fantasy", "font.style",
    "font.variant", "font.weight", "font.stretch", "font.size", "axes.labelsize", "axes.titlesize", "axes.titleweight",
    "xtick.labelsize", "ytick.labelsize", "legend.fontsize", "axes.linewidth", "lines.linewidth", "lines.markersize",
    "savefig.dpi",
)  # fmt: skip
"""The user's settings that figures follow. Colours are ours, because they carry meaning and the page is white."""

GENERIC = ("serif", "sans-serif", "monospace", "cursive", "fantasy")
ALIKE = {
    "helvetica": ("Nimbus Sans", "TeX Gyre Heros", "Liberation Sans", "Arial"),
    "arial": ("Liberation Sans", "Helvetica", "Nimbus Sans"),
    "times": ("Times New Roman", "Nimbus Roman", "TeX Gyre Termes", "Liberation Serif", "STIXGeneral"),
    "times new roman": ("Times", "Nimbus Roman", "TeX Gyre Termes", "Liberation Serif", "STIXGeneral"),
    "courier": ("Courier New", "Nimbus Mono PS", "Liberation Mono", "DejaVu Sans Mono"),
    "computer modern": ("Latin Modern Roman", "cmr10"),
}
"""Free fonts with the letters of fonts that many machines lack, best first."""

FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"metadata": {"Date": None, "Creator": "attnflow"}},
    ".pdf": {"metadata": {"CreationDate": None, "Creator": "attnflow"}},
    ".png": {"metadata": {"Software": "attnflow"}},
}

_drawing = threading.RLock()  # matplotlib's settings are global
_nested = False  # guarded by the lock


@contextlib.contextmanager
def style(font: str | None = None, size: float | None = None) -> Iterator[None]:
    """Draw in our style, with the fonts and sizes of the user's rcParams.

    font, size: a font family and a size in points, instead of those of the rcParams. Figures that are drawn and saved
    inside this context follow them.
    """
    global _nested
    try:
        import matplotlib
        from matplotlib import style as styles
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed: pip install 'attnflow[plot]'") from None
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | float) or not 3 <= size <= 40):
        raise InputError(f"size={size!r}: expected a font size from 3 to 40 points")
    with _drawing:
        if _nested:
            yield
            return
        usual, current = matplotlib.rcParamsDefault, matplotlib.rcParams
        own: dict[str, Any] = {name: current[name] for name in FOLLOWED if current[name] != usual[name]}
        points = float(own.get("font.size", SIZE) if size is None else size)
        titles = {"axes.titlesize": points * TITLE_SIZE}
        sizes = dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), points)
        families_wanted = [font] if font is not None else own.get("font.family", [])
        families = {
            "font.family": [
                *_installed([families_wanted] if isinstance(families_wanted, str) else families_wanted, current),
                FONT,
            ]
        }
        png = {"savefig.dpi": 200}
        settings = [STYLE, png, sizes, titles, own, families, {"font.size": points}]
        with styles.context(["default", *settings]), warnings.catch_warnings():
            # a missing letter becomes a box, or in .svg a letter of the reader's fonts
            warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from", category=UserWarning)
            _nested = True
            try:
                yield
            finally:
                _nested = False


def _installed(names: Sequence[str], settings: Any) -> list[str]:
    """Return the fonts among these that are installed, with generic names spelt out; warn of those that are not."""
    from matplotlib.font_manager import fontManager

    known = {name.lower(): name for name in fontManager.get_font_names()}
    fonts: list[str] = []
    for name in names:
        if name in GENERIC:
            fonts += [known[one.lower()] for one in settings[f"font.{name}"] if one.lower() in known]
        elif name.lower() in known:
            fonts.append(known[name.lower()])
        else:
            instead = [known[one.lower()] for one in ALIKE.get(name.lower(), ()) if one.lower() in known][:1]
            fonts += instead
            drawn = f"{instead[0]!r}, which looks much like it" if instead else repr([*fonts, FONT][0])
            warnings.warn(
                f"the font {name!r} is not installed: the figure uses {drawn}", AttentionWarning, stacklevel=2
            )
    return list(dict.fromkeys(fonts))


def points(setting: str = "font.size") -> float:
    """Return the size of a kind of text in points, such as "xtick.labelsize". Use it inside `style`."""
    import matplotlib
    from matplotlib.font_manager import FontProperties

    return float(FontProperties(size=matplotlib.rcParams[setting]).get_size_in_points())


def small() -> float:
    """Return the size of notes in points."""
    return points() * 6 / 7


def scaled(length: float) -> float:
    """Return a length in inches that is meant for text of the default size, for the present size of text."""
    return length * points() / SIZE


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


def line(words: str, width: float, size: float | None = None) -> str:
    """Return a line of text, cut to `width` inches. size: in points; by default, that of other text."""
    shown = "".join(c if c.isprintable() else " " for c in words).strip()
    if room([shown], size) <= width:
        return shown
    while shown and room([shown + "…"], size) > width:
        shown = shown[:-1]
    return shown.rstrip() + "…"


def room(words: Iterable[str], size: float | None = None) -> float:
    """Return the width of the longest word in inches. size: as in `line`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    size = points() if size is None else size
    widths = [
        text_to_path.get_text_width_height_descent(w, FontProperties(family=families(w), size=size), ismath=False)[0]
        for w in words
    ]
    return max(widths, default=0.0) / 72


def slant(words: Sequence[str], cell: float) -> int:
    """Return the angle at which labels of the x axis, `cell` inches apart, do not touch."""
    size = points("xtick.labelsize")
    if room(words, size) <= 0.92 * cell:
        return 0
    return 45 if cell >= 1.7 * size / 72 else 90


def token_axis(at: Axes, tokens: Sequence[str], cell: float) -> None:
    """Label the x axis with tokens `cell` inches apart."""
    angle = slant(tokens, cell)
    at.set_xticks(range(len(tokens)), tokens)
    for token, tick in zip(tokens, at.get_xticklabels(), strict=True):
        tick.set(rotation=angle, fontfamily=families(token))
        if angle:
            tick.set(rotation_mode="anchor", ha="right", va="center_baseline")
    if angle == 45:
        at.tick_params(axis="x", pad=4.5)


def layer_names(layers: Sequence[int], cell: float, size: float | None = None) -> list[str]:
    """Return L1, L2, … for axes with layers `cell` inches apart. Some are empty if there is no room for all."""
    names = [f"L{l + 1}" for l in layers]
    size = points("xtick.labelsize") if size is None else size
    step = next(s for s in (1, 2, 3, 4, 6, 8, 12, 24, len(names) + 24) if room(names, size) + 0.04 <= s * cell)
    return [name if (len(names) - 1 - i) % step == 0 else "" for i, name in enumerate(names)]


def below(tokens: Sequence[str], cell: float) -> float:
    """Return the inches that `token_axis` needs below the axes."""
    angle, size = slant(tokens, cell), points("xtick.labelsize")
    line = 1.5 * size / 72
    return 0.08 + (line if angle == 0 else room(tokens, size) * (0.72 if angle == 45 else 1.0) + 0.5 * line)


def families(words: str) -> list[str]:
    """Return the fonts of the figure, followed by installed fonts for missing letters."""
    import matplotlib
    from matplotlib.font_manager import findfont

    chosen = list(matplotlib.rcParams["font.family"])
    known = frozenset[int]().union(*(_letters(str(findfont(name))) for name in chosen))
    return [*chosen, *dict.fromkeys(name for c in words if ord(c) not in known for name in _families_with(c))]


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
def _letters(path: str) -> frozenset[int]:
    """Return the letters of a font file; none if matplotlib cannot draw it (colour fonts)."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save a figure as .svg, .pdf or .png (200 dpi, or savefig.dpi), by the extension. The write is atomic.

    The same figure always gives the same bytes. Words are text in .svg and .pdf.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{str(path)!r} has the extension {path.suffix!r}: expected one of {', '.join(FORMATS)}")
    content = io.BytesIO()
    with style():
        figure.savefig(content, format=path.suffix.lower()[1:], facecolor="white", **FORMATS[path.suffix.lower()])
    write_whole(path, lambda beside: beside.write_bytes(content.getvalue()))
