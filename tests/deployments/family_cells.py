"""Model families of 2024 to 2026 and older ones still in use, each built small from its config class.

A cell compares the weights of all layers and heads, and rollout from every position, with what a second instance with
the same weights returns under eager attention. For a language model it also compares the sum of the parts of answer
edges with the answer's log-odds. Weights are larger than a config class draws them, so attention is not uniform.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.errors import InputError
from deployments.cells import Cell, Numbers, Outcome, Refused, compared
from helpers.architectures import (
    IMAGE,
    LLAMA,
    POSITIONS,
    SEQ2SEQ,
    TEXT,
    VOCABULARY,
    hf,
    ids,
    image,
    source_and_target,
    text,
    wave,
)

Inputs = Mapping[str, torch.Tensor]
Weights = Sequence[np.ndarray]
SIDES = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Family:
    """name: as on the page. build: makes the model, with an attention implementation or its own. inputs: its inputs.

    refusal: part of the sentence, if attention cannot explain the family. answers: True if answer edges are compared;
    part of the sentence if only those are refused; None for a model without answers.
    """

    name: str
    build: Callable[..., Any]
    inputs: Callable[[], dict[str, torch.Tensor]] = text
    answers: bool | str | None = None
    refusal: str | None = None


def drawn(build: Callable[..., Any]) -> Callable[..., Any]:
    """Redraw the model's matrices with a spread large enough to make attention uneven."""

    def make(implementation: str | None = None) -> Any:
        model = build(implementation)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.25, generator=generator)
        return model

    return make


def own(build: Callable[..., Any]) -> Any:
    """Build the model as load() would: eager if it does not use the attention interface."""
    model = build()
    return model if model._can_set_attn_implementation() else build("eager")


def cell(group: str, family: Family) -> Cell:
    build = drawn(family.build)

    def run(folder: Path) -> Outcome:
        model, inputs = af.wrap(own(build)), family.inputs()
        outcome = compared(
            lambda: captured(model, inputs, family.answers), lambda: returned(build("eager"), inputs, family.answers)
        )
        if isinstance(outcome, Refused) and INSTEAD in outcome.sentence:
            check_instead(model, inputs)
        return outcome

    note = "answer edges add up to the log-odds" if family.answers is True else ""
    if isinstance(family.answers, str):
        note = f"answer edges are refused: *{family.answers}*"
    if family.refusal is not None and INSTEAD in family.refusal:
        note = "blank-out and gradients work"
    return Cell(group, family.name, run, refusal=family.refusal, note=note)


def check_instead(model: af.Model, inputs: Inputs) -> None:
    """Check that the methods a refusal suggests do work."""
    for result in (model.blank_out(inputs, by=3, of="logit"), model.gradient(inputs, of="logit")):
        assert np.isfinite(result.values).all() and np.abs(result.values).max() > 0


def captured(model: af.Model, inputs: Inputs, answers: bool | str | None) -> Numbers:
    trace = model.trace(inputs, keep_heads=True)
    values = {f"weights of L{layer + 1}": np.asarray(weights) for layer, weights in trace.weights.items()}
    if trace.encoder:
        values |= {f"encoder, L{i + 1}": np.asarray(step.weights) for i, step in enumerate(trace.encoder.steps)}
    values["rollout"] = trace.rollout(query="all", layer=-1).values[0]
    if answers is True:
        parts = model.trace(inputs, edges="answer").answer_inputs(signed=True)
        evidence = parts.provenance["evidence"]
        values["log-odds"] = np.array([evidence["log_odds"], parts.values.sum() + evidence["constants"]])
    elif answers is not None:
        with pytest.raises(InputError, match=re.escape(str(answers))):
            model.trace(inputs, edges="answer")
    return values


