"""Capture on every architecture: the weights of eager attention, unchanged outputs, and a check on first use."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture import runner as runner_module
from attnflow.capture.check import float_outputs, largest_difference
from attnflow.capture.routes import FUSED, INTERFACE
from helpers.architectures import (
    ARCHITECTURES,
    IMAGE,
    LLAMA,
    POSITIONS,
    SEQ2SEQ,
    TEXT,
    Architecture,
    built,
    hf,
    ids,
    image,
    source_and_target,
    text,
    wave,
)
from helpers.small_tokenizers import byte_level, wordpiece
from support import PAGE, page

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.utils.logging.set_verbosity_error()

TEXT_MODELS = [a for a in ARCHITECTURES if "input_ids" in a.inputs()]
OWN_ATTENTION = {"DeBERTa-v2", "MPNet", "GPT-J", "Falcon", "BLOOM"}  # only the model's own code computes it


def those(architectures: Iterable[Architecture]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("a", list(architectures), ids=lambda a: a.name)


every, texts = those(ARCHITECTURES), those(TEXT_MODELS)


def returned(out: Any) -> list[torch.Tensor]:
    """Return a model's attentions in the order of layers; for an encoder-decoder, the encoder's."""
    return list(out.get("attentions") or out.get("encoder_attentions") or ())


@those(a for a in ARCHITECTURES if a.returns)  # the tests of windows, towers and plain PyTorch cover the others
def test_weights_equal_eager(a: Architecture) -> None:
    trace = af.wrap(built(a)).trace(a.inputs(), keep_heads=True)
    reference = a.build("eager")
    with torch.no_grad():
        attentions = returned(reference(**a.inputs(), output_attentions=True))
    kept = trace.encoder.steps if trace.encoder else None
    assert len(attentions) == len(kept or trace.weights) > 0
    for layer, expected in enumerate(attentions):
        if kept is not None:
            assert torch.equal(kept[layer].weights, expected[0].float().mean(0))
        else:
            assert torch.equal(trace.weights[layer], expected[0].float())


@every
def test_outputs_stay(a: Architecture) -> None:
    """Outputs are equal to the bit when not tracing, and also while tracing if the model runs eager attention."""
    model = built(a)
    wrapped = af.wrap(model)
    tower = wrapped._tower(a.inputs())
    inputs = dict(a.inputs())
    given = (inputs.pop("input"),) if "input" in inputs else ()
    with torch.no_grad():
        before = float_outputs(tower(*given, **inputs))
        wrapped.trace(a.inputs())
        after = float_outputs(tower(*given, **inputs))
    assert largest_difference(before, after) == 0
    eager = af.wrap(a.build("eager"))
    eager.trace(a.inputs())
    (checked,) = eager.checked.values()
    assert checked.difference == 0


@every
def test_views_agree_with_the_paper(a: Architecture) -> None:
    trace = af.wrap(built(a)).trace(a.inputs())
    rolled, flowed = trace.rollout(query="all", layer=-1).values, trace.flow(query="all", layer=-1).values
    assert (rolled <= flowed + 1e-9).all()
    sums = rolled.sum(-1)
    if a.name == "gpt-oss":
        assert (sums < 1 - 1e-3).any()
    else:
        np.testing.assert_allclose(sums, 1, atol=1e-5)
    assert trace.raw(query="all", layer=-1).values.shape == rolled.shape


@those(a for a in ARCHITECTURES if a.name not in OWN_ATTENTION)
def test_blocks_equal_whole(a: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = af.wrap(built(a))
    whole = wrapped.trace(a.inputs(), keep_heads=True)
    (checked,) = wrapped.checked.values()
    assert checked.blocks and whole.steps
    monkeypatch.setattr(runner_module, "WHOLE_BYTES", 0)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES", 600)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES_AT_MOST", 600)
    blocks = wrapped.trace(a.inputs(), keep_heads=True)
    assert "blocks" in blocks.provenance["captured"]
    for x, y in zip(whole.steps, blocks.steps, strict=True):
        torch.testing.assert_close(x.weights, y.weights, atol=2e-6, rtol=0)
    for layer in whole.weights:
        torch.testing.assert_close(whole.weights[layer], blocks.weights[layer], atol=2e-6, rtol=0)


@those(a for a in TEXT_MODELS if a.kind != "encoder-decoder")  # encoder-decoders are traced one text at a time
def test_padding_changes_nothing(a: Architecture) -> None:
    wrapped = af.wrap(built(a))
    inputs = [{"input_ids": ids(n, n), "attention_mask": torch.ones(1, n, dtype=torch.long)} for n in (5, 12, 1, 9)]
    batch = wrapped.trace(inputs)
    for given, together in zip(inputs, batch, strict=True):
        alone = wrapped.trace(given)
        assert alone.tokens == together.tokens
        np.testing.assert_allclose(together.graph(), alone.graph(), atol=1e-6)


@texts
def test_linear_equals_graph(a: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES", 600)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES_AT_MOST", 600)
    monkeypatch.setattr("attnflow.capture.linear.FEW", 3)
    wrapped = af.wrap(built(a))
    graph = wrapped.trace(a.inputs())
    if a.kind == "encoder-decoder" or not next(iter(wrapped.checked.values())).blocks:
        with pytest.raises(af.InputError, match='memory="graph"'):
            wrapped.trace(a.inputs(), memory="linear")
        return
    linear = wrapped.trace(a.inputs(), memory="linear", queries=[0, 5, -1], layers=[-1, 0])
    same = {"query": [0, 5, -1], "layer": [-1, 0]}
    np.testing.assert_allclose(linear.raw().values, graph.raw(**same).values, atol=1e-6)
    np.testing.assert_allclose(linear.rollout().values, graph.rollout(**same).values, atol=2e-5)
    with pytest.raises(af.InputError, match="flow needs one matrix per layer"):
        linear.flow()


def test_the_page_of_models_is_what_its_command_gives() -> None:
    assert PAGE.read_text() == page(), "run python tests/support.py --write"


@those(a for a in ARCHITECTURES if a.kind in ("encoder", "decoder"))
def test_causality_is_found(a: Architecture) -> None:
    wrapped = af.wrap(built(a))
    trace = wrapped.trace(a.inputs())
    decodes = a.kind == "decoder"
    assert next(iter(wrapped.checked.values())).causal == decodes
    assert (trace.default_query == 10) == decodes
    assert (np.triu(trace.graph(), 1).max() == 0) == decodes


@pytest.mark.parametrize("name", ["BERT", "Llama", "T5"])
def test_a_first_text_of_one_token(name: str) -> None:
    """The self-check repeats the token, and its result holds for longer texts too."""
    a = next(a for a in ARCHITECTURES if a.name == name)
    wrapped = af.wrap(a.build())
    given = {key: x[:, :1] for key, x in a.inputs().items()}
    assert wrapped.trace(given).graph().min() >= 0
    assert next(iter(wrapped.checked.values())).causal == (a.kind == "decoder")
    np.testing.assert_array_equal(wrapped.trace(a.inputs()).graph(), af.wrap(a.build()).trace(a.inputs()).graph())


def test_falcon_with_fused_attention() -> None:
    """Built with SDPA, the weights it returns see the future; ours come from the inputs of the fused function."""
    falcon = next(a for a in ARCHITECTURES if a.name == "Falcon")
    wrapped = af.wrap(falcon.build("sdpa"))
    trace = wrapped.trace(text())
    assert trace.provenance["captured"].startswith(FUSED)
    np.testing.assert_allclose(trace.graph(), af.wrap(falcon.build("eager")).trace(text()).graph(), atol=1e-5)
    linear = wrapped.trace(text(), memory="linear", queries=[3, -1])
    np.testing.assert_allclose(linear.rollout().values, trace.rollout(query=[3, -1], layer=-1).values, atol=1e-5)


def test_plain_pytorch_weights() -> None:
    """Compare with the definition, computed from the layers' parameters."""
    vit = next(a for a in ARCHITECTURES if a.name.startswith("ViT in plain"))
    model = vit.build()
    trace = af.wrap(model).trace(vit.inputs(), keep_heads=True)
    with torch.no_grad():
        x = model.patches(vit.inputs()["pixel_values"]).flatten(2).transpose(1, 2)
        x = torch.cat([model.cls, x], 1)
        for layer, block in enumerate(model.blocks):
            q, k, _ = block.qkv(block.norm(x))[0].reshape(17, 3, 4, 8).permute(1, 2, 0, 3)
            torch.testing.assert_close(trace.weights[layer], torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1))
            x = block(x)
    encoder = next(a for a in ARCHITECTURES if a.name == "nn.TransformerEncoder")
    module = encoder.build()
    states = encoder.inputs()["input"]
    weights = af.wrap(module).trace(encoder.inputs(), keep_heads=True).weights
    with torch.no_grad():
        for layer, block in enumerate(module.layers):
            _, expected = block.self_attn(states, states, states, need_weights=True, average_attn_weights=False)
            torch.testing.assert_close(weights[layer], expected[0])
            states = block(states)


