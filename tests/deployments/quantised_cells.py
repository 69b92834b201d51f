"""Models with packed weights, and what is computed from them beyond attention."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import attnflow as af
from deployments.cells import Cell, Numbers, Outcome, compared, numbers
from deployments.loading_cells import truth
from helpers.architectures import LLAMA, hf, text

GROUP = "Quantised weights"
SIZES = {**LLAMA, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "initializer_range": 0.2}
PROMPT, ANSWER = [5, 17, 60, 33, 8, 91, 44], [12, 80, 7]

Results = Callable[[af.Model], Numbers]


def decoder() -> Any:
    """Return a decoder with eager attention and biases, which have their own part in an answer."""
    model = hf("LlamaForCausalLM", **SIZES, attention_bias=True, mlp_bias=True, eos_token_id=None)("eager")
    torch.manual_seed(1)
    for path, parameter in model.named_parameters():
        if path.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
    return model


def layers(model: Any) -> Mapping[str, Any]:
    """Return the linear layers that libraries quantise: all but the head."""
    return {path: m for path, m in model.named_modules() if isinstance(m, nn.Linear) and path != "lm_head"}


def dequantised(weight_of: Callable[[str], Tensor]) -> Any:
    """Return the oracle: a plain model with the unpacked weights."""
    model = decoder()
    for path, layer in layers(model).items():
        layer.weight.data = weight_of(path).detach().to(layer.weight).reshape(layer.weight.shape)
    return model


def answers(model: af.Model) -> Numbers:
    """Return the tokens' parts in an answer: answer edges with and without matrices, and a longer answer."""
    return {
        "answer rows": model.trace(text(), edges="answer").answer_rows(signed=True).values,
        "answer rows, linear": model.trace(text(), edges="answer", memory="linear").answer_rows(signed=True).values,
        "an answer": model.answer(PROMPT, answer=ANSWER).matrix(signed=True).values,
    }


def gradients(model: af.Model) -> Numbers:
    return {
        "gradient": model.gradient(text(), of="logit").values,
        "edges by gradients": model.trace(text(), edges="attention-gradient").rollout().values,
        "edges by gradients, linear": model.trace(text(), edges="attention-gradient", memory="linear").rollout().values,
    }


def blanked(model: af.Model) -> Numbers:
    return {"blank-out": model.blank_out(text(), by=1, of="logit").values}


def projected(model: af.Model) -> Numbers:
    """Return results for edges that need the matrix after the attention."""
    kinds = {kind: {"edges": kind} for kind in ("value-norm", "alti")}
    kinds |= {f"{kind}, linear": {"edges": kind, "memory": "linear"} for kind in ("head-norm", "projection")}
    return {name: model.trace(text(), **options).rollout().values for name, options in kinds.items()}


def attention(model: af.Model) -> Numbers:
    return numbers(model, text())


def outcome(model: Callable[[], af.Model], oracle: Any, results: Results) -> Outcome:
    """Compare attention with what the oracle returns, and everything else with our results for the oracle."""
    expected = (lambda: truth(oracle)) if results is attention else lambda: results(af.wrap(oracle))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="MatMul8bitLt: inputs will be cast")
        return compared(lambda: results(model()), expected)


def saved_by(folder: Path, config: Any) -> tuple[Path, Any]:
    """Return a checkpoint quantised and saved by transformers, and the saved model."""
    from transformers import LlamaForCausalLM

    decoder().save_pretrained(folder / "plain")
    model = LlamaForCausalLM.from_pretrained(folder / "plain", quantization_config=config, device_map="cpu")
    model.save_pretrained(folder / "quantised")
    return folder / "quantised", model


@cache
def torchao_config(kind: str) -> Any:
    from torchao import quantization as q
    from torchao.quantization.granularity import PerGroup

    return {
        "int8": q.Int8WeightOnlyConfig,
        "int4": lambda: q.IntxWeightOnlyConfig(torch.int4, granularity=PerGroup(16)),
        "float8": q.Float8WeightOnlyConfig,
        "int8, activations too": q.Int8DynamicActivationInt8WeightConfig,
    }[kind]()


def torchao(folder: Path, kind: str, results: Results = attention) -> Outcome:
    from transformers import TorchAoConfig

    path, model = saved_by(folder, TorchAoConfig(torchao_config(kind)))
    packed = layers(model)
    assert all(type(layer.weight) is not nn.Parameter for layer in packed.values())
    oracle = dequantised(lambda name: packed[name].weight.dequantize())
    return outcome(lambda: af.load(path, device="cpu"), oracle, results)


