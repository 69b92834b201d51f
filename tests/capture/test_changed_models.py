"""A model is checked again if it changes, and on longer texts if its attention function is a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from helpers.architectures import IMAGE, LLAMA, hf, ids, text
from helpers.deployed import expected, llama, traced

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

NEAR = 100
MIXES = "positions mix in other ways too"


def windowed(width: int) -> Callable[..., Any]:
    """Return an attention function that looks back over this many positions."""

    def attention(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **more: Any
    ) -> Any:
        from transformers.models.llama.modeling_llama import eager_attention_forward

        back = torch.arange(key.shape[2])[-query.shape[2] :, None] - torch.arange(key.shape[2])
        lowest = torch.zeros(back.shape).masked_fill((back < 0) | (back >= width), -1e9)
        return eager_attention_forward(module, query, key, value, lowest[None, None], **more)

    return attention


@pytest.fixture(autouse=True, scope="module")
def functions() -> Iterator[None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for name, width in (("near", NEAR), ("nearer", 3), ("far", 10_000)):
        transformers.AttentionInterface.register(name, windowed(width))
    yield
    for name in [name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if name.endswith(("near", "nearer", "far"))]:
        del transformers.AttentionInterface._global_mapping[name]


def attending(name: str, **options: Any) -> Any:
    model = llama(max_position_embeddings=256, **options)
    model.set_attn_implementation(name)
    return model


def long_text(n: int = 150) -> dict[str, torch.Tensor]:
    return {"input_ids": ids(n), "attention_mask": torch.ones(1, n, dtype=torch.long)}


OTHERWISE = (
    r"with the attention function 'near' the outputs differ from those with eager attention by [\d.]+ on this input, "
    r'although they were equal in the self-check on a shorter one, .* attn_implementation="eager", or give shorter texts'
)

USES: dict[str, Callable[[Any], Any]] = {
    "trace": lambda m: m.trace(long_text()),
    "list": lambda m: m.trace([text(), long_text()]),
    "linear": lambda m: m.trace(long_text(), memory="linear"),
    "linear answer": lambda m: m.trace(long_text(), memory="linear", edges="answer"),
    "answer edges": lambda m: m.trace(long_text(), edges="answer"),
    "gradient edges": lambda m: m.trace(long_text(), edges="attention-gradient"),
    "norms": lambda m: m.trace(long_text(), edges="value-norm"),
    "answer": lambda m: m.answer(ids(150)[0].tolist(), answer=[3, 4]).sources(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_function_that_differs_only_on_long_texts_is_refused(use: Callable[[Any], Any]) -> None:
    model = af.wrap(attending("near"))
    short = long_text(NEAR - 10)
    np.testing.assert_allclose(model.trace(short).graph(), traced_graph("eager", short), atol=1e-5)
    with pytest.raises(af.InputError, match=OTHERWISE):
        use(model)


def traced_graph(name: str, given: dict[str, torch.Tensor]) -> np.ndarray:
    return af.wrap(attending(name)).trace(given).graph()


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_function_that_equals_eager_attention_is_explained(use: Callable[[Any], Any]) -> None:
    use(af.wrap(attending("far")))


def test_the_comparison_runs_once_for_each_greater_length() -> None:
    model, passes = attending("far"), []
    model.register_forward_hook(lambda *_: passes.append(None))
    wrapped, counts = af.wrap(model), []
    for n in (150, 150, 120, 151, 151):
        before = len(passes)
        wrapped.trace(long_text(n))
        counts.append(len(passes) - before)
    assert counts[1:] == [1, 1, 3, 1]


def test_a_part_with_its_own_function_is_refused() -> None:
    model = hf(
        "LlavaForConditionalGeneration", text_config=LLAMA, vision_config={**IMAGE, "model_type": "clip_vision_model"}
    )()
    model.set_attn_implementation({"text_config": "nearer"})
    sentence = r"model.language_model has its own attention function 'nearer', but the model as a whole has 'sdpa'"
    with pytest.raises(af.InputError, match=sentence):
        af.wrap(model).trace(text())


def test_an_implementation_that_is_set_later_is_checked_again() -> None:
    model = llama()
    wrapped = af.wrap(model)
    wrapped.trace(text())
    model.set_attn_implementation("nearer")
    with pytest.raises(af.InputError, match="the outputs of the hooked model differ from the model's own by"):
        wrapped.trace(text())
    model.set_attn_implementation("sdpa")
    np.testing.assert_allclose(traced(wrapped)["weights"], expected(llama("eager"))["weights"], atol=1e-5)


def test_a_function_that_is_registered_again_is_checked_again() -> None:
    transformers.AttentionInterface.register("far", windowed(10_000))
    wrapped = af.wrap(attending("far"))
    wrapped.trace(text())
    transformers.AttentionInterface.register("far", windowed(3))
    try:
        with pytest.raises(af.InputError, match="the outputs of the hooked model differ from the model's own by"):
            wrapped.trace(text())
    finally:
        transformers.AttentionInterface.register("far", windowed(10_000))


def rolled(module: Any, args: Any, out: Any) -> Any:
    return (out[0].roll(1, 1), *out[1:]) if isinstance(out, tuple) else out.roll(1, 1)


class Rolling(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).roll(1, 1)


def with_hook(model: Any) -> None:
    model.model.layers[1].register_forward_hook(rolled)


def with_early_hook(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_pre_hook(lambda module, args: (args[0].roll(1, 1),))


def with_module(model: Any) -> None:
    model.model.layers[1].mlp = Rolling(model.model.layers[1].mlp).eval()


def with_forward(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x).roll(1, 1)


def with_class(model: Any) -> None:
    mlp = model.model.layers[1].mlp

    class Shifted(type(mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).roll(1, 1)

    mlp.__class__ = Shifted


@pytest.mark.parametrize("change", [with_hook, with_early_hook, with_module, with_forward, with_class])
def test_mixing_that_is_added_later_is_refused(change: Callable[[Any], None]) -> None:
    model = llama()
    wrapped = af.wrap(model)
    wrapped.trace(text())
    wrapped.trace(text(), memory="linear")
    change(model)
    for options in ({}, {"memory": "linear"}, {"edges": "answer"}):
        with pytest.raises(af.InputError, match=MIXES):
            wrapped.trace(text(), **options)


def test_a_hook_that_only_observes_costs_one_more_self_check() -> None:
    model, passes = llama(), []
    wrapped = af.wrap(model)
    wrapped.trace(text())
    handle = model.register_forward_hook(lambda *_: passes.append(None))
    wrapped.trace(text())
    wrapped.trace(text())
    assert len(passes) == 12
    handle.remove()
    np.testing.assert_allclose(traced(wrapped)["weights"], expected(llama("eager"))["weights"], atol=1e-5)


def test_hooks_that_a_user_accepts_cost_nothing() -> None:
    model = llama()
    passes: list[None] = []
    wrapped = af.wrap(model)
    wrapped.accept_hooks()  # before the first self-check there is nothing to keep
    wrapped.trace(text())
    handle = model.register_forward_hook(lambda *_: passes.append(None))
    wrapped.accept_hooks()
    wrapped.trace(text())
    assert len(passes) == 1
    handle.remove()
    wrapped.accept_hooks()
    with_hook(model)  # another hook is not accepted by that
    with pytest.raises(af.InputError, match=MIXES):
        wrapped.trace(text())
