"""Gradients layer by layer: the same edges as from matrices, nothing n×n, and one layer in memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import transformers

import attnflow as af
from attnflow.capture.layer_gradients import Descent, run_layers
from attnflow.capture.linear import Operands
from attnflow.edges.weights import attention_gradient, signed_edges
from attnflow.errors import ModelError
from helpers.layer_models import IDS, MODELS, built, ids_of, model
from helpers.wide import Living, Wide


def likeliest(frozen: bool, place: int | None) -> Any:
    """Return a function for the logit of the likeliest answer or, if frozen, its log-odds."""

    def score(logits: torch.Tensor) -> torch.Tensor:
        row = logits[0] if logits.dim() == 2 else logits[0, -1 if place is None else place]
        chosen = int(row.argmax())
        others = row.masked_fill(torch.arange(len(row)) == chosen, -torch.inf).logsumexp(-1)
        return row[chosen] - (others if frozen else 0)

    return score


def descent(wrapped: Any, frozen: bool, inputs: Any = None) -> Descent:
    encoded = wrapped.encode(ids_of(wrapped) if inputs is None else inputs)
    layers = run_layers(wrapped, encoded, wrapped.verify(encoded), frozen=frozen)
    return layers.descent(likeliest(frozen, 6 if wrapped.tokenizer is not None else None))


def matrix(layer: Operands) -> torch.Tensor:
    """Return a layer's edges [query, key] as one matrix."""
    n = layer.scores.queries
    edges = layer.scores.edge_rows(layer.weighing, 0, n)[0]
    return torch.nn.functional.pad(edges, (0, layer.scores.keys - edges.shape[1]))


@pytest.mark.parametrize("blocks", [None, 1], ids=["whole", "blocks"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_matrices(name: str, blocks: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if blocks is not None:
        monkeypatch.setattr("attnflow.capture.scores.BLOCK_BYTES", blocks)  # one query at a time
    wrapped = model(name)
    with Wide():
        expected = attention_gradient(wrapped.trace(ids_of(wrapped), edges="attention-gradient"))
        layers = list(descent(wrapped, False).operands())
    assert [layer.number for layer in layers] == [2, 1, 0]
    for layer in layers:
        assert expected[layer.number].max() > 1e-5
        torch.testing.assert_close(matrix(layer), expected[layer.number], rtol=1e-8, atol=1e-12)
    assert all(p.grad is None for p in wrapped.model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_answer_edges_are_those_of_matrices(name: str) -> None:
    wrapped = model(name)
    with Wide():
        trace = wrapped.trace(ids_of(wrapped), edges="answer")
        expected, evidence = signed_edges(trace), trace.inside.evidence
        way = descent(wrapped, True)
        layers = list(way.operands())
    for layer in layers:
        torch.testing.assert_close(matrix(layer), expected[layer.number], rtol=1e-8, atol=1e-12)
        assert layer.holds is not None
        torch.testing.assert_close(layer.holds[0], evidence.holds[layer.number], rtol=1e-8, atol=1e-12)
    assert way.conserved is not None and way.conserved.gap <= 1e-12
    assert way.conserved.y == pytest.approx(evidence.y, rel=1e-12)
    assert way.conserved.constants == pytest.approx(evidence.constants, rel=1e-9)


@pytest.mark.parametrize("frozen", [False, True], ids=["gradient", "answer"])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "BertForSequenceClassification"])
def test_nothing_square_is_made_and_one_layer_is_alive(name: str, frozen: bool) -> None:
    """n×n is 589,824 numbers; the widest state of 768 positions has 768·48."""
    inputs = {"input_ids": torch.randint(5, 120, (1, 768), generator=torch.Generator().manual_seed(2))}
    peaks, states = {}, 768 * 32 * 8
    for depth in (2, 6):
        wrapped = af.wrap(built(name, num_hidden_layers=depth, max_position_embeddings=768))
        wrapped.verify(wrapped.encode(inputs))
        way = descent(wrapped, frozen, inputs)
        alive = Living()
        with alive:
            for layer in way.operands():
                del layer
        assert alive.largest <= 768 * 768 // 2  # one block of queries
        peaks[depth] = alive.peak
    # Four more layers must not add their states. The peak may differ by a state, depending on the layer it is in.
    assert peaks[6] <= peaks[2] + 2 * states


def test_a_whole_trace_is_larger_than_that() -> None:
    """This shows that the test above can fail."""
    wrapped = af.wrap(built("LlamaForCausalLM", max_position_embeddings=768))
    inputs = {"input_ids": torch.randint(5, 120, (1, 768), generator=torch.Generator().manual_seed(2))}
    wrapped.verify(wrapped.encode(inputs))
    with Living() as alive:
        wrapped.trace(inputs, edges="attention-gradient")
    assert alive.largest >= 768 * 768 * 4 and alive.peak > 3 * 768 * 768 * 4 * 8


class Sharing(torch.nn.Module):
    """A layer that keeps something between calls, so its output depends on how often it ran."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.calls, self.step = inner, 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.step
        return self.inner(x) * (1 + self.calls)


def test_a_layer_that_gives_something_else_again_is_refused() -> None:
    module = built("LlamaForCausalLM")
    wrapped = af.wrap(module)
    module.model.layers[1].mlp = Sharing(module.model.layers[1].mlp).eval()
    wrapped.verify(wrapped.encode({"input_ids": IDS}))
    module.model.layers[1].mlp.step = 1  # only now, because the self-check would refuse it
    sentence = (
        "layer 1 of LlamaForCausalLM gives different states when it runs again, by .* of what the next layer received"
    )
    with pytest.raises(ModelError, match=sentence):
        list(descent(wrapped, False).operands())


class Squared(torch.nn.Module):
    """Two factors that both depend on the states; neither is a gate."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (x + 1)


def test_a_model_that_is_not_linear_is_refused() -> None:
    module = built("LlamaForCausalLM")
    module.model.layers[1].mlp = Squared(module.model.layers[1].mlp)
    sentence = "LlamaForCausalLM is not linear when attention, norms and gates are held constant"
    with pytest.raises(ModelError, match=sentence):
        list(descent(af.wrap(module), True).operands())
    list(descent(af.wrap(module), False).operands())  # without freezing, any gradient is fine


def test_other_models_are_refused() -> None:
    torch.manual_seed(0)
    bloom = af.wrap(
        transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=120))
    )
    with pytest.raises(ModelError, match="need one stack of layers and the attention interface of transformers"):
        descent(bloom, False)


