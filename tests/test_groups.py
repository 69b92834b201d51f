"""Traces over groups of positions: residues, phrases, regions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af

torch = pytest.importorskip("torch", reason="models need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")

from helpers.architectures import SEQ2SEQ, hf  # noqa: E402
from helpers.small_models import classifier  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402

TEXT = "the key to the cabinets"
PHRASES = [[0], [1, 2], [3], [4, 5], [6]]


@pytest.fixture(scope="module")
def trace() -> af.Trace:
    return af.load().trace(TEXT, keep_heads=True)


@pytest.fixture(scope="module")
def phrases(trace: af.Trace) -> af.Trace:
    return trace.merged({"subject": "the key", "place": range(4, 6)})


def test_groups_have_the_merged_graph(trace: af.Trace, phrases: af.Trace) -> None:
    assert phrases.tokens == ("[CLS]", "subject", "to", "place", "[EOS]")
    graph = af.merge(np.asarray(trace.graph(0.0)).astype(np.float64), PHRASES)
    assert np.allclose(np.asarray(phrases.graph(0.0)), graph, atol=1e-7)
    expected = af.rollout(0.5 * graph + 0.5 * np.eye(5), queries=0)
    assert np.allclose(phrases.rollout().values, expected, atol=1e-6)
    assert np.allclose(
        phrases.flow(layer=-1).values[0], af.flow(0.5 * graph + 0.5 * np.eye(5), queries=0)[-1], atol=1e-6
    )
    assert np.allclose(phrases.raw().values[:, 0], graph[:, 0], atol=1e-6)
    assert phrases.rollout("subject", -1).query_tokens == ("subject",)


def test_words_are_groups_by_their_numbers() -> None:
    trace = af.wrap(classifier(), wordpiece()).trace("the keys to the cabinets")
    words = trace.words()
    by_hand = trace.merged(
        [[i for i, word in enumerate(trace.word_ids) if word == n] for n in range(len(trace.word_texts))]
    )
    assert len(words.tokens) < len(trace.tokens)
    assert np.allclose(words.rollout().values, by_hand.rollout().values)
    assert (words.word_ids, words.word_groups) == (by_hand.word_ids, by_hand.word_groups)


def test_subwords_outside_groups_can_still_be_merged() -> None:
    trace = af.wrap(classifier(), wordpiece()).trace("the keys to the cabinets")
    group = trace.merged({"article": [1]})
    assert group.tokens[1] == "article" and len(group.tokens) == len(trace.tokens)
    assert group.words().tokens[1:] == ("article", *trace.words().tokens[2:])
    assert np.allclose(group.rollout().words().values, trace.words().rollout().values)


def test_heads_are_merged(trace: af.Trace, phrases: af.Trace) -> None:
    expected = af.merge(trace.weights[2][4][None].double().numpy(), PHRASES)[0]
    assert np.allclose(phrases.head(2, 4).values[0, 0], expected[0], atol=1e-6)
    assert phrases.rank_heads([("subject", "to")])[0].weight == pytest.approx(
        max(float(af.merge(w.double().numpy(), PHRASES)[:, 1, 2].max()) for w in phrases.unmerged.weights.values()),
        abs=1e-6,
    )


@pytest.mark.parametrize("method", ["answer_rows", "answer_inputs", "sources"])
def test_what_is_about_the_answer_adds_up(method: str, tmp_path: Path) -> None:
    trace = af.load().trace(TEXT, edges="answer")
    tokens, groups = getattr(trace, method)(), getattr(trace.merged({"subject": [1, 2]}), method)()
    assert np.allclose(groups.row(), [tokens.row()[0], tokens.row()[1:3].sum(), *tokens.row()[3:]])
    assert groups.tokens == ("[CLS]", "subject", "to", "the", "cabinets", "[EOS]") and groups.query_tokens == ("[CLS]",)
    assert groups.provenance["unit"] == "group" and groups.provenance["groups"] == [["subject", [1, 2]]]
    groups.save(tmp_path / "r.npz")
    assert af.TokenAttention.load(tmp_path / "r.npz").tokens == groups.tokens


def test_a_query_of_answer_rows_may_be_a_group() -> None:
    trace = af.load().trace(TEXT, edges="answer")
    merged = trace.merged({"subject": [1, 2]}).answer_rows("subject", signed=True)
    tokens = trace.answer_rows([1, 2], signed=True)
    assert merged.query_tokens == ("subject",) and merged.queries == (1,)
    assert np.allclose(merged.row().sum(), tokens.row().sum())


def test_groups_show_and_save_themselves(phrases: af.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = phrases.rollout(layer=-1)
    result.show()
    assert "subject" in capsys.readouterr().out
    for name in ("r.html", "r.csv", "r.pdf"):
        result.save(tmp_path / name)
    assert '"subject"' in (tmp_path / "r.html").read_text()
    assert "subject" in (tmp_path / "r.csv").read_text()
    assert "subject" in phrases._repr_html_()


def test_source_and_target_stay_apart() -> None:
    build = hf("BartForConditionalGeneration", **{**SEQ2SEQ, "vocab_size": len(wordpiece())}, decoder_start_token_id=2)
    trace = af.wrap(build(), wordpiece()).trace("the key to the cabinets", target="the key", keep_heads=True)
    first = trace.first_query
    merged = trace.merged({"source": range(2), "target": [first, first + 1]})
    assert merged.parts[0] == "source" and merged.tokens[merged.first_query] == "target"
    assert np.allclose(merged.rollout("all").values.sum(-1), 1, atol=1e-5)
    assert np.allclose(
        merged.head(0, 1, "all").values.sum(-1), trace.head(0, 1, "all").values.sum(-1).mean(), atol=1e-5
    )
    with pytest.raises(
        af.InputError, match=r"^the group 'both' has positions of the source and of the target: give two groups$"
    ):
        trace.merged({"both": [0, first]})


@pytest.mark.parametrize(
    ("groups", "names", "sentence"),
    [
        ([[1, 2], [2, 3]], None, "position 2 ('key') is in the groups 'the + key' and 'key + to': expected each position in one group at most"),
        ([[9]], None, "position 9 does not exist: there are 7, so expected -7 to 6"),
        ([[]], None, "a group is [], which has no positions: expected positions such as [3, 4], range(3, 5), or a piece of the text"),
        ([["a"]], None, "a group is ['a']: expected positions such as [3, 4]"),
        ([True], None, "a group is True: expected positions such as"),
        ("the key", None, "groups='the key': expected a list of groups, or a mapping from names to groups"),
        (3, None, "groups=3: expected a list of groups, or a mapping from names to groups"),
        ({"a": [1]}, ["b"], "names is given, but groups is a mapping, which already has them: leave names out"),
        ([[1]], ["a", "b"], "names=['a', 'b'] for 1 groups: expected a list with one text for each"),
        ([[1]], "a", "names='a' for 1 groups: expected a list with one text for each"),
        (["door"], None, "the span 'door' does not occur in the text 'the key to the cabinets': give a part of the text, as written"),
        (["the"], None, "the span 'the' occurs 2 times in the text: choose one of ('the', 1)"),
    ],
)  # fmt: skip
def test_groups_that_are_refused(trace: af.Trace, groups: Any, names: Any, sentence: str) -> None:
    with pytest.raises(af.InputError, match=f"^{re.escape(sentence)}"):
        trace.merged(groups, names)


def test_names_and_occurrences(trace: af.Trace) -> None:
    assert trace.merged([("the", 2), slice(2, 4)], ["second", "slice"]).tokens == (
        "[CLS]", "the", "slice", "second", "cabinets", "[EOS]",
    )  # fmt: skip
    assert trace.merged([[-1, 0]]).tokens[0] == "[CLS] + [EOS]"
