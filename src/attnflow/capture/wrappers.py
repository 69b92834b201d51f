"""Wrappers around a model, or changes inside it, for training or serving: data parallelism, compiled code, adapters.

A wrapper hides the layers that must be observed, so the model inside it runs instead. Compiled code remembers the pass
that it was compiled for, so it runs uncompiled here, and stays compiled for all other callers.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DataParallel, DistributedDataParallel

from attnflow.errors import InputError, ModelError

SPLIT = (
    "the weights of this model are split over several processes (tensor parallelism or FSDP): load it in one process, "
    "over several GPUs with device_map='auto'"
)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside `DataParallel`, `DistributedDataParallel`, `torch.compile` or a `PeftModel`.

    It is put into evaluation mode. Models without observable layers, models that are split over several processes, and
    adapters outside of the layers are refused.
    """
    adapted: Any = adapted_in(model)
    inner = _peeled(model) if adapted is None else _peeled(adapted.get_base_model())
    _check_in_one_process(inner)
    if adapted is not None:
        _check_adapters(adapted)
    try:
        if isinstance(inner, torch.jit.ScriptModule):
            raise NotImplementedError
        return inner.eval()
    except NotImplementedError:  # the result of torch.export has only one mode
        raise ModelError(
            "the model was compiled by torch.jit or torch.export, so nothing can be observed inside it: wrap the "
            "module that it was made from"
        ) from None


def _check_in_one_process(model: torch.nn.Module) -> None:
    """Refuse tensor, pipeline and sequence parallelism and FSDP: no process sees all heads, layers and weights."""
    split = any(hasattr(p, "placements") for p in model.parameters())  # a DTensor
    gathered = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    if split or gathered or getattr(model, "_device_mesh", None) is not None:  # transformers sets it
        raise ModelError(SPLIT)


def check_all_heads(config: Any, seen: int) -> None:
    """Refuse layers with fewer heads than the configuration says, if other processes may have the others."""
    heads = getattr(config, "num_attention_heads", None)
    if distributed.is_available() and distributed.is_initialized() and isinstance(heads, int) and seen < heads:
        raise ModelError(SPLIT)


def adapted_in(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the `PeftModel` inside other wrappers; None if there is none."""
    inner = _peeled(model)
    return inner if hasattr(inner, "peft_config") and hasattr(inner, "get_base_model") else None


def _peeled(model: torch.nn.Module) -> torch.nn.Module:
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in (children := dict(model.named_children())):  # from torch.compile
            model = children["_orig_mod"]
        else:
            return model


def _check_adapters(model: Any) -> None:
    learned = [name for name in model.active_adapters if model.peft_config[name].is_prompt_learning]
    if learned:
        raise InputError(
            f"the adapter {learned[0]!r} learned virtual tokens that precede every text but are not part of the text "
            "to be explained: use an adapter that changes weights, such as LoRA"
        )


def adapters_of(model: torch.nn.Module) -> list[str]:
    """Return the names of the adapters that currently change what the model computes."""
    names: set[str] = set()
    for module in model.modules():
        if hasattr(module, "base_layer") and not getattr(module, "disable_adapters", True):
            names.update(module.active_adapters)
    return sorted(names)


def check_weights(model: torch.nn.Module) -> None:
    """Refuse weights on the meta device. Offloaded weights are there too until a layer runs, and are allowed."""
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return
    empty = next((name for name, p in model.named_parameters() if p.is_meta), None)
    if empty is not None:
        raise ModelError(
            f"{empty} is on the device 'meta', which has shapes but no values: load the model's weights first, for "
            "example with from_pretrained"
        )


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether torch.compile has compiled the model, a layer, or a function of one."""
    return any(
        getattr(x, "_compiled_call_impl", None) is not None
        or "_orig_mod" in x._modules
        or hasattr(vars(x).get("forward"), "_torchdynamo_orig_callable")
        for x in model.modules()
    )


class _Eagerly:
    """While any thread is inside, no thread runs compiled code; the numbers are the same."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.stance: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.stance = torch.compiler.set_stance("force_eager")
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.stance.__exit__(None, None, None)


_eagerly = _Eagerly()


def eagerly() -> AbstractContextManager[None]:
    """Run compiled code uncompiled while active, because compiled code cannot be observed."""
    # without this module nothing can have been compiled, and importing it is slow
    return _eagerly if "torch._dynamo" in sys.modules else nullcontext()