def test_nn_transformer_is_one_graph() -> None:
    torch.manual_seed(0)
    module = torch.nn.Transformer(32, 4, 2, 3, 48, batch_first=True).eval()
    trace = af.wrap(module).trace({"src": torch.randn(1, 6, 32), "tgt": torch.randn(1, 4, 32)})
    assert trace.parts == ("source",) * 6 + ("target",) * 4
    assert len(trace.ends) == 3 and len(trace.steps) == 2 + 2 * 3
    np.testing.assert_allclose(trace.rollout().values.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["T5", "BART", "Marian"])
def test_encoder_decoder_against_the_definition(name: str) -> None:
    """Compute rollout over source and target by hand from the returned weights, one decoder layer at a time."""
    a = next(a for a in ARCHITECTURES if a.name == name)
    trace = af.wrap(a.build()).trace(source_and_target())
    with torch.no_grad():
        out = a.build("eager")(**source_and_target(), output_attentions=True)
    r = 0.5
    source = np.eye(11)
    for layer in out.encoder_attentions:
        source = ((1 - r) * layer[0].double().mean(0).numpy() + r * np.eye(11)) @ source
    from_source, from_target = np.zeros((7, 11)), np.eye(7)
    for own, cross in zip(out.decoder_attentions, out.cross_attentions, strict=True):
        mix = (1 - r) * own[0].double().mean(0).numpy() + r * np.eye(7)
        from_source, from_target = mix @ from_source, mix @ from_target
        from_source = (1 - r) * cross[0].double().mean(0).numpy() @ source + r * from_source
        from_target = r * from_target
    found = trace.rollout(query="all", layer=-1)
    np.testing.assert_allclose(found.values[0], np.concatenate([from_source, from_target], 1), atol=1e-6)
    assert found.parts == ("source",) * 11 + ("target",) * 7
    flowed = trace.flow(query="all", layer=-1).values
    assert np.isfinite(flowed).all() and (flowed >= found.values - 1e-6).all()
    assert trace.encoder is not None
    np.testing.assert_allclose(trace.encoder.rollout(query="all", layer=-1).values[0], source, atol=1e-6)


