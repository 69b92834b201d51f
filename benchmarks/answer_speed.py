"""The cost of explaining an answer compared with writing it: ``python -m benchmarks.answer_speed``.

It uses a decoder from a folder or, with ``--shape 8b``, random weights of Llama-3-8B's shape on a GPU. The tasks run in
turn, so that a machine that slows down affects all of them, and medians are compared.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, Gguf, progress
from attnflow.errors import InputError
from benchmarks.command import run_command
from benchmarks.graphs import PASSAGE
from benchmarks.long_gpu import llama_8b
from benchmarks.memory import peak_of

if TYPE_CHECKING:
    from attnflow.model import Model

FORWARD, GENERATION = "forward over prompt + answer", "generation"
ON_CACHE, ALONE, BOTH = "explanation on its cache", "explanation without a cache", "generation + explanation"
SENTENCES, SENTENCES_ALONE = "sentences on its cache", "sentences without a cache"

LIMITS = {(ON_CACHE, FORWARD): 0.5, (BOTH, GENERATION): 1.02}
"""The most time the first may take relative to the second: for small models on a CPU, and for large ones on a GPU."""


@dataclass(frozen=True)
class Speed:
    """Median seconds, and peak memory above the model in MB, by task.

    first: seconds of the first explanation, which checks the model.
    """

    model: str
    device: str
    threads: int
    prompt: int
    answer: int
    rounds: int
    first: float
    seconds: dict[str, float]
    peaks: dict[str, float]

    def ratio(self, task: str, of: str) -> float:
        """Return the ratio of two tasks; writing plus explaining is computed from what explaining adds.

        That is the same ratio with less noise, because two runs of generation differ by more.
        """
        seconds = self.seconds[of] + self.seconds[ON_CACHE] if (task, of) == (BOTH, GENERATION) else self.seconds[task]
        return seconds / self.seconds[of]


def measure(model: Model, prompt: list[int], tokens: int, rounds: int, say: Callable[[str], None]) -> Speed:
    """Time the tasks on one prompt, to which the model writes exactly `tokens` tokens."""
    limit = model.limit()
    if limit is not None and len(prompt) + tokens > limit:
        raise InputError(
            f"the prompt has {len(prompt)} tokens and the answer {tokens}, but the model takes only {limit}"
        )
    config = model.model.generation_config
    shortest, config.min_new_tokens = config.min_new_tokens, tokens  # else the answer may end earlier
    try:
        written = model.answer(prompt, max_new_tokens=tokens)
        if len(written.ids) != tokens:
            raise InputError(f"{model!r} wrote {len(written.ids)} tokens: expected {tokens}, for a fair comparison")
        began = time.perf_counter()
        written.sources()
        first = time.perf_counter() - began
        tasks = tasks_of(model, prompt, written.ids, written.writing.cache)
        for task in tasks.values():  # warm up
            task()
        times: dict[str, list[float]] = {name: [] for name in tasks}
        for number in range(rounds):
            for name, task in tasks.items():
                times[name].append(timed(model, task))
            say(f"round {number + 1} of {rounds}")
        peaks = {name: peak(model, task) for name, task in tasks.items()}
    finally:
        config.min_new_tokens = shortest
    return Speed(
        model.name, str(model.device), torch.get_num_threads(), len(prompt), tokens, rounds, first,
        {name: statistics.median(values) for name, values in times.items()}, peaks,
    )  # fmt: skip


def tasks_of(model: Model, prompt: list[int], answer: tuple[int, ...], cache: Any) -> dict[str, Callable[[], Any]]:
    """Return the timed tasks. Each makes its answer anew, so that nothing is kept between runs."""
    ids = torch.tensor([[*prompt, *answer]], device=model.device)
    tokens = list(answer)

    def forward() -> Any:
        with torch.no_grad():  # a fair baseline: logits only for the answer, and no cache
            return model.model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens) + 1)

    return {
        FORWARD: forward,
        ON_CACHE: lambda: model.answer(prompt, answer=tokens, cache=cache).sources(),
        ALONE: lambda: model.answer(prompt, answer=tokens).sources(),
        SENTENCES: lambda: model.answer(prompt, answer=tokens, cache=cache).sources(method="combined"),
        SENTENCES_ALONE: lambda: model.answer(prompt, answer=tokens).sources(method="combined"),
        GENERATION: lambda: model.answer(prompt, max_new_tokens=len(tokens)),
        BOTH: lambda: model.answer(prompt, max_new_tokens=len(tokens)).sources(),
    }


def timed(model: Model, task: Callable[[], Any]) -> float:
    """Return seconds, including the GPU's work."""
    wait(model)
    began = time.perf_counter()
    task()
    wait(model)
    return time.perf_counter() - began


