"""Groups of a corpus and words in context: every number against a plain computation over the same rows."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnflow.corpus import contexts, lists, shards, splits
from attnflow.corpus import summary as report
from attnflow.corpus.input_columns import input_of
from attnflow.errors import InputError

pytest.importorskip("pyarrow", reason="a corpus is kept as parquet")

import attnflow as af
from helpers.corpora import made_up, stored

ROWS, COLUMNS = made_up(200)
SCORED = [row for row in ROWS if "error" not in row]
SOURCES = ("news", "fiction", "web")


def source(row: dict[str, Any]) -> str | None:
    """Return the value of a made-up column: three sources, one of them rare, or none."""
    number = row["row"]
    return None if number % 19 == 0 else "rare" if number % 67 == 1 else SOURCES[number % 3]


def written(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Write an input for these rows, with a label, ids and a column of texts."""
    lines = [
        {
            "text": row["text"],
            "source": source(row),
            "stars": 1 + row["row"] % 2,
            "note": f"a note on text {row['row']}",
        }
        for row in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("splits") / "out", ROWS, COLUMNS)


@pytest.fixture(scope="module", params=[1024, 7])
def summary(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The summary, with one batch per part and with many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH", request.param)
        patch.setattr(splits, "ROOM", 3 if request.param == 7 else splits.ROOM)
        return report.summarize(folder, source=written(folder.parent / "texts.jsonl"))


def lifts(row: dict[str, Any], method: str) -> Any:
    """Return each token's score at L2 relative to the even share, without special tokens."""
    values = np.array(row[f"{method}_L2"], np.float32).astype(float)
    if method == "flow":
        values = values / values.sum(-1, keepdims=True)
    plain = ~np.array(row["special"])
    its = values.mean(0)
    return np.where(plain, its / its[plain].sum() * plain.sum(), np.nan) if plain.any() else np.full(len(its), np.nan)


def received(rows: list[dict[str, Any]], method: str) -> dict[int, list[float]]:
    """Return the lifts of each token id that is not special."""
    each: dict[int, list[float]] = {}
    for row in rows:
        for number, special, lift in zip(row["token_ids"], row["special"], lifts(row, method), strict=True):
            each.setdefault(number, []).extend([] if special else [lift])
    return each


def close(ours: Any, plain: Any) -> None:
    assert np.array(ours, float) == pytest.approx(np.array(plain, float), rel=6e-5, abs=1e-4, nan_ok=True)


def groups_plainly(split: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    of = {"predicted": lambda row: row["prediction"]["top"][0]["label"], "source": source}
    label = of.get(split["name"], lambda row: str(1 + row["row"] % 2))
    return {group["value"]: [row for row in SCORED if label(row) == group["value"]] for group in split["groups"]}


def test_which_labels_make_a_split(summary: dict[str, Any]) -> None:
    assert [(split["name"], split["predicted"]) for split in summary["splits"]] == [
        ("predicted", True), ("source", False), ("stars", False)
    ]  # fmt: skip
    assert summary["unsplit"] == [{"name": "note", "why": "fewer than two values have 5 texts"}]
    assert summary["no_columns"] is None
    for split in summary["splits"]:
        plainly = groups_plainly(split)
        assert [group["texts"] for group in split["groups"]] == [len(rows) for rows in plainly.values()]
    _, by_source, stars = summary["splits"]
    counts = Counter(source(row) for row in SCORED)
    assert by_source["texts"] == len(SCORED) - counts[None] and by_source["others"] == 1
    assert sorted((group["value"] for group in by_source["groups"]), key=lambda value: -counts[value]) == [
        group["value"] for group in by_source["groups"]
    ]
    assert "rare" not in [group["value"] for group in by_source["groups"]] and counts["rare"] < splits.MEMBERS
    assert [group["value"] for group in stars["groups"]] == ["1", "2"], "numbers in their own order"


def test_what_a_group_gives_most(summary: dict[str, Any]) -> None:
    ids = [row[0] for row in summary["types"]["rows"]]
    punctuation = {row[0] for row in summary["types"]["rows"] if row[3]}
    assert punctuation == {20}, "the full stop alone"
    for split in summary["splits"]:
        for group, rows in zip(split["groups"], groups_plainly(split).values(), strict=True):
            least = lists.least_count(len(rows))
            assert group["least"] == least
            for method in summary["views"]:
                here, all_texts = received(rows, method), received(SCORED, method)
                means = {number: np.mean(own) for number, own in here.items() if len(own) >= least}
                differences = {}
                for number, mean in means.items():
                    rest = sum(all_texts[number]) - sum(here[number])
                    count = len(all_texts[number]) - len(here[number])
                    if count >= least:
                        differences[number] = mean - rest / count
                often = {number for number in means if len(all_texts[number]) >= summary["least"]}
                for type_, lift, difference, count in group["received"][method]:
                    number = ids[type_]
                    close(
                        [lift, np.nan if difference is None else difference],
                        [means[number], differences.get(number, np.nan)],
                    )
                    assert count == len(here[number])
                listed = {ids[row[0]] for row in group["received"][method]}
                for some in (often, often - punctuation):
                    for by in (means, differences):
                        best = sorted((n for n in some if n in by), key=lambda n: -by[n])[: lists.GROUPED]
                        assert set(best) <= listed


def test_words_in_context(summary: dict[str, Any]) -> None:
    """For each word: the texts in which it received most by the leading method, one place per text."""
    assert summary["lead"] == {"method": "raw", "layer": "L2"} and summary["contexts"]["method"] == "raw"
    ids = [row[0] for row in summary["types"]["rows"]]
    by_row = {row["row"]: row for row in SCORED}
    texts, of = summary["contexts"]["texts"], summary["contexts"]["of"]
    members: dict[str, list[dict[str, Any]]] = {"": SCORED}
    for s, split in enumerate(summary["splits"]):
        members |= {f"{s}.{g}": rows for g, rows in enumerate(groups_plainly(split).values())}
        for g, group in enumerate(split["groups"]):
            assert {str(row[0]) for rows in group["received"].values() for row in rows} == set(of[f"{s}.{g}"])
    assert set(of) == set(members) and summary["contexts"]["omitted"] == 0
    for key, examples in of.items():
        for type_, places in examples.items():
            best = []
            for row in members[key]:
                own = lifts(row, "raw")
                here = [
                    i
                    for i, number in enumerate(row["token_ids"])
                    if number == ids[int(type_)] and not row["special"][i]
                ]
                best += [(-max(own[here]), row["row"])] if here else []
            assert [texts[i]["row"] for i in places] == [row for _, row in sorted(best)[: contexts.EXAMPLES]]
            for i in places:
                assert by_row[texts[i]["row"]]["token_ids"][texts[i]["first"] + texts[i]["at"]] == ids[int(type_)]
    used = {i for examples in of.values() for places in examples.values() for i in places}
    assert used == set(range(len(texts)))
    for text in texts:
        row = by_row[text["row"]]
        first, last = text["first"], text["first"] + len(text["tokens"])
        place = first + text["at"]
        assert first == max(0, place - contexts.REACH) and last == min(len(row["tokens"]), place + contexts.REACH + 1)
        assert text["tokens"] == row["tokens"][first:last] and text["size"] == len(row["tokens"])
        assert text["special"] == [int(x) for x in row["special"][first:last]]
        assert text["id"] == row["id"] and text["prediction"] == row["prediction"]["top"][0]["label"]
        for method in summary["views"]:
            close(text["lifts"][method], np.nan_to_num(lifts(row, method)[first:last]))
    assert max(len(text["tokens"]) for text in texts) == 2 * contexts.REACH + 1, "a long text is cut"


def test_examples_are_limited(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "MOST", 10)
        few = report.summarize(folder)["contexts"]
    assert set(few["of"]) == {""} and len(few["of"][""]) == 10 and few["omitted"] > 0


def decoder_rows(pull: float) -> list[dict[str, Any]]:
    """Return rows of a decoder: no special tokens, the last position explained, the first one a sink."""
    rng = np.random.default_rng(3)
    rows = []
    for number in range(60):
        size = int(rng.integers(5, 12))
        ids = [90 + number % 3, *rng.integers(5, 15, size - 2).tolist(), 80]
        scores = rng.gamma(2.0, size=size) * np.array([pull, *[1.0] * (size - 2), 2.0])
        row = dict(SCORED[0])
        row |= {
            "row": number, "text": f"text {number}", "pair": None, "tokens": [f"w{i}" for i in ids], "token_ids": ids,
            "special": [False] * size, "word_ids": list(range(size)), "queries": [size - 1],
            "raw_L2": [(scores / scores.sum()).tolist()],
        }  # fmt: skip
        rows.append(row)
    return rows


@pytest.mark.parametrize("pull", [40.0, 1.0])
def test_a_first_token_that_takes_what_no_word_earns_stands_apart(pull: float, tmp_path: Path) -> None:
    """The explained position is left out too."""
    rows = decoder_rows(pull)
    summary = report.summarize(stored(tmp_path / "out", rows, ["raw_L2"]))
    sink = pull > 1
    sums: dict[int, list[float]] = {}
    for row in rows:
        its = np.array(row["raw_L2"][0], np.float32).astype(float)
        kept = range(1 if sink else 0, len(its) - 1)
        for i in kept:
            sums.setdefault(row["token_ids"][i], []).append(its[i] / its[list(kept)].sum() * len(kept))
    assert summary["sink"] is sink
    ids = [row[0] for row in summary["types"]["rows"]]
    shown = {ids[type_]: (lift, count) for type_, lift, count in summary["top"]["raw"]}
    assert set(shown) == {number for number, own in sums.items() if len(own) >= summary["least"]} and 80 not in shown
    assert ({90, 91, 92} & set(shown) == set()) == sink
    for number, (lift, count) in shown.items():
        close(lift, np.mean(sums[number]))
        assert count == len(sums[number])
    for text in summary["contexts"]["texts"]:
        row = rows[text["row"]]
        first, last = text["first"], text["first"] + len(text["tokens"])
        apart_plainly = [int((sink and i == 0) or i == len(row["tokens"]) - 1) for i in range(first, last)]
        assert text["apart"] == apart_plainly and text["special"] == [0] * len(apart_plainly)
        assert not text["apart"][text["at"]]


def test_an_input_that_is_not_there_or_another(folder: Path, tmp_path: Path) -> None:
    assert input_of({"input": "data/texts.txt"}) == (None, None), "lines of text have no columns"
    assert input_of({}) == (None, None)
    told = "The columns of gone.csv were not read: it was moved."
    assert input_of({"input": str(tmp_path / "gone.csv")}) == (None, told)
    with pytest.raises(InputError, match="there is no file or folder"):
        report.summarize(folder, source=tmp_path / "gone.csv")
    other = written(tmp_path / "other.jsonl", [{**row, "text": "another"} for row in ROWS])
    changed = report.summarize(folder, source=other)
    assert changed["no_columns"] == "The columns of the input were not read: it has changed since the job."
    assert [split["name"] for split in changed["splits"]] == ["predicted"]
    short = written(tmp_path / "short.jsonl", ROWS[:50])
    assert report.summarize(folder, source=short)["no_columns"] == changed["no_columns"]


def test_missing_shards_are_passed_over(tmp_path: Path) -> None:
    out = stored(tmp_path / "half", ROWS, COLUMNS, parts=4, finished=False)
    (out / "part-000001.parquet").unlink()
    half = report.summarize(out, source=written(tmp_path / "texts.jsonl"))
    rest = [row for row in SCORED if not 50 <= row["row"] < 100]
    groups = {group["value"]: group["texts"] for group in half["splits"][1]["groups"]}
    assert groups == {value: sum(source(row) == value for row in rest) for value in groups}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_job_and_the_columns_of_its_input(kind: str, tmp_path: Path) -> None:
    """Reads every format and checks the splits of the report."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    nouns = ("key", "dogs", "author", "books", "teacher", "schools")
    table = [
        {
            "id": f"r{i}",
            "sentence": f"the {nouns[i % 6]} of the {nouns[(i + 1) % 6]}",
            "label": ("no", "yes")[i // 6 % 2],
            "n": i,
        }
        for i in range(24)
    ]
    path = tmp_path / f"texts.{kind}"
    if kind in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]), delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(table)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        parquet.write_table(pa.Table.from_pylist(table), path)
    af.corpus.explain_corpus(path, tmp_path / "out", methods=["raw"])
    summary = report.summarize(tmp_path / "out")
    assert [split["name"] for split in summary["splits"]] == ["predicted", "label"]
    assert [(group["value"], group["texts"]) for group in summary["splits"][1]["groups"]] == [("no", 12), ("yes", 12)]
    assert summary["unsplit"] == [{"name": "n", "why": "fewer than two values have 5 texts"}]
