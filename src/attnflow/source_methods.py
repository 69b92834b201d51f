"""The ways to rank what an answer came from, and which of them is the default for tokens, sentences and documents."""

from __future__ import annotations

METHOD = "answer_rows"
FADING, COMBINED = "fading", "combined"
METHODS = (METHOD, FADING, COMBINED, "raw", "rollout", "flow", "gather", "columns")

SMALL = ("token", "word")
"""Units that answer rows rank best. Larger ones are ranked best by both ways together (docs/findings.md)."""


def default_method(unit: str, *, signed: bool, fades: bool) -> str:
    """signed: parts of the log-odds are wanted, which answer rows are. fades: whether the model has fading.

    >>> default_method("token", signed=False, fades=True), default_method("sentence", signed=False, fades=True)
    ('answer_rows', 'combined')
    """
    return METHOD if signed or unit in SMALL or not fades else COMBINED
