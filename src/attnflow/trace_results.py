"""How values of a trace become a result: their labels, where they come from, and what speaks against reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow._arrays import to_numpy
from attnflow.reliability import FlowBound, Labels, Notes, mixed_notes, of_rows, row_notes
from attnflow.result import TokenAttention
from attnflow.sinks import share_of

if TYPE_CHECKING:
    from attnflow.trace import Trace

Floats = NDArray[np.float64]

WITNESSES = 4
"""So many other queries, and more by one, are spread over the text, to see whether a rollout still depends on its query."""


def result_of(
    trace: Trace,
    method: str,
    values: Floats,
    layers: list[int],
    rows: list[int],
    recipe: dict[str, Any],
    sinks: str | None = None,
    words: bool = True,
    notes: Sequence[Notes] = (),
) -> TokenAttention:
    """Labels values [layer, query, input].

    sinks: how they were treated, where the method sees them. notes: of each row of the highest layer.
    words: whether they are of the graph, which can be merged into words.
    """
    options = {k: v for k, v in recipe.items() if k != "layer" and v is not None and v is not False}
    if options.get("start") == 0:
        del options["start"]
    queries = tuple(r - trace.first_query for r in rows)
    if sinks is not None:
        options |= _sink_report(trace, method, values, layers, rows, sinks)
    named = _named(trace, layers)
    query_tokens = tuple(trace.tokens[r] if named else str(r) for r in rows)
    if sentences := of_rows(notes, query_tokens):
        options["reliability"] = sentences
    return TokenAttention(
        values=values,
        method=method,
        layers=tuple(layers),
        queries=queries,
        query_tokens=query_tokens,
        tokens=trace.tokens,
        word_ids=trace.word_ids,
        word_texts=trace.word_texts,
        special=trace.special,
        text=trace.text,
        parts=trace.parts,
        patches=trace.patches,
        provenance={**trace.provenance, **options},
        source=trace if words else None,
        recipe=recipe if sinks in (None, "keep") else {**recipe, "sinks": sinks},
    )


def notes_of_rows(
    trace: Trace,
    method: str,
    values: Floats,
    layers: Sequence[int],
    rows: Sequence[int],
    sinks: str = "keep",
    bounds: Sequence[FlowBound] | None = None,
) -> list[Notes]:
    """What speaks against each row of the highest layer, ``values[query, input]``."""
    through = [layers[-1]] if method == "raw" else range(layers[-1] + 1)
    known = (trace.sinks(through) or ()) if sinks == "keep" else ()
    each = list(bounds) if bounds is not None else [None] * len(rows)
    causal = not trace.parts and trace.default_query == len(trace.tokens) - 1
    labels = Labels(trace.tokens, trace.special, known, causal)
    named = _named(trace, layers)
    return [
        row_notes(row, labels, method, layers[-1], place if named else None, bound)
        for row, place, bound in zip(values, rows, each, strict=True)
    ]


def witnesses(trace: Trace, layers: Sequence[int]) -> list[int]:
    """Rows of other queries, spread over the text, where every query sees the same tokens."""
    n = len(trace.tokens)
    if trace.parts or not _named(trace, layers) or trace.default_query == n - 1 or n <= 2:
        return []
    steps = min(n, WITNESSES + 1) - 1
    return [(n - 1) * i // steps for i in range(steps + 1)]


def with_mixed(
    notes: Sequence[Notes], values: Floats, rows: Sequence[int], their: Floats, others: Sequence[int], method: str
) -> list[Notes]:
    """The notes of rows, and whether each is the same as ``their[query, input]``, those of other queries."""
    return [
        {**note, **mixed_notes(value, their[[other != row for other in others]], method)}
        for row, note, value in zip(rows, notes, values, strict=True)
    ]


def _named(trace: Trace, layers: Sequence[int]) -> bool:
    """Whether the positions of these layers are the tokens: merged ones are not."""
    return bool(trace.steps[trace.ends[layers[0]]].weights.shape[0] == len(trace.tokens))


def _sink_report(
    trace: Trace, method: str, values: Floats, layers: list[int], rows: list[int], sinks: str
) -> dict[str, Any]:
    """Which positions are sinks, and what went to them: parts of the provenance.

    share: kept, that of the values at the highest layer, mean over the queries; left at home, that of the attention of
    these queries, mean over the layers.
    """
    through = layers if method == "raw" else range(max(layers) + 1)
    positions = trace.sinks(through)
    if not positions and sinks == "keep":
        return {}
    positions = positions or ()
    if sinks == "keep":
        row = np.maximum(values[-1], 0).mean(0)
    else:
        row = to_numpy(torch.stack([trace.steps[trace.ends[l]].weights[rows].mean(0) for l in through]).mean(0))
    report: dict[str, Any] = {
        "mode": sinks,
        "positions": list(positions),
        "share": round(share_of(row, positions), 4),
    }
    return {"sinks": report}
