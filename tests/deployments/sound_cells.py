"""Sound models: the seconds of their positions, compared with the effect of an impulse moved through the sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import attnflow as af
from deployments.cells import Cell, Outcome, compared

GROUP = "Sound and its seconds"

RATE = 16000
GRID = 16
"""Samples between two impulses: one millisecond."""

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CONVS = {"conv_dim": [8] * 7, "num_feat_extract_layers": 7, "feat_extract_norm": "layer"}
POSITIONS = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
BOTH = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
SEQ2SEQ = {**BOTH, "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 40}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

Made = tuple[Any, Any, str]
"""A model, its feature extractor, and the module whose input positions do not yet depend on their neighbours."""


def built(name: str, config: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, name)(config).eval()


def raw_extractor() -> Any:
    return transformers.Wav2Vec2FeatureExtractor(do_normalize=False)


def wav2vec2_like(name: str) -> Callable[[], Made]:
    def make() -> Made:
        config = getattr(transformers, f"{name}Config")(**SIZES, **CONVS, **POSITIONS)
        return built(f"{name}Model", config), raw_extractor(), "feature_projection"

    return make


def whisper() -> Made:
    config = transformers.WhisperConfig(
        **SEQ2SEQ, **TOKENS, num_mel_bins=8, max_source_positions=50, max_target_positions=16, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    return built("WhisperForConditionalGeneration", config), extractor, "model.encoder.layers.0"


def moonshine() -> Made:
    layers = {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
    heads = {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4}
    config = transformers.MoonshineConfig(
        **layers, **heads, vocab_size=40, hidden_size=32, intermediate_size=48, max_position_embeddings=24,
        encoder_num_key_value_heads=4, decoder_num_key_value_heads=4, **TOKENS,
    )  # fmt: skip
    model = built("MoonshineForConditionalGeneration", config)
    model.model.encoder.groupnorm = torch.nn.Identity()  # it would change every position
    return model, raw_extractor(), "model.encoder.layers.0"


def speech_to_text() -> Made:
    config = transformers.Speech2TextConfig(
        **SEQ2SEQ,
        **TOKENS,
        input_feat_per_channel=16,
        conv_kernel_sizes=(3, 3),
        conv_channels=16,
        max_target_positions=16,
    )
    extractor = transformers.Speech2TextFeatureExtractor(
        feature_size=16, num_mel_bins=16, do_ceptral_normalize=False
    )  # normalisation uses the whole sound too
    return built("Speech2TextForConditionalGeneration", config), extractor, "model.encoder.layers.0"


def ast() -> Made:
    config = transformers.ASTConfig(
        **SIZES, patch_size=4, frequency_stride=3, time_stride=3, num_mel_bins=16, max_length=48
    )
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=16, max_length=48)
    return built("ASTForAudioClassification", config), extractor, "audio_spectrogram_transformer.layers.0"


def sound(seconds: float = 0.45) -> np.ndarray:
    """Return noise with an end louder than any impulse, because some extractors scale by the loudest part."""
    wave = np.random.default_rng(0).normal(0, 0.05, int(seconds * RATE)).astype(np.float32)
    wave[-RATE // 50 :] *= 18
    return wave


def states(made: Made, waves: list[np.ndarray]) -> np.ndarray:
    """Return the input of the named module, [wave, position, feature]."""
    model, extractor, path = made
    name = model.main_input_name
    tensors = torch.cat([torch.as_tensor(extractor(w, sampling_rate=RATE, return_tensors="pt")[name]) for w in waves])
    seen: list[torch.Tensor] = []
    hook = model.get_submodule(path).register_forward_pre_hook(lambda module, args: seen.append(args[0].double()))
    more = {"decoder_input_ids": torch.ones(len(waves), 1, dtype=torch.long)} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        model(**{name: tensors}, **more)
    hook.remove()
    return seen[0].numpy()


def middles(made: Made) -> dict[int, float]:
    """Return the middle of the seconds in which an impulse changes a position, if impulses surround it."""
    wave = sound()
    places = np.arange(int(0.12 * RATE), int(0.3 * RATE), GRID)
    waves = [wave]
    for place in places:
        waves.append(wave.copy())
        waves[-1][place] += 0.2
    values = states(made, waves)
    changed = np.abs(values[1:] - values[0]).max(-1)  # [impulse, position]
    found = {}
    for position in range(changed.shape[1]):
        touching = np.flatnonzero(changed[:, position] > 1e-4 * changed.max())
        if len(touching) and touching[0] > 0 and touching[-1] < len(places) - 1:
            found[position] = float(places[touching[0]] + places[touching[-1]] + 1) / 2 / RATE
    return found


def seconds(make: Callable[[], Made]) -> Callable[[Path], Outcome]:
    """Compare the middle of each position's seconds with the one found by impulses."""

    def run(folder: Path) -> Outcome:
        truth = middles(make())
        assert len(truth) >= 3, "the impulses surround too few positions"

        def ours() -> dict[str, np.ndarray]:
            model, extractor, _ = make()
            heard = af.wrap(model, extractor).trace(sound(), sampling_rate=RATE).sound
            assert heard is not None and abs(heard.duration - len(sound()) / RATE) < 1e-9
            spans = [heard.spans[position] for position in truth]
            return {"middle": np.array([(span[0] + span[1]) / 2 for span in spans if span is not None])}

        return compared(ours, lambda: {"middle": np.array(list(truth.values()))})

    return run


def too_long(folder: Path) -> Outcome:
    def ours() -> dict[str, np.ndarray]:
        model, extractor, _ = whisper()
        return {"raw": af.wrap(model, extractor).trace(sound(1.5), sampling_rate=RATE).raw().values}

    return compared(ours, dict)


WITHIN = 0.005
"""Relative to the latest middle, about 0.3 seconds: the resolution of the impulses."""

NOTE = "the middle of what an impulse changes"

CELLS = [
    *(
        Cell(GROUP, name, seconds(make), within=WITHIN, note=NOTE)
        for name, make in {
            "wav2vec2": wav2vec2_like("Wav2Vec2"),
            "HuBERT": wav2vec2_like("Hubert"),
            "WavLM": wav2vec2_like("WavLM"),
            "data2vec, audio": wav2vec2_like("Data2VecAudio"),
            "UniSpeech": wav2vec2_like("UniSpeech"),
            "Whisper": whisper,
            "Moonshine": moonshine,
            "Speech2Text": speech_to_text,
            "AST, patches of time and frequency": ast,
        }.items()
    ),
    Cell(
        GROUP, "Whisper, audio longer than its window", too_long,
        refusal="the audio has 1.5 seconds and the model takes 1.0: cut it, split it, or give truncate=True",
    ),
]  # fmt: skip
