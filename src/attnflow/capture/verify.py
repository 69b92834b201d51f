"""Steps of the self-check: find a route to the model's attention, and compare everything with the bare model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import check, inputs, routes
from attnflow.capture.assemble import layer_calls
from attnflow.capture.changes import check_one_attention, own_attention, state_of
from attnflow.capture.check import Checked
from attnflow.capture.collect import Call, Collector, is_collecting
from attnflow.capture.inputs import Encoded
from attnflow.capture.layer_calls import output_of, states_of, with_states
from attnflow.capture.picture import image_places
from attnflow.capture.predict import NOT_FINITE
from attnflow.capture.quantised import mixing
from attnflow.capture.sublayer import layer_path
from attnflow.capture.wrappers import adapted_in, check_all_heads, check_weights
from attnflow.errors import InputError, ModelError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

PROBE_TOKENS = 96
"""Maximal number of tokens of the first text on which the self-check runs."""

PROBE_LEAST = 12

# a self-check changes the model's implementation and restores it, so only one may run at a time
_checking = threading.RLock()


def verify(runner: Runner, encoded: Encoded) -> Checked:
    """Run the self-check on first use of this kind of input; later calls return its results while the model stays."""
    kind, state = kind_of(encoded), state_of(runner.model)
    if kind in runner.checked and runner.state == state:
        return runner.checked[kind]
    with _checking:
        if runner.state not in (None, state):  # None: nothing was checked yet, and encoding has found things out
            runner.forget()
        if kind not in runner.checked:
            runner.checked[kind] = _first_use(runner, encoded)
        runner.state = state_of(runner.model)  # parts with other attention functions get that of the whole
        return runner.checked[kind]


def kind_of(encoded: Encoded) -> str:
    """Return the kind of an input. Inputs of one kind take the same way through the model. Towers that attend within
    windows make more calls for larger images, so the size counts."""
    form = inputs.form_of(encoded.tensors)
    sizes = encoded.tensors.get("image_grid_thw")
    return form if sizes is None else f"{form} of {sizes.tolist()}"


def probe(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the input of the self-check: the text, cut if it is long, and repeated if it is too short.

    A text with an image stays as it is, because the model counts the tokens that represent patches.
    """
    cut = dict(tensors)
    if "pixel_values" in tensors:
        return cut
    for side, encoder in (("input_ids", True), ("decoder_input_ids", False)):
        ids = tensors.get(side)
        if ids is None:
            continue
        n = int(ids.shape[1])
        pairs = tensors.get("attention_mask")
        own_length = "position_ids" in tensors or (pairs is not None and pairs.dim() == 4)
        length = min(max(n, 1 if own_length else PROBE_LEAST), PROBE_TOKENS)
        place = torch.arange(length) % n
        if encoder and pairs is not None and pairs.dim() == 4:
            cut["attention_mask"] = pairs[..., :length, :length]
        for name, x in tensors.items():
            along = x.dim() > 1 and x.shape[0] == 1 and x.shape[1] == n and "pixel" not in name
            if along and (name.startswith("decoder_") != encoder):
                cut[name] = x[:, place.to(x.device)]
    return cut


def layer_bytes(tensors: Mapping[str, Tensor], checked: Checked) -> int:
    """Return the size of all heads of one layer, for a whole batch."""
    main = tensors.get("input_ids")
    rows, n = (1, checked.positions) if main is None else main.shape
    return int(rows) * checked.heads * int(n) ** 2 * 4


def cover(runner: Runner, tensors: Mapping[str, Tensor], checked: Checked) -> None:
    """Compare with the bare model again on texts longer than those before, if its attention is a user's own function.

    Such a function may differ from eager attention only beyond the length of the self-check. A batch is padded on the
    right, and its texts run one by one, because the function may ignore padding.
    """
    name = own_attention(runner.model) if checked.route == routes.INTERFACE else None
    for text in [] if name is None else inputs.single(tensors):
        sizes = sizes_of(text)
        if any(size > runner.covered.get(key, 0) for key, size in sizes.items()):
            _check_longer(runner, text, checked, name)
            _cover(runner, sizes)


