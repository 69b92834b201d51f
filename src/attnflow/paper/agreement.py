"""Subject-verb agreement: the words before a present-tense verb, and the number of that verb.

Linzen, Dupoux and Goldberg (2016) made the task; their published file, the subset of Gulordava et al. (2018) and files with
columns ``words``, ``tags``, ``verb``, ``number`` all become the same `Example`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import lzma
import random
import re
import urllib.request
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from attnflow.errors import AttentionWarning, InputError

NUMBERS = ("singular", "plural")
UNKNOWN = "[UNK]"
AGREEMENT = ("words", "tags", "verb", "number")
LINZEN = ("orig_sentence", "pos_sentence", "verb", "verb_pos", "subj_index", "verb_index", "n_diff_intervening")
LINZEN_NUMBERS = {"VBZ": "singular", "VBP": "plural"}
LINZEN_URLS = (
    "https://www.dropbox.com/s/5axdu3q9jkxzjy8/agr_50_mostcommon_10K.tsv.gz?dl=1",
    "http://tallinzen.net/media/rnn_agreement/agr_50_mostcommon_10K.tsv.gz",
)
LINZEN_SHA256: str | None = None  # the authors published none; `download_linzen` reports what it got
GUESSES = ("suffix",)


@dataclass(frozen=True)
class Example:
    """The words before a verb and the verb's number; what is not known of it is None.

    subject: index of the head of the subject in `words`. attractors: nouns of the other number between it and the verb.
    """

    words: tuple[str, ...]
    number: str
    tags: tuple[str, ...] | None = None
    verb: str = ""
    subject: int | None = None
    attractors: int | None = None
    split: str | None = None


def read(path: str | Path) -> list[Example]:
    """Examples of any of the three formats, told apart by the header; a folder is a Linzen subset.

    The published Linzen file has no splits, and is split as the paper does.
    """
    path = Path(path)
    if path.is_dir():
        return read_linzen_subset(path)
    with opened(path) as lines:
        header = lines.readline().rstrip("\r\n").split("\t")
    if set(AGREEMENT) <= set(header):
        return read_agreement(path)
    if set(LINZEN) <= set(header):
        return split_linzen(read_linzen(path))
    raise InputError(
        f"{str(path)!r} has the columns {', '.join(map(repr, header))}: expected tab-separated columns with "
        f"{', '.join(map(repr, AGREEMENT))}, or those of the published Linzen file, {', '.join(map(repr, LINZEN))}"
    )


def read_agreement(path: str | Path) -> list[Example]:
    """Columns words, tags, verb, number; split, subject_index (from 0) and attractors where they are there."""
    found = []
    for where, row in _rows(Path(path), AGREEMENT, csv.QUOTE_NONE):
        words = _words(row["words"], where)
        found.append(
            Example(
                words,
                _label(row["number"], dict(zip(NUMBERS, NUMBERS, strict=True)), "number", where),
                _tags(row["tags"], len(words), where),
                row["verb"],
                _index(row["subject_index"], len(words), "subject_index", where) if row.get("subject_index") else None,
                _count(row["attractors"], "attractors", where) if row.get("attractors") else None,
                row.get("split") or None,
            )
        )
    return _some(found, path)


def read_linzen(path: str | Path) -> list[Example]:
    """The published ``agr_50_mostcommon_10K.tsv[.gz]``: the words before the verb; its indices count from 1.

    The words are those of ``orig_sentence``; `as_tokens` puts the tags of rare ones in, for any vocabulary.
    """
    found = []
    # The publishers wrote it with Python's csv module and its default quotes.
    for where, row in _rows(Path(path), LINZEN, csv.QUOTE_MINIMAL):
        words = _words(row["orig_sentence"], where)
        tags = _tags(row["pos_sentence"], len(words), where)
        verb = _index(row["verb_index"], len(words), "verb_index", where, first=1)
        if verb == 0:
            raise InputError(f"{where}: verb_index is 1, so no word stands before the verb; expected at least 2")
        found.append(
            Example(
                words[:verb],
                _label(row["verb_pos"], LINZEN_NUMBERS, "verb_pos", where),
                tags[:verb],
                row["verb"],
                _index(row["subj_index"], verb, "subj_index", where, first=1),
                _count(row["n_diff_intervening"], "n_diff_intervening", where),
            )
        )
    return _some(found, path)


def read_linzen_subset(folder: str | Path) -> list[Example]:
    """A folder with one ``.text`` (a sentence a line) and one ``.gold`` (verb index from 0, right, wrong, attractors)."""
    folder = Path(folder)
    texts, golds = sorted(folder.glob("*.text")), sorted(folder.glob("*.gold"))
    if len(texts) != 1 or len(golds) != 1:
        raise InputError(
            f"the folder {str(folder)!r} has {len(texts)} .text and {len(golds)} .gold files: expected one of each"
        )
    with opened(texts[0]) as lines:
        sentences = lines.read().splitlines()
    with opened(golds[0]) as lines:
        answers = lines.read().splitlines()
    if len(sentences) != len(answers):
        raise InputError(
            f"{texts[0].name} has {len(sentences)} lines and {golds[0].name} has {len(answers)}: expected the same number"
        )
    found, same = [], 0
    for number, (sentence, answer) in enumerate(zip(sentences, answers, strict=True), 1):
        where = f"{golds[0].name}, line {number}"
        fields = answer.split("\t")
        if len(fields) != 4:
            raise InputError(
                f"{where}: it has {len(fields)} columns; expected verb index, right form, wrong form and attractors"
            )
        words = _words(sentence, where)
        verb = _index(fields[0], len(words), "the verb index", where)
        if verb == 0:
            raise InputError(f"{where}: the verb index is 0, so no word stands before the verb; expected at least 1")
        if fields[1].lower() == fields[2].lower():
            same += 1
            continue
        found.append(
            Example(
                words[:verb],
                _number_of(fields[1].lower(), fields[2].lower(), where),
                verb=fields[1],
                attractors=_count(fields[3], "attractors", where),
            )
        )
    if same:
        said = f"{golds[0].name}: {same} of {len(answers)} lines have the same right and wrong form, so no number: left out"
        warnings.warn(said, AttentionWarning, stacklevel=2)
    return _some(found, folder)


def split_linzen(examples: Sequence[Example], seed: int = 1) -> list[Example]:
    """The same examples shuffled, the first 10 % "train", the next 1 % "valid", the rest "test", as the paper has it."""
    order = list(examples)
    random.Random(seed).shuffle(order)
    train, valid = len(order) // 10, len(order) // 10 + len(order) // 100
    names = ("train" if i < train else "valid" if i < valid else "test" for i in range(len(order)))
    return [replace(example, split=name) for example, name in zip(order, names, strict=True)]


def parts_of(examples: Sequence[Example], data: str | Path) -> dict[str, list[Example]]:
    """The splits train, valid and test of the file `data`; the first two must be there, with both numbers."""
    parts = {name: [e for e in examples if e.split == name] for name in ("train", "valid", "test")}
    strange = {str(e.split) for e in examples} - set(parts) - {"None"}
    if strange:
        raise InputError(f"{str(data)!r} has the split {min(strange)!r}: expected train, valid or test")
    for name in ("train", "valid"):
        if not parts[name]:
            raise InputError(
                f"{str(data)!r} has no example of the split {name!r}: expected a column split with train, valid and test"
            )
        missing = [number for number in NUMBERS if all(e.number != number for e in parts[name])]
        if missing:
            raise InputError(f"{str(data)!r} has no {missing[0]} verb in the split {name!r}: expected both numbers")
    return parts


def as_tokens(example: Example, vocabulary: Collection[str], *, guess: str | None = None) -> list[str]:
    """The words that are in the vocabulary; for others their tag if that is in it, else "[UNK]".

    guess: "suffix" takes a tag from the word's ending where there are no tags; None leaves such words unknown.

    >>> as_tokens(Example(("the", "zebras"), "plural", ("DT", "NNS")), {"the", "NNS"})
    ['the', 'NNS']
    >>> as_tokens(Example(("the", "zebras"), "plural"), {"the", "NNS"})
    ['the', '[UNK]']
    """
    if guess is not None and guess not in GUESSES:
        raise InputError(f"guess={guess!r}: expected None or one of {', '.join(map(repr, GUESSES))}")
    tags: Iterable[str | None] = example.tags or ()
    if example.tags is None:
        tags = (suffix_tag(word) if guess else None for word in example.words)
    return [
        word if word in vocabulary else tag if tag is not None and tag in vocabulary else UNKNOWN
        for word, tag in zip((w.lower() for w in example.words), tags, strict=True)
    ]


def suffix_tag(word: str) -> str:
    """A tag guessed from the ending alone, for open-class words.

    >>> [suffix_tag(w) for w in ("glands", "1960", "quickly", "reveille")]
    ['NNS', 'CD', 'RB', 'NN']
    """
    endings = (
        (r".*\d.*", "CD"), (r".*(ss|us|is)", "NN"), (r".*s", "NNS"), (r".*ing", "VBG"), (r".*ed", "VBN"),
        (r".*ly", "RB"), (r".*(ous|al|ive|ic|able|ible|ful|less)", "JJ"),
    )  # fmt: skip
    return next((tag for pattern, tag in endings if re.fullmatch(pattern, word)), "NN")


def download_linzen(
    to: str | Path, *, sha256: str | None = LINZEN_SHA256, urls: Sequence[str] = LINZEN_URLS
) -> tuple[Path, str]:
    """Fetches the published file into the folder `to`: its path and its SHA-256, which is checked if one is given."""
    path = Path(to) / "agr_50_mostcommon_10K.tsv.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.is_file() else _fetched(urls)
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256:
        raise InputError(f"the file from {urls[0]} has the SHA-256 {found}: expected {sha256}; fetch it again")
    if not path.is_file():
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)
    return path, found


def _fetched(urls: Sequence[str]) -> bytes:
    why = []
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data: bytes = answer.read()
        except (OSError, ValueError) as e:  # urllib's own errors are OSErrors
            why.append(f"{url} ({getattr(e, 'reason', e)})")
            continue
        if data[:2] == b"\x1f\x8b":
            return data
        why.append(f"{url} (it sent a page, not a gzip file)")
    raise InputError(
        f"the Linzen file cannot be fetched from {' or '.join(why)}: connect to the network, or fetch "
        "agr_50_mostcommon_10K.tsv.gz elsewhere and give its path"
    )


def opened(path: Path) -> io.StringIO:
    """The text of a plain, .gz or .xz file."""
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        elif path.suffix == ".gz":
            data = gzip.decompress(data)
        return io.StringIO(data.decode("utf-8-sig"), newline="")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as e:
        why = "there is no such file" if isinstance(e, FileNotFoundError) else f"it cannot be read ({e})"
        raise InputError(f"{str(path)!r}: {why}; expected UTF-8 text, plain, .gz or .xz") from None


def _rows(path: Path, columns: Sequence[str], quoting: Literal[0, 3]) -> Iterator[tuple[str, dict[str, str]]]:
    with opened(path) as lines:
        table = csv.reader(lines, delimiter="\t", quoting=quoting)
        try:
            given = next(table, [])
            missing = [name for name in columns if name not in given]
            if missing:
                raise InputError(
                    f"{str(path)!r} has no column {', '.join(map(repr, missing))}: it has {', '.join(map(repr, given))}; "
                    "expected tab-separated columns with their names in the first line"
                )
            for row in table:
                where = f"{path.name}, line {table.line_num}"
                if len(row) != len(given):
                    raise InputError(f"{where}: it has {len(row)} columns; expected {len(given)}, as in the first line")
                yield where, dict(zip(given, row, strict=True))
        except csv.Error as e:
            raise InputError(f"{path.name}, line {table.line_num}: it cannot be read ({e}); expected columns") from None


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


def _integer(value: str, column: str, where: str, expected: str) -> int:
    if not re.fullmatch(r"-?\d+", value):
        raise InputError(f"{where}: {column} is {value!r}; expected {expected}")
    return int(value)


def _index(value: str, words: int, column: str, where: str, first: int = 0) -> int:
    expected = f"a word's index, {first} to {words - 1 + first}"
    index = _integer(value, column, where, expected) - first
    if not 0 <= index < words:
        raise InputError(f"{where}: {column} is {value}; expected {expected}")
    return index


def _count(value: str, column: str, where: str) -> int:
    count = _integer(value, column, where, "a count")
    if count < 0:
        raise InputError(f"{where}: {column} is {value}; expected a count, 0 or more")
    return count


def _number_of(right: str, wrong: str, where: str) -> str:
    """The number of a verb form, from it and the form of the other number: be, have and the ending -s."""

    def single(a: str, b: str) -> bool:
        return (a, b) in {("is", "are"), ("was", "were"), ("has", "have")} or (a.endswith("s") and len(a) > len(b))

    if single(right, wrong) == single(wrong, right):
        raise InputError(
            f"{where}: {right!r} and {wrong!r} are no singular and plural of one verb; expected such as 'is' and 'are'"
        )
    return NUMBERS[0] if single(right, wrong) else NUMBERS[1]
