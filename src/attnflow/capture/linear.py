"""Passing rows of an explanation down through a layer without any n×n matrix.

Edge weights are computed for a few queries at a time, with the heads summed, and multiplied with the rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.exponents import exponents_of
from attnflow.capture.fused import in_two_places
from attnflow.capture.scores import FEW, LARGE_BYTES, LazyMask, Scores, Weighing, mixed_back


@dataclass(frozen=True)
class Operands:
    """What one layer needs to pass rows down.

    number: that of the layer, from 0.
    scores: with lse if the forward pass returned it.
    weighing: how to weigh its edges.
    own: the weight of the residual connection next to them, [batch, position]; None if it is not part of the edges.
    holds: for answer edges, the part of the state below, signed, [batch, position].
    """

    number: int
    scores: Scores
    weighing: Weighing
    own: Tensor | None = None
    holds: Tensor | None = None

    def of_text(self, number: int, length: int) -> Operands:
        """Return a view of one text of a batch that is padded on the right."""
        own, holds = (None if x is None else x[number : number + 1, :length] for x in (self.own, self.holds))
        scores, weighing = self.scores.of_text(number, length), self.weighing.of_text(number, length)
        return Operands(self.number, scores, weighing, own, holds)


EDGE_BYTES = 512 << 20
"""Memory for the edges of some queries on a GPU, [query, key] with the heads summed."""

KERNEL_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def add_edge_rows(
    totals: Sequence[Tensor], scores: Scores, weighing: Weighing, first: int, last: int, room: int | None = None
) -> None:
    """Add rows ``first:last`` of the edge weights to each of ``totals`` [batch, last - first, key], in place."""
    for piece, part, place in _pieces(scores, weighing):
        for start, stop in ((first, last),) if _has_kernels(piece) else piece.blocks(room, first, last):
            rows = [total[:, start - first : stop - first, place:] for total in totals]
            if len(rows) == 1:
                edge_rows(piece, part, start, stop, rows[0])
                continue
            edges = edge_rows(piece, part, start, stop)
            for row in rows:
                row[..., : edges.shape[-1]] += edges


def _pieces(scores: Scores, weighing: Weighing) -> Iterator[tuple[Scores, Weighing, int]]:
    """Yield keys in two places separately if the log-sum-exp of both is known, with the first key of each."""
    if scores.lse is None or scores.before is None or weighing.before is None or not in_two_places(scores):
        yield scores, weighing, 0
        return
    last = _last_piece(scores)
    yield replace(last, key=scores.before, causal=False), replace(weighing, value=weighing.before, before=None), 0
    yield last, replace(weighing, before=None), int(scores.before.shape[2])


def _last_piece(scores: Scores) -> Scores:
    """For keys in two places, return those next to the queries, with the log-sum-exp of all."""
    causal = scores.mask is not None or scores.causal
    return replace(scores, before=None, mask=None, causal=causal, partial=True)


def reach_of(rows: Tensor) -> int | None:
    """Return how many queries it takes to cover rows [batch, row, query] that are above zero at many of them.

    Return None for rows that touch few queries and for rows with negative weights; both are passed down in other ways.
    The call waits for the GPU, so callers with many layers call it once and pass the result to `step` and `pass_down`.
    """
    touched = (rows != 0).flatten(0, 1).any(0)
    ends = torch.arange(1, rows.shape[-1] + 1, device=rows.device) * touched
    count, below, last = torch.stack([touched.sum(), (rows < 0).sum(), ends.max()]).tolist()
    return last if count > FEW and not below else None


def step(scores: Scores, rows: Tensor, reach: int | None = None) -> Tensor:
    """Compute ``mean over heads of Pᵀ·r`` for each row r: [batch, row, query] -> [batch, row, key], float32.

    reach: the result of `reach_of` for the rows; None computes it if needed.
    """
    home, rows = rows.device, rows.to(scores.query.device)
    scores = _with_lse(scores)
    if rows.shape[1] == 1 and _has_kernels(scores) and not _irregular(scores):
        from attnflow.capture import kernels

        reach = reach or reach_of(rows)
        if reach is not None:
            options = _options(scores)
            row = kernels.transposed_product(scores.query, scores.key, _lse(scores), rows[:, 0], **options)
            return row[:, None].to(home, rows.dtype)
    return pass_down(scores, rows, Weighing(1 / scores.query.shape[1]), reach=reach).to(home)


def value_gradient(scores: Scores, upward: Tensor, value: Tensor) -> Tensor:
    """Compute ``dV = Pᵀ·upward`` with constant weights: [batch, head, query, size] -> [batch, key head, key, size].

    The result covers the keys next to the queries; earlier keys are constants.
    """
    if scores.before is not None and scores.lse is not None and in_two_places(scores):
        scores = _last_piece(scores)
    if _has_kernels(scores):
        from attnflow.capture import edge_kernels

        lse, options = _lse(scores), _options(scores)
        return edge_kernels.value_gradient(scores.query, scores.key, lse, upward, spans=_spans(scores), **options)
    before = 0 if scores.before is None else int(scores.before.shape[2])
    back = torch.zeros_like(value)
    for start, stop in scores.blocks(LARGE_BYTES if value.is_cuda else None):
        new = scores.weights(start, stop)[..., before:]
        back[:, :, : new.shape[-1]] += mixed_back(new, upward[:, :, start:stop], value.shape[1])
    return back


def squared_lengths(value: Tensor, gram: Tensor) -> Tensor | None:
    """Compute ``vᵀ·G·v`` of values [batch, key head, key, size] with G of each head; None if there is no kernel."""
    if not value.is_cuda or value.dtype not in (torch.float16, torch.bfloat16) or not _has_triton():
        return None
    from attnflow.capture import edge_kernels

    return edge_kernels.squared_lengths(value, gram)


def pass_down(
    scores: Scores,
    rows: Tensor,
    weighing: Weighing,
    own: Tensor | None = None,
    normalized: bool = False,
    clipped: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Compute ``out[k] = Σ_q r[q]·(E[q, k] + [q = k]·own[q]) / t[q]`` for each row r of [batch, row, query].

    The result is [batch, row, key]. E contains the edge weights by ``weighing``, computed for a few queries at a time.
    Rows on another device than the layer are moved there, and the results are moved back.

    own: the weight of the residual connection, [batch, query].
    normalized: t is the sum of a row of E and of its own part, so that rows sum to one; otherwise t is one.
    clipped: negative values in E, after heads are summed, count as zero, and a row of zeros stays where it is.
    reach: the result of `reach_of` for the rows; None finds out which queries they touch.
    """
    home, rows = rows.device, rows.to(scores.query.device)
    own = None if own is None else own.to(rows.device)
    scores = _with_lse(scores)
    out = rows.new_zeros(rows.shape[0], rows.shape[1], scores.keys)
    offset = scores.keys - scores.queries
    blocks = list(row_blocks(scores, rows) if reach is None else _query_blocks(scores, 0, reach))
    edges_at = _edges_at(scores, weighing, blocks)
    for start, stop in blocks:
        edges = edges_at(start, stop).to(rows.dtype)  # [batch, query, key]
        edges = edges.clamp_(min=0) if clipped else edges
        r, stays = rows[:, :, start:stop], None if own is None else own[:, start:stop]
        if normalized or clipped:
            total = edges.sum(-1) if stays is None else edges.sum(-1) + stays
            if clipped:
                stays = torch.where(total == 0, 1, 0 if stays is None else stays)
            r = r / torch.where(total == 0, 1, total)[:, None] if normalized else r
        out[:, :, : edges.shape[-1]] += _thin(r, edges)
        if stays is not None:
            out[:, :, start + offset : stop + offset] += r * stays[:, None]
    return out.to(home)


