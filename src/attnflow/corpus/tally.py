"""Sums over the texts of a corpus. They grow with its vocabulary and its longest text, not with the number of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluate.statistics import ranks

CELLS = 1 << 21
"""Scores that are ranked at a time."""
PLACES = 64
"""Positions that are counted separately; later ones count together."""
BINS = 20
FEWEST = 3
"""The fewest tokens for a rank correlation."""
SPELLINGS = 16
"""The most spellings kept for one token id: an unknown word may have any text."""

RATIOS = np.geomspace(1e-5, 20.0, 4096)
"""Bin edges for logarithms of ratios, each 0.4 % above the one before: they distinguish 5.40 from 5.43."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VOCABULARY = 1 << 24
"""An upper bound on token ids: sums are kept for each."""


@dataclass(frozen=True)
class Batch:
    """Texts that have scores, with their tokens one after another.

    rows: their places in the batch that was read.
    sizes: tokens of each text.
    ids, special: of each token; words have no id.
    shares: scores [method, layer, token], the mean over the queries of a text; flow as shares of its rows.
    signed: for each method, whether its scores are differences, which are not parts of a whole.
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
        """The text of each token."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def plain(self) -> Ints:
        """How many tokens of each text are not special."""
        return np.bincount(self.text[~self.special], minlength=len(self.sizes))

    @cached_property
    def scale(self) -> Floats:
        """The factor that turns scores into shares among tokens that are not special, [method, layer, text]."""
        scale = np.ones((*self.shares.shape[:2], len(self.sizes)))
        plain = ~self.special
        for m, k in np.ndindex(*scale.shape[:2]):
            if not self.signed[m]:
                sums = np.bincount(self.text[plain], self.shares[m, k, plain], len(self.sizes))
                scale[m, k] = np.divide(1, sums, out=np.zeros(len(sums)), where=sums > 0)
        return scale


class Tokens:
    """What each token id received, or each word if tokens are words.

    sums: of scores [method, layer, token].
    lifts: of scores times the number of tokens of their texts.
    plain: the same, with special tokens excluded from counts and scores.
    slots: the place of an id in the other arrays, -1 if it has none yet.
    words: the ids assigned to words.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.words: dict[str, int] = {}
        self.ids: list[int] = []
        self.names: list[Counter[str]] = []
        self.slots, self.counts, self.special = (np.zeros(0, np.int64) for _ in range(3))
        self.sums, self.lifts, self.plain = (np.zeros((*shape, 0)) for _ in range(3))

    def add(self, batch: Batch, texts: Any) -> Ints:
        """Add a batch; return the slot of each token. texts: the type of each token, as Arrow."""
        spelled = texts.dictionary_encode()
        words, codes = spelled.dictionary.to_pylist(), spelled.indices.to_numpy()
        own = self._own(batch, words, codes)
        ids, inverse, counts = np.unique(own, return_inverse=True, return_counts=True)
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
        # in the order of the texts, so that the spellings kept do not depend on the batches
        for k in np.argsort(firsts, kind="stable").tolist():
            names, word = self.names[at[pairs[k] // len(words)]], words[pairs[k] % len(words)]
            if word in names or len(names) < SPELLINGS:
                names[word] += int(each[k])
        slots: Ints = at[inverse]
        return slots

    def places(self, batch: Batch, texts: Any) -> Ints:
        """Return the slot of each token of texts that were added."""
        spelled = texts.dictionary_encode()
        slots: Ints = self.slots[self._own(batch, spelled.dictionary.to_pylist(), spelled.indices.to_numpy())]
        return slots

    def _own(self, batch: Batch, words: list[str], codes: Ints) -> Ints:
        """Return the id of each token; a word has an id assigned to its text."""
        own = batch.ids
        if own is not None and len(own) and not 0 <= own.min() <= own.max() < VOCABULARY:
            raise ValueError(f"token ids from {own.min()} to {own.max()}")
        if own is None:
            own = np.array([self.words.setdefault(word, len(self.words)) for word in words])[codes]
        return own

    def _places(self, ids: Ints) -> Ints:
        if len(ids) and ids[-1] >= len(self.slots):
            self.slots = np.concatenate([self.slots, np.full(int(ids[-1]) + 1 - len(self.slots), -1)])
        new = ids[self.slots[ids] < 0]
        if len(new):
            self.slots[new] = len(self.ids) + np.arange(len(new))
            self.ids += new.tolist()
            self.names += [Counter() for _ in new]
            room = len(self.ids) + len(self.ids) // 4 - len(self.counts)  # a quarter more, to grow rarely
            if len(self.ids) > len(self.counts):
                self.counts, self.special, self.sums, self.lifts, self.plain = (
                    np.concatenate([x, np.zeros((*x.shape[:-1], room), x.dtype)], -1)
                    for x in (self.counts, self.special, self.sums, self.lifts, self.plain)
                )
        return self.slots[ids]


class Positions:
    """Sums of shares by position, [from the start or from the end, all tokens or none special, …, position].

    Without special tokens, shares are relative to the remaining tokens, and uniform is one divided by their number.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.counts, self.uniform = (np.zeros((2, 2, PLACES + 1)) for _ in range(2))
        self.sums = np.zeros((2, 2, *shape, PLACES + 1))

    def add(self, batch: Batch) -> None:
        many = np.repeat(batch.sizes, batch.sizes)
        first = np.arange(len(many)) - np.repeat(batch.starts, batch.sizes)
        for end, place in enumerate((first, many - 1 - first)):
            for plain in (0, 1):
                counted = ~batch.special if plain else np.ones(len(many), bool)
                at = np.minimum(place[counted], PLACES)
                self.counts[end, plain] += np.bincount(at, minlength=PLACES + 1)
                text = batch.text[counted]
                of = batch.plain if plain else batch.sizes
                self.uniform[end, plain] += np.bincount(at, 1 / of[text], PLACES + 1)
                for k in np.ndindex(*self.shape):
                    shares = batch.shares[k][counted] * (batch.scale[k][text] if plain else 1)
                    self.sums[end, plain, *k] += np.bincount(at, shares, PLACES + 1)