def returned(model: Any, inputs: Inputs, answers: bool | str | None) -> Numbers:
    """Compute the same from what the model returns, by plain arithmetic."""
    with torch.no_grad():
        out = model(**inputs, output_attentions=True, output_hidden_states=True)  # Llama 4's vision needs both
    if out.get("cross_attentions"):
        return two_sides(*([x[0].double().numpy() for x in out[f"{part}_attentions"]] for part in SIDES))
    weights = [x[0].double().numpy() for x in out.attentions]
    values = {f"weights of L{i + 1}": x for i, x in enumerate(weights)}
    values["rollout"] = product([x.mean(0) for x in weights])
    if answers is True:
        logits = out.logits[0, -1].double()
        best = int(logits.argmax())
        others = torch.cat([logits[:best], logits[best + 1 :]])
        values["log-odds"] = np.full(2, float(logits[best] - others.logsumexp(0)))
    return values


def two_sides(encoder: Weights, decoder: Weights, cross: Weights) -> Numbers:
    """Build one graph over source and target of an encoder-decoder; each step leaves the other side unchanged."""
    s, n = len(encoder[0][0]), len(encoder[0][0]) + len(decoder[0][0])
    source, target = slice(0, s), slice(s, n)
    pairs = list(zip(decoder, cross, strict=True))
    values = {f"encoder, L{i + 1}": x.mean(0) for i, x in enumerate(encoder)}
    values |= {f"weights of L{i + 1}": np.concatenate([other, self], -1) / 2 for i, (self, other) in enumerate(pairs)}
    places = [(x, source, source) for x in encoder]
    places += [place for self, other in pairs for place in ((self, target, target), (other, target, source))]
    steps = []
    for heads, rows, columns in places:
        step = np.eye(n)
        step[rows] = 0
        step[rows, columns] = heads.mean(0)
        steps.append(step)
    values["rollout"] = product(steps)[target]
    return values


