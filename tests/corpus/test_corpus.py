"""A corpus job: its results match traces, nothing is lost, and it can be resumed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.errors import InputError, JobError

torch = pytest.importorskip("torch", reason="a corpus needs torch")
transformers = pytest.importorskip("transformers", reason="a corpus needs transformers")
pa = pytest.importorskip("pyarrow", reason="a corpus needs pyarrow")

import pyarrow.dataset as ds  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from attnflow import files  # noqa: E402
from attnflow.cli import app  # noqa: E402
from attnflow.corpus import clerk, explain_corpus  # noqa: E402
from attnflow.corpus import explainer as explain  # noqa: E402
from attnflow.corpus.schema import schema  # noqa: E402
from attnflow.jobs.store import read_manifest  # noqa: E402
from attnflow.method_table import TEXT_METHODS  # noqa: E402
from helpers.small_models import bert as bert_of  # noqa: E402
from helpers.small_models import gpt2  # noqa: E402
from helpers.small_tokenizers import sentencepiece  # noqa: E402

TEXTS = [
    "the key to the cabinet",
    "nobody is able to answer",
    "the book",
    "",
    "is the key to the cabinet the answer to the book?",
    "caf\udce9",
    "key " * 80,
    "a book to answer the cabinet",
]
METHODS = ("raw", "rollout", "flow")
KNOWN = ", ".join(TEXT_METHODS)


def bert() -> af.Model:
    return bert_of("BertForSequenceClassification", id2label={0: "no", 1: "yes"})


def t5() -> af.Model:
    torch.manual_seed(0)
    tokenizer = sentencepiece()
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2,
        decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return af.wrap(transformers.T5ForConditionalGeneration(config), tokenizer, name="small-t5")


@pytest.fixture(scope="module")
def embedded() -> Any:
    return af.load(device="cpu")


def write(path: Path, texts: list[str]) -> Path:
    path.write_bytes("".join(f"{text}\n" for text in texts).encode(errors="surrogateescape"))
    return path


def rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output, format="parquet").to_table().to_pylist()


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (bert, {}),
        (bert, {"query": "all"}),
        (bert, {"query": "the"}),
        (bert, {"query": 2, "layers": [0]}),
        (bert, {"methods": ("flow", "rollout")}),
        (bert, {"words": True}),
        (bert, {"residual": 0.0}),
        (gpt2, {}),
        (t5, {"query": "all"}),
    ],
)
def test_what_a_job_finds_is_what_traces_say(model: Any, options: dict[str, Any], tmp_path: Path) -> None:
    wrapped = model()
    texts = TEXTS[2:4] if model is t5 else TEXTS  # it generates 64 tokens for each
    told = explain_corpus(
        write(tmp_path / "texts.txt", texts), tmp_path / "out", wrapped, truncate=True, shard_texts=3,
        batch_tokens=40, **{"methods": METHODS, "layers": "all", **options},
    )  # fmt: skip
    found = rows(tmp_path / "out")
    assert [row["row"] for row in found] == list(range(len(texts)))
    assert told["texts"] == len(texts) and told["parts"] == -(-len(texts) // 3)
    explained = 0
    for text, row in zip(texts, found, strict=True):
        if row["error"] is not None:
            continue
        explained += 1
        trace = wrapped.trace(text, truncate=True)
        assert row["token_ids"] is None if options.get("words") else len(row["token_ids"]) == len(trace.tokens)
        trace = trace.words() if options.get("words") else trace
        labels = (row["tokens"], row["special"], row["word_ids"], row["words"], row["parts"] or [])
        assert labels == tuple(map(list, (trace.tokens, trace.special, trace.word_ids, trace.word_texts, trace.parts)))
        assert row["truncated"] == (text == TEXTS[6] and wrapped.limit() is not None)
        if options.get("query") == "the":
            assert row["queries"] == [i for i, token in enumerate(trace.tokens) if token == "the"]
        for method in options.get("methods", METHODS):
            more = {"residual": options["residual"]} if "residual" in options and method != "raw" else {}
            expected = getattr(trace, method)(row["queries"], options.get("layers"), **more)
            assert list(expected.queries) == row["queries"]
            for layer, values in zip(expected.layers, expected.values, strict=True):
                np.testing.assert_allclose(row[f"{method}_L{layer + 1}"], values, atol=2e-6, rtol=1e-7)
        if trace.prediction is None:
            assert row["prediction"] is None
        else:
            top = [(one["label"], one["probability"]) for one in row["prediction"]["top"]]
            assert row["prediction"]["kind"] == trace.prediction.kind
            assert [label for label, _ in top] == [label for label, _ in trace.prediction.top]
            np.testing.assert_allclose([p for _, p in top], [p for _, p in trace.prediction.top], atol=1e-5)
        told_of = json.loads(row["provenance"])
        assert told_of["model"] == wrapped.name and told_of["residual"] == options.get("residual", 0.5)
    assert explained == len(texts) - sum(told["errors"].values()) >= (1 if model is t5 else 3)


def test_a_text_that_fails_is_a_row_with_its_error(embedded: Any, tmp_path: Path) -> None:
    rows_of = [json.dumps({"text": text}) for text in TEXTS[:4]] + ['{"text": 3}', "not json", '{"text": null}']
    write(tmp_path / "some.jsonl", [*rows_of, '{"text": "\\ud800"}', json.dumps({"text": "the key " * 400})])
    told = explain_corpus(tmp_path / "some.jsonl", tmp_path / "out", embedded, query="key")
    found = rows(tmp_path / "out")
    assert [row["error"] for row in found] == [
        None, "query", "query", "empty", "unreadable", "unreadable", "empty", "encoding", "too long",
    ]  # fmt: skip
    assert [row["message"] for row in found][3:7] == [
        "the text '' is empty: expected at least one word",
        "some.jsonl, line 5: the column 'text' contains 3; expected text",
        "some.jsonl, line 6: not JSON (Expecting value); expected one object per line",
        "the text is empty: expected at least one word",
    ]
    assert found[7]["text"] == "\\ud800"
    assert told["errors"] == {"empty": 2, "encoding": 1, "query": 2, "too long": 1, "unreadable": 2}
    for row in found[1:]:
        assert all(row[name] is None for name in ("tokens", "special", "words", "queries", "prediction", "rollout_L6"))


def test_a_model_that_fails_on_a_text_harms_no_other(tmp_path: Path, monkeypatch: Any) -> None:
    model = bert()
    real = model.model.forward

    def forward(input_ids: Any = None, **more: Any) -> Any:
        if bool((input_ids == model.tokenizer.convert_tokens_to_ids("nobody")).any()):
            raise RuntimeError("out of memory")
        return real(input_ids=input_ids, **more)

    explain.checked(model)
    monkeypatch.setattr(model.model, "forward", forward)
    explain_corpus(write(tmp_path / "t.txt", TEXTS[:3]), tmp_path / "out", model)
    found = rows(tmp_path / "out")
    assert [row["error"] for row in found] == [None, "model", None]
    assert found[1]["message"].startswith("the model fails on this input (RuntimeError: out of memory)")


class Panic(BaseException):
    """Like pyo3's PanicException, which does not derive from Exception."""


