"""Reliability: sentences that say why a row of token attention, or an answer's parts, must not be read as they stand.

A rule is a name and a sentence. Rules speak where the numbers themselves are empty: flow at its bound, all of a row on a
sink, rows that no longer depend on their query, a probability that cannot move. No sentence is no praise.
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
"""Of the tokens that tie or are at their bound, and of what one position takes: a tenth is left to tell anything."""

EQUAL = 1e-9
"""Relative: flows are exact to 1e-12, so that what differs by less than this is the same."""

SAME_ROW = 0.99
"""What rows of different queries have in common, from which on they are one row; twelve mixed layers get there."""

UNLIKELY = 0.01
"""A probability for each token of an answer, below which the model would hardly ever write it."""

OUTWEIGHED = {"positive": 0.1, "signed": 0.5, "none": 0.0}
"""Where what speaks for an answer is less than this part of what speaks against it, shares of it are shares of remnants. Of
shares with signs it is said sooner, because those below zero are then larger than one together."""

FIRST = 0.5
"""The part of what speaks for an answer that the first token holds, from which on the shares are of the smaller part."""

GAP = 0.01
"""How far parts may be from their sum, relative to their sizes; single precision stays below 1e-4."""

LITTLE = "what is left says little of the other tokens"
ELSEWHERE = f"{LITTLE}; answer edges show what the answer rests on"

ROWS = {
    "raw": "this raw attention",
    "answer_rows": "these answer rows",
    "answer_inputs": "these answer inputs",
    "columns": "these columns",
}
"""What sentences call the rows of a method, if not "this rollout"."""

ABOUT_ANSWERS = ("answer_rows", "answer_inputs", "gather", "columns")
"""Methods that show what the answer rests on already."""

Notes = Mapping[str, str]


@dataclass(frozen=True)
class Labels:
    """What is known of the inputs of a row.

    sinks: positions whose values carry next to nothing. causal: whether the model looks back only, so that the first token
    is where attention goes that has nowhere to go.
    """

    tokens: Sequence[str]
    special: Sequence[bool]
    sinks: Sequence[int] = ()
    causal: bool = False


@dataclass(frozen=True)
class FlowBound:
    """What the flow from a query cannot exceed, whatever is between.

    leaving: all that leaves the query at its layer. entering: all that the first layer takes from each input.
    """

    leaving: float
    entering: Floats

    @property
    def of_inputs(self) -> Floats:
        """
        >>> FlowBound(1.0, np.array([0.5, 1.5])).of_inputs
        array([0.5, 1. ])
        """
        bound: Floats = np.minimum(self.entering, self.leaving)
        return bound


def row_notes(
    row: FloatArray, labels: Labels, method: str, layer: int, own: int | None = None, bound: FlowBound | None = None
) -> dict[str, str]:
    """The rules that speak against one row [input], by name.

    layer: counted from 0. own: where the query stands among the inputs. bound: what flow cannot exceed. Rows with negative
    values have no shares, and only their ties are looked at.

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
    """That nearly all tokens which a row reaches have its highest value, so that it ranks nothing.

    >>> tie_notes(np.zeros(3), "blank-out")
    {'ties': 'Every token has 0 by blank-out: nothing is ranked.'}
    """
    if len(values) > 1 and not values.any():
        return {"ties": f"Every token has 0 by {method}: nothing is ranked."}
    reached = values[values != 0]
    tied = int((reached >= reached.max() * (1 - EQUAL)).sum()) if len(reached) and reached.max() > 0 else 0
    if tied < 2 or tied < NEARLY_ALL * len(reached):
        return {}
    where = "" if layer is None else f" at L{layer + 1}"
    return {"ties": f"{_capital(method)} cannot tell these tokens apart{where}: {tied} of {len(reached)} tie."}


def computed_note(method: str, count: int, of: int, seconds: float, first: str | None) -> str:
    """That some values are missing because there was no time for them.

    >>> computed_note("blank-out", 24, 383, 20, "answer_rows")
    'Blank-out of the 24 highest of 383 by answer_rows, for which 20 seconds sufficed: the others were not computed.'
    """
    which = f"the first {count} of {of}" if first is None else f"the {count} highest of {of} by {first}"
    return f"{_capital(method)} of {which}, for which {seconds:g} seconds sufficed: the others were not computed."


def _at_bound(values: Floats, bound: Floats, layer: int) -> dict[str, str]:
    reached = values > 0
    count = int((values[reached] >= bound[reached] * (1 - EQUAL)).sum())
    if count < 2 or count < NEARLY_ALL * reached.sum():
        return {}
    return {
        "bound": f"Flow at L{layer + 1} is at its bound for {count} of {reached.sum()} tokens (all that leaves the query, "
        "or all that the first layer takes from the token), whatever is between; lower layers tell more."
    }


