"""What a forward pass keeps of each layer, so that its edges can be computed again without a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Call, Collector, is_collecting
from attnflow.capture.inputs import Encoded
from attnflow.capture.inside import check_inside, wide
from attnflow.capture.linear import Operands, squared_lengths
from attnflow.capture.routes import EAGER
from attnflow.capture.runner import Batch, Runner
from attnflow.capture.scores import Weighing, mixed
from attnflow.capture.sublayer import (
    FORMS,
    NO_MATRIX,
    Parts,
    direction_of,
    far_off,
    layer_path,
    matrix_of,
    normed,
    off_by,
    parts_of,
    refused,
)

PLAIN = "mean"
VALUED = ("head-norm", "projection")
"""Edges that need only what a layer's forward pass has at hand: attention, values and the sublayer's output."""

INSTEAD = 'edges="mean" does not need this'

NUMBERS = 1 << 24
"""Numbers of projected values or directions at a time."""

LOOKED_AT = 8
"""Positions to compare: the form of a layer is the same at every position, so a few of them suffice."""

Form = tuple[Any, Parts]
"""A layer and the parts around its attention."""

Descend = Callable[[], Iterator[Operands]]
"""Iterates over the layers from the top one down; each call starts again."""


@dataclass
class Keeper:
    """Takes from each attention call what its edges need, as soon as the model has computed it.

    edges: their name.
    layers: from the first one up.
    gaps: the difference between the parts of each layer and its output.
    problem: why there are no parts.
    """

    edges: str
    layers: list[Operands] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    problem: str = ""
    _call: Call | None = None

    def take(self, call: Call) -> None:
        """Take an attention call; edges from values wait for the layer's output."""
        if self.edges == PLAIN:
            self._keep(call, Weighing(1 / call.head_count), None)
        else:
            self._call = call

    def add(self, x: Any, o: Any, y: Any, norm: Any, projection: Any) -> None:
        """Add a layer's results for the last call: the state, the attention output, their sum, and the parts."""
        call, self._call = self._call, None
        if call is None or call.scores is None or call.value is None:
            self.problem = self.problem or "a layer does not have exactly one attention"
            return
        value, scores = call.value, call.scores
        parameters = matrix_of(projection, call.head_count * value.shape[-1])
        if parameters is None or not all(isinstance(z, Tensor) and z.shape == y.shape for z in (x, o, y)):
            self.problem = self.problem or (NO_MATRIX if parameters is None else "its additions were not seen")
            return
        x, o = x.to(y.device), o.to(y.device)  # the state that enters the first layer of a device comes from another
        matrix, bias = (wide(p).to(y.device) for p in parameters)
        by_head = matrix.reshape(call.head_count, value.shape[-1], -1)  # [head, size, width]
        last = slice(max(0, scores.queries - LOOKED_AT), None)
        heads = mixed(scores.weights(last.start, scores.queries), value).flatten(2)  # [batch, some, head·size]
        expected = normed(norm, wide(x[:, last]) + wide(heads) @ matrix + bias)[1]
        self.gaps.append(far_off(expected, wide(y[:, last])))
        if self.edges == "head-norm":
            self._keep(call, Weighing(1.0, lengths=projected_lengths(value, by_head)), lengths_of(x))
        else:
            seen, own = directions(x, o, y, norm, by_head, value.dtype)
            self._keep(call, Weighing(1.0, direction=seen, value=value), own)

    def _keep(self, call: Call, weighing: Weighing, own: Tensor | None) -> None:
        assert call.scores is not None
        operands = Operands(len(self.layers), call.scores, weighing, own)
        call.scores = call.value = None  # other references to the call must not keep the memory
        self.layers.append(operands)

    def check(self, model: Runner, count: int) -> None:
        """Check that the layers are what their form says, with one synchronization for all of them."""
        if self.edges == PLAIN:
            return
        if self.problem or len(self.layers) != count:
            raise refused(self.problem or unknown(model), INSTEAD)
        gap = float(torch.stack([gap.to(self.gaps[0].device) for gap in self.gaps]).max())
        if not gap <= (0.03 if half(model.dtype) else 1e-4):
            raise refused(off_by(gap), INSTEAD)

    def descend(self) -> Iterator[Operands]:
        return reversed(self.layers)


def unknown(model: Runner) -> str:
    return f"the layers of {type(model.model).__name__} are not built like those of {FORMS}"


def run_kept(model: Runner, encoded: Sequence[Encoded], checked: Checked, edges: str) -> tuple[Batch, Descend]:
    """Run texts that may run together in one forward pass; return the batch and the way down through what was kept."""
    keeper = Keeper(edges)
    collector = Collector("operands", keep=keeper.take)
    with ExitStack() as stack:
        if edges in VALUED:
            check_inside(model, checked)
            forms = forms_of(model.model, checked)
            if not forms:
                raise refused(unknown(model), INSTEAD)
            for layer, parts in forms:

                def add(x: Any, o: Any, y: Any, norm: Any, projection: Any = parts.projection) -> None:
                    keeper.add(x, o, y, norm, projection)

                stack.enter_context(watching_layer(layer, parts, add, collector))
        # sinks are recognized by attention, which these weights are not
        batch = model.run_batch(encoded, checked, collector=collector, measure=edges not in VALUED)
    keeper.check(model, len(checked.stack.main))
    return batch, keeper.descend


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


def lengths_of(states: Tensor) -> Tensor:
    """Return ``‖x‖`` of states [batch, position, width], in at least single precision."""
    wider = torch.float64 if states.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(states.detach(), dim=-1, dtype=wider)


def projected_lengths(value: Tensor, by_head: Tensor) -> Tensor:
    """Return ``‖v_k·W^h‖`` of values [batch, key head, key, size] and W [head, size, width]: [batch, head, key].

    It uses ``W·Wᵀ`` of each head and a few keys at a time, so nothing of size [head, key, width] is made.
    """
    batch, shared, keys, size = value.shape
    gram = by_head @ by_head.mT
    squared = squared_lengths(value, gram)
    if squared is not None:
        return squared.clamp_(min=0).sqrt_()
    gram = gram.reshape(shared, -1, size, size)
    step = max(1, NUMBERS // (batch * by_head.shape[0] * size))
    squares = []
    for some in value.split(step, dim=2):
        v = wide(some)[:, :, None]  # [batch, key head, 1, some, size]
        squares.append(((v @ gram) * v).sum(-1))
    return torch.cat(squares, dim=-1).clamp_(min=0).sqrt_().reshape(batch, by_head.shape[0], keys)


def directions(
    x: Tensor, o: Tensor, y: Tensor, norm: Any, by_head: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the direction of y for each head, [batch, head, query, size], and how far x points to y, [batch,
    query]."""
    batch, n, width = y.shape
    heads, size, _ = by_head.shape
    seen = y.new_empty(batch, heads, n, size, dtype=dtype)
    own = wide(y).new_empty(batch, n)
    for start in range(0, n, step := max(1, NUMBERS // (batch * width))):
        some = slice(start, start + step)
        states, whole = wide(x[:, some]), wide(y[:, some])
        scale = None if norm is None else normed(norm, states + wide(o[:, some]))[0]
        direction = direction_of(whole, scale)
        seen[:, :, some] = (direction @ by_head.flatten(0, 1).mT).unflatten(-1, (heads, size)).transpose(1, 2)
        own[:, some] = (direction * states).sum(-1).clamp(min=0)
    return seen, own
