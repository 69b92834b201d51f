"""Vision-language models: text and image in, one graph, and which position is which patch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnflow as af
from deployments.cells import Cell, Numbers, Outcome, compared
from helpers import vision_language
from helpers.vision_language import GRID, IMAGE_TOKEN, Inputs, as_rows

GROUP = "Vision-language models"

Built = Callable[[], tuple[Any, Inputs]]


def got(build: Built) -> Numbers:
    """Return the weights, and the position of each row and column of the image."""
    model, inputs = build()
    trace = af.wrap(model).trace(inputs, keep_heads=True)
    numbers = {f"L{layer + 1}": np.asarray(heads) for layer, heads in trace.weights.items()}
    if trace.picture is None:
        return numbers
    laid = np.array(trace.picture.places).reshape(trace.picture.rows, trace.picture.columns)
    return {**numbers, "places": laid.astype(np.float64)}


def returned(build: Built, places: bool = True) -> Numbers:
    """Return the model's own eager attention, and the states that move with each part of the image."""
    model, inputs = build()
    with torch.no_grad():
        heads = model(**inputs, output_attentions=True)
    heads = heads.language_model_outputs.attentions if hasattr(heads, "language_model_outputs") else heads.attentions
    numbers = {f"L{number + 1}": own[0].float().numpy() for number, own in enumerate(heads)}
    return {**numbers, "places": moved_places(model, inputs).astype(np.float64)} if places else numbers


def moved_places(model: Any, inputs: Inputs) -> np.ndarray:
    """Return [row, column]: the position whose input state moves most when this part of the image changes."""
    positions = (inputs["input_ids"][0] == IMAGE_TOKEN).nonzero().flatten().tolist()
    cut = "image_grid_thw" in inputs
    high, wide = (GRID[0] * 8, GRID[1] * 8) if cut else tuple(inputs["pixel_values"].shape[-2:])
    side = round((high * wide / 64 / len(positions)) ** 0.5) * 8  # pixels per position
    entering: list[torch.Tensor] = []

    def hook(module: Any, args: Any, named: Any) -> None:
        entering.append(named["inputs_embeds"][0])

    handle = model.get_decoder().register_forward_pre_hook(hook, with_kwargs=True)

    def states(change: torch.Tensor) -> torch.Tensor:
        pixels = inputs["pixel_values"]
        added = as_rows(change[:, None].expand(3, 2, high, wide)) if cut else change.expand(pixels.shape)
        with torch.no_grad():
            model(**{**inputs, "pixel_values": pixels + added})
        return entering.pop()

    before = states(torch.zeros(3, high, wide))
    places = np.empty((high // side, wide // side), np.int64)
    for row in range(high // side):
        for column in range(wide // side):
            change = torch.zeros(3, high, wide)
            change[:, row * side : (row + 1) * side, column * side : (column + 1) * side] = 2
            places[row, column] = int((states(change) - before).norm(dim=-1).argmax())
    handle.remove()
    return places


def whole(build: Built) -> Callable[[Path], Outcome]:
    return lambda _: compared(lambda: got(build), lambda: returned(build))


def weights_alone(build: Built) -> Callable[[Path], Outcome]:
    """No position is a patch, and the trace must not claim otherwise."""
    return lambda _: compared(lambda: got(build), lambda: returned(build, places=False))


PLACES = "the weights that the model returns, and the states that move with each part of the image"
ALONE = "the weights that the model returns; no position corresponds to a part of the image"

CELLS = [
    *(Cell(GROUP, name, whole(build), within=1e-6, note=PLACES) for name, build in vision_language.MODELS.items()),
    *(
        Cell(GROUP, name, weights_alone(build), within=1e-6, note=ALONE)
        for name, build in vision_language.WITHOUT_PLACES.items()
    ),
    Cell(
        GROUP,
        "Llama 3.2 Vision",
        weights_alone(vision_language.mllama),
        refusal="the text reads the image by cross-attention",
    ),
]
