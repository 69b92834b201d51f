"""Variants of a prompt on the key-value cache of what they share with it: only the rest is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture.answer_pass import log_probabilities, prompt_cache
from attnflow.capture.check import half
from attnflow.capture.kv_cache import reading_cache
from attnflow.capture.routes import running
from attnflow.errors import InputError
from attnflow.importance.question import LOGITS, TOKENS

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

Row = NDArray[np.float64]
"""Log-probabilities of the answer: ``[answer token]``."""

BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
"""The largest size of the keys and values of one batch."""

OVERHEAD = {"cpu": 40, "cuda": 4096}
"""The cost of starting one more batch, in tokens computed."""

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""How far log-probabilities on the cache may be from those of a fresh pass, relative to their size or at least 1."""

TOLERANCE_HALF = 0.1

_agreed: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()
"""The longest text for which the cache of a model agreed with a fresh pass."""


@dataclass(frozen=True)
class Variant:
    """A prompt, whole or with some tokens left out.

    ids: its tokens. shared: how many tokens from the beginning are those of the prompt.
    """

    ids: tuple[int, ...]
    shared: int

    @property
    def start(self) -> int:
        """Where the computation starts. The last token is always computed, because it predicts the answer's first."""
        return min(self.shared, len(self.ids) - 1)


def without(ids: Sequence[int], positions: Sequence[int], token: int | None, kept: Sequence[int] = ()) -> Variant:
    """Return a prompt without some of its tokens, or with `token` in each of their places. positions: in order.

    kept: tokens to put after the last place instead.

    >>> without([5, 6, 7, 8], [1, 2], None), without([5, 6, 7, 8], [1, 2], 0).ids
    (Variant(ids=(5, 8), shared=1), (5, 0, 0, 8))
    """
    left_out, shared = set(positions), positions[0] if positions else len(ids)
    if token is not None:
        return Variant(tuple(token if i in left_out else x for i, x in enumerate(ids)), shared)
    end = positions[-1] + 1 if positions else 0
    before = [x for i, x in enumerate(ids[:end]) if i not in left_out]
    return Variant((*before, *kept, *ids[end:]), shared)


Fresh = Callable[[Variant], Row]


