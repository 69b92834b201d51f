"""The self-check of a model, step by step: find a route to its attention, and compare everything with the bare model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import check, inputs, routes
from attnflow.capture.assemble import layer_calls
from attnflow.capture.check import Checked
from attnflow.capture.collect import Call, Collector
from attnflow.capture.inputs import Encoded
from attnflow.errors import InputError, ModelError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

PROBE_TOKENS = 96
"""The self-check runs on at most so many tokens of the first text."""

PROBE_LEAST = 12

_checking = threading.RLock()  # a self-check changes the model's implementation and back: one at a time


def verify(runner: Runner, encoded: Encoded) -> Checked:
    """The self-check, on the first use of this kind of input; later calls return what it found."""
    kind = kind_of(encoded)
    if kind in runner.checked:
        return runner.checked[kind]
    with _checking:
        if kind not in runner.checked:
            runner.checked[kind] = _first_use(runner, encoded)
        return runner.checked[kind]


def kind_of(encoded: Encoded) -> str:
    """Inputs of one kind go the same way through the model."""
    return ",".join(sorted(encoded.tensors))


def probe(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the self-check runs on: the text, cut where it is long, repeated where it is too short to tell anything.

    A text with an image in it stays as it is: the model counts the tokens that stand for patches.
    """
    cut = dict(tensors)
    if "pixel_values" in tensors:
        return cut
    for side, encoder in (("input_ids", True), ("decoder_input_ids", False)):
        ids = tensors.get(side)
        if ids is None:
            continue
        n = int(ids.shape[1])
        length = min(max(n, 1 if "position_ids" in tensors else PROBE_LEAST), PROBE_TOKENS)
        place = torch.arange(length) % n
        for name, x in tensors.items():
            along = x.dim() > 1 and x.shape[0] == 1 and x.shape[1] == n and "pixel" not in name
            if along and (name.startswith("decoder_") != encoder):
                cut[name] = x[:, place.to(x.device)]
    return cut


def layer_bytes(tensors: Mapping[str, Tensor], checked: Checked) -> int:
    """The size of all heads of one layer, of a whole batch."""
    main = tensors.get("input_ids")
    rows, n = (1, checked.positions) if main is None else main.shape
    return int(rows) * checked.heads * int(n) ** 2 * 4


