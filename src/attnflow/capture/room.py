"""Memory for the graphs of layers, so that a backward pass need not run them again.

A GPU reports what is free before the first layer, and what is allocated before and after each. Other devices do not, so
a fixed number of layers is the limit there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch

KEPT_SHARE = 0.25
"""The share of a GPU's free memory that the layers of one pass may take."""

LEFT_SHARE = 0.5
"""The share of a GPU's total memory that stays free of them, however many passes are kept."""

KEPT_LAYERS = 0
"""How many layers are kept on devices that do not report what is allocated."""


@dataclass(eq=False)
class Room:
    """Keeps layers, one after the other, while one more as large as the largest so far would fit.

    limit: in bytes.
    allocated: returns the number of bytes in use.
    spent: bytes of the kept layers.
    """

    limit: int
    allocated: Callable[[], int]
    spent: int = 0
    largest: int = 0
    before: int = 0

    def enter(self) -> bool:
        """Return whether the layer that is about to run may be kept. The first one shows the size of a layer."""
        if self.limit <= 0 or self.spent + self.largest > self.limit:
            return False
        self.before = self.allocated()
        return True

    def leave(self) -> bool:
        """Return whether the layer that has run stays; one that turns out too large is dropped."""
        size = self.allocated() - self.before
        self.largest = max(self.largest, size)
        if self.spent + size > self.limit:
            return False
        self.spent += size
        return True


def room_on(device: torch.device) -> Room:
    """Return the room on a device as it is now."""
    if device.type != "cuda":
        return Room(KEPT_LAYERS, count().__next__)  # each call counts one, so a layer takes one
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limit = min(KEPT_SHARE * free, free - LEFT_SHARE * total)
    return Room(int(limit), lambda: int(torch.cuda.memory_allocated(device)))