def wait(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def peak(model: Model, task: Callable[[], Any]) -> float:
    """Return peak device memory in MB above what was in use before the task."""
    if model.device.type != "cuda":
        return peak_of(task)[1]
    wait(model)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    task()
    wait(model)
    return float(torch.cuda.max_memory_allocated(model.device) - before) / 2**20


def model_and_prompt(name: str | None, gguf: str | None, shape: str | None, device: str | None, n: int) -> Any:
    """Return a model from a folder with a prompt of real text, or random weights of a shape with random tokens."""
    from attnflow import load, wrap

    if (name is None) == (shape is None):
        raise InputError("give either a model (-m) or a shape (--shape 8b)")
    if name is not None:
        model = load(name, gguf_file=gguf, device=device)
        tokenizer: Any = model.tokenizer
        ids = tokenizer(PASSAGE.replace("\n", " "))["input_ids"]
        return model, (ids * (n // len(ids) + 1))[:n]
    if shape != "8b":
        raise InputError(f"shape={shape!r}: expected 8b")
    if not torch.cuda.is_available():
        raise InputError("shape 8b needs a CUDA GPU, and torch does not see one")
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 128000, (n,), generator=draw).tolist()
    return wrap(llama_8b(), name="Llama-3-8B's shape, random weights"), ids


def table_of(speed: Speed) -> Table:
    title = f"{speed.model}, {speed.device}: {speed.prompt} tokens of prompt, {speed.answer} of answer"
    table = Table("task", "seconds", "× forward", "× generation", "peak, MB", title=title)
    for name, seconds in speed.seconds.items():
        table.add_row(
            name, f"{seconds:.3f}", f"{seconds / speed.seconds[FORWARD]:.2f}",
            f"{seconds / speed.seconds[GENERATION]:.3f}", f"{speed.peaks[name]:,.0f}",
        )  # fmt: skip
    return table


def main(
    model: Annotated[str | None, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")] = None,
    gguf: Gguf = None,
    shape: Annotated[str | None, typer.Option(help="8b: random weights of that shape, in bfloat16 on a GPU.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    prompt: Annotated[
        int | None, typer.Option(min=2, help="Tokens of the prompt; 400 by default, or 1,000 with a shape.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the answer; 40 by default, or 500 with a shape.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure the cost of explaining an answer against a forward pass over it and against writing it."""
    silence()
    torch.set_num_threads(threads)
    loaded, ids = model_and_prompt(model, gguf, shape, device, prompt or (400 if shape is None else 1000))
    speed = measure(loaded, ids, tokens or (40 if shape is None else 500), rounds, progress)
    ratios = {f"{task} / {of}": speed.ratio(task, of) for task, of in LIMITS}
    if as_json:
        print(json.dumps({**asdict(speed), "ratios": ratios}, indent=1))
        return
    Console().print(table_of(speed))
    print(f"first explanation, including the model check: {speed.first:.2f} s")
    for (task, of), limit in LIMITS.items():
        print(f"{task} / {of}: {speed.ratio(task, of):.3f} (goal: at most {limit})")


if __name__ == "__main__":
    run_command(main)
