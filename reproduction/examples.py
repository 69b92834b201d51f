"""Examples that only trainings need: the splits of a file, and the Linzen subset of Gulordava et al. (2018)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnflow.errors import InputError
from attnflow.paper.agreement import NUMBERS, Example
from attnflow.texts.strict import read_lines

SINGULAR = {("is", "are"), ("was", "were"), ("has", "have")}


def parts_of(examples: Sequence[Example], data: str | Path) -> dict[str, list[Example]]:
    """Return the splits train, valid and test of the file `data`; the first two must exist, with both numbers."""
    parts = {name: [e for e in examples if e.split == name] for name in ("train", "valid", "test")}
    for name in ("train", "valid"):
        missing = [number for number in NUMBERS if all(e.number != number for e in parts[name])]
        if missing:
            raise InputError(
                f"{str(data)!r} has no {missing[0]} verb in the split {name!r}: expected a column split with train, "
                "valid and test, and both numbers"
            )
    return parts


def read_linzen_subset(folder: Path) -> list[Example]:
    """Read a folder with one ``.text`` and one ``.gold`` file.

    The first has a sentence per line, the second its verb index from 0, right form, wrong form and attractors. Lines
    whose forms are the same are left out.
    """
    files = [sorted(folder.glob(f"*.{ending}")) for ending in ("text", "gold")]
    if any(len(own) != 1 for own in files):
        raise InputError(f"the folder {str(folder)!r}: expected one .text file and one .gold file")
    (text,), (gold,) = files
    examples = []
    for (_, sentence), (number, answer) in zip(read_lines(text), read_lines(gold), strict=True):
        try:
            verb, right, wrong, attractors = answer.split("\t")
            words = tuple(sentence.split())[: int(verb)]
            count = int(attractors)
        except ValueError:
            raise InputError(
                f"{gold.name}, line {number}: expected verb index, right form, wrong form and attractors, with tabs"
            ) from None
        forms = (right.lower(), wrong.lower())
        if forms[0] != forms[1]:
            single = forms in SINGULAR or (forms[0].endswith("s") and len(forms[0]) > len(forms[1]))
            examples.append(Example(words, NUMBERS[0] if single else NUMBERS[1], verb=right, attractors=count))
    return examples
