"""Attention that passes gradients on unchanged and records the gradient with respect to its scores.

``∂y/∂s[q, k] = Σ_h P[q, k]·(do_q·v_k - do_q·o_q)``, where do is the gradient of a head's output. It says how fast the
score y falls when attention to k begins to fade, and the other keys get that attention in proportion to what they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.scores import Scores, mixed, mixed_back, times

if TYPE_CHECKING:
    from attnflow.capture.frozen_attention import FrozenCall


class FadingAttention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """``o = P·v``: queries and values [batch, head, position, size] -> [batch, query, head, size].

    Earlier keys and values in a cache are constants.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: FrozenCall) -> Tensor:
        out = call.output(value)
        ctx.call = call
        ctx.save_for_backward(query, key, value, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out = ctx.saved_tensors
        call: FrozenCall = ctx.call
        scores = call.scores
        assert scores is not None  # passes without scores are refused
        reading = call.reading()
        first, last = reading.range(query.shape[2])
        upward = gradient.transpose(1, 2)  # [batch, head, query, size]
        mean = (gradient * out).sum(-1).transpose(1, 2)[..., None]
        before = 0 if call.before is None else int(call.before.shape[2])
        keys = call.skipped + before + value.shape[2]
        (total,) = reading.room("cross" if call.cross else "self", call.number, value, last - first, keys)
        total = total[..., call.skipped :]
        d_query, d_key, d_value = (torch.zeros_like(x) for x in (query, key, value))
        for start, stop, weights in call.blocks(0, query.shape[2]):
            some, queries, heads = upward[:, :, start:stop], query[:, :, start:stop], value.shape[1]
            along = times(_by_key_head(some, heads), value, call.before, weights.shape[-1]).reshape(weights.shape)
            slope = weights * (along - mean[:, :, start:stop])
            low, high = max(start, first), min(stop, last)
            if low < high:
                total[:, low - first : high - first, : slope.shape[-1]] += slope[:, :, low - start : high - start].sum(
                    1
                )
            slope = (slope * _bend(scores, queries, key, slope.shape)).to(query.dtype) * scores.scale
            d_query[:, :, start:stop] = mixed(slope, key, scores.before).transpose(1, 2)
            fresh = weights.shape[-1] - before
            d_key[:, :, :fresh] += mixed_back(slope[..., before:], queries, heads)
            d_value[:, :, :fresh] += mixed_back(weights[..., before:], some, heads)
        return d_query, d_key, d_value, None


def _by_key_head(rows: Tensor, key_heads: int) -> Tensor:
    """Reshape [batch, head, query, size] -> [batch, key head, its heads × query, size]."""
    return rows.reshape(rows.shape[0], key_heads, -1, rows.shape[-1])


def _bend(scores: Scores, queries: Tensor, key: Tensor, shape: torch.Size) -> Tensor | float:
    """Return how much of a change of ``scale·q·k`` passes the softcap."""
    if scores.softcap is None:
        return 1.0
    raw = times(_by_key_head(queries, key.shape[1]), key, scores.before, shape[-1]).reshape(shape)
    bend: Tensor = 1 - torch.tanh(raw.float() * (scores.scale / scores.softcap)) ** 2
    return bend
