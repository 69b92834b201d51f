"""A model too large for one GPU: what attnflow sums over processes, how many bytes it sends, and how long it takes.

``python -m benchmarks.large_model`` computes the tables of docs/large.md for Llama-3-70B's shape over several GPUs,
from measurements of one GPU's part alone. ``--ranks 2`` runs a small model over processes of this machine and compares
the bytes that were actually summed with those of the formulas.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import patch

import typer
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson
from attnflow.errors import InputError
from benchmarks.command import run_command

if TYPE_CHECKING:
    from attnflow.model import Model

NVLINK = 450e9
"""Bytes per second that a GPU sends while it receives as many, from NVIDIA's H200 data sheet. Assumed, not measured."""

TOKENS = 131_072

GRAPH_TOKENS = 4_096

SMALL_TOKENS, ROWS = 60, 8
"""The text on which bytes are counted, and how many of its tokens are the answer."""

COUNT = 8

NUMBER, HALF = 4, 2
"""Bytes of a number that attnflow sums (float32), and of one of the model (bfloat16)."""


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder with gated networks."""

    layers: int
    heads: int
    key_heads: int
    hidden: int
    head_size: int
    intermediate: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        attention = self.hidden * self.head_size * 2 * (self.heads + self.key_heads)
        network = 3 * self.hidden * self.intermediate
        return self.layers * (attention + network + 2 * self.hidden) + 2 * self.vocabulary * self.hidden + self.hidden

    def cache_bytes(self, tokens: int) -> int:
        return self.layers * 2 * self.key_heads * self.head_size * tokens * HALF

    def operand_bytes(self, tokens: int) -> int:
        """Return the bytes of queries and keys of all layers, which a trace with memory="linear" keeps."""
        return self.layers * (self.heads + self.key_heads) * self.head_size * tokens * HALF


SEVENTY = Decoder(80, 64, 8, 8192, 128, 28672, 128_256)
SMALL = Decoder(4, 4, 2, 32, 8, 48, 64)

RANK = {"forward": 10.5, "rollout": 13.0, "rows": 20.2, "answer-256": 0.46, "answer-32": 0.28}
"""Seconds of one of eight GPUs' part under tensor parallelism at 131,072 tokens, alone on an H200.

Measured by ``python -m benchmarks.long_gpu --shape 70b-rank --tokens 131072 --tasks forward,rollout,rows,answer-pass
--rounds 3``, and with ``--span 32`` for the shorter answer.
"""

STAGE = {"forward": 8.9, "rollout": 11.1, "rows": 14.1, "answer-256": 0.17, "answer-32": 0.07}
"""The same for one of eight GPUs' part under a device map, 10 layers with all 64 heads: ``--shape 70b-stage``."""


EIGHT = Decoder(32, 32, 8, 4096, 128, 14336, 128_256)
EIGHT_FORWARD = 11.7
"""Seconds of the forward pass of Llama-3-8B's shape at 131,072 tokens on an H200: docs/speed.md."""


def operations(decoder: Decoder, tokens: int) -> float:
    """Return the operations of a forward pass: those of weights, and half a square of scores and values per head."""
    weights = decoder.parameters - decoder.vocabulary * decoder.hidden  # input embeddings are looked up
    return 2.0 * weights * tokens + 2.0 * decoder.layers * decoder.heads * decoder.head_size * tokens**2


def by_operations(count: int) -> float:
    """Return seconds of one GPU's part of the forward pass, at the speed of the smaller model."""
    return EIGHT_FORWARD * operations(SEVENTY, TOKENS) / operations(EIGHT, TOKENS) / count


def rollout_bytes(decoder: Decoder, tokens: int, rows: int) -> int:
    """Return the bytes summed for rollout without matrices: all rows after each layer, and value norms."""
    return decoder.layers * (rows + 1) * tokens * NUMBER


def answer_bytes(decoder: Decoder, tokens: int, rows: int) -> int:
    """Return the bytes summed for answer rows on a cache: one matrix [answer, key], since layers are local."""
    return rows * tokens * NUMBER


def graph_bytes(decoder: Decoder, tokens: int, rows: int = 0) -> int:
    """Return the bytes summed for a whole graph: one matrix per layer, and value norms."""
    return decoder.layers * (tokens + 1) * tokens * NUMBER


def model_bytes(decoder: Decoder, tokens: int) -> int:
    """Return the bytes that the model's own forward pass sums: twice per layer, and at its input."""
    return (2 * decoder.layers + 1) * tokens * decoder.hidden * HALF


def frozen_bytes(decoder: Decoder, rows: int) -> int:
    """Return the bytes that the model's modules sum in a frozen pass over an answer, forward and backward."""
    return model_bytes(decoder, rows) + 3 * decoder.layers * rows * decoder.hidden * HALF


def sent(size: int, count: int) -> float:
    """Return the bytes that each GPU sends when a ring of `count` sums a tensor of this size."""
    return 2 * (count - 1) / count * size


