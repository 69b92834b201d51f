"""User mistakes: each gets a short message of ours, never a crash."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import attnflow as af

W = np.full((2, 3, 4, 4), 0.25)
A = af.attention_graph(W)


def with_(array: np.ndarray, at: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.copy()
    changed[at] = value
    return changed


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "NaN weights": (lambda: af.attention_graph(with_(W, (1, 0, 2, 3), np.nan)), "layer 1 of the weights is NaN at [0, 2, 3]: expected non-negative numbers"),
    "negative weights": (lambda: af.attention_graph(with_(W, (0, 0, 0, 0), -0.1)), "layer 0 of the weights is negative at [0, 0, 0]: expected non-negative numbers"),
    "infinite weights": (lambda: af.attention_graph(with_(W, (0, 0, 0, 0), np.inf)), "layer 0 of the weights contains infinity: expected finite numbers (only flow takes infinite capacities)"),
    "words as weights": (lambda: af.attention_graph("attention"), "weights cannot be read as an array of numbers: got str, expected an array, a tensor or nested lists of equal lengths"),
    "ragged lists": (lambda: af.attention_graph([[[[1.0]]], [[[0.5, 0.5], [1.0]]]]), "weights cannot be read as an array of numbers: got list, expected an array, a tensor or nested lists of equal lengths"),
    "three axes": (lambda: af.attention_graph(W[0]), "weights have shape (3, 4, 4): expected [layer, head, query, key], or for a batch a list with [batch, head, query, key] of every layer; add the missing axes, for example weights[:, None] if the heads are already averaged"),
    "attentions that transformers did not return": (lambda: af.attention_graph((None, None)), 'there are no attention weights: transformers returns none unless the model was loaded with attn_implementation="eager"; load() and wrap() work with any implementation'),
    "no layers": (lambda: af.attention_graph(W[:0]), "weights have no layers: expected [layer, head, query, key], or for a batch a list with [batch, head, query, key] of every layer, with at least one layer"),
    "no positions": (lambda: af.attention_graph(W[:, :, :0, :0]), "layer 0 of the weights has shape (3, 0, 0): an axis is empty"),
    "a layer with an axis too few": (lambda: af.attention_graph([W[0], W[1, 0]]), "layer 1 of the weights has shape (4, 4): expected [head, query, key] or [batch, head, query, key]"),
    "unknown heads": (lambda: af.attention_graph(W, heads="median"), "heads='median': expected \"mean\", \"max\", \"min\" or a list of heads from 0 to 2"),
    "a head that does not exist": (lambda: af.attention_graph(W, heads=[3]), "head 3 does not exist: there are 3, so expected -3 to 2"),
    "an empty list of heads": (lambda: af.attention_graph(W, heads=[]), "heads is an empty list: expected heads from 0 to 2"),
    "residual above one": (lambda: af.attention_graph(W, residual=1.5), "residual=1.5: expected a number between 0 and 1 (the paper uses 0.5)"),
    "rows in strict mode": (lambda: af.attention_graph(W * 1.1, strict=True), "rows of the attention weights do not sum to one: the largest deviation is 0.1, in layer 0. Softmax rows do; dropout (training mode), masking after the softmax or transposed axes break this"),
    "residual of a rectangle": (lambda: af.attention_graph([np.full((1, 2, 4), 0.25)]), "layer 0 has 2 queries and 4 keys: a residual connection joins equal positions, so give residual=0 and add the residual edges yourself"),
    "layers that do not fit": (lambda: af.flow([np.ones((4, 5)), np.ones((4, 3))]), "layer 1 has 3 keys but layer 0 below it has 4 queries: expected the same number, because the keys of a layer are the positions of the layer below"),
    "a graph of two axes": (lambda: af.rollout(A[0]), "the graph has shape (4, 4): expected [layer, query, key] or [batch, layer, query, key]; attention_graph() makes one from attention weights"),
    "weights for a graph": (lambda: af.flow(W[None]), "the graph has shape (1, 2, 3, 4, 4): expected [layer, query, key] or [batch, layer, query, key]; attention_graph() makes one from attention weights"),
    "a graph without layers": (lambda: af.flow(A[:0]), "the graph has no layers: expected at least one matrix [query, key]"),
    "an empty layer": (lambda: af.flow([np.ones((0, 3))]), "layer 0 of the graph has shape (0, 3): expected [query, key] with both at least 1"),
    "NaN in the graph": (lambda: af.flow(with_(A, (1, 2, 3), np.nan)), "layer 1 of the graph is NaN at [2, 3]: expected non-negative numbers"),
    "a negative capacity": (lambda: af.flow(with_(A, (0, 1, 1), -1)), "layer 0 of the graph is negative at [1, 1]: expected non-negative numbers"),
    "rollout of infinity": (lambda: af.rollout(with_(A, (0, 1, 1), np.inf)), "layer 0 of the graph contains infinity: expected finite numbers (only flow takes infinite capacities)"),
    "a query that does not exist": (lambda: af.flow(A, queries=[0, 4]), "query 4 does not exist: there are 4, so expected -4 to 3"),
    "a token that does not exist": (lambda: af.flow(A, tokens=-5), "token -5 does not exist: there are 4, so expected -4 to 3"),
    "a layer that does not exist": (lambda: af.flow(A, layers=[2]), "layer 2 does not exist: there are 2, so expected -2 to 1"),
    "no layer at all": (lambda: af.flow(A, layers=[]), "layers=[]: expected at least one, from 0 to 1"),
    "a word for a query": (lambda: af.flow(A, queries="CLS"), "query='CLS' is not a position: expected an int or a list of ints"),
    "a float for a query": (lambda: af.rollout(A, queries=1.0), "query=1.0 is not a position: expected an int or a list of ints"),
    "no threads": (lambda: af.flow(A, threads=0), "threads=0: expected an int of at least 1, or None for all cores"),
    "layers below start": (lambda: af.rollout(A, start=1, layers=0), "layers=0: expected at least one, from start=1 to 1"),
    "start beyond the graph": (lambda: af.rollout(A, start=2), "start 2 does not exist: there are 2, so expected -2 to 1"),
    "queries of layers of two sizes": (lambda: af.flow([np.ones((4, 4)), np.ones((2, 4))]), "the chosen layers have [4, 2] positions: give queries that exist in all of them, counted from 0, or choose layers of one size"),
    "a batch for one pair": (lambda: af.max_flow(np.stack([A, A]), 0, 0), "the graph has a batch of 2: give one graph of it, for example A[0]"),
    "two queries for one pair": (lambda: af.max_flow(A, [0, 1], 0), "query=[0, 1] is not a position: expected one int"),
    "normalizing infinity": (lambda: af.flow(np.full((2, 2, 2), np.inf), normalize=True), "normalize=True divides by the sum of the flows, which is infinite for this graph"),
    "an unknown method": (lambda: af.single_head(W, 0, 0, "shap"), "method='shap': expected one of 'rollout', 'flow'"),
    "a head of a layer": (lambda: af.single_head(W, 0, 7), "head 7 does not exist: there are 3, so expected -3 to 2"),
    "a position twice": (lambda: af.merge(A, [[0, 1], [1, 2, 3]]), "position 1 is in 2 groups: expected each of 4 positions in exactly one"),
    "a position left out": (lambda: af.merge(A, [[0, 1], [3]]), "position 2 is in 0 groups: expected each of 4 positions in exactly one"),
    "an empty group": (lambda: af.merge(A, [[0, 1, 2, 3], []]), "group 1 is empty: expected at least one position"),
    "too few group numbers": (lambda: af.merge(A, [0, 0, 1]), "groups has 3 labels: expected one for each of 4 positions"),
    "a negative number of paths": (lambda: af.max_flow(A, 0, 0).paths(-1), "limit=-1: expected 0 or more, or None for all paths"),
    "a negative query of layers of two sizes": (lambda: af.flow([np.ones((4, 4)), np.ones((2, 4))], -1), "the chosen layers have [4, 2] positions: give queries that exist in all of them, counted from 0, or choose layers of one size"),
    "batches of two sizes": (lambda: af.flow([np.ones((2, 4, 4)), np.ones((3, 4, 4))]), "layer 1 of the graph has batch [3], layer 0 has [2]: expected the same"),
    "weights in batches of two sizes": (lambda: af.attention_graph([W, W[:1]]), "layer 1 of the weights has batch [1], layer 0 has [2]: expected the same"),
    "an empty batch": (lambda: af.rollout(A[None][:0]), "the graph is an empty batch: expected at least one"),
    "a mask for queries": (lambda: af.flow(A, queries=[True, False, True, False]), "query=[True, False, True, False] is not a position: expected an int or a list of ints"),
    "True for a query": (lambda: af.max_flow(A, True, 0), "query=True is not a position: expected one int"),
    "a masked array": (lambda: af.flow(np.ma.masked_less(A, 0.2)), "the graph is a masked array: expected plain numbers, so fill it first (with 0 for masked entries)"),
    "complex numbers": (lambda: af.rollout(A * 1j), "the graph cannot be read as an array of numbers: got an array of complex128, expected an array, a tensor or nested lists of equal lengths"),
    "dates": (lambda: af.rollout(A.astype("datetime64[s]")), "the graph cannot be read as an array of numbers: got an array of datetime64[s], expected an array, a tensor or nested lists of equal lengths"),
    "numbers beyond all doubles": (lambda: af.flow([[[10**400]]]), "the graph cannot be read as an array of numbers: got list, expected an array, a tensor or nested lists of equal lengths"),
    "no groups": (lambda: af.merge(A, None), "groups=None: expected a list of lists of positions, or one label per position"),
    "lists and labels": (lambda: af.merge(A, [0, [1], 2, 3]), "groups mixes lists and labels: expected only lists of positions, or only labels"),
    "a method that is no word": (lambda: af.single_head(W, 0, 0, []), "method=[]: expected one of 'rollout', 'flow'"),
    "a word for a number of paths": (lambda: af.max_flow(A, 0, 0).paths("3"), "limit='3': expected 0 or more, or None for all paths"),
    "groups for one level only": (lambda: af.merge([np.ones((2, 3))], [[0], [1, 2], [3]]), "the levels of this graph have [3, 2] positions: expected one list of groups for each of the 2 levels, input first; got 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_sentence(case: str) -> None:
    call, sentence = CASES[case]
    with pytest.raises(af.InputError) as caught:
        call()
    assert str(caught.value) == sentence


def test_rows_that_do_not_sum_to_one_are_a_warning_with_the_deviation() -> None:
    with pytest.warns(af.AttentionWarning, match=r"the largest deviation is 0\.2, in layer 1"):
        af.attention_graph(np.stack([W[0], W[1] * 0.8]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        af.attention_graph(W.astype(np.float16))


def test_numpy_and_torch_in_one_list() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        af.InputError, match="the graph mixes numpy arrays and torch tensors: expected all layers of one kind"
    ):
        af.rollout([A[0], torch.tensor(A[1])])
    with pytest.raises(
        af.InputError, match=r"the graph is a torch.sparse_coo tensor of torch.float64 on cpu: expected a dense"
    ):
        af.rollout(torch.tensor(A).to_sparse())
    mixed = af.rollout([torch.tensor(A[0], dtype=torch.float32), torch.tensor(A[1])])
    assert mixed.dtype == torch.float64


def test_what_may_look_wrong_and_is_right() -> None:
    assert af.rollout(A, queries=(q for q in [0, 1])).shape == (2, 2, 4)
    assert (af.attention_graph(W, heads=(h for h in [0, 2])) == af.attention_graph(W, heads=[0, 2])).all()
    assert (af.attention_graph(W, residual=np.float32(0.5)) == A).all()
    assert (af.flow(A, queries=np.int64(1), threads=2**40) == af.flow(A, queries=1)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uneven = np.random.default_rng(0).dirichlet(np.ones(64), size=(2, 2, 64)).astype(np.float16)
        af.single_head(uneven, 1, 0)


def test_the_compiled_core_guards_itself() -> None:
    """Direct callers get an exception too."""
    from attnflow._core import native

    graph = native().Graph([A[0], A[1]])
    for wrong in (([0], [0], [0]), ([3], [0], [0]), ([1], [4], [0]), ([1], [-1], [0]), ([1], [0], [99])):
        with pytest.raises(IndexError):
            graph.flow(*wrong, 1)
    for query, token, layer in ((4, 0, 1), (0, -1, 1), (0, 0, 3)):
        with pytest.raises(IndexError):
            graph.max_flow(layer, query, token)
    for layers in (
        [],
        [np.ones((2, 3)), np.ones((2, 3))],
        [np.ones((0, 3))],
        [np.full((2, 2), np.nan)],
        [-np.ones((2, 2))],
    ):
        with pytest.raises(ValueError):
            native().Graph(layers)
    for layers in ([np.ones(3)], ["graph"], None):
        with pytest.raises(TypeError):
            native().Graph(layers)
