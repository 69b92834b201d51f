"""Every text method in a corpus job: rows match what Python gives, and failures become rows or errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="a corpus needs torch")
transformers = pytest.importorskip("transformers", reason="a corpus needs transformers")
pa = pytest.importorskip("pyarrow", reason="a corpus needs pyarrow")

import pyarrow.dataset as ds  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import attnflow as af  # noqa: E402
from attnflow.cli import app  # noqa: E402
from attnflow.corpus import explain_corpus  # noqa: E402
from attnflow.corpus.summary import summarize  # noqa: E402
from attnflow.edges import EDGES  # noqa: E402
from attnflow.errors import InputError  # noqa: E402
from attnflow.method_table import TEXT_METHODS, method_name, takers, takes  # noqa: E402
from attnflow.view import corpus_page  # noqa: E402
from helpers.corpora import SENTENCES  # noqa: E402
from helpers.small_models import bert as bert_of  # noqa: E402
from helpers.small_models import gpt2  # noqa: E402

TEXTS = ["the key to the cabinet", "", "nobody is able to answer", "caf\udce9", "the unbelievable book?"]
SETTINGS = ("edges", "of", "answer")
IMPORTANCE = ("blank_out", "gradient", "integrated_gradients", "shapley")


def bert() -> af.Model:
    return bert_of("BertForSequenceClassification", id2label={0: "no", 1: "yes"})


def masked() -> af.Model:
    return bert_of("BertForMaskedLM")


def write(path: Path, texts: list[str]) -> Path:
    path.write_bytes("".join(f"{text}\n" for text in texts).encode(errors="surrogateescape"))
    return path


def table_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output, format="parquet").to_table().to_pylist()


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as e:
        explain_corpus(*args, **options)
    return str(e.value)


def expected_of(model: Any, text: str, method: str, options: dict[str, Any]) -> Any:
    """Return what Python gives for one text alone."""
    label = options.get("answer")
    if method in IMPORTANCE:
        more = {"of": options["of"]} if "of" in options else {}
        more |= {"unit": "word"} if options.get("words") else {}
        return getattr(model, method)(text, answer=label, **more)
    if method in ("answer_inputs", "answer_rows"):
        trace = model.trace(text, edges="answer", answer=label)
        result = trace.answer_inputs(signed="shares") if method == "answer_inputs" else trace.answer_rows()
        return result.words() if options.get("words") else result
    edges = {name: options[name] for name in ("edges", "normalize", "answer", "of") if name in options}
    trace = model.trace(text, **(edges if "edges" in options else {}))
    more = {"residual": options["residual"]} if "residual" in options and method != "raw" else {}
    trace = trace.words() if options.get("words") else trace
    return getattr(trace, method)(options.get("query"), **more)


@pytest.mark.filterwarnings("ignore:the probability of:attnflow.errors.AttentionWarning")
@pytest.mark.parametrize(
    ("model", "methods", "options"),
    [
        (bert, ("answer_inputs", "answer_rows", *IMPORTANCE), {}),
        (bert, ("blank-out", "gradient"), {"answer": "no", "of": "logit"}),
        (bert, ("rollout", "flow", "answer_inputs", "blank_out"), {"words": True, "answer": 1}),
        (bert, ("raw", "rollout"), {"edges": "value-norm", "normalize": "graph", "query": 2}),
        (bert, ("flow", "answer_rows"), {"edges": "attention-gradient", "answer": "yes"}),
        (bert, ("answer_inputs", "answer_rows"), {}),
        (bert, ("raw", "rollout", "flow"), {"edges": "attention-gradient", "normalize": "rows"}),
        (bert, ("raw", "rollout", "flow"), {"edges": "answer"}),
        (gpt2, ("answer_inputs", "answer_rows"), {}),
        (gpt2, ("raw", "rollout"), {"edges": "gradient", "of": "log-odds"}),
        (gpt2, ("rollout", "answer_rows", "gradient"), {}),
        (gpt2, ("blank_out",), {"answer": "the key"}),
    ],
)  # fmt: skip
def test_a_row_has_what_python_gives_for_its_text(
    model: Any, methods: tuple[str, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    wrapped = model()
    every = {"layers": "all"} if any(takes(method_name(name), "layers") for name in methods) else {}
    source = write(tmp_path / "t.txt", TEXTS)
    explain_corpus(source, tmp_path / "out", wrapped, methods=methods, shard_texts=3, **every, **options)
    table = rows(tmp_path / "out")
    assert [row["error"] for row in table] == [None, "empty", None, "encoding", None]
    for text, row in zip(TEXTS, table, strict=True):
        if row["error"] is not None:
            assert all(value is None for name, value in row.items() if name.startswith(("rollout", "answer", "blank")))
            continue
        for method in (name.replace("-", "_") for name in methods):
            result = expected_of(wrapped, text, method, options)
            assert row["tokens"] == list(result.tokens) and row["special"] == list(result.special)
            columns = [f"{method}_L{n + 1}" for n in result.layers] if f"{method}_L1" in row else [method]
            for column, values in zip(columns, result.values, strict=True):
                np.testing.assert_allclose(row[column], values, atol=2e-6, rtol=1e-5)
            if "answer" in result.provenance and columns == [method]:
                about = result.provenance["answer"]
                assert row["answer"] == about["name"]
                assert row["answer_log_probability"] == pytest.approx(math.log(about["probability"]), abs=1e-4)
        record = json.loads(row["provenance"])
        assert {name: record[name] for name in SETTINGS if name in options} == {
            name: options[name] for name in SETTINGS if name in options
        }
    settings = json.loads((tmp_path / "out" / "_manifest.jsonl").read_text().splitlines()[0])
    assert {name: settings[name] for name in SETTINGS if settings[name] is not None} == {
        name: options[name] for name in SETTINGS if name in options
    }


def test_each_row_may_name_its_answer(tmp_path: Path) -> None:
    """A row names a class or its number; an unknown class fails only its own row."""
    model = bert()
    table = [{"text": TEXTS[0], "gold": "yes"}, {"text": TEXTS[2], "gold": 0}, {"text": TEXTS[4], "gold": "maybe"}]
    source = table_of(tmp_path / "t.jsonl", [*table, {"text": TEXTS[0]}, {"text": "", "gold": 1}])
    sums = explain_corpus(source, tmp_path / "out", model, methods="answer_rows,gradient", answer_column="gold")
    assert sums["errors"] == {"answer": 2, "empty": 1}
    first, second, third, fourth, _ = rows(tmp_path / "out")
    for row, text, label in ((first, TEXTS[0], "yes"), (second, TEXTS[2], "no")):
        assert row["answer"] == label
        np.testing.assert_allclose(row["gradient"], model.gradient(text, label).values[0], atol=1e-6)
        trace = model.trace(text, edges="answer", answer=label)
        np.testing.assert_allclose(row["answer_rows"], trace.answer_rows().values[0], atol=1e-6)
    assert third["message"] == "answer='maybe' is not a class of this model: expected one of 'no', 'yes'"
    assert fourth["message"] == "the column 'gold' has no answer for this text: expected one"
    assert json.loads(first["provenance"])["answer_column"] == "gold"
    table_of(source, [{"text": TEXTS[0], "gold": "no"}, *table[1:], {"text": TEXTS[0]}, {"text": "", "gold": 1}])
    assert "have changed since it was written: give another folder" in refused(
        source, tmp_path / "out", model, methods="answer_rows,gradient", answer_column="gold", resume=True
    )
    pq.write_table(pa.table({"text": [TEXTS[0], TEXTS[2]], "gold": [1, None]}), tmp_path / "t.parquet")
    explain_corpus(tmp_path / "t.parquet", tmp_path / "typed", model, methods="gradient", answer_column="gold")
    assert [(row["answer"], row["error"]) for row in rows(tmp_path / "typed")] == [("yes", None), (None, "answer")]


def test_texts_without_a_mask_have_no_answer(tmp_path: Path) -> None:
    model = masked()
    source = table_of(
        tmp_path / "t.jsonl", [{"text": "the [MASK] is", "word": "key"}, {"text": "the key", "word": "is"}]
    )
    explain_corpus(source, tmp_path / "out", model, methods="answer_inputs", answer_column="word")
    first, second = rows(tmp_path / "out")
    trace = model.trace("the [MASK] is", edges="answer", answer="key")
    np.testing.assert_allclose(first["answer_inputs"], trace.answer_inputs(signed="shares").values[0], atol=1e-6)
    assert first["answer"] == "key" and first["queries"] == [2] and second["error"] == "answer"
    assert (
        second["message"]
        == "the text has no [MASK], so the masked language model has nothing to predict: put one into the text"
    )


def test_a_text_on_which_a_method_fails_harms_no_other(tmp_path: Path, monkeypatch: Any) -> None:
    model = bert()
    real = type(model).blank_out

    def thrown(self: Any, text: Any, **options: Any) -> Any:
        if "nobody" in text.tokens:
            raise RuntimeError("out of memory")
        return real(self, text, **options)

    monkeypatch.setattr(type(model), "blank_out", thrown)
    explain_corpus(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", model, methods="blank_out")
    assert [row["error"] for row in rows(tmp_path / "out")] == [None, "empty", "model", "encoding", None]
    assert rows(tmp_path / "out")[2]["message"] == "RuntimeError: out of memory"


OTHERS = "leave it out, or choose one of those methods"
ABOUT = "answer_inputs, answer_rows, blank_out, gradient, integrated_gradients, shapley, and edges by gradients"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"methods": "gather"}, f"method 'gather': expected some of {', '.join(TEXT_METHODS)}, separated by commas"),
        ({"normalize": "rows"}, "normalize='rows' requires edges=: give that too, or leave it out"),
        ({"edges": "alti", "normalize": "all"}, "normalize='all': expected one of 'rows', 'graph', 'none'"),
        ({"edges": "soft"}, f"edges='soft': expected one of {', '.join(map(repr, EDGES))}"),
        ({"methods": "gradient", "of": "size"}, "of='size': expected one of 'probability', 'logit', 'log-odds', 'difference'"),
        ({"answer_column": "gold"}, f"answer_column='gold' applies to {ABOUT}, not to rollout: {OTHERS}"),
        ({"methods": "gradient", "answer": 1, "answer_column": "gold"}, "answer=1 applies to all texts and answer_column='gold' gives one per text: leave one of them out"),
        ({"methods": "raw", "residual": 0.3}, f"residual=0.3 applies to rollout, flow, not to raw: {OTHERS}"),
        ({"residual": "measured"}, "residual='measured': expected a number between 0 and 1 (the paper uses 0.5)"),
        ({"unit": "word"}, "unit='word' requires answers=True: give that too, or leave it out"),
        ({"methods": "gradient", "answer": "maybe"}, "answer='maybe' is not a class of this model: expected one of 'no', 'yes'"),
        ({"methods": "answer_rows", "answer_column": "gold"}, "answer_column='gold' names a column, and t.txt has no columns: leave it out, or give only tables"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_a_folder_is_made(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    message = refused(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", bert(), **options)
    assert message == sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "methods", "sentence"),
    [
        (lambda: bert_of("BertModel"), "answer_rows", "answer edges explain an answer, but Model('BertModel', BertModel) has no head"),
        (lambda: bert_of("BertModel"), "gradient", "Model('BertModel', BertModel) has no head, so it answers nothing"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_is_refused_at_once(model: Any, methods: str, sentence: str, tmp_path: Path) -> None:
    message = refused(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", model(), methods=methods)
    assert message.startswith(sentence) and not (tmp_path / "out").exists()


def test_the_table_of_methods_and_the_command_agree(tmp_path: Path) -> None:
    """Every method of the table runs by its name; `show`'s names with dashes work too."""
    assert takers("words") == list(TEXT_METHODS)
    source = write(tmp_path / "t.txt", ["the key", "the keys"])
    names = [name for name in TEXT_METHODS if name not in ("integrated_gradients", "shapley")]
    words = ["corpus", "run", str(source), str(tmp_path / "out"), "--method", ",".join(names), "--method", "blank-out"]
    done = CliRunner().invoke(app, [*words, "--edges", "gradient", "--residual", "0.25", "--answer", "1", "--json"])
    assert done.exit_code == 0, done.output
    settings = json.loads((tmp_path / "out" / "_manifest.jsonl").read_text().splitlines()[0])
    assert settings["methods"] == names and settings["answer"] == "1" and settings["residual"] == 0.25
    assert all(row["answer"] == "plural" for row in rows(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "layer", "signed"),
    [
        ({"methods": "rollout,answer_inputs,blank_out", "layers": "L1,last"}, "L6", ["answer_inputs"]),
        ({"methods": "answer_inputs,answer_rows"}, "all layers", ["answer_inputs"]),
        ({"methods": "rollout,gradient", "edges": "attention-gradient"}, "L6", []),
    ],
)
def test_a_report_of_methods_with_and_without_layers(
    options: dict[str, Any], layer: str, signed: list[str], tmp_path: Path
) -> None:
    model = af.load(device="cpu")
    explain_corpus(write(tmp_path / "t.txt", list(SENTENCES)), tmp_path / "out", model, **options)
    summary = summarize(tmp_path / "out")
    names = options["methods"].split(",")
    lone = [name for name in names if name != "rollout"]
    assert (summary["views"], summary["signed"]) == (names, signed)
    assert summary["lead"] == {"method": lone[0], "layer": layer}  # methods about the answer come first
    assert summary["about_answer"] == (names if "edges" in options else lone)
    types = [row[1] for row in summary["types"]["rows"]]
    table = [row for row in rows(tmp_path / "out") if row["error"] is None]
    for number, lift, count in summary["top"][lone[0]]:
        values = []
        for row in table:
            scores = np.array(row[lone[0]][0])
            kept = [i for i, special in enumerate(row["special"]) if not special and i not in row["queries"]]
            whole = 1 if lone[0] in signed else scores[kept].sum()  # signed scores are not parts of a whole
            values += [scores[i] / whole * len(kept) for i in kept if row["tokens"][i] == types[number]]
        assert lift == pytest.approx(np.mean(values), rel=1e-4, abs=1e-6) and count == len(values)
    assert '"about_answer"' in corpus_page.html_of(summary)