def _check_longer(runner: Runner, text: Mapping[str, Tensor], checked: Checked, name: str | None) -> None:
    collector = Collector("operands" if checked.blocks else "whole", measure=False)
    with routes.running():
        expected = check.float_outputs(runner.forward(text))
        routes.prepare(runner.model, checked.route)
        out = routes.capture(runner.model, checked.route, lambda: runner.forward(text), collector)
    difference = check.largest_difference(check.float_outputs(out), expected)
    if not _is_close(runner, text, difference, expected):
        raise ModelError(
            f"with the attention function {name!r} the outputs differ from those with eager attention by "
            f"{difference:.3g} on this input, although they were equal in the self-check on a shorter one, so what "
            f'{name!r} attends to is unknown: load the model with attn_implementation="eager", or give shorter texts'
        )


def sizes_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of entries of each tensor of one input, except masks, which come and go."""
    return {name: x.numel() for name, x in tensors.items() if "mask" not in name}


def _cover(runner: Runner, sizes: Mapping[str, int]) -> None:
    for key, size in sizes.items():
        runner.covered[key] = max(size, runner.covered.get(key, 0))


def _first_use(runner: Runner, encoded: Encoded) -> Checked:
    tensors = probe(encoded.tensors)
    check_weights(runner.model)
    _check_whole(runner)
    with routes.running():
        out = runner.forward(tensors)
    expected = check.float_outputs(out)
    if any(x.numel() and bool(x.isnan().all()) for x in expected):
        raise InputError(NOT_FINITE)
    _check_adapters(runner, tensors, expected)
    refusals: dict[str, list[str]] = {}  # reasons, with the routes that failed for each
    for route in routes.routes_for(runner.model):
        try:
            checked = _by_route(runner, tensors, expected, route)
            _cover(runner, sizes_of(tensors))
            return checked
        except InputError as e:
            refusals.setdefault(str(e), []).append(route)
        except Exception as e:  # model files may raise anything; then this route is not possible
            reason = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
            refusals.setdefault(reason, []).append(route)
        except BaseException:  # interrupted
            routes.restore(runner.model)
            raise
        routes.restore(runner.model)
    mixes = mixing(runner.model) if any("positions mix" in reason for reason in refusals) else None
    reasons = mixes or "; ".join(f"{', '.join(closed)}: {reason}" for reason, closed in refusals.items())
    one_text = "input_ids" in tensors and tensors.keys().isdisjoint(("decoder_input_ids", "pixel_values"))
    answers = one_text and getattr(out, "logits", None) is not None
    instead = ". blank_out() and gradient() need no attention" if answers else ""
    raise ModelError(f"{type(runner.model).__name__} cannot be explained by its attention. {reasons}{instead}")


def _check_adapters(runner: Runner, tensors: dict[str, Tensor], expected: list[Tensor]) -> None:
    """Check that adapters act only inside the model's layers, where they are observed."""
    adapted = adapted_in(runner.given)
    if adapted is None:
        return
    options = {"use_cache": False} if runner.accepts("use_cache") else {}
    with routes.running(), runner.eagerly(), torch.no_grad():
        outputs = check.float_outputs(adapted(**runner.placed(tensors), **options))
    difference = check.largest_difference(outputs, expected)
    if not _is_close(runner, tensors, difference, expected):
        raise ModelError(
            f"the adapters change the outputs by {difference:.3g} from outside the model's layers, where attnflow "
            "cannot observe them: merge them into the weights, or wrap the model without them"
        )


def _check_whole(runner: Runner) -> None:
    """Check that the short text of the self-check takes the way of a long one, and does not change the model."""
    if getattr(runner.config, "attention_type", None) == "block_sparse":
        raise ModelError(
            f"{type(runner.model).__name__} attends to some blocks of a long text, including random ones, and "
            'permanently switches to full attention at the first short text (attention_type="block_sparse"): load it '
            'with attention_type="original_full"'
        )


