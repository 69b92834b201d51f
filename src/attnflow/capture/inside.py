"""Inside the layers of one forward pass: heads, values, states, and how the answer depends on the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnflow.capture import routes
from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Call, Collector, collecting, is_collecting
from attnflow.capture.frozen import Evidence
from attnflow.capture.inputs import Encoded
from attnflow.capture.layer_calls import output_of, states_of, with_states
from attnflow.capture.passes import Pass
from attnflow.capture.routes import running
from attnflow.capture.runner import Batch, Runner
from attnflow.capture.sublayer import FORMS, Sublayer, layer_path, parts_of, sublayer_of, watched
from attnflow.capture.windows import has_windows
from attnflow.errors import InputError, ModelError

COPIES = 4096
"""Positions, over all copies of a text, that run through a layer at once when values are zeroed one by one."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, in at least single precision. In a batch, every tensor has a leading axis for texts.

    weights: [head, query, key].
    values: [head, key, size], key heads repeated.
    states: [position, width], the layer's input.
    gradient: ∂y/∂weights, if there was a backward pass.
    find_sublayer: returns how attention is projected, added and normalized, or a sentence if that is unknown.
    without: returns the layer's output [copy, position, width] when copy c takes nothing from position ``keys[c]``; -1
        takes everything.
    """

    weights: Tensor
    values: Tensor
    states: Tensor
    gradient: Tensor | None
    find_sublayer: Callable[[], Sublayer | str]
    without: Callable[[Tensor], Tensor]

    @cached_property
    def sublayer(self) -> Sublayer | str:
        return self.find_sublayer()


@dataclass(frozen=True, eq=False)
class Inside:
    """The layers of one pass, and its answer.

    layers: from the input up; empty if only answer edges were requested.
    answer: what the gradients belong to; None if there are none, and ``unanswered`` says why.
    find_evidence: splits the answer's score over the edges of all layers.
    causal: whether positions look back only.
    place: the position that answers; None if the whole text does.
    """

    layers: tuple[Layer, ...]
    answer: Mapping[str, Any] | None
    unanswered: str
    find_evidence: Callable[[], Evidence] | None = None
    causal: bool = False
    place: int | None = None

    @cached_property
    def evidence(self) -> Evidence:
        if self.find_evidence is None:
            raise InputError(f"answer edges explain an answer, but {self.unanswered}")
        return self.find_evidence()


@dataclass
class Seen:
    """What hooks saw of one layer: its arguments and its attention sublayer's output, for each call."""

    module: Any
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def run_inside(model: Runner, encoded: Encoded, gradient: bool, every_logit: bool = False) -> tuple[Batch, Inside]:
    """Run one forward pass of one input and record what happens inside its layers.

    gradient: keep the autograd graph, in which the weights are ``batch.calls[i].heads``.
    every_logit: as in `run_batch`.
    """
    checked = model.verify(encoded)
    check_inside(model, checked)
    if gradient:
        model.check_gradients()
    collector = Collector("inside")
    paths = [checked.paths[i] for i in checked.stack.main]
    with _watching(model.model, paths, collector, gradient) as seen:
        batch = model.run_batch([encoded], checked, collector=collector, grad=gradient, every_logit=every_logit)
    calls = main_calls(batch)
    check_windows(model, calls[0].path)
    layers = tuple(_layer(model, call, one, 0) for call, one in zip(calls, _in_order(seen, paths), strict=True))
    return batch, Inside(
        layers, None, 'this trace ran no backward pass: trace the text with edges="gradient"', causal=checked.causal
    )


def layers_of_texts(
    model: Runner, tensors: Mapping[str, Tensor], checked: Checked, lengths: Sequence[int]
) -> list[Layer]:
    """Record the inside of the layers for a padded batch of texts of these lengths, in a pass without gradients."""
    check_inside(model, checked)
    collector = Collector("inside", measure=False)
    paths = [checked.paths[i] for i in checked.stack.main]
    check_windows(model, paths[0])
    with _watching(model.model, paths, collector, False) as seen:
        model.run(tensors, collector, checked, last=lengths)
    calls = [collector.calls[i] for i in checked.stack.main]
    texts = slice(None)
    return [_layer(model, call, one, texts) for call, one in zip(calls, _in_order(seen, paths), strict=True)]


def main_calls(batch: Batch) -> list[Call]:
    return [batch.calls[i] for i in batch.checked.stack.main]


def pass_with(batch: Batch, inside: Inside) -> Pass:
    """Return the results of the pass, without the autograd graph."""
    plain = [replace(c, heads=None if c.heads is None else c.heads.detach().float(), value=None) for c in batch.calls]
    routes.bring_together(plain)
    passed = replace(batch, calls=plain).passed(0)
    about = {"answer": dict(inside.answer)} if inside.answer else {}
    return replace(passed, inside=inside, provenance={**passed.provenance, **about})


