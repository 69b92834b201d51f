"""Figure 4: which of two candidates does the mask of a pronoun look at?

A pronoun is masked, as in "The author talked to Sara about [MASK] book". The model's prediction, ``p(his)`` against
``p(her)``, implies one of the two candidates if their genders differ. The mask's row of raw attention, rollout or flow
favours the candidate that it gives more to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.evaluate.correlation import VIEWS

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Floats = NDArray[np.float64]
Span = tuple[int, int]

SAME = 1e-9  # relative: equal weights come from sums in different orders
SLOT = "[MASK]"
MALE, FEMALE = "male", "female"
FORMS = ("his", "her")


@dataclass(frozen=True)
class PronounExample:
    """A sentence with [MASK] in place of a possessive pronoun, and its two candidates.

    names: the candidates, as written in the text.
    genders: of the candidates; None if unknown.
    """

    text: str
    names: tuple[str, str]
    genders: tuple[str | None, str | None]

    def filled(self, word: str) -> tuple[str, list[Span]]:
        """Return the sentence with another word at the slot, and the places of the candidates in it."""
        text = self.text.replace(SLOT, word)
        return text, [(text.index(name), text.index(name) + len(name)) for name in self.names]


FIGURE_4 = (
    PronounExample("The author talked to Sara about [MASK] book", ("author", "Sara"), (None, FEMALE)),
    PronounExample("Mary convinced John of [MASK] love", ("Mary", "John"), (FEMALE, MALE)),
)


@dataclass(frozen=True, eq=False)
class MaskedPronoun:
    """One masked sentence: the model's prediction of the pronoun, and the weights of its row on the candidates.

    p_male, p_female: the probabilities of the two forms at the mask, among all words.
    weights: by view, ``[layer, candidate]``; candidates in the order of ``example.names``.
    """

    example: PronounExample
    p_male: float
    p_female: float
    weights: Mapping[str, Floats]

    def favoured(self, view: str, layer: int) -> int | None:
        """Return the candidate with the larger weight; None for a tie."""
        a, b = map(float, self.weights[view][layer])
        return None if abs(a - b) <= SAME * max(abs(a), abs(b)) else int(b > a)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data."""
        return {
            "text": self.example.text,
            "forms": list(FORMS),
            "probabilities": [self.p_male, self.p_female],
            "candidates": list(self.example.names),
            "genders": list(self.example.genders),
            "implied": implied(self.example, self.p_male, self.p_female),
            "weights": {view: weights.tolist() for view, weights in self.weights.items()},
        }


def implied(example: PronounExample, p_male: float, p_female: float) -> int | None:
    """Return the candidate, 0 or 1, that the likelier form of the pronoun implies; None if it implies neither.

    It is the candidate with that gender; or, if only the other one's gender is known and does not fit, this one.

    >>> implied(FIGURE_4[1], p_male=0.2, p_female=0.6), implied(FIGURE_4[0], p_male=0.7, p_female=0.1)
    (0, 0)
    """
    first, second = example.genders
    if p_male == p_female or first == second:
        return None
    likelier = MALE if p_male > p_female else FEMALE
    return example.genders.index(likelier if likelier in example.genders else None)


def masked_pronoun(model: Model, example: PronounExample) -> MaskedPronoun:
    """Return what Figure 4 shows of one sentence."""
    import torch

    tokenizer: Any = model.tokenizer
    if getattr(tokenizer, "mask_token_id", None) is None:
        raise InputError(f"{model!r} has no mask token: expected a masked language model, such as bert-base-uncased")
    text, spans = example.filled(tokenizer.mask_token)
    encoding = tokenizer(text, return_offsets_mapping=True, verbose=False)
    ids = list(encoding["input_ids"])
    mask = ids.index(tokenizer.mask_token_id)
    candidates = [
        [i for i, (start, stop) in enumerate(encoding["offset_mapping"]) if start < span[1] and stop > span[0]]
        for span in spans
    ]
    forms = [_form(model, example, word, ids, mask) for word in FORMS]
    names = [n for n in tokenizer.model_input_names if n in encoding and model.accepts(n)]
    tensors = {n: torch.tensor([encoding[n]], device=model.device) for n in dict.fromkeys(["input_ids", *names])}
    with torch.no_grad():
        logits = getattr(model.model(**tensors), "logits", None)
    if logits is None or logits.dim() != 3 or logits.shape[-1] <= max(forms):
        raise InputError(
            f"{model!r} does not predict words: expected a masked language model, such as bert-base-uncased"
        )
    p_male, p_female = torch.softmax(logits[0, mask].double().cpu(), -1)[forms].tolist()
    trace = model.trace(text)
    return MaskedPronoun(example, p_male, p_female, {view: _weights(trace, view, mask, candidates) for view in VIEWS})


def _form(model: Model, example: PronounExample, word: str, ids: Sequence[int], mask: int) -> int:
    """Return the token of a form, read in its place, because tokenizers mark the beginning of a word in different ways."""
    tokenizer: Any = model.tokenizer
    filled = list(tokenizer(example.filled(word)[0], verbose=False)["input_ids"])
    if [*filled[:mask], *filled[mask + 1 :]] != [*ids[:mask], *ids[mask + 1 :]]:
        raise InputError(f"{example.text!r} cannot be used with {model!r}: {word!r} is not one token of the model")
    if filled[mask] == tokenizer.unk_token_id:
        raise InputError(f"{example.text!r} cannot be used with {model!r}: {word!r} is unknown to the model")
    return int(filled[mask])


def _weights(trace: Trace, view: str, mask: int, candidates: Sequence[Sequence[int]]) -> Floats:
    """Return [layer, candidate] of the mask's row; a candidate of several tokens has their sum."""
    rows = getattr(trace, view)(query=mask).values[:, 0].astype(np.float64)
    return np.stack([rows[:, own].sum(axis=1) for own in candidates], axis=1)
