"""`attnflow answer`: the prompt it builds, its output, and every mistake as one sentence."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="models need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")

import attnflow as af  # noqa: E402
from attnflow.answering import TOKENS  # noqa: E402
from helpers.chat_templates import PLAIN  # noqa: E402
from helpers.small_models import classifier, model_folder  # noqa: E402
from helpers.small_tokenizers import byte_level, wordpiece  # noqa: E402

Command = Callable[..., Any]

PROMPT = "The key is rusty. The cabinet is not. Which one is rusty?"


def writer(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=192, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = byte_level()
    return str(model_folder(tmp_path_factory.mktemp("models") / "plain", writer(tokenizer), tokenizer))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = byte_level()
    tokenizer.chat_template = PLAIN
    return str(model_folder(tmp_path_factory.mktemp("models") / "chatty", writer(tokenizer), tokenizer))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "there is no prompt: give a text, - to read standard input, or --prompt-file FILE"),
        (["a", "--prompt-file", "a.txt"], "there is a prompt and a --prompt-file: give only one of them"),
        (["--prompt-file", "no.txt"], "there is no file 'no.txt': expected UTF-8 text"),
        (["--prompt-file", "empty.txt"], "'empty.txt' is empty: expected at least one word"),
        (["--prompt-file", "latin.txt"], "latin.txt, line 2 is not UTF-8: convert the file first"),
        ([" "], "the prompt is empty: expected at least one word"),
        (["-"], "standard input is empty: expected at least one word"),
        (["a", "--answer", "b", "--tokens", "3"], "--tokens limits what the model writes, but --answer is already written: leave one of them out"),
        (["a", "--answer", " "], "the answer ' ' is empty: expected at least one word"),
        (["a", "--span", "b", "--unit", "verse"], "unit 'verse': expected one of token, word, sentence, paragraph, message, document"),
        (["a", "--method", "flow", "-o", "x.html"], "a page ranks by the method recommended for each unit, or by answer_rows only: leave --method out, or save .json, .csv or .parquet"),
        (["a", "--method", "hops"], "flow. Hops through the answer's own words are on the page (-o answer.html), in .json files, and in Python (answer.hops())"),
        (["a", "--method", "answer_inputs"], "flow. answer_inputs explains one next token or class: use attnflow show --method answer_inputs"),
        (["a", "--occurrence", "2"], "--occurrence needs --span: add --span, or leave --occurrence out"),
        (["a", "--document", "a.txt"], "--document 'a.txt': expected NAME=FILE, for example minutes=minutes.txt"),
        (["a", "--document", "a=a.txt", "--document", "a=a.txt"], "--document 'a=a.txt': another document is already named 'a': choose a different name"),
        (["a", "--document", "a=empty.txt"], "the document 'a' is empty: write something, or leave it out"),
        (["key " * 400], "tokens and the model takes 192: shorten it"),
        (["a", "--document", "minutes=long.txt"], "and the model takes 192: 'minutes' has "),
        (["a", "--system", "be short"], "system needs a chat template, and the tokenizer of this model has none: put its content into the prompt"),
        (["a", "--system", "be short", "--no-chat"], "--system needs the chat template, but --no-chat turns it off: leave one of them out"),
        (["a", "-o", "x.doc"], "'x.doc' has the extension '.doc': expected one of .html, .json, .csv, .parquet"),
        (["a", "--unit", "document"], "the prompt has no documents: choose another unit, or give it with documents={name: text}"),
        (["a", "--chat"], "the tokenizer of this model has no chat template, which a list of messages needs: give the prompt as one text"),
    ],
)  # fmt: skip
def test_mistakes(
    attnflow: Command, plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    Path("a.txt").write_text("A text.\n")
    Path("empty.txt").write_text("\n")
    Path("long.txt").write_text("the key " * 300)
    Path("latin.txt").write_bytes(b"one\ncaf\xe9\n")
    printed = attnflow("answer", *words, "-m", plain, status=2)
    assert printed.out == "" and sentence in printed.err and printed.err.count("\n") == 1


def test_models_that_do_not_write(attnflow: Command, tmp_path: Path) -> None:
    assert attnflow("answer", "a", status=2).err == (
        "attnflow: the embedded model is a classifier and writes no text: give the folder or hub id of a language model "
        "with --model\n"
    )
    folder = model_folder(tmp_path / "m", classifier(), wordpiece())
    assert attnflow("answer", "a", "-m", str(folder), status=2).err == (
        "attnflow: BertForSequenceClassification generates no text: expected a language model that generates, such as a "
        "decoder; trace() and attnflow.compare explain classifiers and masked language models\n"
    )


def test_what_is_handed_to_the_model(
    attnflow: Command, plain: str, chatty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line, a file and standard input give the same prompt; with a chat template, it becomes a message."""
    (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    ways = ([PROMPT], ["--prompt-file", str(tmp_path / "prompt.txt")], ["-"])
    results = [json.loads(attnflow("answer", *way, "-m", plain, "--tokens", "4", "--json").out) for way in ways]
    assert results[0] == results[1] == results[2]
    expected = af.load(plain).answer(PROMPT, max_new_tokens=4)
    assert results[0] == json.loads(json.dumps(expected.to_dict()))
    assert results[0]["prompt"]["text"] == PROMPT and len(results[0]["answer"]["ids"]) == 4
    message = [{"role": "user", "content": PROMPT}]
    asked = json.loads(attnflow("answer", PROMPT, "-m", chatty, "--answer", "the key", "--json").out)
    assert asked == json.loads(json.dumps(af.load(chatty).answer(message, answer="the key").to_dict()))
    assert asked["prompt"]["text"] == f"<|start|>user\n{PROMPT}<|stop|>\n<|start|>assistant\n"
    bare = json.loads(attnflow("answer", PROMPT, "-m", chatty, "--no-chat", "--answer", "the key", "--json").out)
    assert bare["prompt"]["text"] == PROMPT and not bare["answer"]["written"]


def test_documents_units_spans_and_verification(attnflow: Command, chatty: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The key is rusty.\n")
    (tmp_path / "b.txt").write_text("The cabinet is not.\n")
    documents = ["--document", f"one={tmp_path / 'a.txt'}", "--document", f"two={tmp_path / 'b.txt'}"]
    words = [
        "Which?",
        "-m",
        chatty,
        "--answer",
        "the key, the book",
        "--system",
        "Say it.",
        *documents,
        "--unit",
        "document",
    ]
    span = ["--span", "the", "--occurrence", "2", "--verify", "1"]
    result = json.loads(attnflow("answer", *words, *span, "--json").out)
    answer = af.load(chatty).answer(
        [{"role": "user", "content": "Which?"}], answer="the key, the book", system="Say it.",
        documents={"one": "The key is rusty.", "two": "The cabinet is not."},
    )  # fmt: skip
    assert result == json.loads(json.dumps(answer.to_dict("document", 1, ("the", 2))))
    assert [unit["text"] for unit in result["sources"]["units"]] == ["one", "two"]
    assert attnflow("answer", *words, *span, "-o", str(tmp_path / "x.csv")).out == ""
    expected = answer.sources(("the", 2), "document", verify=1)
    with (tmp_path / "x.csv").open(newline="") as file:
        saved = list(csv.DictReader(file))
    assert [row["token"] for row in saved] == ["one", "two"]
    assert np.allclose([float(row["value"]) for row in saved], expected.row())
    printed = attnflow("answer", *words, *span, "-o", str(tmp_path / "x.html"))
    assert printed.out == "" and printed.err == f"wrote {tmp_path / 'x.html'}\n"
    answer.save(tmp_path / "y.html", "document", 1, ("the", 2))
    assert (tmp_path / "x.html").read_bytes() == (tmp_path / "y.html").read_bytes()
    shown = attnflow("answer", *words).out
    assert "the key, the book" in shown and "one" in shown and "two" in shown


@pytest.mark.parametrize("number", ["-1", "few"])
def test_a_number_to_verify(attnflow: Command, plain: str, number: str) -> None:
    assert "--verify" in attnflow("answer", "a", "-m", plain, "--verify", number, status=2).err


def test_a_unit_that_is_the_whole_prompt_is_not_left_out(attnflow: Command, plain: str, tmp_path: Path) -> None:
    """The answer is printed as without --verify."""
    words = ["answer", "the key is rusty", "-m", plain, "--tokens", "3", "--no-chat"]
    note = (
        "attnflow: --verify was skipped: the whole prompt is one sentence, and without it there is nothing left to "
        "answer; give a smaller --unit or a longer prompt\n"
    )
    for more in ([], ["--json"]):
        printed = attnflow(*words, *more, "--verify", "3")
        assert printed.out == attnflow(*words, *more).out != "" and printed.err == note
    page = tmp_path / "answer.html"
    answer = f"answer: {json.loads(attnflow(*words, '--json').out)['answer']['text']!r}\n"
    printed = attnflow(*words, "--verify", "3", "-o", str(page))
    assert printed.err == f"{note}{answer}wrote {page}\n" and printed.out == "" and page.exists()
    assert attnflow(*words, "--unit", "word", "--verify", "1").err == ""


def test_help_tells_how_much_the_model_writes(attnflow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"Maximum number of tokens that the model writes; by default, {TOKENS}." in attnflow("answer", "--help").out
