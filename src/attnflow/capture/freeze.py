"""What makes a forward pass linear in its states: norm scales, gates and attention weights become constants.

A norm multiplies by a scale, an activation by a gate (``gelu(x)/x``; of a gated network, ``silu(gate)``), attention mixes
values by weights. With these held at what they were, every layer is a linear map plus its biases, and gradients through it
are exact parts of the output. Values stay what the model computes; only derivatives change. Whether a model is linear
then is never assumed: `attnflow.capture.frozen` compares the sum of the parts with the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from torch.overrides import TorchFunctionMode


class _Gated(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``f(x)`` whose derivative is the gate ``f(x)/x``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward(x, out)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, out = ctx.saved_tensors
        return gradient * torch.where(x == 0, torch.zeros_like(out), out / x), None


class _Normed(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``(x - mean(x))·scale·weight + bias`` whose derivative takes the scale as a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        out, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.axes = tuple(range(-len(shape), 0))
        ctx.save_for_backward(scale, weight)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scale, weight = ctx.saved_tensors
        inner = gradient if weight is None else gradient * weight
        inner = (inner - inner.mean(ctx.axes, keepdim=True)) * scale.to(inner.dtype)
        others = tuple(range(gradient.dim() - len(ctx.axes)))
        return inner, None, None, gradient.sum(others) if ctx.needs_input_grad[3] else None, None


_F, _T = functional, torch.Tensor
_SCALES = {torch.rsqrt, _T.rsqrt, torch.sqrt, _T.sqrt, torch.std, _T.std, torch.norm, _T.norm, torch.linalg.vector_norm}
_SIGMOIDS = {torch.sigmoid, _T.sigmoid, _F.sigmoid}
_ROUTING = {torch.softmax, _T.softmax, _F.softmax}
_ACTIVATIONS = {
    _F.silu, _F.gelu, _F.relu, torch.relu, _T.relu, _F.leaky_relu, _F.mish, _F.hardswish, _F.relu6, torch.tanh, _T.tanh,
    _F.tanh, torch.erf, _T.erf,
}  # fmt: skip
_CLIPS = {torch.clamp, _T.clamp, torch.clip, _T.clip}
_POWERS = {torch.pow, _T.pow, _T.__pow__, torch.square, _T.square}
_PRODUCTS = {torch.mul, _T.mul, _T.__mul__, _T.__rmul__, _T.mul_, _T.__imul__}
_SUMS = {torch.add, _T.add, _T.__add__, _T.__radd__, _T.__iadd__}
_DIFFERENCES = {torch.sub, _T.sub, _T.__sub__, _T.__isub__}
_CASTS = {_T.float, _T.to}
_SAME = {_T.to, _T.float, _T.type_as, torch.div, _T.div, _T.__truediv__}
_GATE = "_attnflow_gate"


class Freeze(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """While active, scales and gates are constants to autograd, and so are all parameters.

    constants: what is added to states and does not come from them (biases), as leaves that collect gradients.
    within: whether a layer runs whose states nobody can tell by their gradients, because there are none; then too they
    keep their precision, so that the layer gives the same when it runs again with gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.constants: list[Tensor] = []
        self.within = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() or getattr(func, "__name__", "") == "__get__":
            kept = self.within and _narrows(func, args, kwargs) and not isinstance(args[0], Parameter)
            return args[0] if kept else func(*args, **kwargs)
        args = tuple(x.detach() if isinstance(x, Parameter) else x for x in args)
        kwargs = {name: x.detach() if isinstance(x, Parameter) else x for name, x in kwargs.items()}
        if _narrows(func, args, kwargs) and _depends(args[0]):
            return args[0]  # norms of double-precision models that compute in single would round what is linear
        if func is _F.linear:
            return self._linear(*args, **kwargs)
        if func is torch.addmm:
            return self._addmm(*args, **kwargs)
        if func is _F.layer_norm:
            return self._layer_norm(*args, **kwargs)
        if func is _F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func in _SCALES or func in _ROUTING:
            return func(*args, **kwargs).detach()
        if func in _SIGMOIDS:  # a gate in itself
            return _marked(func(*args, **kwargs).detach())
        if func in _ACTIVATIONS or func in _CLIPS or func in _POWERS:
            return _gated(func, args, kwargs)
        if func in _PRODUCTS:
            return _product(func, args, kwargs)
        if (func in _SUMS or func in _DIFFERENCES) and len(args) == 2 and not kwargs:
            return self._sum(func, *args)
        out = func(*args, **kwargs)
        return _marked(out) if func in _SAME and getattr(args[0], _GATE, False) and not _depends(args[-1]) else out

    def _leaf(self, constant: Tensor | float, like: Tensor) -> Tensor:
        """A constant that is added to states, as a leaf of its own."""
        leaf = torch.as_tensor(constant, dtype=None if isinstance(constant, Tensor) else like.dtype, device=like.device)
        leaf = leaf.detach().requires_grad_()
        self.constants.append(leaf)
        return leaf

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        leaf = bias if bias is None or not input.requires_grad else self._leaf(bias, input)
        return _F.linear(input, weight, leaf)

    def _addmm(self, input: Tensor, mat1: Tensor, mat2: Tensor, **kwargs: Any) -> Tensor:
        bias = self._leaf(input, mat1) if mat1.requires_grad and not input.requires_grad else input
        return torch.addmm(bias, mat1, mat2, **kwargs)

    def _layer_norm(
        self, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if not input.requires_grad:
            return _F.layer_norm(input, normalized_shape, weight, bias, eps)
        leaf = None if bias is None else self._leaf(bias, input)
        out: Tensor = _Normed.apply(input, tuple(normalized_shape), weight, leaf, eps)
        return out

    def _sum(self, func: Callable[..., Any], first: Any, second: Any) -> Tensor:
        """States plus a constant: what the constant gives is counted. A gate plus a constant is a gate."""
        for states, other in ((first, second), (second, first)):
            if getattr(states, _GATE, False) and not _depends(other):
                return _marked(func(first, second))
        if _depends(first) and not _depends(second):
            second = self._leaf(second, first) if _floats(second) else second
        elif _depends(second) and not _depends(first):
            first = self._leaf(first, second) if _floats(first) else first
        out: Tensor = func(first, second)
        return out


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    floor = torch.finfo(input.dtype).eps if eps is None else eps
    scale = torch.rsqrt(input.detach().pow(2).mean(axes, keepdim=True) + floor)
    return input * scale if weight is None else input * scale * weight


def _gated(func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
    """``f(x)`` with a constant gate; a power that is no product, as in ``(variance + eps) ** -0.5``, is a scale."""
    x = args[0]
    if not _depends(x):
        out: Tensor = func(*args, **kwargs)
        return out
    with torch.no_grad():
        out = func(*args, **kwargs)
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent", 2)
    if func in _POWERS and not (isinstance(exponent, int | float) and exponent >= 1):
        return out
    gated: Tensor = _Gated.apply(x, out)
    return _marked(gated) if func in _ACTIVATIONS else gated


def _product(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Of two factors that both depend on the states, the one that came out of an activation is the gate."""
    if len(args) == 2 and all(_depends(x) for x in args):
        gates = [getattr(x, _GATE, False) for x in args]
        if any(gates):
            number = gates.index(True)
            return torch.mul(*(x.detach() if i == number else x for i, x in enumerate(args)))
        return func(*args, **kwargs)
    out = func(*args, **kwargs)
    return _marked(out) if any(getattr(x, _GATE, False) for x in args) else out


def _narrows(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether numbers in double precision are about to be cast to single."""
    if func not in _CASTS or args[0].dtype != torch.float64:
        return False
    return func is _T.float or torch.float32 in args[1:] or kwargs.get("dtype") == torch.float32


def _depends(x: Any) -> bool:
    """Whether it comes from the states: they alone require gradients here."""
    return isinstance(x, Tensor) and x.requires_grad


def _floats(x: Any) -> bool:
    return isinstance(x, float | int) or (isinstance(x, Tensor) and x.is_floating_point())


def _marked(x: Tensor) -> Tensor:
    """Remembers that a tensor came out of an activation, so that a product may take it as its gate."""
    setattr(x, _GATE, True)
    return x
