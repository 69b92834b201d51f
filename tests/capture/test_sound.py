"""Sounds: files, the seconds of positions, and the beginning of a transcript."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture.sound import Sound
from attnflow.capture.wav import read_wav, resampled, scaled
from attnflow.errors import AttentionWarning, InputError
from deployments.sound_cells import RATE, Made, moonshine, sound, speech_to_text, wav2vec2_like, whisper
from helpers.wav_files import written


@pytest.mark.parametrize(("size", "within"), [(1, 1e-2), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_files_are_read_in_every_width(size: int, within: float, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.9, 0.9, (50, 2))
    ours, rate = read_wav(written(tmp_path / "a.wav", samples, size))
    assert rate == RATE and ours.dtype == np.float32
    np.testing.assert_allclose(ours, samples.mean(1), atol=within)


def test_another_rate_is_resampled() -> None:
    slow = np.sin(2 * np.pi * 100 * np.arange(8000) / 8000).astype(np.float32)
    fast = resampled(slow, 8000, RATE)
    assert len(fast) == 16000 and np.abs(fast[1000:15000:2] - slow[500:7500]).max() < 0.01


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    model, extractor, _ = wav2vec2_like("Wav2Vec2")()
    wrapped = af.wrap(model, extractor)
    with pytest.raises(InputError, match=r"there is no audio file 'no\.wav': expected the path of a WAV file"):
        wrapped.trace("no.wav")
    (tmp_path / "text.wav").write_text("not a sound")
    with pytest.raises(InputError, match=r"cannot be read as audio .* ffmpeg"):
        wrapped.trace(tmp_path / "text.wav")
    with pytest.raises(InputError, match="contains no audio"):
        wrapped.trace(written(tmp_path / "empty.wav", np.zeros((0, 1))))
    with pytest.raises(InputError, match="the audio has 8000 Hz and the model takes 16000"):
        wrapped.trace(sound(), sampling_rate=8000)


@pytest.mark.parametrize("cut", [1, 2, 1000])
def test_a_file_that_ends_early_is_refused(cut: int, tmp_path: Path) -> None:
    path = written(tmp_path / "s.wav", sound(1.0)[:, None].clip(-0.99, 0.99))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(
        InputError, match=r"s\.wav' ends early: it has (1\.00|0\.97) of 1\.00 seconds; copy or record it again"
    ):
        read_wav(path)


def test_a_stream_of_unknown_length_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "s.wav", sound(1.0)[:, None].clip(-0.99, 0.99))
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(read_wav(path)[0]) == RATE


@pytest.mark.parametrize(("dtype", "scale", "zero"), [("int16", 2**15, 0), ("int32", 2**31, 0), ("uint8", 2**7, 2**7)])
def test_integer_samples_are_scaled(dtype: str, scale: int, zero: int) -> None:
    wave = np.clip(sound(0.1), -0.99, 0.99)
    np.testing.assert_allclose(scaled((wave * scale + zero).round().astype(dtype)), wave, atol=1 / scale + 1e-6)


def test_what_is_no_waveform_is_refused() -> None:
    for samples, sentence in (
        (np.full(4000, np.nan, np.float32), "the audio contains NaN or infinite values: expected numbers from -1 to 1"),
        (
            np.arange(4000),
            "the audio is int64 with values up to 3999: expected floats from -1 to 1, or the samples of a file",
        ),
        (np.arange(4000.0), "the audio is float64 with values up to 3999"),
    ):
        with pytest.raises(InputError, match=sentence):
            scaled(samples)


def test_a_file_gives_what_its_waveform_gives(tmp_path: Path) -> None:
    model, extractor, _ = wav2vec2_like("Wav2Vec2")()
    path = written(tmp_path / "a.wav", sound().clip(-1, 1)[:, None], 3)
    wrapped = af.wrap(model, extractor)
    ours, truth = wrapped.trace(path), wrapped.trace(sound().clip(-1, 1), sampling_rate=RATE)
    np.testing.assert_allclose(ours.raw(0).values, truth.raw(0).values, atol=1e-5)
    assert ours.sound is not None and truth.sound is not None and ours.sound.spans == truth.sound.spans


def test_silence_after_the_sound_is_special() -> None:
    model, extractor, _ = whisper()
    trace = af.wrap(model, extractor).trace(sound(0.45), sampling_rate=RATE)
    assert trace.sound is not None and trace.sound.duration == 0.45
    assert trace.special[:50] == trace.sound.padding and sum(trace.sound.padding) == 27
    assert trace.tokens[:3] == ("0.00s", "0.02s", "0.04s") and not trace.special[22] and trace.special[23]
    alone = trace.raw(layer=-1).without_special()
    assert alone.seconds[0] == (0.0, 0.01) and alone.seconds[22] == (0.43, 0.45)


def test_truncate_keeps_the_beginning() -> None:
    model, extractor, _ = whisper()
    trace = af.wrap(model, extractor).trace(sound(1.5), sampling_rate=RATE, truncate=True)
    assert trace.sound is not None and trace.sound.duration == 1.0 and not any(trace.sound.padding)


def test_seconds_that_are_not_known_are_not_made_up() -> None:
    model, extractor, _ = wav2vec2_like("Wav2Vec2")()
    model.feature_extractor.conv_layers[3].conv.dilation = (2,)  # no rule covers this
    trace = af.wrap(model, extractor).trace(sound(), sampling_rate=RATE)
    assert trace.sound is None and trace.tokens[:2] == ("0", "1") and trace.raw(0).seconds == ()


def test_padding_is_what_begins_after_the_end() -> None:
    assert Sound(1.0, spans=(None, (0.5, 1.0), (0.9, 1.1), (1.0, 1.2))).padding == (False, False, False, True)


def test_a_transcript_begins_as_the_model_begins_it() -> None:
    """A multilingual Whisper first writes the language and that there are no time stamps."""
    model, extractor, _ = whisper()
    own = model.generation_config
    own.is_multilingual, own.lang_to_id, own.task_to_id = (
        True,
        {"<|en|>": 5, "<|de|>": 6},
        {"transcribe": 7, "translate": 8},
    )
    own.no_timestamps_token_id, own.max_length = 9, None
    encoded = af.wrap(model, extractor).encode(sound(), sampling_rate=RATE)
    ids = encoded.tensors["decoder_input_ids"][0].tolist()
    assert ids[0] == 1 and ids[1] in (5, 6) and ids[2] == 9 and len(ids) > 3
    with torch.no_grad():
        truth = model.generate(encoded.tensors["input_features"], max_new_tokens=8)[0].tolist()
    assert [i for i in truth if i not in (0, 2)] == [i for i in ids[3:] if i not in (0, 2)]


@pytest.mark.parametrize("make", [moonshine, speech_to_text, whisper], ids=lambda make: make.__name__)
def test_a_folder_gives_the_feature_extractor_too(make: Callable[[], Made], tmp_path: Path) -> None:
    model, extractor, _ = make()
    model.save_pretrained(tmp_path)
    extractor.save_pretrained(tmp_path)
    with warnings.catch_warnings():  # Moonshine's group norm has weights, but a sound of one position does not use it
        warnings.simplefilter("ignore", AttentionWarning)
        loaded = af.load(tmp_path, device="cpu")
    assert loaded.hears and loaded.trace(sound(), sampling_rate=RATE).sound is not None
