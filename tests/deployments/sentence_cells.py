"""Sentence-embedding models: how they pool, what follows pooling, and how they are loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import attnflow as af
from deployments.cells import Cell, Numbers, Outcome, compared
from helpers.architectures import clip
from helpers.sentence_models import (
    PAIR,
    WIDTH,
    cosine,
    decoder,
    encoder,
    one_mode,
    pooled,
    states_of,
    write,
    write_folder,
)
from helpers.small_tokenizers import byte_level, wordpiece

GROUP = "Sentence embeddings"
TEXT = PAIR[0]

SHARES: Mapping[str, Callable[[int], np.ndarray]] = {
    "mean": lambda n: np.ones(n) / n,
    "mean_sqrt_len_tokens": lambda n: np.ones(n) / n,
    "weightedmean": lambda n: np.arange(1, n + 1) / np.arange(1, n + 1).sum(),
    "cls": lambda n: np.eye(n)[0],
    "lasttoken": lambda n: np.eye(n)[-1],
}
"""The weight of each of n tokens in the embedding."""


def ours(model: af.Model, texts: Any = TEXT) -> Numbers:
    """Return the similarity of two texts, and the attention and rollout of one embedding."""
    trace = model.trace(texts) if isinstance(texts, str) else model.trace(list(texts))[0]
    values = np.array([model.similarity(*PAIR).value])
    return {"similarity": values, "raw": trace.raw().values, "rollout": trace.rollout().values}


def by_hand(plain: Any, tokenizer: Any, mode: str, after: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> Numbers:
    """Compute the same from what the plain model returns under eager attention."""
    a, b = (after(pooled(states_of(plain, tokenizer, text), mode)) for text in PAIR)
    inner = plain.model if hasattr(plain, "lm_head") else plain
    inner.set_attn_implementation("eager")
    with torch.no_grad():
        out = inner(input_ids=tokenizer(TEXT, return_tensors="pt")["input_ids"], output_attentions=True)
    attention = [layer[0].mean(0).double().numpy() for layer in out.attentions]
    n = len(attention[0])
    shares, rolled, rows = SHARES[mode](n), np.eye(n), []
    for layer in attention:
        rolled = (layer + np.eye(n)) / 2 @ rolled
        rows.append(shares @ rolled)
    raw = np.stack([shares @ layer for layer in attention])
    return {"similarity": np.array([cosine(a, b)]), "raw": raw[:, None], "rollout": np.stack(rows)[:, None]}


def folder_with(mode: str) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        source = write_folder(folder / "m", encoder(), wordpiece(), one_mode(mode))
        return compared(lambda: ours(af.load(source, device="cpu")), lambda: by_hand(encoder(), wordpiece(), mode))

    return run


def newer_key(folder: Path) -> Outcome:
    source = write_folder(folder / "m", encoder(), wordpiece(), {"pooling_mode": "weightedmean"}, inner="0_Transformer")
    return compared(
        lambda: ours(af.load(source, device="cpu")), lambda: by_hand(encoder(), wordpiece(), "weightedmean")
    )


def max_tokens(folder: Path) -> Outcome:
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("max"))
    return compared(lambda: ours(af.load(source, device="cpu")), lambda: {})


def max_similarity(folder: Path) -> Outcome:
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("max"))

    def got() -> Numbers:
        similarity = af.load(source, device="cpu").similarity(*PAIR)
        side = similarity.answer_inputs().first
        total = side.row().sum() + side.provenance["evidence"]["constants"]
        return {"similarity": np.array([similarity.value]), "answer edges, added up": np.array([total])}

    def truth() -> Numbers:
        value = np.array([cosine(*(pooled(states_of(encoder(), wordpiece(), text), "max") for text in PAIR))])
        return {"similarity": value, "answer edges, added up": value}

    return compared(got, truth)


def dense(activation: str, size: int) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    config = {"in_features": WIDTH, "out_features": size, "bias": True, "activation_function": activation}
    weights = {
        "linear.weight": torch.randn(size, WIDTH, generator=draw),
        "linear.bias": torch.randn(size, generator=draw),
    }
    return config, weights


def dense_and_normalize(folder: Path) -> Outcome:
    config, weights = dense("torch.nn.modules.activation.Tanh", 8)
    after = {"Dense": (config, weights), "Normalize": ({}, {})}
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("mean"), after)
    matrix, bias = (x.double().numpy() for x in weights.values())
    return compared(
        lambda: ours(af.load(source, device="cpu")),
        lambda: by_hand(encoder(), wordpiece(), "mean", lambda x: np.tanh(matrix @ x + bias)),
    )


def unknown_module(folder: Path) -> Outcome:
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("mean"))
    write(source / "modules.json", [
        {"path": "" if name == "Transformer" else f"1_{name}", "type": f"sentence_transformers.models.{name}"}
        for name in ("Transformer", "WeightedLayerPooling", "Pooling")
    ])  # fmt: skip
    return compared(lambda: ours(af.load(source, device="cpu")), lambda: {})


def last_token(folder: Path) -> Outcome:
    """Its tokenizer pads on the left, and its configuration names a language model with a head."""
    tokenizer = byte_level()
    tokenizer.padding_side = "left"
    source = write_folder(folder / "m", decoder(), tokenizer, one_mode("lasttoken"))
    texts = (TEXT, "the key to the cabinet is the answer to nobody's book")
    return compared(
        lambda: ours(af.load(source, device="cpu"), texts), lambda: by_hand(decoder(), byte_level(), "lasttoken")
    )


def decoder_mean(folder: Path) -> Outcome:
    source = write_folder(folder / "m", decoder(), byte_level(), one_mode("mean"))
    return compared(lambda: ours(af.load(source, device="cpu")), lambda: by_hand(decoder(), byte_level(), "mean"))


def prompted(folder: Path) -> Outcome:
    more = {"prompts": {"query": "the book: ", "passage": "a "}, "default_prompt_name": "query"}
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("mean"), more=more)

    def truth() -> Numbers:
        vectors = [pooled(states_of(encoder(), wordpiece(), "the book: " + text), "mean") for text in PAIR]
        return {"similarity": np.array([cosine(*vectors)])}

    return compared(lambda: {"similarity": np.array([af.load(source, device="cpu").similarity(*PAIR).value])}, truth)


def wrapped(folder: Path) -> Outcome:
    return compared(
        lambda: ours(af.wrap(encoder(), wordpiece(), pooling="mean")), lambda: by_hand(encoder(), wordpiece(), "mean")
    )


def long_text(folder: Path) -> Outcome:
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("mean"))

    def got() -> Numbers:
        trace = af.load(source, device="cpu").trace(TEXT, memory="linear", layers=[0, 1])
        return {"raw": trace.raw().values, "rollout": trace.rollout().values}

    def truth() -> Numbers:
        return {k: v for k, v in by_hand(encoder(), wordpiece(), "mean").items() if k != "similarity"}

    return compared(got, truth)


def encoder_decoder(folder: Path) -> Outcome:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=len(wordpiece()), d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
    )  # fmt: skip
    source = write_folder(folder / "m", transformers.BartModel(config), wordpiece(), one_mode("mean"))
    return compared(lambda: ours(af.load(source, device="cpu")), lambda: {})


def two_towers(folder: Path) -> Outcome:
    return compared(
        lambda: {"similarity": np.array([af.wrap(clip(), wordpiece()).similarity(*PAIR).value])}, lambda: {}
    )


def sentence_transformer(folder: Path) -> Outcome:
    """Compare the object itself with its own encode()."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings from its imports
        from sentence_transformers import SentenceTransformer

    config, weights = dense("torch.nn.modules.activation.Tanh", 8)
    after = {"Dense": (config, weights), "Normalize": ({}, {})}
    source = write_folder(folder / "m", encoder(), wordpiece(), one_mode("mean"), after)
    theirs = SentenceTransformer(str(source), device="cpu")

    def truth() -> Numbers:
        a, b = theirs.encode(list(PAIR), show_progress_bar=False).astype(np.float64)
        return {"similarity": np.array([cosine(a, b)]), "embedding": np.stack([a, b])}

    def got() -> Numbers:
        model = af.wrap(SentenceTransformer(str(source), device="cpu"))
        similarity = model.similarity(*PAIR)
        vectors = [run.embedding.double().numpy() for run in reversed(similarity.runners)]
        return {"similarity": np.array([similarity.value]), "embedding": np.stack(vectors)}

    return compared(got, truth)


