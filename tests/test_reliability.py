"""The rules that say when not to trust a number: each applies where it should, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnflow.reliability import (
    FlowBound,
    Labels,
    evidence_notes,
    of_rows,
    row_notes,
    tie_notes,
)

TOKENS = ["[CLS]", "the", "key", "is", "[SEP]"]
SPECIAL = [True, False, False, False, True]
LABELS = Labels(TOKENS, SPECIAL)
LITTLE = "what is left says little about the other tokens; answer edges show what the answer rests on."


def row(*values: float) -> Any:
    return np.array(values)


@pytest.mark.parametrize(
    ("values", "tied"),
    [
        ((0.1, 0.4, 0.4, 0.4, 0.9), "3 of 3"),
        ((0.1, 0.4, 0.4 * (1 - 1e-10), 0.4, 0.9), "3 of 3"),  # rounding
        ((0.1, 0.4, 0.4 * (1 - 1e-8), 0.4, 0.9), None),
        ((0.1, 0.4, 0.4, 0.0, 0.9), "2 of 2"),  # unreached tokens do not break the tie
        ((0.1, 0.4, 0.4, 0.3, 0.9), None),  # two of three are less than nine tenths
        ((0.1, 0.0, 0.0, 0.5, 0.2), None),  # zeros tie, but one token stands out
    ],
)
def test_ties_rank_nothing(values: tuple[float, ...], tied: str | None) -> None:
    notes = row_notes(row(*values), LABELS, "rollout", 5)
    assert notes.get("ties") == (tied and f"Rollout cannot tell these tokens apart at L6: {tied} tie.")


def test_rows_of_zeros_rank_nothing() -> None:
    assert tie_notes(np.zeros(3), "gradient") == {"ties": "Every token gets 0 from gradient: it ranks nothing."}
    assert tie_notes(np.zeros(1), "gradient") == {}, "one token is no ranking"
    assert tie_notes(row(-1.0, -1.0), "shapley") == {}, "what all speak against is not the highest"
    assert tie_notes(row(0.5, 0.5), "shapley") == {"ties": "Shapley cannot tell these tokens apart: 2 of 2 tie."}


@pytest.mark.parametrize(
    ("values", "labels", "own", "rule", "sentence"),
    [
        ((0.97, 0.01, 0.02, 0, 0), LABELS, 2, "sink", f"97 % of this rollout is on the first token '[CLS]': {LITTLE}"),
        ((0.01, 0.01, 0.02, 0, 0.96), LABELS, 2, "sink", f"96 % of this rollout is on the special token '[SEP]': {LITTLE}"),
        ((0.97, 0.01, 0.02, 0, 0), LABELS, 0, "own", f"97 % of this rollout stays at the query '[CLS]' itself: {LITTLE}"),
        (
            (0.0, 0.01, 0.95, 0.04, 0), Labels(TOKENS, SPECIAL, sinks=(2,)), 2, "sink",
            f"95 % of this rollout is on 'key', a sink whose value carries next to nothing: {LITTLE}",
        ),
        ((0.0, 1.8, 0.1, 0.1, 0), LABELS, 1, "own", f"90 % of this rollout stays at the query 'the' itself: {LITTLE}"),
    ],
)  # fmt: skip
def test_all_of_a_row_on_one_position(
    values: tuple[float, ...], labels: Labels, own: int, rule: str, sentence: str
) -> None:
    assert row_notes(row(*values), labels, "rollout", 5, own) == {rule: sentence}


def test_a_row_that_finds_one_word_is_no_sink() -> None:
    found = row(0.02, 0.0, 0.97, 0.01, 0.0)
    assert row_notes(found, LABELS, "rollout", 5, 0) == {}
    assert row_notes(row(0.89, 0.05, 0.06, 0, 0), LABELS, "rollout", 5, 0) == {}
    plain = Labels(["Dogs", "bark", "loud"], [False] * 3)
    assert row_notes(row(0.95, 0.03, 0.02), plain, "raw", 5, 2) == {}, "the first word of an encoder's text"
    causal = Labels(plain.tokens, plain.special, causal=True)
    assert row_notes(row(0.95, 0.03, 0.02), causal, "raw", 5, 2)["sink"].startswith(
        "95 % of this raw attention is on the first token 'Dogs'"
    )
    assert row_notes(row(0.95, -0.1, 0.02), causal, "raw", 5, 2) == {}, "signed parts have no shares"
    assert row_notes(row(1.0), Labels(["Dogs"], [False], causal=True), "raw", 5, 0) == {}


def test_a_flow_to_a_sink_is_compared_with_what_leaves_the_query() -> None:
    sunk = Labels(TOKENS, SPECIAL, sinks=(0,))
    bound = FlowBound(0.5, row(2.0, 0.7, 0.8, 3.0, 1.0))
    flows = row(0.48, 0.3, 0.2, 0.1, 0.3)
    assert row_notes(flows, sunk, "flow", 5, 2, bound) == {
        "sink": f"96 % of what leaves the query can flow to '[CLS]', a sink whose value carries next to nothing: {LITTLE}"
    }
    assert row_notes(flows, LABELS, "flow", 5, 2, bound) == {}
    assert row_notes(0.9 * flows, sunk, "flow", 5, 2, bound) == {}


def test_several_rows_say_what_holds_for_most() -> None:
    notes = [{"ties": "a"}, {"ties": "b", "sink": "c"}, {}]
    assert of_rows(notes, ["x", "y", "z"]) == ["2 of 3 queries, such as 'x': a"]
    assert of_rows(notes[1:], ["y", "z"]) == [], "half is not most"
    assert of_rows([notes[1]], ["y"]) == ["b", "c"] and of_rows([], []) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, None),
        (
            {"each": 0.0099},
            "The model is unlikely to give this answer (probability 0.01 per token): only what supports it",
        ),
        ({"each": 0.011}, None),
        ({"each": None}, None),
        (
            {"speaks_for": 0.9, "against": 9.1},
            "Far more counts against the answer (9.1 of log-odds) than supports it (0.9): ",
        ),
        ({"speaks_for": 0.95, "against": 9.1}, None),
        ({"first": 5.5}, "52 % of the support for the answer is on the first token, which is left out: the shares"),
        ({"first": 4.9}, None),
        (
            {"gap": 0.012},
            "The parts miss the log-odds by 1 % of their sizes: a dtype with more precision adds up better.",
        ),
        ({"gap": 0.009}, None),
    ],
)
def test_what_speaks_against_the_shares_of_an_answer(change: dict[str, Any], sentence: str | None) -> None:
    sizes: dict[str, Any] = {"speaks_for": 5.0, "against": 3.0, "first": 0.5, "gap": 1e-5, "each": 0.6}
    notes = list(evidence_notes(**sizes | change).values())
    assert [note[: len(sentence or "")] for note in notes] == ([] if sentence is None else [sentence])


def test_signed_parts_are_no_shares() -> None:
    assert len(evidence_notes(0.5, 11.0, 3.0, 0.5, 1e-6)) == 4
    assert list(evidence_notes(0.5, 11.0, 3.0, 0.5, 1e-6, shares="none")) == ["unlikely", "gap"]


def test_shares_with_signs_say_sooner_that_more_speaks_against_the_answer() -> None:
    assert evidence_notes(5.0, 10.1, 0.0, 0.0, 0.6, "signed", "score") == {
        "outweighed": "More counts against the answer (10.1 of score) than supports it (5.0): the shares are shares of that 5.0."
    }
    assert evidence_notes(5.0, 9.9, 0.0, 0.0, 0.6, "signed") == {} == evidence_notes(5.0, 10.1, 0.0, 0.0, 0.6)


torch = pytest.importorskip("torch", reason="traces need torch")
transformers = pytest.importorskip("transformers", reason="traces need transformers")

import attnflow as af  # noqa: E402
from helpers.small_models import bert  # noqa: E402

TEXT = "the key to the cabinets"


@pytest.fixture(scope="module")
def trace() -> Any:
    return af.load().trace(TEXT)


def test_flow_of_a_trace_says_where_it_is_at_its_bound(trace: Any) -> None:
    """Follow the definition at every layer and query: flow, and the two cuts that bound it."""
    graph, special = trace.graph().astype(np.float64), np.array(trace.special)
    spoken = 0
    for layer in range(6):
        for query in range(len(trace.tokens)):
            result = trace.flow(query, layer)
            bound = np.minimum(graph[0].sum(0), graph[layer, query].sum())[~special]
            reached = int((result.row()[~special] >= bound * (1 - 1e-9)).sum())
            expected = reached >= 0.9 * len(bound)
            assert any(f"for {reached} of {len(bound)} tokens" in note for note in result.reliability) == expected
            spoken += expected
    assert 0 < spoken < 6 * len(trace.tokens)
    whole = trace.flow(query="all").reliability
    assert whole[0].startswith("7 of 7 queries, such as '[CLS]': Flow at L6 is at its upper bound for 5 of 5 tokens")
    assert trace.flow(normalize=True).reliability == trace.flow().reliability != ()
    assert trace.flow(receptive_field="ratio").reliability == ()
    np.testing.assert_allclose(trace.flow(normalize=True).values.sum(-1), 1)


def test_a_deep_encoder_mixes_everything() -> None:
    """Under uniform attention rollout forgets its query: 0.5 to the power of the number of layers remains."""
    model = bert("BertModel")
    short = model.trace(TEXT)

    def deep(layers: int) -> Any:
        from dataclasses import replace

        n = len(short.tokens)
        even = replace(short.steps[0], weights=torch.full((n, n), 1 / n))
        return replace(short, steps=(even,) * layers, ends=tuple(range(layers)))

    for layers, mixed in ((3, False), (6, False), (7, True), (12, True)):
        result = deep(layers).rollout(layer=-1)
        common = 1 - 0.5**layers  # Σ min of two rows that are uniform except for the residual connection
        assert mixed == (common >= 0.99)
        assert any("Other queries have nearly the same row" in note for note in result.reliability) == mixed
        everywhere = deep(layers).rollout(query="all").reliability
        assert any(f"{len(short.tokens)} of {len(short.tokens)} queries" in note for note in everywhere) == mixed
    assert deep(12).rollout(receptive_field="ratio").reliability == ()


def test_a_row_that_stays_at_home_says_so(trace: Any) -> None:
    (note,) = trace.rollout(layer=-1, residual=0.99).reliability
    assert "of this rollout stays at the query '[CLS]' itself" in note
    (note,) = trace.rollout("key", -1, 0.99).reliability
    assert "of this rollout stays at the query 'key' itself" in note
    assert trace.rollout(layer=-1).reliability == trace.raw(layer=-1).reliability == ()


def test_answer_rows_of_an_unlikely_class_say_so() -> None:
    model = af.load()
    own = model.trace(TEXT, edges="answer").answer_rows()
    assert own.reliability == ()
    sure = "the keys to the cabinets that the boys see"
    other = model.trace(sure, edges="answer", answer="singular").answer_rows()
    chance = other.provenance["answer"]["probability"]
    assert any("Far more counts against" in note for note in other.reliability)
    assert any("unlikely to give" in note for note in other.reliability) == (chance < 0.01)
    for memory in ("graph", "linear"):
        signed = model.trace(sure, edges="answer", answer="singular", memory=memory).answer_rows(signed=True)
        shares = model.trace(sure, edges="answer", answer="singular", memory=memory).answer_rows()
        assert not any("Far more" in note for note in signed.reliability) and shares.reliability == other.reliability


@pytest.mark.parametrize("extension", ["json", "npz"])
def test_files_bring_it_back(trace: Any, tmp_path: Path, extension: str) -> None:
    result = trace.flow(layer=-1)
    assert result.reliability
    path = tmp_path / f"flow.{extension}"
    result.save(path)
    assert af.TokenAttention.load(path).reliability == result.reliability
    assert result.to_dict()["provenance"]["reliability"] == list(result.reliability)
    for step in (result.words(), result.without_special(), result.normalized()):
        assert step.reliability == result.reliability
    quiet = trace.rollout(layer=-1)
    quiet.save(path)
    assert af.TokenAttention.load(path).reliability == ()
