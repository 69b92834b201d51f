"""What one forward pass leaves: labels, prediction, and attention as the steps of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from attnflow.graph import with_residual

if TYPE_CHECKING:
    from attnflow.capture.inside import Inside


class Prediction(NamedTuple):
    """What the model answers: "class", "next token" or "masked token"; the likeliest answers and their probabilities."""

    kind: str
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Step:
    """One layer of the attention graph before the residual connection is added.

    weights: [query, key] over all positions of the level above and the level below. carried: the positions that only pass
    through here (the source while a decoder layer runs); their rows are one-hot. residual: whether there is a residual
    connection; merging patches has none. whole: whether it is in the weights already.
    """

    weights: Tensor
    carried: range = range(0)
    residual: bool = True
    whole: bool = False

    def graph(self, residual: float) -> Tensor:
        return with_residual(self.weights, residual) if self.residual and not self.whole else self.weights


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass.

    tokens, special, word_ids, word_texts, text: the inputs. parts: "source" and "target" of each in encoder-decoders.
    steps: the graph; ends: for each layer of the model, the number of its last step.
    first_query: where the explained positions begin among all: the first of the target in an encoder-decoder.
    default_query: the position that is explained if none is named. patches: rows and columns of an image's patches.
    weights: heads of the layers for which they were kept, [head, query, key]. encoder: the source by itself.
    inside: what happened inside the layers, where other edges than the weights themselves were asked for.
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
    weights: Mapping[int, Tensor] = field(default_factory=dict, repr=False)
    encoder: Pass | None = field(default=None, repr=False)
    word_groups: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False)
    inside: Inside | None = field(default=None, repr=False)

    @property
    def layer_count(self) -> int:
        return len(self.ends)
