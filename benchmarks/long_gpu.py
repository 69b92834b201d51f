"""A whole decoder of 131,072 tokens explained on one GPU: ``python -m benchmarks.long_gpu``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.cli.options import AsJson, progress
from attnflow.errors import InputError
from benchmarks.command import run_command


def llama_8b(layers: int = 32) -> Any:
    """A model of Llama-3-8B's shape with random weights, in bfloat16 on the GPU."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()


def run(tokens: int, layers: int, rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Seconds and peak memory of the forward pass on cuDNN, the fastest backend, and of trace and rollout; medians."""
    try:
        import torch
        import triton  # noqa: F401
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as e:
        raise InputError(f"this benchmark needs torch and Triton, and {e.name} is not installed") from None
    if not torch.cuda.is_available():
        raise InputError("this benchmark needs a CUDA GPU, and torch sees none")
    from attnflow import wrap

    model = llama_8b(layers)
    wrapped = wrap(model, name="Llama-3-8B's shape, random weights")
    ids = torch.randint(5, 128000, (1, tokens), generator=torch.Generator().manual_seed(0)).cuda()
    tensors = {"input_ids": ids}

    def forward(backend: Any) -> Callable[[], Any]:
        def task() -> Any:
            with sdpa_kernel([backend]), torch.no_grad():
                return model(**tensors, use_cache=False, logits_to_keep=1)

        return task

    def explained(offload: bool) -> Callable[[], Any]:
        return lambda: wrapped.trace(tensors, memory="linear", queries=[-1], offload=offload).rollout()

    tasks = {
        "forward, cuDNN": forward(SDPBackend.CUDNN_ATTENTION),
        "explained": explained(False),
    }
    with torch.no_grad():
        wrapped.trace({"input_ids": ids[:, :4096]}, memory="linear").rollout()
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    for number in range(rounds):
        for name, task in tasks.items():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            result = task()
            end.record()
            torch.cuda.synchronize()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**30
            measured[name].append((begin.elapsed_time(end) / 1000, peak))
            say(f"round {number + 1}: {name} {measured[name][-1][0]:.2f} s, peak {peak:.1f} GiB")
            if name == "explained":
                say(f"row sums to {result.values.sum():.5f}")
            del result
    seconds = {name: statistics.median(s for s, _ in times) for name, times in measured.items()}
    return [
        {"what": name, "tokens": tokens, "layers": layers, "seconds": seconds[name],
         "times": seconds[name] / seconds["forward, cuDNN"], "peak_gib": max(p for _, p in measured[name])}
        for name in tasks
    ]  # fmt: skip


def main(
    tokens: Annotated[int, typer.Option(min=128, help="Length of the context.")] = 131072,
    layers: Annotated[int, typer.Option(min=1, help="Of the model; Llama-3-8B has 32.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken over them.")] = 2,
    as_json: AsJson = False,
) -> None:
    """A model of Llama-3-8B's shape explained on one GPU, beside its plain forward pass. Needs CUDA and Triton."""
    rows = run(tokens, layers, rounds, progress)
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


if __name__ == "__main__":
    run_command(main)
