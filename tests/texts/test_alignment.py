"""Aligning two texts word by word."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from attnflow.texts import alignment
from attnflow.texts.alignment import Pairs, align


def beside(one: str, other: str) -> int:
    """Return the cost of aligning two plain words, from the definition."""
    one, other = one.lower(), other.lower()
    half = max(3, (max(len(one), len(other)) + 1) // 2)
    alike = len(one) >= half and one[:half] == other[:half]
    return 0 if one == other else alignment.ALIKE if alike else alignment.OTHER


def cost(first: list[str], second: list[str], pairs: Pairs) -> int:
    """Return the cost of an alignment of plain words, from the definition."""
    return sum(alignment.GAP if i is None or j is None else beside(first[i], second[j]) for i, j in pairs)


def least(first: list[str], second: list[str]) -> int:
    """Return the least cost of all alignments, from the definition."""

    @cache
    def rest(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return alignment.GAP * (len(first) - i + len(second) - j)
        return min(
            beside(first[i], second[j]) + rest(i + 1, j + 1), alignment.GAP + min(rest(i + 1, j), rest(i, j + 1))
        )

    return rest(0, 0)


def test_every_word_once_in_order_and_at_the_least_cost() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        first, second = (
            list(rng.choice(["a", "b", "A", "keys", "key", "cabinet"], rng.integers(0, 9))) for _ in range(2)
        )
        pairs = align(first, second)
        assert [i for i, _ in pairs if i is not None] == list(range(len(first)))
        assert [j for _, j in pairs if j is not None] == list(range(len(second)))
        assert cost(first, second, pairs) == least(first, second)


def test_equal_texts_are_aligned_with_themselves() -> None:
    words = ["the", "film", "was", "not", "as", "good", "as", "the", "film"]
    assert align(words, words) == [(i, i) for i in range(len(words))]
    assert align([], []) == []


def test_a_replaced_word_stands_in_the_place_of_the_later_one() -> None:
    assert align(["a", "very", "good", "film"], ["a", "bad", "film"]) == [(0, 0), (1, None), (2, 1), (3, 2)]


def test_two_forms_of_a_word_stand_in_the_same_place() -> None:
    words = ["the", "key", "to", "my", "cabinets"], ["the", "keys", "to", "the", "cabinet", "in", "the", "hall"]
    assert align(*words) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (None, 5), (None, 6), (None, 7)]


def test_marks_of_tokenizers_and_case_do_not_count() -> None:
    assert align(["▁The", "Ġkey", "##s"], ["the", "key", "s"]) == [(0, 0), (1, 1), (2, 2)]
    assert align(["▁", "a"], ["▁", "a"]) == [(0, 0), (1, 1)]


def test_special_tokens_pair_with_special_tokens_alone() -> None:
    pairs = align(["[CLS]", "key", "[SEP]"], ["<s>", "key", "</s>"], [True, False, True], [True, False, True])
    assert pairs == [(0, 0), (1, 1), (2, 2)]
    assert align(["[CLS]"], ["key"], [True], [False]) == [(0, None), (None, 0)]


def test_texts_that_differ_too_much_count_as_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "CELLS", 3)
    assert align(list("xaby"), list("xcdy")) == [(0, 0), (1, None), (2, None), (None, 1), (None, 2), (3, 3)]
