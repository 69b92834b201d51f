"""Answer edges: what attention adds to the answer's log-odds with constant weights, norm scales and gates."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnflow as af
from attnflow.capture.answer_pass import log_odds, run_answer
from attnflow.capture.frozen import run_frozen
from attnflow.capture.frozen_attention import FrozenAttention
from attnflow.capture.generate import Written
from attnflow.edges.weights import signed_edges
from attnflow.errors import ModelError

IDS = torch.randint(2, 120, (1, 14), generator=torch.Generator().manual_seed(1))
ANSWER = (17, 42, 5)
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 120,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 120, "n_positions": 64, "pad_token_id": 0}
EXPERTS = {"num_local_experts": 4}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("GPT2Config", GPT2),
    "LlamaForCausalLM": ("LlamaConfig", GROUPED),
    "MistralForCausalLM": ("MistralConfig", {**GROUPED, "sliding_window": 5}),
    "Qwen3ForCausalLM": ("Qwen3Config", {**GROUPED, "head_dim": 8}),
    "Gemma2ForCausalLM": ("Gemma2Config", {**GROUPED, "head_dim": 8}),
    "Phi3ForCausalLM": ("Phi3Config", GROUPED),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "OPTForCausalLM": (
        "OPTConfig",
        {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 120,
         "max_position_embeddings": 64, "word_embed_proj_dim": 32, "pad_token_id": 0},
    ),
    "CohereForCausalLM": ("CohereConfig", GROUPED),
    "NemotronForCausalLM": ("NemotronConfig", GROUPED),
}  # fmt: skip
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "MixtralForCausalLM": ("MixtralConfig", {**GROUPED, **EXPERTS}),
    "GptOssForCausalLM": ("GptOssConfig", {**GROUPED, **EXPERTS, "head_dim": 8, "sliding_window": 5}),
}
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForSequenceClassification": ("BertConfig", SIZES),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 120, "max_position_embeddings": 64},
    ),
    "AlbertForSequenceClassification": ("AlbertConfig", {**SIZES, "embedding_size": 16}),
    "ModernBertForSequenceClassification": ("ModernBertConfig", SIZES),
    "GPT2ForSequenceClassification": ("GPT2Config", GPT2),
}
ALL = {**DECODERS, **MIXTURES, **CLASSIFIERS}


@cache
def model(name: str, double: bool = False) -> Any:
    """Return a model with weights large enough for every nonlinearity to matter, and nonzero biases."""
    config, sizes = ALL[name]
    torch.manual_seed(0)
    labels = {"num_labels": 3} if name in CLASSIFIERS else {}
    module = getattr(transformers, name)(getattr(transformers, config)(**sizes, **labels))
    for parameter_name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0 if "weight" in parameter_name else 0.0, 0.3)
        elif parameter_name.endswith("bias"):  # biases of experts are [expert, width]
            torch.nn.init.normal_(parameter, 0.0, 0.3)
        else:
            parameter.data.mul_(6)
    return af.wrap(module.double() if double else module)


def frozen(name: str, double: bool = False, ids: torch.Tensor = IDS) -> Any:
    wrapped = model(name, double)
    return run_frozen(wrapped, {"input_ids": ids}, wrapped.verify(wrapped.encode({"input_ids": ids})))


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-odds of the likeliest token or class at the last position."""
    row = logits.reshape(-1, logits.shape[-1])[-1]
    chosen = int(row.argmax())
    return row[chosen] - row.masked_fill(torch.arange(len(row)) == chosen, -torch.inf).logsumexp(-1)


@pytest.mark.parametrize("name", ALL)
def test_the_parts_add_up_to_the_log_odds(name: str) -> None:
    evidence = frozen(name).evidence(likeliest)
    total = float(evidence.own.sum()) + evidence.constants
    assert abs(total - evidence.y) <= 1e-4 * max(abs(evidence.y), 1e-3)
    assert evidence.gap <= 1e-5
    assert float(evidence.own.abs().sum()) > 1e-3  # the sum is not trivial


@pytest.mark.parametrize("name", [*DECODERS, *CLASSIFIERS])
def test_the_parts_add_up_in_double_precision(name: str) -> None:
    evidence = frozen(name, double=True).evidence(likeliest)
    assert abs(float(evidence.own.sum()) + evidence.constants - evidence.y) <= 1e-9 * abs(evidence.y)
    assert evidence.gap <= 1e-12


@pytest.mark.parametrize("name", DECODERS)
def test_what_a_state_holds_is_what_it_passes_on(name: str) -> None:
    """The totals of two layers differ only by the layer's constants, and not at all without biases."""
    evidence = frozen(name, double=True).evidence(likeliest, every=True)
    assert len(evidence.layers) == len(evidence.holds) == 3
    assert torch.equal(evidence.holds[0], evidence.own)
    torch.testing.assert_close(sum(evidence.layers), evidence.read, rtol=0, atol=1e-12)
    for edges in evidence.layers:
        assert not bool(torch.triu(edges, 1).any())
    if name == "LlamaForCausalLM":
        totals = [float(holds.sum()) for holds in evidence.holds]
        assert np.ptp(totals) <= 1e-9 * max(map(abs, totals))


