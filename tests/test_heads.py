import re
from pathlib import Path

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
    batch = list(np.stack([W, weights()[::-1]], 1))  # [batch, head, query, key] of each layer
    assert np.allclose(af.single_head(batch, -1, 0)[0], af.single_head(W, -1, 0))
    assert af.single_head(batch, -1, 0, "flow").shape == (2, 6, 6)
    tensor = af.single_head(torch.tensor(W), 2, 1)
    assert isinstance(tensor, torch.Tensor) and np.allclose(tensor.numpy(), full)


def slow_ranking(W: np.ndarray, pairs: list[tuple[int, int]]) -> list[tuple[int, int, float, float]]:
    """Follow the definition: over queries with an aligned key, their weight there, and how often it is largest."""
    scores = []
    for layer, heads in enumerate(W):
        for head, A in enumerate(heads):
            given, at_top = [], []
            for q in sorted({q for q, _ in pairs}):
                keys = sorted({k for own, k in pairs if own == q})
                given.append(sum(A[q, k] for k in keys))
                at_top.append(max(A[q, k] for k in keys) == A[q].max())
            scores.append((layer, head, float(np.mean(given)), float(np.mean(at_top))))
    return sorted(scores, key=lambda s: (-s[2], -s[3], s[0], s[1]))


@pytest.mark.parametrize("seed", range(20))
def test_heads_are_ranked_by_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    W = weights(int(rng.integers(1, 4)), int(rng.integers(1, 4)), n := int(rng.integers(2, 9)))
    pairs = [(int(q), int(k)) for q, k in rng.integers(0, n, (int(rng.integers(1, 12)), 2))]
    ranked = af.rank_heads(W, pairs)
    expected = slow_ranking(W, pairs)
    assert [(s.layer, s.head) for s in ranked] == [(layer, head) for layer, head, _, _ in expected]
    assert np.allclose([s[2:] for s in ranked], [s[2:] for s in expected], rtol=0, atol=1e-12)
    assert ranked == af.rank_heads(torch.tensor(W), pairs[::-1] * 2)  # order and duplicates do not matter
    assert all(0 <= s.weight <= 1 + 1e-12 and 0 <= s.top <= 1 for s in ranked)


def test_a_planted_head_comes_first() -> None:
    W = weights(3, 4, 7)
    previous = np.eye(7, k=-1)
    previous[0, 0] = 1
    W[1, 2] = previous
    tokens = ["a", "b", "a", "c", "b", "a", "d"]
    best = af.rank_heads(W, af.aligned_pairs("previous", tokens))[0]
    assert best == (1, 2, 1.0, 1.0) and best.name == "L2.3"


def slow_alignment(name: str, tokens: list[str]) -> set[tuple[int, int]]:
    n = len(tokens)
    rules = {
        "previous": lambda q, k: k == q - 1,
        "next": lambda q, k: k == q + 1,
        "self": lambda q, k: k == q,
        "first": lambda q, k: k == 0 and q > 0,
        "same": lambda q, k: k != q and tokens[k] == tokens[q],
        "induction": lambda q, k: 0 < k < q and tokens[k - 1] == tokens[q],
    }
    return {(q, k) for q in range(n) for k in range(n) if rules[name](q, k)}


@pytest.mark.parametrize("name", ["previous", "next", "self", "first", "same", "induction"])
@pytest.mark.parametrize("seed", range(5))
def test_named_alignments(name: str, seed: int) -> None:
    tokens = [str(i) for i in np.random.default_rng(seed).integers(0, 4, 9)]
    assert set(af.aligned_pairs(name, tokens)) == slow_alignment(name, tokens)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([], "the alignment has no pairs: expected at least one (query, key), for example [(3, 1)]"),
        ([(1, 9)], "key 9 does not exist: there are 6, so expected -6 to 5"),
        ([1, 2], "alignment=[1, 2]: expected pairs (query, key), for example [(3, 1), (4, 2)]"),
        ([(1, 2, 3)], "alignment=[(1, 2, 3)]: expected pairs (query, key), for example [(3, 1), (4, 2)]"),
    ],
)
def test_pairs_that_are_none(pairs: object, sentence: str) -> None:
    with pytest.raises(af.InputError, match=f"^{re.escape(sentence)}"):
        af.rank_heads(W, pairs)  # type: ignore[arg-type]


