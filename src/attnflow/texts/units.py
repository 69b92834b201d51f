"""Words, sentences and paragraphs of a text as character ranges, and the tokens in each of them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

UNITS = ("token", "word", "sentence", "paragraph", "message", "document")

Range = tuple[int, int]
"""Characters [start, end) of a text."""

_UNSPACED = r"\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff"  # scripts without spaces
# Accents, vowel signs, joiners and skin tones modify the character before them. Python's \w excludes most of them; the
# blocks below contain all that are in use.
_BLOCKS = (*range(0x300, 0x3100), *range(0xA600, 0xAC00))
_MARKS = frozenset(chr(i) for i in _BLOCKS if unicodedata.category(chr(i))[0] == "M") | frozenset(
    chr(i)
    for start, end in (
        (0x200C, 0x200D),
        (0xFB1E, 0xFB1E),
        (0xFE00, 0xFE0F),
        (0xFE20, 0xFE2F),
        (0x1F3FB, 0x1F3FF),
        (0xE0100, 0xE01EF),
    )
    for i in range(start, end + 1)
)


def is_mark(character: str) -> bool:
    """Return whether this only modifies the character before it."""
    return character in _MARKS


def _runs(characters: Iterable[str]) -> str:
    """Return characters as the inside of a regular expression class."""
    codes = sorted(map(ord, characters))
    starts = [c for c, before in zip(codes, [-1, *codes], strict=False) if c != before + 1]
    ends = [c for c, after in zip(codes, [*codes[1:], -1], strict=True) if c + 1 != after]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))


_MARK = _runs(_MARKS)
_LETTER = rf"(?:(?![{_UNSPACED}])[\w{_MARK}])"
WORD = re.compile(rf"[{_UNSPACED}][{_MARK}]*|{_LETTER}+(?:['’\-]{_LETTER}+)*|([^\w\s])(?:\1|\u200d[^\w\s]|[{_MARK}])*")
"""A character of a script without spaces; letters and digits with inner apostrophes and hyphens; a run of one sign."""

_BLANK_LINE = re.compile(r"\n[^\S\n]*(?:\n\s*|\Z)")
_SPACED_STOPS = ".!?…‽։።؟۔\u037e"  # end a sentence if white space follows
_BARE_STOPS = "。！？｡．।॥။។།"  # end a sentence whatever follows
_CLOSERS = "\"'”’»›)\\]}」』】）〉》〗*_`"
_STOP = re.compile(rf"[{_SPACED_STOPS}{_BARE_STOPS}]+(?:\[\d+\]|[{_CLOSERS}])*")
_OPENERS = "\"'“‘«‹([{「『【（〈《〖*_`¿¡"
_SPACE = re.compile(r"\s+")
_LAST_WORD = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)*\Z")
_FIRST_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_ITEM = re.compile(r"[^\S\n]*(?:[-*+•‣◦–—▪·]\s|#{1,6}\s|>|\||\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,4})[.)]\s)")
_NUMBER = re.compile(r"[^\S\n]*\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,4})\Z")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


TITLES = _set(
    "mr mrs ms mx dr prof messrs mme mlle gen maj capt cmdr lt sgt rev hon pres gov sen supt e.g i.e viz cf vs ca approx "
    "fig figs eq eqs vol vols pp nos mt bros z.b d.h u.a bzw"
)
"""Abbreviations that are always followed by something: their stop ends no sentence."""

BEFORE_NUMBERS = _set("no nr p art jan feb mar apr jun jul aug sep sept oct nov dec")
"""Abbreviations before a number; otherwise words or months."""

MAYBE_LAST = _set(
    "etc inc ltd co corp llc plc jr sr esq al dept est u.s u.k u.n e.u a.m p.m ph.d m.d b.a m.a b.sc m.sc d.c a.d b.c st "
    "ft sec ch ed eds tab ref refs rep col"
)
"""Abbreviations that may end a sentence, if a word follows that often begins one."""

STARTERS = _set(
    "the a an this that these those he she it they we i you there here his her its their our my your in on at to for from "
    "with by as if when while after before since because although though but and or so yet then thus hence however "
    "meanwhile moreover who what where why how which not no one some many most all each every both such now later today "
    "yesterday tomorrow"
)

WRAPPED = 40
"""Lines at least this wide were wrapped; narrower ones were broken on purpose."""


def paragraphs(text: str) -> list[Range]:
    """Return the paragraphs, which end at blank lines; the ranges tile the text.

    >>> [text[a:b] for text in ["One.\\n\\nTwo."] for a, b in paragraphs(text)]
    ['One.\\n\\n', 'Two.']
    """
    return _tiles(text, [m.end() for m in _BLANK_LINE.finditer(text)])


def sentences(text: str) -> list[Range]:
    """Return the sentences; the ranges tile the text, and white space belongs to the sentence before it.

    A stop ends a sentence, together with closing quotes and brackets after it, unless a lower-case letter follows or
    the stop belongs to an abbreviation, an initial, a number or the mark of a list item. A line end also ends a
    sentence if the line is an item, a heading or otherwise broken on purpose, not wrapped. No sentence crosses a blank
    line.

    >>> text = 'Mr. J. R. Hall paid $3.50. "Why?" he was asked. He left.'
    >>> [text[a:b] for a, b in sentences(text)]
    ['Mr. J. R. Hall paid $3.50. ', '"Why?" he was asked. ', 'He left.']
    """
    ranges: list[Range] = []
    for start, end in paragraphs(text):
        paragraph = text[start:end]
        cuts = sorted({*_stops(paragraph), *_line_ends(paragraph)})
        ranges += [(start + a, start + b) for a, b in _tiles(paragraph, cuts)]
    return ranges


def words(text: str) -> list[Range]:
    """Return words and signs in order, without white space. Scripts without spaces are cut into characters.

    >>> [text[a:b] for text in ["Don't go, 日本!!"] for a, b in words(text)]
    ["Don't", 'go', ',', '日', '本', '!!']
    """
    return [m.span() for m in WORD.finditer(text)]


def word_ranges(text: str, words: Sequence[str]) -> list[Range]:
    """Return where each word is, each after the one before; an empty range for a word that is not found as written."""
    ranges, at = [], 0
    for word in words:
        start = text.find(word, at)
        ranges.append((at, at) if start < 0 else (start, start + len(word)))
        at = ranges[-1][1]
    return ranges


def assign(offsets: Sequence[Range], ranges: Sequence[Range]) -> list[list[int]]:
    """Return the tokens of each range. A token goes to the range it overlaps most, the first of equals, or to none.

    offsets: characters of each token, in any order.
    ranges: ordered and disjoint.

    >>> assign([(0, 0), (0, 3), (3, 7), (7, 8)], [(0, 4), (4, 9)])
    [[1], [2, 3]]
    """
    groups: list[list[int]] = [[] for _ in ranges]
    ends = [end for _, end in ranges]
    for token, (start, stop) in enumerate(offsets):
        best, most = -1, 0
        for i in range(bisect_right(ends, start), len(ranges)):
            if ranges[i][0] >= stop:
                break
            overlap = min(stop, ranges[i][1]) - max(start, ranges[i][0])
            if overlap > most:
                best, most = i, overlap
        if best >= 0:
            groups[best].append(token)
    return groups


def _tiles(text: str, cuts: Sequence[int]) -> list[Range]:
    """Return the ranges between the cuts; a range of only white space joins its neighbour."""
    ranges: list[Range] = []
    start = 0
    for cut in (*cuts, len(text)):
        if text[start:cut].strip():
            ranges.append((start, cut))
            start = cut
    if ranges and start < len(text):
        ranges[-1] = (ranges[-1][0], len(text))
    return ranges


def _stops(paragraph: str) -> list[int]:
    """Return where sentences that end with a stop end, including white space after them."""
    cuts = []
    for stop in _STOP.finditer(paragraph):
        space = _SPACE.match(paragraph, stop.end())
        end = space.end() if space else stop.end()
        bare = any(c in _BARE_STOPS for c in stop[0])
        if (bare or end > stop.end()) and end < len(paragraph) and _is_end(paragraph, stop, end):
            cuts.append(end)
    return cuts


def _is_end(paragraph: str, stop: re.Match[str], end: int) -> bool:
    """Return whether this stop ends a sentence; the next word begins at end."""
    rest = paragraph[end : end + 80].lstrip(_OPENERS)
    if not rest or rest[0].islower() or rest[0] in f"{_SPACED_STOPS},;:、，":
        return False
    if rest[0] == "と" and stop[0][-1] in "」』":
        return False  # Japanese: the sentence continues after the quotation
    if stop[0][0] != "." or stop[0].startswith(".."):
        return True
    before = paragraph[max(0, stop.start() - 40) : stop.start()]
    if _NUMBER.match(before.rpartition("\n")[2]):
        return False  # the mark of a list item: "1. First"
    last = _LAST_WORD.search(before)
    word = last[0].lower() if last else ""
    following = _FIRST_WORD.match(rest)
    starts = following is not None and following[0].lower() in STARTERS
    if word in TITLES:
        return False
    if word in BEFORE_NUMBERS and rest[0].isdigit():
        return False
    if word in MAYBE_LAST or (last and len(word) == 1 and last[0].isupper()):
        return starts
    return True


def _line_ends(paragraph: str) -> list[int]:
    """Return where sentences end because their line ends."""
    lines = paragraph.splitlines(keepends=True)
    width = max((len(line.rstrip()) for line in lines), default=0)
    cuts, place = [], 0
    for line, following in pairwise(lines):
        place += len(line)
        bare, rest = line.rstrip(), following.lstrip()
        first = rest.split(None, 1)[0] if rest else ""
        goes_on = first[:1].islower() and (2 * len(bare) >= width or bare.endswith((",", ";")))
        full = width >= WRAPPED and (len(bare) + 1 + len(first) > width or goes_on)
        ends = _ITEM.match(following) or line.lstrip().startswith("#") or bare.endswith((":", "{", "}")) or not full
        if first and ends:
            cuts.append(place)
    return cuts
