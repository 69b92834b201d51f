"""The agreement of edges, as docs/edges.md reports it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("transformers", reason="transformers is not installed")

import attnflow as af
from benchmarks.edge_agreement import PAIRS, agreement, sentences


def test_agreement_is_the_mean_over_sentences() -> None:
    model, texts = af.load(), sentences()[:3]
    rows = agreement(model, texts)
    assert [(row["edges"], row["with"]) for row in rows] == list(PAIRS)
    expected = []
    for text in texts:
        ours, other = (model.trace(text, edges=e).rollout(layer=-1).values[0, 0] for e in ("head-norm", "block-norm"))
        expected.append((stats.spearmanr(ours, other)[0], stats.pearsonr(ours, other)[0]))
    row = rows[PAIRS.index(("head-norm", "block-norm"))]
    np.testing.assert_allclose([row["spearman"], row["pearson"]], np.mean(expected, axis=0), rtol=1e-6)
    assert row["lowest spearman"] == pytest.approx(min(r for r, _ in expected))
