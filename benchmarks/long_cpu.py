"""A decoder's long context explained on the CPU: ``python -m benchmarks.long_cpu``."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, numbers, progress
from attnflow.errors import InputError
from benchmarks.command import run_command
from benchmarks.memory import in_process, peak_of

if TYPE_CHECKING:
    from attnflow.model import Model


ROW, SPAN = "rollout, row", "head-norm, span"


def long(
    lengths: list[int], folder: str, gguf: str | None, span: int, rounds: int, threads: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Explain a decoder with memory="linear": seconds of the plain forward pass and of each explanation, and peaks."""
    rows = []
    for n in lengths:
        say(f"{n} tokens")
        rows += in_process("benchmarks.long_cpu:explained", n, folder, gguf, span, rounds, threads)
    return rows


def one_layer(lengths: list[int], rounds: int = 3) -> list[dict[str, float]]:
    """Time Pᵀ·r of one causal layer of 9 heads of 64, 3 of keys: in blocks of queries, and by SDPA's backward pass."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from attnflow.capture.fused import attention_output
    from attnflow.capture.linear import step
    from attnflow.capture.scores import LazyMask, Scores

    def looks_back(batch: Any, head: Any, at_query: Any, at_key: Any) -> Any:
        return at_key <= at_query

    rows = []
    for n in lengths:
        generator = torch.Generator().manual_seed(0)
        query, key = (torch.randn(1, heads, n, 64, generator=generator) for heads in (9, 3))
        row = torch.rand(1, 1, n, generator=generator)
        mask = LazyMask(looks_back, 1, n, n, 0, 0, "causal", None, query.device)
        with torch.no_grad():  # the forward pass returns the log-sum-exp, as it does in a trace
            _, scores = attention_output(Scores(query, key, 64**-0.5, mask), torch.zeros_like(key))
        repeated = key.repeat_interleave(3, 1)
        value = torch.zeros_like(query).requires_grad_()
        out = scaled_dot_product_attention(query, repeated, value, is_causal=True)
        incoming = torch.zeros_like(out)
        incoming[..., 0] = row

        def blocks(scores: Any = scores, row: Any = row) -> Any:
            return step(scores, row)[0, 0]

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


def explained(n: int, folder: str, gguf: str | None, span: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(threads)

    from attnflow import load
    from benchmarks.graphs import PASSAGE

    model = load(folder, gguf_file=gguf, dtype="float32", device="cpu")
    tokenizer: Any = model.tokenizer
    ids = tokenizer(PASSAGE.replace("\n", " "))["input_ids"]
    return compared(model, torch.tensor([(ids * (n // len(ids) + 1))[:n]]), span, rounds)


def compared(model: Model, ids: Any, span: int, rounds: int) -> list[dict[str, Any]]:
    """Return medians over rounds in which the forward pass, a row and a span of the last tokens run in turn.

    If torch has one thread, the seconds are CPU time, so that other processes on the machine do not change them.
    """
    import torch

    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    n = int(ids.shape[1])
    tensors = {"input_ids": ids}
    weights = dict.fromkeys(range(n - span, n), 1 / span)

    def forward() -> Any:
        with torch.no_grad():
            return model.model(**tensors, use_cache=False, logits_to_keep=1)

    tasks: dict[str, Callable[[], Any]] = {
        "forward": forward,
        ROW: lambda: model.trace(tensors, memory="linear", queries=[-1]).rollout(),
        SPAN: lambda: model.trace(tensors, memory="linear", queries=weights, edges="head-norm").rollout(),
    }
    for edges in (None, "head-norm"):  # the first time checks the model
        model.trace({"input_ids": ids[:, :64]}, memory="linear", edges=edges).rollout()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    peaks, sums = dict.fromkeys(tasks, 0.0), dict.fromkeys(tasks, 0.0)
    for _ in range(rounds):
        for name, task in tasks.items():
            began = clock()
            result, peak = peak_of(task)
            seconds[name].append(clock() - began)
            peaks[name] = max(peaks[name], peak)
            sums[name] = 0.0 if name == "forward" else float(result.values.sum())
            del result
    medians = {name: statistics.median(some) for name, some in seconds.items()}
    matrices = model.model.config.num_hidden_layers * n * n * 4 / 2**20
    return [
        {"tokens": n, "what": name, "forward_s": medians["forward"], "explained_s": medians[name],
         "times": medians[name] / medians["forward"], "forward_peak_mb": peaks["forward"], "peak_mb": peaks[name],
         "matrices_mb": matrices, "sum": sums[name]}
        for name in (ROW, SPAN)
    ]  # fmt: skip


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "1024,2048,4096,8192",
    span: Annotated[int, typer.Option(min=1, help="How many of the last tokens the span has.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 1,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads. With 1, CPU time is measured instead of wall time.")
    ] = 2,
    as_json: AsJson = False,
) -> None:
    """Explain a decoder's long context on the CPU with memory="linear": time and peak memory. Needs Linux."""
    silence()
    counts = numbers(lengths, "lengths")
    if min(counts) < span:
        raise InputError(f"{min(counts)} tokens: expected at least the {span} tokens of a span")
    layers = one_layer(counts)
    rows = long(counts, model, gguf, span, rounds, threads, progress)
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
    table = Table("tokens", "what", "forward, s", "explained, s", "×", "peak, MB", "forward's", "matrices, MB")
    for one in rows:
        table.add_row(
            f"{one['tokens']:,.0f}", one["what"], f"{one['forward_s']:.1f}", f"{one['explained_s']:.1f}",
            f"{one['times']:.2f}", f"{one['peak_mb']:,.0f}", f"{one['forward_peak_mb']:,.0f}",
            f"{one['matrices_mb']:,.0f}",
        )  # fmt: skip
    Console(width=110).print(table, alone)


if __name__ == "__main__":
    run_command(main)
