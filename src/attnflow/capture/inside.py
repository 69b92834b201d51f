"""What happened inside the layers of one forward pass: heads, values, states, and how the answer hangs on the weights."""

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
"""So many positions, over all copies of a text, run through a layer at once when values are zeroed one by one."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, in single precision or better. Of a batch, every axis has that of the texts in front.

    weights: [head, query, key]. values: [head, key, size], key heads repeated. states: [position, width], what the layer
    got. gradient: ∂y/∂weights, where there was a backward pass. find_sublayer: how attention is projected, added and
    normed; a sentence where that is not known. without: the output of the layer [copy, position, width] when copy c takes
    nothing from position ``keys[c]``; -1 leaves all of them.
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
    """layers: from the input up; none where only answer edges were asked for. answer: what the gradients are of; None where
    there are none, ``unanswered`` says why. find_evidence: how the answer's score splits over the edges of all layers.
    causal: whether positions look back only. place: the position that answers; None where the whole text does.
    attention: [layer, query, key], heads reduced, where there are no layers."""

    layers: tuple[Layer, ...]
    answer: Mapping[str, Any] | None
    unanswered: str
    find_evidence: Callable[[], Evidence] | None = None
    causal: bool = False
    place: int | None = None
    attention: Tensor | None = None

    @cached_property
    def evidence(self) -> Evidence:
        if self.find_evidence is None:
            raise InputError(f"answer edges are about an answer, and {self.unanswered}")
        return self.find_evidence()


@dataclass
class Seen:
    """What hooks saw of one layer: its arguments and its attention sublayer's output, a call each."""

    module: Any
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def run_inside(model: Runner, encoded: Encoded, gradient: bool, every_logit: bool = False) -> tuple[Batch, Inside]:
    """One forward pass of one input, with what happened inside its layers.

    gradient: keep the graph of autograd, in which the weights are ``batch.calls[i].heads``. every_logit: as in `run_batch`.
    """
    checked = model.verify(encoded)
    check_inside(model, checked)
    collector = Collector("inside")
    paths = [checked.paths[i] for i in checked.stack.main]
    with _watching(model.model, paths, collector, gradient) as seen:
        batch = model.run_batch([encoded], checked, collector=collector, grad=gradient, every_logit=every_logit)
    calls = main_calls(batch)
    check_windows(model, calls[0].path)
    layers = tuple(_layer(model, call, one, 0) for call, one in zip(calls, _in_order(seen, paths), strict=True))
    return batch, Inside(
        layers, None, 'this trace made no backward pass: trace the text with edges="gradient"', causal=checked.causal
    )


def layers_of_texts(
    model: Runner, tensors: Mapping[str, Tensor], checked: Checked, lengths: Sequence[int]
) -> list[Layer]:
    """What happened inside the layers of a padded batch of texts of these lengths, in a forward pass without gradients."""
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
    """What the pass left, without the graph of autograd."""
    plain = [replace(c, heads=None if c.heads is None else c.heads.detach().float(), value=None) for c in batch.calls]
    routes.bring_together(plain)
    passed = replace(batch, calls=plain).passed(0)
    about = {"answer": dict(inside.answer)} if inside.answer else {}
    return replace(passed, inside=inside, provenance={**passed.provenance, **about})


def check_inside(model: Runner, checked: Checked) -> None:
    """That the layers can be seen into."""
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE:
        raise ModelError(
            f"the attention of {name} was captured as {checked.route}, and edges need the attention interface of "
            "transformers, through which they see inside a layer: trace it without edges, by its weights alone"
        )
    if checked.stack.cross:
        raise ModelError(f"{name} has two stacks of layers, and edges are for models with one: trace it without edges")


def check_windows(model: Runner, path: str) -> None:
    """That the attention at this path is over all positions."""
    if has_windows(model.model, path):
        raise ModelError(
            f"{type(model.model).__name__} attends within windows, and edges are for models that attend to all positions: "
            "trace it without edges"
        )


@contextmanager
def _watching(model: Any, paths: Sequence[str], collector: Collector, gradient: bool) -> Iterator[dict[str, Seen]]:
    """While it lasts, what layers get and what their attention sublayers give is kept, by the path of the layer."""
    layers: dict[str, Seen] = {}

    def listening() -> bool:
        return is_collecting(collector)  # hooks see the passes of all threads

    def getting(seen: Seen) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            if listening():
                states = states_of(args, named)
                if gradient and not states.requires_grad:  # so that there is a graph, also of a frozen model
                    states.requires_grad_()
                seen.calls.append((args, named))

        return hook

    with ExitStack() as stack:
        for path in paths:
            layer = layer_path(path)
            if not layer:
                raise ModelError(
                    f"the attention at {path!r} is in no numbered layer, and edges are about layers: trace this model "
                    "without edges"
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
    """For every attention call its layer, with its arguments and the sublayer's output then; ALBERT shares layers."""
    times = dict.fromkeys(seen, 0)
    for path in paths:
        layer = layer_path(path)
        one, k = seen[layer], times[layer]
        times[layer] += 1
        if k >= len(one.calls):
            raise ModelError(
                f"{layer!r} has more than one attention, and edges are for layers with one: trace this model without edges"
            )
        yield one.module, path, *one.calls[k], one.outputs[k] if k < len(one.outputs) else None


def _layer(model: Runner, call: Call, seen: tuple[Any, str, Any, Any, Tensor | None], text: int | slice) -> Layer:
    """text: which of the batch, or all of them."""
    module, path, args, named, y = seen
    assert call.heads is not None and call.value is not None
    weights, value, states = (wide(x[text]).to(model.device) for x in (call.heads, call.value, states_of(args, named)))
    values = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
    slack = 0.03 if half(model.dtype) else 1e-4

    def find_sublayer() -> Sublayer | str:
        parts = parts_of(model.model, path)
        if parts is None or y is None:
            return f"the layers of {type(model.model).__name__} are not made as those of {FORMS}"
        return sublayer_of(parts, weights, values, states, wide(y[text]).to(states.device), slack)

    def without(keys: Tensor) -> Tensor:
        routes.prepare(model.model, routes.INTERFACE)  # in case it was unwrapped since
        model.check_evaluating()
        return _without(module, args, named, keys).to(states.device)

    return Layer(weights, values, states, None, find_sublayer, without)


def wide(x: Tensor) -> Tensor:
    return x.detach() if x.dtype == torch.float64 else x.detach().float()


def _without(module: Any, args: tuple[Any, ...], named: Mapping[str, Any], keys: Tensor) -> Tensor:
    """Runs the layer again, on as many copies of the text as there are keys."""
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
            raise ModelError("the attention of this layer was not seen when it ran again: trace the text once more")
        outputs.append(wide(output_of(out)))
    return torch.cat(outputs)
