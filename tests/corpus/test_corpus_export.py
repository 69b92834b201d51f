"""One CSV of a job, and names of outputs that look like files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.corpus import explain_corpus, export_corpus
from attnflow.view import corpus_page

torch = pytest.importorskip("torch", reason="models need torch")
pytest.importorskip("pyarrow.parquet", reason="a corpus is kept as parquet")

TEXTS = ["the key to the cabinets", "", "the keys, to the cabinet"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    with (folder / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([f"n{i}", text] for i, text in enumerate(TEXTS))])
    explain_corpus(folder / "t.csv", folder / "out", methods="rollout,answer_inputs", layers="L1,L6", progress="none")
    return folder / "out"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_text(job: Path, tmp_path: Path) -> None:
    assert export_corpus(job, tmp_path / "table.csv") == 3
    rows = read(tmp_path / "table.csv")
    assert list(rows[0])[:9] == [
        "row", "id", "text", "prediction", "probability", "answer", "error", "message", "rollout_L1_token1",
    ]  # fmt: skip
    assert [row["id"] for row in rows] == ["n0", "n1", "n2"] and [row["text"] for row in rows] == TEXTS
    assert rows[1]["error"] and rows[1]["message"] and rows[1]["rollout_L6_token1"] == ""
    model = af.load()
    for row in (rows[0], rows[2]):
        trace = model.trace(row["text"], edges="answer")
        for column, result in (
            ("rollout_L6", model.trace(row["text"]).rollout(layer=5)),
            ("answer_inputs", trace.answer_inputs(signed="shares")),
        ):
            own = result.without_special()
            order = np.argsort(-np.abs(own.row()), kind="stable")[:3]
            assert [row[f"{column}_token{k}"] for k in (1, 2, 3)] == [own.tokens[i] for i in order]
            scores = [float(row[f"{column}_score{k}"]) for k in (1, 2, 3)]
            assert np.allclose(scores, own.row()[order], atol=1e-5)
        assert row["answer"] == row["prediction"] == trace.prediction.top[0][0]
    assert export_corpus(job, tmp_path / "one.csv", top=1) == 3
    assert "rollout_L6_token2" not in read(tmp_path / "one.csv")[0]


def test_the_command(attnflow: Any, job: Path, tmp_path: Path) -> None:
    printed = attnflow("corpus", "export", str(job), str(tmp_path / "t.csv"), "--top", "2")
    assert printed.out == "" and printed.err == f"wrote {tmp_path / 't.csv'}: 3 rows\n"
    assert read(tmp_path / "t.csv")[0]["rollout_L6_token2"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("table.txt", {}), "table.txt"),
        (("table.csv", {"top": 0}), "top=0: expected a whole number of at least 1, how many inputs to list"),
        (("none/table.csv", {}), "there is no folder"),
    ],
)
def test_mistakes(job: Path, arguments: Any, sentence: str, tmp_path: Path) -> None:
    name, options = arguments
    with pytest.raises(af.InputError) as error:
        export_corpus(job, tmp_path / name, **options)
    assert sentence in str(error.value)


def test_a_folder_without_a_job(tmp_path: Path) -> None:
    with pytest.raises(af.InputError):
        export_corpus(tmp_path, tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "OUT.JSONL", "out.csv.gz"])
def test_an_output_that_looks_like_a_file_is_refused_before_loading(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    (tmp_path / "t.txt").write_text("the key\n")
    output = tmp_path / name
    folder = str(output.with_suffix(""))
    with pytest.raises(af.InputError) as error:
        explain_corpus(tmp_path / "t.txt", output, progress="none")
    assert str(error.value) == (
        f"the output {str(output)!r} would be a folder of Parquet files: give a folder, such as {folder!r}; "
        f"pandas.read_parquet({folder!r}) reads it, and export_corpus({folder!r}, 'table.csv') makes one CSV of it"
    )
    assert not output.exists()


def test_a_folder_with_a_dot_and_an_older_job_stay_allowed(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the key\n")
    for name in ("run.v2", "old.csv"):
        if name == "old.csv":
            (tmp_path / name).mkdir()  # a job of an earlier version, which can be resumed
        explain_corpus(tmp_path / "t.txt", tmp_path / name, progress="none")
        assert (tmp_path / name / "part-000000.parquet").exists()


def test_a_report_is_a_folder_too(job: Path, tmp_path: Path) -> None:
    with pytest.raises(
        af.InputError, match=r"page.html' would be a folder of pages: give a folder, such as .*page'; the page is"
    ):
        corpus_page.write(job, tmp_path / "page.html")
