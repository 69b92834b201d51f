"""The benchmark of leave-one-out: all implementations give the same numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the benchmark runs a model")

import attnflow as af
from benchmarks.leave_out import run
from helpers.small_models import gpt2


def test_all_ways_agree() -> None:
    rounds: list[str] = []
    rows = run(gpt2(), tokens=30, answer_tokens=4, sentence=7, rounds=1, say=rounds.append)
    assert [row["way"] for row in rows] == [
        "passes one by one, all logits", "passes one by one", "passes in batches", "leave_out", "leave_out, cache at hand",
    ]  # fmt: skip
    assert all(row["difference"] < 1e-4 and row["seconds"] > 0 for row in rows)
    assert rows[1]["times_faster"] == 1 and rounds == ["round 0 of 1", "round 1 of 1"]


def test_a_prompt_of_one_sentence_is_refused() -> None:
    with pytest.raises(af.InputError, match=r"^a prompt of 5 tokens is one sentence of 7: expected several sentences$"):
        run(gpt2(), tokens=5, answer_tokens=4, sentence=7, rounds=1, say=print)
