"""Gradients of an answer layer by layer: only the states that enter each layer are kept, and nothing n×n is made.

One forward pass without gradients keeps these states. Gradients begin at the output of the last layer, where the head
gives ``∂y/∂x``. From the top down, each layer then runs again on its states, which gives the gradient of its attention
output and ``∂y/∂x`` below it. With everything held constant (`attnflow.capture.freeze`) the same descent gives answer
edges, which are checked as in `attnflow.capture.frozen`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from attnflow.capture import routes
from attnflow.capture.block_gradients import attention_with_gradient
from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Call, Collector, collecting, is_collecting
from attnflow.capture.freeze import Freeze, Unchanging
from attnflow.capture.frozen import SLACK, conserved, constant_part, holdings, product, slope_of
from attnflow.capture.fused import attention_output
from attnflow.capture.inputs import Encoded
from attnflow.capture.layer_calls import output_of, states_of, with_output, with_states
from attnflow.capture.linear import Operands
from attnflow.capture.runner import Batch, Runner
from attnflow.capture.scores import Scores, Weighing, scores_of
from attnflow.capture.sublayer import layer_path
from attnflow.capture.verify import cover
from attnflow.errors import ModelError


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention call.

    output: its output, [batch, query, head, size], through which the gradient passes.
    """

    scores: Scores
    value: Tensor
    output: GradientEdge


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """The autograd graph of a layer, from the leaf that entered to the states that left.

    constants: what a frozen layer adds to states.
    """

    entered: Tensor
    left: Tensor
    attended: tuple[Attended, ...]
    constants: tuple[Tensor, ...]

    @classmethod
    def of(cls, entered: Tensor, out: Tensor, attended: Sequence[Attended], constants: Sequence[Tensor]) -> LayerGraph:
        """Build the graph of a layer that has just run, while gradients are still on."""
        left = out.view_as(out)  # under `Freeze`, an activation that waits to be a gate becomes a state when it is used
        return cls(entered, left, tuple(attended), tuple(constants))

    def gradients(self, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return ∂y of the attention output, of the states that entered, and of the constants."""
        leaves = [self.attended[0].output, self.entered, *self.constants]
        with torch.inference_mode(False), torch.enable_grad(), routes.running():
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(self.left, leaves, upstream, allow_unused=True)
        return gradients


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of a layer. Arguments other than the states are shared between layers.

    states: [text, position, width], the layer's input.
    """

    module: Any
    states: Tensor
    args: tuple[Any, ...]
    named: Mapping[str, Any]

    def run(self, states: Tensor) -> Tensor:
        args, named = with_states(self.args, self.named, states)
        return output_of(self.module(*args, **named))


@dataclass(frozen=True)
class Conserved:
    """The split of a score: y, the part of biases and of the score's constant, and the gap between parts and y."""

    y: float
    constants: float
    gap: float


@dataclass(eq=False)
class Descent:
    """The way from an answer's score down through the layers, which can be repeated.

    calls: those of the layers, from the input up.
    top: the output of the last layer.
    upstream: ∂y/∂top.
    constants, exact: for frozen passes, the parts of y from the head's biases and from the score's constant.
    conserved: set by a complete descent.
    """

    model: Runner
    checked: Checked
    frozen: bool
    calls: Sequence[LayerCall]
    top: Tensor
    upstream: Tensor
    y: float
    constants: Tensor
    exact: float
    conserved: Conserved | None = field(default=None)

    def operands(self) -> Iterator[Operands]:
        """Yield what each layer needs to pass rows down, from the top. Only the current layer is in memory.

        The edges are ``mean_h relu(A ⊙ ∂y/∂A)``, where ∂y/∂A[q, k] is the product of the value at k with the gradient
        of the head's output at q. In a frozen pass they are ``Σ_h A[q, k]·v_k·∂y/∂o_q``, signed, with the part of the
        states below.
        """
        self.model.check_evaluating()
        routes.prepare(self.model.model, self.checked.route)  # in case it was unwrapped since
        above, upstream, biases = self.top, self.upstream, self.constants
        for number, call in reversed(list(enumerate(self.calls))):
            layer, upstream, more = self._through(number, call, above, upstream)
            above, biases = call.states, biases + more.to(biases.device)
            if number == 0 and layer.holds is not None:  # before the caller has all of them
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
        """Go back through one layer: return its operands, ∂y/∂x below it, and the part of its biases."""
        graph = self._again(number, call, above)
        self._check_attention(number, len(graph.attended))
        direction, below, *others = graph.gradients(upstream)
        if below is None or direction is None:
            raise ModelError(
                f"the output of layer {number} of {type(self.model.model).__name__} does not depend on its attention "
                "or its states, but edges need them: trace it without edges"
            )
        one, direction = graph.attended[0], direction.transpose(1, 2)  # [batch, head, query, size]
        if not self.frozen:
            weighing = Weighing(1 / direction.shape[1], direction=direction, value=one.value)
            return Operands(number, one.scores, weighing), below, self.constants.new_zeros(())
        weighing = Weighing(1.0, direction=direction, value=one.value, signed=True)
        layer = Operands(number, one.scores, weighing, holds=holdings(call.states, below))
        return layer, below, constant_part(graph.constants, others)

    def _again(self, number: int, call: LayerCall, above: Tensor) -> LayerGraph:
        """Run the layer again on its states, with gradients."""
        attended: list[Attended] = []
        collector = Collector("layers", attend=_attending(attended, self.frozen))
        freeze = Freeze() if self.frozen else Unchanging()
        with torch.inference_mode(False), torch.enable_grad(), routes.running(), collecting(collector), freeze:
            x = call.states.detach().requires_grad_()
            graph = LayerGraph.of(x, call.run(x), attended, _constants_of(freeze))
        self._check_same(number, graph.left.detach(), above)
        return graph

    def _check_attention(self, number: int, attentions: int) -> None:
        if attentions != 1:
            raise ModelError(
                f"layer {number} of {type(self.model.model).__name__} makes {attentions} attention calls when it runs "
                'with gradients, but edges without matrices are for layers with one: trace with memory="graph"'
            )

    def _check_same(self, number: int, out: Tensor, above: Tensor) -> None:
        name = type(self.model.model).__name__
        if out.shape == above.shape:
            away = (out.float() - above.float()).norm(dim=-1) / above.float().norm(dim=-1).clamp(min=1e-30)
            gap = float(away.max())
        else:
            gap = float("inf")
        if not gap <= (0.03 if half(self.model.dtype) else 1e-4):
            raise ModelError(
                f"layer {number} of {name} gives different states when it runs again, by {gap:.2g} of what the next "
                "layer received: something other than the states passes between its layers, and gradients layer by "
                'layer would miss it. Trace with memory="graph"'
            )


@dataclass(frozen=True, eq=False)
class LayerPass:
    """A forward pass whose layers can run again.

    logits: those of ``batch``, connected to ``top`` by autograd.
    """

    batch: Batch
    logits: Tensor
    frozen: bool
    calls: Sequence[LayerCall]
    top: Tensor
    constants: Sequence[Tensor]

    def descent(self, score: Callable[[Tensor], Tensor]) -> Descent:
        """Return the way down from ``score(logits)``, one number. It works once, because it frees the head's graph."""
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
            self.top.detach(),
            upstream,
            float(y.detach()),
            constant_part(self.constants, others),
            float(y.detach() - product(logits, slope)),
        )


