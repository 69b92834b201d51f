"""Routes to a model's attention. Each runs the model once and fills a collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnflow.capture.collect import (
    PREFIX,
    Call,
    Collector,
    Intercept,
    collecting,
    inside,
    is_collecting,
    reduce_heads,
    register,
)
from attnflow.errors import InputError, ModelError

INTERFACE = "attention interface"
EAGER = "eager attention"
FUSED = "fused attention"
"""How attention was captured, as results record it: through transformers' attention interface; from what the model
returns under eager attention; or by intercepting PyTorch's fused attention functions."""

Run = Callable[[], Any]
OutputT = TypeVar("OutputT")


def forward_options(route: str) -> dict[str, Any]:
    """Return the arguments of the model's forward that this route needs."""
    return {"output_attentions": True} if route == EAGER else {}


@contextmanager
def running() -> Iterator[None]:
    """Turn errors of the model on its input into a `ModelError` with the original message."""
    try:
        yield
    except InputError:
        raise
    except Exception as e:
        message = f"{type(e).__name__}: {str(e).splitlines()[0]}" if str(e) else type(e).__name__
        # PyTorch has no separate class for running out of CPU memory
        out_of_memory = isinstance(e, MemoryError | torch.OutOfMemoryError) or "memory" in message
        hint = '; memory="linear", or fewer texts at a time, take less memory' if out_of_memory else ""
        if "Kernel size can't be greater than actual input size" in message:
            hint = "; it is too short for the model's convolutions: give a longer sound, or a larger image"
        raise ModelError(f"the model fails on this input ({message}){hint}") from e


def is_pretrained(model: Any) -> bool:
    """Return whether it is a transformers model."""
    return hasattr(model, "config") and hasattr(model, "set_attn_implementation")


def routes_for(model: Any) -> list[str]:
    """Return the routes to try, best first."""
    if not is_pretrained(model):
        return [FUSED]
    if model._can_set_attn_implementation():
        return [INTERFACE, EAGER] if model.config._attn_implementation == "eager" else [INTERFACE, FUSED]
    return [EAGER] if model.config._attn_implementation == "eager" else [FUSED]


def prepare(model: Any, route: str) -> None:
    """For the interface route, put our function in front of the model's own attention implementation."""
    original = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if route == INTERFACE and original is not None and not original.startswith(PREFIX):
        model.set_attn_implementation(register(original))


def restore(model: Any) -> None:
    """Restore the model's own attention implementation, so that a refused model stays as it was."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if name is not None and name.startswith(PREFIX):
        with suppress(ValueError):  # a part of the model that does not allow the change
            model.set_attn_implementation(name.removeprefix(PREFIX))


def capture(
    model: Any, route: str, run: Callable[[], OutputT], collector: Collector, reducers: Mapping[str, int] | None = None
) -> OutputT:
    """Run the model with the collector listening; return its output."""
    if route == INTERFACE:
        collector.paths = {id(m): path for path, m in model.named_modules()} if collector.names else {}
        with collecting(collector):
            out = run()
        bring_together(collector.calls)
        return out
    if route == FUSED:
        with collecting(collector), inside(model), Intercept():
            return run()
    if collector.mode == "alone, softmax":
        with collecting(collector), Intercept():
            return run()
    returned: OutputT = _with_attentions(model, run, collector, reducers or {})
    return returned


def bring_together(calls: Sequence[Call]) -> None:
    """Move the results of all layers to the device of the first: layers may be on several devices.

    Tensors that gradients must reach are not moved, because a copy is another tensor.
    """
    first = next((x.device for call in calls for x in (call.mean, call.lengths) if x is not None), None)
    for call in calls if first is not None else ():
        call.mean, call.heads, call.lengths = (
            x if x is None or x.requires_grad else x.to(first) for x in (call.mean, call.heads, call.lengths)
        )


def _with_attentions(model: Any, run: Run, collector: Collector, reducers: Mapping[str, int]) -> Any:
    """Capture the weights that the model returns under eager attention. ``reducers`` says which module makes them at
    which place of its output, so that heads are reduced as soon as a layer is done."""
    # the reduced tensors by id, kept alive so that no other tensor can get the same id
    reduced: dict[int, tuple[Tensor, int]] = {}

    def reducing(place: int) -> Callable[[Any, Any, Any], Any]:
        def hook(module: Any, args: Any, out: Any) -> Any:
            if not is_collecting(collector):
                return None
            mean = reduce_heads(out[place].detach(), collector.reduce)[:, None]
            reduced[id(mean)] = mean, int(out[place].shape[1])
            return (*out[:place], mean, *out[place + 1 :])

        return hook

    with ExitStack() as stack:
        for path, place in {} if collector.keep_heads else reducers.items():
            stack.callback(model.get_submodule(path).register_forward_hook(reducing(place)).remove)
        with collecting(collector):
            out = run()
    if not hasattr(out, "get"):
        raise ModelError(
            "the model returns a tuple, in which attentions have no name: set return_dict=True in its configuration"
        )
    for name, cross in (
        ("attentions", False),
        ("encoder_attentions", False),
        ("decoder_attentions", False),
        ("cross_attentions", True),
    ):
        for number, weights in enumerate(out.get(name) or ()):
            part = name.removesuffix("s").removesuffix("attention").strip("_").replace("cross", "decoder")
            path = f"{part}.{number}.{'cross_attention' if cross else 'attention'}".lstrip(".")
            if not isinstance(weights, Tensor) or weights.dim() != 4:
                raise ModelError(
                    f"attention {number} that the model returns does not have the shape [batch, head, query, key]"
                )
            if id(weights) in reduced:
                collector.calls.append(Call(path, cross, reduced[id(weights)][1], False, weights[:, 0]))
            else:
                mean = reduce_heads(weights.detach(), collector.reduce)
                heads = weights.detach().float() if collector.wants_heads() else None
                collector.calls.append(Call(path, cross, int(weights.shape[1]), False, mean, heads))
    return out


def find_reducers(model: Any, run: Run) -> dict[str, int]:
    """Find the module that first makes each tensor of the returned attentions, and its place in the module's output."""
    origins: dict[int, tuple[str, int]] = {}
    alive: list[Any] = []  # ids are valid only while the tensors live

    def watching(path: str) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, args: Any, out: Any) -> None:
            if type(out) is tuple:
                for place, x in enumerate(out):
                    if isinstance(x, Tensor) and x.dim() == 4:
                        alive.append(x)
                        origins.setdefault(id(x), (path, place))

        return hook

    with ExitStack() as stack, torch.no_grad():
        for path, module in model.named_modules():
            if path:
                stack.callback(module.register_forward_hook(watching(path)).remove)
        out = run()
    attentions = [
        w
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        for w in out.get(name) or ()
    ]
    places = [origins[id(w)] for w in attentions if id(w) in origins]
    return dict(places) if attentions and len(set(places)) == len(attentions) else {}