@pytest.mark.parametrize("panic", [Panic, KeyboardInterrupt])
def test_a_tokenizer_that_panics_on_a_text_harms_no_other(panic: Any, tmp_path: Path, monkeypatch: Any) -> None:
    model = bert()
    real = type(model.tokenizer).__call__

    def call(self: Any, text: Any = None, **more: Any) -> Any:
        if any("nobody" in one for one in text):
            raise panic("in Rust\nand where")
        return real(self, text=text, **more)

    monkeypatch.setattr(type(model.tokenizer), "__call__", call)
    given = write(tmp_path / "t.txt", TEXTS[:3])
    if panic is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            explain_corpus(given, tmp_path / "out", model)
        return
    assert explain_corpus(given, tmp_path / "out", model)["errors"] == {"tokenizer": 1}
    found = rows(tmp_path / "out")
    assert [row["error"] for row in found] == [None, "tokenizer", None]
    assert found[1]["message"] == ("the tokenizer does not accept this text (Panic: in Rust): shorten it, or split it")
    with pytest.raises(InputError, match="the tokenizer does not accept this text"):
        model.trace("nobody is able")


@pytest.mark.long
def test_a_word_of_ten_megabytes_is_a_row(embedded: Any, tmp_path: Path) -> None:
    given = write(tmp_path / "t.txt", [TEXTS[0], "a" * 10_000_000, TEXTS[2]])
    explain_corpus(given, tmp_path / "out", embedded)
    found = rows(tmp_path / "out")
    assert [row["error"] for row in found] == [None, "too long", None]
    assert found[1]["message"] == (
        "the text has 10,000,000 characters and the model takes 64 tokens: shorten it, or split it"
    )
    # To cut the text, the tokenizer has to read it, and panics.
    assert explain_corpus(given, tmp_path / "cut", embedded, truncate=True)["errors"] == {"tokenizer": 1}