def product(steps: Weights) -> np.ndarray:
    """Compute rollout from the last matrix down, with a residual weight of one half."""
    result = np.eye(len(steps[0]))
    for step in steps:
        result = (step + np.eye(len(step))) / 2 @ result
    return result


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8}
ROUTED = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}  # fmt: skip
ALL_HEADS = {**LLAMA, "num_key_value_heads": 4}
FOUR = {**LLAMA, "num_hidden_layers": 4}
LOCAL_GLOBAL = {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
INDEXED = {"index_topk": 4, "index_head_dim": 8, "index_n_heads": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERN = {
    **POSITIONS,
    "local_attention": 6,
    "global_attn_every_n_layers": 3,
    "cls_token_id": 1,
    "sep_token_id": 2,
    **SPECIAL,
}
DELTA = {"head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}  # fmt: skip
STATE = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 4}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "decoder_start_token_id": 0}  # fmt: skip
SOUND = {**TEXT, "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip
SPOKEN = {**{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"}, "max_source_positions": 20, "max_target_positions": 32, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 4}  # fmt: skip
PYRAMID = {"image_size": 32, "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [16, 32], "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2]}  # fmt: skip


def without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def mel(positions: int = 40) -> dict[str, torch.Tensor]:
    """Return frames of a spectrogram [1, band, frame] and the decoder's tokens."""
    return {"input_features": random(1, 16, positions), "decoder_input_ids": ids(7, 1)}


def frames() -> dict[str, torch.Tensor]:
    return {"input_features": random(1, 40, 16)}


def video() -> dict[str, torch.Tensor]:
    return {"pixel_values": random(1, 4, 3, 32, 32)}


def patches() -> dict[str, torch.Tensor]:
    """Return SigLIP 2's input: a row for each patch, and the number of patches in each direction."""
    mask = torch.ones(1, 16, dtype=torch.long)
    return {"pixel_values": random(1, 16, 192), "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[2, 8]])}


STATES = "does not take its states [text, position, width] as its first argument"
INSTEAD = "blank_out() and gradient() need no attention"
NOT_LINEAR = "is not linear when attention, norms and gates are held constant"
MIXES = "positions mix in other ways too: when every position attends only to itself, outputs still depend on other positions"


def beside(layers: str, mixer: str) -> str:
    """Return the refusal of a hybrid: its layers without attention, and what they use instead."""
    return f"{layers} ({mixer}) mix positions without attention, or in code that cannot be observed. {INSTEAD}"


DECODERS = [
    Family("Llama 4, chunks and layers without positions", hf("Llama4ForCausalLM", **FOUR, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, attention_chunk_size=4, no_rope_layer_interval=2, interleave_moe_layer_step=2, pad_token_id=0), answers=True),
    Family("Gemma 3", hf("Gemma3ForCausalLM", **LLAMA, head_dim=8, sliding_window=5), answers=True),
    Family("Gemma 3n, layers that share keys", hf("Gemma3nForCausalLM", **FOUR, **LOCAL_GLOBAL, **PER_LAYER, laurel_rank=4, altup_num_inputs=2, activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0]), answers=STATES),
    Family("Gemma 4, layers that share keys", hf("Gemma4ForCausalLM", **FOUR, **LOCAL_GLOBAL, **PER_LAYER), answers=True),
    Family("VaultGemma", hf("VaultGemmaForCausalLM", **LLAMA, head_dim=8, sliding_window=5), answers=True),
    Family("Qwen2-MoE", hf("Qwen2MoeForCausalLM", **LLAMA, **MOE, shared_expert_intermediate_size=16), answers=True),
    Family("Qwen3", hf("Qwen3ForCausalLM", **LLAMA, head_dim=8), answers=True),
    Family("Qwen3-MoE", hf("Qwen3MoeForCausalLM", **LLAMA, **MOE, head_dim=8), answers=True),
    Family("DeepSeek-V2", hf("DeepseekV2ForCausalLM", **ALL_HEADS, **LATENT, **ROUTED), answers=True),
    Family("DeepSeek-V3, latent attention", hf("DeepseekV3ForCausalLM", **ALL_HEADS, **LATENT, **ROUTED), answers=True),
    Family("DeepSeek-V3.2, keys picked by an indexer", hf("DeepseekV32ForCausalLM", **ALL_HEADS, **LATENT, **ROUTED, **INDEXED), answers=True),
    Family("DeepSeek-V4, a text of one compressed block", hf("DeepseekV4ForCausalLM", **{**without(LLAMA, "intermediate_size"), "num_key_value_heads": 1}, **INDEXED, head_dim=8, q_lora_rank=16, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, o_groups=2, o_lora_rank=8, sliding_window=4, hc_mult=2), answers=STATES),
    Family("GLM-4", hf("Glm4ForCausalLM", **LLAMA, head_dim=8, pad_token_id=0), answers=True),
    Family("GLM-4.5 (MoE)", hf("Glm4MoeForCausalLM", **LLAMA, **ROUTED, head_dim=8), answers=True),
    Family("GLM-4.7-Flash (latent attention)", hf("Glm4MoeLiteForCausalLM", **ALL_HEADS, **ROUTED, **LATENT), answers=True),
    Family("GLM-5, keys picked by an indexer", hf("GlmMoeDsaForCausalLM", **ALL_HEADS, **LATENT, **ROUTED, **INDEXED), answers=True),
    Family("Granite", hf("GraniteForCausalLM", **LLAMA, residual_multiplier=0.5, attention_multiplier=0.3, embedding_multiplier=2.0, logits_scaling=2.0), answers=True),
    Family("Granite, MoE", hf("GraniteMoeForCausalLM", **LLAMA, num_local_experts=4, num_experts_per_tok=2), answers=True),
    Family("SmolLM3, layers without positions", hf("SmolLM3ForCausalLM", **LLAMA, no_rope_layer_interval=2, pad_token_id=0), answers=True),
    Family("Phi-3 with windows", hf("Phi3ForCausalLM", **LLAMA, sliding_window=5, pad_token_id=0), answers=True),
    Family("Phi-4-mini", hf("Phi3ForCausalLM", **LLAMA, partial_rotary_factor=0.5, tie_word_embeddings=True, pad_token_id=0), answers=True),
    Family("Phi-3.5-MoE", hf("PhimoeForCausalLM", **LLAMA, num_local_experts=4), answers=True),
    Family("OLMo", hf("OlmoForCausalLM", **LLAMA), answers=True),
    Family("OLMo with clipped queries, keys and values", hf("OlmoForCausalLM", **LLAMA, clip_qkv=0.5), answers=NOT_LINEAR),
    Family("OLMo 2", hf("Olmo2ForCausalLM", **LLAMA), answers=True),
    Family("OLMo 3 with windows", hf("Olmo3ForCausalLM", **FOUR, sliding_window=5), answers=True),
    Family("OLMoE", hf("OlmoeForCausalLM", **LLAMA, num_experts=4, num_experts_per_tok=2), answers=True),
    Family("Mistral with windows", hf("MistralForCausalLM", **LLAMA, sliding_window=5), answers=True),
    Family("Ministral, windows in some layers", hf("MinistralForCausalLM", **FOUR, **LOCAL_GLOBAL), answers=True),
    Family("Ministral 3", hf("Ministral3ForCausalLM", **LLAMA, head_dim=8), answers=True),
    Family("Mistral 4 (latent attention)", hf("Mistral4ForCausalLM", **ALL_HEADS, **LATENT, **ROUTED), answers=True),
    Family("Mixtral", hf("MixtralForCausalLM", **LLAMA, num_local_experts=4), answers=True),
    Family("Command R (Cohere)", hf("CohereForCausalLM", **LLAMA, use_qk_norm=True, pad_token_id=0), answers=True),
    Family("Command R7B (Cohere 2), windows in some layers", hf("Cohere2ForCausalLM", **FOUR, sliding_window=5, pad_token_id=0), answers=True),
    Family("Nemotron", hf("NemotronForCausalLM", **LLAMA), answers=True),
    Family("StarCoder 2 with windows", hf("Starcoder2ForCausalLM", **LLAMA, sliding_window=5), answers=True),
    Family("StableLM", hf("StableLmForCausalLM", **LLAMA), answers=True),
    Family("Falcon 3 (Llama's class, larger heads)", hf("LlamaForCausalLM", **LLAMA, head_dim=16), answers=True),
    Family("gpt-oss, sinks and windows", hf("GptOssForCausalLM", **LLAMA, head_dim=8, sliding_window=5, num_local_experts=4), answers=True),
    Family("ERNIE 4.5", hf("Ernie4_5ForCausalLM", **LLAMA, head_dim=8), answers=True),
    Family("ERNIE 4.5, MoE", hf("Ernie4_5_MoeForCausalLM", **LLAMA, moe_num_experts=4, moe_k=2, moe_intermediate_size=16, moe_num_shared_experts=1), answers=True),
    Family("EXAONE 4, windows in some layers", hf("Exaone4ForCausalLM", **FOUR, sliding_window=5), answers=True),
    Family("Hunyuan", hf("HunYuanDenseV1ForCausalLM", **LLAMA, head_dim=8), answers=True),
    Family("Hunyuan, MoE", hf("HunYuanMoEV1ForCausalLM", **LLAMA, head_dim=8, num_experts=4, moe_topk=2), answers=True),
    Family("Seed-OSS", hf("SeedOssForCausalLM", **LLAMA, head_dim=8), answers=True),
    Family("Apertus", hf("ApertusForCausalLM", **LLAMA), answers=NOT_LINEAR),
    Family("AFM (Arcee)", hf("ArceeForCausalLM", **LLAMA), answers=True),
    Family("Trinity (Arcee's MoE)", hf("AfmoeForCausalLM", **FOUR, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, sliding_window=5, num_dense_layers=1), answers=True),
    Family("dots.llm1", hf("Dots1ForCausalLM", **LLAMA, **ROUTED, n_shared_experts=1, sliding_window=None), answers=True),
    Family("BitNet", hf("BitNetForCausalLM", **LLAMA), answers=True),
    Family("Doge", hf("DogeForCausalLM", **LLAMA), answers=True),
    Family("Helium", hf("HeliumForCausalLM", **LLAMA, head_dim=8), answers=True),
    Family("Moshi's decoder", hf("MoshiForCausalLM", **without(LLAMA, "intermediate_size"), ffn_dim=48, sliding_window=5, head_dim=8), answers=True),
    Family("ModernBERT decoder", hf("ModernBertDecoderForCausalLM", **MODERN), answers=True),
    Family("LongCat-Flash, two attentions a layer", hf("LongcatFlashForCausalLM", **without(ALL_HEADS, "num_hidden_layers", "intermediate_size"), **LATENT, num_layers=2, ffn_hidden_size=48, expert_ffn_hidden_size=16, moe_topk=2, n_routed_experts=4, zero_expert_num=2, head_dim=4), answers=True),
    Family("MiniMax-M2", hf("MiniMaxM2ForCausalLM", **LLAMA, head_dim=8, num_local_experts=4, num_experts_per_tok=2), answers=True),
    Family("MiniCPM3 (latent attention)", hf("MiniCPM3ForCausalLM", **ALL_HEADS, **LATENT), answers=True),
    Family("JetMoE", hf("JetMoeForCausalLM", **without(LLAMA, "num_attention_heads"), kv_channels=8, num_local_experts=4), answers=True),
    Family("Laguna, gated attention", hf("LagunaForCausalLM", **LLAMA), answers=True),
    Family("nanochat", hf("NanoChatForCausalLM", **LLAMA), answers=True),
    Family("DiffLlama, differences of two attentions", hf("DiffLlamaForCausalLM", **LLAMA), refusal=f"a layer attends more than once, and nothing says how its matrices are joined. {INSTEAD}"),
]  # fmt: skip

HYBRIDS = [
    Family("Qwen3-Next", hf("Qwen3NextForCausalLM", **FOUR, **DELTA, **MOE, shared_expert_intermediate_size=16), refusal=beside("L1, L2, L3", "Qwen3NextGatedDeltaNet")),
    Family("Qwen3.5", hf("Qwen3_5ForCausalLM", **FOUR, **DELTA), refusal=beside("L1, L2, L3", "Qwen3_5GatedDeltaNet")),
    Family("Kimi Linear", hf("KimiLinearForCausalLM", **{**ALL_HEADS, "num_hidden_layers": 4}, **{**LATENT, "q_lora_rank": None}, **SPECIAL, moe_intermediate_size=16, num_local_experts=4, num_experts_per_tok=2, linear_head_dim=8, linear_num_heads=4, layer_types=["linear_attention", "full_attention"] * 2), refusal=beside("L1, L3", "KimiLinearDeltaAttention")),
    Family("OLMo hybrid", hf("OlmoHybridForCausalLM", **FOUR, pad_token_id=0, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=4, linear_num_value_heads=4), refusal=beside("L1, L2, L3", "OlmoHybridGatedDeltaNet")),
    Family("Jamba", hf("JambaForCausalLM", **FOUR, num_experts=4, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8), refusal=beside("L1, L3", "JambaMambaMixer")),
    Family("Falcon-H1", hf("FalconH1ForCausalLM", **LLAMA, **STATE, mamba_d_ssm=64), refusal=MIXES),
    Family("Bamba", hf("BambaForCausalLM", **FOUR, **STATE, attn_layer_indices=[1, 3]), refusal=beside("L1, L3", "BambaMixer")),
    Family("Zamba2", hf("Zamba2ForCausalLM", **{**ALL_HEADS, "num_hidden_layers": 4}, layers_block_type=["mamba", "hybrid"] * 2, mamba_d_state=8, n_mamba_heads=4, chunk_size=4), refusal=beside("L1, L3", "Zamba2MambaMixer")),
    Family("Granite 4, hybrid", hf("GraniteMoeHybridForCausalLM", **FOUR, **STATE, layer_types=["mamba", "attention"] * 2, num_local_experts=4, shared_intermediate_size=16), refusal=beside("L1, L3", "GraniteMoeHybridMambaLayer")),
    Family("LFM2", hf("Lfm2ForCausalLM", **FOUR, layer_types=["conv", "full_attention"] * 2, block_multiple_of=16), refusal=beside("L1, L3", "Lfm2ShortConv")),
    Family("RecurrentGemma", hf("RecurrentGemmaForCausalLM", **without(LLAMA, "max_position_embeddings"), attention_window_size=5, lru_width=32), refusal=beside("L1, L2", "RecurrentGemmaRecurrentBlock")),
    Family("MiniMax-Text-01, lightning attention", hf("MiniMaxForCausalLM", **FOUR, head_dim=8, num_local_experts=4, layer_types=["linear_attention", "full_attention"] * 2, block_size=4), refusal=beside("L1, L3", "MiniMaxLightningAttention")),
    Family("Nemotron-H", hf("NemotronHForCausalLM", **without(LLAMA, "num_hidden_layers"), head_dim=8, layers_block_type=["mamba", "attention", "mamba"], ssm_state_size=8, mamba_num_heads=4, mamba_head_dim=16, n_groups=1, chunk_size=4), refusal=beside("L1, L3", "NemotronHMamba2Mixer")),
    Family("Mamba 2", hf("Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, state_size=8, num_heads=4, head_dim=16, n_groups=1, chunk_size=4), refusal=f"no attention was seen: the model mixes positions in another way, or in its own code. {INSTEAD}"),
    Family("RWKV", hf("RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3), refusal=f"attention 0 that the model returns does not have the shape [batch, head, query, key]. {INSTEAD}"),
]  # fmt: skip

ENCODERS = [
    Family("ModernBERT", hf("ModernBertForMaskedLM", **MODERN)),
    Family("EuroBERT", hf("EuroBertForMaskedLM", **LLAMA, **SPECIAL)),
    Family("ESM-2", hf("EsmForMaskedLM", **POSITIONS, position_embedding_type="rotary", pad_token_id=1, mask_token_id=4, token_dropout=True)),
    Family("ESM C", hf("EsmcForMaskedLM", **TEXT)),
    Family("nomic-embed (NomicBERT)", hf("NomicBertModel", **POSITIONS)),
    Family("GTE", hf("GteModel", **POSITIONS)),
    Family("jina-embeddings-v3", hf("JinaEmbeddingsV3Model", **POSITIONS)),
    Family("XLM-RoBERTa", hf("XLMRobertaModel", **POSITIONS)),
    Family("BigBird, all keys", hf("BigBirdModel", **POSITIONS, attention_type="original_full")),
    Family("BigBird, blocks of keys", hf("BigBirdModel", **POSITIONS, attention_type="block_sparse"), refusal='load it with attention_type="original_full"'),
    Family("Longformer", hf("LongformerModel", **POSITIONS, attention_window=[4, 4, 4]), refusal="expected one square matrix over all positions per layer"),
    Family("T5Gemma", hf("T5GemmaForConditionalGeneration", encoder={**LLAMA, "head_dim": 8, "sliding_window": 5}, decoder={**FOUR, "head_dim": 8, "sliding_window": 5}, vocab_size=VOCABULARY), source_and_target),
    Family("NLLB-MoE", hf("NllbMoeForConditionalGeneration", **SEQ2SEQ, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2), source_and_target),
    Family("mBART", hf("MBartForConditionalGeneration", **SEQ2SEQ), source_and_target),
    Family("Pegasus", hf("PegasusForConditionalGeneration", **SEQ2SEQ), source_and_target),
    Family("M2M100 and NLLB", hf("M2M100ForConditionalGeneration", **SEQ2SEQ), source_and_target),
    Family("mT5", hf("MT5ForConditionalGeneration", **T5), source_and_target),
    Family("UMT5", hf("UMT5ForConditionalGeneration", **T5), source_and_target),
    Family("Switch Transformer", hf("SwitchTransformersForConditionalGeneration", **T5, num_experts=4), source_and_target),
    Family("LongT5", hf("LongT5ForConditionalGeneration", **T5, local_radius=3), source_and_target, refusal="the attention of the encoder was not seen: the encoder mixes positions in its own code"),
    Family("LED", hf("LEDForConditionalGeneration", **without(SEQ2SEQ, "max_position_embeddings"), max_encoder_position_embeddings=64, max_decoder_position_embeddings=64, attention_window=[4, 4]), source_and_target, refusal="expected source×source, target×target and target×source"),
]  # fmt: skip

VISION = [
    Family("DINOv3 with registers", hf("DINOv3ViTModel", **IMAGE, num_register_tokens=2), image),
    Family("DINOv2", hf("Dinov2Model", **without(IMAGE, "intermediate_size"), mlp_ratio=2), image),
    Family("SigLIP 2, image", hf("Siglip2VisionModel", **without(IMAGE, "image_size"), num_patches=16), patches),
    Family("SigLIP 2, text", hf("Siglip2TextModel", **POSITIONS, pad_token_id=1, bos_token_id=2, eos_token_id=3)),
    Family("SigLIP, image", hf("SiglipVisionModel", **IMAGE), image),
    Family("SigLIP, text", hf("SiglipTextModel", **POSITIONS, pad_token_id=1, bos_token_id=2, eos_token_id=3)),
    Family("CLIP, image", hf("CLIPVisionModel", **IMAGE), image),
    Family("CLIP, text", hf("CLIPTextModel", **POSITIONS, pad_token_id=1, bos_token_id=2, eos_token_id=3)),
    Family("MetaCLIP 2, image", hf("MetaClip2VisionModel", **IMAGE), image),
    Family("AIMv2", hf("Aimv2VisionModel", **IMAGE), image),
    Family("ViT-MSN", hf("ViTMSNModel", **IMAGE), image),
    Family("ViT-MAE, which draws patches", hf("ViTMAEModel", **IMAGE, mask_ratio=0.5), image, refusal="the model's own outputs differ from one run to the next because it draws random numbers"),
    Family("I-JEPA", hf("IJepaModel", **IMAGE), image),
    Family("Pixtral's vision", hf("PixtralVisionModel", **IMAGE), image),
    Family("InternVL's vision", hf("InternVLVisionModel", **{**IMAGE, "image_size": [32, 32], "patch_size": [8, 8]}), image),
    Family("Llama 4's vision", hf("Llama4VisionModel", **{**IMAGE, "intermediate_size": 128}, vision_output_dim=32, projector_input_dim=32, projector_output_dim=32), image),
    Family("YOLOS", hf("YolosModel", **{**IMAGE, "image_size": [32, 32]}, num_detection_tokens=4), image),
    Family("ViTDet", hf("VitDetModel", **without(IMAGE, "intermediate_size"), mlp_ratio=2, pretrain_image_size=32), image),
    Family("VideoMAE", hf("VideoMAEModel", **IMAGE, num_frames=4, tubelet_size=2), video),
    Family("ViViT", hf("VivitModel", **without(IMAGE, "patch_size"), num_frames=4, tubelet_size=[2, 8, 8]), video),
    Family("V-JEPA 2, its encoder", hf("VJEPA2Model", **without(IMAGE, "image_size", "intermediate_size"), crop_size=32, frames_per_clip=4, mlp_ratio=2, pred_hidden_size=32, pred_num_attention_heads=4, pred_num_hidden_layers=2, pred_num_mask_tokens=2), lambda: {"pixel_values_videos": random(1, 4, 3, 32, 32)}),
    Family("TimeSformer, time and space apart", hf("TimesformerModel", **IMAGE, num_frames=4), video, refusal="expected one square matrix over all positions per layer"),
    Family("Swin v2", hf("Swinv2Model", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4), image, refusal="expected one square matrix over all positions per layer"),
    Family("Hiera", hf("HieraModel", embed_dim=16, image_size=[32, 32], depths=[1, 1], num_heads=[1, 2], query_stride=[2, 2], masked_unit_size=[2, 2], masked_unit_attention=[True, False], num_query_pool=1), image, refusal="attention 0 that the model returns does not have the shape [batch, head, query, key]"),
    Family("PVT", hf("PvtModel", **PYRAMID, sequence_reduction_ratios=[2, 1]), image, refusal="expected one square matrix over all positions per layer"),
    Family("SegFormer", hf("SegformerModel", **without(PYRAMID, "image_size"), sr_ratios=[2, 1]), image, refusal="expected one square matrix over all positions per layer"),
    Family("ConvNeXt", hf("ConvNextModel", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2), image, refusal="no attention was seen: the model mixes positions in another way"),
]  # fmt: skip

SOUNDS = [
    Family("Whisper", hf("WhisperForConditionalGeneration", **SPOKEN, num_mel_bins=16), mel),
    Family("Moonshine", hf("MoonshineForConditionalGeneration", vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=2, decoder_num_hidden_layers=3, encoder_num_attention_heads=4, decoder_num_attention_heads=4, encoder_num_key_value_heads=4, decoder_num_key_value_heads=4, max_position_embeddings=64), lambda: {"input_values": random(1, 6000), "decoder_input_ids": ids(7, 1)}),
    Family("Speech2Text", hf("Speech2TextForConditionalGeneration", **SPOKEN, input_feat_per_channel=16, conv_channels=32), lambda: {**frames(), "decoder_input_ids": ids(7, 1)}),
    Family("wav2vec2", hf("Wav2Vec2Model", **SOUND), wave),
    Family("HuBERT", hf("HubertModel", **SOUND), wave),
    Family("WavLM", hf("WavLMModel", **SOUND), wave),
    Family("SEW", hf("SEWModel", **SOUND, squeeze_factor=2), wave),
    Family("UniSpeech-SAT", hf("UniSpeechSatModel", **SOUND), wave),
    Family("wav2vec2-conformer, convolutions in its layers", hf("Wav2Vec2ConformerModel", **SOUND), wave, refusal=MIXES),
    Family("W2V-BERT 2, convolutions in its layers", hf("Wav2Vec2BertModel", **TEXT, feature_projection_input_dim=16), frames, refusal=MIXES),
    Family("AST", hf("ASTModel", **without(TEXT, "vocab_size"), patch_size=8, frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16), lambda: {"input_values": random(1, 32, 16)}),
    Family("Parakeet's encoder, convolutions in its layers", hf("ParakeetEncoder", **without(TEXT, "vocab_size"), num_mel_bins=16, subsampling_conv_channels=8), lambda: {"input_features": random(1, 80, 16)}, refusal=MIXES),
    Family("Voxtral's encoder", hf("VoxtralEncoder", **without(TEXT, "vocab_size"), num_mel_bins=16, max_source_positions=20), lambda: {"input_features": random(1, 16, 40)}),
]  # fmt: skip

GROUPS = {"Decoders": DECODERS, "Hybrids": HYBRIDS, "Encoders": ENCODERS, "Vision": VISION, "Sound": SOUNDS}
CELLS = [cell(group, family) for group, families in GROUPS.items() for family in families]
