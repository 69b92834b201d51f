"""Pages that several tests share: each function writes one into a folder, and conftest calls it once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import attnflow as af
from attnflow.result import TokenAttention
from attnflow.view.explain import explain
from attnflow.view.page import Page, of_trace, of_weights
from helpers.architectures import LLAMA, POSITIONS, hf
from helpers.page_reading import Case
from helpers.small_tokenizers import sentencepiece, wordpiece
from helpers.vision_language import llava

SENTENCE = "the old key to my cabinets"  # no word twice, so names of states are unique
HOSTILE = [
    "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>", "<!--", "]]>", "\"'&amp;", "\u2028", "שלום", "👩‍👩‍👧‍👦",
    "W" * 300, " ", "\n", "\u200b", "\u00a0", "\u3000", "\ufeff", "", "\u202eabc", "=1+1", '@SUM(A1,"b")\nc', "\ufffe", "\x00", "\u00ad", "\ud800",
    "javascript:window.pwned=1",
]  # fmt: skip


def save(
    folder: Path,
    name: str,
    page: Page,
    trace: Any = None,
    worth: Sequence[TokenAttention] = (),
    edges: TokenAttention | None = None,
) -> Case:
    page.save(folder / f"{name}.html")
    return Case(folder / f"{name}.html", page, trace, worth, edges)


def sentence(folder: Path) -> Case:
    model = af.load()
    trace = model.trace(SENTENCE, keep_heads=True)
    worth = [model.gradient(SENTENCE), model.blank_out(SENTENCE)]
    edges = model.trace(SENTENCE, edges="answer").sources()
    return save(folder, "sentence", model.explain(SENTENCE), trace, worth, edges)


def pieces(folder: Path) -> Case:
    """Write a page about words of several subwords, with special tokens."""
    tokenizer = wordpiece()
    shape = {**POSITIONS, "vocab_size": len(tokenizer)}
    model = af.wrap(hf("BertForSequenceClassification", **shape)(), tokenizer)
    text = "the unbelievable cabinets"
    trace = model.trace(text, keep_heads=True)
    edges = model.trace(text, edges="answer").sources()
    page = explain(model, text, state={"unit": "subwords"})
    return save(folder, "pieces", page, trace, [model.gradient(text), model.blank_out(text)], edges)


def decoder(folder: Path) -> Case:
    tokenizer = sentencepiece()
    model = af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": len(tokenizer)})(), tokenizer)
    trace = model.trace("the key to the cabinets is unbelievable", keep_heads=True)
    return save(folder, "decoder", of_trace(trace), trace)


def translation(folder: Path) -> Case:
    tokenizer = sentencepiece()
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    build = hf("T5ForConditionalGeneration", vocab_size=len(tokenizer), decoder_start_token_id=0, **shape)
    model = af.wrap(build(), tokenizer)
    trace = model.trace("the key to the cabinets", target="is unbelievable", keep_heads=True)
    page = model.explain("the key to the cabinets", target="is unbelievable")
    return save(folder, "translation", page, trace)


def images(folder: Path) -> tuple[Case, Case]:
    """Write the pages of a ViT with its image and of a Swin without."""
    pytest.importorskip("PIL.Image", reason="pillow is not installed")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    layers = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    vit = af.wrap(hf("ViTModel", image_size=32, patch_size=8, **layers)(), processor)
    shape = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    }
    swin = af.wrap(hf("SwinModel", **shape)(), processor)
    merging = swin.trace(pixels)
    return save(folder, "vit", vit.explain(pixels), vit.trace(pixels)), save(folder, "swin", of_trace(merging), merging)


def photo(folder: Path) -> Case:
    """Write the page of an image classifier, with an image wider than high."""
    pytest.importorskip("PIL.Image", reason="pillow is not installed")
    labels = {"id2label": {0: "cat", 1: "boat", 2: "tree"}, "label2id": {"cat": 0, "boat": 1, "tree": 2}}
    layers = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    build = hf("ViTForImageClassification", image_size=32, patch_size=8, initializer_range=0.3, **layers, **labels)
    model = af.wrap(build(), transformers.ViTImageProcessor(size={"height": 32, "width": 32}))
    pixels = np.random.default_rng(1).integers(0, 255, (48, 80, 3)).astype(np.uint8)
    edges = model.trace(pixels, edges="answer").sources()
    return save(folder, "photo", model.explain(pixels), model.trace(pixels), edges=edges)


def picture(folder: Path) -> Case:
    """Write the page of an image within a text."""
    model, inputs = llava(initializer_range=0.3)
    wrapped = af.wrap(model)
    edges = wrapped.trace(inputs, edges="answer").sources()
    return save(folder, "picture", wrapped.explain(inputs), wrapped.trace(inputs), edges=edges)


def hostile(folder: Path) -> Case:
    n = len(HOSTILE)
    weights = np.random.default_rng(0).dirichlet(np.ones(n), size=(2, 2, n))
    return save(folder, "hostile", of_weights(weights, HOSTILE))


def attention(layers: int, heads: int, n: int) -> np.ndarray:
    weights = np.random.default_rng(n).uniform(0.1, 1, (layers, heads, n, n)).astype(np.float32)
    return weights / weights.sum(-1, keepdims=True)
