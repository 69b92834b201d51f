"""Edge weights computed slowly: each definition written out in loops over heads, queries and keys.

An oracle takes a model in float64 with eager attention, the ids of a text [1, n] and a layer, and returns [query, key].
It knows BERT and RoBERTa (the norm follows the addition), GPT-2, and Llama with its relatives (the norm precedes
attention). States and attention weights come from a run of the model; the rest comes from its modules by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

STEP = 1e-5  # for central differences: their error in float64 is about 1e-9
RELATIVE_RANK = 1e-10  # smaller singular values, relative to the largest, count as zero


@dataclass(frozen=True)
class Block:
    """The attention of one layer, by its parts.

    layer, attention: the modules of the whole layer and of its attention. before: the norm whose output attention gets;
    after: the norm that follows the addition; one of the two is None. W_V: [head, width, size],
    b_V: [head, size], W_O: [head, size, width], b_O: [width]; heads that share a value head repeat it.
    values, columns: the module that makes the value vectors, and where they are in its output.
    """

    layer: nn.Module
    attention: nn.Module
    before: nn.Module | None
    after: nn.LayerNorm | None
    W_V: np.ndarray
    b_V: np.ndarray
    W_O: np.ndarray
    b_O: np.ndarray
    values: nn.Module
    columns: slice


def block(model: Any, layer: int) -> Block:
    base, heads = model.base_model, model.config.num_attention_heads
    if hasattr(base, "encoder"):
        whole = base.encoder.layer[layer]
        attention, before, after = whole.attention.self, None, whole.attention.output.LayerNorm
        values, output = attention.value, whole.attention.output.dense
        W_V, W_O = _array(values.weight).T, _array(output.weight).T
        columns, shared = slice(None), 1
    elif hasattr(base, "h"):
        # GPT-2's linear maps store weights as [in, out], and one of them makes queries, keys and values.
        whole = base.h[layer]
        attention, before, after = whole.attn, whole.ln_1, None
        values, output = attention.c_attn, attention.c_proj
        width = model.config.hidden_size
        columns, shared = slice(2 * width, 3 * width), 1
        W_V, W_O = _array(values.weight)[:, columns], _array(output.weight)
    else:
        whole = base.layers[layer]
        attention, before, after = whole.self_attn, whole.input_layernorm, None
        values, output = attention.v_proj, attention.o_proj
        W_V, W_O = _array(values.weight).T, _array(output.weight).T
        columns, shared = slice(None), heads // model.config.num_key_value_heads
    b_V = np.zeros(W_V.shape[1]) if values.bias is None else _array(values.bias)[columns]
    b_O = np.zeros(W_O.shape[1]) if output.bias is None else _array(output.bias)
    size = W_O.shape[0] // heads
    split_W_V, split_b_V, split_W_O = [], [], []
    for h in range(heads):
        own = slice((h // shared) * size, (h // shared + 1) * size)
        split_W_V.append(W_V[:, own])
        split_b_V.append(b_V[own])
        split_W_O.append(W_O[h * size : (h + 1) * size])
    return Block(
        whole, attention, before, after, np.stack(split_W_V), np.stack(split_b_V), np.stack(split_W_O), b_O, values, columns
    )  # fmt: skip


def run(model: Any, ids: Tensor, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x [token, width], the states below the layer; x', the input of its attention; and α [head, query, key]."""
    with torch.no_grad():
        out = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
        states = out.hidden_states[layer]
        before = block(model, layer).before
        seen = states if before is None else before(states)
    return _array(states[0]), _array(seen[0]), _array(out.attentions[layer][0])


