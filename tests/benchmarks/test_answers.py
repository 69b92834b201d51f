"""The commands of the answer benchmarks: which methods find the source, and what explaining costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from benchmarks import answer_speed, answers
from benchmarks.ablation import Passage, halves_of
from benchmarks.answer_cases import Case, Kept
from benchmarks.answer_methods import METHODS, Scores
from benchmarks.answer_metrics import source_measures
from benchmarks.answer_speed import (
    ALONE,
    BOTH,
    FORWARD,
    GENERATION,
    ON_CACHE,
    SENTENCES,
    SENTENCES_ALONE,
    measure,
    model_and_prompt,
)
from benchmarks.command import run_command
from benchmarks.evidence import read_results, summaries
from helpers.architectures import LLAMA, hf, ids

pytest.importorskip("transformers", reason="transformers is not installed")

UNITS = [[0, 1, 2], [3, 4], [5, 6]]


@pytest.fixture(scope="module")
def decoder() -> af.Model:
    return af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "eos_token_id": None})(), name="small")


def kept(model: af.Model, kind: str = "needle", half: str = "seen", count: int = 3) -> Kept:
    """Return cases with answers that the model writes, and an unrelated truth."""
    prompts = ids(9)[0].tolist()
    cases = []
    for number in range(count):
        start = prompts[number:] + prompts[:number]
        written = list(model.answer(start, max_new_tokens=2).ids)
        seed = 2 * number + (half == "unseen")
        cases.append(Case(kind, seed, "", "", start, written, [3, 4], UNITS, [1], [0, 1] if kind == "tracking" else []))
    return Kept(cases, 7)


def passage(model: af.Model, seed: int = 0) -> Passage:
    """Return a passage with an arbitrary truth."""
    case = kept(model).cases[0]
    subsets = halves_of(3, 3, 0)
    return Passage(
        seed, "", case.ids, case.answer, UNITS, [0], -0.5, [1.0, 3.0, 2.0], subsets, [-3.0, -1.0, -2.0], -20.0
    )


def run(command: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    with pytest.raises(SystemExit) as left:
        run_command(command)
    return int(left.value.code or 0)


def test_results_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    monkeypatch.setattr(answers, "half_of", lambda kind, half, *_: kept(decoder, kind, half))

    def broken(model: Any, ids: list[int], *_: Any) -> Scores:
        if ids == kept(decoder).cases[1].ids:
            raise RuntimeError("out of memory")
        return METHODS["position"](model, ids, [1], UNITS)

    monkeypatch.setitem(METHODS, "hops", broken)
    file = tmp_path / "a.jsonl"
    words = ("-m", "m", "-o", str(file), "--half", "both", "--tasks", "needle,tracking", "--methods")
    assert run(answers.main, monkeypatch, *words, "answer rows,hops,random") == 0
    assert "tracking, unseen: 3 kept of 7 tried" in capsys.readouterr().err
    rows = read_results([file])
    assert len(rows) == len(file.read_text().splitlines()) == 2 * 2 * 3 * 3
    assert {row["seed"] % 2 for row in rows if row["half"] == "unseen"} == {1}
    errors = [row for row in rows if "error" in row]
    assert {row["method"] for row in errors} == {"hops"} and len(errors) == 4
    assert {row["error"] for row in errors} == {"RuntimeError: out of memory"} and errors[0]["measures"] == {}
    default = next(row for row in rows if row["method"] == "answer rows")
    assert default["forwards"] == 2 and default["seconds"] > 0 and default["model"] == "small"
    assert default["positions"] == 10, "the prompt's eight for the cache, then its last and the answer's first"
    case = kept(decoder).cases[0]
    scores = METHODS["answer rows"](decoder, case.ids, case.answer, UNITS)
    expected = source_measures(scores.tokens, scores.units, [3, 4], [1], [0])
    assert default["measures"] == pytest.approx(expected)
    before = file.read_text()
    assert run(answers.main, monkeypatch, *words, "answer rows,hops,random,position") == 0
    assert file.read_text().startswith(before) and len(read_results([file])) == 48
    needle, tracking = summaries(read_results([file]))
    assert (needle.task, tracking.task, needle.cases) == ("needle", "tracking", 3) and needle.failed == {"hops": 1}


def test_cases_alone_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    folders: list[Path | None] = []

    def listed(kind: str, half: str, count: int, model: Any, texts: Any, cache: Path | None) -> Kept:
        folders.append(cache)
        return kept(decoder, kind, half)

    monkeypatch.setattr(answers, "half_of", listed)
    file = tmp_path / "a.jsonl"
    words = ("-m", "m", "-o", str(file), "--tasks")
    assert run(answers.main, monkeypatch, *words, "copy", "--build", "--cache", str(tmp_path)) == 0
    assert folders == [tmp_path / "small"], "models do not share cases"
    assert "copy, unseen: 3 kept of 7 tried" in capsys.readouterr().err and file.read_text() == ""
    for more, message in (
        (("copy,sums",), "there is no task 'sums': expected some of 'needle', 'attributes'"),
        (("ablation",), "the task 'ablation' needs passages: give a file of sentences"),
        (("copy", "--half", "third"), "third"),
    ):
        assert run(answers.main, monkeypatch, *words, *more) == 2 and message in capsys.readouterr().err


def test_what_explaining_costs(decoder: af.Model) -> None:
    prompt = ids(12)[0].tolist()
    config: Any = decoder.model.generation_config
    before = config.min_new_tokens
    messages: list[str] = []
    speed = measure(decoder, prompt, 5, 2, messages.append)
    assert (
        set(speed.seconds)
        == {FORWARD, ON_CACHE, ALONE, SENTENCES, SENTENCES_ALONE, GENERATION, BOTH}
        == set(speed.peaks)
    )
    assert all(seconds > 0 for seconds in speed.seconds.values()) and speed.first > 0
    assert (speed.prompt, speed.answer, speed.rounds, speed.device) == (12, 5, 2, "cpu")
    assert messages == ["round 1 of 2", "round 2 of 2"] and config.min_new_tokens == before


def test_the_tasks_explain_the_same(decoder: af.Model) -> None:
    prompt = ids(12)[0].tolist()
    written = decoder.answer(prompt, max_new_tokens=5)
    tasks = answer_speed.tasks_of(decoder, prompt, written.ids, written.writing.cache)
    assert tasks[GENERATION]().ids == written.ids
    assert tasks[FORWARD]().logits.argmax(-1)[0, :-1].tolist() == list(written.ids)
    for name in (ON_CACHE, ALONE, BOTH):
        np.testing.assert_allclose(tasks[name]().values, written.sources().values, atol=1e-6)


@pytest.mark.long
def test_speed_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(answer_speed, "model_and_prompt", lambda *_: (decoder, ids(9)[0].tolist()))
    try:
        code = run(answer_speed.main, monkeypatch, "-m", "m", "--tokens", "3", "--rounds", "1", "--threads", "1")
        output = capsys.readouterr().out
        assert code == 0 and "goal: at most 0.5" in output and "small, cpu: 9 tokens of prompt, 3 of answer" in output
        code = run(answer_speed.main, monkeypatch, "-m", "m", "--tokens", "3", "--rounds", "1", "--json")
        assert code == 0 and json.loads(capsys.readouterr().out)["answer"] == 3
    finally:
        torch.set_num_threads(threads)


def test_mistakes(decoder: af.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ((None, None, None, None, 9), ("m", None, "8b", None, 9)):
        with pytest.raises(af.InputError, match=r"give either a model .* or a shape"):
            model_and_prompt(*words)
    with pytest.raises(af.InputError, match="shape='70b': expected 8b"):
        model_and_prompt(None, None, "70b", None, 9)
    prompt = ids(9)[0].tolist()
    with pytest.raises(af.InputError, match="the prompt has 9 tokens and the answer 99, but the model takes only 64"):
        measure(decoder, prompt, 99, 1, print)
    written = decoder.answer(prompt, max_new_tokens=4).ids
    monkeypatch.setattr(decoder.model.config, "eos_token_id", written[3])
    with pytest.raises(af.InputError, match=r"wrote \d tokens: expected 4, for a fair comparison"):
        measure(decoder, prompt, 4, 1, print)
    if not torch.cuda.is_available():
        with pytest.raises(af.InputError, match="shape 8b needs a CUDA GPU, and torch does not see one"):
            model_and_prompt(None, None, "8b", None, 9)