def test_encoder_decoder_flow_counts_the_encoder_once() -> None:
    """Carried states are not a bottleneck, and a source state gives at most its row to all decoder layers together."""
    trace = af.wrap(next(a for a in ARCHITECTURES if a.name == "BART").build()).trace(source_and_target())
    values = trace.flow(query="all", layer=-1).values[0]
    assert values[:, :11].max() <= trace.graph()[0][:11, :11].sum(0).max() + 1e-9
    earlier = values[6, 11:17]
    column = trace.graph()[2][11:, 11:17].sum(0)  # taken by all target positions at the first decoder layer
    assert (earlier <= column + 1e-9).all() and (earlier > 0).all()


def test_windows_against_the_library() -> None:
    """Each window's weights are where transformers' own partition of a shifted grid puts them."""
    from transformers.models.swin.modeling_swin import window_partition

    a = next(a for a in ARCHITECTURES if a.name == "Swin")
    trace = af.wrap(a.build()).trace(a.inputs(), keep_heads=True)
    attention = [s for s in trace.steps if s.residual]
    assert [s.weights.shape[0] for s in trace.steps] == [256, 256, 64, 64, 64]
    for layer, (side, shift) in enumerate([(16, 0), (16, 2), (8, 0), (8, 2)]):
        grid = torch.arange(side * side).reshape(1, side, side, 1)
        windows = window_partition(torch.roll(grid, (-shift, -shift), (1, 2)), 4).reshape(-1, 16)
        expected = torch.zeros(side * side, side * side)
        for w, places in enumerate(windows):
            for i, q in enumerate(places):
                expected[q, places] = trace.weights[layer][w, :, i].mean(0)
        torch.testing.assert_close(attention[layer].weights, expected)
    merging = next(s for s in trace.steps if not s.residual)
    assert merging.weights[0].nonzero().flatten().tolist() == [0, 1, 16, 17]
    assert trace.rollout().values.shape == (2, 64, 256)
    assert trace.raw(layer=0).values.shape == (1, 256, 256)
    np.testing.assert_allclose(trace.raw(layer=-1).values.sum(-1), 1, atol=1e-5)


def test_windows_equal_eager() -> None:
    """The model returns only the last block of each stage."""
    a = next(a for a in ARCHITECTURES if a.name == "Swin")
    weights = af.wrap(a.build()).trace(a.inputs(), keep_heads=True).weights
    with torch.no_grad():
        attentions = a.build("eager")(**a.inputs(), output_attentions=True).attentions
    assert len(weights) == 4 and len(attentions) == 2
    assert torch.equal(weights[1], attentions[0]) and torch.equal(weights[3], attentions[1])


@pytest.mark.parametrize(("name", "tower"), [("CLIP, text", "text_model"), ("CLIP, image", "vision_model")])
def test_towers_equal_eager(name: str, tower: str) -> None:
    a = next(a for a in ARCHITECTURES if a.name == name)
    weights = af.wrap(a.build()).trace(a.inputs(), keep_heads=True).weights
    with torch.no_grad():
        attentions = getattr(a.build("eager"), tower)(**a.inputs(), output_attentions=True).attentions
    assert len(weights) == len(attentions) == 3
    assert all(torch.equal(weights[layer], expected[0]) for layer, expected in enumerate(attentions))


@pytest.mark.parametrize(
    ("name", "special"),
    [("ViT", 1), ("DeiT", 2), ("DINOv2 with registers", 4), ("BEiT", 1), ("CLIP, image", 1), ("Swin", 0)],
)
def test_vision_labels(name: str, special: int) -> None:
    a = next(a for a in ARCHITECTURES if a.name == name)
    trace = af.wrap(a.build()).trace(a.inputs())
    assert sum(trace.special) == special
    assert trace.patches == ((16, 16) if a.name == "Swin" else (4, 4))
    result = trace.rollout(query=0, layer=-1)
    assert result.on_patches().shape == (1, 1, *trace.patches)
    assert result.overlay(np.zeros((64, 64, 3), np.uint8), query=0).shape == (64, 64, 3)


def test_whisper() -> None:
    """The encoder reads the tensors of a feature extractor; tokens of the decoder are explained over its positions."""
    build = hf(
        "WhisperForConditionalGeneration", vocab_size=120, d_model=32, encoder_layers=2, decoder_layers=2, num_mel_bins=8,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=20,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    features = torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))
    wrapped = af.wrap(build())
    trace = wrapped.trace({"input_features": features, "decoder_input_ids": ids(6)})
    assert trace.parts == ("source",) * 20 + ("target",) * 6
    assert trace.tokens == (*map(str, range(20)), *map(str, ids(6)[0].tolist()))
    with torch.no_grad():
        out = build("eager")(input_features=features, decoder_input_ids=ids(6), output_attentions=True)
    for step, expected in zip(trace.encoder.steps, out.encoder_attentions, strict=True):
        assert torch.equal(step.weights, expected[0].mean(0))
    last = (out.cross_attentions[-1][0].mean(0), out.decoder_attentions[-1][0].mean(0))
    rows = torch.cat(last, 1).numpy() / 2
    np.testing.assert_allclose(trace.raw(query=list(range(6)), layer=-1).values[0], rows, atol=1e-6)
    for result in (trace.rollout(layer=-1), trace.flow(layer=-1)):
        assert result.values.shape == (1, 1, 26) and (result.values[0, 0, :20] > 0).all()
    sentence = (
        "the input is a str, and this model takes sounds: expected the tensors of its feature extractor, {'input_feat"
    )
    with pytest.raises(af.InputError, match=sentence):
        wrapped.trace("sound.wav")


