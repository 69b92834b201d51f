"""Figure 4 and beyond: does a view of attention favour the candidate that the model's own pronoun prediction implies?

A pronoun is masked, as in "The author talked to Sara about [MASK] book". The model's prediction, ``p(his)`` against
``p(her)``, implies one of the two candidates if their genders, or the stereotypes of them, differ. The mask's row of
raw attention, rollout or flow favours the candidate that it gives more to. `masked_pronoun` handles one sentence, for
the figure. `consistency` counts how often both are the same over WinoBias (Zhao et al. 2018) and Winogender (Rudinger
et al. 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.evaluate.correlation import VIEWS
from attnflow.evaluate.statistics import wilson
from attnflow.paper.pronoun_data import EITHER, FEMALE, FORMS, MALE, Excluded, PronounExample, Span

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Floats = NDArray[np.float64]

BATCH = 64
SAME = 1e-9  # relative: equal weights come from sums in different orders

PREDICTION = "prediction"
RELATIVE = "prediction, against its median"
ONE_SIDED = "prediction, one gender known"
REFERENT = "referent"
FIRST, NEARER = "first named", "nearer to the pronoun"
ALL = "all"


@dataclass(frozen=True, eq=False)
class MaskedPronoun:
    """One masked sentence: the model's prediction of the pronoun, and the weights of its row on the candidates.

    p_male, p_female: the probabilities of the two forms at the mask, among all words.
    weights: by view, ``[layer, candidate]``; candidates in the order of ``example.candidates``.
    """

    example: PronounExample
    p_male: float
    p_female: float
    weights: Mapping[str, Floats]

    @property
    def forms(self) -> tuple[str, str]:
        male, female = FORMS[self.example.kind]
        return "/".join(male), "/".join(female)

    @property
    def implied(self) -> int | None:
        return implied(self.example, self.p_male, self.p_female)

    def favoured(self, view: str, layer: int) -> int | None:
        """Return the candidate with the larger weight; None for a tie."""
        return _larger(self.weights[view][layer])

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data."""
        return {
            "text": self.example.filled("[MASK]")[0],
            "source": self.example.source,
            "id": self.example.id,
            "forms": list(self.forms),
            "probabilities": [self.p_male, self.p_female],
            "candidates": list(self.example.names),
            "genders": list(self.example.genders),
            "referent": self.example.referent,
            "implied": self.implied,
            "weights": {view: weights.tolist() for view, weights in self.weights.items()},
        }


@dataclass(frozen=True)
class Agreement:
    """How often a view favours the right candidate.

    view: raw, rollout or flow at a layer (from 0); or, with no layer, a baseline without attention: the candidate named
        first, the one nearer to the pronoun, or, against the referent, the model's prediction itself.
    against: "prediction" is the candidate that the pronoun prediction implies, if both genders are known and differ.
        "against its median" asks if p(male) / p(female) is above or below its median over all sentences with this kind
        of pronoun, because a model that nearly always says "he" nearly always implies the male candidate. "one gender
        known" is for sentences with one known gender; a prediction against it counts for the other candidate.
        "referent" is the annotated one.
    agree, count, ties: sentences; ties favour neither and are not in count.
    share, low, high: agree / count with its 95 % Wilson interval; None if all are ties. Sentences made from one
        template count as independent.
    """

    source: str
    view: str
    layer: int | None
    against: str
    agree: int
    count: int
    ties: int
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Consistency:
    """The result of `consistency`: the shares, the sentences they are based on, and what was left out.

    repeated: examples whose masked sentence occurred before.
    contradictory: sentences whose repetitions name different referents, and so have none.
    """

    rows: tuple[Agreement, ...]
    measured: tuple[MaskedPronoun, ...]
    excluded: tuple[Excluded, ...]
    repeated: int
    contradictory: int

    def to_dict(self) -> dict[str, Any]:
        """Return the shares and counts as JSON-compatible data, without the single sentences."""
        sources = Counter(m.example.source for m in self.measured)
        return {
            "sentences": dict(sources),
            "repeated": self.repeated,
            "contradictory": self.contradictory,
            "excluded": dict(Counter(reason for _, reason in self.excluded).most_common()),
            "rows": [asdict(row) for row in self.rows],
        }


def implied(example: PronounExample, p_male: float, p_female: float) -> int | None:
    """Return the candidate, 0 or 1, that the likelier form of the pronoun implies; None if it implies neither.

    If both genders are known and differ, it is the candidate with that gender. If only one is known, as in Winogender,
    it is that candidate if the gender matches, else the other one: a reading that counts every preference against the
    stereotype of an occupation for the participant. If both are the same or none is known, it is neither.

    >>> from attnflow.paper.pronoun_data import FIGURE_4
    >>> implied(FIGURE_4[1], p_male=0.2, p_female=0.6), implied(FIGURE_4[0], p_male=0.7, p_female=0.1)
    (0, 0)
    """
    first, second = example.genders
    if p_male == p_female or first == second:
        return None
    likelier = MALE if p_male > p_female else FEMALE
    return example.genders.index(likelier if likelier in example.genders else None)


