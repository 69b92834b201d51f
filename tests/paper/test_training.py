"""The training loop, and the three trainings, on toy data."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
transformers = pytest.importorskip("transformers", reason="training needs transformers")

from attnflow.capture.silence import silenced  # noqa: E402
from attnflow.errors import InputError  # noqa: E402
from attnflow.paper import data_files, masked_lm, sst2, teacher, training, verb_number  # noqa: E402
from attnflow.paper.agreement import Example  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402

TINY: dict[str, Any] = {
    "layers": 2, "heads": 2, "width": 32, "vocabulary": 40, "tag_words": 1, "epochs": 6, "batch": 64, "rate": 5e-3,
    "averaging": 0.9, "pretrain": 1, "teacher_epochs": 1,
}  # fmt: skip
NOUNS = ("key", "box", "cat", "dog")


def examples(count: int, seed: int) -> list[Example]:
    """Return sentences whose first noun is the subject, with another noun after it; "zq…" words are too rare to be known."""
    draw = random.Random(seed)
    found = []
    for i in range(count):
        noun, other = draw.choice(NOUNS), draw.choice(NOUNS)
        many, others = draw.random() < 0.5, draw.random() < 0.5
        noun = f"zq{i}" if draw.random() < 0.1 else noun
        words = ("the", noun + "s" * many, "of", "the", other + "s" * others)
        tags = ("DT", "NNS" if many else "NN", "IN", "DT", "NNS" if others else "NN")
        found.append(Example(words, "plural" if many else "singular", tags, "are" if many else "is", 1, many ^ others))
    return found


def write(folder: Path, count: int = 512, held: int = 100) -> Path:
    lines = ["split\twords\ttags\tverb\tnumber\tsubject_index\tattractors"]
    for split, part in (("train", examples(count, 0)), ("valid", examples(held, 1)), ("test", examples(held, 2))):
        for e in part:
            fields = (
                split,
                " ".join(e.words),
                " ".join(e.tags or ()),
                e.verb,
                e.number,
                e.subject,
                int(e.attractors or 0),
            )
            lines.append("\t".join(map(str, fields)))
    path = folder / "toy.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def silent(message: str) -> None:
    pass


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A file, the folder of a model trained on it, and the report."""
    folder = tmp_path_factory.mktemp("toy")
    data = write(folder)
    text = folder / "text.txt"
    text.write_text("".join(" ".join((*e.words, e.verb, "here")) + "\n" for e in examples(300, 3)), encoding="utf-8")
    report = verb_number.train(data, folder / "model", text=text, device="cpu", say=silent, **TINY)
    return data, folder / "model", report


