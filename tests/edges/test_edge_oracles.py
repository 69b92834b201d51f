"""The slow definitions of edges, checked against facts about the models."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from helpers import edge_oracles as oracles

pytest.importorskip("transformers", reason="transformers is not installed")

NAMES = tuple(oracles.models())
CAUSAL = ("gpt2", "llama", "qwen2", "mistral")
BOTH_WAYS = ("bert", "roberta", "gpt2-both-ways")
FLOAT32 = ("llama", "qwen2", "mistral")  # transformers computes norms and softmax in float32 for any dtype
WINDOW = 4  # of mistral
IDS = oracles.text(6)


@cache
def model(name: str) -> Any:
    return oracles.models()[name]()


def given(name: str, layer: int) -> np.ndarray:
    """Return y [token, width] before any norm, from a hook on the norm after the addition in the layer."""
    block, found = oracles.block(model(name), layer), []
    norms = [getattr(block.layer, n) for n in ("ln_2", "post_attention_layernorm") if hasattr(block.layer, n)]
    (norm,) = [block.after] if block.after is not None else norms
    hook = norm.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0][0].numpy().copy()))
    with torch.no_grad():
        model(name)(input_ids=IDS)
    hook.remove()
    return found[0]


def hidden(name: str) -> np.ndarray:
    """Return [query, key]: True where the mask hides a key."""
    q, k = np.indices((6, 6))
    if name not in CAUSAL:
        return np.zeros((6, 6), bool)
    return (k > q) | (q - k >= WINDOW) if name == "mistral" else k > q


def test_the_models_are_as_they_say() -> None:
    for name in NAMES:
        m = model(name)
        c = m.config
        assert (c.num_hidden_layers, c.num_attention_heads, c.hidden_size, c.vocab_size) == (3, 4, 32, 60)
        assert c._attn_implementation == "eager" and not m.training
        for label, parameter in m.named_parameters():
            assert parameter.dtype == torch.float64
            assert not ((parameter == 0) | (parameter == 1)).any(), label
        again = dict(oracles.models()[name]().named_parameters())
        assert all(torch.equal(p, again[label]) for label, p in m.named_parameters())
    assert all(model(name).config.num_key_value_heads == 2 for name in FLOAT32)
    assert oracles.block(model("qwen2"), 0).b_V.any() and not oracles.block(model("llama"), 0).b_V.any()


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_mask_and_far_from_uniform(name: str) -> None:
    for layer in range(3):
        _, _, weights = oracles.run(model(name), IDS, layer)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert ((weights == 0) == hidden(name)).all()
        assert weights[:, -1].max() > 0.5


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_shares_and_biases_sum_to_what_the_sublayer_gives(name: str, layer: int) -> None:
    T, rest = oracles.shares(model(name), IDS, layer)
    after = oracles.block(model(name), layer).after
    real = given(name, layer) if after is None else oracles.output(model(name), IDS, after)
    np.testing.assert_allclose(T.sum(1) + rest, real, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_zeroing_a_value_takes_away_the_part_of_that_key_and_nothing_else(name: str) -> None:
    real, parts = given(name, 1), oracles.parts(model(name), IDS, 1)
    for k in range(6):
        with oracles.zeroed(oracles.block(model(name), 1), k):
            other = given(name, 1)
        np.testing.assert_allclose(real - other, parts[:, k], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_norms_are_of_parts_and_shares(name: str) -> None:
    m = model(name)
    value_norm, block_norm = oracles.value_norm(m, IDS, 1), oracles.block_norm(m, IDS, 1)
    np.testing.assert_allclose(value_norm, np.linalg.norm(oracles.parts(m, IDS, 1), axis=-1), atol=1e-12)
    np.testing.assert_allclose(block_norm, np.linalg.norm(oracles.shares(m, IDS, 1)[0], axis=-1), atol=1e-12)
    assert ((value_norm == 0) == hidden(name)).all() and ((block_norm == 0) == hidden(name)).all()
    beside = ~np.eye(6, dtype=bool)
    assert np.allclose(value_norm[beside], block_norm[beside]) == (name not in ("bert", "roberta"))
    assert not np.isclose(value_norm, block_norm).diagonal().any()


@pytest.mark.parametrize("name", ("bert", "roberta"))
def test_g_is_the_norm_of_torch_but_for_its_bias_and_its_division(name: str) -> None:
    after = oracles.block(model(name), 1).after
    assert after is not None
    states, _, _ = oracles.run(model(name), IDS, 1)
    y, parts = torch.from_numpy(given(name, 1)), oracles.parts(model(name), IDS, 1)
    T, _ = oracles.shares(model(name), IDS, 1)
    for q, k in np.ndindex(6, 6):
        z = torch.from_numpy(parts[q, k] + (states[q] if q == k else 0))
        own, real = (torch.sqrt(x.var(correction=0) + after.eps) for x in (z, y[q]))
        with torch.no_grad():
            expected = (after(z) - after.bias) * own / real
        np.testing.assert_allclose(T[q, k], expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_alti_rows_are_shares_of_one_and_the_mask_holds(name: str) -> None:
    for layer in range(3):
        found = oracles.alti(model(name), IDS, layer)
        assert (found >= 0).all() and (found[hidden(name)] == 0).all()
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)


def test_alti_by_hand_and_a_row_of_zeros_stays_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    T = np.array([[[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [-1.0, 0.0]]])
    rest = np.array([[0.0, 1.0], [0.0, 0.0]])
    monkeypatch.setattr(oracles, "shares", lambda *_: (T, rest))
    # y_0 = (4, 2): without the first part 2 of 6 remain, without the second 5 of 6. y_1 = 0: each part moves it away.
    np.testing.assert_allclose(oracles.alti(None, IDS, 0), [[0.8, 0.2], [0, 0]])


@pytest.mark.parametrize("name", NAMES)
def test_effective_attention_does_what_attention_does(name: str) -> None:
    ids = oracles.text(12)  # more tokens than a head is wide, so there is a null space
    _, _, weights = oracles.run(model(name), ids, 1)
    f = oracles.transformed(model(name), ids, 1)
    heads = []
    for A, T in zip(weights, f, strict=True):
        kept = oracles.without_null_space(A, T)
        np.testing.assert_allclose(kept @ T, A @ T, rtol=0, atol=1e-10)
        np.testing.assert_allclose(kept, A @ T @ np.linalg.pinv(T, rcond=1e-10), rtol=0, atol=1e-10)
        assert np.linalg.norm(kept) < np.linalg.norm(A) - 1e-3
        heads.append(np.abs(kept))
    if name in BOTH_WAYS:
        np.testing.assert_allclose(oracles.effective(model(name), ids, 1), np.mean(heads, axis=0), atol=1e-14)


def test_effective_attention_is_attention_where_nothing_is_sent_to_zero() -> None:
    for name in NAMES:
        _, _, weights = oracles.run(model(name), IDS, 1)
        np.testing.assert_allclose(oracles.effective(model(name), IDS, 1), weights.mean(0), atol=1e-12)


@pytest.mark.parametrize("name", CAUSAL)
def test_effective_attention_under_a_mask_is_that_of_the_visible_keys_alone(name: str) -> None:
    ids = oracles.text(12)
    _, _, weights = oracles.run(model(name), ids, 1)
    f = oracles.transformed(model(name), ids, 1)
    found = oracles.effective(model(name), ids, 1)
    assert (found[weights.max(0) == 0] == 0).all()
    for q in (3, 11):
        keys = weights[:, q].max(0) > 0
        heads = [
            np.abs(A[q, keys] @ T[keys] @ np.linalg.pinv(T[keys], rcond=1e-10)) for A, T in zip(weights, f, strict=True)
        ]
        np.testing.assert_allclose(found[q, keys], np.mean(heads, axis=0), rtol=0, atol=1e-10)
    if name != "mistral":  # its window is narrower than a value
        assert np.abs(found[11] - weights[:, 11].mean(0)).max() > 1e-3


def answer(out: Any) -> Any:
    """Return the log probability of an answer to each text: at the last token, or of the text."""
    logits = out.logits[:, -1] if out.logits.ndim == 3 else out.logits
    return logits.log_softmax(-1)[:, 1]


@cache
def derivatives(name: str) -> tuple[np.ndarray, np.ndarray]:
    return oracles.derivatives(model(name), IDS[:, :5], 1, answer)


@pytest.mark.parametrize("name", NAMES)
def test_differences_are_the_derivative(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, slopes = derivatives(name)
    out = model(name)(input_ids=IDS[:, :5], output_attentions=True)
    (expected,) = torch.autograd.grad(answer(out)[0], out.attentions[1])
    close = 1e-5 if name in FLOAT32 else 1e-8
    np.testing.assert_allclose(weights, out.attentions[1][0].detach().numpy(), rtol=0, atol=close)
    assert np.abs(slopes).max() > 1e-2
    np.testing.assert_allclose(slopes, expected[0].numpy(), rtol=0, atol=close)

    kept: list[Any] = []
    with oracles.changed_weights(oracles.block(model(name), 1), lambda A: kept.append(A) or A):
        out = model(name)(input_ids=IDS[:, :5])
    (expected,) = torch.autograd.grad(answer(out)[0], kept)
    np.testing.assert_allclose(slopes, expected[0].numpy(), rtol=0, atol=1e-8)

    monkeypatch.setattr(oracles, "derivatives", lambda *_: (weights, slopes))
    gradient = oracles.gradient(model(name), IDS[:, :5], 1, answer)
    both = oracles.attention_gradient(model(name), IDS[:, :5], 1, answer)
    masked = hidden(name)[:5, :5]
    every = np.where(slopes > 0, slopes, 0).sum(0) / 4
    np.testing.assert_allclose(gradient, np.where(masked, 0, every), atol=1e-14)
    np.testing.assert_allclose(both, np.where(slopes > 0, slopes * weights, 0).sum(0) / 4, atol=1e-14)
    assert (both[masked] == 0).all() and (not masked.any() or every[masked].max() > 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_changing_nothing_is_the_model_itself_and_leaves_it_as_it_was(name: str) -> None:
    m = model(name)
    with torch.no_grad():
        before = m(input_ids=IDS).logits
        with oracles.changed_weights(oracles.block(m, 1), lambda A: A):
            within = m(input_ids=IDS).logits
        after = m(input_ids=IDS).logits
    close = 1e-4 if name in FLOAT32 else 1e-10
    torch.testing.assert_close(within, before, rtol=0, atol=close)
    assert torch.equal(before, after)


@pytest.mark.parametrize("name", NAMES)
def test_value_zeroing_is_the_layer_without_the_part_of_that_key(name: str) -> None:
    m, layer = model(name), 2
    block, real = oracles.block(m, layer), given(name, layer)
    parts = oracles.parts(m, IDS, layer)

    def onward(y: np.ndarray) -> np.ndarray:
        x, own = torch.from_numpy(y), block.layer
        with torch.no_grad():
            if block.after is not None:
                x = block.after(x)
                return own.output(own.intermediate(x), x).numpy()
            norm = own.ln_2 if hasattr(own, "ln_2") else own.post_attention_layernorm
            return (x + own.mlp(norm(x))).numpy()

    expected = np.zeros((6, 6))
    for k in range(6):
        cosine = torch.cosine_similarity(torch.from_numpy(onward(real - parts[:, k])), torch.from_numpy(onward(real)))
        expected[:, k] = 1 - cosine.numpy()
    found = oracles.value_zeroing(m, IDS, layer)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if name in FLOAT32 else 1e-10)
    assert found.max() > 1e-2


@pytest.mark.parametrize("name", CAUSAL)
def test_zeroing_the_values_of_a_token_that_a_query_cannot_see_changes_nothing(name: str) -> None:
    for layer in range(3):
        found = oracles.value_zeroing(model(name), IDS, layer)
        np.testing.assert_allclose(found[hidden(name)], 0, atol=1e-14)
        assert found[~hidden(name)].min() > 1e-10


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_zeroing_the_values_of_a_token_that_nobody_looks_at_changes_nothing(name: str) -> None:
    m = oracles.models()[name]()  # a separate copy, because its weights change
    block = oracles.block(m, 1)
    _, seen, _ = oracles.run(m, IDS, 1)
    # All queries are the first direction of each head, and only the key of token 3 has it, with a negative sign.
    away = torch.from_numpy(np.linalg.pinv(seen) @ np.where(np.arange(6) == 3, -1e4, 0))
    weight, bias = torch.zeros(32, 32, dtype=torch.float64), torch.zeros(32, dtype=torch.float64)
    weight[::8], bias[::8] = away, 1
    with torch.no_grad():
        if name == "gpt2-both-ways":
            block.values.weight[:, :64] = torch.cat([torch.zeros_like(weight), weight.T], 1)
            block.values.bias[:64] = torch.cat([bias, torch.zeros_like(bias)])
        else:
            for module, w, b in (
                (block.attention.query, torch.zeros_like(weight), bias),
                (block.attention.key, weight, 0),
            ):
                module.weight.copy_(w)
                module.bias.copy_(torch.as_tensor(b).expand(32))
    _, _, weights = oracles.run(m, IDS, 1)
    assert (weights[:, :, 3] == 0).all() and np.allclose(weights[:, :, [0, 1, 2, 4, 5]], 0.2)
    found = oracles.value_zeroing(m, IDS, 1)
    np.testing.assert_allclose(found[:, 3], 0, atol=1e-14)
    assert np.delete(found, 3, axis=1).min() > 1e-10
