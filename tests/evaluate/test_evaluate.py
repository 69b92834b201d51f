"""The statistics against scipy and by construction; the evaluation against a plain loop; files of every format."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import attnflow as af
from attnflow.evaluate.dataset import known_labels, texts_and_labels
from attnflow.evaluate.statistics import Interval, holm, intervals, ranks, spearman, wilcoxon, wilson
from attnflow.texts.strict import read_rows

torch = pytest.importorskip("torch", reason="evaluation needs torch")
transformers = pytest.importorskip("transformers", reason="evaluation needs transformers")

from attnflow.evaluate import evaluate  # noqa: E402
from attnflow.evaluate.correlation import measure, summarize  # noqa: E402
from helpers.small_models import TEXT, bert, gpt2  # noqa: E402

NAMES = {0: "no", 1: "yes"}
TEXTS = [
    "the key to the cabinet",
    "nobody is able to answer",
    "the book is the answer",
    "key",
    "the key is the book to the answer",
]


def test_spearman_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for levels in (2, 4, 1000):
        x, y = rng.integers(levels, size=(2, 15)).astype(float)
        assert np.array_equal(ranks(x), stats.rankdata(x))
        assert np.array_equal(ranks(x, dense=True), stats.rankdata(x, method="dense"))
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@given(st.permutations(range(9)), st.permutations(range(9)))
def test_without_ties_the_authors_formula_is_the_same(x: list[int], y: list[int]) -> None:
    a, b = np.array(x, float), np.array(y, float)
    assert spearman(a, b, ties="authors") == pytest.approx(spearman(a, b), abs=1e-12)


def test_where_there_is_no_correlation() -> None:
    for x, y in (([np.nan, 1, 2], [1, 2, 3]), ([1.0], [2.0]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [5, 5, 5]), ([], [])):
        for ties in ("mean", "authors"):
            assert np.isnan(spearman(np.array(x), np.array(y), ties))


def test_rounding_noise_ties() -> None:
    assert ranks(np.array([0.1 + 0.2, 0.3, 1.0])).tolist() == [1.5, 1.5, 3]
    assert ranks(np.array([1e-30, 2e-30, 0, -1e-30])).tolist() == [3, 4, 2, 1]


def test_intervals() -> None:
    """About as wide as the normal interval of the mean; empty if all samples agree; reproducible by seed."""
    values = np.random.default_rng(2).normal(0.2, 1, (400, 1))
    table = np.concatenate([values, np.full_like(values, 0.7)], 1)
    found, constant = intervals(table, 4000, 0)
    half = 1.96 * values.std() / 20
    assert found is not None and constant is not None
    assert found.low == pytest.approx(found.mean - half, abs=0.01)
    assert found.high == pytest.approx(found.mean + half, abs=0.01)
    assert (constant.low, constant.high) == pytest.approx((0.7, 0.7))
    assert intervals(table, 100, 3) == intervals(table, 100, 3) != intervals(table, 100, 4)
    assert str(Interval(0.1234, -0.1, 0.3)) == "+0.123 [-0.100, +0.300]"


def test_intervals_leave_out_what_is_missing() -> None:
    values = np.random.default_rng(2).normal(0.2, 1, (400, 1))
    holes = np.where(np.arange(400)[:, None] % 4 == 0, np.nan, values)
    found, none = intervals(np.concatenate([holes, np.full_like(values, np.nan)], 1), 4000)
    assert none is None and found is not None
    assert found.mean == pytest.approx(np.nanmean(holes))
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.nanstd(holes) / 300**0.5, rel=0.1)


def test_paired_tests() -> None:
    """If nothing differs, p is uniform: the share below 0.05 is 0.05."""
    rng = np.random.default_rng(1)
    p = np.array([wilcoxon(rng.normal(size=40)) for _ in range(400)])
    assert 0.02 < np.mean(p < 0.05) < 0.09
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


def test_wilson_is_scipys() -> None:
    for hits, n in ((0, 5), (5, 5), (93, 100), (7, 11)):
        expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.fixture(scope="module")
def classifier() -> Any:
    return bert("BertForSequenceClassification", id2label=NAMES)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("row", ["answer", "max"])
def test_evaluation_is_the_loop(classifier: Any, special: bool, row: str) -> None:
    labels = [0, 1, 1, 0, 1]
    found = evaluate(classifier, TEXTS, labels, special=special, row=row)
    right = 0
    for k, (text, label) in enumerate(zip(TEXTS, labels, strict=True)):
        trace = classifier.trace(text)
        right += trace.prediction.top[0][0] == NAMES[label]
        keep = np.array([special or not mark for mark in trace.special])
        for m, name in enumerate(("blank_out", "gradient")):
            worth = getattr(classifier, name)(text, label).row()[keep]
            for v, view in enumerate(("raw", "rollout", "flow")):
                values = getattr(trace, view)(query="[CLS]" if row == "answer" else "all").values
                for layer in range(2):
                    x = values[layer].max(0)[keep]
                    expected = stats.spearmanr(x, worth).statistic if len(x) > 1 else np.nan
                    assert found.correlations[k, m, v, layer] == pytest.approx(expected, abs=1e-9, nan_ok=True)
    assert found.accuracy == right / 5 and found.samples == 5
    cell = found.cell("gradient", "flow", 1)
    column = found.correlations[:, 1, 2, 1]
    assert cell.n == 5 - (not special) and cell.mean is not None and cell.sd is not None
    assert cell.mean.mean == pytest.approx(np.nanmean(column)) and cell.sd == pytest.approx(np.nanstd(column, ddof=1))
    assert cell.without == ({} if special else {"fewer than two tokens": 1})  # the text "key"


def test_comparisons(classifier: Any) -> None:
    found = evaluate(classifier, TEXTS, importance=["blank-out"])
    assert len(found.comparisons) == 2 * 3
    first = next(c for c in found.comparisons if (c.layer, c.first, c.second) == (0, "flow", "rollout"))
    assert first.p is None and first.adjusted is None  # equal at L1, by definition
    assert first.difference is not None and first.difference.mean == 0
    for c in found.comparisons:
        a, b = (found.correlations[:, 0, found.views.index(view), c.layer] for view in (c.first, c.second))
        assert c.difference is not None and c.difference.mean == pytest.approx(np.mean(a - b))
        assert c.p is None or (c.adjusted is not None and c.adjusted >= c.p)


def test_explain_the_true_or_the_predicted_class(classifier: Any) -> None:
    wrong = [1 - {"no": 0, "yes": 1}[classifier.trace(t).prediction.top[0][0]] for t in TEXTS]
    true = evaluate(classifier, TEXTS, wrong, importance={"blank-out": {"signed": True}}, signed=True)
    said = evaluate(
        classifier, TEXTS, wrong, importance={"blank-out": {"signed": True}}, signed=True, explain="predicted"
    )
    assert true.accuracy == said.accuracy == 0
    assert np.allclose(
        true.correlations, -said.correlations, atol=1e-9
    )  # with two classes, one loses what the other gains


def test_masked_and_next_token() -> None:
    masked = bert("BertForMaskedLM")
    text = "the [MASK] to the cabinet"
    found = evaluate(masked, [text], importance=["blank-out"], views=["raw"])
    expected = spearman(masked.trace(text).raw(query="[MASK]").values[1, 0], masked.blank_out(text).row())
    assert found.correlations[0, 0, 0, 1] == pytest.approx(expected) and found.accuracy is None
    decoder = gpt2()
    found = evaluate(decoder, [TEXT], importance=["gradient"], views=["rollout"])
    rollout, gradient = decoder.trace(TEXT).rollout(query=-1).values[1, 0], decoder.gradient(TEXT).row()
    expected = spearman(rollout[:-1], gradient[:-1])  # the query itself is not ranked
    assert expected != pytest.approx(spearman(rollout, gradient), abs=1e-3)
    assert found.correlations[0, 0, 0, 1] == pytest.approx(expected)


def test_exclusions_are_counted(classifier: Any) -> None:
    found = evaluate(classifier, [*TEXTS, "", "  ", "key " * 40], [0] * 8)
    assert found.samples == 5 and found.excluded == {"empty": 2, "longer than the 32 tokens that the model takes": 1}
    assert found.notes == ("the class 'yes' never occurs among the labels",)
    assert evaluate(classifier, ["key " * 40], truncate=True).excluded == {}
    measured = measure(classifier, TEXTS, importance=["blank-out"])
    zeros = replace(measured, texts=tuple(replace(t, importance=0 * t.importance) for t in measured.texts))
    flat = summarize(zeros)
    assert {c.n for c in flat.cells} == {0} and all(c.mean is None and c.sd is None for c in flat.cells)
    assert flat.cells[0].without == {"importance the same for all tokens": 5}
    json.dumps(flat.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"importance": ["luck"]},
            "importance 'luck': expected some of 'blank-out', 'gradient', 'integrated-gradients', 'shapley'",
        ),
        ({"views": ["heat"]}, "views 'heat': expected some of 'raw', 'rollout', 'flow'"),
        ({"views": []}, "views is empty"),
        ({"explain": "wrong"}, "explain='wrong': expected one of 'true', 'predicted'"),
        ({"row": "last"}, "row='last': expected one of 'answer', 'max'"),
        ({"ties": "no"}, "ties='no': expected one of 'mean', 'authors'"),
        ({"labels": [0]}, "1 labels for 5 texts: expected one for each"),
        ({"texts": "abc"}, "texts is a str: expected a list of texts"),
        ({"texts": [None]}, "text 0 is None: expected a text, a pair of texts as a tuple, or a dict with input_ids"),
        ({"texts": ["a", "\ud800"]}, "text 1 is "),
        ({"texts": []}, r"there is no text to evaluate \(none was given\)"),
        ({"texts": ["", ""]}, r"there is no text to evaluate \(2 empty\)"),
        ({"labels": ["dog"] * 5}, "answer='dog' is not a class of this model"),
    ],
)
def test_mistakes(classifier: Any, options: dict[str, Any], message: str) -> None:
    given = {"texts": TEXTS, **options}
    with pytest.raises(af.InputError, match=message):
        evaluate(classifier, given.pop("texts"), given.pop("labels", None), **given)


ROWS = [{"text": 'the "key"', "label": "yes"}, {"text": "the book, to", "label": "no"}]


def write(path: Path) -> Path:
    kind = path.suffixes[0]
    if kind == ".parquet":
        pa = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
        pq = pytest.importorskip("pyarrow.parquet", reason="parquet needs pyarrow")
        pq.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    content = {
        ".csv": 'text,label\n"the ""key""",yes\n"the book, to",no\n',
        ".tsv": 'text\tlabel\nthe "key"\tyes\nthe book, to\tno\n',
        ".jsonl": "\n".join(json.dumps(row) for row in ROWS) + "\n\n",
    }[kind].encode()
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, lambda b: b)(content))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.csv.gz", "a.tsv.xz"])
def test_every_format_reads_the_same(tmp_path: Path, name: str) -> None:
    assert [row for _, row in read_rows(write(tmp_path / name))] == ROWS
    assert texts_and_labels(tmp_path / name) == (['the "key"', "the book, to"], ["yes", "no"])


