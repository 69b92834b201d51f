"""The benchmark of long contexts on the CPU, with a small model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the benchmark runs a model")

import attnflow as af
from benchmarks.long_cpu import ROW, SPAN, compared, main
from benchmarks.long_gpu import setting


def test_a_row_and_a_span_stand_beside_the_forward() -> None:
    s = setting("tiny", 2, 80, 6, None)
    rows = compared(s.wrapped, s.ids, 6, 3)
    assert [(row["tokens"], row["what"]) for row in rows] == [(80, ROW), (80, SPAN)]
    for row in rows:
        assert row["sum"] == pytest.approx(1, abs=1e-5) and row["forward_s"] > 0
        assert row["times"] == pytest.approx(row["explained_s"] / row["forward_s"])
        assert row["matrices_mb"] == 2 * 80 * 80 * 4 / 2**20


def test_a_text_shorter_than_the_span_is_refused() -> None:
    with pytest.raises(af.InputError, match=r"^100 tokens: expected at least the 256 tokens of a span$"):
        main("nowhere", lengths="1024,100", span=256)
