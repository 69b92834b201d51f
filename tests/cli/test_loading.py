"""Errors for models that cannot be loaded: one sentence that names the command's options."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.loading_cells import pickled
from deployments.quantised_cells import METHODS, library, unknown
from helpers.small_models import classifier, model_folder
from helpers.small_tokenizers import wordpiece

Command = Callable[..., Any]

BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "PyTorch files": (pickled, "model", "convert it, or give allow_pickle=True to read its PyTorch files"),
    "GPTQ": (lambda f: library(f, METHODS["GPTQ"]), "", "quantised by gptq, which transformers cannot load here"),
    "an unknown method": (unknown, "", "which would be random: download all of its files"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_sentence(attnflow: Command, tmp_path: Path, name: str) -> None:
    make, folder, sentence = BROKEN[name]
    make(tmp_path)
    printed = attnflow("show", "a text", "-m", str(tmp_path / folder), status=2)
    assert sentence in printed.err and "Traceback" not in printed.err
    assert printed.err.startswith("attnflow: ") and printed.err.count("\n") == 1 and not printed.out


@pytest.fixture
def pytorch_folder(tmp_path: Path) -> Path:
    path = model_folder(tmp_path / "m", classifier(), wordpiece())
    torch.save(classifier().state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


def test_allow_pickle_of_every_command(attnflow: Command, tmp_path: Path, pytorch_folder: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("text\nthe key to the cabinet\nthe key is rusty\n")
    source = ("-m", str(pytorch_folder))
    for words in (
        ("show", "the key", *source),
        ("compare", "the key", *source),
        ("evaluate", str(texts), *source, "--importance", "gradient", "--views", "raw"),
        ("corpus", "run", str(texts), str(tmp_path / "out"), *source, "--method", "raw", "--method", "rollout"),
    ):
        assert "give allow_pickle=True to read" in attnflow(*words, status=2).err
        attnflow(*words, "--allow-pickle")


def test_answer_and_serve_have_the_option(attnflow: Command) -> None:
    for command in ("answer", "serve"):
        assert "--allow-pickle" in attnflow(command, "--help").out


def test_device_auto(attnflow: Command, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device maps are accelerate's")
    path = str(model_folder(tmp_path / "m", classifier(), wordpiece()))
    values = [
        json.loads(attnflow("show", "the key", "-m", path, "--device", device, "--method", "rollout", "--json").out)
        for device in ("auto", "cpu")
    ]
    if not torch.cuda.is_available():
        assert values[0]["values"] == values[1]["values"]


def test_notices_of_other_libraries_stay_out(attnflow: Command) -> None:
    attnflow("show", "the key")
    assert logging.getLogger("torchao").level == logging.getLogger("bitsandbytes").level == logging.ERROR
