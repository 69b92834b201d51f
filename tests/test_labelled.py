"""Labelled token attention of arrays: equal to the functions on arrays, with notes and errors."""

from __future__ import annotations

import numpy as np
import pytest

import attnflow as af
from attnflow.errors import InputError

TOKENS = ["[CLS]", "the", "old", "key"]
WEIGHTS = np.random.default_rng(1).dirichlet(np.ones(4), size=(3, 2, 4))


@pytest.mark.parametrize("heads", ["mean", [1]])
def test_values_are_those_of_the_functions_on_arrays(heads):
    graph = af.attention_graph(WEIGHTS, heads, residual=0.3)
    expected = {
        "raw": af.attention_graph(WEIGHTS, heads, residual=0.0),
        "rollout": af.rollout(graph),
        "flow": af.flow(graph),
    }
    for method, values in expected.items():
        result = af.token_attention(WEIGHTS, TOKENS, method, query="all", residual=0.3, heads=heads)
        np.testing.assert_array_equal(result.values, values)
        one = af.token_attention(WEIGHTS, TOKENS, method, query="old", layers=[0, -1], residual=0.3, heads=heads)
        np.testing.assert_allclose(one.values, values[[0, 2]][:, [2]], rtol=1e-14)
        assert (one.layers, one.queries, one.query_tokens) == ((0, 2), (2,), ("old",))
        assert one.provenance["heads"] == heads and one.provenance.get("residual") == (None if method == "raw" else 0.3)


def test_the_tuple_of_transformers_is_one_text():
    expected = af.token_attention(WEIGHTS, TOKENS)
    given = af.token_attention(tuple(WEIGHTS[:, None]), TOKENS)
    np.testing.assert_array_equal(given.values, expected.values)


def test_defaults(tmp_path):
    first = af.token_attention(WEIGHTS)
    assert (first.tokens, first.queries, first.text, first.method) == (("0", "1", "2", "3"), (0,), "0 1 2 3", "rollout")
    causal = np.tril(WEIGHTS) / np.tril(WEIGHTS).sum(-1, keepdims=True)
    assert af.token_attention(causal).queries == (3,)
    bare = af.token_attention(WEIGHTS, TOKENS, special=[True, False, False, False]).without_special()
    assert bare.tokens == ("the", "old", "key")
    bare.save(tmp_path / "x.json")
    np.testing.assert_array_equal(af.TokenAttention.load(tmp_path / "x.json").values, bare.values)


def test_flow_at_its_bound_is_noted():
    even = np.full((6, 1, 5, 5), 0.2)
    assert any("cannot tell" in note for note in af.token_attention(even, method="flow").reliability)
    assert af.token_attention(WEIGHTS, TOKENS, "raw").reliability == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gradient"}, "method='gradient': expected one of raw, rollout, flow"),
        ({"tokens": ["a"]}, "1 tokens for weights of 4 positions: expected one token per position"),
        ({"special": [True]}, "special has 1 entries for 4 positions: expected one per position"),
        (
            {"weights": WEIGHTS[:1, :, :2], "method": "raw"},
            "weights give a graph of shape (1, 2, 4): expected one text with as many queries as keys, "
            "[layer, head, query, key]",
        ),
        (
            {"weights": [WEIGHTS[[0, 0]], WEIGHTS[[1, 1]]], "tokens": None},
            "weights give a graph of shape (2, 2, 4, 4): expected one text with as many queries as keys, "
            "[layer, head, query, key]",
        ),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(InputError) as e:
        af.token_attention(**{"weights": WEIGHTS, "tokens": TOKENS, **options})
    assert message in str(e.value)
