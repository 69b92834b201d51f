"""The pronoun sentences of Figure 4 and others: loading, refusals and counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import attnflow as af
from attnflow.errors import InputError
from attnflow.paper import pronouns
from attnflow.paper.pronoun_data import (
    EITHER,
    FIGURE_4,
    WINOBIAS_GENDER,
    WINOGENDER_GENDER,
    read_winobias,
    read_winogender,
    with_slot,
)
from attnflow.paper.pronouns import MaskedPronoun, agreement, consistency, implied, masked_pronoun, measure
from helpers.pronoun_files import ROWS, winobias


def test_winobias_has_the_pronoun_both_candidates_and_which_one_is_meant(tmp_path):
    read = read_winobias(winobias(tmp_path / "bias"))
    assert not read.excluded and len(read.examples) == 6
    first = next(e for e in read.examples if e.id == "pro_stereotyped_type1.txt.dev:2")
    assert first.text == "The baker paid the guard because of his patience."
    assert (first.pronoun, first.names, first.referent) == ("his", ("baker", "guard"), 1)
    assert (first.genders, first.source, first.kind) == (("female", "male"), "WinoBias type 1", "possessive")
    assert first.filled("[MASK]")[0] == "The baker paid the guard because of [MASK] patience."


def test_her_is_settled_by_the_same_sentence_with_the_other_gender(tmp_path):
    read = read_winobias(winobias(tmp_path / "bias"))
    kinds = {e.id.split(":")[1]: set() for e in read.examples}
    for e in read.examples:
        kinds[e.id.split(":")[1]].add(e.kind)
    assert kinds == {"1": {"subject"}, "2": {"possessive"}, "3": {"object"}}
    alone = read_winobias(tmp_path / "bias" / "pro_stereotyped_type1.txt.dev")
    assert [e.kind for e in alone.examples] == ["subject", "possessive", EITHER]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 [The cook] fed the clerk because [he] liked [his] food.", "more than one pronoun is marked"),
        ("1 [The cook] fed the clerk because [he] liked his food.", "another pronoun tells the gender"),
        ("1 [The cook] fed the clerk because [they] had food.", "the pronoun is gender-neutral"),
        ("1 [The pilot] fed the clerk because [he] had food.", "the referent is not one of the 40 occupations"),
        ("1 [The cook] fed the pilot because [he] had food.", "no other occupation is in the sentence"),
        (
            "1 [The cook] fed the clerk and the nurse as [he] had food.",
            "more than one other occupation is in the sentence",
        ),
        ("1 [The cook] fed the clerk because [he] is a cook.", "a candidate is named twice"),
    ],
)
def test_what_cannot_be_used_is_counted_with_its_reason(tmp_path, line, reason):
    file = tmp_path / "lines.txt"
    file.write_text(f"{line}\n2 [The cook] fed the clerk because [he] had food.\n")
    read = read_winobias(file)
    assert read.reasons == {reason: 1} and read.excluded[0].where == "lines.txt:1" and len(read.examples) == 1


@pytest.mark.parametrize(
    "line",
    [
        "[The cook] fed the clerk because [he] had food.",
        "1 The cook fed the clerk because [he] had food.",
        "1 [The cook] fed [the clerk] because [he] had food.",
        "1 [The cook] fed the clerk because [he had food.",
        "1 nothing",
    ],
)
def test_a_line_that_is_no_line_of_winobias_is_named(tmp_path, line):
    file = tmp_path / "lines.txt"
    file.write_text(f"1 [The cook] fed the clerk because [he] had food.\n\n{line}\n")
    with pytest.raises(InputError, match=r"lines.txt', line 3: .* expected a number and a sentence with one referent"):
        read_winobias(file)


def test_places_count_from_the_sentence_without_its_brackets(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("1 The CEO met [ a construction worker] and thanked [him] twice.\n")
    (e,) = read_winobias(file).examples
    assert (e.names, e.referent, e.pronoun) == (("CEO", "construction worker"), 1, "him")
    assert e.text[slice(*e.slot)] == "him"


def test_winogender_has_the_answer_in_the_order_of_the_sentence(tmp_path):
    (tmp_path / "all_sentences.tsv").write_text(ROWS)
    read = read_winogender(tmp_path)
    assert read.reasons == {"the pronoun is gender-neutral": 1}
    his, her, she = read.examples
    assert (his.names, his.referent, his.genders) == (("plumber", "tenant"), 0, ("male", None))
    assert his.kind == her.kind == "possessive" and his.key == her.key
    assert (she.names, she.referent, she.genders) == (("Someone", "nurse"), 0, (None, "female"))
    assert (his.source, she.source) == ("Winogender", "Winogender, someone")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sentence\n", "line 1: 'sentence': expected the columns sentid and sentence"),
        ("sentid\tsentence\nplumber.tenant.2.male.txt\tThe plumber left.\n", "line 2: .* is not a Winogender row"),
        ("sentid\tsentence\nplumber.tenant.0.male.txt\n", "line 2: .* is not a Winogender row"),
        (
            "sentid\tsentence\nplumber.tenant.0.male.txt\tThe plumber left the tenant her tools.\n",
            "line 2: .*expected exactly one male pronoun",
        ),
        ("sentid\tsentence\n", "contains no sentence"),
    ],
)
def test_rows_that_are_no_rows_of_winogender_are_named(tmp_path, text, said):
    (tmp_path / "all_sentences.tsv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_winogender(tmp_path)


def test_a_participant_that_is_not_there_is_counted(tmp_path):
    file = tmp_path / "rows.tsv"
    file.write_text(ROWS + "plumber.cat.0.male.txt\tThe plumber left the tenant his tools.\n")
    assert read_winogender(file).reasons["the participant is not in the sentence"] == 1


def test_files_that_cannot_be_read_say_so(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*: expected UTF-8 text"):
        read_winobias(tmp_path / "none.txt")
    with pytest.raises(
        InputError, match=r"contains no WinoBias file: expected names like pro_stereotyped_type1.txt.test"
    ):
        read_winobias(tmp_path)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe1")
    with pytest.raises(InputError, match="is UTF-16: expected UTF-8"):
        read_winobias(tmp_path / "bytes.txt")


def test_the_occupations_are_as_many_as_published():
    assert Counter(WINOBIAS_GENDER.values()) == {"male": 20, "female": 20}
    assert len(WINOGENDER_GENDER) == 60


@pytest.mark.parametrize(
    ("genders", "male", "female"),
    [
        (("male", "female"), 0, 1),
        (("female", "male"), 1, 0),
        (("male", None), 0, 1),
        ((None, "female"), 0, 1),
        ((None, "male"), 1, 0),
        ((None, None), None, None),
        (("male", "male"), None, None),
    ],
)
def test_what_a_prediction_implies(genders, male, female):
    e = replace(FIGURE_4[1], genders=genders)
    assert (implied(e, 0.6, 0.2), implied(e, 0.2, 0.6), implied(e, 0.3, 0.3)) == (male, female, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no slot", ("no", "slot")), r"contains \[MASK\] 0 times: expected it once"),
        (("[MASK] a b b", ("a", "b")), "the candidate 'b' occurs 2 times"),
        (("[MASK] a b", ("a", "a")), "expected two different words"),
        (("[MASK] a b", ("a", "b"), ("man", None)), "expected 'male', 'female' or None"),
        (("[MASK] a b", ("a", "b"), (None, None), "plural"), "kind='plural': expected one of 'subject'"),
    ],
)
def test_sentences_of_ones_own_are_checked(arguments, said):
    with pytest.raises(InputError, match=said):
        with_slot(*arguments)


def measured(genders, referent, weights, p=(0.6, 0.2), text="Mary convinced John of [MASK] love"):
    e = replace(with_slot(text, ("Mary", "John")), genders=genders, referent=referent, source="own")
    return MaskedPronoun(e, *p, {"raw": np.array(weights, float)})


def test_shares_ties_and_what_says_nothing():
    rows = agreement(
        [
            measured(("female", "male"), 0, [[0.1, 0.3], [0.3, 0.1]]),  # predicts male: John
            measured(("female", "male"), 1, [[0.1, 0.3], [0.2, 0.2 + 1e-15]]),
            measured((None, "male"), 1, [[0.3, 0.1], [0.1, 0.3]]),
            measured((None, None), None, [[0.3, 0.1], [0.1, 0.3]]),
        ]
    )
    found = {(r.view, r.layer, r.against): (r.agree, r.count, r.ties) for r in rows}
    assert found["raw", 0, "prediction"] == (2, 2, 0)
    assert found["raw", 1, "prediction"] == (0, 1, 1)
    assert found["raw", 0, "prediction, one gender known"] == (0, 1, 0)
    assert found["raw", 0, "referent"] == (1, 3, 0)
    assert found["prediction", None, "referent"] == (2, 3, 0)
    assert found["first named", None, "referent"] == (1, 3, 0)
    assert found["nearer to the pronoun", None, "referent"] == (2, 3, 0)
    assert all(r.low <= r.share <= r.high for r in rows)


def test_a_share_of_ties_alone_is_none():
    rows = agreement([measured(("female", "male"), 0, [[0.2, 0.2]])])
    (row,) = (r for r in rows if (r.view, r.against) == ("raw", "referent"))
    assert (row.count, row.ties, row.share, row.low, row.high) == (0, 1, None, None, None)


def test_the_median_tells_apart_what_a_model_that_always_says_he_implies():
    weights = [[0.1, 0.3]]
    rows = agreement([measured(("female", "male"), None, weights, (0.9, p)) for p in (0.01, 0.05, 0.3)])
    found = {r.against: (r.agree, r.count) for r in rows if r.view == "raw"}
    assert found == {"prediction": (3, 3), "prediction, against its median": (1, 2)}


@pytest.fixture(scope="module")
def model():
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers import BertConfig, BertForMaskedLM

    from helpers.small_tokenizers import wordpiece

    tokenizer = wordpiece()
    known = "he she him her his mary john baker guard mover nurse paid because of was waited for and greeted patience"
    tokenizer.add_tokens(known.split())
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, initializer_range=0.5,
    )  # fmt: skip
    return af.wrap(BertForMaskedLM(config), tokenizer)


def test_one_sentence_is_what_the_model_and_the_trace_say(model):
    import torch

    text = "Mary convinced John of [MASK] love"
    found = masked_pronoun(model, with_slot(text, ("Mary", "John"), ("female", "male")))
    trace = model.trace(text)
    mask = trace.tokens.index("[MASK]")
    for view in ("raw", "rollout", "flow"):
        rows = getattr(trace, view)(query=mask).values[:, 0]
        own = [trace.tokens.index("Mary"), trace.tokens.index("John")]
        np.testing.assert_allclose(found.weights[view], rows[:, own], atol=1e-6)
    encoded = model.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        chances = model.model(**encoded).logits[0, mask].double().softmax(-1)
    his, her = model.tokenizer.convert_tokens_to_ids(["his", "her"])
    assert found.p_male == pytest.approx(float(chances[his]), rel=1e-5)
    assert found.p_female == pytest.approx(float(chances[her]), rel=1e-5)
    assert found.implied == int(found.p_male > found.p_female)
    assert found.to_dict()["text"] == text and found.forms == ("his", "her")


def test_a_candidate_of_several_tokens_has_their_sum(model):
    text = "the cabinet is [MASK] old key"
    weights = masked_pronoun(model, with_slot(text, ("cabinet", "old"))).weights
    trace = model.trace(text)
    mask, old = trace.tokens.index("[MASK]"), [i for i, word in enumerate(trace.word_ids) if word == 4]
    assert len(old) == 3  # o, ##l, ##d
    for view, rows in weights.items():
        expected = getattr(trace, view)(query=mask).values[:, 0][:, old].sum(1)
        np.testing.assert_allclose(rows[:, 1], expected, rtol=1e-6)


def test_male_and_female_variants_are_one_sentence(model, tmp_path):
    examples = read_winobias(winobias(tmp_path / "bias")).examples
    said = []
    found = consistency(model, examples, say=said.append)
    assert (len(found.measured), found.repeated, found.contradictory, found.excluded) == (3, 3, 0, ())
    assert said == ["3 of 3 sentences"]
    rows = [r for r in found.rows if r.layer is not None and r.against == "prediction"]
    assert [(r.view, r.layer) for r in rows] == [(v, l) for v in ("raw", "rollout", "flow") for l in range(3)]
    assert all(r.count + r.ties == 3 for r in rows)
    first = {(r.view, r.layer, r.against): r.agree for r in found.rows}
    assert first["rollout", 0, "referent"] == first["flow", 0, "referent"]  # equal at the first layer
    assert json.loads(json.dumps(found.to_dict()))["sentences"] == {"WinoBias type 1": 3}


def test_batches_do_not_change_what_is_measured(model, tmp_path, monkeypatch):
    examples = read_winobias(winobias(tmp_path / "bias")).examples[:3]
    together, _ = measure(model, examples)
    monkeypatch.setattr(pronouns, "BATCH", 1)
    alone, _ = measure(model, examples)
    assert len(together) == 3
    for a, b in zip(together, alone, strict=True):
        assert a.example == b.example and a.p_male == pytest.approx(b.p_male, rel=1e-4)
        for view in a.weights:
            np.testing.assert_allclose(a.weights[view], b.weights[view], atol=1e-5)


def test_referents_that_contradict_each_other_are_none(model):
    e = replace(FIGURE_4[1], referent=0, source="own")
    found = consistency(model, [e, replace(e, referent=1)])
    assert found.contradictory == 1 and not [r for r in found.rows if r.against == "referent"]


def test_what_the_model_cannot_read_is_counted(model):
    examples = [
        with_slot("Mary hurt John, [MASK]", ("Mary", "John"), kind="reflexive"),  # "himself" is many tokens here
        with_slot("Mary saw John " + "again " * 20 + "and [MASK] love", ("Mary", "John")),
        FIGURE_4[1],
    ]
    found, excluded = measure(model, examples)
    assert [m.example for m in found] == [FIGURE_4[1]]
    assert [e.reason for e in excluded] == [
        "'himself' is not one token of the model",
        "the sentence is longer than the 32 tokens that the model takes",
    ]
    with pytest.raises(InputError, match=r"cannot be used with .* 'himself' is not one token of the model"):
        masked_pronoun(model, with_slot(examples[0].text, ("Mary", "John"), kind="reflexive"))


def test_arguments_and_models_that_do_not_fit_are_refused(model):
    from transformers import BertForSequenceClassification

    with pytest.raises(InputError, match="there are no examples"):
        consistency(model, [])
    classifier = af.wrap(BertForSequenceClassification(model.config), model.tokenizer)
    with pytest.raises(InputError, match="does not predict words: expected a masked language model"):
        measure(classifier, [FIGURE_4[1]])
    with pytest.raises(InputError, match="wrapped without a tokenizer"):
        measure(af.wrap(model.model), [FIGURE_4[1]])
