"""How similar a sentence-embedding model finds two texts, and which of their words make them so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from attnflow.capture.inputs import Encoded
from attnflow.capture.pooling import DISTANCES
from attnflow.capture.runner import Runner
from attnflow.capture.similar import SimilarTo, embed, pooling_known
from attnflow.edges import traced
from attnflow.edges.weights import Signed
from attnflow.errors import InputError, a_type
from attnflow.importance import blank_out, gradient, integrated_gradients, shapley
from attnflow.result import TokenAttention
from attnflow.source_methods import INPUTS, METHOD
from attnflow.trace import Trace

if TYPE_CHECKING:
    from attnflow.view.similarity_page import SimilarityPage

METHODS = ("blank-out", "gradient", "integrated-gradients", "shapley", INPUTS, METHOD, "rollout")
"""The methods of `Similarity.by`. rollout uses attention times its gradient."""


class Sides(NamedTuple):
    """What each token of two texts is worth to their similarity."""

    first: TokenAttention
    second: TokenAttention


@dataclass(frozen=True, eq=False)
class Similarity:
    """How similar a model finds two texts, ready to be explained.

    value: the similarity, by the model's measure; the negative distance if that is a distance.
    texts: the two texts as the model read them.

    Every method explains both texts, each relative to the other as it is. Positive values make them similar.
    """

    value: float
    texts: tuple[Encoded, Encoded] = field(repr=False)
    runners: tuple[SimilarTo, SimilarTo] = field(repr=False)

    def __repr__(self) -> str:
        return f"Similarity({self.value:.4f}, {self.texts[0].text!r:.40}, {self.texts[1].text!r:.40})"

    @property
    def measure(self) -> str:
        """The measure of the model: "cosine", "dot", "euclidean" or "manhattan"."""
        return pooling_known(self.runners[0]).similarity

    def blank_out(self, *, unit: str = "word", by: str | int | None = None, signed: bool = True) -> Sides:
        """Return how much the similarity falls when each word is blanked and the text is embedded again.

        Arguments as in `Model.blank_out`.
        """
        return Sides(*(blank_out(run, text, unit=unit, by=by, signed=signed) for run, text in self._each()))

    def gradient(self, *, reduce: str = "times-input") -> Sides:
        """Return the gradient of the similarity with respect to each token's embedding, as in `Model.gradient`."""
        return Sides(*(gradient(run, text, reduce=reduce) for run, text in self._each()))

    def integrated_gradients(self, *, by: str | int | None = None, steps: int = 50) -> Sides:
        """Return gradients integrated along the path from a text of blanks, as in `Model.integrated_gradients`."""
        return Sides(*(integrated_gradients(run, text, by=by, steps=steps) for run, text in self._each()))

    def shapley(self, *, by: str | int | None = None, samples: int = 25, seed: int = 0) -> Sides:
        """Return sampled Shapley values, as in `Model.shapley`."""
        return Sides(*(shapley(run, text, by=by, samples=samples, seed=seed) for run, text in self._each()))

    def trace(self, edges: str = "answer", normalize: str | None = None) -> tuple[Trace, Trace]:
        """Return both texts with edges about their similarity: "answer", "attention-gradient" or "gradient".

        See `Model.trace`. Answer edges hold attention, norm scales, gates and the lengths of the embeddings constant. What
        they carry, what ends at the inputs (`Trace.answer_inputs`) and the constants then add up to the similarity.
        """
        if edges == "answer" and self.measure in DISTANCES:
            raise InputError(
                f"answer edges split a number that is linear in the embedding, and the {self.measure} distance is not: "
                "expected edges='attention-gradient', or blank_out()"
            )
        options: dict[str, Any] = {"answer": None, "of": "logit", "missing": "keep", "truncate": False}
        first, second = (Trace.of(traced(run, text, edges, normalize, **options)) for run, text in self._each())
        return first, second

    def answer_inputs(self, signed: Signed = True) -> Sides:
        """Return what the similarity owes to each token, all the way down, by answer edges: see `Trace.answer_inputs`."""
        return Sides(*(trace.answer_inputs(signed) for trace in self.trace()))

    def answer_rows(self, signed: Signed = True) -> Sides:
        """Return what the pooled positions read from each token, by answer edges: see `Trace.answer_rows`."""
        return Sides(*(trace.answer_rows(signed=signed) for trace in self.trace()))

    def by(self, method: str = "blank-out", *, words: bool = True) -> Sides:
        """Return both texts by one of `METHODS`. words: add up subwords to words."""
        if method not in METHODS:
            raise InputError(f"method {method!r}: expected one of {', '.join(METHODS)}")
        if method == "blank-out":
            return self.blank_out(unit="word" if words else "token")
        if method == "rollout":
            traces = [trace.words() if words else trace for trace in self.trace("attention-gradient")]
            return Sides(*(trace.rollout(layer=-1) for trace in traces))
        sides: Sides = getattr(self, method.replace("-", "_"))()
        return Sides(sides.first.words(), sides.second.words()) if words else sides

    def to_dict(self, sides: Sides) -> dict[str, Any]:
        """Return the similarity with what explains it, as a .json file contains it."""
        return {"similarity": self.value, "measure": self.measure, "texts": [side.to_dict() for side in sides]}

    def page(self, *methods: Sides) -> SimilarityPage:
        """Return the page of both texts, shaded by the results of `by` or other methods; by default blank-out of words.

        The page offers several methods as a choice; they must be over the same words.
        """
        from attnflow.view.similarity_page import similarity_page

        shown = methods or (self.by(),)
        if any(side.tokens != first.tokens for one in shown for side, first in zip(one, shown[0], strict=True)):
            raise InputError("the methods of a page use different units: expected all over words, or all over tokens")
        return similarity_page(self, shown)

    def _each(self) -> zip[tuple[SimilarTo, Encoded]]:
        return zip(self.runners, self.texts, strict=True)


def similarity_of(model: Runner, first: Any, second: Any, truncate: bool) -> Similarity:
    """Compute `Model.similarity`."""
    pooling_known(model)
    model.check_evaluating()
    for name, text in (("first", first), ("second", second)):
        if not isinstance(text, str | Encoded):
            raise InputError(f"{name} is {a_type(text)}: expected a text")
    texts = model.encode(first, truncate=truncate), model.encode(second, truncate=truncate)
    for text in texts:
        model.verify(text)
    embeddings = [embed(model, text) for text in texts]
    runners = SimilarTo(model, embeddings[1]), SimilarTo(model, embeddings[0])
    value = float(pooling_known(model).compared(embeddings[0][None].double(), embeddings[1].double())[0])
    return Similarity(value, texts, runners)
