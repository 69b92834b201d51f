"""Packing arrays into JSON: zlib in base64, with bytes sorted by significance, or weights as one byte each."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.result import TokenAttention

DOUBLE = 50_000
"""Maximum number of values in a table with double precision."""

STEPS = 254 / np.log(1e4)
"""Rounded weights are rowmax · exp(-i / STEPS): in steps of 3.7 %, down to 1/10,000 of the largest in the row."""


def packed(values: FloatArray) -> dict[str, Any]:
    """Pack an array of float64, float32 or uint8 for the page."""
    if values.dtype == np.uint8:
        return {"type": "u1", "shape": list(values.shape), "data": _compressed(values.tobytes())}
    kind = "f8" if values.dtype == np.float64 else "f4"
    planes = np.ascontiguousarray(values, f"<{kind}").view(np.uint8).reshape(-1, int(kind[1])).T
    return {"type": kind, "shape": list(values.shape), "data": _compressed(planes.tobytes())}


def rounded(matrices: Sequence[FloatArray], most: int | None = None) -> dict[str, Any]:
    """Round weights to one byte each, with one scale per row to keep its sum. most: maximum number per row."""
    codes, scales = [], []
    for matrix in matrices:
        largest = matrix.max(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.round(255 + STEPS * np.log(matrix / largest))
        code = np.where(matrix > 0, np.nan_to_num(steps, nan=0, neginf=0), 0).clip(0, 255)
        if most is not None and most < matrix.shape[1]:
            code[matrix < -np.partition(-matrix, most - 1)[:, most - 1 : most]] = 0
        sums = np.where(code > 0, np.exp((code - 255) / STEPS), 0).sum(axis=1)
        scales.append(matrix.sum(axis=1) / np.where(sums == 0, 1, sums))
        codes.append(code.astype(np.uint8).ravel())
    return {
        "type": "rounded",
        "steps": STEPS,
        "data": _compressed(np.concatenate(codes).tobytes()),
        "scales": packed(np.concatenate(scales).astype(np.float32)),
    }


def table(result: TokenAttention) -> dict[str, Any]:
    """Pack values [layer, query, input] of some queries, with their positions in the whole sequence."""
    first = getattr(result.source, "first_query", 0)
    return {"queries": [first + q for q in result.queries], "values": packed(precise(result.values))}


def precise(values: FloatArray) -> FloatArray:
    """Keep double precision, so that ranks and ties stay the same; large tables become single precision."""
    return values.astype(np.float64 if values.size <= DOUBLE else np.float32)


def _compressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()
