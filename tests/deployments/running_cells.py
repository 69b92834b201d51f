"""Ways to run a model: compiled, adapted, wrapped, split, in other modes and next to other code."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnflow as af
from deployments.cells import Cell, Numbers, Outcome, compared
from helpers.architectures import LLAMA, POSITIONS, hf, ids, text
from helpers.deployed import bert, everything, expected, expected_everything, llama, traced

GROUP = "Running"

Change = Callable[[Any], Any]


@cache
def plain() -> Numbers:
    """Return the results of the unchanged model."""
    return expected_everything(llama("eager"))


def changed(change: Change, folder: Path) -> Outcome:
    """Compare all results after a change that must not affect any number."""
    return compared(lambda: everything(af.wrap(change(llama()))), plain)


def weights_only(change: Change, folder: Path) -> Outcome:
    return compared(lambda: traced(af.wrap(change(llama()))), lambda: expected(llama("eager")))


def still_compiled(folder: Path) -> Outcome:
    """The user's compiled model gives the same after it was explained, and stays compiled."""
    runs = []

    def backend(graph: Any, inputs: Any) -> Any:
        runs.append(graph)
        return graph.forward

    model = torch.compile(llama(num_hidden_layers=1), backend=backend)
    inputs = {**text(), "use_cache": False}
    with torch.no_grad():
        before = model(**inputs).logits

    def numbers() -> Numbers:
        wrapped = af.wrap(model)
        compiled = len(runs)
        values = traced(wrapped)
        assert len(runs) == compiled > 0, "explaining compiled the model again"
        with torch.no_grad():
            while_wrapped = model(**inputs).logits
            assert wrapped.unwrap() is model
            after = model(**inputs).logits
        return {**values, "while wrapped": while_wrapped.numpy(), "after": after.numpy()}

    logits = before.numpy()
    return compared(
        numbers,
        lambda: {**expected(llama("eager", num_hidden_layers=1)), "while wrapped": logits, "after": logits},
    )


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def compiled_layers(model: Any) -> Any:
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer, backend="eager")
    return model


def compiled_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def adapted(model: Any, seed: int = 1, name: str = "default", **options: Any) -> Any:
    """Add a LoRA adapter that changes a lot; by default its second matrices would be zero."""
    import peft

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=targets, **options)
    if isinstance(model, peft.PeftModel):
        model.add_adapter(name, config)
    else:
        model = peft.get_peft_model(model, config, adapter_name=name)
    _fill(model, f"lora_B.{name}", seed)
    return model


def _fill(model: Any, part: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if part in path:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)


def _merged(model: Any) -> Any:
    """Return the oracle: a plain model with the adapter's weights added."""
    return copy.deepcopy(model).merge_and_unload()


def lora(options: dict[str, Any], change: Change, folder: Path) -> Outcome:
    """change: applied to the adapted model; it must not affect any number."""
    merged = _merged(adapted(llama("eager"), **options))
    return compared(
        lambda: everything(af.wrap(change(adapted(llama(), **options)))), lambda: expected_everything(merged)
    )


def merged_in_place(model: Any) -> Any:
    model.merge_adapter()
    return model


def of_gpt2(folder: Path) -> Outcome:
    """`Conv1D` stores its matrices transposed."""
    import peft

    def model(implementation: str | None = None) -> Any:
        gpt2 = hf(
            "GPT2LMHeadModel", vocab_size=120, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.2
        )
        config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
        adapted = peft.get_peft_model(gpt2(implementation), config)
        _fill(adapted, "lora_B", 1)
        return adapted

    merged = _merged(model("eager"))
    return compared(lambda: everything(af.wrap(model())), lambda: expected_everything(merged))


def switched(folder: Path) -> Outcome:
    """With two adapters, the one that is active during the trace counts, even if it was another one at first."""

    def both(implementation: str | None = None) -> Any:
        return adapted(adapted(llama(implementation), 1, "first"), 2, "second")

    def numbers() -> Numbers:
        model = both()
        wrapped = af.wrap(model)
        values = {}
        for name in ("first", "second"):
            model.set_adapter(name)
            values |= {f"{name}: {what}": x for what, x in everything(wrapped).items()}
            assert wrapped.trace(text()).provenance["adapters"] == [name]
        return values

    def truth() -> Numbers:
        values = {}
        for name in ("first", "second"):
            model = both("eager")
            model.set_adapter(name)
            values |= {f"{name}: {what}": x for what, x in expected_everything(_merged(model)).items()}
        return values

    return compared(numbers, truth)


