"""The command. Data on stdout, progress on stderr; a user's mistake is one sentence and exit status 2."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from attnflow import __version__
from attnflow.errors import InputError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What flows where inside a transformer.")
bench = typer.Typer(no_args_is_help=True, help="Benchmarks: each prints a table, or JSON with --json.")
app.add_typer(bench, name="bench")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    try:
        app()
    except InputError as e:
        print(f"attnflow: {e}", file=sys.stderr)
        sys.exit(2)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str, what: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"{what} {text!r}: expected positive numbers with commas between them, for example 16,64")
    return found


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def attnflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@bench.command("flow")
def bench_flow(
    graphs: Annotated[
        str, typer.Option(help="Which graphs: real, peaked, causal, local, uniform.")
    ] = "real,peaked,causal,local,uniform",
    sizes: Annotated[str, typer.Option(help="Tokens of the real graphs.")] = "16,32,64,128,256,512",
    layers: Annotated[str, typer.Option(help="Layers of the generated graphs (of 64 tokens).")] = "6,12,24,32",
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face encoder for the real graphs; without it, the one from make bench."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 3,
    budget: Annotated[
        float, typer.Option(min=0, help="Seconds a peer may take per round and graph; at least one pair is solved.")
    ] = 2.0,
    networkx_up_to: Annotated[int, typer.Option(help="Largest n for networkx.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Flow against scipy, igraph, OR-tools and networkx, on the same graphs, in one run."""
    from attnflow.bench import flow
    from attnflow.bench.graphs import GENERATED

    kinds = graphs.split(",")
    for kind in kinds:
        if kind != "real" and kind not in GENERATED:
            raise InputError(f"graphs {kind!r}: expected some of real, {', '.join(GENERATED)}")
    if model is not None and not (model / "config.json").is_file():
        raise InputError(f"model {str(model)!r}: expected a folder with a config.json")
    rows = flow.run(
        kinds, _numbers(sizes, "sizes"), _numbers(layers, "layers"), model, rounds, budget, networkx_up_to, progress
    )
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table("graph", "n", "layers", "solver", "µs a pair", "× 1 thread", "note")
    for row in rows:
        table.add_row(
            row.graph, str(row.n), str(row.layers or ""), row.solver,
            "" if row.seconds is None else f"{row.seconds * 1e6:,.1f}",
            "" if row.times_slower is None else f"{row.times_slower:,.1f}",
            row.note,
        )  # fmt: skip
    Console().print(table)


@bench.command("growth")
def bench_growth(
    sizes: Annotated[str, typer.Option(help="Tokens, with 12 layers.")] = "32,64,128,256",
    layers: Annotated[str, typer.Option(help="Layers, with 64 tokens.")] = "6,12,24,48",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """How time (all pairs at all layers) and memory grow with tokens and with layers. Memory needs Linux."""
    from attnflow.bench.flow import growth

    found = growth(_numbers(sizes, "sizes"), _numbers(layers, "layers"), threads, progress)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    times = Table("n", "layers", "pairs", "seconds", "µs a pair", title="all pairs at all layers")
    for case in found["time"]:
        per_pair = case["seconds"] / case["pairs"] * 1e6
        times.add_row(
            str(case["n"]), str(case["layers"]), f"{case['pairs']:,}", f"{case['seconds']:.2f}", f"{per_pair:.1f}"
        )
    memory = Table("n", "layers", "graph, MB", "peak above it, MB", "×", title="memory, one thread")
    for case in found["memory"]:
        memory.add_row(
            str(case["n"]), str(case["layers"]), f"{case['graph_mb']:.1f}", f"{case['peak_mb']:.1f}",
            f"{case['peak_mb'] / case['graph_mb']:.1f}",
        )  # fmt: skip
    console.print(times, memory)
    for name, value in found["exponents"].items():
        console.print(f"exponent of {name}: " + ("too few points" if value is None else f"{value:.2f}"))
