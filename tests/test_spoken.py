"""Words of a transcript point at the seconds in which they sound, and results of sounds keep their seconds."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import attnflow as af
from attnflow.errors import InputError
from attnflow.seconds import stretches
from attnflow.view.terminal import render
from benchmarks import tones
from helpers.wav_files import written


@pytest.fixture(scope="module")
def model() -> af.Model:
    return tones.load()


def test_words_point_at_their_own_seconds(model: af.Model) -> None:
    """Check the peak of each word's row and the middle of its stretch, on unseen sounds that the model transcribed."""
    hits, count = np.zeros(2), 0
    for one in tones.unseen(25):
        trace = model.trace(one.wave, sampling_rate=tones.RATE)
        result = trace.spoken()
        if result.query_tokens != one.words:
            continue  # a mistake of the model
        edges, rows = result.over_time(100)
        for row, (start, end), where in zip(rows[0], one.times, trace.word_seconds(), strict=True):
            peak, middle = (edges[row.argmax()] + edges[row.argmax() + 1]) / 2, (where.start + where.end) / 2
            hits += [start - tones.SLACK <= second <= end + tones.SLACK for second in (peak, middle)]
            count += 1
    assert count > 45 and (hits / count >= 0.9).all(), (hits, count)


def test_the_chosen_view_is_the_best(model: af.Model) -> None:
    figures = tones.measure(model, tones.unseen(6))
    first, *others = figures.values()
    assert first.peak == 1 and all(first.share > other.share for other in others)


def test_a_word_is_written_at_the_position_before_it(model: af.Model) -> None:
    one = tones.unseen(1)[0]
    trace = model.trace(one.wave, target=one.text, sampling_rate=tones.RATE)
    first = trace.first_query
    cross = trace.steps[trace.ends[-1]].weights[first:, :first]  # the upper half of two layers
    result = trace.spoken()
    np.testing.assert_allclose(result.values[0], cross[: len(one.words)], atol=1e-6)
    assert result.queries == tuple(range(1, len(one.words) + 1)) and trace.text == one.text
    np.testing.assert_array_equal(trace.words().spoken().values, result.values)


def test_results_keep_their_seconds(model: af.Model, tmp_path: Path) -> None:
    result = model.trace(tones.speak(3).wave, sampling_rate=tones.RATE).rollout(layer=-1)
    assert len(result.seconds) == len(result.tokens) and result.seconds[-1] is None
    for name in ("a.json", "a.npz", "a.csv", "a.parquet"):
        result.save(tmp_path / name)
        assert af.TokenAttention.load(tmp_path / name).seconds == result.seconds, name
    header, line = (tmp_path / "a.csv").read_text().splitlines()[:2]
    assert ",part,start,end,value," in header and ",source,0.0,0.01," in line
    assert result.to_pandas()["end"][1] == 0.03


def test_seconds_are_checked() -> None:
    arguments = {
        "values": [[[1.0]]], "method": "raw", "layers": [0], "queries": [0], "query_tokens": ["a"], "tokens": ["a"],
        "word_ids": [0], "word_texts": ["a"], "special": [False], "text": "a",
    }  # fmt: skip
    for seconds in ([(1.0, 0.5)], [(0.0,)], ["ab"], [(-1.0, 0.0)]):
        with pytest.raises(InputError, match=r"seconds\[0\]=.*: expected None or a pair \(start, end\)"):
            af.TokenAttention(**arguments, seconds=seconds)
    with pytest.raises(InputError, match=r"stretch\(\) of raw: expected the result of a sound"):
        af.TokenAttention(**arguments).stretch()
    with pytest.raises(InputError, match="bins=0: expected an int of at least 1"):
        af.TokenAttention(**arguments, seconds=[(0.0, 1.0)]).over_time(0)
    with pytest.raises(InputError, match="none of these inputs stands for seconds"):
        af.TokenAttention(**arguments, seconds=[None]).stretch()


def test_bins_hold_all_of_a_row(model: af.Model) -> None:
    result = model.trace(tones.speak(3).wave, sampling_rate=tones.RATE).spoken()
    edges, values = result.over_time(7)
    heard = result.without_special()
    np.testing.assert_allclose(values.sum(-1), heard.values.sum(-1))
    assert edges[0] == 0 and edges[-1] == heard.seconds[-1][1]


def test_stretches_do_not_overlap() -> None:
    spans = [(i / 50, (i + 1) / 50) for i in range(100)]
    row = np.exp(-((np.arange(100) - 20) ** 2) / 30) + 0.6 * np.exp(-((np.arange(100) - 70) ** 2) / 30)
    first, second, *_ = stretches(spans, [False] * 100, row, 4)
    assert first.start < 0.4 < first.end < second.start < 1.4 < second.end and first.share > second.share


def test_a_text_has_no_spoken_words() -> None:
    with pytest.raises(InputError, match="needs the trace of a sound by a model that transcribes it"):
        af.load().trace("the key to the cabinets").spoken()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_shows_seconds_and_no_list_of_positions(model: af.Model, encoding: str) -> None:
    one = tones.unseen(4)[3]
    trace = model.trace(one.wave, sampling_rate=tones.RATE)

    def lines(shown: object) -> list[str]:
        file = io.TextIOWrapper(io.BytesIO(), encoding)
        Console(file=file, width=70, color_system=None).print(shown)
        file.seek(0)
        return file.read().splitlines()

    dash = "–" if encoding == "utf-8" else "-"
    table = lines(trace.spoken())
    assert " ".join(table[1].split()) == "word spoken in share of its attention in that time"
    assert [line.split()[0] for line in table[2:-1]] == list(one.words) and table[-1].endswith("1.79 s")
    assert table[2].index("%") == table[1].index("share") + 4  # right-aligned: up to 100 %
    assert f"0.11{dash} 0.21 s" in table[2] and max(map(len, table)) <= 70
    row = lines(render(trace.rollout(layer=-1)))
    assert len(row) < 16 and row[2].startswith("0 ") and row[2].endswith("1.79 s") and f"{dash}" in row[3]
    assert any("of the row is on the silence that the model adds after the sound" in line for line in row)


def test_the_command_takes_a_wav_file(tmp_path: Path, attnflow: Callable[..., Any]) -> None:
    one = tones.unseen(4)[3]
    path = str(written(tmp_path / "tones.wav", one.wave.clip(-1, 1)[:, None]))
    show = ["show", path, "-m", str(tones.FOLDER), "--device", "cpu"]
    lines = attnflow(*show).out.splitlines()
    assert lines[0] == f"transcript: '{one.text}'" and len(lines) == 4 + len(one.words)
    assert "query fa" in attnflow(*show, "--query", "fa").out
    assert len(attnflow(*show, "--method", "rollout").out.splitlines()) < 16
    attnflow(*show, "-o", str(tmp_path / "words.csv"))
    assert af.TokenAttention.load(tmp_path / "words.csv").query_tokens == one.words
    attnflow(*show, "-o", str(tmp_path / "page.html"))
    assert '"words"' in (tmp_path / "page.html").read_text()
    assert "there is no audio file 'no.wav'" in attnflow("show", "no.wav", *show[2:], status=2).err
