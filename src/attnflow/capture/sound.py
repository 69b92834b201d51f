"""Audio input: which seconds the positions of a model represent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.errors import InputError
from attnflow.seconds import Span

if TYPE_CHECKING:
    from attnflow.capture.inputs import Encoded
    from attnflow.capture.runner import Runner

CLASS_TOKENS = ("[CLS]", "[DIST]")
"""Tokens before the patches of a spectrogram."""

BINS = 600
"""Maximal number of bins of an envelope, which is the number of points on a page."""


@dataclass(frozen=True)
class Sound:
    """An audio input and its time axis.

    duration: in seconds, of the given audio; a model that needs more gets silence after it.
    envelope: the lowest and the highest value of the waveform in equal parts of the duration; empty if unknown.
    spans: for each position of the audio, its first and last second; None for class tokens. Spans leave no gaps, and
        surround the middle of what the position is computed from below the first attention, which may be longer.
    bands: how many positions represent the same time. Models that cut a spectrogram into patches have one for each band
        of frequencies, with the positions of the lowest band first.
    """

    duration: float
    envelope: tuple[Span, ...] = ()
    spans: tuple[Span | None, ...] = ()
    bands: int = 1

    @property
    def padding(self) -> tuple[bool, ...]:
        """Which positions represent only the silence after the audio."""
        return tuple(span is not None and span[0] >= self.duration for span in self.spans)


class Window(NamedTuple):
    """How a stage reads the one below: `size` entries for each of its own, `step` apart, padded by `before`."""

    size: int
    step: int
    before: int
    after: int

    def count(self, entries: int) -> int:
        return (entries + self.before + self.after - self.size) // self.step + 1


class Frames(NamedTuple):
    """How a feature extractor makes frames from samples.

    centred: whether the first frame is centred on the first sample.
    joined: how many frames are joined into one.
    axis: the time axis of the tensor.
    plane: the time axis of a convolution over a spectrogram.
    """

    centred: bool
    joined: int = 1
    axis: int = 1
    plane: int = 0


FRAMES = {
    "whisper": Frames(True, axis=2),
    "speech_to_text": Frames(False),
    "audio-spectrogram-transformer": Frames(False, plane=1),
    "wav2vec2-bert": Frames(False, joined=2),
    "parakeet_encoder": Frames(True),
    "parakeet_ctc": Frames(True),
}
"""By the type of the model, because an extractor's behaviour is in its code, not in a configuration."""

LENGTH, HOP = 400, 160
"""Samples per frame and between two frames, if the extractor does not say: 25 and 10 ms, as in Kaldi."""


def heard(wave: NDArray[np.float32], rate: int) -> Sound:
    """Build a sound from its waveform alone."""
    edges = np.linspace(0, len(wave), min(BINS, len(wave)) + 1).astype(int)[:-1]
    lows, highs = np.minimum.reduceat(wave, edges), np.maximum.reduceat(wave, edges)
    pairs = zip(lows.tolist(), highs.tolist(), strict=True)
    return Sound(len(wave) / rate, tuple((round(low, 4), round(high, 4)) for low, high in pairs))


def as_far_as_taken(model: Runner, encoded: Encoded, truncate: bool) -> Encoded:
    """Return the audio as far as the extractor read it; refuse if it was cut without ``truncate``."""
    frames, sound = FRAMES.get(_type(model)), encoded.sound
    values = next(iter(encoded.tensors.values()))
    if frames is None or sound is None or values.dim() != 3:
        return encoded
    window = _frame(model, frames)
    most = int(values.shape[frames.axis]) * frames.joined
    if window.count(round(sound.duration * encoded.rate)) <= most + frames.joined:  # some leave the last frame out
        return encoded
    limit = most * window.step / encoded.rate
    if not truncate:
        raise InputError(
            f"the audio has {sound.duration:.1f} seconds and the model takes {limit:.1f}: cut it, split it, or give "
            f"truncate=True to keep the first {limit:.1f} seconds"
        )
    kept = max(1, round(len(sound.envelope) * limit / sound.duration))
    return replace(encoded, sound=Sound(limit, sound.envelope[:kept]))


