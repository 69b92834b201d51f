"""Blank-out and gradients against a plain loop, finite differences and the sums that attributions must have."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="importance needs torch")
transformers = pytest.importorskip("transformers", reason="importance needs transformers")

import attnflow as af  # noqa: E402
from helpers.small_models import SIZES, TEXT, bert, gpt2  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402


@pytest.fixture(scope="module")
def classifier() -> Any:
    return bert("BertForSequenceClassification", id2label={0: "no", 1: "yes", 2: "maybe"})


def chances(model: Any, ids: list[int], place: int | None = None) -> Any:
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([ids])).logits[0]
    return torch.softmax((logits if place is None else logits[place]).double(), -1)


@pytest.mark.parametrize("by", ["unk", "mask", "pad", "remove", 40])
def test_blank_out_is_the_loop(classifier: Any, by: Any) -> None:
    ids = classifier.tokenizer(TEXT)["input_ids"]
    token = by if isinstance(by, int) else getattr(classifier.tokenizer, f"{by}_token_id", None)
    p = chances(classifier, ids)
    y = int(p.argmax())
    expected = [
        float(p[y] - chances(classifier, [*ids[:i], *([] if token is None else [token]), *ids[i + 1 :]])[y])
        for i in range(len(ids))
    ]
    found = classifier.blank_out(TEXT, by=by, signed=True)
    assert found.tokens == ("[CLS]", "the", "key", "to", "the", "cabinet", "[SEP]")
    assert np.allclose(found.row(), expected, atol=1e-6) and np.abs(expected).max() > 1e-3
    assert np.allclose(classifier.blank_out(TEXT, by=by).row(), np.abs(expected), atol=1e-6)
    assert found.provenance["by"] == by and found.provenance["answer"]["name"] == ["no", "yes", "maybe"][y]


def test_blank_out_of_a_named_class(classifier: Any) -> None:
    parts = [classifier.blank_out(TEXT, name, signed=True).row() for name in ("no", "yes", "maybe")]
    assert np.allclose(np.sum(parts, 0), 0, atol=1e-6)  # probabilities sum to one, with or without a token
    assert np.array_equal(parts[1], classifier.blank_out(TEXT, 1, signed=True).row())


def test_many_texts_are_the_same_as_one_by_one(classifier: Any) -> None:
    texts = [TEXT, "key", "nobody is able", "the key is the answer to the book", "to the key"]
    answers = ["yes", None, "no", 2, None]
    for method in (classifier.blank_out, classifier.gradient):
        together = method(texts, answers)
        for text, answer, found in zip(texts, answers, together, strict=True):
            alone = method(text, answer)
            assert found.text == text and found.tokens == alone.tokens
            assert np.allclose(found.values, alone.values, atol=1e-6)


def test_masked_and_next_token() -> None:
    masked = bert("BertForMaskedLM")
    ids = masked.tokenizer("the [MASK] to the book")["input_ids"]
    found = masked.blank_out("the [MASK] to the book", "key", by="remove", signed=True)
    key = masked.tokenizer.convert_tokens_to_ids("key")
    before = float(chances(masked, ids, 2)[key])
    assert found.query_tokens == ("[MASK]",) and found.row()[2] == 0
    assert found.row()[1] == pytest.approx(before - float(chances(masked, [ids[0], *ids[2:]], 1)[key]), abs=1e-7)
    assert found.row()[4] == pytest.approx(before - float(chances(masked, [*ids[:4], *ids[5:]], 2)[key]), abs=1e-7)
    decoder = gpt2()
    ids = decoder.tokenizer(TEXT)["input_ids"]
    found = decoder.blank_out(TEXT)  # its tokenizer has no unk, mask or pad
    assert found.provenance["by"] == "remove" and found.queries == (len(ids) - 1,)
    p = chances(decoder, ids, -1)
    assert found.row()[0] == pytest.approx(
        abs(float(p.max()) - float(chances(decoder, ids[1:], -1)[int(p.argmax())])), abs=1e-7
    )
    assert found.row()[-1] == pytest.approx(
        abs(float(p.max()) - float(chances(decoder, ids[:-1], -1)[int(p.argmax())])), abs=1e-7
    )


def test_a_class_read_at_one_position() -> None:
    tokenizer = wordpiece()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # GPT-2 would add token type embeddings
    model = gpt2(
        "GPT2ForTokenClassification",
        tokenizer,
        is_causal=False,
        id2label={0: "singular", 1: "plural"},
        prediction_position=0,
    )
    ids = model.tokenizer(TEXT)["input_ids"]
    p = chances(model, ids, 0)
    found = model.blank_out(TEXT, signed=True)
    assert found.queries == (0,) and found.row()[2] == pytest.approx(
        float(p.max() - chances(model, [*ids[:2], 1, *ids[3:]], 0)[p.argmax()]), abs=1e-6
    )
    prediction = model.trace(TEXT).prediction
    assert prediction.kind == "class" and prediction.top[0] == (
        ["singular", "plural"][int(p.argmax())],
        pytest.approx(float(p.max())),
    )


@pytest.mark.parametrize("of", ["probability", "logit", "difference"])
def test_gradients_are_finite_differences(classifier: Any, of: str) -> None:
    model = classifier.model
    ids = torch.tensor([classifier.tokenizer(TEXT)["input_ids"]])
    x = model.get_input_embeddings()(ids).detach().double()
    p = chances(classifier, ids[0].tolist())
    order = p.argsort(descending=True)

    def f(embeds: Any) -> float:
        with torch.no_grad():
            logits = twin(inputs_embeds=embeds).logits[0]
        q = torch.softmax(logits, -1)
        return float(
            {"probability": q[order[0]], "logit": logits[order[0]], "difference": q[order[0]] - q[order[1]]}[of]
        )

    twin = transformers.BertForSequenceClassification(model.config).double().eval()
    twin.load_state_dict(model.state_dict())
    g = np.zeros((x.shape[1], x.shape[2]))
    for i in range(x.shape[1]):
        for d in range(x.shape[2]):
            step = torch.zeros_like(x)
            step[0, i, d] = 1e-5
            g[i, d] = (f(x + step) - f(x - step)) / 2e-5
    expected = {  # the next test has the sums
        "l1": np.abs(g).sum(1),
        "l2": np.sqrt((g**2).sum(1)),
        "times-input": (g * x[0].numpy()).sum(1),
    }
    for reduce, values in expected.items():
        assert np.allclose(
            classifier.gradient(TEXT, reduce=reduce, of=of).row(), values, atol=2e-4 * max(1, np.abs(values).max())
        ), reduce
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_a_layer_norm_takes_the_sum_away(classifier: Any) -> None:
    """BERT normalises its embeddings, so adding one number to all dimensions changes nothing: Σ_d g_d = 0."""
    with pytest.warns(
        af.AttentionWarning, match="the gradient of every token sums to 0 over its dimensions, up to rounding"
    ):
        assert (
            classifier.gradient(TEXT, reduce="abs-sum").row().max()
            < 1e-5 * classifier.gradient(TEXT, reduce="l1").row().max()
        )
    llama = transformers.LlamaForSequenceClassification(  # its norm keeps the mean
        transformers.LlamaConfig(
            vocab_size=len(wordpiece()), **SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=2, eos_token_id=3
        )
    )
    model = af.wrap(llama, wordpiece())
    signed = model.gradient(TEXT, reduce="sum").row()
    assert np.allclose(np.abs(signed), model.gradient(TEXT, reduce="abs-sum").row()) and (signed < 0).any()
    x = model.model.get_input_embeddings()(torch.tensor([model.tokenizer(TEXT)["input_ids"]])).detach().double()
    twin = transformers.LlamaForSequenceClassification(llama.config).double().eval()
    twin.load_state_dict(llama.state_dict())
    for i in (1, 3):
        step = torch.zeros_like(x)
        step[0, i] = 1e-3  # Llama's softmax is in float32
        with torch.no_grad():
            low, high = (torch.softmax(twin(inputs_embeds=e).logits[0], -1).max() for e in (x - step, x + step))
        assert signed[i] == pytest.approx(float(high - low) / 2e-3, rel=1e-2)


@pytest.mark.long
def test_captum_baselines_sum_to_the_change(classifier: Any) -> None:
    pytest.importorskip("captum", reason="integrated gradients and Shapley values need captum")
    ids = classifier.tokenizer(TEXT)["input_ids"]
    blank = [i if i in classifier.tokenizer.all_special_ids else classifier.tokenizer.unk_token_id for i in ids]
    p = chances(classifier, ids)
    change = float(p.max() - chances(classifier, blank)[int(p.argmax())])
    integrated = classifier.integrated_gradients(TEXT, steps=400)
    assert integrated.row().sum() == pytest.approx(change, abs=5e-3) and integrated.row()[0] == 0
    sampled = classifier.shapley(TEXT, samples=10)
    assert sampled.row().sum() == pytest.approx(change, abs=1e-5)
    assert sampled.row()[0] == sampled.row()[-1] == 0
    assert np.array_equal(sampled.values, classifier.shapley(TEXT, samples=10).values)
    # three tokens have only six orders
    ids = classifier.tokenizer("the key to")["input_ids"]
    y = int(chances(classifier, ids).argmax())
    exact = np.zeros(5)
    for order in permutations((1, 2, 3)):
        now = [2, 1, 1, 1, 3]
        for i in order:
            before = float(chances(classifier, now)[y])
            now[i] = ids[i]
            exact[i] += (float(chances(classifier, now)[y]) - before) / 6
    assert np.allclose(classifier.shapley("the key to", samples=600).row(), exact, atol=0.02)


def test_it_is_a_token_attention(classifier: Any, tmp_path: Any, capsys: Any) -> None:
    found = classifier.blank_out(TEXT)
    assert isinstance(found, af.TokenAttention) and found.method == "blank-out" and found.layers == (1,)
    for name in ("x.json", "x.npz"):
        found.save(tmp_path / name)
        assert np.array_equal(af.TokenAttention.load(tmp_path / name).values, found.values)
    found.without_special().show()
    assert "cabinet" in capsys.readouterr().out
    assert classifier.blank_out([]) == []


def test_a_model_that_refuses_batches() -> None:
    """A decoder that classifies needs a padding token for batches, even if nothing is padded."""
    model = gpt2("GPT2ForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match="batch sizes > 1"):
        model.model(input_ids=torch.ones(2, 3, dtype=torch.long))
    ids = model.tokenizer(TEXT)["input_ids"]
    p = chances(model, ids)
    left = chances(model, ids[1:])[int(p.argmax())]
    assert model.blank_out(TEXT).row()[0] == pytest.approx(abs(float(p.max() - left)), abs=1e-6)
    assert model.gradient([TEXT, TEXT])[1].row() == pytest.approx(model.gradient(TEXT).row())


def test_token_types_through_the_same_embedding_are_not_tokens() -> None:
    """GPT-2 looks up token types in its table of words; only the lookup of the tokens counts."""
    model = gpt2("GPT2ForSequenceClassification", wordpiece(), pad_token_id=0)  # its tokenizer gives token types
    found = model.gradient(TEXT, 0, of="logit", reduce="times-input").row()
    tensors = dict(model.tokenizer(TEXT, return_tensors="pt"))
    x = model.model.get_input_embeddings()(tensors.pop("input_ids")).detach().requires_grad_()
    model.model(inputs_embeds=x, **tensors).logits[0, 0].backward()
    assert np.allclose(found, (x.grad * x).sum(-1)[0].detach().numpy(), atol=1e-5)
    pytest.importorskip("captum", reason="integrated gradients need captum")
    with pytest.raises(af.InputError, match="uses its embedding layer 2 times: use gradient or shapley"):
        model.integrated_gradients(TEXT)


def test_embeddings_in_another_shape_are_refused() -> None:
    tokenizer = wordpiece()
    config = transformers.XLNetConfig(vocab_size=len(tokenizer), d_model=16, n_layer=1, n_head=2, d_inner=16)
    model = af.wrap(transformers.XLNetForSequenceClassification(config), tokenizer)
    with pytest.raises(af.InputError, match="gradients need the embeddings of the tokens, each read once"):
        model.gradient([TEXT] * 7)


def test_unknown_words_are_told(classifier: Any, capsys: Any) -> None:
    found = classifier.blank_out("the ß key")
    assert found.provenance["unknown"] == [2] and found.row()[2] < 1e-6  # replacing it by itself changes nothing
    found.show()
    assert "unknown to the model: ß" in capsys.readouterr().out
    assert classifier.trace("the ß key").flow().provenance["unknown"] == [2]
    ids = {"input_ids": torch.tensor([classifier.tokenizer("the ß key")["input_ids"]])}
    assert classifier.trace(ids).special == classifier.trace("the ß key").special


def test_a_model_with_one_number() -> None:
    model = bert("BertForSequenceClassification", num_labels=1)
    ids = model.tokenizer(TEXT)["input_ids"]

    def said(given: list[int]) -> float:
        with torch.no_grad():
            return float(model.model(input_ids=torch.tensor([given])).logits[0, 0])

    found = model.blank_out(TEXT, signed=True)
    assert found.row()[2] == pytest.approx(said(ids) - said([*ids[:2], 1, *ids[3:]]), abs=1e-5)
    with pytest.raises(af.InputError, match=r"of='difference': this model answers with one number"):
        model.gradient(TEXT, of="difference")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.blank_out(TEXT, by="dash"), "by='dash': expected one of 'unk', 'mask', 'pad', 'remove', or the id of a token"),
        (lambda m: m.blank_out(TEXT, "dog"), "answer='dog' is not a class of this model: expected one of 'no', 'yes', 'maybe'"),
        (lambda m: m.blank_out([TEXT], "yes"), "answer='yes' for 1 texts: expected a list with one for each, or None"),
        (lambda m: m.blank_out(""), "the text '' is empty: expected at least one word"),
        (lambda m: m.gradient(TEXT, reduce="max"), "reduce='max': expected one of 'l2', 'l1', 'times-input', 'abs-sum', 'sum'"),
        (lambda m: m.gradient(TEXT, of="loss"), "of='loss': expected one of 'probability', 'logit', 'log-odds', 'difference'"),
        (lambda m: m.integrated_gradients(TEXT, steps=0), "steps=0: expected a whole number of at least 1"),
        (lambda m: af.load().blank_out(("the keys", "the dog")), "the tokenizer of this model does not support pairs of texts"),
        (lambda m: m.integrated_gradients(TEXT, by="remove"), "by='remove': the blank text must be as long as the text"),
        (lambda m: bert("BertModel").blank_out(TEXT), "has no head, so it answers nothing"),
        (lambda m: bert("BertForMaskedLM").blank_out(TEXT), "the text has no \\[MASK\\], so the masked language model has nothing to predict"),
        (lambda m: bert("BertForMaskedLM").blank_out("the [MASK]", "unbelievable"), "answer='unbelievable' is 7 tokens \\('u', .*\\): one mask stands for one token, so give the text of one, or its id"),
        (lambda m: gpt2().blank_out(TEXT, by="unk"), "by='unk': the tokenizer of this model has no unk token; expected one of 'remove', or the id of a token"),
        (lambda m: bert("BertForTokenClassification").blank_out(TEXT), "returns an answer of shape \\(1, 7, 2\\): expected classes of the text"),
    ],
)  # fmt: skip
def test_mistakes(classifier: Any, call: Any, message: str) -> None:
    if "integrated" in call.__code__.co_names:
        pytest.importorskip("captum", reason="integrated gradients need captum")
    with pytest.raises(af.InputError, match=message):
        call(classifier)


def test_training_mode_is_refused(classifier: Any) -> None:
    classifier.model.train()
    try:
        with pytest.raises(af.InputError, match="the model is in training mode"):
            classifier.blank_out(TEXT)
    finally:
        classifier.model.eval()


def test_what_is_no_number_without_a_token_is_refused() -> None:
    """If the model gives NaN for the text with a blank, but not for the text itself, the token must not get 0."""
    model = bert("BertForSequenceClassification")
    with torch.no_grad():
        model.unwrap().get_input_embeddings().weight[model.tokenizer.unk_token_id] = torch.nan
    for of in ("probability", "logit"):
        with pytest.raises(af.InputError, match="values are nan"):
            model.blank_out(TEXT, of=of)
