"""What blank-out blanks at once: single tokens, whole words or whole sentences of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnflow.capture.inputs import Encoded
from attnflow.errors import InputError
from attnflow.texts import units as text_units

BLANK_UNITS = ("token", "word", "sentence")


@dataclass(frozen=True)
class BlankUnits:
    """Groups of positions with the labels of a result over them. unit: one of `BLANK_UNITS`."""

    unit: str
    groups: tuple[tuple[int, ...], ...]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    word_ids: tuple[int | None, ...]
    word_texts: tuple[str, ...]

    @property
    def provenance(self) -> dict[str, Any]:
        """Return the provenance of the units: for sentences also the first and the last token of each."""
        if self.unit == "sentence":
            return {"unit": self.unit, "positions": [[group[0], group[-1]] for group in self.groups]}
        return {} if self.unit == "token" else {"unit": self.unit}


def check_unit(unit: str) -> None:
    if unit not in BLANK_UNITS:
        raise InputError(f"unit={unit!r}: expected one of {', '.join(map(repr, BLANK_UNITS))}")


def units_of(encoded: Encoded, unit: str) -> BlankUnits:
    """Return the units of one text. Special tokens are separate units, and in no sentence."""
    if unit == "token":
        singles = tuple((i,) for i in range(len(encoded.tokens)))
        return BlankUnits(unit, singles, encoded.tokens, encoded.special, encoded.word_ids, encoded.word_texts)
    if unit == "sentence":
        groups, texts = _sentences(encoded)
        count = len(groups)
        return BlankUnits(unit, groups, texts, (False,) * count, (None,) * count, ())
    by_word: dict[object, list[int]] = {}
    for i, word in enumerate(encoded.word_ids):
        by_word.setdefault(("alone", i) if word is None else word, []).append(i)
    words = tuple(map(tuple, by_word.values()))
    ids = tuple(encoded.word_ids[group[0]] for group in words)
    names = [encoded.tokens[g[0]] if w is None else encoded.word_texts[w] for g, w in zip(words, ids, strict=True)]
    special = tuple(all(encoded.special[i] for i in group) for group in words)
    return BlankUnits(unit, words, tuple(names), special, ids, encoded.word_texts)


def _sentences(encoded: Encoded) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Return the tokens of each sentence and its text. A sentence has the tokens of its words and those between them."""
    ranges = text_units.sentences(encoded.text)
    of_words = text_units.assign(text_units.word_ranges(encoded.text, encoded.word_texts), ranges)
    sentence_of = {word: number for number, words in enumerate(of_words) for word in words}
    groups: list[list[int]] = [[] for _ in ranges]
    for i, word in enumerate(encoded.word_ids):
        if word is not None and word in sentence_of:
            groups[sentence_of[word]].append(i)
    keep = [number for number, group in enumerate(groups) if group]
    texts = tuple(encoded.text[ranges[number][0] : ranges[number][1]].strip() for number in keep)
    return tuple(tuple(groups[number]) for number in keep), texts
