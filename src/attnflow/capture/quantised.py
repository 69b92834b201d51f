"""Layers with packed weights (8 or 4 bits, float8): which linear map they compute, and whether gradients pass.

Every library packs in its own way, and this module knows none of them: it finds out by running the layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from attnflow.errors import ModelError

SLACK = 0.1
"""How far the gradient of a layer may be from the layer's map, because activations in 8 bits are rounded."""


def is_plain(weight: Any) -> bool:
    """Return whether a weight has 16 bits or more per number, in memory or offloaded."""
    return type(weight) in (Tensor, Parameter) and weight.is_floating_point() and weight.element_size() > 1


def packed_layers(model: Module) -> Iterator[tuple[str, Any]]:
    """Yield the linear layers whose weights are not plain, with their paths."""
    for path, module in model.named_modules():
        linear = isinstance(getattr(module, "in_features", None), int) and not any(True for _ in module.children())
        if linear and not is_plain(getattr(module, "weight", None)):
            yield path, module


def map_of(module: Any, width: int) -> tuple[Tensor, Tensor] | None:
    """Return [in, out] and the bias of a linear map, from its outputs for zero and unit vectors, or None."""
    place = next((x.device for x in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    if place.type == "meta":
        return None  # offloaded
    unit = torch.eye(width, dtype=_dtype_of(module), device=place)
    plain = all(is_plain(x) for x in module.parameters())  # packed tensors need their own functions
    try:
        # calls forward directly and without function modes, so that hooks and modes do not see these calls
        with torch._C.DisableTorchFunction() if plain else nullcontext(), torch.no_grad():
            bias = module.forward(torch.zeros_like(unit[:1]))[0]
            matrix = module.forward(unit) - bias
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None
    return matrix, bias


def check_gradients(model: Module) -> None:
    """Check that gradients pass through packed layers and match what the layers compute.

    With ``u = f(x) - f(0)``, the gradient of ``u·f(x)`` times x is ``‖u‖²`` for any linear layer.
    """
    draw = torch.Generator().manual_seed(0)
    for path, module in packed_layers(model):
        place = next((x.device for x in (*module.parameters(), *module.buffers())), torch.device("cpu"))
        x = torch.randn(1, 4, module.in_features, generator=draw).to(place, _dtype_of(module))
        if not _passes_gradients(module, x):
            raise ModelError(
                f"gradients do not pass through {path!r} ({type(module).__name__}), whose weights or activations are "
                "quantised: use methods without gradients (attention, rollout, flow, blank-out), or load the model "
                "with only its weights quantised, or without quantisation"
            )


def _passes_gradients(module: Any, x: Tensor) -> bool:
    with torch.inference_mode(False):
        with torch.no_grad():
            out = module.forward(x)
            u = out - module.forward(torch.zeros_like(x))
        try:
            with torch.enable_grad():  # some layers compute differently then
                x = x.clone().requires_grad_()
                again = module.forward(x)
                (gradient,) = torch.autograd.grad(again, x, u, allow_unused=True) if again.requires_grad else (None,)
        except (RuntimeError, NotImplementedError):  # errors of libraries that have no gradients
            return False
    expected = float(u.double().square().sum())
    got = 0.0 if gradient is None else float((gradient * x).detach().double().sum())
    same = float((again.detach() - out).double().square().sum()) <= SLACK**2 * expected
    return same and abs(got - expected) <= SLACK * expected


def mixing(model: Module) -> str | None:
    """Return why positions mix in packed layers, and what to do; None if no reason is known.

    LLM.int8 (bitsandbytes) leaves columns with large values in half precision, and looks for them in all positions at
    once.
    """
    for path, module in packed_layers(model):
        threshold = getattr(getattr(module, "state", None), "threshold", 0)
        if isinstance(threshold, float | int) and threshold > 0:
            return (
                f"{path!r} runs in 8 bits with an llm_int8_threshold of {threshold:g}, so large values at one position "
                "change how all positions are computed: set llm_int8_threshold to 0 in the quantization_config, or "
                "load the model in 4 bits or without quantisation"
            )
    return None


def _dtype_of(module: Any) -> torch.dtype:
    """Return the dtype of a layer's input: that of its bias, or the nominal one of its weight."""
    for x in (getattr(module, "bias", None), getattr(module, "weight", None)):
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype.itemsize > 1:
            return x.dtype
    return torch.float32
