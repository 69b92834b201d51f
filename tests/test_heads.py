import numpy as np
import pytest
import torch

import attnflow as af


def weights(layers: int = 4, heads: int = 3, n: int = 6) -> np.ndarray:
    w = np.exp(np.random.default_rng(0).normal(size=(layers, heads, n, n)) * 2)
    return w / w.sum(-1, keepdims=True)


W = weights()


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("head", range(3))
def test_appendix_a1(layer: int, head: int) -> None:
    mean = af.attention_graph(W)
    top = 0.5 * W[layer, head] + 0.5 * np.eye(6)
    expected = top @ af.rollout(mean)[layer - 1] if layer else top
    assert np.allclose(af.single_head(W, layer, head), expected)
    graph = np.concatenate([mean[:layer], top[None]])
    assert np.allclose(af.single_head(W, layer, head, "flow"), af.flow(graph, layers=-1)[0], rtol=0, atol=1e-12)


def test_the_mean_over_heads_of_rollout_is_rollout() -> None:
    heads = [af.single_head(W, 3, head) for head in range(3)]
    assert np.allclose(np.mean(heads, axis=0), af.rollout(af.attention_graph(W))[3])


def test_queries_batches_and_tensors() -> None:
    full = af.single_head(W, 2, 1)
    assert np.allclose(af.single_head(W, 2, 1, queries=[4]), full[[4]])
    batch = np.stack([W, weights()[::-1]])
    assert np.allclose(af.single_head(batch, -1, 0)[0], af.single_head(W, -1, 0))
    assert af.single_head(batch, -1, 0, "flow").shape == (2, 6, 6)
    tensor = af.single_head(torch.tensor(W), 2, 1)
    assert isinstance(tensor, torch.Tensor) and np.allclose(tensor.numpy(), full)
