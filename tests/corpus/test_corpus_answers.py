"""Answers of language models in a corpus job: the sources of each answer, by token or sentence, of all or a part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="a corpus needs torch")
pytest.importorskip("transformers", reason="a corpus needs transformers")
pytest.importorskip("pyarrow", reason="a corpus needs pyarrow")

import pyarrow.dataset as ds  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from attnflow import answering  # noqa: E402
from attnflow.capture.generate import Written  # noqa: E402
from attnflow.cli import app  # noqa: E402
from attnflow.corpus import clerk, explain_corpus  # noqa: E402
from attnflow.corpus.summary import summarize  # noqa: E402
from attnflow.errors import InputError  # noqa: E402
from attnflow.source_methods import METHODS  # noqa: E402
from attnflow.view import corpus_page  # noqa: E402
from helpers.answers import decoder  # noqa: E402
from helpers.small_models import bert, gpt2, saved  # noqa: E402

PROMPTS = [
    "The key is in the cabinet. Nobody's books are there. Where?",
    "",
    "the key",
    "A naive cafe.\n\nReally? The keys are there.",
    "the cabinet " * 40,
]
ERRORS = [None, "empty", None, None, "too long"]
GOLD = ["the cabinet", "none", "the key to the cabinet", "", "no"]


def write(path: Path, column: list[str] | None = None) -> Path:
    rows_of = [{"text": text} | ({} if column is None else {"gold": column[i]}) for i, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of))
    return path


def rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output, format="parquet").to_table().to_pylist()


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as e:
        explain_corpus(*args, **options)
    return str(e.value)


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, {"answer_rows": {}}),
        ({"unit": "sentence"}, {"combined": {}}),
        ({"unit": "word", "methods": "answer_rows,fading"}, {"answer_rows": {}, "fading": {}}),
        (
            {"unit": "sentence", "methods": "rollout,raw", "layers": "all", "residual": 0.25, "edges": "gradient"},
            {"raw_L1": {"layer": 0, "edges": "gradient"}, "raw_L2": {"layer": 1, "edges": "gradient"},
             "rollout_L1": {"layer": 0, "residual": 0.25, "edges": "gradient"},
             "rollout_L2": {"layer": 1, "residual": 0.25, "edges": "gradient"}},
        ),
        ({"methods": "flow"}, {"flow_L2": {}}),
    ],
)  # fmt: skip
def test_a_row_has_what_the_answer_by_itself_rests_on(
    options: dict[str, Any], columns: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    model = gpt2()
    explain_corpus(write(tmp_path / "p.jsonl"), tmp_path / "out", model, answers=True, max_new_tokens=4, **options)
    table = rows(tmp_path / "out")
    assert [row["error"] for row in table] == ERRORS
    assert pq.read_schema(tmp_path / "out" / "part-000000.parquet").names[-4:] == [
        "answer", "answer_tokens", "answer_log_probability", "units",
    ]  # fmt: skip
    for text, row in zip(PROMPTS, table, strict=True):
        if row["error"] is not None:
            continue
        answer = model.answer(text, max_new_tokens=4)
        assert (row["answer"], row["answer_tokens"]) == (answer.text, list(answer.tokens))
        assert row["answer_log_probability"] == pytest.approx(answer.log_probabilities.sum(), abs=1e-4)
        assert row["tokens"] == list(answer.prompt.tokens) and row["token_ids"] == list(answer.prompt.ids)
        assert row["words"] == list(answer.prompt.word_texts) and row["queries"] is None
        assert row["prediction"]["kind"] == "answer" and row["prediction"]["top"][0]["label"] == answer.text
        unit = options.get("unit", "token")
        assert row["units"] == (None if unit == "token" else list(answer.prompt.units(unit).texts))
        for column, more in columns.items():
            expected = answer.sources(unit=unit, method=column.split("_L")[0], **more)
            np.testing.assert_allclose(row[column], expected.values[0], atol=1e-5)
    settings = json.loads((tmp_path / "out" / "_manifest.jsonl").read_text().splitlines()[0])
    assert settings["answers"] is True and settings["unit"] == options.get("unit", "token")
    names = {column.split("_L")[0] for column in columns}
    assert settings["methods"] == [name for name in METHODS if name in names]


def test_answers_of_a_column_and_parts_of_them(tmp_path: Path) -> None:
    model = gpt2()
    source = write(tmp_path / "p.jsonl", GOLD)
    explain_corpus(source, tmp_path / "out", model, answers=True, answer_column="gold", unit="sentence", span="cab")
    first, _, third, fourth, _ = rows(tmp_path / "out")
    answer = model.answer(PROMPTS[0], answer="the cabinet")
    assert first["answer"] == answer.text
    np.testing.assert_allclose(first["combined"], answer.sources("cab", "sentence").values[0], atol=1e-6)
    assert third["answer"].strip() == "the key to the cabinet"
    assert (fourth["error"], fourth["message"]) == (
        "answer",
        "the column 'gold' has no answer for this text: expected one",
    )
    explain_corpus(
        source, tmp_path / "second", model, answers=True, answer_column="gold", span="the", occurrence=2,
        methods="answer_rows",
    )  # fmt: skip
    first, _, third, _, _ = rows(tmp_path / "second")
    assert first["error"] == "answer" and first["message"].endswith("expected a number from 1 to 1")
    part = model.answer(PROMPTS[2], answer=GOLD[2]).sources(("the", 2))
    np.testing.assert_allclose(third["answer_rows"], part.values[0], atol=1e-6)
    explain_corpus(
        source, tmp_path / "third", model, answers=True, answer="the book", span="key", methods="answer_rows"
    )
    assert rows(tmp_path / "third")[0]["message"] == (
        "the span 'key' does not occur in the answer ' the book': give a part of the answer, as written"
    )


def test_a_chat_template_is_taken_where_there_is_one(tmp_path: Path) -> None:
    model, source = decoder(), write(tmp_path / "p.jsonl")
    explain_corpus(source, tmp_path / "chat", model, answers=True, max_new_tokens=2, samples=3)
    explain_corpus(source, tmp_path / "plain", model, answers=True, max_new_tokens=2, samples=3, chat=False)
    chat, plain = rows(tmp_path / "chat"), rows(tmp_path / "plain")
    assert [row["error"] for row in chat] == [row["error"] for row in plain] == ERRORS[:3]
    answer = model.answer([{"role": "user", "content": PROMPTS[0]}], max_new_tokens=2)
    assert chat[0]["tokens"] == list(answer.prompt.tokens) != plain[0]["tokens"]
    np.testing.assert_allclose(chat[0]["answer_rows"], answer.sources().values[0], atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("answer", "the model writes nothing: its first token ends the text."),
        ("model", "RuntimeError: out of memory"),
    ],
)
def test_a_prompt_on_which_writing_fails_harms_no_other(
    kind: str, message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    model, real = gpt2(), answering.write

    def failing(runner: Any, prompts: Any, *rest: Any) -> Any:
        short = [len(ids) == 3 for ids in prompts]
        if kind == "model" and any(short):
            raise RuntimeError("out of memory")
        return [Written(()) if own else one for own, one in zip(short, real(runner, prompts, *rest), strict=True)]

    monkeypatch.setattr(answering, "write", failing)
    explain_corpus(write(tmp_path / "p.jsonl"), tmp_path / "out", model, answers=True, max_new_tokens=2)
    table = rows(tmp_path / "out")
    assert [row["error"] for row in table] == [None, "empty", kind, None, "too long"]
    assert table[2]["message"].startswith(message)


class Stopped(Exception):
    pass


def test_a_job_about_answers_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    model, source = gpt2(), write(tmp_path / "p.jsonl")
    options: dict[str, Any] = {"answers": True, "unit": "sentence", "max_new_tokens": 3, "shard_texts": 2}
    explain_corpus(source, tmp_path / "whole", model, **options)
    real, left = clerk.write_shard, 1

    def stopping(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Stopped
        return real(*args)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(clerk, "write_shard", stopping)
        explain_corpus(source, tmp_path / "out", model, **options)
    explain_corpus(source, tmp_path / "out", model, resume=True, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert "(max_new_tokens 3, now 4)" in refused(
        source, tmp_path / "out", model, resume=True, **{**options, "max_new_tokens": 4}
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"query": "key"}, "query='key' does not work with answers=True: give span=, a part of each answer, instead"),
        ({"words": True}, "words=True does not work with answers=True: give unit='word' instead"),
        ({"truncate": True}, "truncate=True does not work with answers=True: leave one of them out"),
        ({"pair": "b"}, "pair='b' does not work with answers=True: leave one of them out"),
        ({"unit": "page"}, "unit='page': expected one of token, word, sentence, paragraph"),
        ({"unit": "paragraph", "methods": "flow"}, 'flows to tokens share edges and do not add up: give unit="token"'),
        ({"span": " "}, "span=' ' is empty: expected a part of the answers, as it is written there"),
        ({"occurrence": 2}, "occurrence=2 requires span= and counts from 1: give both, or leave it out"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: expected an int of at least 1"),
        ({"answer": "no", "max_new_tokens": 3}, "max_new_tokens=3 limits what the model writes, but answer='no' already gives the answer: leave one of them out"),
        ({"methods": "gather"}, "method 'gather': expected some of answer_rows, fading, combined, raw, rollout, flow, separated by commas"),
        ({"methods": "fading", "layers": "L1"}, "layers='L1' applies to raw, rollout, flow, not to fading: leave it out"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_answers(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    assert refused(write(tmp_path / "p.jsonl"), tmp_path / "out", gpt2(), answers=True, **options) == sentence
    assert not (tmp_path / "out").exists()


def test_a_model_that_writes_nothing_is_refused_at_once(tmp_path: Path) -> None:
    message = refused(write(tmp_path / "p.jsonl"), tmp_path / "out", bert("BertForMaskedLM"), answers=True)
    assert message.startswith("BertForMaskedLM generates no text") and not (tmp_path / "out").exists()


def test_the_command_and_the_report_of_answers(tmp_path: Path) -> None:
    folder = saved(gpt2(), tmp_path / "model")["model"]
    source = write(tmp_path / "p.jsonl")
    words = ["corpus", "run", str(source), str(tmp_path / "out"), "-m", folder, "--device", "cpu", "--answers"]
    done = CliRunner().invoke(app, [*words, "--unit", "sentence", "--max-new-tokens", "3", "--json"])
    assert done.exit_code == 3 and json.loads(done.stdout)["errors"] == {"empty": 1, "too long": 1}
    summary = summarize(tmp_path / "out")
    assert (summary["answers"], summary["unit"], summary["views"]) == (True, "sentence", ["combined"])
    assert summary["lead"]["layer"] == "all layers" and summary["about_answer"] == ["combined"]
    types = [row[1] for row in summary["types"]["rows"]]
    assert set(types) == {"sentence 1", "sentence 2", "sentence 3"}
    table = [row for row in rows(tmp_path / "out") if row["error"] is None]
    for number, lift, _ in summary["top"]["combined"]:
        place = int(types[number].split()[1]) - 1
        own = [row["combined"][0] for row in table if len(row["units"]) > place]
        assert lift == pytest.approx(
            np.mean([values[place] / (sum(values) or 1) * len(values) for values in own]), abs=1e-4
        )
    shown = [text for one in summary["contexts"]["texts"] for text in one["tokens"]]
    assert "The key is in the cabinet." in shown
    assert "the answers rest" in corpus_page.write(tmp_path / "out").read_text()
