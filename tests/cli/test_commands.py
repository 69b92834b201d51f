"""The output and the errors of the commands."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af

torch = pytest.importorskip("torch", reason="models need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")

from helpers.architectures import POSITIONS, SEQ2SEQ, hf  # noqa: E402
from helpers.small_models import classifier, model_folder  # noqa: E402
from helpers.small_tokenizers import byte_level, sentencepiece, wordpiece  # noqa: E402

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "m", classifier(), wordpiece()))


@pytest.mark.long
def test_offline_and_not_in_the_cache(tmp_path: Path) -> None:
    """Runs in its own process: the hub reads its variables once."""
    run = subprocess.run(
        [sys.executable, "-m", "attnflow", "show", "the key", "-m", "no-such/model"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.strip() == (
        "attnflow: the model 'no-such/model' is not in the cache and the hub cannot be reached: connect to the network "
        "(or unset HF_HUB_OFFLINE), or give the path of a folder"
    )


def test_show(attnflow: Command, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    printed = attnflow("show", "the key to the cabinets", "-m", model, "--method", "flow", "--words", "--no-special")
    lines = printed.out.splitlines()
    assert lines[0].startswith("class: '") and "flow" in lines[1]
    assert [line.split()[1] for line in lines if line[:1].isdigit()] == ["the", "key", "to", "the", "cabinets"]
    assert "\x1b" not in printed.out
    result = json.loads(attnflow("show", "the key", "-m", model, "--layer", "all", "--query", "key", "--json").out)
    assert np.array(result["values"]).shape == (3, 1, 4)
    assert result["method"] == "rollout" and result["query_tokens"] == ["key"]
    assert attnflow("show", "the key", "-m", model, "-o", str(tmp_path / "r.npz")).out == ""
    assert af.TokenAttention.load(tmp_path / "r.npz").tokens == ("[CLS]", "the", "key", "[SEP]")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--layer", "L9"], "layer 'L9': expected L1 to L3, last or all"),
        (["--query", "all"], "query all: a table shows one query; use --json or --output for all of them"),
        (["--query", "--5"], "query '--5' is not a token of this text"),
        (["--layer", "all"], "layer all: a table shows one layer; use --json or --output for all of them"),
        (["--method", "blow"], "method 'blow': expected raw, rollout, flow, answer_inputs, answer_rows, blank-out, gradient, integrated-gradients or shapley"),
        (["--normalize", "rows"], "normalize='rows' requires edges=: give that too, or leave it out"),
        (["--method", "answer_rows", "--importance", "none", "-o", "x.html"], "method answer_rows: the page of this text has answer_inputs; leave --method out, or use the terminal"),
        (["--edges", "alti", "-o", "x.html", "--importance", "none"], "--importance needs the page of a text, which has no --edges"),
        (["--query", "zebra"], "query 'zebra' is not a token of this text: expected a position, \"all\", or one of '[CLS]', 'the', 'key', '[SEP]'"),
        (["--answer", "maybe"], "answer='maybe' is not a class of this model: expected one of "),
        (["--method", "gradient", "--of", "size"], "of='size': expected one of 'probability', 'logit'"),
        (["--importance", "full"], "--importance needs a page: add -o page.html, or use --method blank-out or --method gradient, which cover all tokens; attnflow compare has --importance too"),
        (["--importance", "much", "-o", "x.html"], "importance 'much': expected none, fast, full, or a number of seconds for blank-out"),
        (["--residual", "2"], "residual '2': expected a number between 0 and 1"),
        (["--receptive-field", "big"], "receptive_field='big': expected one of 'ratio', 'difference', 'layer', or None for none"),
        (["--method", "gradient", "--answer", "0", "-o", "x.html", "--importance", "none"], "--importance needs the page of a text, which has no --answer"),
    ],
)  # fmt: skip
def test_show_with_mistakes(attnflow: Command, model: str, words: list[str], sentence: str) -> None:
    printed = attnflow("show", "the key", "-m", model, *words, status=2)
    assert printed.out == "" and sentence in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("show", "the key"), ("answer", "the key"), ("compare", "the key"), ("similarity", "a key", "the key")]
)
def test_files_that_cannot_be_written_are_refused_before_loading(
    attnflow: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    for output, sentence in (
        ("x.doc", "'x.doc' has the extension '.doc': expected one of "),
        (str(tmp_path / "no" / "x.json"), f"there is no folder {str(tmp_path / 'no')!r}"),
        (str(folder), "it is a folder; choose another path"),
    ):
        printed = attnflow(*words, "-m", str(tmp_path / "no-model"), "-o", output, status=2)
        assert sentence in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize(("name", "sentence"), [
    ("photo.PNG", "is an image file, but this model reads text: give a text, and for a vision-language model --image"),
    ("tone.wav", "is a sound file: expected a text; Model.trace in Python takes the tensors of a sound"),
    ("minutes.txt", "is a file, and its name would be explained as the text: use - < minutes.txt, which reads its text"),
    ("w.npz", "is a file, and its name would be explained as the text: use attnflow figure graph w.npz"),
])  # fmt: skip
def test_files_are_not_read_as_words(
    attnflow: Command, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    attnflow("show", name, "-m", model, status=2 if name == "tone.wav" else 0)  # the name of no file
    attnflow("show", "the key " * 300 + name, "-m", model, "--truncate")
    Path(name).touch()
    for command in ("show", "compare"):
        assert sentence in attnflow(command, name, "-m", model, status=2).err


def test_a_page_opens_with_the_method_that_somebody_names(attnflow: Command, model: str, tmp_path: Path) -> None:
    words = ["show", "the key", "-m", model, "-o", str(tmp_path / "page.html"), "--json", "--importance", "none"]
    assert "method" not in json.loads(attnflow(*words).out)["state"]
    for method in ("raw", "rollout", "flow", "answer_inputs", "gradient"):
        assert json.loads(attnflow(*words, "--method", method).out)["state"]["method"] == method
    assert "No such option: --beside" in attnflow(*words, "--beside", "the keys", status=2).err


def test_a_page_of_bytes_that_are_no_text_is_refused_as_the_terminal_refuses_it(attnflow: Command, model: str) -> None:
    for more in ([], ["-o", "x.html"]):
        printed = attnflow("show", "\udcff key", "-m", model, *more, status=2)
        assert printed.out == "" and printed.err == (
            "attnflow: the text contains bytes that are not UTF-8: decode it with its own encoding first\n"
        )


def test_messages_name_python_arguments(attnflow: Command, tmp_path: Path) -> None:
    path = str(model_folder(tmp_path / "long", classifier(), wordpiece()))
    bare = str(model_folder(tmp_path / "bare", classifier()))
    for words, sentence in (
        (("key " * 40, "-m", path), "shorten it, split it, or give truncate=True to keep the first 32 tokens"),
        (("the key", "-m", bare), "was wrapped without a tokenizer"),
        (("the key", "--device", "moon"), "device='moon' is not available"),
        (("the key", "--dtype", "float3"), "dtype='float3': expected one of"),
    ):
        assert sentence in attnflow("show", *words, status=2).err


def test_a_page_has_as_much_importance_as_somebody_wants(attnflow: Command, model: str, tmp_path: Path) -> None:
    path = str(tmp_path / "page.html")
    for option, names in (
        (["--importance", "none"], ["answer_inputs"]),
        ([], ["answer_inputs", "gradient", "blank-out"]),
        (["--importance", "30"], ["answer_inputs", "gradient", "blank-out"]),
        (["--importance", "none", "--method", "gradient"], ["answer_inputs", "gradient"]),
        (["--importance", "full", "--method", "blank-out"], ["answer_inputs", "blank-out", "gradient"]),
    ):
        page = json.loads(attnflow("show", "the key", "-m", model, "-o", path, "--json", *option).out)
        assert sorted(one["name"] for one in page["importance"]) == sorted(names)


def test_show_begins_with_answer_edges(attnflow: Command, model: str, tmp_path: Path) -> None:
    """They explain the predicted class; options about a hidden state lead to rollout."""
    loaded = af.load(model)
    text = "the unbelievable key"
    result = json.loads(attnflow("show", text, "-m", model, "--json").out)
    expected = loaded.trace(text, edges="answer").answer_inputs(signed="shares")
    assert result["method"] == "answer_inputs" and np.allclose(result["values"], expected.values, atol=1e-6)
    words = json.loads(attnflow("show", text, "-m", model, "--words", "--json").out)
    assert words["tokens"] == ["[CLS]", "the", "unbelievable", "key", "[SEP]"]
    pieces = [i for i, word in enumerate(expected.word_ids) if word == 1]
    assert len(pieces) > 1 and np.allclose(words["values"][0][0][2], expected.row()[pieces].sum(), atol=1e-6)
    explained = expected.provenance["answer"]["name"]
    shown = " ".join(attnflow("show", text, "-m", model).out.split())
    assert f"answer_inputs (signed shares) · explains {explained!r} " in shown
    assert min(result["values"][0][0]) < 0 and f"count against {explained!r}" in shown
    for option in (["--query", "key"], ["--layer", "L2"], ["--residual", "0.3"], ["--edges", "alti"]):
        assert json.loads(attnflow("show", text, "-m", model, *option, "--json").out)["method"] == "rollout"
    for name in ("r.svg", "r.csv", "r.json"):
        attnflow("show", text, "-m", model, "-o", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size


def test_show_says_where_there_are_no_answer_edges(attnflow: Command, tmp_path: Path) -> None:
    bare = hf("BertModel", **POSITIONS)()
    folder = str(model_folder(tmp_path / "bare", bare, wordpiece()))
    printed = attnflow("show", "the key", "-m", folder, "--json")
    assert json.loads(printed.out)["method"] == "rollout"
    assert printed.err == (
        "attnflow: showing rollout, because there are no answer edges: answer edges explain an answer, but Model('bare', "
        "BertModel) has no head, so it answers nothing: expected a classifier or a language model\n"
    )
    refused = attnflow("show", "the key", "-m", folder, "--method", "answer_rows", status=2)
    assert refused.out == "" and refused.err.startswith("attnflow: answer edges explain an answer, but ")
    assert attnflow("show", " ", "-m", folder, status=2).err.count("\n") == 1  # no note before the error


def test_show_of_an_encoder_decoder_is_rollout(attnflow: Command, tmp_path: Path) -> None:
    tokenizer = sentencepiece()
    build = hf("BartForConditionalGeneration", **{**SEQ2SEQ, "vocab_size": len(tokenizer)}, decoder_start_token_id=2)
    folder = str(model_folder(tmp_path / "bart", build(), tokenizer))
    printed = attnflow("show", "The key", "-m", folder, "--json")
    assert json.loads(printed.out)["method"] == "rollout" and printed.err == (
        "attnflow: showing rollout, because there are no answer edges: Model('bart', BartForConditionalGeneration) is an "
        "encoder-decoder: attnflow answer explains the text that it writes\n"
    )
    given = attnflow("show", "The key", "-m", folder, "--target", "the cabinets", "--json")
    assert json.loads(given.out)["method"] == "rollout" and given.err == ""


def test_a_decoder_shows_its_next_token(attnflow: Command, tmp_path: Path) -> None:
    """The first token, a sink, is left out."""
    tokenizer = byte_level()
    decoder = hf("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=2, vocab_size=len(tokenizer))()
    folder = str(model_folder(tmp_path / "decoder", decoder, tokenizer))
    result = json.loads(attnflow("show", "the key to", "-m", folder, "--json").out)
    assert result["method"] == "answer_rows" and result["provenance"]["answer"]["kind"] == "next token"
    assert result["values"][0][0][0] == 0 and sum(result["values"][0][0]) == pytest.approx(1)


def test_an_answer_of_digits_is_text_for_a_decoder(attnflow: Command, model: str, tmp_path: Path) -> None:
    tokenizer = byte_level()
    decoder = hf("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=2, vocab_size=len(tokenizer))()
    folder = str(model_folder(tmp_path / "decoder", decoder, tokenizer))
    words = ["show", "the key to", "-m", folder, "--answer", "3.1"]
    result = json.loads(attnflow(*words, "--method", "gradient", "--json").out)
    assert result["provenance"]["answer"]["name"].strip() == "3.1"
    shown = json.loads(attnflow(*words, "--json").out)  # all tokens of the answer, as attnflow answer explains them
    expected = af.load(folder, device="cpu").answer("the key to", answer=result["provenance"]["answer"]["name"])
    np.testing.assert_allclose(shown["values"], expected.sources(unit="token").values, atol=1e-6)
    assert attnflow(*words, "--method", "answer_inputs", status=2).err.endswith(
        ": edges explain one token, so give one; blank_out, gradient, integrated_gradients, shapley and Model.answer take "
        "several\n"
    )
    by_number = json.loads(attnflow("show", "the key", "-m", model, "--answer", "1", "--json").out)
    assert by_number["provenance"]["answer"]["name"] == "good"


def test_a_text_that_is_not_utf_8(attnflow: Command, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert "not UTF-8" in attnflow("show", "-", "-m", model, status=2).err


def test_env(attnflow: Command) -> None:
    versions = json.loads(attnflow("env", "--json").out)
    assert (versions["attnflow"], versions["core"]) == (af.__version__, "compiled")
    assert versions["torch"] == torch.__version__
    assert f"transformers     {transformers.__version__}\n" in attnflow("env").out
