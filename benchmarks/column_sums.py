"""The attention that each key gets from all queries, or from the last 32: `python -m benchmarks.column_sums`.

`attnflow.column_sums` is compared with eager attention, which computes and sums the weights of all heads, as cache
eviction and observation windows usually do. Uses a GPU if there is one. Both run in turn; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch

import attnflow as af

HEADS, KV_HEADS, SIZE, WINDOW = 32, 8, 128, 32


def eager(query: Any, key: Any) -> Any:
    """Return [batch, head, key] from the weights of all heads at once."""
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ keys.mT * query.shape[3] ** -0.5
    queries = query.shape[2]
    hidden = torch.ones(queries, key.shape[2], dtype=torch.bool, device=query.device).triu_(key.shape[2] - queries + 1)
    return scores.masked_fill_(hidden, -torch.inf).softmax(-1, dtype=torch.float32).sum(2)


def run(lengths: list[int], rounds: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each length and set of queries: seconds of both, and their largest relative difference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows = []
    for length in lengths:
        generator = torch.Generator(device).manual_seed(0)
        query, key = (
            torch.randn(1, heads, length, SIZE, device=device, dtype=dtype, generator=generator)
            for heads in (HEADS, KV_HEADS)
        )
        for name, some in (("all queries", query), (f"the last {WINDOW}", query[:, :, -WINDOW:])):
            progress(f"{length} positions, {name}")
            tasks = {
                "column_sums": partial(af.column_sums, some, key, per_head=True),
                "eager": partial(eager, some, key),
            }
            rows.append({"length": length, "queries": name, "device": device, **_compared(tasks, rounds, device)})
    return rows


def _compared(tasks: Mapping[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    results: dict[str, Any] = {}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            try:
                _wait(device)
                began = time.perf_counter()
                results[name] = task()
                _wait(device)
            except torch.OutOfMemoryError:
                continue
            if number:  # the first round compiles
                seconds[name].append(time.perf_counter() - began)
    medians = {f"{name}_s": median(times) if times else None for name, times in seconds.items()}
    apart = None
    if len(results) == 2:
        ours, theirs = results["column_sums"].double(), results["eager"].double()
        apart = float((ours - theirs).norm() / theirs.norm())
    return {**medians, "apart": apart}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'length':>7}  {'queries':<12}  {'eager, s':>10}  {'column_sums, s':>14}  {'times faster':>12}  apart"]
    for x in rows:
        slow, fast = x["eager_s"], x["column_sums_s"]
        eager_s = "no memory" if slow is None else f"{slow:.5f}"
        times = "" if slow is None else f"{slow / fast:.1f}"
        apart = "" if x["apart"] is None else f"{x['apart']:.0e}"
        lines.append(f"{x['length']:>7}  {x['queries']:<12}  {eager_s:>10}  {fast:>14.5f}  {times:>12}  {apart}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.column_sums", description=__doc__)
    parser.add_argument("lengths", nargs="*", type=int, default=[1024, 4096], help="positions")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians over")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    figures = run(options.lengths, options.rounds, lambda text: print(f"… {text}", file=sys.stderr))
    print(json.dumps(figures, indent=1) if options.json else table(figures))
