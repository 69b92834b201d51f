"""Edges on a CPU, by one matrix product and its exponentials, if the log-sum-exp of every row is known.

``A·length = exp(scale·q·k - lse + log length)``: the three terms form one product of queries and keys with one or two
extra entries. Hidden edges are set to zero after the heads are summed, because no denominator depends on them any more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnflow.capture.scores import LazyMask, Scores, Weighing


@dataclass(frozen=True)
class Exponents:
    """Operands of the product.

    query: [batch·head, query, size].
    key: [batch·head, size, key].
    offset: the key at the position of the first query, for causal attention; None if all keys are seen.
    """

    query: Tensor
    key: Tensor
    weighing: Weighing
    heads: int
    offset: int | None

    def edge_rows(self, start: int, stop: int) -> Tensor:
        """Compute edges as `Scores.edge_rows` does."""
        last = self.key.shape[-1] if self.offset is None else self.offset + stop
        parts = torch.bmm(self.query[:, start:stop], self.key[..., :last]).exp_()
        parts = parts.unflatten(0, (-1, self.heads))  # [batch, head, query, key]
        if self.weighing.direction is None:
            edges = parts.sum(1).mul_(self.weighing.factor)
        else:
            edges = self.weighing.of(parts, start, stop)
        if self.offset is not None and stop - start > 1:
            hidden = torch.ones(stop - start, stop - start, dtype=torch.bool).triu_(1)
            edges[..., self.offset + start :].masked_fill_(hidden, 0)
        return edges


def exponents_of(scores: Scores, weighing: Weighing) -> Exponents | None:
    """Return the operands for these edges; None if the log-sum-exp is unknown, or the mask is of another kind."""
    plain = scores.mask.plain if isinstance(scores.mask, LazyMask) else "causal" if scores.causal else "full"
    matrix = isinstance(scores.mask, Tensor)
    other = scores.softcap is not None or scores.bias is not None or scores.sinks is not None or scores.partial
    if scores.lse is None or scores.query.is_cuda or scores.before is not None or matrix or other or plain is None:
        return None
    if scores.query.dtype not in (torch.float32, torch.float64):
        return None
    batch, heads, queries, _ = scores.query.shape
    one = scores.query.new_ones(1, 1, 1, 1)
    query = [scores.query * scores.scale, -scores.lse[..., None].to(scores.query)]
    key = [scores.key.repeat_interleave(heads // scores.key.shape[1], 1), one.expand(batch, heads, scores.keys, 1)]
    if weighing.lengths is not None:
        query.append(one.expand(batch, heads, queries, 1))
        key.append(weighing.lengths[..., None].to(scores.key).log())
    offset = scores.keys - queries if plain == "causal" else None
    # keys in columns: products with some of them read whole rows of memory
    columns = torch.cat(key, -1).flatten(0, 1).mT.contiguous()
    return Exponents(torch.cat(query, -1).flatten(0, 1), columns, weighing, heads, offset)