@pytest.mark.parametrize("methods", ["answer_rows", "rollout"])
def test_a_text_with_numbers_that_are_none_harms_no_other(methods: str, tmp_path: Path) -> None:
    model = bert()
    place = model.tokenizer.convert_tokens_to_ids("nobody")
    with torch.no_grad():
        model.model.get_input_embeddings().weight[place] = float("nan")
    edges = {"edges": "attention-gradient"} if methods == "rollout" else {}
    explain_corpus(write(tmp_path / "t.txt", TEXTS), tmp_path / "out", model, methods=methods, **edges)
    table = rows(tmp_path / "out")
    assert [row["error"] for row in table] == [None, "empty", "model", "encoding", None]
    column = next(name for name in table[0] if name.startswith(methods))
    assert np.isfinite(table[0][column]).all() and np.isfinite(table[4][column]).all()


def test_whole_numbers_with_a_point_are_numbers_of_classes(tmp_path: Path) -> None:
    """pandas writes a column of integers this way if a cell is missing."""
    source = tmp_path / "t.csv"
    source.write_text("text,label\nthe key,1.0\nthe key,1\nthe key,yes\nthe key,\n")
    explain_corpus(source, tmp_path / "out", bert(), methods="gradient", answer_column="label")
    table = rows(tmp_path / "out")
    assert [row["answer"] for row in table] == ["yes", "yes", "yes", None]
    assert [row["error"] for row in table] == [None, None, None, "answer"]
