"""Attention output from fused functions, with the log-sum-exp of its rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnflow.capture.scores import LazyMask, Scores, mixed


def attention_output(scores: Scores, value: Tensor, before: Tensor | None = None) -> tuple[Tensor, Scores]:
    """Return the attention output, [batch, query, head, size], and the operands for a later `step`.

    before: values of the keys in ``scores.before``.
    """
    plain = plain_kind(scores)
    operands = scores
    if is_fused(scores, value):
        out, lse = _fused_output(scores, value, before)
        operands = replace(scores, lse=lse)
    elif plain is None or scores.before is not None:
        out = torch.cat([mixed(scores.weights(*block), value, before) for block in scores.blocks()], dim=1)
    elif _hands_out(scores, value):
        groups = scores.query.shape[1] // scores.key.shape[1]
        key, values = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (scores.key, value))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            scores.query, key, values, 0.0, plain == "causal", scale=scores.scale
        )
        out, operands = out.transpose(1, 2), replace(scores, lse=lse)
    else:
        groups, key = scores.query.shape[1] // scores.key.shape[1], scores.key
        # the kernels for these types do not support groups, and PyTorch would make the matrix
        if groups > 1 and key.is_cuda:
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        out = scaled_dot_product_attention(
            scores.query, key, value, is_causal=plain == "causal", scale=scores.scale,
            enable_gqa=groups > 1 and not key.is_cuda,
        ).transpose(1, 2)  # fmt: skip
    return out, operands


def _hands_out(scores: Scores, value: Tensor) -> bool:
    """Return whether the CPU kernel for this attention can also return its log-sum-exp."""
    there = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    same = scores.query.shape[-1] == scores.key.shape[-1] == value.shape[-1]
    wide = scores.query.dtype in (torch.float32, torch.float64)
    return there and scores.query.device.type == "cpu" and same and wide


def is_fused(scores: Scores, value: Tensor) -> bool:
    """Return whether a fused kernel computes this attention and returns its log-sum-exp."""
    if not scores.query.is_cuda or not _fused(scores, value):
        return False
    if scores.before is None:
        return plain_kind(scores) is not None
    return in_two_places(scores)


def in_two_places(scores: Scores) -> bool:
    """Return whether every query sees all earlier keys, and of the others those up to its own, or all of them."""
    plain = scores.mask is None or (isinstance(scores.mask, LazyMask) and scores.mask.plain == "causal")
    return plain and _unmasked(scores) and scores.queries == scores.key.shape[2]


def _fused_output(scores: Scores, value: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute keys in two places separately, then merge the two by their shares of the denominator."""
    if scores.before is None:
        return attention_with_lse(scores.query, scores.key, value, plain_kind(scores) == "causal", scores.scale)
    assert before is not None
    causal = scores.mask is not None or scores.causal
    out, lse = attention_with_lse(scores.query, scores.key, value, causal, scores.scale)
    far = attention_with_lse(scores.query, scores.before, before, False, scores.scale)
    return merged(*far, out, lse)


def merged(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention over some keys with attention over the others, each with its log-sum-exp.

    Outputs are [batch, query, head, size], log-sum-exps [batch, head, query].
    """
    share = torch.sigmoid(first_lse - second_lse).transpose(1, 2)[..., None]  # share of the denominator
    lse = torch.logaddexp(first_lse, second_lse)
    return torch.lerp(second.to(share.dtype), first.to(share.dtype), share).to(first.dtype), lse


def attention_with_lse(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Compute fused attention on a GPU: output [batch, query, head, size] and log-sum-exp [batch, head, query].

    causal: query i sees the keys up to i, with as many keys as queries.
    """
    return _with_lse(Scores(query, key, scale), value, causal)


def _with_lse(scores: Scores, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Run the fastest available fused kernel that returns its log-sum-exp."""
    groups = scores.query.shape[1] // scores.key.shape[1]
    key, values = scores.key, value
    if torch.backends.cuda.cudnn_sdp_enabled():
        try:
            result = torch.ops.aten._scaled_dot_product_cudnn_attention(
                scores.query, key, values, None, True, 0.0, causal, False, scale=scores.scale
            )
            return result[0].transpose(1, 2), result[1].reshape(result[1].shape[:3])
        except RuntimeError:  # cuDNN does not support this shape or card
            pass
    query = scores.query
    if groups > 1 and causal:
        key, values = key.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    elif groups > 1:  # the queries of all heads that share a key head become rows side by side, so no key is copied
        query = query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1])
    result = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, values, 0.0, causal, False, scale=scores.scale
    )
    out, lse = result[0].reshape(*scores.query.shape[:3], -1), result[1].reshape(scores.query.shape[:3])
    return out.transpose(1, 2), lse


def own_weights(scores: Scores) -> Tensor:
    """Return the weight that each of the last positions gives to itself, [batch, head, query], from the log-sum-exp."""
    assert scores.lse is not None
    batch, heads, queries, size = scores.query.shape
    key_heads = scores.key.shape[1]
    key = scores.key[:, :, scores.key.shape[2] - queries :, None].transpose(2, 3)  # [batch, key head, 1, query, size]
    query = scores.query.reshape(batch, key_heads, heads // key_heads, queries, size)
    products = (query.to(scores.lse.dtype) * key).sum(-1) * scores.scale
    return (products.reshape(batch, heads, queries) - scores.lse).exp()


def plain_kind(scores: Scores) -> str | None:
    """Return "causal" or "full" if a fused kernel computes exactly this attention, else None."""
    if not _unmasked(scores):
        return None
    if isinstance(scores.mask, LazyMask):
        # a fused kernel aligns the first query with the first key
        return scores.mask.plain if scores.mask.plain == "full" or scores.queries == scores.keys else None
    return "full" if scores.mask is None and not scores.causal else None


def _unmasked(scores: Scores) -> bool:
    """Return whether only a mask changes the products."""
    return scores.softcap is None and scores.sinks is None and scores.bias is None


def _fused(scores: Scores, value: Tensor) -> bool:
    size = scores.query.shape[-1]
    return scores.query.dtype in (torch.float16, torch.bfloat16) and size == value.shape[-1] <= 128 and size % 8 == 0
