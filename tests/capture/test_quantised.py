"""Layers with packed weights: the linear maps they are, and whether they pass gradients, cut them or bend them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnflow as af
from attnflow.capture.quantised import mixing
from attnflow.errors import ModelError
from deployments.quantised_cells import Packed, RoundsStates, decoder
from helpers.architectures import text


class _Bent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / 2


class Bends(Packed):
    """A layer with wrong gradients."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_Bent.apply(x))


class Differs(Packed):
    """A layer that computes another map when gradients are enabled, as an inference kernel may."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(-1) if x.requires_grad else x)


class Raises(Packed):
    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise NotImplementedError("no gradients here")
        return super().forward(x)


@pytest.mark.parametrize("kind", [RoundsStates, Bends, Differs, Raises])
def test_no_way_around_the_check(kind: type[Packed]) -> None:
    """If one layer cuts or bends gradients, everything that needs them is refused, and nothing else."""
    model = decoder()
    model.model.layers[1].mlp.up_proj = kind(model.model.layers[1].mlp.up_proj, 8)
    wrapped = af.wrap(model)
    for ask in (
        lambda: wrapped.gradient(text()),
        lambda: wrapped.trace(text(), edges="attention-gradient"),
        lambda: wrapped.trace(text(), edges="answer").answer_rows(),
        lambda: wrapped.trace(text(), edges="attention-gradient", memory="linear").rollout(),
        lambda: wrapped.trace(text(), edges="answer", memory="linear").answer_rows(),
        lambda: wrapped.answer([5, 6, 7, 8], answer=[9]).matrix(),
    ):
        with pytest.raises(ModelError, match=r"gradients do not pass through 'model\.layers\.1\.mlp\.up_proj'"):
            ask()
    assert wrapped.trace(text()).rollout().values.any() and wrapped.blank_out(text(), by=1).values.any()


def test_columns_that_are_chosen_over_positions_are_named() -> None:
    """Like LLM.int8: a column with one large value is computed differently at every position."""

    class Columns(Packed):
        class state:  # the name in bitsandbytes
            threshold = 3.0

        def forward(self, x: Tensor) -> Tensor:
            large = (x.abs() > self.state.threshold).flatten(0, -2).any(0)
            rough = torch.where(large, x, (x * 4).round() / 4)
            return super().forward(rough)

    model = decoder()
    model.model.layers[0].mlp.up_proj = Columns(model.model.layers[0].mlp.up_proj, 8)
    with pytest.raises(
        ModelError,
        match=r"'model.layers.0.mlp.up_proj' runs in 8 bits with an llm_int8_threshold of 3, so large values .* set "
        "llm_int8_threshold to 0 in the quantization_config, or load the model in 4 bits or without quantisation",
    ):
        for seed in range(8):  # the text decides whether there is such a column
            ids = torch.randint(5, 120, (1, 16), generator=torch.Generator().manual_seed(seed))
            af.wrap(model).trace({"input_ids": ids})
    assert mixing(decoder()) is None
