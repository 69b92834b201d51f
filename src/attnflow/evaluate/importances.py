"""Several importances of a text's tokens at once, and the position that they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError
from attnflow.evaluate.arguments import some_of
from attnflow.texts.units import sentences

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

IMPORTANCES = ("blank-out", "gradient", "integrated-gradients", "shapley")

Options = dict[str, dict[str, Any]]

Report = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done, and the total."""

LEVELS = ("none", "fast", "full")

Importance = str | float | Sequence[str] | Mapping[str, Mapping[str, Any]]
"""One of `LEVELS`, or seconds; or some of `IMPORTANCES`, or a dict from these to their options."""

USUAL = ("gradient", "blank-out")

SHORT = 64
"""Texts up to this many tokens are blanked out token by token right away; for longer ones, sentences come first."""

SECONDS = 20.0
"""The default time for blank-out of tokens; blank-out of sentences before it may take half as long."""

ANSWER_EDGES = "answer edges"
"""The key in `missing` for texts without answer edges."""


@dataclass(frozen=True, eq=False)
class Worth:
    """What each token of a text is worth to the answer.

    importances: by name; first what the answer rests on by answer edges (`Trace.sources`).
    missing: why others are missing.
    answered: the trace with answer edges, for more views of the answer without another pass; None if there is none.
    sentences: for a long text, what the answer loses without each sentence; None if blank-out is not among the
        importances, or if there is only one sentence.
    """

    importances: dict[str, TokenAttention]
    missing: dict[str, str]
    answered: Trace | None = None
    sentences: TokenAttention | None = None


def options_of(importance: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> Options:
    """Return the options of each importance; "method" in them says which importance it is."""
    if isinstance(importance, str):
        importance = [importance]
    options = {name: dict(importance[name]) if isinstance(importance, Mapping) else {} for name in importance}
    options = {name: {"method": name, **own} for name, own in options.items()}
    some_of([own["method"] for own in options.values()], IMPORTANCES, "importance")
    return options


def plan_of(importance: Importance | None) -> Options:
    """Return the importances of one text with their options.

    "none": only answer edges and attention. "fast", the default: gradient, and blank-out for up to 20 seconds, or for
    the given number of seconds. "full": both, with blank-out of every token. Otherwise the importances that are named.

    >>> plan_of(60)
    {'gradient': {'method': 'gradient'}, 'blank-out': {'method': 'blank-out', 'seconds': 60}}
    """
    if isinstance(importance, str) and importance not in (*LEVELS, *IMPORTANCES):
        raise InputError(
            f"importance {importance!r}: expected one of {', '.join(map(repr, LEVELS))}, a number of seconds, or some of "
            f"{', '.join(map(repr, IMPORTANCES))}"
        )
    if importance is None or importance == "fast":
        importance = SECONDS
    if isinstance(importance, int | float):
        if isinstance(importance, bool) or not importance > 0:
            raise InputError(f"importance {importance!r}: expected a number of seconds above 0")
        return options_of({"gradient": {}, "blank-out": {"seconds": importance}})
    if importance == "none" or not importance:
        return {}
    return options_of(USUAL if importance == "full" else importance)


def importances_of_texts(
    model: Model, texts: list[Any], answers: list[Any], options: Mapping[str, Any]
) -> list[TokenAttention]:
    """Compute one importance for several texts. options: one entry of `options_of`."""
    measure = getattr(model, options["method"].replace("-", "_"))
    scores: list[TokenAttention] = measure(texts, answers, **_settings(options))
    return scores


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "method"}


def importances_of(
    model: Model,
    text: Any,
    trace: Trace,
    options: Options,
    truncate: bool = False,
    progress: Report = lambda stage, count, total: None,
    leading: TokenAttention | None = None,
) -> tuple[dict[str, TokenAttention], dict[str, str]]:
    """Compute the importances of one traced text; return them, and why some are missing. options: from `options_of`.

    leading: what is blanked first if there is no time for all tokens.
    """
    if trace.parts:  # the model would have to write its answer again for each
        return {}, dict.fromkeys(options, _two_texts(model))
    scores: dict[str, TokenAttention] = {}
    missing: dict[str, str] = {}
    for name, own in options.items():
        progress(name, 0, 1)
        more: dict[str, Any] = {}
        if own["method"] == "blank-out":
            more = {"progress": partial(progress, name), **({"first": leading} if "seconds" in own else {})}
        try:
            measure = getattr(model, own["method"].replace("-", "_"))
            scores[name] = measure(text, None, truncate=truncate, **_settings(own), **more)
        except InputError as e:
            missing[name] = str(e)
    return scores, missing


