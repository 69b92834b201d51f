"""Reading the first positions of a prompt's key-value cache, for any kind of cache.

A cache is read in place (`CacheInPlace`), by an attention function that takes keys from two places, or joined with the
new keys (`reading_cache`), for the model's own attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.fingerprint import fingerprint
from attnflow.errors import InputError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache


@dataclass(frozen=True, eq=False)
class StoredLayer:
    """The stored keys and values of a prompt in one layer, [1, key head, position, size].

    first: the number of earlier positions of the prompt that a sliding window has dropped.
    """

    keys: Tensor
    values: Tensor
    first: int = 0


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A cache as it was when it was given: its keys and values, and their fingerprint.

    Explanations read the cache later without a copy, so a later change would be explained instead.
    """

    layers: Sequence[StoredLayer]
    length: int
    contents: tuple[int, ...]

    def check(self) -> None:
        if _contents(self.layers) != self.contents:
            raise InputError(
                "the cache was changed after it was given, and its old contents are what this answer was read from: "
                "explain the answer before using the cache again, or give a copy of it"
            )


def snapshot(cache: Any, length: int) -> Snapshot | None:
    """Return the first ``length`` positions of a cache of one text; None if it does not have them."""
    layers = stored_layers(cache, length)
    return None if layers is None else Snapshot(layers, length, _contents(layers))


def _contents(layers: Sequence[StoredLayer]) -> tuple[int, ...]:
    return fingerprint(x for layer in layers for x in (layer.keys, layer.values))


class KeysLost(InputError):
    """Raised if a sliding window has dropped keys that the answer's first tokens see."""


def stored_layers(cache: Any, length: int, item: int = 0, start: int = 0) -> list[StoredLayer] | None:
    """Return the first ``length`` positions of a text in a cache, counted from ``start``, without a copy.

    Return None if the cache does not have them, or not as they were computed (quantized).

    item: the number of the text in a batch.
    """
    if isinstance(cache, Snapshot):
        cache.check()
        return list(cache.layers) if cache.length == length and item == start == 0 else None
    layers = []
    for keys, values, dropped, end in _tensors(cache):
        # only a layer with a window may lack dropped positions, and that is checked against the mask
        first = max(0, dropped - start)
        if keys is None or values is None or keys.dim() != 4 or end < start + length or first >= length:
            return None
        places = slice(start + first - dropped, start + length - dropped)
        layers.append(StoredLayer(keys[item : item + 1, :, places], values[item : item + 1, :, places], first))
    return layers or None


def reading_cache(cache: Any, length: int, item: int = 0, start: int = 0, copies: int = 1) -> KeyValueCache | None:
    """Return a transformers cache that shows ``length`` positions of another one, from ``start`` on.

    Nothing is copied until a layer runs. Return None if the other cache does not contain all of them.

    item: the number of the text in a batch.
    copies: the number of texts that share the cache.
    """
    from transformers.cache_utils import Cache, DynamicLayer

    class Prefix(DynamicLayer):  # type: ignore[misc]
        """The keys and values of a layer; new ones are appended for one call only."""

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            return torch.cat([self.keys, key_states], 2), torch.cat([self.values, value_states], 2)

    stored = stored_layers(cache, length, item, start)
    if stored is None or any(layer.first for layer in stored):
        return None
    layers = []
    for one in stored:
        layer = Prefix()
        layer.lazy_initialization(one.keys, one.values)
        layer.keys, layer.values = (x.expand(copies, -1, -1, -1) for x in (one.keys, one.values))
        layers.append(layer)
    return Cache(layers=layers)


class CacheInPlace:
    """A cache for transformers that returns only new keys and values, and knows what precedes them.

    cache: what the model gets.
    length: the number of earlier positions.
    snapshot: where the layers come from, if the cache belongs to someone else.
    """

    def __init__(self, layers: Sequence[StoredLayer], length: int, snapshot: Snapshot | None = None) -> None:
        from transformers.cache_utils import Cache, DynamicLayer

        latest: list[tuple[Tensor, Tensor, StoredLayer]] = []

        class Standing(DynamicLayer):  # type: ignore[misc]
            """A layer that counts as filled."""

            def __init__(self, stored: StoredLayer) -> None:
                super().__init__()
                self.stored = stored
                self.is_initialized = True

            def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
                latest[:] = [(key_states, value_states, self.stored)]
                return key_states, value_states

            def get_seq_length(self) -> int:
                return length

            def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
                return length + query_length, 0

        self.length, self.snapshot = length, snapshot
        self.latest = latest
        self.cache: KeyValueCache = Cache(layers=[Standing(layer) for layer in layers])

    def before(self, key: Tensor, value: Tensor) -> StoredLayer:
        """Return what precedes the keys and values of an attention call, which the cache must have received last."""
        if not self.latest or self.latest[0][0] is not key or self.latest[0][1] is not value:
            raise InputError(
                "an attention call has different keys and values from those that the cache received just before"
            )
        return self.latest.pop()[2]


def _tensors(cache: Any) -> list[tuple[Tensor | None, Tensor | None, int, int]]:
    """Return the keys, the values, the number of dropped positions and the number of seen positions for each layer."""
    if cache is None:  # the model has no cache
        return []
    layers = getattr(cache, "layers", None)
    if layers is None:  # the old tuple format
        return [(pair[0], pair[1], 0, int(pair[0].shape[2])) for pair in cache]
    lengths = _lengths(layers)
    return [
        (None, None, 0, 0) if end is None else (layer.keys, layer.values, *_span(layer, end))
        for layer, end in zip(layers, lengths, strict=True)
    ]


def _lengths(layers: Sequence[Any]) -> list[int | None]:
    """Return how many positions each layer has seen; None if it has no keys, or stores them in another form."""
    lengths: list[Any] = [
        None if getattr(layer, "keys", None) is None or hasattr(layer, "_quantized_keys") else layer.get_seq_length()
        for layer in layers
    ]
    # counters of static caches, on their device, read all at once
    counters = [x for x in lengths if isinstance(x, Tensor)]
    counts = iter(torch.stack(counters).tolist() if counters else [])
    return [int(next(counts)) if isinstance(x, Tensor) else x for x in lengths]


def _span(layer: Any, end: int) -> tuple[int, int]:
    """Return how many positions a layer has dropped, and where its contents end."""
    room = int(layer.keys.shape[2])
    if getattr(layer, "max_cache_len", None) is not None and end <= room:  # preallocated, and filled from the front
        return 0, end
    if getattr(layer, "is_sliding", False):
        return end - room, end
    return 0, min(end, room)