def test_alignments_that_are_none() -> None:
    with pytest.raises(
        af.InputError,
        match=r"^alignment 'before': expected one of 'previous', 'next', 'self', 'first', 'same', 'induction', or pairs",
    ):
        af.aligned_pairs("before", ["a", "b"])
    with pytest.raises(af.InputError, match=r"^alignment 'same': no token of this text occurs twice"):
        af.aligned_pairs("same", ["a", "b"])
    with pytest.raises(af.InputError, match=r"^alignment 'previous': a text of one token has no other"):
        af.aligned_pairs("previous", ["a"])
    with pytest.raises(af.InputError, match=r"^weights have a batch of 2: rank the heads of one text at a time"):
        af.rank_heads(list(np.stack([W, W], 1)), [(0, 0)])


TEXT = "the key to the cabinets"


@pytest.fixture(scope="module")
def trace() -> af.Trace:
    return af.load().trace(TEXT, keep_heads=True)


def test_heads_of_a_trace_are_ranked_by_positions_words_and_arrays(trace: af.Trace) -> None:
    kept = np.stack([trace.weights[layer].numpy() for layer in range(6)]).astype(np.float64)
    expected = slow_ranking(kept, [(2, 1), (4, 2)])
    matrix = np.zeros((len(trace.tokens),) * 2, bool)
    matrix[2, 1] = matrix[4, 2] = True
    key, to = trace.tokens.index("key"), trace.tokens.index("to")
    assert (key, to) == (2, 3)
    for given in ([(2, 1), (4, 2)], {2: 1, 4: [2]}, matrix, matrix.tolist(), iter([("key", 1), (4, "key")])):
        ranked = trace.rank_heads(given)
        assert [(s.layer, s.head) for s in ranked] == [s[:2] for s in expected]
        assert np.allclose([s[2:] for s in ranked], [s[2:] for s in expected], rtol=0, atol=1e-7)
    named = slow_ranking(kept, sorted(slow_alignment("previous", list(trace.tokens))))
    assert [s[:2] for s in trace.rank_heads("previous")] == [s[:2] for s in named]


def test_a_head_is_a_result_with_its_name(trace: af.Trace, tmp_path: Path) -> None:
    head = trace.head(2, 4)
    assert head.method == "head L3.5" and head.layers == (2,) and head.queries == (trace.default_query,)
    assert np.array_equal(head.row(), trace.weights[2][4, trace.default_query].numpy())
    every = trace.head(-1, -1, query="all")
    assert every.method == "head L6.8" and np.array_equal(every.values[0], trace.weights[5][7].numpy())
    head.save(tmp_path / "head.json")
    assert af.TokenAttention.load(tmp_path / "head.json").method == "head L3.5"
    assert head.top(1)[0].value == head.row().max()


def test_traces_without_heads_say_what_to_do(trace: af.Trace) -> None:
    bare = af.load().trace(TEXT)
    with pytest.raises(
        af.InputError, match=r"^the heads of layer 2 were not kept: trace again with keep_heads=True or"
    ):
        bare.head(2, 0)
    with pytest.raises(af.InputError, match=r"^no heads were kept: trace again with keep_heads=True$"):
        bare.rank_heads("previous")
    with pytest.raises(af.InputError, match=r"^no heads were kept: trace again with keep_heads=True$"):
        bare.words().rank_heads("previous")
    with pytest.raises(af.InputError, match=r"^head 9 does not exist: there are 8, so expected -8 to 7"):
        trace.head(0, 9)
    with pytest.raises(af.InputError, match=r"^key 'door' is not a token of this text: expected a position"):
        trace.rank_heads([("key", "door")])
    some = af.load().trace(TEXT, keep_heads=[1, 3])
    assert {s.layer for s in some.rank_heads("first")} == {1, 3}


def test_heads_of_a_translation_are_those_of_its_target() -> None:
    from helpers.architectures import hf
    from helpers.small_tokenizers import sentencepiece

    tokenizer = sentencepiece()
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    model = af.wrap(
        hf("T5ForConditionalGeneration", vocab_size=len(tokenizer), decoder_start_token_id=0, **shape)(), tokenizer
    )
    trace = model.trace("the key to the cabinets", target="is unbelievable", keep_heads=True)
    kept = np.stack([trace.weights[layer].numpy() for layer in range(3)])
    expected = slow_ranking(kept, [(1, 2), (2, 0)])  # queries are target positions; keys are source or target positions
    ranked = trace.rank_heads([(1, 2), (2, 0)])
    assert [s[:2] for s in ranked] == [s[:2] for s in expected]
    own = trace.rank_heads("previous")
    first = trace.first_query
    pairs = [(q, first + q - 1) for q in range(1, kept.shape[2])]
    assert [s[:2] for s in own] == [s[:2] for s in slow_ranking(kept, pairs)]
    assert np.array_equal(trace.head(1, 2, query=1).row(), kept[1, 2, 1])
