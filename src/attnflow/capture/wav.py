"""Reading of WAV files."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError

Wave = NDArray[np.float32]

UNKNOWN = 1 << 31
"""Bytes of audio in the header of a WAV file from which on it is a stream: its length was not known when it was written."""

LOUDEST = 256
"""Floats above this are samples that were read as integers: a waveform goes from -1 to 1, or a little beyond."""


def read_wav(path: str | Path) -> tuple[Wave, int]:
    """Read the waveform of a WAV file, from -1 to 1, and its rate in Hz. Several channels are averaged."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, size, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            frames = file.getnframes()
            data = file.readframes(frames)
    except FileNotFoundError:
        raise InputError(f"there is no audio file {str(path)!r}: expected the path of a WAV file") from None
    except (wave.Error, EOFError, OSError) as e:
        raise InputError(
            f"{str(path)!r} cannot be read as audio ({str(e) or 'it ends early'}): expected a WAV file with integer "
            "samples (PCM); ffmpeg -i SOUND -ac 1 -ar 16000 -c:a pcm_s16le sound.wav makes one"
        ) from None
    frame = channels * size
    if len(data) < frames * frame < UNKNOWN - frame:
        raise InputError(
            f"{str(path)!r} ends early: it has {len(data) // frame / rate:.2f} of {frames / rate:.2f} seconds; copy or "
            "record it again"
        )
    data = data[: len(data) // frame * frame]
    if size == 1:  # the only unsigned format
        values = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif size == 3:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
        values = whole.astype(np.float32) / 2**23
    else:
        values = np.frombuffer(data, f"<i{size}").astype(np.float32) / 2 ** (8 * size - 1)
    samples = values.reshape(-1, channels).mean(1)
    if not samples.size:
        raise InputError(f"{str(path)!r} contains no audio: expected a WAV file with at least one sample")
    return samples.astype(np.float32), rate


def scaled(samples: NDArray[Any]) -> Wave:
    """Return a waveform as floats from -1 to 1. Integers of 1, 2 or 4 bytes have the whole range of their type."""
    if samples.dtype == np.uint8:
        return (samples / 128 - 1).astype(np.float32)
    if samples.dtype in (np.int16, np.int32):
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    wave = samples.astype(np.float32)
    if not np.isfinite(wave).all():
        raise InputError("the audio contains NaN or infinite values: expected numbers from -1 to 1")
    loudest = float(np.abs(wave).max(initial=0))
    if loudest > LOUDEST or (samples.dtype.kind in "iu" and loudest > 1):
        raise InputError(
            f"the audio is {samples.dtype} with values up to {loudest:.4g}: expected floats from -1 to 1, or the samples "
            "of a file as uint8, int16 or int32"
        )
    return wave


def resampled(samples: Wave, rate: int, wanted: int) -> Wave:
    """Return the audio at another sampling rate."""
    if rate == wanted:
        return samples
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise InputError(
            f"the audio has {rate} Hz and the model takes {wanted}: resample it first, or install scipy to have it "
            "resampled"
        ) from None
    common = np.gcd(rate, wanted)
    return np.asarray(resample_poly(samples, wanted // common, rate // common), np.float32)
