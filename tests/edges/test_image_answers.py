"""Answer edges of image classifiers against the definition, worked out position by position for a ViT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnflow as af
from helpers.architectures import IMAGE, hf

CLASSES = {"num_labels": 3, "id2label": {0: "cat", 1: "boat", 2: "tree"}, "label2id": {"cat": 0, "boat": 1, "tree": 2}}
PIXELS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def vit() -> nn.Module:
    model: nn.Module = hf("ViTForImageClassification", **IMAGE, **CLASSES)("eager").double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():  # biases too, and large enough that norms and gates matter
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def norm(module: nn.LayerNorm, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the norm at x with a constant scale and without its bias."""
    scale = 1 / (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    return lambda z: (z - z.mean(-1, keepdim=True)) * scale * module.weight


def attended(module: nn.Linear, weights: Tensor, z: Tensor) -> Tensor:
    """Mix the values of all heads by constant weights [head, query, key]."""
    heads, n, _ = weights.shape
    values = (z @ module.weight.T).reshape(n, heads, -1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(n, -1)


def parts_of_the_definition(model: nn.Module, chosen: int) -> np.ndarray:
    """Return each position's part: the answer's log-odds with all other input states zero and without constants.

    Attention, norm scales and feed-forward gates are those of the whole image.
    """
    out = model(PIXELS.double(), output_attentions=True, output_hidden_states=True)
    states = [x[0] for x in out.hidden_states]
    functions: list[Callable[[Tensor], Tensor]] = []
    for layer, x, weights in zip(model.vit.layers, states, out.attentions, strict=False):
        before = norm(layer.layernorm_before, x)
        mixed = partial(attended, layer.attention.v_proj, weights[0])
        # each row of attention sums to one, so the bias of the values passes through unchanged
        whole = mixed(layer.layernorm_before(x)) + layer.attention.v_proj.bias
        middle = x + layer.attention.o_proj(whole)
        after = norm(layer.layernorm_after, middle)
        inner = layer.mlp.fc1(layer.layernorm_after(middle))
        gate = nn.functional.gelu(inner) / inner

        def run(
            z: Tensor, l: nn.Module = layer, before: Callable[[Tensor], Tensor] = before,
            mixed: Callable[[Tensor], Tensor] = mixed, after: Callable[[Tensor], Tensor] = after, gate: Tensor = gate,
        ) -> Tensor:  # fmt: skip
            z = z + mixed(before(z)) @ l.attention.o_proj.weight.T
            return z + (gate * (after(z) @ l.mlp.fc1.weight.T)) @ l.mlp.fc2.weight.T

        functions.append(run)
    last = norm(model.vit.layernorm, states[-1])
    logits = out.logits[0]
    others = [i for i in range(len(logits)) if i != chosen]
    slope = -torch.softmax(logits[others], 0)  # log-odds: the chosen logit against the others
    parts = []
    for k in range(len(states[0])):
        z = torch.zeros_like(states[0])
        z[k] = states[0][k]
        for run in functions:
            z = run(z)
        row = (last(z) @ model.classifier.weight.T)[0]
        parts.append(float(row[chosen] + (slope * row[others]).sum()))
    return np.array(parts)


def test_answer_inputs_of_an_image_are_those_of_the_definition() -> None:
    model = vit()
    with torch.no_grad():
        expected = parts_of_the_definition(model, 1)
    trace = af.wrap(model).trace(PIXELS.double(), edges="answer", answer="boat")
    result = trace.answer_inputs(signed=True)
    assert result.patches == (4, 4) and result.special == (True, *[False] * 16)
    assert np.abs(expected).max() > 0.01
    assert np.allclose(result.row(), expected, rtol=0, atol=1e-6)  # eager computes softmax in single precision
    assert result.provenance["answer"]["name"] == "boat"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViTForImageClassification", IMAGE),
        ("DeiTForImageClassification", IMAGE),
        ("Dinov2WithRegistersForImageClassification", {**IMAGE, "num_register_tokens": 3, "mlp_ratio": 2}),
        ("BeitForImageClassification", IMAGE),
        ("SiglipForImageClassification", {"vision_config": IMAGE}),
    ],
)
def test_the_parts_of_an_image_add_up_to_the_log_odds_of_its_class(name: str, options: dict[str, object]) -> None:
    model = af.wrap(hf(name, **options)())
    trace = model.trace(PIXELS, edges="answer")
    result = trace.answer_inputs(signed=True)
    evidence = result.provenance["evidence"]
    assert float(result.values.sum()) + evidence["constants"] == pytest.approx(evidence["log_odds"], abs=1e-4)
    assert trace.prediction is not None and trace.prediction.top[0][0] == result.provenance["answer"]["name"]
    assert trace.sources().method == "answer_inputs"


def test_models_of_images_that_have_no_answer_edges_say_why() -> None:
    with pytest.raises(af.ModelError, match=r"has no head, so it answers nothing: expected a classifier or a language"):
        af.wrap(hf("ViTModel", **IMAGE)()).trace(PIXELS, edges="answer")
    swin = hf("SwinForImageClassification", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)  # fmt: skip
    with pytest.raises(af.ModelError, match=r"^SwinForImageClassification attends within windows, but edges are for"):
        af.wrap(swin()).trace(PIXELS, edges="answer")
    segments = hf("BeitForMaskedImageModeling", **IMAGE, use_mask_token=True)
    with pytest.raises(af.InputError, match=r"expected the classes of an image or a sound$"):
        af.wrap(segments()).trace(PIXELS, edges="answer")
