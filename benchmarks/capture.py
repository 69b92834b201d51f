"""What a trace costs: memory and time beside the model's own forward pass, and long contexts on the CPU."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import InputError

ROUTES = ("forward", "output_attentions", "whole", "blocks")


@dataclass(frozen=True)
class Row:
    """One length. Peaks are in MB above the loaded model, times in seconds, medians of the
    rounds.

    forward: the model's plain forward pass, for what it needs by itself. output_attentions: what transformers offers, all
    heads of all layers. whole: a trace that reduces the heads of a layer when it is done. blocks: a trace in blocks of
    queries. eager: the forward pass under eager attention.
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
        """How many times less a trace takes than output_attentions: above the loaded model, and above its forward pass."""
        peak = {"whole": self.whole_mb, "blocks": self.blocks_mb}[route]
        beyond = max(peak - self.forward_mb, 1e-9)
        return self.output_attentions_mb / peak, (self.output_attentions_mb - self.forward_mb) / beyond


def run(lengths: list[int], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Memory in a process of its own each, once: it repeats to the megabyte. Times side by side in one, over the rounds."""
    if not Path("/proc/self/statm").exists():
        raise InputError("peak memory is read from /proc: this benchmark needs Linux")
    rows = []
    for n in lengths:
        say(f"{n} tokens: memory")
        peaks = {route: _child("peak", n, route) for route in ROUTES}
        say(f"{n} tokens: time")
        times = _child("times", n, rounds)
        rows.append(Row(n, *(peaks[r] for r in ROUTES), *(times[name] for name in ("eager", "whole", "blocks"))))
    return rows


def long(lengths: list[int], folder: str, gguf: str | None, say: Callable[[str], None]) -> list[dict[str, float]]:
    """A decoder explained with memory="linear": seconds of the plain forward pass, of trace and rollout, and the peak."""
    found = []
    for n in lengths:
        say(f"{n} tokens")
        found.append(_child("long", n, folder, gguf))
    return found


def one_layer(lengths: list[int], rounds: int = 3) -> list[dict[str, float]]:
    """Pᵀ·r of one causal layer of 9 heads of 64, 3 of keys: in blocks of queries, and by SDPA's backward pass."""
    import time

    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from attnflow.capture.scores import Scores

    found = []
    for n in lengths:
        generator = torch.Generator().manual_seed(0)
        query, key = (torch.randn(1, heads, n, 64, generator=generator) for heads in (9, 3))
        row = torch.rand(1, 1, n, generator=generator)
        scores = Scores(query, key, 64**-0.5, causal=True)
        repeated = key.repeat_interleave(3, 1)
        value = torch.zeros_like(query).requires_grad_()
        out = scaled_dot_product_attention(query, repeated, value, is_causal=True)
        incoming = torch.zeros_like(out)
        incoming[..., 0] = row

        def blocks(scores: Any = scores, row: Any = row) -> Any:
            return scores.transposed(row)[0, 0]

        def backward(out: Any = out, value: Any = value, incoming: Any = incoming) -> Any:
            return torch.autograd.grad(out, value, incoming, retain_graph=True)[0][0, ..., 0].mean(0)

        seconds: dict[str, list[float]] = {"blocks_s": [], "backward_s": []}
        for _ in range(rounds + 1):
            for name, task in (("blocks_s", blocks), ("backward_s", backward)):
                began = time.perf_counter()
                task()
                seconds[name].append(time.perf_counter() - began)
        gap = float((blocks() - backward()).abs().max() / backward().abs().max())
        found.append({"tokens": n, **{k: statistics.median(v[1:]) for k, v in seconds.items()}, "difference": gap})
    return found


def _child(task: str, *arguments: Any) -> Any:
    script = "import sys, json; from benchmarks import capture; capture._work(json.loads(sys.argv[1]))"
    # Memory that is freed goes back at once, on every route: what is measured is what is held, not what glibc hoards.
    variables = dict(os.environ) if task == "times" else {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    words = [sys.executable, "-c", script, json.dumps([task, *arguments])]
    done = subprocess.run(words, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise InputError(
            f"measuring {task} failed: {done.stderr.strip().splitlines()[-1] if done.stderr else done.returncode}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def _work(given: list[Any]) -> None:
    task, *arguments = given
    tasks: dict[str, Callable[..., Any]] = {"peak": _peak, "times": _times, "long": _long}
    print(json.dumps(tasks[task](*arguments)))


def _encoder(n: int, implementation: str) -> Any:
    """BERT-base with room for n positions and random weights: what is measured does not depend on them."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.BertConfig(max_position_embeddings=n)
    config._attn_implementation = implementation
    return transformers.BertModel._from_config(config).eval()


def _prepared(n: int, route: str) -> Callable[[], Any]:
    """What runs the model by this route, warmed up on a few tokens."""
    import torch

    from attnflow import model as capture
    from attnflow import wrap

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


def _peak(n: int, route: str) -> float:
    from benchmarks.memory import peak_of

    return peak_of(_prepared(n, route))[1]


def _times(n: int, rounds: int) -> dict[str, float]:
    import time

    from attnflow import model as capture

    tasks = {"eager": _prepared(n, "eager"), "blocks": _prepared(n, "blocks")}
    tasks["whole"] = tasks["blocks"]
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):  # the first round warms up
        for name, task in tasks.items():
            capture.WHOLE_BYTES = 0 if name == "blocks" else 1 << 60
            began = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def _long(n: int, folder: str, gguf: str | None) -> dict[str, float]:
    import time

    import torch

    from attnflow import load
    from benchmarks.graphs import PASSAGE
    from benchmarks.memory import peak_of

    model = load(folder, gguf_file=gguf, dtype="float32")
    tokenizer: Any = model.tokenizer
    ids = tokenizer(PASSAGE.replace("\n", " "))["input_ids"]
    given = {"input_ids": torch.tensor([(ids * (n // len(ids) + 1))[:n]])}
    model.trace({"input_ids": given["input_ids"][:, :64]}, memory="linear")
    began = time.perf_counter()
    with torch.no_grad():
        model.model(**given, use_cache=False, logits_to_keep=1)
    forward = time.perf_counter() - began

    def explained() -> Any:
        return model.trace(given, memory="linear", queries=[-1]).rollout()

    began = time.perf_counter()
    result, peak = peak_of(explained)
    seconds = time.perf_counter() - began
    return {
        "tokens": n,
        "forward_s": forward,
        "explained_s": seconds,
        "peak_mb": peak,
        "matrices_mb": model.model.config.num_hidden_layers * n * n * 4 / 2**20,
        "sum": float(result.values.sum()),
    }
