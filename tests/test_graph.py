import numpy as np
import pytest
import torch

import attnflow as af
from helpers.families import attention

RNG = np.random.default_rng(0)


def softmax_weights(*shape: int) -> np.ndarray:
    logits = np.random.default_rng(sum(shape)).normal(size=shape)
    w = np.exp(logits)
    return w / w.sum(-1, keepdims=True)


W = softmax_weights(3, 4, 5, 5)


def test_the_formula() -> None:
    assert np.allclose(af.attention_graph(W), 0.5 * W.mean(1) + 0.5 * np.eye(5))
    assert np.allclose(af.attention_graph(W, residual=0.2), 0.8 * W.mean(1) + 0.2 * np.eye(5))
    assert (af.attention_graph(W, residual=0) == W.mean(1)).all()


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(W, id="array"),
        pytest.param(list(W), id="list of layers"),
        pytest.param(W.tolist(), id="nested lists"),
        pytest.param(torch.tensor(W), id="tensor"),
        pytest.param([torch.tensor(layer) for layer in W], id="list of tensors"),
    ],
)
def test_whatever_the_weights_come_as(given: object) -> None:
    assert np.allclose(np.asarray(af.attention_graph(given)), af.attention_graph(W))


def test_a_batch_as_transformers_returns_it() -> None:
    batch = softmax_weights(2, 3, 4, 5, 5)  # [batch, layer, head, query, key]
    expected = np.stack([af.attention_graph(one) for one in batch])
    a_tensor_a_layer = tuple(torch.tensor(batch[:, layer]) for layer in range(3))
    assert np.allclose(af.attention_graph(a_tensor_a_layer).numpy(), expected)


@pytest.mark.parametrize("axis", [0, 1], ids=["layers first", "texts first"])
def test_five_axes_are_refused_because_layers_and_texts_look_alike(axis: int) -> None:
    """torch.stack(outputs.attentions) has the layers first; with one text its first two axes look like a batch."""
    stacked = W[:, None] if axis == 0 else W[None]
    for given in (stacked, torch.tensor(stacked)):
        with pytest.raises(
            af.InputError, match=r"five axes may be \[layer, batch, …\] or \[batch, layer, …\]: give one"
        ):
            af.attention_graph(given)
    if axis == 0:  # what the message advises
        assert np.allclose(af.attention_graph(list(stacked))[0], af.attention_graph(W))


def test_heads() -> None:
    assert np.allclose(af.attention_graph(W, heads=[1, -1], residual=0), W[:, [1, 3]].mean(1))
    for heads in ("max", "min"):
        A = af.attention_graph(W, heads=heads, residual=0)
        reduced = getattr(W, heads)(1)
        assert np.allclose(A, reduced / reduced.sum(-1, keepdims=True))
        assert np.allclose(A, af.attention_graph(torch.tensor(W), heads=heads, residual=0).numpy())


def test_half_precision_is_computed_in_single() -> None:
    A = af.attention_graph(torch.tensor(W, dtype=torch.bfloat16))
    assert A.dtype == torch.float32
    assert np.allclose(A.numpy(), af.attention_graph(W), atol=0.01)
    assert af.attention_graph(W.astype(np.float32)).dtype == np.float32


def test_layers_of_different_sizes_come_back_as_a_list() -> None:
    ragged = [softmax_weights(2, 4, 6), softmax_weights(2, 3, 4)]
    A = af.attention_graph(ragged, residual=0)
    assert [layer.shape for layer in A] == [(4, 6), (3, 4)]
    assert af.rollout(A)[-1].shape == (3, 6)


def test_merging_keeps_rows_stochastic_and_the_residual_in_place() -> None:
    A = attention(np.random.default_rng(1), 4, 6)
    groups = [[0], [1, 2, 3], [4, 5]]
    merged = af.merge(A, groups)
    assert merged.shape == (4, 3, 3)
    assert np.allclose(merged.sum(-1), 1)
    assert merged[0, 1, 2] == pytest.approx(A[0][1:4, 4:6].sum() / 3)
    for labels in ([0, 1, 1, 1, 2, 2], [None, 7, 7, 7, 3, 3], torch.tensor([0, 1, 1, 1, 2, 2]), "abbbcc"):
        assert np.allclose(af.merge(A, labels), merged)
    W = softmax_weights(4, 2, 6, 6)
    assert np.allclose(af.attention_graph(af.merge(W, groups)), af.merge(af.attention_graph(W), groups))
    assert np.allclose(af.merge(torch.tensor(A), groups).numpy(), merged)
    assert np.allclose(af.merge(A, [[p] for p in range(6)]), A)
    assert np.allclose(af.merge(np.eye(6)[None], groups), np.eye(3)[None])


def test_merging_before_the_flow_is_not_merging_after_it() -> None:
    """The flow into a word is not the sum of the flows into its pieces, because they share the edges above."""
    A = attention(np.random.default_rng(2), 4, 6, 2.0)
    groups = [[0], [1, 2, 3], [4, 5]]
    before = af.flow(af.merge(A, groups))[-1]
    after = af.flow(A)[-1]
    summed = np.stack([[after[np.ix_(q, k)].sum(axis=1).mean() for k in groups] for q in groups])
    assert (before <= 1 + 1e-12).all() and (summed > 1.5).any()
    assert (af.rollout(af.merge(A, groups))[-1] <= before + 1e-12).all()


def test_merging_levels_of_different_sizes() -> None:
    layers = [np.full((4, 6), 1 / 6), np.full((2, 4), 1 / 4)]
    merged = af.merge(layers, [[[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3]], [[0], [1]]])
    assert [m.shape for m in merged] == [(2, 2), (2, 2)]
    assert np.allclose(merged[0], 0.5)


def test_merged_batches() -> None:
    batch = np.stack([attention(np.random.default_rng(s), 3, 4) for s in range(2)])
    merged = af.merge(batch, [[0, 1], [2, 3]])
    assert np.allclose(merged, np.stack([af.merge(A, [[0, 1], [2, 3]]) for A in batch]))
