"""Corpus jobs compared with the plain forward pass of the same batches and with hand-written code; and their memory.

``python -m benchmarks.corpus_jobs --text FILE -m MODEL``
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, numbers, progress
from attnflow.corpus import explain_corpus
from attnflow.corpus.plan import Reader, plan
from attnflow.errors import InputError
from attnflow.jobs.progress import Progress
from attnflow.texts.sources import open_corpus
from benchmarks.command import run_command
from benchmarks.memory import in_process

if TYPE_CHECKING:
    from attnflow import Model

Say = Callable[[str], None]

JOBS: dict[str, dict[str, Any]] = {
    "rollout, last layer": {"methods": ["rollout"]},
    "flow, all layers": {"methods": ["flow"], "layers": "all"},
    "raw, rollout and flow, all layers": {"methods": ["raw", "rollout", "flow"], "layers": "all"},
}
ANSWER_JOBS: dict[str, dict[str, Any]] = {
    "answer rows": {"methods": ["answer_rows"]},
}
"""Jobs for models that answer something; they are compared with a forward and backward pass."""
BACKWARD = "forward and backward"


PLAIN = 20_000
"""The most texts for the plain passes: their batches stay on the model's device."""


def run(
    text: Path,
    model: str,
    count: int,
    by_hand: int,
    rounds: int,
    device: str | None,
    say: Say,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Return texts per second, as medians over rounds that run everything in turn.

    The forward pass, and for a model that answers something the backward pass to the embeddings, are timed on batches
    that are tokenized, sorted and padded beforehand; nothing is kept. A job is timed from the file to the last synced
    shard, including reading, tokenizing, words, solving and writing.
    only: names of jobs, or parts of names.
    """
    import attnflow

    loaded = attnflow.load(model, device=device)
    texts = read(text, count)
    batches = _batches(loaded, texts[:PLAIN])
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    plain = len(texts[:PLAIN])
    answers = hasattr(loaded.model, "classifier")
    jobs = {
        name: options
        for name, options in {**JOBS, **(ANSWER_JOBS if answers else {})}.items()
        if not only or any(one in name for one in only)
    }
    times: dict[str, list[float]] = {}
    forward(loaded, batches[:2])
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: plain passes")
        times.setdefault("forward", []).append(plain / forward(loaded, batches))
        if answers:
            times.setdefault(BACKWARD, []).append(plain / forward(loaded, batches, backward=True))
        for name, options in jobs.items():
            say(f"round {number + 1} of {rounds}: {name}")
            times.setdefault(name, []).append(len(texts) / _job(loaded, text, len(texts), options))
        if by_hand:
            say(f"round {number + 1} of {rounds}: by hand, {by_hand} texts")
            times.setdefault("by hand", []).append(by_hand / _by_hand(model, texts, by_hand, device))
    medians = {name: statistics.median(rates) for name, rates in times.items()}
    base = {name: medians[BACKWARD if name in ANSWER_JOBS else "forward"] for name in medians}
    return {
        "texts": len(texts),
        "tokens": tokens,
        "device": loaded.device.type,
        "texts_per_second": medians,
        "times_plain": {name: rate / base[name] for name, rate in medians.items()},
        "times_by_hand": {name: rate / medians["by hand"] for name, rate in medians.items()} if by_hand else {},
        "rounds": times,
    }


def read(path: Path, count: int) -> list[str]:
    corpus = open_corpus(path)
    texts: list[str] = []
    with_texts = plan(corpus, count, 1 << 62, lambda size: 0, samples=count)
    reader = Reader(corpus)
    for shard in with_texts:
        texts += [text.text for text in reader.texts(shard) if text.text and text.text.strip()]
    reader.close()
    return texts


def _batches(model: Model, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return batches as the job makes them, a shard at a time."""
    from attnflow.capture import inputs
    from attnflow.capture.encode import encode_texts
    from attnflow.corpus import explainer as explain
    from attnflow.corpus.corpus_job import SHARD_TEXTS, SHARD_TEXTS_GPU

    batches = []
    size = SHARD_TEXTS if model.device.type == "cpu" else SHARD_TEXTS_GPU
    for start in range(0, len(texts), size):
        encoded = [e for e in encode_texts(model, texts[start : start + size]) if not isinstance(e, InputError)]
        sizes = [(i, len(e.tokens)) for i, e in enumerate(encoded)]
        for members in explain.batches(sizes, _budget(model)):
            batch = inputs.batched([encoded[i].tensors for i in members], model.pad_id())
            batches.append({name: x.to(model.device) for name, x in batch.items()})
    return batches


def forward(model: Model, batches: Sequence[dict[str, Any]], backward: bool = False) -> float:
    """Return seconds of the model's own passes.

    backward: include the gradient of all answers' log-odds at the embeddings.
    """
    import torch

    from attnflow.importance.gradients import embedding_layer
    from attnflow.importance.question import score

    model.model.requires_grad_(False)
    begun = time.perf_counter()
    for batch in batches:
        if not backward:
            with torch.inference_mode():
                model.model(**batch)
            continue
        others = {name: x for name, x in batch.items() if name != "input_ids"}
        states = embedding_layer(model)(batch["input_ids"]).requires_grad_()
        logits = model.model(inputs_embeds=states, **others).logits
        odds = score(model, "class", logits, logits.argmax(-1), 0, "log-odds")
        torch.autograd.grad(odds.sum(), states)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _job(model: Model, text: Path, count: int, options: dict[str, Any]) -> float:
    """Return the seconds of a job."""
    with tempfile.TemporaryDirectory() as folder:
        return explain_corpus(text, Path(folder) / "out", model, samples=count, **options)["seconds"]


def _by_hand(model: str, texts: Sequence[str], count: int, device: str | None) -> float:
    """Run one text at a time: all attention weights, rollout in numpy, flow by scipy for each token and layer."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from benchmarks.peers import scipy

    tokenizer = AutoTokenizer.from_pretrained(model)
    eager = AutoModel.from_pretrained(model, attn_implementation="eager").eval().to(device or "cpu")
    step = max(1, len(texts) // count)
    begun = time.perf_counter()
    for text in texts[: step * count : step]:
        with torch.no_grad():
            out = eager(**tokenizer(text, return_tensors="pt").to(eager.device), output_attentions=True)
        weights = np.stack([layer[0].double().cpu().numpy() for layer in out.attentions])
        n = weights.shape[-1]
        graph = 0.5 * weights.mean(1) + 0.5 * np.eye(n)
        rolled = graph[0]
        for layer in graph[1:]:
            rolled = layer @ rolled
        for top in range(1, len(graph) + 1):
            solve = scipy(graph[:top], 24)
            for token in range(n):
                solve(0, token)
    return time.perf_counter() - begun


def _budget(model: Model) -> int:
    from attnflow.corpus import explainer as explain

    return explain.BATCH_TOKENS if model.device.type == "cpu" else explain.BATCH_TOKENS_GPU


class Clock(Progress):
    """Records when texts were done."""

    def __init__(self) -> None:
        super().__init__("none")
        self.marks: list[tuple[float, int]] = []

    def advance(self, texts: int, tokens: int) -> None:
        super().advance(texts, tokens)
        self.marks.append((time.perf_counter(), texts))


def on_ray(text: Path, model: str, count: int, workers: Sequence[int], say: Say) -> list[dict[str, float]]:
    """Time the job on a local Ray cluster: in total, including the start of Ray and the workers, and once they run."""
    rows = []
    for number in workers:
        say(f"Ray, {number} workers")
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            totals = explain_corpus(
                text, Path(folder) / "out", model, samples=count, methods=["rollout", "flow"], layers="all", ray=True,
                workers=number, shard_texts=max(1, count // 32), progress=clock,
            )  # fmt: skip
        (first, early), (last, _) = clock.marks[number - 1], clock.marks[-1]
        early = sum(texts for _, texts in clock.marks[:number])
        rows.append({
            "workers": number, "texts": totals["texts"], "seconds": totals["seconds"],
            "texts_per_second": (totals["texts"] - early) / (last - first),
        })  # fmt: skip
    return rows


def memory_of(text: Path, model: str, sizes: Sequence[int], say: Say) -> list[dict[str, float]]:
    """Return the peak memory of a job, in a separate process for each corpus size."""
    if not Path("/proc/self/status").exists():
        raise InputError("peak memory is read from /proc: this needs Linux")
    rows = []
    for count in sizes:
        say(f"memory, {count:,} texts")
        rows.append(in_process("benchmarks.corpus_jobs:peak", str(text), model, count, hoard=True))
    return rows


def peak(text: str, model: str, count: int) -> dict[str, float]:
    """Return the peak memory of this process after a job."""
    with tempfile.TemporaryDirectory() as folder:
        totals = explain_corpus(text, Path(folder) / "out", model, samples=count, methods=["rollout"])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    most = int(status["VmHWM"].split()[0]) / 1024
    return {"texts": totals["texts"], "peak_mb": most, "seconds": totals["seconds"]}


def main(
    text: Annotated[Path, typer.Option(help="Texts, as attnflow corpus run reads them.")],
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id.")],
    texts: Annotated[int, typer.Option(min=1, help="Use only the first N texts.")] = 2000,
    by_hand: Annotated[
        int, typer.Option(min=0, help="How many of them to run one by one with scipy; 0 for none.")
    ] = 20,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds to take medians over; 0 for none.")] = 3,
    ray: Annotated[
        str | None, typer.Option(help="Also run on Ray with these numbers of workers, for example 1,2.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Also measure peak memory for corpora of these sizes, for example 1000,10000.")
    ] = None,
    jobs: Annotated[
        str | None, typer.Option(help="Only jobs whose names contain one of these comma-separated words.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; by default a GPU if there is one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a corpus job with the plain forward pass of the same batches, and with one text at a time using scipy."""
    silence()
    only = jobs.split(",") if jobs else ()
    figures = run(text, model, texts, by_hand, rounds, device, progress, only) if rounds else {}
    if ray is not None:
        figures["ray"] = on_ray(text, model, texts, numbers(ray, "ray"), progress)
    if memory is not None:
        figures["memory"] = memory_of(text, model, numbers(memory, "memory"), progress)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    console = Console()
    if rounds:
        table = Table(
            "what",
            "texts/s",
            "× plain",
            "× by hand",
            title=f"{figures['texts']:,} texts, {figures['tokens']:,} tokens",
        )
        for name, rate in figures["texts_per_second"].items():
            times = figures["times_by_hand"].get(name)
            table.add_row(
                name,
                f"{rate:,.1f}",
                f"{figures['times_plain'][name]:.2f}",
                f"{times:,.0f}" if times else "",
            )
        console.print(table)
    if ray is not None:
        table = Table("workers", "seconds in all", "texts/s once they run", title="Ray; rollout and flow, all layers")
        for row in figures["ray"]:
            table.add_row(str(row["workers"]), f"{row['seconds']:.1f}", f"{row['texts_per_second']:.1f}")
        console.print(table)
    if memory is not None:
        table = Table("texts", "peak, MB", "seconds", title="memory; rollout, last layer")
        for row in figures["memory"]:
            table.add_row(f"{row['texts']:,}", f"{row['peak_mb']:,.0f}", f"{row['seconds']:.1f}")
        console.print(table)


if __name__ == "__main__":
    run_command(main)
