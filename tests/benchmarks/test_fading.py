"""The gradient by attention's scores, against finite differences of a mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnflow as af
from benchmarks.fading import combined, fading
from helpers.architectures import LLAMA, hf

IDS, ANSWER = [3, 17, 5, 40, 8, 22, 9], [11, 30, 4]


def log_probability(network: torch.nn.Module, fade: np.ndarray, first: int) -> float:
    tokens = torch.tensor([[*IDS, *ANSWER[:-1]]])
    n = tokens.shape[1]
    mask = torch.zeros(n, n, dtype=torch.float64).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -1e30)
    mask[first:, : len(IDS)] += torch.tensor(fade)
    with torch.no_grad():
        logits = network(input_ids=tokens, attention_mask=mask[None, None]).logits[0, len(IDS) - 1 :]
    return float(logits.log_softmax(-1)[range(len(ANSWER)), ANSWER].sum())


@pytest.mark.parametrize("every", [False, True])
def test_fading_is_the_derivative_by_a_mask(every: bool) -> None:
    network = hf("LlamaForCausalLM", **LLAMA)().double().eval()
    values = fading(af.wrap(network), IDS, ANSWER, every)
    step, first = 1e-2, 0 if every else len(IDS) - 1  # the network computes parts of attention in single precision
    for k in range(len(IDS)):
        fade = np.zeros(len(IDS))
        fade[k] = step
        slope = (log_probability(network, fade, first) - log_probability(network, -fade, first)) / (2 * step)
        assert values[k] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_units_add_up_on_one_scale() -> None:
    rows, faded = np.array([1.0, 3.0, 0.0, -2.0]), np.array([0.1, 0.1, -0.3, 0.1])
    units = [[0, 1], [2, 3]]
    one = np.array([4.0, -2.0]) / np.sqrt(10) + np.array([0.2, -0.2]) / 0.2
    np.testing.assert_allclose(combined(rows, faded, units), one)
    np.testing.assert_allclose(combined(100 * rows, faded, units), one)
    np.testing.assert_allclose(combined(np.zeros(4), faded, units), [1, -1])
