"""Tasks for classifiers and masked language models: cases, measures, and results that grow over runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.errors import InputError
from attnflow.evaluate.deletion import curves, metrics, orders
from attnflow.importance.question import questions
from benchmarks import encoder_tasks
from benchmarks.command import run_command
from benchmarks.encoder_methods import VIEWS, explanations
from benchmarks.encoder_tasks import agreement_cases, prefixes, word_cases
from benchmarks.evidence import read_results, summaries
from benchmarks.result_lines import Meter, ResultFile, seeds_of
from benchmarks.word_truth import WordTruth, retention
from helpers.small_models import bert, gpt2

PREFIXES = (
    "prefix\tgood\tbad\n"
    "The key to the cabinets\tis\tare\n"
    "The keys to the cabinet\tare\tis\n"
    "no preposition\tis\tare\n"
    "The key to the cabinets\thas\thave\n"
    "A friend of a friend\tis\tare\n"
    "The pictures of the river\texist\texists\n"
)


@pytest.fixture(scope="module")
def embedded() -> af.Model:
    return af.load(device="cpu")


@pytest.fixture(scope="module")
def classifier() -> Any:
    return bert("BertForSequenceClassification")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "texts.tsv"
    path.write_text(PREFIXES)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    with pytest.raises(SystemExit) as left:
        run_command(encoder_tasks.main)
    return int(left.value.code or 0)


def test_prefixes_have_a_subject_an_attractor_and_a_number(table: Path) -> None:
    rows = [(p.seed, p.subject, p.attractor, p.number) for p in prefixes(table)]
    assert rows == [(0, 1, 4, "singular"), (1, 1, 4, "plural"), (5, 1, 4, "plural")]
    table.write_text("prefix\tgood\na\tb\n")
    with pytest.raises(InputError, match="has no column 'bad': expected the text before the verb and both its forms"):
        list(prefixes(table))


def test_agreement_keeps_what_the_model_answers_correctly(embedded: af.Model, table: Path, classifier: Any) -> None:
    kept = agreement_cases(embedded, table, "unseen", 9)
    assert [case.seed for case in kept.cases] == [1, 5] and kept.tried == 2
    table.write_text(PREFIXES.replace("\tare\tis", "\tis\tare"))  # now the model is wrong about the second row
    kept = agreement_cases(embedded, table, "unseen", 9)
    assert [case.seed for case in kept.cases] == [5] and kept.tried == 2
    (case,) = agreement_cases(embedded, table, "unseen", 9, right=False).cases
    assert case.seed == 1
    scores = np.array([0.0, 1, 1, 0, 0, 2, 0])
    assert case.measures(scores) == {"attractor above subject": 1.0, "top-1": 1.0, "mass on truth": 0.5}
    (case,) = kept.cases
    tokens = case.question.encoded.tokens
    scores = np.array([0.0, 1, 4, 2, 0, 1, 0])[: len(tokens)]
    assert tokens[1:4] == ("The", "pictures", "of")
    assert case.measures(scores) == {"subject above attractor": 1.0, "top-1": 1.0, "mass on truth": 0.5}
    assert case.measures(np.ones(len(tokens)))["subject above attractor"] == 0.5
    assert case.measures(np.ones(len(tokens)))["top-1"] == pytest.approx(1 / 5)
    assert case.usual is not None and case.measures(case.usual)["top-1"] == 1.0
    with pytest.raises(InputError, match=r"has the classes \['LABEL_0', 'LABEL_1'\]: expected singular and plural"):
        agreement_cases(classifier, table, "seen", 9)


def test_methods_are_what_the_package_says_and_cost_what_they_run(embedded: af.Model) -> None:
    text = "The keys to the cabinet"
    (question,) = questions(embedded, [text], [None], False)
    every = {one.method: one for one in explanations(embedded, question, 3)}
    trace = embedded.trace(text)
    for view in ("raw", "rollout", "flow"):
        for layer in range(6):
            expected = getattr(trace, view)(layer=layer).values[0, 0]
            np.testing.assert_allclose(every[f"{view} L{layer + 1}"].scores, expected, atol=1e-6)
    rows = embedded.trace(text, edges="answer").answer_rows().values[0, 0]
    np.testing.assert_allclose(every["answer rows"].scores, rows, atol=1e-6)
    blank = embedded.blank_out(text, of="log-odds").values[0, 0]
    np.testing.assert_allclose(every["blank-out"].scores, blank, atol=1e-6)
    signed = every["gradient × input, signed"].scores
    np.testing.assert_allclose(every["gradient × input"].scores, np.abs(signed))
    assert every["answer rows"].forwards in (1, 2) and every["raw L1"].forwards == 1
    assert every["blank-out"].forwards >= question.length + 1
    assert every["first"].scores[0] == question.length - 1 and every["last"].scores[0] == 0
    some = list(explanations(embedded, question, 3, skip=[name for name in every if name != "rollout L6"]))
    assert [one.method for one in some] == ["rollout L6"]


@pytest.mark.long
def test_a_run_is_resumable(embedded: af.Model, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: embedded, raising=False)
    out = tmp_path / "folder" / "results.jsonl"
    words = ("agreement", "--data", str(table), "-o", str(out))
    assert run(monkeypatch, *words) == 0
    whole = out.read_text()
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:-3]) + lines[-3][:20])  # killed while writing
    assert run(monkeypatch, *words) == 0
    again = out.read_text().splitlines()
    keys = [(row["seed"], row["method"]) for row in map(json.loads, again)]
    assert len(keys) == len(set(keys)) == len(lines)
    assert again[: len(lines) - 3] == [line.rstrip("\n") for line in lines[:-3]]
    (summary,) = summaries(read_results([out]))
    some = tmp_path / "last.jsonl"
    assert run(monkeypatch, *words[:-1], str(some), "--last", "--skip", "first") == 0
    rows = {row["method"] for row in read_results([some])}
    lower = {f"{view} L{layer}" for view in VIEWS for layer in range(1, 6)}
    assert set(summary.costs) - rows == {*lower, "first"}, "the layers below the last, and what was left out"
    assert (summary.model, summary.task, summary.cases) == ("verb-number", "agreement", 2)
    assert summary.measures["subject above attractor"]["first"].mean == 1.0
    assert summary.measures["top-1"]["usual position"].mean == 1.0


def test_truth_of_words_is_what_the_log_odds_lose(classifier: Any) -> None:
    text = "the cabinet is unbelievable"
    (question,) = questions(classifier, [text], [None], False)
    truth = WordTruth(classifier, question, 1)
    words = text.split()

    def odds(some: list[str]) -> float:
        with torch.no_grad():
            logits = classifier.unwrap()(**classifier.tokenizer(" ".join(some), return_tensors="pt")).logits[0]
        return float(logits[question.chosen] - logits[1 - question.chosen])

    expected = [odds(words) - odds(words[:i] + words[i + 1 :]) for i in range(len(words))]
    np.testing.assert_allclose(truth.falls, expected, atol=1e-5)
    scores = np.zeros(question.length)
    for word, fall in zip(truth.words, truth.falls, strict=True):
        scores[word] = fall / len(word)
    perfect = truth.measures(scores)
    assert perfect["Spearman"] == pytest.approx(1) and perfect["top-1"] == 1 and perfect["top-1, size"] == 1
    assert truth.measures(-scores)["Spearman"] == pytest.approx(-1)
    assert truth.measures(-scores)["Spearman, size"] == pytest.approx(1)


def test_deletions_and_soft_ones_follow_their_definitions(classifier: Any) -> None:
    (question,) = questions(classifier, ["the cabinet is unbelievable to nobody"], [None], False)
    truth = WordTruth(classifier, question, 5)
    scores = np.random.default_rng(0).random(question.length)
    mask = classifier.tokenizer.mask_token_id

    def chance(blank: np.ndarray) -> float:
        ids = question.tensors["input_ids"].clone()
        ids[0, blank.tolist()] = mask
        with torch.no_grad():
            logits = classifier.unwrap()(**{**question.tensors, "input_ids": ids}).logits[0]
        return float(logits.softmax(-1)[question.chosen])

    free, measures = truth.free, truth.measures(scores)
    (curve,) = curves(classifier, [question], [orders(scores[None, free], truth.seed)], "mask", 5)
    for name in ("comprehensiveness", "sufficiency"):
        assert measures[name] == pytest.approx(float(metrics(curve, question.chance)[name][0]), abs=1e-6)
    stays = truth.uniform < retention(scores[free], 0.2)
    fall = question.chance - chance(free)
    if fall < 0.05:
        assert "π-Soft-NC" not in measures
        return
    without = np.mean([max(0.0, question.chance - chance(free[row])) for row in stays])
    alone = np.mean([max(0.0, question.chance - chance(free[~row])) for row in stays])
    assert measures["π-Soft-NC"] == pytest.approx(without / fall, abs=1e-4)
    assert measures["π-Soft-NS"] == pytest.approx(1 - alone / fall, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_retention_keeps_as_many_for_all_scores(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=9) * draw.choice([0, 1, 1e6], 9)
    q = retention(scores, 0.2)
    assert q.sum() == pytest.approx(0.2 * 9) and (q >= 0).all() and (q <= 1).all()
    assert (np.diff(q[np.argsort(scores)]) >= -1e-12).all()
    np.testing.assert_allclose(retention(scores * 7, 0.2), q)


def test_word_cases(classifier: Any, tmp_path: Path) -> None:
    path = tmp_path / "sst2.tsv"
    texts = ["the cabinet is unbelievable", "the key", "the book is to the key", "nobody is the answer"]
    chosen = [questions(classifier, [text], [None], False)[0].chosen for text in texts]
    labels = [chosen[0], chosen[1], 1 - chosen[2], chosen[3]]
    path.write_text("sentence\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in zip(texts, labels, strict=True)))
    assert [case.seed for case in word_cases(classifier, path, "seen", 9).cases] == [0]
    assert [case.seed for case in word_cases(classifier, path, "unseen", 9).cases] == [3]
    with pytest.raises(InputError, match="has no classes: expected a classifier with the classes negative, positive"):
        word_cases(gpt2(), path, "seen", 9)
    path.write_text("sentence\tlabel\na b\tgood\n")
    with pytest.raises(InputError, match="expected the columns sentence and label"):
        word_cases(classifier, path, "seen", 9)


def test_mistakes(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    assert run(monkeypatch, "toys", "--data", str(table), "-o", str(out)) == 2
    assert "task 'toys': expected one of agreement, mistakes, words" in capsys.readouterr().err
    assert run(monkeypatch, "agreement", "--data", str(table), "-o", str(out), "--half", "third") == 2
    assert "half 'third': expected one of seen, unseen" in capsys.readouterr().err
    table.write_text("prefix\tgood\tbad\nno preposition\tis\tare\n")
    assert run(monkeypatch, "agreement", "--data", str(table), "-o", str(out)) == 2
    assert "texts.tsv has no unseen case among 0 that" in capsys.readouterr().err
    out.write_text('{"model": 1}\n')
    with pytest.raises(
        InputError, match=r"line 1 of .* is not a result: expected JSON with model, task, half, seed, method"
    ):
        ResultFile(out)


def test_measures_without_a_value_are_left_out(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    row = {
        "model": "m",
        "task": "t",
        "half": "seen",
        "seed": 0,
        "method": "x",
        "measures": {"a": float("nan"), "b": 1.0},
    }
    file.add(row)
    assert json.loads(file.path.read_text())["measures"] == {"b": 1.0}
    key = {name: row[name] for name in ("model", "task", "half", "seed", "method")}
    assert ResultFile(file.path).has(**key) and not file.has(**{**key, "seed": 2})
    assert list(seeds_of("seen", 2)) == [0, 2]


def test_a_meter_counts_texts(classifier: Any) -> None:
    meter = Meter(classifier)
    batch = {"input_ids": torch.tensor([[2, 3, 4]] * 5)}
    _, seconds, forwards = meter.measure(lambda: classifier.unwrap()(**batch))
    assert forwards == 5 and seconds > 0
    classifier.unwrap()(**batch)
    assert meter.forwards == 5