def _by_route(runner: Runner, tensors: dict[str, Tensor], expected: list[Tensor], route: str) -> Checked:
    if route == routes.INTERFACE:
        check_one_attention(runner.model)
    routes.prepare(runner.model, route)
    options = routes.forward_options(route)
    whole = Collector("whole", "mean", True)
    out = routes.capture(runner.model, route, lambda: runner.forward(tensors, **options), whole)
    outputs = check.float_outputs(out)
    reducers = _reducers(runner, tensors, whole, outputs) if route == routes.EAGER else {}
    difference = check.largest_difference(outputs, expected)
    if not _is_close(runner, tensors, difference, expected):
        _check_repeats(runner, tensors, expected)
        raise ModelError(f"the outputs of the hooked model differ from the model's own by {difference:.3g}")
    if not whole.calls:
        raise ModelError("no attention was seen: the model mixes positions in another way, or in its own code")
    check.check_rows(whole.calls, runner.dtype)
    stack = layer_calls(runner, whole.calls, tensors)
    own = [whole.calls[i] for i in stack.main]
    check_all_heads(runner.text_config, max(call.head_count for call in own))
    name = _sequence(tensors, own)
    causal = False
    if name is not None and not stack.cross:
        # tokens that represent patches cannot be changed one by one, so their weights decide
        images = "pixel_values" in tensors
        among = image_places(runner.config, tensors["input_ids"][0].tolist()) if images else []
        causal = (
            not check.sees_ahead(own, among) if images else _causal(runner, tensors, route, name, own, len(whole.calls))
        )
    elif route != routes.EAGER:  # the eager route does not know modules
        _check_layers(runner, tensors, route, own)
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


def _check_repeats(runner: Runner, tensors: Mapping[str, Tensor], expected: Sequence[Tensor]) -> None:
    """Check that the bare model repeats its outputs; otherwise nothing can be compared."""
    difference = check.largest_difference(check.float_outputs(runner.forward(tensors)), expected)
    if not _is_close(runner, tensors, difference, expected):
        raise ModelError(
            "the model's own outputs differ from one run to the next because it draws random numbers, so there is "
            "nothing to compare with: load its weights into a deterministic class"
        )


def _is_close(runner: Runner, tensors: Mapping[str, Tensor], difference: float, expected: Sequence[Tensor]) -> bool:
    with routes.running():
        return check.is_close(difference, runner.model, runner.forward, tensors, expected)


def _causal(
    runner: Runner, tensors: Mapping[str, Tensor], route: str, name: str, calls: Sequence[Call], call_count: int
) -> bool:
    """Return whether positions look back only. Refuse weights that contradict outputs, and other mixing."""
    options = {"output_hidden_states": True} if runner.accepts("output_hidden_states") else {}

    def run(changed: Mapping[str, Tensor]) -> Any:
        return runner.forward(changed, **options)

    # a user's mask may show some positions a few later ones, which outputs of the first half may not reveal
    ahead = inputs.looks_ahead(tensors)
    back_only = None if ahead else check.looks_back_only(run, tensors, name, runner.vocabulary())
    if back_only:
        check.check_future(calls)
    mode = "alone, softmax" if route == routes.EAGER else "alone"
    counted = Collector(mode)
    if route == routes.EAGER:  # works only if every layer's softmax is seen
        routes.capture(runner.model, route, lambda: run(tensors), counted)
    if route != routes.EAGER or counted.seen == call_count:
        layer = None if route == routes.EAGER else layer_path(calls[-1].path)
        n = int(tensors[name].shape[1])

        def alone(changed: Mapping[str, Tensor]) -> list[Tensor]:
            collector = Collector(mode)
            with _leaving(runner.model, layer, collector, n) as states:
                out = routes.capture(runner.model, route, lambda: run(changed), collector)
            return check.by_position(check.float_outputs(out), n) or states()

        check.check_nothing_else_mixes(alone, tensors, name, runner.vocabulary())
    return bool(back_only) or (back_only is None and not check.sees_ahead(calls))


@contextmanager
def _leaving(
    model: torch.nn.Module, layer: str | None, collector: Collector, n: int
) -> Iterator[Callable[[], list[Tensor]]]:
    """Observe the states of n positions that leave a layer, for a model that returns none, such as a classifier.

    Yield a function that returns them after the pass. Without a layer, it is the last module after all attention.
    """
    last: list[Tensor] = []
    seen = [0]

    def hook(module: Any, args: Any, out: Any) -> None:
        states = check.by_position(check.float_outputs(out), n) if is_collecting(collector) else []
        if states:
            last[:], seen[0] = states, collector.seen

    with ExitStack() as stack:
        for module in [model.get_submodule(layer)] if layer else model.modules():
            stack.callback(module.register_forward_hook(hook).remove)
        yield lambda: last if layer or seen[0] == collector.seen else []


