"""A whole decoder of up to 131,072 tokens explained on one GPU, in several ways: ``python -m benchmarks.long_gpu``.

Each row is one way to explain, compared with the plain forward pass. The tasks run in turn, so that a GPU that heats up
slows all of them, and medians are compared. A task that fails says so in its row and does not affect the others.
"""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson, numbers, progress
from attnflow.errors import InputError
from benchmarks.command import run_command
from benchmarks.memory import peak_of
from benchmarks.rival_core import core_of, span_of

if TYPE_CHECKING:
    from types import ModuleType

    from attnflow.model import Model

Task = Callable[[], Any]

TASKS = {
    "forward": "plain forward pass, without a cache and with one logit row: the baseline",
    "rollout": "rollout of the last token",
    "span": "value-norm rollout of the last tokens as one weighted row",
    "rows": "rollout of the last tokens, one row each",
    "answer": "answer rows of the last tokens on the cache of those before, by the public call",
    "answer-pass": "the same, only its pass and parts",
    "answer-alone": "answer rows of the last tokens without a cache: the prompt is read first",
    "frozen": "answer edges by a frozen backward pass over everything, rows of the last tokens",
    "backward": "forward and checkpointed backward pass down to the embeddings",
    "flashtrace": "FlashTrace's core with recomputed attention, the last tokens as a span",
}
BASELINE = "forward"

WARM = 1024
"""Tokens on which every task runs once beforehand, so that compilation is not timed."""

WARM_WHOLE = 16_384
"""Up to this many tokens, every task also runs once at full length beforehand."""


LONG = 65_536
"""From this many tokens on, the goals for long contexts apply."""


@dataclass(frozen=True)
class Goal:
    """What a task may cost: a multiple of the forward pass's time, and a peak of memory."""

    times: float | None = None
    peak_times: float | None = None
    peak_gib: float | None = None


@dataclass(frozen=True)
class Row:
    """The result of one task: median seconds, the largest peak above the model in GiB, and comparisons.

    note: a check of the result, or why there is none.
    """

    what: str
    tokens: int
    layers: int
    seconds: float | None
    times: float | None
    peak_gib: float | None
    peak_times: float | None
    note: str
    goal: Goal = field(default_factory=Goal)


@dataclass(frozen=True)
class Setting:
    """A model, bare and wrapped, tokens [1, n], and how many of the last tokens are explained."""

    model: Any
    wrapped: Model
    ids: Any
    span: int
    rival: ModuleType | None

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[1])


def llama_8b(layers: int = 32) -> Any:
    """Return a model of Llama-3-8B's shape with random weights, in bfloat16 on the GPU."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14336, head_dim=128,
        num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
        max_position_embeddings=131072, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()


def tiny(layers: int = 2) -> Any:
    """Return a small Llama in float32 on the CPU, to try the tasks on."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def goal_of(task: str, tokens: int) -> Goal:
    """Return what a task may cost on a model of 8B shape, on one H200."""
    long = tokens >= LONG
    if task == "span":
        return Goal(1.4 if long else 1.3, peak_times=2.0)
    if task in ("answer", "answer-pass"):
        return Goal(0.04 if tokens >= 131072 else 0.1 if tokens >= 10240 else None, peak_gib=1.0)
    if task in ("answer-alone", "frozen"):
        return Goal(2.0)
    return Goal()