def worth_of(
    model: Model,
    text: Any,
    trace: Trace,
    options: Options,
    of: str | None = None,
    truncate: bool = False,
    progress: Report = lambda stage, count, total: None,
    early: Callable[[Worth], None] | None = None,
) -> Worth:
    """Compute what each token of a traced text is worth to the answer, by answer edges and then by importances.

    options: from `plan_of`.
    of: what importances are of, unless their options say it.
    early: called with the sources by answer edges, if there are any, before importances are computed.
    """
    measured = {} if of is None else {"of": of}
    progress("answer edges", 0, 1)
    answered = _answered(model, text, trace, truncate)
    first = None if isinstance(answered, str) else _leading(answered)
    if early is not None and first is not None:
        early(first)
    own = {name: {**measured, **more} for name, more in options.items()}
    leading = None if first is None else next(iter(first.importances.values()))
    blanks = next((more for more in own.values() if more["method"] == "blank-out"), None)
    lost = None if blanks is None else _sentences(model, text, trace, blanks, truncate, progress, leading)
    worth, missing = importances_of(model, text, trace, own, truncate, progress, leading)
    worth = {name: _with_way(result) for name, result in worth.items()}
    if first is not None:
        return replace(first, importances=first.importances | worth, missing=missing, sentences=lost)
    why = str(answered)
    if missing and not worth and len(set(missing.values())) == 1:  # one reason for all of them
        why = next(iter(missing.values()))
    return Worth(worth, {ANSWER_EDGES: why, **missing}, None, lost)


def _leading(answered: Trace) -> Worth:
    sources = answered.sources()
    return Worth({sources.method: sources}, {}, answered)


def _sentences(
    model: Model,
    text: Any,
    trace: Trace,
    options: Mapping[str, Any],
    truncate: bool,
    progress: Report,
    leading: TokenAttention | None,
) -> TokenAttention | None:
    """Blank out whole sentences, which are far fewer than tokens; None for a short text or a single sentence."""
    if trace.parts or trace.patches is not None or len(trace.tokens) <= SHORT or len(sentences(trace.text)) < 2:
        return None
    seconds = options.get("seconds")
    of = {"of": options["of"]} if "of" in options else {}
    limits = {} if seconds is None else {"seconds": seconds / 2, "first": leading}
    try:
        result: TokenAttention = model.blank_out(
            text,
            unit="sentence",
            by="remove",
            signed=True,
            truncate=truncate,
            progress=partial(progress, "sentences"),
            **of,
            **limits,
        )
    except InputError:  # blank-out of tokens reports the same reason
        return None
    return result


def _with_way(result: TokenAttention) -> TokenAttention:
    """Return the result; if time ran out for some values, its note says how to compute all."""
    if "computed" not in result.provenance:
        return result
    first, *others = result.reliability
    return replace(
        result, provenance={**result.provenance, "reliability": [f'{first} importance="full" computes all.', *others]}
    )


def _answered(model: Model, text: Any, trace: Trace, truncate: bool) -> Trace | str:
    """Return the text traced with answer edges, or why there are none."""
    if trace.parts:
        return _two_texts(model)
    try:
        answered: Trace = model.trace(text, edges="answer", truncate=truncate)
        answered.sources()
    except InputError as e:
        return str(e)
    return answered


def _two_texts(model: Model) -> str:
    return f"{model!r} reads one text and writes another, and importance applies only to models that read one text"


def answering_position(trace: Trace, importance: TokenAttention) -> int:
    """Return the position whose state the answer of an importance is read from."""
    return query_of(trace, importance.provenance["answer"]["kind"], importance.queries[0])


def own_position(trace: Trace) -> int | None:
    """Return the last position of a decoder, where its answer is read: it is not ranked. None for other models."""
    last = len(trace.tokens) - 1
    return last if last and trace.default_query == last else None


def query_of(trace: Trace, kind: str, place: int | None) -> int:
    """Return the answering position, from the kind of the answer and the position of its logits."""
    if kind in ("masked token", "next token") or trace.default_query is None:
        return place or 0
    return trace.default_query


def by_reason(missing: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group missing importances by reason: (names, reason)."""
    reasons = dict.fromkeys(missing.values())
    return [(" and no ".join(name for name, reason in missing.items() if reason == why), why) for why in reasons]