def disabled(folder: Path) -> Outcome:
    def numbers() -> Numbers:
        model = adapted(llama())
        wrapped = af.wrap(model)
        wrapped.trace(text())
        with model.disable_adapter():
            return everything(wrapped)

    return compared(numbers, plain)


def by_transformers(folder: Path) -> Outcome:
    """`model.add_adapter` puts PEFT layers into a model without a wrapper."""
    import peft

    def model(implementation: str | None = None) -> Any:
        one = llama(implementation)
        one.add_adapter(peft.LoraConfig(r=4, target_modules=["v_proj", "o_proj"]))
        _fill(one, "lora_B", 1)
        return one.eval()

    def merged() -> Any:
        weights = model("eager")
        target = llama("eager")
        with torch.no_grad():
            for layer, from_layer in zip(target.model.layers, weights.model.layers, strict=True):
                for name in ("v_proj", "o_proj"):
                    adapter = getattr(from_layer.self_attn, name)
                    getattr(layer.self_attn, name).weight += adapter.get_delta_weight("default")
        return target

    return compared(lambda: everything(af.wrap(model())), lambda: expected_everything(merged()))


def prefix_tuned(model: Any) -> Any:
    import peft

    return peft.get_peft_model(model, peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))


def activated(model: Any) -> Any:
    """Activated LoRA changes only what follows certain tokens, which it looks for outside the layers."""
    model = adapted(model, alora_invocation_tokens=ids()[0, 5:7].tolist(), task_type="CAUSAL_LM")
    return model


def checkpointing(training: bool, model: Any) -> Any:
    model.gradient_checkpointing_enable()
    return model.train(training)


def part_in_training(folder: Path) -> Outcome:
    """The switch comes after the self-check, which would have noticed it."""

    def numbers() -> Numbers:
        model = llama(attention_dropout=0.5)
        wrapped = af.wrap(model)
        wrapped.trace(text())
        model.model.layers[1].train()
        return traced(wrapped)

    return compared(numbers, lambda: expected(llama("eager")))


def implementation(name: str, folder: Path) -> Outcome:
    """The user sets it beforehand; results are right, and `unwrap` restores it."""

    def numbers() -> Numbers:
        model = llama()
        # ignore warnings about old names and from PyTorch; compiling flex_attention would take long
        with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
            warnings.simplefilter("ignore")
            model.set_attn_implementation(name)
            wrapped = af.wrap(model)
            values = traced(wrapped)
        assert wrapped.unwrap().config._attn_implementation == name.removeprefix("paged|")
        return values

    return compared(numbers, lambda: expected(llama("eager")))


def paged_eager(folder: Path) -> Outcome:
    def numbers() -> Numbers:
        model = llama()
        model.config._attn_implementation = "paged|eager"
        return traced(af.wrap(model))

    return compared(numbers, lambda: expected(llama("eager")))


def returning(option: str, model: Any) -> Any:
    model.set_attn_implementation("eager")
    setattr(model.config, option, True)
    return model


