"""The GPU kernels against an explicit softmax in float64. They need an NVIDIA GPU and Triton, and are skipped elsewhere."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")
pytest.importorskip("triton", reason="the kernels need Triton")
if not torch.cuda.is_available():
    pytest.skip("the kernels need an NVIDIA GPU", allow_module_level=True)

from attnflow.capture import kernels  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def weights(query: Any, key: Any, scale: float, causal: bool, window: int | None, softcap: float | None, bias: Any,
            sinks: Any) -> tuple[Any, Any]:  # fmt: skip
    """P [batch, heads, queries, keys] and lse in float64, from the definition; a query without keys gives zeros."""
    group = query.shape[1] // key.shape[1]
    scores = query.double() @ key.double().repeat_interleave(group, 1).mT * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    queries, keys = scores.shape[-2:]
    at_q = torch.arange(queries, device=query.device)[:, None] + keys - queries
    at_k = torch.arange(keys, device=query.device)[None]
    if causal:
        scores = scores.masked_fill(at_k > at_q, -math.inf)
    if window is not None:
        scores = scores.masked_fill((at_q - at_k).abs() >= window, -math.inf)
    if bias is not None:
        scores = (scores + bias.double()).masked_fill(bias <= torch.finfo(bias.dtype).min, -math.inf)
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        lse = torch.cat([scores, column], -1).logsumexp(-1)
    else:
        lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().nan_to_num(0.0), lse


def made(case: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator("cuda").manual_seed(1)
    batch, kv, queries = case.get("batch", 1), case.get("kv", 2), case.get("queries", 200)
    keys, size, rows = case.get("keys", queries), case.get("size", 64), case.get("rows", 1)
    heads = kv * case.get("group", 1)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator).to(case.get("dtype", BF16))

    if case.get("transposed"):  # as a model leaves them: [batch, position, head, size]
        query, key = normal(batch, queries, heads, size).transpose(1, 2), normal(batch, keys, kv, size).transpose(1, 2)
    else:
        query, key = normal(batch, heads, queries, size), normal(batch, kv, keys, size)
    r = torch.rand(batch, rows, queries, device="cuda", generator=generator)
    if case.get("sparse"):
        r *= torch.rand(r.shape, device="cuda", generator=generator) < 0.1
        r[:, :, 0] = 1.0
    bias = None
    if "bias" in case:
        shape = tuple({"b": batch, "h": heads, "q": queries, "k": keys, "1": 1}[c] for c in case["bias"])
        bias = torch.randn(shape, device="cuda", generator=generator)
        if case.get("lowest"):
            hidden = torch.rand(shape, device="cuda", generator=generator) < 0.3
            hidden[..., queries // 2 :, :] |= shape[-2] > 1  # queries with no key at all
            low = -math.inf if case["lowest"] == "inf" else torch.finfo(case.get("dtype", FP32)).min
            bias = bias.to(case.get("dtype", FP32)).masked_fill(hidden, low)
    return query, key, r / r.sum(-1, keepdim=True), bias


CASES: list[dict[str, Any]] = [
    *({"dtype": d, "causal": c, "size": s} for d, c, s in itertools.product((BF16, FP16, FP32), (0, 1), (64, 128))),
    *({"dtype": d, "causal": 1, "size": s, "rows": 3} for d, s in itertools.product((BF16, FP32), (80, 96, 256))),
    *({"dtype": BF16, "causal": 1, "size": 128, "group": g, "queries": 1000, "batch": 2} for g in (1, 3, 4, 8)),
    *({"causal": 1, "size": 128, "queries": n, "rows": r} for n, r in itertools.product((1, 17, 1000), (1, 2, 16))),
    *({"causal": 1, "size": 128, "queries": q, "keys": k} for q, k in ((17, 1000), (1, 300), (300, 200), (129, 130))),
    *({"causal": c, "window": w, "queries": 500, "rows": r} for c, w, r in
      ((1, 1, 1), (1, 100, 1), (1, 333, 4), (0, 64, 1), (0, 200, 4), (1, 10_000, 1))),
    {"causal": 1, "window": 40, "queries": 70, "keys": 500, "group": 2},
    {"causal": 0, "queries": 100, "keys": 1000, "rows": 5, "batch": 2},
    {"causal": 0, "size": 128, "queries": 1000, "keys": 130, "batch": 2, "group": 3},
    {"causal": 1, "softcap": 20.0, "size": 256, "group": 2},
    {"causal": 1, "softcap": 30.0, "window": 64, "dtype": FP32, "rows": 2},
    {"bias": "bhqk"},
    {"bias": "1h1k", "group": 2, "batch": 2, "dtype": FP32},
    {"bias": "b11k", "batch": 2, "causal": 1, "rows": 20},
    {"bias": "11qk", "lowest": "inf"},
    {"bias": "b1qk", "lowest": "dtype", "batch": 2, "rows": 2},
    {"bias": "bhqk", "lowest": "dtype", "dtype": FP32, "softcap": 15.0, "size": 256, "rows": 2},
    {"sinks": 1, "causal": 1, "group": 4, "window": 128, "queries": 300},
    {"sinks": 1, "bias": "bhqk", "lowest": "inf"},
    {"causal": 1, "size": 128, "sparse": 1, "queries": 700},
    {"causal": 1, "size": 128, "sparse": 1, "queries": 700, "rows": 33},
    {"causal": 1, "size": 128, "transposed": 1, "group": 4, "queries": 600, "batch": 2},
    {"causal": 1, "size": 32, "transposed": 1, "queries": 100},
]  # fmt: skip


def names(case: dict[str, Any]) -> str:
    return "-".join(f"{k}={str(v).removeprefix('torch.')}" for k, v in case.items())


@pytest.mark.parametrize("case", CASES, ids=names)
def test_against_the_definition(case: dict[str, Any]) -> None:
    query, key, r, bias = made(case)
    sinks = torch.linspace(-2, 2, query.shape[1], device="cuda") if case.get("sinks") else None
    given = {
        "scale": 1.7 / math.sqrt(query.shape[3]),
        "causal": bool(case.get("causal")),
        "window": case.get("window"),
        "softcap": case.get("softcap"),
        "bias": bias,
    }
    P, expected_lse = weights(query, key, **given, sinks=sinks)
    lse = kernels.log_sum_exp(query, key, **given, sinks=sinks)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=3e-6, atol=3e-5)
    expected = (r.double()[:, None] @ P).mean(1)
    out = kernels.transposed_product(query, key, lse, r, **given)
    assert out.shape == expected.shape
    assert out.dtype == torch.float32
    error = (out.double() - expected).norm() / expected.norm()
    assert error < (1e-5 if query.dtype != FP32 else 3e-5), error
    assert torch.equal(out, kernels.transposed_product(query, key, lse, r, **given))  # in one order: the same bits
    if sinks is None and expected_lse.isfinite().all():
        torch.testing.assert_close(out.sum(-1), torch.ones_like(out.sum(-1)), rtol=2e-5, atol=0)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("bad", [-math.inf, math.nan, math.inf, -3.0e38])
def test_queries_without_keys_give_zero(rows: int, bad: float) -> None:
    query, key, r, _ = made({"size": 128, "queries": 300, "rows": rows})
    lse = kernels.log_sum_exp(query, key, scale=0.1)
    whole = kernels.transposed_product(query, key, lse, r * (torch.arange(300, device="cuda") >= 100), scale=0.1)
    lse[:, :, :100] = bad
    assert torch.equal(kernels.transposed_product(query, key, lse, r, scale=0.1), whole)


def test_no_weight_gives_zero() -> None:
    query, key, r, _ = made({"size": 128, "queries": 300})
    lse = kernels.log_sum_exp(query, key, scale=0.1, causal=True)
    r[:, :, 50:] = 0.0
    out = kernels.transposed_product(query, key, lse, r, scale=0.1, causal=True)
    assert (out[:, :, 50:] == 0).all()
    assert (out[:, :, :50] > 0).all()


def test_plain_kernel_and_hopper_kernel_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, r, _ = made({"size": 128, "queries": 2000, "group": 4, "batch": 2})
    if not kernels._on_hopper(query):
        pytest.skip("the second kernel needs a Hopper GPU and Triton 3.6")
    lse = kernels.log_sum_exp(query, key, scale=0.1, causal=True)
    fast = kernels.transposed_product(query, key, lse, r, scale=0.1, causal=True)
    monkeypatch.setattr(kernels, "_on_hopper", lambda x: False)
    plain = kernels.transposed_product(query, key, lse, r, scale=0.1, causal=True)
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-9)
