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
from helpers.small_tokenizers import byte_level

IDS = oracles.text(12)


@pytest.mark.parametrize("model", [bert("BertModel"), gpt2()], ids=["bert", "gpt2"])
def test_a_batch_measures_what_single_texts_do(model: Any) -> None:
    texts = [TEXT, "the key", "the key to the cabinet of the key to the cabinet"]
    for together, alone in zip(model.trace(texts), map(model.trace, texts), strict=True):
        for one, other in zip(together.steps, alone.steps, strict=True):
            assert len(one.lengths) == len(alone.tokens)
            np.testing.assert_allclose(one.lengths, other.lengths, rtol=1e-5)


def test_blocks_and_heads_measure_the_same() -> None:
    model = af.wrap(oracles.models()["llama"]().float(), byte_level())
    ids = {"input_ids": IDS}
    trace = model.trace(ids)
    blocks = model.run_batch([model.encode(ids)], whole_bytes=0)
    assert blocks.mode == "blocks"
    for layer, step in enumerate(trace.steps):
        call = blocks.calls[layer]
        np.testing.assert_allclose(call.lengths[0], step.lengths, rtol=1e-5)
    assert model.run_batch([model.encode(ids)], measure=False).calls[0].lengths is None


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
        assert report["mode"] == "keep" and report["positions"] == [place]
        assert report["share"] == pytest.approx(row[place] / row.sum(), abs=1e-4)
        moved = trace.rollout(layer=-1, sinks="residual")
        graph = trace.graph(sinks="residual")
        assert (np.delete(graph[:, :, place], place, 1) == 0).all()
        np.testing.assert_allclose(graph.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose(moved.values, af.rollout(graph, queries=-1, layers=-1), atol=1e-6)
        assert moved.row()[place] < 1e-6
        expected = np.mean([float(step.weights[-1, place]) for step in trace.steps])
        assert moved.provenance["sinks"] == {"mode": "residual", "positions": [place], "share": round(expected, 4)}
        np.testing.assert_allclose(
            trace.flow(layer=-1, sinks="residual").values, af.flow(graph, queries=-1, layers=-1), atol=1e-6
        )
        raw = trace.raw(layer=0, sinks="residual")
        assert raw.row()[place] == 0 and raw.row().sum() == pytest.approx(1, abs=1e-6)


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
    (note,) = trace.rollout(layer=-1, sinks="residual").reliability
    assert "stays at the query" in note and "sink" not in note
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


def test_words_come_after_sinks() -> None:
    model = sinking()
    tokens = [1, *model.encode(TEXT).tensors["input_ids"][0].tolist()]
    trace = model.trace(model.tokenizer.decode(tokens))
    merged = af.merge(trace.graph(sinks="residual"), trace.words().word_groups)
    np.testing.assert_allclose(trace.words().graph(sinks="residual"), merged, atol=1e-6)
    result = trace.rollout(sinks="residual")
    np.testing.assert_allclose(result.words().values, trace.words().rollout(sinks="residual").values)
    assert result.words().provenance["sinks"]["mode"] == "residual"


def test_where_sinks_are_not_known() -> None:
    message = r'sinks="residual" needs to know which positions are sinks, and this trace does not'
    edged = gpt2().trace(TEXT, edges="value-norm")
    summary = af.wrap(hf("T5ForConditionalGeneration", d_model=16, d_kv=8, num_layers=2, num_heads=2, d_ff=32)())
    target = summary.trace({"input_ids": IDS, "decoder_input_ids": IDS[:, :4]})
    for trace in (edged, target):
        assert "sinks" not in trace.rollout().provenance
        for ask in (trace.raw, trace.rollout, trace.flow, trace.graph):
            with pytest.raises(af.InputError, match=message):
                ask(sinks="residual")


def test_results_without_the_new_options_are_as_they_were() -> None:
    trace = gpt2().trace(TEXT)
    assert trace.rollout().provenance.keys() == trace.flow().provenance.keys()
    assert "sinks" not in trace.rollout().recipe
    graph = trace.graph()
    np.testing.assert_array_equal(graph, af.attention_graph(trace.graph(residual=0).astype(np.float32)[:, None]))


def test_a_residual_weight_is_a_number() -> None:
    for memory in ("graph", "linear"):
        trace = gpt2().trace(TEXT, memory=memory)
        with pytest.raises(af.InputError, match="residual='measured': expected a number between 0 and 1"):
            trace.rollout(residual="measured")  # type: ignore[arg-type]