def test_sinks_are_a_choice() -> None:
    a = next(a for a in ARCHITECTURES if a.name == "gpt-oss")
    wrapped = af.wrap(a.build())
    kept, normal, own = (wrapped.trace(text(), missing=m).graph(0) for m in ("keep", "normalize", "self"))
    assert kept.sum(-1).max() < 0.99
    np.testing.assert_allclose(normal, kept / kept.sum(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(own - kept, np.eye(11) * (1 - kept.sum(-1, keepdims=True)), atol=1e-6)
    assert wrapped.trace(text(), missing="self").provenance["missing"] == "self"


def test_heads_are_reduced_as_asked() -> None:
    wrapped = af.wrap(hf("BertModel", **POSITIONS)())
    heads = wrapped.trace(text(), keep_heads=True).weights
    for how in ("mean", "max", "min", [1, 3]):
        expected = af.attention_graph([heads[l].numpy() for l in range(3)], heads=how, residual=0)
        np.testing.assert_allclose(wrapped.trace(text(), heads=how).graph(0), expected, atol=1e-6)
    assert set(wrapped.trace(text(), keep_heads=[1, -1]).weights) == {1, 2}
    assert not wrapped.trace(text()).weights


def test_one_head() -> None:
    wrapped = af.wrap(hf("BertModel", **POSITIONS)())
    trace = wrapped.trace(text(), keep_heads=True)
    weights = np.stack([trace.weights[l].numpy() for l in range(3)])
    for method in ("rollout", "flow"):
        expected = af.single_head(weights, layer=1, head=2, method=method, queries=0)
        np.testing.assert_allclose(trace.single_head(1, 2, method, query=0).values[0], expected, atol=1e-6)
    with pytest.raises(af.InputError, match="the heads of layer 1 were not kept: trace again with keep_heads"):
        wrapped.trace(text()).single_head(1, 2)


def test_blocks_never_hold_a_layer_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 heads and 300 tokens, no tensor is as large as heads × n × n, or even two n × n."""
    from torch.utils._python_dispatch import TorchDispatchMode

    monkeypatch.setattr(runner_module, "WHOLE_BYTES", 0)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES", 100_000)
    monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES_AT_MOST", 100_000)
    n, largest = 300, 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.untyped_storage().nbytes() // 4)
            return out

    for cls, options in (("BertModel", {**POSITIONS, "max_position_embeddings": n}), ("LlamaForCausalLM", LLAMA)):
        wrapped = af.wrap(hf(cls, **options)())
        given = {"input_ids": ids(n)}
        wrapped.trace(given)
        largest = 0
        with Watch():
            wrapped.trace(given)
        assert n * n <= largest < 2 * n * n


@pytest.mark.parametrize("name", ["Llama", "BLOOM"])
def test_a_shared_model_serves_others_meanwhile(name: str) -> None:
    """Threads that trace and threads that run the model each get what they would get alone."""
    a = next(a for a in ARCHITECTURES if a.name == name)
    model, plain = built(a), built(a)
    asked = {} if name == "Llama" else {"output_attentions": True}
    wrapped = af.wrap(model)
    given = [{"input_ids": ids(n, n)} for n in range(3, 11)]
    wrapped.trace(given[0])
    alone = [wrapped.trace(x).graph() for x in given]
    with torch.no_grad():
        outputs = [plain(**x, **asked) for x in given]
    wrong: list[str] = []

    def tracing(start: int) -> None:
        for i in range(start, start + 12):
            if not np.array_equal(wrapped.trace(given[i % 8]).graph(), alone[i % 8]):
                wrong.append(f"trace {i}")

    def running(start: int) -> None:
        for i in range(start, start + 12):
            with torch.no_grad():
                out, expected = model(**given[i % 8], **asked), outputs[i % 8]
                if not torch.equal(out.logits, expected.logits):
                    wrong.append(f"run {i}")
                for x, y in zip(returned(out), returned(expected), strict=True):
                    if not torch.equal(x, y):
                        wrong.append(f"attentions of run {i}")

    threads = [threading.Thread(target=f, args=(s,)) for s in range(3) for f in (tracing, running)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def refuses(model: Any, sentence: str, given: Any = None) -> None:
    """Check the message, and that the model keeps its own attention."""
    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(model).trace(text() if given is None else given)
    assert getattr(config, "_attn_implementation", None) == before


def test_a_lying_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break each condition of the self-check on purpose."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr("attnflow.capture.routes.routes_for", lambda model: [INTERFACE])
    honest = modeling_llama.eager_attention_forward

    def other_output(*args: Any, **kwargs: Any) -> Any:
        out, weights = honest(*args, **kwargs)
        return out * 1.1, weights

    def not_stochastic(*args: Any, **kwargs: Any) -> Any:
        out, weights = honest(*args, **kwargs)
        return out, weights * 1.5

    def sees_the_future(*args: Any, **kwargs: Any) -> Any:
        out, weights = honest(*args, **kwargs)
        return out, torch.full_like(weights, 1 / weights.shape[-1])

    for lie, sentence in (
        (other_output, "the outputs of the hooked model differ from the model's own by"),
        (not_stochastic, "sum to 1.5 to 1.5 instead of 1"),
        (sees_the_future, "to a later position, but the outputs of this model do not depend on later positions"),
    ):
        monkeypatch.setattr(modeling_llama, "eager_attention_forward", lie)
        wrapped = af.wrap(hf("LlamaForCausalLM", **LLAMA)())
        with pytest.raises(af.InputError, match=sentence):
            wrapped.trace(text())


def test_padding_that_is_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attention function without a mask function would silently include padding."""
    import transformers.masking_utils as masks

    monkeypatch.setattr("attnflow.capture.routes.routes_for", lambda model: [INTERFACE])
    monkeypatch.setattr(masks, "eager_mask", lambda *args, **kwargs: None)
    wrapped = af.wrap(hf("BertModel", **POSITIONS)())
    with pytest.raises(af.InputError, match="to padding: the mask did not reach the attention"):
        wrapped.trace(text())


def test_models_that_are_refused() -> None:
    mamba = hf("MambaForCausalLM", vocab_size=120, hidden_size=32, num_hidden_layers=2, state_size=4)
    refuses(mamba(), "MambaForCausalLM cannot be explained by its attention.*no attention was seen")
    jamba = hf(
        "JambaForCausalLM", **{**LLAMA, "num_hidden_layers": 4}, attn_layer_period=4, attn_layer_offset=2,
        expert_layer_period=4, num_experts=2, use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4,
    )  # fmt: skip
    refuses(
        jamba(),
        r"1 attention call was seen, but the model has 4 layers: L1, L2, L4 \(JambaMambaMixer.*\) mix positions without "
        r"attention, or in code that cannot be observed\. blank_out\(\) and gradient\(\) need no attention$",
    )
    diff_llama = hf("DiffLlamaForCausalLM", **LLAMA)
    refuses(
        diff_llama(),
        "cannot be explained by its attention. attention interface, fused attention: 6 attention calls were seen, but the model "
        "has 3 layers: a layer attends more than once",
    )
    longformer = hf("LongformerModel", **{**TEXT, "max_position_embeddings": 80}, attention_window=4, pad_token_id=1)
    refuses(longformer("eager"), "LongformerModel cannot be explained by its attention.*expected one square matrix")
    refuses(torch.nn.Linear(3, 3), "no attention was seen", {"input": torch.zeros(1, 3)})


def test_keys_that_an_indexer_picks() -> None:
    """DeepSeek-V3.2 passes indices instead of a mask to attention functions that it does not know."""
    sizes = {**LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 2}
    latent = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8}
    build = hf(
        "DeepseekV32ForCausalLM", **sizes, **latent, first_k_dense_replace=2, n_group=1, topk_group=1, index_topk=4,
        index_head_dim=8, index_n_heads=2, initializer_range=0.5,
    )  # fmt: skip
    wrapped, tensors = af.wrap(build()), {"input_ids": ids(12)}
    trace = wrapped.trace(tensors, keep_heads=True)
    assert wrapped.model.config._attn_implementation == "attnflow_sdpa"
    with torch.no_grad():
        attentions = build("eager")(**tensors, output_attentions=True).attentions
        torch.testing.assert_close(wrapped.model(**tensors).logits, build()(**tensors).logits)
    for layer, weights in enumerate(attentions):
        assert int((weights > 0).sum(-1).max()) == 4
        torch.testing.assert_close(trace.weights[layer], weights[0])


def test_keys_that_stand_for_several_positions_are_refused() -> None:
    """DeepSeek-V4 adds one such key per 128 positions, so the short text of the self-check has none."""
    sizes = {k: v for k, v in LLAMA.items() if k != "intermediate_size"} | {"num_key_value_heads": 1}
    wrapped = af.wrap(hf(
        "DeepseekV4ForCausalLM", **sizes, head_dim=8, q_lora_rank=16, moe_intermediate_size=16, n_routed_experts=4,
        num_experts_per_tok=2, o_groups=2, o_lora_rank=8, index_n_heads=2, index_head_dim=8, sliding_window=4, hc_mult=2,
    )())  # fmt: skip
    assert wrapped.trace({"input_ids": ids(100)}).layer_count == 3
    with pytest.raises(
        af.InputError, match=r"attends to 302 keys from 300 positions.* too long to be explained by attention"
    ):
        wrapped.trace({"input_ids": ids(300)})
    with pytest.raises(af.InputError, match="attends to 302 keys from 300 positions"):
        wrapped.trace({"input_ids": ids(300)}, memory="linear")


def test_a_model_that_a_short_text_changes_is_refused() -> None:
    bigbird = hf(
        "BigBirdModel", **{**POSITIONS, "max_position_embeddings": 512}, attention_type="block_sparse", block_size=16
    )
    model = bigbird("eager")
    refuses(model, 'load it with attention_type="original_full"', {"input_ids": ids(256)})
    assert model.attention_type == "block_sparse"  # unchanged


def test_a_model_that_draws_is_refused() -> None:
    mae = hf("ViTMAEModel", **IMAGE, mask_ratio=0.0)
    refuses(mae(), "the model's own outputs differ from one run to the next because it draws random numbers", image())
    noise = torch.rand(1, 16, generator=torch.Generator().manual_seed(0))
    trace = af.wrap(mae()).trace({**image(), "noise": noise})
    assert (
        trace.patches is None and trace.tokens[1] == "1"
    )  # patches follow the order of the noise, so they have no rows and columns


def test_videos_and_patches_that_come_with_their_places() -> None:
    video = {"pixel_values": torch.randn(1, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
    assert len(af.wrap(hf("VideoMAEModel", **IMAGE, num_frames=4, tubelet_size=2)()).trace(video).tokens) == 32
    sizes = {k: v for k, v in IMAGE.items() if k != "image_size"}
    places = {"pixel_attention_mask": torch.ones(1, 16, dtype=torch.long), "spatial_shapes": torch.tensor([[2, 8]])}
    pixels = torch.randn(1, 16, 192, generator=torch.Generator().manual_seed(0))
    trace = af.wrap(hf("Siglip2VisionModel", **sizes, num_patches=16)()).trace({"pixel_values": pixels, **places})
    assert trace.patches == (2, 8) and trace.tokens[8] == "1,0"


def test_of_several_stacks_the_one_that_the_configuration_counts() -> None:
    sizes = {k: v for k, v in IMAGE.items() if k not in ("image_size", "intermediate_size")}
    predictor = {"pred_hidden_size": 32, "pred_num_attention_heads": 4, "pred_num_mask_tokens": 2}
    clip = {"pixel_values_videos": torch.randn(1, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))}

    def build(layers: int) -> Any:
        return hf(
            "VJEPA2Model", **sizes, **predictor, crop_size=32, frames_per_clip=4, mlp_ratio=2,
            pred_num_hidden_layers=layers,
        )()  # fmt: skip

    assert len(af.wrap(build(2)).trace(clip).tokens) == 32  # the predictor also attends to patches that it writes
    refuses(
        build(3),
        "attention happens in several places .encoder.*predictor.*, and nothing says which one to explain: wrap the part",
        clip,
    )


def test_other_mixing_beside_attention_is_refused() -> None:
    falcon_h1 = hf(
        "FalconH1ForCausalLM", **LLAMA, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1,
    )  # fmt: skip
    sentence = "positions mix in other ways too: when every position attends only to itself, outputs still depend on other positions"
    refuses(falcon_h1(), sentence)
    frontend = {"num_mel_bins": 16, "subsampling_conv_channels": 8}
    sizes = {k: v for k, v in TEXT.items() if k != "vocab_size"}
    frames = {"input_features": torch.randn(1, 80, 16, generator=torch.Generator().manual_seed(0))}
    refuses(hf("ParakeetEncoder", **sizes, **frontend)(), sentence, frames)

    class HalfWatched(torch.nn.Module):
        """Every second block computes its softmax by hand, where nothing can observe it."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = torch.nn.Sequential(*(Block(i % 2) for i in range(4)))

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return self.blocks(input)

    class Block(torch.nn.Module):
        def __init__(self, by_hand: int) -> None:
            super().__init__()
            self.by_hand, self.qkv = by_hand, torch.nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k, v = q[:, None], k[:, None], v[:, None]
            if self.by_hand:
                return x + (torch.softmax(q @ k.mT, -1) @ v)[:, 0]
            return x + torch.nn.functional.scaled_dot_product_attention(query=q, key=k, value=v)[:, 0]

    refuses(HalfWatched().eval(), sentence, torch.randn(1, 6, 8))


def test_mixing_before_the_layers_of_an_encoder_is_refused() -> None:
    """MobileBERT joins the embeddings of neighbours, also as the encoder of a pair."""

    def decoded(encoder: str, **options: Any) -> Any:
        decoder = hf("BertLMHeadModel", **POSITIONS, is_decoder=True, add_cross_attention=True)()
        return transformers.EncoderDecoderModel(encoder=hf(encoder, **POSITIONS, **options)(), decoder=decoder).eval()

    mobile = {"embedding_size": 32, "intra_bottleneck_size": 16}
    refuses(decoded("MobileBertModel", **mobile), "positions mix in other ways too", source_and_target())
    trace = af.wrap(decoded("RobertaModel")).trace(source_and_target())
    assert trace.parts == ("source",) * 11 + ("target",) * 7


def test_the_layers_of_each_side_are_counted_by_their_own_configuration() -> None:
    """Whisper's configuration calls the layers of its encoder the model's."""
    sides = {"encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"vocab_size": 120, "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, **sides}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    build = hf("WhisperForCausalLM", **sizes, **tokens)
    trace = af.wrap(build()).trace({"input_ids": ids()}, keep_heads=True)
    with torch.no_grad():
        expected = build("eager")(input_ids=ids(), output_attentions=True, use_cache=False).attentions
    assert len(trace.weights) == len(expected) == 3
    for layer, weights in enumerate(expected):
        torch.testing.assert_close(trace.weights[layer], weights[0])


def test_a_refusal_recommends_only_what_works() -> None:
    git = af.wrap(hf("GitForCausalLM", **POSITIONS, vision_config=IMAGE)())
    with pytest.raises(af.InputError) as refusal:
        git.trace({**text(), **image()})
    assert "expected one square matrix" in str(refusal.value) and "blank_out()" not in str(refusal.value)


@pytest.mark.parametrize("use", ["edges", "gradient"])
def test_a_model_that_marks_spans_is_no_model_without_a_head(use: str) -> None:
    model = af.wrap(hf("BertForQuestionAnswering", **POSITIONS)())
    assert model.trace(text()).rollout(layer=-1).values.any()
    sentence = (
        r"BertForQuestionAnswering.* marks where an answer starts and ends \(start_logits and end_logits\), which is no "
        r"single answer: expected a classifier or a language model; trace\(\) without edges shows its attention"
    )
    with pytest.raises(af.InputError, match=sentence):
        model.trace(text(), edges="answer") if use == "edges" else model.gradient(text())


def test_a_sound_that_is_too_short() -> None:
    a = next(a for a in ARCHITECTURES if a.name == "wav2vec2")
    sentence = "it is too short for the model's convolutions: give a longer sound, or a larger image"
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(built(a)).trace({"input_values": torch.zeros(1, 5)})


def test_windows_that_cannot_be_placed_are_refused() -> None:
    sam = hf(
        "SamVisionModel", hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=4,
        window_size=4, global_attn_indexes=[2], mlp_dim=48, output_channels=16,
    )  # fmt: skip
    refuses(sam(), "expected one square matrix over all positions per layer", image())


def test_plain_attention_that_cannot_be_placed_is_refused() -> None:
    class Heads(torch.nn.Module):
        """Heads are in the batch axis, where nothing distinguishes them from items."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            x = input.reshape(1, -1, 4, 2).transpose(1, 2).reshape(4, -1, 2)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    refuses(Heads(), r"the attention has shapes 4×6×6 \(\[items, queries, keys\]\)", torch.randn(1, 6, 8))
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2).eval()
    refuses(
        decoder,
        "states that were passed in from outside",
        {"tgt": torch.randn(1, 4, 8), "memory": torch.randn(1, 6, 8)},
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"pixel_values": torch.zeros(2, 3, 32, 32)},
            r"pixel_values has shape \(2, 3, 32, 32\): expected \[1, …\], one input at a time",
        ),
        (
            {"input_ids": torch.tensor([[-5, 3]])},
            "input_ids contains torch.int64 values from -5: expected non-negative integers",
        ),
        ({"input_ids": "the key"}, "input_ids is a str: expected a tensor"),
        (
            {**text(), "labels": ids()},
            "labels is for training, where the model computes a loss: leave labels out$",
        ),
    ],
)
def test_tensors_that_cannot_be_used(given: Any, sentence: str) -> None:
    refuses(hf("BertModel", **POSITIONS)(), sentence, given)


