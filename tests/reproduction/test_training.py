"""The training loop and the four trainings, on toy data."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
transformers = pytest.importorskip("transformers", reason="training needs transformers")

from attnflow.errors import InputError  # noqa: E402
from attnflow.paper.agreement import Example, as_tokens, encode  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402
from reproduction import masked_lm, sst2, teacher, training, verb_number  # noqa: E402
from reproduction.card import card  # noqa: E402
from reproduction.examples import parts_of, read_linzen_subset  # noqa: E402
from reproduction.quiet import silenced  # noqa: E402

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "layers": 2, "heads": 2, "width": 32, "vocabulary": 40, "tag_words": 1, "epochs": 6, "batch": 64, "rate": 5e-3,
    "averaging": 0.9, "pretrain": 1, "teacher_epochs": 1,
}  # fmt: skip
NOUNS = ("key", "box", "cat", "dog")


def examples(count: int, seed: int) -> list[Example]:
    """Return sentences whose first noun is the subject, with another noun after it; "zq…" words are too rare to be known."""
    draw = random.Random(seed)
    made = []
    for i in range(count):
        noun, other = draw.choice(NOUNS), draw.choice(NOUNS)
        many, others = draw.random() < 0.5, draw.random() < 0.5
        noun = f"zq{i}" if draw.random() < 0.1 else noun
        words = ("the", noun + "s" * many, "of", "the", other + "s" * others)
        tags = ("DT", "NNS" if many else "NN", "IN", "DT", "NNS" if others else "NN")
        made.append(Example(words, "plural" if many else "singular", tags, "are" if many else "is", 1, many ^ others))
    return made


def write(folder: Path, count: int = 512, held: int = 100) -> Path:
    lines = ["split\twords\ttags\tverb\tnumber\tsubject_index\tattractors"]
    for split, part in (("train", examples(count, 0)), ("valid", examples(held, 1)), ("test", examples(held, 2))):
        for e in part:
            row = (
                split,
                " ".join(e.words),
                " ".join(e.tags or ()),
                e.verb,
                e.number,
                e.subject,
                int(e.attractors or 0),
            )
            lines.append("\t".join(map(str, row)))
    path = folder / "toy.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def silent(message: str) -> None:
    pass


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    return tensors


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a trained model, and its report."""
    folder = tmp_path_factory.mktemp("toy")
    text = folder / "text.txt"
    text.write_text("".join(" ".join((*e.words, e.verb, "here")) + "\n" for e in examples(300, 3)), encoding="utf-8")
    report = verb_number.train(write(folder), folder / "model", text=text, device="cpu", say=silent, **TINY)
    return folder / "model", report


@pytest.mark.long
def test_learns_a_rule_past_the_nearest_noun(toy: tuple[Path, dict[str, Any]]) -> None:
    folder, report = toy
    assert report["accuracy"]["test"]["all"]["accuracy"] > 0.85
    assert report["accuracy"]["test"]["1"]["accuracy"] > 0.8  # the nearest noun alone would give 0
    assert report["accuracy"]["test"]["4+"] == {"accuracy": None, "count": 0, "interval": None}
    assert json.loads((folder / "training.json").read_text(encoding="utf-8")) == report
    assert (folder / "README.md").read_text(encoding="utf-8") == card(report)


def test_the_folder_is_a_stock_model_that_looks_both_ways(toy: tuple[Path, dict[str, Any]]) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    folder, _ = toy
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for how in ("eager", "sdpa"):
        model = AutoModelForTokenClassification.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=how
        ).eval()
        assert type(model) is transformers.GPT2ForTokenClassification
        assert model.config.id2label == {0: "singular", 1: "plural"} and model.config.prediction_position == 0
        with torch.no_grad():
            a, b = (
                model(**tokenizer(f"the keys of the {n}", return_tensors="pt")).logits[0, 0] for n in ("cat", "cats")
            )
        assert not torch.equal(a, b), "changing the last word must change what [CLS] says"
    assert {w.dtype for w in weights(folder).values()} == {torch.float16}


