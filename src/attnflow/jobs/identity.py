"""Identity of a model: hashes of its weights and configuration that do not depend on where it is stored."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from attnflow.model import Model

PLACES = 997


def weights_hash(model: Model) -> str:
    """Hash names, shapes and sums of bits. Sums of whole numbers are the same on every device and in any order."""
    entries = []
    for name, x in model.model.state_dict().items():
        bits = _bits(x)
        sums = [int(some.sum(dtype=torch.int64)) for some in (bits, bits[::3], bits[: len(bits) // 2])]
        entries.append([name, list(x.shape), str(x.dtype), *sums])
    return digest(entries)


def fingerprint(model: Model) -> str:
    """Hash the rest of the model: its configuration, its special tokens, and the layout of its parameters."""
    config = {} if model.config is None else model.config.to_dict()
    own = {name: value for name, value in config.items() if not name.startswith("_") and "version" not in name}
    places = [
        bits[: len(bits) // PLACES * PLACES].view(-1, PLACES).sum(0, dtype=torch.int64).tolist()
        for bits in (_bits(x) for x in model.model.state_dict().values())
    ]
    special = {name: getattr(model.tokenizer, f"{name}_token_id", None) for name in ("unk", "mask", "pad")}
    return digest(json.loads(json.dumps([own, special, places], default=str)))


def digest(plain: Any) -> str:
    """Hash JSON-compatible data."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def _bits(x: torch.Tensor) -> torch.Tensor:
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().reshape(-1).view(size)
