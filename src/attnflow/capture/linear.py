"""Rollout of a few queries without any n×n matrix: only queries and keys are kept, and each layer is a product Pᵀ·r."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnflow.capture.scores import LazyMask, Scores, Weighing, mixed
from attnflow.errors import InputError


@dataclass(frozen=True)
class Operands:
    """What one layer needs to pass rows down.

    number: of the layer, from 0. scores: with lse where the forward pass gave it. weighing: what its edges weigh.
    own: what the residual connection weighs beside them, [batch, position]; None where it is no part of the edges.
    holds: of answer edges, what the state below holds, signed, [batch, position].
    """

    number: int
    scores: Scores
    weighing: Weighing
    own: Tensor | None = None
    holds: Tensor | None = None


def attention_output(scores: Scores, value: Tensor, offload: bool) -> tuple[Tensor, Scores]:
    """The output of the attention, [batch, query, head, size], and what a later `step` needs."""
    plain = plain_kind(scores)
    operands = scores
    if plain is None:
        out = torch.cat([mixed(scores.weights(*block), value) for block in scores.blocks()], dim=1)
    elif scores.query.is_cuda and _fused(scores, value):
        out, lse = _with_lse(scores, value, plain == "causal")
        operands = replace(scores, lse=lse)
    else:
        grouped = scores.query.shape[1] != scores.key.shape[1]
        out = scaled_dot_product_attention(
            scores.query, scores.key, value, is_causal=plain == "causal", scale=scores.scale, enable_gqa=grouped
        ).transpose(1, 2)
    if offload:
        operands = replace(operands, query=_to_host(operands.query), key=_to_host(operands.key))
    return out, operands


def step(scores: Scores, rows: Tensor) -> Tensor:
    """``mean over heads of Pᵀ·r`` for each row r: [batch, row, query] -> [batch, row, key], float32."""
    device = rows.device
    if scores.query.device != device:
        scores = replace(scores, query=scores.query.to(device), key=scores.key.to(device))
    if rows.is_cuda and _has_triton() and not _irregular(scores) and not scores.few(rows):
        from attnflow.capture import kernels

        causal = scores.causal or (isinstance(scores.mask, LazyMask) and scores.mask.plain != "full")
        window = scores.mask.window if isinstance(scores.mask, LazyMask) else None
        bias = scores.bias
        options: dict[str, Any] = {"scale": scores.scale, "causal": causal, "window": window, "softcap": scores.softcap}
        lse = scores.lse
        if lse is None:
            lse = kernels.log_sum_exp(scores.query, scores.key, bias=bias, sinks=scores.sinks, **options)
        return kernels.transposed_product(scores.query, scores.key, lse, rows, bias=bias, **options)
    return scores.transposed(rows)


def pass_down(
    scores: Scores, rows: Tensor, weighing: Weighing, own: Tensor | None = None, normalized: bool = False
) -> Tensor:
    """``out[k] = Σ_q r[q]·(E[q, k] + [q = k]·own[q]) / t[q]`` for each row r: [batch, row, query] -> [batch, row, key].

    E: what edges weigh by ``weighing``, some queries at a time. own: what the residual connection weighs, [batch, query].
    normalized: t is the sum of a row of E and of its own part, so that rows sum to one; else t is one.
    """
    out = rows.new_zeros(rows.shape[0], rows.shape[1], scores.keys)
    offset = scores.keys - scores.queries
    touched = (rows != 0).flatten(0, 1).any(0).nonzero().flatten()
    if not len(touched):
        return out
    for start, stop in scores.blocks(first=int(touched[0]), last=int(touched[-1]) + 1):
        edges = edge_rows(scores, weighing, start, stop).to(rows.dtype)  # [batch, query, key]
        r = rows[:, :, start:stop]
        if normalized:
            total = edges.sum(-1) if own is None else edges.sum(-1) + own[:, start:stop]
            r = r / torch.where(total == 0, 1, total)[:, None]
        out[:, :, : edges.shape[-1]] += torch.matmul(r, edges)
        if own is not None:
            out[:, :, start + offset : stop + offset] += r * own[:, None, start:stop]
    return out


def edge_rows(scores: Scores, weighing: Weighing, start: int, stop: int) -> Tensor:
    """Rows ``start:stop`` of what edges weigh, heads added up: [batch, stop - start, the keys that these rows see]."""
    return scores.edge_rows(weighing, start, stop)


def uniform_step(scores: Scores, rows: Tensor) -> Tensor:
    """`step` for attention that sees the same positions and prefers none, in O(n)."""
    if _irregular(scores):
        raise InputError("the receptive field of this mask is not known without matrices: causal, window and full are")
    n = scores.queries
    if scores.causal or (isinstance(scores.mask, LazyMask) and scores.mask.plain != "full"):
        window = (scores.mask.window if isinstance(scores.mask, LazyMask) else None) or n
        share = rows.double() / torch.arange(1, n + 1, device=rows.device).clamp(max=window)
        later = share.flip(-1).cumsum(-1).flip(-1)  # [k] = Σ over q ≥ k
        beyond = torch.nn.functional.pad(later, (0, window))[..., window:]
        return (later - beyond[..., :n]).to(rows.dtype)
    return rows.sum(-1, keepdim=True).expand(*rows.shape[:-1], scores.keys) / scores.keys


def plain_kind(scores: Scores) -> str | None:
    """ "causal" or "full" where a fused kernel computes exactly this attention, else None."""
    if scores.softcap is not None or scores.sinks is not None or scores.bias is not None:
        return None
    if isinstance(scores.mask, LazyMask):
        return scores.mask.plain
    return "full" if scores.mask is None and not scores.causal else None


def _irregular(scores: Scores) -> bool:
    """Masks that are neither causal, nor a window, nor nothing: padding, chunks, overlays, matrices."""
    if isinstance(scores.mask, LazyMask):
        return scores.mask.plain is None and scores.mask.window is None
    return scores.mask is not None


def _fused(scores: Scores, value: Tensor) -> bool:
    size = scores.query.shape[-1]
    return scores.query.dtype in (torch.float16, torch.bfloat16) and size == value.shape[-1] <= 128 and size % 8 == 0


def _with_lse(scores: Scores, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """The fastest fused kernel there is, which hands out its log-sum-exp."""
    groups = scores.query.shape[1] // scores.key.shape[1]
    key, values = scores.key, value
    if torch.backends.cuda.cudnn_sdp_enabled():
        try:
            result = torch.ops.aten._scaled_dot_product_cudnn_attention(
                scores.query, key, values, None, True, 0.0, causal, False, scale=scores.scale
            )
            return result[0].transpose(1, 2), result[1].reshape(result[1].shape[:3])
        except RuntimeError:  # a shape or a card that cuDNN does not take
            pass
    if groups > 1:
        key, values = key.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    result = torch.ops.aten._scaled_dot_product_flash_attention(
        scores.query, key, values, 0.0, causal, False, scale=scores.scale
    )
    return result[0].transpose(1, 2), result[1]


def _to_host(x: Tensor) -> Tensor:
    if not x.is_cuda:
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