@contextmanager
def _default(dtype: torch.dtype | None, device: str | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        if device is not None:
            torch.set_default_device(device)
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


AROUND: dict[str, Callable[[], Any]] = {
    "torch.no_grad": torch.no_grad,
    "torch.inference_mode": torch.inference_mode,
    "torch.use_deterministic_algorithms": _deterministic,
    "a default dtype of float64": partial(_default, torch.float64, None),
}


def around(name: str, folder: Path) -> Outcome:
    """Only the model is built outside of the context."""
    model, inputs = llama(), text()

    def numbers() -> Numbers:
        with AROUND[name]():
            return everything(af.wrap(model), inputs)

    return compared(numbers, plain)


def autocast(folder: Path) -> Outcome:
    def numbers() -> Numbers:
        with torch.autocast("cpu", torch.bfloat16):
            return traced(af.wrap(llama()))

    return compared(numbers, lambda: expected(llama("eager")))


def meta_by_default(folder: Path) -> Outcome:
    model, inputs = af.wrap(llama()), text()

    def numbers() -> Numbers:
        with _default(None, "meta"):
            return traced(model, inputs)

    return compared(numbers, lambda: expected(llama("eager")))


def without_weights(folder: Path) -> Outcome:
    def numbers() -> Numbers:
        with torch.device("meta"):
            model = llama()
        return traced(af.wrap(model))

    return compared(numbers, lambda: expected(llama("eager")))


def broken(part: str, folder: Path) -> Outcome:
    def numbers() -> Numbers:
        model = llama()
        with torch.no_grad():
            model.get_submodule(part).weight[3, 3] = torch.nan
        return everything(af.wrap(model))

    return compared(numbers, plain)


def hooked(change: Callable[[torch.Tensor], torch.Tensor], implementation: str | None = None) -> Any:
    """Return a decoder whose second layer has a user's hook that changes its output."""
    model = llama(implementation)
    model.model.layers[1].register_forward_hook(lambda module, args, out: change(out))
    return model


def user_hook(change: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> Outcome:
    return compared(lambda: traced(af.wrap(hooked(change))), lambda: expected(hooked(change, "eager")))


def hook_on_projection(folder: Path) -> Outcome:
    """Compare with a halved matrix: the weight alone does not say what the layer computes."""

    def numbers() -> Numbers:
        model = llama()
        model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, args, out: out / 2)
        return everything(af.wrap(model))

    def truth() -> Numbers:
        model = llama("eager")
        with torch.no_grad():
            model.model.layers[1].self_attn.o_proj.weight /= 2
        return expected_everything(model)

    return compared(numbers, truth)


def jit(folder: Path) -> Outcome:
    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = bert()

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.model(input_ids).last_hidden_state
            return out

    with warnings.catch_warnings():  # torch.jit is deprecated
        warnings.simplefilter("ignore")
        model = torch.jit.trace(Logits().eval(), ids(), check_trace=False)
    return compared(lambda: traced(af.wrap(model)), lambda: expected(bert("eager")))


def exported(folder: Path) -> Outcome:
    model = torch.export.export(llama(), (), {"input_ids": ids(), "use_cache": False})
    return compared(lambda: traced(af.wrap(model)), lambda: expected(llama("eager")))


def exported_module(folder: Path) -> Outcome:
    model = torch.export.export(llama(), (), {"input_ids": ids(), "use_cache": False}).module()
    return compared(
        lambda: traced(af.wrap(model), {"input_ids": ids()}), lambda: expected(llama("eager"), {"input_ids": ids()})
    )


def tied(folder: Path) -> Outcome:
    options = {"tie_word_embeddings": True}
    return compared(
        lambda: everything(af.wrap(llama(**options))), lambda: expected_everything(llama("eager", **options))
    )


def shared_layers(folder: Path) -> Outcome:
    """ALBERT runs one layer three times; also with edges from its projection."""
    build = hf("AlbertModel", **POSITIONS, embedding_size=16, initializer_range=0.2)

    def numbers(model: af.Model) -> Numbers:
        return {
            "head-norm": model.trace(text(), edges="head-norm").rollout().values,
        }

    return compared(
        lambda: {**traced(af.wrap(build())), **numbers(af.wrap(build()))},
        lambda: {**expected(build("eager")), **numbers(af.wrap(build("eager")))},
    )


def universal(folder: Path) -> Outcome:
    """Compare one layer object in three places, as in the Universal Transformer, with three copies."""

    def shared() -> Any:
        model = llama()
        model.model.layers = torch.nn.ModuleList([model.model.layers[0]] * 3)
        return model

    def copies() -> Any:
        model = llama("eager")
        first = model.model.layers[0]
        model.model.layers = torch.nn.ModuleList([copy.deepcopy(first) for _ in range(3)])
        for number, layer in enumerate(model.model.layers):
            layer.self_attn.layer_idx = number
        return model

    return compared(lambda: traced(af.wrap(shared())), lambda: expected(copies()))


def layer_drop(folder: Path) -> Outcome:
    build = hf(
        "OPTForCausalLM", vocab_size=120, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, ffn_dim=48,
        max_position_embeddings=64, word_embed_proj_dim=32, layerdrop=0.5, dropout=0.3, init_std=0.2,
    )  # fmt: skip
    return compared(lambda: traced(af.wrap(build().train())), lambda: expected(build("eager")))


def pruned_heads(folder: Path) -> Outcome:
    """Compare a layer with pruned heads with one in which these heads are zero."""

    def pruned(implementation: str | None = None) -> Any:
        model = llama(implementation, num_key_value_heads=4)
        attention = model.model.layers[1].self_attn
        kept = slice(8, 32)  # without the first of four heads
        with torch.no_grad():
            for name in ("q_proj", "k_proj", "v_proj"):
                _cut(getattr(attention, name), rows=kept)
            _cut(attention.o_proj, columns=kept)
        return model

    def numbers(model: af.Model) -> Numbers:
        trace = model.trace(text())
        return {"rollout": trace.rollout(layer=-1).values[0, 0], "raw": trace.raw(layer=1).values[0, 0]}

    def truth() -> Numbers:
        with torch.no_grad():
            weights = [x[0].double() for x in pruned("eager")(**text(), output_attentions=True).attentions]
        rows = np.eye(11)
        for layer in weights:
            rows = (layer.mean(0).numpy() + np.eye(11)) / 2 @ rows
        return {"rollout": rows[-1], "raw": weights[1].mean(0).numpy()[-1]}

    return compared(lambda: numbers(af.wrap(pruned())), truth)


def _cut(linear: torch.nn.Linear, rows: slice = slice(None), columns: slice = slice(None)) -> None:
    linear.weight = torch.nn.Parameter(linear.weight[rows, columns].clone())
    linear.out_features, linear.in_features = linear.weight.shape


def head_mask(folder: Path) -> Outcome:
    """transformers 5 has no head masks: the model accepts the argument and ignores it."""
    mask = torch.tensor([[1.0, 0, 1, 1]] * 3)
    return compared(lambda: traced(af.wrap(bert()), {**text(), "head_mask": mask}), lambda: expected(bert("eager")))


def in_threads(folder: Path) -> Outcome:
    """Four threads trace six texts of four lengths, including the first use."""
    texts = [{"input_ids": ids(n, seed)} for seed, n in enumerate((5, 11, 24, 40, 11, 5))]

    def numbers() -> Numbers:
        model = af.wrap(llama())
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda inputs: traced(model, inputs), texts * 3))
        return {f"{i}: {what}": x for i, result in enumerate(results) for what, x in result.items()}

    def truth() -> Numbers:
        eager = llama("eager")
        results = [expected(eager, inputs) for inputs in texts] * 3
        return {f"{i}: {what}": x for i, result in enumerate(results) for what, x in result.items()}

    return compared(numbers, truth)


