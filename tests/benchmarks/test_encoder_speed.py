"""The benchmark of answer inputs for classifiers."""

from __future__ import annotations

import re

import pytest

import attnflow as af
from benchmarks import encoder_speed
from benchmarks.result_lines import Meter


def test_it_measures_one_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["encoder_speed", "--words", "5", "--rounds", "1"])
    encoder_speed.main()
    (line,) = capsys.readouterr().out.splitlines()
    times = re.fullmatch(
        r"7 tokens: forward ([\d.]+) ms, forward and backward ([\d.]+) ms, answer inputs ([\d.]+) ms; "
        r"([\d.]+) x forward and backward",
        line,
    )
    assert times is not None and all(float(number) > 0 for number in times.groups())
    model = af.load(device="cpu")
    meter = Meter(model)
    model.trace("the key", edges="answer")  # runs the self-check first
    _, _, forwards = meter.measure(lambda: model.trace("the key to the cabinets", edges="answer").answer_inputs())
    assert forwards == 1
