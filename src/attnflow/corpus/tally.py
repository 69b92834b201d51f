"""Texts that have scores as arrays, and the tokens that occur in them. The latter grow with the vocabulary only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPELLINGS = 16
"""The most spellings kept for one token id: an unknown word may have any text."""

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
    shares: scores of one layer [method, token], the mean over the queries of a text; flow as shares of its rows.
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
        """The factor that turns scores into shares among tokens that are not special, [method, text]."""
        scale = np.ones((len(self.shares), len(self.sizes)))
        plain = ~self.special
        for m in np.flatnonzero(~self.signed):
            sums = np.bincount(self.text[plain], self.shares[m, plain], len(self.sizes))
            scale[m] = np.divide(1, sums, out=np.zeros(len(sums)), where=sums > 0)
        return scale

    @cached_property
    def lifts(self) -> Floats:
        """How many times the even share of its text each token has, special tokens excluded, [method, token]."""
        lifts: Floats = np.where(self.special, 0, self.shares * (self.scale * self.plain)[:, self.text])
        return lifts


class Tokens:
    """Each token id, or each word if tokens are words: its spellings, and how often it occurs.

    counts, special: how often, and how often as a special token.
    slots: the place of an id in the other arrays, -1 if it has none yet.
    words: the ids assigned to words.
    """

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.ids: list[int] = []
        self.names: list[Counter[str]] = []
        self.slots, self.counts, self.special = (np.zeros(0, np.int64) for _ in range(3))

    def add(self, batch: Batch, texts: Any) -> Ints:
        """Add a batch; return the slot of each token. texts: the type of each token, as Arrow."""
        spelled = texts.dictionary_encode()
        words, codes = spelled.dictionary.to_pylist(), spelled.indices.to_numpy()
        own = self._own(batch, words, codes)
        ids, inverse, counts = np.unique(own, return_inverse=True, return_counts=True)
        at = self._places(ids)
        self.counts[at] += counts
        self.special[at] += np.bincount(inverse, batch.special, len(ids)).astype(np.int64)
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
                self.counts, self.special = (
                    np.concatenate([x, np.zeros(room, x.dtype)]) for x in (self.counts, self.special)
                )
        return self.slots[ids]
