"""One step of rollout on a GPU compared with the attention it explains: `python -m benchmarks.step`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from attnflow.errors import InputError

HEADS, KV_HEADS, SIZE = 32, 8, 128
ROWS = (1, 16, 256)
LONG_ENOUGH = 100  # ms
QUERIES_AT_ONCE = 4096  # for the float64 reference
AUTOGRAD_UP_TO = 40_000  # the generic route is slow and only for comparison


def run(lengths: list[int], rounds: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time causal attention of 32 heads of 128 (8 of keys) in bfloat16: forward, our step, and by autograd.

    Medians are over rounds in which everything runs in turn, so that a GPU that heats up slows all of them. A row of
    the table has ``length``, ``what``, ``ms``, ``ratio`` (to the fastest forward), ``tflops`` (of the causal half of
    the products), ``extra_mib`` (peak above queries, keys, lse and r) and ``error`` (relative to float64 on the same
    bfloat16 inputs at a sample of keys); None if there is no figure.
    """
    torch = _torch()
    rows = []
    for length in lengths:
        progress(f"{length} positions")
        with torch.no_grad():
            rows += _compared(torch, length, rounds)
        torch.cuda.empty_cache()
    return rows


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise InputError("this benchmark needs torch and an NVIDIA GPU: install attnflow[models] there") from None
    if not torch.cuda.is_available():
        raise InputError(
            "this benchmark needs an NVIDIA GPU, and torch does not see one: run it on a machine with a GPU"
        )
    try:
        import triton  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        raise InputError("this benchmark needs Triton, which comes with torch for CUDA: install that build") from None
    return torch


def _compared(torch: Any, length: int, rounds: int) -> list[dict[str, Any]]:
    from attnflow.capture.kernels import log_sum_exp
    from attnflow.capture.linear import pass_down, step
    from attnflow.capture.scores import Scores, Weighing

    generator = torch.Generator("cuda").manual_seed(0)

    def normal(heads: int) -> Any:
        return torch.randn(1, heads, length, SIZE, device="cuda", dtype=torch.bfloat16, generator=generator)

    query, key, value, direction = normal(HEADS), normal(KV_HEADS), normal(KV_HEADS), normal(HEADS)
    r = torch.rand(1, max(ROWS), length, device="cuda", generator=generator)
    r /= r.sum(-1, keepdim=True)
    options = {"scale": SIZE**-0.5, "causal": True}
    lse = log_sum_exp(query, key, **options)
    scores = Scores(query, key, SIZE**-0.5, causal=True, lse=lse)
    lengths = torch.rand(1, HEADS, length, device="cuda", generator=generator)
    own = torch.rand(1, length, device="cuda", generator=generator)
    normed, directed = Weighing(1.0, lengths=lengths), Weighing(1 / HEADS, direction=direction, value=value)

    calls: dict[str, Callable[[], Any]] = {}
    forwards = _forwards(torch, query, key, value)
    calls |= forwards
    steps: dict[str, tuple[Any, Any]] = {}  # the reference of each: its edge weights, and its rows
    for n in ROWS:
        some = r[:, :n].contiguous()
        name = f"step, {n} row{'s' if n > 1 else ''}"
        steps[name] = Weighing(1 / HEADS), some
        calls[name] = lambda some=some: step(scores, some, length)  # type: ignore[misc]
    one = r[:, :1].contiguous()
    steps["value norms, 1 row"], steps["directions, 1 row"] = (normed, one), (directed, one)
    calls["value norms, 1 row"] = lambda: pass_down(scores, one, normed, own, normalized=True, reach=length)
    calls["directions, 1 row"] = lambda: pass_down(scores, one, directed, reach=length)
    calls["lse alone"] = lambda: log_sum_exp(query, key, **options)
    if length <= AUTOGRAD_UP_TO:
        calls["step, 1 row, by autograd"] = _by_autograd(torch, query, key, value, r[:, 0])

    sample = torch.randint(length, (32,), device="cuda", generator=generator)
    measured: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        call()  # compiled now, measured later
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = call()
        measured[name] = {"extra_mib": (torch.cuda.max_memory_allocated() - before) / 2**20, "error": None}
        if name in steps:
            weighing, some = steps[name]
            if weighing is normed:
                some = some / (_row_sums(torch, query, key, lse, lengths) + own.double())[:, None]
            reference = _reference(torch, query, key, lse, some, sample, weighing)
            if weighing is normed:
                reference = reference + (some * own.double()[:, None])[:, :, sample]
            got = out[:, :, sample].double()
            measured[name]["error"] = float((got - reference).norm() / reference.norm())
        del out
    ms = _medians(torch, calls, rounds)
    fastest = min(ms[name] for name in forwards)
    products = HEADS * length * length * SIZE  # multiply and add, on half of the square
    return [
        {
            "length": length,
            "what": name,
            "ms": ms[name],
            "ratio": ms[name] / fastest,
            "tflops": products * (2 if name in forwards else 1) / ms[name] / 1e9,
            **measured[name],
        }
        for name in calls
    ]


