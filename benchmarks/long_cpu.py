"""A decoder's long context explained on the CPU: ``python -m benchmarks.long_cpu``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, numbers, progress
from benchmarks.command import run_command
from benchmarks.memory import in_process, peak_of


def long(lengths: list[int], folder: str, gguf: str | None, say: Callable[[str], None]) -> list[dict[str, float]]:
    """A decoder explained with memory="linear": seconds of the plain forward pass, of trace and rollout, and the peak."""
    rows = []
    for n in lengths:
        say(f"{n} tokens")
        rows.append(in_process("benchmarks.long_cpu:explained", n, folder, gguf))
    return rows


def one_layer(lengths: list[int], rounds: int = 3) -> list[dict[str, float]]:
    """Pᵀ·r of one causal layer of 9 heads of 64, 3 of keys: in blocks of queries, and by SDPA's backward pass."""
    import time

    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from attnflow.capture.scores import Scores

    rows = []
    for n in lengths:
        generator = torch.Generator().manual_seed(0)
        query, key = (torch.randn(1, heads, n, 64, generator=generator) for heads in (9, 3))
        row = torch.rand(1, 1, n, generator=generator)
        scores = Scores(query, key, 64**-0.5, causal=True)
        repeated = key.repeat_interleave(3, 1)
        value = torch.zeros_like(query).requires_grad_()
        out = scaled_dot_product_attention(query, repeated, value, is_causal=True)
        incoming = torch.zeros_like(out)
        incoming[..., 0] = row

        def blocks(scores: Any = scores, row: Any = row) -> Any:
            return scores.transposed(row)[0, 0]

        def backward(out: Any = out, value: Any = value, incoming: Any = incoming) -> Any:
            return torch.autograd.grad(out, value, incoming, retain_graph=True)[0][0, ..., 0].mean(0)

        seconds: dict[str, list[float]] = {"blocks_s": [], "backward_s": []}
        for _ in range(rounds + 1):
            for name, task in (("blocks_s", blocks), ("backward_s", backward)):
                began = time.perf_counter()
                task()
                seconds[name].append(time.perf_counter() - began)
        gap = float((blocks() - backward()).abs().max() / backward().abs().max())
        rows.append({"tokens": n, **{k: statistics.median(v[1:]) for k, v in seconds.items()}, "difference": gap})
    return rows


def explained(n: int, folder: str, gguf: str | None) -> dict[str, float]:
    import time

    import torch

    from attnflow import load
    from benchmarks.graphs import PASSAGE

    model = load(folder, gguf_file=gguf, dtype="float32")
    tokenizer: Any = model.tokenizer
    ids = tokenizer(PASSAGE.replace("\n", " "))["input_ids"]
    tensors = {"input_ids": torch.tensor([(ids * (n // len(ids) + 1))[:n]])}
    model.trace({"input_ids": tensors["input_ids"][:, :64]}, memory="linear")
    began = time.perf_counter()
    with torch.no_grad():
        model.model(**tensors, use_cache=False, logits_to_keep=1)
    forward = time.perf_counter() - began

    def rollout() -> Any:
        return model.trace(tensors, memory="linear", queries=[-1]).rollout()

    began = time.perf_counter()
    result, peak = peak_of(rollout)
    seconds = time.perf_counter() - began
    return {
        "tokens": n,
        "forward_s": forward,
        "explained_s": seconds,
        "peak_mb": peak,
        "matrices_mb": model.model.config.num_hidden_layers * n * n * 4 / 2**20,
        "sum": float(result.values.sum()),
    }


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "1024,2048,4096,8192",
    as_json: AsJson = False,
) -> None:
    """A decoder's long context explained on the CPU with memory="linear": time, and peak memory. Needs Linux."""
    silence()
    layers = one_layer(numbers(lengths, "lengths"))
    rows = long(numbers(lengths, "lengths"), model, gguf, progress)
    if as_json:
        print(json.dumps({"model": rows, "one layer": layers}, indent=1))
        return
    alone = Table("tokens", "in blocks, s", "by the backward pass, s", "×", "difference", title="one layer, Pᵀ·r")
    for row in layers:
        times = row["backward_s"] / row["blocks_s"]
        alone.add_row(
            f"{row['tokens']:,.0f}", f"{row['blocks_s']:.3f}", f"{row['backward_s']:.3f}", f"{times:.2f}",
            f"{row['difference']:.0e}",
        )  # fmt: skip
    table = Table("tokens", "forward, s", "explained, s", "×", "peak, MB", "one matrix a layer would be, MB")
    for row in rows:
        table.add_row(
            f"{row['tokens']:,.0f}", f"{row['forward_s']:.1f}", f"{row['explained_s']:.1f}",
            f"{row['explained_s'] / row['forward_s']:.2f}", f"{row['peak_mb']:,.0f}", f"{row['matrices_mb']:,.0f}",
        )  # fmt: skip
    Console().print(table, alone)


if __name__ == "__main__":
    run_command(main)
