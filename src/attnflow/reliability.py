"""Reliability: sentences that say why a row of token attention, or the parts of an answer, should not be read as they are.

A rule is a name and a sentence. It applies if the numbers themselves are uninformative: flow at its upper bound, a row
all on a sink, rows that no longer depend on their query, a probability that cannot change. No sentence does not mean
that the numbers are good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import FloatArray

Floats = NDArray[np.float64]

NEARLY_ALL = 0.9
"""The share from which on nearly all tokens tie or are at their bound, or one position takes nearly all of a row."""

EQUAL = 1e-9
"""Relative tolerance. Flows are exact to 1e-12, so values that differ by less than this are the same."""

SAME_ROW = 0.99
"""Rows of different queries that have at least this much in common count as one row; twelve mixed layers get there."""

UNLIKELY = 0.01
"""Probability per answer token below which the model would hardly ever write the answer."""

OUTWEIGHED = {"positive": 0.1, "signed": 0.5, "none": 0.0}
"""If the support for an answer is less than this fraction of what counts against it, its shares are shares of remnants.
Signed shares get the note sooner, because the negative ones then add up to more than one."""

FIRST = 0.5
"""The fraction of the support on the first token above which the shares cover only the smaller part."""

GAP = 0.01
"""How far the parts may be from their sum, relative to their sizes. Single precision stays below 1e-4."""

LITTLE = "what is left says little about the other tokens"
ELSEWHERE = f"{LITTLE}; answer edges show what the answer rests on"

ROWS = {
    "raw": "this raw attention",
    "answer_rows": "these answer rows",
    "answer_inputs": "these answer inputs",
}
"""How sentences refer to the rows of a method; the default is "this <method>", as in "this rollout"."""

ABOUT_ANSWERS = ("answer_rows", "answer_inputs")
"""Methods that already show what the answer rests on."""

Notes = Mapping[str, str]


@dataclass(frozen=True)
class Labels:
    """What is known about the inputs of a row.

    sinks: positions whose values carry next to nothing. causal: whether the model only looks back. Its first token then
    takes the attention that has nowhere else to go.
    """

    tokens: Sequence[str]
    special: Sequence[bool]
    sinks: Sequence[int] = ()
    causal: bool = False


@dataclass(frozen=True)
class FlowBound:
    """The upper bound of the flow from a query, whatever the layers in between.

    leaving: all that leaves the query at its layer. entering: all that the first layer takes from each input.
    """

    leaving: float
    entering: Floats

    @property
    def of_inputs(self) -> Floats:
        """The bound for each input.

        >>> FlowBound(1.0, np.array([0.5, 1.5])).of_inputs
        array([0.5, 1. ])
        """
        bound: Floats = np.minimum(self.entering, self.leaving)
        return bound


def row_notes(
    row: FloatArray, labels: Labels, method: str, layer: int, own: int | None = None, bound: FlowBound | None = None
) -> dict[str, str]:
    """Return the notes on one row [input], by rule.

    layer: counted from 0. own: the position of the query among the inputs. bound: the upper bound of flow. Rows with
    negative values have no shares; only their ties are checked.

    >>> labels = Labels(["<s>", "a", "key"], [True, False, False], causal=True)
    >>> row_notes(np.array([0.97, 0.02, 0.01]), labels, "rollout", 5)["sink"][:60]
    "97 % of this rollout is on the first token '<s>': what is le"
    >>> row_notes(np.array([0.0, 0.5, 0.5]), labels, "flow", 5)
    {'ties': 'Flow cannot tell these tokens apart at L6: 2 of 2 tie.'}
    >>> row_notes(np.array([0.1, 0.3, 0.6]), labels, "rollout", 5)
    {}
    """
    values = np.asarray(row, np.float64)
    content = np.flatnonzero(~np.asarray(labels.special, bool))
    if len(values) < 2:
        return {}
    notes = tie_notes(values[content], method, layer)
    if bound is not None and not notes:
        notes |= _at_bound(values[content], bound.of_inputs[content], layer)
    if values.min() >= 0:
        notes |= _on_one(values, labels, method, own, bound)
    return notes


def tie_notes(values: Floats, method: str, layer: int | None = None) -> dict[str, str]:
    """Return a note if nearly all tokens that a row reaches share its highest value, so that it ranks nothing.

    >>> tie_notes(np.zeros(3), "blank-out")
    {'ties': 'Every token gets 0 from blank-out: it ranks nothing.'}
    """
    if len(values) > 1 and not values.any():
        return {"ties": f"Every token gets 0 from {method}: it ranks nothing."}
    reached = values[values != 0]
    tied = int((reached >= reached.max() * (1 - EQUAL)).sum()) if len(reached) and reached.max() > 0 else 0
    if tied < 2 or tied < NEARLY_ALL * len(reached):
        return {}
    where = "" if layer is None else f" at L{layer + 1}"
    return {"ties": f"{_capital(method)} cannot tell these tokens apart{where}: {tied} of {len(reached)} tie."}


def computed_note(method: str, count: int, of: int, seconds: float, first: str | None) -> str:
    """Return a note that some values are missing because time ran out.

    >>> computed_note("blank-out", 24, 383, 20, "answer_rows")
    'Blank-out covers only the 24 highest of 383 by answer_rows: the limit of 20 seconds left no time for the others.'
    """
    which = f"the first {count} of {of}" if first is None else f"the {count} highest of {of} by {first}"
    return f"{_capital(method)} covers only {which}: the limit of {seconds:g} seconds left no time for the others."


def _at_bound(values: Floats, bound: Floats, layer: int) -> dict[str, str]:
    reached = values > 0
    count = int((values[reached] >= bound[reached] * (1 - EQUAL)).sum())
    if count < 2 or count < NEARLY_ALL * reached.sum():
        return {}
    return {
        "bound": f"Flow at L{layer + 1} is at its upper bound for {count} of {reached.sum()} tokens (all that leaves the "
        "query, or all that the first layer takes from the token), so it shows nothing of the layers in between. Lower "
        "layers show more."
    }


def _on_one(values: Floats, labels: Labels, method: str, own: int | None, bound: FlowBound | None) -> dict[str, str]:
    """Return a note if one position takes nearly all of a row only because attention has to go somewhere.

    A flow is compared with all that leaves the query, because flows to several tokens share edges and add up to more.
    """
    place = int(values.argmax())
    token = labels.tokens[place]
    rest = LITTLE if method in ABOUT_ANSWERS else ELSEWHERE
    a_sink = f"{token!r}, a sink whose value carries next to nothing: {rest}."
    if method == "flow":
        if bound is None or place not in labels.sinks or values[place] < NEARLY_ALL * bound.leaving:
            return {}
        return {"sink": f"{percent(values[place] / bound.leaving)} of what leaves the query can flow to {a_sink}"}
    total = values.sum()
    if not total or values[place] < NEARLY_ALL * total:
        return {}
    taken = f"{percent(values[place] / total)} of {ROWS.get(method, f'this {method}')}"
    if place in labels.sinks:
        return {"sink": f"{taken} is on {a_sink}"}
    if place == own:
        return {"own": f"{taken} stays at the query {token!r} itself: {rest}."}
    if labels.special[place] or (place == 0 and labels.causal):
        kind = "first" if place == 0 else "special"
        return {"sink": f"{taken} is on the {kind} token {token!r}: {rest}."}
    return {}


def mixed_notes(row: FloatArray, others: FloatArray, method: str = "rollout") -> dict[str, str]:
    """Return a note if other queries have nearly the same row, ``others[query, input]``.

    Rows are divided by their sums and compared by ``Σ_t min(r_t, r'_t)``.

    >>> row = np.array([0.2, 0.3, 0.5])
    >>> mixed_notes(row, np.array([[0.2, 0.3, 0.5], [0.2, 0.299, 0.501]]))["mixed"][:57]
    'Other queries have nearly the same row (100 % in common):'
    >>> mixed_notes(row, np.array([[0.5, 0.3, 0.2]]))
    {}
    """
    if not len(others):
        return {}
    total = np.maximum(others.sum(-1), row.sum())
    common = float((np.minimum(row, others).sum(-1) / np.where(total == 0, np.inf, total)).mean())
    if common < SAME_ROW:
        return {}
    return {
        "mixed": f"Other queries have nearly the same row ({percent(common)} in common): this {method} has mixed all "
        "tokens and says little about its query."
    }


def of_rows(notes: Sequence[Notes], queries: Sequence[str]) -> list[str]:
    """Return the sentences of a result from the notes of its rows: those that apply to more than half of the rows.

    >>> of_rows([{"ties": "Nothing is ranked."}], ["[CLS]"])
    ['Nothing is ranked.']
    >>> of_rows([{}, {"ties": "Nothing is ranked."}, {"ties": "Nothing is ranked."}], ["[CLS]", "the", "key"])
    ["2 of 3 queries, such as 'the': Nothing is ranked."]
    """
    sentences = []
    for rule in dict.fromkeys(name for each in notes for name in each):
        places = [place for place, each in enumerate(notes) if rule in each]
        if 2 * len(places) > len(notes):
            one = notes[places[0]][rule]
            several = f"{len(places)} of {len(notes)} queries, such as {queries[places[0]]!r}: "
            sentences.append(one if len(notes) == 1 else several + one)
    return sentences


def for_and_against(parts: FloatArray, left_out: Sequence[int] = ()) -> tuple[float, float, float]:
    """Return how much the signed parts [token] support an answer, count against it, and support it at ``left_out`` tokens.

    >>> for_and_against(np.array([2.0, 3.0, -1.0, 0.5]), left_out=[0])
    (3.5, 1.0, 2.0)
    """
    kept = np.asarray(parts, np.float64).copy()
    first = float(np.clip(kept[list(left_out)], 0, None).sum())
    kept[list(left_out)] = 0
    return float(kept[kept > 0].sum()), float(-kept[kept < 0].sum()), first


def evidence_notes(
    speaks_for: float,
    against: float,
    first: float,
    gap: float,
    each: float | None = None,
    shares: str = "positive",
    measured: str = "log-odds",
) -> dict[str, str]:
    """Return notes on why the shares of an answer's log-odds should not be read as they are.

    speaks_for: the sum of the positive parts, without the first token. against: the size of the sum of the negative
        parts.
    first: the positive part of a first token that is left out. gap: how far the parts are from their sum, relative to
    their sizes. each: the probability per answer token (geometric mean), or None. shares: "positive" for shares of the
    positive parts, "signed" if the negative parts are divided by the same sum, "none" if the parts are shown as they
    are. measured: what the parts add up to.

    >>> evidence_notes(6.8, 1.5, 0.1, 2e-5, 0.27)
    {}
    >>> for note in evidence_notes(0.5, 11.4, 0.0, 2e-5, 2e-6).values(): print(note)
    The model is unlikely to give this answer (probability 2e-06 per token): only what supports it is explained.
    Far more counts against the answer (11.4 of log-odds) than supports it (0.5): the shares are shares of that 0.5.
    """
    notes = {}
    if each is not None and each < UNLIKELY:
        notes["unlikely"] = (
            f"The model is unlikely to give this answer (probability {each:.1g} per token): only what supports it is "
            "explained."
        )
    if speaks_for < OUTWEIGHED[shares] * against:
        far = "Far more" if speaks_for < OUTWEIGHED["positive"] * against else "More"
        notes["outweighed"] = (
            f"{far} counts against the answer ({against:.1f} of {measured}) than supports it ({speaks_for:.1f}): the "
            f"shares are shares of that {speaks_for:.1f}."
        )
    if shares != "none" and first > FIRST * (first + speaks_for):
        notes["first token"] = (
            f"{percent(first / (first + speaks_for))} of the support for the answer is on the first token, which is "
            "left out: the shares are shares of the rest."
        )
    if gap > GAP:
        notes["gap"] = (
            f"The parts miss the {measured} by {percent(gap)} of their sizes: a dtype with more precision adds up better."
        )
    return notes


def answer_probability(provenance: Mapping[str, Any]) -> float | None:
    """Return the probability of the answer that a trace is about; None if the answer is a score or there is none."""
    answer = provenance.get("answer") or {}
    return None if answer.get("kind") == "score" else answer.get("probability")


def saturated_note(name: str, chance: float) -> str:
    """Return the sentence for a probability that cannot change.

    >>> saturated_note("plural", 1 - 1e-8)
    "The probability of 'plural' is 1 - 1e-08 and hardly changes, whatever happens to the text: measure its log-odds."
    """
    shown = f"The probability of {name!r} is {chance_text(chance)}"
    return f"{shown} and hardly changes, whatever happens to the text: measure its log-odds."


def chance_text(chance: float) -> str:
    """Return a probability near 0 or 1 with the digits that show how near it is.

    >>> chance_text(1 - 1e-8), chance_text(3e-7)
    ('1 - 1e-08', '3e-07')
    """
    return f"{chance:.1g}" if chance < 0.5 else f"1 - {1 - chance:.1g}"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