def run_layers(model: Runner, encoded: Encoded, checked: Checked, *, frozen: bool) -> LayerPass:
    """Run one text and keep the states that enter each layer; gradients begin above the last one."""
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE or checked.stack.cross:
        raise ModelError(
            "gradients without matrices need one stack of layers and the attention interface of transformers, but "
            f'{name} was captured in another way: trace it with memory="graph"'
        )
    paths = [layer_path(checked.paths[i]) for i in checked.stack.main]
    if not all(paths):
        raise ModelError(f"{name} has no numbered layers, but gradients without matrices need them")
    model.check_gradients()
    cover(model, encoded.tensors, checked)  # before anything is frozen
    collector, freeze = Collector("layers"), Freeze() if frozen else Unchanging()
    listener = _Listener(collector, len(paths), freeze)

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Tensor:
        scores = scores_of(module, query, key, mask, **options)
        out, _ = attention_output(scores, value)
        collector.calls.append(Call(*collector.named(module), int(query.shape[1]), scores.sinks is not None))
        return out

    collector.attend = attend
    with torch.inference_mode(False), ExitStack() as stack:
        for path in dict.fromkeys(paths):
            layer = model.model.get_submodule(path)
            stack.callback(layer.register_forward_pre_hook(listener.entering, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(listener.leaving).remove)
        stack.enter_context(freeze)
        # it refers to the collector; breaking the cycle frees the pass at once
        stack.callback(setattr, collector, "attend", None)
        batch = model.run_batch([encoded], checked, collector=collector, measure=False)
    calls, tops = listener.calls, listener.tops
    if len(calls) != len(paths) or not tops:
        raise ModelError(
            f"{name} has more than one attention in a layer, but gradients without matrices are for layers with one: "
            'trace it with memory="graph"'
        )
    logits = batch.out.get("logits") if hasattr(batch.out, "get") else None
    if not isinstance(logits, Tensor):
        raise ModelError(f"{name} returns no logits: edges by gradients are for classifiers and language models")
    # keeping the batch must not keep the autograd graph
    batch = replace(batch, out={"logits": logits.detach()})
    return LayerPass(batch, logits, frozen, calls, tops[0], _constants_of(freeze))


@dataclass(eq=False)
class _Listener:
    """Keeps the calls of layers by hooks. The output of the last layer is a leaf at which gradients begin.

    depth: the number of layers.
    tops: the output of the last layer.
    """

    collector: Collector
    depth: int
    freeze: Freeze | Unchanging
    calls: list[LayerCall] = field(default_factory=list)
    tops: list[Tensor] = field(default_factory=list)

    def entering(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if is_collecting(self.collector):
            states = states_of(args, named).detach()
            self.calls.append(LayerCall(module, states, *with_states(args, named, torch.empty(0))))
            self.freeze.within = True

    def leaving(self, module: Any, args: Any, out: Any) -> Any:
        if not is_collecting(self.collector):
            return None
        self.freeze.within = False
        if len(self.calls) == self.depth:
            self.tops.append(output_of(out).detach().requires_grad_())
            torch.set_grad_enabled(True)  # until the forward pass ends, which resets it
            out = with_output(out, self.tops[-1])
        return out


def _constants_of(freeze: Freeze | Unchanging) -> list[Tensor]:
    return freeze.constants if isinstance(freeze, Freeze) else []


def _attending(attended: list[Attended], frozen: bool) -> Callable[..., Tensor]:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Tensor:
        fixed_query, fixed_key = query.detach(), key.detach()
        scores = scores_of(module, fixed_query, fixed_key, mask, **options)
        if frozen:
            query, key = fixed_query, fixed_key
        out, operands = attention_with_gradient(query, key, value, scores)
        attended.append(Attended(operands, value.detach(), get_gradient_edge(out)))
        return out

    return attend