def bitsandbytes(folder: Path, results: Results = attention, **options: Any) -> Outcome:
    from bitsandbytes.functional import dequantize_4bit
    from transformers import BitsAndBytesConfig

    path, model = saved_by(folder, BitsAndBytesConfig(**options))

    def weight_of(name: str) -> Tensor:
        weight = model.get_submodule(name).weight
        if options.get("load_in_4bit"):
            return dequantize_4bit(weight.data, weight.quant_state)
        return weight.data.float() * weight.SCB[:, None] / 127

    return outcome(lambda: af.load(path, device="cpu"), dequantised(weight_of), results)


class Packed(nn.Module):
    """A layer as libraries make it: integers with a scale per group of 16, unpacked when it runs, and no ``weight``."""

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = layer.in_features, layer.out_features, bits
        groups = layer.weight.detach().reshape(layer.out_features, -1, 16)
        scale = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        whole = (groups / scale).round().to(torch.int16) + 2 ** (bits - 1)
        if bits == 4:  # two numbers per byte
            whole = whole[..., ::2] * 16 + whole[..., 1::2]
        self.register_buffer("packed", whole.to(torch.uint8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def unpacked(self) -> Tensor:
        whole = self.packed
        if self.bits == 4:
            whole = torch.stack([whole // 16, whole % 16], -1).flatten(-2)
        return ((whole.float() - 2 ** (self.bits - 1)) * self.scale).reshape(self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.unpacked(), self.bias)


class RoundsStates(Packed):
    """A layer that also rounds its input to 8 bits, which autograd cannot see through."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.detach().abs().amax(-1, keepdim=True) / 127
        return super().forward((x / scale).round().to(torch.int8) * scale)


def packed(folder: Path, bits: int, results: Results = attention, kind: type[Packed] = Packed) -> Outcome:
    model = decoder()
    for path, layer in layers(model).items():
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, kind(layer, bits))
    oracle = dequantised(lambda name: model.get_submodule(name).unpacked())
    return outcome(lambda: af.wrap(model), oracle, results)


def float8(folder: Path) -> Outcome:
    """A checkpoint in blocks of 32 × 32 with a scale each, like those of DeepSeek-V3 and others."""
    from safetensors.torch import load_file, save_file

    decoder().save_pretrained(folder)
    file, read = folder / "model.safetensors", {}
    tensors = load_file(file)
    for path in layers(decoder()):
        weight = tensors[f"{path}.weight"]
        blocks = weight.reshape(weight.shape[0] // 32, 32, weight.shape[1] // 32, 32)
        scale = blocks.abs().amax((1, 3)) / 448
        small = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        read[path] = (small.float() * scale[:, None, :, None]).reshape(weight.shape)
        tensors |= {f"{path}.weight": small.reshape(weight.shape), f"{path}.weight_scale_inv": scale}
    save_file(tensors, file, metadata={"format": "pt"})
    method = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
    _set_method(folder, {**method, "modules_to_not_convert": ["lm_head"]})
    return outcome(lambda: af.load(folder, device="cpu", dtype="float32"), dequantised(read.__getitem__), attention)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FP4 = torch.cat([FP4, -FP4])


def mxfp4(folder: Path) -> Outcome:
    """The experts of gpt-oss as published: 4-bit numbers with an exponent for each 32 of them."""
    from safetensors.torch import load_file, save_file

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    oracle = hf("GptOssForCausalLM", **SIZES, **experts, rope_parameters=rope, pad_token_id=0)("eager")
    oracle.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        weight = tensors.pop(name).transpose(1, 2)  # [expert, in, out], packed along in
        groups = weight.reshape(*weight.shape[:2], -1, 32)
        exponent = groups.abs().amax(-1, keepdim=True).log2().floor() - 2
        nearest = (groups[..., None] / exponent[..., None].exp2() - FP4).abs().argmin(-1)
        tensors[f"{name}_blocks"] = (nearest[..., ::2] + 16 * nearest[..., 1::2]).to(torch.uint8)
        tensors[f"{name}_scales"] = (exponent[..., 0] + 127).to(torch.uint8)
        read = (FP4[nearest] * exponent.exp2()).reshape(weight.shape)
        oracle.get_parameter(name).data = read.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    others = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    _set_method(folder, {"quant_method": "mxfp4", "modules_to_not_convert": others})
    return outcome(lambda: af.load(folder, device="cpu", dtype="float32"), oracle, attention)


def _set_method(folder: Path, method: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))


def library(folder: Path, method: dict[str, Any]) -> Outcome:
    """A folder that names a quantisation library which is not installed."""
    decoder().save_pretrained(folder)
    _set_method(folder, method)
    return outcome(lambda: af.load(folder, device="cpu"), decoder(), attention)


def unknown(folder: Path) -> Outcome:
    """A method unknown to transformers, which only gives a notice: the packed weights fit nowhere."""
    from safetensors.torch import load_file, save_file

    decoder().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for path in layers(decoder()):
        tensors[f"{path}.qweight"] = tensors.pop(f"{path}.weight").to(torch.int32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _set_method(folder, {"quant_method": "own", "bits": 3})
    return outcome(lambda: af.load(folder, device="cpu"), decoder(), attention)


TORCHAO, BITSANDBYTES = ("torchao", "accelerate"), ("bitsandbytes", "accelerate")
ROUNDED = "activations are rounded to 8 bits, which the oracle does not do"
CUT = "whose weights or activations are quantised: use methods without gradients"
INT8 = {"load_in_8bit": True}
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
KINDS: tuple[tuple[str, Results], ...] = (
    ("answer edges", answers), ("gradients", gradients), ("blank-out", blanked), ("edges through the projection", projected),
)  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "GPTQ": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    "AWQ": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "HQQ": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32}}},
    "AutoRound": {"quant_method": "auto-round", "bits": 4, "group_size": 32},
    "EETQ": {"quant_method": "eetq", "weights": "int8"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
    "Quanto": {"quant_method": "quanto", "weights": "int8"},
}

CELLS = [
    *(
        Cell(GROUP, f"torchao, {kind} weights", partial(torchao, kind=kind), within=1e-5, needs=TORCHAO)
        for kind in ("int8", "int4", "float8")
    ),
    *(
        Cell(GROUP, f"torchao, int8 weights: {name}", partial(torchao, kind="int8", results=results), 1e-4, needs=TORCHAO)
        for name, results in KINDS
    ),
    Cell(
        GROUP, "torchao, int8 weights and activations", partial(torchao, kind="int8, activations too"), within=5e-2,
        needs=TORCHAO, note=ROUNDED,
    ),
    Cell(
        GROUP, "torchao, int8 weights and activations: gradients",
        partial(torchao, kind="int8, activations too", results=gradients), refusal=CUT, needs=TORCHAO,
    ),
    Cell(
        GROUP, "bitsandbytes, 8 bits", partial(bitsandbytes, **INT8, llm_int8_threshold=1.0),
        refusal="so large values at one position change how all positions are computed: set llm_int8_threshold to 0",
        needs=BITSANDBYTES, note="where any column has large values: positions mix",
    ),
    Cell(
        GROUP, "bitsandbytes, 8 bits, `llm_int8_threshold=0`", partial(bitsandbytes, **INT8, llm_int8_threshold=0.0),
        within=5e-2, needs=BITSANDBYTES, note=ROUNDED,
    ),
    Cell(
        GROUP, "bitsandbytes, 4 bits (nf4)", partial(bitsandbytes, **NF4), within=5e-2, needs=BITSANDBYTES,
        note="its kernel for CPUs computes in bfloat16",
    ),
    *(
        Cell(GROUP, f"layers of {bits} bits, unpacked when they run", partial(packed, bits=bits), within=1e-5)
        for bits in (8, 4)
    ),
    *(
        Cell(
            GROUP, f"layers of 4 bits, unpacked when they run: {name}", partial(packed, bits=4, results=results), 1e-4,
        )
        for name, results in KINDS
    ),
    Cell(
        GROUP, "layers of 8 bits that round states: answer edges", partial(packed, bits=8, results=answers, kind=RoundsStates),
        refusal=CUT,
    ),
    Cell(
        GROUP, "float8 checkpoint (blocks with scales)", float8, within=1e-5, needs=("accelerate",),
        note="transformers dequantises it on a CPU",
    ),
    Cell(
        GROUP, "MXFP4 checkpoint (gpt-oss)", mxfp4, within=1e-5, needs=("accelerate",),
        note="transformers dequantises it where it has no kernels",
    ),
    *(
        Cell(
            GROUP, f"{name} checkpoint, its library missing", partial(library, method=method), needs=("accelerate",),
            refusal=f"is quantised by {method['quant_method']}, which transformers cannot load here",
        )
        for name, method in METHODS.items()
    ),
    Cell(
        GROUP, "a checkpoint packed by an unknown method", unknown, needs=("accelerate",),
        refusal="tensors of its layers, such as 'model.layers.0.mlp.down_proj.weight', which would be random",
        note="transformers would draw them at random",
    ),
]  # fmt: skip
