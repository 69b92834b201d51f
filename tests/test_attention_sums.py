"""What each key gets, and the denominators of the rows, against weights from the definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import attnflow as af
from attnflow.capture import scores


def weights(
    query: Any, key: Any, scale: float, causal: bool, window: int | None, softcap: float | None, sinks: Any
) -> Any:
    """P and the log-sum-exp in float64, one head after the other."""
    queries, keys = query.shape[2], key.shape[2]
    heads, parts, sums = query.shape[1], [], []
    for h in range(heads):
        s = query[:, h].double() @ key[:, h * key.shape[1] // heads].double().mT * scale
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        place = torch.arange(queries)[:, None] + keys - queries
        other = torch.arange(keys)[None]
        if causal:
            s = s.masked_fill(other > place, -math.inf)
        if window:
            s = s.masked_fill(other <= place - window, -math.inf)
        total = s.logsumexp(-1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks[h].double())
        parts.append((s - total[..., None]).exp())
        sums.append(total)
    return torch.stack(parts, 1), torch.stack(sums, 1)


CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"causal": False},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "last queries": {"queries": 7},
    "last queries in a window": {"queries": 7, "window": 9},
    "scale": {"scale": 0.9},
    "single precision": {"dtype": torch.float32},
    "half precision": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("room", [None, 600])
@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name: str, room: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if room is not None:  # some queries at a time
        monkeypatch.setattr(scores, "BLOCK_BYTES", room)
        monkeypatch.setattr(scores, "BLOCK_BYTES_AT_MOST", room)
    case = dict(CASES[name])
    dtype, queries = case.pop("dtype", torch.float64), case.pop("queries", 21)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, queries, 8, generator=generator, dtype=torch.float64).to(dtype)
    key = torch.randn(2, 2, 21, 8, generator=generator, dtype=torch.float64).to(dtype)
    if case.get("sinks"):
        case["sinks"] = torch.linspace(-1, 1, 4, dtype=torch.float64)
    full = {"scale": 8**-0.5, "causal": True, "window": None, "softcap": None, "sinks": None, **case}
    P, expected = weights(query, key, **full)
    slack = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]
    lse = af.log_sum_exp(query, key, **case)
    torch.testing.assert_close(lse.double(), expected, rtol=slack, atol=slack)
    rows = torch.rand(2, 3, queries, generator=generator, dtype=torch.float64)
    for known in (None, expected):
        for r, exact in ((None, P.sum(2)), (rows[0, 0], (rows[0, 0, :, None] * P).sum(2)),
                         (rows[:, 1], (rows[:, 1, None, :, None] * P).sum(2)), (rows, rows[:, None] @ P)):  # fmt: skip
            each = af.column_sums(query, key, rows=r, lse=known, per_head=True, **case)
            torch.testing.assert_close(each.double(), exact, rtol=slack, atol=slack)
            mean = af.column_sums(query, key, rows=r, lse=known, **case)
            torch.testing.assert_close(mean.double(), exact.mean(1), rtol=slack, atol=slack)


def test_rows_may_be_negative() -> None:
    query, key = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    rows = torch.tensor([1.0, -2.0, 0.0, 3.0, -1.0])
    parts = [af.column_sums(query, key, rows=sign * (sign * rows).clamp(min=0)) for sign in (1, -1)]
    torch.testing.assert_close(af.column_sums(query, key, rows=rows), parts[0] + parts[1])


def test_wrong_input_is_told() -> None:
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    for arguments, message in (
        ({"query": query[0]}, "expected a tensor of floats"),
        ({"query": [1]}, "query is list"),
        ({"key": torch.zeros(1, 3, 3, 8)}, "as many heads or a divisor"),
        ({"key": key.double()}, "expected the same of both"),
        ({"query": torch.zeros(1, 4, 5, 8)}, "every query is one of the last keys"),
        ({"key": key[:, :, :0], "causal": False}, "no empty axis"),
        ({"window": 0}, "window=0"),
        ({"window": 2, "causal": False}, "looks back only"),
        ({"rows": torch.ones(4)}, "rows has shape"),
    ):
        with pytest.raises(af.InputError, match=message):
            af.column_sums(**{"query": query, "key": key, **arguments})