def test_labels_of_an_encoder_decoder_are_a_target() -> None:
    sentence = "labels is for training, .*: leave labels out, or give the target as decoder_input_ids"
    refuses(hf("BartForConditionalGeneration", **SEQ2SEQ)(), sentence, {**text(), "labels": ids(7)})


def test_states_of_tokens_instead_of_tokens() -> None:
    """What has no numbers has no masked token, and the next token follows the last state."""
    tokenizer = wordpiece()
    sizes = {**LLAMA, "vocab_size": len(tokenizer)}
    model = hf("LlamaForCausalLM", **sizes)()
    states = model.get_input_embeddings()(ids() % len(tokenizer)).detach()
    assert af.wrap(model).trace({"inputs_embeds": states}).prediction is None  # nothing names the token
    trace = af.wrap(model, tokenizer).trace({"inputs_embeds": states})
    with torch.no_grad():
        best = model(inputs_embeds=states).logits[0, -1].argmax()
    assert trace.prediction is not None and trace.prediction.kind == "next token"
    assert trace.prediction.top[0][0] == tokenizer.decode([int(best)])
    same = af.wrap(model, tokenizer).trace({"input_ids": ids() % len(tokenizer)})
    np.testing.assert_allclose(trace.graph(), same.graph(), atol=1e-6)
    masked = hf("BertForMaskedLM", **{**POSITIONS, "vocab_size": len(tokenizer)})()
    states = masked.get_input_embeddings()(ids() % len(tokenizer)).detach()
    assert af.wrap(masked, tokenizer).trace({"inputs_embeds": states}).prediction is None


