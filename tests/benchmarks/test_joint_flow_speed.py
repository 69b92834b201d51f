"""The benchmark of joint flow: its extrapolation, and its measurements on texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnflow as af
from benchmarks.joint_flow import Timing, edges_of, extrapolated, graph, growth, published, speed_table, timings, worth


def test_growth_is_that_of_the_last_four_times() -> None:
    times = [(10, 99.0), *((edges, 2e-9 * edges**2.5) for edges in (100, 200, 400, 800))]
    assert growth(times) == pytest.approx(2.5) and growth(times[:3]) != pytest.approx(2.5)
    assert extrapolated(times, 8_000) == pytest.approx(2e-9 * 8_000**2.5)


def test_sizes_beyond_the_limit_are_ours_alone() -> None:
    """Two sizes are enough to extrapolate to a third."""
    rows = list(timings([(3, 2), (4, 2), (40, 3)], limit=1e-9))
    assert [row.published is None for row in rows] == [False, False, True]
    assert [row.edges for row in rows] == [12, 20, 40 + 2 * 1600]
    assert all(row.gap < 1e-9 for row in rows) and rows[0].ratio and rows[2].ratio is None
    assert all((row.apart or 0) < 1e-5 for row in rows)


def test_the_table_says_how_far_it_extrapolates() -> None:
    rows = [Timing(n, 2, n * n, 1e-3, 1e-13, 1e-9 * n**6, 1e-9) for n in (10, 20, 40)]
    table, sentence = speed_table([*rows, Timing(80, 2, 6400, 1e-3, 1e-13)])
    assert table.row_count == 4
    assert sentence == (
        "SLSQP grows with the power 3.00 of the edges over its last 3 sizes. Extrapolated to 80 × 2, from 4 times "
        "fewer edges: 0.0 days, 262,144 times ours. If it grew only with the square, it would be 65,536 times."
    )
    assert speed_table(rows)[1] == ""


def test_the_graph_and_the_published_formulation() -> None:
    A = graph(5, 3)
    np.testing.assert_allclose(A.sum(-1), 1)
    assert A.shape == (3, 5, 5) and edges_of(5, 3) == 5 + 50
    joint, slow = af.least_norm_flow(A * 7, 0), published(list(A * 7), 0, 7.0)
    assert slow.objective == pytest.approx(joint.objective, rel=1e-6) and slow.steps > 1


def test_worth_counts_ties_and_how_far_queries_are_apart(tmp_path: Path) -> None:
    table = tmp_path / "texts.tsv"
    lines = [
        "A niece of most senators\tis\tare",
        "The keys to the cabinet\tare\tis",
        "The sketch of those trucks\tis\tare",
    ]
    table.write_text("\n".join(["prefix\tgood\tbad", *lines]) + "\n")
    rows = worth(af.load(), table, 2, "seen", first=0)
    assert [row.texts for row in rows] == [2] * 9  # rows 0 and 2
    (later, *_) = worth(af.load(), table, 2, "seen", first=1)
    assert later.texts == 1  # row 2
    by_name = {(row.edges, row.method): row for row in rows}
    assert by_name["mean", "joint_flow"].ties == 0 and by_name["mean", "joint_flow"].apart < 0.001
    assert by_name["mean", "rollout"].apart > 0.02
    assert by_name["attention-gradient (graph)", "joint_flow"].apart > 0.1
