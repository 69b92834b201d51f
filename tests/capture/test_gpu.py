"""Traces on a CUDA GPU give the same numbers as on the CPU, with and without matrices. Skipped without a GPU."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache, StaticCache

import attnflow as af
from attnflow.edges import EDGES, batched
from attnflow.edges.batched import TextBatch
from attnflow.evaluate import grid
from helpers.architectures import LLAMA, POSITIONS, hf, ids

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
    linear = model.trace(given, memory="linear", queries=asked, layers=[-1, 0])
    np.testing.assert_allclose(linear.rollout().values, graph.rollout(query=asked, layer=[-1, 0]).values, atol=slack)
    one = model.trace(given, memory="linear", queries=[-1]).rollout().values
    np.testing.assert_allclose(one[0], graph.rollout(query=-1, layer=-1).values[0], atol=slack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("edges", ["mean", "head-norm", "projection"])
@pytest.mark.parametrize("name", ["BERT", "Llama", "Mistral", "gpt-oss", "large heads"])
def test_edges_without_matrices_are_those_of_the_cpu(name: str, edges: str, dtype: torch.dtype) -> None:
    texts = [{"input_ids": ids(n, n)} for n in (500, 130, 321)]
    options = {"memory": "linear", "edges": edges, "queries": [0, {-1: 0.5, 100: 0.25, 7: 0.25}], "layers": [-1, 0]}
    cpu, gpu = af.wrap(MODELS[name]()), af.wrap(MODELS[name]().to("cuda", dtype))
    expected = [cpu.trace(text, **options) for text in texts]
    slack = 2e-5 if dtype == torch.float32 else 4e-2
    for traces in ([gpu.trace(text, **options) for text in texts], gpu.trace(texts, **options)):
        for one, found in zip(expected, traces, strict=True):
            np.testing.assert_allclose(found.rollout().values, one.rollout().values, atol=slack)
            np.testing.assert_allclose(found.raw().values, one.raw().values, atol=slack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("edges", ["attention-gradient", "answer"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 2", "gpt-oss", "large heads"])
def test_gradients_without_matrices_are_those_of_the_cpu(name: str, edges: str, dtype: torch.dtype) -> None:
    if name == "gpt-oss" and dtype == torch.bfloat16:
        pytest.skip("rounding to bfloat16 sends tokens to other experts, whose gradients are others")
    given = {"input_ids": ids(500)}
    options = {"memory": "linear", "edges": edges, "answer": 7}
    expected = af.wrap(MODELS[name]()).trace(given, **options)
    gpu = af.wrap(MODELS[name]().to("cuda", dtype))
    slack = 1e-3 if dtype == torch.float32 else 0.15
    trace = gpu.trace(given, **options)
    if edges == "answer":
        rows = expected.answer_rows(signed=True).values
        found = trace.answer_rows(signed=True).values
        np.testing.assert_allclose(found, rows, atol=slack * np.abs(rows).max())
    else:
        rolled = expected.rollout().values
        np.testing.assert_allclose(trace.rollout().values, rolled, atol=slack * rolled.max())


CLASSIFIER = hf("BertForSequenceClassification", **{**POSITIONS, "max_position_embeddings": 600}, num_labels=3)


@pytest.mark.parametrize("name", ["BERT", "Llama", "gpt-oss"])
def test_many_texts_at_once_are_those_of_the_cpu(name: str) -> None:
    """Short texts keep their weights for the backward pass; longer texts recompute them."""
    build = CLASSIFIER if name == "BERT" else MODELS[name]
    cpu, gpu = af.wrap(build()), af.wrap(build().to("cuda"))
    for lengths in ((5, 30, 12, 30), (590, 130)) if name == "BERT" else ((5, 30, 12, 30),):
        texts = [{"input_ids": ids(n, n), "attention_mask": torch.ones(1, n, dtype=torch.long)} for n in lengths]
        batch = TextBatch.of(gpu, [gpu.encode(text) for text in texts])
        parts, edges = batched.split(batch), batched.edges_by_gradient(batch)
        for number, text in enumerate(texts):
            trace = cpu.trace(text, edges="answer")
            expected = {
                "rows": trace.answer_rows("all" if name == "BERT" else None, signed=True).row(),
                "inputs": trace.answer_inputs(signed=True).row(),
                "by gradients": cpu.trace(text, edges="attention-gradient").graph(0).sum((0, 1)),
            }
            values = {
                "rows": parts.answer_rows(True), "inputs": parts.answer_inputs(True),
                "by gradients": torch.stack(edges.graph()).sum((0, 2)),
            }  # fmt: skip
            for what, row in expected.items():
                mine = values[what][number, : len(row)].cpu().numpy()
                np.testing.assert_allclose(mine, row, rtol=0, atol=1e-3 * np.abs(row).max(), err_msg=what)


def test_a_gpu_is_waited_for_as_often_for_many_texts_as_for_few() -> None:
    gpu = af.wrap(CLASSIFIER().to("cuda"))

    def waits(count: int) -> int:
        texts = [
            {"input_ids": ids(n, n), "attention_mask": torch.ones(1, n, dtype=torch.long)} for n in range(9, 9 + count)
        ]
        batch = TextBatch.of(gpu, [gpu.encode(text) for text in texts])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                batched.edges_by_gradient(batch).graph()
                batched.split(batch, natural=[0] * count)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(one.message) for one in caught)

    waits(2)
    assert waits(20) == waits(3)


def test_gradients_keep_one_state_a_layer() -> None:
    """Eight more layers take only the memory of their states."""
    peaks, n = {}, 4096
    for depth in (8, 16):
        options = {**LLAMA, "hidden_size": 512, "num_hidden_layers": depth, "max_position_embeddings": n}
        model = af.wrap(hf("LlamaForCausalLM", **options)().to("cuda", torch.bfloat16))
        model.trace({"input_ids": ids(64)}, memory="linear", edges="attention-gradient").rollout()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model.trace({"input_ids": ids(n)}, memory="linear", edges="attention-gradient").rollout()
        peaks[depth] = torch.cuda.max_memory_allocated() - before
    assert peaks[16] - peaks[8] < 8 * (n * 512 * 2) * 1.5


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


FAMILIES = {
    "BERT": hf("BertForSequenceClassification", **POSITIONS),
    "GPT-2": hf("GPT2LMHeadModel", n_embd=32, n_layer=3, n_head=4, vocab_size=120),
    "Llama": hf("LlamaForCausalLM", **LLAMA),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_edges_are_those_of_the_cpu(name: str) -> None:
    given = {"input_ids": ids(11)}
    cpu, gpu = (af.wrap(FAMILIES[name]().to(device)) for device in ("cpu", "cuda"))
    for edges in EDGES:
        expected, found = (model.trace(given, edges=edges).graph() for model in (cpu, gpu))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5, err_msg=edges)


def test_a_grid_on_the_gpu_is_that_of_the_cpu() -> None:
    texts = ["the keys to the cabinet", "a man near the doors"]
    cpu, gpu = (
        grid.run(af.load(device=device), texts, steps=3, edges=["alti"], importances=["blank-out"])
        for device in ("cpu", "cuda")
    )
    for by, curves in cpu.curves.items():
        np.testing.assert_allclose(gpu.curves[by][..., [0, -1]], curves[..., [0, -1]], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 2", "gpt-oss"])
def test_answers_are_the_same_as_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    prompt, answer = ids(50)[0].tolist(), ids(6, seed=1)[0].tolist()
    expected = af.wrap(MODELS[name]()).answer(prompt, answer=answer).matrix(signed=True).values
    model = af.wrap(MODELS[name]().to("cuda", dtype))
    slack = (1e-4 if dtype == torch.float32 else 0.15) * np.abs(expected).max()
    np.testing.assert_allclose(model.answer(prompt, answer=answer).matrix(signed=True).values, expected, atol=slack)
    written = model.answer(prompt, max_new_tokens=5)
    again = model.answer(prompt, answer=list(written.ids))
    np.testing.assert_allclose(written.sources().values, again.sources().values, atol=1e-3 if slack < 1e-3 else 0.1)


LONG = {**LLAMA, "max_position_embeddings": 512}
DECODERS = {
    "Llama": hf("LlamaForCausalLM", **LONG),
    "Mistral": hf("MistralForCausalLM", **LONG, sliding_window=100),
    "Gemma 2": hf("Gemma2ForCausalLM", **LONG, head_dim=16, sliding_window=100, attn_logit_softcapping=2.0),
    "gpt-oss": hf("GptOssForCausalLM", **LONG, head_dim=16, sliding_window=100, num_local_experts=4),
    "large heads": hf("LlamaForCausalLM", **{**LONG, "hidden_size": 512}),
}


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_an_answer_on_a_cache_where_it_lies(name: str, dtype: torch.dtype, kind: str) -> None:
    prompt, answer = ids(300)[0].tolist(), ids(7, 3)[0].tolist()
    expected = af.wrap(DECODERS[name]()).answer(prompt, answer=answer).sources(signed=True).values
    model = af.wrap(DECODERS[name]().to("cuda", dtype))
    cache = DynamicCache() if kind != "static" else StaticCache(model.model.config, max_cache_len=400)
    with torch.no_grad():
        model.model(torch.tensor([prompt[:-1]], device="cuda"), past_key_values=cache, use_cache=True)
    values = model.answer(prompt, answer=answer, cache=cache).sources(signed=True).values
    assert model.reads_in_place
    slack = 1e-4 if dtype == torch.float32 else 6e-2
    np.testing.assert_allclose(values, expected, atol=slack * np.abs(expected).max())


def test_an_answer_copies_none_of_its_cache() -> None:
    sizes = {**LLAMA, "hidden_size": 512, "max_position_embeddings": 1 << 16, "num_key_value_heads": 4}
    model = af.wrap(hf("LlamaForCausalLM", **sizes)().to("cuda", torch.bfloat16))
    prompt, answer = ids(32768)[0].tolist(), ids(16, 3)[0].tolist()
    cache = DynamicCache()
    with torch.no_grad():
        model.model(torch.tensor([prompt], device="cuda"), past_key_values=cache, use_cache=True, logits_to_keep=1)
    model.answer(prompt, answer=answer, cache=cache).sources()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.answer(prompt, answer=answer, cache=cache).matrix()
    keys = cache.layers[0].keys
    rows = 16 * 32768 * 4  # the edges of its rows, which are the only matrix
    # plus the check that the cache fits the prompt: 8,192 keys at a time, in double precision
    assert torch.cuda.max_memory_allocated() - before < 3 * rows + 8 * 8192 * 512 * 8
    assert keys.shape[2] >= 32768
