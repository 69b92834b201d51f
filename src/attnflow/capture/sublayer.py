"""How the attention of a layer is projected, added to what is there, and normed: the parts that vectors pass on an edge.

Three forms, told by the names of the modules, and never believed without a look at the numbers: what is put together from
the parts must be what the layer really computed.

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

from attnflow.errors import ModelError

FORMS = "BERT-, GPT-2- and Llama-like models"

NO_MATRIX = "the projection after the attention is no plain matrix in memory"


@dataclass(frozen=True, eq=False)
class Sublayer:
    """projection: [head, size, width], with its bias. y: what the sublayer gave, [position, width].

    scale: what the norm after the addition multiplies a centred vector by, [position, width]; None where there is no norm.
    """

    projection: Tensor
    bias: Tensor
    y: Tensor
    scale: Tensor | None

    def passed(self, z: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """``g(z)``: what vectors [query, …, width] are after the norm of their query, linear once its size is known.

        ``g(z) = γ ⊙ (z - mean(z)) / s(x + o)`` (Kobayashi et al. 2021, Eq. 7); z itself where no norm follows.
        """
        if self.scale is None:
            return z
        scale = self.scale[start:stop]
        return (z - z.mean(-1, keepdim=True)) * scale.reshape(len(scale), *[1] * (z.dim() - 2), -1)

    def direction(self) -> Tensor:
        """[position, width], so that ``direction·z`` is how far ``g(z)`` points to y: ``g(z)·y / ‖y‖``."""
        return direction_of(self.y, self.scale)


def direction_of(y: Tensor, scale: Tensor | None) -> Tensor:
    """``y / ‖y‖``, taken back through the norm where one follows: ``g(z)·y = z·centred(scale ⊙ y)``."""
    unit = y / y.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny)
    if scale is None:
        return unit
    scaled = unit * scale
    return scaled - scaled.mean(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Parts:
    """The modules of one layer. seen: the module where y is seen, as its output or (``before``) as what it gets."""

    projection: Any
    norm: Any
    seen: Any
    before: bool


def parts_of(model: Any, path: str) -> Parts | None:
    """The parts around the attention module at this path; None where no form fits."""
    attention = model.get_submodule(path)
    above = model.get_submodule(path.rpartition(".")[0])
    layer = model.get_submodule(layer_path(path))
    output = getattr(above, "output", None)
    if output is not None and hasattr(output, "dense") and hasattr(output, "LayerNorm"):  # BERT and its kin
        return Parts(output.dense, output.LayerNorm, output, False)
    if hasattr(attention, "out_lin") and hasattr(layer, "sa_layer_norm"):  # DistilBERT
        return Parts(attention.out_lin, layer.sa_layer_norm, layer.sa_layer_norm, False)
    if hasattr(attention, "dense") and hasattr(attention, "LayerNorm"):  # ALBERT
        return Parts(attention.dense, attention.LayerNorm, attention.LayerNorm, False)
    if hasattr(attention, "c_proj") and hasattr(layer, "ln_2"):  # GPT-2
        return Parts(attention.c_proj, None, layer.ln_2, True)
    if hasattr(attention, "o_proj") and hasattr(layer, "post_attention_layernorm"):  # Llama and its kin
        return Parts(attention.o_proj, None, layer.post_attention_layernorm, True)
    return None


def layer_path(path: str) -> str:
    """The path of the layer that holds an attention module: up to the last number; empty where there is none."""
    names = path.split(".")
    last = max((i for i, name in enumerate(names) if name.isdigit()), default=-1)
    return ".".join(names[: last + 1])


@contextmanager
def watched(parts: Parts, into: list[Tensor], listening: Any) -> Iterator[None]:
    """While it lasts, every y of this layer goes into the list, if ``listening()``."""

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
    """The parts as numbers; or what is wrong with them.

    weights [..., head, query, key], values [..., head, key, size], states and y [..., position, width]: of one text, or of
    many with an axis in front.
    """
    heads, _, size = values.shape[-3:]
    parameters = matrix_of(parts.projection, heads * size)
    if parameters is None:
        return NO_MATRIX
    matrix, bias = (x.detach().to(values) for x in parameters)
    projection = matrix.reshape(heads, size, -1)
    o = torch.einsum("...hqk,...hks,hsw->...qw", weights, values, projection) + bias
    if o.shape != states.shape or y.shape != states.shape:
        return f"the states are {tuple(states.shape)} and what attention adds is {tuple(o.shape)}"
    scale, expected = normed(parts.norm, states + o)
    gap = float(far_off(expected, y))
    return Sublayer(projection, bias, y, scale) if gap <= slack else off_by(gap)


def normed(norm: Any, total: Tensor) -> tuple[Tensor | None, Tensor]:
    """What the norm after an addition multiplies centred vectors by, and what it gives; nothing and the sum without one."""
    if norm is None:
        return None, total
    scale = norm.weight.detach().to(total) / torch.sqrt(total.var(-1, correction=0, keepdim=True) + norm.eps)
    return scale, (total - total.mean(-1, keepdim=True)) * scale + norm.bias.detach().to(total)


def far_off(expected: Tensor, y: Tensor) -> Tensor:
    """The largest difference as a part of y, position by position: one with large entries, as first tokens have them,
    would hide what is wrong at others."""
    return ((expected - y).norm(dim=-1) / y.norm(dim=-1).clamp(min=1e-30)).max()


def off_by(gap: float) -> str:
    return f"projecting, adding and norming as {FORMS} do is off by {gap:.2g} of what the layer computes"


def refused(why: str, instead: str) -> ModelError:
    """The refusal of edges that are made of a layer's parts. instead: the edges that do without them."""
    return ModelError(
        f"these edges need to know how a layer projects, adds and norms what attention gives, and {why}: {instead}"
    )


def matrix_of(module: Any, width: int) -> tuple[Tensor, Tensor] | None:
    """[in, out] and the bias of a linear map: `Linear` stores the transpose, GPT-2's `Conv1D` does not."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point() or weight.is_meta:
        return None  # packed, or offloaded
    matrix = weight.T if isinstance(module, torch.nn.Linear) else weight
    if matrix.shape[0] != width:
        return None
    bias = getattr(module, "bias", None)
    return matrix, torch.zeros_like(matrix[0]) if bias is None else bias
