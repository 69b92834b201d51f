"""Memory and time of a trace, compared with the model's own forward pass: ``python -m benchmarks.capture``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, numbers, progress
from attnflow.errors import InputError
from benchmarks.command import run_command
from benchmarks.memory import in_process, peak_of

ROUTES = ("forward", "output_attentions", "whole", "blocks")


@dataclass(frozen=True)
class Row:
    """One length. Peaks are in MB above the loaded model; times are median seconds.

    forward: the model's plain forward pass.
    output_attentions: what transformers offers, all heads of all layers.
    whole: a trace that reduces the heads of each layer as it finishes.
    blocks: a trace in blocks of queries.
    eager: the forward pass with eager attention.
    """

    tokens: int
    forward_mb: float
    output_attentions_mb: float
    whole_mb: float
    blocks_mb: float
    eager_s: float
    whole_s: float
    blocks_s: float

    def less(self, route: str) -> tuple[float, float]:
        """Return how many times less memory a trace takes than output_attentions, without and with the forward pass."""
        peak = {"whole": self.whole_mb, "blocks": self.blocks_mb}[route]
        beyond = max(peak - self.forward_mb, 1e-9)
        return self.output_attentions_mb / peak, (self.output_attentions_mb - self.forward_mb) / beyond


def run(lengths: list[int], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Measure memory once, each in its own process, since it is reproducible to the megabyte; and times over rounds."""
    if not Path("/proc/self/statm").exists():
        raise InputError("peak memory is read from /proc: this benchmark needs Linux")
    rows = []
    for n in lengths:
        say(f"{n} tokens: memory")
        peaks = {route: in_process("benchmarks.capture:peak", n, route) for route in ROUTES}
        say(f"{n} tokens: time")
        seconds = in_process("benchmarks.capture:times", n, rounds, hoard=True)
        rows.append(Row(n, *(peaks[r] for r in ROUTES), *(seconds[name] for name in ("eager", "whole", "blocks"))))
    return rows


def _encoder(n: int, implementation: str) -> Any:
    """Return BERT-base with room for n positions and random weights, on which the measurements do not depend."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.BertConfig(max_position_embeddings=n)
    config._attn_implementation = implementation
    return transformers.BertModel._from_config(config).eval()


def _prepared(n: int, route: str) -> Callable[[], Any]:
    """Return a function that runs the model by this route, warmed up on a few tokens."""
    import torch

    from attnflow import wrap
    from attnflow.capture import runner as capture

    ids = torch.randint(5, 30000, (1, n), generator=torch.Generator().manual_seed(0))
    if route in ("output_attentions", "eager", "forward"):
        module = _encoder(n, "sdpa" if route == "forward" else "eager")
        options = {"output_attentions": True} if route == "output_attentions" else {}

        def plain(ids: Any = ids) -> Any:
            with torch.no_grad():
                return module(input_ids=ids, **options)

        plain(ids[:, :16])
        return plain
    wrapped = wrap(_encoder(n, "sdpa"))
    capture.WHOLE_BYTES = 0 if route == "blocks" else 1 << 60

    def trace(ids: Any = ids) -> Any:
        return wrapped.trace({"input_ids": ids})

    trace(ids[:, :16])
    return trace


def peak(n: int, route: str) -> float:
    return peak_of(_prepared(n, route))[1]


def times(n: int, rounds: int) -> dict[str, float]:
    import time

    from attnflow.capture import runner as capture

    tasks = {"eager": _prepared(n, "eager"), "blocks": _prepared(n, "blocks")}
    tasks["whole"] = tasks["blocks"]
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):  # the first round warms up
        for name, task in tasks.items():
            capture.WHOLE_BYTES = 0 if name == "blocks" else 1 << 60
            began = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def main(
    lengths: Annotated[str, typer.Option(help="Tokens.")] = "512,2048,4096",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare memory and time of a trace with transformers' output_attentions, for 12 layers of 12 heads.

    Needs Linux.
    """
    silence()
    rows = run(numbers(lengths, "lengths"), rounds, progress)
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


if __name__ == "__main__":
    run_command(main)
