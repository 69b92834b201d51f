"""Edges about answers of a padded batch, against its plain forward and backward pass.

``python -m benchmarks.batched_edges``

The model has the shape of a small BERT with a classification head, and random weights, so it needs no checkpoint and no
tokenizer. The tasks run in turn in every round, so that a machine that slows down affects all of them; medians are
compared.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, progress
from attnflow.errors import InputError
from benchmarks.command import run_command

if TYPE_CHECKING:
    from torch import Tensor

    from attnflow.edges.batched import TextBatch
    from attnflow.model import Model

FORWARD, BACKWARD, ONE_BY_ONE = "forward", "forward and backward", "answer rows, one text at a time"
"""Backward goes to the embeddings, without parameter gradients. The last one runs a few texts and is scaled to all."""

VOCABULARY = 1000


def small_bert(layers: int, heads: int, width: int, tokens: int, device: str, dtype: str) -> Model:
    """Return a classifier with random weights that need no gradients."""
    import torch
    import transformers

    import attnflow

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width,
        intermediate_size=4 * width, max_position_embeddings=max(tokens, 128), num_labels=2, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    module = transformers.BertForSequenceClassification(config).requires_grad_(False)
    return attnflow.wrap(module.to(device, getattr(torch, dtype)))


def some_texts(model: Model, texts: int, tokens: int) -> TextBatch:
    """Return random texts on the model's device; the shortest has three quarters of the longest one's length."""
    import torch

    from attnflow.edges.batched import TextBatch

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(max(1, tokens * 3 // 4), tokens + 1, (texts,), generator=generator)
    lengths[0] = tokens
    present = torch.arange(tokens) < lengths[:, None]
    ids = torch.randint(1, VOCABULARY, (texts, tokens), generator=generator) * present
    tensors = {"input_ids": ids.to(model.device), "attention_mask": present.long().to(model.device)}
    checked = model.verify(model.encode({name: x[:1] for name, x in tensors.items()}))
    return TextBatch(model, checked, tensors, lengths.tolist())


def back(batch: TextBatch) -> Tensor:
    """Return the gradient of the sum of all log-odds at the embeddings."""
    import torch

    from attnflow.importance.question import score

    leaves: list[Tensor] = []

    def enter(module: object, args: object, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[0]

    handle = batch.model.model.get_input_embeddings().register_forward_hook(enter)
    try:
        logits = batch.model.forward(batch.tensors, grad=True)["logits"]
    finally:
        handle.remove()
    y = score(batch.model, "class", logits, logits.detach().argmax(-1), 0, "log-odds").sum()
    gradient: Tensor = torch.autograd.grad(y, leaves)[0]
    return gradient


def tasks(model: Model, batch: TextBatch, alone: int) -> dict[str, Callable[[], object]]:
    """Return the measured tasks, by name. alone: how many texts run one by one."""
    from attnflow.edges import batched

    def parts(method: str, natural: Sequence[int] | None) -> object:
        split = batched.split(batch, natural=natural)
        return getattr(split, method)().float().cpu(), split.answers.records(model)

    def one_by_one() -> None:
        for number in range(alone):
            text = {name: x[number : number + 1, : batch.lengths[number]] for name, x in batch.tensors.items()}
            model.trace(text, edges="answer").answer_rows()

    first = [0] * len(batch.lengths)
    work: dict[str, Callable[[], object]] = {
        FORWARD: lambda: model.forward(batch.tensors),
        BACKWARD: lambda: back(batch),
        "gradient edges": lambda: [x.float() for x in batched.edges_by_gradient(batch).graph()],
        "answer rows": lambda: parts("answer_rows", first),
        "answer inputs": lambda: parts("answer_inputs", None),
        "answer edges": lambda: [x.float() for x in batched.answer_edges(batch).graph()],
    }
    return work | ({ONE_BY_ONE: one_by_one} if alone else {})


def run(
    model: Model,
    batch: TextBatch,
    rounds: int,
    alone: int,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Return median seconds of each task for all texts of the batch and, on a GPU, peak memory above the model."""
    import torch

    cuda = model.device.type == "cuda"
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}
    for number in range(rounds + 1):
        say(f"round {number} of {rounds}")
        for name, work in tasks(model, batch, alone).items():
            if cuda:
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
            begun = clock()
            work()
            if cuda:
                torch.cuda.synchronize()
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
            spent = clock() - begun
            if number:  # the first round warms up
                seconds.setdefault(name, []).append(spent * (len(batch.lengths) / alone if name == ONE_BY_ONE else 1))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "texts": len(batch.lengths),
        "tokens": sum(batch.lengths),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": str(torch.__version__),
        "seconds": medians,
        "speed": {name: medians[BACKWARD] / value for name, value in medians.items()},
        "peak_gib": peaks,
        "rounds": seconds,
    }


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    texts: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 64,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the longest text.")] = 32,
    layers: Annotated[int, typer.Option(min=1)] = 6,
    heads: Annotated[int, typer.Option(min=1)] = 12,
    width: Annotated[int, typer.Option(min=1)] = 384,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, …")] = "float32",
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    alone: Annotated[int, typer.Option(min=0, help="Also run this many texts one by one.")] = 8,
    processor: Annotated[
        bool, typer.Option("--processor", help="Measure the time of one processor, for a machine that others use too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare edges about answers of a padded batch with the plain forward and backward pass of the same batch."""
    silence()
    if width % heads:
        raise InputError(f"{width} dimensions cannot be shared by {heads} heads: expected a multiple")
    if processor and device != "cpu":
        raise InputError("processor time says nothing about a GPU: leave it out, or measure on the CPU")
    if processor:
        import torch

        torch.set_num_threads(1)
    model = small_bert(layers, heads, width, tokens, device, dtype)
    clock = time.process_time if processor else time.perf_counter
    figures = run(model, some_texts(model, texts, tokens), rounds, min(alone, texts), progress, clock)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    title = f"{figures['texts']:,} texts, {figures['tokens']:,} tokens, {dtype}, {figures['device']}"
    table = Table("what", "ms", "texts/s", f"speed, {BACKWARD} = 1", "peak, GiB", title=title)
    for name, value in figures["seconds"].items():
        peak = figures["peak_gib"].get(name)
        table.add_row(
            name,
            f"{1000 * value:,.1f}",
            f"{texts / value:,.0f}",
            f"{figures['speed'][name]:.2f}",
            "" if peak is None else f"{peak:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
