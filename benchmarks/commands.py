"""``python -m benchmarks``: each command prints a table, or JSON with --json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from attnflow import __version__
from attnflow.cli.options import AsJson, numbers, progress, quiet
from attnflow.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Benchmarks: each prints a table, or JSON with --json.")


@app.command("flow")
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
    from benchmarks import flow
    from benchmarks.graphs import GENERATED

    kinds = graphs.split(",")
    for kind in kinds:
        if kind != "real" and kind not in GENERATED:
            raise InputError(f"graphs {kind!r}: expected some of real, {', '.join(GENERATED)}")
    if model is not None and not (model / "config.json").is_file():
        raise InputError(f"model {str(model)!r}: expected a folder with a config.json")
    rows = flow.run(
        kinds, numbers(sizes, "sizes"), numbers(layers, "layers"), model, rounds, budget, networkx_up_to, progress
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


@app.command("growth")
def bench_growth(
    sizes: Annotated[str, typer.Option(help="Tokens, with 12 layers.")] = "32,64,128,256",
    layers: Annotated[str, typer.Option(help="Layers, with 64 tokens.")] = "6,12,24,48",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """How time (all pairs at all layers) and memory grow with tokens and with layers. Memory needs Linux."""
    from benchmarks.flow import growth

    found = growth(numbers(sizes, "sizes"), numbers(layers, "layers"), threads, progress)
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


@app.command("capture")
def bench_capture(
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "512,2048,4096",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Memory and time of a trace beside transformers' output_attentions, on 12 layers of 12 heads. Needs Linux."""
    from benchmarks import capture

    quiet()
    rows = capture.run(numbers(lengths, "lengths"), rounds, progress)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    memory = Table(
        "tokens", "forward", "output_attentions", "whole", "×", "blocks", "×", title="peak above the model, MB"
    )
    beyond = Table("tokens", "output_attentions", "whole", "×", "blocks", "×", title="peak above its forward pass, MB")
    times = Table("tokens", "eager forward", "whole", "×", "blocks", "×", title="seconds")
    for row in rows:
        peaks = (row.output_attentions_mb, row.whole_mb, row.blocks_mb)
        for table, base, which in ((memory, 0.0, 0), (beyond, row.forward_mb, 1)):
            shown = [f"{peak - base:,.0f}" for peak in peaks]
            less = [f"{row.less(route)[which]:.1f} less" for route in ("whole", "blocks")]
            start = [str(row.tokens)] if which else [str(row.tokens), f"{row.forward_mb:,.0f}"]
            table.add_row(*start, shown[0], shown[1], less[0], shown[2], less[1])
        times.add_row(
            str(row.tokens), f"{row.eager_s:.2f}", f"{row.whole_s:.2f}", f"{row.whole_s / row.eager_s:.2f}",
            f"{row.blocks_s:.2f}", f"{row.blocks_s / row.eager_s:.2f}",
        )  # fmt: skip
    Console().print(memory, beyond, times)


@app.command("long")
def bench_long(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "1024,2048,4096,8192",
    as_json: AsJson = False,
) -> None:
    """A decoder's long context explained on the CPU with memory="linear": time, and peak memory. Needs Linux."""
    from benchmarks import capture

    quiet()
    layers = capture.one_layer(numbers(lengths, "lengths"))
    rows = capture.long(numbers(lengths, "lengths"), model, gguf, progress)
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


@app.command("step")
def bench_step(
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "8192,32768,131072",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 5,
    as_json: AsJson = False,
) -> None:
    """One rollout step without matrices on a GPU, beside the fastest fused attention forward. Needs CUDA and Triton."""
    from benchmarks import step

    rows = step.run(numbers(lengths, "lengths"), rounds, progress)
    print(json.dumps(rows, indent=1) if as_json else step.table(rows))


