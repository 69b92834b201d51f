"""The arithmetic of models over several GPUs, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnflow.errors import InputError
from benchmarks.large_model import (
    COUNT,
    EIGHT,
    RANK,
    SEVENTY,
    STAGE,
    by_operations,
    compared,
    computed_bytes,
    sent,
    shown,
    shown_sum,
    shown_times,
    sums,
    times,
)

PAGE = (Path(__file__).parents[2] / "docs" / "large.md").read_text()


def test_the_page_shows_what_the_command_prints() -> None:
    lines = [(row.what, *shown_sum(row)) for row in sums(SEVENTY, COUNT)]
    lines += [(row.what, *shown_times(row)) for row in times(SEVENTY, COUNT)]
    lines += [(what, f"{size:,}", f"{size:,}") for what, size in computed_bytes().values()]
    assert len(lines) == 17
    for line in lines:
        assert f"| {' | '.join(line)} |" in PAGE, line
    words = " ".join(PAGE.split())
    for part in (RANK, STAGE):
        for seconds in part.values():
            assert f"{seconds:g}" in words, seconds
    assert f"{by_operations(COUNT):.1f} s for the forward of either part" in words


def test_sizes_are_those_of_the_models() -> None:
    assert SEVENTY.parameters == 70_553_706_496 and EIGHT.parameters == 8_030_261_248  # as transformers counts
    assert SEVENTY.cache_bytes(131_072) == 2 * 80 * 8 * 128 * 131_072 * 2
    assert sent(800, 8) == 1400 and shown(999) == "999 B"


def test_times_are_of_the_shape_that_was_measured() -> None:
    assert times(SEVENTY, 4) == [] and times(EIGHT, COUNT) == []


def test_the_small_model_has_two_heads_of_keys() -> None:
    with pytest.raises(InputError, match="--ranks 3: the small model has 2 key heads; expected 2"):
        compared(3)