def _on_one(values: Floats, labels: Labels, method: str, own: int | None, bound: FlowBound | None) -> dict[str, str]:
    """One position takes nearly all of a row, and it is one that takes what nothing else does.

    A flow is compared with all that leaves the query, because flows to several tokens share edges and add up to more.
    """
    place = int(values.argmax())
    token = labels.tokens[place]
    rest = LITTLE if method in ABOUT_ANSWERS else ELSEWHERE
    a_sink = f"{token!r}, a sink whose value carries next to nothing: {rest}."
    if method == "flow":
        if bound is None or place not in labels.sinks or values[place] < NEARLY_ALL * bound.leaving:
            return {}
        return {"sink": f"{_percent(values[place] / bound.leaving)} of what leaves the query can flow to {a_sink}"}
    total = values.sum()
    if not total or values[place] < NEARLY_ALL * total:
        return {}
    taken = f"{_percent(values[place] / total)} of {ROWS.get(method, f'this {method}')}"
    if place in labels.sinks:
        return {"sink": f"{taken} is on {a_sink}"}
    if place == own:
        return {"own": f"{taken} stays at the query {token!r} itself: {rest}."}
    if labels.special[place] or (place == 0 and labels.causal):
        kind = "first" if place == 0 else "special"
        return {"sink": f"{taken} is on the {kind} token {token!r}: {rest}."}
    return {}


def mixed_notes(row: FloatArray, others: FloatArray, method: str = "rollout") -> dict[str, str]:
    """That a row is the same as those of other queries, ``others[query, input]``: ``Σ_t min(r_t, r'_t)`` of rows of sum 1.

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
        "mixed": f"Other queries have nearly the same row ({_percent(common)} in common): this {method} has mixed all "
        "tokens, and says little of its query."
    }


def of_rows(notes: Sequence[Notes], queries: Sequence[str]) -> list[str]:
    """The sentences of a result from those of its rows: of several rows, what speaks against more than half of them.

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
    """What speaks for an answer and against it, of its signed parts [token], and what speaks for it at left out tokens.

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
    """What speaks against reading the shares of an answer's log-odds.

    speaks_for: the sum of the positive parts, the first token's left out. against: that of the negative ones, by its size.
    first: the positive part of a first token that is left out. gap: how far the parts are from their sum, relative to their
    sizes. each: the probability of a token of the answer, the geometric mean; None where there is none. shares: "positive"
    where shares of the positive parts are shown, "signed" where the negative ones are measured by the same sum, "none"
    where parts are shown as they are. measured: what the parts are of.

    >>> evidence_notes(6.8, 1.5, 0.1, 2e-5, 0.27)
    {}
    >>> for note in evidence_notes(0.5, 11.4, 0.0, 2e-5, 2e-6).values(): print(note)
    The model would hardly give this answer (probability 2e-06 a token): what speaks for it is all that is explained.
    Far more speaks against the answer (11.4 of log-odds) than for it (0.5): the shares are of that 0.5.
    """
    notes = {}
    if each is not None and each < UNLIKELY:
        notes["unlikely"] = (
            f"The model would hardly give this answer (probability {each:.1g} a token): what speaks for it is "
            "all that is explained."
        )
    if speaks_for < OUTWEIGHED[shares] * against:
        far = "Far more" if speaks_for < OUTWEIGHED["positive"] * against else "More"
        notes["outweighed"] = (
            f"{far} speaks against the answer ({against:.1f} of {measured}) than for it ({speaks_for:.1f}): the shares "
            f"are of that {speaks_for:.1f}."
        )
    if shares != "none" and first > FIRST * (first + speaks_for):
        notes["first token"] = (
            f"{_percent(first / (first + speaks_for))} of all that speaks for the answer is on the first token, which is "
            "left out: the shares are of the rest."
        )
    if gap > GAP:
        notes["gap"] = (
            f"The parts miss the {measured} by {_percent(gap)} of their sizes: a dtype with more digits adds up better."
        )
    return notes


def answer_probability(provenance: Mapping[str, Any]) -> float | None:
    """The probability of the answer that a trace is about; None where it is a score, or about none."""
    answer = provenance.get("answer") or {}
    return None if answer.get("kind") == "score" else answer.get("probability")


def saturated_note(name: str, chance: float) -> str:
    """The sentence for a probability that cannot move.

    >>> saturated_note("plural", 1 - 1e-8)
    "The probability of 'plural' is 1 - 1e-08 and hardly changes whatever happens to the text: measure its log-odds."
    """
    shown = f"The probability of {name!r} is {chance_text(chance)}"
    return f"{shown} and hardly changes whatever happens to the text: measure its log-odds."


def chance_text(chance: float) -> str:
    """A probability near 0 or 1 with the digits that tell how near.

    >>> chance_text(1 - 1e-8), chance_text(3e-7)
    ('1 - 1e-08', '3e-07')
    """
    return f"{chance:.1g}" if chance < 0.5 else f"1 - {1 - chance:.1g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