def test_labels_by_name_or_number() -> None:
    assert known_labels(["YES", "no", 1, "0", 1.0, "1.0"], NAMES, Path("x.csv")) == [1, 0, 1, 0, 1, 1]
    with pytest.raises(af.InputError, match="the label nan is not a class"):
        known_labels([float("nan")], NAMES, Path("x.csv"))
    with pytest.raises(
        af.InputError,
        match=r"x.csv, row 2: the label '2' is not a class of the model; expected one of 'no' \(0\), 'yes' \(1\)",
    ):
        known_labels(["1", "2"], NAMES, Path("x.csv"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\n", "has no rows: expected at least one"),
        (
            "a.csv",
            "body,label\nx,1\n",
            "a.csv has no column 'text' or 'sentence' or 'words': name the column of the text with text=, one of 'body', 'label'",
        ),
        ("a.csv", "text,label\nx\n", "a.csv, line 2: fewer cells than the 2 columns of the first line"),
        ("a.jsonl", '{"text": "x"}\n{oops\n', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"text": 3}\n', "a.jsonl, row 1: the column 'text' contains 3; expected text"),
        ("a.csv.gz", "text\nx\n", "cannot be read as csv"),
        ("a.parquet", "nonsense", "cannot be read as parquet"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    if "parquet" in name:
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    (tmp_path / name).write_text(content)
    with pytest.raises(af.InputError, match=message):
        texts_and_labels(tmp_path / name)
    with pytest.raises(af.InputError, match="there is no file"):
        texts_and_labels(tmp_path / "none.csv")


def test_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\nx,y,1\n")
    assert texts_and_labels(path, "a", "c", "b") == ([("x", "y")], ["1"])
    assert texts_and_labels(path, "b") == (["y"], None)
    with pytest.raises(af.InputError, match=r"a.csv has no column 'd': expected one of 'a', 'b', 'c'"):
        texts_and_labels(path, "d")


def test_command(attnflow: Any, classifier: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier.unwrap().save_pretrained(tmp_path / "model")
    classifier.tokenizer.save_pretrained(tmp_path / "model")
    data = tmp_path / "data.csv"
    data.write_text("sentence,label\n" + "".join(f"{text},{k % 2}\n" for k, text in enumerate(TEXTS)))

    def run(*more: str) -> str:
        return str(attnflow("evaluate", str(data), "-m", str(tmp_path / "model"), *more).out)

    found = json.loads(run("--json", "--no-special"))
    assert found["samples"] == 5 and {c["layer"] for c in found["cells"]} == {1, 2}
    assert found["cells"][0]["without"] == {"fewer than two tokens": 1}
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("-o", str(tmp_path / "out"))
    assert "…" not in shown and "all tokens" in shown
    assert "blank-out" in shown and "rollout" in shown and "±" in shown
    assert shown.rstrip().endswith("--output writes the comparisons at all layers and every single correlation")
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["samples"] == 5
    rows = (tmp_path / "out" / "correlations.csv").read_text().splitlines()
    assert rows[0] == "sample,importance,view,layer,spearman" and len(rows) == 1 + 5 * 2 * 3 * 2


@pytest.mark.long
def test_command_of_the_grid(attnflow: Any, classifier: Any, tmp_path: Path) -> None:
    classifier.unwrap().save_pretrained(tmp_path / "model")
    classifier.tokenizer.save_pretrained(tmp_path / "model")
    data = tmp_path / "data.csv"
    data.write_text("sentence\n" + "".join(f"{text}\n" for text in TEXTS))

    def run(*more: str, status: int = 0) -> Any:
        return attnflow("evaluate", str(data), "-m", str(tmp_path / "model"), "--grid", *more, status=status)

    few = ["--edges", "alti", "--importance", "gradient", "--deletions", "unk", "--steps", "3"]
    out = tmp_path / "out.d"  # a folder, despite its name
    printed = run(*few, "-o", str(out), "--json")
    summary = json.loads(printed.out)
    assert summary["samples"] == 4 and summary["provenance"]["excluded"] == {"fewer than two tokens": 1}
    assert {"mean · flow", "alti · rollout", "gradient", "random"} <= {m["name"] for m in summary["methods"]}
    assert [m["name"] for m in summary["metrics"]][:2] == ["gradient", "comprehensiveness (unk)"]
    assert {"grid.json", "grid.csv"} == {path.name for path in out.iterdir()}
    assert f"wrote {out / 'grid.json'}" in printed.err and "scores: 4 of 4 texts" in printed.err
    assert "Tokens deleted (unk), 4 texts: means" in run(*few).out
    message = "--views cannot be combined with --grid, which sets it for each method"
    assert message in " ".join(run("--views", "raw", status=2).err.split())


def test_a_model_without_an_answer_says_so_before_labels_are_read(attnflow: Any, tmp_path: Path) -> None:
    model = bert("BertModel")
    model.unwrap().save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "data.csv").write_text("text,label\nthe key,singular\n")
    printed = attnflow("evaluate", str(tmp_path / "data.csv"), "-m", str(tmp_path / "model"), status=2)
    assert "has no head, so it answers nothing" in printed.err


def test_sizes_of_importance_are_ranked_unless_asked(classifier: Any) -> None:
    by_size = evaluate(classifier, TEXTS, importance={"blank-out": {"signed": True}})
    assert np.array_equal(
        by_size.correlations, evaluate(classifier, TEXTS, importance=["blank-out"]).correlations, equal_nan=True
    )
