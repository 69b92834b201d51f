"""Whether a key-value cache is that of a prompt, by the keys of its first layer: explanations on another one would mislead.

Keys of the first layer come from a token and its position alone, so they tell both without a pass through the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.check import half
from attnflow.capture.inputs import kind
from attnflow.capture.kv_cache import reading_cache
from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-2}
"""How far a key may be from what the model computes, relative to its length; another token's is as far as it is long."""

TOLERANCE_HALF = 0.1


class _Met(Exception):
    """Ends a pass at its first keys."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys


def check_cache(model: Runner, cache: Any, ids: Sequence[int]) -> None:
    """Refuses what somebody gives for the cache of these tokens, all but the last, and is not."""
    try:
        shown = reading_cache(cache, len(ids) - 1) if len(ids) > 1 else None
    except (TypeError, AttributeError, LookupError, ValueError):
        raise InputError(
            f"cache is {kind(cache)}: expected a key-value cache of transformers, or keys and values of each layer"
        ) from None
    if shown is None:  # empty, too short, or without what left a sliding window: it is made again
        return
    first = getattr(cache, "layers", None)
    count = len(first[0].keys if first else cache[0][0])
    if count != 1:
        raise InputError(f"cache holds {count} texts: expected the key-value cache of this prompt alone")
    expected = _first_keys(model, ids[:-1])
    if expected is not None and expected.device != shown.layers[0].keys.device:
        raise InputError(
            f"cache is on {shown.layers[0].keys.device} and the model on {expected.device}: move it there, or leave it out"
        )
    if expected is not None and not _near(shown.layers[0].keys, expected):
        raise InputError(
            "cache does not hold this prompt: the keys in it are of other tokens, of other positions or of another model. "
            "Give the cache that was made with these tokens from the first one on, or leave it out"
        )


def is_same(model: Runner, cache: Any, ids: Sequence[int], item: int, start: int) -> bool:
    """Whether the model computes these keys by itself, too: some count positions otherwise when they generate."""
    shown = reading_cache(cache, len(ids), item, start)
    expected = None if shown is None else _first_keys(model, ids)
    return shown is not None and expected is not None and _near(shown.layers[0].keys, expected)


def _near(keys: Tensor, expected: Tensor) -> bool:
    if keys.shape != expected.shape:
        return False
    tolerance = TOLERANCE_HALF if half(expected.dtype) else TOLERANCE[expected.dtype]
    gaps, sizes = (x.double().square().sum((1, 3)).sqrt() for x in (keys.double() - expected.double(), expected))
    return bool((gaps <= tolerance * sizes + 1e-12).all())


def _first_keys(model: Runner, ids: Sequence[int]) -> Tensor | None:
    """[1, head, token, size] of the first layer, or None for a model that shows none."""
    from transformers.cache_utils import Cache, DynamicLayer

    class First(DynamicLayer):  # type: ignore[misc]
        def update(self, key_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            raise _Met(key_states)

    try:
        model.forward({"input_ids": torch.tensor([list(ids)])}, past_key_values=Cache(layers=[First()]), use_cache=True)
    except _Met as met:
        return met.keys
    except Exception:  # whatever a model file does with a cache it does not know
        return None
    return None