@contextlib.contextmanager
def on_cudnn(device: Any) -> Iterator[None]:
    """Use cuDNN's attention, the fastest on a GPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]) if device.type == "cuda" else contextlib.nullcontext():
        yield


def forward(s: Setting) -> Any:
    import torch

    with on_cudnn(s.ids.device), torch.no_grad():
        return s.model(input_ids=s.ids, use_cache=False, logits_to_keep=1)


def checkpointed_backward(s: Setting) -> tuple[Any, str]:
    """Return the gradient of the last position's largest logit at the embeddings, and whose attention computed it.

    Each layer runs a second time for it. If cuDNN has no backward pass for these heads, torch chooses another.
    """
    try:
        with on_cudnn(s.ids.device):
            return _gradient(s), "cuDNN" if s.ids.device.type == "cuda" else "torch"
    except RuntimeError as e:
        if "No available kernel" not in str(e):
            raise
    return _gradient(s), "torch, as cuDNN refuses"


def _gradient(s: Setting) -> Any:
    import torch

    s.model.gradient_checkpointing_enable({"use_reentrant": False})
    s.model.train()  # checkpointing needs train mode; this model has no dropout
    try:
        with torch.enable_grad():
            states = s.model.get_input_embeddings()(s.ids).detach().requires_grad_()
            logits = s.model(inputs_embeds=states, use_cache=False, logits_to_keep=1).logits
            return torch.autograd.grad(logits[0, -1].float().max(), states)[0]
    finally:
        s.model.eval()
        s.model.gradient_checkpointing_disable()


def prefilled(s: Setting) -> Any:
    """Return the key-value cache of all tokens before the last ones."""
    import torch

    with on_cudnn(s.ids.device), torch.no_grad():
        return s.model(input_ids=s.ids[:, : -s.span], use_cache=True, logits_to_keep=1).past_key_values


def tasks_of(s: Setting, names: list[str]) -> dict[str, Task]:
    """Return the named tasks to time. The cache is made here, untimed."""
    from attnflow.capture.answer_pass import run_answer
    from attnflow.capture.generate import Written

    tensors = {"input_ids": s.ids}
    last = range(s.tokens - s.span, s.tokens)
    tokens = s.ids[0].tolist()
    prompt, answer = tokens[: -s.span], tokens[-s.span :]
    cache, why = None, "was not made"
    if {"answer", "answer-pass"} & set(names):
        try:
            cache = prefilled(s)
        except Exception as e:  # the tasks that need it report the reason
            why = failure(e)
    weights = dict.fromkeys(last, 1 / s.span)

    def rollout(queries: Any, edges: str | None = None) -> Any:
        return s.wrapped.trace(tensors, memory="linear", queries=queries, edges=edges).rollout()

    def on_cache(task: Task) -> Task:
        def checked() -> Any:
            if cache is None:
                raise InputError(f"there is no cache to read: {why}")
            return task()

        return checked

    tasks: dict[str, Task] = {
        "forward": lambda: forward(s),
        "rollout": lambda: rollout([-1]),
        "span": lambda: rollout(weights, "head-norm"),
        "rows": lambda: rollout(list(last)),
        "answer": on_cache(lambda: s.wrapped.answer(prompt, answer=answer, cache=cache).sources()),
        "answer-pass": on_cache(lambda: run_answer(s.wrapped, prompt, Written(tuple(answer), cache)).parts()),
        "answer-alone": lambda: s.wrapped.answer(prompt, answer=answer).sources(),
        "frozen": lambda: s.wrapped.trace(tensors, memory="linear", edges="answer").answer_rows(list(last)),
        "backward": lambda: checkpointed_backward(s),
        "flashtrace": lambda: span_of(s.rival, s.model, s.ids, s.span, lambda: forward(s)),
    }
    return {name: task for name, task in tasks.items() if name in names}


def note_of(name: str, result: Any) -> str:
    """Return a check of the result: what rows sum to, or how far parts are from the whole."""
    if name in ("rollout", "span", "rows"):
        sums = result.values.sum(-1)
        return f"rows sum to {sums.min():.5f} to {sums.max():.5f}" if sums.size > 1 else f"sums to {sums.item():.5f}"
    if name in ("answer-pass", "frozen"):
        gap = result.gap if name == "answer-pass" else result.provenance["evidence"]["gap"]
        return f"parts add up to within {gap:.0e}"
    if name == "backward":
        return f"attention by {result[1]}"
    return ""


def freed(device: Any, whole: bool) -> None:
    """Free the memory of earlier tasks. whole: also return it to the driver, which costs short tasks time."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        if whole:
            torch.cuda.empty_cache()


def measured(task: Task, device: Any, long: bool) -> tuple[Any, float, float]:
    """Return a task's result, its seconds including the GPU's work, and its peak in GiB above the start."""
    import torch

    freed(device, long)
    began = time.perf_counter()
    if device.type != "cuda":
        result, peak = peak_of(task)
        return result, time.perf_counter() - began, peak / 1024
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    result = task()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return result, seconds, (torch.cuda.max_memory_allocated() - before) / 2**30


