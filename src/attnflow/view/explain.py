"""Explaining one text: its trace, the importance of its tokens, and the page that shows both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnflow.capture.inputs import unusable
from attnflow.evaluate.importances import Importance, Worth, answering_position, by_reason, plan_of, worth_of
from attnflow.view import document
from attnflow.view.page import Page

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
    """Make the interactive page of one text, with answer edges, raw attention, rollout, flow and importance.

    text, target, truncate: as in `Model.trace`.
    query: the position or token to explain first, or several; by default, the one that answers.
    importance: "none"; "fast" (the default): gradient, and blank-out for up to 20 seconds, starting with the tokens that
        answer edges rank highest; a number of seconds: the same with this limit; "full": both for every token. Or a list of
        gradient, blank-out, integrated-gradients and shapley, or a mapping from these to their options. Models without an
        answer have no importance. The page says what is missing, and why.
    residual: the residual weight.
    state: the rest of the initial selection, as in the URL fragment of the page: {"layer": 2, "method": "flow"}.
    progress: called with a stage, the number of finished steps and the total; an exception from it stops the work.
    trace: an existing trace of the same text, from `traced`.
    early: called with a page without importance and flow, as soon as answer edges are computed.
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
                image=None if known.patches is None and known.picture is None else known.image,
                state=state,
                progress=say,
                flow=flow,
                answered=worth.answered,
            )
        )

    shown = None if early is None else lambda worth: early(page(worth, flow=False))
    return page(worth_of(model, text, trace, options, None, truncate, say, shown), flow=True)


def traced(model: Model, text: Any, target: str | None = None, truncate: bool = False) -> Trace:
    """Trace a text for a page, with single heads if the page has room for them."""
    keep = True
    texts = (text,) if isinstance(text, str) else text if isinstance(text, tuple) else ()
    parts = tuple(part for part in texts if isinstance(part, str))  # the other part of a pair may be an image
    if model.tokenizer is not None and unusable(model.tokenizer, parts, None) is None:  # otherwise `trace` raises
        n = sum(len(model.tokenizer(part, verbose=False)["input_ids"]) for part in parts)
        layers, heads = (
            getattr(model.text_config, name, None) or 12 for name in ("num_hidden_layers", "num_attention_heads")
        )
        keep = layers * heads * n <= document.HEADS
    trace: Trace = model.trace(text, target=target, truncate=truncate, keep_heads=keep)
    return trace