@pytest.mark.long
def test_learns_a_rule_past_the_nearest_noun(toy: tuple[Path, Path, dict[str, Any]]) -> None:
    _, folder, report = toy
    assert report["accuracy"]["test"]["all"]["accuracy"] > 0.85
    assert report["accuracy"]["test"]["1"]["accuracy"] > 0.8  # the nearest noun alone would give 0
    assert report["accuracy"]["test"]["4+"] == {"accuracy": None, "count": 0, "interval": None}
    assert json.loads((folder / "training.json").read_text(encoding="utf-8")) == report
    stages = [json.loads(line)["stage"] for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert stages == ["pretraining"] + ["verb-number"] * 6
    assert not list(folder.glob("checkpoint*")) and not list(folder.glob("*.part"))


def test_the_folder_is_a_stock_model_that_looks_both_ways(toy: tuple[Path, Path, dict[str, Any]]) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    _, folder, _ = toy
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


def test_tokens_of_free_text(toy: tuple[Path, Path, dict[str, Any]]) -> None:
    _, tokenizer = verb_number.load(toy[1])

    def tokens(text: str) -> list[str]:
        found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        return found

    assert tokens("The Key of THE boxes") == ["[CLS]", "the", "key", "of", "the", "[UNK]", "[EOS]"]
    assert tokens("the NNS of NN dogs") == ["[CLS]", "the", "NNS", "of", "NN", "dogs", "[EOS]"]
    assert tokens("the nns") == ["[CLS]", "the", "[UNK]", "[EOS]"]
    assert tokens("the keys, of (the) dog's") == [
        "[CLS]", "the", "keys", "[UNK]", "of", "[UNK]", "the", "[UNK]", "dog", "[UNK]", "[EOS]",
    ]  # fmt: skip
    assert tokens("the [UNK] [MASK]") == ["[CLS]", "the", "[UNK]", "[MASK]", "[EOS]"]


def test_words_of_the_treebank_stay_whole() -> None:
    words = (
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
    )
    tags, kept = verb_number.vocabulary_of([Example(words, "plural", ("NN",) * len(words))], 50, 1)
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
    assert len(verb_number.adopt(model, after, shown, 0)) == len(after)
    bare = verb_number.tokenizer_of([], ["the"], 64)
    assert verb_number.adopt(model, bare, shown, 2) is bare, "without the tag there is nothing to take"


def test_text_and_words_give_the_same_ids(toy: tuple[Path, Path, dict[str, Any]]) -> None:
    from attnflow.paper.agreement import as_tokens

    model, tokenizer = verb_number.load(toy[1])
    vocabulary = tokenizer.get_vocab()
    for e in examples(50, 4):
        assert tokenizer(" ".join(as_tokens(e, vocabulary)))["input_ids"] == verb_number.encode(e, vocabulary, 64)
    long = Example(("cat",) * 70 + ("key",), "singular")
    assert len(verb_number.encode(long, vocabulary, 64)) == 64
    assert verb_number.encode(long, vocabulary, 64)[-2] == vocabulary["key"], "the words nearest the verb are kept"
    ids = tokenizer(" ".join(long.words), truncation=True)["input_ids"]
    assert ids == verb_number.encode(long, vocabulary, 64)
    assert verb_number.accuracy(model, tokenizer, [long], batch=1)["all"]["count"] == 1


def test_accuracy_does_not_depend_on_the_batch(toy: tuple[Path, Path, dict[str, Any]]) -> None:
    model, tokenizer = verb_number.load(toy[1])
    assert verb_number.accuracy(model, tokenizer, examples(60, 5), batch=7) == verb_number.accuracy(
        model, tokenizer, examples(60, 5)
    )


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(folder / "model.safetensors")
    return found


class Killed(Exception):
    """Stands in for kill -9: nothing after it runs."""


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["best", "authors"])
def test_seeds_fix_everything_and_a_killed_run_ends_as_one_that_was_not(tmp_path: Path, recipe: str) -> None:
    data = write(tmp_path, count=128, held=20)
    small = {**TINY, "layers": 1, "epochs": 3, "cycle": 1 if recipe == "authors" else 0, "pretrain": 0}

    def run(name: str, seed: int = 0, say: Any = silent) -> dict[str, Any]:
        verb_number.train(data, tmp_path / name, recipe=recipe, seed=seed, device="cpu", say=say, **small)
        return weights(tmp_path / name)

    def killer(message: str) -> None:
        if message.startswith("verb-number: step 4"):
            raise Killed

    whole, other = run("whole"), run("other", seed=1)
    with pytest.raises(Killed):
        run("killed", say=killer)
    said: list[str] = []
    resumed = run("killed", say=said.append)
    assert "verb-number: resuming from step 2 of 6" in said
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not all(torch.equal(whole[name], other[name]) for name in whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert steps == ([1] if recipe == "authors" else []) + [2, 4, 6], "no step is logged twice"


def test_checkpoints_of_another_training_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)

    def run(recipe: dict[str, Any], steps: int = 2, resume: bool = True) -> dict[str, Any]:
        return training.fit(
            training.Run(tmp_path, recipe, resume=resume, say=silent), "s", model, training.adam(model, 0.1, 0.0),
            lambda step: model(torch.ones(2)).sum() ** 2, lambda m: {"score": 0.0}, steps=steps, rate=lambda step: 0.1, every=1,
        )  # fmt: skip

    run({"a": 1})
    with pytest.raises(
        InputError, match=r"is from a training with different settings or data: give another folder, or delete it"
    ):
        run({"a": 2})
    (tmp_path / "checkpoint-s.pt").write_bytes(b"half a file")
    with pytest.raises(InputError, match=r"cannot be read \(.*\): delete it"):
        run({"a": 1})
    run({"a": 1}, resume=False)


def test_a_loss_that_is_no_number_stops_the_training(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match=r"s: the loss is nan at step 1: give a lower rate, or another seed"):
        training.fit(
            training.Run(tmp_path, {}, say=silent), "s", model, training.adam(model, 0.1, 0.0),
            lambda step: model(torch.ones(1)).sum() * torch.nan, lambda m: {}, steps=1, rate=lambda step: 0.1, every=1,
        )  # fmt: skip