def test_a_transcript_of_frames_is_no_next_token() -> None:
    tokenizer = byte_level()
    sizes = {**TEXT, "vocab_size": len(tokenizer), "conv_dim": [16], "conv_stride": [20], "conv_kernel": [25]}
    model = hf(
        "Wav2Vec2ForCTC", **sizes, num_feat_extract_layers=1, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2
    )
    assert af.wrap(model(), tokenizer).trace(wave()).prediction is None


@pytest.mark.parametrize("seed", range(8))
def test_eager_attention_is_reduced_by_object_and_not_by_address(seed: int) -> None:
    """If the model's own recorder keeps the full tensor, ours is freed and its address may be reused."""
    build = hf(
        "XGLMForCausalLM",
        vocab_size=120,
        d_model=32,
        num_layers=3,
        attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=64,
    )
    model = build("eager")
    given = {"input_ids": ids(11, seed)}
    for _ in range(4):
        trace = af.wrap(model).trace(given)
        with torch.no_grad():
            attentions = model(**given, output_attentions=True, use_cache=False).attentions
        for step, expected in zip(trace.steps, attentions, strict=True):
            torch.testing.assert_close(step.weights, expected[0].mean(0))


def test_restarting_positions_are_one_text_in_both_memories() -> None:
    wrapped = af.wrap(hf("LlamaForCausalLM", **LLAMA)())
    given = {
        "input_ids": ids(12),
        "attention_mask": torch.ones(1, 12).long(),
        "position_ids": torch.tensor([[*range(6)] * 2]),
    }
    expected = wrapped.trace(given).rollout(layer=-1).values
    np.testing.assert_allclose(wrapped.trace(given, memory="linear").rollout().values, expected, atol=1e-6)