class Spread:
    """How far scores distinguish the tokens of a text that are not special.

    Counts texts by the logarithm of the ratio of the largest to the smallest score, [method, layer, bin]. The last bin
    has texts whose smallest score is 0 or less.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.bins = np.zeros((*shape, len(RATIOS) + 1), np.int64)

    def add(self, batch: Batch) -> None:
        sizes = batch.plain[batch.plain >= FEWEST]
        if not len(sizes):
            return
        counted = np.flatnonzero(~batch.special & (batch.plain >= FEWEST)[batch.text])
        starts = np.cumsum(sizes) - sizes
        for k in np.ndindex(self.bins.shape[:2]):
            shares = batch.shares[k][counted]
            low, high = np.minimum.reduceat(shares, starts), np.maximum.reduceat(shares, starts)
            ratio = np.divide(high, low, out=np.full(len(low), np.inf), where=low > 0)
            self.bins[k] += np.bincount(np.searchsorted(RATIOS, np.log(ratio)), minlength=len(RATIOS) + 1)

    def median(self) -> Floats:
        """Return the ratio of a typical text, [method, layer]; NaN if there is no text or no ratio."""
        many = self.bins.sum(-1)
        at = (2 * self.bins.cumsum(-1) >= many[..., None]).argmax(-1)
        ratios = np.exp(np.append(RATIOS / np.sqrt(RATIOS[1] / RATIOS[0]), np.nan)[at])
        return np.where(many > 0, ratios, np.nan)


class Agreement:
    """Rank correlations of pairs of methods: counts and moments [all tokens or none special, pair, layer].

    n: texts that have a correlation.
    few: texts with too few tokens.
    flat: texts in which a method gives all tokens the same score.
    first: texts in which both methods rank the same token first.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], layers: int) -> None:
        self.pairs = pairs
        shape = (2, len(pairs), layers)
        self.few = np.zeros(2, np.int64)
        self.n, self.flat, self.sums, self.squares, self.first = (np.zeros(shape) for _ in range(5))
        self.bins = np.zeros((*shape, BINS))

    def add(self, batch: Batch) -> Floats:
        """Add a batch; return the correlations over tokens that are not special, [pair, layer, text]."""
        for plain in (0, 1):
            counted = np.flatnonzero(~batch.special) if plain else np.arange(len(batch.special))
            sizes = batch.plain if plain else batch.sizes
            correlations, same = _correlations(batch.shares, counted, sizes, self.pairs)
            finite = np.isfinite(correlations)
            filled = np.where(finite, correlations, 0)
            self.few[plain] += int((sizes < FEWEST).sum())
            self.n[plain] += finite.sum(-1)
            self.flat[plain] += (~finite[..., sizes >= FEWEST]).sum(-1)
            self.sums[plain] += filled.sum(-1)
            self.squares[plain] += (filled**2).sum(-1)
            self.first[plain] += (same & finite).sum(-1)
            # rounded first: with few tokens, correlations are multiples of a tenth except for the last bits
            at = np.clip(np.floor(np.round((filled + 1) * BINS / 2, 6)).astype(int), 0, BINS - 1)
            for k in np.ndindex(at.shape[:2]):
                self.bins[plain, *k] += np.bincount(at[k][finite[k]], minlength=BINS)
        return correlations


