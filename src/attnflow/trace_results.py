"""How values of a trace become a result: their labels, provenance, and the notes on their reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.reliability import FlowBound, Labels, Notes, mixed_notes, of_rows, row_notes
from attnflow.result import TokenAttention
from attnflow.selection import Row
from attnflow.sinks import share_of

if TYPE_CHECKING:
    from attnflow.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chosen:
    """What is explained: rows of the steps' matrices, one by one; or, if there is a row, all of them as one.

    rows: their places. row: for a sentence embedding, the same places with weights, as positions among the queries.
    """

    rows: list[int]
    row: Row | None = None

    def mixed(self, values: Floats) -> Floats:
        """Return values [layer, row, input] of the places as [layer, query, input] of what is explained."""
        return values if self.row is None else np.einsum("lqi,q->li", values, np.array(self.row.weights))[:, None]

    @property
    def places(self) -> list[int | None]:
        """Return the position of each query; None for a query of several positions."""
        return [None] if self.row is not None else list(self.rows)


def natural(trace: Trace) -> Chosen:
    """Return what a result about the answer explains: the sentence embedding, or the default position."""
    row = trace.pooled
    if row is not None:
        return Chosen([trace.first_query + i for i in row.positions], row if row.several else None)
    return Chosen([trace.first_query + (trace.default_query or 0)])


WITNESSES = 4
"""This many other queries plus one, spread over the text, show whether a rollout still depends on its query."""


def result_of(
    trace: Trace,
    method: str,
    values: Floats,
    layers: list[int],
    chosen: Chosen,
    recipe: dict[str, Any],
    sees_sinks: bool = False,
    words: bool = True,
    notes: Sequence[Notes] = (),
) -> TokenAttention:
    """Return values [layer, query, input] as a labelled result.

    sees_sinks: whether sinks take a share of this method. notes: on each row of the highest layer.
    words: whether the values come from the graph, which can be merged into words.
    """
    options = {k: v for k, v in recipe.items() if k != "layer" and v is not None and v is not False}
    if options.get("start") == 0:
        del options["start"]
    if sees_sinks:
        options |= _sink_report(trace, method, values, layers)
    queries, query_tokens = _queries(trace, chosen, _named(trace, layers))
    if chosen.row is not None and not chosen.row.refusal:
        options["query_weights"] = query_weights({queries[0]: chosen.row})
    if sentences := of_rows(notes, query_tokens):
        options["reliability"] = sentences
    if trace.picture is not None:
        options["picture"] = asdict(trace.picture)
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
        recipe=recipe,
        image=None if trace.patches is None else trace.image,
    )


def query_weights(rows: Mapping[int, Row]) -> dict[str, dict[str, float]]:
    """Return the provenance of queries of several positions: for each number its positions and their weights."""
    return {str(number): dict(zip(map(str, row.positions), row.weights, strict=True)) for number, row in rows.items()}


def _queries(trace: Trace, chosen: Chosen, named: bool) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the numbers and names of queries in a result; a query of several positions has a number past the text."""
    if chosen.row is not None:
        return (len(trace.tokens) - trace.first_query,), (chosen.row.label(trace.tokens),)
    queries = tuple(r - trace.first_query for r in chosen.rows)
    return queries, tuple(trace.tokens[r] if named else str(r) for r in chosen.rows)


def notes_of_rows(
    trace: Trace,
    method: str,
    values: Floats,
    layers: Sequence[int],
    chosen: Chosen,
    bounds: Sequence[FlowBound] | None = None,
) -> list[Notes]:
    """Return notes on each row of the highest layer, ``values[query, input]``."""
    through = [layers[-1]] if method == "raw" else range(layers[-1] + 1)
    known = trace.sinks(through) or ()
    each = list(bounds) if bounds is not None else [None] * len(values)
    causal = not trace.parts and trace.default_query == len(trace.tokens) - 1
    labels = Labels(trace.tokens, trace.special, known, causal)
    named = _named(trace, layers)
    return [
        row_notes(row, labels, method, layers[-1], place if named else None, bound)
        for row, place, bound in zip(values, chosen.places, each, strict=True)
    ]


def witnesses(trace: Trace, layers: Sequence[int]) -> list[int]:
    """Return rows of other queries, spread over the text, if every query sees the same tokens."""
    n = len(trace.tokens)
    if trace.parts or not _named(trace, layers) or trace.default_query == n - 1 or n <= 2:
        return []
    steps = min(n, WITNESSES + 1) - 1
    return [(n - 1) * i // steps for i in range(steps + 1)]


def with_mixed(
    notes: Sequence[Notes], values: Floats, chosen: Chosen, their: Floats, others: Sequence[int], method: str
) -> list[Notes]:
    """Return the notes of rows, and whether each equals ``their[query, input]``, the rows of other queries."""
    return [
        {**note, **mixed_notes(value, their[[other != row for other in others]], method)}
        for row, note, value in zip(chosen.places, notes, values, strict=True)
    ]


def _named(trace: Trace, layers: Sequence[int]) -> bool:
    """Return whether the positions of these layers are the tokens; merged positions are not."""
    return bool(trace.steps[trace.ends[layers[0]]].weights.shape[0] == len(trace.tokens))


def _sink_report(trace: Trace, method: str, values: Floats, layers: list[int]) -> dict[str, Any]:
    """Return which positions are sinks, and their share of the values at the highest layer, mean over the queries."""
    positions = trace.sinks(layers if method == "raw" else range(max(layers) + 1))
    if not positions:
        return {}
    row = np.maximum(values[-1], 0).mean(0)
    return {"sinks": {"positions": list(positions), "share": round(share_of(row, positions), 4)}}
