"""The results of a grid as bytes, to compare two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TEXTS = [
    "the key to the cabinet",
    "nobody is able to answer",
    "the book is the answer",
    "to the key",
    "a book to answer the cabinet",
]


def bytes_of(measured: Any) -> dict[str, bytes]:
    """Return the bytes of all arrays except the times."""
    arrays = {"values": measured.values, "agreement": measured.agreement, **measured.curves, **measured.sanity}
    assert all(array.dtype == np.float64 for array in arrays.values())
    return {name: array.tobytes() for name, array in arrays.items()}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}
