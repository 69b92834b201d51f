"""Answers of several tokens: blank-out against a plain loop, gradients against finite differences."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="importance needs torch")
transformers = pytest.importorskip("transformers", reason="importance needs transformers")

import attnflow as af  # noqa: E402
from helpers.small_models import TEXT, bert, gpt2  # noqa: E402

ANSWER = " is the answer"
OF = ["probability", "logit", "log-odds"]


@pytest.fixture(scope="module")
def decoder() -> Any:
    return gpt2()


def token_ids(model: Any, text: str) -> list[int]:
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    return list(ids)


def of_logits(rows: Any, answer: list[int], of: str) -> float:
    """Follow the definition token by token. rows: the logits at the positions that predict the answer."""
    p = torch.softmax(rows.double(), -1)[range(len(answer)), answer]
    each = {"probability": p, "logit": rows.double()[range(len(answer)), answer], "log-odds": torch.log(p / (1 - p))}[
        of
    ]
    return float(each.prod() if of == "probability" else each.sum())


def measured(model: Any, ids: list[int], answer: list[int], of: str) -> float:
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([ids + answer[:-1]])).logits[0]
    return of_logits(logits[len(ids) - 1 :], answer, of)


@pytest.mark.parametrize("by", ["remove", 40])
@pytest.mark.parametrize("of", OF)
def test_blank_out_is_the_loop(decoder: Any, of: str, by: Any) -> None:
    ids, answer = decoder.tokenizer(TEXT)["input_ids"], token_ids(decoder, ANSWER)
    whole = measured(decoder, ids, answer, of)
    blanks = [] if by == "remove" else [by]
    expected = [whole - measured(decoder, [*ids[:i], *blanks, *ids[i + 1 :]], answer, of) for i in range(len(ids))]
    result = decoder.blank_out(TEXT, ANSWER, by=by, of=of, signed=True)
    scale = np.abs(expected).max()  # very small: a product of a random model's probabilities
    assert np.allclose(result.row(), expected, rtol=1e-3, atol=1e-4 * scale) and scale > 1e-2 * abs(whole)
    assert result.tokens == decoder.blank_out(TEXT).tokens and result.queries == (len(ids) - 1,)
    assert result.provenance["answer"] == {
        "kind": "next token",
        "name": ANSWER,
        "probability": pytest.approx(measured(decoder, ids, answer, "probability"), rel=1e-5),
    }


@pytest.mark.parametrize("of", OF)
def test_gradients_are_finite_differences(decoder: Any, of: str) -> None:
    ids, answer = decoder.tokenizer(TEXT)["input_ids"], token_ids(decoder, ANSWER)
    twin = transformers.GPT2LMHeadModel(decoder.model.config).double().eval()
    twin.load_state_dict(decoder.model.state_dict())
    x = twin.get_input_embeddings()(torch.tensor([ids + answer[:-1]])).detach()

    def f(embeds: Any) -> float:
        with torch.no_grad():
            return of_logits(twin(inputs_embeds=embeds).logits[0, len(ids) - 1 :], answer, of)

    g = np.zeros((len(ids), x.shape[2]))
    for i in range(len(ids)):
        for d in range(x.shape[2]):
            step = torch.zeros_like(x)
            step[0, i, d] = 1e-5
            g[i, d] = (f(x + step) - f(x - step)) / 2e-5
    result = decoder.gradient(TEXT, ANSWER, of=of)
    assert len(result.tokens) == len(ids) == result.values.shape[-1]
    norms = np.sqrt((g**2).sum(1))
    assert np.allclose(result.row(), norms, rtol=1e-3, atol=1e-4 * norms.max())
    inputs = (g * x[0, : len(ids)].numpy()).sum(1)
    result = decoder.gradient(TEXT, ANSWER, of=of, reduce="times-input")
    assert np.allclose(result.row(), inputs, rtol=1e-3, atol=1e-3 * np.abs(inputs).max())


@pytest.mark.parametrize("method", ["blank_out", "gradient"])
def test_answers_of_different_lengths_together(decoder: Any, method: str) -> None:
    """An answer of one token is the same to the last bit, whatever else is in the batch."""
    texts, answers = [TEXT, TEXT, "the key is", TEXT], [ANSWER, None, " to the key", " to"]
    together = getattr(decoder, method)(texts, answers, of="log-odds")
    for text, answer, result in zip(texts, answers, together, strict=True):
        alone = getattr(decoder, method)(text, answer, of="log-odds")
        assert result.tokens == alone.tokens and np.allclose(result.values, alone.values, rtol=1e-5, atol=1e-7)


def test_what_stays_refused(decoder: Any) -> None:
    sentence = "answer='the book' is 2 tokens ('the', 'book'): one mask stands for one token, so give the text of one, or its id"
    masked = bert("BertForMaskedLM")
    with pytest.raises(af.InputError, match=f"^{re.escape(sentence)}$"):
        masked.blank_out("the [MASK] to the book", "the book")
    for empty in ("", " "):
        with pytest.raises(
            af.InputError, match=f"^answer={empty!r} is empty: expected a text of known tokens, or the id of a token$"
        ):
            decoder.blank_out(TEXT, empty)
    with pytest.raises(af.InputError, match=r"^answer='ß日' contains text that the tokenizer does not know: expected"):
        masked.blank_out("the [MASK] to the book", "ß日")
    with pytest.raises(af.InputError) as error:
        decoder.trace(TEXT, edges="answer", answer=ANSWER)
    assert re.fullmatch(
        r"answer=' is the answer' is \d+ tokens \(.*\): edges explain one token, so give one; blank_out, gradient, "
        r"integrated_gradients, shapley and Model\.answer take several",
        str(error.value),
    )
    with pytest.raises(af.InputError) as error:
        decoder.gradient(TEXT, ANSWER, of="difference")
    assert str(error.value) == (
        "of='difference': an answer of several tokens has no likeliest alternative; expected 'probability', 'logit' or 'log-odds'"
    )
    long = " is" * 64
    count = len(decoder.tokenizer(TEXT)["input_ids"]) + len(token_ids(decoder, long)) - 1
    with pytest.raises(af.InputError) as error:
        decoder.blank_out(TEXT, long)
    assert str(error.value) == f"text and answer have {count} tokens, and the model takes 64: shorten the text"


@pytest.mark.parametrize("method", ["integrated_gradients", "shapley"])
@pytest.mark.parametrize("of", OF)
def test_parts_add_up_to_the_change_of_all_tokens(decoder: Any, method: str, of: str) -> None:
    pytest.importorskip("captum", reason="integrated gradients and Shapley values need captum")
    ids, answer = decoder.tokenizer(TEXT)["input_ids"], token_ids(decoder, ANSWER)
    options = {"steps": 200} if method == "integrated_gradients" else {}
    result = getattr(decoder, method)(TEXT, ANSWER, by=40, of=of, **options)
    change = measured(decoder, ids, answer, of) - measured(decoder, [40] * len(ids), answer, of)
    assert len(result.row()) == len(ids) and result.provenance["answer"]["name"] == ANSWER
    assert result.row().sum() == pytest.approx(change, rel=2e-2) and change != 0


def likelier(decoder: Any, text: str, *ids: int) -> int:
    with torch.no_grad():
        logits = decoder.model(input_ids=torch.tensor([decoder.tokenizer(text)["input_ids"]])).logits[0, -1]
    return max(ids, key=lambda i: float(logits[i]))


def test_the_token_that_continues_the_text_is_meant(decoder: Any) -> None:
    """Without a space, a word may also be the one with a space: the likelier of the two, if both are tokens."""
    tokenizer = decoder.tokenizer
    (bare,), (spaced,) = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("s", " the"))
    assert decoder.blank_out(TEXT, " the").provenance["answer"]["name"] == tokenizer.decode([spaced])
    assert decoder.blank_out(TEXT, "s").provenance["answer"]["name"] == tokenizer.decode(
        [likelier(decoder, TEXT, bare, *one_token(tokenizer, " s"))]
    )
    assert decoder.trace(TEXT, edges="gradient", answer="the").provenance["edges"] == "gradient"
    name = decoder.gradient(TEXT, "the").provenance["answer"]["name"]
    assert name == tokenizer.decode([likelier(decoder, TEXT, spaced, *one_token(tokenizer, "the"))])
    assert decoder.gradient(TEXT + " ", "s").provenance["answer"]["name"] == "s"  # the text already ends with a space


def one_token(tokenizer: Any, text: str) -> list[int]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids if len(ids) == 1 else []


def test_digits_are_text_for_a_language_model_and_a_number_for_classes(decoder: Any) -> None:
    about = decoder.blank_out(TEXT, "42").provenance["answer"]
    assert about["name"].strip() == "42" and decoder.blank_out(TEXT, 42).provenance["answer"]["name"] != about["name"]
    classes = bert("BertForSequenceClassification")
    assert classes.gradient(TEXT, "1").provenance["answer"] == classes.gradient(TEXT, 1).provenance["answer"]
    with pytest.raises(af.InputError, match=r"^answer=7: expected a number from 0 to 1$"):
        classes.gradient(TEXT, "7")


def test_letters_beyond_ascii_are_several_tokens(decoder: Any) -> None:
    assert decoder.gradient(TEXT, "Zoë 日本").provenance["answer"]["name"].strip() == "Zoë 日本"
