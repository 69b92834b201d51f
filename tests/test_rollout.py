import sys

import numpy as np
import pytest
import torch

import attnflow as af
from helpers.families import attention

A = attention(np.random.default_rng(0), 5, 7, 2.0)


def reference(A: np.ndarray, start: int = 0) -> np.ndarray:
    """Compute Eq. 1 as it is written."""
    rolled = [A[start]]
    for layer in A[start + 1 :]:
        rolled.append(layer @ rolled[-1])
    return np.stack(rolled)


@pytest.mark.parametrize("start", [0, 1, 4, -1])
def test_equation_1_from_any_layer(start: int) -> None:
    assert np.allclose(af.rollout(A, start=start), reference(A, start % 5))


def test_queries_and_layers_select() -> None:
    everything = reference(A)
    assert np.allclose(af.rollout(A, queries=2), everything[:, [2]])
    assert np.allclose(af.rollout(A, queries=[6, 0], layers=-1), everything[[-1]][:, [6, 0]])
    assert np.allclose(af.rollout(A, queries=[1], layers=[3, 1, 1]), everything[[3, 1, 1]][:, [1]])
    assert np.allclose(af.rollout(A, queries=[1], layers=[4, 2], start=2), reference(A, 2)[[2, 0]][:, [1]])


def test_one_query_makes_no_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["attnflow.rollout"]  # af.rollout is the function
    monkeypatch.setattr(module, "_by_products", lambda *_: pytest.fail("n×n products were made"))
    assert af.rollout(A, queries=0, layers=-1).shape == (1, 1, 7)


def test_a_batch_is_its_graphs_one_by_one() -> None:
    batch = np.stack([A, A[::-1]])
    for queries in (None, [0, 3]):
        expected = np.stack([af.rollout(one, queries) for one in batch])
        assert np.allclose(af.rollout(batch, queries), expected)


@pytest.mark.parametrize("queries", [None, [0, 2]])
def test_torch_in_torch_out_with_its_gradient(queries: list[int] | None) -> None:
    weights = torch.softmax(
        torch.randn(4, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1
    )
    weights.requires_grad_(True)
    rolled = af.rollout(af.attention_graph(weights), queries)
    assert isinstance(rolled, torch.Tensor) and rolled.dtype == torch.float64
    assert np.allclose(rolled.detach().numpy(), af.rollout(af.attention_graph(weights.detach().numpy()), queries))
    assert torch.autograd.gradcheck(
        lambda w: af.rollout((1 - 0.5) * w.mean(1) + 0.5 * torch.eye(6, dtype=w.dtype), queries), (weights,)
    )
    rolled[-1, 0, 3].backward()
    assert weights.grad is not None and (weights.grad.abs().sum((1, 2, 3)) > 0).all()


def test_a_tensor_stays_on_its_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    assert af.rollout(torch.tensor(A, device="cuda")).device.type == "cuda"


def test_layers_of_different_sizes() -> None:
    rng = np.random.default_rng(1)
    layers = [rng.random(size) for size in ((4, 6), (5, 4), (2, 5))]
    rolled = af.rollout(layers)
    assert np.allclose(rolled[-1], layers[2] @ layers[1] @ layers[0])
    assert np.allclose(af.rollout(layers, queries=1, layers=-1)[0], rolled[-1][[1]])
