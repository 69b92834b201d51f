"""The number of passes in the first trace, which includes the self-check against the bare model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import attnflow as af
from helpers.architectures import POSITIONS, hf, text
from helpers.deployed import bert, llama

deberta = hf(
    "DebertaV2Model", **POSITIONS, relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False
)


def passes_of(model: Any) -> list[int]:
    """Count the forward passes of a model's first trace and of the next one."""
    passes: list[None] = []
    model.register_forward_hook(lambda *_: passes.append(None))
    wrapped, counts = af.wrap(model), [0]
    for _ in range(2):
        wrapped.trace(text())
        counts.append(len(passes))
    return [counts[1] - counts[0], counts[2] - counts[1]]


@pytest.mark.parametrize(
    ("build", "first"), [(llama, 11), (bert, 11), (lambda: llama("eager"), 11), (lambda: deberta("eager"), 13)]
)
def test_the_self_check_costs_no_more_passes_than_ever(build: Callable[[], Any], first: int) -> None:
    assert passes_of(build()) == [first, 1]
