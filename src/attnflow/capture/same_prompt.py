"""Check that a key-value cache belongs to a prompt: explanations on another cache would mislead.

Keys of the first layer depend only on a token and its position, so they identify both without a pass through the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.answer_pass import prompt_cache
from attnflow.capture.check import half
from attnflow.capture.collect import Collector, collecting
from attnflow.capture.inputs import kind
from attnflow.capture.kv_cache import StoredLayer, stored_layers
from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-2}
"""How far a key may be from the computed one, relative to its length; another token's key is about 1 away."""

TOLERANCE_HALF = 0.1

BLOCK = 8192
"""Tokens whose keys are computed at a time, if the model takes positions: a long prompt needs no more memory."""


class _Met(Exception):
    """Ends a pass at its first keys."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.pair = keys, values


def check_cache(model: Runner, cache: Any, ids: Sequence[int]) -> None:
    """Refuse a cache that does not belong to these tokens, without the last."""
    try:
        layers = stored_layers(cache, len(ids) - 1) if len(ids) > 1 else None
    except (TypeError, AttributeError, LookupError, ValueError) as e:
        if isinstance(e, InputError):
            raise
        raise InputError(
            f"cache is {kind(cache)}: expected a key-value cache of transformers, or keys and values of each layer"
        ) from None
    if layers is None:  # empty, too short, or a sliding window has dropped keys: it is computed again
        return
    count = _texts(cache)
    if count != 1:
        raise InputError(f"cache contains {count} texts: expected the key-value cache of this prompt alone")
    first = layers[0]
    device = first.keys.device
    if device != model.device:
        raise InputError(f"cache is on {device} and the model on {model.device}: move the cache there, or leave it out")
    _check_form(model, layers)
    if _same_keys(model, first, ids[:-1]) is False:
        raise InputError(
            "cache does not belong to this prompt: its keys are of other tokens, other positions or another model. "
            "Give the cache that was made with these tokens from the first one on, or leave it out"
        )


def _check_form(model: Runner, layers: Sequence[StoredLayer]) -> None:
    """Check that every layer has the number, size and type of heads of the model's own cache."""
    own = _own_forms(model)
    if not own:
        return
    if len(layers) != len(own):
        raise InputError(
            f"cache has {len(layers)} layers and the model has {len(own)}: expected the cache of this model"
        )
    for number, (layer, form) in enumerate(zip(layers, own, strict=True)):
        if _form(layer) != form:
            raise InputError(
                f"layer {number} of the cache has {_form(layer)}, but the model's own cache has {form}: expected the "
                "cache of this model"
            )


def _own_forms(model: Runner) -> tuple[str, ...]:
    """Return the form of the layers of the model's own cache, from a pass over two tokens; empty if it has no cache."""
    place = model.device, model.dtype  # a model may be moved or change precision
    if place not in model.cache_forms:
        layers = stored_layers(prompt_cache(model, [0, 0]), 2)
        model.cache_forms[place] = () if layers is None else tuple(_form(layer) for layer in layers)
    return model.cache_forms[place]


def _form(layer: StoredLayer) -> str:
    parts = []
    for name, stored in (("keys", layer.keys), ("values", layer.values)):
        _, heads, _, size = stored.shape
        dtype = str(stored.dtype).removeprefix("torch.")
        parts.append(f"{name} of {heads} heads of {size} in {dtype} on {stored.device}")
    return " and ".join(parts)


def is_same(model: Runner, cache: Any, ids: Sequence[int], item: int, start: int) -> bool:
    """Return whether the model computes the same keys: some count positions differently when they generate."""
    layers = stored_layers(cache, len(ids), item, start)
    return layers is not None and bool(_same_keys(model, layers[0], ids))


def _texts(cache: Any) -> int:
    layers = getattr(cache, "layers", None)
    return len(layers[0].keys if layers else cache[0][0])


def _same_keys(model: Runner, layer: StoredLayer, ids: Sequence[int]) -> bool | None:
    """Return whether these are the keys and values of these tokens; None if the model exposes none."""
    step = BLOCK if model.accepts("position_ids") else len(ids)
    near = []
    for start in range(layer.first - layer.first % step, len(ids), step):
        stop = min(start + step, len(ids))
        expected = _first_pair(model, ids[start:stop], start)
        if expected is None:
            return None
        begin = max(start, layer.first)
        for stored, own in zip((layer.keys, layer.values), expected, strict=True):
            some = stored[:, :, begin - layer.first : stop - layer.first]
            near.append(_near(some, own[:, :, begin - start :]))
    return bool(torch.stack(near).all())


def _near(keys: Tensor, expected: Tensor) -> Tensor:
    if keys.shape != expected.shape:
        return torch.tensor(False, device=expected.device)
    tolerance = TOLERANCE_HALF if half(expected.dtype) else TOLERANCE[expected.dtype]
    gaps, sizes = (x.double().square().sum((1, 3)).sqrt() for x in (keys.double() - expected.double(), expected))
    return (gaps <= tolerance * sizes + 1e-12).all()


def _first_pair(model: Runner, ids: Sequence[int], start: int) -> tuple[Tensor, Tensor] | None:
    """Return keys and values [1, head, token, size] of the first layer, or None if the model exposes none."""
    from transformers.cache_utils import Cache, DynamicLayer

    class First(DynamicLayer):  # type: ignore[misc]
        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            raise _Met(key_states, value_states)

    tensors = {"input_ids": torch.tensor([list(ids)])}
    if start:
        tensors["position_ids"] = torch.arange(start, start + len(ids))[None]
    try:
        with collecting(Collector("operands")):  # makes masks rules, so no matrix is made for a pass that ends here
            model.forward(tensors, past_key_values=Cache(layers=[First()]), use_cache=True)
    except _Met as met:
        return met.pair
    except Exception:  # model files may raise anything for a cache they do not know
        return None
    return None
