"""The methods that rank what an answer came from, and the defaults for tokens, sentences and documents."""

from __future__ import annotations

METHOD, INPUTS = "answer_rows", "answer_inputs"

ANSWER_WAYS = (METHOD, INPUTS)
"""The ways to add up answer edges into what the answer takes from each token."""

FADING, COMBINED = "fading", "combined"
METHODS = (METHOD, FADING, COMBINED, "raw", "rollout", "flow")

TOKENS = 40
"""The default limit on the number of tokens that a model writes."""

SMALL = ("token", "word")
"""Units that answer rows rank best. "combined" is best for larger units (docs/findings.md)."""


def default_method(unit: str, *, signed: bool, fades: bool) -> str:
    """Return the default method for a unit. signed: parts of the log-odds are wanted. fades: whether the model has fading.

    >>> default_method("token", signed=False, fades=True), default_method("sentence", signed=False, fades=True)
    ('answer_rows', 'combined')
    """
    return METHOD if signed or unit in SMALL or not fades else COMBINED


def trace_method(kind: str | None) -> str:
    """Return the method for the answer of a trace, by its kind: "class", "score", "masked token" or "next token".

    What the last position of a language model reads shows the tokens that the next one rests on. A classifier moves words
    through several positions before one of them answers, so only following edges all the way down finds them
    (docs/findings.md).

    >>> trace_method("next token"), trace_method("class")
    ('answer_rows', 'answer_inputs')
    """
    return METHOD if kind == "next token" else INPUTS