class Prepared(NamedTuple):
    """The masked text, its tensors, the positions of the mask and of the candidates' tokens, and the ids of the forms."""

    text: str
    tensors: dict[str, Any]
    mask: int
    candidates: tuple[list[int], list[int]]
    male: list[int]
    female: list[int]


def masked_pronoun(model: Model, example: PronounExample) -> MaskedPronoun:
    """Return what Figure 4 shows of one sentence."""
    measured, excluded = measure(model, [example])
    if excluded:
        raise InputError(f"{example.text!r} cannot be used with {model!r}: {excluded[0].reason}")
    return measured[0]


def consistency(
    model: Model, examples: Sequence[PronounExample], say: Callable[[str], None] = lambda line: None
) -> Consistency:
    """Count how often each view favours the predicted candidate, and the referent, at every layer.

    model: a masked language model.
    examples: from `read_winobias` and `read_winogender`; each distinct masked sentence counts once.
    say: called with progress.
    """
    distinct: dict[Any, PronounExample] = {}
    contradictory: set[Any] = set()
    for e in examples:
        first = distinct.setdefault(e.key, e)
        if first.kind == EITHER:
            distinct[e.key] = first = replace(first, kind=e.kind)
        if first.referent != e.referent:
            contradictory.add(e.key)
    for key in contradictory:
        distinct[key] = replace(distinct[key], referent=None)
    if not distinct:
        raise InputError("there are no examples: expected at least one sentence with a pronoun and two candidates")
    measured, excluded = measure(model, list(distinct.values()), say)
    repeated = len(examples) - len(distinct)
    return Consistency(tuple(agreement(measured)), tuple(measured), tuple(excluded), repeated, len(contradictory))


def measure(
    model: Model, examples: Sequence[PronounExample], say: Callable[[str], None] = lambda line: None
) -> tuple[list[MaskedPronoun], list[Excluded]]:
    """Mask and trace every example; examples that do not fit the model's tokens are excluded."""
    check_masked_lm(model)
    ready: list[tuple[PronounExample, Prepared]] = []
    excluded: list[Excluded] = []
    for e in examples:
        prepared = prepared_of(model, e)
        if isinstance(prepared, str):
            excluded.append(Excluded(e.id or e.text, prepared))
        else:
            ready.append((e, prepared))
    # texts of similar length share a batch, to keep padding small
    order = sorted(range(len(ready)), key=lambda i: ready[i][1].tensors["input_ids"].shape[1])
    measured: dict[int, MaskedPronoun] = {}
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        chances = _probabilities(model, [ready[i][1] for i in part])
        traces = model.trace([ready[i][1].text for i in part])
        for i, (p_male, p_female), trace in zip(part, chances, traces, strict=True):
            e, prepared = ready[i]
            weights = {view: _weights(trace, view, prepared) for view in VIEWS}
            measured[i] = MaskedPronoun(e, p_male, p_female, weights)
        say(f"{start + len(part)} of {len(order)} sentences")
    return [measured[i] for i in range(len(ready))], excluded


def check_masked_lm(model: Model) -> None:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError(f"{model!r} was wrapped without a tokenizer: give wrap(model, tokenizer)")
    if getattr(tokenizer, "mask_token_id", None) is None:
        raise InputError(f"{model!r} has no mask token: expected a masked language model, such as bert-base-uncased")
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"the tokenizer of {model!r} does not give the positions of its tokens in the text: load the fast tokenizer"
        )


def prepared_of(model: Model, example: PronounExample) -> Prepared | str:
    """Return the example as model input, or why it cannot be used."""
    import torch

    tokenizer: Any = model.tokenizer
    text, spans = example.filled(tokenizer.mask_token)
    encoding = tokenizer(text, return_offsets_mapping=True, verbose=False)
    ids = list(encoding["input_ids"])
    if ids.count(tokenizer.mask_token_id) != 1:
        return "the mask token is in the sentence itself"
    limit = model.limit()
    if limit is not None and len(ids) > limit:
        return f"the sentence is longer than the {limit} tokens that the model takes"
    mask = ids.index(tokenizer.mask_token_id)
    first, second = (_tokens(encoding["offset_mapping"], span) for span in spans)
    if not first or not second or set(first) & set(second) or mask in (*first, *second):
        return "a candidate has no tokens of its own"
    forms = []
    for words in FORMS[example.kind]:
        own = []
        for word in words:
            word = word.capitalize() if example.pronoun[:1].isupper() and example.pronoun != "[MASK]" else word
            filled = list(tokenizer(example.filled(word)[0], verbose=False)["input_ids"])
            # read in place, because tokenizers mark the beginning of a word in different ways
            if len(filled) != len(ids) or [*filled[:mask], *filled[mask + 1 :]] != [*ids[:mask], *ids[mask + 1 :]]:
                return f"{word!r} is not one token of the model"
            own.append(filled[mask])
        forms.append(own)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in (*forms[0], *forms[1]):
        return (
            f"one of {', '.join(map(repr, (w for side in FORMS[example.kind] for w in side)))} is unknown to the model"
        )
    names = [n for n in tokenizer.model_input_names if n in encoding and model.accepts(n)]
    tensors = {name: torch.tensor([encoding[name]]) for name in dict.fromkeys(["input_ids", *names])}
    return Prepared(text, tensors, mask, (first, second), forms[0], forms[1])


