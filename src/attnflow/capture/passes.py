"""Results of one forward pass: labels, prediction, and attention as the steps of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from attnflow._arrays import FloatArray
from attnflow.graph import with_residual
from attnflow.selection import Row
from attnflow.sinks import sink_positions

if TYPE_CHECKING:
    from attnflow.capture.inside import Inside
    from attnflow.capture.picture import Picture


class Prediction(NamedTuple):
    """The model's answer.

    kind: "class", "score", "next token" or "masked token".
    top: the likeliest answers and their probabilities.
    """

    kind: str
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Step:
    """One layer of the attention graph before the residual connection is added.

    weights: [query, key] over all positions of the level above and the level below.
    carried: positions that only pass through (the source while a decoder layer runs); their rows are one-hot.
    residual: whether there is a residual connection; merging patches has none.
    whole: whether the weights already include it.
    lengths: norms of the values at the keys, [key]; None if unknown.
    """

    weights: Tensor
    carried: range = range(0)
    residual: bool = True
    whole: bool = False
    lengths: Tensor | None = None

    def graph(self, residual: float) -> Tensor:
        if not self.residual or self.whole:
            return self.weights
        return with_residual(self.weights, residual)

    @cached_property
    def sinks(self) -> tuple[int, ...] | None:
        """The keys that are sinks here according to `attnflow.sinks.sink_positions`; None if no values were seen."""
        return None if self.lengths is None else sink_positions(self.weights, self.lengths)


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass.

    tokens, special, word_ids, word_texts, text: the inputs.
    parts: "source" or "target" for each input, in encoder-decoders.
    steps: the graph.
    ends: for each layer of the model, the number of its last step.
    first_query: the first explained position: the first of the target in an encoder-decoder.
    default_query: the position that is explained by default.
    pooled: for a sentence-embedding model, what is explained by default: the positions that its embedding is made of.
    patches: rows and columns of an image's patches.
    picture: an image within a text, whose patches are some of its positions.
    image: what a vision model saw, uint8 [height, width, 3], made small.
    weights: heads of the layers for which they were kept, [head, query, key].
    encoder: the source alone.
    inside: the inside of the layers, if edges other than the weights were requested.
    """

    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    word_ids: tuple[int | None, ...]
    word_texts: tuple[str, ...]
    text: str
    steps: tuple[Step, ...] = field(repr=False)
    ends: tuple[int, ...] = field(repr=False)
    default_query: int | None
    provenance: Mapping[str, Any] = field(repr=False)
    prediction: Prediction | None = None
    parts: tuple[str, ...] = ()
    first_query: int = 0
    patches: tuple[int, int] | None = None
    picture: Picture | None = None
    weights: Mapping[int, Tensor] = field(default_factory=dict, repr=False)
    encoder: Pass | None = field(default=None, repr=False)
    word_groups: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False)
    inside: Inside | None = field(default=None, repr=False)
    pooled: Row | None = field(default=None, repr=False)
    image: FloatArray | None = field(default=None, repr=False)

    @property
    def layer_count(self) -> int:
        return len(self.ends)
