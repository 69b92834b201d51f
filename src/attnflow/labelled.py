"""Token attention of the user's own attention weights, with labels, so that it shows, draws and saves itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnflow._arrays import FloatArray, to_numpy
from attnflow.errors import InputError
from attnflow.flow import flow
from attnflow.graph import attention_graph
from attnflow.reliability import FlowBound, Labels, of_rows, row_notes
from attnflow.result import TokenAttention
from attnflow.rollout import rollout
from attnflow.selection import Query, select_layers, select_positions

VIEWS = ("raw", "rollout", "flow")


def token_attention(
    weights: Any,
    tokens: Sequence[str] | None = None,
    method: str = "rollout",
    *,
    query: Query = None,
    layers: int | Iterable[int] | None = None,
    residual: float = 0.5,
    heads: str | Iterable[int] = "mean",
    special: Sequence[bool] | None = None,
    text: str | None = None,
) -> TokenAttention:
    """Return raw attention, rollout or flow of attention weights as a labelled result. Needs no model and no torch.

    weights: ``W[layer, head, query, key]`` of one text, or the tuple that transformers returns for it, as in
        `attention_graph`; as many queries as keys.
    tokens: names of the positions; by default, their numbers.
    method: "raw", "rollout" or "flow".
    query: a position, a token, several of them, or "all"; by default, the last position if no position attends to a later
        one, otherwise the first.
    layers: which layers, counted from 0; by default, all.
    residual, heads: as in `attention_graph`. Raw attention has no residual.
    special: for each position, whether it is a special token, for `without_special`.
    text: the text; by default, the tokens with spaces.

    >>> import numpy as np
    >>> weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 3))
    >>> token_attention(weights, ["the", "old", "key"], "flow").row(layer=-1).round(2)
    array([0.95, 0.54, 0.31])
    """
    if method not in VIEWS:
        raise InputError(f"method={method!r}: expected one of {', '.join(VIEWS)}")
    graph = to_numpy(attention_graph(weights, heads, residual=0.0 if method == "raw" else residual))
    if graph.ndim == 4 and len(graph) == 1:  # a batch of one
        graph = graph[0]
    if graph.ndim != 3 or graph.shape[1] != graph.shape[2]:
        raise InputError(
            f"weights give a graph of shape {graph.shape}: expected one text with as many queries as keys, "
            "[layer, head, query, key]"
        )
    depth, n = graph.shape[:2]
    names = [str(i) for i in range(n)] if tokens is None else [str(token) for token in tokens]
    if len(names) != n:
        raise InputError(f"{len(names)} tokens for weights of {n} positions: expected one token per position")
    flags = [False] * n if special is None else [bool(flag) for flag in special]
    if len(flags) != n:
        raise InputError(f"special has {len(flags)} entries for {n} positions: expected one per position")
    causal = not np.triu(graph, 1).any()
    chosen = select_positions(query, names, n - 1 if causal else 0)
    numbers = select_layers(layers, depth)
    if method == "raw":
        values: FloatArray = graph[numbers][:, chosen]
    else:
        values = (rollout if method == "rollout" else flow)(graph, chosen, layers=numbers)
    top = numbers[-1]
    bounds = [FlowBound(float(graph[top, q].sum()), graph[0].sum(0)) if method == "flow" else None for q in chosen]
    labels = Labels(names, flags, (), causal)
    notes = [
        row_notes(row, labels, method, top, q, bound) for row, q, bound in zip(values[-1], chosen, bounds, strict=True)
    ]
    sentences = of_rows(notes, [names[q] for q in chosen])
    return TokenAttention(
        values=values,
        method=method,
        layers=tuple(numbers),
        queries=tuple(chosen),
        query_tokens=tuple(names[q] for q in chosen),
        tokens=tuple(names),
        word_ids=tuple(range(n)),
        word_texts=tuple(names),
        special=tuple(flags),
        text=" ".join(names) if text is None else text,
        provenance={
            "model": "attention weights",
            "captured": "given as arrays",
            "heads": heads if isinstance(heads, str) else [int(head) for head in heads],
            **({} if method == "raw" else {"residual": residual}),
            **({"reliability": sentences} if sentences else {}),
        },
    )
