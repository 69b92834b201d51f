"""Rotary positions whose frequencies depend on the length of the text (dynamic NTK scaling, LongRoPE).

Up to the length that the model was trained on, they are the same for all texts. Beyond it, texts that run together get
the frequencies of the longest, keys of an earlier pass have other ones than those of a later pass, and dynamic scaling
keeps those of the longest text so far: the same text would give other numbers after a longer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch


class Stretching:
    """The modules of a model whose frequencies depend on the length of the text.

    length: the length up to which they do not; None if they never do.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = [m for m in model.modules() if any(_stretches(kind) for kind, _ in _kinds(m))]
        lengths = [_trained_length(m, name) for m in self.modules for kind, name in _kinds(m) if _stretches(kind)]
        self.length: int | None = min(lengths, default=None)
        self._lock = RLock()

    def changes(self, lengths: Sequence[int]) -> bool:
        """Return whether a text of one of these lengths gives other frequencies than a shorter one."""
        return self.length is not None and max(lengths, default=0) > self.length

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Run a pass as if the model had seen no text before; one at a time."""
        if not self.modules:
            yield
            return
        with self._lock:
            for module in self.modules:
                for kind, name in _kinds(module):
                    if "dynamic" in kind:
                        _reset(module, f"{name}_" if name else "")
            yield


def _kinds(module: Any) -> list[tuple[str, str]]:
    """Return the kinds of scaling of a module, each with its layer type, or "" if one applies to all layers."""
    kind = getattr(module, "rope_type", None)
    if isinstance(kind, dict):
        return [(str(k), str(name)) for name, k in kind.items()]
    return [(kind, "")] if isinstance(kind, str) else []


def _stretches(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"


def _trained_length(module: Any, name: str) -> int:
    options = getattr(module.config, "rope_parameters", None) or {}
    options = options.get(name, options)
    return int(options.get("original_max_position_embeddings") or module.original_max_seq_len)


def _reset(module: Any, prefix: str) -> None:
    """Reset the frequencies as transformers does for a short text."""
    frequencies = getattr(module, f"{prefix}inv_freq")
    original = getattr(module, f"{prefix}original_inv_freq").to(frequencies.device)
    module.register_buffer(f"{prefix}inv_freq", original, persistent=False)
    setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
