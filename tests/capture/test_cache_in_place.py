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
from attnflow.capture.fused import merged, own_weights
from attnflow.capture.generate import Written
from attnflow.capture.kv_cache import snapshot
from attnflow.capture.linear import add_edge_rows, edge_rows
from attnflow.capture.scores import LazyMask, Scores, Weighing
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


def parts_on(name: str, cache: Any, monkeypatch: pytest.MonkeyPatch, written: Written | None = None) -> Parts:
    """Return the parts on this cache, after checking that the prompt is not read again."""

    def again(*_: Any) -> None:
        raise AssertionError("the prompt was read again")

    answer_pass.reads_in_place(model(name), run_answer_checked(name))
    monkeypatch.setattr(answer_pass, "prompt_cache", again)
    parts = run_answer(model(name), PROMPT, written or Written(ANSWER, cache)).parts()
    monkeypatch.undo()
    return parts


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
    assert_same(parts_on(name, CACHES[kind](name), monkeypatch), expected)
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


@pytest.mark.parametrize("name", MODELS)
def test_one_text_of_a_batch_from_where_it_starts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = joined(name)
    start = 6
    pairs = []
    for layer in dynamic(name).layers:
        both = []
        for x in (layer.keys, layer.values):
            padding = torch.full_like(x[:, :, :start], torch.nan)
            text = torch.cat([padding, x], 2)
            both.append(torch.cat([torch.full_like(text, torch.nan), text]))
        pairs.append(tuple(both))
    written = Written(ANSWER, tuple(pairs), 1, start)
    assert_same(parts_on(name, None, monkeypatch, written), expected)


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


def test_keys_in_another_form_are_not_read() -> None:
    """A quantized cache keeps only a few recent keys exactly; the others differ from what the model computed."""

    class Quantized:
        def __init__(self, layer: Any) -> None:
            self.keys, self.values, self._quantized_keys = layer.keys, layer.values, layer.keys

        def get_seq_length(self) -> int:
            return 400

    stored = dynamic("Llama")
    stored.layers = [Quantized(layer) for layer in stored.layers]
    assert answer_pass.stored_layers(stored, 5) is None


CAUSAL = lazy_mask(1, 6, 20, 14, 0)
WINDOW = lazy_mask(1, 6, 20, 14, 0, mask_function=lambda b, h, q, k: (k <= q) & (k > q - 4), local_size=4)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": CAUSAL},
        {"mask": WINDOW},
        {"causal": True},
        {"mask": torch.rand(1, 1, 6, 20, generator=torch.Generator().manual_seed(0)) > 0.4},
        {"mask": torch.randn(1, 1, 6, 20, generator=torch.Generator().manual_seed(0)).double()},
        {"mask": CAUSAL, "softcap": 2.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
        {"bias": torch.randn(1, 4, 6, 20, generator=torch.Generator().manual_seed(0)).double()},
    ],
    ids=["causal", "window", "flag", "boolean", "additive", "softcap and sinks", "bias"],
)
def test_keys_in_two_places_are_keys_in_one(options: Any) -> None:
    draw = torch.Generator().manual_seed(3)
    query, direction = (torch.randn(1, 4, 6, 8, generator=draw).double() for _ in range(2))
    key, value = (torch.randn(1, 2, 20, 8, generator=draw).double() for _ in range(2))
    whole = Scores(query, key, 0.4, **options)
    split = replace(whole, key=key[:, :, 14:], before=key[:, :, :14])
    of_whole = Weighing(0.5, direction=direction, value=value, signed=True)
    of_split = replace(of_whole, value=value[:, :, 14:], before=value[:, :, :14])
    assert split.keys == 20
    for start, stop in ((0, 6), (1, 4), (5, 6)):
        torch.testing.assert_close(split.weights(start, stop), whole.weights(start, stop), rtol=0, atol=1e-12)
        torch.testing.assert_close(
            edge_rows(split, of_split, start, stop), edge_rows(whole, of_whole, start, stop), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("options", [{"mask": CAUSAL}, {"causal": True}, {}], ids=["rule", "flag", "everything"])
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
    own = whole.weights(0, 6)[..., torch.arange(6), torch.arange(14, 20)]
    torch.testing.assert_close(own_weights(split), own, rtol=0, atol=1e-12)


def test_masks_of_a_cached_pass() -> None:
    assert CAUSAL.plain == "causal" and CAUSAL.reach is None
    assert WINDOW.plain is None and WINDOW.window is None and WINDOW.reach == 4
    assert (
        isinstance(CAUSAL, LazyMask)
        and bool(CAUSAL.block(0, 1)[0, 0, 0, 14])
        and not bool(CAUSAL.block(0, 1)[0, 0, 0, 15])
    )


def test_attention_over_two_pieces_is_merged() -> None:
    draw = torch.Generator().manual_seed(5)
    s, value = torch.randn(1, 3, 4, 9, generator=draw).double() * 4, torch.randn(1, 3, 9, 5, generator=draw).double()

    def attention(columns: slice) -> tuple[Tensor, Tensor]:
        return (s[..., columns].softmax(-1) @ value[:, :, columns]).transpose(1, 2), s[..., columns].logsumexp(-1)

    out, lse = merged(*attention(slice(0, 6)), *attention(slice(6, 9)))
    expected, expected_lse = attention(slice(0, 9))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-12)


class Waits(TorchDispatchMode):
    """Count how often a number is read from a tensor: on a GPU, each read waits for all earlier work."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


def test_a_pass_waits_for_the_gpu_a_few_times_however_many_layers_it_has() -> None:
    counts = {}
    for layers in (2, 6):
        wrapped = af.wrap(hf("LlamaForCausalLM", **{**LONG, "num_hidden_layers": layers})())
        stored = DynamicCache()
        with torch.no_grad():
            wrapped.model(torch.tensor([PROMPT]), past_key_values=stored, use_cache=True)
        run_answer(wrapped, PROMPT, Written(ANSWER, stored))  # runs the self-check
        with Waits() as waits:
            run_answer(wrapped, PROMPT, Written(ANSWER, stored)).parts()
        counts[layers] = waits.count
    assert counts[2] == counts[6] <= 4


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
