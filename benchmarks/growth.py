"""How the time and memory of flow grow with tokens and layers: ``python -m benchmarks.growth``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson, numbers, progress
from attnflow.flow import flow_and_steps
from benchmarks import graphs
from benchmarks.command import run_command
from benchmarks.memory import in_process, peak_of


@dataclass
class Growth:
    """All pairs at all layers of a peaked graph."""

    n: int
    layers: int
    pairs: int
    seconds: float


@dataclass
class Memory:
    """A few pairs of a peaked graph, one thread: the peak above what was in use before the call, graph included."""

    n: int
    layers: int
    graph_mb: float
    peak_mb: float


def growth(sizes: list[int], depths: list[int], threads: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Return time for all pairs over n (12 layers) and over depth (64 tokens), and memory, with exponents.

    Each case runs in its own process. Memory is measured on larger graphs, where the solver's share is visible.
    """

    def time_of(n: int, depth: int) -> Growth:
        pairs, seconds = in_process("benchmarks.growth:time_all_pairs", n, depth, threads, hoard=True)
        say(f"n={n} L={depth}: {pairs} pairs in {seconds:.2f} s")
        return Growth(n, depth, int(pairs), seconds)

    def memory_of(n: int, depth: int) -> Memory:
        graph, peak = in_process("benchmarks.growth:memory_of_pairs", n, depth, 1, hoard=True)
        say(f"n={n} L={depth}: {peak:.1f} MB above the graph's {graph:.1f} MB")
        return Memory(n, depth, graph, peak)

    over_n, over_depth = [time_of(n, 12) for n in sizes], [time_of(64, depth) for depth in depths]
    memory_n, memory_depth = [memory_of(n, 6) for n in (256, 512, 1024)], [memory_of(512, d) for d in (3, 6, 12)]
    return {
        "time": [asdict(case) for case in over_n + over_depth],
        "memory": [asdict(case) for case in memory_n + memory_depth],
        "exponents": {
            "time, all pairs, in n": _slope([g.n for g in over_n], [g.seconds for g in over_n]),
            "time, a pair, in n": _slope([g.n for g in over_n], [g.seconds / g.pairs for g in over_n]),
            "time, all pairs, in layers": _slope([g.layers for g in over_depth], [g.seconds for g in over_depth]),
            "memory in n": _slope([m.n for m in memory_n], [m.peak_mb for m in memory_n]),
            "memory in layers": _slope([m.layers for m in memory_depth], [m.peak_mb for m in memory_depth]),
        },
    }


def time_all_pairs(n: int, depth: int, threads: int | None) -> list[float]:
    """Return the number of pairs, and the seconds they take."""
    A = graphs.peaked(n, depth)
    flow_and_steps(A[:3, :4, :4])
    began = time.perf_counter()
    values, _ = flow_and_steps(A, threads=threads)
    return [values.size, time.perf_counter() - began]


def memory_of_pairs(n: int, depth: int, threads: int | None) -> list[float]:
    """Return the size of the graph, and the peak above it, in MB."""
    A = graphs.peaked(n, depth)
    flow_and_steps(A[:3, :4, :4])
    some: dict[str, Any] = {"queries": [0, n // 2], "tokens": list(range(0, n, 8)), "layers": -1, "threads": threads}
    return [A.nbytes / 2**20, peak_of(lambda: flow_and_steps(A, **some))[1]]


def _slope(x: list[int], y: list[float]) -> float | None:
    if len(set(x)) < 3:
        return None  # two points fit any exponent
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1e-9)), 1)[0])


def main(
    sizes: Annotated[str, typer.Option(help="Tokens, with 12 layers.")] = "32,64,128,256",
    layers: Annotated[str, typer.Option(help="Layers, with 64 tokens.")] = "6,12,24,48",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how time (all pairs at all layers) and memory grow with tokens and layers. Memory needs Linux."""
    figures = growth(numbers(sizes, "sizes"), numbers(layers, "layers"), threads, progress)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    console = Console()
    times = Table("n", "layers", "pairs", "seconds", "µs per pair", title="all pairs at all layers")
    for case in figures["time"]:
        per_pair = case["seconds"] / case["pairs"] * 1e6
        times.add_row(
            str(case["n"]), str(case["layers"]), f"{case['pairs']:,}", f"{case['seconds']:.2f}", f"{per_pair:.1f}"
        )
    memory = Table("n", "layers", "graph, MB", "peak above it, MB", "×", title="memory, one thread")
    for case in figures["memory"]:
        memory.add_row(
            str(case["n"]), str(case["layers"]), f"{case['graph_mb']:.1f}", f"{case['peak_mb']:.1f}",
            f"{case['peak_mb'] / case['graph_mb']:.1f}",
        )  # fmt: skip
    console.print(times, memory)
    for name, value in figures["exponents"].items():
        console.print(f"exponent of {name}: " + ("too few points" if value is None else f"{value:.2f}"))


if __name__ == "__main__":
    run_command(main)