def beside_users(folder: Path) -> Outcome:
    """The user's own passes continue in another thread during traces."""
    inputs = text()

    def numbers() -> Numbers:
        model = llama()
        wrapped = af.wrap(model)

        def own(_: int) -> torch.Tensor:
            with torch.no_grad():
                return model(**inputs).logits

        with ThreadPoolExecutor(2) as pool:
            passes = pool.map(own, range(20))
            values = [traced(wrapped) for _ in range(5)][-1]
        return {**values, "own passes": torch.stack(list(passes)).numpy()}

    def truth() -> Numbers:
        with torch.no_grad():
            logits = llama()(**inputs).logits
        return {**expected(llama("eager")), "own passes": torch.stack([logits] * 20).numpy()}

    return compared(numbers, truth)


def _windowed(implementation: str | None = None) -> Any:
    return hf("MistralForCausalLM", **{**LLAMA, "initializer_range": 0.2, "sliding_window": 6, "head_dim": 8})(
        implementation
    )


def _answered(model: af.Model, **options: Any) -> Numbers:
    prompt = ids(20)[0].tolist()
    answer = model.answer(prompt, **options)
    return {"matrix": answer.matrix(signed=True).values, "log-probabilities": np.asarray(answer.log_probabilities)}


def cache_setting(name: str, folder: Path) -> Outcome:
    """The model writes the answer with this setting of `generation_config`."""

    def numbers() -> Numbers:
        model = _windowed()
        model.generation_config.cache_implementation = name
        wrapped = af.wrap(model)
        values = {**traced(wrapped), **_answered(wrapped, max_new_tokens=4)}
        assert model.generation_config.cache_implementation == name
        return values

    return compared(
        numbers, lambda: {**expected(_windowed("eager")), **_answered(af.wrap(_windowed("eager")), max_new_tokens=4)}
    )


