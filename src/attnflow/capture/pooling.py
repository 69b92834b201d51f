"""Pooling of a sentence-embedding model: how it makes one vector from the states of a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnflow.errors import InputError
from attnflow.selection import Row

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""The names of sentence-transformers."""

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

DISTANCES = ("euclidean", "manhattan")

NAME = "sentence embedding"

MEANS = {"mean": "mean", "mean_sqrt_len_tokens": "mean", "weightedmean": "mean weighted by position"}
"""The modes that use every state."""


class Normalize(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Divides a vector by its length, in a function whose scale answer edges hold constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True, eq=False)
class Pooling:
    """The way from the states of the last layer to the embedding of a text.

    modes: from `MODES`; the vectors of several modes are concatenated.
    after: modules that the vector passes through.
    similarity: the similarity of two embeddings, one of `SIMILARITIES`.
    limit: the maximal number of tokens of a text.
    prompt: a text to put before every text.
    lowercase: whether to convert texts to lower case.
    refusal: why the embedding cannot be computed, if so.
    """

    modes: tuple[str, ...]
    after: tuple[torch.nn.Module, ...] = ()
    similarity: str = "cosine"
    limit: int | None = None
    prompt: str = ""
    lowercase: bool = False
    refusal: str = ""

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise InputError(f"pooling={mode!r}: expected one of {', '.join(map(repr, MODES))}")

    @property
    def name(self) -> str:
        return " and ".join(self.modes)

    def prepared(self, text: object) -> object:
        """Return a text as the model reads it, and anything else unchanged."""
        if not isinstance(text, str):
            return text
        return self.prompt + (text.lower() if self.lowercase else text)

    def row(self, n: int) -> Row:
        """Return the states that make up the embedding of n tokens, each with its share, or why there are no shares."""
        mode = self.modes[0] if len(self.modes) == 1 else ""
        if self.refusal:
            return Row((), (), True, NAME, self.refusal)
        if mode in ("cls", "lasttoken"):
            return Row((0 if mode == "cls" else n - 1,), (1.0,))
        if mode not in MEANS:
            how = "takes each dimension from the token where it is largest" if mode else "concatenates several vectors"
            why = (
                f"this sentence-embedding model pools by {self.name}, which {how}, so no token has a single share "
                "of the embedding"
            )
            return Row((), (), True, f"{NAME}: {self.name} of {n} tokens", why)
        weights = _weights(mode, torch.ones(1, n, dtype=torch.float64))[0]
        shares = (weights / weights.sum()).tolist()
        return Row(tuple(range(n)), tuple(shares), True, f"{NAME}: {MEANS[mode]} of {n} tokens")

    def check(self) -> None:
        """Check that the embedding can be computed."""
        if self.refusal:
            raise InputError(f"the embedding of a text cannot be computed: {self.refusal}")

    def embedding(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the embeddings [text, size] of states [text, position, width].

        mask: [text, position], 0 for padding.
        """
        self.check()
        wide = states.float() if states.dtype in (torch.float16, torch.bfloat16) else states
        here = wide.new_ones(wide.shape[:2]) if mask is None else mask.to(wide.device, wide.dtype)
        vector = torch.cat([_pooled(mode, wide, here) for mode in self.modes], -1)
        for module in self.after:
            parameter = next(module.parameters(), None)
            vector = module(vector if parameter is None else vector.to(parameter.dtype))
        return vector

    def compared(self, embedding: Tensor, other: Tensor) -> Tensor:
        """Compare embeddings [text, size] with another one [size]: [text]. A distance counts as negative."""
        if self.similarity in DISTANCES:
            power = 2 if self.similarity == "euclidean" else 1
            return -torch.linalg.vector_norm(embedding - other, power, dim=-1)
        if self.similarity == "cosine":
            embedding, other = Normalize()(embedding), Normalize()(other)
        return (embedding * other).sum(-1)


def _weights(mode: str, mask: Tensor) -> Tensor:
    """Return the weight of each state in a mean: [text, position].

    mask: [text, position], 1 for every token.
    """
    weights = mask * mask.cumsum(1) if mode == "weightedmean" else mask
    total = weights.sum(1, keepdim=True)
    return weights / (total.sqrt() if mode == "mean_sqrt_len_tokens" else total)


def _pooled(mode: str, states: Tensor, mask: Tensor) -> Tensor:
    """Return the vector of one mode: [text, width]."""
    every = torch.arange(len(states), device=states.device)
    if mode == "cls":
        return states[every, mask.argmax(1)]
    if mode == "lasttoken":
        return states[every, mask.shape[1] - 1 - mask.flip(1).argmax(1)]
    if mode == "max":
        return states.masked_fill(mask[:, :, None] == 0, -torch.inf).max(1).values
    return (_weights(mode, mask)[:, :, None] * states).sum(1)
