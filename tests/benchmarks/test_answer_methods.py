"""Our methods as the benchmarks call them, compared with the library on the same answer."""

from __future__ import annotations

import numpy as np
import pytest

import attnflow as af
from benchmarks.answer_methods import METHODS, Floats, log_p, signed_rows
from benchmarks.result_lines import Meter
from helpers.architectures import LLAMA, hf, ids

pytest.importorskip("transformers", reason="transformers is not installed")

UNITS = [[0, 1, 2], [3, 4], [5, 6]]  # two tokens are in none


@pytest.fixture(scope="module")
def decoder() -> af.Model:
    return af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "eos_token_id": None})(), name="small")


@pytest.fixture(scope="module")
def case(decoder: af.Model) -> tuple[list[int], list[int]]:
    prompt = ids(9)[0].tolist()
    return prompt, list(decoder.answer(prompt, max_new_tokens=3).ids)


@pytest.mark.parametrize("name", METHODS)
def test_scores_have_the_prompt_s_shape(decoder: af.Model, case: tuple[list[int], list[int]], name: str) -> None:
    scores = METHODS[name](decoder, *case, UNITS)
    assert scores.tokens is not None and scores.tokens.shape == (9,) and scores.units.shape == (3,)
    assert np.isfinite(scores.tokens).all() and np.isfinite(scores.units).all() and np.ptp(scores.tokens) > 0
    again = METHODS[name](decoder, *case, UNITS)
    np.testing.assert_array_equal(again.tokens, scores.tokens)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("answer rows", {}),
        ("raw last layer", {"method": "raw"}),
        ("rollout", {"method": "rollout"}),
        ("flow", {"method": "flow"}),
        ("answer · rollout", {"method": "rollout", "edges": "answer"}),
    ],
)
def test_what_users_get(
    decoder: af.Model, case: tuple[list[int], list[int]], name: str, options: dict[str, str]
) -> None:
    tokens = METHODS[name](decoder, *case, UNITS).tokens
    expected = decoder.answer(case[0], answer=case[1]).sources(**options).values[0, 0]  # type: ignore[arg-type]
    np.testing.assert_allclose(tokens, expected, atol=1e-6)


def by_hand(rows: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Compute the shares of tokens and of units, as loops."""
    tokens, units = np.zeros(9), np.zeros(4)
    for row, weight in zip(rows, weights, strict=True):
        positive = [max(x, 0) for x in row]
        tokens += [weight * x / (sum(positive) or 1) for x in positive]
        sums = [max(sum(row[i] for i in unit), 0) for unit in [*UNITS, [7, 8]]]
        units += [weight * x / (sum(sums) or 1) for x in sums]
    return tokens / tokens.sum(), (units / units.sum())[:3]


def test_rows_of_units_and_weights(decoder: af.Model, case: tuple[list[int], list[int]]) -> None:
    prompt, answer = case
    rows = decoder.answer(prompt, answer=answer).matrix(signed=True).values[0, :, :9].copy()
    rows[:, 0] = 0
    np.testing.assert_allclose(signed_rows(decoder, prompt, answer), rows)
    scores = METHODS["answer rows"](decoder, *case, UNITS)
    tokens, units = by_hand(rows, np.ones(3))
    np.testing.assert_allclose(scores.tokens, tokens, atol=1e-6)
    np.testing.assert_allclose(scores.units, units, atol=1e-6)
    total = METHODS["answer rows, sum"](decoder, *case, UNITS)
    np.testing.assert_allclose(total.units, [rows.sum(0)[unit].sum() for unit in UNITS], atol=1e-5)
    whole, bare = log_p(decoder, [prompt, prompt[7:]], answer)
    weights = np.maximum(whole - bare, 0)
    assert np.count_nonzero(weights)
    tokens, units = by_hand(rows, weights)
    scores = METHODS["answer rows, mean weights by context"](decoder, *case, UNITS)
    np.testing.assert_allclose(scores.tokens, tokens, atol=1e-5)
    np.testing.assert_allclose(scores.units, units, atol=1e-5)


def test_what_methods_cost(decoder: af.Model, case: tuple[list[int], list[int]]) -> None:
    """Counted in forward passes; answer rows run the prompt, for its cache, and then the answer."""
    meter = Meter(decoder)
    costs = {name: meter.measure(lambda m=m: m(decoder, *case, UNITS))[2] for name, m in METHODS.items()}
    assert costs["answer rows"] == 2 and costs["answer rows, mean weights by context"] == 3
    assert costs["rollout"] == costs["raw last layer"] == costs["gradient x input"] == 1
    assert costs["position"] == costs["random"] == 0