def transformed(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """f^h(x_k) = (x'_k W_V^h + b_V^h) W_O^h: [head, key, width]."""
    b = block(model, layer)
    _, seen, _ = run(model, ids, layer)
    return np.stack([[(x @ b.W_V[h] + b.b_V[h]) @ b.W_O[h] for x in seen] for h in range(len(b.W_V))])


def parts(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """Σ_h α^h_qk f^h(x_k): what attention brings from k to q, [query, key, width]."""
    _, _, weights = run(model, ids, layer)
    f = transformed(model, ids, layer)
    heads, n, width = f.shape
    vectors = np.zeros((n, n, width))
    for q in range(n):
        for k in range(n):
            for h in range(heads):
                vectors[q, k] += weights[h, q, k] * f[h, k]
    return vectors


def shares(model: Any, ids: Tensor, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Return T_q(k) [query, key, width], and the part of no token, g(b_O) + β [query, width]; their sum is y_q.

    T_q(k) = g(Σ_h α^h_qk f^h(x_k) + δ_qk x_q). After the addition BERT has a norm, which divides by the scale of its
    real input: g(z) = γ ⊙ (z − mean z) / s(y), s(y) = sqrt(var y + eps). In the other models g changes nothing.
    """
    b = block(model, layer)
    states, _, _ = run(model, ids, layer)
    T = parts(model, ids, layer)
    n, width = states.shape
    rest = np.zeros((n, width))
    for q in range(n):
        T[q, q] += states[q]
        rest[q] = b.b_O
        if b.after is not None:
            gamma, beta = _array(b.after.weight), _array(b.after.bias)
            total = T[q].sum(0) + b.b_O
            s = np.sqrt(((total - total.mean()) ** 2).mean() + b.after.eps)
            for k in range(n):
                T[q, k] = gamma * (T[q, k] - T[q, k].mean()) / s
            rest[q] = gamma * (b.b_O - b.b_O.mean()) / s + beta
    return T, rest


def value_norm(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """‖Σ_h α^h_qk f^h(x_k)‖₂ (Kobayashi et al. 2020)."""
    return np.array([[np.sqrt((z**2).sum()) for z in row] for row in parts(model, ids, layer)])


def block_norm(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """‖g(Σ_h α^h_qk f^h(x_k) + δ_qk x_q)‖₂ (Kobayashi et al. 2021)."""
    T, _ = shares(model, ids, layer)
    return np.array([[np.sqrt((z**2).sum()) for z in row] for row in T])


def head_norm(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """Σ_h α^h_qk ‖f^h(x_k)‖₂ + δ_qk ‖x_q‖₂."""
    states, _, weights = run(model, ids, layer)
    f = transformed(model, ids, layer)
    heads, n, _ = f.shape
    lengths = np.zeros((n, n))
    for q in range(n):
        for k in range(n):
            for h in range(heads):
                lengths[q, k] += weights[h, q, k] * np.sqrt((f[h, k] ** 2).sum())
        lengths[q, q] += np.sqrt((states[q] ** 2).sum())
    return lengths


def projection(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """Σ_h α^h_qk max(0, g(f^h(x_k))·y_q) / ‖y_q‖₂ + δ_qk max(0, g(x_q)·y_q) / ‖y_q‖₂; y and g as in `shares`."""
    b = block(model, layer)
    states, _, weights = run(model, ids, layer)
    f = transformed(model, ids, layer)
    T, rest = shares(model, ids, layer)
    heads, n, _ = f.shape
    along = np.zeros((n, n))
    for q in range(n):
        y, whole = T[q].sum(0) + rest[q], parts(model, ids, layer)[q].sum(0) + states[q] + b.b_O

        def far(z: np.ndarray, y: np.ndarray = y, whole: np.ndarray = whole) -> float:
            if b.after is not None:
                s = np.sqrt(((whole - whole.mean()) ** 2).mean() + b.after.eps)
                z = _array(b.after.weight) * (z - z.mean()) / s
            return max(0.0, float(z @ y)) / np.sqrt((y**2).sum())

        for k in range(n):
            for h in range(heads):
                along[q, k] += weights[h, q, k] * far(f[h, k])
        along[q, q] += far(states[q])
    return along


def alti(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """max(0, ‖y_q‖₁ − ‖y_q − T_q(k)‖₁), divided by its sum over k unless that is zero (Ferrando et al. 2022)."""
    T, rest = shares(model, ids, layer)
    n = len(T)
    contributions = np.zeros((n, n))
    for q in range(n):
        y = T[q].sum(0) + rest[q]
        for k in range(n):
            contributions[q, k] = max(0.0, np.abs(y).sum() - np.abs(y - T[q, k]).sum())
        if contributions[q].sum() > 0:
            contributions[q] /= contributions[q].sum()
    return contributions


def effective(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """Mean over heads of |A − its projection on the left null space of V W_O| (Brunner et al. 2020).

    The null space of a query covers only the keys that it can see, so masked weights stay zero.
    """
    _, _, weights = run(model, ids, layer)
    f = transformed(model, ids, layer)
    heads = np.zeros_like(weights)
    for h, q in np.ndindex(*weights.shape[:2]):
        keys = np.flatnonzero(weights[:, q].max(0))
        heads[h, q, keys] = np.abs(without_null_space(weights[h, q, keys][None], f[h, keys])[0])
    return heads.mean(0)


def without_null_space(A: np.ndarray, T: np.ndarray) -> np.ndarray:
    """A minus the part of each of its rows that T [key, width] sends to zero."""
    left, singular, _ = np.linalg.svd(T, full_matrices=True)
    rank = int((singular > RELATIVE_RANK * singular[0]).sum())
    rows = A.copy()
    for direction in left.T[rank:]:
        for q in range(len(A)):
            rows[q] -= (A[q] @ direction) * direction
    return rows


def gradient(model: Any, ids: Tensor, layer: int, y: Callable[[Any], Any]) -> np.ndarray:
    """Mean over heads of max(0, ∂y/∂A^h_qk); a masked weight has a derivative, but is not an edge."""
    weights, slopes = derivatives(model, ids, layer, y)
    return np.mean([np.maximum(0, s) for s in slopes], axis=0) * (weights.max(0) > 0)


def attention_gradient(model: Any, ids: Tensor, layer: int, y: Callable[[Any], Any]) -> np.ndarray:
    """Mean over heads of max(0, A^h_qk · ∂y/∂A^h_qk)."""
    weights, slopes = derivatives(model, ids, layer, y)
    return np.mean([np.maximum(0, A * s) for A, s in zip(weights, slopes, strict=True)], axis=0)


def derivatives(model: Any, ids: Tensor, layer: int, y: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return A and ∂y/∂A, both [head, query, key], the latter by central differences of one weight at a time.

    y: maps the model's output to one number per text. All steps run together, each on its own copy of the text.
    """
    b = block(model, layer)
    heads, n = model.config.num_attention_heads, ids.shape[1]
    one = torch.eye(heads * n * n, dtype=torch.float64).reshape(-1, heads, n, n)
    weights: list[np.ndarray] = []

    def answer(by: float) -> np.ndarray:
        def moved(A: Tensor) -> Tensor:
            weights.append(_array(A[0]))
            return A + by * one

        with torch.no_grad(), changed_weights(b, moved):
            return _array(y(model(input_ids=ids.expand(len(one), -1))))

    slopes = (answer(STEP) - answer(-STEP)) / (2 * STEP)
    return weights[0], slopes.reshape(heads, n, n)


@contextmanager
def changed_weights(b: Block, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the context, the weights of this block's attention go through `change` before they are used.

    Llama and its relatives compute softmax and RMSNorm in float32, too coarse for small steps; here both use float64.
    """

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, Tensor]:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        scores = query @ key.transpose(2, 3) * scaling
        weights = (scores if mask is None else scores + mask).softmax(-1)
        if module is b.attention:
            weights = change(weights)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    def rms(norm: Any, x: Tensor) -> Tensor:
        return norm.weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + norm.variance_epsilon)

    name = type(b.attention).__module__
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(sys.modules[name], "eager_attention_forward", attend))
        if b.before is not None and not isinstance(b.before, nn.LayerNorm):
            patches.enter_context(mock.patch.object(type(b.before), "forward", rms))
        yield


def value_zeroing(model: Any, ids: Tensor, layer: int) -> np.ndarray:
    """1 − cos(x̃_q, x_q), where x̃ is the layer's output with zero value vectors of k (Mohebbi et al. 2023)."""
    b, n = block(model, layer), ids.shape[1]
    real = output(model, ids, b.layer)
    distances = np.zeros((n, n))
    for k in range(n):
        with zeroed(b, k):
            other = output(model, ids, b.layer)
        for q in range(n):
            lengths = np.sqrt((other[q] ** 2).sum()) * np.sqrt((real[q] ** 2).sum())
            distances[q, k] = 1 - (other[q] @ real[q]) / lengths
    return distances


@contextmanager
def zeroed(b: Block, k: int) -> Iterator[None]:
    """Inside the context, the value vectors of token k are zero in this block, including the bias."""

    def zero(module: nn.Module, inputs: Any, values: Tensor) -> Tensor:
        values = values.clone()
        values[:, k, b.columns] = 0
        return values

    hook = b.values.register_forward_hook(zero)
    try:
        yield
    finally:
        hook.remove()


def output(model: Any, ids: Tensor, module: nn.Module) -> np.ndarray:
    """Return the output of this module in a run of the model: [token, width]."""
    outputs: list[np.ndarray] = []

    def keep(module: nn.Module, inputs: Any, value: Any) -> None:
        outputs.append(_array((value[0] if isinstance(value, tuple) else value)[0]))

    hook = module.register_forward_hook(keep)
    try:
        with torch.no_grad():
            model(input_ids=ids)
    finally:
        hook.remove()
    return outputs[0]


def models() -> dict[str, Callable[[], Any]]:
    """Return builders of small models by name; each builds the same float64 model with eager attention every time.

    Three layers, four heads, width 32, vocabulary 60. Weights, norms and biases are random and large enough that attention
    is far from uniform and nothing is 0 or 1 by accident.
    """
    import transformers as t

    common: dict[str, Any] = {"vocab_size": 60, "attn_implementation": "eager", "pad_token_id": 0}
    ends: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}
    bert = {
        "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48,
        "max_position_embeddings": 40, "num_labels": 3,
    }  # fmt: skip
    gpt2 = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_inner": 48, "n_positions": 40, **ends}
    llama = {
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32,
        "intermediate_size": 48, "max_position_embeddings": 40, **ends,
    }  # fmt: skip
    # Mistral's head size is independent of its width, and its window hides distant positions.
    mistral = {**llama, "head_dim": 6, "sliding_window": 4}
    both_ways = {**gpt2, "is_causal": False, "num_labels": 3}
    return {
        "bert": lambda: _filled(t.BertForSequenceClassification, t.BertConfig(**common, **bert), 1),
        "roberta": lambda: _filled(t.RobertaForSequenceClassification, t.RobertaConfig(**common, **bert), 2),
        "gpt2": lambda: _filled(t.GPT2LMHeadModel, t.GPT2Config(**common, **gpt2), 3),
        "gpt2-both-ways": lambda: _filled(t.GPT2ForTokenClassification, t.GPT2Config(**common, **both_ways), 4),
        "llama": lambda: _filled(t.LlamaForCausalLM, t.LlamaConfig(**common, **llama), 5),
        "qwen2": lambda: _filled(t.Qwen2ForCausalLM, t.Qwen2Config(**common, **llama), 6),
        "mistral": lambda: _filled(t.MistralForCausalLM, t.MistralConfig(**common, **mistral), 7),
    }


def text(n: int, seed: int = 0) -> Tensor:
    """Return random ids [1, n] without padding, beginning or end tokens."""
    return torch.randint(5, 60, (1, n), generator=torch.Generator().manual_seed(seed))


def _filled(kind: Any, config: Any, seed: int) -> Any:
    model = kind(config).double().eval()
    random = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        if parameter.ndim == 1:
            drawn = 0.3 * drawn if name.endswith("bias") else 1 + 0.3 * drawn
        else:
            drawn = drawn * (1.0 if "emb" in name or "wte" in name or "wpe" in name else 0.45)
        parameter.data = drawn
    return model


def _array(x: Tensor) -> np.ndarray:
    return x.detach().numpy().copy()
