"""Small decoders with heads split over two local processes: the results of each, from one job for many checks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnflow.edges import batched
from benchmarks.large_model import counted_bytes, run_processes

LONG = [(7 * i) % 60 for i in range(2, 90)]
SHORT = list(range(2, 14))
ANSWER = [3, 4, 5]

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama with biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 8}),
    "Starcoder2, without gates": ("Starcoder2ForCausalLM", {}),
    "Mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Mistral, in a window": ("MistralForCausalLM", {"head_dim": 8, "sliding_window": 16}),
    "Phi-3, all heads everywhere": ("Phi3ForCausalLM", {}),
}

RESULTS: dict[str, Callable[[Any], Any]] = {
    "raw": lambda m: m.trace(_ids(SHORT)).raw(),
    "rollout": lambda m: m.trace(_ids(SHORT)).rollout(),
    "flow": lambda m: m.trace(_ids(SHORT)).flow(query=-1, layer=-1),
    "rows": lambda m: m.trace(_ids(LONG), memory="linear", queries=[-1, {-1: 0.5, 3: 0.5}], layers=[-1, 0]).rollout(),
    "rows, field": lambda m: m.trace(_ids(LONG), memory="linear").rollout(receptive_field="ratio"),
    "answer edges": lambda m: m.trace(_ids(SHORT), edges="answer").rollout(),
    "answer edges, rows": lambda m: m.trace(_ids(SHORT), edges="answer").answer_rows(signed=True),
    "answer edges, linear": lambda m: m.trace(_ids(LONG), memory="linear", edges="answer").answer_rows(signed=True),
    "answer edges, inputs": lambda m: m.trace(_ids(LONG), memory="linear", edges="answer").answer_inputs(),
    "attention-gradient": lambda m: m.trace(_ids(LONG), memory="linear", edges="attention-gradient").rollout(),
    "a given answer": lambda m: m.answer(LONG, answer=ANSWER).matrix(signed=True),
    "a written answer": lambda m: m.answer(LONG, max_new_tokens=4).matrix(signed=True),
    "fading": lambda m: m.answer(LONG, answer=ANSWER).sources(method="fading", signed=True),
    "verified": lambda m: m.answer(SHORT, answer=ANSWER).sources(verify=2),
    "gradient": lambda m: m.gradient(_ids(SHORT)),
    "blank-out": lambda m: m.blank_out(_ids(SHORT), by=1),
}
"""Results of a model; each has ``values``."""

FEW = ("rollout", "rows", "answer edges, rows", "a given answer")

REFUSED: dict[str, Callable[[Any], Any]] = {
    "keep_heads": lambda m: m.trace(_ids(SHORT), keep_heads=True),
    "heads='max'": lambda m: m.trace(_ids(SHORT), heads="max"),
    "heads=[0]": lambda m: m.trace(_ids(SHORT), heads=[0]),
    "edges other than": lambda m: m.trace(_ids(SHORT), edges="value-norm"),
    "edges='head-norm'": lambda m: m.trace(_ids(SHORT), memory="linear", edges="head-norm"),
    "rows of edges='answer'": lambda m: m.trace(_ids(SHORT), memory="linear", edges="answer").rollout(),
    "rows of edges='attention-gradient'": lambda m: m.trace(
        _ids(SHORT), memory="linear", edges="attention-gradient", normalize="rows"
    ).rollout(),
    "edges of many texts at once": lambda m: batched.edges_of(text_batch(m), "answer"),
    "seconds=": lambda m: m.blank_out(_ids(SHORT), by=1, seconds=1.0),
    "watch": lambda m: m.answer(LONG, watch=print),
}
"""Calls that need every head in one place, by the beginning of the refusal."""


def text_batch(model: Any) -> batched.TextBatch:
    """Return two texts, padded to one length."""
    return batched.TextBatch.of(model, [model.encode(_ids(tokens)) for tokens in (SHORT, LONG)])


def _ids(tokens: list[int]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([tokens])}


def results_of(name: str) -> Iterable[str]:
    """Return what to compare: everything for the first two models, else what their plans and layers could change."""
    return RESULTS if name in list(MODELS)[:2] else FEW


def built(name: str) -> Any:
    """Build one of the models in a single process."""
    import transformers

    kind, options = MODELS[name]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**{**SIZES, **options}))
    for path, parameter in model.named_parameters():
        if path.endswith("bias"):  # zeros would hide errors
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def run_ranks(folder: Path, names: list[str], count: int = 2) -> list[dict[str, Any]]:
    """Save the models, run the processes, and return each one's results by model and name, and its refusals."""
    for name in names:
        built(name).save_pretrained(folder / name)
    here = Path(__file__).parents[1]
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "helpers.ranks", str(folder), *names]
    run_processes(command, count, environment={**os.environ, "PYTHONPATH": paths})
    return [_read(folder / f"rank-{rank}") for rank in range(count)]


def _read(path: Path) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as arrays:
        return {**json.loads(path.with_suffix(".json").read_text()), "values": dict(arrays)}


def _job(folder: Path, names: list[str]) -> None:
    """Compute in one process every result of every model, and the refusals of the first."""
    import transformers
    from transformers.distributed import DistributedConfig

    import attnflow as af
    from attnflow.errors import InputError

    transformers.utils.logging.disable_progress_bar()
    rank = int(os.environ["RANK"])
    values, refusals, about, sizes = {}, {}, {}, {}
    for name in names:
        config = DistributedConfig(tp_size=int(os.environ["WORLD_SIZE"]), tp_plan="auto")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, distributed_config=config)
        wrapped = af.wrap(model, name=name)
        for what in results_of(name):
            values[f"{name}: {what}"] = RESULTS[what](wrapped).values
        about = dict(wrapped.trace(_ids(SHORT)).provenance)
        sizes = sizes or counted_bytes(wrapped)
        for words, call in REFUSED.items() if name == names[0] else ():
            try:
                call(wrapped)
                refusals[words] = ""
            except InputError as e:
                refusals[words] = str(e)
    np.savez(folder / f"rank-{rank}.npz", **values)
    (folder / f"rank-{rank}.json").write_text(json.dumps({"refusals": refusals, "provenance": about, "bytes": sizes}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _job(Path(sys.argv[1]), sys.argv[2:])
