"""How much attention each key gets, from queries and keys alone: no matrix of weights is made.

What cache eviction, observation windows and sparse attention ask for, and what eager attention is often run for. On CUDA
both functions are kernels; elsewhere they go through the queries in blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnflow.capture.linear import head_sums, row_denominators, step
from attnflow.capture.scores import LazyMask, Scores
from attnflow.errors import InputError


def column_sums(
    query: Tensor,
    key: Tensor,
    *,
    rows: Tensor | None = None,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
    per_head: bool = False,
) -> Tensor:
    """``Σ_q rows[q]·P[q, k]`` with ``P = softmax(scale·QKᵀ + mask)``: what each key gets from the queries, weighted.

    query: [batch, head, query, size]. key: [batch, key head, key, size], with as many heads or a divisor of them.
    rows: how much each query counts, [query], [batch, query] or [batch, row, query]; by default one each. None may be below
        zero with ``per_head``.
    scale: by default ``1 / sqrt(size)``. causal: the last query stands at the last key and sees what is not after it.
    window: how many keys a query sees, its own included, to the left; with causal. softcap: c in ``c·tanh(s / c)``.
    sinks: [head], one more score a head in the denominator only.
    lse: what `log_sum_exp` gives, where it is known already, for example from the forward pass.
    per_head: sums of each head instead of their mean.

    Returns [batch, key], or [batch, row, key] for rows of that shape; with ``per_head`` a head axis after the batch; in
    float32, or float64 for operands in that. An observation window is a slice: ``column_sums(query[:, :, -32:], key)``.

    >>> import torch, attnflow as af
    >>> query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 4)
    >>> af.column_sums(query, key).mul(6).round().int().tolist()  # 1 + 1/2 + 1/3, 1/2 + 1/3 and 1/3
    [[11, 5, 2]]
    """
    scores = _scores(query, key, scale, causal, window, softcap, sinks, lse)
    weights = _rows(rows, scores)
    sums = head_sums(scores, weights) if per_head else step(scores, weights)
    return sums if rows is not None and rows.dim() == 3 else sums[..., 0, :]


def log_sum_exp(
    query: Tensor,
    key: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``log Σ_k exp(scale·QKᵀ + mask)``: the logarithm of each row's denominator, [batch, head, query].

    Arguments as in `column_sums`. With it any weight is one product away: ``P[q, k] = exp(scale·q·k - lse[q])``.

    >>> import torch, attnflow as af
    >>> af.log_sum_exp(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4)).exp().round().tolist()
    [[[1.0, 2.0, 3.0]]]
    """
    return row_denominators(_scores(query, key, scale, causal, window, softcap, sinks, None))


def _scores(
    query: Tensor, key: Tensor, scale: float | None, causal: bool, window: int | None, softcap: float | None,
    sinks: Tensor | None, lse: Tensor | None,
) -> Scores:  # fmt: skip
    for name, x in (("query", query), ("key", key)):
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            kind = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"{name} is {kind}: expected a tensor of floats [batch, head, position, size]")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3] or query.shape[1] % key.shape[1]:
        raise InputError(
            f"query has shape {tuple(query.shape)} and key {tuple(key.shape)}: expected the same batch and size, and as "
            "many heads or a divisor of them"
        )
    if 0 in query.shape or 0 in key.shape:
        raise InputError(f"query has shape {tuple(query.shape)} and key {tuple(key.shape)}: expected no empty axis")
    if query.dtype != key.dtype or query.device != key.device:
        raise InputError(
            f"query is {query.dtype} on {query.device} and key {key.dtype} on {key.device}: expected the same of both"
        )
    if causal and query.shape[2] > key.shape[2]:
        raise InputError(
            f"there are {query.shape[2]} queries and {key.shape[2]} keys: with causal=True every query is one of the last "
            "keys"
        )
    if window is not None and (window < 1 or not causal):
        raise InputError(
            f"window={window} with causal={causal}: expected at least 1, of attention that looks back only"
        )
    mask = None if window is None else _sliding(query, key, window)
    factor = query.shape[3] ** -0.5 if scale is None else float(scale)
    return Scores(
        query.detach(),
        key.detach(),
        factor,
        mask,
        causal=causal and mask is None,
        softcap=softcap,
        sinks=sinks,
        lse=lse,
    )


def _sliding(query: Tensor, key: Tensor, window: int) -> LazyMask:
    def rule(batch: Tensor, head: Tensor, at_query: Tensor, at_key: Tensor) -> Tensor:
        return (at_key <= at_query) & (at_key > at_query - window)

    offset = key.shape[2] - query.shape[2]
    return LazyMask(
        rule, query.shape[0], query.shape[2], key.shape[2], offset, 0, plain=None, window=window, device=query.device
    )


def _rows(rows: Tensor | None, scores: Scores) -> Tensor:
    """[batch, row, query]."""
    wide = torch.float64 if scores.query.dtype == torch.float64 else torch.float32
    batch, queries = scores.query.shape[0], scores.queries
    if rows is None:
        return scores.query.new_ones(batch, 1, queries, dtype=wide)
    if not 1 <= rows.dim() <= 3 or rows.shape[-1] != queries or (rows.dim() > 1 and rows.shape[0] != batch):
        raise InputError(
            f"rows has shape {tuple(rows.shape)}: expected [query], [batch, query] or [batch, row, query], of {batch} in "
            f"the batch and {queries} queries"
        )
    full = rows if rows.dim() == 3 else rows.expand(batch, queries)[:, None]
    return full.to(scores.query.device, wide)
