"""What the tokens of a text are worth, by several importances at once, and the position that they are asked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

Importance = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Some of `IMPORTANCES`, or a dict from names to their options."""

USUAL = ("gradient", "blank-out")

BLANKED = 64
"""Blank-out runs a decoder once a token: texts of more tokens have it only where somebody names it."""

ANSWER_EDGES = "answer edges"
"""What stands among the missing where a text has none."""


@dataclass(frozen=True, eq=False)
class Worth:
    """What each token of a text is worth to the answer.

    importances: by their names, first what the answer rests on by answer edges (`Trace.sources`).
    missing: why others are not there.
    answered: the trace with answer edges, for more views of the answer without another pass; None where there is none.
    """

    importances: dict[str, TokenAttention]
    missing: dict[str, str]
    answered: Trace | None = None


def options_of(importance: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> Options:
    """From each importance to its options, of which "method" says what it is."""
    if isinstance(importance, str):
        importance = [importance]
    options = {name: dict(importance[name]) if isinstance(importance, Mapping) else {} for name in importance}
    options = {name: {"method": name, **own} for name, own in options.items()}
    some_of([own["method"] for own in options.values()], IMPORTANCES, "importance")
    return options


def usual_importances(trace: Trace) -> tuple[tuple[str, ...], dict[str, str]]:
    """The importances of a text of which nobody said which, and why others are missing."""
    count, answer = len(trace.tokens), trace.prediction
    if answer is None or answer.kind != "next token" or count <= BLANKED:
        return USUAL, {}
    return USUAL[:1], {
        "blank-out": f"it runs the model once for each of the {count} tokens, so a text of more than {BLANKED} has it only "
        "where it is named among the importances"
    }


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
        return {}, dict.fromkeys(options, _two_texts(model))
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


def worth_of(
    model: Model,
    text: Any,
    trace: Trace,
    options: Options | None,
    of: str | None = None,
    truncate: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, count, total: None,
    early: Callable[[Worth], None] | None = None,
) -> Worth:
    """What each token of a traced text is worth to the answer: `Trace.sources` by answer edges, then importances.

    options: from `options_of`; None for the usual importances. of: what they are of, where their options do not say it.
    early: is called with the sources by answer edges, where there are any, before importances are computed.
    """
    missing: dict[str, str] = {}
    if options is None:
        names, missing = usual_importances(trace)
        options = options_of(names)
    measured = {} if of is None else {"of": of}
    progress("answer edges", 0, 1)
    answered = _answered(model, text, trace, truncate)
    first = None if isinstance(answered, str) else _leading(answered)
    if early is not None and first is not None:
        early(first)
    own = {name: {**measured, **more} for name, more in options.items()}
    worth, absent = importances_of(model, text, trace, own, truncate, progress)
    missing |= absent
    if first is not None:
        return replace(first, importances=first.importances | worth, missing=missing)
    why = str(answered)
    if absent and not worth and len(set(absent.values())) == 1:  # one reason for all of them
        why = next(iter(absent.values()))
    return Worth(worth, {ANSWER_EDGES: why, **missing})


def _leading(answered: Trace) -> Worth:
    sources = answered.sources()
    return Worth({sources.method: sources}, {}, answered)


def _answered(model: Model, text: Any, trace: Trace, truncate: bool) -> Trace | str:
    """The text traced with answer edges, or why there are none."""
    if trace.parts:
        return _two_texts(model)
    try:
        answered: Trace = model.trace(text, edges="answer", truncate=truncate)
        answered.sources()
    except InputError as e:
        return str(e)
    return answered


def _two_texts(model: Model) -> str:
    return f"{model!r} reads a text and writes another, and importance is about models that read one text"


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