def _quantised_cache(config: Any) -> Any:
    """Return a cache that keeps keys and values in eight bits, like those of quanto and HQQ."""
    from transformers.cache_utils import Cache, QuantizedLayer

    class EightBits(QuantizedLayer):  # type: ignore[misc]
        def _quantize(self, tensor: torch.Tensor, axis: int) -> Any:
            scale = tensor.abs().amax() / 127
            return (tensor / scale).round().to(torch.int8), scale

        def _dequantize(self, parts: Any) -> torch.Tensor:
            return parts[0].float() * parts[1]

    layers = [EightBits(nbits=8, residual_length=4) for _ in range(config.num_hidden_layers)]
    return Cache(layers=layers)


def _static_cache(config: Any) -> Any:
    from transformers.cache_utils import StaticCache

    return StaticCache(config=config, max_cache_len=40)


def _sliding_cache(config: Any) -> Any:
    from transformers.cache_utils import DynamicCache

    return DynamicCache(config=config)


def cache_given(make: Callable[[Any], Any], folder: Path) -> Outcome:
    """The user gives the cache and the tokens of an earlier generation."""
    prompt = ids(20)

    def numbers() -> Numbers:
        model = _windowed()
        kept = make(model.config)
        written = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), past_key_values=kept, max_new_tokens=4, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        return _answered(af.wrap(model), answer=written[0, 20:].tolist(), cache=kept)

    def truth() -> Numbers:
        model = _windowed("eager")
        written = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False, pad_token_id=0,
            eos_token_id=None, use_cache=False,
        )  # fmt: skip
        return _answered(af.wrap(model), answer=written[0, 20:].tolist())

    return compared(numbers, truth)


@contextmanager
def _process_group() -> Iterator[None]:
    """Be one process that could have others beside it."""
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def copied(folder: Path) -> Outcome:
    with _process_group():
        return changed(torch.nn.parallel.DistributedDataParallel, folder)


def split(way: Change, folder: Path) -> Outcome:
    """Explain a model with its weights split in this way."""
    with _process_group():
        return weights_only(way, folder)