def _correlations(
    shares: Floats, counted: Ints, sizes: Ints, pairs: Sequence[tuple[int, int]]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return Spearman's correlations [pair, layer, text], NaN if undefined, and whether both rank the same token first.

    This is `attnflow.evaluate.statistics.spearman` for all texts of a length at once.
    counted: places of the tokens that count.
    sizes: how many of them each text has.
    """
    methods, layers, _ = shares.shape
    correlations = np.full((len(pairs), layers, len(sizes)), np.nan)
    same = np.zeros(correlations.shape, bool)
    starts = np.cumsum(sizes) - sizes
    for n in np.unique(sizes[sizes >= FEWEST]).tolist() if pairs else ():
        texts = np.flatnonzero(sizes == n)
        for some in np.array_split(texts, -(-len(texts) * methods * layers * n // CELLS)):
            places = counted[starts[some][:, None] + np.arange(n)]
            order = ranks(shares[:, :, places])  # [method, layer, text, token]
            top = order == order.max(-1, keepdims=True)
            centred = order - order.mean(-1, keepdims=True)
            size = (centred**2).sum(-1)
            for p, (a, b) in enumerate(pairs):
                flat = (size[a] == 0) | (size[b] == 0)
                both = (centred[a] * centred[b]).sum(-1)
                values = both / np.sqrt(np.where(flat, 1, size[a] * size[b]))
                correlations[p][:, some] = np.where(flat, np.nan, values)
                same[p][:, some] = (top[a] & top[b]).any(-1)
    return correlations, same


class Lowest:
    """For each pair of methods the texts with the lowest correlations, and all of those texts by row.

    entries: (correlation, row), at most `most` for each pair.
    eligible: how many texts were compared.
    """

    def __init__(self, pairs: int, most: int) -> None:
        self.most = most
        self.entries: list[list[tuple[float, int]]] = [[] for _ in range(pairs)]
        self.texts: dict[int, dict[str, Any]] = {}
        self.eligible = 0

    def add(self, correlations: Floats, rows: Ints, entry: Callable[[int], dict[str, Any]]) -> None:
        """Add texts.

        correlations: [pair, text], NaN for texts that do not count. rows: of the texts in the whole corpus.
        """
        self.eligible += int(np.isfinite(correlations).any(0).sum())
        for p, values in enumerate(correlations):
            here = sorted(
                (round(float(values[k]), 9), int(rows[k]), int(k)) for k in np.flatnonzero(np.isfinite(values))
            )
            here = here[: self.most]
            self.entries[p] = sorted([*self.entries[p], *((value, row) for value, row, _ in here)])[: self.most]
            staying = {row for _, row in self.entries[p]}
            for _, row, k in here:
                if row in staying and row not in self.texts:
                    self.texts[row] = entry(k)
        staying = {row for entries in self.entries for _, row in entries}
        self.texts = {row: text for row, text in self.texts.items() if row in staying}
