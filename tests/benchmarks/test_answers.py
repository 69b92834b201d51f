"""The benchmarks of answers as commands: who finds the source, and what explaining costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import attnflow as af
from attnflow.evaluate.statistics import Interval
from benchmarks import answer_speed, answers
from benchmarks.answer_cases import METRICS, Case, Kept, measures
from benchmarks.answer_speed import ALONE, BOTH, FORWARD, GENERATION, ON_CACHE, Speed, measure, model_and_prompt
from benchmarks.answers import DEFAULT, METHODS, Row, attention_gradient, measured, short_of, tables
from benchmarks.command import run_command
from helpers.architectures import LLAMA, hf, ids

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def decoder() -> af.Model:
    return af.wrap(hf("LlamaForCausalLM", **{**LLAMA, "eos_token_id": None})(), name="small")


def kept(model: af.Model, kind: str = "needle", count: int = 3) -> dict[str, Kept]:
    """Cases with answers that the model writes, and a truth that it knows nothing of."""
    prompts = ids(9)[0].tolist()
    cases = []
    for number in range(count):
        start = prompts[number:] + prompts[:number]
        written = list(model.answer(start, max_new_tokens=2).ids)
        cases.append(Case(kind, 2 * number, "", "", start, written, [2, 3]))
    return {"seen": Kept(cases, 7), "unseen": Kept(cases[:2], 5)}


def test_rows_are_the_measures_of_the_methods(decoder: af.Model) -> None:
    both = kept(decoder)
    rows = measured(decoder, both, "needle", 1, [].append)
    assert [(row.half, row.method) for row in rows] == [(half, name) for half in both for name in METHODS]
    assert {(row.half, row.cases, row.kept, row.tried) for row in rows if row.method == DEFAULT} == {
        ("seen", 3, 3, 7), ("unseen", 2, 2, 5),
    }  # fmt: skip
    assert {row.cases for row in rows if row.method != DEFAULT} == {1}
    each = [
        measures(decoder.answer(c.ids, answer=c.answer).sources().values[0, 0], c.truth) for c in both["seen"].cases
    ]
    means = {name: value.mean for name, value in rows[0].measures.items()}
    assert means == pytest.approx(dict(zip(METRICS, np.mean(each, 0), strict=True)))
    assert {row.method for row in measured(decoder, both, "needle", 0, [].append)} == {DEFAULT}
    assert all(row.cases == row.kept for row in measured(decoder, both, "needle", None, [].append))


def test_attention_gradient_of_every_answer_token(decoder: af.Model) -> None:
    case = kept(decoder)["seen"].cases[1]
    expected = np.zeros(len(case.ids))
    for text in (case.ids, case.ids + case.answer[:1]):
        trace = decoder.trace({"input_ids": torch.tensor([text])}, edges="attention-gradient")
        assert trace.provenance["answer"]["name"] == str(case.answer[len(text) - len(case.ids)])
        expected += trace.raw().values[:, -1].mean(0)[: len(case.ids)] / 2
    np.testing.assert_allclose(attention_gradient(decoder, case), expected, atol=1e-7)


def row(kind: str, *means: float, method: str = DEFAULT) -> Row:
    return Row(kind, "unseen", method, 3, 3, 9, {k: Interval(m, m, m) for k, m in zip(METRICS, means, strict=True)})


def test_goals() -> None:
    assert short_of([row("needle", 0.98, 0, 0.68), row("attributes", 0, 0.98, 0.5)]) == []
    assert short_of([row("needle", 0.5, 0, 0.1, method="rollout")]) == []
    assert short_of([row("needle", 0.97, 1, 0.7), row("attributes", 1, 1, 0.4)]) == [
        "needle, unseen: R-precision 0.970, short of 0.98", "attributes, unseen: mass on truth 0.400, short of 0.5",
    ]  # fmt: skip
    (table,) = tables([row("needle", 0.5, 0.25, 0.125)])
    console = Console(width=160)
    with console.capture() as printed:
        console.print(table)
    assert "needle, unseen seeds: 3 kept of 9 tried" in printed.get() and "0.125 [0.125, 0.125]" in printed.get()


def run(command: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    with pytest.raises(SystemExit) as left:
        run_command(command)
    return int(left.value.code or 0)


def test_who_finds_the_source_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    monkeypatch.setattr(answers, "halves", lambda kind, *_: kept(decoder, kind))
    code = run(answers.main, monkeypatch, "-m", "m", "--cases", "5", "--others", "1", "-o", str(tmp_path / "a.json"))
    output = capsys.readouterr().out
    assert code == 0 and "attributes, unseen seeds: 2 kept of 5 tried" in output and "short of 0.98" in output
    content = json.loads((tmp_path / "a.json").read_text())
    assert len(content["rows"]) == 4 * len(METHODS) and content["provenance"]["model"] == "small"
    assert content["provenance"]["sentences"] == "ours" and all(line in output for line in content["short"])


def test_what_explaining_costs(decoder: af.Model) -> None:
    prompt = ids(12)[0].tolist()
    config: Any = decoder.model.generation_config
    before = config.min_new_tokens
    messages: list[str] = []
    speed = measure(decoder, prompt, 5, 2, messages.append)
    assert set(speed.seconds) == {FORWARD, ON_CACHE, ALONE, GENERATION, BOTH} == set(speed.peaks)
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


def test_ratios() -> None:
    seconds = {FORWARD: 2.0, ON_CACHE: 0.5, ALONE: 3.0, GENERATION: 10.0, BOTH: 11.0}
    speed = Speed("m", "cpu", 2, 400, 40, 1, 1.0, seconds, dict.fromkeys(seconds, 1.0))
    assert speed.ratio(ON_CACHE, FORWARD) == 0.25 and speed.ratio(BOTH, GENERATION) == 1.05


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
    with pytest.raises(af.InputError, match="the prompt has 9 tokens, the answer 99, and the model takes 64"):
        measure(decoder, prompt, 99, 1, print)
    written = decoder.answer(prompt, max_new_tokens=4).ids
    monkeypatch.setattr(decoder.model.config, "eos_token_id", written[3])
    with pytest.raises(af.InputError, match=r"wrote \d tokens: expected 4, for a fair comparison"):
        measure(decoder, prompt, 4, 1, print)
    if not torch.cuda.is_available():
        with pytest.raises(af.InputError, match="shape 8b needs a CUDA GPU, and torch sees none"):
            model_and_prompt(None, None, "8b", None, 9)