def check_inside(model: Runner, checked: Checked) -> None:
    """Check that the layers can be observed."""
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE:
        raise ModelError(
            f"the attention of {name} was captured as {checked.route}, but edges need the attention interface of "
            "transformers to see inside a layer: trace it without edges, by its weights alone"
        )
    if checked.stack.cross:
        raise ModelError(f"{name} has two stacks of layers, but edges are for models with one: trace it without edges")


def check_windows(model: Runner, path: str) -> None:
    """Check that the attention at this path covers all positions."""
    if has_windows(model.model, path):
        raise ModelError(
            f"{type(model.model).__name__} attends within windows, but edges are for models that attend to all "
            "positions: trace it without edges"
        )


@contextmanager
def _watching(model: Any, paths: Sequence[str], collector: Collector, gradient: bool) -> Iterator[dict[str, Seen]]:
    """Record the inputs of layers and the outputs of their attention sublayers while active, by layer path."""
    layers: dict[str, Seen] = {}

    def listening() -> bool:
        return is_collecting(collector)  # hooks see the passes of all threads

    def getting(seen: Seen) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            if listening():
                states = states_of(args, named)
                if gradient and not states.requires_grad:  # makes a graph even for a frozen model
                    states.requires_grad_()
                seen.calls.append((args, named))

        return hook

    with ExitStack() as stack:
        for path in paths:
            layer = layer_path(path)
            if not layer:
                raise ModelError(
                    f"the attention at {path!r} is not inside a numbered layer, but edges need numbered layers: trace "
                    "this model without edges"
                )
            if layer in layers:
                continue
            layers[layer] = Seen(model.get_submodule(layer))
            hook = getting(layers[layer])
            stack.callback(layers[layer].module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            parts = parts_of(model, path)
            if parts is not None:
                stack.enter_context(watched(parts, layers[layer].outputs, listening))
        yield layers


def _in_order(seen: Mapping[str, Seen], paths: Sequence[str]) -> Iterator[tuple[Any, str, Any, Any, Tensor | None]]:
    """Yield the layer of every attention call, with its arguments and sublayer output. ALBERT shares layers."""
    times = dict.fromkeys(seen, 0)
    for path in paths:
        layer = layer_path(path)
        one, k = seen[layer], times[layer]
        times[layer] += 1
        if k >= len(one.calls):
            raise ModelError(
                f"{layer!r} has more than one attention, but edges are for layers with one: trace this model "
                "without edges"
            )
        yield one.module, path, *one.calls[k], one.outputs[k] if k < len(one.outputs) else None


def _layer(model: Runner, call: Call, seen: tuple[Any, str, Any, Any, Tensor | None], text: int | slice) -> Layer:
    """Build a layer.

    text: one of the batch, or all of them.
    """
    module, path, args, named, y = seen
    assert call.heads is not None and call.value is not None
    weights, value, states = (wide(x[text]).to(model.device) for x in (call.heads, call.value, states_of(args, named)))
    values = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
    slack = 0.03 if half(model.dtype) else 1e-4

    def find_sublayer() -> Sublayer | str:
        parts = parts_of(model.model, path)
        if parts is None or y is None:
            return f"the layers of {type(model.model).__name__} are not built like those of {FORMS}"
        return sublayer_of(parts, weights, values, states, wide(y[text]).to(states.device), slack)

    def without(keys: Tensor) -> Tensor:
        routes.prepare(model.model, routes.INTERFACE)  # in case it was unwrapped since
        model.check_evaluating()
        return _without(module, args, named, keys).to(states.device)

    return Layer(weights, values, states, None, find_sublayer, without)


def wide(x: Tensor) -> Tensor:
    return x.detach() if x.dtype == torch.float64 else x.detach().float()


def _without(module: Any, args: tuple[Any, ...], named: Mapping[str, Any], keys: Tensor) -> Tensor:
    """Run the layer again, on one copy of the text per key."""
    states = states_of(args, named).detach()
    n = states.shape[1]
    outputs = []
    for some in keys.to(states.device).split(max(1, COPIES // n)):
        copies = states.expand(len(some), -1, -1)
        placed, by_name = with_states(args, named, copies)
        collector = Collector("without", without=some)
        with torch.no_grad(), collecting(collector), running():
            out = module(*placed, **by_name)
        if not collector.seen:
            raise ModelError(
                "the attention of this layer was not seen when the layer ran again: trace the text once more"
            )
        outputs.append(wide(output_of(out)))
    return torch.cat(outputs)
