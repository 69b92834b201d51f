"""Classifiers that return nothing but logits: mixing outside attention is seen in the states of their layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnflow as af
from helpers.architectures import POSITIONS, VOCABULARY, hf, ids, text

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

MIXES = "positions mix in other ways too: when every position attends only to itself, outputs still depend on other positions"


class Block(nn.Module):
    """Attention, and a convolution over positions if its weight is not 0."""

    def __init__(self, convolution: float, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=batch_first)
        self.convolution, self.weight = nn.Conv1d(32, 32, 3, padding=1), convolution
        self.batch_first = batch_first

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        x = x + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        if not self.weight:
            return x
        axes = (0, 2, 1) if self.batch_first else (1, 2, 0)
        back = (0, 2, 1) if self.batch_first else (2, 0, 1)
        return x + self.weight * self.convolution(x.permute(axes)).permute(back)


class Classifier(nn.Module):
    def __init__(self, convolution: float = 0.0, batch_first: bool = True, head: str = "first") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(Block(convolution, batch_first) for _ in range(3))
        self.recurrent = nn.LSTM(32, 32, batch_first=True)
        self.batch_first, self.kind = batch_first, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embedding(input_ids)
        x = x if self.batch_first else x.transpose(0, 1)
        for block in self.blocks:
            x = block(x, None if attention_mask is None else attention_mask == 0)
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(self.recurrent(x)[0][:, -1] if self.kind == "recurrent" else x[:, 0])


class Rearranging(nn.Module):
    """A classifier that puts tokens into another order first, so that no position is what its label says."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.inner, self.head = hf("BertModel", **POSITIONS)(), nn.Linear(32, 2)
        self.order = order

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        n = input_ids.shape[1]
        order = [i for i in self.order if i < n] + list(range(len(self.order), n))
        return self.head(self.inner(input_ids[:, order], attention_mask).last_hidden_state[:, 0])


@pytest.mark.parametrize("head", ["first", "recurrent"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "positions first"])
def test_a_convolution_between_layers_is_refused(batch_first: bool, head: str) -> None:
    """What a head does after the last layer is not between layers."""
    trace = af.wrap(Classifier(0.0, batch_first, head).eval()).trace({"input_ids": ids()})
    np.testing.assert_allclose(trace.rollout(query="all", layer=-1).values.sum(-1), 1, atol=1e-5)
    with pytest.raises(af.InputError, match=MIXES):
        af.wrap(Classifier(0.01, batch_first, head).eval()).trace({"input_ids": ids()})


@pytest.mark.parametrize(
    "order", [list(range(11, -1, -1)), [1, 0, *range(2, 12)], [*range(5, -1, -1), *range(11, 5, -1)]],
    ids=["reversed", "neighbours swapped", "halves reversed"],
)  # fmt: skip
def test_tokens_in_another_order_are_refused(order: list[int]) -> None:
    af.wrap(Rearranging(list(range(12))).eval()).trace(text())
    with pytest.raises(af.InputError, match=MIXES):
        af.wrap(Rearranging(order).eval()).trace(text())


def test_tokens_are_changed_whatever_the_vocabulary() -> None:
    """Nothing says how many tokens a plain module knows."""
    model = Classifier(0.01)
    model.embedding = nn.Embedding(2, 32)
    with pytest.raises(af.InputError, match=MIXES):
        af.wrap(model.eval()).trace({"input_ids": ids() % 2})


def test_a_model_without_states_is_refused() -> None:
    class Bare(nn.Module):
        """Nothing returns states: all is computed in one function."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(0)))

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            x = self.table[input_ids][:, None]
            mask = None if attention_mask is None else attention_mask[:, None, None].bool()
            return nn.functional.scaled_dot_product_attention(x, x, x, mask)[:, 0, 0]

    sentence = (
        "neither the model nor its layers return one state per position, .*: wrap the part that returns its states"
    )
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(Bare()).trace({"input_ids": ids()})
