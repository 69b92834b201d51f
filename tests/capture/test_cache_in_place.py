"""Answers explained on a cache in place: the same parts as with the cache and the new keys joined, but no copy."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import DynamicCache, StaticCache

import attnflow as af
from attnflow.capture import answer_pass
from attnflow.capture.answer_pass import Parts, run_answer
from attnflow.capture.collect import lazy_mask
from attnflow.capture.generate import Written
from attnflow.capture.kv_cache import snapshot
from attnflow.capture.linear import add_edge_rows
from attnflow.capture.scores import Scores, Weighing
from helpers.architectures import LLAMA, hf

LONG = {**LLAMA, "max_position_embeddings": 1024, "pad_token_id": 0}
HEADS = {**LONG, "head_dim": 8}
MODELS = {
    "Llama": hf("LlamaForCausalLM", **LONG),
    "Mistral": hf("MistralForCausalLM", **LONG, sliding_window=5),
    "Gemma 2": hf("Gemma2ForCausalLM", **HEADS, sliding_window=5, attn_logit_softcapping=2.0),
    "gpt-oss": hf("GptOssForCausalLM", **HEADS, sliding_window=5, num_local_experts=4),
    "GPT-2": hf("GPT2LMHeadModel", vocab_size=120, n_embd=32, n_layer=3, n_head=4, n_positions=1024),
}
WINDOWS = ("Mistral", "Gemma 2", "gpt-oss")
PROMPT = torch.randint(2, 120, (23,), generator=torch.Generator().manual_seed(1)).tolist()
ANSWER = (17, 42, 5, 99)


@cache
def model(name: str) -> Any:
    """Return a model in double precision, with weights large enough that attention is not uniform."""
    module = MODELS[name]()
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    if name == "gpt-oss":
        module.set_experts_implementation("eager")  # the grouped product of experts does not support double precision
    return af.wrap(module.double())


def filled(name: str, kind: Any, ids: Any) -> Any:
    """Return a cache filled by running the model on these tokens."""
    with torch.no_grad():
        model(name).model(torch.tensor([ids]), past_key_values=kind, use_cache=True)
    return kind


def dynamic(name: str, ids: Any = (*PROMPT, *ANSWER[:-1])) -> Any:
    return filled(name, DynamicCache(), list(ids))


def static(name: str) -> Any:
    return filled(name, StaticCache(model(name).model.config, max_cache_len=64), PROMPT[:-1])


def tuples(name: str) -> Any:
    return tuple((layer.keys, layer.values) for layer in dynamic(name).layers)


def sliding(name: str, ids: Any = tuple(PROMPT[:-1])) -> Any:
    """Return a cache that keeps as many keys as the model's own windows."""
    return filled(name, DynamicCache(config=model(name).model.config), list(ids))


CACHES: dict[str, Callable[[str], Any]] = {
    "dynamic": dynamic,
    "static": static,
    "tuples": tuples,
    "sliding": sliding,
}


@cache
def run_answer_checked(name: str) -> Any:
    run_answer(model(name), PROMPT, Written(ANSWER))
    return model(name).verify(model(name).encode({"input_ids": torch.tensor([PROMPT])}))


@cache
def joined(name: str) -> Parts:
    """Return the parts with the cache and the new keys joined by copying, as in the model's own attention."""
    run_answer_checked(name)
    model(name).reads_in_place = False
    parts = run_answer(model(name), PROMPT, Written(ANSWER, dynamic(name))).parts()
    model(name).reads_in_place = None
    return parts


