"""The page of findings: its rules on summaries where the truth is built in, and what it says where parts are missing."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from attnflow.edges import EDGES
from attnflow.errors import InputError
from attnflow.evaluate import Evaluation
from attnflow.evaluate.methods import IMPORTANCES, all_methods
from benchmarks import findings
from benchmarks.grid_files import read_summary
from benchmarks.verdicts import grids_of, settle, together, word_of
from helpers.measurements import summary_of

ROOT = Path(__file__).parents[2]
N = 60
METRICS = {
    "blank-out": "higher",
    "gradient-input": "higher",
    "comprehensiveness (mask)": "higher",
    "sufficiency (mask)": "lower",
    "aopc (mask)": "higher",
    "comprehensiveness (remove)": "higher",
}
JUDGES = {name: way for name, way in METRICS.items() if "remove" not in name}
AHEAD = {name: METRICS[name] for name in ("blank-out", "comprehensiveness (mask)")}  # the two that decide
Shift = Callable[[Mapping[str, Any], str], float]


def measured(
    model: str,
    seed: int,
    shift: Shift,
    causal: bool = False,
    data: str = "texts.tsv",
    edges: Sequence[str] = tuple(EDGES),
    metrics: Mapping[str, str] = METRICS,
) -> Evaluation:
    """shift: how much better than the others a method is by a metric; beyond that, all differ by chance alone."""
    rng = np.random.default_rng(seed)
    methods = [asdict(method) for method in all_methods(edges, IMPORTANCES, causal)]
    own = [
        np.random.default_rng([seed, zlib.crc32(method["name"].encode())]) for method in methods
    ]  # whoever else is there
    noise = np.stack([one.normal(0.2, 0.1, (N, len(metrics))) for one in own], 1)
    values = noise + rng.normal(0, 0.2, (N, 1, 1))
    better = np.array([[shift(method, metric) for metric in metrics] for method in methods])
    values += better * [1 if way == "higher" else -1 for way in metrics.values()]
    for k, name in enumerate(metrics):
        if name in IMPORTANCES:
            values[:, [m["name"] for m in methods].index(name), k] = np.nan
    kept = np.array([0.9 if m["edges"] == "mean" and m["propagation"] == "flow" else 0.1 for m in methods])
    count = len(methods)
    return Evaluation(
        methods=tuple(methods),
        metrics=metrics,
        values=values,
        curves={by: rng.random((N, count, 2, 5)) for by in ("mask", "remove")},
        agreement=np.where(np.eye(count), np.nan, 0.25),
        sanity={"head": np.ones((N, count)), "all": kept + rng.normal(0, 0.02, (N, count))},
        seconds=np.full((N, count), 2.0),
        pass_seconds=np.full(N, 1.0),
        provenance={
            "model": model, "class": "SomeModel", "revision": None, "data": data, "texts": N + 1, "samples": N, "seed": 3,
            "excluded": {"empty": 1}, "devices": {"scores": ["cpu"]}, "attnflow": "0.1.0", "truncate": False, "steps": 4,
        },
    )  # fmt: skip


def truth(alti: float) -> Shift:
    by_edges = {"value-norm": 0.4, "effective": -0.4, "alti": alti}

    def shift(method: Mapping[str, Any], metric: str) -> float:
        if method["kind"] == "baseline":
            return 0.4 if method["name"] == "last" else -0.4
        if method["edges"] == "block-norm":
            return -0.4 if metric.startswith("sufficiency") else 0.4
        if method["edges"] == "gradient" and method["normalize"] == "rows":
            return 0.4
        if method["receptive_field"] == "ratio":
            return 0.4
        return by_edges.get(str(method["edges"]), 0.0)

    return shift


@pytest.fixture(scope="module")
def given() -> list[Evaluation]:
    return [
        measured("/somewhere/of/mine/sst2", 10, truth(alti=0.4), data="sst2.tsv"),
        measured("owner/encoder", 11, truth(alti=-0.4), metrics=JUDGES),
        measured("owner/decoder", 12, truth(alti=0.4), metrics=JUDGES, causal=True),
    ]


@pytest.fixture(scope="module")
def summaries(given: list[Evaluation]) -> list[dict[str, Any]]:
    return [summary_of(one, resamples=200) for one in given]


@pytest.fixture(scope="module")
def page(summaries: list[dict[str, Any]]) -> str:
    return findings.page(summaries)


def section(page: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert found, title
    return found[1]


def row(text: str, label: str) -> list[str]:
    found = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in found.strip("|").split("|")]


def sound(page: str) -> None:
    """Nothing that is no number is shown as one, no table is wide, and no table has a row of another length."""
    assert not re.search(r"\b(nan|NaN|None|null|inf)\b", page)
    for block in page.split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", line)) - 1 for line in block.splitlines() if line.startswith("|")}
        assert not widths or (len(widths) == 1 and max(widths) <= 8), block


def test_a_metric_says_what_its_test_says(summaries: list[dict[str, Any]]) -> None:
    (grid,) = grids_of(summaries[:1])
    test = {"metric": "sufficiency (mask)", "difference": -0.1, "effect": 0.5, "adjusted": 0.049}
    assert word_of(grid, test) == "helps"  # less is better
    assert word_of(grid, {**test, "difference": 0.1, "effect": -0.5}) == "hurts"
    assert word_of(grid, {**test, "difference": 0.1}) == "not settled"
    assert word_of(grid, {**test, "adjusted": 0.05}) == "no difference found"
    assert word_of(grid, {**test, "adjusted": None}) == "no difference found"
    assert word_of(grid, {**test, "metric": "blank-out", "difference": 0.1}) == "helps"


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["helps"] * 5, "helps"),
        (["helps"] * 3 + ["no difference found"] * 2, "helps"),
        (["helps"] * 2 + ["no difference found"] * 3, "not settled"),
        (["helps"] * 4 + ["hurts"], "not settled"),
        (["hurts"] * 3 + ["not settled", "no difference found"], "hurts"),
        (["no difference found"] * 5, "no difference found"),
        (["no difference found"] * 4 + ["not settled"], "not settled"),
        (["helps", "no difference found"], "not settled"),
    ],
)
def test_a_model_says_what_most_metrics_say_and_none_contradicts(words: Sequence[str], verdict: str) -> None:
    assert settle(words) == verdict


def test_models_together() -> None:
    assert together({"A": "hurts"}) == "hurts on A"
    assert together({"A": "helps", "B": "helps", "C": "helps"}) == "helps on all 3 models"
    mixed = {"A": "no difference found", "B": "helps", "C": "helps"}
    assert together(mixed) == "not settled: helps on 2 of 3, no difference found on 1 of 3"


def test_what_is_built_in_is_found(page: str) -> None:
    effective = section(page, "Does effective attention help?")
    assert "effective: hurts on all 3 models (raw, rollout, flow)." in effective
    assert row(effective, "effective: flow")[-1] == "hurts on all 3 models"
    assert row(effective, "effective: flow")[1].startswith("**hurts** (5 of 5); -0.")
    norms = section(page, "Do value norms help?")
    assert "value-norm: helps on all 3 models (raw, rollout, flow)" in norms
    for way in ("raw", "rollout", "flow"):  # by chance a single metric may say something, a model may not
        assert all(
            re.match(r"\*\*(no difference found|not settled)\*\*", c) for c in row(norms, f"value-zeroing: {way}")[1:4]
        )
    assert row(norms, "value-zeroing: flow")[-1] == "no difference found on all 3 models"
    assert "alti: not settled (raw, rollout, flow)" in norms
    assert row(norms, "alti: rollout")[-1] == "not settled: helps on 2 of 3, hurts on 1 of 3"
    assert row(norms, "block-norm: raw")[1].startswith("**not settled** (helps by 4, hurts by 1 of 5); +0.")
    gradients = section(page, "Do gradients help?")
    assert "gradient: no difference found on all 3 models (raw, rollout, flow, gather, columns)" in gradients
    assert "gradient (rows): helps on all 3 models (rollout, flow)" in gradients
    assert "attention-gradient (graph): no difference found on all 3 models (rollout, flow)" in gradients
    normalisation = section(page, "Which normalisation?")
    assert "gradient, rows in place of none: helps on all 3 models (rollout, flow)" in normalisation
    assert (
        "attention-gradient, graph in place of none: no difference found on all 3 models (rollout, flow)"
        in normalisation
    )
    ways = section(page, "Rollout, flow or raw?")
    assert row(ways, "flow in place of rollout: mean")[-1] == "no difference found on all 3 models"
    field = section(page, "Does receptive-field normalisation help decoders?")
    # by chance one of the two ways may be unsettled, and neither may help or hurt
    assert re.search(r"ratio: helps on decoder \(rollout, flow\); difference: (no difference found|not settled)", field)
    assert not re.search(r"; difference: (helps|hurts)", field)
    assert "Not in the grid of sst2 and encoder." in field
    assert row(field, "ratio: flow")[1:3] == ["–", "–"]


def test_the_short_answers_are_those_of_the_sections(page: str) -> None:
    short = re.findall(r"^- \*\*(.*?)\*\* (.*)$", section(page, "In short"), re.M)
    assert len(short) == 13
    for title, answer in short:
        assert section(page, title).strip().startswith(answer)


def test_who_is_ahead(page: str) -> None:
    found = section(page, "What is ahead of the paper's three methods?")
    first, more = re.findall(r"^On all 3 models: (.*) and (\d+) more\. Of these", found, re.M)[0]
    on_all = [line for line in found.splitlines() if "| 3 of 3 |" in line]
    assert len(first.split(", ")) == 5 and int(more) == len(on_all) - 5
    assert first.split(", ") == [f"{line.split('|')[1].strip()} (2×)" for line in on_all[:5]]
    assert row(found, "value-norm · raw")[1:] == ["by both", "by both", "by both", "3 of 3", "2×", "yes"]
    assert row(found, "alti · raw")[1:5] == ["by both", "no", "by both", "2 of 3"]
    assert row(found, "mean · flow · ratio")[1:5] == ["–", "–", "by both", "1 of 3"]
    assert "effective" not in found and "value-zeroing" not in found


def test_nothing_is_ahead_of_the_paper_by_chance() -> None:
    told = findings.page([summary_of(measured("m", 5, lambda method, metric: 0.0, metrics=AHEAD), resamples=50)])
    assert "Nothing on any model." in section(told, "What is ahead of the paper's three methods?")
    sound(told)


def test_cost_counts() -> None:
    cheap, dear = (measured(name, k, truth(0.0), edges=["value-norm"]) for k, name in enumerate("ab"))
    dear = replace(dear, seconds=np.full_like(dear.seconds, 5.0))
    told = findings.page([summary_of(one, resamples=50) for one in (cheap, dear)])
    found = section(told, "What is ahead of the paper's three methods?")
    assert row(found, "value-norm · raw")[1:] == ["by both", "by both", "2 of 2", "2× to 5×", "no"]
    assert "On both models: " in found and ", 0 cost less than 3 forward and backward passes." in found


def test_baselines_that_are_not_beaten_are_named(page: str) -> None:
    found = section(page, "What does not beat chance or the position?")
    random = [line for line in found.splitlines() if line.startswith("| encoder | random |")]
    assert (
        "effective · raw, effective · rollout, effective · flow, alti · raw, alti · rollout, alti · flow" in random[0]
    )
    assert "value-norm" not in random[0] and "mean" not in random[0]
    last = [line for line in found.splitlines() if line.startswith("| encoder | last |")]
    assert "mean · raw, mean · rollout, mean · flow" in last[0]


def test_scores_that_survive_shuffling_are_named(page: str) -> None:
    found = section(page, "What hardly changes when the weights are shuffled?")
    assert found.strip().startswith("With all shuffled: mean · flow on all 3 models; mean · flow · ratio on decoder")
    assert row(found, "mean · flow")[-1] == "3 of 3" and row(found, "mean · raw")[-1] == "0 of 3"
    assert "With only the head shuffled, the ranks of mean · raw, " in found


def test_whether_deletions_and_metrics_agree() -> None:
    few = ("effective", "alti", "value-zeroing")
    one = measured("m", 3, lambda method, metric: len(method["name"]) / 30, edges=few)
    asked = ("Do deletions by mask, UNK and removal rank methods alike?", "Do the metrics agree with each other?")
    told = findings.page([summary_of(one, resamples=50)])
    for title in asked:  # sufficiency too, of which less is better
        assert re.match(r"They do on m\. The lowest rank correlation is (0\.9\d|1\.00) ", section(told, title).strip())
    values = one.values.copy()
    for name in ("comprehensiveness (remove)", "sufficiency (mask)"):
        values[:, :, list(one.metrics).index(name)] *= -1
    told = findings.page([summary_of(replace(one, values=values), resamples=50)])
    for title, names in zip(asked, ("mask with remove", ".* with sufficiency"), strict=True):
        pattern = rf"They do not on m\. The lowest rank correlation is -(0\.9\d|1\.00) \(({names}), m\)\."
        assert re.match(pattern, section(told, title).strip())
    line = (
        r"- 4 of 10 pairs of metrics rank the methods of m differently, .* and sufficiency most \(ρ -(0\.9\d|1\.00)\)\."
    )
    assert re.search(line, section(told, "What is not settled"))


def test_published_figures_stand_beside_sst2_alone(page: str, summaries: list[dict[str, Any]]) -> None:
    found = section(page, "How do published figures look beside ours?")
    assert found.count("| AOPC |") == 4 and found.count("| ρ with gradient × input |") == 2
    alti = next(line for line in found.splitlines() if "| ALTI |" in line)
    cell = next(c for c in summaries[0]["cells"] if (c["method"], c["metric"]) == ("alti · rollout", "aopc (mask)"))
    assert alti.startswith(f"| AOPC | ALTI | 0.416 | alti · rollout | {cell['mean']:.3f} [")
    assert "encoder" not in found and "no targets" in found
    assert "No grid here is of SST-2." in findings.page(summaries[1:2])


def test_what_is_not_settled_is_listed_with_reasons(page: str) -> None:
    found = section(page, "What is not settled")
    assert "- alti · flow against mean · flow: sst2 helps; encoder hurts; decoder helps." in found
    assert (
        "- block-norm · raw against mean · raw: sst2 is not settled (helps by blank-out ρ, gradient-input ρ, "
        "comprehensiveness and aopc, hurts by sufficiency); " in found
    )
    assert "value-norm · flow against mean · flow" not in found


def test_the_page_says_how_it_was_made(page: str) -> None:
    assert page.startswith("<!-- Made by `python -m benchmarks.findings`;")
    assert "attnflow evaluate sst2.tsv -m sst2 --grid --samples 61 --seed 3 --steps 4 -o sst2" in page
    assert "python -m benchmarks.findings sst2 encoder decoder -o findings.md" in page
    how = section(page, "How it was measured")
    assert row(how, "left out")[1:] == ["empty: 1"] * 3 and row(how, "texts used")[1:] == ["60"] * 3
    assert "somewhere" not in page  # where a model lay
    sound(page)


def test_every_difference_has_its_numbers(page: str, summaries: list[dict[str, Any]]) -> None:
    found = section(page, "Every difference")
    wanted = ("blank-out", "value-norm · flow", "mean · flow", "edges")
    test = next(
        t for t in summaries[1]["tests"] if tuple(t[k] for k in ("metric", "first", "second", "about")) == wanted
    )
    table = found[found.index("**Do value norms help?** encoder") :]
    cells = row(table[: table.index("**", 40)], "value-norm · flow less mean · flow")
    shown = "{difference:+.3f} [{low:+.3f}, {high:+.3f}], {effect:+.2f}, p < 0.001".format(**test)
    assert cells[1] == shown and cells[-1] == "helps"


def bare(one: Evaluation, keep: Callable[[str], bool], **changes: Any) -> dict[str, Any]:
    """Only some of the metrics."""
    at = [k for k, name in enumerate(one.metrics) if keep(name)]
    metrics = {name: way for name, way in one.metrics.items() if keep(name)}
    return summary_of(replace(one, metrics=metrics, values=one.values[:, :, at], **changes), resamples=50)


def test_a_grid_without_curves(given: list[Evaluation]) -> None:
    told = findings.page([bare(given[1], lambda name: "(" not in name, curves={}, sanity={})])
    sound(told)
    assert "value-norm: helps on encoder" in section(told, "Do value norms help?")
    assert "none has two deletions" in section(told, "Do deletions by mask, UNK and removal rank methods alike?")
    assert "none was scored with shuffled" in section(told, "What hardly changes when the weights are shuffled?")
    ahead = section(told, "What is ahead of the paper's three methods?")
    assert row(ahead, "value-norm · raw")[1:3] == ["by blank-out ρ", "1 of 1"]


def test_a_grid_without_importances_beside_a_whole_one(
    given: list[Evaluation], summaries: list[dict[str, Any]]
) -> None:
    without = bare(given[1], lambda name: "(" in name)
    told = findings.page([summaries[0], without])
    sound(told)
    assert "value-norm: helps on both models" in section(told, "Do value norms help?")
    gradient = measured("owner/encoder", 1, truth(0.0), edges=["alti"], metrics={"gradient": "higher"})
    told = findings.page([summary_of(gradient, resamples=50)])
    sound(told)
    assert "none has comprehensiveness or blank-out" in section(told, "What is ahead of the paper's three methods?")
    assert "- encoder: gradient\n" in told


def test_a_grid_without_any_metric_or_of_the_papers_methods_alone(given: list[Evaluation]) -> None:
    told = findings.page(
        [bare(given[1], lambda name: False, curves={}, sanity={}, agreement=given[1].agreement * np.nan)]
    )
    sound(told)
    assert "Cannot be asked" in section(told, "Does effective attention help?")
    few = [m for m, method in enumerate(given[1].methods) if method["kind"] == "paper"]
    one = given[1]
    paper = replace(
        one,
        methods=tuple(one.methods[m] for m in few),
        values=one.values[:, few],
        curves={by: held[:, few] for by, held in one.curves.items()},
        agreement=one.agreement[np.ix_(few, few)],
        sanity={level: held[:, few] for level, held in one.sanity.items()},
        seconds=one.seconds[:, few] * np.nan,
    )
    told = findings.page([summary_of(paper, resamples=50)])
    sound(told)
    assert "Nothing on any model." in told and "none has baselines" in told


def test_methods_that_never_differ_are_told_apart_from_noise() -> None:
    one = measured("encoder", 1, truth(0.0), edges=["effective"])
    names = [method["name"] for method in one.methods]
    values = one.values.copy()
    values[:, names.index("effective · raw")] = values[:, names.index("mean · raw")]
    told = findings.page([summary_of(replace(one, values=values), resamples=50)])
    cells = row(section(told, "Does effective attention help?"), "effective: raw")
    assert cells[1:] == ["**no difference found**; the same on every text", "no difference found on encoder"]
    sound(told)


def test_many_models_make_several_tables(summaries: list[dict[str, Any]]) -> None:
    many = [{**summaries[1], "provenance": {"model": "m", "seed": k}} for k in range(9)]
    told = findings.page(many)
    sound(told)
    assert "m (9)" in told and "value-norm: helps on all 9 models" in told


def test_the_same_grid_twice_is_refused(summaries: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError) as e:
        findings.page([summaries[1], summaries[1]])
    assert str(e.value) == (
        "the grid of 'owner/encoder' was given twice, and would count as two models: give each grid once"
    )
    with pytest.raises(InputError) as e:
        findings.page([])
    assert str(e.value) == (
        "there is no result to tell of: give the grid.json of at least one attnflow evaluate --grid"
    )


def test_the_command_reads_files_and_folders(summaries: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "grid.json").write_text(json.dumps(summaries[0]), encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(summaries[1]), encoding="utf-8")
    out = tmp_path / "findings.md"
    app = typer.Typer()
    app.command()(findings.main)
    done = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "b.json"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_text(encoding="utf-8") == findings.page(summaries[:2])


def test_files_that_are_no_grid(summaries: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "grid.json"

    def refused(content: bytes | None) -> str:
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InputError) as e:
            read_summary(tmp_path)
        return str(e.value)

    again = "run attnflow evaluate --grid again with the same folder"
    assert refused(None) == (
        f"there is no file '{file}': expected the grid.json of attnflow evaluate --grid, or its folder"
    )
    assert refused(b'{"methods": [') == (
        f"'{file}' cannot be read as JSON (Expecting value: line 1 column 14 (char 13)): {again}"
    )
    assert refused(b"\xff").startswith(f"'{file}' cannot be read as JSON ('utf-8' codec can't decode byte 0xff")
    no_grid = f"'{file}' is no result of a grid: expected the grid.json of attnflow evaluate --grid"
    assert refused(b"[1, 2]") == no_grid
    assert refused(b'{"model": "x"}') == no_grid
    cells = [{k: v for k, v in summaries[0]["cells"][0].items() if k != "mean"}]
    assert refused(json.dumps({**summaries[0], "cells": cells}).encode()) == (
        f"'{file}' is damaged (an entry of 'cells' has no 'mean'): {again}"
    )


def test_the_committed_page_is_made_from_the_committed_results() -> None:
    made = ROOT / "docs" / "findings.md"
    results = sorted((ROOT / "docs" / "findings").glob("*.json"))
    assert findings.page([read_summary(path) for path in results]) == made.read_text(encoding="utf-8")
