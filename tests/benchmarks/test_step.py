"""The references of `python -m benchmarks.step`, compared with the library's products on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnflow.capture.linear import pass_down, step
from attnflow.capture.scores import Scores, Weighing
from benchmarks import step as benchmark
from benchmarks.step import HEADS, KV_HEADS, SIZE


def test_the_references_are_what_the_library_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "QUERIES_AT_ONCE", 30)  # several blocks
    generator, n = torch.Generator().manual_seed(0), 70

    def normal(heads: int) -> torch.Tensor:
        return torch.randn(1, heads, n, SIZE, generator=generator, dtype=torch.float64)

    query, key, value, direction = normal(HEADS), normal(KV_HEADS), normal(KV_HEADS), normal(HEADS)
    rows, lengths, own = (torch.rand(1, count, n, generator=generator, dtype=torch.float64) for count in (3, HEADS, 1))
    scores = Scores(query, key, SIZE**-0.5, causal=True)
    products = query @ key.repeat_interleave(HEADS // KV_HEADS, 1).mT * SIZE**-0.5
    lse = products.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).logsumexp(-1)
    scores, sample = replace(scores, lse=lse), torch.tensor([0, 3, 50, n - 1])
    mean, directed = Weighing(1 / HEADS), Weighing(1 / HEADS, direction=direction, value=value)
    for weighing, expected in ((mean, step(scores, rows)), (directed, pass_down(scores, rows, directed))):
        reference = benchmark._reference(torch, query, key, lse, rows, sample, weighing)
        torch.testing.assert_close(reference, expected[:, :, sample], rtol=1e-12, atol=1e-12)
    normed = Weighing(1.0, lengths=lengths)
    shares = rows / (benchmark._row_sums(torch, query, key, lse, lengths) + own[:, 0])[:, None]
    reference = benchmark._reference(torch, query, key, lse, shares, sample, normed) + (shares * own)[:, :, sample]
    expected = pass_down(scores, rows, normed, own[:, 0], normalized=True)
    torch.testing.assert_close(reference, expected[:, :, sample], rtol=1e-12, atol=1e-12)
