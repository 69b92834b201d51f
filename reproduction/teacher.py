"""Teachers: models whose probabilities a verb-number model learns to imitate.

Distillation at temperature 1: ``(1-d)·CE(gold, student) + d·CE(teacher, student)``. The authors' teacher is an LSTM;
one or several fine-tuned encoders are better teachers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from attnflow.errors import InputError
from attnflow.jobs.progress import to_stderr
from attnflow.paper.agreement import NUMBERS, Example, read
from attnflow.paper.data_files import Labelled
from reproduction import training
from reproduction.examples import parts_of
from reproduction.sst2 import accuracy, fine_tune


def train_lstm(
    texts: training.Texts,
    numbers: Tensor,
    valid: training.Texts,
    truth: Tensor,
    *,
    size: int,
    seed: int,
    epochs: int,
    say: training.Say,
) -> tuple[Any, training.Record]:
    """Train an LSTM that reads the tokens from left to right and predicts the number; return it and its best record."""
    torch.manual_seed(seed)
    model = Lstm(size, layers=2, width=256, dropout=0.3).to(texts.device)

    def loss(index: training.Indices) -> Tensor:
        ids, mask = texts.batch(index)
        # Some words are made unknown, so that the teacher learns to handle rare ones.
        unknown = (torch.rand(ids.shape, device=ids.device) < 0.05) & (ids > 4)
        logits = model(input_ids=ids.masked_fill(unknown, 1), attention_mask=mask).logits
        return nn.functional.cross_entropy(logits, numbers[torch.as_tensor(index, device=ids.device)])

    best = training.fit_epochs(
        "lstm", model, texts.lengths, loss, lambda judged: training.score(judged, valid, truth), seed=seed, say=say,
        epochs=epochs, rate=1e-3, batch=512, averaging=0.99,
    )  # fmt: skip
    return model, best


class Lstm(nn.Module):  # type: ignore[misc]  # torch has no types here
    """An embedding, `layers` LSTM layers of `width`, and a classifier of the last token's state."""

    def __init__(self, size: int, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, width)
        self.drop = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.classifier = nn.Linear(width, len(NUMBERS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        states, _ = self.lstm(self.drop(self.embed(input_ids)))
        # Padding comes after the last token, and an LSTM does not look ahead.
        last = states[torch.arange(len(states), device=states.device), attention_mask.sum(-1) - 1]
        return SimpleNamespace(logits=self.classifier(self.drop(last)))


def train(
    data: str | Path,
    base: str | Path,
    out: str | Path,
    *,
    more: str | Path | None = None,
    seed: int = 0,
    epochs: int = 2,
    rate: float = 1e-4,
    batch: int = 128,
    device: str | None = None,
    say: training.Say = to_stderr,
) -> dict[str, Any]:
    """Fine-tune `base` (such as a BERT) to predict the number from the plain words, as a teacher."""
    out, parts = Path(out), parts_of(read(data), data)
    training.claim(out)
    files = {"data": data} | ({"more": more} if more is not None else {})
    recipe = training.recipe_of("verb-number teacher", base, files, seed=seed, epochs=epochs, rate=rate, batch=batch)
    examples = parts["train"] + (read(more) if more is not None else [])
    model, tokenizer, best = fine_tune(
        "teacher", _labelled(examples), _labelled(parts["valid"]), base, labels=NUMBERS, seed=seed, epochs=epochs,
        rate=rate, batch=batch, device=device, say=say,
    )  # fmt: skip
    training.save(model, tokenizer, out)
    scores = {"valid": accuracy(model, tokenizer, _labelled(parts["valid"]))}
    return training.finish(out, {"recipe": recipe, "best": best, "accuracy": scores}, model.device)


def soft_targets(folders: Sequence[str | Path], examples: Sequence[Example], device: torch.device) -> Tensor:
    """Return [example, number]: the mean probabilities of the teachers in `folders`, from the plain words."""
    total = torch.zeros(len(examples), len(NUMBERS))
    for folder in folders:
        model, tokenizer = training.pretrained(AutoModelForSequenceClassification, folder)
        model = model.to(device)
        if [model.config.id2label.get(i) for i in range(len(NUMBERS))] != list(NUMBERS):
            raise InputError(
                f"the teacher {str(folder)!r} has the classes {list(model.config.id2label.values())}: expected "
                f"{list(NUMBERS)}; `python -m reproduction teacher` trains such a teacher"
            )
        rows = tokenizer([" ".join(e.words) for e in examples], truncation=True, max_length=128)["input_ids"]
        total += training.probabilities(model, training.Texts(rows, tokenizer.pad_token_id, device))
    return total / len(folders)


def _labelled(examples: Sequence[Example]) -> Labelled:
    return [" ".join(e.words) for e in examples], [NUMBERS.index(e.number) for e in examples]
