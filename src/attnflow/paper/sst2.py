"""Fine-tuning of a sentence classifier for Table 3, for use without the hub's DistilBERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError
from attnflow.jobs.progress import to_stderr
from attnflow.paper import training
from attnflow.paper.data_files import data_file, rows_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LABELS = ("negative", "positive")
LENGTH = 128  # tokens; longer texts are cut
Labelled = tuple[Sequence[str], Sequence[int]]


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
    half: bool = False,
    say: training.Say = to_stderr,
) -> dict[str, Any]:
    """Fine-tune `base` on train.tsv in the folder `data`, choose weights on dev.tsv, and report test.tsv.

    Files have columns sentence and label (0 negative, 1 positive); .tsv, .tsv.xz or .tsv.gz. Returns the contents of
    training.json.
    averaging: of the weights, see `training.fit`.
    half: save in half precision, which halves the file.
    """
    out, files = Path(out), {name: data_file(data, f"{name}.tsv") for name in ("train", "dev", "test")}
    training.claim(out)
    parts = {name: read(file) for name, file in files.items()}
    recipe = training.recipe_of("sst2", base, files, seed=seed, epochs=epochs, rate=rate, batch=batch)
    recipe |= {"averaging": averaging, "chosen by": "loss on dev"}
    run = training.Run(out, recipe, seed, say=say)
    model, tokenizer, best = fine_tune(
        run, "sst2", parts["train"], parts["dev"], base, labels=LABELS, epochs=epochs, rate=rate, batch=batch,
        averaging=averaging, by="loss", device=device,
    )  # fmt: skip
    training.save(model, tokenizer, out, half)
    scores = {name: accuracy(model, tokenizer, parts[name]) for name in ("dev", "test")}
    say(f"sst2: accuracy {scores['test']['accuracy']:.4f} on {scores['test']['count']} test sentences")
    return training.finish(out, {"recipe": recipe, "best": best, "accuracy": scores}, model.device)


def fine_tune(
    run: training.Run,
    stage: str,
    train: Labelled,
    valid: Labelled,
    base: str | Path,
    *,
    labels: Sequence[str],
    epochs: int,
    rate: float,
    batch: int,
    averaging: float = 0.0,
    by: str = "accuracy",
    device: str | None = None,
) -> tuple[Any, Any, training.Record]:
    """Return a classifier with a new head on `base`, its tokenizer, and the record of its best evaluation on `valid`."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from attnflow.capture.hub import device_of

    where = device_of(device)
    torch.manual_seed(run.seed)
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
        run, stage, model, texts.lengths, loss, lambda judged: training.score(judged, valid_texts, truth, by=by),
        epochs=epochs, rate=rate, batch=batch, every=0.5, averaging=averaging,
    )  # fmt: skip
    return model, tokenizer, best


def accuracy(model: Any, tokenizer: Any, part: Labelled) -> dict[str, Any]:
    """Return the fraction of texts whose likeliest class is the right one, with its interval."""
    classes = training.probabilities(model, _encoded(tokenizer, part[0], model.device)).argmax(-1)
    return training.share(bool(a == b) for a, b in zip(classes.tolist(), part[1], strict=True))


def read(path: str | Path) -> Labelled:
    """Read sentences and labels from a tab-separated file."""
    path = Path(path)
    sentences, labels = [], []
    for where, row in rows_of(path, ("sentence", "label")):
        if row["label"] not in ("0", "1"):
            raise InputError(f"{where}: label is {row['label']!r}; expected 0 (negative) or 1 (positive)")
        if not row["sentence"].strip():
            raise InputError(f"{where}: the sentence is empty; expected at least one word")
        sentences.append(row["sentence"].strip())
        labels.append(int(row["label"]))
    if len(set(labels)) < 2:
        raise InputError(f"{str(path)!r} has {len(labels)} lines of only one class: expected both 0 and 1")
    return sentences, labels


def _encoded(tokenizer: Any, texts: Sequence[str], device: torch.device) -> training.Texts:
    rows = tokenizer(list(texts), truncation=True, max_length=min(LENGTH, tokenizer.model_max_length))["input_ids"]
    return training.Texts(rows, tokenizer.pad_token_id, device)