def test_one_schema_for_every_reader(embedded: Any, tmp_path: Path) -> None:
    explain_corpus(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", embedded, methods=METHODS, shard_texts=2)
    parts = sorted((tmp_path / "out").glob("*.parquet"))
    wanted = schema(["raw_L6", "rollout_L6", "flow_L6"])
    assert len(parts) == 4 and all(pq.read_schema(part) == wanted for part in parts)  # one has only errors
    expected = rows(tmp_path / "out")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed").read_parquet(tmp_path / "out")
    assert pandas["id"].tolist() == [row["id"] for row in expected] == [f"t.txt:{i + 1}" for i in range(8)]
    np.testing.assert_array_equal(pandas["flow_L6"][0][0], np.float32(expected[0]["flow_L6"][0]))
    polars = pytest.importorskip("polars", reason="polars is not installed").read_parquet(
        tmp_path / "out" / "*.parquet"
    )
    assert polars["flow_L6"].to_list() == [row["flow_L6"] for row in expected]
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    asked = f"select id, tokens[1], flow_L6[1][1], prediction.top[1].label from '{tmp_path}/out/*.parquet' where error is null order by row"
    explained = [row for row in expected if row["error"] is None]
    assert duckdb.sql(asked).fetchall() == [
        (row["id"], row["tokens"][0], row["flow_L6"][0][0], row["prediction"]["top"][0]["label"]) for row in explained
    ]


class Stopped(Exception):
    pass


def stopped_after(count: int, monkeypatch: Any) -> None:
    """Stop a job after `count` parts, before the manifest records the next one."""
    real = clerk.write_shard

    def write(*args: Any) -> Any:
        nonlocal count
        count -= 1
        if count < 0:
            raise Stopped
        return real(*args)

    monkeypatch.setattr(clerk, "write_shard", write)


def test_a_job_goes_on_to_the_same_bytes(embedded: Any, tmp_path: Path, monkeypatch: Any) -> None:
    given = write(tmp_path / "t.txt", TEXTS * 3)
    options: dict[str, Any] = {"methods": METHODS, "layers": "all", "shard_texts": 4}
    explain_corpus(given, tmp_path / "whole", embedded, **options)
    expected = contents(tmp_path / "whole")
    for count in (0, 1, 4):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            stopped_after(count, patch)
            explain_corpus(given, tmp_path / "out", embedded, **options)
        (tmp_path / "out" / ".attnflow-0123456789ab.tmp").write_text("half")
        with (tmp_path / "out" / "_manifest.jsonl").open("a") as file:
            file.write('{"part": 5, "ro')
        told = explain_corpus(given, tmp_path / "out", embedded, resume=True, **options)
        assert contents(tmp_path / "out") == expected
        assert told["resumed"] <= 4 * count and told["texts"] == 24
        shutil.rmtree(tmp_path / "out")


def test_a_shard_that_is_damaged_is_done_again(embedded: Any, tmp_path: Path) -> None:
    given = write(tmp_path / "t.txt", TEXTS)
    explain_corpus(given, tmp_path / "out", embedded, shard_texts=2)
    expected = contents(tmp_path / "out")
    damaged = tmp_path / "out" / "part-000001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (tmp_path / "out" / "part-000002.parquet").unlink()
    told = explain_corpus(given, tmp_path / "out", embedded, shard_texts=2, resume=True)
    assert contents(tmp_path / "out") == expected and told["resumed"] == 4


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as e:
        explain_corpus(*args, **options)
    return str(e.value)


def test_what_is_there_is_never_overwritten_by_another_job(embedded: Any, tmp_path: Path) -> None:
    given, out = write(tmp_path / "t.txt", TEXTS), tmp_path / "out"
    explain_corpus(given, out, embedded)
    before = contents(out)
    assert refused(given, out, embedded) == (
        f"the folder {str(out)!r} contains a job that is finished: give resume=True to check it, or give another folder"
    )
    assert refused(given, out, embedded, methods=["flow"], residual=0.25, resume=True) == (
        f"the folder {str(out)!r} contains a job with different settings (methods rollout, now flow; residual 0.5, "
        "now 0.25): give the same settings, or another folder"
    )
    assert "(part_texts 1024, now 2)" in refused(given, out, embedded, shard_texts=2, resume=True)
    assert refused(given, out, bert(), resume=True).startswith(
        f"the folder {str(out)!r} contains a job with different settings (class "
    )
    write(given, [*TEXTS[:2], "another book", *TEXTS[3:]])
    assert refused(given, out, embedded, resume=True) == (
        f"the texts of shard 0 of {str(out)!r} have changed since it was written: give another folder"
    )
    assert contents(out) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_manifest.jsonl").write_text('{"a": 1}\n')
    assert refused(given, tmp_path / "other", embedded, resume=True) == (
        f"{str(tmp_path / 'other' / '_manifest.jsonl')!r} is not the manifest of a corpus job: give another folder"
    )


def test_a_first_shard_of_failures_alone_is_said_at_once(embedded: Any, tmp_path: Path, capsys: Any) -> None:
    given = write(tmp_path / "t.txt", TEXTS[:2] * 2)
    explain_corpus(given, tmp_path / "out", embedded, query="zebra", shard_texts=2)
    assert capsys.readouterr().err == "all 2 texts of the first shard failed (query): see its column message\n"


def test_nothing_of_others_is_written_over_or_taken_over(embedded: Any, tmp_path: Path) -> None:
    given = tmp_path / "data" / "part-000000.parquet"
    given.parent.mkdir()
    pq.write_table(pa.table({"text": TEXTS[:3]}), given)
    before = given.read_bytes()
    assert refused(given, given.parent, embedded) == (
        f"the input 'part-000000.parquet' is inside the output {str(given.parent)!r}, which would overwrite it: give "
        "another folder"
    )
    text = write(tmp_path / "t.txt", TEXTS)
    told = (
        f"the folder {str(given.parent)!r} contains part-000000.parquet, which does not belong to this job: give "
        "another folder, or remove the file"
    )
    assert refused(text, given.parent, embedded) == told and given.read_bytes() == before
    assert [path.name for path in given.parent.iterdir()] == [given.name]
    explain_corpus(text, tmp_path / "out", embedded)
    shutil.copy(given, tmp_path / "out" / "part-000007.parquet")
    assert "contains part-000007.parquet, which does not belong to this job" in refused(
        text, tmp_path / "out", embedded, resume=True
    )
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    os.mkfifo(pipe / "_manifest.jsonl")
    assert refused(text, pipe, embedded) == f"{str(pipe / '_manifest.jsonl')!r} is not a file: give another folder"


@pytest.mark.parametrize("options", [{}, {"methods": METHODS}, {"words": True}])
def test_attention_that_is_not_finite_is_an_error_of_its_text(options: dict[str, Any], tmp_path: Path) -> None:
    model = bert()
    explain.checked(model)
    with torch.no_grad():
        model.model.bert.embeddings.word_embeddings.weight[model.tokenizer.convert_tokens_to_ids("nobody")] = np.nan
    explain_corpus(write(tmp_path / "t.txt", TEXTS[:3]), tmp_path / "out", model, **options)
    assert [(row["error"], row["message"]) for row in rows(tmp_path / "out")] == [
        (None, None),
        (
            "model",
            "the model's attention or answer is not finite on this text: check its weights, or load it in another dtype",
        ),
        (None, None),
    ]


@pytest.mark.parametrize("options", [{}, {"methods": METHODS}, {"words": True}])
def test_an_answer_that_is_no_number_is_an_error_of_its_text(options: dict[str, Any], tmp_path: Path) -> None:
    model = bert()
    explain.checked(model)
    with torch.no_grad():
        model.model.classifier.bias[0] = np.nan
    explain_corpus(write(tmp_path / "t.txt", TEXTS[:2]), tmp_path / "out", model, **options)
    assert [row["error"] for row in rows(tmp_path / "out")] == ["model"] * 2
    with pytest.raises(af.InputError, match="the model's attention or answer is not finite on this text"):
        model.trace(TEXTS[0])


def test_an_output_inside_the_input_would_be_read(embedded: Any, tmp_path: Path) -> None:
    write(tmp_path / "t.txt", TEXTS)
    assert refused(tmp_path, tmp_path / "out", embedded) == (
        f"the output {str(tmp_path / 'out')!r} is inside the input {str(tmp_path)!r} and would be read as part of "
        "the input: give a folder outside"
    )


def test_a_first_line_that_is_half_there_is_written_again(embedded: Any, tmp_path: Path) -> None:
    given = write(tmp_path / "t.txt", TEXTS)
    explain_corpus(given, tmp_path / "out", embedded)
    expected = contents(tmp_path / "out")
    for size in (0, 5, 40):
        (tmp_path / "out" / "part-000000.parquet").unlink()  # no part is written before the first line is on disk
        (tmp_path / "out" / "_manifest.jsonl").write_bytes(expected["_manifest.jsonl"][:size])
        explain_corpus(given, tmp_path / "out", embedded, resume=True)
        assert contents(tmp_path / "out") == expected
    damaged = expected["_manifest.jsonl"].replace(b'{"part"', b'{"p\xff\n', 1)
    (tmp_path / "out" / "_manifest.jsonl").write_bytes(damaged)
    explain_corpus(given, tmp_path / "out", embedded, resume=True)
    assert contents(tmp_path / "out") == expected


def test_two_jobs_do_not_write_to_one_folder(embedded: Any, tmp_path: Path) -> None:
    given = write(tmp_path / "t.txt", TEXTS)
    explain_corpus(given, tmp_path / "out", embedded)
    held = os.open(tmp_path / "out" / "_manifest.jsonl", os.O_RDWR)
    fcntl = pytest.importorskip("fcntl", reason="this system has no such locks")
    fcntl.flock(held, fcntl.LOCK_EX)
    assert refused(given, tmp_path / "out", embedded, resume=True) == (
        f"another job is writing to {str(tmp_path / 'out')!r}: wait for it, or give another folder"
    )
    os.close(held)


def test_a_full_disk_is_said_and_what_is_finished_stays(embedded: Any, tmp_path: Path, monkeypatch: Any) -> None:
    given, out = write(tmp_path / "t.txt", TEXTS), tmp_path / "out"
    real = files.synced

    def full(path: Path) -> None:
        if path.name.startswith(".attnflow") and (out / "part-000001.parquet").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "synced", full)
        with pytest.raises(JobError) as e:
            explain_corpus(given, out, embedded, shard_texts=2)
    assert str(e.value) == (
        f"cannot write {str(out / 'part-000002.parquet')!r}: No space left on device; finished shards stay valid: "
        "make room, and run the same again with resume=True"
    )
    assert [path.name for path in sorted(out.iterdir())] == [
        "_manifest.jsonl",
        "part-000000.parquet",
        "part-000001.parquet",
    ]
    assert len(rows(out)) == 4
    assert explain_corpus(given, out, embedded, shard_texts=2, resume=True)["resumed"] == 4


