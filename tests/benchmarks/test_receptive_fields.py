"""The experiment that compares variants of receptive-field normalisation on a decoder."""

from __future__ import annotations

import json
import lzma
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

import attnflow as af
from attnflow.importance import question
from attnflow.texts.strict import read_lines
from benchmarks import receptive_fields as experiment
from benchmarks.command import run_command
from benchmarks.receptive_fields import (
    Case,
    agree,
    blank_out,
    measure,
    neutral,
    partial,
    run,
    sample,
    scores,
    summarize,
    tables,
)
from helpers.architectures import LLAMA, POSITIONS, hf, ids

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.utils.logging.set_verbosity_error()


def test_what_ranks_nothing_agrees_with_nothing() -> None:
    assert agree(np.ones(4), np.arange(4.0)) == 0
    assert agree(np.array([1.0, 2, 3]), np.array([-1.0, -2, -3])) == -1


def test_partial() -> None:
    rng = np.random.default_rng(1)
    x, y, z = rng.normal(size=(3, 50))
    x, y = x + z, y + z
    r = np.corrcoef([x, y, z])
    fits = [v - np.polyval(np.polyfit(z, v, 1), z) for v in (x, y)]
    assert partial(r[0, 1], r[0, 2], r[1, 2]) == pytest.approx(np.corrcoef(fits)[0, 1])
    assert partial(0.4, 1.0, 0.4) == 0


def test_summary_of_constructed_cases() -> None:
    """A score that equals |Δp|, its reverse as the "ratio", and the position: agreement 1 and -1, gain -2."""
    rng = np.random.default_rng(3)
    cases = []
    for _ in range(30):
        worth = rng.normal(size=9)
        told = {
            ("rollout", None): np.abs(worth),
            ("rollout", "ratio"): -np.abs(worth),
            ("recency", None): np.arange(9.0),
        }
        cases.append(Case(told, {"space": worth}, 0.5))
    plain, ratio, recency = (r for r in summarize(cases, resamples=200) if r.scope == "all tokens")
    assert (plain.agreement.mean, ratio.agreement.mean) == pytest.approx((1, -1))
    assert plain.gain is None and ratio.gain is not None and ratio.gain.mean == pytest.approx(-2)
    assert recency.over_recency is None and recency.position.mean == pytest.approx(1)
    assert recency.beyond_position.mean == 0 and plain.beyond_position.mean == pytest.approx(1)
    assert plain.over_recency is not None and plain.over_recency.mean == pytest.approx(1 - recency.agreement.mean)
    (signed, *_) = (r for r in summarize(cases, resamples=200, signed=True) if r.scope == "all tokens")
    assert abs(signed.agreement.mean) < 0.5


def test_scopes_leave_out_what_they_say() -> None:
    """The first and last tokens disagree with the rest: each scope includes those it names."""
    worth, score = np.array([9.0, 1, 2, 3, 4, 0]), np.array([0.0, 1, 2, 3, 4, 9])
    case = Case({("flow", None): score, ("recency", None): np.arange(6.0)}, {"space": worth}, 0.5)
    found = {r.scope: r.agreement.mean for r in summarize([case], resamples=10) if r.method == "flow"}
    assert found["without the query and the first token"] == pytest.approx(1)
    assert found["without the query"] == pytest.approx(0)
    assert found["all tokens"] == pytest.approx(stats.spearmanr(worth, score).statistic)


class Words:
    """A tokenizer with one id per word."""

    unk_token_id = 3
    all_special_ids = (3,)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [4] if text == " " else [5 + sum(map(ord, word)) % 100 for word in text.split()]}

    def convert_ids_to_tokens(self, found: list[int]) -> list[str]:
        return [str(i) for i in found]

    def decode(self, found: list[int]) -> str:
        return " ".join(self.convert_ids_to_tokens(found))

    def __len__(self) -> int:
        return LLAMA["vocab_size"]


def decoder(tokenizer: Any = None) -> Any:
    return af.wrap(hf("LlamaForCausalLM", **LLAMA)(), tokenizer)


