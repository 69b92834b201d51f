"""Gradients of an answer layer by layer: of each layer only the states that enter it are kept, and nothing n×n is made.

One forward pass without gradients keeps these states; gradients begin at the output of the last layer, so that the head
gives ``∂y/∂x`` there. From the top down, each layer then runs again on its states, which gives the gradient of what its
attention puts out and ``∂y/∂x`` below it. With everything held constant (`attnflow.capture.freeze`) the same descent gives
answer edges, which are checked as `attnflow.capture.frozen` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from attnflow.capture import routes
from attnflow.capture.block_gradients import attention_with_gradient
from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Call, Collector, collecting, is_collecting
from attnflow.capture.freeze import Freeze
from attnflow.capture.frozen import SLACK, conserved, constant_part, holdings, product, slope_of
from attnflow.capture.inputs import Encoded
from attnflow.capture.layer_calls import output_of, states_of, with_output, with_states
from attnflow.capture.linear import Operands, attention_output
from attnflow.capture.offload import Lane, downwards
from attnflow.capture.runner import Batch, Runner
from attnflow.capture.scores import Scores, Weighing, scores_of
from attnflow.capture.sublayer import layer_path
from attnflow.errors import ModelError


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of a layer. states: [text, position, width], what entered. The other arguments are shared between layers."""

    module: Any
    states: Tensor
    args: tuple[Any, ...]
    named: Mapping[str, Any]

    def run(self, states: Tensor) -> Tensor:
        args, named = with_states(self.args, self.named, states)
        return output_of(self.module(*args, **named))


@dataclass(frozen=True)
class Conserved:
    """How a score splits: y, what biases and the score's own constant hold, and how far the parts are from y."""

    y: float
    constants: float
    gap: float


@dataclass(eq=False)
class Descent:
    """The way from an answer's score down through the layers, as often as one likes.

    calls: of the layers, from the input up; in host memory where there is a lane. top: what left the last layer.
    upstream: ∂y/∂top. constants, exact: of frozen passes, the parts of y that the head's biases and the score's constant
    hold. conserved: set by a whole descent.
    """

    model: Runner
    checked: Checked
    frozen: bool
    calls: Sequence[LayerCall]
    lane: Lane | None
    top: Tensor
    upstream: Tensor
    y: float
    constants: Tensor
    exact: float
    conserved: Conserved | None = field(default=None)

    def operands(self) -> Iterator[Operands]:
        """What each layer needs to pass rows down, from the top; no layer but the current one is in memory.

        The edges are ``mean_h relu(A ⊙ ∂y/∂A)``, since ∂y/∂A[q, k] is the product of the value at k with the gradient of
        what the head gives at q; frozen, ``Σ_h A[q, k]·v_k·∂y/∂o_q``, signed, with what the states below hold.
        """
        self.model.check_evaluating()
        routes.prepare(self.model.model, self.checked.route)  # in case it was unwrapped since
        above, upstream, biases = self.top, self.upstream, self.constants
        numbers = reversed(range(len(self.calls)))
        for number, call in zip(numbers, downwards(self.calls, self.lane), strict=True):
            layer, upstream, more = self._through(number, call, above, upstream)
            above, biases = call.states, biases + more.to(biases.device)
            del call
            if number == 0 and layer.holds is not None:  # before anybody has all of them
                self._check_conserved(layer.holds, float(biases))
            yield layer
            del layer

    def _check_conserved(self, own: Tensor, biases: float) -> None:
        name, none = type(self.model.model).__name__, torch.zeros((), dtype=torch.float64)
        gap = conserved(name, self.y, own, none, biases, self.exact, SLACK[self.model.dtype])
        self.conserved = Conserved(self.y, biases + self.exact, gap)

    def _through(
        self, number: int, call: LayerCall, above: Tensor, upstream: Tensor
    ) -> tuple[Operands, Tensor, Tensor]:
        """One layer run again: its operands, ∂y/∂x below it, and what its biases give."""
        attended: list[_Attended] = []
        collector = Collector("layers", attend=_attending(attended, self.frozen))
        freeze = Freeze() if self.frozen else _Unchanging()
        with torch.inference_mode(False), torch.enable_grad(), routes.running(), collecting(collector), freeze:
            x = call.states.detach().requires_grad_()
            out = call.run(x)
            constants = freeze.constants if isinstance(freeze, Freeze) else []
            gradients = torch.autograd.grad(out, [x, *constants], upstream, allow_unused=True)
        self._check_same(number, out.detach(), above, len(attended))
        one, below = attended[0], gradients[0]
        if below is None or one.gradient is None:
            raise ModelError(
                f"the output of layer {number} of {type(self.model.model).__name__} does not depend on its attention or "
                "its states, and edges are about them: trace it without edges"
            )
        direction = one.gradient.transpose(1, 2)  # [batch, head, query, size]
        if not self.frozen:
            weighing = Weighing(1 / direction.shape[1], direction=direction, value=one.value)
            return Operands(number, one.scores, weighing), below, self.constants.new_zeros(())
        weighing = Weighing(1.0, direction=direction, value=one.value, signed=True)
        layer = Operands(number, one.scores, weighing, holds=holdings(call.states, below))
        return layer, below, constant_part(constants, gradients[1:])

    def _check_same(self, number: int, out: Tensor, above: Tensor, attentions: int) -> None:
        name = type(self.model.model).__name__
        if attentions != 1:
            raise ModelError(
                f"layer {number} of {name} has {attentions} attention calls when it runs again, and edges without matrices "
                'are for layers with one: trace with memory="graph"'
            )
        if out.shape == above.shape:
            away = (out.float() - above.float()).norm(dim=-1) / above.float().norm(dim=-1).clamp(min=1e-30)
            gap = float(away.max())
        else:
            gap = float("inf")
        if not gap <= (0.03 if half(self.model.dtype) else 1e-4):
            raise ModelError(
                f"layer {number} of {name} gives other states when it runs again than the next one got, by {gap:.2g} of "
                "them: something passes between its layers besides the states, and gradients layer by layer would miss "
                'it. Trace with memory="graph"'
            )