def test_a_descent_may_be_made_again_and_leaves_the_model_as_it_was() -> None:
    wrapped = model("GPT2LMHeadModel")
    before = wrapped.forward({"input_ids": IDS})["logits"]
    way = descent(wrapped, False)
    first, second = ([matrix(layer) for layer in way.operands()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(wrapped.forward({"input_ids": IDS})["logits"], before)

    with torch.no_grad():
        third = [matrix(layer) for layer in descent(wrapped, False).operands()]
        assert not torch.is_grad_enabled()
    assert all(torch.equal(a, b) for a, b in zip(first, third, strict=True))


@pytest.mark.parametrize("in_place", [False, True])
def test_states_that_change_between_layers_are_refused(in_place: bool) -> None:
    module = built("LlamaForCausalLM")
    wrapped = af.wrap(module)
    wrapped.verify(wrapped.encode({"input_ids": IDS}))

    def change(_: Any, args: Any) -> Any:
        return (args[0].mul_(2) if in_place else args[0] * 2, *args[1:])

    handle = module.model.layers[1].register_forward_pre_hook(change)
    way = descent(wrapped, False)
    handle.remove()
    with pytest.raises(ModelError, match="layer 0 of LlamaForCausalLM gives different states when it runs again"):
        list(way.operands())


class Passing(torch.nn.Module):
    """Add the first layer's output to this one's: a state that no layer receives as input."""

    def __init__(self, inner: Any, states: list[torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.states = inner, states

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 0.5 * self.states[-1]


@pytest.mark.parametrize("edges", ["attention-gradient", "answer"])
def test_what_passes_beside_the_states_is_refused(edges: str) -> None:
    module, states = built("LlamaForCausalLM").float(), [torch.zeros(())]
    module.model.layers[0].register_forward_hook(lambda m, args, out: states.append(out))
    module.model.layers[2].mlp = Passing(module.model.layers[2].mlp, states)
    with pytest.raises(ModelError, match=r"layer by layer differ from those of one pass by .* at layer 0"):
        af.wrap(module).trace({"input_ids": IDS}, memory="linear", edges=edges)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("frozen", [False, True], ids=["gradient", "answer"])
def test_a_layer_that_fails_leaves_the_model_and_gradients_as_they_were(frozen: bool, enabled: bool) -> None:
    module = built("LlamaForCausalLM")
    wrapped = af.wrap(module)
    before = wrapped.forward({"input_ids": IDS})["logits"]
    wrapped.verify(wrapped.encode({"input_ids": IDS}))

    def fail(*_: Any) -> None:
        raise RuntimeError("no more of this")

    handle = module.model.layers[1].mlp.register_forward_pre_hook(fail)
    with torch.set_grad_enabled(enabled):
        with pytest.raises(ModelError, match="no more of this"):
            descent(wrapped, frozen)
        assert torch.is_grad_enabled() == enabled
        handle.remove()
        list(descent(wrapped, frozen).operands())
        assert torch.is_grad_enabled() == enabled
    assert torch.equal(wrapped.forward({"input_ids": IDS})["logits"], before)
    assert not module.model.layers[0]._forward_hooks and not module.model.layers[0]._forward_pre_hooks


@pytest.mark.parametrize("edges", ["attention-gradient", "answer"])
def test_memory_goes_with_the_trace(edges: str) -> None:
    wrapped = model("LlamaForCausalLM")
    wrapped.trace(ids_of(wrapped), memory="linear", edges=edges)
    gc.collect()
    gc.disable()  # reference cycles would stay
    try:
        with Living() as alive:
            before = alive.bytes
            trace = wrapped.trace(ids_of(wrapped), memory="linear", edges=edges)
            trace.raw()
            assert alive.bytes > before
            del trace
            assert alive.bytes == before
    finally:
        gc.enable()
