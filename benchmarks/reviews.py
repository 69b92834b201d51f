"""A small classifier of made-up reviews, trained in seconds for the gallery.

A review is positive if its last clause is: "the music was good but the film was not good" is negative. Negation counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import attnflow as af

if TYPE_CHECKING:
    from attnflow.model import Model

THINGS = ("film", "plot", "music", "acting", "ending", "camera")
GOOD = ("good", "funny", "moving", "clever", "lovely")
BAD = ("bad", "dull", "weak", "silly", "awful")
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LABELS = ("negative", "positive")


def review(random: np.random.Generator) -> tuple[str, int]:
    """Return a review of one or two clauses, and its label."""
    clauses, label = [], 0
    for thing in random.choice(THINGS, int(random.integers(1, 3)), replace=False):
        good, negated = bool(random.integers(2)), bool(random.integers(2))
        degree = random.choice(["", "very ", "rather "])
        word = random.choice(GOOD if good else BAD)
        clauses.append(f"the {thing} was {'not ' if negated else ''}{degree}{word}")
        label = int(good != negated)
    return " but ".join(clauses), label


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ("the", "was", "not", "very", "rather", "but", *THINGS, *GOOD, *BAD)
    numbers = {word: number for number, word in enumerate([*MARKS, *words])}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[UNK]", model_max_length=32,
    )  # fmt: skip


def trained(steps: int = 240, seed: int = 0) -> tuple[Model, float]:
    """Return the classifier, and the share of 500 new reviews that it gets right."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)), label2id={name: number for number, name in enumerate(LABELS)},
    )  # fmt: skip
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch(count: int) -> dict[str, Any]:
        texts, labels = zip(*(review(random) for _ in range(count)), strict=True)
        return {**words(list(texts), padding=True, return_tensors="pt"), "labels": torch.tensor(labels)}

    for _ in range(steps):
        loss = model(**batch(64)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        new = batch(500)
        right = (model(**new).logits.argmax(-1) == new["labels"]).float().mean()
    return af.wrap(model, words, name="reviews"), float(right)