@dataclass(frozen=True, eq=False)
class LayerPass:
    """A forward pass whose layers can run again. logits: of ``batch``; they come from ``top`` by autograd."""

    batch: Batch
    logits: Tensor
    frozen: bool
    calls: Sequence[LayerCall]
    lane: Lane | None
    top: Tensor
    constants: Sequence[Tensor]

    def descent(self, score: Callable[[Tensor], Tensor]) -> Descent:
        """The way down from ``score(logits)``, one number; once, because it lets the head's graph go."""
        name, outputs = type(self.batch.runner.model).__name__, self.logits
        with torch.inference_mode(False), torch.enable_grad(), routes.running():
            logits = outputs.detach().requires_grad_()
            y = score(logits)
            slope = slope_of(name, y, logits)
            leaves = [self.top, *self.constants]
            upstream, *others = torch.autograd.grad(outputs, leaves, slope.to(outputs.dtype), allow_unused=True)
        if upstream is None:
            raise ModelError(f"the answer of {name} does not depend on the states of its layers")
        return Descent(
            self.batch.runner,
            self.batch.checked,
            self.frozen,
            self.calls,
            self.lane,
            self.top.detach(),
            upstream,
            float(y.detach()),
            constant_part(self.constants, others),
            float(y.detach() - product(logits, slope)),
        )


def run_layers(
    model: Runner, encoded: Encoded, checked: Checked, *, frozen: bool, lane: Lane | None = None
) -> LayerPass:
    """One forward pass of one text that keeps the states entering each layer; gradients begin above the last one.

    lane: keep them in host memory.
    """
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE or checked.stack.cross:
        raise ModelError(
            f"gradients without matrices need one stack of layers and the attention interface of transformers, and {name} "
            'was captured otherwise: trace it with memory="graph"'
        )
    collector = Collector("layers")

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Tensor:
        scores = scores_of(module, query, key, mask, **options)
        out, _ = attention_output(scores, value)
        collector.calls.append(Call(*collector.named(module), int(query.shape[1]), scores.sinks is not None))
        return out

    collector.attend = attend
    paths = [layer_path(checked.paths[i]) for i in checked.stack.main]
    freeze = Freeze() if frozen else _Unchanging()
    with torch.inference_mode(False), _keeping(model.model, paths, collector, freeze, lane) as (calls, tops), freeze:
        batch = model.run_batch([encoded], checked, collector=collector, measure=False)
    if len(calls) != len(paths) or not tops:
        raise ModelError(
            f"{name} has more than one attention in a layer, and gradients without matrices are for layers with one: "
            'trace it with memory="graph"'
        )
    logits = batch.out.get("logits") if hasattr(batch.out, "get") else None
    if not isinstance(logits, Tensor):
        raise ModelError(f"{name} gives no logits: edges by gradients are for classifiers and language models")
    # whoever keeps the batch keeps no graph of autograd by it
    batch = replace(batch, out={"logits": logits.detach()})
    constants = freeze.constants if isinstance(freeze, Freeze) else []
    return LayerPass(batch, logits, frozen, calls, lane, tops[0], constants)


@contextmanager
def _keeping(
    model: Any, paths: Sequence[str], collector: Collector, freeze: Freeze | _Unchanging, lane: Lane | None
) -> Iterator[tuple[list[LayerCall], list[Tensor]]]:
    """While it lasts, the calls of these layers are kept, and the output of the last is a leaf at which gradients begin."""
    if not all(paths):
        raise ModelError(f"{type(model).__name__} has no numbered layers, and gradients without matrices go by layers")
    calls: list[LayerCall] = []
    tops: list[Tensor] = []

    def entering(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if is_collecting(collector):
            states = states_of(args, named).detach()
            call = LayerCall(module, states, *with_states(args, named, torch.empty(0)))
            calls.append(call if lane is None else lane.send(call))
            freeze.within = True

    def leaving(module: Any, args: Any, out: Any) -> Any:
        if not is_collecting(collector):
            return None
        freeze.within = False
        if len(calls) != len(paths):
            return None
        tops.append(output_of(out).detach().requires_grad_())
        torch.set_grad_enabled(True)  # until the forward pass ends, which sets it back
        return with_output(out, tops[-1])

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            layer = model.get_submodule(path)
            stack.callback(layer.register_forward_pre_hook(entering, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(leaving).remove)
        yield calls, tops


@dataclass(eq=False)
class _Attended:
    """One attention call. gradient: ∂y of its output, [batch, query, head, size], once it has come back."""

    scores: Scores
    value: Tensor
    gradient: Tensor | None = None

    def keep(self, gradient: Tensor) -> None:
        self.gradient = gradient


def _attending(attended: list[_Attended], frozen: bool) -> Callable[..., Tensor]:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Tensor:
        fixed_query, fixed_key = query.detach(), key.detach()
        scores = scores_of(module, fixed_query, fixed_key, mask, **options)
        if frozen:
            query, key = fixed_query, fixed_key
        out, operands = attention_with_gradient(query, key, value, scores)
        attended.append(_Attended(operands, value.detach()))
        out.register_hook(attended[-1].keep)
        return out

    return attend


class _Unchanging(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """While active, parameters are constants, so that autograd keeps nothing for their sake."""

    within = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        args = tuple(x.detach() if isinstance(x, Parameter) else x for x in args)
        return func(*args, **{name: x.detach() if isinstance(x, Parameter) else x for name, x in kwargs.items()})