def fully_sharded(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def gathered_by_layer(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings(action="ignore"):  # one process has nothing to shard
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def tensor_parallel(model: Any) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    return parallelize_module(model, mesh, {"model.layers.0.self_attn.q_proj": ColwiseParallel()})


def shared_by_hand(model: Any) -> Any:
    model.config.num_attention_heads *= 2
    return model


def data_parallel(model: Any) -> Any:
    return torch.nn.DataParallel(model)


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def unchanged(model: Any) -> Any:
    return model


MERGED = "compared with the merged weights"

CELLS = [
    Cell(GROUP, "`torch.compile(model)`", partial(changed, compiled)),
    Cell(GROUP, "`model.compile()`", partial(changed, compiled_in_place)),
    Cell(GROUP, "compiled layers", partial(changed, compiled_layers)),
    Cell(GROUP, "a compiled `forward`", partial(changed, compiled_forward)),
    Cell(GROUP, "a compiled model, before, while and after", still_compiled, note="it stays compiled for its user"),
    Cell(GROUP, "LoRA, not merged", partial(lora, {}, unchanged), needs=["peft"], note=MERGED),
    Cell(GROUP, "LoRA, merged in place", partial(lora, {}, merged_in_place), needs=["peft"], note=MERGED),
    Cell(GROUP, "LoRA, compiled", partial(lora, {}, compiled), needs=["peft"], note=MERGED),
    Cell(GROUP, "LoRA of GPT-2's `Conv1D`", of_gpt2, needs=["peft"], note=MERGED),
    Cell(GROUP, "DoRA", partial(lora, {"use_dora": True}, unchanged), needs=["peft"], note=MERGED),
    Cell(GROUP, "rank-stabilised LoRA", partial(lora, {"use_rslora": True}, unchanged), needs=["peft"], note=MERGED),
    Cell(GROUP, "two adapters, one of them active", switched, needs=["peft"], note=MERGED),
    Cell(GROUP, "adapters, disabled", disabled, needs=["peft"], note="compared with the model without them"),
    Cell(GROUP, "LoRA by `model.add_adapter`", by_transformers, needs=["peft"], note=MERGED),
    Cell(
        GROUP, "prefix tuning", partial(changed, prefix_tuned), needs=["peft"],
        refusal="learned virtual tokens that precede every text",
    ),
    Cell(
        GROUP, "activated LoRA", partial(weights_only, activated), needs=["peft"],
        refusal="from outside the model's layers, where attnflow cannot observe them",
    ),
    Cell(GROUP, "gradient checkpointing", partial(changed, partial(checkpointing, False))),
    Cell(GROUP, "gradient checkpointing, in training mode", partial(changed, partial(checkpointing, True))),
    Cell(GROUP, "a model left in training mode", partial(weights_only, lambda model: model.train())),
    Cell(
        GROUP, "a layer put into training mode", part_in_training,
        refusal="model.layers.1 is in training mode, where dropout changes what it computes",
    ),
    *(
        Cell(GROUP, f"`attn_implementation=\"{name}\"`", partial(implementation, name), note="set beforehand, and restored")
        for name in ("eager", "sdpa", "flex_attention", "paged|sdpa")
    ),
    Cell(GROUP, "`attn_implementation=\"paged|eager\"`", paged_eager, refusal="was called without a paged attention cache"),
    Cell(GROUP, "`config.output_attentions`", partial(changed, partial(returning, "output_attentions"))),
    Cell(GROUP, "`config.output_hidden_states`", partial(changed, partial(returning, "output_hidden_states"))),
    *(Cell(GROUP, f"under `{name}`" if "." in name else f"under {name}", partial(around, name)) for name in AROUND),
    Cell(GROUP, "under `torch.autocast`", autocast, refusal="torch.autocast is active"),
    Cell(GROUP, "under a default device of meta", meta_by_default, refusal="torch.set_default_device('meta') is active"),
    Cell(GROUP, "weights on the meta device", without_weights, refusal="is on the device 'meta', which has shapes but no values"),
    Cell(GROUP, "a weight of attention that is not a number", partial(broken, "model.layers.1.self_attn.q_proj"), refusal="negative or NaN"),
    Cell(GROUP, "a weight of the head that is not a number", partial(broken, "lm_head"), refusal="returns logits that are not finite"),
    Cell(GROUP, "a user's hook that scales a layer's output", partial(user_hook, lambda out: out * 2), note="compared with the model with it"),
    Cell(
        GROUP, "a user's hook that mixes positions", partial(user_hook, lambda out: out.cumsum(1)),
        refusal="positions mix in other ways too",
    ),
    Cell(GROUP, "a user's hook on the projection", hook_on_projection, refusal="these edges need to know how a layer projects, adds and normalizes"),
    Cell(GROUP, "`torch.jit.trace`", jit, refusal="the model was compiled by torch.jit or torch.export, so nothing can be observed inside it"),
    Cell(GROUP, "`torch.export`, the program", exported, refusal="expected a torch module"),
    Cell(GROUP, "`torch.export`, its module", exported_module, refusal="the model was compiled by torch.jit or torch.export"),
    Cell(GROUP, "tied embeddings", tied),
    Cell(GROUP, "shared layers (ALBERT)", shared_layers),
    Cell(GROUP, "one layer object in several places", universal),
    Cell(GROUP, "LayerDrop and dropout, left in training mode", layer_drop),
    Cell(GROUP, "a layer with pruned heads", pruned_heads),
    Cell(GROUP, "a head mask", head_mask, note="transformers 5 ignores it, and so do we"),
    Cell(GROUP, "several threads, one model", in_threads),
    Cell(GROUP, "the user's own passes in another thread", beside_users),
    *(
        Cell(GROUP, f"`cache_implementation=\"{name}\"`", partial(cache_setting, name), note="an answer that the model writes")
        for name in ("static", "offloaded", "quantized")
    ),
    Cell(GROUP, "a static cache of the user's own", partial(cache_given, _static_cache)),
    Cell(GROUP, "a sliding cache of the user's own", partial(cache_given, _sliding_cache)),
    Cell(GROUP, "a quantised cache of the user's own", partial(cache_given, _quantised_cache), note="the prompt is read again"),
    Cell(GROUP, "`DataParallel`", partial(changed, data_parallel)),
    Cell(GROUP, "`DistributedDataParallel`", copied),
    *(
        Cell(GROUP, name, partial(split, way), refusal="the weights of this model are split over several processes")
        for name, way in (
            ("FSDP (`fully_shard`)", fully_sharded), ("FSDP (`FullyShardedDataParallel`)", gathered_by_layer),
            ("tensor parallelism", tensor_parallel), ("layers with some of the heads", shared_by_hand),
        )
    ),
]  # fmt: skip
