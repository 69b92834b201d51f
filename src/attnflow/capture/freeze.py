"""Linearization of a forward pass in its states: norm scales, gates and attention weights become constants.

A norm multiplies by a scale, an activation by a gate (``gelu(x)/x``; in a gated network, ``silu(gate)``), and attention
mixes values by weights. With these held constant, every layer is a linear map plus its biases, and gradients through it
are exact parts of the output. Values stay what the model computes; only derivatives change. `attnflow.capture.frozen`
never assumes that the model is then linear: it compares the sum of the parts with the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
        gate = (out / x).masked_fill_(x == 0, 0)  # in place: these are the largest tensors of a pass
        return gate.mul_(gradient), None


class _Normed(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``(x - mean(x))·scale·weight + bias`` whose derivative treats the scale as a constant."""

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


@dataclass(eq=False)
class Notes:
    """Contributions of constants to the score of each text of a batch, recorded during the backward pass.

    Texts share their biases, so the gradient of a bias alone would mix all texts.

    texts: how many there are.
    parts: [text], for each constant.
    unsplit, leaves: numbers for all texts together, and leaves without an axis for texts. These belong to constants
        that are added to states in another order than that of the texts, such as the tokens of an expert.
    """

    texts: int
    leaves: list[Tensor] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    unsplit: list[Tensor] = field(default_factory=list)

    def add(self, gradient: Tensor, constant: Tensor) -> None:
        """Record the contribution of a constant.

        gradient: [..., width], of the sum with a constant [width]; its rows are those of the texts in turn.
        """
        rows = gradient.reshape(-1, gradient.shape[-1]) @ constant.to(gradient.dtype)
        if len(rows) % self.texts:
            self.unsplit.append(rows.sum(dtype=torch.float64))
        else:
            self.parts.append(rows.reshape(self.texts, -1).sum(1, dtype=torch.float64))


