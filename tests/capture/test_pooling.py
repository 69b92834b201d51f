"""Sentence-transformers folders, and the state at which their models are explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnflow as af
from helpers.sentence_models import (
    PAIR,
    WIDTH,
    decoder,
    encoder,
    one_mode,
    pooled,
    states_of,
    write,
    write_folder,
)
from helpers.small_tokenizers import byte_level, wordpiece

TEXT = PAIR[0]
N = 7


def loaded(tmp_path: Path, pooling: dict[str, Any], **more: Any) -> af.Model:
    return af.load(write_folder(tmp_path / "model", encoder(), wordpiece(), pooling, **more), device="cpu")


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(("mode", "weights"), [
    ("mean", np.ones(N) / N), ("mean_sqrt_len_tokens", np.ones(N) / N), ("weightedmean", np.arange(1, N + 1) / 28),
])  # fmt: skip
def test_a_mean_is_a_weighted_set_of_queries(mode: str, weights: np.ndarray, new: bool, tmp_path: Path) -> None:
    trace = loaded(tmp_path, {"pooling_mode": mode} if new else one_mode(mode)).trace(TEXT, keep_heads=True)
    assert len(trace.tokens) == N
    for method in ("raw", "rollout", "flow"):
        result, every = getattr(trace, method)(), getattr(trace, method)("all")
        np.testing.assert_allclose(result.values[:, 0], np.einsum("lqi,q->li", every.values, weights), atol=1e-12)
        assert result.queries == (N,) and result.query_tokens[0].startswith("sentence embedding: mean")
        assert list(result.provenance["query_weights"][str(N)].values()) == pytest.approx(weights)
        assert result.provenance["pooling"] == mode
    even = replace(trace, steps=tuple(replace(s, weights=torch.full_like(s.weights, 1 / N)) for s in trace.steps))
    ratio = trace.rollout().values / even.rollout().values  # not the mean of the tokens' ratios
    np.testing.assert_allclose(trace.rollout(receptive_field="ratio").values, ratio, rtol=1e-5)
    head = trace.head(1, 1)
    np.testing.assert_allclose(head.row(), weights @ trace.weights[1][1].numpy(), atol=1e-7)
    single, alone = (trace.single_head(1, 0, query=q).values[0] for q in (None, "all"))
    np.testing.assert_allclose(single[0], weights @ alone, atol=1e-12)
    assert trace.rollout("[CLS]").query_tokens == ("[CLS]",)  # the usual default is still available


@pytest.mark.parametrize(("mode", "place"), [("cls", 0), ("lasttoken", N - 1)])
def test_one_token_is_the_query(mode: str, place: int, tmp_path: Path) -> None:
    trace = loaded(tmp_path, one_mode(mode)).trace(TEXT)
    result = trace.rollout()
    assert result.queries == (place,) and "query_weights" not in result.provenance
    np.testing.assert_allclose(result.values, trace.rollout(place).values)


@pytest.mark.parametrize(("pooling", "why"), [
    (one_mode("max"), "pools by max, which takes each dimension from the token where it is largest"),
    ({"pooling_mode": ["cls", "mean"]}, "pools by cls and mean, which concatenates several vectors"),
])  # fmt: skip
def test_no_shares_are_made_up(pooling: dict[str, Any], why: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, pooling)
    trace = model.trace(TEXT)
    for method in ("raw", "rollout", "flow"):
        with pytest.raises(af.InputError, match=f"{why}.*: give query="):
            getattr(trace, method)()
    assert trace.rollout("key").values.any()
    with pytest.raises(af.InputError, match="give queries="):
        model.trace(TEXT, memory="linear")
    with pytest.raises(af.InputError, match="give query="):
        model.explain(TEXT)
    assert np.isfinite(model.similarity(*PAIR).value)  # the embedding itself is known


def test_words_and_linear_memory_pool_alike(tmp_path: Path) -> None:
    model = loaded(tmp_path, one_mode("weightedmean"))
    text = "unbelievable key"
    trace = model.trace(text)
    linear = model.trace(text, memory="linear", layers=[0, 1])
    np.testing.assert_allclose(linear.rollout().values, trace.rollout().values, atol=1e-6)
    assert linear.rollout().query_tokens == trace.rollout().query_tokens
    words = trace.words()
    assert words.pooled is not None and sum(words.pooled.weights) == pytest.approx(1)
    assert trace.rollout().words().values.shape == (2, 1, 4)
    np.testing.assert_allclose(trace.rollout().words().values, words.rollout().values)
    mean = np.einsum("lqi,q->li", words.rollout("all").values, np.array(words.pooled.weights))
    np.testing.assert_allclose(words.rollout().values[:, 0], mean, atol=1e-12)


def test_a_language_model_without_its_head(tmp_path: Path) -> None:
    """Its configuration names LlamaForCausalLM, but the states below the head are pooled."""
    folder = write_folder(tmp_path / "m", decoder(), byte_level(), one_mode("lasttoken"), inner="0_Transformer")
    model = af.load(folder, device="cpu")
    assert type(model.model).__name__ == "LlamaModel" and model.name == "m"
    trace = model.trace(TEXT)
    assert trace.rollout().queries == (len(trace.tokens) - 1,)
    a, b = (pooled(states_of(decoder(), byte_level(), text), "lasttoken") for text in PAIR)
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert model.similarity(*PAIR).value == pytest.approx(expected, abs=1e-6)


def test_prompts_lower_case_and_length(tmp_path: Path) -> None:
    more = {"prompts": {"query": "the book: "}, "default_prompt_name": "query"}
    model = loaded(tmp_path, one_mode("mean"), settings={"max_seq_length": 12, "do_lower_case": True}, more=more)
    assert model.limit() == 12
    assert model.trace("KEY").text == "the book: key"
    with pytest.raises(af.InputError, match="and the model takes 12"):
        model.trace("the key to the cabinet is the answer to the book")
    from attnflow.corpus.explainer import checked

    with pytest.raises(af.InputError, match="changes every text before reading it"):
        checked(model)


@pytest.mark.parametrize(("modules", "why"), [
    (["Transformer"], "has no Pooling module"),
    (["Transformer", "LSTM", "Pooling"], "has the module LSTM before its pooling"),
    (["Transformer", "Pooling", "Router"], "has the module Router, but attnflow supports only Pooling, Dense, LayerNorm"),
])  # fmt: skip
def test_modules_that_are_not_known(modules: list[str], why: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"))
    listed = [{"path": "" if name == "Transformer" else f"1_{name}", "type": f"x.{name}"} for name in modules]
    write(folder / "modules.json", listed)
    model = af.load(folder, device="cpu")
    with pytest.raises(af.InputError, match=f"{why}.*: give query="):
        model.trace(TEXT).rollout()
    with pytest.raises(af.InputError, match=f"the embedding of a text cannot be computed: .*{why}"):
        model.similarity(*PAIR)


def test_folders_that_are_no_transformer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"))
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "median"})
    with pytest.raises(af.InputError, match="pools by 'median': expected one of cls, max, mean"):
        af.load(folder)
    write(folder / "modules.json", [{"path": "", "type": "sentence_transformers.models.CLIPModel"}])
    with pytest.raises(af.InputError, match="begins with CLIPModel: expected a Transformer"):
        af.load(folder)
    (folder / "modules.json").write_text("[", "utf-8")
    with pytest.raises(af.InputError, match=r"modules.json' cannot be read as JSON"):
        af.load(folder)


@pytest.mark.parametrize(("pooling", "options", "sentence"), [
    (one_mode("none"), {}, "pools by nothing: expected one of cls, max, .*, or a true value of one of pooling_mode_cls_token"),
    ({"pooling_mode": []}, {}, "pools by nothing: expected one of cls, max"),
    ({"pooling_mode": 3}, {}, "pools by 3: expected one of cls, max"),
    (one_mode("mean"), {"more": {"prompts": {"query": "q: ", "text": ""}, "default_prompt_name": "passage"}},
     r"the default prompt 'passage' .* is not among its prompts \('query', 'text'\): correct default_prompt_name"),
    (one_mode("mean"), {"more": {"default_prompt_name": "passage"}}, r"is not among its prompts \(none\)"),
    (one_mode("mean"), {"more": {"truncate_dim": 8}},
     r"cuts its embeddings to 8 numbers \(truncate_dim\): expected one that returns them whole; remove truncate_dim"),
    (one_mode("mean"), {"settings": {"max_seq_length": "12"}}, "max_seq_length .* is '12': expected a number of tokens, or null"),
])  # fmt: skip
def test_settings_that_cannot_be_followed(
    pooling: dict[str, Any], options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(af.InputError, match=sentence):
        loaded(tmp_path, pooling, **options)


def test_an_object_that_cuts_its_embeddings_is_refused() -> None:
    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.auto_model, self.tokenizer = encoder(), wordpiece()

    class SentenceTransformer(torch.nn.Sequential):
        truncate_dim = 8

    with pytest.raises(af.InputError, match=r"cuts its embeddings to 8 numbers \(truncate_dim\)"):
        af.wrap(SentenceTransformer(Transformer()))


def test_a_pooling_without_settings_is_the_mean(tmp_path: Path) -> None:
    model = loaded(tmp_path, {}, settings={"max_seq_length": None})
    assert model.pooling is not None and model.pooling.modes == ("mean",)


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("modules.json", "[", r"modules\.json' cannot be read as JSON \(Expecting value: line 1 column 2 .*\): download"),
    ("modules.json", "{}", r"modules\.json' contains a dict: expected a list of objects, \[\{…\}\]; download it again"),
    ("modules.json", '["x"]', r"modules\.json' contains a str: expected a list of objects"),
    ("1_Pooling/config.json", "[]", r"config\.json' contains a list: expected an object, \{…\}; download it again"),
    ("sentence_bert_config.json", "3", r"sentence_bert_config\.json' contains an int: expected an object"),
    ("config_sentence_transformers.json", "null", r"config_sentence_transformers\.json' contains a NoneType: expected an object"),
    ("2_Dense/config.json", "{}", r"the module Dense .* cannot be built .* \(it lacks 'in_features'\): download it again"),
    ("2_Dense/config.json", '{"in_features": 3, "out_features": 4, "bias": false}',
     r"the module Dense .* cannot be built .* \(size mismatch for weight: .*\): download it again"),
])  # fmt: skip
def test_damaged_settings_name_the_file(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    config = {"in_features": WIDTH, "out_features": 4, "bias": False}
    dense = {"Dense": (config, {"linear.weight": torch.zeros(4, WIDTH)})}
    folder = write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"), dense)
    (folder / name).write_text(content, "utf-8")
    with pytest.raises(af.InputError, match=sentence):
        af.load(folder, device="cpu")


@pytest.mark.parametrize("measure", ["euclidean", "manhattan"])
def test_equal_texts_have_no_gradient_of_their_distance(measure: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, one_mode("mean"), more={"similarity_fn_name": measure})
    same = model.similarity(PAIR[0], PAIR[0])
    assert same.value == 0 and (same.blank_out().first.values > 0).any()
    sentence = f"the two texts have the same embedding, so their {measure} distance is 0, where it has no gradient: use blank_out"
    for use in (same.gradient, lambda: same.trace("attention-gradient")):
        with pytest.raises(af.InputError, match=sentence):
            use()
    assert np.isfinite(model.similarity(*PAIR).gradient().first.values).all()


def test_weights_of_dense_are_no_pickle(tmp_path: Path) -> None:
    config = {"in_features": WIDTH, "out_features": 4, "bias": False, "activation_function": "torch.nn.Identity"}
    folder = write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"), {"Dense": (config, {})})
    weights = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    torch.save({"linear.weight": weights}, folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(af.InputError, match=r"the module '2_Dense' of .* has no safetensors weights"):
        af.load(folder)
    a, b = (weights.double().numpy() @ pooled(states_of(encoder(), wordpiece(), text), "mean") for text in PAIR)
    value = af.load(folder, allow_pickle=True, device="cpu").similarity(*PAIR).value
    assert value == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
    write(folder / "2_Dense" / "config.json", {**config, "activation_function": "os.system"})
    with pytest.raises(af.InputError, match=r"has the activation 'os\.system': expected one from torch\.nn"):
        af.load(folder, allow_pickle=True)


def test_t5_reads_by_its_encoder_and_bart_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": len(wordpiece()), "d_model": WIDTH, "d_ff": 32, "num_heads": 2, "d_kv": 8, "num_layers": 2}
    t5 = transformers.T5EncoderModel(transformers.T5Config(**sizes))
    model = af.load(write_folder(tmp_path / "t5", t5, wordpiece(), one_mode("mean")), device="cpu")
    assert type(model.model).__name__ == "T5EncoderModel"
    assert model.trace(TEXT).rollout().queries == (N,)
    config = transformers.BartConfig(
        vocab_size=len(wordpiece()), d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
    )  # fmt: skip
    bart = write_folder(tmp_path / "bart", transformers.BartModel(config), wordpiece(), one_mode("mean"))
    with pytest.raises(af.InputError, match="has an encoder and a decoder, and pools the states of its decoder"):
        af.load(bart)


def test_a_corpus_job_takes_no_class_token_for_the_embedding(tmp_path: Path) -> None:
    from attnflow.corpus import explain_corpus

    (tmp_path / "texts.txt").write_text("the key\nthe book\n")
    folder = write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"))
    model = af.load(folder, device="cpu")
    with pytest.raises(af.InputError, match="pools its states by mean, but a corpus job explains single"):
        explain_corpus(tmp_path / "texts.txt", tmp_path / "out", model)
