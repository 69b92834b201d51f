"""Traces on a CUDA GPU: the same numbers as on the CPU, by matrices and without them. Skipped where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnflow as af
from architectures import LLAMA, POSITIONS, hf, ids

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")

MODELS = {
    "BERT": hf("BertModel", **{**POSITIONS, "max_position_embeddings": 600}),
    "Llama": hf("LlamaForCausalLM", **LLAMA),
    "Mistral": hf("MistralForCausalLM", **LLAMA, sliding_window=100),
    "Gemma 2": hf("Gemma2ForCausalLM", **LLAMA, head_dim=16, sliding_window=100, attn_logit_softcapping=2.0),
    "gpt-oss": hf("GptOssForCausalLM", **LLAMA, head_dim=16, sliding_window=100, num_local_experts=4),
    "T5": hf("T5EncoderModel", vocab_size=120, d_model=64, d_kv=16, d_ff=48, num_layers=3, num_heads=4),
    "large heads": hf("LlamaForCausalLM", **{**LLAMA, "hidden_size": 512}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_same_as_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    given = {"input_ids": ids(500)}
    asked = [0, 250, 499]
    expected = af.wrap(MODELS[name]()).trace(given).rollout(query=asked, layer=[-1, 0]).values
    model = af.wrap(MODELS[name]().to("cuda", dtype))
    slack = 5e-6 if dtype == torch.float32 else 3e-2
    graph = model.trace(given)
    np.testing.assert_allclose(graph.rollout(query=asked, layer=[-1, 0]).values, expected, atol=slack)
    for offload in (False, True):
        linear = model.trace(given, memory="linear", queries=asked, layers=[-1, 0], offload=offload)
        np.testing.assert_allclose(
            linear.rollout().values, graph.rollout(query=asked, layer=[-1, 0]).values, atol=slack
        )
        one = model.trace(given, memory="linear", queries=[-1], offload=offload).rollout().values
        np.testing.assert_allclose(one[0], graph.rollout(query=-1, layer=-1).values[0], atol=slack)


def test_memory_is_linear() -> None:
    model = af.wrap(
        hf("LlamaForCausalLM", **{**LLAMA, "hidden_size": 512, "max_position_embeddings": 1 << 16})().to(
            "cuda", torch.bfloat16
        )
    )
    peaks = []
    model.trace({"input_ids": ids(64)}, memory="linear").rollout()
    for n in (8192, 16384, 32768):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model.trace({"input_ids": ids(n)}, memory="linear").rollout()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.5 * peaks[0] and peaks[2] < 2.5 * peaks[1]
    assert peaks[2] < 32768**2  # not even one matrix of bytes
