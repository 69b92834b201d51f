"""What the tokens of a text are worth, by several importances at once, and the position that they are asked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError
from attnflow.evaluate.arguments import some_of

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

IMPORTANCES = ("blank-out", "gradient", "integrated-gradients", "shapley")

Options = dict[str, dict[str, Any]]


def options_of(importance: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> Options:
    """From each importance to its options, of which "method" says what it is."""
    if isinstance(importance, str):
        importance = [importance]
    options = {name: dict(importance[name]) if isinstance(importance, Mapping) else {} for name in importance}
    options = {name: {"method": name, **own} for name, own in options.items()}
    some_of([own["method"] for own in options.values()], IMPORTANCES, "importance")
    return options


def importances_of_texts(
    model: Model, texts: list[Any], answers: list[Any], options: Mapping[str, Any]
) -> list[TokenAttention]:
    """One importance of several texts. options: one entry of `options_of`."""
    more = {name: value for name, value in options.items() if name != "method"}
    scores: list[TokenAttention] = getattr(model, options["method"].replace("-", "_"))(texts, answers, **more)
    return scores


def importances_of(
    model: Model,
    text: Any,
    trace: Trace,
    options: Options,
    truncate: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, count, total: None,
) -> tuple[dict[str, TokenAttention], dict[str, str]]:
    """Every importance of one traced text, and why there is none of some. options: from `options_of`."""
    if trace.parts:  # the model would write its answer once more for each
        return {}, dict.fromkeys(
            options, f"{model!r} reads a text and writes another, and importance is about models that read one text"
        )
    scores: dict[str, TokenAttention] = {}
    missing: dict[str, str] = {}
    for name, own in options.items():
        progress(name, 0, 1)
        more = {"progress": partial(progress, name)} if own["method"] == "blank-out" else {}
        try:
            (scores[name],) = importances_of_texts(model, [text], [None], {**own, **more, "truncate": truncate})
        except InputError as e:
            missing[name] = str(e)
    return scores, missing


def answering_position(trace: Trace, importance: TokenAttention) -> int:
    """The position whose state the answer is read from that an importance is of."""
    return query_of(trace, importance.provenance["answer"]["kind"], importance.queries[0])


def own_position(trace: Trace) -> int | None:
    """The last position of a decoder, where its answer is read: it is no candidate. None for other models."""
    last = len(trace.tokens) - 1
    return last if last and trace.default_query == last else None


def query_of(trace: Trace, kind: str, place: int | None) -> int:
    """The same, from the kind of the answer and the position of its logits."""
    if kind in ("masked token", "next token") or trace.default_query is None:
        return place or 0
    return trace.default_query