def test_every_epoch_reads_every_example_once() -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 1000)
    indices, count = training.order(lengths, 32, seed=0)
    epochs = [np.concatenate([indices(e * count + i) for i in range(count)]) for e in range(2)]
    assert all(sorted(epoch) == list(range(1000)) for epoch in epochs) and list(epochs[0]) != list(epochs[1])
    widths = [np.ptp(lengths[indices(i)]) for i in range(count)]
    assert np.mean(widths) < 5, "texts of similar length go together"
    with pytest.raises(InputError, match="there is nothing to train on: expected at least one example"):
        training.order([], 32, seed=0)


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
        ({"device": "cuda:77"}, "device='cuda:77' is not available: expected one of 'cpu'"),
        (
            {"teachers": ["nowhere"]},
            "the teacher 'nowhere' is not a model folder: expected one written by train_encoder",
        ),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
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
    report = teacher.train_encoder(data, base, tmp_path / "teacher", epochs=1, batch=32, device="cpu", say=silent)
    assert report["accuracy"]["valid"]["count"] == 20
    soft = teacher.soft_targets([tmp_path / "teacher"] * 2, examples(9, 0), torch.device("cpu"))
    assert soft.shape == (9, 2) and torch.allclose(soft.sum(-1), torch.ones(9))
    text = tmp_path / "text.txt"
    text.write_text("a cat of the dogs is here\nall cats are there\n", encoding="utf-8")
    found = verb_number.train(
        data, tmp_path / "student", text=text, teachers=[tmp_path / "teacher"], device="cpu", say=silent,
        **{**TINY, "epochs": 1, "layers": 1},
    )  # fmt: skip
    assert "from the mean of 1 encoders" in (tmp_path / "student" / "README.md").read_text()
    assert len(found["data"]["teacher 0"]) == 64
    with pytest.raises(InputError, match=r"has the classes .*: expected \['singular', 'plural'\]"):
        teacher.soft_targets([base], examples(2, 0), torch.device("cpu"))


def test_sst2(tmp_path: Path) -> None:
    for name, count in (("train", 64), ("dev", 20), ("test", 20)):
        rows = "".join(f"a {('dull', 'fine')[i % 2]} film \t{i % 2}\n" for i in range(count))
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + rows, encoding="utf-8")
    report = sst2.train(
        tmp_path, bert(tmp_path), tmp_path / "out", epochs=2, batch=16, device="cpu", say=silent, half=True
    )
    assert report["accuracy"]["test"]["count"] == 20
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "negative", 1: "positive"} and model.dtype == torch.float16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("text\tlabel\na\t1\n", "has no column 'sentence': it has 'text', 'label'; expected tab-separated columns"),
        ("sentence\tlabel\na\t2\n", "x.tsv, line 2: label is '2'; expected 0 (negative) or 1 (positive)"),
        ("sentence\tlabel\n \t1\n", "x.tsv, line 2: the sentence is empty; expected at least one word"),
        ("sentence\tlabel\na\t1\nb\t1\n", "has 2 lines of only one class: expected both 0 and 1"),
    ],
)
def test_sst2_files_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        sst2.read(tmp_path / "x.tsv")
    assert says in str(caught.value)
    with pytest.raises(
        InputError, match=r"does not contain dev\.tsv, dev\.tsv\.xz or dev\.tsv\.gz: give the folder that does"
    ):
        data_files.data_file(tmp_path, "dev.tsv")


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


def test_a_folder_is_for_one_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot create the folder"):
        training.claim(tmp_path / "file")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "training.json").write_text("{}")
    with pytest.raises(InputError, match="contains a finished training: give another folder, or delete it"):
        training.claim(tmp_path / "done")
    fcntl = pytest.importorskip("fcntl", reason="no locks on this system")
    (tmp_path / "busy").mkdir()
    with (tmp_path / "busy" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another job is writing to"):
            training.claim(tmp_path / "busy")
    training.claim(tmp_path / "busy")
    training.claim(tmp_path / "busy")  # this process owns it
    training.finish(tmp_path / "busy", {}, torch.device("cpu"))
    assert not (tmp_path / "busy" / ".lock").exists()
