"""`attnflow similarity`, and `attnflow show` with a sentence-embedding model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnflow as af
from helpers.sentence_models import PAIR, encoder, one_mode, write_folder
from helpers.small_models import classifier, model_folder
from helpers.small_tokenizers import wordpiece

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(tmp_path_factory.mktemp("models") / "m", encoder(), wordpiece(), one_mode("mean")))


def test_both_texts_are_printed(
    attnflow: Command, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    similarity = af.load(folder, device="cpu").similarity(*PAIR)
    lines = attnflow("similarity", *PAIR, "-m", folder, "--no-special", "--device", "cpu").out.splitlines()
    assert lines[0] == f"cosine similarity: {similarity.value:.4f}"
    assert sum("blank-out (words) · query sentence embedding: mean of" in line for line in lines) == 2
    printed = [line.split()[1] for line in lines if line[:1].isdigit()]
    assert printed == [word for side in similarity.by() for word in side.without_special().tokens]
    result = json.loads(attnflow("similarity", *PAIR, "-m", folder, "--method", "answer_inputs", "--json").out)
    assert result["similarity"] == pytest.approx(similarity.value) and result["measure"] == "cosine"
    assert [text["method"] for text in result["texts"]] == ["answer_inputs"] * 2
    attnflow("similarity", *PAIR, "-m", folder, "-o", str(tmp_path / "s.json"))
    assert json.loads((tmp_path / "s.json").read_text())["texts"][0]["method"] == "blank-out"
    attnflow("similarity", *PAIR, "-m", folder, "--method", "rollout", "-o", str(tmp_path / "s.html"))
    assert "attnflow-similarity" in (tmp_path / "s.html").read_text()


@pytest.mark.parametrize(("words", "sentence"), [
    (["--method", "lime"], "method 'lime': expected one of blank-out, gradient"),
    (["-o", "s.csv"], "'s.csv' has the extension '.csv': expected one of .html, .json"),
])  # fmt: skip
def test_mistakes(attnflow: Command, folder: str, words: list[str], sentence: str) -> None:
    assert sentence in attnflow("similarity", *PAIR, "-m", folder, *words, status=2).err


def test_a_model_without_pooling(attnflow: Command, tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "m", classifier(), wordpiece()))
    assert "has no pooling, so it is unknown" in attnflow("similarity", *PAIR, "-m", folder, status=2).err


def test_a_model_is_required(attnflow: Command) -> None:
    said = attnflow("similarity", *PAIR, status=2).err
    assert "give the folder or hub id of a sentence-embedding model with --model" in said and said.count("\n") == 1
    assert "required" in attnflow("similarity", "--help").out


def test_show_explains_the_embedding(attnflow: Command, folder: str, tmp_path: Path) -> None:
    shown = json.loads(attnflow("show", PAIR[0], "-m", folder, "--json").out)
    assert (
        shown["query_tokens"] == ["sentence embedding: mean of 7 tokens"] and shown["provenance"]["pooling"] == "mean"
    )
    own = json.loads(attnflow("show", PAIR[0], "-m", folder, "--query", "[CLS]", "--json").out)
    assert own["query_tokens"] == ["[CLS]"]
    largest = write_folder(tmp_path / "max", encoder(), wordpiece(), one_mode("max"))
    refused = attnflow("show", PAIR[0], "-m", str(largest), status=2)
    assert "pools by max" in refused.err and "give query=" in refused.err