def failure(error: Exception) -> str:
    """Return in one line why a task has no figures."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def compared(s: Setting, names: list[str], rounds: int, layers: int, say: Callable[[str], None]) -> list[Row]:
    """Return rows of all tasks at one length."""
    device = s.ids.device
    tasks = tasks_of(s, names)
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    notes: dict[str, str] = dict.fromkeys(tasks, "")
    failed: set[str] = set()
    first = 0 if s.tokens <= WARM_WHOLE else 1
    for number in range(first, rounds + 1):
        for name, task in tasks.items():
            if name in failed:
                continue
            try:
                result, seconds, peak = measured(task, device, s.tokens > WARM_WHOLE)
                notes[name] = note_of(name, result)
            except Exception as e:  # a task that fails must not lose the others' figures
                notes[name] = failure(e)
                failed.add(name)
                say(f"{s.tokens} tokens: {name}: {notes[name]}")
                continue
            del result
            if number:
                figures[name].append((seconds, peak))
                say(
                    f"{s.tokens} tokens, round {number}: {name} {seconds:.3f} s, peak {peak:.2f} GiB {notes[name]}".rstrip()
                )
    return rows_of(s.tokens, layers, {k: v for k, v in figures.items() if k not in failed}, notes)


def rows_of(
    tokens: int, layers: int, figures: dict[str, list[tuple[float, float]]], notes: dict[str, str]
) -> list[Row]:
    """Return the figures of each task relative to its baseline; a row without figures if it has none."""
    seconds = {name: statistics.median(x for x, _ in some) for name, some in figures.items()}
    peaks = {name: max(x for _, x in some) for name, some in figures.items()}

    def ratio(values: dict[str, float], name: str) -> float | None:
        return values[name] / values[BASELINE] if name in values and values.get(BASELINE, 0) > 0 else None

    def row(name: str, note: str) -> Row:
        return Row(
            name, tokens, layers, seconds.get(name), ratio(seconds, name), peaks.get(name), ratio(peaks, name), note,
            goal_of(name, tokens),
        )  # fmt: skip

    return [row(name, note) for name, note in notes.items()]


def setting(shape: str, layers: int | None, longest: int, span: int, folder: str | None) -> Setting:
    """Return the model, with random tokens for the longest run. layers: those of the shape by default."""
    try:
        import torch
    except ImportError as e:
        raise InputError(f"this benchmark needs torch and Triton, and {e.name} is not installed") from None
    if shape not in ("8b", "tiny"):
        raise InputError(f"shape {shape!r}: expected 8b or tiny")
    rival = None if folder is None else core_of(folder)
    if shape == "8b":
        if not torch.cuda.is_available():
            raise InputError("this benchmark needs a CUDA GPU, and torch does not see one")
        try:
            import triton  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        except ImportError:
            raise InputError("this benchmark needs torch and Triton, and triton is not installed") from None
    from attnflow import wrap

    model = llama_8b(layers or 32) if shape == "8b" else tiny(layers or 2)
    model.requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size - 8, (1, longest), generator=draw).to(model.device)
    about = "Llama-3-8B's shape" if shape == "8b" else "a small Llama"
    return Setting(model, wrap(model, name=f"{about}, random weights"), ids, span, rival)


def warmed(s: Setting, names: list[str], say: Callable[[str], None]) -> None:
    """Run every task once on a short text."""
    for name, task in tasks_of(s, names).items():
        say(f"warming up: {name}")
        with contextlib.suppress(Exception):  # its row will report the failure
            task()
            freed(s.ids.device, True)


def run(
    lengths: list[int],
    names: list[str],
    layers: int | None,
    rounds: int,
    span: int,
    say: Callable[[str], None],
    shape: str = "8b",
    rival: str | None = None,
) -> list[Row]:
    """Run every task at every length."""
    if min(lengths) <= span + 1:
        raise InputError(
            f"{min(lengths)} tokens: expected more than the {span} that are explained, plus a prompt of two"
        )
    whole = setting(shape, layers, max(lengths), span, rival)

    def cut(n: int) -> Setting:
        return Setting(whole.model, whole.wrapped, whole.ids[:, :n], span, whole.rival)

    warmed(cut(min(max(WARM, span + 2), max(lengths))), names, say)
    count = int(whole.model.config.num_hidden_layers)
    return [row for n in lengths for row in compared(cut(n), names, rounds, count, say)]


def names_of(tasks: str | None, rival: str | None) -> list[str]:
    """Return the tasks that the user names, and the baseline; all that can run by default."""
    if tasks is None:
        return [name for name in TASKS if name != "flashtrace" or rival is not None]
    names = tasks.split(",")
    if strange := [name for name in names if name not in TASKS]:
        raise InputError(f"tasks {strange[0]!r}: expected some of {', '.join(TASKS)}")
    if "flashtrace" in names and rival is None:
        raise InputError("the task flashtrace needs the folder of its package: give --flashtrace")
    return [name for name in TASKS if name in (BASELINE, *names)]


def table_of(rows: list[Row]) -> Table:
    table = Table("tokens", "task", "seconds", "× forward", "peak, GiB", "× forward's", "goal", "note")

    def shown(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    for row in rows:
        goal = row.goal
        parts = [
            "" if goal.times is None else f"≤ {goal.times:.2f}",
            "" if goal.peak_times is None else f"peak ≤ {goal.peak_times:.0f} ×",
            "" if goal.peak_gib is None else f"peak ≤ {goal.peak_gib:.0f} GiB",
        ]
        table.add_row(
            f"{row.tokens:,}", row.what, shown(row.seconds, 3), shown(row.times, 3), shown(row.peak_gib, 2),
            shown(row.peak_times, 2), ", ".join(filter(None, parts)), row.note,
        )  # fmt: skip
    return table


def main(
    tokens: Annotated[str, typer.Option(help="Lengths of the context.")] = "5120,10240,131072",
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of the model; those of its shape by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 2,
    span: Annotated[int, typer.Option(min=1, help="How many of the last tokens are explained.")] = 256,
    tasks: Annotated[str | None, typer.Option(help=f"Some of {', '.join(TASKS)}; all by default.")] = None,
    flashtrace: Annotated[str | None, typer.Option(help="A folder that contains FlashTrace's package.")] = None,
    shape: Annotated[
        str, typer.Option(help="8b, for Llama-3-8B's shape, or tiny, on the CPU, to try the tasks.")
    ] = "8b",
    as_json: AsJson = False,
) -> None:
    """Explain a large decoder on one GPU, compared with its plain forward pass. Needs CUDA and Triton."""
    lengths = numbers(tokens, "tokens")
    rows = run(lengths, names_of(tasks, flashtrace), layers, rounds, span, progress, shape, flashtrace)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    Console(width=180).print(table_of(rows))


if __name__ == "__main__":
    run_command(main)