def _tokens(offsets: Sequence[Span], span: Span) -> list[int]:
    """Return the positions of the tokens that have a character of the span."""
    return [i for i, (start, stop) in enumerate(offsets) if start < span[1] and stop > span[0]]


def _probabilities(model: Model, batch: Sequence[Prepared]) -> list[tuple[float, float]]:
    """Return the probabilities of the male and the female forms at each mask."""
    import torch

    from attnflow.capture.inputs import batched

    pad = getattr(model.tokenizer, "pad_token_id", None) or 0
    with torch.no_grad():
        out = model.model(**{name: x.to(model.device) for name, x in batched([p.tensors for p in batch], pad).items()})
    logits = getattr(out, "logits", None)
    if logits is None or logits.dim() != 3 or logits.shape[-1] <= max(i for p in batch for i in (*p.male, *p.female)):
        raise InputError(
            f"{model!r} does not predict words: expected a masked language model, such as bert-base-uncased"
        )
    rows = torch.arange(len(batch)), torch.tensor([p.mask for p in batch])
    chances = torch.softmax(logits[rows].double().cpu(), -1)
    return [(float(row[p.male].sum()), float(row[p.female].sum())) for row, p in zip(chances, batch, strict=True)]


def _weights(trace: Trace, view: str, prepared: Prepared) -> Floats:
    """Return [layer, candidate] of the mask's row; a candidate of several tokens has their sum."""
    rows = getattr(trace, view)(query=prepared.mask).values[:, 0].astype(np.float64)
    return np.stack([rows[:, own].sum(axis=1) for own in prepared.candidates], axis=1)


def _larger(pair: Floats) -> int | None:
    a, b = float(pair[0]), float(pair[1])
    return None if abs(a - b) <= SAME * max(abs(a), abs(b)) else int(b > a)


def agreement(measured: Sequence[MaskedPronoun]) -> list[Agreement]:
    """Return the shares over all sentences, and by source if there are several; without rows that compare nothing."""
    sources = list(dict.fromkeys(m.example.source for m in measured))
    groups = {source: [m for m in measured if m.example.source == source] for source in sources}
    if len(sources) > 1:
        groups[ALL] = list(measured)
    kinds = {m.example.kind for m in measured}
    medians = {kind: float(np.median([_male_share(m) for m in measured if m.example.kind == kind])) for kind in kinds}
    rows = []
    for source, group in groups.items():
        for against in (PREDICTION, RELATIVE, ONE_SIDED, REFERENT):
            pairs = [(m, target) for m in group if (target := _target(m, against, medians)) is not None]
            if pairs:
                rows += _rows(source, against, pairs)
    return rows


def _male_share(m: MaskedPronoun) -> float:
    """Return the share of the male form in both; 0.5 if the model excludes both."""
    return m.p_male / (m.p_male + m.p_female) if m.p_male + m.p_female > 0 else 0.5


def _target(m: MaskedPronoun, against: str, medians: Mapping[str, float]) -> int | None:
    if against == REFERENT:
        return m.example.referent
    if (None in m.example.genders) != (against == ONE_SIDED):
        return None
    return implied(m.example, _male_share(m), medians[m.example.kind]) if against == RELATIVE else m.implied


def _rows(source: str, against: str, pairs: Sequence[tuple[MaskedPronoun, int]]) -> list[Agreement]:
    choices: dict[tuple[str, int | None], Callable[[MaskedPronoun], int | None]] = {
        (view, layer): partial(MaskedPronoun.favoured, view=view, layer=layer)
        for view, weights in pairs[0][0].weights.items()
        for layer in range(len(weights))
    }
    choices[FIRST, None] = lambda m: int(m.example.candidates[1] < m.example.candidates[0])
    choices[NEARER, None] = lambda m: _nearer(m.example)
    if against == REFERENT:
        choices[PREDICTION, None] = lambda m: m.implied
    rows = []
    for (view, layer), choose in choices.items():
        chosen = [(choose(m), target) for m, target in pairs]
        agree = sum(choice == target for choice, target in chosen)
        ties = sum(choice is None for choice, _ in chosen)
        count = len(chosen) - ties
        interval = (agree / count, *wilson(agree, count)) if count else (None, None, None)
        rows.append(Agreement(source, view, layer, against, agree, count, ties, *interval))
    return rows


def _nearer(example: PronounExample) -> int | None:
    start, stop = example.slot
    first, second = (start - b if b <= start else a - stop for a, b in example.candidates)
    return None if first == second else int(second < first)