@dataclass(frozen=True, eq=False)
class Prefix:
    """The keys and values of all tokens of a prompt but the last, which predicts: a read-only cache."""

    model: Runner
    answer: tuple[int, ...]
    cache: Any

    def rows(self, variants: Sequence[Variant]) -> Iterator[tuple[int, Row]]:
        """Yield the number of each variant and the log-probabilities of the answer, in batches of similar beginnings."""
        for number, logits in self.logits(variants):
            yield number, log_probabilities(logits, self.answer)

    def logits(self, variants: Sequence[Variant]) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of each variant and the logits ``[answer token, token]`` that predict the answer, by batch."""
        more = len(self.answer) - 1
        kind = self.model.device.type
        tokens, most = TOKENS.get(kind, TOKENS["cpu"]), BYTES.get(kind, BYTES["cpu"])
        vocabulary = self.model.vocabulary()
        pairs = [x for layer in self.cache.layers for x in (layer.keys, layer.values)]
        token_bytes = sum(x[0, :, :1].numel() * x.element_size() for x in pairs)

        def fits(size: int, start: int, shortest: int, longest: int) -> bool:
            logits = size * (longest - shortest + len(self.answer)) * vocabulary
            return size * (longest - start) <= tokens and size * longest * token_bytes <= most and logits <= LOGITS

        starts = [variant.start for variant in variants]
        lengths = [len(variant.ids) + more for variant in variants]
        for numbers in batches(starts, lengths, OVERHEAD.get(kind, OVERHEAD["cpu"]), fits):
            yield from zip(numbers, self.run([variants[i] for i in numbers]), strict=True)

    def run(self, variants: Sequence[Variant]) -> list[Tensor]:
        """Return the logits ``[answer token, token]`` after each variant, all computed from their earliest start.

        Shorter variants are padded on the right, where a causal model never looks.
        """
        start = min(variant.start for variant in variants)
        texts = [[*variant.ids[start:], *self.answer[:-1]] for variant in variants]
        longest, m = max(map(len, texts)), len(self.answer)
        ids = torch.tensor([text + [self.answer[-1]] * (longest - len(text)) for text in texts])
        options: dict[str, Any] = {}
        if start:
            cache = reading_cache(self.cache, start, copies=len(texts))
            options = {"past_key_values": cache, "use_cache": True}
        if self.model.accepts("logits_to_keep"):
            options["logits_to_keep"] = longest - min(map(len, texts)) + m
        with running():
            logits = self.model.forward({"input_ids": ids}, **options).logits  # [variant, position, token]
        ends = [len(text) - longest + logits.shape[1] for text in texts]
        return [row[end - m : end] for row, end in zip(logits, ends, strict=True)]


def batches(
    starts: Sequence[int], lengths: Sequence[int], overhead: int, fits: Callable[[int, int, int, int], bool]
) -> list[list[int]]:
    """Return which texts run together: of all ways to cut the texts in the order of their starts, the cheapest.

    A batch of `size` texts computes ``overhead + size · (longest - start)`` tokens, from its earliest start on.
    fits: whether a batch of this size, start, shortest and longest text is small enough; one text alone always is.

    >>> batches([0, 10, 11, 90], [100] * 4, 5, lambda *batch: True)
    [[0], [1, 2], [3]]
    >>> batches([0, 10, 11, 90], [100] * 4, 1000, lambda *batch: True)
    [[0, 1, 2, 3]]
    """
    order = sorted(range(len(starts)), key=lambda i: (starts[i], lengths[i]))
    costs, cuts = [0], [0]
    for end in range(1, len(order) + 1):
        shortest = longest = lengths[order[end - 1]]
        best = begin_of_best = -1
        for begin in range(end - 1, -1, -1):
            first = order[begin]
            shortest, longest = min(shortest, lengths[first]), max(longest, lengths[first])
            size = end - begin
            if size > 1 and not fits(size, starts[first], shortest, longest):
                break
            cost = costs[begin] + overhead + size * (longest - starts[first])
            if best < 0 or cost < best:
                best, begin_of_best = cost, begin
        costs.append(best)
        cuts.append(begin_of_best)
    numbers, end = [], len(order)
    while end:
        numbers.append(order[cuts[end] : end])
        end = cuts[end]
    return numbers[::-1]


def shared_prefix(
    model: Runner, ids: tuple[int, ...], answer: tuple[int, ...], variants: Sequence[Variant], cache: Any, fresh: Fresh
) -> Prefix | None:
    """Return the prompt's cache, or None if it saves nothing, cannot be cut, or disagrees with a fresh pass.

    cache: an existing cache, or None. fresh: the log-probabilities after one variant, from its beginning.
    """
    deepest, length = max(variants, key=lambda variant: variant.start), len(ids) - 1
    if not deepest.start or not model.accepts("past_key_values") or model.stretching.changes([len(ids) + len(answer)]):
        return None
    pairs = None if cache is None else reading_cache(cache, length)
    if pairs is not None and (count := len(getattr(cache, "layers", pairs.layers)[0].keys)) != 1:
        raise InputError(f"cache contains {count} texts: expected the key-value cache of this prompt alone")
    try:
        pairs = pairs or reading_cache(prompt_cache(model, ids[:length]), length)
        if pairs is None:
            return None
        prefix = Prefix(model, answer, pairs)
        return prefix if _agrees(prefix, deepest, fresh) else None
    except InputError:  # if the model fails with this kind of cache, run without
        return None


def _agrees(prefix: Prefix, variant: Variant, fresh: Fresh) -> bool:
    """Return whether the cache agrees with a fresh pass; it is checked again only for longer texts."""
    model, length = prefix.model, len(variant.ids) + len(prefix.answer)
    if _agreed.get(model.model, 0) >= length:
        return True
    row, expected = log_probabilities(prefix.run([variant])[0], prefix.answer), fresh(variant)
    tolerance = TOLERANCE_HALF if half(model.dtype) else TOLERANCE[model.dtype]
    if not np.abs(row - expected).max() <= tolerance * max(1.0, np.abs(expected).max()):
        return False
    _agreed[model.model] = length
    return True
