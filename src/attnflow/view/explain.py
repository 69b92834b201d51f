"""One text, explained: the trace, what its tokens are worth, and the page that shows both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnflow.capture.inputs import unusable
from attnflow.evaluate.importances import Importance, Worth, answering_position, plan_of, worth_of
from attnflow.view import document
from attnflow.view.page import Page
from attnflow.view.photo import seen

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.selection import Query
    from attnflow.trace import Trace


def explain(
    model: Model,
    text: Any,
    *,
    target: str | None = None,
    query: Query = None,
    importance: Importance | None = None,
    truncate: bool = False,
    residual: float = 0.5,
    state: Mapping[str, Any] | None = None,
    progress: document.Progress | None = None,
    trace: Trace | None = None,
    early: Callable[[Page], None] | None = None,
) -> Page:
    """Make the interactive page of one text: what its answer takes from each token by answer edges, raw attention, rollout
    and flow, and the importance of each token.

    text, target, truncate: as in `Model.trace`.
    query: the position, token, or several of them, to explain first; by default the one that answers.
    importance: "none"; "fast", the default: gradient, and blank-out within 20 seconds, of what answer edges rank highest
        where there is no time for all tokens; a number: the same within so many seconds; "full": both, of every token. Or
        some of gradient, blank-out, integrated-gradients and shapley, or a mapping from these to their options. A model
        without an answer has none. The page says what is missing, and why.
    residual: the weight of the residual connection.
    state: what else is selected at first, as the page's fragment has it: {"layer": 2, "method": "flow"}.
    progress: called with a stage, how much of it is done and how much there is; what it raises stops the work.
    trace: of the same text, from `traced`, where there is one already.
    early: called with the page as soon as answer edges are there, without what takes longer: importances and flow.
    """
    options = plan_of(importance)
    say: document.Progress = progress or (lambda stage, part, whole: None)
    say("model", 0, 1)
    if trace is None:
        trace = traced(model, text, target, truncate)
    known: Trace = trace

    def page(worth: Worth, flow: bool) -> Page:
        first = next(iter(worth.importances.values()), None)
        return Page(
            document.of_trace(
                known,
                query=answering_position(known, first) if query is None and first is not None else query,
                residual=residual,
                importance=list(worth.importances.values()),
                sentences=worth.sentences,
                missing=" ".join(f"No {names}: {why}." for names, why in by_reason(worth.missing)),
                image=None if known.patches is None and known.picture is None else seen(model, text),
                state=state,
                progress=say,
                flow=flow,
                answered=worth.answered,
            )
        )

    shown = None if early is None else lambda worth: early(page(worth, flow=False))
    return page(worth_of(model, text, trace, options, None, truncate, say, shown), flow=True)


def traced(model: Model, text: Any, target: str | None = None, truncate: bool = False) -> Trace:
    """Trace a text for a page, with single heads unless the page would have no room for them."""
    keep = True
    texts = (text,) if isinstance(text, str) else text if isinstance(text, tuple) else ()
    parts = tuple(part for part in texts if isinstance(part, str))  # the other one of a pair may be an image
    if model.tokenizer is not None and unusable(model.tokenizer, parts, None) is None:  # else `trace` refuses it
        n = sum(len(model.tokenizer(part, verbose=False)["input_ids"]) for part in parts)
        layers, heads = (
            getattr(model.text_config, name, None) or 12 for name in ("num_hidden_layers", "num_attention_heads")
        )
        keep = layers * heads * n <= document.HEADS
    trace: Trace = model.trace(text, target=target, truncate=truncate, keep_heads=keep)
    return trace


def by_reason(missing: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group the missing importances by the reason: (names, reason)."""
    reasons = dict.fromkeys(missing.values())
    return [(" and no ".join(name for name, reason in missing.items() if reason == why), why) for why in reasons]
