"""Teachers: models whose probabilities a verb-number model learns to imitate.

Distillation at temperature 1: ``(1-d)·CE(gold, student) + d·CE(teacher, student)``. The authors' teacher is an LSTM; a
fine-tuned encoder, or several, knows more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attnflow.errors import InputError
from attnflow.paper import training
from attnflow.paper.agreement import NUMBERS, Example, parts_of, read
from attnflow.paper.data_files import file_hash
from attnflow.paper.sst2 import Labelled, accuracy, fine_tune, save


def train_lstm(
    texts: training.Texts,
    numbers: Any,
    valid: training.Texts,
    truth: Any,
    out: Path,
    *,
    size: int,
    recipe: dict[str, Any],
    seed: int,
    epochs: int,
    layers: int = 2,
    width: int = 256,
    dropout: float = 0.3,
    rate: float = 1e-3,
    batch: int = 512,
    resume: bool = True,
    say: training.Say = training.tell,
) -> tuple[Any, dict[str, Any]]:
    """An LSTM that reads the tokens from left to right and tells the number from its last state; and its best record."""
    import torch

    torch.manual_seed(seed)
    model = lstm(size, layers, width, dropout).to(texts.device)
    indices, count = training.order(texts.lengths, batch, seed)

    def loss(step: int) -> Any:
        index = indices(step)
        ids, mask = texts.batch(index)
        # Now and then a word is unknown, so that the teacher knows what to say of rare ones.
        unknown = (torch.rand(ids.shape, device=ids.device) < 0.05) & (ids > 4)
        logits = model(input_ids=ids.masked_fill(unknown, 1), attention_mask=mask).logits
        return torch.nn.functional.cross_entropy(logits, numbers[torch.as_tensor(index, device=ids.device)])

    best = training.fit(
        "lstm", model, training.adam(model, rate, 0.01), loss,
        lambda judged: training.score(judged, valid, truth), steps=epochs * count, every=count, out=out, seed=seed,
        recipe=recipe, rate=training.warmup_cosine(rate, epochs * count), averaging=0.99, resume=resume, say=say,
    )  # fmt: skip
    return model, best


def lstm(size: int, layers: int, width: int, dropout: float) -> Any:
    """Embedding, `layers` LSTM layers of `width`, and a classifier of the last token's state."""
    import torch
    from torch import nn

    class Lstm(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(size, width)
            self.drop = nn.Dropout(dropout)
            self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
            self.classifier = nn.Linear(width, len(NUMBERS))

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            states, _ = self.lstm(self.drop(self.embed(input_ids)))
            # Padding comes after the last token, and an LSTM does not look ahead.
            last = states[torch.arange(len(states), device=states.device), attention_mask.sum(-1) - 1]
            return SimpleNamespace(logits=self.classifier(self.drop(last)))

    return Lstm()


def train_encoder(
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
    half: bool = False,
    resume: bool = True,
    say: training.Say = training.tell,
) -> dict[str, Any]:
    """Fine-tunes `base` (such as a BERT) to tell the number from the plain words; a folder for ``teachers=`` there."""
    out, parts = Path(out), parts_of(read(data), data)
    training.claim(out)
    files = {"data": data} | ({"more": more} if more is not None else {})
    recipe = {
        "task": "verb-number teacher", "base": Path(base).name, "seed": seed, "epochs": epochs, "rate": rate,
        "batch": batch, "base weights": training.weights_hash(base),
        "data": {name: file_hash(file) for name, file in files.items()},
    }  # fmt: skip
    shown = parts["train"] + (read(more) if more is not None else [])
    model, tokenizer, best = fine_tune(
        "teacher", _labelled(shown), _labelled(parts["valid"]), base, out, labels=NUMBERS, recipe=recipe, seed=seed,
        epochs=epochs, rate=rate, batch=batch, device=device, resume=resume, say=say,
    )  # fmt: skip
    save(model, tokenizer, out, half)
    scores = {"valid": accuracy(model, tokenizer, _labelled(parts["valid"]))}
    return training.finish(out, {"recipe": recipe, "best": best, "accuracy": scores}, model.device)


def soft_targets(folders: Sequence[str | Path], examples: Sequence[Example], device: Any) -> Any:
    """[example, number]: the mean of the probabilities of the teachers in `folders`, from the plain words."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    total = torch.zeros(len(examples), len(NUMBERS))
    for folder in folders:
        tokenizer = training.pretrained(AutoTokenizer, folder)
        model = training.pretrained(AutoModelForSequenceClassification, folder, dtype=torch.float32).to(device)
        if [model.config.id2label.get(i) for i in range(len(NUMBERS))] != list(NUMBERS):
            raise InputError(
                f"the teacher {str(folder)!r} has the classes {list(model.config.id2label.values())}: expected "
                f"{list(NUMBERS)}; train_encoder makes such a teacher"
            )
        rows = tokenizer([" ".join(e.words) for e in examples], truncation=True, max_length=128)["input_ids"]
        total += training.probabilities(model, training.Texts(rows, tokenizer.pad_token_id, device))
    return total / len(folders)


def _labelled(examples: Sequence[Example]) -> Labelled:
    return [" ".join(e.words) for e in examples], [NUMBERS.index(e.number) for e in examples]
