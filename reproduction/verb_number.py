"""The paper's verb-number model: 6 layers, 8 heads, width 128, GPT-2 blocks without the causal mask, [CLS] first.

It is a stock `transformers.GPT2ForTokenClassification` with ``is_causal=False``, so that its folder loads anywhere. The
class is read at [CLS], position 0. The input is ``[CLS] words… [EOS]``, with one token per word and rare words replaced
by their tag.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn import functional
from transformers import (
    AutoModelForTokenClassification,
    GPT2Config,
    GPT2ForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from attnflow.capture.hub import device_of
from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.jobs.progress import to_stderr
from attnflow.paper.agreement import NUMBERS, Example, encode, read
from attnflow.paper.data_files import file_hash
from reproduction import masked_lm, teacher, training
from reproduction.card import card
from reproduction.examples import parts_of, read_linzen_subset
from reproduction.quiet import silenced

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[EOS]", "[MASK]")
PAD, UNK, CLS, EOS, MASK = range(len(SPECIAL))
LABELS = dict(enumerate(NUMBERS))
PLAIN: dict[str, Any] = {
    "layers": 6, "heads": 8, "width": 128, "positions": 64,
    "vocabulary": 10_000, "adopted": 0,  # words; and words that receive the embedding of their tag after training
    "tag_words": 100,  # a tag is in the vocabulary if this many rare words of the training data have it
    "residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1, "init": 0.02,
    "rate": 1.5e-3, "decay": 0.01, "coupled_decay": False, "batch": 1024, "epochs": 20,
    "cycle": 0,  # epochs of the first cosine, each next one twice as long; 0 is one cosine with warm-up
    "averaging": 0.999,  # of the weights
    "pretrain": 0,  # epochs of masked words
    "more_weight": 0.5,  # of the number in `more`
    "refine": 0.25,  # the fraction of steps, at the end, without `more`
    "unknown_words": 0.05, "unknown_tags": 0.2, "words_as_tags": 0.05,  # probabilities at every step
    "tagging": 0.0, "pointing": 0.0,  # loss weights for every word's tag and for the position of the subject
    "teacher": None, "teacher_epochs": 8, "distillation": 0.9,
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    # Predicting tags and subjects too is what makes the model look past the nearest noun; masked words and teachers
    # help. The vocabulary is what fits into 6 MB of weights.
    "best": {
        **PLAIN, "vocabulary": 13_000, "adopted": 1020, "pretrain": 25, "epochs": 24, "tagging": 0.2, "pointing": 0.1,
    },
    # What the authors' code does: an LSTM teacher, strong dropout, none of our additions. Their rate of 1e-4 and first
    # cosine of 10,000 steps are for batches of 64.
    "authors": {
        **PLAIN, "residual_dropout": 0.4, "embedding_dropout": 0.2, "attention_dropout": 0.6, "init": 0.05,
        "rate": 4e-4, "decay": 1e-4, "coupled_decay": True, "batch": 256, "epochs": 28, "cycle": 4, "averaging": 0.0,
        "more_weight": 1.0, "refine": 0.0, "unknown_words": 0.0, "unknown_tags": 0.0, "words_as_tags": 0.0,
        "teacher": "lstm",
    },
}  # fmt: skip


def train(
    data: str | Path,
    out: str | Path,
    *,
    recipe: str = "best",
    more: str | Path | None = None,
    text: str | Path | None = None,
    teachers: Sequence[str | Path] = (),
    linzen: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    say: training.Say = to_stderr,
    **changes: Any,
) -> dict[str, Any]:
    """Train the model on the split "train" of `data`, choose on "valid", and report "test".

    Returns the contents of training.json.
    more: further examples for training.
    text: plain sentences, one per line, for the vocabulary and for pretraining with masked words.
    teachers: folders of `teacher.train`, whose mean is imitated.
    linzen: a folder of the Linzen subset, only reported.
    recipe: "best", "authors" or "plain".
    changes: other values for its settings.
    """
    out, settings = Path(out), settings_of(recipe, changes)
    training.claim(out)
    for folder in teachers:
        if not (Path(folder) / "config.json").is_file():
            raise InputError(
                f"the teacher {str(folder)!r} is not a model folder: expected one of `python -m reproduction teacher`"
            )
    parts = parts_of(read(data), data)
    files = {"data": data, "more": more, "text": text, "linzen": linzen}
    hashes = {name: file_hash(file) for name, file in files.items() if file is not None}
    hashes |= {f"teacher {i}": str(training.weights_hash(folder)) for i, folder in enumerate(teachers)}
    key = {"task": "verb-number", "recipe": recipe, "seed": seed, "settings": settings, "data": hashes}
    where = device_of(device)
    extra = read(more) if more is not None else []
    elsewhere = read_linzen_subset(Path(linzen)) if linzen is not None else []
    sentences = [line.lower().split() for line in masked_lm.read(text)] if text is not None else []
    tags, words = vocabulary_of([*parts["train"], *extra], settings["vocabulary"], settings["tag_words"], sentences)
    tokenizer = tokenizer_of(tags, words, settings["positions"])
    torch.manual_seed(seed)
    model = model_of(tokenizer, settings).to(where)
    stages: dict[str, Any] = {}
    if settings["pretrain"] and sentences:
        vocabulary, longest = tokenizer.get_vocab(), settings["positions"] - 2
        rows = [[CLS, *(vocabulary.get(w, UNK) for w in s[:longest]), EOS] for s in sentences if len(s) > 2]
        stages["pretraining"] = masked_lm.pretrain(
            model, tokenizer, rows, seed=seed, say=say, epochs=settings["pretrain"], rate=settings["rate"],
            batch=settings["batch"],
        )  # fmt: skip
    examples = [*parts["train"], *extra]
    shown = Prefixes(examples, tokenizer, where)
    valid = Prefixes(parts["valid"], tokenizer, where)
    shown.weights[len(parts["train"]) :] = settings["more_weight"]
    if teachers:
        shown.soft = teacher.soft_targets(teachers, examples, where).to(where)
    elif settings["teacher"] == "lstm":
        taught, stages["lstm"] = teacher.train_lstm(
            shown, shown.numbers, valid, valid.numbers.cpu(), size=len(tokenizer), seed=seed, say=say,
            epochs=settings["teacher_epochs"],
        )  # fmt: skip
        shown.soft = training.probabilities(taught, shown).to(where)
    stages["verb-number"] = _learn(model, shown, valid, len(parts["train"]), settings, seed, say)
    before = len(tokenizer)
    if settings["adopted"]:
        tokenizer = adopt(model, tokenizer, [*parts["train"], *extra], settings["adopted"], sentences)
    save(model, tokenizer, out)
    model, tokenizer = load(out, where)
    scores = {name: accuracy(model, tokenizer, parts[name]) for name in ("valid", "test") if parts[name]}
    if elsewhere:
        scores["linzen"] = accuracy(model, tokenizer, elsewhere)
    for name, groups in scores.items():
        shares = (f"{group} {part['accuracy']:.4f}" for group, part in groups.items() if part["count"])
        say(f"verb-number: accuracy on {name} by attractors: {', '.join(shares)}")
    report = {
        **key, "parameters": sum(w.numel() for w in model.parameters()), "stages": stages, "accuracy": scores,
        "examples": {"train": len(parts["train"]), "more": len(extra)}, "adopted": len(tokenizer) - before,
    }  # fmt: skip
    whole_report = training.finish(out, report, where)
    write_whole(out / "README.md", lambda beside: beside.write_text(card(whole_report), encoding="utf-8"))
    return whole_report


def settings_of(recipe: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe with some changes."""
    if recipe not in RECIPES:
        raise InputError(f"recipe={recipe!r}: expected one of {', '.join(map(repr, RECIPES))}")
    strange = [name for name in changes if name not in PLAIN]
    if strange:
        raise InputError(f"unknown setting {strange[0]!r}: expected one of {', '.join(map(repr, PLAIN))}")
    return {**RECIPES[recipe], **changes}


