"""The recommendation of a grid: every outcome, by construction; choosing and testing never share a text."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy", reason="evaluation needs scipy for its tests")

from attnflow.cli.evaluate import show_command
from attnflow.evaluate import Evaluation
from attnflow.evaluate.evaluation_tables import remarks
from attnflow.evaluate.methods import all_methods
from attnflow.evaluate.recommend import texts_for
from attnflow.evaluate.statistics import effect
from helpers.measurements import method

NAMES = ("mean · raw", "mean · rollout", "mean · flow")
METHODS = (
    *(method(name, "paper", "mean", name.split()[-1], normalize="rows") for name in NAMES),
    method("alti · rollout", "edges", "alti", "rollout", normalize="rows"),
    method("answer · answer_rows", "edges", "answer", "answer_rows", normalize="rows"),
    method("blank-out", "importance"),
    method("gradient", "importance"),
    *(method(name, "baseline") for name in ("random", "first", "last")),
)
NUMBER = {m["name"]: i for i, m in enumerate(METHODS)}
METRICS = {
    "blank-out": "higher", "gradient": "higher", "comprehensiveness (mask)": "higher", "sufficiency (mask)": "lower",
    "comprehensiveness (unk)": "higher", "sufficiency (unk)": "lower",
}  # fmt: skip
ROWS = "answer · answer_rows"


def grid(n: int = 400, noise: float = 0.1, **gains: float | list[float]) -> Evaluation:
    """Return a grid of methods that differ only by noise.

    gains: how much better a method is, by every metric or by each.
    """
    rng = np.random.default_rng(1)
    values = rng.normal(0.2, noise, (n, len(METHODS), len(METRICS))) + rng.normal(0, 0.2, (n, 1, 1))
    better = np.array([1.0 if way == "higher" else -1.0 for way in METRICS.values()])
    for name, gain in gains.items():
        values[:, NUMBER[name]] += better * np.array(gain)
    values[:, NUMBER["blank-out"], 0] = values[:, NUMBER["gradient"], 1] = np.nan
    seconds = np.full((n, len(METHODS)), 0.5)
    seconds[:, NUMBER[ROWS]] = 0.65
    return Evaluation(
        METHODS, METRICS, values, np.eye(len(METHODS)), {"model": "m"}, seconds=seconds, pass_seconds=np.full(n, 0.5),
        resamples=200, curves={"mask": rng.random((n, len(METHODS), 2, 4))},
    )  # fmt: skip


def test_the_one_that_is_ahead_is_recommended() -> None:
    one = grid(**{ROWS: 0.15, "alti · rollout": 0.05})
    held_out = one.values[1::2, :, 2]
    rivals = [*NAMES, "random", "first", "last"]
    means = {name: (held_out[:, NUMBER[ROWS]] - held_out[:, NUMBER[name]]).mean() for name in rivals}
    closest = min(means, key=means.__getitem__)
    pattern = (
        r"Use answer · answer_rows for this model: on 200 texts held out it is ahead of mean · raw, mean · rollout, mean · flow, "
        rf"chance and position \(comprehensiveness \(mask\) \+{means[closest]:.3f} \[\+0\.\d+, \+0\.\d+\] against {closest}, "
        r"p < 0\.001\), at 1\.3 forward and backward passes\."
    )
    assert one.recommendation is not None and re.fullmatch(pattern, one.recommendation), one.recommendation
    assert one.summary["recommendation"] == one.recommendation and one.summary["recommended"] == ROWS


def test_an_importance_that_is_further_ahead_is_named() -> None:
    one = grid(**{ROWS: 0.15, "blank-out": 0.25})
    assert one.recommendation is not None and re.search(
        r"; blank-out is further ahead by 0\.\d+ at 1 passes\.$", one.recommendation
    )
    assert one.summary["recommended"] == ROWS


def test_of_equal_ones_the_fastest_is_chosen() -> None:
    one = grid(**{ROWS: 0.15})
    values = one.values.copy()
    values[:, NUMBER["alti · rollout"]] = values[:, NUMBER[ROWS]]
    assert replace(one, values=values).summary["recommended"] == "alti · rollout"
    slow = np.array(one.seconds)
    slow[:, NUMBER["alti · rollout"]] = 5.0
    assert replace(one, values=values, seconds=slow).summary["recommended"] == ROWS


def test_a_method_of_the_paper_that_is_as_good_is_enough() -> None:
    """Edges lead on the half that chooses, and a method of the paper on the other."""
    one = grid(**{ROWS: 0.15, "mean · raw": 0.15})
    values = one.values.copy()
    values[0::2, NUMBER[ROWS], 2] += 0.1
    values[1::2, NUMBER["mean · raw"], 2] += 0.1
    both = replace(one, values=values)
    assert both.summary["recommended"] == "mean · raw"
    assert "ahead of mean · rollout, mean · flow, chance and position (" in str(both.recommendation)


def test_the_position_of_a_token_is_hard_to_beat() -> None:
    one = grid(**{ROWS: 0.1, "last": 0.2})
    assert one.recommendation == (
        "No method is ahead of the position of a token on these texts: do not rank tokens by any of them."
    )
    assert one.summary["recommended"] is None
    chance = grid(**{ROWS: 0.2, "random": 0.5})
    assert chance.recommendation == "No method is ahead of chance on these texts: do not rank tokens by any of them."


def test_few_texts_do_not_show_that_there_is_nothing() -> None:
    """All methods are alike: few texts leave it open, many show it."""
    few, many = grid(n=60), grid(n=800)
    enough = texts_for(0.3, 5)  # against the two other methods of the paper and three baselines
    pattern = (
        r"Too few texts to decide: on 30 texts held out no method is ahead of "
        rf"(chance|the position of a token|chance or the position of a token); {enough} would "
        rf"show a difference of medium size; give {2 * (enough or 0)} in all\."
    )
    assert re.fullmatch(pattern, str(few.recommendation)), few.recommendation
    assert many.recommendation == (
        "No method is ahead of chance or the position of a token on these texts: do not rank tokens by any of them."
    )
    lost = grid(n=60, last=0.5)
    assert str(lost.recommendation).startswith("No method is ahead of the position"), "unless the position clearly wins"


def test_so_few_texts_cannot_tell() -> None:
    assert grid(n=12, **{ROWS: 1.0}).recommendation == (
        "Too few texts to decide: 6 texts held out, but significance needs at least 8; give 16 in all."
    )
    assert grid(n=16, noise=0.01, **{ROWS: 1.0}).summary["recommended"] == ROWS, "eight that agree are enough"


def test_a_small_difference_asks_for_as_many_texts_as_would_show_it() -> None:
    one = grid(n=80, **{ROWS: 0.1})
    found = re.fullmatch(
        r"Too few texts to decide: 40 texts held out, but the difference seen \(answer · answer_rows against ([\w ·]+), "
        r"comprehensiveness \(mask\) \+0\.\d+ \[.*\]\) needs about ([\d,]+); give ([\d,]+) in all\.",
        str(one.recommendation),
    )
    assert found is not None, one.recommendation
    needed = int(found[2].replace(",", ""))
    held_out = one.values[1::2, :, 2]
    size = effect(held_out[:, NUMBER[ROWS]] - held_out[:, NUMBER[found[1]]])
    assert size is not None and needed == texts_for(size, 6) and int(found[3].replace(",", "")) == 2 * needed
    assert one.summary["recommended"] is None


def test_metrics_that_disagree_are_told() -> None:
    one = grid(**{ROWS: [0.1, 0.1, 0.2, -0.2, 0.2, -0.2]})
    sentence = str(one.recommendation)
    assert sentence.startswith(
        "No method is ahead by every metric: answer · answer_rows is ahead of all others by comprehensiveness (mask) ("
    )
    assert re.search(r"\) and behind [\w ·]+ by sufficiency \(mask\) \(-0\.\d+ \[-0\.\d+, -0\.\d+\]\)\.$", sentence)
    assert one.summary["recommended"] is None


def test_what_chooses_never_tests() -> None:
    """A method that leads only on even texts is chosen, and fails on the odd ones."""
    one = grid()
    values = one.values.copy()
    values[0::2, NUMBER[ROWS]] += [0.3, 0.3, 0.3, -0.3, 0.3, -0.3]
    values[1::2, NUMBER[ROWS]] -= [0.3, 0.3, 0.3, -0.3, 0.3, -0.3]
    assert replace(one, values=values).summary["recommended"] is None


def test_without_deletion_the_correlation_with_blank_out_decides() -> None:
    one = grid(**{ROWS: 0.15})
    correlations = replace(one, metrics={"blank-out": "higher"}, values=one.values[:, :, :1], curves={})
    assert "(the rank correlation with blank-out +" in str(correlations.recommendation)
    none = replace(one, metrics={"gradient": "higher"}, values=one.values[:, :, 1:2], curves={})
    assert none.recommendation is None and none.summary["recommended"] is None
    bare = replace(one, methods=METHODS[:5], values=one.values[:, :5], agreement=np.eye(5), seconds=None, curves={})
    assert bare.recommendation is None, "no baselines"


def test_values_that_are_missing_are_left_out() -> None:
    one = grid(**{ROWS: 0.15})
    values = one.values.copy()
    values[::7, NUMBER["mean · flow"]] = np.nan
    values[:, NUMBER["alti · rollout"]] = np.nan
    assert replace(one, values=values).summary["recommended"] == ROWS


def test_it_stands_last_in_the_terminal_and_in_every_file(tmp_path: Path) -> None:
    one = grid(**{ROWS: 0.15})
    text = io.StringIO()
    one.show(file=text)
    sentence = str(one.recommendation)
    assert " ".join(text.getvalue().split()).endswith(" ".join(sentence.split()))
    *_, last = remarks(one, "--output", lambda m: show_command(m, "m"))
    assert last == sentence[:-1] + "; attnflow show TEXT -m m --method answer_rows --edges answer."
    one.save(tmp_path / "grid.json")
    saved = json.loads((tmp_path / "grid.json").read_text(encoding="utf-8"))
    assert saved["recommendation"] == sentence and saved["recommended"] == ROWS


def test_every_method_has_a_command_that_the_command_line_takes() -> None:
    from typer.main import get_command

    from attnflow.cli import app
    from attnflow.edges import EDGES

    options = {name for p in get_command(app).commands["show"].params for name in p.opts}  # type: ignore[attr-defined]
    for one in all_methods(list(EDGES), [], True):
        if one.kind in ("paper", "edges"):
            how: dict[str, Any] = {
                "edges": one.edges, "normalize": one.normalize, "propagation": one.propagation,
                "receptive_field": one.receptive_field,
            }  # fmt: skip
            words = show_command(how).split()
            assert words[:3] == ["attnflow", "show", "TEXT"]
            assert {word for word in words if word.startswith("--")} <= options, words
