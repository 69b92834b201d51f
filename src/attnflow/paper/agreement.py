"""Subject-verb agreement: the words before a present-tense verb, and the number of that verb.

Linzen, Dupoux and Goldberg (2016) designed the task. Their published file, and files with columns ``words``, ``tags``,
``verb``, ``number``, become the same `Example`.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnflow.errors import InputError
from attnflow.paper.data_files import rows_of
from attnflow.texts.strict import read_rows

NUMBERS = ("singular", "plural")
UNKNOWN = "[UNK]"
AGREEMENT = ("words", "tags", "verb", "number")
LINZEN = ("orig_sentence", "pos_sentence", "verb", "verb_pos", "subj_index", "verb_index", "n_diff_intervening")
LINZEN_NUMBERS = {"VBZ": "singular", "VBP": "plural"}


@dataclass(frozen=True)
class Example:
    """The words before a verb and the verb's number; unknown values are None.

    subject: index of the head of the subject in `words`.
    attractors: nouns of the other number between the subject and the verb.
    """

    words: tuple[str, ...]
    number: str
    tags: tuple[str, ...] | None = None
    verb: str = ""
    subject: int | None = None
    attractors: int | None = None
    split: str | None = None


def read(path: str | Path) -> list[Example]:
    """Read examples in either format, recognized by the header.

    The published Linzen file has no splits, and is split as in the paper.
    """
    path = Path(path)
    header = next((row["text"] for _, row in read_rows(path, "txt")), "").split("\t")
    if set(AGREEMENT) <= set(header):
        return read_agreement(path)
    if set(LINZEN) <= set(header):
        return split_linzen(read_linzen(path))
    raise InputError(
        f"{str(path)!r} has the columns {', '.join(map(repr, header))}: expected tab-separated columns with "
        f"{', '.join(map(repr, AGREEMENT))}, or those of the published Linzen file, {', '.join(map(repr, LINZEN))}"
    )


def read_agreement(path: str | Path) -> list[Example]:
    """Read columns words, tags, verb, number; and split, subject_index (from 0) and attractors if present."""
    examples = []
    for where, row in rows_of(Path(path), AGREEMENT):
        words = _words(row["words"], where)
        number = _label(row["number"], dict(zip(NUMBERS, NUMBERS, strict=True)), "number", where)
        tags = _tags(row["tags"], len(words), where)
        subject, attractors = row.get("subject_index"), row.get("attractors")
        index = _index(subject, len(words), "subject_index", where) if subject else None
        count = _count(attractors, "attractors", where) if attractors else None
        examples.append(Example(words, number, tags, row["verb"], index, count, row.get("split") or None))
    return _some(examples, path)


def read_linzen(path: str | Path) -> list[Example]:
    """Read the published ``agr_50_mostcommon_10K.tsv[.gz]``: the words before the verb; its indices count from 1.

    The words are those of ``orig_sentence``; `as_tokens` replaces rare ones by their tags, for any vocabulary.
    """
    examples = []
    # The authors wrote it with Python's csv module and its default quoting.
    for where, row in rows_of(Path(path), LINZEN, csv.QUOTE_MINIMAL):
        words = _words(row["orig_sentence"], where)
        tags = _tags(row["pos_sentence"], len(words), where)
        verb = _index(row["verb_index"], len(words), "verb_index", where, first=1)
        if verb == 0:
            raise InputError(f"{where}: verb_index is 1, so there is no word before the verb; expected at least 2")
        number = _label(row["verb_pos"], LINZEN_NUMBERS, "verb_pos", where)
        subject = _index(row["subj_index"], verb, "subj_index", where, first=1)
        attractors = _count(row["n_diff_intervening"], "n_diff_intervening", where)
        examples.append(Example(words[:verb], number, tags[:verb], row["verb"], subject, attractors))
    return _some(examples, path)


def split_linzen(examples: Sequence[Example], seed: int = 1) -> list[Example]:
    """Shuffle the examples; the first 10 % are "train", the next 1 % "valid", the rest "test", as in the paper."""
    order = list(examples)
    random.Random(seed).shuffle(order)
    train, valid = len(order) // 10, len(order) // 10 + len(order) // 100
    names = ("train" if i < train else "valid" if i < valid else "test" for i in range(len(order)))
    return [replace(example, split=name) for example, name in zip(order, names, strict=True)]


def as_tokens(example: Example, vocabulary: Collection[str]) -> list[str]:
    """Return the words, with those not in the vocabulary replaced by their tag, or by "[UNK]" if that is unknown too.

    >>> as_tokens(Example(("the", "zebras"), "plural", ("DT", "NNS")), {"the", "NNS"})
    ['the', 'NNS']
    >>> as_tokens(Example(("the", "zebras"), "plural"), {"the", "NNS"})
    ['the', '[UNK]']
    """
    tags = example.tags or (UNKNOWN,) * len(example.words)
    return [
        word if word in vocabulary else tag if tag in vocabulary else UNKNOWN
        for word, tag in zip((w.lower() for w in example.words), tags, strict=True)
    ]


def encode(example: Example, vocabulary: dict[str, int], positions: int) -> list[int]:
    """Return the ids of ``[CLS] words… [EOS]``; a prefix that is too long keeps its last words, nearest to the verb."""
    tokens = as_tokens(example, vocabulary)[-(positions - 2) :]
    return [vocabulary["[CLS]"], *(vocabulary[token] for token in tokens), vocabulary["[EOS]"]]


def _some(examples: list[Example], path: str | Path) -> list[Example]:
    if not examples:
        raise InputError(f"{str(path)!r} has no examples: expected at least one line after the column names")
    return examples


def _words(text: str, where: str) -> tuple[str, ...]:
    words = tuple(text.split())
    if not words:
        raise InputError(f"{where}: there are no words before the verb; expected at least one")
    return words


def _tags(text: str, words: int, where: str) -> tuple[str, ...]:
    tags = tuple(text.split())
    if len(tags) != words:
        raise InputError(f"{where}: {words} words and {len(tags)} tags; expected one tag for each word")
    return tags


def _label(value: str, labels: dict[str, str], column: str, where: str) -> str:
    if value not in labels:
        raise InputError(f"{where}: {column} is {value!r}; expected one of {', '.join(map(repr, labels))}")
    return labels[value]


def _index(value: str, words: int, column: str, where: str, first: int = 0) -> int:
    """Return an index into the words, from 0; the file counts from `first`."""
    if not re.fullmatch(r"-?\d+", value) or not 0 <= int(value) - first < words:
        raise InputError(f"{where}: {column} is {value!r}; expected a word's index, {first} to {words - 1 + first}")
    return int(value) - first


def _count(value: str, column: str, where: str) -> int:
    if not re.fullmatch(r"\d+", value):
        raise InputError(f"{where}: {column} is {value!r}; expected a count, 0 or more")
    return int(value)
