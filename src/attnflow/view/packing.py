"""Arrays as JSON holds them for a page: zlib in base64, bytes sorted by their significance, or weights in one byte each."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.result import TokenAttention

DOUBLE = 50_000
"""Tables of up to so many values are in double precision."""

STEPS = 254 / np.log(1e4)
"""Rounded weights are rowmax · exp(-i / STEPS): in steps of 3.7 %, down to a ten-thousandth of the largest of their row."""


def packed(values: FloatArray) -> dict[str, Any]:
    """float64, float32 or uint8, as the page reads it."""
    if values.dtype == np.uint8:
        return {"type": "u1", "shape": list(values.shape), "data": _compressed(values.tobytes())}
    kind = "f8" if values.dtype == np.float64 else "f4"
    planes = np.ascontiguousarray(values, f"<{kind}").view(np.uint8).reshape(-1, int(kind[1])).T
    return {"type": kind, "shape": list(values.shape), "data": _compressed(planes.tobytes())}


def rounded(matrices: Sequence[FloatArray], most: int | None = None) -> dict[str, Any]:
    """Round weights to one byte each, with one scale a row, so that rows keep their sums. most: so many of each row."""
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
    """Values [layer, query, input] of some queries, which are named by their place in the sequence of all positions."""
    first = getattr(result.source, "first_query", 0)
    return {"queries": [first + q for q in result.queries], "values": packed(precise(result.values))}


def precise(values: FloatArray) -> FloatArray:
    """Keep the library's precision, so that ranks and ties stay the same; large tables become single precision."""
    return values.astype(np.float64 if values.size <= DOUBLE else np.float32)


def _compressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()
