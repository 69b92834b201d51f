"""A simulated second device: tensors stay on the CPU, but those of different places must not be combined.

This shows without GPUs whether code for one device would work on two. Results are at the place of their inputs, and
`Tensor.to` moves tensors. New tensors may be combined with all others, which a GPU does not always allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

HOME, ELSEWHERE = torch.device("cpu"), torch.device("privateuseone", 1)
_DEVICE = Tensor.device.__get__
_COPIES = {torch.ops.aten.copy_.default}


class Places:
    """While active, tensors have places. moves: how many tensors changed place."""

    def __init__(self) -> None:
        self.known: dict[int, torch.device] = {}
        self.alive: list[Any] = []  # prevents reuse of freed memory, which would keep its place
        self.moves = 0

    def __enter__(self) -> Places:
        self.stack = ExitStack()
        self.stack.enter_context(_Checking(self))
        self.stack.enter_context(_Telling(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()

    def of(self, x: Any) -> torch.device | None:
        return self.known.get(x.untyped_storage()._cdata) if isinstance(x, Tensor) else None

    def tell(self, x: Any, place: torch.device) -> None:
        if isinstance(x, Tensor):
            storage = x.untyped_storage()
            self.known.setdefault(storage._cdata, place)
            self.alive.append(storage)

    def place(self, model: torch.nn.Module, paths: Sequence[str]) -> None:
        """Put these modules elsewhere, with hooks that move their inputs like accelerate's."""
        for path in paths:
            module = model.get_submodule(path)
            for x in (*module.parameters(), *module.buffers()):
                self.tell(x, ELSEWHERE)
            module.forward = self._moving(module.forward, ELSEWHERE)
        for x in (*model.parameters(), *model.buffers()):
            self.tell(x, HOME)  # except those elsewhere
        for module in (m for path, m in model.named_modules() if path.endswith("norm") and path.count(".") == 1):
            module.forward = self._moving(module.forward, HOME)

    def _moving(self, forward: Any, place: torch.device) -> Any:
        def moved(*args: Any, **named: Any) -> Any:
            cache = named.pop("past_key_values", None)  # stays with its layers
            args, named = tree_map(lambda x: x.to(place) if isinstance(x, Tensor) else x, (args, named))
            return forward(*args, **named, **({} if cache is None else {"past_key_values": cache}))

        return moved

    def moved(self, x: Tensor, place: torch.device) -> Tensor:
        if self.of(x) in (place, None) and not (self.of(x) is None and place == ELSEWHERE):
            return x
        self.moves += 1
        out: Tensor = _Move.apply(x, self, place)
        return out


class _Move(torch.autograd.Function):
    """A copy at another place, whose gradient returns to the original place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Places, place: torch.device) -> Tensor:
        ctx.places, ctx.place = places, places.of(x) or HOME
        return _copy(x, places, place)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _copy(gradient, ctx.places, ctx.place), None, None


def _copy(x: Tensor, places: Places, place: torch.device) -> Tensor:
    with torch._C._DisableTorchDispatch():
        out = x.detach().clone()
    places.tell(out, place)
    return out


def _grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    allow_unused: Any = None,
    **_: Any,
) -> Any:
    """Run `torch.autograd.grad` without its outermost step, during which no mode is active."""
    outputs, inputs, slopes = (
        x if isinstance(x, list | tuple) else (x,)
        for x in (outputs, inputs, 1 if grad_outputs is None else grad_outputs)
    )
    slopes = [torch.ones_like(y) if isinstance(g, int) else g for y, g in zip(outputs, slopes, strict=True)]
    run = torch.autograd.graph._engine_run_backward
    return run(
        tuple(outputs),
        tuple(slopes),
        bool(retain_graph),
        False,
        tuple(inputs),
        bool(allow_unused),
        accumulate_grad=False,
    )


class _Checking(TorchDispatchMode):
    """Check every operation, including gradients: all inputs must be at one place, and outputs are there too."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        places = {place for x in tensors if x.dim() and (place := self.places.of(x)) is not None}
        if len(places) > 1 and func not in _COPIES:
            shapes = ", ".join(f"{tuple(x.shape)} at {self.places.of(x)}" for x in tensors)
            raise AssertionError(f"{func} of two devices: {shapes}")
        out = func(*args, **(kwargs or {}))
        if len(places) == 1:
            for x in tree_leaves(out):
                self.places.tell(x, next(iter(places)))
        return out


class _Telling(TorchFunctionMode):
    """Intercept calls that ask where a tensor is, move it, or create one elsewhere."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.autograd.grad:
            with self:  # intercept its inner calls too
                return _grad(*args, **kwargs)
        if func == _DEVICE:
            return self.places.of(args[0]) or func(*args)
        if func is Tensor.numpy or func is Tensor.__array__:
            assert self.places.of(args[0]) != ELSEWHERE, "a tensor of another device has no array"
        if func is Tensor.cpu:
            return self.places.moved(args[0], HOME)
        targets = [x for x in (*args[1:], kwargs.get("device")) if isinstance(x, torch.device | str)]
        if func is Tensor.to:
            like = [self.places.of(x) or HOME for x in args[1:] if isinstance(x, Tensor)]
            rest = [x.dtype if isinstance(x, Tensor) else x for x in args[1:] if not isinstance(x, torch.device | str)]
            kwargs.pop("device", None)
            out = func(args[0], *rest, **kwargs) if rest or kwargs else args[0]
            where = [torch.device(x) for x in targets] + like
            return self.places.moved(out, where[0]) if where else out
        if kwargs.get("device") is not None and torch.device(kwargs["device"]) == ELSEWHERE:
            kwargs["device"] = HOME
            out = func(*args, **kwargs)
            self.places.tell(out, ELSEWHERE)
            return out
        return func(*args, **kwargs)