@dataclass(frozen=True)
class Sum:
    """What one result sums. size: in bytes. sent: by each GPU. milliseconds: at NVLINK, without latency."""

    what: str
    times: int
    size: int
    sent: float
    milliseconds: float


@dataclass(frozen=True)
class Time:
    """Seconds of one result by tensor parallelism, with the part for sums, and by a device map; both computed."""

    what: str
    parallel: float
    sums: float
    mapped: float


def sums(decoder: Decoder, count: int) -> list[Sum]:
    n, layers = TOKENS, decoder.layers

    def one(what: str, times: int, size: int) -> Sum:
        return Sum(what, times, size, sent(size, count), sent(size, count) / NVLINK * 1e3)

    return [
        one(f"one row of rollout, {n:,} tokens", 2 * layers, rollout_bytes(decoder, n, 1)),
        one(f"256 positions as one weighted row, {n:,} tokens", 2 * layers, rollout_bytes(decoder, n, 1)),
        one(f"256 rows of rollout, {n:,} tokens", 2 * layers, rollout_bytes(decoder, n, 256)),
        one(f"answer rows of 32 tokens on the cache of {n:,}", 1, answer_bytes(decoder, n, 32)),
        one(f"answer rows of 256 tokens on the cache of {n:,}", 1, answer_bytes(decoder, n, 256)),
        one(f"a graph of {GRAPH_TOKENS:,} tokens", 2 * layers, graph_bytes(decoder, GRAPH_TOKENS)),
        one(
            f"the model's own forward pass, {GRAPH_TOKENS:,} tokens", 2 * layers + 1, model_bytes(decoder, GRAPH_TOKENS)
        ),
        one(f"the model's own forward pass, {n:,} tokens", 2 * layers + 1, model_bytes(decoder, n)),
    ]


def times(decoder: Decoder, count: int) -> list[Time]:
    """Return times for the shape whose parts were measured, over as many GPUs."""
    if (decoder, count) != (SEVENTY, COUNT):
        return []

    def seconds(*sizes: int) -> float:
        return sum(sent(size, count) for size in sizes) / NVLINK

    between = (count - 1) * TOKENS * decoder.hidden * HALF / NVLINK  # states go from one GPU to the next
    forward = model_bytes(decoder, TOKENS)
    rows = [
        ("forward", "forward pass", seconds(forward), between),
        ("rollout", "rollout of one row", seconds(forward, rollout_bytes(decoder, TOKENS, 1)), between),
        ("rows", "rollout of 256 rows", seconds(forward, rollout_bytes(decoder, TOKENS, 256)), between),
    ] + [
        (f"answer-{k}", f"answer rows of {k} tokens on the cache",
         seconds(frozen_bytes(decoder, k), answer_bytes(decoder, TOKENS, k)), 0.0)
        for k in (32, 256)
    ]  # fmt: skip
    return [Time(what, RANK[key] + added, added, count * STAGE[key] + moved) for key, what, added, moved in rows]


@dataclass(frozen=True)
class Counted:
    """Bytes that a result summed over processes here, and what the formula says."""

    what: str
    counted: int
    computed: int


def count_bytes(folder: Path) -> dict[str, int]:
    """Run one of several processes: what each result of the small model summed."""
    import torch
    import transformers
    from transformers.distributed import DistributedConfig

    import attnflow as af

    transformers.utils.logging.disable_progress_bar()
    config = DistributedConfig(tp_size=int(os.environ["WORLD_SIZE"]), tp_plan="auto")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", distributed_config=config)
    sizes = counted_bytes(af.wrap(loaded))
    torch.distributed.destroy_process_group()
    return sizes


def counted_bytes(model: Model) -> dict[str, int]:
    """Return what each result of a small model summed over processes; every process calls this."""
    import torch

    from attnflow.capture.ranks import Ranks

    ids = torch.arange(SMALL_TOKENS) % SMALL.vocabulary
    text = {"input_ids": ids[None]}
    results: dict[str, Callable[[], Any]] = {
        "rollout": lambda: model.trace(text, memory="linear").rollout(),
        "rows": lambda: model.trace(text, memory="linear", queries=range(-ROWS, 0)).rollout(),
        "answer": lambda: model.answer(ids[:-ROWS], answer=ids[-ROWS:].tolist()).sources(),
        "graph": lambda: model.trace(text).rollout(query=-1),
    }
    sizes: list[int] = []
    plain = Ranks.reduce

    def counting(self: Ranks, x: Any, worst: bool = False) -> Any:
        sizes.append(x.numel() * x.element_size())
        return plain(self, x, worst)

    totals = {}
    with patch.object(Ranks, "reduce", counting):
        for name, result in results.items():
            result()  # the first use checks the model, which sums too
            sizes.clear()
            result()
            totals[name] = sum(sizes)
    return totals


def computed_bytes() -> dict[str, tuple[str, int]]:
    """Return the same by the formulas, each with its description."""
    n, rows = SMALL_TOKENS, ROWS
    return {
        "rollout": ("one row of rollout", rollout_bytes(SMALL, n, 1)),
        "rows": (f"{rows} rows of rollout", rollout_bytes(SMALL, n, rows)),
        "answer": (f"answer rows of {rows} tokens on the cache", answer_bytes(SMALL, n - 1, rows)),
        "graph": ("a graph", graph_bytes(SMALL, n)),
    }


