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
FLOAT32 = ("llama", "qwen2", "mistral")  # transformers computes norms and softmax in float32 for any dtype
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
