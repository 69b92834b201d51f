"""Keys and values in pages, as servers store them, read a few positions at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

BLOCK_POSITIONS = {"cpu": 1024, "cuda": 16384}
"""Positions of a paged cache that are gathered at a time."""


@dataclass(frozen=True, eq=False)
class PagedCache:
    """The key-value cache of one text in pages.

    keys, values: a tensor for each layer, [page, place in the page, key head, size], which may also contain pages of
        other texts.
    table: the numbers of this text's pages, in order.
    length: the number of filled positions, from the first place of the first page on.
    """

    keys: Sequence[Tensor] = field(repr=False)
    values: Sequence[Tensor] = field(repr=False)
    table: Tensor = field(repr=False)
    length: int


@dataclass(frozen=True, eq=False)
class Pages:
    """The keys or values of one layer: position p is in page ``table[p // places]`` at place ``p % places``.

    store: [page, place, key head, size].
    first, length: the range of visible positions.
    """

    store: Tensor
    table: Tensor
    length: int
    first: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor [1, key head, position, size] that the pages represent."""
        return (1, int(self.store.shape[2]), self.length, int(self.store.shape[3]))

    def block(self, start: int, stop: int) -> Tensor:
        """Copy some positions: [1, key head, stop - start, size]."""
        places = self.store.shape[1]
        begin, end = self.first + start, self.first + stop
        pages = self.store[self.table[begin // places : (end - 1) // places + 1]].flatten(0, 1)
        skipped = begin % places
        return pages[skipped : skipped + stop - start].transpose(0, 1)[None]


Stored: TypeAlias = Tensor | Pages
"""Keys or values [batch, key head, position, size], in one tensor or in pages."""


def blocks_of(stored: Stored) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ranges of positions with their keys or values. A tensor is one block, without a copy."""
    positions = int(stored.shape[2])
    if isinstance(stored, Tensor):
        yield 0, positions, stored
        return
    step = BLOCK_POSITIONS.get(stored.store.device.type, BLOCK_POSITIONS["cpu"])
    for start in range(0, positions, step):
        stop = min(start + step, positions)
        yield start, stop, stored.block(start, stop)


def shown_from(stored: Stored, first: int) -> Stored:
    """Return a view without the first positions."""
    if not first:
        return stored
    if isinstance(stored, Tensor):
        return stored[:, :, first:]
    return replace(stored, first=stored.first + first, length=stored.length - first)


def gathered(stored: Stored) -> Tensor:
    """Return one tensor, which is a copy if the positions were in pages."""
    return stored if isinstance(stored, Tensor) else torch.cat([block for _, _, block in blocks_of(stored)], 2)
