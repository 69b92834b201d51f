"""A user's own file of texts and labels: csv, tsv, jsonl or parquet, csv and tsv also compressed (.gz, .xz)."""

from __future__ import annotations

import contextlib
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


PARTS = {
    "methods": ("name", "kind", "edges", "normalize", "propagation", "receptive_field", "cost"),
    "metrics": ("name", "better"),
    "cells": ("method", "metric", "mean", "low", "high", "rank"),
    "tests": ("metric", "first", "second", "about", "difference", "low", "high", "effect", "adjusted"),
}
"""Of a grid's summary, the lists that are read again, and what each entry of them has."""


NAMED = {"method": "methods", "first": "methods", "second": "methods", "metric": "metrics"}
"""Fields of cells and tests that name a method or a metric: in the file, its number."""


def packed(told: Mapping[str, Any]) -> dict[str, Any]:
    """A grid's summary as its file holds it: cells and tests, which are thousands, as fields and rows."""
    numbers = {kind: {one["name"]: i for i, one in enumerate(told[kind])} for kind in ("methods", "metrics")}
    found = dict(told)
    for name in ("cells", "tests"):
        fields = list(told[name][0]) if told[name] else []
        found[name] = {
            "fields": fields,
            "rows": [[numbers[NAMED[f]][row[f]] if f in NAMED else row[f] for f in fields] for row in told[name]],
        }
    return found


def _unpacked(held: dict[str, Any]) -> dict[str, Any]:
    for name in ("cells", "tests"):
        fields = held[name]["fields"]
        for row in held[name]["rows"]:
            for i, field in enumerate(fields):
                if field in NAMED:
                    row[i] = held[NAMED[field]][row[i]]["name"]
        held[name] = [dict(zip(fields, row, strict=True)) for row in held[name]["rows"]]
    return held


def summary(path: Path) -> dict[str, Any]:
    """What ``attnflow evaluate --grid`` found: its grid.json, or the folder that holds it."""
    file = path / "grid.json" if path.is_dir() else path
    again = "run attnflow evaluate --grid again with the same folder"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        with contextlib.suppress(KeyError, IndexError, TypeError):  # what is no grid is told below
            told = _unpacked(told)
    except FileNotFoundError:
        raise InputError(
            f"there is no file {str(file)!r}: expected the grid.json of attnflow evaluate --grid, or its folder"
        ) from None
    except OSError as e:
        raise InputError(f"cannot read {str(file)!r}: {e.strerror or e}") from None
    except RecursionError:
        raise InputError(f"{str(file)!r} cannot be read as JSON (nested too deeply): {again}") from None
    except ValueError as e:  # JSON that is cut off, or bytes that are no text
        raise InputError(f"{str(file)!r} cannot be read as JSON ({e}): {again}") from None
    kinds = {"ahead": dict, "curves": dict, "agreement": list, "sanity": dict, "provenance": dict}
    if not isinstance(told, dict) or not all(
        isinstance(told.get(name), kind) for name, kind in (kinds | dict.fromkeys(PARTS, list)).items()
    ):
        raise InputError(f"{str(file)!r} is no result of a grid: expected the grid.json of attnflow evaluate --grid")
    for name, fields in PARTS.items():
        for entry in told[name]:
            missing = [field for field in fields if not isinstance(entry, dict) or field not in entry]
            if missing:
                raise InputError(f"{str(file)!r} is damaged (an entry of {name!r} has no {missing[0]!r}): {again}")
    return told
