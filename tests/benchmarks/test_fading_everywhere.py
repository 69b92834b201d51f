"""Fading of all positions, compared with finite differences of a mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnflow as af
from benchmarks.fading import fading_everywhere
from helpers.architectures import LLAMA, hf

IDS, ANSWER = [3, 17, 5, 40, 8, 22, 9], [11, 30, 4]
STEP = 1e-2


def log_probability(network: torch.nn.Module, fade: np.ndarray) -> float:
    tokens = torch.tensor([[*IDS, *ANSWER[:-1]]])
    n = tokens.shape[1]
    mask = torch.zeros(n, n, dtype=torch.float64).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -1e30)
    mask[:, : len(IDS)] += torch.tensor(fade)
    with torch.no_grad():
        logits = network(input_ids=tokens, attention_mask=mask[None, None]).logits[0, len(IDS) - 1 :]
    return float(logits.log_softmax(-1)[range(len(ANSWER)), ANSWER].sum())


def test_fading_everywhere_is_the_derivative_by_a_mask() -> None:
    network = hf("LlamaForCausalLM", **LLAMA)().double().eval()
    values = fading_everywhere(af.wrap(network), IDS, ANSWER)
    for k in range(len(IDS)):
        fade = np.zeros(len(IDS))
        fade[k] = STEP
        slope = (log_probability(network, fade) - log_probability(network, -fade)) / (2 * STEP)
        assert values[k] == pytest.approx(slope, rel=1e-3, abs=1e-6)