def test_an_output_that_cannot_be_written(embedded: Any, tmp_path: Path) -> None:
    given = write(tmp_path / "t.txt", TEXTS)
    assert refused(given, given, embedded) == f"the output {str(given)!r} is a file: give a folder"
    assert refused(["the key"], tmp_path / "out") == (
        "the input is a list: expected the path of a file or folder with texts"
    )
    assert refused(given, given / "below", embedded).startswith(f"cannot create the folder {str(given / 'below')!r}: ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"methods": ["rolout"]}, f"method 'rolout': expected some of {KNOWN}, separated by commas"),
        ({"layers": "L7"}, "layer 'L7': expected L1 to L6, last or all"),
        ({"layers": [6]}, "layer 6 does not exist: there are 6, so expected -6 to 5"),
        ({"layers": []}, "layers=[]: expected at least one, from 0 to 5"),
        ({"progress": "bar"}, "progress 'bar': expected one of auto, json, none"),
        ({"workers": 2}, "workers=2 requires ray=True: give that too"),
        ({"device": "cpu"}, "device has no effect on a model that is already loaded: leave it out"),
        (
            {"ray": True},
            "every worker on Ray loads the model itself: give a folder or a hub id instead of a loaded model",
        ),
    ],
)
def test_mistakes(embedded: Any, tmp_path: Path, options: dict[str, Any], told: str) -> None:
    assert refused(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", embedded, **options) == told
    assert not (tmp_path / "out").exists()


def test_a_model_of_pictures_takes_no_texts(tmp_path: Path) -> None:
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    model = af.wrap(transformers.ViTModel(config), name="small-vit")
    assert refused(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", model) == (
        "Model('small-vit', ViTModel) takes no text: a corpus job needs a model with a tokenizer"
    )


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    given = write(tmp_path / "t.txt", TEXTS)
    words = [
        "corpus",
        "run",
        str(given),
        str(tmp_path / "out"),
        "--method",
        "rollout",
        "--method",
        "flow",
        "--layer",
        "L1,last",
    ]
    done = CliRunner().invoke(app, [*words, "--progress", "json"])
    assert done.exit_code == 3  # some texts failed
    assert done.stdout.splitlines()[:6] == [
        f"8 texts, 40 tokens, 1 shard in {tmp_path / 'out'}",
        "explained: 5",
        "error, empty: 1",
        "error, encoding: 1",
        "error, too long: 1",
        "the columns error and message of each failed row say why",
    ]
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["texts"], last["of"], last["tokens"], last["errors"], last["seconds_left"]) == (8, 8, 40, 3, 0.0)
    again = CliRunner().invoke(app, [*words, "--resume", "--json"])
    assert again.exit_code == 3 and json.loads(again.stdout)["resumed"] == 8
    assert again.stderr == ""  # no progress without a terminal
    fine = CliRunner().invoke(app, ["corpus", "run", str(write(given, TEXTS[:3])), str(tmp_path / "fine"), "--json"])
    assert fine.exit_code == 0 and json.loads(fine.stdout)["errors"] == {}
    shown = CliRunner().invoke(app, ["corpus", "run", "--help"])
    assert "INPUT" in shown.output and "OUTPUT" in shown.output and "--resume" in shown.output
    group = CliRunner().invoke(app, ["corpus"]).output
    assert " run " in group and " report " in group


