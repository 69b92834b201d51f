"""The benchmark of flow on a GPU, run without one: one call per batch against one call per text."""

from __future__ import annotations

from benchmarks.flow_device import all_pairs, corpus, measure


def test_one_call_and_a_call_a_text_agree() -> None:
    case, ways = corpus(5, 12, 4, gpu=False)
    batch, texts = measure(case, ways, 1, lambda _: None)
    assert case == "5 texts of 4 × 6 to 12, one query"
    assert (batch.apart, texts.apart) == (0, 0)
    assert batch.pairs == texts.pairs and batch.steps == texts.steps
    assert batch.seconds > 0 and texts.way == "a call a text"


def test_all_pairs_of_a_graph_by_the_solver_alone() -> None:
    case, ways = all_pairs("causal", 10, 4, gpu=False)
    (row,) = measure(case, ways, 1, lambda _: None)
    assert (row.case, row.pairs, row.apart) == ("causal, 4 × 10, all pairs", 400, 0)