def vocabulary_of(
    examples: Sequence[Example], size: int, tag_words: int, sentences: Iterable[Sequence[str]] = ()
) -> tuple[list[str], list[str]]:
    """Return the tags that at least `tag_words` rare words have, and the `size` most frequent words."""
    counts = _counts(examples, sentences)
    words = sorted((word for word in counts if word == word.lower()), key=lambda word: (-counts[word], word))[:size]
    frequent = set(words)
    rare = Counter(tag for word, tag in _tagged(examples) if word not in frequent)
    return sorted(t for t, count in rare.items() if count >= tag_words and t.isalpha() and t.isupper()), words


def tokenizer_of(tags: Sequence[str], words: Sequence[str], positions: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer for whole words, lowercased, and for tags in upper case: "the article on NNP large systems"."""
    entries = {entry: i for i, entry in enumerate((*SPECIAL, *tags, *words))}
    inner = Tokenizer(models.WordLevel(entries, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    # Words of the vocabulary stay whole if the text has spaces around them, whatever characters they have.
    whole = "|".join(re.escape(word) for word in words if re.findall(WORD, word) != [word])
    pattern = (rf"(?<!\S)(?:{whole})(?!\S)|" if whole else "") + WORD
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [EOS]", special_tokens=[("[CLS]", CLS), ("[EOS]", EOS)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=positions, padding_side="right", truncation_side="left",
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", eos_token="[EOS]", mask_token="[MASK]",
    )  # fmt: skip
    # Matched before the text is lowercased.
    tokenizer.add_tokens([AddedToken(tag, single_word=True, normalized=False) for tag in tags])
    return tokenizer


def adopt(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    count: int,
    sentences: Iterable[Sequence[str]] = (),
) -> PreTrainedTokenizerFast:
    """Give the model `count` more words: the most frequent plurals, unknown so far, of words that it knows.

    Each gets the embedding of NNS, the tag that replaces it in the data: free text has no tags. Returns the tokenizer.
    """
    known = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)[len(SPECIAL) :]
    tags = [entry for entry in known if entry.isupper() and entry.isalpha()]
    if "NNS" not in tags:
        return tokenizer
    words, borne = set(known) - set(tags), Counter(_tagged(examples))
    most = {word: tag for (word, tag), _ in sorted(borne.items(), key=lambda item: (item[1], item[0]))}
    endings = (("s", ""), ("es", ""), ("ies", "y"))
    plurals = {
        word
        for word, tag in most.items()
        if tag == "NNS"
        and word not in words
        and any(word.endswith(many) and word.removesuffix(many) + one in words for many, one in endings)
    }
    counts = _counts(examples, sentences)
    new = sorted(plurals, key=lambda word: (-counts[word], word))[:count]
    larger = tokenizer_of(tags, [*known[len(tags) :], *new], tokenizer.model_max_length)
    row = model.get_input_embeddings().weight[tokenizer.get_vocab()["NNS"]].detach().clone()
    with silenced(), torch.no_grad():
        model.resize_token_embeddings(len(larger), mean_resizing=False)
        model.get_input_embeddings().weight[len(tokenizer) :] = row
    return larger


def _tagged(examples: Sequence[Example]) -> Iterator[tuple[str, str]]:
    return ((w.lower(), tag) for e in examples if e.tags for w, tag in zip(e.words, e.tags, strict=True))


def _counts(examples: Sequence[Example], sentences: Iterable[Sequence[str]]) -> Counter[str]:
    counts = Counter(word.lower() for example in examples for word in example.words)
    counts.update(word for sentence in sentences for word in sentence)
    return counts


# As in the Penn Treebank: possessives and n't are split off; numbers and words with inner hyphens or stops are whole.
WORD = (
    r"\w+?(?=n['’]t(?!\w))|n['’]t(?!\w)|['’](?:s|re|ve|ll|d|m)(?!\w)|(?:\w\.){2,}|"
    r"\w+(?:(?:[-/&.,:]|['’](?!(?:s|re|ve|ll|d|m)(?!\w)))\w+)*|[^\w\s]"
)


def model_of(tokenizer: PreTrainedTokenizerFast, settings: dict[str, Any]) -> GPT2ForTokenClassification:
    """Build the paper's model with random weights."""
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=settings["positions"], n_layer=settings["layers"],
        n_head=settings["heads"], n_embd=settings["width"], is_causal=False, use_cache=False, num_labels=len(LABELS),
        id2label=LABELS, label2id={name: i for i, name in LABELS.items()}, prediction_position=0,
        resid_pdrop=settings["residual_dropout"], embd_pdrop=settings["embedding_dropout"],
        attn_pdrop=settings["attention_dropout"], classifier_dropout=settings["residual_dropout"],
        initializer_range=settings["init"], bos_token_id=CLS, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    return GPT2ForTokenClassification(config)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the folder, with weights in half precision, to be loaded in single precision."""
    training.save(model, tokenizer, out, half=True)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**config, "dtype": "float32"}, indent=2, sort_keys=True) + "\n"
    write_whole(out / "config.json", lambda beside: beside.write_text(text, encoding="utf-8"))


def load(folder: str | Path, device: torch.device | str = "cpu") -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load the model, in single precision, and the tokenizer from a folder that `train` wrote."""
    model, tokenizer = training.pretrained(AutoModelForTokenClassification, folder)
    return model.to(device).eval(), tokenizer


def accuracy(model: Any, tokenizer: Any, examples: Sequence[Example], *, batch: int = 512) -> dict[str, Any]:
    """Return accuracy over all examples, and by number of attractors if known: "all", "0", "1", "2", "3", "4+"."""
    vocabulary, positions = tokenizer.get_vocab(), model.config.n_positions
    rows = [encode(e, vocabulary, positions) for e in examples]
    chances = training.probabilities(model, training.Texts(rows, PAD, model.device), batch, exact=True)
    right = [NUMBERS[i] == e.number for i, e in zip(chances.argmax(-1).tolist(), examples, strict=True)]
    groups: dict[str, Callable[[int], bool]] = {str(n): lambda a, n=n: a == n for n in range(4)}  # type: ignore[misc]
    groups["4+"] = lambda a: a >= 4
    shares = {"all": training.share(right)}
    for name, has in groups.items():
        pairs = zip(right, examples, strict=True)
        shares[name] = training.share(hit for hit, e in pairs if e.attractors is not None and has(e.attractors))
    return shares


class Prefixes(training.Texts):
    """Examples as tensors on the device: tokens, tags, number, subject."""

    def __init__(self, examples: Sequence[Example], tokenizer: Any, device: Any) -> None:
        vocabulary, positions = tokenizer.get_vocab(), tokenizer.model_max_length
        super().__init__([encode(e, vocabulary, positions) for e in examples], PAD, device)
        names = sorted({tag for e in examples for tag in e.tags or ()})
        classes = {tag: i + 1 for i, tag in enumerate(names)}  # 0 is none
        width = self.ids.shape[1]
        tags = torch.zeros(len(examples), width, dtype=torch.uint8)
        subjects = torch.full((len(examples),), -100)
        for i, e in enumerate(examples):
            cut = max(0, len(e.words) - (positions - 2))
            if e.tags:
                row = [classes[tag] for tag in e.tags[cut:]]
                tags[i, 1 : 1 + len(row)] = torch.tensor(row, dtype=torch.uint8)
            if e.subject is not None and e.subject >= cut:
                subjects[i] = e.subject - cut + 1
        self.tags, self.subjects = tags.to(device), subjects.to(device)
        self.tag_count = len(names) + 1
        # The token of each tag; [UNK] for tags that are not tokens.
        self.tag_tokens = torch.tensor([UNK, *(vocabulary.get(tag, UNK) for tag in names)], device=device)
        self.first_word = len(SPECIAL) + sum(entry.isupper() and entry.isalpha() for entry in vocabulary)
        self.numbers = torch.tensor([NUMBERS.index(e.number) for e in examples], device=device)
        self.weights = torch.ones(len(examples), device=device)
        self.soft: Any = None


def _learn(
    model: Any, shown: Prefixes, valid: Prefixes, sure: int, settings: dict[str, Any], seed: int, say: training.Say
) -> training.Record:
    """Run the main training; its last part, `refine`, uses only the first `sure` examples."""
    width = settings["width"]
    torch.manual_seed(seed)  # independent of earlier stages, even skipped ones
    whole = torch.nn.ModuleDict(
        {"model": model, "tag": torch.nn.Linear(width, shown.tag_count), "subject": torch.nn.Linear(width, 1)}
    ).to(shown.device)
    everything, count = training.order(shown.lengths, settings["batch"], seed)
    certain, _ = training.order(shown.lengths[:sure], settings["batch"], seed)
    steps = settings["epochs"] * count
    from_here = round(steps * (1 - settings["refine"]))
    distillation = settings["distillation"] if shown.soft is not None else 0.0

    def loss(step: int) -> Any:
        index = everything(step) if step < from_here else certain(step)
        at = torch.as_tensor(index, device=shown.device)
        ids, mask = shown.batch(index)
        tags = shown.tags[at, : ids.shape[1]].long()
        # A mask per query is used as it is; with one per text the model would wait for the GPU to inspect it.
        hidden = model.transformer(
            _disturbed(ids, tags, shown, settings), attention_mask=mask[:, None, None].bool()
        ).last_hidden_state
        logits = model.classifier(model.dropout(hidden[:, 0]))
        gold = functional.cross_entropy(logits, shown.numbers[at], reduction="none")
        total = (1 - distillation) * (gold * shown.weights[at]).mean()
        if distillation:
            total = total + distillation * functional.cross_entropy(logits, shown.soft[at])
        if settings["tagging"]:
            total = total + settings["tagging"] * functional.cross_entropy(
                whole["tag"](hidden).transpose(1, 2), tags.where(tags > 0, -100), reduction="sum"
            ) / (tags > 0).sum().clamp(min=1)
        if settings["pointing"]:
            subjects = shown.subjects[at]
            pointed = whole["subject"](hidden)[..., 0].masked_fill(mask == 0, -torch.inf)
            lost = functional.cross_entropy(pointed, subjects, reduction="sum")
            total = total + settings["pointing"] * lost / (subjects >= 0).sum().clamp(min=1)
        return total

    truth, rate, cycle = valid.numbers.cpu(), settings["rate"], settings["cycle"]
    return training.fit(
        "verb-number", whole, training.adam(whole, rate, settings["decay"], coupled=settings["coupled_decay"]), loss,
        lambda judged: training.score(judged["model"], valid, truth), seed=seed, say=say, steps=steps, every=count,
        averaging=settings["averaging"],
        rate=training.cosine_restarts(rate, cycle * count) if cycle else training.warmup_cosine(rate, steps),
    )  # fmt: skip


def _disturbed(ids: Any, tags: Any, shown: Prefixes, settings: dict[str, Any]) -> Any:
    """Replace some words by [UNK] or by their tag, and some tags by [UNK], since free text has none."""
    drawn = torch.rand(ids.shape, device=ids.device)
    word, tag = ids >= shown.first_word, (ids >= len(SPECIAL)) & (ids < shown.first_word)
    unknown = settings["unknown_words"]
    lost = (word & (drawn < unknown)) | (tag & (drawn < settings["unknown_tags"]))
    renamed = word & (drawn >= unknown) & (drawn < unknown + settings["words_as_tags"]) & (tags > 0)
    return torch.where(renamed, shown.tag_tokens[tags], ids).masked_fill(lost, UNK)
