"""Prompts with a known source of the answer: where the source is, and that the halves are disjoint."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest

from benchmarks.puzzles import (
    BUILDERS,
    EXAMPLES,
    KINDS,
    SENTENCES,
    Puzzle,
    tracking,
)


def units(puzzle: Puzzle) -> list[str]:
    return [puzzle.prompt[a : b - 1] for a, b in puzzle.units]


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_stands_once_and_in_one_unit(kind: str) -> None:
    for seed in range(60):
        puzzle = BUILDERS[kind](seed, SENTENCES)
        assert puzzle == BUILDERS[kind](seed, SENTENCES)
        assert puzzle.prompt[puzzle.at :].startswith(puzzle.expected)
        assert len(re.findall(rf"\b{puzzle.expected}\b", puzzle.prompt)) == 1
        (source,) = [(a, b) for a, b in puzzle.units if a <= puzzle.at < b]
        assert puzzle.at + len(puzzle.expected) <= source[1]
        assert puzzle.units[-1][1] < len(puzzle.prompt), "the question is in no unit"
        assert f"{' '.join(units(puzzle))} " in puzzle.prompt and all(text.endswith(".") for text in units(puzzle))


@pytest.mark.parametrize("kind", KINDS)
def test_seen_and_unseen_seeds_never_meet(kind: str) -> None:
    """The halves share no prompt, and no sentence of the real text around it."""
    halves = [[BUILDERS[kind](seed, SENTENCES) for seed in range(first, 300, 2)] for first in (0, 1)]
    assert not {p.prompt for p in halves[0]} & {p.prompt for p in halves[1]}
    assert all(len({p.prompt for p in half}) == 150 for half in halves)
    seen, unseen = ({text for p in half for text in units(p)} & {*SENTENCES} for half in halves)
    assert not seen & unseen
    if kind in ("needle", "copy", "induction"):
        assert len(seen) > 70 < len(unseen)


def test_a_chain_leads_to_the_value() -> None:
    """Follows the equations from the variable in the question to its number."""
    lengths = Counter()
    for seed in range(200):
        puzzle = tracking(seed)
        lines = units(puzzle)
        equations = dict(line.rstrip(".").split(" = ") for line in lines)
        assert len(equations) == len(lines) and puzzle.prompt.startswith(EXAMPLES)
        variable = re.search(r"What number is (\w+)\? The number is$", puzzle.prompt)[1]
        way = [variable]
        while way[-1] in equations:
            way.append(equations[way[-1]])
        assert way[-1] == puzzle.expected
        assert [lines[k] for k in puzzle.chain] == [f"{a} = {b}." for a, b in pairwise(way)][::-1]
        assert list(puzzle.chain) == sorted(puzzle.chain), "each variable is known when it is used"
        numbers = [value for value in equations.values() if value.isdigit()]
        assert 2 <= len(numbers) <= 4 and len(set(numbers)) == len(numbers)
        lengths[len(puzzle.chain) - 1] += 1
    assert set(lengths) == {1, 2, 3}