def compared(count: int) -> list[Counted]:
    """Run the small model over `count` processes of this machine."""
    import torch
    import transformers

    if SMALL.key_heads % count or count < 2:
        raise InputError(
            f"--ranks {count}: the small model has {SMALL.key_heads} key heads; expected {SMALL.key_heads}"
        )
    shape = transformers.LlamaConfig(
        vocab_size=SMALL.vocabulary, hidden_size=SMALL.hidden, intermediate_size=SMALL.intermediate,
        num_hidden_layers=SMALL.layers, num_attention_heads=SMALL.heads, num_key_value_heads=SMALL.key_heads,
        head_dim=SMALL.head_size, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        transformers.LlamaForCausalLM(shape).save_pretrained(folder / "model")
        run_processes([sys.executable, "-m", "benchmarks.large_model", "--count-into", place], count)
        every = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
    if any(one != every[0] for one in every):
        raise InputError(f"the processes summed different numbers of bytes: {every}")
    return [Counted(what, every[0][name], size) for name, (what, size) in computed_bytes().items()]


def run_processes(
    command: Sequence[str], count: int, seconds: float = 180, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Run a command in `count` processes that find one another on this machine; return what each printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    running = []
    try:
        for rank in range(count):
            own = {**environment, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            running.append(subprocess.Popen(command, env=own, **pipes))
        outputs = [process.communicate(timeout=seconds)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    failed = [out for process, out in zip(running, outputs, strict=True) if process.returncode]
    if failed:
        raise InputError(f"one of {count} processes failed: {failed[0]}")
    return outputs


def shown(size: float) -> str:
    """Format bytes with a unit.

    >>> shown(42e6), shown(1.5e12)
    ('42 MB', '1,500 GB')
    """
    unit, name = next((u, x) for u, x in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if size >= u or u == 1)
    value = size / unit
    return f"{value:,.0f} {name}" if value >= 10 else f"{value:.1f} {name}"


def shown_times(time: Time) -> tuple[str, str, str]:
    return f"{time.parallel:.2f}", f"{time.sums:.2f}", f"{time.mapped:.2f}"


def shown_sum(row: Sum) -> tuple[str, str, str, str]:
    return str(row.times), shown(row.size), shown(row.sent), f"{row.milliseconds:,.1f} ms"


def print_tables(decoder: Decoder, count: int) -> None:
    console = Console(width=140)
    weights, cache, operands = decoder.parameters * HALF, decoder.cache_bytes(TOKENS), decoder.operand_bytes(TOKENS)
    memory = Table("memory", "all", "per GPU")
    for what, size in (
        ("weights, bfloat16", weights),
        (f"keys and values of {TOKENS:,} tokens", cache),
        ("queries and keys, kept by a trace without matrices", operands),
    ):
        memory.add_row(what, shown(size), shown(size / count))
    console.print(memory)
    table = Table("summed over GPUs", "sums", "bytes", "sent per GPU", f"at {NVLINK / 1e9:.0f} GB/s")
    for row in sums(decoder, count):
        table.add_row(row.what, *shown_sum(row))
    console.print(table)
    table = Table(f"seconds at {TOKENS:,} tokens", "tensor parallel", "for sums", "device map")
    for time in times(decoder, count):
        table.add_row(time.what, *shown_times(time))
    console.print(table)
    console.print(
        f"a GPU's part of the forward pass, as fast as the 8B model's {EIGHT_FORWARD} s: {by_operations(count):.1f} s"
    )


def main(
    gpus: Annotated[int, typer.Option(min=2, help="GPUs in the tables; times are known for 8.")] = COUNT,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Count the bytes of a small model over this many processes.")
    ] = None,
    count_into: Annotated[
        Path | None, typer.Option(hidden=True, help="Folder for the counts of one of these processes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what a model of Llama-3-70B's shape takes over several GPUs, from measurements of one GPU's part."""
    if count_into is not None:
        (count_into / f"{os.environ['RANK']}.json").write_text(json.dumps(count_bytes(count_into)))
        return
    if ranks is not None:
        rows = compared(ranks)
        if as_json:
            print(json.dumps([asdict(row) for row in rows], indent=1))
            return
        table = Table(f"a small model over {ranks} processes, {SMALL_TOKENS} tokens", "bytes counted", "computed")
        for row in rows:
            table.add_row(row.what, f"{row.counted:,}", f"{row.computed:,}")
        Console(width=140).print(table)
        return
    if as_json:
        tables = {
            "sums": [asdict(row) for row in sums(SEVENTY, gpus)],
            "times": [asdict(row) for row in times(SEVENTY, gpus)],
        }
        print(json.dumps(tables, indent=1))
        return
    print_tables(SEVENTY, gpus)


if __name__ == "__main__":
    run_command(main)