def test_unwrap_gives_the_model_back() -> None:
    model = hf("LlamaForCausalLM", **LLAMA)()
    wrapped = af.wrap(model)
    wrapped.trace(text())
    assert model.config._attn_implementation == "attnflow_sdpa"
    assert wrapped.unwrap() is model and model.config._attn_implementation == "sdpa"


def test_first_use_by_many_threads() -> None:
    wrapped = af.wrap(built(next(a for a in ARCHITECTURES if a.name == "BLOOM")))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(wrapped.trace(text()).graph())) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6 and all(np.array_equal(x, found[0]) for x in found)


def test_a_file_without_the_usual_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    model = hf("LlamaForCausalLM", **LLAMA)()
    monkeypatch.setattr("attnflow.capture.routes.routes_for", lambda model: [INTERFACE])
    monkeypatch.setattr(modeling_llama.LlamaAttention, "__module__", "architectures")
    wrapped = af.wrap(model)
    with pytest.raises(af.InputError, match="the module of LlamaAttention defines no eager_attention_forward"):
        wrapped.trace(text())


def test_inputs_on_which_the_model_does_not_run() -> None:
    wrapped = af.wrap(hf("BertModel", **POSITIONS)())
    with pytest.raises(
        af.InputError, match=r"the model fails on this input \(IndexError: index out of range in self\)"
    ):
        wrapped.trace({"input_ids": torch.tensor([[5, 6, 999]])})


