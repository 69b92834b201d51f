"""transformers models in double precision throughout; by default they compute norms and softmax in single precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch


def sharpened(model: Any, seed: int = 0) -> Any:
    """Convert the model to double precision, with weights so large that attention is uneven and biases count."""
    model = model.double().eval()
    model.config._experts_implementation = "eager"  # grouped products of experts do not support double precision
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.ndim == 1:
            parameter.data = 0.3 * drawn if "bias" in name or "sinks" in name else 1 + 0.3 * drawn
        else:
            parameter.data = drawn * (1.0 if "emb" in name or "wte" in name or "wpe" in name else 0.4)
    return model


@contextmanager
def in_double(model: Any) -> Iterator[None]:
    """Keep softmax and RMSNorm of this model in double precision inside the context."""
    softmax = torch.nn.functional.softmax

    def wide(x: torch.Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    def rms(norm: Any, x: torch.Tensor) -> torch.Tensor:
        eps = getattr(norm, "variance_epsilon", None) or norm.eps
        scale = norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight
        return scale * x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(torch.nn.functional, "softmax", wide))
        for kind in {type(m) for m in model.modules() if type(m).__name__.endswith("RMSNorm")}:
            patches.enter_context(mock.patch.object(kind, "forward", rms))
        yield
