"""A sentence classifier, fine-tuned: Table 3's model, where the hub's DistilBERT cannot be had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnflow.capture.silence import silenced
from attnflow.errors import InputError
from attnflow.paper import training
from attnflow.paper.data_files import data_file, file_hash, rows_of

LABELS = ("negative", "positive")
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
    resume: bool = True,
    say: training.Say = training.tell,
) -> dict[str, Any]:
    """Fine-tunes `base` on train.tsv of the folder `data`, keeps the weights that dev.tsv likes best, and reports test.tsv.

    Files have columns sentence and label (0 negative, 1 positive); .tsv, .tsv.xz or .tsv.gz.
    averaging: of the weights, see `training.fit`. half: save in half precision, which halves the file.
    Returns what training.json says.
    """
    out, files = Path(out), {name: data_file(data, f"{name}.tsv") for name in ("train", "dev", "test")}
    training.claim(out)
    parts = {name: read(file) for name, file in files.items()}
    recipe = {
        "task": "sst2", "base": Path(base).name, "seed": seed, "epochs": epochs, "rate": rate, "batch": batch,
        "averaging": averaging, "chosen by": "loss on dev", "base weights": training.weights_hash(base),
        "data": {name: file_hash(file) for name, file in files.items()},
    }  # fmt: skip
    model, tokenizer, best = fine_tune(
        "sst2", parts["train"], parts["dev"], base, out, labels=LABELS, recipe=recipe, seed=seed, epochs=epochs,
        rate=rate, batch=batch, averaging=averaging, by="loss", device=device, resume=resume, say=say,
    )  # fmt: skip
    save(model, tokenizer, out, half)
    scores = {name: accuracy(model, tokenizer, parts[name]) for name in ("dev", "test")}
    say(f"sst2: accuracy {scores['test']['accuracy']:.4f} on {scores['test']['count']} test sentences")
    return training.finish(out, {"recipe": recipe, "best": best, "accuracy": scores}, model.device)


def fine_tune(
    stage: str,
    train: Labelled,
    valid: Labelled,
    base: str | Path,
    out: Path,
    *,
    labels: Sequence[str],
    recipe: dict[str, Any],
    seed: int,
    epochs: int,
    rate: float,
    batch: int,
    averaging: float = 0.0,
    by: str = "accuracy",
    length: int = 128,
    device: str | None = None,
    resume: bool = True,
    say: training.Say = training.tell,
) -> tuple[Any, Any, dict[str, Any]]:
    """A classifier with a fresh head on `base`, its tokenizer, and the record of its best evaluation on `valid`."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    where = training.place(device)
    torch.manual_seed(seed)
    tokenizer = training.pretrained(AutoTokenizer, base)
    names = dict(enumerate(labels))
    model = training.pretrained(
        AutoModelForSequenceClassification, base, num_labels=len(labels), id2label=names,
        label2id={name: i for i, name in names.items()}, dtype=torch.float32,
    ).to(where)  # fmt: skip
    texts, answers = _encoded(tokenizer, train[0], length, where), torch.tensor(list(train[1]), device=where)
    held, truth = _encoded(tokenizer, valid[0], length, where), torch.tensor(list(valid[1]))
    indices, count = training.order(texts.lengths, batch, seed)

    def loss(step: int) -> Any:
        index = indices(step)
        ids, mask = texts.batch(index)
        with training.autocast(where):
            logits = model(input_ids=ids, attention_mask=mask).logits
        return torch.nn.functional.cross_entropy(logits.float(), answers[torch.as_tensor(index, device=where)])

    best = training.fit(
        stage, model, training.adam(model, rate, 0.01), loss,
        lambda judged: training.score(judged, held, truth, by=by), steps=epochs * count, every=max(1, count // 2), out=out,
        seed=seed, rate=training.warmup_cosine(rate, epochs * count), recipe=recipe,
        averaging=averaging, resume=resume, say=say,
    )  # fmt: skip
    return model, tokenizer, best


def save(model: Any, tokenizer: Any, out: Path, half: bool) -> None:
    """The folder that ``from_pretrained`` reads."""
    import torch

    with silenced():
        (model.to(torch.float16) if half else model).save_pretrained(out)
        tokenizer.save_pretrained(out)
    model.float()


def accuracy(model: Any, tokenizer: Any, part: Labelled, length: int = 128) -> dict[str, Any]:
    """The share of texts whose likeliest class is the right one, with its interval."""
    said = training.probabilities(model, _encoded(tokenizer, part[0], length, model.device)).argmax(-1)
    return training.share(bool(a == b) for a, b in zip(said.tolist(), part[1], strict=True))


def read(path: str | Path) -> Labelled:
    """Sentences and labels of a tab-separated file."""
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
        raise InputError(f"{str(path)!r} has {len(labels)} lines of one class only: expected both 0 and 1")
    return sentences, labels


def _encoded(tokenizer: Any, texts: Sequence[str], length: int, device: Any) -> training.Texts:
    rows = tokenizer(list(texts), truncation=True, max_length=min(length, tokenizer.model_max_length))["input_ids"]
    return training.Texts(rows, tokenizer.pad_token_id, device)
