"""The ways to rank what an answer came from, and which of them is the default for tokens, sentences and documents."""

from __future__ import annotations

METHOD, INPUTS = "answer_rows", "answer_inputs"
ANSWER_WAYS = (METHOD, INPUTS)
"""What the answer takes from each token, by answer edges: the ways to add them up."""

FADING, COMBINED = "fading", "combined"
METHODS = (METHOD, FADING, COMBINED, "raw", "rollout", "flow", "gather", "columns")

TOKENS = 40
"""How many tokens a model writes at most, unless somebody says otherwise."""

SMALL = ("token", "word")
"""Units that answer rows rank best. Larger ones are ranked best by both ways together (docs/findings.md)."""


def default_method(unit: str, *, signed: bool, fades: bool) -> str:
    """signed: parts of the log-odds are wanted, which answer rows are. fades: whether the model has fading.

    >>> default_method("token", signed=False, fades=True), default_method("sentence", signed=False, fades=True)
    ('answer_rows', 'combined')
    """
    return METHOD if signed or unit in SMALL or not fades else COMBINED


def trace_method(kind: str | None) -> str:
    """The method for the answer of a trace, by its kind: "class", "score", "masked token" or "next token".

    What the last position of a language model reads names the tokens that its next one rests on. A classifier carries words
    through several positions before one of them answers, so that only the whole way down finds them (docs/findings.md).

    >>> trace_method("next token"), trace_method("class")
    ('answer_rows', 'answer_inputs')
    """
    return METHOD if kind == "next token" else INPUTS
