"""Models whose layers are on several devices (`device_map`) give the same numbers as on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnflow as af
from attnflow.edges import batched
from attnflow.errors import ModelError
from helpers.architectures import POSITIONS, hf
from helpers.places import Places

accelerate = pytest.importorskip("accelerate", reason="device maps are accelerate's")

LONG = [(7 * i) % 60 for i in range(2, 90)]
SHORT = list(range(2, 14))
ANSWER = [3, 4, 5]

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama with biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "Mistral, in a window": ("MistralForCausalLM", {"head_dim": 8, "sliding_window": 16}),
}

RESULTS: dict[str, Callable[[Any], Any]] = {
    "raw": lambda m: m.trace(_ids(SHORT)).raw(),
    "rollout": lambda m: m.trace(_ids(SHORT)).rollout(),
    "flow": lambda m: m.trace(_ids(SHORT)).flow(query=-1, layer=-1),
    "rows": lambda m: m.trace(_ids(LONG), memory="linear", queries=[-1, {-1: 0.5, 3: 0.5}], layers=[-1, 0]).rollout(),
    "answer edges": lambda m: m.trace(_ids(SHORT), edges="answer").rollout(),
    "answer edges, rows": lambda m: m.trace(_ids(SHORT), edges="answer").answer_rows(signed=True),
    "answer edges, linear": lambda m: m.trace(_ids(LONG), memory="linear", edges="answer").answer_rows(signed=True),
    "attention-gradient": lambda m: m.trace(_ids(LONG), memory="linear", edges="attention-gradient").rollout(),
    "a given answer": lambda m: m.answer(LONG, answer=ANSWER).matrix(signed=True),
    "a written answer": lambda m: m.answer(LONG, max_new_tokens=4).matrix(signed=True),
    "fading": lambda m: m.answer(LONG, answer=ANSWER).sources(method="fading", signed=True),
    "verified": lambda m: m.answer(SHORT, answer=ANSWER).sources(verify=2),
    "gradient": lambda m: m.gradient(_ids(SHORT)),
    "blank-out": lambda m: m.blank_out(_ids(SHORT), by=1),
}
"""Results of a model; each has ``values``."""

MORE = {
    "heads": lambda m: np.stack([x.cpu().numpy() for x in m.trace(_ids(SHORT), keep_heads=True).weights.values()]),
    "batch": lambda m: [t.rollout(query=-1).values for t in m.trace([_ids(SHORT), _ids(LONG)])],
    "linear batch": lambda m: [t.rollout().values for t in m.trace([_ids(SHORT), _ids(LONG)], memory="linear")],
    "normalized": lambda m: m.trace(_ids(LONG), memory="linear", edges="mean", normalize="graph").rollout().values,
    "value-zeroing": lambda m: m.trace(_ids(SHORT), edges="value-zeroing").rollout().values,
    "answer edges, linear rollout": lambda m: m.trace(_ids(LONG), memory="linear", edges="answer").rollout().values,
    "attention-gradient, rollout": lambda m: m.trace(_ids(SHORT), edges="attention-gradient").rollout().values,
    "rollout of an answer": lambda m: m.answer(LONG, answer=[3, 4, 5]).sources(method="rollout").values,
}

OF_WEIGHTS = {
    "texts at once, answer": lambda m: _layers(batched.edges_of(text_batch(m), "answer").weights),
    "texts at once, gradient": lambda m: _layers(batched.edges_of(text_batch(m), "attention-gradient").weights),
    "texts at once, parts": lambda m: batched.split(text_batch(m)).answer_rows(True).cpu().numpy(),
    "value-norm": lambda m: m.trace(_ids(SHORT), edges="value-norm").rollout().values,
    "alti": lambda m: m.trace(_ids(SHORT), edges="alti").rollout().values,
    "head-norm": lambda m: m.trace(_ids(LONG), memory="linear", edges="head-norm").rollout().values,
    "projection": lambda m: m.trace(_ids(LONG), memory="linear", edges="projection").rollout().values,
}
"""Results that also read the weights of layers, which must be in memory."""


def text_batch(model: Any) -> batched.TextBatch:
    """Return two texts, padded to one length."""
    return batched.TextBatch.of(model, [model.encode(_ids(tokens)) for tokens in (SHORT, LONG)])


def built(name: str) -> Any:
    """Build one of the models."""
    kind, options = MODELS[name]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**{**SIZES, **options}))
    for path, parameter in model.named_parameters():
        if path.endswith("bias"):  # zeros would hide errors
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def _layers(weights: Sequence[torch.Tensor]) -> list[Any]:
    return [layer.cpu().numpy() for layer in weights]


def _ids(tokens: list[int]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([tokens])}


def _results(model: Any, weights: bool = True) -> dict[str, Any]:
    wrapped = af.wrap(model)
    values = {name: result(wrapped).values for name, result in RESULTS.items()}
    more = {**MORE, **OF_WEIGHTS} if weights else MORE
    return {**values, **{name: result(wrapped) for name, result in more.items()}}


def _same(got: dict[str, Any], expected: dict[str, Any], slack: float) -> None:
    for name, values in expected.items():
        for mine, whole in zip(*((x if isinstance(x, list) else [x]) for x in (got[name], values)), strict=True):
            np.testing.assert_allclose(mine, whole, rtol=0, atol=slack * np.abs(whole).max(), err_msg=name)


def _upper_half_elsewhere(model: Any, elsewhere: str, others: str) -> dict[str, str]:
    """Return a device map for the second half of the layers and everything else."""
    layers = [path for path, _ in model.named_modules() if path.rpartition(".")[2].isdigit() and path.count(".") == 2]
    upper = layers[len(layers) // 2 :]
    rest = {path.rpartition(".")[0] for path, _ in [*model.named_parameters(), *model.named_buffers()]}
    lower = {path: others for path in layers if path not in upper}
    outside = {path: others for path in rest if not any(path.startswith(f"{layer}.") for layer in layers)}
    return {**outside, **lower, **dict.fromkeys(upper, elsewhere)}


@pytest.mark.long
@pytest.mark.parametrize(("elsewhere", "others"), [("disk", "cpu"), ("cpu", "disk")])
def test_layers_on_disk_give_the_same_numbers(elsewhere: str, others: str, tmp_path: Path) -> None:
    model = built("Llama with biases")
    places = _upper_half_elsewhere(model, elsewhere, others)
    spread = accelerate.dispatch_model(model, places, offload_dir=tmp_path, skip_keys="past_key_values")
    assert {p.device.type for p in spread.parameters()} == {"cpu", "meta"}
    assert af.wrap(spread).device.type == "cpu"
    _same(_results(spread, False), _results(built("Llama with biases"), False), 0)


def test_an_encoder_on_disk_says_what_its_weights_are_needed_for(tmp_path: Path) -> None:
    build = hf("BertForSequenceClassification", **POSITIONS)
    model = build()
    places = {"bert": "disk", "classifier": "cpu"}
    spread = af.wrap(accelerate.dispatch_model(model, places, offload_dir=tmp_path))
    expected, trace = af.wrap(build()).trace(_ids(SHORT)), spread.trace(_ids(SHORT))
    np.testing.assert_array_equal(trace.rollout().values, expected.rollout().values)
    with pytest.raises(ModelError, match="the projection after the attention is not a plain matrix in memory"):
        spread.trace(_ids(SHORT), edges="value-norm")


@pytest.mark.long
@pytest.mark.parametrize("name", ["Llama with biases", "Mistral, in a window"])
def test_nothing_of_two_devices_is_combined(name: str) -> None:
    model, expected = built(name), _results(built(name))
    with Places() as places:
        places.place(model, ["model.layers.2", "model.layers.3"])
        got = _results(model)
    assert places.moves > 100  # tensors moved between the devices
    _same(got, expected, 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU, and two places are to compute")
@pytest.mark.parametrize("name", ["Llama with biases", "Mistral, in a window"])
def test_layers_that_run_in_two_places_give_the_same_numbers(name: str) -> None:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = built(name)
    for path, place in _upper_half_elsewhere(model, "cuda:0", "cpu").items():
        hook = AlignDevicesHook(execution_device=place, place_submodules=True, skip_keys="past_key_values")
        add_hook_to_module(model.get_submodule(path), hook)
    assert {p.device.type for p in model.parameters()} == {"cpu", "cuda"}
    _same(_results(model), _results(built(name)), 1e-4)
