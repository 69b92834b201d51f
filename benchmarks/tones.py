"""Sounds whose words are tones at known times, and a Whisper model trained to transcribe them.

``python -m benchmarks.tones`` measures which view of attention finds the seconds of a written word. With ``--train
FOLDER`` it trains the model anew, on one core in three minutes. The weights are in ``benchmarks/tone-whisper``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

import attnflow as af
from attnflow.seconds import stretch
from benchmarks.command import run_command

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Floats = NDArray[np.float64]

WORDS = {"do": 300.0, "re": 440.0, "mi": 640.0, "fa": 930.0, "sol": 1360.0, "la": 1980.0}
"""Each word is a tone of its pitch, in Hz."""

RATE, SECONDS = 16000, 2
FOLDER = Path(__file__).parent / "tone-whisper"


@dataclass(frozen=True, eq=False)
class Spoken:
    """A sound: its waveform, its words, and the first and last second of each."""

    wave: NDArray[np.float32]
    words: tuple[str, ...]
    times: tuple[tuple[float, float], ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def speak(seed: int) -> Spoken:
    """Make one to four tones of 0.15 to 0.3 seconds, with pauses and background noise, in up to two seconds."""
    random = np.random.default_rng(seed)
    whole = float(random.uniform(1.4, SECONDS))
    wave = random.normal(0, 0.01, int(whole * RATE))
    words, times, at = [], [], float(random.uniform(0.0, 0.3))
    for _ in range(int(random.integers(1, 5))):
        length = float(random.uniform(0.15, 0.3))
        if at + length > whole:
            break
        word = str(random.choice(list(WORDS)))
        first, count = int(at * RATE), int(length * RATE)
        ramp = np.minimum(1, np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.02 * RATE))
        pitch = WORDS[word] * float(random.uniform(0.98, 1.02))
        tone = np.sin(2 * np.pi * pitch * np.arange(count) / RATE + random.uniform(0, 6))
        wave[first : first + count] += float(random.uniform(0.2, 0.5)) * ramp * tone
        words.append(word)
        times.append((at, at + length))
        at += length + float(random.uniform(0.05, 0.4))
    return Spoken(wave.astype(np.float32), tuple(words), tuple(times))


def processor() -> Any:
    """Return the feature extractor and the tokenizer of the model."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor, WhisperProcessor

    pieces = ["<pad>", "<start>", "<end>", "<unk>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 2)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<start>", eos_token="<end>", unk_token="<unk>"
    )
    extractor = WhisperFeatureExtractor(feature_size=20, chunk_length=SECONDS, sampling_rate=RATE)
    return WhisperProcessor(extractor, fast)


def config() -> Any:
    from transformers import WhisperConfig

    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return WhisperConfig(
        vocab_size=4 + len(WORDS), d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=20,
        max_source_positions=50 * SECONDS, max_target_positions=16, suppress_tokens=None, begin_suppress_tokens=None,
        **sizes, **tokens,
    )  # fmt: skip


def features(extractor: Any, wave: NDArray[np.float32]) -> Tensor:
    frames: Tensor = extractor(wave, sampling_rate=RATE, return_tensors="pt")["input_features"]
    return frames


