"""One head at a time: Appendix A.1 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import Array, ArrayT, index, indices, to_numpy
from attnflow.errors import InputError
from attnflow.flow import flow
from attnflow.graph import graph_layers, reduced_graph, weight_layers
from attnflow.rollout import rollout
from attnflow.selection import head_name, select_positions

METHODS: dict[str, Callable[..., Any]] = {"rollout": rollout, "flow": flow}

Place = int | str
Alignment = (
    str | Mapping[Place, Place | Iterable[Place]] | Iterable[tuple[Place, Place]] | NDArray[np.bool_] | list[list[bool]]
)
"""Which keys belong to which queries: a name of `ALIGNMENTS`, pairs, a mapping, or booleans [query, key]."""


class HeadScore(NamedTuple):
    """How well one head matches an alignment, see `rank_heads`; layers and heads count from 0."""

    layer: int
    head: int
    weight: float
    top: float

    @property
    def name(self) -> str:
        """The usual name: L3.5 is head 5 of layer 3."""
        return head_name(self.layer, self.head)


@overload
def single_head(
    weights: ArrayT | Sequence[ArrayT] | Mapping[int, ArrayT], layer: int, head: int,
    method: Literal["rollout"] = "rollout", queries: int | Iterable[int] | None = None, residual: float = 0.5,
) -> ArrayT: ...  # fmt: skip
@overload
def single_head(
    weights: Any, layer: int, head: int, method: str, queries: int | Iterable[int] | None = None, residual: float = 0.5
) -> NDArray[np.float64]: ...
def single_head(
    weights: Any,
    layer: int,
    head: int,
    method: str = "rollout",
    queries: int | Iterable[int] | None = None,
    residual: float = 0.5,
) -> Array:
    """Return token attention of one head (Appendix A.1): ``Ã(i, k) = A(i, k) · Ã(i-1)``, or flow in the same graph.

    Heads mix in every feed-forward network, so all layers below layer i count as single-head layers (mean over heads), and
    only layer i is replaced by its head k.

    weights: as in `attention_graph`.
    layer, head: the head; layers count from 0. It gets the residual connection too.
    method: "rollout" or "flow".
    queries: the positions to explain; None for all.
    residual: the weight of the residual connection, in all layers.

    The result is ``[query, input]``, with the batch axis in front if there is a batch.

    >>> import numpy as np, attnflow as af
    >>> W = np.stack([np.eye(2), np.ones((2, 2)) / 2])[None].repeat(2, axis=0)   # 2 layers of 2 heads
    >>> af.single_head(W, layer=1, head=0).tolist()
    [[0.875, 0.125], [0.125, 0.875]]
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}")
    layers = weight_layers(weights)
    layer = index(layer, len(layers), "layer")
    head = index(head, int(layers[layer].shape[-3]), "head")
    top, _ = graph_layers(reduced_graph([layers[layer]], [head], residual))
    below, _ = graph_layers(reduced_graph(layers[:layer], "mean", residual)) if layer else ([], True)
    values = METHODS[method]([*below, *top], queries=queries, layers=-1)
    return values[..., 0, :, :]


def _earlier(tokens: Sequence[str], q: int) -> list[int]:
    return [k for k in range(q) if tokens[k] == tokens[q]]


ALIGNMENTS: dict[str, Callable[[Sequence[str], int], list[int]]] = {
    "previous": lambda tokens, q: [q - 1] if q else [],
    "next": lambda tokens, q: [q + 1] if q + 1 < len(tokens) else [],
    "self": lambda tokens, q: [q],
    "first": lambda tokens, q: [0] if q else [],
    "same": lambda tokens, q: [k for k, token in enumerate(tokens) if k != q and token == tokens[q]],
    "induction": lambda tokens, q: [k + 1 for k in _earlier(tokens, q) if k + 1 < q],
}
"""The aligned keys of a query: the token before, after, itself, the first token, others with the same text, and what
followed an earlier token with the same text."""


def aligned_pairs(alignment: Alignment, tokens: Sequence[str], first_query: int = 0) -> list[tuple[int, int]]:
    """Return the pairs (query, key) of an alignment, as positions.

    alignment: "previous", "next", "self" (the position itself), "first" (from every later position), "same" (other
        positions with the same token), "induction" (what followed an earlier position with the same token); pairs (query,
        key); a mapping from queries to their keys; or booleans ``[query, key]``. Queries and keys are positions or tokens.
    tokens: the tokens of the keys.
    first_query: the position among them where queries begin, and from which they count (the target of an encoder-decoder).

    >>> aligned_pairs("induction", ["a", "b", "c", "a"]), aligned_pairs({"c": ["a", 1]}, ["a", "b", "c"])
    ([(3, 1)], [(2, 0), (2, 1)])
    """
    own = list(tokens[first_query:])
    if isinstance(alignment, str):
        if alignment not in ALIGNMENTS:
            names = ", ".join(map(repr, ALIGNMENTS))
            raise InputError(f"alignment {alignment!r}: expected one of {names}, or pairs (query, key)")
        pairs = [(q, first_query + k) for q in range(len(own)) for k in ALIGNMENTS[alignment](own, q)]
        if not pairs:
            twice = alignment in ("same", "induction")
            why = "no token of this text occurs twice" if twice else "a text of one token has no other"
            raise InputError(f"alignment {alignment!r}: {why}; give pairs (query, key) instead")
        return pairs
    return [
        (q, k)
        for query, key in _pairs(alignment, len(own), len(tokens))
        for q in select_positions(query, own, None)
        for k in select_positions(key, tokens, None, "key")
    ]


