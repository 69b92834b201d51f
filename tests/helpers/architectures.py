"""Models of every kind that capture supports, built small from their config classes, with random weights.

Each entry says what it is, how to build it, and what to feed it. ``python tests/support.py`` makes the documentation's
table of supported models from this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY = 120
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
}
IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


@dataclass(frozen=True)
class Architecture:
    """kind: encoder, decoder, encoder-decoder, vision, audio, two towers or plain.

    returns: whether the model returns its own attention under eager, which captured weights can be compared with.
    """

    name: str
    kind: str
    build: Callable[..., Any]
    inputs: Callable[[], dict[str, torch.Tensor]]
    returns: bool = True


def ids(n: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(seed))


def text() -> dict[str, torch.Tensor]:
    return {"input_ids": ids(), "attention_mask": torch.ones(1, 11, dtype=torch.long)}


def source_and_target() -> dict[str, torch.Tensor]:
    return {**text(), "decoder_input_ids": ids(7, 1)}


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))}


def wave() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 800, generator=torch.Generator().manual_seed(0))}


def hf(name: str, **options: Any) -> Callable[..., Any]:
    """Return a builder for a transformers model class by name, with options of its config class."""

    def build(implementation: str | None = None) -> Any:
        import transformers

        torch.manual_seed(0)
        cls = getattr(transformers, name)
        config = cls.config_class(**options)
        if implementation:
            config._attn_implementation = implementation
        return cls._from_config(config).eval()

    return build


def clip(implementation: str | None = None) -> Any:
    return hf(
        "CLIPModel",
        text_config={**TEXT, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 2},
        vision_config=IMAGE,
        projection_dim=16,
    )(implementation)


class PlainViT(torch.nn.Module):
    """A vision transformer in plain PyTorch: one linear map for q, k and v, and the fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 32, 8, 8)
        self.cls = torch.nn.Parameter(torch.randn(1, 1, 32))
        self.blocks = torch.nn.ModuleList(PlainBlock() for _ in range(3))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return x


class PlainBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(b, n, d))


def plain_vit(implementation: str | None = None) -> Any:
    torch.manual_seed(0)
    return PlainViT().eval()


def transformer_encoder(implementation: str | None = None) -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def states() -> dict[str, torch.Tensor]:
    return {"input": torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))}


LLAMA = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
POSITIONS = {**TEXT, "max_position_embeddings": 64}
SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip

ARCHITECTURES = [
    Architecture("BERT", "encoder", hf("BertModel", **POSITIONS), text),
    Architecture("RoBERTa", "encoder", hf("RobertaModel", **POSITIONS), text),
    Architecture("DistilBERT", "encoder", hf("DistilBertModel", vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=64), text),
    Architecture("ALBERT", "encoder", hf("AlbertModel", **POSITIONS, embedding_size=16), text),
    Architecture("ELECTRA", "encoder", hf("ElectraModel", **POSITIONS, embedding_size=16), text),
    Architecture("ModernBERT", "encoder", hf("ModernBertModel", **POSITIONS, local_attention=6, global_attn_every_n_layers=3, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2), text),
    Architecture("DeBERTa-v2", "encoder", hf("DebertaV2Model", **POSITIONS, relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False), text),
    Architecture("MPNet", "encoder", hf("MPNetModel", **POSITIONS), text),
    Architecture("BERT, two classes", "encoder", hf("BertForSequenceClassification", **POSITIONS), text),
    Architecture("T5, encoder alone", "encoder", hf("T5EncoderModel", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4), text),
    Architecture("GPT-2", "decoder", hf("GPT2LMHeadModel", vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64), text),
    Architecture("GPT-NeoX", "decoder", hf("GPTNeoXForCausalLM", **POSITIONS), text),
    Architecture("GPT-J", "decoder", hf("GPTJForCausalLM", vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64, rotary_dim=4), text),
    Architecture("OPT", "decoder", hf("OPTForCausalLM", **{**POSITIONS, "ffn_dim": 48, "word_embed_proj_dim": 32}), text),
    Architecture("Llama", "decoder", hf("LlamaForCausalLM", **LLAMA), text),
    Architecture("Mistral", "decoder", hf("MistralForCausalLM", **LLAMA, sliding_window=5), text),
    Architecture("Mixtral", "decoder", hf("MixtralForCausalLM", **LLAMA, num_local_experts=4), text),
    Architecture("Qwen2", "decoder", hf("Qwen2ForCausalLM", **LLAMA), text),
    Architecture("Qwen3", "decoder", hf("Qwen3ForCausalLM", **LLAMA, head_dim=8), text),
    Architecture("Gemma 2", "decoder", hf("Gemma2ForCausalLM", **LLAMA, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0), text),
    Architecture("Gemma 3", "decoder", hf("Gemma3ForCausalLM", **LLAMA, head_dim=8, sliding_window=5), text),
    Architecture("gpt-oss", "decoder", hf("GptOssForCausalLM", **LLAMA, head_dim=8, sliding_window=5, num_local_experts=4), text),
    Architecture("Phi-3", "decoder", hf("Phi3ForCausalLM", **LLAMA, pad_token_id=0), text),
    Architecture("DeepSeek-V3", "decoder", hf("DeepseekV3ForCausalLM", **{**POSITIONS, "num_key_value_heads": 4}, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, v_head_dim=8, qk_nope_head_dim=8, first_k_dense_replace=1), text),
    Architecture("Falcon", "decoder", hf("FalconForCausalLM", **TEXT, alibi=False, new_decoder_architecture=False, multi_query=True), text),
    Architecture("BLOOM", "decoder", hf("BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=32, n_layer=3, n_head=4), text),
    Architecture("T5", "encoder-decoder", hf("T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4, decoder_start_token_id=0), source_and_target),
    Architecture("BART", "encoder-decoder", hf("BartForConditionalGeneration", **SEQ2SEQ), source_and_target),
    Architecture("Marian", "encoder-decoder", hf("MarianMTModel", **SEQ2SEQ, decoder_start_token_id=1), source_and_target),
    Architecture("ViT", "vision", hf("ViTModel", **IMAGE), image),
    Architecture("DeiT", "vision", hf("DeiTModel", **IMAGE), image),
    Architecture("DINOv2 with registers", "vision", hf("Dinov2WithRegistersModel", **{**IMAGE, "num_register_tokens": 3, "mlp_ratio": 2}), image),
    Architecture("BEiT", "vision", hf("BeitModel", **IMAGE), image),
    Architecture("Swin", "vision", hf("SwinModel", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4), image, returns=False),
    Architecture("CLIP, text", "two towers", clip, text, returns=False),
    Architecture("CLIP, image", "two towers", clip, image, returns=False),
    Architecture("wav2vec2", "audio", hf("Wav2Vec2Model", **TEXT, conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2), wave),
    Architecture("nn.TransformerEncoder", "plain", transformer_encoder, states, returns=False),
    Architecture("ViT in plain PyTorch (timm's manner)", "plain", plain_vit, image, returns=False),
]  # fmt: skip


def built(a: Architecture) -> Any:
    """Build the model as load() would: eager if it does not use the attention interface."""
    model = a.build()
    if hasattr(model, "set_attn_implementation") and not model._can_set_attn_implementation():
        model = a.build("eager")
    return model
