"""Answers that a model is sure of: 1 - p keeps its digits, and measuring a probability gives a warning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="importance needs torch")
transformers = pytest.importorskip("transformers", reason="importance needs transformers")

import attnflow as af  # noqa: E402
from helpers.small_models import TEXT, bert, gpt2  # noqa: E402

SURE = [1e-3, 1e-6, 1e-8, 1e-12]


def sure_classifier(doubt: float, dtype: Any = torch.float32) -> Any:
    """Return a classifier whose first class has probability 1 - doubt for TEXT."""
    model = bert("BertForSequenceClassification", id2label={0: "no", 1: "yes", 2: "maybe"})
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        z = model.model(input_ids=ids).logits[0].double()
        model.model.classifier.bias[0] += float(-np.log(doubt) - (z[0] - z[1:].logsumexp(0)))
    model.model.to(dtype)
    return model


def double_gradient(model: Any, ids: Any) -> Any:
    """Compute ∂p/∂x in double precision, by autograd through a softmax written from the smaller side."""
    twin = type(model.model)(model.config).double().eval()
    twin.load_state_dict(model.model.state_dict())
    x = twin.get_input_embeddings()(ids).detach().requires_grad_()
    logits = twin(inputs_embeds=x).logits[0]
    logits = logits if logits.dim() == 1 else logits[-1]
    y = int(logits.argmax())
    others = torch.cat([logits[:y], logits[y + 1 :]])
    p = 1 / (1 + torch.exp(others - logits[y]).sum())
    (g,) = torch.autograd.grad(p, x)
    return g[0].detach(), float(1 - p.detach())


@pytest.mark.parametrize("doubt", SURE)
def test_gradient_of_a_sure_classifier(doubt: float) -> None:
    model = sure_classifier(doubt)
    expected, left = double_gradient(model, torch.tensor([model.tokenizer(TEXT)["input_ids"]]))
    assert left == pytest.approx(doubt, rel=2e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", af.AttentionWarning)
        result = model.gradient(TEXT)
    assert result.provenance["answer"]["name"] == "no" and result.row().max() > 0
    np.testing.assert_allclose(result.row(), expected.norm(dim=-1).numpy(), rtol=2e-4)
    sentence = f"The probability of 'no' is 1 - {left:.1g} and hardly changes, whatever happens to the text: "
    assert [note[: len(sentence)] for note in result.reliability] == ([sentence] if doubt < 1e-4 else [])


@pytest.mark.parametrize("doubt", [1e-6, 1e-12])
def test_half_precision_keeps_the_gradient(doubt: float) -> None:
    """p·(1-p) multiplies the gradient of the log-odds at the end, so nothing underflows on the way."""
    model = sure_classifier(doubt, torch.float16)
    with pytest.warns(af.AttentionWarning, match="hardly changes"):
        values = model.gradient(TEXT).row()
    odds = model.gradient(TEXT, of="log-odds").row()
    ratio = values / odds
    assert values.min() > 0 and ratio.max() == pytest.approx(ratio.min(), rel=1e-9) and doubt / 4 < ratio[0] < doubt * 4


def test_gradient_of_a_sure_language_model() -> None:
    model = gpt2()
    with torch.no_grad():
        model.model.lm_head.weight.mul_(8)
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    expected, left = double_gradient(model, ids)
    assert left < 1e-6
    with pytest.warns(af.AttentionWarning, match="of='log-odds' or of='logit'"):
        values = model.gradient(TEXT).row()
    np.testing.assert_allclose(values, expected.norm(dim=-1).numpy(), rtol=1e-3)


def test_integrated_gradients_of_a_sure_classifier_sum_to_the_change() -> None:
    pytest.importorskip("captum", reason="integrated gradients come from captum")
    model = sure_classifier(1e-8)
    result = model.integrated_gradients(TEXT, of="log-odds", steps=200)
    ids = model.tokenizer(TEXT)["input_ids"]
    blanks = [ids[0], *[model.tokenizer.unk_token_id] * (len(ids) - 2), ids[-1]]
    total, blank = odds(model, ids), odds(model, blanks)
    assert result.row().sum() == pytest.approx(total - blank, rel=0.02) and abs(total - blank) > 1e-3


def odds(model: Any, ids: list[int]) -> float:
    with torch.no_grad():
        z = model.model(input_ids=torch.tensor([ids])).logits[0].double()
    return float(z[0] - z[1:].logsumexp(0))


def test_blank_out_measures_log_odds_where_probabilities_are_saturated() -> None:
    model = sure_classifier(1e-8)
    ids = model.tokenizer(TEXT)["input_ids"]
    expected = []
    for i in range(len(ids)):
        blanked = torch.tensor([[*ids[:i], model.tokenizer.unk_token_id, *ids[i + 1 :]]])
        with torch.no_grad():
            z = model.model(input_ids=blanked).logits[0].double()
        expected.append(odds(model, ids) - float(z[0] - z[1:].logsumexp(0)))
    result = model.blank_out(TEXT, of="log-odds", signed=True)
    np.testing.assert_allclose(result.row(), expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-3 and result.reliability == () and result.provenance["of"] == "log-odds"
    with pytest.warns(af.AttentionWarning) as warned:
        probability = model.blank_out(TEXT)
    assert probability.row().max() < 1e-4 and probability.reliability == (
        "The probability of 'no' is 1 - 1e-08 and hardly changes, whatever happens to the text: measure its log-odds.",
    )
    assert str(warned[0].message) == (
        "the probability of 'no' is 1 - 1e-08 and hardly changes, whatever happens to the text: use of='log-odds' or of='logit', "
        "which do not saturate"
    )
    assert warned[0].filename == __file__  # the caller's line


def test_blank_out_of_every_measure_is_a_difference_of_it() -> None:
    model = sure_classifier(0.1)
    ids = model.tokenizer(TEXT)["input_ids"]
    blanked = [*ids[:2], model.tokenizer.unk_token_id, *ids[3:]]

    def measures(tokens: list[int]) -> dict[str, float]:
        with torch.no_grad():
            z = model.model(input_ids=torch.tensor([tokens])).logits[0].double()
        p = torch.softmax(z, -1)
        values = {
            "probability": p[0],
            "logit": z[0],
            "log-odds": torch.log(p[0] / (1 - p[0])),
            "difference": p[0] - p[other],
        }
        return {of: float(value) for of, value in values.items()}

    with torch.no_grad():
        other = 1 + int(model.model(input_ids=torch.tensor([ids])).logits[0][1:].argmax())
    whole, left = measures(ids), measures(blanked)
    for of, value in whole.items():
        result = model.blank_out(TEXT, of=of, signed=True)
        assert result.row()[2] == pytest.approx(value - left[of], abs=1e-5), of
