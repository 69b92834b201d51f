"""Gradients of attention without its matrix: weights are recomputed for a few queries at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.fused import attention_output, plain_kind
from attnflow.capture.linear import value_gradient
from attnflow.capture.scores import LARGE_BYTES, Scores


def attention_with_gradient(query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> tuple[Tensor, Scores]:
    """Return the output of attention, [batch, query, head, size], and its operands. Gradients pass through the output.

    scores: the operands without their gradient. Tensors that do not require gradients get none, such as queries and
        keys of a pass that holds weights constant.
    """
    if not (query.requires_grad or key.requires_grad):
        kept = [scores]
        return _OfValues.apply(value, kept), kept[0]
    if plain_kind(scores) is not None and not (scores.query.is_cuda and scores.query.dtype == torch.float64):
        # fused functions have a backward pass that makes no matrix
        out, operands = attention_output(replace(scores, query=query, key=key), value)
        lse = None if operands.lse is None else operands.lse.detach()
        return out, replace(scores, lse=lse)
    out = _InBlocks.apply(query, key, value, scores)
    return out, scores


class _OfValues(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``o = P·v`` with constant weights: the backward pass is just ``dv = Pᵀ·do``."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, kept: list[Scores]) -> Tensor:
        out, kept[0] = attention_output(kept[0], value)  # includes the log-sum-exp if there is one
        ctx.scores = kept[0]
        ctx.save_for_backward(value)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (value,) = ctx.saved_tensors
        return value_gradient(ctx.scores, gradient.transpose(1, 2), value), None


class _InBlocks(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``o = P·v`` with ``dv = Pᵀ·do``, ``ds = P ⊙ (do·vᵀ - Σ(do ⊙ o))``, ``dq = scale·ds·k`` and ``dk = scale·dsᵀ·q``.

    A sink takes a part of the weights but has no value, so it changes none of these.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        out, _ = attention_output(scores, value)
        ctx.scores = scores
        ctx.save_for_backward(value, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        value, out = ctx.saved_tensors
        scores: Scores = ctx.scores
        d_query, d_key, d_value = (torch.zeros_like(x) for x in (scores.query, scores.key, value))
        key_heads = value.shape[1]
        for start, stop in scores.blocks(LARGE_BYTES if value.is_cuda else None):
            weights = scores.weights(start, stop)  # [batch, head, query, key]
            batch, heads, rows, keys = weights.shape
            weights = weights.reshape(batch, key_heads, -1, keys)  # stack all query heads of a key head
            upward = _stacked(gradient[:, start:stop], key_heads)
            d_value[:, :, :keys] += weights.to(value.dtype).transpose(2, 3) @ upward
            along = upward @ value[:, :, :keys].transpose(2, 3)
            mean = (upward * _stacked(out[:, start:stop], key_heads)).sum(-1, keepdim=True)
            slope = weights * (along - mean) * scores.scale
            queries = scores.query[:, :, start:stop].reshape(batch, key_heads, -1, scores.query.shape[-1])
            if scores.softcap is not None:
                raw = queries @ scores.key[:, :, :keys].transpose(2, 3)
                slope = slope * (1 - torch.tanh(raw.to(slope.dtype) * (scores.scale / scores.softcap)) ** 2)
            slope = slope.to(value.dtype)
            d_query[:, :, start:stop] = (slope @ scores.key[:, :, :keys]).reshape(batch, heads, rows, -1)
            d_key[:, :, :keys] += slope.transpose(2, 3) @ queries
        return d_query, d_key, d_value, None


def _stacked(rows: Tensor, key_heads: int) -> Tensor:
    """Reshape [batch, query, head, size] -> [batch, key head, its heads × query, size]."""
    batch, _, _, size = rows.shape
    return rows.transpose(1, 2).reshape(batch, key_heads, -1, size)
