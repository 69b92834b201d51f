"""The attention sublayer: how attention is projected, added to the state, and normalized.

There are three forms, recognised by the names of the modules. They are never trusted without checking the numbers: what
the parts give must be what the layer really computed.

    BERT     y = norm(x + o)      attention.output.dense, attention.output.LayerNorm (so too in DistilBERT and ALBERT)
    GPT-2    y = x + o            attn.c_proj, the next norm is ln_2
    Llama    y = x + o            self_attn.o_proj, the next norm is post_attention_layernorm
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.quantised import is_plain, map_of
from attnflow.errors import ModelError

FORMS = "BERT-, GPT-2- and Llama-like models"

NO_MATRIX = "the projection after the attention is not a plain matrix in memory"


@dataclass(frozen=True, eq=False)
class Sublayer:
    """The numbers of a sublayer.

    projection: [head, size, width], with its bias.
    y: the sublayer's output, [position, width].
    scale: the factor of the norm after the addition for centred vectors, [position, width]; None if there is no norm.
    """

    projection: Tensor
    bias: Tensor
    y: Tensor
    scale: Tensor | None

    def passed(self, z: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Pass vectors [query, …, width] through the norm of their query, which is linear once its scale is known.

        ``g(z) = γ ⊙ (z - mean(z)) / s(x + o)`` (Kobayashi et al. 2021, Eq. 7); z itself if no norm follows.
        """
        if self.scale is None:
            return z
        scale = self.scale[start:stop]
        return (z - z.mean(-1, keepdim=True)) * scale.reshape(len(scale), *[1] * (z.dim() - 2), -1)

    def direction(self) -> Tensor:
        """Return [position, width], such that ``direction·z`` is how far ``g(z)`` points to y: ``g(z)·y / ‖y‖``."""
        return direction_of(self.y, self.scale)


def direction_of(y: Tensor, scale: Tensor | None) -> Tensor:
    """Return ``y / ‖y‖``, taken back through the norm if one follows: ``g(z)·y = z·centred(scale ⊙ y)``."""
    unit = y / y.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny)
    if scale is None:
        return unit
    scaled = unit * scale
    return scaled - scaled.mean(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Parts:
    """The modules of one layer.

    seen: the module at which y is observed, as its output or (``before``) as its input.
    """

    projection: Any
    norm: Any
    seen: Any
    before: bool


def parts_of(model: Any, path: str) -> Parts | None:
    """Return the parts around the attention module at this path; None if no form fits."""
    attention = model.get_submodule(path)
    above = model.get_submodule(path.rpartition(".")[0])
    layer = model.get_submodule(layer_path(path))
    output = getattr(above, "output", None)
    if output is not None and hasattr(output, "dense") and hasattr(output, "LayerNorm"):  # BERT and similar models
        return Parts(output.dense, output.LayerNorm, output, False)
    if hasattr(attention, "out_lin") and hasattr(layer, "sa_layer_norm"):  # DistilBERT
        return Parts(attention.out_lin, layer.sa_layer_norm, layer.sa_layer_norm, False)
    if hasattr(attention, "dense") and hasattr(attention, "LayerNorm"):  # ALBERT
        return Parts(attention.dense, attention.LayerNorm, attention.LayerNorm, False)
    if hasattr(attention, "c_proj") and hasattr(layer, "ln_2"):  # GPT-2
        return Parts(attention.c_proj, None, layer.ln_2, True)
    if hasattr(attention, "o_proj") and hasattr(layer, "post_attention_layernorm"):  # Llama and similar models
        return Parts(attention.o_proj, None, layer.post_attention_layernorm, True)
    return None


def layer_path(path: str) -> str:
    """Return the path of the layer that contains an attention module: up to the last number; empty if there is none."""
    names = path.split(".")
    last = max((i for i, name in enumerate(names) if name.isdigit()), default=-1)
    return ".".join(names[: last + 1])


@contextmanager
def watched(parts: Parts, into: list[Tensor], listening: Any) -> Iterator[None]:
    """Append every y of this layer to the list while active, if ``listening()``."""

    def keep(module: Any, args: Any, out: Any = None) -> None:
        if listening():
            into.append(args[0] if parts.before else out)

    handle = (parts.seen.register_forward_pre_hook if parts.before else parts.seen.register_forward_hook)(keep)
    try:
        yield
    finally:
        handle.remove()


def sublayer_of(
    parts: Parts, weights: Tensor, values: Tensor, states: Tensor, y: Tensor, slack: float
) -> Sublayer | str:
    """Return the parts as numbers, or what is wrong with them.

    The shapes are: weights [..., head, query, key], values [..., head, key, size], states and y [..., position, width],
    with a leading axis for several texts.
    """
    heads, _, size = values.shape[-3:]
    parameters = matrix_of(parts.projection, heads * size)
    if parameters is None:
        return NO_MATRIX
    matrix, bias = (x.detach().to(values) for x in parameters)
    projection = matrix.reshape(heads, size, -1)
    o = torch.einsum("...hqk,...hks,hsw->...qw", weights, values, projection) + bias
    if o.shape != states.shape or y.shape != states.shape:
        return f"the states have shape {tuple(states.shape)} and the attention output has shape {tuple(o.shape)}"
    scale, expected = normed(parts.norm, states + o)
    gap = float(far_off(expected, y))
    return Sublayer(projection, bias, y, scale) if gap <= slack else off_by(gap)


def normed(norm: Any, total: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the factor of a norm for centred vectors, and its output; without a norm, None and the sum."""
    if norm is None:
        return None, total
    gamma, beta = (x.detach().to(total) for x in (norm.weight, norm.bias))
    scale = gamma / torch.sqrt(total.var(-1, correction=0, keepdim=True) + norm.eps)
    return scale, (total - total.mean(-1, keepdim=True)) * scale + beta


def far_off(expected: Tensor, y: Tensor) -> Tensor:
    """Return the largest difference relative to y, position by position.

    A position with large entries, such as the first token, would hide errors at others.
    """
    return ((expected - y).norm(dim=-1) / y.norm(dim=-1).clamp(min=1e-30)).max()


def off_by(gap: float) -> str:
    return f"projecting, adding and normalizing as {FORMS} do is off by {gap:.2g} of what the layer computes"


def refused(why: str, instead: str) -> ModelError:
    """Return the refusal of edges that need a layer's parts.

    instead: advice on other edges.
    """
    return ModelError(
        f"these edges need to know how a layer projects, adds and normalizes its attention output, but {why}: {instead}"
    )


def matrix_of(module: Any, width: int) -> tuple[Tensor, Tensor] | None:
    """Return [in, out] and the bias of a linear map: `Linear` stores the transpose, GPT-2's `Conv1D` does not.

    If the weight is packed, or has an adapter, the map is found from its outputs.
    """
    weight: Any = getattr(module, "weight", None)
    if not is_plain(weight) or any(True for _ in module.children()):
        return map_of(module, width)
    if weight.dim() != 2 or weight.is_meta:  # another form, or offloaded
        return None
    weight = weight.detach()
    matrix = weight.T if isinstance(module, torch.nn.Linear) else weight
    if matrix.shape[0] != width:
        return None
    bias = getattr(module, "bias", None)
    return matrix, torch.zeros_like(matrix[0]) if bias is None else bias.detach()
