"""How fast an answer falls as attention to a prompt token fades, against finite differences of a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

import attnflow as af
from attnflow.capture.answer_pass import run_answer
from attnflow.capture.generate import Written
from helpers.architectures import LLAMA, hf

PROMPT, ANSWER = (3, 17, 5, 40, 8, 22, 9, 31, 14), (11, 30, 4)
STEP = 1e-2
"""The step cannot be small, because the networks compute parts of attention in single precision."""

SMALL: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "Llama": hf("LlamaForCausalLM", **LLAMA),
    "Gemma 2, softcap": hf("Gemma2ForCausalLM", **SMALL, attn_logit_softcapping=2.0, sliding_window=32),
    "GPT-2": hf("GPT2LMHeadModel", vocab_size=120, n_embd=64, n_layer=3, n_head=4, n_positions=64),
}


def log_probability(network: Any, fade: np.ndarray) -> float:
    """Return the answer's log-probability with these numbers added to all scores of the positions that decide it."""
    tokens = torch.tensor([[*PROMPT, *ANSWER[:-1]]])
    n = tokens.shape[1]
    mask = torch.zeros(n, n, dtype=torch.float64).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -1e30)
    mask[len(PROMPT) - 1 :, : len(PROMPT)] += torch.tensor(fade)
    with torch.no_grad():
        logits = network(input_ids=tokens, attention_mask=mask[None, None]).logits[0, len(PROMPT) - 1 :]
    return float(logits.double().log_softmax(-1)[range(len(ANSWER)), ANSWER].sum())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_fading_is_the_derivative_by_a_mask(name: str, cached: bool) -> None:
    network = MODELS[name]().double().eval()
    cache = None
    if cached:
        cache = DynamicCache(config=network.config)
        with torch.no_grad():
            network(input_ids=torch.tensor([PROMPT[:-1]]), past_key_values=cache, use_cache=True)
    faded = run_answer(af.wrap(network), PROMPT, Written(ANSWER, cache), freeze=False).fading(range(len(ANSWER)))
    assert faded.shape == (len(PROMPT),)
    for k in range(len(PROMPT)):
        fade = np.zeros(len(PROMPT))
        fade[k] = STEP
        slope = (log_probability(network, fade) - log_probability(network, -fade)) / (2 * STEP)
        assert faded[k] == pytest.approx(slope, rel=2e-3, abs=2e-6)
