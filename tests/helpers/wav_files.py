"""WAV files for tests."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def written(path: Path, samples: np.ndarray, size: int = 2, rate: int = 16000) -> Path:
    """Write samples [frame, channel] from -1 to 1 as a WAV file."""
    whole = np.round(samples * (2 ** (8 * size - 1) - 1)).astype(np.int64)
    data = (whole + 128).astype(np.uint8).tobytes() if size == 1 else b"".join(
        int(x).to_bytes(size, "little", signed=True) for x in whole.ravel()
    )  # fmt: skip
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(size)
        file.setframerate(rate)
        file.writeframes(data)
    return path
