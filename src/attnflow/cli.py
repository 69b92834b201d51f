"""The command. Data on stdout, progress on stderr; a user's mistake is one sentence and exit status 2."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    except OSError as e:  # a full disk, a closed pipe
        print(f"attnflow: {e.strerror or e}", file=sys.stderr)
        sys.exit(1)


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


@app.command()
def show(
    text: Annotated[
        str, typer.Argument(help="The text; - reads it from standard input. For a vision model, the path of an image.")
    ],
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a Hugging Face model.")],
    method: Annotated[str, typer.Option(help="raw, rollout or flow.")] = "rollout",
    query: Annotated[
        str | None,
        typer.Option(help="Position or token to explain; by default the class token, or the last token of a decoder."),
    ] = None,
    layer: Annotated[
        str, typer.Option(help="L1, L2, … as in the paper; last; or all (with --json or --output).")
    ] = "last",
    words: Annotated[bool, typer.Option("--words", help="Words instead of subwords.")] = False,
    special: Annotated[
        bool, typer.Option(" /--no-special", help="Leave special tokens out.", show_default=False)
    ] = True,
    residual: Annotated[float, typer.Option(min=0, max=1, help="Weight of the residual connection.")] = 0.5,
    receptive_field: Annotated[
        str | None, typer.Option(help="For decoders: ratio, difference or layer; relative to uniform attention.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="For encoder-decoders: what the decoder writes.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder or repository.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps; a GPU if there is one, by default.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 or float64.")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the data to a .json, .npz, .csv or .parquet file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which input tokens a hidden state comes from: one forward pass, shown as a table."""
    if method not in ("raw", "rollout", "flow"):
        raise InputError(f"method {method!r}: expected raw, rollout or flow")
    if method == "raw" and receptive_field is not None:
        raise InputError(
            "receptive_field goes with rollout and flow: raw attention of one layer has no field to compare with"
        )
    import attnflow

    _quiet()
    try:
        given = sys.stdin.read() if text == "-" else text
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8: decode it with its own encoding first") from None
    options: dict[str, Any] = {"residual": residual, "receptive_field": receptive_field} if method != "raw" else {}
    loaded = attnflow.load(
        model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code, gguf_file=gguf
    )
    trace = loaded.trace(given, target=target, truncate=truncate)
    if words:
        trace = trace.words()
    place = int(query) if query is not None and re.fullmatch("-?[0-9]+", query) else None
    chosen = query if place is None or abs(place) > len(trace.tokens) else place  # or a token such as 2020
    number = _layer(layer, trace.layer_count)
    if number is None and not as_json and output is None:
        raise InputError("layer all: a table shows one layer; give --json or --output for all of them")
    if chosen == "all" and not as_json and output is None:
        raise InputError("query all: a table shows one query; give --json or --output for all of them")
    result = getattr(trace, method)(query=chosen, layer=number, **options)
    if not special:
        result = result.without_special()
    if output is not None:
        result.save(output)
        progress(f"wrote {output}")
    if as_json:
        print(json.dumps(result.to_dict()))
    elif output is None:
        if len(result.queries) > 1:
            raise InputError(
                "this model has no class token, so there is no query to show by default: give --query, a position from 0 "
                f"to {len(result.queries) - 1} or a token, or --json for all of them"
            )
        if trace.prediction is not None:
            answers = ", ".join(f"{label!r} {chance:.3f}" for label, chance in trace.prediction.top[:3])
            print(f"{trace.prediction.kind}: {answers}")
        result.show()


def _layer(given: str, count: int) -> int | None:
    """The paper's L1…LL, counted from 0; None for all."""
    if given == "all":
        return None
    if given == "last":
        return count - 1
    digits = given.upper().removeprefix("L")
    if not re.fullmatch("[0-9]+", digits) or not 1 <= int(digits) <= count:
        raise InputError(f"layer {given!r}: expected L1 to L{count}, last or all")
    return int(digits) - 1


def _quiet() -> None:
    """Errors of the libraries below are reported by us; their warnings and progress bars are not for the terminal."""
    import warnings

    try:
        from transformers.utils import logging
    except ImportError:
        raise InputError("models need torch and transformers: pip install 'attnflow[models]'") from None
    from huggingface_hub.utils import logging as hub_logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="(transformers|torch|huggingface_hub)")


@app.command()
def env(as_json: AsJson = False) -> None:
    """What a bug report needs: versions, processor, GPU, and whether the compiled core is there."""
    from attnflow.environment import environment

    found = environment()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")


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


@bench.command("capture")
def bench_capture(
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "512,2048,4096",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Memory and time of a trace beside transformers' output_attentions, on 12 layers of 12 heads. Needs Linux."""
    from attnflow.bench import capture

    _quiet()
    rows = capture.run(_numbers(lengths, "lengths"), rounds, progress)
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


@bench.command("long")
def bench_long(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "1024,2048,4096,8192",
    as_json: AsJson = False,
) -> None:
    """A decoder's long context explained on the CPU with memory="linear": time, and peak memory. Needs Linux."""
    from attnflow.bench import capture

    _quiet()
    layers = capture.one_layer(_numbers(lengths, "lengths"))
    rows = capture.long(_numbers(lengths, "lengths"), model, gguf, progress)
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


@bench.command("step")
def bench_step(
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "8192,32768,131072",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 5,
    as_json: AsJson = False,
) -> None:
    """One rollout step without matrices on a GPU, beside the fastest fused attention forward. Needs CUDA and Triton."""
    from attnflow.bench import step

    rows = step.run(_numbers(lengths, "lengths"), rounds, progress)
    print(json.dumps(rows, indent=1) if as_json else step.table(rows))


@bench.command("llama")
def bench_llama(
    tokens: Annotated[int, typer.Option(min=128, help="Length of the context.")] = 131072,
    layers: Annotated[int, typer.Option(min=1, help="Of the model; Llama-3-8B has 32.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 2,
    as_json: AsJson = False,
) -> None:
    """A model of Llama-3-8B's shape explained on one GPU, beside its plain forward pass. Needs CUDA and Triton."""
    from attnflow.bench import long_gpu

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


@bench.command("receptive")
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
    from attnflow.experiments import receptive

    lines = receptive.read_lines(text)
    _quiet()
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