def train(folder: Path, sounds: int = 4000, steps: int = 2000) -> None:
    """Train the model on sounds of the first seeds, and write it with its processor into a folder."""
    from transformers import WhisperForConditionalGeneration

    torch.set_num_threads(1)  # so that sums are the same everywhere
    torch.manual_seed(0)
    both = processor()
    spoken = [speak(seed) for seed in range(sounds)]
    frames = torch.cat([features(both.feature_extractor, one.wave) for one in spoken])
    ids = [both.tokenizer(one.text)["input_ids"] for one in spoken]
    width = max(map(len, ids))
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in ids])
    inputs = torch.tensor([[1, *row[:-1]] + [0] * (width - len(row)) for row in ids])
    model = WhisperForConditionalGeneration(config()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    random = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = torch.randint(sounds, (16,), generator=random)
        loss = model(input_features=frames[batch], decoder_input_ids=inputs[batch], labels=labels[batch]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.eval().save_pretrained(folder)
    both.feature_extractor.save_pretrained(folder)
    both.tokenizer.save_pretrained(folder)


def load() -> Model:
    """Load the trained model."""
    return af.load(FOLDER, device="cpu")


Views = dict[str, Floats]


def views(model: Model, one: Spoken) -> tuple[Trace, Views]:
    """Return a trace of what the model wrote, and for each view a row over the sound for every word."""
    trace = model.trace(one.wave, target=one.text, sampling_rate=RATE)
    first, count = trace.first_query, len(one.words)
    written = list(range(count))  # the position before a word predicts it
    cross = np.stack([np.asarray(trace.steps[end].weights[first:, :first], np.float64) for end in trace.ends])[
        :, :count
    ]
    rows: Views = {
        "cross-attention, upper half of the layers": np.asarray(trace.spoken().values[0]),
        "cross-attention, all layers": cross.mean(0),
        "cross-attention, first layer": cross[0],
        "rollout": trace.rollout(written, -1).values[0][:, :first],
        "rollout, residual 0.8": trace.rollout(written, -1, residual=0.8).values[0][:, :first],
        "gradient": gradients(model, one),
    }
    for window in (0.1, 0.2, 0.5):
        rows[f"blank-out, windows of {window} s"] = blanked(model, one, window)
    return trace, rows


def extractor(model: Model) -> Any:
    return model.processor.feature_extractor


def tokens(model: Model, one: Spoken) -> list[int]:
    tokenizer: Any = model.tokenizer
    ids: list[int] = tokenizer(one.text)["input_ids"]
    return ids


def gradients(model: Model, one: Spoken) -> Floats:
    """Return ``|∂ log-odds of the word / ∂ frames|``, summed over the frames of a position."""
    frames = features(extractor(model), one.wave).requires_grad_(True)
    ids = tokens(model, one)
    logits = model.model(input_features=frames, decoder_input_ids=torch.tensor([[1, *ids[:-1]]])).logits[0].double()
    rows = []
    for place in range(len(one.words)):
        others = logits[place].clone()
        others[ids[place]] = -torch.inf
        odds = logits[place, ids[place]] - others.logsumexp(-1)
        (slope,) = torch.autograd.grad(odds, frames, retain_graph=True)
        rows.append(slope[0].abs().sum(0).reshape(-1, 2).sum(1).double().numpy())
    return np.stack(rows)


def blanked(model: Model, one: Spoken, window: float) -> Floats:
    """Return what the log-probability of each word loses when a window of the sound is silenced.

    Windows overlap by half; the loss of a position is the mean over the windows that cover it.
    """
    ids = tokens(model, one)
    starts = np.arange(-window / 2, len(one.wave) / RATE, window / 2)
    waves = [one.wave]
    for start in starts:
        wave = one.wave.copy()
        wave[max(0, int(start * RATE)) : int((start + window) * RATE)] = 0
        waves.append(wave)
    frames = torch.cat([features(extractor(model), wave) for wave in waves])
    inputs = torch.tensor([[1, *ids[:-1]]]).expand(len(frames), -1)
    with torch.no_grad():
        chances = model.model(input_features=frames, decoder_input_ids=inputs).logits.double().log_softmax(-1)
    own = chances.gather(-1, torch.tensor(ids)[None, :, None].expand(len(frames), -1, 1))[..., 0].numpy()
    losses = own[0] - own[1:]  # [window, word]
    middles = np.arange(50 * SECONDS) / 50
    covers = (middles[:, None] >= starts) & (middles[:, None] < starts + window)  # [position, window]
    means: Floats = (covers @ losses / np.maximum(covers.sum(1), 1)[:, None]).T[: len(one.words)]
    return means


@dataclass(frozen=True)
class Figures:
    """The results of one view.

    peak: how often the highest value is within the word.
    within: the same for the middle of its stretch.
    share: the share of the row within the word.
    overlap: of stretch and word, relative to their union.
    """

    peak: float
    within: float
    share: float
    overlap: float


SLACK = 0.02
"""Seconds by which a peak may miss its word: the length of a position."""


def measure(model: Model, sounds: Sequence[Spoken]) -> dict[str, Figures]:
    """Measure how well each view finds the seconds of every word of these sounds."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    for one in sounds:
        trace, rows_by_view = views(model, one)
        assert trace.sound is not None
        spans = trace.sound.spans
        silent = np.array(trace.sound.padding)
        middles = np.array([(span[0] + span[1]) / 2 for span in spans if span is not None])
        for name, values in rows_by_view.items():
            for row, (start, end) in zip(values, one.times, strict=True):
                heard = np.where(silent, 0.0, row.clip(0))
                inside = (middles >= start - SLACK) & (middles <= end + SLACK)
                a, b, _ = stretch(spans, list(trace.sound.padding), heard)
                both = max(0.0, min(b, end) - max(a, start)) / (max(b, end) - min(a, start))
                middle = start - SLACK <= (a + b) / 2 <= end + SLACK
                part = float(heard[inside].sum() / (heard.sum() or 1.0))
                rows.setdefault(name, []).append((bool(inside[heard.argmax()]), middle, part, both))
    return {name: Figures(*np.mean(values, axis=0).round(3).tolist()) for name, values in rows.items()}


def written(model: Model, sounds: Sequence[Spoken]) -> float:
    """Return the fraction of the sounds that the model transcribes without a mistake."""
    right = [model.trace(one.wave, sampling_rate=RATE).text == one.text for one in sounds]
    return sum(right) / len(right)


UNSEEN = 1_000_000
"""The first seed of sounds that were not used in training."""


def unseen(count: int) -> list[Spoken]:
    return [speak(seed) for seed in range(UNSEEN, UNSEEN + count)]


def main(
    sounds: Annotated[int, typer.Option(help="Number of unseen sounds.")] = 100,
    train_into: Annotated[
        Path | None, typer.Option("--train", help="Train the model into this folder instead.")
    ] = None,
) -> None:
    """Measure which view finds the seconds of the words of a transcript."""
    from attnflow.capture.silence import silence

    silence()
    if train_into is not None:
        train(train_into)
        return
    model, spoken = load(), unseen(sounds)
    print(f"{written(model, spoken):.0%} of {sounds} unseen sounds are transcribed without a mistake")
    figures = measure(model, spoken)
    words = sum(len(one.words) for one in spoken)
    print(f"{words} words             peak in the word  stretch in the word  share in the word  overlap")
    for name, one in figures.items():
        print(f"{name:44} {one.peak:6.1%} {one.within:12.1%} {one.share:12.1%} {one.overlap:12.1%}")


if __name__ == "__main__":
    run_command(main)