def sound_of(model: Runner, encoded: Encoded, positions: int) -> Sound | None:
    """Return the audio with the seconds of each position; None if there is no audio, or its positions are unknown.

    The windows of the extractor and of the convolutions before the first attention give the time of a position. They
    must lead to the same number of positions as attention has; otherwise the times are unknown.
    """
    tensors, sound, rate = encoded.tensors, encoded.sound, encoded.rate
    values = tensors.get("input_features", tensors.get("input_values"))
    frames = FRAMES.get(_type(model))
    if values is None or values.dim() not in (2, 3) or (values.dim() == 3) != (frames is not None):
        return None
    samples = int(values.shape[-1])
    first, count = Window(1, 1, 0, 0), samples
    if frames is not None:
        first, count = _frame(model, frames), int(values.shape[frames.axis])
        samples = count * frames.joined * first.step
        if frames.joined > 1:
            first = Window(first.size + (frames.joined - 1) * first.step, frames.joined * first.step, 0, 0)
    plane = frames.plane if frames is not None else 0
    windows = list(_convolutions(model.model, plane))
    if any(window is None for window in windows):
        return None
    for window in windows:
        assert window is not None
        count = window.count(count)
    bands = _bands(model.model, int(values.shape[-1])) if plane else 1
    extra = positions - bands * count
    if count < 1 or extra != (len(CLASS_TOKENS) if plane else 0):
        return None
    step, middle = 1.0, 0.5  # in samples; the first is from 0 to 1
    for window in (first, *(w for w in windows if w is not None)):
        middle += step * ((window.size - 1) / 2 - window.before)
        step *= window.step
    known = sound if sound is not None else heard(_wave(values), rate) if values.dim() == 2 else None
    whole = samples / rate if known is None else known.duration
    spans = [(max(0.0, middle + (i - 0.5) * step) / rate, (middle + (i + 0.5) * step) / rate) for i in range(count)]
    own = replace(known, bands=bands) if known is not None else Sound(whole, bands=bands)
    return replace(own, spans=(*(None,) * extra, *([(round(a, 6), round(b, 6)) for a, b in spans] * bands)))


def names_of(sound: Sound) -> tuple[list[str], list[bool]]:
    """Return the names of the positions, by their middle second, and which of them are special, such as padding."""
    extra = sound.spans.count(None)
    each = (len(sound.spans) - extra) // sound.bands
    names = list(CLASS_TOKENS[:extra])
    half = (sound.spans[-1][1] - sound.spans[-1][0]) / 2 if sound.spans[-1] is not None else 0.0
    for number, span in enumerate(sound.spans[extra:]):
        assert span is not None
        band = f" band {number // each + 1}" if sound.bands > 1 else ""
        names.append(f"{abs(round(span[1] - half, 2)):.2f}s{band}")  # the first may be cut at 0
    return names, [span is None or silent for span, silent in zip(sound.spans, sound.padding, strict=True)]


def _type(model: Runner) -> str:
    return str(getattr(model.config, "model_type", ""))


def _frame(model: Runner, frames: Frames) -> Window:
    extractor = getattr(model.processor, "feature_extractor", model.processor)
    size = int(getattr(extractor, "n_fft", None) or LENGTH) if frames.centred else LENGTH
    step = int(getattr(extractor, "hop_length", None) or HOP) if frames.centred else HOP
    around = size // 2 if frames.centred else 0
    return Window(size, step, around, around)


def _convolutions(model: torch.nn.Module, plane: int) -> Iterator[Window | None]:
    """Yield the convolutions below the first attention that move positions; None if the padding is not a number.

    plane: the time axis of those over a spectrogram.
    """
    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            return
        if not isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d):
            continue
        axis = plane if isinstance(module, torch.nn.Conv2d) else 0
        size, step, padding = module.kernel_size[axis], module.stride[axis], module.padding
        if isinstance(padding, str) or module.dilation[axis] != 1:
            yield None
        elif step > 1 or padding[axis] != size // 2:
            yield Window(size, step, int(padding[axis]), int(padding[axis]))


def _bands(model: torch.nn.Module, bins: int) -> int:
    """Return how many bands of frequencies the patches of a spectrogram have."""
    windows = list(_convolutions(model, 0))
    for window in windows:
        if window is not None:
            bins = window.count(bins)
    return bins


def _wave(values: Tensor) -> NDArray[np.float32]:
    row: NDArray[np.float32] = values[0].detach().float().cpu().numpy()
    return row