def test_tokens_of_free_text(toy: tuple[Path, dict[str, Any]]) -> None:
    model, tokenizer = verb_number.load(toy[0])

    def tokens(text: str) -> list[str]:
        listed: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        return listed

    assert tokens("The Key of THE boxes") == ["[CLS]", "the", "key", "of", "the", "[UNK]", "[EOS]"]
    assert tokens("the NNS of NN dogs") == ["[CLS]", "the", "NNS", "of", "NN", "dogs", "[EOS]"]
    assert tokens("the nns [MASK]") == ["[CLS]", "the", "[UNK]", "[MASK]", "[EOS]"]
    assert tokens("the keys, of (the) dog's") == [
        "[CLS]", "the", "keys", "[UNK]", "of", "[UNK]", "the", "[UNK]", "dog", "[UNK]", "[EOS]",
    ]  # fmt: skip
    vocabulary = tokenizer.get_vocab()
    long = Example(("cat",) * 70 + ("key",), "singular")
    for e in (*examples(50, 4), long):
        text = " ".join(as_tokens(e, vocabulary))
        assert tokenizer(text, truncation=True)["input_ids"] == encode(e, vocabulary, 64)
    assert encode(long, vocabulary, 64)[-2] == vocabulary["key"], "the words nearest the verb are kept"
    some = examples(60, 5)
    assert verb_number.accuracy(model, tokenizer, some, batch=7) == verb_number.accuracy(model, tokenizer, some)


def test_words_of_the_treebank_stay_whole() -> None:
    words = [
        "mr.",
        "u.s.",
        "n't",
        "'s",
        "well-known",
        "and/or",
        "1,000",
        "3.5",
        "...",
        "-lrb-",
        "do",
        "the",
        "and",
        "lrb",
    ]
    tags, kept = verb_number.vocabulary_of([Example(tuple(words), "plural", ("NN",) * len(words))], 50, 1)
    assert tags == [] and kept == sorted(words)
    tokenizer = verb_number.tokenizer_of(tags, kept, 64)
    for word in words:
        assert tokenizer.tokenize(f"the {word} the") == ["the", word, "the"]
    assert tokenizer.tokenize("Don't") == ["do", "n't"]
    assert tokenizer.tokenize("the U.S.'s 3.5, and/or the well-known...") == [
        "the", "u.s.", "'s", "3.5", "[UNK]", "and/or", "the", "well-known", "[UNK]", "[UNK]", "[UNK]",
    ]  # fmt: skip


def test_plurals_of_known_words_are_adopted() -> None:
    shown = [Example(("the", "cabinets", "runs", "flies", "zs"), "plural", ("DT", "NNS", "VBZ", "NNS", "NNS"))] * 2
    before = verb_number.tokenizer_of(["NN", "NNS"], ["the", "cabinet", "run", "fly"], 64)
    model = verb_number.model_of(before, {**verb_number.PLAIN, **TINY}).eval()
    after = verb_number.adopt(model, before, shown, 2)
    assert after.tokenize("the cabinets runs flies zs NNS") == ["the", "cabinets", "[UNK]", "flies", "[UNK]", "NNS"]
    assert model.config.vocab_size == len(after) == len(before) + 2
    with torch.no_grad():
        word, tag = (model(**after(f"the {w}", return_tensors="pt")).logits for w in ("cabinets", "NNS"))
    assert torch.equal(word, tag), "an adopted word is what its tag was"
    bare = verb_number.tokenizer_of([], ["the"], 64)
    assert verb_number.adopt(model, bare, shown, 2) is bare, "without the tag there is nothing to take"


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["best", "authors"])
def test_a_seed_fixes_everything(tmp_path: Path, recipe: str) -> None:
    data = write(tmp_path, count=128, held=20)
    small = {**TINY, "layers": 1, "epochs": 3, "cycle": 1 if recipe == "authors" else 0, "pretrain": 0}

    def run(name: str, seed: int = 0) -> dict[str, Any]:
        verb_number.train(data, tmp_path / name, recipe=recipe, seed=seed, device="cpu", say=silent, **small)
        return weights(tmp_path / name)

    one, same, other = run("one"), run("same"), run("other", seed=1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(InputError, match="contains a finished training: give another folder, or delete it"):
        run("one")


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match=r"s: the loss is nan at step 1: give a lower rate, or another seed"):
        training.fit(
            "s", model, training.adam(model, 0.1, 0.0), lambda step: model(torch.ones(1)).sum() * torch.nan,
            lambda m: {}, seed=0, say=silent, steps=1, rate=lambda step: 0.1, every=1,
        )  # fmt: skip


def test_every_epoch_reads_every_example_once() -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 1000)
    indices, count = training.order(lengths, 32, seed=0)
    epochs = [np.concatenate([indices(e * count + i) for i in range(count)]) for e in range(2)]
    assert all(sorted(epoch) == list(range(1000)) for epoch in epochs) and list(epochs[0]) != list(epochs[1])
    widths = [np.ptp(lengths[indices(i)]) for i in range(count)]
    assert np.mean(widths) < 5, "texts of similar length go together"


