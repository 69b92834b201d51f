"""Which differences are rounding: the check allows what a model itself amplifies, and refuses more than that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnflow.capture import check

IDS = {"input_ids": torch.arange(6)[None]}


class Amplifier(torch.nn.Module):
    """A model whose output moves by `gain` times the change of its embeddings."""

    def __init__(self, gain: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(8, 4, dtype=dtype)
        self.gain = gain

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.gain * self.embedding(input_ids))


def run(model: torch.nn.Module, difference: float) -> bool:
    def forward(tensors: Any) -> Any:
        with torch.no_grad():
            return model(**tensors)

    return check.is_close(difference, model, forward, IDS, check.float_outputs(forward(IDS)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_model_that_amplifies_rounding_is_given_its_noise(dtype: torch.dtype) -> None:
    noise = 1e4 * 2**-23  # an embedding of about one, changed in its last digit
    assert run(Amplifier(1e4, dtype), noise) and not run(Amplifier(1e4, dtype), 100 * noise)
    assert not run(Amplifier(1.0, dtype), noise)


def test_a_model_that_a_last_digit_turns_is_given_nothing() -> None:
    """If rounding decides everything, as between equal scores, a wrong output would pass for a rounded one."""
    turned = Amplifier(1e8)  # its outputs are anything between -1 and 1
    assert not run(turned, 0.5) and not run(turned, 0.02) and run(turned, 0.009)


def test_half_precision_and_models_without_embeddings_have_the_tolerance_alone() -> None:
    assert not run(Amplifier(1e4, torch.bfloat16), 0.2) and run(Amplifier(1e4, torch.bfloat16), 0.09)
    bare = Amplifier(1e4)
    bare.get_input_embeddings = lambda: None  # type: ignore[method-assign, assignment, return-value]
    assert not run(bare, 1e-3) and run(bare, 1e-5)