def test_the_lines_of_the_manifest(embedded: Any, tmp_path: Path) -> None:
    explain_corpus(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", embedded, shard_texts=5)
    first, *parts, last = map(json.loads, (tmp_path / "out" / "_manifest.jsonl").read_text().splitlines())
    assert (first["format"], first["version"], first["attnflow"]) == ("attnflow.corpus", 1, af.__version__)
    assert first["layers"] == [6] and first["methods"] == ["rollout"] and first["input"] == str(tmp_path / "t.txt")
    assert [(p["part"], p["row"], p["texts"], p["errors"]) for p in parts] == [
        (0, 0, 5, {"empty": 1}), (1, 5, 3, {"encoding": 1, "too long": 1}),
    ]  # fmt: skip
    for part in parts:
        assert (tmp_path / "out" / f"part-{part['part']:06}.parquet").stat().st_size == part["bytes"]
    assert last == {
        "finished": True, "parts": 2, "texts": 8, "tokens": sum(p["tokens"] for p in parts),
        "errors": {"empty": 1, "encoding": 1, "too long": 1},
    }  # fmt: skip
    assert read_manifest(tmp_path / "out") == [first, *parts, last] and read_manifest(tmp_path) == []


def test_pairs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,text,second\nx,"the key, to",the book\ny,is,\n')
    model = bert()
    explain_corpus(tmp_path / "t.csv", tmp_path / "out", model, pair="second")
    first, second = rows(tmp_path / "out")
    assert (first["id"], first["text"], first["pair"]) == ("x", "the key, to", "the book")
    trace = model.trace(("the key, to", "the book"))
    assert first["tokens"] == list(trace.tokens)
    np.testing.assert_allclose(first[f"rollout_L{trace.layer_count}"], trace.rollout(layer=-1).values[0], atol=2e-6)
    assert second["error"] is None


def test_the_benchmark(tmp_path: Path) -> None:
    from benchmarks import corpus_jobs as corpus

    model = bert()
    model.unwrap().save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    given = write(tmp_path / "t.txt", TEXTS[:3] * 4)
    found = corpus.run(given, str(tmp_path / "model"), 12, 2, 1, "cpu", lambda line: None)
    assert found["texts"] == 12 and found["times_plain"]["forward"] == 1.0 and found["times_by_hand"]["by hand"] == 1.0
    jobs = {*corpus.JOBS, *corpus.ANSWER_JOBS}
    assert set(found["texts_per_second"]) == {"forward", corpus.BACKWARD, "by hand", *jobs}
    assert all(rate > 0 for rate in found["texts_per_second"].values())
