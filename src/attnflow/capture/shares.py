"""Own shares: how much of a state comes from itself rather than from attention, measured while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Call, Collector, is_collecting
from attnflow.capture.routes import EAGER
from attnflow.capture.sublayer import Parts, layer_path, parts_of

MANY = 1 << 16
"""Layers wait until their states have this many numbers together: for few numbers, calls cost more than sums."""

LOOKED_AT = 8
"""Positions to compare: the form of a layer is the same at every position, so a few of them suffice."""

Form = tuple[Any, Parts]
"""A layer and the parts around its attention."""


def own_share(x: Tensor, o: Tensor, y: Tensor, norms: Sequence[Any] = ()) -> tuple[Tensor, Tensor]:
    """Compute own shares ``p(x) / (p(x) + p(o))`` with ``p(z) = max(0, ‖y‖₁ - ‖y - z‖₁)`` and ``y = x + o``.

    x is the residual stream, and o is what attention adds to it. How near a part comes to the whole is its share in
    ALTI (Ferrando et al. 2022, Eq. 9) and in information flow routes (Ferrando & Voita 2024). If a norm follows the
    addition, y is its output, and the parts pass through it with its scale held constant. If both parts are farther
    from y than zero is, the nearer one has the larger share, ``‖y - o‖₁ / (‖y - x‖₁ + ‖y - o‖₁)``.

    x, o, y: [layer, text, position, width].
    norms: the module of each layer, if a norm follows.

    Returns the shares [layer, text, position], and by how much of ‖y‖₁ the parts miss y, at the worst of some
    positions.
    """
    if norms:
        gamma, beta = (torch.stack([getattr(norm, name) for norm in norms]) for name in ("weight", "bias"))
        gamma, beta = (z.detach()[:, None, None].to(y) for z in (gamma, beta))  # [layer, 1, 1, width]
        total = x + o
        size = gamma / torch.sqrt(total.var(-1, correction=0, keepdim=True) + norms[0].eps)
        x, o = (x - x.mean(-1, keepdim=True)) * size, (o - o.mean(-1, keepdim=True)) * size
        without_x, without_o = o + beta, x + beta
    else:
        without_x, without_o = o, x
    whole, far_x, far_o = _length(y), _length(without_x), _length(without_o)
    near_x, near_o = (whole - far_x).clamp(min=0), (whole - far_o).clamp(min=0)
    none = (near_x + near_o) == 0
    part, rest = torch.where(none, far_o, near_x), torch.where(none, far_x, near_o)
    still = (part + rest) == 0  # nothing was there and nothing is added
    # position by position: one with large entries, such as the first token, would hide errors at others
    some, last = (slice(None), slice(None), slice(-LOOKED_AT, None)), slice(-LOOKED_AT, None)
    gap = (_length(x[some] + without_x[some] - y[some]) / whole[..., last].clamp(min=1e-30)).max()
    return torch.where(still, 1, part / torch.where(still, 1, part + rest)), gap


def _length(z: Tensor) -> Tensor:
    if z.is_cuda:  # reads its input once, in any precision, and sums in single precision
        return torch.linalg.vector_norm(z, 1, -1, dtype=torch.float64 if z.dtype == torch.float64 else torch.float32)
    return z.abs().sum(-1)  # several times as fast on a CPU


@dataclass
class Additions:
    """The observed additions of layers, in the order of the passes through them.

    shares: [text, position] of each.
    pending: x, o, y and the norm of layers that wait to be measured together.
    """

    shares: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    pending: list[tuple[Tensor, Tensor, Tensor, Any]] = field(default_factory=list)
    slack: float = 1e-4

    def add(self, x: Any, o: Any, y: Any, norm: Any) -> None:
        if not all(isinstance(z, Tensor) and z.dim() == 3 and z.shape == y.shape for z in (x, o, y)):
            return  # one is missing; the wrong count is noticed at the end
        x, o = x.to(y.device), o.to(y.device)  # the state that enters the first layer of a device comes from another
        if self.pending and self.pending[-1][2].device != y.device:
            self.measure()
        self.slack = 0.03 if half(y.dtype) else 1e-4
        self.pending.append((x, o, y, norm))
        if len(self.pending) * y.numel() >= MANY:
            self.measure()

    def measure(self) -> None:
        if not self.pending:
            return
        *states, norms = zip(*self.pending, strict=True)
        self.pending.clear()
        with torch._C.DisableTorchFunction(), torch.no_grad():  # the mode that holds norms constant need not see these
            x, o, y = (torch.stack(of_layers) if len(of_layers) > 1 else of_layers[0][None] for of_layers in states)
            some = [norm for norm in norms if norm is not None]
            if y.dtype != torch.float64 and (some or not y.is_cuda):  # sums of sizes need no copy
                x, o, y = x.float(), o.float(), y.float()
            shares, gap = own_share(x, o, y, some)
        self.shares += shares.detach()
        self.gaps.append(gap)

    def right(self) -> bool:
        """Return whether all additions match the form of the layers."""
        return bool(self.gaps) and bool(
            torch.stack([gap.to(self.gaps[0].device) for gap in self.gaps]).max() <= self.slack
        )


@contextmanager
def measuring(
    forms: Sequence[Form], checked: Checked, collector: Collector
) -> Iterator[Callable[[Sequence[Call]], None]]:
    """Observe the layers while active; the yielded function then writes the results into the calls.

    If the form of a layer is unknown, or its numbers do not match the form, the calls stay as they are.
    """
    additions = Additions()

    def write(calls: Sequence[Call]) -> None:
        additions.measure()
        if len(additions.shares) == len(checked.stack.main) and additions.right():
            for number, share in zip(checked.stack.main, additions.shares, strict=True):
                mean = calls[number].mean
                calls[number].own = share if mean is None else share.to(mean.device)

    with ExitStack() as stack:
        for layer, parts in forms:
            stack.enter_context(watching_layer(layer, parts, additions.add, collector))
        yield write


def forms_of(model: Any, checked: Checked) -> tuple[Form, ...]:
    """Return the layers with the parts of each; empty if any has no known form."""
    if checked.route == EAGER or checked.stack.cross:
        return ()
    forms: dict[str, Form] = {}  # by path: ALBERT shares layers
    for number in checked.stack.main:
        path = layer_path(checked.paths[number])
        parts = parts_of(model, checked.paths[number]) if path else None
        offloaded = parts is not None and parts.norm is not None and parts.norm.weight.is_meta
        if parts is None or offloaded:
            return ()
        forms[path] = model.get_submodule(path), parts
    return tuple(forms.values())


@contextmanager
def watching_layer(
    layer: Any, parts: Parts, add: Callable[[Any, Any, Any, Any], None], collector: Collector
) -> Iterator[None]:
    """Call ``add(x, o, y, norm)`` for every addition of a layer while active, with the state before, what attention
    adds, the result, and the norm after it."""
    x: Any = None
    o: Any = None

    def enter(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal x
        if is_collecting(collector):  # hooks see the passes of all threads
            x = args[0] if args else named.get("hidden_states")

    def project(module: Any, args: Any, out: Any) -> None:
        nonlocal o
        if is_collecting(collector):
            o = out

    def see(module: Any, args: Any, out: Any = None) -> None:
        nonlocal x, o
        if is_collecting(collector):
            add(x, o, args[0] if parts.before else out, parts.norm)
            x = o = None

    with ExitStack() as stack:
        stack.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
        stack.callback(parts.projection.register_forward_hook(project).remove)
        see_at = parts.seen.register_forward_pre_hook if parts.before else parts.seen.register_forward_hook
        stack.callback(see_at(see).remove)
        yield
