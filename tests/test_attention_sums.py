"""Column sums and denominators of attention against weights from the definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture import scores


def weights(
    query: Any, key: Any, scale: float, causal: bool, window: int | None, softcap: float | None, sinks: Any
) -> Any:
    """Return P and the log-sum-exp in float64, one head at a time."""
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
    if room is not None:  # in blocks of queries
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
    slack = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}[dtype]
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
        ({"query": query[0]}, "expected a dense tensor of float16, bfloat16"),
        ({"query": [1]}, "query is list"),
        ({"key": torch.zeros(1, 3, 3, 8)}, "same number of heads, or a divisor"),
        ({"key": key.double()}, "expected the same for both"),
        ({"query": torch.zeros(1, 4, 5, 8)}, "every query is at one of the last keys"),
        ({"key": key[:, :, :0], "causal": False}, "no empty axis"),
        ({"window": 0}, "window=0"),
        ({"window": 2, "causal": False}, "and causal=True"),
        ({"rows": torch.ones(4)}, "rows has shape"),
        ({"rows": torch.ones(1, 0, 3)}, "rows has shape"),
        ({"rows": torch.ones(3, dtype=torch.complex64)}, "rows is a torch.strided tensor of torch.complex64"),
        ({"rows": [1, "a", 2]}, "rows cannot be read as an array of numbers: got list"),
        ({"key": key[:, :0]}, "expected no empty axis"),
        ({"query": query.to(torch.float8_e4m3fn)}, "query is torch.float8_e4m3fn of shape"),
        ({"query": query.int()}, "query is torch.int32 of shape"),
        ({"key": key.to_sparse()}, "key is a torch.sparse_coo tensor on cpu, .* expected a dense tensor"),
        ({"key": key.to("meta")}, "key is a torch.strided tensor on meta, .* expected a dense tensor"),
        ({"window": True}, "window=True with causal=True: expected an int of at least 1"),
        ({"window": 2.0}, "window=2.0 with causal=True: expected an int of at least 1"),
        ({"softcap": 0}, "softcap=0: expected a finite number above zero"),
        ({"softcap": -1.0}, "softcap=-1.0: expected a finite number above zero"),
        ({"softcap": math.inf}, "softcap=inf: expected a finite number above zero"),
        ({"softcap": "2"}, "softcap='2': expected a finite number above zero"),
        ({"scale": math.nan}, "scale=nan: expected a finite number"),
        ({"scale": True}, "scale=True: expected a finite number"),
        ({"scale": "1"}, "scale='1': expected a finite number"),
        ({"causal": 1}, "causal=1: expected True or False"),
        ({"per_head": None}, "per_head=None: expected True or False"),
        ({"sinks": torch.zeros(2)}, r"sinks is torch.float32 of shape \(2,\): expected .* \[head\], \(4,\) here"),
        ({"sinks": [0.0] * 4}, "sinks is list: expected"),
        ({"sinks": torch.zeros(4, dtype=torch.int64)}, "sinks is torch.int64 of shape"),
        (
            {"lse": torch.zeros(1, 4, 2)},
            r"lse is torch.float32 of shape \(1, 4, 2\): .* \[batch, head, query\], \(1, 4, 3\)",
        ),
        ({"lse": torch.zeros(1, 4, 3, dtype=torch.int64)}, "lse is torch.int64 of shape"),
        ({"lse": 0.0}, "lse is float: expected"),
    ):
        with pytest.raises(af.InputError, match=message):
            af.column_sums(**{"query": query, "key": key, **arguments})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    query = (torch.randn(1, 2, 5, 64, generator=generator) + 200).to(dtype)
    key = (torch.randn(1, 2, 5, 64, generator=generator) + 200).to(dtype)
    P, expected = weights(query, key, 1e-4, True, None, None, None)
    assert expected.max() > 200  # products before scaling overflow float16
    torch.testing.assert_close(af.log_sum_exp(query, key, scale=1e-4).double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(af.column_sums(query, key, scale=1e-4).double(), P.sum(2).mean(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [{}, {"window": 3}, {"causal": False}, {"sinks": torch.ones(2)}, {"softcap": 2.0}])
@pytest.mark.parametrize("queries", [1, 7, 16, 17, 40])
def test_denominators_that_somebody_gives_are_used(queries: int, case: dict[str, Any]) -> None:
    """They may cover more keys than are given here: in this test each weight is halved."""
    generator = torch.Generator().manual_seed(queries)
    query, key = (torch.randn(1, 2, n, 8, generator=generator) for n in (queries, 40))
    lse = af.log_sum_exp(query, key, **case)
    for per_head in (False, True):
        whole = af.column_sums(query, key, per_head=per_head, **case)
        half = af.column_sums(query, key, lse=lse.double() + math.log(2), per_head=per_head, **case)
        torch.testing.assert_close(half, whole / 2)
        rest = af.column_sums(query, key, rows=[0.0] + [1.0] * (queries - 1), per_head=per_head, **case)
        for nothing in (math.inf, -math.inf, math.nan):
            lse_without = lse.clone()
            lse_without[:, :, 0] = nothing
            without = af.column_sums(query, key, lse=lse_without, per_head=per_head, **case)
            torch.testing.assert_close(without, rest)


def test_rows_may_be_arrays_and_lists() -> None:
    query, key = (torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    expected = af.column_sums(query, key, rows=torch.tensor([3.0, 2.0, 1.0, 0.0]))
    fixed = np.array([3.0, 2.0, 1.0, 0.0])
    fixed.flags.writeable = False
    for rows in ([3, 2, 1, 0], np.arange(4)[::-1], np.arange(4.0)[::-1], fixed, torch.tensor([3, 2, 1, 0])):
        torch.testing.assert_close(af.column_sums(query, key, rows=rows), expected)
    assert af.column_sums(query, key, rows=[[[1, 0, 0, 0], [0, 1, 0, 0]]]).shape == (1, 2, 4)


def test_numbers_of_numpy_are_numbers() -> None:
    query, key = (torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    expected = af.column_sums(query, key, window=2, scale=0.5, softcap=2.0)
    options: dict[str, Any] = {"window": np.int64(2), "scale": np.float32(0.5), "softcap": np.float64(2)}
    torch.testing.assert_close(af.column_sums(query, key, **options), expected)


def test_sinks_of_a_call_are_its_own() -> None:
    """A trace keeps its values when training continues in place."""
    module = torch.nn.Module()
    module.sinks = torch.nn.Parameter(torch.ones(2))
    call = scores.scores_of(module, torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), None)
    with torch.no_grad():
        module.sinks += 1
    assert call.sinks is not None and call.sinks.tolist() == [1, 1] and not call.sinks.requires_grad
