"""All methods that explain a text and the options each of them takes: one table for commands and jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnflow.errors import InputError
from attnflow.source_methods import ANSWER_WAYS, INPUTS, METHOD

LAYERED = ("raw", "rollout", "flow")
"""Methods that follow the graph down from a state: one result per layer."""
IMPORTANCE = ("blank_out", "gradient", "integrated_gradients", "shapley")
"""Methods that measure what a token is worth to the answer by changing the text or its embeddings: methods of `Model`."""
TEXT_METHODS = (*LAYERED, INPUTS, METHOD, *IMPORTANCE)

SIGNED = (INPUTS, "integrated_gradients", "shapley")
"""Methods whose values may be negative: what counts against the answer."""

OPTIONS = (
    "words", "query", "layers", "edges", "normalize", "residual", "receptive_field", "answer", "of", "target",
)  # fmt: skip
"""What a method can be told: arguments of `Model.trace`, of its own, or of `Model`."""

_ABOUT_A_STATE = frozenset({"words", "query", "layers", "edges", "target"})
_TAKEN = {
    "raw": _ABOUT_A_STATE,
    **dict.fromkeys(LAYERED[1:], _ABOUT_A_STATE | {"residual", "receptive_field"}),
    METHOD: frozenset({"words", "query", "answer"}),
    INPUTS: frozenset({"words", "answer"}),
    **dict.fromkeys(IMPORTANCE, frozenset({"words", "answer", "of"})),
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
    """Return whether an option of `OPTIONS` changes the result of a method. edges: the edges that were chosen.

    >>> takes("raw", "residual"), takes("rollout", "answer"), takes("rollout", "answer", edges="gradient")
    (False, False, True)
    """
    own = _TAKEN.get(method, frozenset())
    if option == "edges":
        return option in own or (method in ANSWER_WAYS and edges == "answer")
    if option in ("answer", "of") and "edges" in own:
        return is_about_answer(edges) and (option, edges) != ("of", "answer")  # answer edges always use the log-odds
    if option == "normalize":
        return edges is not None and "edges" in own
    return option in own


def takers(option: str, edges: str | None = None) -> list[str]:
    """Return the methods that take an option.

    >>> takers("residual")
    ['rollout', 'flow']
    """
    return [method for method in TEXT_METHODS if takes(method, option, edges)]


def check_options(methods: Sequence[str], options: Mapping[str, object]) -> None:
    """Refuse options that none of these methods takes, with the methods that do.

    options: what a user chose, by name.

    >>> check_options(["rollout", "raw"], {"residual": 0.3})  # rollout takes it
    >>> check_options(["raw"], {"residual": 0.3})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attnflow.errors.InputError: residual=0.3 applies to rollout, flow, not to raw: ...
    """
    edges = options.get("edges")
    kind = edges if isinstance(edges, str) else None
    if "normalize" in options and kind is None:
        raise InputError(f"normalize={options['normalize']!r} requires edges=: give that too, or leave it out")
    for name, value in options.items():
        option = {"answer_column": "answer"}.get(name, name)
        if any(takes(method, option, kind) for method in methods):
            continue
        others = ", ".join(takers(option, kind if option == "normalize" else None))
        more = ", and edges by gradients" if option in ("answer", "of") else ""
        raise InputError(
            f"{name}={value!r} applies to {others}{more}, not to {', '.join(methods)}: leave it out, or choose one of "
            "those methods"
        )
