"""How much attention each key gets, from queries and keys alone, without a matrix of weights.

Cache eviction, observation windows and sparse attention need these sums, and eager attention is often run for them only.
On CUDA both functions are kernels; elsewhere they process the queries in blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attnflow._arrays import as_array, finite_number
from attnflow.capture.linear import head_sums, row_denominators, step
from attnflow.capture.scores import LazyMask, Scores
from attnflow.errors import InputError

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def column_sums(
    query: Tensor,
    key: Tensor,
    *,
    rows: Tensor | ArrayLike | None = None,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
    per_head: bool = False,
) -> Tensor:
    """Return how much attention each key gets: ``Σ_q rows[q]·P[q, k]`` with ``P = softmax(scale·QKᵀ + mask)``.


    query: [batch, head, query, size], of float16, bfloat16, float32 or float64.
    key: [batch, key head, key, size], of the same type, with the same number of heads or a divisor.
    rows: the weight of each query, [query], [batch, query] or [batch, row, query], as a tensor, an array or lists; 1 by
        default. With ``per_head`` no weight may be negative.
    scale: ``1 / sqrt(size)`` by default.
    causal: the last query is at the last key and sees nothing after itself.
    window: the number of keys that a query sees to the left, itself included; needs causal.
    softcap: c in ``c·tanh(s / c)``.
    sinks: [head], one more score per head, in the denominator only.
    lse: the result of `log_sum_exp`, [batch, head, query], if it is already known, for example from the forward pass. The
        weights are then ``exp(s - lse)``, whatever they sum to; a query whose lse is not finite does not count.
    per_head: return the sums of each head instead of their mean.

    The result is [batch, key], or [batch, row, key] for rows of that shape, with a head axis after the batch if
    ``per_head``; in float32, or float64 for float64 operands. An observation window is a slice:
    ``column_sums(query[:, :, -32:], key)``.

    >>> import torch, attnflow as af
    >>> query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 4)
    >>> af.column_sums(query, key).mul(6).round().int().tolist()  # 1 + 1/2 + 1/3, 1/2 + 1/3 and 1/3
    [[11, 5, 2]]
    """
    _check_flag("per_head", per_head)
    scores = _scores(query, key, scale, causal, window, softcap, sinks, lse)
    counts = None if rows is None else _tensor_of(rows)
    weights = _rows(counts, scores)
    sums = head_sums(scores, weights) if per_head else step(scores, weights)
    return sums if counts is not None and counts.dim() == 3 else sums[..., 0, :]


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
    """Return the logarithm of each row's denominator, ``log Σ_k exp(scale·QKᵀ + mask)``: [batch, head, query].

    Arguments as in `column_sums`. It makes every weight one product: ``P[q, k] = exp(scale·q·k - lse[q])``.

    >>> import torch, attnflow as af
    >>> af.log_sum_exp(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4)).exp().round().tolist()
    [[[1.0, 2.0, 3.0]]]
    """
    return row_denominators(_scores(query, key, scale, causal, window, softcap, sinks, None))


def _scores(
    query: Tensor, key: Tensor, scale: float | None, causal: bool, window: int | None, softcap: float | None,
    sinks: Tensor | None, lse: Tensor | None,
) -> Scores:  # fmt: skip
    _check_operands(query, key)
    _check_flag("causal", causal)
    if causal and query.shape[2] > key.shape[2]:
        raise InputError(
            f"there are {query.shape[2]} queries and {key.shape[2]} keys: with causal=True every query is at one of the "
            "last keys, so there cannot be more queries than keys"
        )
    width = None if window is None else _window(window, causal)
    factor = query.shape[3] ** -0.5 if scale is None else finite_number(scale)
    if factor is None:
        raise InputError(f"scale={scale!r:.60}: expected a finite number")
    cap = None if softcap is None else finite_number(softcap)
    if softcap is not None and (cap is None or cap <= 0):
        raise InputError(f"softcap={softcap!r:.60}: expected a finite number above zero")
    if sinks is not None:
        sinks = _beside(query, "sinks", sinks, "head", query.shape[1:2])
    if lse is not None:
        lse = _beside(query, "lse", lse, "batch, head, query", query.shape[:3])
        lse = torch.where(lse.isfinite(), lse, torch.inf)
    if query.dtype in (torch.float16, torch.bfloat16) and not query.is_cuda:
        query, key = query.float(), key.float()  # kernels sum in float32; half precision would overflow
    mask = None if width is None else _sliding(query, key, width)
    return Scores(
        query.detach(),
        key.detach(),
        factor,
        mask,
        causal=causal and mask is None,
        softcap=cap,
        sinks=sinks,
        lse=lse,
        partial=lse is not None,
    )


def _check_operands(query: Tensor, key: Tensor) -> None:
    for name, x in (("query", query), ("key", key)):
        if not _is_dense(x) or x.dim() != 4 or x.dtype not in TYPES:
            raise InputError(
                f"{name} is {_described(x)}: expected a dense tensor of float16, bfloat16, float32 or float64, "
                "[batch, head, position, size]"
            )
    if 0 in query.shape or 0 in key.shape:
        raise InputError(f"query has shape {tuple(query.shape)} and key {tuple(key.shape)}: expected no empty axis")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3] or query.shape[1] % key.shape[1]:
        raise InputError(
            f"query has shape {tuple(query.shape)} and key {tuple(key.shape)}: expected the same batch and size, and the "
            "same number of heads, or a divisor, for key"
        )
    if query.dtype != key.dtype or query.device != key.device:
        raise InputError(
            f"query is {query.dtype} on {query.device} and key {key.dtype} on {key.device}: expected the same for both"
        )


def _check_flag(name: str, flag: bool) -> None:
    if not isinstance(flag, bool):
        raise InputError(f"{name}={flag!r:.60}: expected True or False")


def _window(window: int, causal: bool) -> int:
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1 or not causal:
        raise InputError(f"window={window!r:.60} with causal={causal}: expected an int of at least 1, and causal=True")
    return int(window)


def _beside(query: Tensor, name: str, x: Tensor, axes: str, shape: torch.Size) -> Tensor:
    """Return a tensor of floats of this shape on the device of the query, in the precision of sums."""
    if not _is_dense(x) or x.dtype not in TYPES or x.shape != shape:
        raise InputError(f"{name} is {_described(x)}: expected a dense tensor of floats [{axes}], {tuple(shape)} here")
    return x.detach().to(query.device, _wide(query))


def _is_dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided and x.device.type != "meta"


def _described(x: Any) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    kind = "" if _is_dense(x) else f"a {x.layout} tensor on {x.device}, "
    return f"{kind}{x.dtype} of shape {tuple(x.shape)}"


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _sliding(query: Tensor, key: Tensor, window: int) -> LazyMask:
    def rule(batch: Tensor, head: Tensor, at_query: Tensor, at_key: Tensor) -> Tensor:
        return (at_key <= at_query) & (at_key > at_query - window)

    offset = key.shape[2] - query.shape[2]
    return LazyMask(
        rule, query.shape[0], query.shape[2], key.shape[2], offset, 0, plain=None, window=window, device=query.device
    )


def _tensor_of(rows: Tensor | ArrayLike) -> Tensor:
    array = as_array(rows, "rows")
    return array.detach() if isinstance(array, Tensor) else torch.from_numpy(np.array(array, order="C"))


def _rows(rows: Tensor | None, scores: Scores) -> Tensor:
    """Return the weights of the queries, [batch, row, query]."""
    wide = _wide(scores.query)
    batch, queries = scores.query.shape[0], scores.queries
    if rows is None:
        return scores.query.new_ones(batch, 1, queries, dtype=wide)
    fits = 1 <= rows.dim() <= 3 and rows.shape[-1] == queries and (rows.dim() == 1 or rows.shape[0] == batch)
    if not fits or 0 in rows.shape:
        raise InputError(
            f"rows has shape {tuple(rows.shape)}: expected [query], [batch, query] or [batch, row, query], with a batch of "
            f"{batch} and {queries} queries"
        )
    full = rows if rows.dim() == 3 else rows.expand(batch, queries)[:, None]
    return full.to(scores.query.device, wide)
