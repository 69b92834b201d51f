"""The README is short, in the promised order, and everything in it runs (doctest runs its examples).

`tests/soak/test_smollm.py` runs the command with a real language model; `tests/packages` runs the installation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_models import classifier, gpt2, model_folder
from helpers.small_tokenizers import byte_level, wordpiece

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
TABLE = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in README.splitlines()
    if line.startswith("| a ") or line.startswith("| two ")
]

Command = Callable[..., Any]


def test_it_is_short_and_begins_with_what_people_need() -> None:
    assert len(README.split()) <= 700
    lines = README.splitlines()
    assert next(i for i, line in enumerate(lines) if line.startswith("pip install")) < 15
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert headings == [
        "Install", "A classifier or encoder", "A language model's answer", "Your own attention weights",
        "What to use when", "What it is not", "Links",
    ]  # fmt: skip


def test_every_link_and_picture_exists() -> None:
    paths = [path for path in re.findall(r"\]\(([^)]+)\)", README) if "://" not in path]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path.partition("#")[0]).is_file()] == []


def test_commands_print_what_it_shows(attnflow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    examples = [block.split("\n", 1) for kind, block in BLOCKS if kind == "console"]
    assert len(examples) == 2
    for command, output in examples:
        words = shlex.split(command.removeprefix("$ attnflow "))
        if "-m" not in words:
            assert attnflow(*words).out == output


def test_the_command_of_the_installation(attnflow: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"^attnflow (.*?) +#", BLOCKS[0][1], re.MULTILINE)
    attnflow(*shlex.split(line))
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (code,) = (block for kind, block in BLOCKS if kind == "python" and ">>>" not in block)
    exec(compile(code, "README.md", "exec"), {})
    table = BLOCKS[1][1].split("\n", 2)[2].partition("verb-number")[2]  # without the command and the prediction
    assert table in capsys.readouterr().out, "trace.sources().show() prints the table above"
    assert (tmp_path / "rollout.csv").is_file() and (tmp_path / "page.html").is_file()


def test_commands_in_sentences(attnflow: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("weights.npy", np.random.default_rng(0).dirichlet(np.ones(8), size=(6, 4, 8)))
    Path("reviews.csv").write_text("id,text\n7,the key\n8,the keys\n", encoding="utf-8")
    commands = [shlex.split(line) for line in re.findall(r"`attnflow ((?:corpus|figure|serve)[^`]*)`", README)]
    for words in commands:
        attnflow(*words, *(["--help"] if words == ["serve"] else []))
    assert [words[0] for words in commands] == ["corpus", "serve", "figure"]
    assert Path("figure.pdf").is_file() and any(Path("results").glob("*.parquet"))
    assert {"layers"} <= set(re.findall(r"`figure (\w+)`", README))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_commands_of_the_table(row: list[str], attnflow: Command, tmp_path: Path) -> None:
    command = row[2].strip("`").removeprefix("attnflow ")
    if command.startswith("similarity"):
        from helpers.sentence_models import encoder, one_mode, write_folder

        folder = write_folder(tmp_path / "m", encoder(), wordpiece(), one_mode("mean"))
    elif command.startswith("answer"):
        folder = model_folder(tmp_path / "m", gpt2(tokenizer=byte_level()).model, byte_level())
    else:
        folder = model_folder(tmp_path / "m", classifier(), wordpiece())
    texts = {
        "PROMPT": "The key is rusty. Which one?",
        "TEXT": "the key to the book",
        "OTHER": "a book",
        "MODEL": str(folder),
    }
    method = row[1].partition(",")[0].strip("`")
    assert f"· {method} " in attnflow(*(texts.get(word, word) for word in command.split())).out.replace("(", " (")


def test_there_is_a_line_for_every_kind_of_model() -> None:
    assert len(TABLE) == 5