def _check_layers(runner: Runner, tensors: Mapping[str, Tensor], route: str, calls: Sequence[Call]) -> None:
    """Refuse layers that mix positions without attention, if outputs are not by position: images, audio and a source.

    The input runs three times in one pass in which positions attend only to themselves. In the second and the third
    copy, one half of the positions differs, and the output of the last layer is compared at the other half. For a
    source text, other tokens make the difference. Otherwise it is made where states enter the first layer, and mixing
    before the layers is not tested.
    """
    left: list[Tensor] = []

    def entering(module: Any, args: Any, named: Any) -> Any:
        states = states_of(args, named)
        if states.shape[0] != 3 or states.shape[1] < 2:
            return None
        half, other, moved = states.shape[1] // 2, states.flip(-1) + 1, states.clone()
        moved[1, half:], moved[2, :half] = other[1, half:], other[2, :half]
        return with_states(args, named, moved)

    def leaving(module: Any, args: Any, out: Any) -> None:
        left[:] = [output_of(out)]

    first, last = (runner.model.get_submodule(layer_path(call.path)) for call in (calls[0], calls[-1]))
    thrice = {k: x.repeat(3, *[1] * (x.dim() - 1)) if x.dim() and x.shape[0] == 1 else x for k, x in tensors.items()}
    ids = tensors.get("input_ids")
    by_tokens = ids is not None and ids.shape == (1, calls[0].shape[1]) and len(ids.unique()) > 1
    for other in (True, False) if by_tokens else (False,):
        left.clear()
        batch = {**thrice, "input_ids": _other_tokens(thrice["input_ids"])} if other else thrice
        run = partial(runner.forward, batch)
        with ExitStack() as stack:
            stack.callback(last.register_forward_hook(leaving).remove)
            if not other:
                stack.callback(first.register_forward_pre_hook(entering, with_kwargs=True).remove)
            try:
                routes.capture(runner.model, route, run, Collector("alone"))
            except Exception:  # the model takes one input at a time, no such tokens, or states of another form
                continue
        if left and left[0].dim() == 3 and left[0].shape[0] == 3:
            check.check_same_beside(left[0])
            return


def _other_tokens(ids: Tensor) -> Tensor:
    """Return three copies of a text with other tokens in the second half of the second and the first half of the third.

    They are from the same text, because padding among them would hide or move positions.
    """
    tokens, numbers = ids.unique(return_inverse=True)
    half, other, moved = ids.shape[1] // 2, tokens[(numbers + 1) % len(tokens)], ids.clone()
    moved[1, half:], moved[2, :half] = other[1, half:], other[2, :half]
    return moved


def _reducers(runner: Runner, tensors: Mapping[str, Tensor], whole: Collector, outputs: list[Tensor]) -> dict[str, int]:
    """Find where heads can be reduced as soon as a layer is done, with the same result as at the end."""

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
    """Return the name of the input with one entry per position: token ids, or states [1, position, size]."""
    n = calls[0].mean.shape[-1] if calls[0].mean is not None else 0
    for name in ("input_ids", "inputs_embeds", "input"):
        x = tensors.get(name)
        if x is not None and x.dim() == (2 if name == "input_ids" else 3) and x.shape[:2] == (1, n):
            return name
    return None


def _blocks_agree(runner: Runner, tensors: Mapping[str, Tensor], expected: list[Tensor]) -> bool:
    """Return whether our softmax gives the model's own weights, from the same operands, in every call of one pass."""
    collector = Collector("compare")
    try:
        out = routes.capture(runner.model, routes.INTERFACE, lambda: runner.forward(tensors), collector)
    except Exception:  # model files may raise anything for a mask that is a rule; then blocks are not possible
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
    """Return whether a text padded to a longer one gives the same weights and classes, and no weight to padding."""
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
    # Classes of the whole text, or scores of its positions: a decoder that does not know the tokenizer's padding token
    # reads its class from padding.
    of_texts = [pair for pair in zip(outputs, check.float_outputs(out), strict=False) if pair[0].dim() == 2]
    return all(
        float((padded[-1, : alone.shape[1]] - alone[0]).abs().max()) <= 10 * slack * float(alone.abs().max())
        for alone, padded in of_texts
    )