def _forwards(torch: Any, query: Any, key: Any, value: Any) -> dict[str, Callable[[], Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    calls: dict[str, Callable[[], Any]] = {}
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION)):

        def call(backend: Any = backend) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    query, key, value, is_causal=True, enable_gqa=True
                )

        try:
            call()
        except RuntimeError:  # not in this build of torch or on this GPU
            continue
        calls[f"forward, {name}"] = call
    if not calls:
        raise InputError(
            "neither cuDNN nor FlashAttention runs on this GPU: this benchmark needs one of them to compare with"
        )
    return calls


def _by_autograd(torch: Any, query: Any, key: Any, value: Any, r: Any) -> Callable[[], Any]:
    """Return the gradient of the values, with r as the gradient of one output channel: it works without a kernel."""
    with torch.enable_grad():
        leaf = value.detach().requires_grad_()
        out = torch.nn.functional.scaled_dot_product_attention(query, key, leaf, is_causal=True, enable_gqa=True)
    incoming = torch.zeros_like(out)
    incoming[..., 0] = r[:, None]
    return lambda: torch.autograd.grad(out, leaf, incoming, retain_graph=True)


def _weights(torch: Any, query: Any, key: Any, lse: Any, h: int, queries: slice, keys: Any) -> Any:
    """Return the weights of one head in float64, [some queries, some keys]."""
    position = torch.arange(query.shape[2], device=query.device)[queries, None]
    chosen = key[0, h * KV_HEADS // HEADS, keys].double()
    scores = query[0, h, queries].double() @ chosen.T * SIZE**-0.5 - lse[0, h, queries].double()[:, None]
    return scores.exp().masked_fill(keys[None] > position, 0.0)


def _reference(torch: Any, query: Any, key: Any, lse: Any, r: Any, sample: Any, weighing: Any) -> Any:
    """Return [1, rows, sample] in float64, head by head."""
    total = torch.zeros(1, r.shape[1], len(sample), dtype=torch.float64, device=query.device)
    for h in range(HEADS):
        edges = _weights(torch, query, key, lse, h, slice(None), sample)
        if weighing.lengths is not None:
            edges *= weighing.lengths[0, h, sample].double()
        if weighing.direction is not None:
            values = weighing.value[0, h * KV_HEADS // HEADS, sample].double()
            edges *= (weighing.direction[0, h].double() @ values.T).clamp(min=0)
        total += r.double() @ edges
    return total * weighing.factor


def _row_sums(torch: Any, query: Any, key: Any, lse: Any, lengths: Any) -> Any:
    """Return ``Σ_h Σ_k A[q, k]·lengths[h, k]`` in float64, [1, query], some queries at a time."""
    n = query.shape[2]
    keys = torch.arange(n, device=query.device)
    total = torch.zeros(1, n, dtype=torch.float64, device=query.device)
    for start in range(0, n, QUERIES_AT_ONCE):
        some = slice(start, min(start + QUERIES_AT_ONCE, n))
        for h in range(HEADS):
            total[0, some] += _weights(torch, query, key, lse, h, some, keys) @ lengths[0, h].double()
    return total


def _medians(torch: Any, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return milliseconds on the device.

    Every turn first runs untimed: the clock follows the power, so a call is faster after a light one than after itself.
    Short calls are repeated, so that Python's overhead to start one does not count.
    """

    def timed(call: Callable[[], Any], repeats: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repeats

    repeats = {name: max(1, round(LONG_ENOUGH / timed(call, 1))) for name, call in calls.items()}
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            timed(call, repeats[name])
            took[name].append(timed(call, repeats[name]))
    return {name: median(times) for name, times in took.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text, without any library: a machine with a GPU may have none of ours."""
    lines = [f"{'length':>7}  {'what':<26}{'ms':>9}  {'ratio':>6}  {'TFLOP/s':>8}  {'MiB':>7}  error"]
    for x in rows:
        error = f"{x['error']:.1e}" if x["error"] is not None else ""
        lines.append(
            f"{x['length']:>7}  {x['what']:<26}{x['ms']:>9.3f}  {x['ratio']:>6.3f}  {x['tflops']:>8.1f}"
            f"  {x['extra_mib']:>7.1f}  {error}"
        )
    return "\n".join(lines)


if __name__ == "__main__":  # with argparse, for the same reason
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("lengths", nargs="*", type=int, default=[8192, 32_768, 131_072], help="tokens")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians over")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    figures = run(options.lengths, options.rounds, lambda text: print(f"… {text}", file=sys.stderr))
    print(json.dumps(figures, indent=1) if options.json else table(figures))