def assert_same(parts: Parts, expected: Parts) -> None:
    np.testing.assert_allclose(parts.log_odds, expected.log_odds, rtol=0, atol=1e-9)
    for one, other in ((parts.prompt, expected.prompt), (parts.answer, expected.answer)):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * np.abs(other).max())
    assert parts.rest == pytest.approx(expected.rest, abs=1e-9)
    assert np.abs(parts.prompt).max() > 1e-3  # the comparison is not trivial


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_cache_gives_the_same_parts(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = joined(name)
    if (kind, name) in {("static", name) for name in WINDOWS}:
        # a static window keeps as many keys as the window has, and the first answer token sees them all
        assert any(getattr(layer, "is_sliding", False) for layer in static(name).layers)
    stored = CACHES[kind](name)
    answer_pass.reads_in_place(model(name), run_answer_checked(name))
    monkeypatch.setattr(answer_pass, "prompt_cache", lambda *_: pytest.fail("the prompt was read again"))
    assert_same(run_answer(model(name), PROMPT, Written(ANSWER, stored)).parts(), expected)
    assert model(name).reads_in_place


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_kept_and_the_same_comes_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = joined(name)
    monkeypatch.setattr("attnflow.capture.frozen_attention.KEEP_BYTES", 0)
    parts = run_answer(model(name), PROMPT, Written(ANSWER, dynamic(name))).parts()
    assert_same(parts, expected)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mistral"])
def test_fused_attention_of_each_piece_gives_the_same(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow the GPU's path with a slow kernel: merge pieces by their log-sum-exp and add up rows piece by piece."""
    expected = joined(name)
    stored = CACHES[kind](name)
    answer_pass.reads_in_place(model(name), run_answer_checked(name))
    calls = []

    def with_lse(scores: Scores, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        calls.append(scores.keys)
        groups = scores.query.shape[1] // scores.key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (scores.key, value))
        s = scores.query @ key.transpose(2, 3) * scores.scale
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf) if causal else s
        return (s.softmax(-1) @ value).transpose(1, 2), s.logsumexp(-1)

    for module in ("fused", "frozen_attention"):
        monkeypatch.setattr(f"attnflow.capture.{module}.is_fused", lambda scores, value: scores.mask.plain == "causal")
    monkeypatch.setattr("attnflow.capture.fused._with_lse", with_lse)
    answer = run_answer(model(name), PROMPT, Written(ANSWER, stored))
    assert_same(answer.parts(), expected)
    assert sum(calls) == (0 if name == "Mistral" else 3 * (22 + 4))  # each key of the three layers once


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_that_went_on_is_read_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = joined(name)
    calls = []
    original = answer_pass.prompt_cache
    monkeypatch.setattr(answer_pass, "prompt_cache", lambda *args: calls.append(args) or original(*args))  # type: ignore[func-returns-value]
    assert_same(
        run_answer(model(name), PROMPT, Written(ANSWER, sliding(name, (*PROMPT, *ANSWER[:-1])))).parts(), expected
    )
    assert len(calls) == 1


class Allocations(TorchDispatchMode):
    """Record the bytes of every tensor that an operation makes, except views of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        sources = {x.untyped_storage().data_ptr() for x in flat if isinstance(x, Tensor)}
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in sources:
                self.sizes.append((x.untyped_storage().nbytes(), str(func)))
        return out


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "gpt-oss"])
def test_no_tensor_is_as_large_as_the_keys_of_a_layer(name: str, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run_answer_checked(name)
    prompt = [2 + i * i % 117 for i in range(700)]
    answer_pass.reads_in_place(model(name), run_answer_checked(name))
    stored = dynamic(name, prompt)
    if not keep:
        monkeypatch.setattr("attnflow.capture.frozen_attention.KEEP_BYTES", 0)
    with Allocations() as made:
        parts = run_answer(model(name), prompt, Written((17, 42), stored)).parts()
    keys = 699 * 2 * 8 * 8  # positions × key heads × size × bytes
    largest = max(made.sizes)
    assert largest[0] < keys, largest
    assert max(size for size, _ in made.sizes) > keys / 10  # the weights of two rows were counted
    assert parts.prompt.shape == (2, 700)


@pytest.mark.parametrize(
    "options", [{"mask": lazy_mask(1, 6, 20, 14, 0)}, {"causal": True}, {}], ids=["rule", "flag", "everything"]
)
def test_rows_are_added_up_one_piece_at_a_time(options: Any) -> None:
    """With the log-sum-exp of both, neither piece needs the other."""
    draw = torch.Generator().manual_seed(3)
    query, direction = (torch.randn(1, 4, 6, 8, generator=draw).double() for _ in range(2))
    key, value = (torch.randn(1, 2, 20, 8, generator=draw).double() for _ in range(2))
    whole = Scores(query, key, 0.4, **options)
    of_whole = Weighing(1.0, direction=direction, value=value, signed=True)
    s = (query @ key.repeat_interleave(2, 1).transpose(2, 3)) * 0.4
    hidden = torch.ones(6, 20, dtype=torch.bool).triu(15) if options else torch.zeros(6, 20, dtype=torch.bool)
    lse = s.masked_fill(hidden, -torch.inf).logsumexp(-1)
    split = replace(whole, key=key[:, :, 14:], before=key[:, :, :14], lse=lse)
    totals = [torch.full((1, 3, 20), 2.0).double(), torch.zeros(1, 3, 20).double()]
    add_edge_rows(
        totals, split, replace(of_whole, value=value[:, :, 14:], before=value[:, :, :14]), 2, 5, room=2 * 4 * 20 * 4
    )
    expected = torch.zeros(1, 3, 20).double()
    rows = whole.edge_rows(of_whole, 2, 5)
    expected[..., : rows.shape[-1]] = rows
    torch.testing.assert_close(totals[1], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(totals[0], expected + 2, rtol=0, atol=1e-12)


def test_nothing_of_a_pass_outlives_it() -> None:
    """References only lead from a waiting gate to its source, so memory is freed without the garbage collector."""
    wrapped = model("Llama")
    run_answer_checked("Llama")
    answer = run_answer(wrapped, PROMPT, Written(ANSWER, dynamic("Llama")))
    answer.parts()
    states = [weakref.ref(x) for x in answer.frozen.states]
    gc.disable()
    try:
        del answer
        assert not any(x() is not None for x in states)
    finally:
        gc.enable()


def sources(answer: af.Answer) -> np.ndarray:
    return answer.sources(signed=True).values


def test_a_cache_that_was_written_to_since_is_refused() -> None:
    wrapped, answer = model("Llama"), list(ANSWER)
    cache = static("Llama")
    explained = wrapped.answer(PROMPT, answer=answer, cache=cache)
    expected = sources(wrapped.answer(PROMPT, answer=answer))
    np.testing.assert_allclose(sources(explained), expected, atol=1e-9)
    late = wrapped.answer(PROMPT, answer=answer, cache=cache)
    tensor = cache.layers[1].keys
    tensor += 1
    with pytest.raises(af.InputError, match="was changed after it was given"):
        late.sources()
    between = run_answer(wrapped, PROMPT, Written(ANSWER, snapshot(cache, len(PROMPT) - 1)))
    tensor += 1  # after the forward pass, before its gradients
    with pytest.raises(af.InputError, match="was changed after it was given"):
        between.parts()


@pytest.mark.parametrize("write", ["inference", "data", "numpy"])
def test_a_change_that_no_version_counts_is_refused_too(write: str) -> None:
    """Tensors of inference mode have no version, and `.data` and `.numpy()` write past it."""
    wrapped, answer = model("Llama"), list(ANSWER)
    with torch.inference_mode(write == "inference"):
        cache = static("Llama")
    early, late = (wrapped.answer(PROMPT, answer=answer, cache=cache) for _ in range(2))
    expected = wrapped.answer(PROMPT, answer=answer)
    np.testing.assert_allclose(early.log_probabilities, expected.log_probabilities, atol=1e-9)
    keys = cache.layers[1].keys
    if write == "inference":
        with torch.inference_mode():
            keys[0, 0, 3] += 1
    elif write == "data":
        keys.data[0, 0, 3] += 1
    else:
        keys.numpy()[0, 0, 3] += 1
    for given in (early, late):  # whose forward pass has run, and has not
        for explain in (given.sources, given.leave_out):
            with pytest.raises(af.InputError, match="was changed after it was given"):
                explain()
    np.testing.assert_allclose(early.log_probabilities, expected.log_probabilities, atol=1e-9)


def test_positions_after_the_prompt_may_change() -> None:
    wrapped, cache = model("Llama"), static("Llama")
    given = wrapped.answer(PROMPT, answer=list(ANSWER), cache=cache)
    cache.layers[1].keys[:, :, len(PROMPT) - 1 :] += 1
    np.testing.assert_allclose(sources(given), sources(wrapped.answer(PROMPT, answer=list(ANSWER))), atol=1e-9)


def test_a_dynamic_cache_that_goes_on_changes_nothing() -> None:
    wrapped, answer = model("Llama"), list(ANSWER)
    cache = dynamic("Llama")
    explained = wrapped.answer(PROMPT, answer=answer, cache=cache)
    cache.crop(-12)
    with torch.no_grad():
        wrapped.model(input_ids=torch.tensor([list(PROMPT[::-1])]), past_key_values=cache, use_cache=True)
    np.testing.assert_allclose(sources(explained), sources(wrapped.answer(PROMPT, answer=answer)), atol=1e-9)


def test_every_layer_of_a_cache_is_looked_at() -> None:
    wrapped, answer = model("Llama"), list(ANSWER)
    fewer = dynamic("Llama")
    fewer.layers[1].keys, fewer.layers[1].values = fewer.layers[1].keys[:, :1], fewer.layers[1].values[:, :1]
    with pytest.raises(af.InputError, match="layer 1 of the cache has keys of 1 heads"):
        wrapped.answer(PROMPT, answer=answer, cache=fewer)
    shorter = dynamic("Llama")
    del shorter.layers[-1]
    with pytest.raises(af.InputError, match="layers and the model"):
        wrapped.answer(PROMPT, answer=answer, cache=shorter)
    other = dynamic("Llama")
    other.layers[0].values = other.layers[0].values + 1
    with pytest.raises(af.InputError, match="does not belong to this prompt"):
        wrapped.answer(PROMPT, answer=answer, cache=other)
    single = dynamic("Llama")
    for layer in single.layers:
        layer.keys, layer.values = layer.keys.float(), layer.values.float()
    with pytest.raises(af.InputError, match="in float32 on cpu, but the model's own cache"):
        wrapped.answer(PROMPT, answer=answer, cache=single)
