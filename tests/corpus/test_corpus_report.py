"""The report of a corpus: every number against a plain computation over the same rows."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnflow.corpus import shards
from attnflow.corpus import summary as report
from attnflow.errors import InputError
from attnflow.view import corpus_page

pytest.importorskip("pyarrow", reason="a corpus is kept as parquet")

from helpers.corpora import PROVENANCE, embedded, made_up, stored


def shares(row: dict[str, Any], column: str) -> Any:
    """Return the shares of one text: flow divided by the sums of its rows, and the mean over queries."""
    values = np.array(row[column], np.float32).astype(float)
    if column.startswith("flow"):
        values = values / values.sum(-1, keepdims=True)
    return values.mean(0)


def close(found: Any, wanted: Any) -> None:
    """Check that values agree to the five digits that a report keeps."""
    assert np.array(found, float) == pytest.approx(np.array(wanted, float), rel=6e-5, abs=1e-9, nan_ok=True)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return made_up()[0]


@pytest.fixture(scope="module")
def scored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "error" not in row]


@pytest.fixture(scope="module")
def folder(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("corpus") / "out", rows, made_up(1)[1])


@pytest.fixture(scope="module", params=[1024, 7])
def summary(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The summary, with one batch per part and with many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH", request.param)
        return report.summarize(folder)


def test_what_there_is(summary: dict[str, Any], rows: list[dict[str, Any]], scored: list[dict[str, Any]]) -> None:
    assert (summary["texts"], summary["scored"], summary["parts"]) == (160, len(scored), 3)
    assert (summary["truncated"], summary["several_queries"]) == (1, 1)
    assert summary["finished"] is True and summary["input"] == "data/texts.txt" and summary["folder"] == "out"
    assert summary["views"] == ["raw", "rollout", "flow"]
    assert summary["provenance"] == PROVENANCE and summary["differing"] == []
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    kinds = Counter(row["error"] for row in rows if "error" in row)
    assert {one["kind"]: one["count"] for one in summary["errors"]} == kinds
    for one in summary["errors"]:
        failed = [{"id": row["id"], "message": row["message"]} for row in rows if row.get("error") == one["kind"]]
        assert one["examples"] == failed[:10]


def words_of(summary: dict[str, Any], view: str) -> dict[int, tuple[float, int]]:
    """Return the lift and the count of each listed token, by its id."""
    ids = [row[0] for row in summary["types"]["rows"]]
    return {ids[kind]: (lift, count) for kind, lift, count in summary["top"][view]}


@pytest.mark.parametrize("layer", ["L1", None])
def test_which_tokens_receive_most(
    layer: str | None, folder: Path, summary: dict[str, Any], scored: list[dict[str, Any]]
) -> None:
    found = summary if layer is None else report.summarize(folder, layer=layer)
    assert found["least"] == 7 and found["lead"] == {"method": "raw", "layer": layer or "L2"}
    types = [dict(zip(found["types"]["fields"], row, strict=True)) for row in found["types"]["rows"]]
    spelled: dict[int, Counter[str]] = {}
    for row in scored:
        for token, number in zip(row["tokens"], row["token_ids"], strict=True):
            spelled.setdefault(number, Counter())[token] += 1
    for one in types:
        names = sorted(spelled[one["id"]], key=lambda name: (-spelled[one["id"]][name], name))
        assert (one["text"], one["others"]) == (names[0], names[1:4])
        assert one["punctuation"] == (one["text"] == ".")
    for view in found["views"]:
        alone: dict[int, list[float]] = {}
        for row in scored:
            its = shares(row, f"{view}_{layer or 'L2'}")
            plain = [i for i, special in enumerate(row["special"]) if not special]
            for i in plain:
                alone.setdefault(row["token_ids"][i], []).append(its[i] / its[plain].sum() * len(plain))
        listed = words_of(found, view)
        assert set(listed) == {number for number, own in alone.items() if len(own) >= 7}
        for number, (lift, count) in listed.items():
            close(lift, np.mean(alone[number]))
            assert count == len(alone[number])
        # Their average is 1, whatever special tokens take.
        assert np.mean(list(chain.from_iterable(alone.values()))) == pytest.approx(1)


def test_rare_tokens_do_not_win(scored: list[dict[str, Any]], tmp_path: Path) -> None:
    """A token in few texts is in no list, however much it received."""
    rare = [{**row, "token_ids": list(row["token_ids"])} for row in scored]
    for row in rare[:6]:
        row["token_ids"][1] = 4000
        row["raw_L2"] = [[float(i == 1) for i in range(len(row["tokens"]))] for _ in row["raw_L2"]]
    assert 4000 not in words_of(report.summarize(stored(tmp_path / "rare", rare, made_up(1)[1])), "raw")


def test_words_have_no_ids(tmp_path: Path) -> None:
    rows, columns = made_up(40)
    whole = [row | {"token_ids": None} for row in rows]
    found = report.summarize(stored(tmp_path / "words", whole, columns))
    counted = Counter(token for row in whole if "error" not in row for token in row["tokens"])
    texts = [row[1] for row in found["types"]["rows"]]
    assert found["unit"] == "word" and all(row[0] is None and row[2] == [] for row in found["types"]["rows"])
    assert all(count == counted[texts[kind]] for kind, _, count in found["top"]["flow"])
    assert report.summarize(stored(tmp_path / "tokens", rows, columns))["unit"] == "token"


def test_scores_that_are_no_numbers_fail_alone(tmp_path: Path) -> None:
    rows, columns = made_up(30)
    broken = [dict(row) for row in rows]
    broken[5]["flow_L2"] = [[float("nan")] * len(broken[5]["tokens"])]
    found = report.summarize(stored(tmp_path / "nan", broken, columns))
    without = report.summarize(stored(tmp_path / "without", [row for row in rows if row["row"] != 5], columns))
    assert {"kind": "scores", "count": 1, "examples": [{"id": "texts.txt:6", "message": "some of its scores are not finite"}]} in found["errors"]  # fmt: skip
    assert found["top"] == without["top"]
    assert (found["texts"], found["scored"]) == (30, without["scored"])


def test_a_job_that_is_not_finished(tmp_path: Path) -> None:
    rows, columns = made_up(60)
    out = stored(tmp_path / "half", rows, columns, parts=4, finished=False)
    (out / "part-000002.parquet").unlink()
    with (out / "_manifest.jsonl").open("a") as file:
        file.write('{"part": 9, "tex')  # cut off by a kill
    found = report.summarize(out)
    assert found["finished"] is False and (found["parts"], found["texts"]) == (3, 45)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    def refused(where: Path, **options: Any) -> str:
        with pytest.raises(InputError) as e:
            report.summarize(where, **options)
        return str(e.value).replace(str(tmp_path), "X").replace(str(folder), "X/out")

    none = "is not the output of a corpus job: expected a folder with _manifest.jsonl and part-*.parquet"
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty") == f"'X/empty' {none}"
    assert refused(tmp_path / "gone") == f"'X/gone' {none}"
    (tmp_path / "empty" / "_manifest.jsonl").write_text('{"format": "another"}\n')
    assert refused(tmp_path / "empty") == f"'X/empty' {none}"
    rows, columns = made_up(30)
    begun = stored(tmp_path / "begun", rows, columns, parts=1)
    (begun / "part-000000.parquet").unlink()
    assert refused(begun) == "'X/begun' has no finished shard yet: resume the job first"
    failed = [row for row in rows if "error" in row]
    assert refused(stored(tmp_path / "failed", failed, columns, parts=1)) == (
        "none of the 2 texts in 'X/failed' has scores (empty: 1, too long: 1): see the column message for the reasons"
    )
    assert refused(stored(tmp_path / "no", [], columns, parts=1)) == (
        "none of the 0 texts in 'X/no' has scores (there is none): see the column message for the reasons"
    )
    assert refused(stored(tmp_path / "bare", rows, [], parts=1)) == (
        "'X/bare/part-000000.parquet' has no score columns: expected raw_L1, rollout_L1, flow_L1 or similar"
    )
    assert refused(folder, layer="L6") == "layer 'L6' has no scores in 'X/out': expected one of L1, L2"
    rows[4]["raw_L2"] = [[0.5, 0.5]]
    assert refused(stored(tmp_path / "odd", rows, columns, parts=1)) == (
        "rows 0 to 29 of 'X/odd' do not have one score per token: expected shards written by a corpus job"
    )
    torn = stored(tmp_path / "torn", made_up(30)[0], columns, parts=2)
    (torn / "part-000001.parquet").write_bytes(b"PAR1 and nothing else")
    told = refused(torn)
    assert told.startswith("'X/torn/part-000001.parquet' cannot be read (")
    assert told.endswith("): delete it, then resume the job to write it again")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_page_and_progress_in_terminals(
    folder: Path, terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    before = sorted(path.name for path in folder.iterdir())
    index = corpus_page.write(folder, tmp_path / "page")
    assert index == tmp_path / "page" / "index.html" and sorted(path.name for path in folder.iterdir()) == before
    assert embedded(index) == {**report.summarize(folder), "input": "texts.txt"}
    shown = capsys.readouterr()
    assert shown.out == "" and ("reading the shards" in shown.err) == terminal and (terminal or shown.err == "")


def test_a_report_is_no_part_of_its_corpus(tmp_path: Path) -> None:
    out = stored(tmp_path / "out", *made_up(30))
    assert corpus_page.write(out) == out / "_report" / "index.html"
    assert report.summarize(out)["texts"] == 30


def test_how_rows_were_made(tmp_path: Path) -> None:
    """Differences are named; the way attention was captured does not count."""
    rows, columns = made_up(30)
    for row, more in zip(
        rows, ({"device": "cuda"}, {"captured": "in blocks"}, {"device": "cuda", "heads": "max"}), strict=False
    ):
        row["provenance"] = json.dumps({**PROVENANCE, **more})
    found = report.summarize(stored(tmp_path / "out", rows, columns, parts=1))
    assert found["differing"] == ["device", "heads"] and found["provenance"] == PROVENANCE


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("provenance", "not json", "JSONDecodeError: Expecting value"),
        ("token_ids", [-1], "ValueError: token ids from -1 to "),
    ],
)
def test_what_no_job_writes(column: str, value: Any, told: str, tmp_path: Path) -> None:
    rows, columns = made_up(20)
    row = next(row for row in rows if row.get("error") is None)
    row[column] = value * len(row["tokens"]) if isinstance(value, list) else value
    stored(tmp_path / "out", rows, columns)
    with pytest.raises(InputError) as e:
        report.summarize(tmp_path / "out")
    start = f"{str(tmp_path / 'out')!r} contains files that no corpus job writes ({told}"
    assert str(e.value).startswith(start) and str(e.value).endswith("): run the job again into another folder")