@app.command("llama")
def bench_llama(
    tokens: Annotated[int, typer.Option(min=128, help="Length of the context.")] = 131072,
    layers: Annotated[int, typer.Option(min=1, help="Of the model; Llama-3-8B has 32.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 2,
    as_json: AsJson = False,
) -> None:
    """A model of Llama-3-8B's shape explained on one GPU, beside its plain forward pass. Needs CUDA and Triton."""
    from benchmarks import long_gpu

    rows = long_gpu.run(tokens, layers, rounds, progress)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("what", "tokens", "layers", "seconds", "×", "peak, GiB")
    for row in rows:
        table.add_row(
            row["what"], f"{row['tokens']:,}", str(row["layers"]), f"{row['seconds']:.2f}", f"{row['times']:.2f}",
            f"{row['peak_gib']:.1f}",
        )  # fmt: skip
    Console().print(table)


@app.command("page")
def bench_page(
    sizes: Annotated[str, typer.Option(help="Tokens.")] = "16,128,512",
    layers: Annotated[int, typer.Option(min=2, help="Layers.")] = 12,
    heads: Annotated[int, typer.Option(min=1, help="Heads a layer.")] = 12,
    rounds: Annotated[int, typer.Option(min=1, help="How often the page is opened; medians are taken.")] = 5,
    as_json: AsJson = False,
) -> None:
    """The interactive page in a real browser: size, time until it is shown, time of a change of layer."""
    from benchmarks import page

    rows = page.run(numbers(sizes, "sizes", 2), layers, heads, rounds, progress)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table(
        "tokens", "MB", "made, s", "shown, ms", *(f"layer, ms ({view})" for view in page.VIEWS), "one flow, ms",
        caption=f"{layers} layers of {heads} heads; layer: median and longest of {2 * (layers - 1)} changes; flow: of 10",
    )  # fmt: skip
    for row in rows:
        changes = (f"{median:.0f} / {most:.0f}" for median, most in (*row.change_ms.values(), row.flow_ms))
        table.add_row(str(row.tokens), f"{row.megabytes:.2f}", f"{row.made_s:.1f}", f"{row.shown_ms:.0f}", *changes)
    Console().print(table)


@app.command("corpus")
def bench_corpus(
    text: Annotated[Path, typer.Option(help="Texts, as attnflow corpus reads them.")],
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id.")],
    texts: Annotated[int, typer.Option(min=1, help="How many, from the first.")] = 2000,
    by_hand: Annotated[int, typer.Option(min=0, help="Of these, so many one by one with scipy; 0 leaves it out.")] = 20,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds; medians are taken over them. 0 leaves them out.")] = 3,
    ray: Annotated[str | None, typer.Option(help="Also on Ray, with so many workers, for example 1,2.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Also the peak memory for corpora of these sizes, for example 1000,10000.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; a GPU if there is one, by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """A corpus job beside the plain forward pass of the same batches, and beside one text at a time with scipy."""
    from benchmarks import corpus

    quiet()
    found = corpus.run(text, model, texts, by_hand, rounds, device, progress) if rounds else {}
    if ray is not None:
        found["ray"] = corpus.on_ray(text, model, texts, numbers(ray, "ray"), progress)
    if memory is not None:
        found["memory"] = corpus.memory(text, model, numbers(memory, "memory"), progress)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    if rounds:
        table = Table(
            "what", "texts/s", "× forward", "× by hand", title=f"{found['texts']:,} texts, {found['tokens']:,} tokens"
        )
        for name, rate in found["texts_per_second"].items():
            times = found["times_by_hand"].get(name)
            table.add_row(name, f"{rate:,.1f}", f"{found['times_forward'][name]:.2f}", f"{times:,.0f}" if times else "")
        console.print(table)
        table = Table("stage", "a text", title="what one text takes, all layers")
        for name, value in found["costs"].items():
            table.add_row(name, f"{value:,.3f}" if "ms" in name else f"{value:,.0f}")
        console.print(table)
    if ray is not None:
        table = Table("workers", "seconds in all", "texts/s once they run", title="Ray; rollout and flow, all layers")
        for row in found["ray"]:
            table.add_row(str(row["workers"]), f"{row['seconds']:.1f}", f"{row['texts_per_second']:.1f}")
        console.print(table)
    if memory is not None:
        table = Table("texts", "peak, MB", "seconds", title="memory; rollout, last layer")
        for row in found["memory"]:
            table.add_row(f"{row['texts']:,}", f"{row['peak_mb']:,.0f}", f"{row['seconds']:.1f}")
        console.print(table)


@app.command("receptive")
def bench_receptive(
    text: Annotated[Path, typer.Option(help="One sentence a line: .txt or .txt.xz.")],
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in it.")] = None,
    sentences: Annotated[int, typer.Option(min=2, help="How many, of 8 to 40 tokens.")] = 200,
    blank: Annotated[
        str, typer.Option(help="What replaces a token: space, remove, special; commas for several.")
    ] = "space",
    cut: Annotated[
        bool, typer.Option("--cut", help="End each sentence at a random place, so that a word inside is predicted.")
    ] = False,
    signed: Annotated[bool, typer.Option("--signed", help="Compare with Δp instead of |Δp|.")] = False,
    seed: Annotated[int, typer.Option(help="Of the sample, the bootstrap and the random baseline.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Which receptive-field normalisation ranks a decoder's tokens as blank-out of the next token does?"""
    from benchmarks import receptive_fields as receptive

    lines = receptive.read_lines(text)
    quiet()
    import attnflow

    loaded = attnflow.load(model, gguf_file=gguf, dtype="float32")
    chosen = receptive.sample(loaded, lines, sentences, cut=cut, seed=seed)
    rows = receptive.run(
        loaded, chosen, receptive.VARIANTS, progress, blanks=blank.split(","), signed=signed, seed=seed
    )
    if as_json:
        told = {"model": loaded.name, "gguf": gguf, "dtype": "float32", "attnflow": __version__, "text": text.name,
                "cut": cut, "signed": signed, "seed": seed}  # fmt: skip
        print(json.dumps({"provenance": told, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    Console().print(*receptive.tables(rows), sep="\n\n")