def _first_use(runner: Runner, encoded: Encoded) -> Checked:
    tensors = probe(encoded.tensors)
    with routes.running():
        expected = check.float_outputs(runner.forward(tensors))
    refusals = []
    for route in routes.routes_for(runner.model):
        try:
            return _by_route(runner, tensors, expected, route)
        except InputError as e:
            refusals.append(f"{route}: {e}")
        except Exception as e:  # whatever a model file does with what it was handed: not a way in
            refusals.append(f"{route}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
        except BaseException:  # interrupted
            routes.restore(runner.model)
            raise
        routes.restore(runner.model)
    raise ModelError(f"{type(runner.model).__name__} cannot be explained by its attention. " + "; ".join(refusals))


def _by_route(runner: Runner, tensors: dict[str, Tensor], expected: list[Tensor], route: str) -> Checked:
    routes.prepare(runner.model, route)
    options = routes.forward_options(route)
    whole = Collector("whole", "mean", True)
    out = routes.capture(runner.model, route, lambda: runner.forward(tensors, **options), whole)
    outputs = check.float_outputs(out)
    reducers = _reducers(runner, tensors, whole, outputs) if route == routes.EAGER else {}
    difference = check.largest_difference(outputs, expected)
    if not _is_close(runner, tensors, difference, expected):
        raise ModelError(f"the outputs of the hooked model differ from the model's own by {difference:.3g}")
    if not whole.calls:
        raise ModelError("no attention was seen: the model mixes positions in another way, or in code of its own")
    check.check_rows(whole.calls, runner.dtype)
    stack = layer_calls(runner, whole.calls, tensors)
    own = [whole.calls[i] for i in stack.main]
    name = _sequence(tensors, own)
    causal = False
    if name is not None and not stack.cross:
        # tokens that stand for patches cannot be changed one by one: of them the weights have to say it
        images = "pixel_values" in tensors
        causal = not check.sees_ahead(own) if images else _causal(runner, tensors, route, name, own, len(whole.calls))
    blocks = route == routes.FUSED or (route == routes.INTERFACE and _blocks_agree(runner, tensors, expected))
    return Checked(
        route=route,
        difference=difference,
        blocks=blocks,
        causal=causal,
        sinks=any(call.has_sinks for call in whole.calls),
        padding=_padding_agrees(runner, tensors, route, reducers, whole, outputs),
        calls=len(whole.calls),
        reducers=reducers,
        stack=stack,
        heads=max(call.head_count for call in whole.calls),
        positions=max(int(call.mean.shape[-1]) for call in whole.calls if call.mean is not None),
        paths=tuple(call.path for call in whole.calls),
    )


def _is_close(runner: Runner, tensors: Mapping[str, Tensor], difference: float, expected: Sequence[Tensor]) -> bool:
    with routes.running():
        return check.is_close(difference, runner.model, runner.forward, tensors, expected)


def _causal(
    runner: Runner, tensors: Mapping[str, Tensor], route: str, name: str, calls: Sequence[Call], call_count: int
) -> bool:
    """Whether positions look back only. Refuses weights that contradict the outputs, and models that mix otherwise."""
    options = {"output_hidden_states": True} if runner.accepts("output_hidden_states") else {}

    def run(changed: Mapping[str, Tensor]) -> Any:
        return runner.forward(changed, **options)

    back_only = check.looks_back_only(run, tensors, name, runner.vocabulary())
    if back_only:
        check.check_future(calls)
    mode = "alone, softmax" if route == routes.EAGER else "alone"
    counted = Collector(mode)
    if route == routes.EAGER:  # only if every layer's softmax is seen can it be made to look at nothing else
        routes.capture(runner.model, route, lambda: run(tensors), counted)
    if route != routes.EAGER or counted.seen == call_count:
        check.check_nothing_else_mixes(
            lambda changed: routes.capture(runner.model, route, lambda: run(changed), Collector(mode)),
            tensors,
            name,
            runner.vocabulary(),
        )
    return bool(back_only) or (back_only is None and not check.sees_ahead(calls))


def _reducers(runner: Runner, tensors: Mapping[str, Tensor], whole: Collector, outputs: list[Tensor]) -> dict[str, int]:
    """Where heads can be reduced as soon as a layer is done, if that gives what reducing them at the end gives."""

    def run() -> Any:
        return runner.forward(tensors, output_attentions=True)

    reducers = routes.find_reducers(runner.model, run)
    reduced = Collector()
    out = routes.capture(runner.model, routes.EAGER, run, reduced, reducers)
    same = len(reduced.calls) == len(whole.calls) and all(
        a.mean is not None and b.mean is not None and torch.equal(a.mean, b.mean)
        for a, b in zip(reduced.calls, whole.calls, strict=True)
    )
    return reducers if same and check.largest_difference(check.float_outputs(out), outputs) == 0 else {}


def _sequence(tensors: Mapping[str, Tensor], calls: Sequence[Call]) -> str | None:
    """The input that has one entry a position: token ids, or states [1, position, size]."""
    n = calls[0].mean.shape[-1] if calls[0].mean is not None else 0
    for name in ("input_ids", "inputs_embeds", "input"):
        x = tensors.get(name)
        if x is not None and x.dim() == (2 if name == "input_ids" else 3) and x.shape[:2] == (1, n):
            return name
    return None


def _blocks_agree(runner: Runner, tensors: Mapping[str, Tensor], expected: list[Tensor]) -> bool:
    """Whether our softmax gives the model's own weights, from the same operands, in every call of one pass."""
    collector = Collector("compare")
    try:
        out = routes.capture(runner.model, routes.INTERFACE, lambda: runner.forward(tensors), collector)
    except Exception:  # whatever a model file does with a mask that is a rule: then it is not for blocks
        return False
    close = _is_close(runner, tensors, check.largest_difference(check.float_outputs(out), expected), expected)
    return close and collector.worst <= (1e-2 if check.half(runner.dtype) else 1e-5)


def _padding_agrees(
    runner: Runner,
    tensors: Mapping[str, Tensor],
    route: str,
    reducers: Mapping[str, int],
    whole: Collector,
    outputs: Sequence[Tensor],
) -> bool | None:
    """Whether a text that is padded beside a longer one gives the same weights and classes, and nothing to the padding."""
    if "input_ids" not in tensors or tensors["input_ids"].shape[1] < 2 or "decoder_input_ids" in tensors:
        return None
    n = tensors["input_ids"].shape[1]
    longer = {
        k: torch.cat([v, v[:, :1].repeat(1, 3)], 1) if v.dim() == 2 and v.shape[1] == n else v
        for k, v in tensors.items()
    }
    collector, options = Collector("whole", "mean", False), routes.forward_options(route)
    try:
        both = inputs.batched([longer, dict(tensors)], runner.pad_id())
        out = routes.capture(runner.model, route, lambda: runner.forward(both, **options), collector, reducers)
    except (ValueError, RuntimeError, IndexError):
        return False
    slack = 2e-2 if check.half(runner.dtype) else 1e-4
    for single, call in zip(whole.calls, collector.calls, strict=False):
        if single.mean is None or call.mean is None or call.mean.shape[0] != 2 or call.mean.shape[-1] != n + 3:
            continue
        leaked = float(call.mean[1, :n, n:].max())
        if leaked > 1e-6:
            raise ModelError(
                f"{call.path or 'a layer'} gives {leaked:.3g} to padding: the mask did not reach the attention"
            )
        if float((call.mean[1, :n, :n] - single.mean[0]).abs().max()) > slack:
            return False
    # classes of the whole text, or scores of its positions: a decoder that does not know the tokenizer's padding reads its
    # class from there
    of_texts = [pair for pair in zip(outputs, check.float_outputs(out), strict=False) if pair[0].dim() == 2]
    return all(
        float((padded[-1, : alone.shape[1]] - alone[0]).abs().max()) <= 10 * slack * float(alone.abs().max())
        for alone, padded in of_texts
    )
