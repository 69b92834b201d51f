"""The report of a corpus: every number against a plain computation over the same rows, and the pages of its texts."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.corpus import lists, shards, tally
from attnflow.corpus import summary as report
from attnflow.errors import InputError
from attnflow.evaluate.statistics import spearman
from attnflow.view import corpus_page

pa = pytest.importorskip("pyarrow", reason="a corpus is kept as parquet")
parquet = pytest.importorskip("pyarrow.parquet")

from helpers.corpora import PROVENANCE, SENTENCES, embedded, made_up, stored, traced  # noqa: E402

Plain = dict[tuple[Any, ...], dict[int, tuple[float, bool] | None]]


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


@pytest.fixture(scope="module")
def plain(scored: list[dict[str, Any]]) -> Plain:
    """The rank correlation and the agreement on the first token, by two views, layer, special tokens and row.

    The correlation is NaN if undefined; texts that are too short have None.
    """
    found: Plain = {}
    for row in scored:
        for layer, special in product(("L1", "L2"), (True, False)):
            kept = [i for i in range(len(row["tokens"])) if special or not row["special"][i]]
            values = {view: shares(row, f"{view}_{layer}")[kept] for view in ("raw", "rollout", "flow")}
            for (a, first), (b, second) in combinations(values.items(), 2):
                both = spearman(first, second), bool(kept) and first.argmax() == second.argmax()
                found.setdefault((a, b, layer, special), {})[row["row"]] = both if len(kept) >= 3 else None
    return found


@pytest.fixture(scope="module", params=[1024, 7])
def summary(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The summary, with one batch per part and with many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH", request.param)
        patch.setattr(tally, "CELLS", 500 if request.param == 7 else tally.CELLS)
        return report.summarize(folder, texts=5)


def test_what_there_is(summary: dict[str, Any], rows: list[dict[str, Any]], scored: list[dict[str, Any]]) -> None:
    assert (summary["texts"], summary["scored"], summary["parts"]) == (160, len(scored), 3)
    assert (summary["truncated"], summary["several_queries"]) == (1, 1)
    assert summary["finished"] is True and summary["input"] == "data/texts.txt" and summary["folder"] == "out"
    assert (summary["views"], summary["layers"]) == (["raw", "rollout", "flow"], ["L1", "L2"])
    assert summary["provenance"] == PROVENANCE and summary["differing"] == []
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    kinds = Counter(row["error"] for row in rows if "error" in row)
    assert {one["kind"]: one["count"] for one in summary["errors"]} == kinds
    for one in summary["errors"]:
        failed = [{"id": row["id"], "message": row["message"]} for row in rows if row.get("error") == one["kind"]]
        assert one["examples"] == failed[:10]
    sizes = [len(row["tokens"]) for row in scored]
    told = summary["lengths"]
    assert told["counts"] == np.histogram(sizes, np.arange(len(told["counts"]) + 1) * told["width"] + 0.5)[0].tolist()
    assert (told["width"], told["shortest"], told["longest"]) == (5, min(sizes), 82)
    assert told["median"] == np.median(sizes)
    close(told["mean"], np.mean(sizes))
    tops = [row["prediction"]["top"][0] for row in scored]
    for one in summary["predictions"]["top"]:
        chances = [top["probability"] for top in tops if top["label"] == one["label"]]
        assert (one["kind"], one["count"]) == ("class", len(chances))
        close(one["mean"], np.mean(chances))
    assert (summary["predictions"]["labels"], summary["predictions"]["texts"]) == (2, len(scored))


def test_which_tokens_receive_attention(summary: dict[str, Any], scored: list[dict[str, Any]]) -> None:
    assert summary["least"] == 7
    types = [dict(zip(summary["types"]["fields"], row, strict=True)) for row in summary["types"]["rows"]]
    spelled: dict[int, Counter[str]] = {}
    for row in scored:
        for token, number in zip(row["tokens"], row["token_ids"], strict=True):
            spelled.setdefault(number, Counter())[token] += 1
    assert summary["types"]["seen"] == len(spelled) == 18 and summary["types"]["special"] == 2
    for one in types:
        names = sorted(spelled[one["id"]], key=lambda name: (-spelled[one["id"]][name], name))
        assert (one["text"], one["others"], one["spellings"]) == (names[0], names[1:4], len(names))
        assert one["count"] == sum(spelled[one["id"]].values())
        assert one["special"] == (one["id"] > 100)
    assert {one["id"] for one in types} == set(spelled)
    for view in summary["views"]:
        for layer in summary["layers"]:
            received: dict[int, list[float]] = {}
            lifts: dict[int, list[float]] = {}
            alone: dict[int, list[float]] = {}
            for row in scored:
                its = shares(row, f"{view}_{layer}")
                plain = [i for i, special in enumerate(row["special"]) if not special]
                for i, (number, share) in enumerate(zip(row["token_ids"], its, strict=True)):
                    received.setdefault(number, []).append(share)
                    lifts.setdefault(number, []).append(share * len(row["tokens"]))
                    alone.setdefault(number, []).extend([share / its[plain].sum() * len(plain)] * (i in plain))
            mass = sum(map(sum, received.values()))
            close(mass, len(scored))
            close(summary["special_share"][view][layer], sum(sum(received[number]) for number in (101, 102)) / mass)
            for kind, mean, share, lift, lone in summary["received"][view][layer]:
                number = types[kind]["id"]
                close(
                    [mean, share, lift],
                    [np.mean(received[number]), sum(received[number]) / mass, np.mean(lifts[number])],
                )
                if number > 100:
                    assert lone is None and alone[number] == []
                else:
                    close(lone, np.mean(alone[number]))
            order = [types[row[0]]["id"] for row in summary["received"][view][layer]]
            listed = [number for number in order if number < 100]
            assert listed == sorted(listed, key=lambda number: -np.mean(alone[number])) and len(order) == 18
            # Their average is 1, whatever special tokens take.
            assert np.mean(list(chain.from_iterable(alone.values()))) == pytest.approx(1)


def test_rare_tokens_do_not_win(folder: Path, scored: list[dict[str, Any]], tmp_path: Path) -> None:
    """A token in few texts is in no list, however much it received; lists end at their limits."""
    rare = [{**row, "token_ids": list(row["token_ids"])} for row in scored]
    for row in rare[:6]:
        row["token_ids"][1] = 4000
        for name in ("raw_L1", "raw_L2"):
            row[name] = [[float(i == 1) for i in range(len(row["tokens"]))] for _ in row[name]]
    found = report.summarize(stored(tmp_path / "rare", rare, made_up(1)[1]))
    assert found["types"]["seen"] == 19 and found["types"]["counted"] == 16
    assert 4000 not in [row[0] for row in found["types"]["rows"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "LISTED", 2)
        patch.setattr(lists, "SPECIAL", 1)
        short = report.summarize(folder)
    whole = report.summarize(folder)
    for view in whole["views"]:
        for layer in whole["layers"]:
            named = {row[0]: row[1:] for row in whole["received"][view][layer]}
            ids = [row[0] for row in whole["types"]["rows"]]
            plain = [kind for kind in named if ids[kind] < 100]
            words = [kind for kind in plain if not whole["types"]["rows"][kind][6]]
            best = {
                ids[k]
                for some in (plain, words)  # with and without punctuation
                for at in (1, 2, 3)
                for k in sorted(some, key=lambda kind: -named[kind][at])[:2]
            }
            marked = max((kind for kind in named if ids[kind] > 100), key=lambda kind: named[kind][1])
            listed = [short["types"]["rows"][row[0]][0] for row in short["received"][view][layer]]
            assert set(listed) == best | {ids[marked]} and len(listed) == len(set(listed))


@pytest.mark.parametrize(("texts", "least"), [(12, 2), (100, 5), (300, 10), (9000, 10), (40000, 40)])
def test_how_often_a_token_must_stand(texts: int, least: int) -> None:
    told = lists.list_tokens(lists.Types(tally.Tokens((1, 1))), ["raw"], ["L1"], texts)
    assert told["least"] == lists.least_count(texts) == least


def test_positions(summary: dict[str, Any], scored: list[dict[str, Any]]) -> None:
    for end in ("start", "end"):
        for kind in ("all", "plain"):
            told = summary["positions"][end][kind]
            places, uniform = [], []
            values: dict[tuple[str, str], list[float]] = {}
            for row in scored:
                n = len(row["tokens"])
                kept = [i for i in range(n) if kind == "all" or not row["special"][i]]
                places += [min(i if end == "start" else n - 1 - i, 64) for i in kept]
                uniform += [1 / len(kept)] * len(kept)
                for view in summary["views"]:
                    for layer in summary["layers"]:
                        its = shares(row, f"{view}_{layer}")[kept]  # shares of the counted tokens
                        values.setdefault((view, layer), []).extend(its / its.sum())
            counts = np.bincount(places, minlength=65)
            assert told["counts"] == counts.tolist() and len(told["counts"]) == 65
            assert (counts[64] > 1) and (kind == "all" or counts[0] == 0)

            def means(weights: list[float], counts: Any = counts, places: Any = places) -> list[float | None]:
                return [s / n if n else None for s, n in zip(np.bincount(places, weights, 65), counts, strict=True)]

            close(told["uniform"], means(uniform))
            for (view, layer), found in values.items():
                close(told["shares"][view][layer], means(found))


def test_agreement(summary: dict[str, Any], plain: Plain) -> None:
    assert len(summary["agreement"]) == 3 * 2 * 2
    for told in summary["agreement"]:
        each = plain[*told["views"], told["layer"], told["special"]].values()
        long = [one for one in each if one is not None]
        found, firsts = zip(*(one for one in long if np.isfinite(one[0])), strict=True)
        few, flat, same = len(each) - len(long), len(long) - len(found), sum(firsts)
        assert (told["texts"], told["few"], told["flat"]) == (len(found), few, flat)
        assert flat == 1 and (few > 0) is not told["special"]
        half = 1.959964 * np.std(found, ddof=1) / np.sqrt(len(found))
        close(told["correlation"]["mean"], np.mean(found))
        close(told["correlation"]["low"], np.mean(found) - half)
        close(told["correlation"]["high"], np.mean(found) + half)
        close(told["first"]["share"], same / len(found))
        assert told["first"]["low"] < same / len(found) < told["first"]["high"]
        edges = np.linspace(-1, 1, 21)
        assert told["histogram"] == np.histogram(np.round(found, 7), np.round(edges, 7))[0].tolist()


def test_where_views_disagree_the_most(
    summary: dict[str, Any], scored: list[dict[str, Any]], plain: Plain, folder: Path, tmp_path: Path
) -> None:
    held = summary["disagreement"]
    assert (held["layer"], held["least"]) == ("L2", 8)
    long = [row for row in scored if sum(not x for x in row["special"]) >= 8]
    assert held["eligible"] == len(long) - any(row["row"] == 10 for row in long)

    def lowest(layer: str, views: Sequence[str]) -> list[tuple[float, int]]:
        each = plain[*views, layer, False]
        found = [(both[0], row["row"]) for row in long if (both := each[row["row"]])]
        return sorted(one for one in found if np.isfinite(one[0]))[:5]

    assert [one["views"] for one in held["pairs"]] == [list(pair) for pair in combinations(summary["views"], 2)]
    for one in held["pairs"]:
        wanted = lowest("L2", one["views"])
        assert [text["row"] for text in one["texts"]] == [row for _, row in wanted]
        assert [text["correlation"] for text in one["texts"]] == pytest.approx([value for value, _ in wanted])
    assert {int(row) for row in held["texts"]} == {text["row"] for one in held["pairs"] for text in one["texts"]}
    by_row = {row["row"]: row for row in scored}
    for number, text in held["texts"].items():
        row = by_row[int(number)]
        same = ("id", "text", "tokens", "truncated", "queries", "pair")
        assert {name: text[name] for name in same} == {name: row.get(name) for name in same}
        assert text["prediction"] == {"kind": "class", **row["prediction"]["top"][0]}
        joins = [int(i > 0 and w is not None and w == row["word_ids"][i - 1]) for i, w in enumerate(row["word_ids"])]
        assert text["joins"] == joins and text["special"] == [int(x) for x in row["special"]]
        for view in summary["views"]:
            close(text["shares"][view], shares(row, f"{view}_L2").tolist())
    first = report.summarize(folder, layer=0, texts=2)["disagreement"]
    assert first["layer"] == "L1"
    assert [t["row"] for t in first["pairs"][1]["texts"]] == [row for _, row in lowest("L1", ("raw", "flow"))][:2]
    none = report.summarize(folder, texts=0)["disagreement"]
    assert none["texts"] == {} and [one["texts"] for one in none["pairs"]] == [[], [], []]
    alone = report.summarize(stored(tmp_path / "alone", *made_up(12, ("rollout",), (3,))))
    assert alone["agreement"] == [] and alone["disagreement"]["texts"] == {} and alone["layers"] == ["L3"]


def test_shorter_texts_where_there_are_too_few_long_ones(folder: Path, scored: list[dict[str, Any]]) -> None:
    sizes = [sum(not x for x in row["special"]) for row in scored if row["row"] != 10]
    many = {least: sum(size >= least for size in sizes) for least in (6, 8)}
    assert 5 < many[8] < many[6]
    for texts, least in ((5, 8), (many[8], 8), (many[8] + 1, 6), (many[6] + 1, 6)):
        held = report.summarize(folder, texts=texts)["disagreement"]
        assert (held["least"], held["eligible"]) == (least, many[least])
        assert {len(one["texts"]) for one in held["pairs"]} == {min(texts, many[least])}


def test_how_far_views_tell_tokens_apart(summary: dict[str, Any], scored: list[dict[str, Any]]) -> None:
    for view in summary["views"]:
        for layer in summary["layers"]:
            logs = []
            for row in scored:
                its = shares(row, f"{view}_{layer}")[~np.array(row["special"])]
                logs += [np.log(its.max() / its.min())] * (len(its) >= 3)
            found = np.log(summary["ratio"][view][layer])
            assert found == pytest.approx(np.median(logs), rel=0.05) and found > 0.5


@pytest.mark.parametrize("above", [0.0, 1e-3, 0.04, 0.19, 0.21, 3.0, 1e5, None])
def test_the_ratio_of_a_typical_text(above: float | None, tmp_path: Path) -> None:
    """Special tokens and two texts of forty do not matter; if the smallest value is 0, there is no ratio."""
    rows, columns = made_up(40, ("raw",), (1,))
    rows = [row for row in rows if "error" not in row and len(row["tokens"]) >= 5]
    for number, row in enumerate(rows):
        n = len(row["tokens"])
        scores = np.ones(n) if number > 1 else np.geomspace(1, 1e6, n)
        scores[0] = 1e9
        if number > 1:
            scores[n // 2] = 1e-12 if above is None else 1 + above
            scores[1] = 0 if above is None else 1
        row["raw_L1"] = [scores.tolist()]
    (found,) = report.summarize(stored(tmp_path / "out", rows, columns))["ratio"]["raw"].values()
    if above is None:
        assert found is None
    else:
        assert np.log(found) == pytest.approx(np.log1p(above), rel=0.002, abs=1.1e-5)


def test_long_texts_are_shown_in_part(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "SHOWN", 4)
        found = report.summarize(folder, texts=3)["disagreement"]["texts"]
    for text in found.values():
        assert len(text["tokens"]) == len(text["joins"]) == len(text["special"]) == 4 < text["size"]
        assert {len(row) for row in text["shares"].values()} == {4}


def test_an_unknown_word_may_be_any_text(tmp_path: Path) -> None:
    """If one id has many texts, the report keeps a limited number, the same ones whatever the batch size."""
    rows, columns = made_up(60)
    for row in rows:
        if "error" not in row:
            row["tokens"][1], row["token_ids"][1] = f"word {row['row'] % 23}", 3
    out = stored(tmp_path / "unknown", rows, columns)
    kept = list(dict.fromkeys(row["tokens"][1] for row in rows if "error" not in row))[:16]
    counts = Counter(row["tokens"][1] for row in rows if "error" not in row)
    names = sorted(kept, key=lambda name: (-counts[name], name))
    for batch in (1024, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shards, "BATCH", batch)
            (found,) = [row for row in report.summarize(out)["types"]["rows"] if row[0] == 3]
        assert found == [3, names[0], names[1:4], 16, False, 57, False]


def test_words_have_no_ids(tmp_path: Path) -> None:
    rows, columns = made_up(40)
    whole = [row | {"token_ids": None} for row in rows]
    found = report.summarize(stored(tmp_path / "words", whole, columns))
    counted = Counter(token for row in whole if "error" not in row for token in row["tokens"])
    assert found["words"] and found["types"]["seen"] == len(counted)
    for number, text, others, spellings, _, count, _ in found["types"]["rows"]:
        assert number is None and (others, spellings) == ([], 1) and count == counted[text]
    assert not report.summarize(stored(tmp_path / "tokens", rows, columns))["words"]


def test_scores_that_are_no_numbers_fail_alone(tmp_path: Path) -> None:
    rows, columns = made_up(30)
    broken = [dict(row) for row in rows]
    broken[5]["flow_L2"] = [[float("nan")] * len(broken[5]["tokens"])]
    found = report.summarize(stored(tmp_path / "nan", broken, columns))
    without = report.summarize(stored(tmp_path / "without", [row for row in rows if row["row"] != 5], columns))
    assert {"kind": "scores", "count": 1, "examples": [{"id": "texts.txt:6", "message": "some of its scores are not finite"}]} in found["errors"]  # fmt: skip
    assert (found["received"], found["agreement"]) == (without["received"], without["agreement"])
    assert (found["texts"], found["scored"]) == (30, without["scored"])


def test_differences_from_a_receptive_field_are_no_shares(tmp_path: Path) -> None:
    """They may be negative, and are not normalised."""
    rows, columns = made_up(30)
    for row in rows:
        if "error" not in row:
            for name in columns:
                row[name] = (np.array(row[name]) - 0.2).tolist()
    out = stored(tmp_path / "less", rows, columns, parts=1)
    (out / "_manifest.jsonl").write_text(
        json.dumps({"format": "attnflow.corpus", "receptive_field": "difference"}) + "\n"
    )
    found = report.summarize(out)
    assert found["receptive_field"] == "difference"
    values = np.concatenate([np.array(row["flow_L2"]).mean(0) for row in rows if "error" not in row])
    told = np.array(found["positions"]["start"]["all"]["counts"])
    mean = np.array([x or 0 for x in found["positions"]["start"]["all"]["shares"]["flow"]["L2"]])
    assert (told * mean).sum() == pytest.approx(values.sum(), rel=1e-4)
    assert all(abs(share) <= 1 for view in ("raw", "flow") for _, _, share, *_ in found["received"][view]["L1"])
    assert set(found["ratio"]["flow"].values()) == {None}
    of = {row[0]: number for number, row in enumerate(found["types"]["rows"])}
    lifts = [
        np.array(row["flow_L2"]).mean(0)[i] * (len(row["tokens"]) - 2)  # not divided by the sum, which may be 0
        for row in rows
        if "error" not in row
        for i, token in enumerate(row["token_ids"])
        if token == 7
    ]
    (lone,) = [row[4] for row in found["received"]["flow"]["L2"] if row[0] == of[7]]
    assert lone == pytest.approx(np.mean(lifts), rel=1e-4)


def test_ratios_to_a_receptive_field_are_divided_by_their_sums(tmp_path: Path) -> None:
    """The sums make them comparable with values that sum to 1; raw attention already does."""
    rows, columns = made_up(30)
    plain = report.summarize(stored(tmp_path / "plain", rows, columns, parts=1))
    for row in rows:
        for name in columns:
            if "error" not in row and name.startswith("rollout"):
                row[name] = (5 * np.array(row[name])).tolist()
    out = stored(tmp_path / "ratio", rows, columns, parts=1)
    (out / "_manifest.jsonl").write_text(json.dumps({"format": "attnflow.corpus", "receptive_field": "ratio"}) + "\n")
    found = report.summarize(out)
    for name in ("raw", "rollout", "flow"):
        for layer in ("L1", "L2"):
            close(
                [row[1:] for row in found["received"][name][layer]], [row[1:] for row in plain["received"][name][layer]]
            )


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
    assert refused(folder, layer=5) == "layer=5 (L6) has no scores in 'X/out': expected one of L1, L2"
    assert (
        refused(folder, texts=-1)
        == "texts=-1: expected the number of texts to show for each pair of methods, 0 or more"
    )
    rows[4]["raw_L1"] = [[0.5, 0.5]]
    assert refused(stored(tmp_path / "odd", rows, columns, parts=1)) == (
        "rows 0 to 29 of 'X/odd' do not have one score per token: expected shards written by a corpus job"
    )
    torn = stored(tmp_path / "torn", made_up(30)[0], columns, parts=2)
    (torn / "part-000001.parquet").write_bytes(b"PAR1 and nothing else")
    told = refused(torn)
    assert told.startswith("'X/torn/part-000001.parquet' cannot be read (")
    assert told.endswith("): delete it, then resume the job to write it again")


@pytest.fixture(scope="module")
def read() -> tuple[list[dict[str, Any]], list[str]]:
    return traced()


@pytest.fixture(scope="module")
def real(read: tuple[list[dict[str, Any]], list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("real") / "out", *read, parts=2)


def test_pages(real: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in real.iterdir())
    index, *pages = corpus_page.write(real, tmp_path / "page", texts=2)
    assert index == tmp_path / "page" / "index.html" and sorted(path.name for path in real.iterdir()) == before
    held = report.summarize(real, texts=2)["disagreement"]
    assert [path.name for path in pages] == [f"{row}.html" for row in held["texts"]]
    assert 2 <= len(pages) <= 6
    for path, text in zip(pages, held["texts"].values(), strict=True):
        assert path.parent == tmp_path / "page" / "texts"
        assert f"<title>{text['text']} · attnflow</title>" in path.read_text(encoding="utf-8")
    document = embedded(index)
    assert document["missing"] is None and document["pages"] == [int(path.stem) for path in pages]
    short = {
        row: {name: text[name] for name in text if name not in ("text", "pair")} for row, text in held["texts"].items()
    }
    assert document["disagreement"] == {**held, "texts": short}
    texts = tmp_path / "page" / "texts"
    for name in ("99.html", "notes.html", "7.txt"):
        (texts / name).write_text("of before")
    assert corpus_page.write(real, tmp_path / "page", texts=0) == [index]  # pages that nothing links to are removed
    assert sorted(path.name for path in texts.iterdir()) == ["7.txt", "notes.html"]
    index, *pages = corpus_page.write(real, texts=1)
    assert index == real / "_report" / "index.html" and pages
    assert report.summarize(real)["texts"] == 12  # the pages are not part of the corpus


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_for_terminals(real: Path, terminal: bool, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    sentences: list[str] = []
    corpus_page.write(real, tmp_path / "page", texts=1, say=sentences.append)
    shown = capsys.readouterr()
    assert sentences == [] and shown.out == ""
    assert ("reading the shards" in shown.err and "writing the pages of texts" in shown.err) == terminal
    assert terminal or shown.err == ""


def test_long_texts_have_no_page(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_page, "LONGEST", 3)
    said: list[str] = []
    index, *pages = corpus_page.write(real, tmp_path / "page", texts=2, say=said.append)
    assert not pages and index.exists()
    assert "and a page has room for 3" in said[0]


def test_pages_of_words(tmp_path: Path) -> None:
    index, *pages = corpus_page.write(stored(tmp_path / "out", *traced(SENTENCES[:4], words=True), parts=1), texts=1)
    assert pages and embedded(index)["missing"] is None


def test_pages_that_cannot_be_made(read: tuple[list[dict[str, Any]], list[str]], tmp_path: Path) -> None:
    rows, columns = read[0][:4], read[1]
    gone = [{**row, "provenance": json.dumps({**PROVENANCE, "model": "/gone/model"})} for row in rows]
    out = stored(tmp_path / "gone", gone, columns, parts=1)
    assert corpus_page.write(out, texts=1) == [out / "_report" / "index.html"]
    document = embedded(out / "_report" / "index.html")
    assert document["pages"] == [] and document["missing"] == (
        "No text has its own page: there is no folder '/gone/model': expected the folder of a model, or a hub id such as "
        "'bert-base-uncased'; give the report the path of the model."
    )
    here = str(Path(af.__file__).parent / "paper" / "verb-number")
    assert len(corpus_page.write(out, texts=1, model=here)) > 1
    assert embedded(out / "_report" / "index.html")["missing"] is None
    other = [{**row, "text": "one other text"} if row["row"] else row for row in rows]
    odd = stored(tmp_path / "odd", other, columns, parts=1)
    corpus_page.write(odd, texts=3)
    document = embedded(odd / "_report" / "index.html")
    lost = [row for row in document["disagreement"]["texts"] if row != "0"]
    assert document["missing"].endswith(
        "the model's tokens differ from those in the corpus: give the model that explained it)."
    )
    assert document["missing"].startswith(f"{len(lost)} of {len(document['disagreement']['texts'])} texts have no page")


@pytest.mark.parametrize(
    ("told", "gguf", "name", "wanted"),
    [
        ("verb-number", None, None, ((), {"dtype": "float32"})),
        ("some/model", None, None, (("some/model",), {"revision": "abc", "dtype": "float32", "allow_pickle": False, "gguf_file": None})),
        ("some/model", "q8.gguf", None, (("some/model",), {"revision": "abc", "dtype": "float32", "allow_pickle": False, "gguf_file": "q8.gguf"})),
        ("HERE", "q8.gguf", None, (("HERE",), {"revision": None, "dtype": "float32", "allow_pickle": False, "gguf_file": "q8.gguf"})),
        ("some/model", "q8.gguf", "HERE", (("HERE",), {"dtype": "float32", "allow_pickle": False, "gguf_file": "q8.gguf"})),
        ("some/model", "q8.gguf", "HERE/q8.gguf", (("HERE/q8.gguf",), {"dtype": "float32", "allow_pickle": False, "gguf_file": None})),
    ],
)  # fmt: skip
def test_the_model_is_loaded_as_it_was(
    told: str, gguf: str | None, name: str | None, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GGUF model is loaded from its file, a hub model at its revision."""
    (tmp_path / "q8.gguf").touch()
    here = lambda text: text and text.replace("HERE", str(tmp_path))  # noqa: E731
    revision = "attnflow 0.1.0" if told == "verb-number" else "abc"
    rows, columns = made_up(30)
    source = json.dumps({**PROVENANCE, "model": here(told), "revision": revision})
    out = stored(tmp_path / "out", [row | {"provenance": source} for row in rows], columns, parts=1)
    settings = {"format": "attnflow.corpus", "gguf_file": gguf}
    (out / "_manifest.jsonl").write_text(json.dumps(settings) + "\n")
    asked = []

    def load(*given: str, **options: Any) -> None:
        asked.append((given, options))
        raise InputError("nothing is loaded here")

    monkeypatch.setattr(af, "load", load)
    corpus_page.write(out, texts=1, model=here(name))
    assert asked == [(tuple(map(here, wanted[0])), wanted[1])]


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