def test_blank_out_is_the_loss_of_the_likeliest_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = decoder(), ids(9)[0].tolist()
    plain = hf("LlamaForCausalLM", **LLAMA)()

    def chances(given: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return torch.softmax(plain(input_ids=torch.tensor([given])).logits[0, -1].double(), -1)

    said = int(chances(text).argmax())
    monkeypatch.setattr(question, "TOKENS", {"cpu": 36})
    probability, worth = blank_out(model, text, [7, "remove"])
    assert probability == pytest.approx(float(chances(text)[said]), abs=1e-7)
    for i in range(9):
        rest = text[i + 1 :]
        assert worth[7][i] == pytest.approx(probability - float(chances([*text[:i], 7, *rest])[said]), abs=1e-6)
        assert worth["remove"][i] == pytest.approx(probability - float(chances(text[:i] + rest)[said]), abs=1e-6)


def test_scores_are_those_of_the_trace() -> None:
    model = decoder()
    trace = model.trace({"input_ids": ids(9)})
    found = scores(trace, experiment.VARIANTS)
    np.testing.assert_allclose(found["raw", None], trace.raw(query=-1, layer=-1).values[0, 0])
    np.testing.assert_allclose(found["raw, mean of layers", None], trace.raw(query=-1).values.mean(0)[0], atol=1e-7)
    np.testing.assert_allclose(
        found["flow", "ratio"], trace.flow(query=-1, layer=-1, receptive_field="ratio").values[0, 0]
    )
    upper = af.rollout(trace.graph(), queries=-1, start=2, layers=-1)[0, 0]
    np.testing.assert_allclose(found["rollout, last third", None], upper, atol=1e-7)
    assert len(found) == 5 * 4


def test_end_to_end() -> None:
    model = decoder(Words())
    lines = [" ".join(f"{i}w{j}" for j in range(6 + i)) for i in range(8)]
    chosen = sample(model, lines, 4, shortest=8, longest=12, seed=1)
    assert len({tuple(c) for c in chosen}) == 4 and all(8 <= len(c) <= 12 for c in chosen)
    assert chosen == sample(model, lines, 4, shortest=8, longest=12, seed=1)
    told: list[str] = []
    rows = run(model, chosen, experiment.VARIANTS, told.append, blanks=["space", "special"], resamples=50)
    assert told == ["4 of 4 sentences"]
    assert len(rows) == 2 * 3 * (5 * 4 + 2)
    assert all(-1 <= r.agreement.low <= r.agreement.mean <= r.agreement.high <= 1 for r in rows)
    assert {r.position.mean for r in rows if r.method == "recency"} == {1.0}
    back = json.loads(json.dumps([asdict(r) for r in rows]))
    assert back[0]["agreement"]["mean"] == rows[0].agreement.mean and back[0]["sentences"] == 4
    shown = tables(rows)
    assert len(shown) == 6 and shown[0].row_count == 22
    assert str(shown[0].title) == "Spearman with blank-out (space), without the query, 4 sentences"
    console = Console(width=200)
    with console.capture() as printed:
        console.print(shown[0])
    assert str(rows[0].agreement) in printed.get()


def test_cut_ends_inside() -> None:
    model = decoder(Words())
    lines = [" ".join(f"{i}w{j}" for j in range(20)) for i in range(10)]
    whole = {tuple(Words()(line)["input_ids"]) for line in lines}
    for part in sample(model, lines, 10, cut=True):
        assert 8 <= len(part) < 20 and any(w[: len(part)] == tuple(part) for w in whole)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz"])
def test_texts(tmp_path: Path, name: str) -> None:
    data = b"one sentence\n\n two \r\none sentence\n"
    (tmp_path / name).write_bytes(lzma.compress(data) if name.endswith("xz") else data)
    assert list(read_lines(tmp_path / name)) == [(1, "one sentence"), (3, "two"), (4, "one sentence")]


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "b.txt.xz").write_bytes(b"not xz")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "d.txt").write_bytes(b"caf\xe9")
    for name, why in (
        ("a.txt", r"there is no file .*a.txt': expected UTF-8 text, plain or compressed as .gz, .xz"),
        ("b.txt.xz", "b.txt.xz' cannot be read as txt.xz: Input format not supported by decoder"),
        ("c.txt", "c.txt' is UTF-16: expected UTF-8; convert it first"),
        ("d.txt", "d.txt, line 1 is not UTF-8: convert the file first"),
    ):
        with pytest.raises(af.InputError, match=why):
            list(read_lines(tmp_path / name))
    model = decoder(Words())
    with pytest.raises(af.InputError, match="the text has 1 sentences of 8 to 40 tokens, fewer than the 5 requested"):
        sample(model, ["a b c", "a b c d e f g h"], 5)
    with pytest.raises(af.InputError, match="wrapped without a tokenizer"):
        sample(decoder(), ["a b"], 1)
    with pytest.raises(af.InputError, match="blank='x': expected one of 'space', 'remove', 'special', or the id"):
        run(model, [[5] * 8], [None], print, blanks=["x"])
    with pytest.raises(af.InputError, match="receptive_field='x'"):
        run(model, [[5] * 8], ["x"], print)
    with pytest.raises(af.InputError, match="there are no sentences"):
        run(model, [], [None], print)
    with pytest.raises(af.InputError, match="sentence 1 has 3 tokens: expected at least 4"):
        run(model, [[5] * 3], [None], print)
    with pytest.raises(af.InputError, match="does not read from left to right: expected a decoder"):
        measure(af.wrap(hf("BertForMaskedLM", **POSITIONS)()), [[5] * 8], [None], [7], print)


def test_blanks() -> None:
    model = decoder(Words())
    assert [neutral(model, b) for b in ("space", "special", "remove", 9)] == [4, 3, None, 9]
    with pytest.raises(af.InputError, match="blank='space' needs a tokenizer"):
        neutral(decoder(), "space")


def test_no_gain_without_the_plain_method() -> None:
    rows = run(decoder(), [ids(8)[0].tolist()], ["ratio"], [].append, blanks=["remove"], resamples=10)
    assert all(r.gain is None for r in rows) and all(r.over_recency for r in rows if r.method != "recency")


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def attnflow(*words: str) -> Any:
        monkeypatch.setattr("sys.argv", ["receptive_fields", "--model", "m", *words])
        with pytest.raises(SystemExit) as left:
            run_command(experiment.main)
        return left.value.code, capsys.readouterr()

    code, told = attnflow("--text", str(tmp_path / "no.txt"))
    assert code == 2 and "there is no file" in told.err and "no.txt" in told.err
    (tmp_path / "a.txt").write_text("\n".join(" ".join(f"{i}w{j}" for j in range(9)) for i in range(4)))
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder(Words()), raising=False)
    code, told = attnflow("--text", str(tmp_path / "a.txt"), "--sentences", "3")
    assert code == 0 and "without the query, 3 sentences" in told.out
    code, told = attnflow("--text", str(tmp_path / "a.txt"), "--sentences", "3", "--json")
    found = json.loads(told.out)
    assert {row["blank"] for row in found["rows"]} == {"space"} and found["provenance"]["attnflow"] == af.__version__
