"""The GPU kernels against an explicit softmax in float64. Skipped without an NVIDIA GPU and Triton."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")
pytest.importorskip("triton", reason="the kernels need Triton")
if not torch.cuda.is_available():
    pytest.skip("the kernels need an NVIDIA GPU", allow_module_level=True)

from attnflow.capture import edge_kernels, kernels  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def weights(query: Any, key: Any, scale: float, causal: bool, window: int | None, softcap: float | None, bias: Any,
            sinks: Any) -> tuple[Any, Any]:  # fmt: skip
    """Return P [batch, heads, queries, keys] and lse in float64 by the definition; queries without keys give zeros."""
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

    if case.get("transposed"):  # the layout in models: [batch, position, head, size]
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
            hidden[..., queries // 2 :, :] |= shape[-2] > 1
            low = -math.inf if case["lowest"] == "inf" else torch.finfo(case.get("dtype", FP32)).min
            bias = bias.to(case.get("dtype", FP32)).masked_fill(hidden, low)
    return query, key, r / r.sum(-1, keepdim=True), bias


CASES: list[dict[str, Any]] = [
    *({"dtype": d, "causal": c, "size": s} for d, c, s in itertools.product((BF16, FP32), (0, 1), (64, 128))),
    {"dtype": FP16, "causal": 1, "size": 128},
    *({"dtype": d, "causal": 1, "size": s} for d, s in ((BF16, 80), (FP32, 96), (BF16, 256))),
    *({"causal": 1, "size": 128, "group": g, "queries": 1000, "batch": 2} for g in (3, 4)),
    *({"causal": 1, "size": 128, "queries": q, "keys": k} for q, k in ((1, 1), (17, 1000), (300, 200), (129, 130))),
    *({"causal": c, "window": w, "queries": 500} for c, w in ((1, 1), (1, 333), (0, 64), (1, 10_000))),
    {"causal": 0, "size": 128, "queries": 1000, "keys": 130, "batch": 2, "group": 3},
    {"causal": 1, "softcap": 20.0, "size": 256, "group": 2},
    {"causal": 1, "softcap": 30.0, "window": 64, "dtype": FP32},
    {"bias": "1h1k", "group": 2, "batch": 2, "dtype": FP32},
    {"bias": "11qk", "lowest": "inf"},
    {"bias": "b1qk", "lowest": "dtype", "batch": 2},
    {"sinks": 1, "causal": 1, "group": 4, "window": 128, "queries": 300},
    {"causal": 1, "size": 128, "sparse": 1, "queries": 700},
    {"causal": 1, "size": 128, "transposed": 1, "group": 4, "queries": 600, "batch": 2},
    {"causal": 1, "size": 32, "transposed": 1, "queries": 100},
]  # fmt: skip


def names(case: dict[str, Any]) -> str:
    return "-".join(f"{k}={str(v).removeprefix('torch.')}" for k, v in case.items())


def options(case: dict[str, Any], query: Any, bias: Any) -> dict[str, Any]:
    return {
        "scale": 1.7 / math.sqrt(query.shape[3]),
        "causal": bool(case.get("causal")),
        "window": case.get("window"),
        "softcap": case.get("softcap"),
        "bias": bias,
    }


@pytest.mark.parametrize("case", CASES, ids=names)
def test_against_the_definition(case: dict[str, Any]) -> None:
    query, key, r, bias = made(case)
    sinks = torch.linspace(-2, 2, query.shape[1], device="cuda") if case.get("sinks") else None
    known = options(case, query, bias)
    P, expected_lse = weights(query, key, **known, sinks=sinks)
    lse = kernels.log_sum_exp(query, key, **known, sinks=sinks)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=3e-6, atol=3e-5)
    expected = (r.double()[:, None] @ P).mean(1)[:, 0]
    out = kernels.transposed_product(query, key, lse, r[:, 0], **known)
    assert out.shape == expected.shape
    assert out.dtype == torch.float32
    error = (out.double() - expected).norm() / expected.norm()
    assert error < (1e-5 if query.dtype != FP32 else 3e-5), error
    assert torch.equal(out, kernels.transposed_product(query, key, lse, r[:, 0], **known))  # the order of sums is fixed
    if sinks is None and expected_lse.isfinite().all():
        torch.testing.assert_close(out.sum(-1), torch.ones_like(out.sum(-1)), rtol=2e-5, atol=0)


@pytest.mark.parametrize("bad", [-math.inf, math.nan, math.inf, -3.0e38])
def test_queries_without_keys_give_zero(bad: float) -> None:
    query, key, r, _ = made({"size": 128, "queries": 300})
    lse = kernels.log_sum_exp(query, key, scale=0.1)
    late = r[:, 0] * (torch.arange(300, device="cuda") >= 100)
    whole = kernels.transposed_product(query, key, lse, late, scale=0.1)
    lse[:, :, :100] = bad
    assert torch.equal(kernels.transposed_product(query, key, lse, r[:, 0], scale=0.1), whole)
    rows = edge_kernels.edge_rows(query, key, lse, scale=0.1, factor=1.0)
    assert (rows[:, :100] == 0).all()
    assert (rows[:, 100:] > 0).all()


def test_no_weight_gives_zero() -> None:
    query, key, r, _ = made({"size": 128, "queries": 300})
    lse = kernels.log_sum_exp(query, key, scale=0.1, causal=True)
    r[:, :, 50:] = 0.0
    out = kernels.transposed_product(query, key, lse, r[:, 0], scale=0.1, causal=True)
    assert (out[:, 50:] == 0).all()
    assert (out[:, :50] > 0).all()


EDGE_CASES: list[dict[str, Any]] = [
    {"causal": 1, "size": 128, "group": 4, "kv": 8, "queries": 700},
    {"causal": 0, "size": 64, "queries": 300, "keys": 500, "batch": 2},
    {"causal": 1, "size": 128, "queries": 200, "keys": 900, "group": 2, "transposed": 1},
    {"causal": 1, "size": 80, "dtype": FP16},
    {"causal": 1, "size": 256, "softcap": 20.0, "window": 100},
    {"causal": 0, "window": 64, "dtype": FP32},
    {"bias": "b1qk", "lowest": "dtype", "batch": 2},
]


@pytest.mark.parametrize("kind", ["mean", "lengths", "positive", "signed"])
@pytest.mark.parametrize("case", EDGE_CASES, ids=names)
def test_edges_against_the_definition(case: dict[str, Any], kind: str) -> None:
    query, key, _, bias = made(case)
    known = options(case, query, bias)
    P, lse = weights(query, key, **known, sinks=None)
    generator = torch.Generator("cuda").manual_seed(2)
    direction, value = (torch.randn(x.shape, device="cuda", generator=generator).to(x.dtype) for x in (query, key))
    lengths = torch.rand(P.shape[0], P.shape[1], P.shape[3], device="cuda", generator=generator)
    along = direction.double() @ value.double().repeat_interleave(query.shape[1] // key.shape[1], 1).mT
    more: dict[str, Any] = {}
    if kind == "lengths":
        P, more = P * lengths.double()[:, :, None], {"lengths": lengths}
    elif kind != "mean":
        P = P * (along if kind == "signed" else along.clamp(min=0))
        more = {"direction": direction, "value": value, "signed": kind == "signed"}
    expected = P.sum(1) * 0.25
    out = edge_kernels.edge_rows(query, key, lse.float(), factor=0.25, **known, **more)
    assert out.shape == expected.shape
    assert (out.double() - expected).norm() / expected.norm() < 3e-5
    assert torch.equal(out, edge_kernels.edge_rows(query, key, lse.float(), factor=0.25, **known, **more))
    # rows in two parts, the second added to the first
    half = query.shape[2] // 2
    if bias is None:
        later = {k: v[:, :, half:] if k == "direction" else v for k, v in more.items()}
        there = torch.ones_like(out[:, half:])
        edge_kernels.edge_rows(
            query[:, :, half:], key, lse.float()[:, :, half:], factor=0.25, out=there, **known, **later
        )
        torch.testing.assert_close(there - 1, out[:, half:], rtol=0, atol=1e-5)
    if kind == "mean":
        back = edge_kernels.value_gradient(query, key, lse.float(), direction, **known)
        exact = (P.mT @ direction.double()).unflatten(1, (key.shape[1], -1)).sum(2)
        assert (back.double() - exact).norm() / exact.norm() < (3e-5 if query.dtype == FP32 else 1e-2)
    rows = torch.randn(P.shape[0], 37, P.shape[2], device="cuda", generator=generator)
    for some in (rows, rows[:, :1], rows[:, :17]):
        product = edge_kernels.thin_product(some, out)
        exact = some.double() @ out.double()
        assert (product.double() - exact).norm() / exact.norm() < 5e-6


@pytest.mark.parametrize(("heads", "shared", "size"), [(8, 2, 128), (6, 6, 80)])
def test_lengths_of_projected_values(heads: int, shared: int, size: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    value = torch.randn(2, 700, shared, size, device="cuda", generator=generator).bfloat16().transpose(1, 2)
    matrix = torch.randn(heads, size, 300, device="cuda", generator=generator)
    exact = (value.double().repeat_interleave(heads // shared, 1) @ matrix.double()).norm(dim=-1) ** 2
    out = edge_kernels.squared_lengths(value, matrix @ matrix.mT)
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=0)


def test_texts_side_by_side() -> None:
    query, key, _, _ = made({"size": 64, "queries": 300, "batch": 2})
    place = torch.arange(300, device="cuda")
    first = (place // 70 * 70).int().expand(2, -1).contiguous()
    last = place.int().expand(2, -1).contiguous()
    bias = torch.full((2, 1, 300, 300), -math.inf, device="cuda")
    seen = (place[None] >= first[0, :, None]) & (place[None] <= last[0, :, None])
    bias.masked_fill_(seen, 0.0)
    lse = kernels.log_sum_exp(query, key, scale=0.1, spans=(first, last))
    torch.testing.assert_close(lse, kernels.log_sum_exp(query, key, scale=0.1, bias=bias), rtol=1e-6, atol=1e-6)
    out = edge_kernels.edge_rows(query, key, lse, scale=0.1, factor=0.5, spans=(first, last))
    expected = edge_kernels.edge_rows(query, key, lse, scale=0.1, factor=0.5, bias=bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-7)