BY_HAND = "compared with the plain model's states, pooled by numpy"

CELLS = [
    *(Cell(GROUP, f"{name} pooling (`1_Pooling/config.json`)", folder_with(mode), note=BY_HAND) for mode, name in (
        ("mean", "mean"), ("cls", "class token"), ("weightedmean", "mean weighted by position"), ("lasttoken", "last token"),
        ("mean_sqrt_len_tokens", "sum over the root of the length"),
    )),
    Cell(GROUP, "`0_Transformer` folder, newer `pooling_mode` key", newer_key, note=BY_HAND),
    Cell(GROUP, "max pooling: the embedding's attention", max_tokens, refusal="no token has a single share of the embedding: give query="),
    Cell(GROUP, "max pooling: similarity and answer edges", max_similarity, note=BY_HAND),
    Cell(GROUP, "Dense and Normalize behind the pooling", dense_and_normalize, note=BY_HAND),
    Cell(GROUP, "a module before the pooling", unknown_module, refusal="has the module WeightedLayerPooling before its pooling"),
    Cell(GROUP, "decoder, last token, padded on the left", last_token, note=BY_HAND),
    Cell(GROUP, "decoder, mean pooling", decoder_mean, note=BY_HAND),
    Cell(GROUP, "default prompt", prompted, note=BY_HAND),
    Cell(GROUP, "bare transformer, `wrap(pooling=\"mean\")`", wrapped, note=BY_HAND),
    Cell(GROUP, "mean pooling, `memory=\"linear\"`", long_text, note=BY_HAND),
    Cell(GROUP, "`SentenceTransformer` object", sentence_transformer, needs=("sentence_transformers", "sklearn"),
         note="compared with its own encode()"),
    Cell(GROUP, "encoder-decoder that pools its decoder", encoder_decoder, refusal="has an encoder and a decoder"),
    Cell(GROUP, "CLIP's text tower, similarity", two_towers, refusal="has no pooling, so it is unknown how the embedding of a text is computed"),
]  # fmt: skip
