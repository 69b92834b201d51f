"""Layers that are kept do not run again: the same numbers, fewer calls, and memory freed with the trace."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture.layer_gradients import LayerPass, run_layers
from attnflow.capture.room import Room, room_on
from attnflow.errors import ModelError
from helpers.layer_models import IDS, built, ids_of, model
from helpers.wide import Living, Wide

pytestmark = pytest.mark.long

EDGES = ["attention-gradient", "answer"]
ALL, SOME, NONE = 99, 2, 0


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets how many layers are kept."""
    return lambda layers: monkeypatch.setattr("attnflow.capture.room.KEPT_LAYERS", layers)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Disable Python's garbage collector, so that reference cycles stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def passed(wrapped: Any, frozen: bool, **options: Any) -> LayerPass:
    encoded = wrapped.encode(ids_of(wrapped))
    return run_layers(wrapped, encoded, wrapped.verify(encoded), frozen=frozen, **options)


def last(logits: torch.Tensor) -> torch.Tensor:
    return logits.flatten(0, -2)[-1, 1]


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM", "BertForMaskedLM"])
def test_all_some_and_none_give_the_same(name: str, edges: str, keep: Callable[[int], None]) -> None:
    wrapped = model(name)
    wrapped.trace(ids_of(wrapped), memory="linear", edges=edges)  # runs the self-check
    results = {}
    for layers in (NONE, SOME, ALL):
        keep(layers)
        with Wide():
            trace = wrapped.trace(ids_of(wrapped), memory="linear", edges=edges, queries=[3, 13], layers=[-1, 0])
            results[layers] = [trace.rollout(), trace.rollout(), trace.raw()]
            results[layers] += [trace.answer_rows(signed=True)] if edges == "answer" else []
    for layers in (SOME, ALL):
        for result, expected in zip(results[layers], results[NONE], strict=True):
            assert np.abs(expected.values).max() > 1e-5
            np.testing.assert_allclose(result.values, expected.values, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(results[layers][0].values, results[layers][1].values)
    if edges == "answer":
        evidence = [results[layers][-1].provenance["evidence"] for layers in (NONE, SOME, ALL)]
        assert evidence[1] == pytest.approx(evidence[0], rel=1e-9, abs=1e-12)
        assert evidence[2] == pytest.approx(evidence[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("frozen", [False, True], ids=["gradient", "answer"])
@pytest.mark.parametrize(("layers", "runs"), [(NONE, [4, 4, 4]), (SOME, [1, 1, 4]), (ALL, [1, 1, 1])])
def test_kept_layers_run_once(layers: int, runs: list[int], frozen: bool, keep: Callable[[int], None]) -> None:
    module = built("LlamaForCausalLM")
    wrapped, counts = af.wrap(module), [0, 0, 0]

    def counting(number: int) -> Any:
        def hook(*_: Any) -> None:
            counts[number] += 1

        return hook

    for number, layer in enumerate(module.model.layers):
        layer.register_forward_hook(counting(number))
    wrapped.verify(wrapped.encode({"input_ids": IDS}))
    counts[:] = [0, 0, 0]
    keep(layers)
    way = passed(wrapped, frozen).descent(last)
    for _ in range(3):
        assert [layer.number for layer in way.operands()] == [2, 1, 0]
    assert counts == runs
    assert [call.graph is not None for call in way.calls] == [count == 1 for count in runs]
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForSequenceClassification"])
def test_memory_goes_with_the_trace(name: str, edges: str, keep: Callable[[int], None]) -> None:
    wrapped = model(name)
    wrapped.trace(ids_of(wrapped), memory="linear", edges=edges)
    gc.collect()
    keep(ALL)
    with Living() as alive:
        before = alive.bytes
        trace = wrapped.trace(ids_of(wrapped), memory="linear", edges=edges)
        trace.rollout()
        graphs = [call.graph for call in trace.explained.descent.calls]
        leaves = [weakref.ref(graph.entered) for graph in graphs] + [weakref.ref(graph.left) for graph in graphs]
        assert all(leaf() is not None for leaf in leaves) and alive.bytes > before
        del trace, graphs
    assert all(leaf() is None for leaf in leaves)
    assert alive.bytes == before


def test_a_descent_leaves_no_more_than_was_kept(keep: Callable[[int], None]) -> None:
    """No gradients or operands of a descent stay with the graphs."""
    keep(ALL)
    way = passed(model("LlamaForCausalLM"), False).descent(last)
    with Living() as alive:
        for layer in way.operands():
            del layer
    assert alive.peak > 0 and alive.bytes == 0


class Carried:
    """A lane that moves nothing."""

    def send(self, layer: Any) -> Any:
        return layer

    def bring(self, layer: Any) -> Any:
        return lambda: layer

    def now(self) -> Any:
        return torch.cuda.Event


def test_offloading_keeps_nothing(keep: Callable[[int], None]) -> None:
    keep(ALL)
    layers = passed(model("LlamaForCausalLM"), True, lane=Carried())
    assert [call.graph for call in layers.calls] == [None] * 3


class Counting(torch.nn.Module):
    """A layer whose output also depends on how often it ran."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.calls, self.step = inner, 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.step
        return self.inner(x) * (1 + self.calls)


def test_a_layer_that_would_give_something_else_again_is_as_it_was(keep: Callable[[int], None]) -> None:
    module = built("LlamaForCausalLM")
    wrapped = af.wrap(module)
    module.model.layers[1].mlp = Counting(module.model.layers[1].mlp).eval()
    wrapped.verify(wrapped.encode({"input_ids": IDS}))
    module.model.layers[1].mlp.step = 1  # only now, because the self-check would refuse it
    keep(SOME)
    list(passed(wrapped, False).descent(last).operands())
    keep(1)
    with pytest.raises(ModelError, match="layer 1 of LlamaForCausalLM gives different states when it runs again"):
        list(passed(wrapped, False).descent(last).operands())


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("layers", [NONE, ALL])
def test_states_that_change_between_layers_are_refused(
    layers: int, in_place: bool, keep: Callable[[int], None]
) -> None:
    module = built("LlamaForCausalLM")
    wrapped = af.wrap(module)
    wrapped.verify(wrapped.encode({"input_ids": IDS}))

    def change(_: Any, args: Any) -> Any:
        return (args[0].mul_(2) if in_place else args[0] * 2, *args[1:])

    handle = module.model.layers[1].register_forward_pre_hook(change)
    keep(layers)
    way = passed(wrapped, False).descent(last)
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


@pytest.mark.parametrize("layers", [SOME, ALL])
def test_what_passes_beside_the_states_is_refused(layers: int, keep: Callable[[int], None]) -> None:
    module, states = built("LlamaForCausalLM").float(), [torch.zeros(())]
    module.model.layers[0].register_forward_hook(lambda m, args, out: states.append(out))
    module.model.layers[2].mlp = Passing(module.model.layers[2].mlp, states)
    wrapped = af.wrap(module)
    keep(layers)
    for edges in EDGES:
        with pytest.raises(ModelError, match=r"layer by layer differ from those of one pass by .* at layer 0"):
            wrapped.trace({"input_ids": IDS}, memory="linear", edges=edges)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("frozen", [False, True], ids=["gradient", "answer"])
def test_a_layer_that_fails_leaves_the_model_and_gradients_as_they_were(
    frozen: bool, enabled: bool, keep: Callable[[int], None]
) -> None:
    module = built("LlamaForCausalLM")
    wrapped = af.wrap(module)
    before = wrapped.forward({"input_ids": IDS})["logits"]
    wrapped.verify(wrapped.encode({"input_ids": IDS}))

    def fail(*_: Any) -> None:
        raise RuntimeError("no more of this")

    handle = module.model.layers[1].mlp.register_forward_pre_hook(fail)
    keep(ALL)
    with torch.set_grad_enabled(enabled):
        with pytest.raises(ModelError, match="no more of this"):
            passed(wrapped, frozen)
        assert torch.is_grad_enabled() == enabled
        handle.remove()
        list(passed(wrapped, frozen).descent(last).operands())
        assert torch.is_grad_enabled() == enabled
    assert torch.equal(wrapped.forward({"input_ids": IDS})["logits"], before)
    assert not module.model.layers[0]._forward_hooks and not module.model.layers[0]._forward_pre_hooks


def run_in(room: Room, sizes: list[int], memory: list[int]) -> list[bool]:
    """Return which layers of these sizes stay."""
    stays = []
    for size in sizes:
        stays.append(room.enter())
        if stays[-1]:
            memory[0] += size
            stays[-1] = room.leave()
            memory[0] -= 0 if stays[-1] else size
    return stays


@pytest.mark.parametrize(
    ("limit", "sizes", "expected"),
    [
        (100, [30, 30, 30, 30], [True, True, True, False]),
        (90, [30, 30, 30, 30], [True, True, True, False]),
        (89, [30, 30, 30, 30], [True, True, False, False]),
        (29, [30, 10], [False, False]),  # the first layer shows how much a layer takes
        (50, [20, 40, 5], [True, False, False]),  # a layer larger than those before it is dropped
        (0, [0, 0], [False, False]),
        (-5, [1], [False]),
    ],
)
def test_keeping_stops_before_the_room_is_full(limit: int, sizes: list[int], expected: list[bool]) -> None:
    memory = [1000]
    room = Room(limit, lambda: memory[0])
    assert run_in(room, sizes, memory) == expected
    assert room.spent == memory[0] - 1000 <= max(limit, 0)


@pytest.mark.parametrize(
    ("free", "reserved", "limit"),
    [(700, 200, 200), (600, 100, 100), (500, 100, 0), (540, 100, 40), (100, 100, -400)],
)
def test_a_gpu_keeps_a_share_and_leaves_half(
    free: int, reserved: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 bytes in all; memory that PyTorch reserved but did not allocate is also free."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 1000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: reserved)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 100)
    room = room_on(torch.device("cuda:0"))
    assert room.limit == limit
    assert room.allocated() == 100


def test_other_devices_keep_nothing() -> None:
    assert not room_on(torch.device("cpu")).enter()
