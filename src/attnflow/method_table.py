"""All methods that explain a text and the options each of them takes: one table for commands and jobs."""

from __future__ import annotations

from attnflow.source_methods import ANSWER_WAYS, INPUTS, METHOD

LAYERED = ("raw", "rollout", "flow", "joint_flow")
"""Methods that follow the graph down from a state: one result per layer."""
GATHERED = ("gather", "columns")
"""Methods that add up edges by gradients over all layers. "columns" treats positions as tokens: `Trace.gather(1.0)`."""
IMPORTANCE = ("blank_out", "gradient", "integrated_gradients", "shapley")
"""Methods that measure what a token is worth to the answer by changing the text or its embeddings: methods of `Model`."""
TEXT_METHODS = (*LAYERED, INPUTS, METHOD, *GATHERED, *IMPORTANCE)

SIGNED = (INPUTS, "integrated_gradients", "shapley")
"""Methods whose values may be negative: what counts against the answer."""

_ABOUT_A_STATE = frozenset({"query", "layers", "sinks", "words", "edges"})
_TAKEN = {
    "raw": _ABOUT_A_STATE,
    **dict.fromkeys(LAYERED[1:], _ABOUT_A_STATE | {"residual", "measured", "receptive_field"}),
    **dict.fromkeys(ANSWER_WAYS, frozenset({"answer", "words"})),
    "gather": frozenset({"edges", "residual"}),
    "columns": frozenset({"edges"}),
    "blank_out": frozenset({"answer", "of", "words"}),
    **dict.fromkeys(IMPORTANCE[1:], frozenset({"answer", "of"})),
}


def method_name(name: str) -> str:
    """Return the name in this table of a method that may be written with dashes.

    >>> method_name("integrated-gradients")
    'integrated_gradients'
    """
    plain = name.strip().replace("-", "_")
    return plain if plain in TEXT_METHODS else name


def is_about_answer(edges: str | None) -> bool:
    """Return whether edges of this name are made from gradients of an answer."""
    return edges is not None and (edges == "answer" or "gradient" in edges)


def takes(method: str, option: str, edges: str | None = None) -> bool:
    """Return whether an option changes the result of a method. edges: the edges that the method uses.

    option: "query", "layers", "sinks", "words", "edges", "residual" (a weight), "measured" (the residual's own share),
    "receptive_field", "answer" or "of".

    >>> takes("raw", "residual"), takes("rollout", "answer"), takes("rollout", "answer", edges="gradient")
    (False, False, True)
    """
    own = _TAKEN.get(method, frozenset())
    if option in ("answer", "of") and "edges" in own and edges is not None:
        return is_about_answer(edges) and (option, edges) != ("of", "answer")  # answer edges always use the log-odds
    return option in own


def takers(option: str, edges: str | None = None) -> list[str]:
    """Return the methods that take an option.

    >>> takers("measured")
    ['rollout', 'flow', 'joint_flow']
    """
    return [method for method in TEXT_METHODS if takes(method, option, edges)]
