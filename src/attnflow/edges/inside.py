"""What happened inside the layers of one forward pass: heads, values, states, and how the answer hangs on the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import encode, routes
from attnflow.capture.assemble import assemble
from attnflow.capture.check import Checked, half
from attnflow.capture.collect import Call, Collector, collecting, is_collecting
from attnflow.capture.predict import prediction
from attnflow.capture.windows import is_windowed
from attnflow.edges.sublayer import FORMS, Sublayer, layer_path, parts_of, sublayer_of, watched
from attnflow.errors import InputError
from attnflow.importance.answer import check_of, question_of, said_at, score
from attnflow.importance.gradients import check_difference
from attnflow.model import running

if TYPE_CHECKING:
    from attnflow.capture.inputs import Encoded
    from attnflow.model import Model
    from attnflow.trace import Trace

COPIES = 4096
"""So many positions, over all copies of a text, run through a layer at once when values are zeroed one by one."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, in single precision or better.

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
    """layers: from the input up. answer: what the gradients are of; None where there are none, ``unanswered`` says why."""

    layers: tuple[Layer, ...]
    answer: Mapping[str, Any] | None
    unanswered: str


@dataclass
class Seen:
    """What hooks saw of one layer: its arguments and its attention sublayer's output, a call each."""

    module: Any
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def trace_inside(
    model: Model, text: Any, *, answer: Any, of: str, gradient: bool, missing: str, truncate: bool
) -> Trace:
    """`Model.trace` of one text, with `Inside`.

    answer, of: what gradients are of, as in `Model.gradient`. gradient: whether there is a backward pass.
    """
    check_of(of)
    if missing != "keep":
        raise InputError(
            f"missing={missing!r} does not go with edges: normalize= says what becomes of rows that sum to less than one"
        )
    if model.model.training:
        raise InputError("the model is in training mode, where dropout changes the weights: call model.eval() first")
    encoded = encode.encode(model, text, None, truncate, None)
    checked = model.verify(encoded)
    _check(model, checked)
    collector = Collector("inside")
    lengths = [int(encoded.tensors["input_ids"].shape[1])] if "input_ids" in encoded.tensors else []
    paths = [checked.paths[i] for i in checked.stack.main]
    with _watching(model.model, paths, collector, gradient) as seen:
        out = model._run(encoded.tensors, collector, checked, last=lengths, grad=gradient)
    calls = [collector.calls[i] for i in checked.stack.main]
    if is_windowed(model.model, calls[0]):
        raise InputError(
            f"{type(model.model).__name__} attends within windows, and edges are for models that attend to all positions: "
            "trace it without edges"
        )
    gradients: Sequence[Tensor | None] = [None] * len(calls)
    told, why = None, 'this trace made no backward pass: trace the text with edges="gradient"'
    if gradient:
        gradients, told, why = _gradients(model, encoded, out, calls, answer, of)
    layers = tuple(_layer(model, *given) for given in zip(calls, _in_order(seen, paths), gradients, strict=True))
    plain = [replace(call, heads=call.heads.detach().float(), value=None) for call in collector.calls]  # type: ignore[union-attr]
    provenance = {**model._provenance(checked, "whole", "mean", missing), **({"answer": told} if told else {})}
    said = prediction(model, out, encoded, 0, lengths)
    trace = assemble(model, plain, encoded, 0, checked, missing, provenance, said)
    return replace(trace, inside=Inside(layers, told, why))


def _check(model: Model, checked: Checked) -> None:
    name = type(model.model).__name__
    if checked.route != routes.INTERFACE:
        raise InputError(
            f"the attention of {name} was captured as {checked.route}, and edges need the attention interface of "
            "transformers, through which they see inside a layer: trace it without edges, by its weights alone"
        )
    if checked.stack.cross:
        raise InputError(f"{name} has two stacks of layers, and edges are for models with one: trace it without edges")


