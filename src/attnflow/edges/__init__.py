"""Other answers to "what does an edge weigh".

``Model.trace(text, edges="alti")`` gives a trace whose graph has these weights, for raw attention, rollout and flow alike;
``trace.with_edges("value-norm")`` changes to others. The functions of `attnflow.edges.weights` give the bare weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.edges import weights
from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

NORMALIZE = ("rows", "graph", "none")


@dataclass(frozen=True)
class Edges:
    """function: from a trace to weights. normalize: how they are put into a graph if nothing else is asked for.

    whole: whether the residual connection is in the weights already, so that none is added.
    """

    function: Callable[[Trace], Tensor]
    normalize: str = "rows"
    gradient: bool = False
    whole: bool = False


EDGES: dict[str, Edges] = {
    "mean": Edges(weights.mean),
    "max": Edges(weights.largest),
    "effective": Edges(weights.effective),
    "gradient": Edges(weights.gradient, "none", gradient=True),
    "attention-gradient": Edges(weights.attention_gradient, "none", gradient=True),
    "value-norm": Edges(weights.value_norm),
    "block-norm": Edges(weights.block_norm, whole=True),
    "alti": Edges(weights.alti, whole=True),
    "value-zeroing": Edges(weights.value_zeroing),
}


def edges_of(name: str) -> Edges:
    if not isinstance(name, str) or name not in EDGES:
        raise InputError(f"edges={name!r}: expected one of {', '.join(map(repr, EDGES))}")
    return EDGES[name]


def reweighed(trace: Trace, name: str, normalize: str | None = None) -> Trace:
    """The same trace with other weights on its edges.

    normalize: "rows" divides each row by its sum; "graph" divides all layers by one number, the largest sum of any row, so
        that rows sum to at most one and keep their proportions; "none" takes the weights as they are. None is what the
        weights were published with: "none" for gradients, "rows" for the others. Rollout is at most flow, and flow at most
        one, where no row sums to more than one: with "rows" and "graph", and not with "none".
    """
    kind = edges_of(name)
    how = kind.normalize if normalize is None else normalize
    if how not in NORMALIZE:
        raise InputError(f"normalize={normalize!r}: expected one of {', '.join(map(repr, NORMALIZE))}")
    found = kind.function(trace)
    if how == "rows":
        found = weights.rows(found)
    elif how == "graph":
        largest = found.sum(-1).max()
        found = found / torch.where(largest == 0, 1, largest)
    steps = [replace(step, weights=w.float(), whole=kind.whole) for step, w in zip(trace.steps, found, strict=True)]
    # what becomes of rows that a sink takes from is told by normalize
    told = {k: v for k, v in trace.provenance.items() if k != "missing"}
    return replace(trace, steps=tuple(steps), provenance={**told, "edges": name, "edges_normalized": how})


def traced(model: Model, text: Any, name: str, normalize: str | None, *, answer: Any, **options: Any) -> Any:
    """`Model.trace` with edges, of one text or a list; options: of, missing and truncate, as in `Model.trace`."""
    from attnflow.edges.inside import trace_inside
    from attnflow.importance.answer import many

    gradient = edges_of(name).gradient
    found = [
        reweighed(trace_inside(model, one, answer=said, gradient=gradient, **options), name, normalize)
        for one, said in zip(*many(text, answer), strict=True)
    ]
    return found if isinstance(text, list) else found[0]
