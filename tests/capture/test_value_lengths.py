"""Measurements next to attention: the lengths of values, and the sinks that they show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch

import attnflow as af
from helpers import edge_oracles as oracles
from helpers.architectures import hf
from helpers.small_models import TEXT, bert, gpt2, sinking

IDS = oracles.text(12)


@pytest.mark.parametrize("model", [bert("BertModel"), gpt2()], ids=["bert", "gpt2"])
def test_a_batch_measures_what_single_texts_do(model: Any) -> None:
    texts = [TEXT, "the key", "the key to the cabinet of the key to the cabinet"]
    for together, alone in zip(model.trace(texts), map(model.trace, texts), strict=True):
        for one, other in zip(together.steps, alone.steps, strict=True):
            assert len(one.lengths) == len(alone.tokens)
            np.testing.assert_allclose(one.lengths, other.lengths, rtol=1e-5)


def test_lengths_are_those_of_the_values_that_heads_read() -> None:
    model = oracles.models()["llama"]()
    heads, shared = model.config.num_attention_heads, model.config.num_key_value_heads
    assert shared < heads
    for reduce, chosen in (("mean", range(heads)), ("max", range(heads)), ([0, heads - 1], [0, heads - 1])):
        trace = af.wrap(oracles.models()["llama"]()).trace({"input_ids": IDS}, heads=reduce)
        for layer, step in enumerate(trace.steps):
            b = oracles.block(model, layer)
            _, seen, _ = oracles.run(model, IDS, layer)
            expected = [np.mean([np.linalg.norm(x @ b.W_V[h] + b.b_V[h]) for h in chosen]) for x in seen]
            np.testing.assert_allclose(step.lengths, expected, rtol=1e-5)


def test_a_planted_sink_is_seen_wherever_it_stands() -> None:
    model = sinking()
    for place in (0, 3):
        ids = [5, 6, 7, 8, 9, 10, 11]
        ids[place] = 1
        trace = model.trace({"input_ids": torch.tensor([ids])})
        assert [step.sinks for step in trace.steps] == [(place,)] * 6
        assert trace.sinks() == (place,)
        kept = trace.rollout(layer=-1)
        row = kept.row()
        report = kept.provenance["sinks"]
        assert report["positions"] == [place]
        assert report["share"] == pytest.approx(row[place] / row.sum(), abs=1e-4)


def test_one_line_says_that_a_sink_takes_nearly_all() -> None:
    trace = sinking().trace({"input_ids": torch.tensor([[1, 6, 7, 8, 9, 10, 11]])})
    result = trace.rollout(layer=-1)
    assert result.row()[0] > 0.9
    (note,) = result.reliability
    assert note.startswith(f"{100 * result.row()[0]:.0f} % of this rollout is on {trace.tokens[0]!r}, a sink")
    assert any("can flow to" in note for note in trace.flow(layer=-1).reliability)
    assert trace.rollout().reliability == result.reliability == tuple(result.provenance["reliability"])
    assert trace.rollout(layer=0).reliability == () and "reliability" not in trace.rollout(layer=0).provenance
    raw = trace.raw(layer=-1)
    assert [note[:40] for note in raw.reliability] == [
        f"{100 * raw.row()[0]:.0f} % of this raw attention is on '!', a sink"[:40]
    ] * int(raw.row()[0] >= 0.9)
    words = trace.rollout(layer=-1).words()
    assert words.reliability and words.provenance["sinks"]["positions"] == [0]
    linear = sinking().trace({"input_ids": torch.tensor([[1, 6, 7, 8, 9, 10, 11]])}, memory="linear")
    assert linear.rollout().reliability == result.reliability and linear.raw().reliability == raw.reliability
    assert linear.rollout(residual=0.99).reliability != result.reliability
    for span, noted in (({5: 1, 6: 1}, True), ({5: 2, 6: -1}, False), ({6: -1}, False)):  # shares are positive
        options: dict[str, Any] = {"memory": "linear", "queries": span}
        mixed = sinking().trace({"input_ids": torch.tensor([[1, 6, 7, 8, 9, 10, 11]])}, **options).rollout()
        assert bool(mixed.reliability) == noted
    plain = gpt2().trace({"input_ids": torch.tensor([[1, 6, 7, 8, 9, 10, 11]])}, memory="linear")
    assert plain.rollout().reliability == ()


def test_where_sinks_are_not_known() -> None:
    edged = gpt2().trace(TEXT, edges="value-norm")
    summary = af.wrap(hf("T5ForConditionalGeneration", d_model=16, d_kv=8, num_layers=2, num_heads=2, d_ff=32)())
    target = summary.trace({"input_ids": IDS, "decoder_input_ids": IDS[:, :4]})
    for trace in (edged, target):
        assert "sinks" not in trace.rollout().provenance