def slow_edges(name: str) -> np.ndarray:
    """Compute E of a Llama in double precision by definition: Σ_heads A·(v W_O)·g, with g by central differences.

    The frozen network is written out: attention weights, norm scales and silu(gate) come from a plain run.
    """
    module = getattr(transformers, name)(
        getattr(transformers, DECODERS[name][0])(**DECODERS[name][1], attn_implementation="eager")
    )
    module.load_state_dict({k: v.float() for k, v in model(name, True).model.state_dict().items()})
    module = module.double().eval()
    out = module(IDS, output_attentions=True, output_hidden_states=True)
    attentions, states = [a[0].detach() for a in out.attentions], [x[0].detach() for x in out.hidden_states]
    layers, config = module.model.layers, module.config
    heads, groups, size = 4, 2, 8
    eps = config.rms_norm_eps

    def scale(x: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    def mid(layer: Any, x: torch.Tensor, norm: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        value = layer.self_attn.v_proj(x * norm * layer.input_layernorm.weight)
        value = value.reshape(len(x), heads // groups, size).repeat_interleave(groups, 1)
        mixed = torch.einsum("hqk,khs->qhs", weights, value).reshape(len(x), -1)
        return x + layer.self_attn.o_proj(mixed)

    with torch.no_grad():
        constants = []
        x = states[0]
        for layer, weights in zip(layers, attentions, strict=True):
            first = scale(x)
            middle = mid(layer, x, first, weights)
            second = scale(middle)
            gate = torch.nn.functional.silu(
                layer.mlp.gate_proj(middle * second * layer.post_attention_layernorm.weight)
            )
            constants.append((first, weights, second, gate, x))
            x = middle + layer.mlp.down_proj(
                gate * layer.mlp.up_proj(middle * second * layer.post_attention_layernorm.weight)
            )
        last = scale(x)
        logits = module.lm_head(x * last * module.model.norm.weight)[-1]
        chosen = int(logits.argmax())
        others = logits.clone()
        others[chosen] = -torch.inf
        slope = -torch.softmax(others, -1)
        slope[chosen] = 1

    def after(number: int, middle: torch.Tensor) -> torch.Tensor:
        """Run the frozen network from the state after a layer's attention."""
        x_above = middle
        for l in range(number, len(layers)):
            first, weights, second, gate, _ = constants[l]
            if l > number:
                middle = mid(layers[l], x_above, first, weights)
            inner = middle * second * layers[l].post_attention_layernorm.weight
            x_above = middle + layers[l].mlp.down_proj(gate * layers[l].mlp.up_proj(inner))
        return (module.lm_head(x_above * last * module.model.norm.weight)[-1] * slope).sum()

    edges = []
    for number, layer in enumerate(layers):
        first, weights, _, _, x = constants[number]
        middle = mid(layer, x, first, weights).detach().requires_grad_()
        (g,) = torch.autograd.grad(after(number, middle), middle)
        value = layer.self_attn.v_proj(x * first * layer.input_layernorm.weight).detach()
        value = value.reshape(len(x), heads // groups, size).repeat_interleave(groups, 1)
        projection = layer.self_attn.o_proj.weight.detach().T.reshape(heads, size, -1)
        edges.append(torch.einsum("hqk,khs,hsw,qw->qk", weights, value, projection, g).numpy())
    return np.stack(edges)


def test_edges_are_their_definition() -> None:
    expected = slow_edges("LlamaForCausalLM")
    trace = model("LlamaForCausalLM", True).trace({"input_ids": IDS}, edges="answer")
    edges = signed_edges(trace).numpy()
    assert np.abs(expected).max() > 1e-2 and (expected < 0).any()
    np.testing.assert_allclose(edges, expected, rtol=0, atol=1e-6 * np.abs(expected).max())  # softmax is in single


@pytest.mark.parametrize("name", DECODERS)
def test_a_pass_over_the_answer_gives_what_a_pass_over_everything_gives(name: str) -> None:
    wrapped = model(name, True)
    prompt = IDS[0].tolist()
    tokens = torch.tensor([[*prompt, *ANSWER[:-1]]])
    n = len(prompt)
    short = run_answer(wrapped, prompt, Written(ANSWER)).frozen
    assert short.prefix == n - 1
    whole = frozen(name, True, tokens)
    for local in (False, True):
        alone = short.evidence(log_odds(slice(0, 3), ANSWER, [1, 1, 1]), local=local)
        both = whole.evidence(log_odds(slice(n - 1, n + 2), ANSWER, [1, 1, 1]), local=local)
        assert alone.y == pytest.approx(both.y, abs=1e-5)
        size = float(both.read.abs().max())
        torch.testing.assert_close(alone.read, both.read[n - 1 :], rtol=0, atol=3e-5 * size)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_rows_are_computed_again_where_they_are_too_large_to_keep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = frozen(name).evidence(likeliest, every=True)
    monkeypatch.setattr("attnflow.capture.frozen_attention.KEEP_BYTES", 0)
    again = frozen(name).evidence(likeliest, every=True)
    torch.testing.assert_close(again.read, kept.read, rtol=1e-5, atol=1e-6)


def test_the_row_of_a_sum_is_the_sum_of_rows() -> None:
    answer = frozen("LlamaForCausalLM", True)
    rows = slice(IDS.shape[1] - 3, IDS.shape[1])
    single = [answer.evidence(log_odds(rows, ANSWER, [float(i == k) for i in range(3)])) for k in range(3)]
    summed = answer.evidence(log_odds(rows, ANSWER, [1.0, 1.0, 1.0]))
    torch.testing.assert_close(sum(one.read for one in single), summed.read, rtol=0, atol=1e-10)
    assert sum(one.y for one in single) == pytest.approx(summed.y)


class Squared(torch.nn.Module):
    """Two factors that both depend on the states; neither is a gate."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        return out * (x + 1)


def test_a_model_that_is_not_linear_is_refused() -> None:
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**GROUPED, "initializer_range": 0.5}))
    module.model.layers[1].mlp = Squared(module.model.layers[1].mlp)
    with pytest.raises(
        ModelError, match="LlamaForCausalLM is not linear when attention, norms and gates are held constant"
    ):
        af.wrap(module).trace({"input_ids": IDS}, edges="answer").answer_rows()


def test_a_model_that_is_seen_another_way_is_refused() -> None:
    torch.manual_seed(0)
    module = transformers.BloomForCausalLM(
        transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=120)
    )
    with pytest.raises(ModelError, match="answer edges need the attention interface of transformers"):
        af.wrap(module).trace({"input_ids": IDS}, edges="answer").answer_rows()


def test_the_model_stays_as_it_was() -> None:
    wrapped = model("LlamaForCausalLM")
    before = wrapped.forward({"input_ids": IDS})["logits"]
    frozen("LlamaForCausalLM").evidence(likeliest)
    assert torch.equal(wrapped.forward({"input_ids": IDS})["logits"], before)
    assert all(p.grad is None for p in wrapped.model.parameters())


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_answer_rows_of_a_trace(name: str) -> None:
    trace = model(name).trace({"input_ids": IDS}, edges="answer")
    place = trace.default_query
    edges = signed_edges(trace).numpy()
    signed = trace.answer_rows(signed=True)
    # an encoder without a class token reads every position
    expected = edges.sum((0, 1)) if place is None else edges[:, place].sum(0)
    if name == "LlamaForCausalLM":  # the last position keeps its own part from the bottom
        expected[place] = float(trace.inside.evidence.own[place])
        total = signed.values.sum() + trace.inside.evidence.constants
        assert total == pytest.approx(trace.inside.evidence.y, rel=1e-4)
    np.testing.assert_allclose(signed.row(), expected, rtol=1e-6, atol=1e-7)
    shares = trace.answer_rows()
    clipped = np.clip(expected, 0, None)
    if name == "LlamaForCausalLM":
        clipped[0] = 0
    np.testing.assert_allclose(shares.row(), clipped / clipped.sum(), rtol=1e-6, atol=1e-7)
    assert shares.method == "answer_rows" and shares.provenance["edges"] == "answer"


def test_answer_inputs_find_what_another_position_passed_on() -> None:
    """The parts of all inputs add up although the last layer reads none of them."""
    module = model("LlamaForCausalLM").model
    attention = module.model.layers[-1].self_attn.o_proj
    before = attention.weight.detach().clone()
    try:
        with torch.no_grad():
            attention.weight.zero_()
        trace = af.wrap(module).trace({"input_ids": IDS}, edges="answer")
        place, own = trace.default_query, trace.answer_inputs(signed=True).row()
        assert np.abs(np.delete(own, place)).max() > 1e-6
        total = own.sum() + trace.answer_inputs().provenance["evidence"]["constants"]
        assert total == pytest.approx(trace.inside.evidence.y, rel=1e-4)
        shares = trace.answer_inputs().row()
        assert shares[0] == 0 and shares.sum() == pytest.approx(1) and shares.min() >= 0
    finally:
        with torch.no_grad():
            attention.weight.copy_(before)


def test_other_edges_are_not_in_a_trace_of_answer_edges() -> None:
    trace = model("LlamaForCausalLM").trace({"input_ids": IDS}, edges="answer")
    with pytest.raises(af.InputError, match="this trace kept only answer edges"):
        trace.with_edges("alti")
    whole = model("LlamaForCausalLM").trace({"input_ids": IDS}, edges="attention-gradient")
    both = whole.with_edges("answer")
    np.testing.assert_allclose(both.answer_rows().values, trace.answer_rows().values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [*CLASSIFIERS, "LlamaForCausalLM", "MistralForCausalLM"])
def test_answer_edges_cost_one_pass_forward_and_one_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen pass chooses the answer, gives the attention weights and carries the gradient."""
    wrapped = model(name)
    passes = {"forward": 0, "back": 0}
    backward = FrozenAttention.backward

    def count_back(ctx: Any, gradient: torch.Tensor) -> Any:
        passes["back"] += 1
        return backward(ctx, gradient)

    def count_forward(module: Any, args: Any, out: Any) -> None:
        passes["forward"] += 1

    monkeypatch.setattr(FrozenAttention, "backward", staticmethod(count_back))
    handle = wrapped.model.register_forward_hook(count_forward)
    wrapped.verify(wrapped.encode({"input_ids": IDS}))
    passes["forward"] = 0
    try:
        trace = wrapped.trace({"input_ids": IDS}, edges="answer")
        inputs, rows = trace.answer_inputs(signed=True), trace.answer_rows(signed=True)
        trace.rollout(0)
    finally:
        handle.remove()
    assert passes == {"forward": 1, "back": trace.layer_count}
    # the same, with a separate pass for each
    whole = wrapped.trace({"input_ids": IDS}, edges="attention-gradient").with_edges("answer")
    np.testing.assert_allclose(inputs.values, whole.answer_inputs(signed=True).values, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(rows.values, whole.answer_rows(signed=True).values, rtol=1e-4, atol=1e-7)
    plain = wrapped.trace({"input_ids": IDS})
    assert (trace.prediction is None) == (plain.prediction is None)
    if trace.prediction is not None and plain.prediction is not None:
        assert [label for label, _ in trace.prediction.top] == [label for label, _ in plain.prediction.top]
        chances = [[chance for _, chance in p.top] for p in (trace.prediction, plain.prediction)]
        np.testing.assert_allclose(*chances, rtol=1e-4)


def test_answer_edges_of_a_text_too_long_to_keep_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = model("BertForSequenceClassification")
    whole = wrapped.trace({"input_ids": IDS}, edges="answer")
    monkeypatch.setattr("attnflow.capture.frozen_attention.KEEP_BYTES", 0)
    blocks = wrapped.trace({"input_ids": IDS}, edges="answer")
    assert blocks.provenance["captured"] == "attention interface, in blocks of queries"
    assert whole.provenance["captured"] == "attention interface"
    np.testing.assert_allclose(blocks.answer_inputs().values, whole.answer_inputs().values, rtol=1e-5, atol=1e-7)


def test_answer_edges_are_for_one_stack_of_layers() -> None:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=120, max_position_embeddings=64,
    )  # fmt: skip
    wrapped = af.wrap(transformers.BartForConditionalGeneration(config))
    with pytest.raises(af.InputError, match="edges='answer' need a model with one stack of layers: leave edges out"):
        wrapped.trace({"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}, edges="answer")


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification", "LlamaForCausalLM"])
def test_the_sources_of_an_answer_by_its_kind(name: str) -> None:
    """Models that write use answer rows; others use answer inputs, which keep their signs."""
    trace = model(name).trace({"input_ids": IDS}, edges="answer")
    sources, parts = trace.sources(), trace.answer_inputs(signed=True).row()
    if name == "LlamaForCausalLM":
        assert sources.method == "answer_rows" and np.array_equal(sources.values, trace.answer_rows().values)
        return
    if name == "GPT2ForSequenceClassification":
        parts = np.concatenate([[0.0], parts[1:]])
    np.testing.assert_allclose(sources.row(), parts / parts.clip(0).sum(), rtol=1e-6, atol=1e-9)
    assert sources.method == "answer_inputs" and sources.row().min() < 0
    np.testing.assert_allclose(sources.row().clip(0), trace.answer_inputs().row(), rtol=1e-6, atol=1e-9)
    assert sources.provenance["values"] == "signed shares" and sources.provenance["signed"] == "shares"
    assert trace.answer_inputs(signed=True).provenance["values"] == "log-odds"
    assert trace.answer_inputs().provenance["values"] == "shares"


@pytest.mark.parametrize("memory", ["graph", "linear"])
def test_signs_that_there_are_not(memory: Any) -> None:
    trace = model("BertForSequenceClassification").trace({"input_ids": IDS}, edges="answer", memory=memory)
    with pytest.raises(af.InputError, match="signed='both': expected False for shares of what supports the answer"):
        trace.answer_inputs(signed="both")
