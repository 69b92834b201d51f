"""Sums over the texts of a corpus: they grow with its vocabulary and its longest text, never with the number of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluate.statistics import ranks

CELLS = 1 << 21
"""Scores that are ranked at a time."""
PLACES = 64
"""Positions that are told apart; those after them count together."""
BINS = 20
FEWEST = 3
"""Tokens without which a text has no rank correlation."""
SPELLINGS = 16
"""Texts that are told apart for one token id: an unknown word may stand as any text at all."""

RATIOS = np.geomspace(1e-5, 20.0, 4096)
"""Bounds of logarithms of ratios that are told apart, each 0.4 % above the one before: 5.40 times from 5.43 times."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VOCABULARY = 1 << 24
"""No model has more tokens: sums are kept for each."""


@dataclass(frozen=True)
class Batch:
    """Texts that have scores, their tokens one after another.

    rows: where they stand in the batch that was read. sizes: tokens of each. ids, special: of each token; words have no id.
    shares: scores [view, layer, token], the mean over the queries of a text; rows of flow are divided by their sums before.
    signed: for each view, whether its scores are differences, which are no parts of a whole.
    """

    rows: Ints
    sizes: Ints
    ids: Ints | None
    special: NDArray[np.bool_]
    shares: Floats
    signed: NDArray[np.bool_]

    @property
    def starts(self) -> Ints:
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def text(self) -> Ints:
        """Of each token."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def plain(self) -> Ints:
        """How many tokens of each text are not special."""
        return np.bincount(self.text[~self.special], minlength=len(self.sizes))

    @cached_property
    def scale(self) -> Floats:
        """What makes of scores parts of what the tokens of a text have that are not special, [view, layer, text]."""
        found = np.ones((*self.shares.shape[:2], len(self.sizes)))
        kept = ~self.special
        for v, k in np.ndindex(*found.shape[:2]):
            if not self.signed[v]:
                sums = np.bincount(self.text[kept], self.shares[v, k, kept], len(self.sizes))
                found[v, k] = np.divide(1, sums, out=np.zeros(len(sums)), where=sums > 0)
        return found


@dataclass
class Tokens:
    """What each token id received; each word, where tokens are words.

    sums: of scores. lifts: of scores times the number of tokens of their texts. plain: the same, where special tokens
        neither count nor have a part of the scores.
    slots: the place of an id in the other arrays, -1 where it has none yet. words: what stands for the ids of words.
    """

    shape: tuple[int, int]
    words: dict[str, int] = field(default_factory=dict)
    slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    ids: list[int] = field(default_factory=list)
    names: list[Counter[str]] = field(default_factory=list)
    counts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    special: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    sums: Floats = field(init=False)
    lifts: Floats = field(init=False)
    plain: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sums, self.lifts, self.plain = (np.zeros((*self.shape, 0)) for _ in range(3))

    def add(self, batch: Batch, texts: Any) -> None:
        """texts: what stands for each token, an Arrow array."""
        spelled = texts.dictionary_encode()
        words, codes = spelled.dictionary.to_pylist(), spelled.indices.to_numpy()
        given = batch.ids
        if given is not None and len(given) and not 0 <= given.min() <= given.max() < VOCABULARY:
            raise ValueError(f"token ids from {given.min()} to {given.max()}")
        if given is None:
            given = np.array([self.words.setdefault(word, len(self.words)) for word in words])[codes]
        ids, inverse, counts = np.unique(given, return_inverse=True, return_counts=True)
        at = self._places(ids)
        self.counts[at] += counts
        self.special[at] += np.bincount(inverse, batch.special, len(ids)).astype(np.int64)
        many = batch.sizes[batch.text].astype(np.float64)
        for place in np.ndindex(*self.shape):
            shares = batch.shares[place]
            alone = np.where(batch.special, 0, shares * (batch.scale[place] * batch.plain)[batch.text])
            self.sums[*place, at] += np.bincount(inverse, shares, len(ids))
            self.lifts[*place, at] += np.bincount(inverse, shares * many, len(ids))
            self.plain[*place, at] += np.bincount(inverse, alone, len(ids))
        pairs, firsts, each = np.unique(inverse * len(words) + codes, return_index=True, return_counts=True)
        # in the order of the texts, so that the spellings kept are the same however the rows are cut into batches
        for k in np.argsort(firsts, kind="stable").tolist():
            names, word = self.names[at[pairs[k] // len(words)]], words[pairs[k] % len(words)]
            if word in names or len(names) < SPELLINGS:
                names[word] += int(each[k])

    def _places(self, ids: Ints) -> Ints:
        if len(ids) and ids[-1] >= len(self.slots):
            self.slots = np.concatenate([self.slots, np.full(int(ids[-1]) + 1 - len(self.slots), -1)])
        new = ids[self.slots[ids] < 0]
        if len(new):
            self.slots[new] = len(self.ids) + np.arange(len(new))
            self.ids += new.tolist()
            self.names += [Counter() for _ in new]
            room = len(self.ids) + len(self.ids) // 4 - len(self.counts)  # a quarter more, to grow seldom
            if len(self.ids) > len(self.counts):
                self.counts, self.special, self.sums, self.lifts, self.plain = (
                    np.concatenate([x, np.zeros((*x.shape[:-1], room), x.dtype)], -1)
                    for x in (self.counts, self.special, self.sums, self.lifts, self.plain)
                )
        return self.slots[ids]


@dataclass
class Positions:
    """Sums of shares by position, [from the start or from the end, all tokens or none special, …, position].

    Where none is special, shares are parts of what those tokens have, and uniform is one by their number.
    """

    shape: tuple[int, int]
    counts: Floats = field(default_factory=lambda: np.zeros((2, 2, PLACES + 1)))
    uniform: Floats = field(default_factory=lambda: np.zeros((2, 2, PLACES + 1)))
    sums: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros((2, 2, *self.shape, PLACES + 1))

    def add(self, batch: Batch) -> None:
        many = np.repeat(batch.sizes, batch.sizes)
        first = np.arange(len(many)) - np.repeat(batch.starts, batch.sizes)
        for end, place in enumerate((first, many - 1 - first)):
            for plain in (0, 1):
                kept = ~batch.special if plain else np.ones(len(many), bool)
                at = np.minimum(place[kept], PLACES)
                self.counts[end, plain] += np.bincount(at, minlength=PLACES + 1)
                text = batch.text[kept]
                of = batch.plain if plain else batch.sizes
                self.uniform[end, plain] += np.bincount(at, 1 / of[text], PLACES + 1)
                for k in np.ndindex(*self.shape):
                    shares = batch.shares[k][kept] * (batch.scale[k][text] if plain else 1)
                    self.sums[end, plain, *k] += np.bincount(at, shares, PLACES + 1)


@dataclass
class Spread:
    """How far scores tell the tokens of a text apart that are not special: texts by the logarithm of the ratio of the
    largest to the smallest, [view, layer, bin]. The last bin has those whose smallest is 0, or below."""

    shape: tuple[int, int]
    bins: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.bins = np.zeros((*self.shape, len(RATIOS) + 1), np.int64)

    def add(self, batch: Batch) -> None:
        sizes = batch.plain[batch.plain >= FEWEST]
        if not len(sizes):
            return
        kept = np.flatnonzero(~batch.special & (batch.plain >= FEWEST)[batch.text])
        starts = np.cumsum(sizes) - sizes
        for k in np.ndindex(*self.shape):
            shares = batch.shares[k][kept]
            low, high = np.minimum.reduceat(shares, starts), np.maximum.reduceat(shares, starts)
            ratio = np.divide(high, low, out=np.full(len(low), np.inf), where=low > 0)
            self.bins[k] += np.bincount(np.searchsorted(RATIOS, np.log(ratio)), minlength=len(RATIOS) + 1)

    def median(self) -> Floats:
        """The ratio of a typical text, [view, layer]; NaN where there is no text or no ratio."""
        many = self.bins.sum(-1)
        at = (2 * self.bins.cumsum(-1) >= many[..., None]).argmax(-1)
        found = np.exp(np.append(RATIOS / np.sqrt(RATIOS[1] / RATIOS[0]), np.nan)[at])
        return np.where(many > 0, found, np.nan)


@dataclass
class Agreement:
    """Rank correlations of pairs of views: counts and moments [all tokens or none special, pair, layer]."""

    pairs: tuple[tuple[int, int], ...]
    layers: int
    few: Ints = field(default_factory=lambda: np.zeros(2, np.int64))
    n: Floats = field(init=False)
    flat: Floats = field(init=False)
    sums: Floats = field(init=False)
    squares: Floats = field(init=False)
    first: Floats = field(init=False)
    bins: Floats = field(init=False)

    def __post_init__(self) -> None:
        shape = (2, len(self.pairs), self.layers)
        self.n, self.flat, self.sums, self.squares, self.first = (np.zeros(shape) for _ in range(5))
        self.bins = np.zeros((*shape, BINS))

    def add(self, batch: Batch) -> Floats:
        """The correlations over tokens that are not special, [pair, layer, text]."""
        for plain in (0, 1):
            kept = np.flatnonzero(~batch.special) if plain else np.arange(len(batch.special))
            sizes = batch.plain if plain else batch.sizes
            found, same = _correlations(batch.shares, kept, sizes, self.pairs)
            told = np.isfinite(found)
            filled = np.where(told, found, 0)
            self.few[plain] += int((sizes < FEWEST).sum())
            self.n[plain] += told.sum(-1)
            self.flat[plain] += (~told[..., sizes >= FEWEST]).sum(-1)
            self.sums[plain] += filled.sum(-1)
            self.squares[plain] += (filled**2).sum(-1)
            self.first[plain] += (same & told).sum(-1)
            # rounded first: with few tokens correlations are multiples of a tenth but for the last bits
            at = np.clip(np.floor(np.round((filled + 1) * BINS / 2, 6)).astype(int), 0, BINS - 1)
            for k in np.ndindex(len(self.pairs), self.layers):
                self.bins[plain, *k] += np.bincount(at[k][told[k]], minlength=BINS)
        return found


def _correlations(
    shares: Floats, kept: Ints, sizes: Ints, pairs: Sequence[tuple[int, int]]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Spearman's rank correlation of pairs of views [pair, layer, text], NaN where there is none, and whether both have the
    same token first.

    kept: which of the tokens count. sizes: how many of them each text has. As `attnflow.evaluate.statistics.spearman`, for
    all texts of a length at once.
    """
    views, layers, _ = shares.shape
    found = np.full((len(pairs), layers, len(sizes)), np.nan)
    same = np.zeros(found.shape, bool)
    starts = np.cumsum(sizes) - sizes
    for n in np.unique(sizes[sizes >= FEWEST]).tolist() if pairs else ():
        texts = np.flatnonzero(sizes == n)
        for some in np.array_split(texts, -(-len(texts) * views * layers * n // CELLS)):
            places = kept[starts[some][:, None] + np.arange(n)]
            placed = ranks(shares[:, :, places])  # [view, layer, text, token]
            top = placed == placed.max(-1, keepdims=True)
            centred = placed - placed.mean(-1, keepdims=True)
            size = (centred**2).sum(-1)
            for p, (a, b) in enumerate(pairs):
                flat = (size[a] == 0) | (size[b] == 0)
                both = (centred[a] * centred[b]).sum(-1)
                found[p][:, some] = np.where(flat, np.nan, both / np.sqrt(np.where(flat, 1, size[a] * size[b])))
                same[p][:, some] = (top[a] & top[b]).any(-1)
    return found, same


@dataclass
class Worst:
    """For each pair of views the texts with the lowest correlations: (correlation, row), and all of those texts by row."""

    pairs: int
    most: int
    found: list[list[tuple[float, int]]] = field(init=False)
    texts: dict[int, dict[str, Any]] = field(default_factory=dict)
    eligible: int = 0

    def __post_init__(self) -> None:
        self.found = [[] for _ in range(self.pairs)]

    def add(self, told: Floats, numbers: Ints, entry: Callable[[int], dict[str, Any]]) -> None:
        """told: correlations [pair, text] of texts that count, NaN for others. numbers: their rows in the whole corpus."""
        self.eligible += int(np.isfinite(told).any(0).sum())
        for p, values in enumerate(told):
            here = [(round(float(values[k]), 9), int(numbers[k]), int(k)) for k in np.flatnonzero(np.isfinite(values))]
            here = sorted(here)[: self.most]
            self.found[p] = sorted([*self.found[p], *((value, row) for value, row, _ in here)])[: self.most]
            stay = {row for _, row in self.found[p]}
            for _, row, k in here:
                if row in stay and row not in self.texts:
                    self.texts[row] = entry(k)
        named = {row for found in self.found for _, row in found}
        self.texts = {row: text for row, text in self.texts.items() if row in named}
