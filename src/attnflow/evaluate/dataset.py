"""A user's own file of texts and labels: csv, tsv, jsonl or parquet, csv and tsv also compressed (.gz, .xz)."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnflow.errors import InputError

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT = ("text", "sentence", "words")
LABEL = ("label", "class", "number")
LONGEST_CELL = 1 << 24


def read_rows(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of a file, and its rows."""
    kind = next((s for s in reversed(path.suffixes) if s.lower() not in (".gz", ".xz")), "").lower()
    if kind not in FORMATS:
        raise InputError(
            f"{str(path)!r}: expected a file that ends in {', '.join(FORMATS)} (csv, tsv and jsonl also .gz, .xz)"
        )
    try:
        rows = _parquet(path) if kind == ".parquet" else _lines(path, kind)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}: expected the path of a {kind} file") from None
    except Exception as e:  # csv, JSON, gzip, lzma and pyarrow share no base class for what a garbled file raises
        raise InputError(
            f"{str(path)!r} cannot be read as {kind[1:]}: {str(e).splitlines()[0] if str(e) else e!r}"
        ) from None
    if not rows:
        raise InputError(f"{str(path)!r} has no rows: expected at least one below the names of the columns")
    return list(dict.fromkeys(name for row in rows for name in row)), rows


def texts_and_labels(
    path: Path, text: str | None = None, label: str | None = None, pair: str | None = None
) -> tuple[list[Any], list[Any] | None]:
    """The column of texts and that of labels; both found by their usual names where none is given."""
    columns, rows = read_rows(path)
    text = column(columns, text, TEXT, path.name, "text", True)
    label = column(columns, label, LABEL, path.name, "label", False)
    if pair is not None:
        column(columns, pair, (), path.name, "pair", True)
    texts: list[Any] = []
    for number, row in enumerate(rows, 1):
        values = [row.get(name) for name in (text, pair) if name is not None]
        if not all(isinstance(v, str) or v is None for v in values):
            raise InputError(f"{path.name}, row {number}: the column {text!r} holds {values[0]!r:.40}; expected text")
        texts.append(values[0] or "" if pair is None else tuple(v or "" for v in values))
    return texts, None if label is None else [row.get(label) for row in rows]


def known_labels(given: Sequence[Any], names: Mapping[int, Any], path: Path) -> list[int]:
    """Labels of a file as class numbers: the names of the model's classes, in any case, or their numbers."""
    by_name = {str(name).casefold(): int(i) for i, name in names.items()}
    found = []
    for number, label in enumerate(given, 1):
        key = str(label).strip().casefold()
        if re.fullmatch(r"[0-9]+\.0+", key):  # whole numbers of a table with gaps
            key = key.partition(".")[0]
        if key in by_name:
            found.append(by_name[key])
        elif key.isdecimal() and int(key) in {int(i) for i in names}:
            found.append(int(key))
        else:
            known = ", ".join(f"{name!r} ({i})" for i, name in names.items())
            raise InputError(
                f"{path.name}, row {number}: the label {label!r} is no class of the model; expected one of {known}"
            )
    return found


def column(
    columns: Sequence[str], given: str | None, usual: Sequence[str], file: str, what: str, needed: bool
) -> str | None:
    """The column that was asked for, or the first that has a usual name. file: what the table is called."""
    if given is not None:
        if given in columns:
            return given
        raise InputError(f"{file} has no column {given!r}: expected one of {', '.join(map(repr, columns))}")
    found = next((name for name in usual if name in columns), None)
    if found is None and needed:
        raise InputError(
            f"{file} has no column {' or '.join(map(repr, usual))}: name the column of the {what} with --{what}, "
            f"one of {', '.join(map(repr, columns))}"
        )
    return found


def _lines(path: Path, kind: str) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix.lower(), lambda d: d)(data)
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{str(path)!r} is not UTF-8: convert it first") from None
    if kind == ".jsonl":
        rows = []
        for number, line in enumerate(content.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as e:
                raise InputError(
                    f"{path.name}, line {number}: not JSON ({e.msg}); expected one object a line"
                ) from None
            if not isinstance(row, dict):
                raise InputError(f'{path.name}, line {number}: expected an object such as {{"text": …, "label": …}}')
            rows.append(row)
        return rows
    csv.field_size_limit(LONGEST_CELL)
    # in tab-separated files a quotation mark is a character like any other
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == ".tsv" else {}
    reader = csv.DictReader(io.StringIO(content, newline=""), **options)
    found = []
    for row in reader:
        if None in row or None in row.values():
            raise InputError(
                f"{path.name}, line {reader.line_num}: {'more' if None in row else 'fewer'} cells than the "
                f"{len(reader.fieldnames or ())} columns of the first line"
            )
        found.append(row)
    return found


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("parquet needs pyarrow: pip install 'attnflow[corpus]'") from None
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