@contextmanager
def _watching(model: Any, paths: Sequence[str], collector: Collector, gradient: bool) -> Iterator[dict[str, Seen]]:
    """While it lasts, what layers get and what their attention sublayers give is kept, by the path of the layer."""
    found: dict[str, Seen] = {}

    def listening() -> bool:
        return is_collecting(collector)  # hooks see the passes of all threads

    def getting(seen: Seen) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            if listening():
                states = _states(args, named)
                if gradient and not states.requires_grad:  # so that there is a graph, also of a frozen model
                    states.requires_grad_()
                seen.calls.append((args, named))

        return hook

    with ExitStack() as stack:
        for path in paths:
            layer = layer_path(path)
            if not layer:
                raise InputError(
                    f"the attention at {path!r} is in no numbered layer, and edges are about layers: trace this model "
                    "without edges"
                )
            if layer in found:
                continue
            found[layer] = Seen(model.get_submodule(layer))
            hook = getting(found[layer])
            stack.callback(found[layer].module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            parts = parts_of(model, path)
            if parts is not None:
                stack.enter_context(watched(parts, found[layer].outputs, listening))
        yield found


def _states(args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    states = args[0] if args else named.get("hidden_states")
    if not isinstance(states, Tensor) or states.dim() != 3:
        raise InputError(
            "a layer of this model does not get its states [text, position, width] first, and edges are about them: "
            "trace it without edges"
        )
    return states


def _in_order(seen: Mapping[str, Seen], paths: Sequence[str]) -> Iterator[tuple[Any, str, Any, Any, Tensor | None]]:
    """For every attention call its layer, with its arguments and the sublayer's output then; ALBERT shares layers."""
    times = dict.fromkeys(seen, 0)
    for path in paths:
        layer = layer_path(path)
        one, k = seen[layer], times[layer]
        times[layer] += 1
        if k >= len(one.calls):
            raise InputError(
                f"{layer!r} has more than one attention, and edges are for layers with one: trace this model without edges"
            )
        yield one.module, path, *one.calls[k], one.outputs[k] if k < len(one.outputs) else None


def _layer(model: Model, call: Call, seen: tuple[Any, str, Any, Any, Tensor | None], gradient: Tensor | None) -> Layer:
    module, path, args, named, y = seen
    assert call.heads is not None and call.value is not None
    weights, value = _wide(call.heads[0]), _wide(call.value[0])
    values = value.repeat_interleave(len(weights) // len(value), 0)
    states = _wide(_states(args, named)[0])
    slack = 0.03 if half(model.dtype) else 1e-4

    def find_sublayer() -> Sublayer | str:
        parts = parts_of(model.model, path)
        if parts is None or y is None:
            return f"the layers of {type(model.model).__name__} are not made as those of {FORMS}"
        return sublayer_of(parts, weights, values, states, _wide(y[0]), slack)

    def without(keys: Tensor) -> Tensor:
        routes.prepare(model.model, routes.INTERFACE)  # in case it was unwrapped since
        if model.model.training:
            raise InputError("the model was put into training mode since it was traced: call model.eval() first")
        return _without(module, args, named, keys)

    return Layer(weights, values, states, None if gradient is None else _wide(gradient[0]), find_sublayer, without)


def _wide(x: Tensor) -> Tensor:
    return x.detach() if x.dtype == torch.float64 else x.detach().float()


def _without(module: Any, args: tuple[Any, ...], named: Mapping[str, Any], keys: Tensor) -> Tensor:
    """Runs the layer again, on as many copies of the text as there are keys."""
    states = _states(args, named).detach()
    n = states.shape[1]
    found = []
    for part in keys.to(states.device).split(max(1, COPIES // n)):
        copies = states.expand(len(part), -1, -1)
        rest, more = (args[1:], dict(named)) if args else ((), {**named, "hidden_states": copies})
        collector = Collector("without", without=part)
        with torch.no_grad(), collecting(collector), running():
            out = module(*((copies, *rest) if args else ()), **more)
        if not collector.seen:
            raise InputError("the attention of this layer was not seen when it ran again: trace the text once more")
        found.append(_wide(out[0] if isinstance(out, tuple) else out))
    return torch.cat(found)


def _gradients(
    model: Model, encoded: Encoded, out: Any, calls: Sequence[Call], answer: Any, of: str
) -> tuple[Sequence[Tensor | None], dict[str, Any] | None, str]:
    """∂y/∂W of every call, what y is; or why there is none."""
    logits = out.get("logits") if hasattr(out, "get") else None
    if not isinstance(logits, Tensor) or "input_ids" not in encoded.tensors:
        told = f"{model!r} has no head, or reads no text, so it answers nothing"
        return [None] * len(calls), None, f"{told}: expected a classifier or a language model of text"
    question = question_of(model, encoded, logits[0].detach(), answer)
    check_difference([question], of)
    with torch.enable_grad(), running():  # also where the caller has turned gradients off
        said = said_at(logits[0], question.place)[None]
        y = score(model, question.kind, said.float(), question.chosen, question.against or 0, of)[0]
        found = torch.autograd.grad(y, [call.heads for call in calls], allow_unused=True)
    gradients = [torch.zeros_like(call.heads) if g is None else g for g, call in zip(found, calls, strict=True)]
    about = {"kind": question.kind, "name": question.name, "probability": question.chance, "of": of}
    return gradients, about, ""
