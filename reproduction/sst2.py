"""Fine-tuning of a sentence classifier for Table 3, for use without the hub's DistilBERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from attnflow.capture.hub import device_of
from attnflow.jobs.progress import to_stderr
from attnflow.paper.data_files import Labelled, data_file, read_sst2
from reproduction import training

LABELS = ("negative", "positive")
LENGTH = 128  # tokens; longer texts are cut


def train(
    data: str | Path,
    base: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    epochs: int = 4,
    rate: float = 5e-5,
    batch: int = 64,
    averaging: float = 0.999,
    device: str | None = None,
    say: training.Say = to_stderr,
) -> dict[str, Any]:
    """Fine-tune `base` on train.tsv in the folder `data`, choose weights on dev.tsv, and report test.tsv.

    Files have columns sentence and label (0 negative, 1 positive); .tsv, .tsv.xz or .tsv.gz. Returns the contents of
    training.json.
    averaging: of the weights, see `training.fit`.
    """
    out, files = Path(out), {name: data_file(data, f"{name}.tsv") for name in ("train", "dev", "test")}
    training.claim(out)
    parts = {name: read_sst2(file) for name, file in files.items()}
    recipe = training.recipe_of("sst2", base, files, seed=seed, epochs=epochs, rate=rate, batch=batch)
    recipe |= {"averaging": averaging, "chosen by": "loss on dev"}
    model, tokenizer, best = fine_tune(
        "sst2", parts["train"], parts["dev"], base, labels=LABELS, seed=seed, epochs=epochs, rate=rate, batch=batch,
        averaging=averaging, by="loss", device=device, say=say,
    )  # fmt: skip
    training.save(model, tokenizer, out)
    scores = {name: accuracy(model, tokenizer, parts[name]) for name in ("dev", "test")}
    say(f"sst2: accuracy {scores['test']['accuracy']:.4f} on {scores['test']['count']} test sentences")
    return training.finish(out, {"recipe": recipe, "best": best, "accuracy": scores}, model.device)


def fine_tune(
    stage: str,
    train: Labelled,
    valid: Labelled,
    base: str | Path,
    *,
    labels: Sequence[str],
    seed: int,
    epochs: int,
    rate: float,
    batch: int,
    say: training.Say,
    averaging: float = 0.0,
    by: str = "accuracy",
    device: str | None = None,
) -> tuple[Any, Any, training.Record]:
    """Return a classifier with a new head on `base`, its tokenizer, and the record of its best evaluation on `valid`."""
    where = device_of(device)
    torch.manual_seed(seed)
    model, tokenizer = training.pretrained(
        AutoModelForSequenceClassification, base, num_labels=len(labels), id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
    )  # fmt: skip
    model = model.to(where)
    texts, classes = _encoded(tokenizer, train[0], where), torch.tensor(list(train[1]), device=where)
    valid_texts, truth = _encoded(tokenizer, valid[0], where), torch.tensor(list(valid[1]))

    def loss(index: training.Indices) -> Tensor:
        ids, mask = texts.batch(index)
        with training.autocast(where):
            logits = model(input_ids=ids, attention_mask=mask).logits
        return torch.nn.functional.cross_entropy(logits.float(), classes[torch.as_tensor(index, device=where)])

    best = training.fit_epochs(
        stage, model, texts.lengths, loss, lambda judged: training.score(judged, valid_texts, truth, by=by),
        seed=seed, say=say, epochs=epochs, rate=rate, batch=batch, every=0.5, averaging=averaging,
    )  # fmt: skip
    return model, tokenizer, best


def accuracy(model: Any, tokenizer: Any, part: Labelled) -> dict[str, Any]:
    """Return the fraction of texts whose likeliest class is the right one, with its interval."""
    classes = training.probabilities(model, _encoded(tokenizer, part[0], model.device)).argmax(-1)
    return training.share(bool(a == b) for a, b in zip(classes.tolist(), part[1], strict=True))


def _encoded(tokenizer: Any, texts: Sequence[str], device: torch.device) -> training.Texts:
    rows = tokenizer(list(texts), truncation=True, max_length=min(LENGTH, tokenizer.model_max_length))["input_ids"]
    return training.Texts(rows, tokenizer.pad_token_id, device)
