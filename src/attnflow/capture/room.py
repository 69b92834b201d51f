"""Room in memory for what layers computed, so that a way back through them need not run them again.

A GPU tells what is free before the first layer and what is allocated before and after each; other devices do not tell, and
there a number of layers says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch

KEPT_SHARE = 0.25
"""How much of a GPU's free memory the layers of one pass may take."""

LEFT_SHARE = 0.5
"""How much of a GPU's whole memory stays free of them, however many passes somebody keeps."""

KEPT_LAYERS = 0
"""How many layers are kept on devices that do not tell what is allocated."""


@dataclass(eq=False)
class Room:
    """Layers are kept, one after the other, while one more as large as the largest so far would fit.

    limit: in bytes. allocated: how many bytes are in use. spent: by the layers that are kept.
    """

    limit: int
    allocated: Callable[[], int]
    spent: int = 0
    largest: int = 0
    before: int = 0

    def enter(self) -> bool:
        """Whether the layer that is about to run may be kept; the first tells what a layer takes."""
        if self.limit <= 0 or self.spent + self.largest > self.limit:
            return False
        self.before = self.allocated()
        return True

    def leave(self) -> bool:
        """Whether the layer that has run stays; one that turns out too large goes."""
        size = self.allocated() - self.before
        self.largest = max(self.largest, size)
        if self.spent + size > self.limit:
            return False
        self.spent += size
        return True


def room_on(device: torch.device) -> Room:
    """The room on a device as it is now."""
    if device.type != "cuda":
        return Room(KEPT_LAYERS, count().__next__)  # each look counts one, so that a layer takes one
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limit = min(KEPT_SHARE * free, free - LEFT_SHARE * total)
    return Room(int(limit), lambda: int(torch.cuda.memory_allocated(device)))
