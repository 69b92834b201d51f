"""Cutting texts into shards by size, for thousands of texts with a few array operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus import plan
from attnflow.corpus.measure import Integers, Sizes
from attnflow.corpus.plan import Piece, Shard

LARGEST = 1 << 62
"""Sums below this fit into 64 bits."""


@dataclass(frozen=True)
class Draft:
    """A shard without its digest. ends: the offsets at which its pieces end, as far as they are known."""

    shard: Shard
    ends: tuple[int | None, ...]


class Cutter:
    """Cuts texts into shards as `plan` does, by their sizes.

    left: how many more texts it takes.
    row: the first row of the open shard.
    """

    def __init__(self, most_texts: int, most_cost: int, cost: Callable[[int], int], samples: int | None = None) -> None:
        self.most_texts, self.most_cost, self.cost = most_texts, min(most_cost, LARGEST), cost
        self.left = float("inf") if samples is None else samples
        self.number = self.row = self.count = self.spent = self.size = 0
        self.pieces: list[Piece] = []
        self.ends: list[int | None] = []
        self.prices = np.full(1 << 16, -1, np.int64)  # cost by text size in bytes, filled in as sizes occur

    def add(self, sizes: Sizes) -> list[Draft]:
        """Add texts; return the shards that end before the last of them."""
        total = int(min(self.left, len(sizes.texts)))
        self.left -= total
        costs = _sums(self._prices(sizes.texts[:total]))
        bytes_ = _sums(sizes.texts[:total].astype(np.int64) + sizes.labels[:total])
        offsets = sizes.first.offset + _sums(sizes.steps[:total].astype(np.int64))
        drafts = []
        start = 0
        while start < total:
            end = min(
                start + self.most_texts - self.count,
                _last(costs, self.most_cost - self.spent + costs[start]),
                _last(bytes_, plan.SHARD_BYTES - self.size + bytes_[start]),
                total,
            )
            end = max(end, start if self.count else start + 1)
            if end > start:
                behind = sizes.end if end == len(sizes.texts) else int(offsets[end])
                self._take(sizes, start, end, int(offsets[start]), behind)
                self.spent += int(costs[end] - costs[start])
                self.size += int(bytes_[end] - bytes_[start])
            if end < total:
                drafts += self.close()
            start = end
        return drafts

    def close(self) -> list[Draft]:
        """End the open shard, if it has texts."""
        if not self.count:
            return []
        draft = Draft(Shard(self.number, self.row, self.count, tuple(self.pieces), ""), tuple(self.ends))
        self.number, self.row = self.number + 1, self.row + self.count
        self.count = self.spent = self.size = 0
        self.pieces, self.ends = [], []
        return [draft]

    def _take(self, sizes: Sizes, start: int, end: int, offset: int, behind: int | None) -> None:
        first = sizes.first
        if self.pieces and self.pieces[-1].file == first.file:
            self.pieces[-1] = replace(self.pieces[-1], count=self.pieces[-1].count + end - start)
            self.ends[-1] = behind
        else:
            line = first.line + (start if sizes.lines is None else int(sizes.lines[start]))
            self.pieces.append(Piece(first.file, offset, first.row + start, end - start, line))
            self.ends.append(behind)
        self.count += end - start

    def _prices(self, sizes: Integers) -> NDArray[np.int64]:
        """Return the cost of texts of these sizes, capped at what fills a shard."""

        def price(size: int) -> int:
            return min(self.cost(size), self.most_cost + 1)

        if int(sizes.max(initial=0)) < len(self.prices):
            for size in np.unique(sizes[self.prices[sizes] < 0]).tolist():
                self.prices[size] = price(size)
            return self.prices[sizes]
        values, places = np.unique(sizes, return_inverse=True)
        return np.array([price(size) for size in values.tolist()], np.int64)[places]


def _sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of the first 0, 1, … values, as Python integers if 64 bits may not suffice."""
    large = int(values.max(initial=0)) * len(values) >= LARGEST
    return np.concatenate([[0], np.cumsum(values.astype(object) if large else values)])


def _last(sums: NDArray[np.int64], most: int) -> int:
    """Return the last place whose sum is at most `most`."""
    return int(sums.searchsorted(most, side="right")) - 1
