"""The ways to see a model's attention. Each runs the model once and fills a collector."""

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
from attnflow.capture.ranks import check_alone, ranks_of
from attnflow.errors import InputError, ModelError

INTERFACE = "attention interface"
EAGER = "eager attention"
FUSED = "fused attention"
"""How attention was captured, as results record it: through transformers' attention interface; from what the model returns
under eager attention; by watching PyTorch's fused attention functions."""

Run = Callable[[], Any]
OutputT = TypeVar("OutputT")


def forward_options(route: str) -> dict[str, Any]:
    """Arguments of the model's forward that this route needs."""
    return {"output_attentions": True} if route == EAGER else {}


@contextmanager
def running() -> Iterator[None]:
    """A model that fails on its input says so in its own words; the error adds whose words they are."""
    try:
        yield
    except InputError:
        raise
    except Exception as e:
        message = f"{type(e).__name__}: {str(e).splitlines()[0]}" if str(e) else type(e).__name__
        # what PyTorch raises on a CPU without memory has no class of its own
        out_of_memory = isinstance(e, MemoryError | torch.OutOfMemoryError) or "memory" in message
        hint = '; memory="linear", or fewer texts at a time, take less memory' if out_of_memory else ""
        raise ModelError(f"the model does not run on this input ({message}){hint}") from e


def is_pretrained(model: Any) -> bool:
    """Whether it is a transformers model."""
    return hasattr(model, "config") and hasattr(model, "set_attn_implementation")


def routes_for(model: Any) -> list[str]:
    """What can be tried, best first."""
    if not is_pretrained(model):
        return [FUSED]
    if ranks_of(model) is not None:  # the others hand out the heads of one process as if they were all
        return [INTERFACE]
    if model._can_set_attn_implementation():
        return [INTERFACE, EAGER] if model.config._attn_implementation == "eager" else [INTERFACE, FUSED]
    return [EAGER] if model.config._attn_implementation == "eager" else [FUSED]


def prepare(model: Any, route: str) -> None:
    """Puts our function before the model's own attention implementation, where that is the route."""
    original = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if route == INTERFACE and original is not None and not original.startswith(PREFIX):
        model.set_attn_implementation(register(original))


def restore(model: Any) -> None:
    """Takes it out again: a model that is refused stays as it was."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if name is not None and name.startswith(PREFIX):
        with suppress(ValueError):  # a part of the model that never let us in
            model.set_attn_implementation(name.removeprefix(PREFIX))


def capture(
    model: Any, route: str, run: Callable[[], OutputT], collector: Collector, reducers: Mapping[str, int] | None = None
) -> OutputT:
    """Runs the model with the collector listening; returns its output."""
    if route == INTERFACE:
        if collector.reduce != "mean":
            check_alone(model, f"heads={collector.reduce!r} needs every head in one place")
        collector.paths = {id(m): path for path, m in model.named_modules()} if collector.names else {}
        with collecting(collector):
            out = run()
        if (ranks := ranks_of(model)) is not None:
            ranks.join(collector.calls)
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
    """Puts what all layers left where that of the first is: layers may lie on several devices.

    What gradients have to reach stays, because a copy is another tensor.
    """
    first = next((x.device for call in calls for x in (call.mean, call.lengths) if x is not None), None)
    for call in calls if first is not None else ():
        call.mean, call.heads, call.lengths = (
            x if x is None or x.requires_grad else x.to(first) for x in (call.mean, call.heads, call.lengths)
        )


def _with_attentions(model: Any, run: Run, collector: Collector, reducers: Mapping[str, int]) -> Any:
    """Under eager attention the model returns the weights; ``reducers`` says which module makes them at which place of its
    output, so that heads are reduced as soon as a layer is done."""
    reduced: dict[int, tuple[Tensor, int]] = {}  # the reduced tensors by id, held so that no other can get it

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
            "it returns a tuple, in which attentions have no name: set return_dict=True in its configuration"
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
                raise ModelError(f"attention {number} that the model returns is not [batch, head, query, key]")
            if id(weights) in reduced:
                collector.calls.append(Call(path, cross, reduced[id(weights)][1], False, weights[:, 0]))
            else:
                mean = reduce_heads(weights.detach(), collector.reduce)
                heads = weights.detach().float() if collector.wants_heads() else None
                collector.calls.append(Call(path, cross, int(weights.shape[1]), False, mean, heads))
    return out


def find_reducers(model: Any, run: Run) -> dict[str, int]:
    """Which module first makes each tensor of the returned attentions, and at which place of its output."""
    origins: dict[int, tuple[str, int]] = {}
    alive: list[Any] = []  # ids are only good while the tensors live

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