def test_padding_in_a_dict_is_refused() -> None:
    hidden = {"input_ids": ids(), "attention_mask": torch.tensor([[0] * 3 + [1] * 8])}
    with pytest.raises(af.InputError, match="attention_mask hides positions: give one text without padding"):
        af.wrap(hf("LlamaForCausalLM", **LLAMA)()).trace(hidden)


def test_training_mode_is_refused() -> None:
    model = hf("BertModel", **POSITIONS)()
    wrapped = af.wrap(model)
    model.train()
    with pytest.raises(
        af.InputError,
        match=r"the model is in training mode, where dropout changes what it computes: call model\.eval\(\) first",
    ):
        wrapped.trace(text())


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("rollout", {"residual": 2}, r"residual=2: expected a number between 0 and 1 \(the paper uses 0.5\)"),
        (
            "rollout",
            {"start": 2, "layer": 1},
            "start=2 is above layer 1: expected a layer at or below the explained ones",
        ),
        ("rollout", {"start": 9}, "start 9 does not exist: there are 3"),
        (
            "flow",
            {"receptive_field": "x"},
            "receptive_field='x': expected one of 'ratio', 'difference', 'layer', or None",
        ),
        ("raw", {"layer": 3}, "layer 3 does not exist: there are 3, so expected -3 to 2"),
    ],
)
def test_arguments_of_the_views(method: str, options: dict[str, Any], sentence: str) -> None:
    trace = af.wrap(hf("BertModel", **POSITIONS)()).trace(text())
    assert repr(trace) == "Trace(3 layers, 11 tokens, '')"
    with pytest.raises(af.InputError, match=sentence):
        getattr(trace, method)(query=0, **options)


def test_provenance() -> None:
    told = af.wrap(hf("BertModel", **POSITIONS)(), name="mine").trace(text()).rollout(residual=0.3).provenance
    assert told["model"] == "mine" and told["class"] == "BertModel" and told["dtype"] == "float32"
    assert told["captured"] == "attention interface" and told["heads"] == "mean" and told["residual"] == 0.3
    assert told["attnflow"] == af.__version__ and told["transformers"] == transformers.__version__


@pytest.mark.parametrize("name", ["BERT", "Llama", "Mixtral", "T5, encoder alone"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    a = next(a for a in ARCHITECTURES if a.name == name)
    wrapped = af.wrap(a.build().to(dtype))
    half = wrapped.trace(text())
    (checked,) = wrapped.checked.values()
    assert half.provenance["dtype"] == str(dtype).removeprefix("torch.")
    assert checked.blocks and checked.causal == (a.kind == "decoder")
    np.testing.assert_allclose(half.graph(), af.wrap(a.build()).trace(text()).graph(), atol=2e-2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"missing": "x"}, "missing='x': expected one of 'keep', 'normalize', 'self'"),
        ({"memory": "x"}, 'memory=\'x\': expected "graph" or "linear"'),
        ({"heads": [0, 4]}, "head 4 does not exist: there are 4, so expected -4 to 3"),
        ({"keep_heads": [7]}, "layer 7 does not exist: there are 3"),
        ({"heads": "median"}, 'heads=\'median\': expected "mean", "max", "min" or a list of heads'),
        ({"queries": [0]}, 'queries and layers need memory="linear"'),
        ({"memory": "linear", "heads": "max"}, "takes the mean over heads"),
        ({"memory": "linear", "queries": [99]}, "query 99 does not exist: there are 11"),
        ({"memory": "linear", "layers": [3]}, "layer 3 does not exist: there are 3"),
    ],
)
def test_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(hf("LlamaForCausalLM", **LLAMA)()).trace(text(), **options)


def test_an_encoder_decoder_whose_own_writing_fails_asks_for_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    a = next(a for a in ARCHITECTURES if a.kind == "encoder-decoder")
    model = a.build()

    def generate(*given: Any, **options: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(model, "generate", generate)
    with pytest.raises(af.InputError) as caught:
        af.wrap(model, wordpiece()).trace("the key")
    assert str(caught.value) == (
        "this encoder-decoder cannot generate a target by itself (IndexError: list index out of range): give target=, the text "
        "for its decoder"
    )


def test_positions_may_be_arrays_tensors_and_iterators() -> None:
    wrapped = af.wrap(hf("BertModel", **POSITIONS)())
    trace = wrapped.trace(text())
    expected = trace.rollout([0, 5]).values
    for several in (np.array([0, 5]), torch.tensor([0, 5]), iter([0, 5])):
        np.testing.assert_array_equal(trace.rollout(several).values, expected)
    np.testing.assert_array_equal(trace.rollout(torch.tensor(5)).values, expected[:, 1:])
    with pytest.raises(af.InputError, match="is not a position"):
        trace.rollout(np.array([0.5]))
    linear = wrapped.trace(text(), memory="linear", queries=iter([0, 5]), layers=iter([2, 0]))
    assert linear.queries == (0, 5) and linear.layers == (2, 0)
    assert wrapped.trace(text(), memory="linear", queries=5, layers=0).rollout().values.shape == (1, 1, 11)
