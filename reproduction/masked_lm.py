"""Training of a masked language model for Figure 4, for use without the hub's BERT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForMaskedLM

from attnflow.capture.hub import device_of
from attnflow.errors import InputError
from attnflow.jobs.progress import to_stderr
from attnflow.paper.data_files import data_file
from attnflow.texts.strict import read_lines
from reproduction import training

Head = Callable[[Tensor], Tensor]  # hidden states to word logits

WIDTHS = (32, 64, 128)  # short texts too, since pronouns are predicted in single sentences
CHANCE = 0.15


def train(
    data: str | Path,
    base: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    epochs: int = 30,
    rate: float = 5e-4,
    batch: int = 256,
    device: str | None = None,
    say: training.Say = to_stderr,
) -> dict[str, Any]:
    """Train `base` with a masked-LM head on text.train.txt in `data`; report loss and accuracy on text.test.txt.

    15 % of the tokens are predicted: 80 % of these are masked, 10 % replaced and 10 % left, drawn anew at every step.
    Consecutive sentences are packed into texts of up to 128 tokens. The output matrix is shared with the embedding.
    """
    out, files = Path(out), {name: data_file(data, f"text.{name}.txt") for name in ("train", "valid", "test")}
    training.claim(out)
    recipe = training.recipe_of("masked-lm", base, files, seed=seed, epochs=epochs, rate=rate, batch=batch)
    where = device_of(device)
    torch.manual_seed(seed)
    model, tokenizer = training.pretrained(AutoModelForMaskedLM, base)
    model = model.to(where)
    texts = {
        name: training.Texts(_packed(tokenizer, file, seed), tokenizer.pad_token_id, where)
        for name, file in files.items()
    }
    masking = Masking(tokenizer, where)

    def loss(index: training.Indices) -> Tensor:
        return masking.loss(model, head_of(model), texts["train"], index)

    best = training.fit_epochs(
        "masked-lm", model, texts["train"].lengths, loss,
        lambda judged: scores(judged, head_of(judged), masking, texts["valid"]), seed=seed, say=say, epochs=epochs,
        rate=rate, batch=batch, every=2,
    )  # fmt: skip
    training.save(model, tokenizer, out)
    held_out = {name: scores(model, head_of(model), masking, texts[name]) for name in ("valid", "test")}
    test = held_out["test"]
    say(f"masked-lm: loss {test['held_out_loss']:.3f}, top-1 {test['top1']:.4f} on the held-out text")
    return training.finish(out, {"recipe": recipe, "best": best, "held out": held_out}, where)


def pretrain(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Sequence[int]],
    *,
    seed: int,
    say: training.Say,
    epochs: int,
    rate: float,
    batch: int,
) -> training.Record:
    """Pretrain on masked words of texts, given as ids, with an output head that is discarded afterwards.

    One text in a hundred is held out for the scores.
    """
    count = max(1, len(rows) // 100)
    texts = training.Texts(rows[count:], tokenizer.pad_token_id, model.device)
    held_out = training.Texts(rows[:count], tokenizer.pad_token_id, model.device)
    masking = Masking(tokenizer, model.device)
    width = model.get_input_embeddings().embedding_dim
    torch.manual_seed(seed)
    whole = torch.nn.ModuleDict({"model": model, "word": torch.nn.Linear(width, width)}).to(model.device)

    def head(part: Any) -> Head:
        matrix = part["model"].get_input_embeddings().weight
        return lambda hidden: functional.linear(functional.gelu(part["word"](hidden)), matrix)

    return training.fit_epochs(
        "pretraining", whole, texts.lengths, lambda index: masking.loss(model, head(whole), texts, index),
        lambda part: scores(part["model"], head(part), masking, held_out), seed=seed, say=say, epochs=epochs, rate=rate,
        batch=batch, every=2,
    )  # fmt: skip


class Masking:
    """Chooses the tokens to predict, and predicts them."""

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError("the base's tokenizer has no mask token: give a BERT-like model")
        self.mask, self.size = tokenizer.mask_token_id, len(tokenizer)
        self.special = torch.tensor(tokenizer.all_special_ids, device=device)

    def loss(self, model: Any, head: Head, texts: training.Texts, index: training.Indices) -> Tensor:
        """Return the mean loss of a batch, for newly drawn tokens."""
        with training.autocast(texts.device):
            logits, tokens = self.predict(model, head, *texts.batch(index))
        return functional.cross_entropy(logits.float(), tokens)

    def predict(
        self, model: Any, head: Head, ids: Tensor, mask: Tensor, seed: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the logits [token to predict, vocabulary] and those tokens."""
        # Drawn on the CPU for held-out text, so that its numbers do not depend on the device.
        source = None if seed is None else torch.Generator().manual_seed(seed)
        drawn = torch.rand((3, *ids.shape), generator=source, device=ids.device if source is None else "cpu").to(
            ids.device
        )
        chosen = (drawn[0] < CHANCE) & ~torch.isin(ids, self.special)
        chosen[:, 1] |= ~chosen.any(-1)  # every text has something to predict, so that no batch is empty
        other = (drawn[2] * self.size).long()
        inputs = ids.where(~(chosen & (drawn[1] < 0.9)), other).masked_fill(chosen & (drawn[1] < 0.8), self.mask)
        hidden = model.base_model(input_ids=inputs, attention_mask=mask).last_hidden_state
        # The logits of all tokens would be by far the largest tensor.
        return head(hidden[chosen]), ids[chosen]


def head_of(model: Any) -> Head:
    """Return the function from hidden states to word logits."""
    for name in ("cls", "lm_head"):
        if hasattr(model, name):
            head: Head = getattr(model, name)
            return head
    raise InputError(f"{type(model).__name__} is not supported: expected a masked LM like BERT or RoBERTa")


def scores(model: Any, head: Head, masking: Masking, texts: training.Texts) -> dict[str, float]:
    """Return the mean loss and top-1 accuracy over the same tokens every time."""
    was = model.training
    model.eval()
    by_length = np.argsort(texts.lengths, kind="stable")
    total, hits, count = 0.0, 0, 0
    with torch.no_grad(), training.autocast(texts.device):
        for i in range(0, len(by_length), 256):
            ids, mask = texts.batch(by_length[i : i + 256])
            logits, tokens = masking.predict(model, head, ids, mask, i)
            total += float(functional.cross_entropy(logits.float(), tokens, reduction="sum"))
            hits += int((logits.argmax(-1) == tokens).sum())
            count += len(tokens)
    model.train(was)
    return {"score": -total / count, "held_out_loss": total / count, "top1": hits / count}


def read(path: str | Path) -> list[str]:
    """Return the lines of a text that are not empty."""
    lines = [line for _, line in read_lines(path)]
    if not lines:
        raise InputError(f"{str(path)!r} has no text: expected one sentence per line")
    return lines


def _packed(tokenizer: Any, path: Path, seed: int) -> list[list[int]]:
    """Pack consecutive sentences into texts of one of `WIDTHS` tokens."""
    draw = np.random.default_rng(seed)
    texts: list[list[int]] = [[]]
    widths = [w for w in WIDTHS if w <= tokenizer.model_max_length] or [tokenizer.model_max_length]
    width = int(draw.choice(widths))
    for ids in tokenizer(read(path), add_special_tokens=False, truncation=True, max_length=widths[-1] - 2)["input_ids"]:
        if texts[-1] and len(texts[-1]) + len(ids) > width - 2:
            texts.append([])
            width = int(draw.choice(widths))
        texts[-1] += ids
    return [[tokenizer.cls_token_id, *text, tokenizer.sep_token_id] for text in texts]