def _pairs(alignment: Any, queries: int, keys: int) -> list[tuple[Any, Any]]:
    """Return pairs as they were given, with names not looked up yet."""
    if isinstance(alignment, Mapping):
        return list(alignment.items())
    refusal = InputError(f"alignment={alignment!r:.60}: expected pairs (query, key), for example [(3, 1), (4, 2)]")
    if hasattr(alignment, "tolist"):
        alignment = alignment.tolist()
    try:
        rows = [tuple(row) for row in alignment if not isinstance(row, str)]
        count = len(rows)
    except TypeError:
        raise refusal from None
    if rows and all(isinstance(x, bool) for row in rows for x in row):
        if {len(row) for row in rows} != {keys} or count != queries:
            raise InputError(
                f"the alignment has {count} rows of {len(rows[0])} booleans: expected [query, key], {queries} by {keys}"
            )
        return [(q, k) for q, row in enumerate(rows) for k, flag in enumerate(row) if flag]
    if any(len(row) != 2 for row in rows):
        raise refusal
    return rows


def rank_heads(
    weights: Array | Sequence[Array] | Mapping[int, Array], alignment: Iterable[tuple[int, int]]
) -> list[HeadScore]:
    """Rank heads by how well they match an alignment, the best first.

    With A the attention of a head and K(q) the keys aligned with query q, over the queries that have any:

        weight = mean_q Σ_{k ∈ K(q)} A[q, k]        top = the share of q whose largest A[q, k] is at a key of K(q)

    Heads are ordered by weight, then by top, layer and head.

    weights: as in `attention_graph`, for one text; or a mapping from some layers to their heads.
    alignment: pairs (query, key) of positions; `aligned_pairs` makes them from names, tokens and arrays.

    >>> import numpy as np
    >>> W = np.stack([np.full((2, 2), 0.5), np.eye(2)[::-1]])[None]   # 1 layer of 2 heads: even, and crosswise
    >>> rank_heads(W, [(0, 1), (1, 0)])
    [HeadScore(layer=0, head=1, weight=1.0, top=1.0), HeadScore(layer=0, head=0, weight=0.5, top=1.0)]
    """
    numbered = dict(weights) if isinstance(weights, Mapping) else dict(enumerate(weight_layers(weights)))
    layers = {number: to_numpy(heads).astype(np.float64) for number, heads in numbered.items()}
    scores: list[HeadScore] = []
    for number, heads in layers.items():
        heads = heads[0] if heads.ndim == 4 and len(heads) == 1 else heads  # a batch of one
        if heads.ndim != 3:
            raise InputError(
                f"weights have a batch of {len(heads)}: rank the heads of one text at a time"
                if not isinstance(weights, Mapping)
                else f"layer {number} has heads of shape {heads.shape}: expected [head, query, key]"
            )
        mask = _mask(alignment, heads.shape[1], heads.shape[2])
        rows = mask.any(1)
        inside = np.where(mask[rows], heads[:, rows], -np.inf)  # [head, query, key]
        amounts = np.where(mask[rows], heads[:, rows], 0).sum(-1).mean(-1)
        tops = (inside.max(-1) == heads[:, rows].max(-1)).mean(-1)
        scores += [
            HeadScore(number, head, float(amount), float(top))
            for head, (amount, top) in enumerate(zip(amounts, tops, strict=True))
        ]
    return sorted(scores, key=lambda s: (-s.weight, -s.top, s.layer, s.head))


def _mask(alignment: Any, queries: int, keys: int) -> NDArray[np.bool_]:
    """Return [query, key]: whether a key is aligned with a query."""
    pairs = _pairs(alignment, queries, keys)
    if not pairs:
        raise InputError("the alignment has no pairs: expected at least one (query, key), for example [(3, 1)]")
    mask = np.zeros((queries, keys), bool)
    mask[indices([q for q, _ in pairs], queries, "query"), indices([k for _, k in pairs], keys, "key")] = True
    return mask
