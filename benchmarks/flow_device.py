"""Flow on a GPU followed by the solver, compared with the solver alone: ``python -m benchmarks.flow_device``.

Without a GPU, one call of the solver for a batch of texts is compared with one call per text.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson, progress
from attnflow.errors import InputError
from attnflow.flow import cores, flow_and_steps
from attnflow.flow_batches import batch_flows
from attnflow.flow_pairs import total_steps
from benchmarks import graphs
from benchmarks.command import run_command

Flows = tuple[NDArray[np.float64], dict[str, int]]
Task = Callable[[], Flows]


@dataclass
class Row:
    """One way to compute the flows of one case. `apart`: the largest difference from the first way's values."""

    case: str
    way: str
    pairs: int
    seconds: float
    apart: float
    steps: dict[str, int] = field(default_factory=dict)


def measure(case: str, ways: dict[str, Task], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Run all ways in turn, round by round; the first round, in which kernels are compiled, does not count."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    results: dict[str, Flows] = {}
    for number in range(rounds + 1):
        for way, task in ways.items():
            began = time.perf_counter()
            results[way] = task()
            took = time.perf_counter() - began
            if number:
                seconds[way].append(took)
            say(f"{case}, {way}: {took:.3f} s" + ("" if number else " (first)"))
    first = next(iter(results.values()))[0]
    return [
        Row(case, way, steps["pairs"], median(seconds[way]), float(np.abs(values - first).max()), steps)
        for way, (values, steps) in results.items()
    ]


def all_pairs(kind: str, n: int, depth: int, gpu: bool) -> tuple[str, dict[str, Task]]:
    A = graphs.GENERATED[kind](n, depth).astype(np.float32)
    ways: dict[str, Task] = {f"solver, {cores()} threads": lambda: flow_and_steps(A)}
    if gpu:
        on_device = _to_gpu([A])[0]
        ways["GPU, then solver"] = lambda: flow_and_steps(on_device)
    return f"{kind}, {depth} × {n}, all pairs", ways


def corpus(texts: int, n: int, depth: int, gpu: bool) -> tuple[str, dict[str, Task]]:
    """Return a corpus case: the first token of every text, at all layers."""
    layers, lengths = text_graphs(texts, n, depth)
    queries = np.zeros(texts, dtype=np.int32)
    ways: dict[str, Task] = {f"solver, {cores()} threads": lambda: batch_flows(layers, lengths, queries)}
    if gpu:
        on_device = _to_gpu(layers)
        ways["GPU, then solver"] = lambda: batch_flows(on_device, lengths, queries)
    else:
        ways["a call a text"] = lambda: one_by_one(layers, lengths)
    return f"{texts:,} texts of {depth} × {n // 2} to {n}, one query", ways


def text_graphs(texts: int, n: int, depth: int) -> tuple[list[NDArray[np.float32]], NDArray[np.int32]]:
    """Return peaked attention of texts of half to full length, padded: layers ``[text, n, n]``, and lengths."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(n // 2, n + 1, size=texts).astype(np.int32)
    layers = [np.zeros((texts, n, n), dtype=np.float32) for _ in range(depth)]
    for text, length in enumerate(lengths):
        for layer, weights in zip(layers, graphs.peaked(int(length), depth, seed=text), strict=True):
            layer[text, :length, :length] = weights
    return layers, lengths


def one_by_one(layers: list[NDArray[np.float32]], lengths: NDArray[np.int32]) -> Flows:
    values = np.zeros((len(lengths), len(layers), layers[0].shape[1]))
    counts = []
    for text, n in enumerate(lengths):
        flows, steps = flow_and_steps(np.stack([layer[text, :n, :n] for layer in layers]), queries=0)
        values[text, :, :n] = flows[:, 0]
        counts.append(steps)
    return values, total_steps(counts)


def _to_gpu(arrays: list[NDArray[np.float32]]) -> list[Any]:
    import torch

    return [torch.from_numpy(array).cuda() for array in arrays]


def has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def cases(kinds: list[str], n: int, depth: int, texts: int, gpu: bool) -> Iterator[tuple[str, dict[str, Task]]]:
    for kind in kinds:
        yield all_pairs(kind, n, depth, gpu)
    if texts:
        yield corpus(texts, 32, 6, gpu)


def main(
    kinds: Annotated[str, typer.Option("--graphs", help="peaked, causal, local, uniform.")] = ",".join(
        graphs.GENERATED
    ),
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the graphs whose pairs are all computed.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the same graphs.")] = 12,
    texts: Annotated[
        int, typer.Option(min=0, help="Texts of up to 32 tokens and 6 layers, with one query each.")
    ] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Time the solver alone and a GPU followed by the solver, and count the pairs that each step proves."""
    chosen = kinds.split(",") if kinds else []
    for kind in chosen:
        if kind not in graphs.GENERATED:
            raise InputError(f"graphs {kind!r}: expected some of {', '.join(graphs.GENERATED)}")
    rows: list[Row] = []
    for case, ways in cases(chosen, tokens, layers, texts, has_gpu()):
        rows += measure(case, ways, rounds, progress)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table("case", "way", "pairs", "seconds", "apart", "steps")
    for row in rows:
        steps = ", ".join(f"{name} {count:,}" for name, count in row.steps.items() if count and name != "pairs")
        table.add_row(row.case, row.way, f"{row.pairs:,}", f"{row.seconds:.3f}", f"{row.apart:.0e}", steps)
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
