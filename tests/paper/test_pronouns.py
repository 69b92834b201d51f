"""The masked pronouns of Figure 4."""

from __future__ import annotations

import numpy as np
import pytest

import attnflow as af
from attnflow.errors import InputError
from attnflow.paper.pronouns import FIGURE_4, PronounExample, implied, masked_pronoun


@pytest.mark.parametrize(
    ("genders", "male", "female"),
    [
        (("male", "female"), 0, 1),
        (("female", "male"), 1, 0),
        (("male", None), 0, 1),
        ((None, "female"), 0, 1),
        ((None, None), None, None),
        (("male", "male"), None, None),
    ],
)
def test_what_a_prediction_implies(genders, male, female):
    e = PronounExample(FIGURE_4[1].text, FIGURE_4[1].names, genders)
    assert (implied(e, 0.6, 0.2), implied(e, 0.2, 0.6), implied(e, 0.3, 0.3)) == (male, female, None)


def model(*words):
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers import BertConfig, BertForMaskedLM

    from helpers.small_tokenizers import wordpiece

    tokenizer = wordpiece()
    tokenizer.add_tokens(["mary", "john", "of", *words])
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, initializer_range=0.5,
    )  # fmt: skip
    return af.wrap(BertForMaskedLM(config), tokenizer)


def test_one_sentence_matches_the_model_and_the_trace():
    import torch

    m, e = model("his", "her"), FIGURE_4[1]
    result = masked_pronoun(m, e)
    trace = m.trace(e.text)
    mask = trace.tokens.index("[MASK]")
    for view in ("raw", "rollout", "flow"):
        rows = getattr(trace, view)(query=mask).values[:, 0]
        own = [trace.tokens.index("Mary"), trace.tokens.index("John")]
        np.testing.assert_allclose(result.weights[view], rows[:, own], atol=1e-6)
    with torch.no_grad():
        chances = m.model(**m.tokenizer(e.text, return_tensors="pt")).logits[0, mask].double().softmax(-1)
    his, her = m.tokenizer.convert_tokens_to_ids(["his", "her"])
    assert result.p_male == pytest.approx(float(chances[his]), rel=1e-5)
    assert result.p_female == pytest.approx(float(chances[her]), rel=1e-5)
    said = result.to_dict()
    assert said["text"] == e.text and said["implied"] == int(result.p_male > result.p_female)


def test_a_candidate_of_several_tokens_has_their_sum():
    m = model("his", "her")
    text = "the cabinet is [MASK] old key"
    weights = masked_pronoun(m, PronounExample(text, ("cabinet", "old"), (None, None))).weights
    trace = m.trace(text)
    mask, old = trace.tokens.index("[MASK]"), [i for i, word in enumerate(trace.word_ids) if word == 4]
    assert len(old) == 3  # o, ##l, ##d
    for view, rows in weights.items():
        expected = getattr(trace, view)(query=mask).values[:, 0][:, old].sum(1)
        np.testing.assert_allclose(rows[:, 1], expected, rtol=1e-6)


def test_models_that_do_not_fit_are_refused():
    from transformers import BertForSequenceClassification

    m = model("his", "her")
    with pytest.raises(InputError, match=r"cannot be used with .*: 'his' is not one token of the model"):
        masked_pronoun(model("her"), FIGURE_4[1])
    classifier = af.wrap(BertForSequenceClassification(m.config), m.tokenizer)
    with pytest.raises(InputError, match="does not predict words: expected a masked language model"):
        masked_pronoun(classifier, FIGURE_4[1])
    with pytest.raises(InputError, match="has no mask token: expected a masked language model"):
        masked_pronoun(af.wrap(m.model), FIGURE_4[1])
