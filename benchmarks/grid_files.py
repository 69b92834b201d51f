"""The grid.json of ``attnflow evaluate --grid``, read again."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from attnflow.errors import InputError
from attnflow.evaluate.evaluation_files import NAMED

FIELDS = {
    "methods": ("name", "kind", "edges", "normalize", "propagation", "receptive_field", "cost"),
    "metrics": ("name", "better"),
    "cells": ("method", "metric", "mean", "low", "high", "rank"),
    "tests": ("metric", "first", "second", "about", "difference", "low", "high", "effect", "adjusted"),
}
"""Of a grid's summary, the lists that are read again, and what each entry of them has."""


def read_summary(path: Path) -> dict[str, Any]:
    """What ``attnflow evaluate --grid`` writes: its grid.json, or the folder that holds it."""
    file = path / "grid.json" if path.is_dir() else path
    again = "run attnflow evaluate --grid again with the same folder"
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        with contextlib.suppress(KeyError, IndexError, TypeError):  # what is no grid is refused below
            summary = _unpacked(summary)
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
    if not isinstance(summary, dict) or not all(
        isinstance(summary.get(name), kind) for name, kind in (kinds | dict.fromkeys(FIELDS, list)).items()
    ):
        raise InputError(f"{str(file)!r} is no result of a grid: expected the grid.json of attnflow evaluate --grid")
    for name, fields in FIELDS.items():
        for entry in summary[name]:
            missing = [field for field in fields if not isinstance(entry, dict) or field not in entry]
            if missing:
                raise InputError(f"{str(file)!r} is damaged (an entry of {name!r} has no {missing[0]!r}): {again}")
    return summary


def _unpacked(document: dict[str, Any]) -> dict[str, Any]:
    for name in ("cells", "tests"):
        fields = document[name]["fields"]
        for row in document[name]["rows"]:
            for i, field in enumerate(fields):
                if field in NAMED:
                    row[i] = document[NAMED[field]][row[i]]["name"]
        document[name] = [dict(zip(fields, row, strict=True)) for row in document[name]["rows"]]
    return document
