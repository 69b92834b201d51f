"""Small decoders for cells about running a model: our results, and the same from a plain copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import attnflow as af
from helpers.architectures import LLAMA, POSITIONS, hf, text

ANSWER = [3, 4, 5]


def llama(implementation: str | None = None, **options: Any) -> Any:
    """Return a Llama with weights large enough to make attention uneven."""
    return hf("LlamaForCausalLM", **{**LLAMA, "initializer_range": 0.2, **options})(implementation)


def bert(implementation: str | None = None, **options: Any) -> Any:
    return hf("BertModel", **{**POSITIONS, "initializer_range": 0.2, **options})(implementation)


def attentions(plain: Any, inputs: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Return a model's own eager attention, without our hooks: [layer, head, query, key]."""
    with torch.no_grad():
        out = plain(**inputs, output_attentions=True, **({"use_cache": False} if hasattr(plain, "generate") else {}))
    return np.stack([weights[0].double().numpy() for weights in out.attentions])


def rolled_out(weights: np.ndarray) -> np.ndarray:
    """Compute rollout of all positions at the last layer as in the paper: ``Π ½(A + 1)``."""
    n = weights.shape[-1]
    rows = np.eye(n)
    for layer in weights.mean(1):
        rows = (layer + np.eye(n)) / 2 @ rows
    return rows


def traced(model: af.Model, inputs: Any = None) -> dict[str, np.ndarray]:
    """Return the weights of all heads, and rollout of all positions."""
    trace = model.trace(text() if inputs is None else inputs, keep_heads=True)
    n = len(trace.tokens)
    return {
        "weights": np.stack([np.asarray(weights) for weights in trace.weights.values()]),
        "rollout": trace.rollout(query=range(n), layer=-1).values[0],
    }


def expected(plain: Any, inputs: Any = None) -> dict[str, np.ndarray]:
    """Compute the same from what the plain model returns."""
    weights = attentions(plain, text() if inputs is None else inputs)
    return {"weights": weights, "rollout": rolled_out(weights)}


def read_inside(model: af.Model, inputs: Any = None) -> dict[str, np.ndarray]:
    """Return results that need the weights of layers, not only attention: edges with and without matrices, answers."""
    inputs = text() if inputs is None else inputs
    ids = inputs["input_ids"][0].tolist()
    return {
        "head-norm": model.trace(inputs, edges="head-norm").rollout().values,
        "head-norm, linear": model.trace(inputs, memory="linear", edges="head-norm").rollout().values,
        "answer edges": model.trace(inputs, edges="answer").rollout().values,
        "answer edges, linear": model.trace(inputs, memory="linear", edges="answer").answer_inputs().values,
        "a given answer": model.answer(ids, answer=ANSWER).matrix(signed=True).values,
        "a written answer": model.answer(ids, max_new_tokens=3).matrix(signed=True).values,
    }


def everything(model: af.Model, inputs: Any = None) -> dict[str, np.ndarray]:
    return {**traced(model, inputs), **read_inside(model, inputs)}


def expected_everything(plain: Any, inputs: Any = None) -> dict[str, np.ndarray]:
    return {**expected(plain, inputs), **read_inside(af.wrap(plain), inputs)}