class _Noted(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """Passes the output of a function that adds a constant on unchanged, and records its gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, constant: Tensor, notes: Notes) -> Tensor:
        ctx.notes = notes
        ctx.save_for_backward(constant)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (constant,) = ctx.saved_tensors
        ctx.notes.add(gradient, constant)
        return gradient, None, None


_F, _T = functional, torch.Tensor
_SCALES = {torch.rsqrt, _T.rsqrt, torch.sqrt, _T.sqrt, torch.std, _T.std, torch.norm, _T.norm, torch.linalg.vector_norm}
_SIGMOIDS = {torch.sigmoid, _T.sigmoid, _F.sigmoid, _F.softplus}
_ROUTING = {torch.softmax, _T.softmax, _F.softmax}
_ACTIVATIONS = {
    _F.silu, _F.gelu, _F.relu, torch.relu, _T.relu, _F.leaky_relu, _F.mish, _F.hardswish, _F.relu6, torch.tanh, _T.tanh,
    _F.tanh, torch.erf, _T.erf,
}  # fmt: skip
_CLIPS = {torch.clamp, _T.clamp, torch.clip, _T.clip}
_POWERS = {torch.pow, _T.pow, _T.__pow__, torch.square, _T.square}
_MEANS = {torch.mean, _T.mean}
_PRODUCTS = {torch.mul, _T.mul, _T.__mul__, _T.__rmul__, _T.mul_, _T.__imul__}
_SUMS = {torch.add, _T.add, _T.add_, _T.__add__, _T.__radd__, _T.__iadd__}
_DIFFERENCES = {torch.sub, _T.sub, _T.__sub__, _T.__isub__}
_CASTS = {_T.float, _T.to}
_SAME = {_T.type_as, torch.div, _T.div, _T.__truediv__}
_VIEWS = {
    _T.view, _T.reshape, _T.transpose, _T.permute, _T.contiguous, _T.unsqueeze, _T.expand, _T.chunk, _T.flatten,
    _T.__getitem__, torch.transpose, torch.reshape, torch.unsqueeze,
}  # fmt: skip
_READS = {
    getattr(_T, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "requires_grad",
        "is_leaf",
        "ndim",
        "is_cuda",
        "layout",
        "grad_fn",
        "is_meta",
    )
} | {
    _T.size,
    _T.dim,
    _T.numel,
    _T.is_floating_point,
    _T.stride,
    _T.is_contiguous,
    _T.__len__,
    _T.detach,
    _T.element_size,
    _T.register_post_accumulate_grad_hook,
}
_GATE = "_attnflow_gate"
_SOURCE = "_attnflow_source"


class Freeze(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """While active, scales, gates and all parameters are constants to autograd.

    constants: what is added to states without coming from them (biases), as leaves that collect gradients.

    Every function that a model calls comes through here, and on a GPU a short pass spends most of its time calling
    them, so the usual functions take a short path. The output of an activation or a power waits (`_waiting`) until its
    use shows what it is: the gate of a product, part of a norm's scale, or a state.

    within: whether a layer runs without gradients, so that its states cannot be recognised by them. They still keep
        their precision, so that the layer gives the same when it runs again with gradients.

    notes: for a batch, records the contribution of constants to each text. A leaf then has a leading axis for texts,
        and a bias inside a larger function is recorded instead, because a leaf of that shape would be added separately.
    """

    def __init__(self, notes: Notes | None = None) -> None:
        super().__init__()
        self.constants: list[Tensor] = []
        self.within = False
        self.notes = notes

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _RULES.get(func, _any)
        if rule is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if not torch.is_grad_enabled():
            kept = (
                self.within and rule is _cast and _narrows(func, args, kwargs or {}) and type(args[0]) is not Parameter
            )
            return args[0] if kept else func(*args, **(kwargs or {}))
        return rule(self, func, args, kwargs or {})

    def leaf(self, constant: Tensor | float, like: Tensor) -> Tensor:
        """Return a constant that is added to states as a separate leaf."""
        if isinstance(constant, Tensor):
            leaf = constant.detach().to(like.device).requires_grad_()
        else:  # filled on the device: a copy would wait for it
            leaf = torch.full((), constant, dtype=like.dtype, device=like.device, requires_grad=True)
        if self.notes is not None:
            return self._leaf_of_texts(leaf.detach(), like, self.notes)
        self.constants.append(leaf)
        return leaf

    def _leaf_of_texts(self, constant: Tensor, like: Tensor, notes: Notes) -> Tensor:
        """Return a leaf with an axis for texts, which takes no memory and collects the gradient of each text."""
        more = like.dim() - constant.dim()
        if more < 0 or not like.dim() or like.shape[0] != notes.texts:
            notes.leaves.append(constant.requires_grad_())
            return notes.leaves[-1]
        shape = ((1,) * more + tuple(constant.shape))[1:]
        self.constants.append(constant.reshape((-1, *shape)).expand(notes.texts, *shape).requires_grad_())
        return self.constants[-1]

    def with_bias(self, function: Callable[[Tensor | None], Tensor], bias: Tensor, input: Tensor) -> Tensor:
        """Call ``function(bias)`` on states and a bias along their last axis, and count the bias's contribution."""
        if self.notes is None:
            return function(self.leaf(bias, input))
        bias = bias.detach().to(input.device)
        out: Tensor = _Noted.apply(function(bias), bias, self.notes)
        return out


class Unchanging(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """While active, parameters are constants, so autograd keeps nothing for them."""

    within = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        args = tuple(x.detach() if isinstance(x, Parameter) else x for x in args)
        return func(*args, **{name: x.detach() if isinstance(x, Parameter) else x for name, x in kwargs.items()})


def _linear(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if len(args) != 3 or kwargs:  # called in an unusual way
        named = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
        args = (named["input"], named["weight"], named.get("bias"))
    input, weight, bias = _settled(args[0]), _settled(args[1]), args[2]
    if bias is not None and input.requires_grad:
        return freeze.with_bias(lambda leaf: func(input, weight, leaf), bias, input)
    return func(input, weight, _settled(bias))


def _addmm(freeze: Freeze, input: Tensor, mat1: Tensor, mat2: Tensor, **kwargs: Any) -> Tensor:
    if mat1.requires_grad and not input.requires_grad:
        if input.dim() == 1 and not kwargs:
            return freeze.with_bias(lambda leaf: torch.addmm(leaf, mat1, mat2), input, mat1)
        input = freeze.leaf(input, mat1)
    return torch.addmm(input, mat1, mat2, **kwargs)


def _layer_norm(
    freeze: Freeze, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if not input.requires_grad:
        return _F.layer_norm(input, normalized_shape, weight, bias, eps)

    def normed(leaf: Tensor | None) -> Tensor:
        out: Tensor = _Normed.apply(input, tuple(normalized_shape), weight, leaf, eps)
        return out

    return normed(None) if bias is None else freeze.with_bias(normed, bias, input)


def _rms_norm(
    freeze: Freeze, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    floor = torch.finfo(input.dtype).eps if eps is None else eps
    scale = torch.rsqrt(input.detach().pow(2).mean(axes, keepdim=True) + floor)
    return input * scale if weight is None else input * scale * weight


Rule = Callable[[Freeze, Callable[..., Any], Any, Any], Any]


def _settled(x: Any) -> Any:
    """Prepare an argument: parameters become constants, and a waiting value becomes a state with its gate."""
    kind = type(x)
    if kind is Tensor:
        source = getattr(x, _SOURCE, None)
        return x if source is None else _with_gate(x, source)
    if kind is Parameter:
        return x.detach()
    if kind is list or kind is tuple:
        return kind(map(_settled, x))
    return x.detach() if isinstance(x, Parameter) else x


def _with_gate(out: Tensor, x: Tensor) -> Tensor:
    """Turn a waiting value into a state. Nothing refers back to it, so it is freed with the pass."""
    gated: Tensor = _Gated.apply(x, out)
    return _marked(gated) if getattr(out, _GATE, False) else gated


def _any(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if getattr(func, "__name__", "") == "__get__" and getattr(args[0], _SOURCE, None) is None:
        return func(*args, **kwargs)
    args = map(_settled, args)
    return func(*args, **{name: _settled(x) for name, x in kwargs.items()}) if kwargs else func(*args)


def _view(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    if type(x) is not Tensor or getattr(x, _SOURCE, None) is not None:
        return _any(freeze, func, args, kwargs)
    return func(*args, **kwargs)


def _own(function: Callable[..., Tensor]) -> Rule:
    """Return the rule for a function that we implement ourselves."""

    def rule(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        return function(freeze, *map(_settled, args), **{name: _settled(x) for name, x in kwargs.items()})

    return rule


def _scale(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return _any(freeze, func, args, kwargs).detach()


def _sigmoid(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return _marked(_any(freeze, func, args, kwargs).detach())  # it is itself a gate


def _mean(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Treat the mean of a power as a constant: it belongs to a norm."""
    x = args[0]
    if type(x) is Tensor and getattr(x, _SOURCE, None) is not None and not getattr(x, _GATE, False):
        return func(*args, **kwargs)
    return _any(freeze, func, args, kwargs)


def _cast(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = _settled(args[0])
    if _depends(x) and _narrows(func, args, kwargs):
        return x  # norms that compute in single precision would round what is linear in a double-precision model
    out = func(x, *args[1:], **kwargs)
    return _marked(out) if getattr(x, _GATE, False) and out is not x else out


def _same(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Divide; a gate divided by a constant is a gate."""
    args = tuple(map(_settled, args))
    out = func(*args, **kwargs)
    return _marked(out) if getattr(args[0], _GATE, False) and not _depends(args[-1]) else out


def _sum(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Add; count the contribution of a constant added to states. A gate plus a constant is a gate."""
    if len(args) != 2 or kwargs:
        return _any(freeze, func, args, kwargs)
    first, second = _settled(args[0]), _settled(args[1])
    one, other = _depends(first), _depends(second)
    if one == other:  # two states, as in the residual connection, or two constants
        marked = not one and (getattr(first, _GATE, False) or getattr(second, _GATE, False))
        return _marked(func(first, second)) if marked else func(first, second)
    if getattr(first if one else second, _GATE, False):
        return _marked(func(first, second))
    if one and _floats(second):
        second = freeze.leaf(second, first)
    elif other and _floats(first):
        first = freeze.leaf(first, second)
    return func(first, second)


def _gated(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Compute ``f(x)`` with a constant gate. Powers such as ``(variance + eps) ** -0.5`` are scales."""
    x = _settled(args[0])
    if not _depends(x):
        return func(*map(_settled, args), **kwargs)
    out = func(x.detach(), *(y.detach() if isinstance(y, Tensor) else y for y in args[1:]), **kwargs)
    if func in _POWERS:
        exponent = args[1] if len(args) > 1 else kwargs.get("exponent", 2)
        if not (isinstance(exponent, int | float) and exponent >= 1):
            return out
    # a power of an activation is an activation too
    return _waiting(out, x, func in _ACTIVATIONS or getattr(x, _GATE, False))


def _product(freeze: Freeze, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Multiply; of two factors that both depend on the states, the output of an activation is the gate."""
    if len(args) != 2 or kwargs:
        return _any(freeze, func, args, kwargs)
    first, second = args
    one, other = getattr(first, _GATE, False), getattr(second, _GATE, False)
    if one and getattr(first, _SOURCE, None) is not None and not other and _depends(second):
        return torch.mul(first.detach(), second)  # it waited to be a gate, and is one, so its source can be freed
    if other and getattr(second, _SOURCE, None) is not None and not one and _depends(first):
        return torch.mul(first, second.detach())
    first, second = _settled(first), _settled(second)
    if _depends(first) and _depends(second):
        if one:
            return torch.mul(first.detach(), second)
        return torch.mul(first, second.detach()) if other else func(first, second)
    out = func(first, second)
    return _marked(out) if one or other else out


def _waiting(out: Tensor, x: Tensor, activation: bool) -> Tensor:
    """Mark a value without a derivative. It gets one in `_settled`, unless it becomes a gate or part of a scale."""
    setattr(out, _SOURCE, x)
    return _marked(out) if activation else out


def _narrows(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Return whether double-precision numbers are about to be cast to single precision."""
    if args[0].dtype != torch.float64:
        return False
    return func is _T.float or torch.float32 in args[1:] or kwargs.get("dtype") == torch.float32


def _depends(x: Any) -> bool:
    """Return whether a value comes from the states: only they require gradients here."""
    return isinstance(x, Tensor) and x.requires_grad


def _floats(x: Any) -> bool:
    return isinstance(x, float | int) or (isinstance(x, Tensor) and x.is_floating_point())


def _marked(x: Tensor) -> Tensor:
    """Mark a tensor as the output of an activation, so that a product may use it as its gate."""
    setattr(x, _GATE, True)
    return x


_RULES: dict[Callable[..., Any], Rule | None] = {
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_READS, None),
    **dict.fromkeys(_SCALES | _ROUTING, _scale),
    **dict.fromkeys(_SIGMOIDS, _sigmoid),
    **dict.fromkeys(_ACTIVATIONS | _CLIPS | _POWERS, _gated),
    **dict.fromkeys(_MEANS, _mean),
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_SUMS | _DIFFERENCES, _sum),
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(_SAME, _same),
    _F.linear: _linear,
    torch.addmm: _own(_addmm),
    _F.layer_norm: _own(_layer_norm),
    _F.rms_norm: _own(_rms_norm),
}