def test_schedules() -> None:
    rate = training.warmup_cosine(1.0, 100, warmup=0.1)
    assert rate(0) == pytest.approx(0.1) and rate(9) == pytest.approx(1) and rate(99) < 0.01
    again = training.cosine_restarts(1.0, 10)
    assert [again(s) for s in (0, 10, 30)] == pytest.approx([1, 1, 1]) and again(9) < 0.03 and again(29) < 0.01


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"recipe": "worst"}, "recipe='worst': expected one of 'plain', 'best', 'authors'"),
        ({"speed": 1}, "unknown setting 'speed': expected one of 'layers', 'heads'"),
        ({"teachers": ["nowhere"]}, "the teacher 'nowhere' is not a model folder: expected one of"),
    ],
)
def test_unknown_settings_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        verb_number.train(
            write(tmp_path, 20, 10), tmp_path / "out", **{"say": silent, "device": "cpu", **TINY, **changes}
        )
    assert says in str(caught.value)


def bert(folder: Path) -> Path:
    """A tiny BERT with random weights."""
    tokenizer = wordpiece()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    with silenced():
        transformers.BertModel(config).save_pretrained(folder / "bert")
        tokenizer.save_pretrained(folder / "bert")
    return folder / "bert"


def test_an_encoder_teaches(tmp_path: Path) -> None:
    data, base = write(tmp_path, count=100, held=20), bert(tmp_path)
    report = teacher.train(data, base, tmp_path / "teacher", epochs=1, batch=32, device="cpu", say=silent)
    assert report["accuracy"]["valid"]["count"] == 20
    soft = teacher.soft_targets([tmp_path / "teacher"] * 2, examples(9, 0), torch.device("cpu"))
    assert soft.shape == (9, 2) and torch.allclose(soft.sum(-1), torch.ones(9))
    text = tmp_path / "text.txt"
    text.write_text("a cat of the dogs is here\nall cats are there\n", encoding="utf-8")
    student = verb_number.train(
        data, tmp_path / "student", text=text, teachers=[tmp_path / "teacher"], device="cpu", say=silent,
        **{**TINY, "epochs": 1, "layers": 1},
    )  # fmt: skip
    assert "from the mean of 1 encoders" in (tmp_path / "student" / "README.md").read_text()
    assert len(student["data"]["teacher 0"]) == 64
    with pytest.raises(InputError, match=r"has the classes .*: expected \['singular', 'plural'\]"):
        teacher.soft_targets([base], examples(2, 0), torch.device("cpu"))


def test_sst2(tmp_path: Path) -> None:
    for name, count in (("train", 64), ("dev", 20), ("test", 20)):
        rows = "".join(f"a {('dull', 'fine')[i % 2]} film \t{i % 2}\n" for i in range(count))
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + rows, encoding="utf-8")
    report = sst2.train(tmp_path, bert(tmp_path), tmp_path / "out", epochs=2, batch=16, device="cpu", say=silent)
    assert report["accuracy"]["test"]["count"] == 20
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_masked_lm(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / f"text.{name}.txt").write_text("the key of the cabinet\n" * 40, encoding="utf-8")
    report = masked_lm.train(
        tmp_path, bert(tmp_path), tmp_path / "out", epochs=4, batch=2, rate=0.02, device="cpu", say=silent
    )
    assert report["held out"]["test"]["held_out_loss"] < 3 and 0 <= report["held out"]["test"]["top1"] <= 1
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(InputError, match="has no text: expected one sentence per line"):
        masked_lm.read(tmp_path / "empty.txt")


def test_the_linzen_subset(tmp_path: Path) -> None:
    (tmp_path / "s.text").write_text(
        "the key is here <eos>\nthe keys of it have legs <eos>\nit seems so <eos>\na b c\n"
    )
    (tmp_path / "s.gold").write_text("2\tis\tare\t0\n4\thave\thas\t1\n1\tseems\tseem\t0\n1\tb\tB\t0\n")
    rows = read_linzen_subset(tmp_path)
    assert [e.number for e in rows] == ["singular", "plural", "singular"]
    assert rows[1] == Example(("the", "keys", "of", "it"), "plural", None, "have", None, 1, None)
    (tmp_path / "s.gold").write_text("2\tis\n" * 4)
    with pytest.raises(
        InputError, match=r"s\.gold, line 1: expected verb index, right form, wrong form and attractors"
    ):
        read_linzen_subset(tmp_path)
    with pytest.raises(InputError, match="'f' has no singular verb in the split 'train': expected a column split"):
        parts_of([Example(("a",), "plural", split="train")], "f")


def test_the_command(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "reproduction", *options], cwd=ROOT, capture_output=True, text=True
        )

    assert all(name in run("--help").stdout for name in ("verb-number", "teacher", "sst2", "masked-lm"))
    refused = run("sst2", "--base", "x", "-o", str(tmp_path / "y"))
    assert refused.returncode == 2 and "give data=, a folder that contains test.tsv" in refused.stderr