def row_blocks(scores: Scores, rows: Tensor) -> Iterator[tuple[int, int]]:
    """Yield ranges of queries that cover all nonzero entries of ``rows``, a few at a time."""
    touched = (rows != 0).flatten(0, 1).any(0).nonzero().flatten()
    if len(touched) <= FEW:
        yield from ((q, q + 1) for q in touched.tolist())
        return
    yield from _query_blocks(scores, int(touched[0]), int(touched[-1]) + 1)


def _query_blocks(scores: Scores, first: int, last: int) -> Iterator[tuple[int, int]]:
    if not _has_kernels(scores):
        yield from scores.blocks(first=first, last=last)
        return
    step = max(128, EDGE_BYTES // (scores.query.shape[0] * scores.keys * 4) // 128 * 128)
    yield from ((start, min(start + step, last)) for start in range(first, last, step))


def row_sums(scores: Scores, weighing: Weighing, own: Tensor | None = None) -> Tensor:
    """Compute ``t[q] = Σ_k E[q, k] + own[q]``: [batch, query], by which `pass_down` divides rows."""
    every = torch.ones(1, 1, scores.queries, device=scores.query.device)
    scores = _with_lse(scores)
    blocks = list(row_blocks(scores, every))
    edges_at = _edges_at(scores, weighing, blocks)
    sums = torch.cat([edges_at(*block).sum(-1) for block in blocks], dim=1)
    return sums if own is None else sums + own


def _edges_at(scores: Scores, weighing: Weighing, blocks: Sequence[tuple[int, int]]) -> Callable[[int, int], Tensor]:
    """Return `edge_rows` of these operands, prepared for these blocks of queries."""
    exponents = exponents_of(scores, weighing) if sum(stop - start for start, stop in blocks) > FEW else None
    return partial(edge_rows, scores, weighing) if exponents is None else exponents.edge_rows


def edge_rows(scores: Scores, weighing: Weighing, start: int, stop: int, out: Tensor | None = None) -> Tensor:
    """Return rows ``start:stop`` of the edge weights, heads summed: [batch, stop - start, keys that these rows see].

    out: rows [batch, stop - start, key] to add them to, instead of new ones.
    """
    keys = scores.visible(stop)
    room = None if out is None else out[..., :keys]
    if not _has_kernels(scores) or stop - start == 1:  # a kernel works on tiles of many queries
        edges = scores.edge_rows(weighing, start, stop)
        return edges if room is None else room.add_(edges)
    from attnflow.capture import edge_kernels

    spans = _spans(scores)
    return edge_kernels.edge_rows(
        scores.query[:, :, start:stop],
        scores.key[:, :, :keys],
        _lse(scores)[:, :, start:stop],
        factor=weighing.factor,
        offset=scores.keys - scores.queries + start,
        spans=None if spans is None else (spans[0][:, start:stop].contiguous(), spans[1][:, start:stop].contiguous()),
        lengths=None if weighing.lengths is None else weighing.lengths[:, :, :keys],
        direction=None if weighing.direction is None else weighing.direction[:, :, start:stop],
        value=None if weighing.value is None else weighing.value[:, :, :keys],
        signed=weighing.signed,
        out=room,
        **_options(scores, start, stop, keys),
    )


def _with_lse(scores: Scores) -> Scores:
    """Return the operands with the log-sum-exp of their rows, if kernels need it."""
    return replace(scores, lse=_lse(scores)) if _has_kernels(scores) and scores.lse is None else scores


def _lse(scores: Scores) -> Tensor:
    if scores.lse is not None:
        return scores.lse
    from attnflow.capture import kernels

    return kernels.log_sum_exp(scores.query, scores.key, sinks=scores.sinks, spans=_spans(scores), **_options(scores))


def _options(scores: Scores, start: int = 0, stop: int | None = None, keys: int | None = None) -> dict[str, Any]:
    """Return the kernel options for the scores of queries ``start:stop`` with the first keys."""
    rule = scores.mask if isinstance(scores.mask, LazyMask) else None
    causal = scores.causal or (rule is not None and not _irregular(scores) and rule.plain != "full")
    bias = scores.bias
    if bias is not None:
        rows = bias if bias.shape[-2] == 1 else bias[..., start:stop, :]
        bias = rows if bias.shape[-1] == 1 else rows[..., :keys]
    window = None if rule is None or _irregular(scores) else rule.window
    return {"scale": scores.scale, "causal": causal, "window": window, "softcap": scores.softcap, "bias": bias}


def _spans(scores: Scores) -> tuple[Tensor, Tensor] | None:
    """Return the first and the last key of every query, for a mask that is not plain or a window but has spans."""
    spans = scores.mask.spans if isinstance(scores.mask, LazyMask) and _irregular(scores) else None
    return None if spans is None else (spans[0].to(scores.query.device), spans[1].to(scores.query.device))


def _has_kernels(scores: Scores) -> bool:
    """Return whether kernels support this attention: on a GPU, with a mask that gives every query one range of keys."""
    known = scores.query.is_cuda and scores.query.dtype in KERNEL_TYPES and scores.before is None and _has_triton()
    return known and (not _irregular(scores) or _spans(scores) is not None)


def _thin(rows: Tensor, edges: Tensor) -> Tensor:
    if rows.is_cuda and rows.dtype == torch.float32 and _has_triton():
        from attnflow.capture import edge_kernels

        return edge_kernels.thin_product(rows, edges)
    return torch.matmul(rows, edges)


def _irregular(scores: Scores) -> bool:
    """Return whether the mask is neither causal, nor a window, nor absent: padding, chunks, overlays, matrices."""
    if isinstance(scores.mask, LazyMask):
        return scores.mask.plain is None and scores.mask.window is None
    return scores.mask is not None


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
