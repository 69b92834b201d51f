"""The key-value cache of a prompt as something to read from: its first positions, whatever kind of cache it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache


def reading_cache(cache: Any, length: int, item: int = 0, start: int = 0, copies: int = 1) -> KeyValueCache | None:
    """A cache of transformers that shows ``length`` positions of another one, from ``start`` on, and keeps nothing.

    Nothing is copied until a layer runs. item: which text of a batch. copies: for how many texts it is shown. None where
    the other one does not hold them all.
    """
    from transformers.cache_utils import Cache, DynamicLayer

    class Prefix(DynamicLayer):  # type: ignore[misc]
        """The keys and values of a layer; what is added is shown beside them once."""

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            return torch.cat([self.keys, key_states], 2), torch.cat([self.values, value_states], 2)

    layers = []
    for keys, values in _pairs(cache):
        if keys is None or values is None or keys.dim() != 4 or keys.shape[2] < start + length:
            return None
        layer = Prefix()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = (
            x[item : item + 1, :, start : start + length].expand(copies, -1, -1, -1) for x in (keys, values)
        )
        layers.append(layer)
    return Cache(layers=layers) if layers else None


def _pairs(cache: Any) -> list[tuple[Tensor | None, Tensor | None]]:
    if cache is None:  # of a model that keeps none
        return []
    layers = getattr(cache, "layers", None)
    if layers is None:  # the tuples of old
        return [(pair[0], pair[1]) for pair in cache]
    return [
        (None, None)
        if getattr(layer, "keys", None) is None
        or (getattr(layer, "is_sliding", False) and layer.get_seq_length() > layer.keys.shape[2])
        else (layer.keys, layer.values)
        for layer in layers
    ]
