"""Texts and labels from a user's file, read by `attnflow.texts`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnflow.errors import InputError
from attnflow.texts.sources import TEXT, column
from attnflow.texts.strict import read_rows

LABEL = ("label", "class", "number")


def texts_and_labels(
    path: Path, text: str | None = None, label: str | None = None, pair: str | None = None
) -> tuple[list[Any], list[Any] | None]:
    """Return the text column and the label column; each has its usual name unless another is given."""
    rows = [row for _, row in read_rows(path)]
    if not rows:
        raise InputError(f"{str(path)!r} has no rows: expected at least one row below the column names")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = column(columns, text, TEXT, path.name, "text", True)
    label = column(columns, label, LABEL, path.name, "label", False)
    if pair is not None:
        column(columns, pair, (), path.name, "pair", True)
    texts: list[Any] = []
    for number, row in enumerate(rows, 1):
        values = [row.get(name) for name in (text, pair) if name is not None]
        if not all(isinstance(v, str) or v is None for v in values):
            raise InputError(
                f"{path.name}, row {number}: the column {text!r} contains {values[0]!r:.40}; expected text"
            )
        texts.append(values[0] or "" if pair is None else tuple(v or "" for v in values))
    return texts, None if label is None else [row.get(label) for row in rows]


def known_labels(labels: Sequence[Any], names: Mapping[int, Any], path: Path) -> list[int]:
    """Return the labels of a file as class numbers; a label is a class name, in any case, or a number."""
    by_name = {str(name).casefold(): int(i) for i, name in names.items()}
    classes = []
    for number, label in enumerate(labels, 1):
        key = str(label).strip().casefold()
        if re.fullmatch(r"[0-9]+\.0+", key):  # a table with gaps stores whole numbers as floats
            key = key.partition(".")[0]
        if key in by_name:
            classes.append(by_name[key])
        elif key.isdecimal() and int(key) in {int(i) for i in names}:
            classes.append(int(key))
        else:
            known = ", ".join(f"{name!r} ({i})" for i, name in names.items())
            raise InputError(
                f"{path.name}, row {number}: the label {label!r} is not a class of the model; expected one of {known}"
            )
    return classes
