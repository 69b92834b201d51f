"""Decoders with weights or batches on two processes: what each process gets through FSDP and DDP, in one job."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.large_model import run_processes
from helpers.architectures import LLAMA, hf, text

ANSWER = [3, 4, 5]

RESULTS: dict[str, Callable[[Any], Any]] = {
    "rollout": lambda m: m.trace(text()).rollout(),
    "head-norm": lambda m: m.trace(text(), edges="head-norm").rollout(),
    "head-norm, linear": lambda m: m.trace(text(), memory="linear", edges="head-norm").rollout(),
    "answer edges": lambda m: m.trace(text(), edges="answer").rollout(),
    "answer edges, linear": lambda m: m.trace(text(), memory="linear", edges="answer").answer_inputs(),
    "a given answer": lambda m: m.answer(text()["input_ids"][0].tolist(), answer=ANSWER).matrix(signed=True),
}


def built(implementation: str | None = None) -> Any:
    return hf("LlamaForCausalLM", **LLAMA, initializer_range=0.2)(implementation)


def fsdp(model: Any) -> Any:
    """Shard with PyTorch's newer API, which gives every layer a new class."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def fsdp_wrapper(model: Any) -> Any:
    """Shard with the older API, which wraps the model."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


WAYS: dict[str, Callable[[Any], Any]] = {
    "fully_shard": fsdp,
    "FullyShardedDataParallel": fsdp_wrapper,
    "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
}


def run_sharded(folder: Path, count: int = 2) -> list[dict[str, Any]]:
    """Return what each process got, by way and result: an array, or the sentence of a refusal."""
    here = Path(__file__).parents[1]
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    run_processes(
        [sys.executable, "-m", "helpers.sharded", str(folder)], count, environment={**os.environ, "PYTHONPATH": paths}
    )
    return [_read(folder / f"rank-{rank}") for rank in range(count)]


def _read(path: Path) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as arrays:
        return {**json.loads(path.with_suffix(".json").read_text()), **dict(arrays)}


def _job(folder: Path) -> None:
    import attnflow as af
    from attnflow.errors import InputError

    torch.distributed.init_process_group("gloo")
    values, refusals = {}, {}
    for way, wrap in WAYS.items():
        wrapped = af.wrap(wrap(built()))
        for name, result in RESULTS.items():
            try:
                values[f"{way}: {name}"] = result(wrapped).values
            except InputError as e:
                refusals[f"{way}: {name}"] = str(e)
    rank = os.environ["RANK"]
    np.savez(folder / f"rank-{rank}.npz", **values)
    (folder / f"rank-{rank}.json").write_text(json.dumps(refusals))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _job(Path(sys.argv[1]))
