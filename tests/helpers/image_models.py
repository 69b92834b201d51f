"""Small image classifiers of several architectures, with weights far enough from zero that patches matter."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

import attnflow as af
from benchmarks.shapes import COLOURS, FOLDER, scenes
from helpers.architectures import IMAGE, TEXT

CLASSES = {"num_labels": 3, "id2label": {0: "cat", 1: "boat", 2: "tree"}, "label2id": {"cat": 0, "boat": 1, "tree": 2}}
PIXELS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
TOWERS = {"vision_config": IMAGE, "text_config": {**TEXT, "bos_token_id": 0, "eos_token_id": 2}}

CLASSIFIERS: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": {**IMAGE, **CLASSES},
    "DeiTForImageClassification": {**IMAGE, **CLASSES},
    "Dinov2WithRegistersForImageClassification": {**IMAGE, **CLASSES, "num_register_tokens": 3, "mlp_ratio": 2},
    "BeitForImageClassification": {**IMAGE, **CLASSES},
    "SiglipForImageClassification": {**TOWERS, **CLASSES},
    "CLIPForImageClassification": {**TOWERS, **CLASSES},
    "SwinForImageClassification": {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
        **CLASSES,
    },
}  # fmt: skip


def bent(model: nn.Module, by: float = 0.2) -> nn.Module:
    """Add noise to all weights, biases too, which small initial weights would hide."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return model


@cache
def shapes_classifier() -> af.Model:
    """Return a classifier of the colour of a shape: the trained vision tower of benchmarks/shapes-model with a linear head,
    fitted by least squares to the mean of its patches."""
    from transformers import CLIPConfig, CLIPForImageClassification, LlavaForConditionalGeneration, LlavaProcessor

    whole = LlavaForConditionalGeneration.from_pretrained(FOLDER)
    processor = LlavaProcessor.from_pretrained(FOLDER).image_processor
    names = dict(enumerate(COLOURS))
    config = CLIPConfig(vision_config=whole.config.vision_config.to_dict(), id2label=names, label2id={})
    model = CLIPForImageClassification(config).eval()
    missing = model.vision_model.load_state_dict(whole.model.vision_tower.state_dict(), strict=False)
    assert not missing.missing_keys
    known = scenes(1500, seed=5, shown=1)
    with torch.no_grad():
        pixels = torch.from_numpy(known.pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
        states = model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:].mean(1)
        ones = torch.cat([states, torch.ones(len(states), 1)], 1)
        goal = 6.0 * torch.nn.functional.one_hot(torch.from_numpy(known.colours[:, 0]), len(names)).float() - 3
        solution = torch.linalg.lstsq(ones, goal).solution  # [dimension and bias, class]
        model.classifier.weight.copy_(solution[:-1].T)
        model.classifier.bias.copy_(solution[-1])
    return af.wrap(model, processor, name="shapes-classifier")
